"""Tables: intervals, means over seeds, comparison of platforms, and which runs count."""

import gzip
import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fathom_study import tasks
from fathom_study.analysis.run_tables import (
    comparison_table,
    run_metrics,
    summary_table,
    write_tables,
)
from fathom_study.analysis.statistics import mean_with_ci, t_interval
from fathom_study.analysis.tables import (
    BY_STUDY,
    STEPS,
    TEXT,
    TableError,
    read_steps,
    read_table,
    save_tables,
)
from fathom_study.metrics.steps import COSINE, POSITIVE, SHARE, UNBOUNDED, StepMetric, flat
from fathom_study.runs.folder import RunError
from fathom_study.tasks.tokens import Tokens
from tests.support.commands import refusal
from tests.support.runs import CPU_PLATFORM, GPU, GPU_PLATFORM, config_with, write_cell
from tests.support.tables import CHANCE, T975, T_ROUNDING, frame, run, seeds

NAN = math.nan


# --- intervals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "n", "mean", "sd", "half"),
    [
        ([], 0, NAN, NAN, NAN),
        ([2.5], 1, 2.5, NAN, NAN),
        ([1.0, 3.0], 2, 2.0, math.sqrt(2), NAN),  # two values have no interval
        # Deviations from 7/3: −4/3, −1/3, 5/3; the sum of their squares is 42/9.
        ([1.0, 2.0, 4.0], 3, 7 / 3, math.sqrt(42 / 9 / 2),
         T975[2] * math.sqrt(42 / 9 / 2) / math.sqrt(3)),
        # Values that are not finite do not count; None stands for a metric without a value.
        ([1.0, None, 2.0, NAN, 4.0], 3, 7 / 3, math.sqrt(42 / 9 / 2),
         T975[2] * math.sqrt(42 / 9 / 2) / math.sqrt(3)),
    ],
)  # fmt: skip
def test_mean_and_interval_by_hand(values, n, mean, sd, half):
    interval = t_interval(pd.Series(values, dtype=object))
    assert interval == pytest.approx((n, mean, sd, half), rel=T_ROUNDING, nan_ok=True)


REACH = T975[2] / math.sqrt(3)
"""Half the interval of three values with a standard deviation of 1."""
ACROSS = [-0.5, 0.5, 1.5]


@pytest.mark.parametrize(
    ("values", "bounds", "mean", "low", "high"),
    [
        ([0.1, 1.0, 10.0], POSITIVE, 1, 10**-REACH, 10**REACH),  # logarithms −1, 0 and 1
        # With an exact zero it is linear.
        ([0.0, 1.0, 2.0], POSITIVE, 1, 0, 1 + REACH),
        ([0.0] * 3, POSITIVE, 0, 0, 0),
        (ACROSS, UNBOUNDED, 0.5, 0.5 - REACH, 0.5 + REACH),
        (ACROSS, SHARE, 0.5, 0, 1),
        (ACROSS, COSINE, 0.5, -1, 1),
        (ACROSS, POSITIVE, 0.5, 0, 0.5 + REACH),
    ],
)
def test_interval_is_of_logarithms_or_clipped_to_the_bounds(values, bounds, mean, low, high):
    row = mean_with_ci(pd.Series(values), bounds)
    expected = {"n": 3, "mean": mean, "low": low, "high": high, "sd": np.std(values, ddof=1)}
    assert row == pytest.approx(expected, rel=T_ROUNDING)


@pytest.mark.parametrize("values", [[2.9035] * 5, [1e-320] * 3, [1e38] * 4])
def test_equal_positive_values_have_exactly_their_mean(values):
    mean = mean_with_ci(pd.Series(values), POSITIVE)
    assert (mean["mean"], mean["low"], mean["high"]) == (values[0],) * 3
    mean = mean_with_ci(pd.Series([1e-40, *values, 1e40]), POSITIVE)  # finite at any size
    assert np.isfinite([mean["mean"], mean["low"], mean["high"]]).all()


def ends(values):
    """The geometric mean and its 95 % interval, by SciPy."""
    logs = np.log(values)
    low, high = stats.t.interval(0.95, len(values) - 1, logs.mean(), stats.sem(logs))
    return {"mean": np.exp(logs.mean()), "low": np.exp(low), "high": np.exp(high)}


