"""The first screen: answers that follow from rows of tables."""

import re
from pathlib import Path

import pandas as pd
import pytest

from fathom_study.analysis.pairs import AT_BEST_RATE
from fathom_study.analysis.run_tables import summary_table
from fathom_study.analysis.scale import pooled_table
from fathom_study.report.pages.render import environment_of
from fathom_study.report.tables.claim_words import VerdictsPresenter
from fathom_study.report.tables.records import records
from fathom_study.report.tables.size_words import present_scale
from fathom_study.report.tables.study_words import StudyPresenter
from tests.support.runs import GPU_PLATFORM, config_with
from tests.support.tables import frame, run

TEMPLATES = Path(__file__).parents[2] / "report/templates"
NAN = float("nan")
NO_CLAIMS = VerdictsPresenter(
    pd.DataFrame(columns=["claim", "verdict", "studies", "control_study"]),
    pd.DataFrame(columns=["claim", "verdict", "confidence", "scale"]),
)
LABELS = {"mhc": "the demo's mHC"}


def study_of(name, *runs, **tables):
    """The presenter of a study with these runs, and these rows of other tables."""
    cells = frame(*(runs or [run(study=name, score=1.0)]))
    rows = {"effects": [], "effective_depth": []} | tables
    frames = {
        table: pd.DataFrame(own, columns=None if own else ["study"]) for table, own in rows.items()
    }
    config = config_with(studies=(name,), depths=sorted(cells["depth"].unique().tolist()))
    return StudyPresenter(name, config.studies[name], {"summary": summary_table(cells), **frames})


def answers(*studies, **rows):
    """(answer, evidence) by question, as Markdown reports show them."""
    environment = environment_of(TEMPLATES, LABELS)
    environment.globals |= {
        "measured": studies, "verdicts": NO_CLAIMS, "attribution": {"summary": []},
        "stability": [], "scale": None,
        "cited": lambda text, table, row: f"[{text}]({table}.csv#L{row['line']})", **rows,
    }  # fmt: skip
    shown = environment.get_template("answers.j2").module.answers
    return {question: (answer, evidence) for question, answer, evidence, _ in shown}


# --- comparisons of scores ------------------------------------------------------------------------


def effect(verdict, effect_=1.0, variant="mhc_paper", against="baseline_longer", **changes):
    """A row of effects.csv."""
    return {
        "study": "released", "depth": 12, "platform": "torch", "question": "Is it?",
        "variant": variant, "against": against, "metric": "score", "unit": "%", "seeds": 3,
        "effect": effect_, "low": effect_ - 0.1, "high": effect_ + 0.1, "tests": 1.0,
        "corrected_low": effect_ - 0.1, "corrected_high": effect_ + 0.1,
        "verdict": verdict, "after_looking": "",
    } | changes  # fmt: skip


SAME_TIME = "Does mHC beat a plain network with about the same training time?"


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (("better", "better"), "yes"),
        (("worse", "worse"), "no, worse"),
        (("the same", "the same"), "the same"),
        (("undecided", "undecided"), "undecided"),
        (("better", "worse"), "better in 1 of 2"),
        (("better", "undecided"), "better in 1 of 2"),
        (("undecided", "worse"), "no"),
    ],
)
def test_verdicts_on_several_designs_give_one_answer(verdicts, expected):
    pairs = zip(verdicts, (1.0, 2.0), ("mhc_cycle", "mhc_paper"), strict=True)
    study = study_of("released", effects=[effect(*one) for one in pairs])
    answer, (evidence,) = answers(study)[SAME_TIME][0], answers(study)[SAME_TIME][1][:1]
    assert answer == expected
    # The largest decided effect; it is in line 3 of the table, after the header.
    line = 2 if verdicts[1] == "undecided" != verdicts[0] else 3
    assert evidence.endswith(f"](effects.csv#L{line})")


def of_text_and_state(**verdicts):
    studies = [study_of(n, effects=[effect(v, study=n)]) for n, v in verdicts.items()]
    return answers(*studies)[SAME_TIME]


def test_studies_have_one_answer_if_they_agree():
    answer, evidence = of_text_and_state(released="worse", state="worse")
    assert answer == "no, worse"
    assert [one[1:].partition(": ")[0] for one in evidence] == ["text", "state"]
    assert of_text_and_state(released="worse", state="better")[0] == "text: no, worse; state: yes"
    assert of_text_and_state(state="better")[0] == "yes"


def test_each_depth_at_the_best_rates_is_a_part():
    best = {"study": "stability", "question": AT_BEST_RATE}
    rows = [effect("better", depth=24, **best), effect("worse", depth=48, **best)]
    (answer, evidence) = answers(study_of("stability", effects=rows))[
        "On text, does any connection beat a plain network, each at its best rate?"
    ]
    assert answer == "24 layers, 3 steps: yes; 48 layers, 3 steps: no, worse"
    assert "(the rates of most of 3 seeds), 48 layers, is worse by 1" in evidence[1]


