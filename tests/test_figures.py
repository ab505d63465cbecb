"""Figures: the numbers that they draw, by hand; what they say; the same bytes."""

import math
import re
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image
from safetensors.numpy import save_file

from fathom import tasks
from fathom.analysis.effects import COLUMNS as EFFECTS
from fathom.analysis.effects import LOWER
from fathom.analysis.run_tables import summary_table
from fathom.config import Cell
from fathom.metrics.runs import RunMetric, last
from fathom.metrics.scores import Score
from fathom.metrics.steps import LARGEST_VALUE, StepMetric
from fathom.report import figures
from fathom.report.figures import (
    contrasts,
    draw_figures,
    figures_of,
    figures_of_study,
    find,
    frames,
    left_out,
    panels,
    save,
    style,
    text,
)
from fathom.report.mixing import Mixing, mixing_file, mixing_matrices, shown_cells
from fathom.report.samples import GeneratedSamples
from fathom.settings import ConfigError
from fathom.tasks import Samples
from param_helpers import quick_ones
from run_helpers import config_with
from tables_helpers import CHANCE, curve, frame, half_width, run, seeds

NAN, INF = math.nan, math.inf
GAIN = "gain_proxy_log10_max_entry"
GROUPS = ("study", "overview", "cell", "explained")
LOSS = Score("exact_loss", "exact loss", "nats per token", lambda spec: CHANCE)
ACCURACY = Score("test_accuracy", "accuracy", "", lambda spec: 0.1, "higher", 1.0)


def rows_of(table, *columns):
    """A frame as tuples, NaN as None."""
    chosen = table[list(columns)].astype(object)
    return list(chosen.where(chosen.notna(), None).itertuples(index=False, name=None))


# --- profiles ------------------------------------------------------------------------------------


def test_a_profile_is_drawn_by_its_means_over_seeds_where_all_are_finite(monkeypatch):
    right = StepMetric("right", "by position", when="last step", along="position")
    monkeypatch.setattr(tasks, "step_metrics", lambda: {"right": right})
    values = {("mhc", 0): [1.0, 3.0, INF], ("mhc", 1): [3.0, 5.0, 7.0], ("hc", 0): [2.0, 2.0, 2.0]}
    table = pd.DataFrame(
        {"variant": variant, "depth": 4, "seed": seed, "metric": "right", "at": at, "value": value}
        for (variant, seed), line in values.items()
        for at, value in enumerate(line, start=1)
    )
    declared = find("right")
    assert declared.reads == ("profiles", "title")
    page = draw_figures([declared], "a on torch", profiles=table)["right"]
    (ax,) = page.axes
    drawn = {line.get_color(): line.get_xydata().tolist() for line in ax.lines}
    assert drawn == {
        style.colour_of("mhc"): [[1, 2], [2, 4]],
        style.colour_of("hc"): [[1, 2], [2, 2], [3, 2]],
    }
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("position", "right")


def test_means_along_have_a_row_for_each_variant_and_depth():
    values = {
        ("mhc", 8, 0): [1.0, 0.5], ("mhc", 8, 1): [0.5, NAN], ("mhc", 1, 0): [0.25, 0.75],
        ("hc", 8, 0): [0.5, 0.0],
    }  # fmt: skip
    table = pd.DataFrame(
        {"variant": variant, "depth": depth, "seed": seed, "at": at, "value": value}
        for (variant, depth, seed), line in values.items()
        for at, value in enumerate(line, start=1)
    )
    found = frames.means_along(table)
    assert found.index.tolist() == [("mhc", 1), ("mhc", 8), ("hc", 8)]  # variants in their order
    assert found.columns.tolist() == [1, 2]
    np.testing.assert_array_equal(found, [[0.25, 0.75], [0.75, NAN], [0.5, 0.0]])


def test_accuracies_by_position_stand_in_a_row_for_each_variant_and_depth():
    profile = pd.DataFrame(
        {
            "variant": "mhc", "depth": depth, "seed": 0, "metric": "state_accuracy_by_position",
            "at": float(at), "value": 1 / (at * depth),
        }
        for depth in (1, 2)
        for at in (1, 2, 3, 4)
    )  # fmt: skip
    page = draw_figures([find("accuracy_by_position")], profiles=profile)["accuracy_by_position"]
    ax, _ = page.axes
    assert [label.get_text() for label in ax.get_yticklabels()] == ["mhc, 1", "mhc, 2"]
    assert ax.get_xlabel() == "position in the sequence"
    written = {text.get_position(): text.get_text() for text in ax.texts}
    assert written == {
        (1, 0): "100", (2, 0): "50", (3, 0): "33", (4, 0): "25",
        (1, 1): "50", (2, 1): "25", (3, 1): "17", (4, 1): "12",
    }  # fmt: skip


# --- declarations ---------------------------------------------------------------------------------


def test_a_figure_is_declared_by_its_function_alone(tmp_path):
    def a_new_one(summary, steps, title):
        """Shows it.

        In two paragraphs.
        """
        return summary, steps, title

    config = config_with(tmp_path, a=IMAGES)
    before = [declared.name for declared in figures_of_study(config, "a")]
    try:
        figures.figure(everywhere=True)(a_new_one)
        declared = find("a_new_one")
        assert [d.name for d in figures_of_study(config, "a")] == [*before, "a_new_one"]
        assert (declared.reads, declared.label) == (("summary", "steps", "title"), "a new one")
        assert declared.caption == "Shows it. In two paragraphs."
        assert draw_figures([declared], "t", steps=1, summary=2, cells=3) == {
            "a_new_one": (2, 1, "t")
        }
    finally:
        figures_of("study").pop("a_new_one", None)


def test_a_figure_of_what_there_is_not_is_refused():
    def misspelt(stpes, title):
        """Shows."""

    with pytest.raises(TypeError, match="figure misspelt: nothing is called 'stpes'"):
        figures.figure(misspelt)