# --- groups of seeds -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "mean", "low"),
    [
        ("exact_loss", 1.0, 10 ** (-T975[2] / math.sqrt(3))),  # from the logarithms −1, 0, 1
        ("test_accuracy", 3.7, 0.0),  # a share: from its values, clipped to its bounds
    ],
)
def test_score_is_averaged_like_its_metric(metric, mean, low):
    rows = [{**row, "score_metric": metric} for row in seeds("score", [0.1, 1.0, 10.0])]
    (row,) = summary_table(frame(rows)).to_dict("records")
    assert (row["score_metric"], row["score_chance"]) == (metric, CHANCE)
    assert row["score_mean"] == pytest.approx(mean)
    assert row["score_low"] == pytest.approx(low)


def test_outcomes_are_counted_and_a_diverged_seed_is_not_averaged():
    outcomes = ["learned", "diverged", "at chance", "learned", "not scored"]
    cells = frame(seeds("loss_final", [1.0, None, 3.0, 8.0, None])).assign(outcome=outcomes)
    (row,) = summary_table(cells).to_dict("records")
    assert (row["n"], row["learned"], row["at_chance"]) == (5, 2, 1)
    assert (row["diverged"], row["not_scored"], row["loss_final_n"]) == (1, 1, 3)
    assert (row["platform"], row["chance_loss"], row["steps"]) == ("torch", CHANCE, 3)
    for part, value in ends([1.0, 3.0, 8.0]).items():
        assert row[f"loss_final_{part}"] == pytest.approx(value)


@pytest.mark.parametrize(
    "other", [{"study": "b"}, {"depth": 16}, {"variant": "hc"}, {"machine": GPU_PLATFORM}]
)
def test_only_seeds_of_the_same_cell_and_platform_are_averaged(other):
    cells = frame(run(loss_final=1.0), run(seed=1, loss_final=3.0), run(loss_final=9.0, **other))
    summary = summary_table(cells)
    assert summary["n"].tolist() == [2, 1]
    assert summary["loss_final_mean"].tolist() == [pytest.approx(math.sqrt(3)), 9.0]


# --- comparison of platforms ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "left", "right", "seeds_", "difference"),
    [
        ("loss_first", {0: 4.0, 1: 5.5}, {0: 5.0, 1: 5.0}, 2, 0.2),  # the larger of 1/5 and 0.5/5
        ("grad_norm_first", {0: 3.0, 1: 1.0}, {0: 2.0, 1: 1.0}, 2, 0.5),  # the larger of 1/2 and 0
        ("gain_first", {0: 6.5}, {0: 6.0}, 1, 0.5),  # a logarithm: absolute difference
        # Only common seeds count.
        ("loss_first", {0: 1.0, 1: 99.0}, {0: 1.0, 2: 50.0}, 1, 0.0),
    ],
)  # fmt: skip
def test_differences_at_the_first_step(metric, left, right, seeds_, difference):
    sides = {"torch": left, "mlx": right}.items()
    cells = frame(
        [run(seed=n, backend=b, **{metric: x}) for b, side in sides for n, x in side.items()]
    )
    (row,) = comparison_table(cells).to_dict("records")
    assert (row["platform_a"], row["platform_b"], row["seeds"]) == ("torch", "mlx", seeds_)
    assert row[f"{metric}_difference"] == pytest.approx(difference, nan_ok=True)


# --- from run folders ----------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path):
    """Config of one variant at one depth, with three seeds, on torch."""
    study = {"score": "training_loss"}  # runs made by hand have no other score
    return config_with(tmp_path, variants=["mhc"], depths=[8], backends=["torch"], a=study)


def tables_of(config, folder):
    """All tables of a config's runs, by name, read back from their files."""
    write_tables(config, folder)
    files = (file for file in folder.iterdir() if file.is_file())
    tables = {file.name.partition(".")[0]: read_table(file) for file in files}
    return tables | {"steps": read_steps(folder, config.studies)}


