"""What templates may ask of the tables."""

import dataclasses
import math
from pathlib import Path

import pandas as pd
import pytest
from markupsafe import Markup

from fathom.analysis.claims.evidence import Judgement
from fathom.analysis.run_tables import summary_table
from fathom.report.presenters import StudyPresenter
from fathom.report.records import group_uncounted
from fathom.report.render import environment_of
from fathom.report.verdicts import VerdictsPresenter, estimate, needed
from report_helpers import IMAGES, TEXT
from run_helpers import GPU_PLATFORM, config_with
from tables_helpers import frame, run

NAN = math.nan


def test_what_is_not_counted_is_grouped():
    stale = {"status": "stale", "reason": "code differs"}
    rows = [run(), *(run(seed=s, **stale) for s in (1, 2)), run(backend="mlx", status="missing")]
    groups = group_uncounted(frame(rows))
    assert [(g["backend"], g["status"], g["reason"], g["cells"]) for g in groups] == [
        ("torch", "stale", "code differs", 2),
        ("mlx", "missing", "", 1),
    ]


# --- what a template may ask of a study ------------------------------------------------------


def present(*rows, **changes):
    """The presenter of study a, with these runs."""
    cells = frame(*rows)
    tables = {"cells": cells, "summary": summary_table(cells)}
    return StudyPresenter("a", config_with(**changes).studies["a"], tables)


def test_a_study_knows_what_was_measured_of_it():
    study = present(
        run(variant="mhc", depth=16), run(variant="baseline", depth=4), run(study="b", depth=99),
        run(variant="mhc", depth=16, seed=1), run(backend="mlx", status="stale"),
    )  # fmt: skip
    assert study.is_measured
    assert study.variants == ["baseline", "mhc"]  # in the config's order, without hc
    assert study.depths == [4, 16]
    assert study.seeds == 2  # of 16 layers
    assert [platform.name for platform in study.platforms] == ["torch"]
    assert study.backends_not_run == ["mlx"]
    assert not present(run(study="b")).is_measured


def test_what_failed_is_counted_over_all_platforms():
    study = present(
        run(), run(seed=1, outcome="diverged"), run(seed=2, outcome="at chance"),
        run(outcome="at chance", machine=GPU_PLATFORM), run(outcome="diverged", depth=16),
        run(depth=4),
    )  # fmt: skip
    assert study.failed("mhc", 8) == (3, 4)
    assert study.failed("mhc", 16) == (1, 1)
    assert study.failed("hc", 8) == (0, 0)
    found = [(row["depth"], row["platform"].machine) for row in study.failures()]
    assert found == [(8, ""), (8, GPU_PLATFORM), (16, "")]
    assert study.limit("mhc") == (4, 8)


def test_maxima_are_those_of_runs_that_learned():
    study = present(
        run(grad_norm_max=1.0), run(seed=1, grad_norm_max=2.0),
        run(seed=2, grad_norm_max=9.0, outcome="diverged"),
    )  # fmt: skip
    assert study.maxima("mhc", ["grad_norm_max"]) == {"grad_norm_max": 2.0}
    assert study.maxima("mhc", ["grad_norm_max", "stream_difference_max"]) is None
    assert study.maxima("hc", ["grad_norm_max"]) is None


@pytest.mark.parametrize(
    ("metric", "outcome", "values", "text"),
    [
        ("loss_final", "learned", [0.5], "0.5"),
        ("loss_final", "learned", [0.5, 0.5, 0.5], "0.5 ± 0"),
        ("loss_final", "diverged", [NAN, NAN], "NaN (2 of 2)"),
        ("loss_final", "diverged", [0.5, NAN], "0.5 (NaN: 1 of 2)"),
        ("score", "diverged", [NAN], "NaN (1 of 1)"),
        ("grad_norm_final", "at chance", [NAN], "NaN (1 of 1)"),
        # Of runs that learned, a number that is not there is one that they do not have.
        ("gain_final", "learned", [NAN, NAN], "–"),
        ("stream_similarity_min", "diverged", [NAN], "–"),
    ],
)
def test_a_value_is_a_mean_or_what_stood_in_its_way(metric, outcome, values, text):
    study = present([run(seed=i, outcome=outcome, **{metric: v}) for i, v in enumerate(values)])
    ((_, row),) = study.rows.items()
    assert study.format(row, metric) == text


