"""Tests of claims that runs cannot decide: identical runs, quantities that cannot change."""

import itertools

import pytest

from fathom_study.analysis.claims.untestable import first_of_same
from tests.analysis.claim_checks import (
    CONTRADICTED,
    NOT_MEASURED,
    REPRODUCED,
    check,
    claims_of,
    judge,
    sides,
)
from tests.support.runs import config_with
from tests.support.tables import curve, frame, published_with, run, seeds

LESS = {"kind": "difference", "variant": "mhc", "than": ["baseline", "hc"], "depths": [8],
        "high": 0}  # fmt: skip
THAN_HC = {**LESS, "than": ["hc"]}
NO_LESS = {"kind": "difference", "variant": "mhc", "than": "hc", "metric": "gain_final",
           "low": -0.5}  # fmt: skip
SPREAD = {**NO_LESS, "spread": True, "low": 0}
NO_EVENTS = {"kind": "count", "variants": ["hc", "mhc"], "metric": "nonfinite_total", "high": 0,
             "one_decides": "against"}  # fmt: skip

STREAMS = {"stream_difference_max": 0.03, "amax_forward_log10_final": 0.001}
"""Metrics of streams that are copies of each other, under rows that sum to one."""


def of_streams(ours, theirs, other="hc", config=None, **changes):
    """Row of the test that mhc is below another variant, for these metrics of streams."""
    rows = [
        run(variant=variant, seed=seed, score=score + seed / 100, gain_final=score, **metrics)
        for variant, score, metrics in (("mhc", 0.5, ours), (other, 1.0, theirs))
        for seed in range(3)
    ]
    return judge({**THAN_HC, "than": [other], **changes}, rows, config=config)


@pytest.mark.parametrize(
    ("ours", "theirs", "is_told"),
    [
        ({}, {}, False),
        ({"stream_difference_max": 0.05}, {"stream_difference_max": 0.9}, False),  # one is enough
        ({"stream_difference_max": 0.051}, {"stream_difference_max": 0.9}, True),
        ({}, {"amax_forward_log10_final": -0.3}, False),
        # An H_res that amplifies a signal amplifies copies, too.
        ({}, {"amax_forward_log10_final": 0.31}, True),
        # Copies, under rows that do not sum to one.
        ({"amax_forward_log10_final": 0.005}, {"amax_forward_log10_final": 0.005}, True),
    ],
)
def test_H_res_on_copied_streams_decides_nothing(ours, theirs, is_told):
    row = of_streams({**STREAMS, **ours}, {**STREAMS, **theirs})
    check(row, REPRODUCED if is_told else NOT_MEASURED)
    assert (row["gap"], row["gap_of"]) == (("", "") if is_told else ("inert", "mhc, hc"))


def test_an_untestable_part_blocks_pass_but_not_fail():
    copies = [run(variant=v, seed=s, score=0.5 + s / 100, **STREAMS)
              for v in ("mhc", "hc") for s in range(3)]  # fmt: skip
    for score, expected in ((1.0, NOT_MEASURED), (0.1, CONTRADICTED)):
        row = judge(LESS, copies + sides(baseline=[score, score + 0.01, score + 0.02]))
        check(row, expected)
        assert row["gap"] == "inert"


EXACT = {"base_diagonal_final": 1.0, "base_row_error_final": 0.0, "base_column_error_final": 0.0}
GATE = {"kind": "level", "variants": ["mhc"], "metric": "gate_first_final", "high": 0.9}


def gates(*values, variant="mhc", **base):
    rows = seeds("gate_first_final", list(values), variant=variant)
    return [{**row, **EXACT, **base} for row in rows]


@pytest.mark.parametrize(
    ("test", "base", "expected"),
    [
        (GATE, {}, NOT_MEASURED),
        (GATE, {"base_diagonal_final": 1 - 1e-7}, REPRODUCED),
        ({**GATE, "metric": "base_row_error_final"}, {}, NOT_MEASURED),
        ({**GATE, "metric": "base_diagonal_final", "high": 1.5}, {}, REPRODUCED),  # it can change
        ({**GATE, "metric": "base_diagonal_final", "high": 1.5, "of_mixing": True}, {},
         NOT_MEASURED),
    ],
)  # fmt: skip
def test_gate_and_errors_of_an_exact_identity_are_not_tested(test, base, expected):
    row = judge(test, gates(0.1, 0.2, 0.3, **base))
    check(row, expected)
    assert expected == REPRODUCED or (row["gap"], row["gap_of"]) == ("identity", "mhc")


