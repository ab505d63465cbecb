"""report/published.yaml: its values and thresholds beside ours, its mistakes, its claims."""

import itertools
import math

import pandas as pd
import pytest

from fathom.settings import ConfigError, validate
from fathom_study.analysis.claims import load_published
from fathom_study.analysis.claims.published import ESTIMATORS, Bound, Value
from fathom_study.analysis.claims.verdicts import (
    claims_table,
    deviates,
    published_table,
    thresholds_table,
)
from fathom_study.analysis.run_tables import summary_table
from fathom_study.config import load_config
from tests.analysis.test_claims import CONTRADICTED, NAN, NOT_MEASURED, REPRODUCED
from tests.support.runs import GPU_PLATFORM, config_with
from tests.support.tables import (
    T_ROUNDING,
    curve,
    frame,
    half_width,
    published_with,
    run,
    seeds,
    unlike_others,
)  # fmt: skip

# --- thresholds ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bound", "text", "inside", "outside"),
    [
        ({"below": 0.2}, "below 0.2", [-1.0, 0.19], [0.21]),
        ({"above": 0.4}, "above 0.4", [0.41, 9.0], [0.39]),
        ({"above": 0.3, "below": 0.7}, "0.3 to 0.7", [0.3, 0.5, 0.7], [0.29, 0.71]),
        # Values that round to it, as printed.
        ({"at": [1.0, 0.25]}, "1.0 or 0.25", [0.96, 1.04, 0.246, 0.254], [0.94, 1.06, 0.24, 0.26]),
    ],
)
def test_bounds(bound, text, inside, outside):
    band = validate(Bound, bound, "a bound")
    assert band.text == text
    assert all(map(band.holds, inside))
    assert not any(map(band.holds, [*outside, NAN]))


THRESHOLD = {"source": "lab", "studies": ["a"], "metric": "gain_final",
             "good": {"below": 0.2}, "bad": {"above": 0.4}}  # fmt: skip


def test_thresholds_grade_the_mean_and_count_the_runs():
    rows = (
        seeds("gain_final", [0.1, 0.1, 0.1]),
        seeds("gain_final", [0.1, 0.3, 0.5], variant="hc"),
        seeds("gain_final", [0.1, 0.5, 0.9, None], depth=16),
        seeds("gain_final", [None], variant="baseline"),  # has no such metric
        seeds("gain_final", [0.9], study="b"),
        seeds("gain_final", [0.9], variant="baseline", status="stale"),
    )
    table = thresholds_table(frame(*rows), published_with(thresholds=[THRESHOLD]))
    assert table[["variant", "depth", "n", "grade", "good", "bad"]].to_numpy().tolist() == [
        ["mhc", 8, 3, "good", 3, 0],
        ["hc", 8, 3, "between", 1, 1],
        ["mhc", 16, 3, "bad", 1, 2],
    ]
    assert table["mean"].tolist() == pytest.approx([0.1, 0.3, 0.5])
    half = half_width([0.1, 0.3, 0.5])
    assert table["low"].iloc[1] == pytest.approx(0.3 - half, rel=T_ROUNDING)
    assert table["high"].iloc[1] == pytest.approx(0.3 + half, rel=T_ROUNDING)
    assert set(table["good_is"]) == {"below 0.2"}
    assert set(table["bad_is"]) == {"above 0.4"}


# --- published figures beside ours ---------------------------------------------------------------

RANGE = (0.43, 0.77)


@pytest.mark.parametrize(
    ("published", "half", "inside", "outside"),
    [
        # Half a unit of the last printed digit, also where Python writes an exponent.
        (5.54, 0.0, [5.5449, 5.5351], [5.5451, 5.5349]),
        (-0.6, 0.0, [-0.64], [-0.66]),
        (1e-5, 0.0, [1.4e-5], [1.6e-5]),
        # An interval plus the rounding; without an interval nothing finite deviates.
        (5.54, 0.1, [5.64, 5.644], [5.646, 5.434]),
        (5.54, NAN, [9.0], [NAN]),
        # Only one of the two is finite.
        (NAN, 0.1, [NAN], [1.0]),
        # Some part of the interval must be inside the published range.
        (RANGE, 0.0, [0.6, 0.426, 0.774], [0.424, 0.776]),
        (RANGE, 0.124, [], [0.3]),
    ],
)
def test_deviating(published, half, inside, outside):
    value = Value(*(published if isinstance(published, tuple) else (published, published)))
    for mean in inside + outside:
        assert deviates(value, mean, mean - half, mean + half) is (mean in outside), mean


def value_entry(**changes):
    return {"source": "lab", "study": "a", "metric": "loss_final", "scale": {},
            "cells": {"mhc": {8: 0.5}}, **changes}  # fmt: skip


def set_beside(entry, *rows, **changes):
    """The rows of published.csv of one entry, for a study with these changes."""
    config = config_with(studies=("a", "b"), a=changes)
    published = published_with(values=[entry])
    return published_table(config, summary_table(frame(*rows)), published).to_dict("records")


