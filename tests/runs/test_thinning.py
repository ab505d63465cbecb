"""Bundles of long runs: fewer steps, the same tables."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fathom_study.analysis.run_tables import write_tables
from fathom_study.analysis.tables import LOSSES, at_kept_steps, read_steps, read_table
from fathom_study.metrics.steps import CLOCKS
from fathom_study.report.figures.frames import first_nonfinite
from fathom_study.report.figures.panels import against_step
from fathom_study.report.pages.explorer import study_data
from fathom_study.runs.bundle import BundleError, create_bundle, import_bundle
from fathom_study.runs.folder import METRICS, encode_row, read_rows
from fathom_study.runs.thinning import FIRST, thin_rows, whole_steps
from tests.runs.test_bundle import Parts
from tests.support.commands import refusal
from tests.support.runs import config_with, metric_rows, write_cell

LONG = 1000
EVALUATED = next(step for step in range(400, LONG) if step not in whole_steps(LONG))


def losses_of(run):
    """A falling loss with noise, and a spike that no kept step shows."""
    losses = 4 / (1 + np.arange(LONG) / 100) * np.random.default_rng(run).uniform(1, 1.05, LONG)
    losses[700:703] += 3
    return losses.tolist()


def columns_of(run):
    """Columns with other numbers at every step: their extremes are at steps that are not kept."""
    rng = np.random.default_rng([run, 1])
    gain = rng.normal(size=LONG)
    gain[701] = 9.0
    return {
        "grad_norm": rng.uniform(1, 2, LONG).tolist(),
        "gain_proxy_log10_max_entry": gain.tolist(),
    }


@pytest.fixture
def long(tmp_path):
    """(config of long runs here, config of a machine that imported them)."""
    axes = {"variants": ["baseline", "mhc"], "depths": [2], "backends": ["torch"], "seeds": [0, 1]}
    study = {"score": "training_loss", "rates": [0.002, 0.004], "steps": LONG}
    here, there = (config_with(tmp_path / name, a={**axes, **study}) for name in ("a", "b"))
    for number, cell in enumerate(here.cells()):
        write_cell(here, cell, losses_of(number), **columns_of(number))
    create_bundle(here, tmp_path / "long.tar.xz")
    import_bundle(tmp_path / "b", tmp_path / "long.tar.xz")
    return here, there


def tables_of(config, folder):
    write_tables(config, folder)
    return {file.name: read_table(file) for file in sorted(folder.glob("*.csv"))}


def test_tables_of_thinned_runs_are_the_same(long, tmp_path):
    """But for what says where a run was made."""
    ours, theirs = (tables_of(config, tmp_path / config.results[-1:]) for config in long)
    where = ["platform", "status", "reason", "made_by"]
    for name, table in ours.items():
        same = [column for column in table if column not in where]
        pd.testing.assert_frame_equal(table[same], theirs[name][same], check_exact=True, obj=name)
    assert ours["stability.csv"]["spikes"].tolist() == [4, 4]
    whole, thin = (read_steps(tmp_path / c.results[-1:], ["a"], LOSSES) for c in long)
    assert len(whole) == 8 * LONG > len(at_kept_steps(whole))
    assert at_kept_steps(whole)["loss"].tolist() == thin["loss"].tolist()


def test_a_long_run_keeps_some_rows():
    rows = metric_rows(losses_of(0), **columns_of(0))
    rows[-1]["test_accuracy"] = rows[EVALUATED]["test_accuracy"] = 0.1
    rows[500] |= {"loss": math.nan, "nonfinite_event": 1}
    thinned = list(thin_rows(rows))
    assert all(row["loss"] == rows[row["step"]]["loss"] for row in thinned if row["step"] != 500)
    whole = [row["step"] for row in thinned if "grad_norm" in row]
    assert whole[:FIRST] == list(range(FIRST))
    assert {500, LONG - 1} < set(whole)
    assert 200 < len(whole) <= 251
    ratios = np.diff(np.log([step for step in sorted(whole_steps(LONG)) if step > 300]))
    assert ratios.max() < 1.4 * ratios.min()  # even in the logarithm, but for rounding
    evaluation = {"step": EVALUATED, "loss": rows[EVALUATED]["loss"], "test_accuracy": 0.1}
    assert [row for row in thinned if "grad_norm" not in row] == [evaluation]
    assert "step_seconds" not in thinned[0]
    assert thinned[10]["grad_norm"] == rows[10]["grad_norm"]
    assert (
        thinned[-1]["grad_norm"]
        == float(np.float32(rows[-1]["grad_norm"]))
        != rows[-1]["grad_norm"]
    )
    assert repr(list(thin_rows(thinned))) == repr(thinned)


def test_numbers_out_of_the_range_of_float32_stay():
    huge = {"grad_norm": [1e39] * LONG, "amax_forward_log10": [1e-60] * LONG}
    last = list(thin_rows(metric_rows([1.0] * LONG, **huge)))[-1]
    assert (last["grad_norm"], last["amax_forward_log10"]) == (1e39, 1e-60)


# --- what an import refuses ----------------------------------------------------------------------


def with_rows(parts, change):
    rows = [json.loads(line) for line in parts.read(METRICS).splitlines()]
    change(rows)
    parts.replace(METRICS, "".join(map(encode_row, rows)).encode())
    parts.seal()


def with_metrics(parts, **metrics):
    parts.edit_manifest(lambda manifest: manifest["summary"]["metrics"].update(metrics))


def without_summary(parts):
    parts.edit_manifest(lambda manifest: manifest.pop("summary"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda p: with_metrics(p, loss_tail=-0.5), "'loss_tail'"),
        (lambda p: with_metrics(p, loss_first=0.5), "'loss_first'"),
        (lambda p: with_metrics(p, loss_final=None), "'loss_final'"),
        (lambda p: with_metrics(p, gain_final=0.5), "'gain_final'"),
        (lambda p: with_metrics(p, grad_norm_max=-1.0), "'grad_norm_max'"),
        (lambda p: with_metrics(p, loss_min="low"), "loss_min"),
        (without_summary, "line 1 has no valid 'step_seconds'"),
        (lambda p: with_rows(p, lambda rows: rows[9].pop("grad_norm")), "line 10 has no valid"),
        (lambda p: with_rows(p, lambda rows: rows[60].pop("loss")), "has no valid 'loss'"),
        (lambda p: with_rows(p, lambda rows: rows[60].update(loss=-1.0)), "has no valid 'loss'"),
        (lambda p: with_rows(p, lambda rows: rows[60].update(loss=math.nan)), "nonfinite_event"),
        (lambda p: with_rows(p, lambda rows: rows[60].pop("grad_norm")), "line 61 has no valid"),
        (lambda p: with_rows(p, lambda rows: rows.insert(60, rows[61])), "in order"),
        (lambda p: with_rows(p, lambda rows: rows.pop()), "kept steps"),
        (lambda p: with_rows(p, lambda rows: rows.pop(60)), "kept steps of 0 to"),
    ],
)  # fmt: skip
def test_thinned_runs_that_contradict_themselves_are_refused(long, tmp_path, change, said):
    parts = Parts(tmp_path / "long.tar.xz")
    change(parts)
    bad = parts.pack(tmp_path / "bad.tar.xz")
    assert said in refusal(import_bundle, tmp_path / "c", bad, error=BundleError)


# --- what reads steps ----------------------------------------------------------------------------


@pytest.fixture
def steps(long, tmp_path):
    tables_of(long[1], tmp_path / "t")
    return read_steps(tmp_path / "t", ["a"])


def test_figures_take_missing_rows_for_no_failure(steps):
    is_evaluation = steps["step"] == sorted(whole_steps(LONG))[60]
    steps.loc[is_evaluation, ["grad_norm", "nonfinite_event"]] = math.nan  # the loss beside it
    assert first_nonfinite(steps) is None
    steps.loc[steps["step"] == LONG - 1, "grad_norm"] = math.inf
    assert first_nonfinite(steps) == (LONG - 1, "gradient")


def test_explorer_draws_kept_steps_without_gaps(long, tmp_path):
    _, there = long
    cells = tables_of(there, tmp_path / "t")["cells.csv"]
    data = study_data(there, "a", read_steps(tmp_path / "t", ["a"]), cells, {})["data"]["step"]
    assert "NaN" not in data["grad_norm"]
    assert {0, 1, 2, LONG - 1} <= set(data["step"])
    assert len(data["step"]) > 8 * 20


def test_curves_are_means_of_kept_steps(steps):
    label = lambda metric: against_step(steps, metric, "a").axes[0].get_ylabel()  # noqa: E731
    assert label("grad_norm").endswith("mean of 4 kept steps")  # of 50 + 200, in 50 windows
    assert label("loss").endswith("mean of 4 kept steps")


def test_rows_that_are_kept_since_a_run_diverged_do_not_hide_gaps_of_others(steps):
    one = steps[steps["seed"] == 0].iloc[-1:]
    missing = sorted({*range(LONG)} - {*steps["step"]})
    rows = pd.concat([one] * len(missing)).assign(step=missing, loss=math.nan, nonfinite_event=1)
    page = against_step(pd.concat([steps, rows], ignore_index=True), "loss", "a")
    assert page.axes[0].get_ylabel().endswith("mean of 4 kept steps")


def test_replays_read_the_first_steps_as_they_were(long):
    first, again = (next(iter(sorted(Path(config.results).rglob(METRICS)))) for config in long)
    for old, new in zip(read_rows(first.parent, 3), read_rows(again.parent, 3), strict=True):
        assert new == {name: value for name, value in old.items() if name not in CLOCKS}