def test_the_platform_of_most_pairs_answers():
    best = {"study": "stability", "depth": 24, "question": AT_BEST_RATE}
    gpu = f"torch-{GPU_PLATFORM}"
    rows = [
        effect("undecided", **best),
        effect("worse", platform=gpu, **best),
        effect("better", platform=gpu, variant="hc_paper", **best),
    ]
    compared = study_of("stability", effects=rows).comparisons(question=AT_BEST_RATE, depth=24)
    assert {row["line"] for row in compared} == {3, 4}


def test_pairs_are_compared_at_one_depth_of_one_platform():
    rows = [
        effect("better", depth=2), effect("worse", depth=4, platform=f"torch-{GPU_PLATFORM}"),
        effect("better", depth=8), effect("better", depth=8, against="baseline"),
        effect("better", depth=8, metric="loss_final"),
        effect("better", depth=8, question=AT_BEST_RATE),
        effect("better", depth=8, platform="mlx"),
    ]  # fmt: skip
    study = study_of("released", effects=rows)
    pairs = ["mhc_paper"], ["baseline", "baseline_longer"]
    assert [row["line"] for row in study.comparisons(*pairs)] == [4, 5]
    assert [row["line"] for row in study.comparisons(*pairs, depth=4)] == [3]
    assert [row["line"] for row in study.comparisons(question=AT_BEST_RATE)] == [7]


# --- depth ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ends", "expected", "worth"),
    [
        ({"low": 2.4, "high": 3.2}, "yes", "2.8 (2.4 to 3.2)"),
        ({"low": 2.4, "high": 9.0}, "not shown", "2.8 (2.4 to 9)"),
        ({"low": 2.4, "high": 3.2, "high_open": True}, "not shown", "2.8 (2.4 to 3.2)"),
        ({"low": 8.1, "high": 12.0}, "no, it is worth more", "2.8 (8.1 to 12)"),
        ({}, "unknown", "2.8"),
        ({"answer": "below"}, "yes", "less than 1"),
        ({"answer": "beyond"}, "no, it is worth more", "more than 16"),
        ({"answer": "beyond", "deepest": 4}, "unknown", "more than 4"),
        ({"answer": "unknown"}, "unknown", "more than 16"),
    ],
)
def test_a_layer_is_worth_less_if_the_whole_interval_is_below_the_depth(ends, expected, worth):
    row = {
        "study": "state", "depth": 8, "variant": "mhc", "platform": "torch", "answer": "at",
        "effective_depth": 2.8, "low": NAN, "high": NAN, "high_open": False, "shallowest": 1,
        "deepest": 16,
    } | ends  # fmt: skip
    shallow = row | {"depth": 4, "answer": "below"}
    runs = [run(study="state", depth=depth, score=1.0) for depth in (4, 8)]
    study = study_of("state", *runs, effective_depth=[shallow, row])
    answer, evidence = answers(study)["Is a layer of mHC worth less than a plain one?"]
    text = f"[8 layers of the demo's mHC are worth {worth} plain layers](effective_depth.csv#L3)"
    assert (answer, evidence) == (expected, [text])


@pytest.mark.parametrize(
    ("outcomes", "expected", "text"),
    [
        (("learned", "learned"), "yes, at all tried",
         "every run learns at 16 layers, the deepest tried"),
        (("learned", "diverged"), "no, not at the deepest",
         "every run learns at 8 layers, 1 of 1 runs fail at 16 layers"),
        (("at chance", "learned"), "no, at none tried", "1 of 1 runs fail at 8 layers"),
    ],
)  # fmt: skip
def test_a_network_trains_up_to_the_depth_at_which_a_run_fails(outcomes, expected, text):
    runs = [
        run(study="depth-limit", depth=depth, score=1.0, outcome=outcome)
        for depth, outcome in zip((8, 16), outcomes, strict=True)
    ]
    answer, (evidence,) = answers(study_of("depth-limit", *runs))[
        "Does the demo's mHC train at any depth?"
    ]
    assert (answer, evidence.partition("]")[0]) == (expected, f"[{text}")


def test_a_claim_is_answered_by_the_test_that_decides():
    claim = {"claim": "gain-hc-exponential", "studies": "a", "control_study": ""}
    test = {"claim": "gain-hc-exponential", "confidence": NAN, "scale": "", "decides": True,
            "test": "count", "metric": "left", "cases": 3, "undecided": False,
            "gap": ""}  # fmt: skip
    tests = [test | {"verdict": "reproduced", "holding": 3},
             test | {"verdict": "contradicted", "holding": 1}]  # fmt: skip
    for verdict, expected in (("contradicted", "no"), ("not measured", None)):
        verdicts = VerdictsPresenter(
            pd.DataFrame([claim | {"verdict": verdict}]), pd.DataFrame(tests)
        )
        answer = answers(verdicts=verdicts).get(
            "Does the demo's HC amplify the signal more, the deeper it is?"
        )
        assert answer == (expected and (expected, ["[1 of 3 runs do not learn](claims.csv#L3)"]))