def test_a_published_value_stands_beside_our_mean_on_every_platform():
    losses = seeds("loss_final", [1.0, 2.0, 6.0])
    here, there = set_beside(value_entry(), losses, seeds("loss_final", [0.9] * 3, backend="mlx"))
    # A loss is positive: 1, 2 and 6 have the geometric mean of 12.
    assert (here["published"], here["mean"], here["n"]) == (0.5, pytest.approx(12 ** (1 / 3)), 3)
    reach = half_width([math.log(1), math.log(2), math.log(6)])
    assert here["low"] == pytest.approx(12 ** (1 / 3) * math.exp(-reach), rel=T_ROUNDING)
    assert here["high"] == pytest.approx(12 ** (1 / 3) * math.exp(reach), rel=T_ROUNDING)
    assert (here["platform"], here["scale"], here["deviates"]) == ("torch", "", False)
    assert (there["platform"], there["mean"]) == ("mlx", pytest.approx(0.9))
    assert there["deviates"]


def test_times_diverged_runs_and_missing_cells_stand_beside_a_value():
    for metric in ("seconds", "seconds_per_step"):  # it is the time of another machine
        (row,) = set_beside(value_entry(metric=metric), seeds(metric, [9.0, 9.0, 9.0]))
        assert (row["mean"], row["deviates"]) == (9.0, False)
    # Runs that diverged match a published NaN.
    runs = [run(seed=seed, outcome="diverged") for seed in (0, 1)]
    (row,) = set_beside(value_entry(cells={"mhc": {8: NAN}}), runs, run(seed=2))
    assert (row["n"], row["diverged"], row["deviates"]) == (3, 2, False)
    # A cell without a run also has a row.
    rows = set_beside(value_entry(cells={"mhc": {4: 0.1, 8: 0.2}, "hc": {16: 0.3}}), [run()])
    assert [(r["variant"], r["depth"], r["published"]) for r in rows] == [
        ("mhc", 4, 0.1), ("mhc", 8, 0.2), ("hc", 16, 0.3),
    ]  # fmt: skip
    assert [pd.isna(row["platform"]) for row in rows] == [True, False, True]


# --- YAML alone ----------------------------------------------------------------------------------

YAML = """
sources:
  lab: {title: A lab, platform: some GPU, backend: torch}
notes: []
values:
  - {source: lab, study: a, metric: loss_final, scale: {width: 256}, cells: {mhc: {8: 0.5}}}
claims:
  - id: first
    source: lab
    statement: It fails.
    tests:
      - {kind: level, studies: [a], variants: [hc], metric: left, high: 0.1}
  - {id: second, source: lab, statement: It does not.}
"""

CONFIG = config_with()


A_TEST = "{kind: level, studies: [a], variants: [hc], metric: left, high: 0.1}"
FIRST = ["'first'", "claims.0"]
"""Names of the first claim in messages: its id, or its place in the list."""