def test_tables_of_runs_by_hand(config, tmp_path):
    for cell, losses in zip(
        config.cells(), ([4.0, 2.0, 1.0], [4.0, 3.0, 2.0], [4.0, 5.0, 6.0]), strict=True
    ):
        write_cell(config, cell, losses)
    tables = tables_of(config, tmp_path / "tables")

    cells = tables["cells"]
    assert cells["key"].tolist() == [cell.path() for cell in config.cells()]
    assert cells["loss_final"].tolist() == [1, 2, 6]
    assert cells["loss_min"].tolist() == [1, 2, 4]
    assert tables["times"]["seconds_per_step"].tolist() == [0.5] * 3
    assert tables["times"]["seed"].tolist() == [0, 1, 2]
    (times,) = tables["times_summary"].to_dict("records")
    assert [times[f"seconds_{part}"] for part in ("n", "mean", "sd")] == [3, 10, 0]
    assert set(cells["platform"]) == {"torch"}
    assert set(cells["machine"]) == {CPU_PLATFORM}
    # 6 is above 95 % of the chance level, 4.16.
    assert cells["outcome"].tolist() == ["learned", "learned", "at chance"]

    (row,) = tables["summary"].to_dict("records")
    for part, value in ends([1.0, 2.0, 6.0]).items():
        assert row[f"loss_final_{part}"] == pytest.approx(value)
    assert (row["learned"], row["at_chance"], row["diverged"]) == (2, 1, 0)

    steps = tables["steps"]
    assert steps["seed"].tolist() == [0] * 3 + [1] * 3 + [2] * 3
    assert steps["step"].tolist() == [0, 1, 2] * 3
    assert steps["loss"].tolist() == [4, 2, 1, 4, 3, 2, 4, 5, 6]
    assert tables["comparison"].empty
    assert tables["platforms"]["runs"].tolist() == [3]


def test_infinity_and_nan_reach_the_table_of_steps(config, tmp_path):
    write_cell(config, config.cells()[0], [1.0, math.inf, NAN])
    tables = tables_of(config, tmp_path / "tables")
    one, infinite, nan = tables["steps"]["loss"]
    assert (one, infinite) == (1.0, math.inf)
    assert math.isnan(nan)
    assert tables["cells"]["outcome"].tolist() == ["diverged", "", ""]
    assert tables["cells"]["first_nonfinite_step"].tolist()[0] == 1


@pytest.fixture
def right(monkeypatch):
    """A metric of the last step by position, added to the task for a test."""
    metric = StepMetric("right", "by position", when="last step", along="position", bounds=SHARE)
    monkeypatch.setitem(Tokens.step_metrics, "right", metric)
    return metric


def test_a_profile_has_a_table_of_its_own(config, tmp_path, right):
    last = flat("right", right, {1: 0.5, 2.5: math.nan})
    assert last.keys() == {"right[1]", "right[2.5]"}
    columns = {name: [0.0, 0.0, value] for name, value in last.items()}
    write_cell(config, config.cells()[0], [4.0, 2.0, 1.0], **columns)
    tables = tables_of(config, tmp_path / "tables")
    assert not [name for name in tables["steps"] if name.startswith("right")]
    profiles = tables["profiles"]
    named = profiles[["variant", "seed", "metric", "at"]].drop_duplicates()
    assert named.to_numpy().tolist() == [["mhc", 0, "right", 1], ["mhc", 0, "right", 2.5]]
    assert profiles["value"].tolist()[-2] == 0.5
    assert math.isnan(profiles["value"].tolist()[-1])


def test_trainings_of_a_ladder_have_a_score_and_no_curve(tmp_path, right):
    """The plain network itself, which is factor 1, has both."""
    study = {"score": "training_loss", "ladder": {"baseline": [2]}}
    once = {"variants": ["baseline"], "depths": [8], "backends": ["torch"], "seeds": [0]}
    config = config_with(tmp_path, **once, a=study)
    for cell in config.cells():
        rest = config.spec(cell).steps - 1
        write_cell(config, cell, [4.0] * rest + [1.0], **{"right[1]": [0.0] * rest + [0.5]})
    tables = tables_of(config, tmp_path / "tables")
    assert tables["cells"]["variant"].tolist() == ["baseline", "baseline_x200"]
    for name in ("steps", "profiles"):
        assert set(tables[name]["variant"]) == {"baseline"}, name


def test_diverged_run_has_no_score_despite_finite_accuracy():
    images = {"task": "fashion", "variants": ["resnet", "hc_static"], "model": {"width": 8}}
    config = config_with(a={**images, "depths": [8], "seeds": [0], "backends": ["torch"]})
    cell = config.cells()[0]
    row = {"loss": NAN, "grad_norm_stem": 1.0, "test_accuracy": 0.0}
    spec = config.spec(cell)

    def metrics_of(row):
        return run_metrics(spec, tasks.summary_of(spec, [row]), "held_out")

    measured = metrics_of(row)
    assert (measured["outcome"], measured["score"]) == ("diverged", None)
    assert measured["test_accuracy"] is None  # not averaged under that name either
    exploded = {**row, "loss": 2.3, "grad_norm_stem": 1e7, "test_accuracy": 0.3}
    assert metrics_of(exploded)["score"] is None
    trained = {**exploded, "grad_norm_stem": 1.0}
    measured = metrics_of(trained)
    assert (measured["score"], measured["test_accuracy"]) == (0.3, 0.3)