# --- rates, sizes, shares -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ({"mhc_cycle_free": ("larger", "larger"), "baseline": ("larger", "larger")}, "yes"),
        ({"mhc_cycle_free": ("larger", "larger"), "baseline": ("undecided", "equal")},
         "than without the constraint: yes; than plain: undecided, larger at 4 of 6 seeds"),
        ({"mhc_cycle_free": ("larger", "smaller")}, "it depends on the depth"),
        ({"baseline": ("smaller", "smaller")}, "no, smaller"),
    ],
)  # fmt: skip
def test_rates_are_larger_if_larger_at_every_depth(verdicts, expected):
    rows = [
        {
            "study": "stability", "variant": "mhc_cycle", "against": against, "depth": depth,
            "line": depth, "verdict": verdict, "largest": 0.02, "largest_low": 0.01,
            "largest_high": 0.02, "greatest": 0.04, "ratio": 2.0, "ratio_low": 1.0,
            "ratio_high": 2.0, "both": 3, "larger": 2, "equal": 1, "smaller": 0,
        }
        for against, of_depths in verdicts.items()
        for depth, verdict in zip((8, 12), of_depths, strict=True)
    ]  # fmt: skip
    answer, evidence = answers(study_of("stability"), stability=rows)[
        "Does the constraint on H_res let mHC train at larger learning rates?"
    ]
    assert answer == expected
    assert len(evidence) == len(verdicts)
    for one in evidence:
        assert re.search(
            r"12 layers: up to 0.02 \(range 0.01 to 0.02\), .*stability.csv#L12\)", one
        )


@pytest.mark.parametrize(
    ("verdicts", "expected", "lines"),
    [
        (("better", "better"), "yes, at 2 of 2 sizes", [3, 2]),
        (("undecided", "better", "better", "worse"),
         "better at 2 of 4 sizes, undecided or worse at the others", [4, 2]),
        # A size without a ladder has no verdict.
        (("undecided", "", "equivalent"), "not shown, at 0 of 2 sizes", [2]),
        (("better",), None, []),
    ],
)  # fmt: skip
def test_a_gain_holds_at_the_sizes_where_it_is_better(verdicts, expected, lines):
    """Each size is larger than the one before, and saves more."""
    rows = [
        {
            "design": design, "backend": "torch", "study": str(line), "depth": 12,
            "channels": 32 * line, "layers": 12, "steps": 1000, "tokens": 1e6, "tried": "0.1",
            "parameters": 1e5 * line, "verdict": verdict, "answer": verdict and "at",
            "multiplier": 1 + 0.1 * line, "corrected_low": 1.0, "corrected_high": 2.0, "least": 0.5,
            "most": 2.0, "cost": 1.5, "operations": 1.1, "gain": 0.1,
        }
        for design in ("mhc_cycle", "hc")
        for line, verdict in enumerate(verdicts if design == "mhc_cycle" else ("better",) * 9, 2)
    ]  # fmt: skip
    sizes = pd.DataFrame(rows)
    scale = present_scale(sizes, pooled_table(sizes))
    answer, evidence = answers(scale=scale).get(
        "Does the gain of cyclic mHC hold in larger networks and longer trainings?",
        (None, []),
    )
    assert answer == expected
    assert [one.rpartition("sizes.csv#L")[2] for one in evidence] == [f"{n})" for n in lines]
    if lines == [3, 2]:
        text = "[64 channels, 12 layers, 1000 steps: saves 17 % (0 to 50 %) of the steps, better]"
        assert evidence[1].startswith(text)


@pytest.mark.parametrize(
    ("factor", "decides", "expected"),
    [("platform", True, "the framework"), ("recipe", False, "neither alone")],
)
def test_the_largest_share_decides_if_it_is_more_than_half(factor, decides, expected):
    shares = pd.DataFrame({
        "factor": ["other", factor], "median": [0.4, 0.6], "decides": [False, decides],
        "loss_low": [0.5, 0.5], "loss_high": [1.0, 1.0],
    })  # fmt: skip
    answer, (evidence,) = answers(attribution={"summary": records(shares)})[
        "Framework or recipe: what decides the training loss after equal steps?"
    ]
    assert answer == expected
    assert f"other 40 %, {factor} 60 %; losses of the two recipes: 0.5 and 1]" in evidence
    assert evidence.endswith("(variance_summary.csv#L3)")
