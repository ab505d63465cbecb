"""Presenters: values and words from the tables for templates."""

import dataclasses
import math
from pathlib import Path

import pytest
from markupsafe import Markup

from fathom_study.analysis.claims.evidence import Judgement
from fathom_study.analysis.run_tables import comparison_table, summary_table
from fathom_study.report.pages.render import environment_of
from fathom_study.report.tables.claim_words import estimate, needed
from fathom_study.report.tables.study_words import StudyPresenter
from tests.support.reports import IMAGES, TEXT
from tests.support.runs import GPU_PLATFORM, config_with
from tests.support.tables import frame, run

NAN = math.nan


# --- studies ---------------------------------------------------------------------------------


def present(*rows, **changes):
    """The presenter of study a, with these runs."""
    cells = frame(*rows)
    tables = {"cells": cells, "summary": summary_table(cells)}
    return StudyPresenter("a", config_with(**changes).studies["a"], tables)


@pytest.mark.parametrize(
    ("metric", "outcome", "values", "text"),
    [
        ("loss_final", "learned", [0.5], "0.5"),
        ("loss_final", "learned", [0.5, 0.5, 0.5], "0.5 ± 0"),
        ("loss_final", "diverged", [NAN, NAN], "NaN (2 of 2)"),
        ("loss_final", "diverged", [0.5, NAN], "0.5 (NaN: 1 of 2)"),
        ("score", "diverged", [NAN], "NaN (1 of 1)"),
        ("grad_norm_final", "at chance", [NAN], "NaN (1 of 1)"),
        # Runs that learned and lack a number do not have this metric.
        ("gain_final", "learned", [NAN, NAN], "–"),
        ("stream_similarity_min", "diverged", [NAN], "–"),
    ],
)
def test_value_is_a_mean_or_the_reason_for_its_absence(metric, outcome, values, text):
    study = present([run(seed=i, outcome=outcome, **{metric: v}) for i, v in enumerate(values)])
    ((_, row),) = study.rows.items()
    assert study.format(row, metric) == text


def test_pairs_of_platforms_leave_out_plain_networks_of_a_ladder():
    """Both platforms have the ladder, once with its plain network and once alone."""
    plain, ladder = (
        [run(variant=variant, machine=machine) for machine in ("", GPU_PLATFORM)]
        for variant in ("baseline", "baseline_x200")
    )
    for shared, expected in ((plain, ["baseline"]), ([], [])):
        cells = frame(*ladder, *shared)
        summary = summary_table(cells)
        tables = {"summary": summary, "comparison": comparison_table(cells)}
        assert len(tables["comparison"]) == 1 + len(expected)
        config = config_with(a={"ladder": {"baseline": [2]}})
        pairs = list(StudyPresenter("a", config.studies["a"], tables).pairs())
        assert [row["variant"] for _, _, rows in pairs for row in rows] == expected


def scored(task, scores, depth=8, **values):
    """A run for each score of each variant."""
    metric = {"tokens": "exact_loss", "text": "validation_bpc", "fashion": "test_accuracy"}[task]
    return [
        run(variant=v, depth=depth, score=score, score_metric=metric, seed=seed, **values)
        for v, of_seeds in scores.items()
        for seed, score in enumerate(of_seeds)
    ]


@pytest.mark.parametrize(
    ("task", "scores", "outcome", "words"),
    [
        ("fashion", {"resnet": [0.1], "hc": [0.1]}, "at chance", "at chance"),
        ("fashion", {"resnet": [0.995], "hc": [1.0]}, "learned", "at the ceiling"),
        ("fashion", {"resnet": [0.9], "hc": [1.0]}, "learned", ""),  # resnet is not
        ("fashion", {"resnet": [0.995], "hc": [None]}, "learned", ""),  # hc diverged
        ("fashion", {"hc": [1.0]}, "learned", ""),  # a single variant
        ("tokens", {"baseline": [1e-6], "hc": [1e-5]}, "learned", ""),  # losses have no ceiling
    ],
)
def test_study_without_power_has_variants_at_chance_or_at_the_ceiling(task, scores, outcome, words):
    rows = scored(task, scores, outcome=outcome, score_chance=0.1)
    changes = (
        {"a": {**IMAGES, "variants": ["resnet", "hc"], "streams": 4}} if task == "fashion" else {}
    )
    assert present(*rows, **changes).no_power == words