def test_declarations_are_read_without_matplotlib():
    """The workflow reads them at every start."""
    code = (
        "import sys; from fathom.report.figures import figures_of, find; "
        f"[figures_of(group) for group in {GROUPS}]; find('loss'); "
        "from fathom.report.mixing import mixing_file; "
        "print([m for m in ('matplotlib', 'scipy', 'fathom.train') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_step_itself_has_no_figure():
    with pytest.raises(ConfigError, match="unknown figure or metric 'step'"):
        find("step")


@pytest.fixture
def of_a_new_task(monkeypatch):
    """A step metric and a run metric that no figure knows of."""
    step, run_, _ = tasks.step_metrics(), tasks.run_metrics(), tasks.averaged()  # it is cached
    reward = StepMetric("reward (points)", "points of the step")
    best = RunMetric("reward", last, "points at the end")
    monkeypatch.setattr(tasks, "step_metrics", lambda: {**step, "reward": reward})
    monkeypatch.setattr(tasks, "run_metrics", lambda: {**run_, "best": best})


@pytest.mark.usefixtures("of_a_new_task")
def test_a_metric_of_a_task_has_a_figure_without_a_function():
    """Against step and against depth, labelled with its unit."""
    steps = frame(curve([1.0, 3.0], column="reward"), curve([2.0, 5.0], depth=4, column="reward"))
    found = draw_figures([find("reward")], "a study", steps=steps)["reward"]
    assert [ax.get_title() for ax in found.axes] == ["4 layers", "8 layers"]
    assert found.axes[0].get_ylabel() == "reward (points)"
    assert find("reward").caption.startswith("Reward")
    assert "points of the step" in find("reward").caption
    cells = frame(seeds("gain_final", [1.0], depth=4), seeds("gain_final", [2.0], depth=8))
    names = {f"gain_final_{part}": f"best_{part}" for part in ("n", "mean", "sd", "low", "high")}
    data = {"summary": summary_table(cells).rename(columns=names), "score": LOSS,
            "cells": cells.assign(best=cells["gain_final"])}  # fmt: skip
    (ax,) = draw_figures([find("best")], "a study", **data)["best"].axes
    assert ax.get_ylabel() == "reward (points):\npoints at the end"
    label = panels.run_label("validation_bpc", pd.DataFrame({"loss_unit": ["nats"]}))
    assert label.endswith("(bits per character)")  # not in nats
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["4", "8"]


CURVES = ["loss_comparison", "score", "grad_norm_comparison", "depth_scaling"]
PICTURES = ["loss_comparison", "score", "grad_norm_stem"]
DEPTH = "effective_depth"
PAIRS = [{"question": "Does it matter?", "pairs": [["hc", "mhc"]]}]
IMAGES = {"task": "fashion", "variants": ["resnet", "mhc_causal"], "model": {"width": 8}}
MANY = [*({f"m{i}": {"connection": "mhc"}} for i in range(13))]
BESIDE = {"wider": {"connection": "baseline", "model": {"width": 64}}}
FAST = [*({f"m{i}": {"connection": "mhc", "optimizer": {"lr": 0.01 * (i + 1)}}} for i in range(13))]


@pytest.mark.parametrize(
    ("study", "names"),
    [
        ({}, [*CURVES, DEPTH]),
        ({"depths": [4, 8]}, CURVES),  # of two depths no curve
        ({"contrasts": PAIRS}, ["effects", "variants", *CURVES, DEPTH]),
        # A doubly stochastic matrix has the same gain at every depth; the rate says all of a study.
        ({"variants": ["mhc", FAST[4]]}, ["score_against_rate", *CURVES[:3]]),
        ({"variants": FAST}, ["score_against_rate"]),
        ({"variants": ["baseline", BESIDE, *FAST], "contrasts": []}, ["effects", "variants"]),
        ({"variants": MANY}, ["effects", "variants"]),
        ({"depths": [4]}, CURVES[:3]),
        ({"depths": [4], "plain_depths": [], "variants": ["hc"]}, [CURVES[0], CURVES[2]]),
        ({"variants": ["baseline", "hc", "mhc", "hc_paper"]}, ["frontier", *CURVES, DEPTH]),
        (IMAGES, [*PICTURES, "mixing_matrix", DEPTH]),
        ({**IMAGES, "exclude": [{"variant": "mhc_causal"}]}, PICTURES),
        ({**IMAGES, "variants": ["resnet", {"mine": "mhc_causal"}]},
         [*PICTURES, "mixing_matrix", DEPTH]),
        ({**IMAGES, "variants": ["resnet", "mhc_static"]}, [*PICTURES, DEPTH]),
    ],
    ids=["task", "two depths", "contrasts", "rates", "many rates", "rates beside another width",
         "more variants than colours", "one depth", "one point", "four connections", "causal",
         "left out", "by another name",
         "not causal"],
)  # fmt: skip
def test_figures_of_a_study(tmp_path, study, names):
    config = config_with(tmp_path, a=study)
    assert [declared.name for declared in figures_of_study(config, "a")] == names


def test_a_study_says_which_figures_would_show_nothing_of_it(tmp_path):
    one = {"depths": [4], "plain_depths": [], "variants": ["hc"]}
    config = config_with(tmp_path, ("a", "b"), a=one)
    assert left_out(config, "a") == {
        "score": "there is one variant at one depth", "depth scaling": "there is one depth",
    }  # fmt: skip
    assert left_out(config, "b") == {}


@pytest.mark.parametrize(
    ("words", "question", "caption"),
    [
        ("Is it so? A line says it.", "Is it so?", "A line says it."),
        ("A line says it. Is it so? Yes.", "", "A line says it. Is it so? Yes."),
        ("A line says it.", "", "A line says it."),
    ],
)
def test_a_docstring_begins_with_the_question_that_is_the_title(words, question, caption):
    def shown(title):
        """To be replaced."""

    shown.__doc__ = words
    try:
        figures.figure(shown)
        assert (find("shown").question, find("shown").caption) == (question, caption)
        shown_title = draw_figures([replace(find("shown"), draw=lambda title: title)], "a")["shown"]
        assert shown_title == (f"{question}\na" if question else "a")
    finally:
        del figures._groups["study"]["shown"]


# --- against step ---------------------------------------------------------------------------------


def test_a_course_is_the_geometric_mean_and_its_range():
    steps = frame(
        curve([1.0, 10.0], seed=0), curve([10.0, 10.0], seed=1), curve([100.0, 80.0], seed=2)
    )
    found = frames.course(steps, "loss", geometric=True)
    assert rows_of(found, "variant", "step") == [("mhc", 0), ("mhc", 1)]
    assert found["mean"].tolist() == pytest.approx([10, 20])  # the third root of 8000
    assert found["low"].tolist() == pytest.approx([1, 10])
    assert found["high"].tolist() == pytest.approx([100, 80])
    assert frames.course(steps, "loss")["mean"].tolist() == pytest.approx([37, 100 / 3])
    window = frames.course(frame(curve([1.0, 100.0, 1.0, 10.0])), "loss", 2, geometric=True)
    assert window["mean"].tolist() == pytest.approx([1, 10, 10, math.sqrt(10)])


@pytest.mark.parametrize(
    ("other", "geometric", "kept"),
    [
        ([3.0, 3.0, NAN, NAN], True, [0, 1]),  # a mean over the survivors would flatter
        ([3.0, INF, 3.0, 3.0], False, [0, 2, 3]),
        ([3.0, 0.0, 3.0, 3.0], True, [0, 2, 3]),  # it has no logarithm
        ([3.0, 0.0, 3.0, 3.0], False, [0, 1, 2, 3]),
    ],
    ids=["diverged", "infinite", "zero of a logarithm", "zero"],
)
def test_a_course_has_the_steps_at_which_every_seed_is_finite(other, geometric, kept):
    steps = frame(curve([4.0, 3.0, 2.0, 1.0]), curve(other, seed=1))
    found = frames.course(steps, "loss", geometric=geometric)
    assert found["step"].tolist() == kept


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"loss": [NAN, NAN, NAN], "grad_norm": [NAN] * 3, GAIN: [5.0, NAN, NAN],
          "nonfinite_event": [1, 1, 1]}, (0, "loss")),
        ({"loss": [4.0, NAN, NAN], "nonfinite_event": [1, 1, 1]}, (0, "logits")),
        ({"loss": [4.0, 4.0, NAN], "grad_norm": [1.0, INF, NAN], GAIN: [5.0, 5.0, NAN],
          "nonfinite_event": [0, 0, 1]}, (1, "gradient")),
        ({GAIN: [5.0, NAN, NAN]}, (1, "H_res")),
        ({GAIN: [NAN] * 3}, None),  # causal mixing has no such product
        ({"loss": [4.0, 1.0, 0.0]}, None),  # zero is finite
        ({"validation_loss": [NAN, 2.0, NAN]}, None),  # not evaluated
    ],
    ids=["loss", "logits", "gradient", "H_res", "no gain", "zero", "not evaluated"],
)  # fmt: skip
def test_where_and_in_what_a_run_stops_being_finite(rows, said):
    steps = frame(curve([4.0] * 3)).assign(**rows)
    assert frames.first_nonfinite(steps) == said


