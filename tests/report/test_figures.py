"""Figures: drawn numbers by hand, their text, and reproducible bytes."""

import itertools
import math
import re
import warnings

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from fathom_study import tasks
from fathom_study.analysis.effects import COLUMNS as EFFECTS
from fathom_study.analysis.significance import BETTER
from fathom_study.metrics.scores import Score
from fathom_study.metrics.steps import LARGEST_VALUE
from fathom_study.report.figures import (
    OF_A_CELL,
    draw_figures,
    figures_of,
    figures_of_study,
    find,
    frames,
    palette,
    panels,
    save,
    style,
)
from tests.support.runs import config_with
from tests.support.specs import quick_cases
from tests.support.tables import CHANCE, curve, frame, run, seeds

NAN, INF = math.nan, math.inf
GAIN = "gain_proxy_log10_max_entry"
LOSS = Score("exact_loss", "exact loss", "nats per token", lambda spec: CHANCE)
ACCURACY = Score("test_accuracy", "accuracy", "", lambda spec: 0.1, "higher", 1.0)


def rows_of(table, *columns):
    """Rows of a frame as tuples, with None for NaN."""
    chosen = table[list(columns)].astype(object)
    return list(chosen.where(chosen.notna(), None).itertuples(index=False, name=None))


# --- declarations ---------------------------------------------------------------------------------


CURVES = ["loss", "score", "grad_norm", "depth_scaling"]
PICTURES = ["loss", "score", "grad_norm_stem"]
PAIRS = [{"question": "Does it matter?", "pairs": [["hc", "mhc"]]}]
IMAGES = {"task": "fashion", "variants": ["resnet", "mhc_causal"], "model": {"width": 8}}
MANY = [*({f"m{i}": {"connection": "mhc"}} for i in range(13))]
FAST = [*({f"m{i}": {"connection": "mhc", "optimizer": {"lr": 0.01 * (i + 1)}}} for i in range(13))]


@pytest.mark.parametrize(
    ("study", "names"),
    [
        ({}, CURVES),
        ({"contrasts": PAIRS}, ["effects", *CURVES]),
        # A doubly stochastic matrix has the same gain at every depth.
        ({"variants": ["mhc", FAST[4]]}, ["score_against_rate", *CURVES[:3]]),
        ({"variants": ["mhc", "hc", FAST[4]]}, CURVES),  # hc has one rate
        ({"variants": FAST}, ["score_against_rate"]),
        ({"variants": MANY}, ["score"]),
        ({"variants": [*MANY, *({f"n{i}": {"connection": "hc"}} for i in range(13))]}, []),
        ({"depths": [4]}, CURVES[:3]),
        # Ladder runs are not drawn as variants.
        ({"ladder": {"baseline": [1 + i / 100 for i in range(1, 12)]}, "contrasts": PAIRS},
         ["worth", "ladder", *CURVES]),
        (IMAGES, PICTURES),
        ({**IMAGES, "exclude": [{"variant": "mhc_causal"}]}, PICTURES),
    ],
)  # fmt: skip
def test_figures_of_a_study(tmp_path, study, names):
    config = config_with(tmp_path, a=study)
    assert [declared.name for declared in figures_of_study(config, "a")] == names


# --- against step ---------------------------------------------------------------------------------


def test_a_curve_is_the_geometric_mean_and_range_over_seeds():
    steps = frame(
        curve([1.0, 10.0], seed=0), curve([10.0, 10.0], seed=1), curve([100.0, 80.0], seed=2)
    )
    points = frames.over_seeds(steps, "step", "loss", geometric=True)
    assert rows_of(points, "variant", "step") == [("mhc", 0), ("mhc", 1)]
    assert points["mean"].tolist() == pytest.approx([10, 20])  # the third root of 8000
    assert points["low"].tolist() == pytest.approx([1, 10])
    assert points["high"].tolist() == pytest.approx([100, 80])
    assert frames.over_seeds(steps, "step", "loss")["mean"].tolist() == pytest.approx([37, 100 / 3])
    window = frames.over_seeds(
        frame(curve([1.0, 100.0, 1.0, 10.0])), "step", "loss", 2, geometric=True
    )
    assert window["mean"].tolist() == pytest.approx([1, 10, 10, math.sqrt(10)])