MISTAKES = [
    # (text, text with a mistake, names of the entry, part of the message)
    # --- claims
    ("id: first\n    source: lab", "id: first\n    source: lob", FIRST, "lob"),
    ("id: second", "id: first", ["first"], "same id"),
    ("statement: It fails.", "statement: It fails.\n    minimum_scale: {steps: {torch: 4}}", FIRST,
     "unknown recipe 'torch'"),
    ("kind: level", "kind: lvel", FIRST, "lvel"),
    ("high: 0.1", "low: 2, high: 1", FIRST, "level needs low, high or both"),
    ("metric: left", "metric: states_tracked", FIRST, "has no metric 'states_tracked'"),
    (A_TEST, "{kind: count, studies: [a], variants: [hc], metric: grad_nrom, over_steps: rises, "
     "high: 0}", FIRST, "did you mean 'grad_norm'"),
    # --- values
    ("{mhc: {8: 0.5}}", "{mhc: {8: [0.8, 0.4]}}", ["values.0"], "a range as in [0.4, 0.8]"),
    # --- thresholds
    ("claims:", "thresholds: [{source: lab, studies: [a], metric: loss_final, good: {}, "
     "bad: {above: 1}}]\nclaims:", ["thresholds.0"], "above, below or both"),
    # --- sources, notes
    ("backend: torch", "backend: torhc", ["sources.lab", "'lab'"], "torhc"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "names", "problem"), MISTAKES, ids=[f"{m[2][0]}-{m[3]}" for m in MISTAKES]
)
def test_a_mistake_is_refused_with_the_file_and_the_entry(tmp_path, old, new, names, problem):
    assert YAML.count(old) == 1
    file = tmp_path / "published.yaml"
    file.write_text(YAML.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_published(file, CONFIG)
    lines = str(caught.value).splitlines()
    assert len(lines) == 1 or "minimum_scale" not in new
    assert any(problem in line for line in lines)
    for line in lines:
        assert line.startswith(f"{file}: ")
        assert any(name in line.removeprefix(f"{file}: ") for name in names)


# --- shipped claims ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shipped(pytestconfig, default_config):
    return load_published(pytestconfig.rootpath / "report/published.yaml", default_config)


@pytest.fixture(scope="module")
def every_study(pytestconfig):
    """A config that has every study of the shipped claims."""
    root = pytestconfig.rootpath
    published, reference = (
        load_config([root / "config.yaml", root / f"workflow/presets/{name}.yaml"])
        for name in ("paper", "reference")
    )
    studies = reference.studies | published.studies
    return published.model_copy(update={"studies": studies})


def test_every_claim_has_a_minimum_scale(shipped):
    """At least half of the depth, and an eighth of the width (image networks: a quarter)."""
    for claim in (claim for claim in shipped.claims if claim.tests):
        assert {"width", "steps"} <= set(claim.minimum_scale)
        share = 0.25 if claim.source == "surviving-depth" else 0.125
        if "width" in claim.scale:
            assert claim.minimum_scale["width"] >= share * claim.scale["width"]
        # These claims do not concern the depth, or their tests set it.
        if "depth" in claim.scale and claim.id not in (
            "fashion-resnet-fastest", "text-init-3-fails-deeper"
        ):  # fmt: skip
            assert claim.minimum_scale["depth"] >= 0.5 * claim.scale["depth"]


MACHINES = {None: "", "cuda": GPU_PLATFORM}


def value_for(test, holds):
    """A value inside the band of a test, or plainly outside."""
    low, high = test.low, test.high
    if math.isfinite(low) and math.isfinite(high):
        middle = (low + high) / 2
        return middle if holds else high + 10 * (high - low)
    edge = high if math.isfinite(high) else low
    inwards = (-1 if math.isfinite(high) else 1) * (1 if holds else -1)
    return edge + 0.5 * inwards * max(abs(edge), 0.5)


def runs_of(test, axes, holds, jitter):
    """(values, curve) of one run for which a shipped test holds or fails."""
    seed, is_first = axes["seed"], axes["variant"] == getattr(test, "variant", None)
    if test.kind == "slope":
        return {test.metric[0]: (0.58 if holds else -0.58) * axes["depth"] * jitter}, [3.0, 0.02]
    if test.kind == "difference":
        less = math.isfinite(test.high) == holds
        value = seed * (0.01 if is_first == less else 1.0) if test.spread else (
            (0.1 if is_first == less else 1.0) * jitter)  # fmt: skip
        return {test.metric: value}, [3.0, 0.02]
    metric = test.metric if isinstance(test.metric, str) else test.metric[0]
    if metric == "left":
        learned = holds == math.isfinite(test.high)
        outcome = "learned" if learned or test.kind == "level" else "at chance"
        return {"score": (0.001 if learned else 3.79) * jitter, "outcome": outcome}, [3.0, 0.02]
    if test.kind == "count" and test.over_steps:
        up = [1.0, 2.0, 3.0]
        return {}, up if not holds else up[::-1] if test.over_steps == "rises" else [1.0] * 3
    if metric == "first_nonfinite_step":
        return {metric: 0 if holds else NAN}, [3.0, 0.02]
    if getattr(test, "over", None):
        return {test.over: 1.0, metric: (0.1 if holds else 10.0) * jitter}, [3.0, 0.02]
    # A band narrower than 0.01 allows no difference between seeds.
    narrow = test.high - test.low < 0.01
    return {metric: value_for(test, holds) * (1 if narrow else jitter)}, [3.0, 0.02]


def world(test, backend, device, *, holds):
    """(runs, steps) for which a shipped test holds or plainly fails."""
    cells, steps = [], []
    column = test.metric if getattr(test, "over_steps", None) else "loss"
    for study, variant, depth, seed in itertools.product(
        test.studies, dict.fromkeys(test.named_variants), test.depths or [12, 24, 48], range(5)
    ):
        axes = {"study": study, "variant": variant, "depth": depth, "seed": seed}
        axes |= {"backend": backend, "machine": MACHINES[device]}
        values, losses = runs_of(test, axes, holds, 1 + 0.001 * seed)
        cells.append(run(**axes, **values))
        steps += unlike_others(curve(losses, column=column, **axes))
    return frame(cells), frame(steps)


@pytest.mark.filterwarnings("ignore:Precision loss:RuntimeWarning")  # of scores that are equal
@pytest.mark.parametrize("holds", [True, False])
def test_every_shipped_test_can_hold_and_fail(shipped, every_study, holds):
    """Every test can be contradicted despite its tolerance; tests of a time have no verdict."""
    verdicts, kinds = {}, set()
    for claim in shipped.claims:
        for number, test in enumerate(claim.tests):
            home = shipped.sources[claim.source].backend or "torch"
            cells, steps = world(test, home, claim.device, holds=holds)
            alone = {"tests": [test], "control": None, "minimum_scale": {}, "past_oracle": False}
            alone = claim.model_copy(update=alone)
            one = shipped.model_copy(update={"claims": [alone]})
            rows = claims_table(every_study, cells, steps, one).to_dict("records")
            (row,) = (row for row in rows if row["decides"])
            verdicts[claim.id, number, test.kind] = row["verdict"]
            kinds.add(type(test))
    of_times = {("fashion-resnet-fastest", 0, "difference"): NOT_MEASURED}
    assert verdicts == dict.fromkeys(verdicts, REPRODUCED if holds else CONTRADICTED) | of_times
    assert kinds == set(ESTIMATORS)