def test_failures_are_by_variant_and_the_earliest_of_the_seeds():
    steps = frame(
        curve([1.0] * 4, "mhc"), curve([1.0, 1.0, 1.0, NAN], "hc"),
        curve([1.0, NAN, NAN, NAN], "hc", seed=1),
    )  # fmt: skip
    assert rows_of(frames.failures(steps), "variant", "step", "reason") == [("hc", 1, "loss")]


def evaluated(variant, losses, **metrics):
    """A run that is evaluated at steps 1, 3, …: losses in nats."""
    rows = frame(curve([3.0] * len(losses), variant, depth=metrics.pop("depth", 2),
                       seed=metrics.pop("seed", 0)))  # fmt: skip
    at = [loss if step % 2 else NAN for step, loss in enumerate(losses)]
    return rows.assign(validation_loss=at, **metrics)


def test_evaluations_are_the_steps_at_which_a_run_has_one_also_for_one_that_failed():
    steps = pd.concat([evaluated("v1", [0, 3.0, 0, 2.0]), evaluated("v5", [0, 3.0, 0, NAN])])
    found = frames.evaluations(steps, "validation_loss")
    assert rows_of(found, "variant", "step") == [("v1", 1), ("v1", 3), ("v5", 1), ("v5", 3)]
    assert rows_of(frames.failures(found, "validation_loss"), "variant", "step", "reason") == [
        ("v5", 3, "validation loss")
    ]
    bits = text.in_bits(steps).loc[lambda t: t["variant"] == "v1", "validation_loss"]
    assert bits.tolist() == pytest.approx([3 / math.log(2), 2 / math.log(2)])
    assert frames.evaluations(frame(curve([1.0])), "validation_loss").empty


def test_runs_without_a_metric_are_left_out_and_of_the_others_the_last_rows_are_taken():
    steps = pd.concat([evaluated("v1", [0, 1.0], gate_mean=[NAN, 0.3], base_diagonal=0.5),
                       evaluated("v1", [0, 1.0], gate_mean=NAN, base_diagonal=0.5, seed=1),
                       evaluated("v2", [0, 1.0], gate_mean=0.1)])  # fmt: skip
    steps = steps.reset_index(drop=True)
    both = frames.with_all(steps, ["gate_mean", "base_diagonal"])
    assert rows_of(both, "variant", "seed", "step") == [("v1", 0, 0), ("v1", 0, 1)]
    last_ones = frames.last_rows(steps)
    assert rows_of(last_ones, "variant", "seed", "step") == [
        ("v1", 0, 1), ("v1", 1, 1), ("v2", 0, 1),
    ]  # fmt: skip
    assert frames.with_all(steps, ["gate_first"]).empty


@pytest.mark.parametrize(
    ("other", "groups"),
    [(0.3, [["v3", "v4"]]), (0.30001, [["v3", "v4"]]), (0.4, []), ([0.3, 0.4], [])],
)
def test_variants_coincide_where_their_common_seeds_do(other, groups):
    steps = pd.concat([evaluated("v3", [0, 1.0], gate_mean=0.3),
                       evaluated("v4", [0, 1.0], gate_mean=other),
                       evaluated("v4", [0, 1.0], gate_mean=0.9, seed=1),
                       evaluated("v1", [0, 1.0], gate_mean=0.7),
                       evaluated("v2", [0, 1.0], gate_mean=0.3, seed=5)])  # fmt: skip
    assert frames.coinciding(steps, ["gate_mean"]) == groups


# --- against depth --------------------------------------------------------------------------------


def test_groups_of_seeds_by_hand():
    cells = frame(
        seeds("gain_final", [1.0, 2.0, 6.0], depth=4), seeds("gain_final", [5.0], depth=16)
    )
    found = frames.groups_of_seeds(summary_table(cells), "gain_final")
    half = half_width([1.0, 2.0, 6.0])
    assert rows_of(found, "variant", "depth", "failed") == [("mhc", 4, False), ("mhc", 16, False)]
    assert found[["mean", "low", "high"]].to_numpy() == pytest.approx(
        np.array([[3, 3 - half, 3 + half], [5, NAN, NAN]]), nan_ok=True
    )  # one seed has no interval