def test_metrics_that_runs_do_not_have_and_constants_have_no_table():
    def of(variant, gain, depth=8, **values):
        return run(variant=variant, depth=depth, gain_final=gain, grad_norm_max=depth, **values)

    study = present(
        of("baseline", 0.0), of("hc", 1.5), of("mhc", NAN, outcome="diverged"),
        of("baseline", 0.0, 16), of("hc", 2.5, 16), of("mhc", NAN, 16, status="missing"),
        of("hc", 3.5, 32),
    )  # fmt: skip
    table = study.metric_table("gain_final")
    assert (table["columns"], table["zeros"]) == (["hc", "mhc"], ["baseline"])
    texts = [[c and study.format(c, "gain_final") for c in row["cells"]] for row in table["rows"]]
    assert texts == [["1.5", "NaN (1 of 1)"], ["2.5", None], ["3.5", ""]]  # no mhc is asked for
    gain, events, norm = (metrics for _, metrics in study.evidence())
    assert gain == ["gain_final"]  # nothing has a gain at the first step
    assert [study.constant(name) for name in events] == [0]
    assert norm[0] == "grad_norm_max"
    assert study.constant("grad_norm_max") is None


def scored(task, scores, depth=8, **values):
    """A run for each variant with its score."""
    metric = {"tokens": "exact_loss", "text": "validation_bpc", "fashion": "test_accuracy"}[task]
    return [
        run(variant=v, depth=depth, score=score, score_metric=metric, seed=seed, **values)
        for v, found in scores.items()
        for seed, score in enumerate(found)
    ]


def test_the_best_variant_is_that_of_the_scores_direction():
    scores = {"resnet": [0.5], "hc": [0.25], "mhc": [0.75]}
    tokens = {"variants": ["hc", "mhc"]}
    (lowest,) = present(scored("tokens", scores), **tokens).best()
    assert (lowest["variant"], lowest["score_mean"], lowest["variants"]) == ("hc", 0.25, 2)
    assert lowest["oracle"] is None  # nothing could beat it: it is perfect
    pictures = {**IMAGES, "variants": ["resnet", "hc", "mhc"], "streams": 4}
    (highest,) = present(scored("fashion", scores), a=pictures).best()
    assert highest["variant"] == "mhc"
    assert highest["oracle"] is None


@pytest.mark.parametrize(
    ("bits", "beaten"),
    [([2.5, 2.6, 2.7], True), ([2.6, 2.8, 3.0], False), ([3.0, 3.1, 3.2], False)],
)
def test_an_oracle_is_beaten_by_the_whole_interval(bits, beaten):
    """2.8 ± 0.5 holds the 2.9 of the trigram."""
    (best,) = present(scored("text", {"mhc": bits}, trigram_bpc=2.9), a=TEXT).best()
    assert (best["oracle"], best["beaten"]) == (2.9, beaten)


def test_leaders_are_best_on_every_platform_among_runs_that_did_not_diverge():
    first, last = {"hc": [1.0], "mhc": [2.0]}, {"hc": [2.0], "mhc": [1.0]}
    rows = [
        *scored("tokens", first), *scored("tokens", first, backend="mlx"),
        *scored("tokens", first, 16), *scored("tokens", last, 16, backend="mlx"),
        *scored("tokens", {"hc": [1.0]}, 4, outcome="diverged"),
        *scored("tokens", {"baseline": [3.0], "mhc": [2.0]}, 4),
    ]  # fmt: skip
    assert present(rows).leaders() == {"mhc": [4], "hc": [8]}


def test_the_scale_of_a_study_by_hand():
    study = present(run(), batch_size={4: 32, 8: 24, 16: 8})
    assert study.scale == (
        "V 64, T 8, D 16, H 4, F 32, S 4, B 32 at 4L / 24 at 8L / 8 at 16L, 3 steps, "
        "lr 0.002 (constant), decay 0"
    )


def claim_row(claim, verdict, **values):
    return {"claim": claim, "verdict": verdict, "scale": NAN, "confidence": 0.95, **values}