def test_stale_and_unfinished_runs_are_left_out_and_listed(config, tmp_path):
    first, second, third = config.cells()
    write_cell(config, first, [4.0, 2.0, 1.0])
    write_cell(config, second, [4.0, 2.0, 90.0], code={"fathom_study.train": "of another time"})
    folder = write_cell(config, third, [4.0, 2.0, 1.0])
    (folder / "manifest.json").unlink()
    (folder / ".partial").mkdir()
    tables = tables_of(config, tmp_path / "tables")
    out = tables["cells"][~tables["cells"]["status"].isin(["measured", "imported"])]
    assert out[["seed", "status"]].to_numpy().tolist() == [[1, "stale"], [2, "failed"]]
    assert "fathom_study.train" in out["reason"].iloc[0]
    assert tables["summary"]["n"].tolist() == [1]
    assert tables["summary"]["loss_final_mean"].tolist() == [1]
    assert set(tables["steps"]["seed"]) == {0}
    assert tables["cells"]["loss_final"].isna().tolist() == [False, True, True]
    other = config_with(tmp_path, variants=["mhc"], depths=[8], backends=["torch"], batch_size=4)
    reasons = tables_of(other, tmp_path / "other")["cells"]["reason"]
    assert reasons[0] == "spec differs: batch_size 8 → 4"


def test_every_corrupt_run_is_refused_by_name_and_nothing_is_written(config, tmp_path):
    first, second, third = (write_cell(config, cell, [4.0, 2.0, 1.0]) for cell in config.cells())
    metrics = first / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes().replace(b"2.0", b"3.0"))
    (third / "mixing.safetensors").unlink()
    with pytest.raises(RunError) as caught:
        write_tables(config, tmp_path / "tables")
    lines = str(caught.value).splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(f"{first}: metrics.jsonl")
    assert lines[1].startswith(f"{third}: mixing.safetensors: missing")
    assert all(line.endswith("; delete the folder and run it again") for line in lines)
    assert str(second) not in str(caught.value)
    assert not (tmp_path / "tables").exists()


def test_local_and_imported_runs_of_a_platform_stay_apart(config, tmp_path):
    cell = config.cells()[0]
    write_cell(config, cell, [4.0, 2.0, 1.0])
    write_cell(config, cell, [4.4, 2.0, 3.0], platform=CPU_PLATFORM)
    tables = tables_of(config, tmp_path / "tables")
    summary = tables["summary"]
    assert summary["platform"].tolist() == ["torch", f"torch-{CPU_PLATFORM}"]
    assert summary["n"].tolist() == [1, 1]
    assert summary["loss_final_mean"].tolist() == [1, 3]
    (pair,) = tables["comparison"].to_dict("records")
    assert (pair["platform_a"], pair["platform_b"]) == ("torch", f"torch-{CPU_PLATFORM}")
    assert pair["loss_first_difference"] == pytest.approx(0.4 / 4.4)
    assert sorted(tables["platforms"]["platform"]) == ["torch", f"torch-{CPU_PLATFORM}"]
    assert set(tables["platforms"]["machine"]) == {CPU_PLATFORM}


def test_clocks_change_only_the_tables_of_times(config, tmp_path):
    """Runs trained again with other step times change no other table."""
    written = {}
    for number, clock in enumerate((0.5, 0.25)):
        for cell in config.cells():
            write_cell(config, cell, [4.0, 2.0, 1.0], step_seconds=clock)
            write_cell(config, cell, [4.0, 2.0, 1.0], step_seconds=clock, platform=GPU_PLATFORM,
                       device=GPU)  # fmt: skip
        write_tables(config, tmp_path / "tables")
        files = (file for file in (tmp_path / "tables").rglob("*") if file.is_file())
        written[number] = {str(f.relative_to(tmp_path)): f.read_bytes() for f in files}
    changed = {name for name in written[0] if written[0][name] != written[1][name]}
    of_all = {f"tables/{name}" for name in ("times.csv", "times_summary.csv")}
    assert changed == {*of_all, "tables/studies/a/times_summary.csv"}