def diverged(variant="hc", depth=8, seed=0, **values):
    return run(variant, depth, seed, outcome="diverged", **values)


def test_runs_are_those_of_the_groups_that_did_not_diverge():
    cells = frame(run(depth=4, score=0.5), run(depth=4, seed=1, score=0.7),
                  diverged(depth=4, seed=2), run(depth=8, score=0.9),
                  run(depth=8, seed=1, score=INF))  # fmt: skip
    groups = frames.groups_of_seeds(summary_table(cells), "score")
    assert frames.runs_of(cells, "score", groups)["value"].tolist() == [0.5, 0.7, 0.9]
    four = groups[groups["depth"] == 4]
    assert frames.runs_of(cells, "score", four)["value"].tolist() == [0.5, 0.7]


@pytest.mark.parametrize(
    ("values", "varies"),
    [
        ([0.0, 4e-7], False),  # rounding of a logarithm of one
        ([0.25, 0.2500001], False),
        ([-0.602, 27.0], True),
        ([3.0], False),
        ([3.0, NAN, INF], False),
        ([], False),
    ],
)
def test_what_differs_by_rounding_alone_is_the_same(values, varies):
    assert frames.varies(pd.Series(values, dtype=float)) is varies


def test_a_level_far_from_all_values_is_left_out():
    levels = {"chance": 6.0, "bigram": 3.5}
    assert frames.near(levels, pd.Series([3.6, 3.7, NAN])) == {"bigram": 3.5}
    assert frames.near(levels, pd.Series([3.6, 3.6])) == {}
    assert frames.near(levels, pd.Series([3.6, 3.6]), least=0.1) == {"bigram": 3.5}
    assert frames.near(levels, pd.Series([NAN])) == levels


@pytest.mark.parametrize(("lower", "best"), [(True, ["a", "c"]), (False, ["b", "d"])])
def test_on_the_frontier_nothing_is_both_cheaper_and_better(lower, best):
    rows = [("b", 1, 5.0), ("a", 1, 3.0), ("c", 2, 1.0), ("d", 3, 6.0), ("e", 2, NAN)]
    points = pd.DataFrame(rows, columns=["variant", "cost", "mean"])
    assert frames.frontier(points, "cost", lower=lower) == best


def test_costs_are_beside_those_of_the_plain_network_at_the_depth_of_most():
    """Time is that of the training: a step of mhc takes three times as long, at half the steps."""
    cells = frame(*(run(variant, depth, score=0.5 + i, connection=variant, steps=steps)
                    for i, (variant, depth, steps) in enumerate(
                        [("mine", 4, 80), ("mhc", 4, 40), ("hc", 4, 80), ("mine", 8, 80)])),
                  diverged("hc", 4))  # fmt: skip
    times = summary_table(cells).assign(seconds_per_step_fastest=[0.2, 0.6, 0.9, 9.0])
    parameters = {("mine", 4): 1000, ("mhc", 4): 1500}
    counted = lambda *of: parameters[of]  # noqa: E731
    found = contrasts.costs(times, cells, "mine", counted, LOSS)
    assert found[["variant", "mean", "parameters"]].to_numpy().tolist() == [
        ["mine", 0.5, 1.0], ["mhc", 1.5, 1.5],
    ]  # fmt: skip
    assert found["time"].tolist() == pytest.approx([1, 1.5])
    assert found.attrs == {"unit": "mine", "depth": 4}
    without = contrasts.costs(times, cells[cells["variant"] != "mine"], "mine", counted, LOSS)
    assert without.attrs["unit"] == "mhc"  # the fastest


@pytest.mark.parametrize(
    ("heights", "spread"),
    [
        ([0.0, 1.0], [0.0, 1.0]),
        ([0.5, 0.5], [0.45, 0.55]),
        ([0.5, 0.5, 0.58], [0.4267, 0.5267, 0.6267]),
        ([0.0, 0.0, 0.14], [-0.0533, 0.0467, 0.1467]),  # both moved by the third
        ([], []),
    ],
)
def test_names_keep_a_distance_and_stand_around_where_they_belong(heights, spread):
    assert style.space_out(heights, 0.1) == pytest.approx(spread, abs=1e-4)


def test_a_group_with_a_run_that_failed_has_no_mean_of_the_others():
    cells = frame(
        run("mhc", gain_final=1.0, gain_first=0.5, score=2.0),
        diverged(gain_first=2.5), diverged(seed=1, gain_first=2.5, gain_final=9.0, score=1.0),
        run("causal", score=3.0),  # it has no gain, and has not failed
        diverged("v1", score=0.4),  # its gradient may have exploded
    )  # fmt: skip
    summary = summary_table(cells)
    columns = ("variant", "mean", "failed")
    assert rows_of(frames.groups_of_seeds(summary, "gain_final", "gain_first"), *columns) == [
        ("mhc", 1.0, False), ("hc", 2.5, True),
    ]  # fmt: skip
    assert rows_of(frames.groups_of_seeds(summary, "score"), *columns) == [
        ("mhc", 2.0, False), ("hc", None, True), ("causal", 3.0, False), ("v1", None, True),
    ]  # fmt: skip
    assert frames.groups_of_seeds(summary, "gate_mean_final").empty


def test_levels_are_chance_and_what_the_oracle_reaches():
    summary = summary_table(frame([run(seed=s, trigram_bpc=2.9, score=1.0) for s in range(3)]))
    levels = panels.levels_of(summary, tasks.score_of("text"))
    assert list(levels.values()) == [CHANCE, 2.9]
    assert panels.levels_of(summary, LOSS) == {"chance": CHANCE}
    several = summary_table(frame(run(score_chance=2.0), run("hc", score_chance=3.0)))
    assert panels.levels_of(several, LOSS) == {}


# --- over all studies -----------------------------------------------------------------------------


def cells_of(*rows):
    """Three seeds with the same score for each row, which names study, variant and so on."""
    return frame([run(seed=seed, **{"score": 0.6, **row}) for row in rows for seed in range(3)])