def test_best_variant_follows_score_direction():
    scores = {"resnet": [0.5], "hc": [0.25], "mhc": [0.75]}
    tokens = {"variants": ["hc", "mhc"]}
    (lowest,) = present(scored("tokens", scores), **tokens).best()
    assert (lowest["variant"], lowest["score_mean"], lowest["variants"]) == ("hc", 0.25, 2)
    assert lowest["oracle"] is None  # a perfect oracle cannot be beaten
    pictures = {**IMAGES, "variants": ["resnet", "hc", "mhc"], "streams": 4}
    (highest,) = present(scored("fashion", scores), a=pictures).best()
    assert highest["variant"] == "mhc"
    assert highest["oracle"] is None


@pytest.mark.parametrize(
    ("bits", "beaten"),
    [([2.5, 2.6, 2.7], True), ([2.6, 2.8, 3.0], False), ([3.0, 3.1, 3.2], False)],
)
def test_an_oracle_is_beaten_by_the_whole_interval(bits, beaten):
    """The interval 2.8 ± 0.5 contains the 2.9 of the trigram."""
    (best,) = present(scored("text", {"mhc": bits}, trigram_bpc=2.9), a=TEXT).best()
    assert (best["oracle"], best["beaten"]) == (2.9, beaten)


# --- claims in words -------------------------------------------------------------------------


def claim_test(**values):
    """A row of claims.csv of one test."""
    base = {f.name: f.default for f in dataclasses.fields(Judgement) if f.name != "verdict"}
    base |= {"verdict": "reproduced", "test": "level", "studies": "a", "variant": "mhc", "cases": 3,
             "holding": 3, "depths": "8", "metric": "gain_final", "platform": None}  # fmt: skip
    return {**base, **values}


def say(test, **options):
    root = Path(__file__).parents[2] / "report/templates"
    environment = environment_of(root, {"mhc": "the demo's mHC", "hc": "HC"}, **options)
    return str(environment.get_template("words.j2").module.reason(test))


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"observed": -0.5, "low": -0.75, "high": -0.25, "needed_high": 0.0}, ["−0.50 ± 0.25"]),
        # Logarithms as ratios: 10^−2 (10^−3 to 10^−1), and the band's end 10^0.
        ({"test": "difference", "against": "hc", "unit": "log10", "observed": -2.0, "low": -3.0,
          "high": -1.0, "needed_high": 0.0}, ["0.010 (0.0010 to 0.10)", "HC", "at most 1"]),
        ({"test": "count", "metric": "first_nonfinite_step", "observed": math.inf, "holding": 1,
          "needed_high": 0.0}, ["1 of 3 runs", "never"]),
        ({"test": "count", "metric": "left", "holding": 2, "needed_low": 1.0}, ["2 of 3 runs"]),
        ({"undecided": True, "verdict": "not reproduced", "observed": 1.0}, ["undecided: "]),
        ({"gap": "no run", "depths": "4, 8"}, ["no run of the demo's mHC at 4, 8 layers"]),
        ({"gap": "few seeds", "seeds": 1}, ["one seed"]),
        ({"gap": "too small", "gap_of": "width 8 for 32"}, ["width 8 for 32"]),
        ({"gap": "inert", "gap_of": "mhc, hc"}, ["the demo's mHC and HC", "H_res"]),
        ({"gap": "one run", "gap_of": "mhc, hc"}, ["the demo's mHC and HC"]),
        ({"gap": "identity", "gap_of": "hc"}, ["H_res of HC"]),
        ({"gap": "diverged", "gap_of": "hc"}, ["HC"]),
        ({"gap": "untested", "gap_of": "nothing compiles"}, ["nothing compiles"]),
        ({"gap": "clock"}, ["machine"]),
    ],
)  # fmt: skip
def test_reports_and_paper_describe_a_test_in_the_same_words(values, parts):
    """With the numbers of the table, also if the test could not be made."""
    made = "gap" not in values
    test = claim_test(**{"verdict": "reproduced" if made else "not measured", **values})
    text = say(test)
    for part in parts:
        assert part in text
    assert say(test, autoescape=True, finalize=Markup) == text


def test_an_estimate_and_its_band_are_in_one_unit():
    row = claim_test(unit="log10", observed=math.nan, needed_low=-1.0)
    assert (estimate(row), needed(row)) == ("not finite", ("0.1", ""))