def test_new_run_changes_no_table_of_another_study(tmp_path):
    """Figures read these tables: one more seed of `b` leaves those of `a` unchanged."""
    config = config_with(tmp_path, ("a", "b"), depths=[8], seeds=[0, 1], backends=["torch"])
    *cells, last = config.cells()
    for cell in cells:
        write_cell(config, cell, [4.0, 2.0, 1.0])
    written = []
    for _ in range(2):
        write_tables(config, tmp_path / "tables")
        folders = [tmp_path / "tables/studies" / study for study in ("a", "b")]
        written.append([{f.name: f.read_bytes() for f in folder.iterdir()} for folder in folders])
        write_cell(config, last, [4.0, 3.0, 3.5])
    (before, _), (after, _) = written
    assert before == after
    assert set(after) == {STEPS, *BY_STUDY}
    changed = {name for name in after if written[0][1][name] != written[1][1][name]}
    assert changed >= {STEPS, "cells.csv", "summary.csv"}
    # Each row of the common table is in the table of exactly one study, to the byte.
    for name in BY_STUDY:
        header, *rows = (tmp_path / "tables" / name).read_text().splitlines()
        parts = [(folder / name).read_text().splitlines() for folder in folders]
        assert [part[0] for part in parts] == [header] * 2
        assert sorted(itertools.chain(*(part[1:] for part in parts))) == sorted(rows)


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", ["machine", "statement"])
def test_words_like_nan_and_null_are_read_as_text(tmp_path, column):
    words = ["nan", "null", "NA", "None", "a word", *(["007", "1e3", ""] if column in TEXT else [])]
    save_tables({"texts.csv": pd.DataFrame({column: words}).assign(depth=8)}, tmp_path)
    assert read_table(tmp_path / "texts.csv")[column].tolist() == words


CUT = gzip.compress(b"a,b\n" * 1000)[:20]
NO_TABLES = {
    "missing": ("cells.csv", None, "missing"),
    "another's": ("cells.csv", b"name,value\nx,1\n", "has no column '"),
    "cut inside a number": ("cells.csv", b"a,b\n1,10", "cannot be read (its last line"),
    "packed, cut": ("steps.csv.gz", CUT, "cannot be read ("),
}


@pytest.mark.parametrize(("name", "content", "said"), NO_TABLES.values(), ids=NO_TABLES)
def test_invalid_table_is_refused_with_its_name_and_the_fix(tmp_path, name, content, said):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    message = refusal(read_table, tmp_path / name, error=TableError)
    assert message.startswith(f"{tmp_path / name}: {said}")
    assert message.endswith("; run: fathom tables, then: fathom claims")


def test_numbers_are_read_back_to_the_last_digit(tmp_path):
    values = np.random.default_rng(0).normal(size=50) * 10.0 ** np.arange(-25, 25)
    save_tables({"numbers.csv": pd.DataFrame({"seed": 0, "loss": values})}, tmp_path)
    assert read_table(tmp_path / "numbers.csv")["loss"].tolist() == values.tolist()


def test_computed_columns_are_rounded_to_portable_digits(tmp_path):
    """The adjacent number, which another processor may compute, is written alike."""
    values = np.array([2 / 3, -1e-7 / 3, 1e30 / 7, 3.0, 0.0, np.nan])
    for name, numbers in {"a": values, "b": np.nextafter(values, np.inf)}.items():
        save_tables({f"{name}.csv": pd.DataFrame({"n": 6, "mean": numbers})}, tmp_path)
    written = (tmp_path / "a.csv").read_text()
    assert written.splitlines()[1:] == [
        "6,0.666666667", "6,-3.33333333e-08", "6,1.42857143e+29", "6,3.0", "6,0.0", "6,",
    ]  # fmt: skip
    assert (tmp_path / "b.csv").read_text().splitlines()[:5] == written.splitlines()[:5]


def test_the_spread_of_nearly_equal_values_is_exact():
    """With rounded sums it would be 0 or twice this, depending on the order of additions."""
    step = 2.0**-52
    assert t_interval(pd.Series([1.0, 1 + step, 1 + 2 * step])).sd == step
    assert t_interval(pd.Series([0.1] * 7)).mean == 0.1
    assert t_interval(pd.Series([0.1] * 7)).sd == 0.0