def test_a_sweep_is_a_study_over_depth_and_what_continues_it():
    (found,) = frames.sweeps(
        cells_of(
            {"study": "sweep", "depth": 4}, {"study": "sweep", "depth": 8},
            {"study": "sweep", "depth": 8, "variant": "hc"},
            {"study": "beyond", "depth": 16}, {"study": "beyond", "depth": 16, "variant": "hc"},
            {"study": "same depth", "depth": 8},
            {"study": "arms", "depth": 4}, {"study": "arms", "depth": 8},
            {"study": "arms", "depth": 8, "variant": "hc"},
            {"study": "arms", "depth": 8, "variant": "mhc_lite"},
            {"study": "strange", "depth": 32, "variant": "mhc_lite"},
            {"study": "recipe", "depth": 32, "recipe": "another"},
            {"study": "task", "depth": 32, "score_chance": 2.0},
        )
    )  # fmt: skip
    assert set(found["study"]) == {"sweep", "beyond"}


def test_final_scores_by_hand():
    """0.1, 1 and 10: geometric mean 1, mean 3.7; the worst outcome of the seeds counts."""
    sweep = frame(
        seeds("score", [0.1, 1.0, 10.0], depth=4),
        seeds("score", [0.5], depth=4, backend="mlx", machine="a-gpu"),
        [run(score=1.0), diverged("mhc", seed=1)],
        [run("hc", score=4.0), run("hc", seed=1, score=4.2, outcome="at chance")],
    )
    found = frames.final_scores(sweep, geometric=True)
    assert rows_of(found, "variant", "platform", "depth", "outcome") == [
        ("mhc", "torch", 4, "learned"), ("mhc", "mlx-a-gpu", 4, "learned"),
        ("mhc", "torch", 8, "diverged"), ("hc", "torch", 8, "at chance"),
    ]  # fmt: skip
    assert found[["mean", "low", "high"]].to_numpy() == pytest.approx(
        np.array([[1, 0.1, 10], [0.5] * 3, [NAN] * 3, [math.sqrt(16.8), 4, 4.2]]), nan_ok=True
    )
    assert frames.final_scores(sweep, geometric=False)["mean"].iloc[0] == pytest.approx(3.7)


PUBLISHED = {"study": "a", "metric": "loss_final", "variant": "mhc", "depth": 8, "published": 0.5,
             "platform": "torch", "mean": 0.6, "low": 0.5, "high": 0.7}  # fmt: skip


# --- mixing over depth ----------------------------------------------------------------------------

MATRIX, WEIGHTS = np.array([[3.0, 1.0], [2.0, 6.0]]), np.array([[1.0, 0.0], [0.25, 0.75]])


def matrix_files(folder, **matrices):
    """A file of matrices for each variant: the cells that have them."""
    cells = [Cell("images", 2, variant, "torch", 5) for variant in matrices]
    for cell, arrays in zip(cells, matrices.values(), strict=True):
        file = mixing_file(cell, folder)
        file.parent.mkdir(parents=True)
        save_file({name: np.asarray(v, np.float32) for name, v in arrays.items()}, file)
    return cells


def test_mixing_is_of_the_first_seed_of_the_deepest_cell():
    cells = [
        Cell("images", depth, variant, "torch", seed)
        for depth, variant, seed in [(4, "a", 0), (8, "a", 7), (8, "a", 2), (4, "b", 3)]
    ]
    for order in (cells, cells[::-1]):
        assert shown_cells(order) == {"a": cells[2], "b": cells[3]}
    file = Path("results/runs/images/8L/a/torch/seed2/mixing.safetensors")
    assert mixing_file(cells[2], "results/runs") == file


def test_mixing_is_the_whole_matrix_and_the_weights_of_variants_that_mix_over_depth(tmp_path):
    cells = matrix_files(
        tmp_path,
        plain={"mixing": MATRIX, "weights": WEIGHTS},
        streams={"H_res": np.eye(4)[None]},
        none={},
        broken={"mixing": MATRIX * NAN, "weights": WEIGHTS},
    )
    found = mixing_matrices(cells, tmp_path)
    assert [(name, m.is_finite) for name, m in found.items()] == [("plain", True),
                                                                  ("broken", False)]  # fmt: skip
    assert (found["plain"].depth, found["plain"].seed) == (2, 5)
    assert (found["plain"].matrix == MATRIX).all()
    assert (found["plain"].weights == WEIGHTS).all()


@pytest.mark.parametrize("content", [None, b"", b"no safetensors"])
def test_a_file_of_matrices_that_cannot_be_read_is_named(tmp_path, content):
    (cell,) = matrix_files(tmp_path, mhc_causal={})
    file = mixing_file(cell, tmp_path)
    file.unlink() if content is None else file.write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(f"{file}: cannot be read")):
        mixing_matrices([cell], tmp_path)


# --- pages ----------------------------------------------------------------------------------------

VARIANTS = {
    "tokens": ("baseline", "hc", "mhc"),
    "fashion": ("resnet", "hc_causal", "mhc_dynamic"),
    "text": ("baseline", "v1", "v3"),
}


OPTIONAL = ("stream_similarity", "stream_embedding_similarity", "gate_first", "gate_mean",
            "base_row_error", "base_diagonal", "grad_norm_stem")  # fmt: skip