@pytest.mark.parametrize(
    ("other", "geometric", "kept"),
    [
        ([3.0, 3.0, NAN, NAN], True, [0, 1]),  # a mean over surviving seeds would be too good
        ([3.0, INF, 3.0, 3.0], False, [0, 2, 3]),
        ([3.0, 0.0, 3.0, 3.0], True, [0, 2, 3]),  # zero has no logarithm
        ([3.0, 0.0, 3.0, 3.0], False, [0, 1, 2, 3]),
    ],
    ids=["diverged", "infinite", "zero of a logarithm", "zero"],
)
def test_a_curve_has_the_steps_at_which_every_seed_is_finite(other, geometric, kept):
    steps = frame(curve([4.0, 3.0, 2.0, 1.0]), curve(other, seed=1))
    points = frames.over_seeds(steps, "step", "loss", geometric=geometric)
    assert points["step"].tolist() == kept


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"loss": [4.0, NAN, NAN], "nonfinite_event": [1, 1, 1]}, (0, "logits")),
        ({"loss": [4.0, 4.0, NAN], "grad_norm": [1.0, INF, NAN], GAIN: [5.0, 5.0, NAN],
          "nonfinite_event": [0, 0, 1]}, (1, "gradient")),
        ({GAIN: [5.0, NAN, NAN]}, (1, "H_res")),
        ({GAIN: [NAN] * 3}, None),  # causal mixing has no such product
        ({"validation_loss": [NAN, 2.0, NAN]}, None),  # not evaluated
    ],
    ids=["logits", "gradient", "H_res", "no gain", "not evaluated"],
)  # fmt: skip
def test_the_first_nonfinite_step_and_quantity_of_a_run(rows, said):
    steps = frame(curve([4.0] * 3)).assign(**rows)
    assert frames.first_nonfinite(steps) == said


# --- against depth --------------------------------------------------------------------------------


def diverged(variant="hc", depth=8, seed=0, **values):
    return run(variant, depth, seed, outcome="diverged", **values)


def test_a_group_with_a_failed_run_has_no_mean_over_the_other_runs():
    cells = frame(
        run("mhc", gain_final=1.0, gain_first=0.5, score=2.0),
        diverged(gain_first=2.5), diverged(seed=1, gain_first=2.5, gain_final=9.0, score=1.0),
        run("causal", score=3.0),  # it has no gain, but has not failed
        diverged("v1", score=0.4),  # it has a score; its gradient may have exploded
    )  # fmt: skip
    columns = ("variant", "mean", "failed")
    gains = frames.means_of(frames.runs_of(cells, "gain_final", "gain_first"))
    assert rows_of(gains, *columns) == [("mhc", 1.0, False), ("hc", 2.5, True)]
    scores = frames.means_of(frames.runs_of(cells, "score"), all_failed=True)
    assert rows_of(scores, *columns) == [
        ("mhc", 2.0, False), ("hc", None, True), ("causal", 3.0, False), ("v1", None, True),
    ]  # fmt: skip
    assert frames.means_of(frames.runs_of(cells, "gate_mean_final")).empty


@pytest.mark.parametrize(
    ("scores", "geometric", "mean"),
    [
        ([0.5, 1.0, 2.0], True, 1),
        ([0.5, 1.0, 2.0], False, 3.5 / 3),
        ([0.1, 1.1], True, NAN),  # more than a decade: no seed is near the mean
        ([0.1, 1.1], False, 0.6),
        ([0.0, 1.0], True, 0.5),  # zero has no logarithm
    ],
)
def test_a_mean_over_seeds_by_hand(scores, geometric, mean):
    runs = frames.runs_of(frame(seeds("score", scores)), "score")
    (result,) = frames.means_of(runs, geometric=geometric)["mean"]
    assert result == pytest.approx(mean, nan_ok=True)