def ran(**losses):
    """(runs, steps) of variants with these curves, scaled by a factor for each of 3 seeds."""
    cells, steps = [], []
    for (variant, curve_), seed in itertools.product(losses.items(), range(3)):
        final = curve_[-1] * (1 + seed / 100)
        cells.append(run(variant=variant, seed=seed, score=final, loss_final=final))
        steps += curve([x * (1 + seed / 100) for x in curve_], variant, seed=seed)
    return cells, steps


def test_identical_runs_are_not_tested_against_each_other():
    same, steps = ran(mhc=[3.0, 0.5], hc=[3.0, 0.5])
    for test in (THAN_HC, {**NO_LESS, "metric": "loss_final"}, {**SPREAD, "metric": "loss_final"}):
        row = judge(test, same, steps=[steps])
        check(row, NOT_MEASURED)
        assert (row["gap"], row["gap_of"]) == ("one run", "mhc, hc")


def test_runs_are_identical_only_at_equal_seed_depth_study_and_platform():
    cells, steps = ran(mhc=[3.0, 0.5])
    for axes in ({"depth": 4}, {"study": "b"}, {"platform": "mlx"}, {"seed": 9}):
        others, again = ([{**r, "variant": "hc", **axes} for r in rows] for rows in (cells, steps))
        table = frame(cells, others)
        assert first_of_same(table, frame(steps, again)).tolist() == table["variant"].tolist()


def test_identical_runs_count_once():
    cells, steps = ran(mhc=[3.0, 0.5], hc=[3.0, 0.5], baseline=[3.0, 1.0])
    shuffled = steps[:2][::-1] + steps[2:]  # steps are sorted first
    three = ["mhc", "hc", "baseline"]
    assert judge({**NO_EVENTS, "variants": three}, cells, steps=[shuffled])["cases"] == 6
    row = judge({**LESS, "variant": "baseline", "than": ["mhc", "hc"]}, cells, steps=[steps])
    check(row, CONTRADICTED)
    assert (row["against"], row["cases"]) == ("mhc", 1)
    # A variant that is identical only at some seeds keeps all of its runs.
    steps[3]["loss"] += 0.1
    assert judge({**NO_EVENTS, "variants": three}, cells, steps=[steps])["cases"] == 9


@pytest.mark.parametrize("metric", ["seconds", "seconds_per_step"])
def test_a_time_decides_nothing(metric):
    row = judge({**THAN_HC, "metric": metric}, sides(metric, mhc=[1.0] * 3, hc=[2.0] * 3))
    check(row, NOT_MEASURED)
    assert row["gap"] == "clock"


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ((2.8, 2.9, 2.94), REPRODUCED),  # their mean is better than 2.9
        ((2.8, 2.9, 3.1), NOT_MEASURED),
        ((2.9, 2.9, 2.9), NOT_MEASURED),
    ],
)
def test_networks_worse_than_trigrams_decide_nothing(scores, expected):
    text = {"task": "text", "model": {"length": 16, "width": 16, "heads": 4, "hidden": 32}}
    config = config_with(studies=("a", "b"), a=text)
    rows = [
        run(seed=s, score=score, score_metric="validation_bpc", trigram_bpc=2.9, gate_first_final=g)
        for s, (score, g) in enumerate(zip(scores, (0.1, 0.11, 0.12), strict=True))
    ]
    test = {**GATE, "studies": ["a"]}
    for past_oracle, verdict in ((True, expected), (False, REPRODUCED)):
        claim = {"scope": "everywhere", "tests": [test], "past_oracle": past_oracle}
        (row,) = claims_of(published_with(claim), frame(*rows), config=config).to_dict("records")
        check(row, verdict)
        if verdict == NOT_MEASURED:
            assert row["gap"] == "too small"
            said = f"held-out loss {sum(scores) / 3:.3g} against 2.9 of a trigram model"
            assert row["gap_of"] == said