def data_of(task, losses=(4.0, 2.0, 1.0), depths=(4, 8), count=3, value=None):
    """Everything that figures of a study read: the last variant lacks what is optional.

    `value`: instead of every metric of the task's.
    """
    variants = VARIANTS.get(task, ("baseline", "mhc"))
    own = [*tasks.load(task).step_metrics, *OPTIONAL]
    score, cells, steps = tasks.score_of(task), [], []
    for i, variant in enumerate(variants):
        for depth in depths:
            for seed in range(count):
                for row in curve([loss * (1 + seed) for loss in losses], variant, depth, seed):
                    row |= {"grad_norm": row["loss"], GAIN: row["loss"], "nonfinite_total": 0}
                    if i + 1 < len(variants):
                        row |= dict.fromkeys(own, row["loss"] if value is None else value)
                    steps.append(row)
                final = losses[-1] * (1 + seed) if math.isfinite(losses[-1]) else NAN
                outcome = "learned" if math.isfinite(final) else "diverged"
                cells.append(run(variant, depth, seed, gain_final=final, gain_first=2.0,
                                 score=final, score_metric=score.metric, outcome=outcome,
                                 lr=0.001 * (1 + i)))  # fmt: skip
    effect = dict.fromkeys(EFFECTS, 0.5) | {
        "variant": variants[1], "against": variants[0], "metric": "score", "verdict": LOWER,
        "question": "Does it help?", "depth": depths[0], "differs_in": "",
    }  # fmt: skip
    return {
        "steps": frame(steps),
        "summary": summary_table(frame(cells)),
        "effects": pd.DataFrame([effect, {**effect, "ci95_half": NAN}]),
        "profiles": pd.DataFrame(
            [{"study": "a", "variant": variant, "depth": depth, "seed": 0,
              "metric": "score_without_block",
              "at": block, "value": losses[-1] * block}
             for variant in variants for depth in depths for block in (1.0, 2.0)]
        ),
        "effective_depth": pd.DataFrame(
            [{"variant": variants[1], "depth": depth, "plain_depths": "1 4", "shallowest": 1,
              "deepest": 4, "plain_best": 4, "answer": answer, "effective_depth": 2.0,
              "low": low, "high": 3.0, "low_open": low == 1, "high_open": False}
             for depth, answer, low in ((4, "at", 1.0), (8, "at", NAN), (8, "below", NAN),
                                        (8, "beyond", NAN))]
        ),
        "score": score,
        "mixing": {variants[1]: Mixing(2, 5, MATRIX, WEIGHTS),
                   variants[0]: Mixing(2, 5, MATRIX * NAN, WEIGHTS)},
        "times": summary_table(frame(cells)).assign(seconds_per_step_fastest=0.5),
        "plain": variants[0],
        "parameters": lambda variant, depth: 1000,
        "samples": [GeneratedSamples(variants[0], 4, 0, Samples(np.array([[0.0, 1.0], [NAN, INF]]),
                                                     np.eye(2)))],
        "cells": frame(cells),
        "scores": {"a": score},
        "depth_units": {"a": "layer"},
        "variance": pd.DataFrame(
            [{"depth": 4, "variant": variants[0], "recipe_share": 0.6, "platform_share": 0.2,
              "seed_share": 0.15, "other_share": 0.05}]
        ),
        "published": pd.DataFrame([PUBLISHED, {**PUBLISHED, "metric": "gain_final", "mean": NAN,
                                               "low": NAN, "high": NAN}]),
        "rows": frame([row for row in steps if row["variant"] == variants[0]
                       and row["depth"] == depths[0] and not row["seed"]]).assign(
            chance_loss=CHANCE),
    }  # fmt: skip


JUDGING = ("score", "score_against_rate", "score_against_depth", "variants")


def all_figures(task="tokens", only=(), labels=None, **changes):
    """Every declared figure but those of docs/explained, and what the task names, drawn.

    `only`: these of them. `labels`: what people read for names.
    """
    declared = {name: d for group in ("overview", "study") for name, d in
                figures_of(group).items()}  # fmt: skip
    metrics = [*tasks.presentation(task).figures, "loss", "exact_loss", "nonfinite_total",
               "gain_final", "gate_mean_final"]  # fmt: skip
    declared |= {name: find(name) for name in metrics}
    data = data_of(task, **changes)
    found = draw_figures([declared[name] for name in only or declared], "a study", labels, **data)
    of_cell = () if only else figures_of("cell").values()
    cell = draw_figures(of_cell, "a run", labels, rows=data["rows"])
    return {**found, **{f"cell_{name}": page for name, page in cell.items()}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "depths", "only"),
    [  # all of them for `text`; of the others what they name, and where higher scores are better
        ("tokens", (4, 8), tasks.presentation("tokens").figures),
        ("fashion", (4, 8), (*tasks.presentation("fashion").figures, *JUDGING)),
        ("text", (1, 2, 4, 8, 32), ()),
    ],
)
def test_every_figure_fits_and_is_drawn_as_png_and_svg_for_every_task(task, depths, only, tmp_path):
    found = all_figures(task, only, depths=depths)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save(found, tmp_path)
    for name in found:
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG"), name
        assert b"<svg" in (tmp_path / f"{name}.svg").read_bytes()[:1000], name


CASES = {
    "nan from step 0": ({"losses": [NAN, NAN, NAN]},),
    "nan from step 1": ({"losses": [4.0, NAN, NAN]},),
    "infinite": ({"losses": [4.0, INF, INF], "depths": [8]},),
    "zero": ({"losses": [0.0, 0.0]},),
    "one number": ({"losses": [4.0], "count": 1, "depths": [8]},),
    "largest": ({"losses": [LARGEST_VALUE, 0.0, 1.0], "depths": [8]},),
    "largest, negative": ({"losses": [-LARGEST_VALUE, 0.0, 1.0], "depths": [8]},),
    "nothing optional": ({"value": NAN},),
}


READ = {"baseline": "plain", "v1": "an arm", "v3": "another arm", "mhc": "the demo's mHC",
        "torch": "PyTorch"}  # fmt: skip


@pytest.mark.parametrize("changes", quick_ones(CASES, "nan from step 1"))
def test_every_figure_is_drawn_from_extreme_tables_and_says_neither_nan_nor_a_code_name(changes):
    code_name = re.compile(rf"\b({'|'.join(READ)})\b")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = all_figures("text", labels=READ, **changes)
        for name, page in found.items():
            page.set_layout_engine("none")  # it takes longer than all else, and moves no words
            page.draw_without_rendering()
            said = [text.get_text() for text in page.findobj(Text)]
            assert not [words for words in said if re.search(r"\b(nan|inf)\b", words, re.I)], name
            unread = (words for words in said if words not in READ.values())
            assert not [words for words in unread if code_name.search(words)], name


@pytest.fixture(scope="module")
def pages():
    """Figures with legends, by task."""
    shown = (*JUDGING, "loss_comparison", "published")
    return {task: all_figures(task, shown) for task in ("tokens", "fashion")}


@pytest.mark.parametrize(
    ("task", "unit"), [("tokens", "(nats per token)"), ("fashion", "test accuracy")]
)
@pytest.mark.parametrize("name", JUDGING)
def test_figures_that_judge_draw_the_score_with_its_unit_and_chance(pages, task, unit, name):
    ax = pages[task][name].axes[0]
    assert unit in ax.get_ylabel() + ax.get_xlabel()
    assert "chance" in [text.get_text() for text in ax.texts]