def test_a_depth_with_one_variant_has_no_panel():
    depths = {1: ["a"], 4: ["a", "b"], 8: ["a", "b", "c"], 16: ["a"]}
    table = pd.DataFrame([(d, v) for d, names in depths.items() for v in names],
                         columns=["depth", "variant"])  # fmt: skip
    assert frames.compared_depths(table, 6) == [4, 8]
    assert frames.compared_depths(table, 1) == [8]
    assert frames.compared_depths(table[table["variant"] == "a"], 3) == [4, 8, 16]


# --- pages ----------------------------------------------------------------------------------------

SIZES = pd.DataFrame(
    [{"design": design, "channels": c, "layers": layers, "steps": steps, "gain": m - 1,
      "gain_low": m - 1.1, "gain_high": m - 0.9, "answer": answer, "multiplier": m,
      "corrected_low": NAN if answer != "at" else m - 0.1, "least": 0.5, "most": 2.0,
      "corrected_high": NAN if answer != "at" else m + 0.1,
      "parameters": c * 1000}
     for design, c, layers, steps, m, answer in (
         ("mhc", 32, 12, 1000, 1.1, "at"), ("mhc", 64, 12, 1000, 1.2, "at"),
         ("mhc", 64, 12, 4000, 1.3, "at"), ("mhc", 64, 24, 1000, 1.15, "beyond"),
         ("hc", 64, 12, 1000, 0.9, "at"), ("hc", 128, 12, 1000, 0.8, "below"))]
)  # fmt: skip

VARIANTS = {
    "tokens": ("baseline", "hc", "mhc"),
    "fashion": ("resnet", "hc_causal", "mhc_dynamic"),
    "text": ("baseline", "v1", "v3"),
}


OPTIONAL = ("stream_similarity", "grad_norm_stem")


def of_worth(variant, multiplier, low=NAN, high=NAN, cost=1.5, verdict="better", **changes):
    """A row of worth.csv, on a ladder from 0.8 to 1.65 times the steps."""
    return {
        "variant": variant, "against": "baseline", "depth": 8, "rate": "one rate", "answer": "at",
        "multiplier": multiplier, "corrected_low": low, "corrected_high": high, "least": 0.8,
        "most": 1.65, "cost": cost, "cost_fused": 1.02, "width": 64.0, "verdict": verdict,
        "pays_here": "costs more", "pays_fused": "undecided",
    } | changes  # fmt: skip