def test_scales_and_tests_are_those_of_what_was_measured():
    claims = pd.DataFrame(
        [
            claim_row("a", "reproduced", scale="width 16 for 256"),
            claim_row("a", "not reproduced", scale="width 16 for 256", confidence=NAN),
            claim_row("a", "not measured", scale="width 16 for 512", confidence=NAN),
            claim_row("b", "contradicted"),
        ]
    )
    verdicts = VerdictsPresenter(pd.DataFrame(columns=["claim"]), claims)
    assert verdicts.scales_of("a") == ["width 16 for 256"]
    assert verdicts.scales_of("b") == []
    assert (verdicts.tests, verdicts.tests_with_interval) == (3, 2)
    assert verdicts.expected_by_chance == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("ours", "theirs", "where"),
    [
        ("reproduced", "reproduced", ("a", "b")),
        ("reproduced", "not reproduced", ("a",)),
        ("contradicted", "reproduced", ("b",)),
        ("contradicted", "not reproduced", ()),
        ("reproduced", "not measured", None),
        ("not measured", "reproduced", None),
    ],
)
def test_where_a_controlled_claim_is_reproduced(ours, theirs, where):
    row = {"claim": "c", "verdict": ours, "studies": "a", "control_study": "b", "control": theirs,
           "in_part": False}  # fmt: skip
    verdicts = VerdictsPresenter(pd.DataFrame([row]), pd.DataFrame(columns=["claim"]))
    assert [found["reproduced_in"] for found in verdicts.controlled_by("b")] == [where]
    assert verdicts.controlled_by("a") == []
    in_part = pd.DataFrame([{**row, "in_part": True}])
    verdicts = VerdictsPresenter(in_part, pd.DataFrame(columns=["claim"]))
    assert [found["reproduced_in"] for found in verdicts.controlled_by("b")] == [None]


def test_variants_stand_side_by_side_at_the_depth_of_most_with_the_time_of_their_fastest_run():
    """A step of mhc takes 3 times as long, undisturbed; plain's other run was slowed down."""
    seconds = {("baseline", 0): 0.2, ("baseline", 1): 0.8, ("mhc", 0): 0.9, ("mhc", 1): 0.6}
    cells = frame(
        *(run(variant=v, depth=8, seed=s, score=1.0 if v == "mhc" else 2.0, seconds_per_step=t)
          for (v, s), t in seconds.items()),
        run(variant="baseline", depth=4), run(variant="hc", depth=8, outcome="diverged", score=NAN),
    )  # fmt: skip
    tables = {"cells": cells, "summary": summary_table(cells)}
    study = StudyPresenter("a", config_with().studies["a"], tables, plain="baseline")
    found = {row["variant"]: row["times"] for row in study.side_by_side()}
    assert list(found) == ["mhc", "baseline", "hc"]
    assert (found["mhc"], found["baseline"]) == (pytest.approx(3), 1)


# --- claims in words -------------------------------------------------------------------------


def claim_test(**values):
    """A row of claims.csv of one test."""
    base = {f.name: f.default for f in dataclasses.fields(Judgement) if f.name != "verdict"}
    base |= {"verdict": "reproduced", "test": "level", "studies": "a", "variant": "mhc", "cases": 3,
             "holding": 3, "depths": "8", "metric": "gain_final", "platform": None}  # fmt: skip
    return {**base, **values}


def say(test, **options):
    root = Path(__file__).parents[1] / "report/templates"
    environment = environment_of(root, {"mhc": "the demo's mHC", "hc": "HC"}, **options)
    environment.globals["min_seeds"] = 3
    return str(environment.get_template("words.j2").module.reason(test))


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"observed": -0.5, "low": -0.75, "high": -0.25, "needed_high": 0.0}, ["−0.50 ± 0.25"]),
        # Of logarithms, ratios: 10^−2 (10^−3 to 10^−1), and the band's end 10^0.
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
def test_a_test_is_told_in_the_same_words_in_reports_and_paper(values, told):
    """With the numbers of the table, whatever it found or lacked."""
    made = "gap" not in values
    test = claim_test(**{"verdict": "reproduced" if made else "not measured", **values})
    text = say(test)
    for part in told:
        assert part in text
    assert say(test, autoescape=True, finalize=Markup) == text


def test_an_estimate_and_its_band_are_in_one_unit():
    row = claim_test(unit="log10", observed=math.nan, needed_low=-1.0)
    assert (estimate(row), needed(row)) == ("not finite", ("0.1", ""))