def test_a_variant_has_one_colour_in_all_figures(pages):
    colours = {}
    for page in pages["tokens"].values():
        for legend in page.legends:
            for handle, label in zip(legend.legend_handles, legend.get_texts(), strict=True):
                colours.setdefault(label.get_text(), set()).add(to_hex(handle.get_color()))
    for variant in VARIANTS["tokens"]:
        assert colours[variant] == {style.colour_of(variant).lower()}
        assert any(to_hex(line.get_color()) in colours[variant]
                   for line in pages["tokens"]["loss_comparison"].axes[0].lines)  # fmt: skip


@pytest.mark.parametrize("score", [LOSS, ACCURACY])
def test_a_run_that_diverged_is_marked_where_no_value_is(score):
    cells = frame(run(depth=4, score=0.5), run(depth=8, score=0.5), diverged(depth=4),
                  diverged(depth=8))  # fmt: skip
    page = panels.against_depth(summary_table(cells), score.metric, "a", score=score)
    page.draw_without_rendering()
    (ax,) = page.axes
    marks = [line for line in ax.lines if line.get_marker() == "x"]
    at = [ax.transAxes.inverted().transform(m.get_transform().transform(m.get_xydata()))[0, 1]
          for m in marks if len(m.get_xdata())]  # fmt: skip
    assert len(at) == 2
    assert all(y > 1 for y in at)
    assert "a run diverged" in [text.get_text() for text in page.legends[0].get_texts()]


def test_what_no_variant_has_is_left_out_and_the_title_says_so():
    steps = evaluated("mhc", [0, 3.0], stream_similarity=0.5)
    page = find("similarity").draw(steps=steps, title="a")
    assert len(page.axes) == 1
    assert "no variant has a similarity of the stream embedding" in page.get_suptitle()
    deep = evaluated("mhc", [0, 3.0], depth=4, stream_embedding_similarity=0.5)
    page = find("similarity").draw(steps=pd.concat([steps, deep]), title="a")
    assert [ax.axison for ax in page.axes] == [False, True, True, False]
    for name in ("gates", "trade_off"):
        (ax,) = find(name).draw(steps=steps, title="a").axes
        assert not ax.axison


def test_the_overview_has_four_studies_over_depth_the_first_of_each_score_before_others():
    score = tasks.score_of("tokens")
    scores = dict.fromkeys("abcdef", score)
    scores |= {"d": replace(score, label="accuracy"), "f": replace(score, unit="bits")}
    cells = cells_of(*({"study": study, "depth": d} for study in scores for d in (4, 8)))
    labels = {"a": "How deep can it be?"}
    declared = [figures_of("overview")["score_against_depth"]]
    units = dict.fromkeys(scores, "layer") | {"d": "time step"}
    data = {"cells": cells, "scores": scores, "depth_units": units}
    (page,) = draw_figures(declared, "", labels, **data).values()
    assert [ax.get_title("left") for ax in page.axes] == ["How deep can it be?", "b", "d", "f"]
    assert [ax.get_xlabel() for ax in page.axes] == ["layers", "layers", "time steps", "layers"]


@pytest.mark.parametrize(("unit", "words"), [("layer", "layers"), ("time step", "time steps")])
def test_depth_is_in_the_unit_of_the_task(unit, words):
    """On the axes and above the panels of figures that any task may have."""
    data = data_of("unrolled")
    names = ("score", "loss", "answer_accuracy", "variants")
    for name, page in draw_figures(map(find, names), depth_unit=unit, **data).items():
        said = " ".join(text.get_text() for text in page.findobj(Text))
        assert words in said, name
        assert ("layer" in said) == (unit == "layer"), name


@pytest.mark.parametrize(("best", "triangles"), [(4, 1), (1, 0)])
def test_what_is_better_than_every_plain_network_is_drawn_where_depth_helps(best, triangles):
    """Where the plain network is best with fewer layers, its table says "not told"."""
    row = {"variant": "mhc", "depth": 8, "plain_depths": "1 2 4", "deepest": 4, "plain_best": best,
           "effective_depth": 2.0, "low": 1.5, "high": 3.0, "low_open": False,
           "high_open": False}  # fmt: skip
    table = pd.DataFrame([{**row, "answer": "at"}, {**row, "answer": "beyond"}])
    (page,) = draw_figures([find("effective_depth")], "a", effective_depth=table).values()
    marks = [line.get_marker() for line in page.axes[0].lines]
    assert marks.count("^") == triangles


@pytest.mark.parametrize(("beside", "named"), [(7, 8), (8, 1)])
def test_of_many_variants_the_overview_has_those_of_several_depths(beside, named):
    cells = cells_of(
        *({"variant": "baseline", "depth": depth} for depth in (1, 2, 3, 4)),
        *({"variant": variant, "depth": 4} for variant in "abcdefgh"[:beside]),
    )
    declared = [figures_of("overview")["score_against_depth"]]
    scores = dict.fromkeys(cells["study"], tasks.score_of("tokens"))
    data = {"cells": cells, "scores": scores, "depth_units": dict.fromkeys(scores, "layer")}
    (page,) = draw_figures(declared, "", **data).values()
    (ax,) = page.axes
    assert len([text for text in ax.texts if text.get_text() != "chance"]) == named


def test_an_overview_of_nothing_says_so():
    empty = {table: data.iloc[:0] for table, data in data_of("tokens", count=1).items()
             if isinstance(data, pd.DataFrame)}  # fmt: skip
    declared = figures_of("overview").values()
    for page in draw_figures(declared, scores={}, depth_units={}, **empty).values():
        (ax,) = page.axes
        assert not ax.axison
        assert ax.texts[0].get_text()
        assert page.get_figheight() < 1


# --- files ----------------------------------------------------------------------------------------


def test_a_picture_of_few_colours_looks_like_one_of_all(tmp_path):
    with style.in_style():
        ramp = Figure()
        ramp.subplots().imshow(np.linspace(0, 1, 10_000).reshape(100, 100), cmap="viridis")
        save({"ramp": ramp}, tmp_path, only=["png"])
        ramp.savefig(tmp_path / "all.png")
    with Image.open(tmp_path / "all.png") as whole, Image.open(tmp_path / "ramp.png") as few:
        assert few.mode == "P"
        assert few.info["dpi"] == whole.info["dpi"]
        apart = np.abs(np.asarray(whole.convert("RGB"), int) - np.asarray(few.convert("RGB"), int))
    assert apart.max() <= 20
    assert (tmp_path / "ramp.png").stat().st_size < 0.7 * (tmp_path / "all.png").stat().st_size