def data_of(task, losses=(4.0, 2.0, 1.0), depths=(4, 8), count=3, value=None):
    """All data that figures of a study read; the last variant lacks optional metrics.

    `value` replaces every metric of the task.
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
        "variant": variants[1], "against": variants[0], "metric": "score", "verdict": BETTER,
        "unit": "%", "question": "Does it help?", "depth": depths[0], "differs_in": "",
    }  # fmt: skip
    return {
        "steps": frame(steps),
        "effects": pd.DataFrame([effect, {**effect, "corrected_low": NAN, "corrected_high": NAN}]),
        "profiles": pd.DataFrame(
            [{"study": "a", "variant": variant, "depth": depth, "seed": 0,
              "metric": metric,
              "at": block, "value": losses[-1] * block}
             for metric in ("score_without_block", "energy_distance_by_steps")
             for variant in variants for depth in depths for block in (1.0, 2.0)]
        ),
        "score": score,
        "cells": frame(cells),
        "ladder": pd.concat([frame(cells).assign(factor=f) for f in (0.5, 1.0, 1.15, 2.0)]).query(
            f"variant == '{variants[0]}'"),
        "worth": pd.DataFrame(
            [of_worth(variants[1], 1.1, low, 1.2, cost, verdict, answer=answer, depth=depths[0],
                      against=variants[0], pays_fused="pays")
             for answer, low, cost, verdict in (
                 ("at", 1.0, 1.5, "better"), ("below", NAN, 1.5, "undecided"),
                 ("beyond", NAN, NAN, "undecided"), ("", NAN, 2, ""))]
        ),
        "sizes": SIZES,
        "published_sizes": pd.DataFrame([{"source": "lab", "variant": "mhc", "parameters": 1e9,
                                          "below": 0.02, "spread": 0.01}]),
        "stability": pd.DataFrame(
            [{"variant": variant, "depth": depth, "rates": "0.001 0.002", "smallest": 0.001,
              "greatest": 0.002, "largest": at, "largest_low": 0.0, "largest_high": at,
              "to_pass": NAN}
             for depth in depths
             for variant, at in zip(variants, itertools.cycle((0.002, 0.0)), strict=False)]
        ),
        "scores": {"a": score},
        "depth_units": {"a": "layer"},
    }  # fmt: skip


def all_figures(task="tokens", only=(), labels=None, **changes):
    """Draw every declared figure, and the task's figures.

    `only` selects figures by name. `labels` are display names of variants and backends.
    """
    declared = {name: d for group in ("overview", "study") for name, d in
                figures_of(group).items()}  # fmt: skip
    metrics = [*tasks.presentation(task).figures, *OF_A_CELL, "exact_loss", "gain_final",
               "score_without_block"]  # fmt: skip
    declared |= {name: find(name) for name in metrics}
    data = data_of(task, **changes)
    return draw_figures([declared[name] for name in only or declared], "a study", labels, **data)


def test_axes_are_labelled_and_a_variant_has_one_colour_in_all_figures():
    colours = {variant: palette.colour_of(variant) for variant in (*VARIANTS["text"], "mhc", "hc")}
    seen = set()
    for name, page in all_figures("text", depths=(1, 4, 8)).items():
        if not page.axes[0].axison:  # says why there is nothing to draw
            continue
        assert all(ax.get_xlabel() for ax in page.axes), name
        assert page.axes[0].get_ylabel() or name in ("effects", "stability", "worth"), name  # rows
        for ax in page.axes:
            for line in ax.lines:
                if line.get_label() in colours:
                    assert line.get_color() == colours[line.get_label()], name
                    seen.add(name)
    assert {"ladder", "score", "loss", "score_against_rate", "score_against_depth",
            "multiplier_by_size", "nats_below_plain", "distance_by_steps"} <= seen  # fmt: skip


def test_similar_colours_differ_in_marker_or_dashes():
    """Also without colour: no two of eight series look the same."""
    points = {style.series("mhc", i)["marker"] for i in range(panels.MOST_LINES)}
    assert len(points) == panels.MOST_LINES
    assert len({style.curve("mhc", i)["ls"] for i in range(4)}) == 4


def test_a_curve_has_the_band_of_its_seeds_and_a_mark_where_it_diverges():
    steps = frame(curve([4.0, 2.0]), curve([4.0, 3.0], seed=1), curve([4.0, NAN], "hc"))
    (ax,) = draw_figures([find("loss")], steps=steps)["loss"].axes
    bands = [band.get_paths()[0].vertices for band in ax.collections]
    assert [(v[v[:, 0] == 1, 1].min(), v[v[:, 0] == 1, 1].max()) for v in bands[:1]] == [(2, 3)]
    (mark,) = [line for line in ax.lines if line.get_marker() == "x" and len(line.get_xdata())]
    assert (mark.get_color(), *mark.get_xdata()) == (palette.colour_of("hc"), 1)


CASES = {
    "nan from step 0": ({"losses": [NAN, NAN, NAN]},),
    "nan from step 1": ({"losses": [4.0, NAN, NAN]},),
    "zero": ({"losses": [0.0, 0.0]},),
    "one number": ({"losses": [4.0], "count": 1, "depths": [8]},),
    "largest": ({"losses": [LARGEST_VALUE, 0.0, 1.0], "depths": [8]},),
    "nothing optional": ({"value": NAN},),
}


READ = {"baseline": "plain", "v1": "an arm", "v3": "another arm", "mhc": "the demo's mHC",
        "torch": "PyTorch"}  # fmt: skip


@quick_cases("changes", CASES, "nan from step 1")
def test_figures_of_extreme_tables_show_neither_nan_nor_code_names(changes):
    code_name = re.compile(rf"\b({'|'.join(READ)})\b")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pages = all_figures("text", labels=READ, **changes)
        for name, page in pages.items():
            page.set_layout_engine("none")  # the layout is slow and does not change text
            page.draw_without_rendering()
            said = [text.get_text() for text in page.findobj(Text)]
            assert not [words for words in said if re.search(r"\b(nan|inf)\b", words, re.I)], name
            unread = (words for words in said if words not in READ.values())
            assert not [words for words in unread if code_name.search(words)], name


@pytest.mark.parametrize("score", [LOSS, ACCURACY])
def test_a_diverged_run_is_marked_above_the_axes(score):
    cells = frame(run(depth=4, score=0.5), run(depth=8, score=0.5), diverged(depth=4),
                  diverged(depth=8))  # fmt: skip
    page = panels.against_depth(cells, score.metric, "a", score=score)
    page.draw_without_rendering()
    (ax,) = page.axes
    marks = [line for line in ax.lines if line.get_marker() == "x"]
    at = [ax.transAxes.inverted().transform(m.get_transform().transform(m.get_xydata()))[0, 1]
          for m in marks if len(m.get_xdata())]  # fmt: skip
    assert len(at) == 2
    assert all(y > 1 for y in at)
    assert "a run diverged" in [text.get_text() for text in page.legends[0].get_texts()]


@pytest.mark.parametrize("values", [[3.8959488, 3.8959488 * (1 + 1e-9)], [3.0, 3.1]])
def test_an_axis_is_not_narrower_than_its_printed_digits(values):
    """Both ends of the axis differ when printed with five digits."""
    cells = frame([run(variant=v, score=x) for v, x in zip(("hc", "mhc"), values, strict=True)])
    page = panels.against_depth(cells, "score", "a", score=ACCURACY)
    low, high = page.axes[0].get_xlim()
    assert f"{low:.5g}" != f"{high:.5g}"


def lines_of(ax):
    """(rounded points, marker, fill colour of the marker) of each line of a panel."""
    return [(np.round(line.get_xydata(), 6).tolist(), line.get_marker(),
             line.get_markerfacecolor()) for line in ax.lines]  # fmt: skip


@pytest.mark.parametrize("name", ["multiplier_by_size", "nats_below_plain"])
def test_sizes_have_a_panel_for_each_number_of_steps_and_intervals(name):
    published = pd.DataFrame(columns=["source", "variant", "parameters", "below", "spread"])
    data = {"sizes": SIZES, "published_sizes": published}
    value = 0 if name == "multiplier_by_size" else 1  # gain is multiplier − 1
    axes = draw_figures([figures_of("overview")[name]], **data)[name].axes
    assert [ax.get_title(loc="left") for ax in axes] == ["1000 steps", "4000 steps"]
    ticks = [[label.get_text() for label in ax.get_xticklabels()] for ax in axes]
    assert ticks == [["32 × 12", "64 × 12", "64 × 24", "128 × 12"], ["64 × 12"]]
    first, second = (
        {round(y + value, 6): (round(x), fill) for points, mark, fill in lines_of(ax)
         for x, y in points if mark in palette.MARKERS}
        for ax in axes
    )  # fmt: skip
    places = {y: place for y, (place, _) in first.items()}  # within half a place of its tick
    assert places == {1.1: 0, 1.2: 1, 0.9: 1, 1.15: 2, 0.8: 3}
    assert [*second] == [1.3]
    bars = [path.vertices[:, 1] + value for bar in axes[1].collections for path in bar.get_paths()]
    assert np.round(bars, 6).tolist() == [[1.2, 1.4]]
    arrows = {text.xy[1]: text.xyann[1] > 0 for text in axes[0].texts if text.arrow_patch}
    hollow = {y for y, (_, fill) in first.items() if fill == "white"}
    bounds = {1.15: True, 0.8: False} if name == "multiplier_by_size" else {}
    assert (arrows, hollow) == (bounds, {*bounds})


def test_effects_that_are_zero_within_rounding_are_not_drawn():
    row = {"metric": "score", "question": "Is it?", "against": "hc", "depth": 8, "unit": "%"}
    worse = {"effect": 3.0, "corrected_low": 2.0, "corrected_high": 4.0, "verdict": "worse"}
    worse["differs_in"] = ""
    same = {**dict.fromkeys(worse, 0.0), "differs_in": "", "verdict": "the same"}
    table = pd.DataFrame([row | worse | {"variant": "mhc"}, row | same | {"variant": "krom_hc"}])
    (ax,) = draw_figures([find("effects")], effects=table, score=LOSS)["effects"].axes
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == ["Is it?", "mhc − hc"]


def test_worth_has_rows_by_verdict_with_multiplier_interval_and_cost():
    rows = [
        of_worth("hc", 0.9, 0.85, 0.95, 1.4, "worse"),
        of_worth("v1", 1.3, 0, math.inf, 1.2, "undecided"),  # ends at the ladder's ends
        of_worth("mhc", 1.1, 1.05, 1.15, 1.5),
        of_worth("krom_hc", 1.65, cost=1.3, answer="beyond"),
    ]
    (ax,) = draw_figures([find("worth")], "a", worth=pd.DataFrame(rows))["worth"].axes
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == [
        "better than baseline", "krom_hc", "mhc", "worse than baseline", "hc", "undecided", "v1",
    ]  # fmt: skip
    row = dict(zip(ax.get_yticks(), labels, strict=True))
    marks = {(row[y], x): line.get_marker() for line in ax.lines
             for x, y in line.get_xydata() if y in row}  # fmt: skip
    costs = {("krom_hc", 1.3): "|", ("mhc", 1.5): "|", ("hc", 1.4): "|", ("v1", 1.2): "|"}
    multipliers = {("krom_hc", 1.65): ">", ("mhc", 1.1): "o", ("hc", 0.9): "o", ("v1", 1.3): "o"}
    assert marks == costs | multipliers
    ends = [path.vertices for bars in ax.collections for path in bars.get_paths()]
    intervals = {(row[v[0, 1]], *v[:, 0]) for v in ends if np.isfinite(v).all()}
    assert intervals == {("hc", 0.85, 0.95), ("v1", 0.8, 1.65), ("mhc", 1.05, 1.15)}


def test_the_answer_is_the_time_to_the_plain_networks_score_by_two_costs():
    rows = [
        of_worth("hc_paper", 0.9, 0, 0.95, 1.4, "worse"),
        of_worth("mhc_paper", 1.25, 1.2, 1.5),
        of_worth("mine", 1.25, 1.2, 1.5, 1.0),  # no named connection
        of_worth("depth_scaled", 1.0, cost=1.0, verdict="equivalent"),  # the plain scores
    ]
    here, fused = draw_figures([find("answer")], "a", worth=pd.DataFrame(rows))["answer"].axes
    labels = [label.get_text() for label in here.get_yticklabels()]
    assert labels == ["mhc_paper", "hc_paper"]
    for ax, costs in ((here, (1.5, 1.4)), (fused, (1.02, 1.02))):
        dots = [tuple(p) for line in ax.lines if line.get_marker() == "o"
                for p in line.get_xydata().tolist()]  # fmt: skip
        assert dots == [(costs[0] / 1.25, 0), (costs[1] / 0.9, 1)]
        ends = [path.vertices[:, 0] for bars in ax.collections for path in bars.get_paths()]
        expected = [(costs[0] / 1.5, costs[0] / 1.2), (costs[1] / 0.95, costs[1] / 0.8)]
        assert np.array(ends) == pytest.approx(np.array(expected))


def test_the_ladder_joins_a_score_to_the_plain_networks_steps_for_it():
    """mhc ends at 2.5, which the plain network reaches with 1.5 times the steps."""
    plain = {0.5: [4.0, 4.0, 4.0], 1: [3.0, 3.0, 3.0], 2: [2.0, 2.0, 2.0]}
    cells = [
        run(variant="baseline", seed=seed, loss_final=loss) | {"factor": factor}
        for factor, losses in plain.items()
        for seed, loss in enumerate(losses)
    ]
    data = {
        "ladder": frame(cells),
        "worth": pd.DataFrame([of_worth("mhc", 1.5, 1.4, 1.6)]),
        "cells": frame(seeds("loss_final", [2.5] * 3)),
        "score": LOSS,
    }
    (ax,) = draw_figures([find("ladder")], "a", **data)["ladder"].axes
    lines = [points for points, _, _ in lines_of(ax)]
    assert [[0.5, 4], [1, 3], [2, 2]] in lines and [[1, 2.5], [1.5, 2.5]] in lines
    (interval,) = ax.collections[-1].get_paths()
    assert interval.vertices == pytest.approx(np.array([[1.4, 2.5], [1.6, 2.5]]))


def test_of_many_variants_the_ladder_has_the_four_best_and_the_four_worst():
    """Six are better, five worse, and one that is undecided has the largest multiplier."""
    multipliers = {**{f"a{i}": 1.1 + i / 100 for i in range(6)},
                   **{f"b{i}": 0.9 - i / 100 for i in range(5)}, "c": 1.3}  # fmt: skip
    verdicts = {"a": "better", "b": "worse", "c": "undecided"}
    rows = [of_worth(name, m, verdict=verdicts[name[0]]) for name, m in multipliers.items()]
    cells = [run(variant="baseline", seed=s, loss_final=4.0 - f) | {"factor": f}
             for f in (0.5, 1.0, 2.0) for s in range(3)]  # fmt: skip
    scores = [run(variant=name, seed=s, loss_final=3.0) for name in multipliers for s in range(3)]
    data = {
        "ladder": frame(cells),
        "worth": pd.DataFrame(rows),
        "cells": frame(scores),
        "score": LOSS,
    }
    (ax,) = draw_figures([find("ladder")], "a", **data)["ladder"].axes
    drawn = [line.get_label() for line in ax.lines if not line.get_label().startswith("_")]
    assert drawn == ["baseline", "a5", "a4", "a3", "a2", "b1", "b2", "b3", "b4"]


# --- files ----------------------------------------------------------------------------------------


def test_the_same_numbers_make_the_same_bytes_without_date_or_version(tmp_path):
    data = data_of("tokens", depths=[8], count=1)
    for folder in ("one", "two"):
        save(draw_figures([find("score")], "a", **data), tmp_path / folder)
    for one in (tmp_path / "one").iterdir():
        content = one.read_bytes()
        assert content == (tmp_path / "two" / one.name).read_bytes(), one.name
        for word in (b"tEXt", b"tIME", b"dc:date", matplotlib.__version__.encode()):
            assert word not in content, one.name


HOSTILE = """
axes.facecolor: black
font.size: 30
savefig.bbox: tight
svg.fonttype: none
"""


def test_a_users_matplotlibrc_changes_no_figure(tmp_path):
    data = data_of("tokens", depths=[8], count=1)
    declared = [find(name) for name in ("score", "loss")]
    (tmp_path / "matplotlibrc").write_text(HOSTILE)
    save(draw_figures(declared, "a", **data), tmp_path / "ours")
    with matplotlib.rc_context(fname=tmp_path / "matplotlibrc"):
        save(draw_figures(declared, "a", **data), tmp_path / "theirs")
        assert matplotlib.rcParams["font.size"] == 30  # the user's setting is restored
    names = sorted(file.name for file in (tmp_path / "ours").iterdir())
    assert len(names) == 4
    for name in names:
        ours, theirs = (tmp_path / folder / name for folder in ("ours", "theirs"))
        assert ours.read_bytes() == theirs.read_bytes(), name