def test_the_same_numbers_make_the_same_bytes_without_date_or_version(tmp_path):
    data = data_of("tokens", depths=[8], count=1)
    for folder in ("one", "two"):
        save(draw_figures([find("mixing_matrix")], "a", **data), tmp_path / folder)
    for one in (tmp_path / "one").iterdir():
        content = one.read_bytes()
        assert content == (tmp_path / "two" / one.name).read_bytes(), one.name
        for word in (b"tEXt", b"tIME", b"dc:date", matplotlib.__version__.encode()):
            assert word not in content, one.name


HOSTILE = """
axes.facecolor: black
axes.xmargin: 0.4
axes.prop_cycle: cycler('color', ['r', 'g'])
figure.constrained_layout.h_pad: 1
font.family: monospace
font.size: 30
image.cmap: hot
legend.fontsize: 40
lines.linewidth: 9
lines.markersize: 30
path.sketch: 5, 50, 5
savefig.bbox: tight
savefig.dpi: 30
savefig.facecolor: red
savefig.transparent: True
svg.fonttype: none
text.parse_math: False
xtick.direction: in
ytick.major.size: 20
"""


def test_a_users_matplotlibrc_changes_no_figure(tmp_path):
    data = data_of("tokens", depths=[8], count=2)
    declared = [find(name) for name in ("mixing_matrix", "loss_comparison", "score")]
    (tmp_path / "matplotlibrc").write_text(HOSTILE)
    save(draw_figures(declared, "a", **data), tmp_path / "ours")
    with matplotlib.rc_context(fname=tmp_path / "matplotlibrc"):
        save(draw_figures(declared, "a", **data), tmp_path / "theirs")
        assert matplotlib.rcParams["font.size"] == 30  # and is the user's again
    names = sorted(file.name for file in (tmp_path / "ours").iterdir())
    assert len(names) == 6
    for name in names:
        ours, theirs = (tmp_path / folder / name for folder in ("ours", "theirs"))
        assert ours.read_bytes() == theirs.read_bytes(), name


def test_words_of_a_config_are_no_formulas(tmp_path):
    words, data = r"$x^$ for $2", data_of("tokens", depths=[8], count=1)
    data["effects"]["question"] = words
    declared = [find("effects"), find("loss_comparison")]
    drawn = draw_figures(declared, words, labels={"mhc": words}, **data)
    save(drawn, tmp_path, only=["svg"])  # a formula that is none is an error
    shown = (text.get_text() for text in drawn["effects"].findobj(Text))
    assert sum(text.count(r"\$x^\$ for \$2") for text in shown) >= 3  # title, question, label


def test_effects_stand_below_their_question_in_percent_and_those_of_several_settings_are_hollow():
    base = dict.fromkeys(EFFECTS, "") | {"metric": "score", "study": "a", "depth": 8}
    rows = [
        {**base, "question": "One?", "variant": "mhc", "against": "baseline", "differs_in": "H_res",
         "of_chance": 0.04, "of_chance_low": 0.03, "of_chance_high": 0.06, "verdict": LOWER},
        {**base, "question": "Two?", "variant": "hc", "against": "mhc", "differs_in": "lr, steps",
         "of_chance": -0.001, "of_chance_low": NAN, "of_chance_high": NAN, "verdict": "untold"},
    ]  # fmt: skip
    score = tasks.score_of("tokens")
    labels = {"baseline": "plain", "mhc": "the demo's mHC"}
    data = {"effects": pd.DataFrame(rows), "score": score}
    (drawn,) = draw_figures([find("effects")], "a", labels, **data).values()
    (ax,) = drawn.axes
    names = [text.get_text() for text in ax.get_yticklabels()]
    assert names == ["One?", "the demo's mHC − plain", "Two?", "hc − the demo's mHC"]
    first, second = (container.lines[0] for container in ax.containers)
    _, beside_first, _, beside_second = ax.get_yticks()
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in (first, second)] == [
        (4.0, beside_first),
        (pytest.approx(-0.1), beside_second),
    ]
    assert first.get_markerfacecolor() == first.get_color() != second.get_color()
    assert second.get_markerfacecolor() == "white"
    (band,) = ax.patches
    assert (band.get_x(), band.get_width()) == (-1, 2)


def test_long_names_of_effects_leave_room_and_nothing_is_cut():
    base = dict.fromkeys(EFFECTS, "") | {"metric": "score", "study": "a", "depth": 8}
    long = "reading streams in turn with identity H_res at another rate"
    shares = {"of_chance": 0.04, "of_chance_low": 0.03, "of_chance_high": 0.06}
    row = {**base, **shares, "question": f"Does {long} matter?", "variant": "mhc", "against": "hc"}
    labels = {"mhc": long, "hc": f"{long} and depth"}
    data = {"effects": pd.DataFrame([row]), "score": tasks.score_of("tokens")}
    (drawn,) = draw_figures([find("effects")], "a", labels, **data).values()
    (ax,) = drawn.axes
    drawn.draw_without_rendering()
    assert ax.bbox.width > 0.3 * drawn.bbox.width
    texts = [*ax.get_yticklabels(), ax.xaxis.label]
    boxes = [text.get_window_extent() for text in texts]
    assert all(box.x0 >= 0 and box.x1 <= drawn.bbox.width for box in boxes)
    question, name = boxes[:2]
    assert name.y1 <= question.y0


def test_a_band_of_many_steps_covers_them_with_few_points():
    steps = np.arange(1001.0)
    points = pd.DataFrame({"step": steps, "low": -(steps % 7), "high": steps % 7})
    edge = style.outline(points, "step")
    assert len(edge) == style.MOST_ON_EDGE
    assert edge["step"].is_monotonic_increasing
    width = steps[-1] / (style.MOST_ON_EDGE - 1)
    for step, low, high in points.itertuples(index=False):
        near = edge[(edge["step"] - step).abs() <= width]
        assert near["low"].min() <= low
        assert near["high"].max() >= high
    assert style.outline(points[:200], "step").equals(points[:200])
