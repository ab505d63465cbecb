"""The first screen: outcomes that follow from the tables, and their sentences."""

import dataclasses
import math
import re

import pandas as pd
import pytest

from fathom.analysis.claims import load_published
from fathom.analysis.claims.questions import (
    Contrasts,
    Deciding,
    Each,
    EffectiveDepth,
    Effects,
    Headline,
    Limit,
    OfClaim,
    Rates,
    Sizes,
)
from fathom.analysis.effective_depth import effective_depth_table
from fathom.analysis.effects import effects_table
from fathom.analysis.run_tables import summary_table
from fathom.report.presenters import StudyPresenter
from fathom.report.questions import (
    MOST_ANSWERS,
    Results,
    answer_all,
    answers_of,
    answers_table,
    headline,
)
from fathom.report.scale import present_scale
from fathom.report.verdicts import VerdictsPresenter
from fathom.settings import ConfigError
from run_helpers import GPU_PLATFORM, config_with
from tables_helpers import frame, run, seeds

PUBLISHED = "report/published.yaml"
LABELS = {"baseline": "plain", "mhc": "the demo's mHC"}
ASKED = {"question": "Does it?", "study": "a"}


def config_of(**changes):
    """A study `a` of the plain network, hc and mhc."""
    return config_with(a=changes)


def results_of(config, cells, verdicts=(), claims=()):
    """`Results` of these runs, verdicts and claims."""
    tables = {
        "summary": summary_table(cells),
        "effects": effects_table(config, cells),
        "effective_depth": effective_depth_table(config, cells),
    }
    studies = {name: StudyPresenter(name, s, tables) for name, s in config.studies.items()}
    columns = ["claim", "verdict", "studies", "control_study"]
    tests = ["claim", "verdict", "metric", "decides", "confidence", "scale"]
    judged = VerdictsPresenter(
        pd.DataFrame(verdicts, columns=columns), pd.DataFrame(claims, columns=tests)
    )
    return Results(studies, judged, [], LABELS)


def ask(question, results):
    """The only answer."""
    (answer,) = answer_all([question], results)
    return answer


@pytest.mark.parametrize(
    ("ours", "also", "outcome"),
    [
        ((0.5, 0.51, 0.52), (0.5, 0.51, 0.52), "better"),
        ((2.0, 2.1, 2.2), (2.0, 2.1, 2.2), "worse"),
        ((1.0, 1.000001, 1.0), (1.0, 1.0, 1.0), "the same"),
        ((0.2, 1.0, 3.0), (0.2, 1.0, 3.0), "undecided"),
        ((0.5, 0.51, 0.52), (2.0, 2.1, 2.2), "mixed"),
        ((0.5, 0.51, 0.52), (0.2, 1.0, 3.0), "mixed"),
        ((0.2, 1.0, 3.0), (2.0, 2.1, 2.2), "none better"),
    ],
)
def test_contrasts_are_answered_together(ours, also, outcome):
    pairs = [["mhc", "baseline"], ["hc", "baseline"]]
    cells = frame(
        seeds("score", (1.0, 1.0, 1.0), variant="baseline"),
        seeds("score", ours, variant="mhc"),
        seeds("score", also, variant="hc"),
    )
    results = results_of(config_of(), cells)
    question = Effects(kind="effects", pairs=pairs, answers={outcome: "so it is"}, **ASKED)
    answer = ask(question, results)
    assert (answer.outcome, answer.answer) == (outcome, "so it is")
    assert all(re.fullmatch(r"tables/effects\.csv#L\d", one.link) for one in answer.evidence)


def test_depth_is_answered_from_the_platform_that_has_it():
    """Depth 2 was trained here, depth 4 only on a GPU."""
    cells = frame(
        *(
            seeds("score", scores, variant=variant, depth=depth, machine=machine)
            for depth, machine in ((2, ""), (4, GPU_PLATFORM))
            for variant, scores in (("baseline", (1.0, 1.0, 1.0)), ("mhc", (0.5, 0.51, 0.52)))
        )
    )
    results = results_of(config_of(depths=[2, 4]), cells)
    question = Effects(kind="effects", pairs=[["mhc", "baseline"]], depth=4, **ASKED)
    assert ask(question, results).outcome == "better"


@pytest.mark.parametrize(
    ("ours", "deepest", "outcome", "words"),
    [
        ((1.5, 1.5, 1.5), 0.5, "less", "worth 2.7"),
        ((0.5, 0.5, 0.5), 0.5, "as many", "worth 8"),
        ((9.0, 9.0, 9.0), 0.5, "less", "worth less than 1 plain layers"),
        ((0.1, 0.1, 0.1), 0.5, "more", "worth more than 8 plain layers"),
        ((0.1, 0.1, 0.1), 1.5, "unknown", "worth more than 8 plain layers"),  # 4 layers are better
    ],
)
def test_effective_depth_compares_layers_with_plain_layers(ours, deepest, outcome, words):
    plain = {1: 4.0, 2: 2.0, 4: 1.0, 8: deepest}
    cells = frame(
        seeds("score", ours, variant="mhc"),
        *(seeds("score", [loss] * 3, variant="baseline", depth=d) for d, loss in plain.items()),
    )
    results = results_of(config_of(depths=[1, 2, 4, 8]), cells)
    answer = ask(EffectiveDepth(kind="effective_depth", variants={"ours": "mhc"}, **ASKED), results)
    assert answer.outcome == outcome
    assert answer.evidence[0].text.startswith(f"8 layers of the demo's mHC are {words}")


def test_effective_depth_answers_per_variant_if_they_differ():
    plain = {1: 4.0, 2: 2.0, 4: 1.0, 8: 0.5}
    cells = frame(
        seeds("score", [0.5] * 3, variant="mhc"),
        seeds("score", [1.5] * 3, variant="hc"),
        *(seeds("score", [loss] * 3, variant="baseline", depth=d) for d, loss in plain.items()),
    )
    results = results_of(config_of(depths=[1, 2, 4, 8]), cells)
    question = EffectiveDepth(
        kind="effective_depth",
        variants={"mHC": "mhc", "HC": "hc", "none": "krom_hc"},
        answers={"less": "no", "as many": "yes"},
        **ASKED,
    )
    answer = ask(question, results)
    assert (answer.outcome, answer.answer) == ("mixed", "mHC: yes; HC: no")
    assert answer.parts == {"mHC": "as many", "HC": "less"}
    assert [evidence.part for evidence in answer.evidence] == ["mHC", "HC"]


@pytest.mark.parametrize(
    ("outcomes", "outcome", "words"),
    [
        (["learned", "learned"], "all", "every run learns at 16 layers, the deepest tried"),
        (
            ["learned", "diverged"],
            "some",
            "every run learns at 8 layers, 1 of 1 runs fail at 16 layers",
        ),
        (["at chance", "learned"], "none", "1 of 1 runs fail at 8 layers"),
    ],
)
def test_a_limit_is_the_first_depth_at_which_a_run_fails(outcomes, outcome, words):
    depths = zip((8, 16), outcomes, strict=True)
    cells = frame(*(run(depth=depth, score=1.0, outcome=found) for depth, found in depths))
    results = results_of(config_of(depths=[8, 16]), cells)
    answer = ask(Limit(kind="limit", variant="mhc", **ASKED), results)
    assert (answer.outcome, answer.evidence[0].text) == (outcome, words)


def test_a_claim_answers_with_the_test_that_decides():
    verdicts = [("one", "contradicted", "a", ""), ("two", "not measured", "a", "")]
    claims = [
        ("one", "reproduced", "it holds here", True, math.nan, ""),
        ("one", "contradicted", "and not there", True, math.nan, ""),
    ]
    results = results_of(config_of(), frame(run(score=1.0)), verdicts, claims)
    question = OfClaim(kind="claim", claim="one", question="Is it so?")
    answer = ask(question, results)
    (evidence,) = answer.evidence
    assert (answer.answer, evidence.test["metric"]) == ("contradicted", "and not there")
    assert answer.evidence[0].link == "tables/claims.csv#L3"
    assert answer_all([question.model_copy(update={"claim": "two"})], results) == []


def test_title_and_answer_follow_from_the_questions_that_decide():
    above = Headline(
        asks="Should I?",
        title=Deciding(decided_by="Does it?", words={"better": "It does", "worse": "It does not"}),
        answer=[
            Deciding(decided_by="Does it?", words={"better": "Yes.", "worse": "No."}),
            Deciding(decided_by="Elsewhere?", words={"worse": "Nor elsewhere."}),
        ],
        tested="Little.",
    )
    cells = frame(
        seeds("score", (1.0, 1.0, 1.0), variant="baseline"),
        seeds("score", (2.0, 2.1, 2.2), variant="mhc"),
    )
    question = Effects(kind="effects", pairs=[["mhc", "baseline"]], **ASKED)
    elsewhere = question.model_copy(update={"question": "Elsewhere?"})
    results = results_of(config_of(), cells)
    found = headline(above, answer_all([question], results))
    assert (found["title"], found["answer"]) == ("It does not", "No.")
    found = headline(above, answer_all([question, elsewhere], results))
    assert found["answer"] == "No. Nor elsewhere."
    assert headline(above, answer_all([elsewhere], results)) is None
    assert headline(above, []) is None


def results_where_mhc_ends(**ours):
    """Results of studies with these scores of mhc; plain networks score 1."""
    cells = frame(
        *(
            seeds("score", values, variant=variant, study=study)
            for study, end in ours.items()
            for variant, values in (("baseline", (1.0, 1.0, 1.0)), ("mhc", end))
        )
    )
    return results_of(config_with(studies=tuple(ours), variants=["baseline", "mhc"]), cells)


EACH = Each(
    kind="each",
    question="Does it?",
    of={name: Contrasts(study=study, pairs=[("mhc", "baseline")])
        for name, study in {"text": "a", "state": "b"}.items()},
    answers={"better": "yes", "worse": "no"},
)  # fmt: skip
WORSE, BETTER = (2.0, 2.1, 2.2), (0.5, 0.51, 0.52)


@pytest.mark.parametrize(
    ("ours", "outcome", "words", "about"),
    [
        ({"a": WORSE, "b": WORSE}, "worse", "no", ["text", "state"]),
        ({"a": WORSE, "b": BETTER}, "mixed", "text: no; state: yes", ["text", "state"]),
        ({"b": BETTER}, "better", "yes", ["state"]),
    ],
)
def test_two_studies_have_one_answer_if_they_agree(ours, outcome, words, about):
    answer = ask(EACH, results_where_mhc_ends(**ours))
    assert (answer.outcome, answer.answer) == (outcome, words)
    assert [one.text.partition(": ")[0] for one in answer.evidence] == about
    assert len({one.link for one in answer.evidence}) == len(about)


def test_three_parts_that_differ_have_a_piece_of_evidence_each():
    parts = {name: Contrasts(study=name, pairs=[("mhc", "baseline")]) for name in ("a", "b", "c")}
    three = Each(kind="each", question="Does it?", of=parts, answers=EACH.answers)
    answer = ask(three, results_where_mhc_ends(a=WORSE, b=BETTER, c=WORSE))
    assert (answer.outcome, answer.answer) == ("mixed", "a: no; b: yes; c: no")
    assert [one.part for one in answer.evidence] == ["a", "b", "c"]


# --- largest rates --------------------------------------------------------------------------------

RATES = Rates(
    kind="rates", variant="mhc", than={"than free": "hc", "than plain": "baseline"},
    answers={"larger": "yes", "smaller": "no"}, **ASKED,
)  # fmt: skip


def rates_of(**verdicts):
    """Answers for these verdicts at 8 and 12 layers, by the variant compared with."""
    rows = [
        {
            "study": "a", "variant": "mhc", "against": against, "depth": depth, "line": line,
            "verdict": verdict, "largest": 0.02, "largest_low": 0.01, "largest_high": 0.02,
            "greatest": 0.04, "ratio": 2.0, "ratio_low": 1.0, "ratio_high": 2.0, "both": 3,
            "larger": 2, "equal": 1, "smaller": 0,
        }
        for against, of_depths in verdicts.items()
        for line, (depth, verdict) in enumerate(zip((8, 12), of_depths, strict=True), 2)
    ]  # fmt: skip
    results = results_of(config_of(), frame(seeds("score", (1.0,) * 3, variant="mhc")))
    return answer_all([RATES], dataclasses.replace(results, rates=rows))


@pytest.mark.parametrize(
    ("verdicts", "outcome", "words"),
    [
        ({"hc": ("larger",) * 2, "baseline": ("larger",) * 2}, "larger", "yes"),
        (
            {"hc": ("larger",) * 2, "baseline": ("equal", "undecided")},
            "mixed",
            "than free: yes; than plain: undecided",
        ),
        ({"hc": ("larger", "smaller")}, "mixed", "mixed"),
        ({"baseline": ("smaller", "smaller")}, "smaller", "no"),
    ],
)
def test_rates_are_larger_if_larger_at_every_depth(verdicts, outcome, words):
    (answer,) = rates_of(**verdicts)
    assert (answer.outcome, answer.answer) == (outcome, words)
    assert len(answer.evidence) == len(verdicts)
    assert all("12 layers: up to 0.02 (range 0.01 to 0.02)" in one.text for one in answer.evidence)
    assert {one.link for one in answer.evidence} == {"tables/stability.csv#L3"}
    assert answers_of(answers_table([answer], str))[0].parts == answer.parts


def test_rates_without_a_trained_study_have_no_answer():
    assert rates_of() == []


# --- sizes ----------------------------------------------------------------------------------------


def sizes_of(*verdicts, slope=0.1):
    """Answers for these verdicts of the design `mhc`; each size is larger and saves more.

    With a negative `slope` it saves less.
    """
    rows = [
        {
            "design": design, "backend": "torch", "study": str(line), "depth": 12,
            "channels": 32 * line, "layers": 12, "steps": 1000, "tokens": 1e6, "tried": "0.1",
            "parameters": 1e5 * line, "verdict": verdict, "answer": verdict and "at",
            "multiplier": 1 + slope * line, "low": 1.0, "high": 2.0,
        }
        for design in ("mhc", "hc")
        for line, verdict in enumerate(verdicts if design == "mhc" else ("better",) * 9, 2)
    ]  # fmt: skip
    words = {"all": "yes, at {sizes}", "some": "at {sizes}", "none": "none"}
    asked = Sizes(kind="sizes", question="Does it hold?", design="mhc", answers=words)
    results = results_of(config_of(), frame(seeds("score", (1.0,) * 3, variant="mhc")))
    scale = present_scale(pd.DataFrame(rows)) if rows else None
    return answer_all([asked], dataclasses.replace(results, scale=scale))


@pytest.mark.parametrize(
    ("verdicts", "words", "lines"),
    [
        (("better", "better"), "yes, at 2 of 2 sizes", [3, 2]),
        (
            ("undecided", "better", "better", "worse"),
            "at 2 of 4 sizes, undecided or worse at the others",
            [4, 2],
        ),
        (("worse", "better"), "at 1 of 2 sizes, worse at the others", [3, 2]),
        (("undecided", "", "equivalent"), "none", [2]),  # a size without a ladder has no verdict
    ],
)
def test_a_gain_holds_at_the_sizes_where_it_is_better(verdicts, words, lines):
    (answer,) = sizes_of(*verdicts)
    assert answer.answer == words
    assert [one.link for one in answer.evidence] == [f"tables/sizes.csv#L{n}" for n in lines]
    last = lines[-1]
    saved = round(100 * (1 - 1 / (1 + 0.1 * last)))
    told = f"{32 * last} channels, 12 layers, 1000 steps: {saved} % (0 to 50 %) of the steps saved"
    assert answer.evidence[-1].text == f"{told}, {verdicts[last - 2]}"


def test_evidence_has_two_sizes_if_the_largest_saves_least():
    (answer,) = sizes_of("better", "better", "better", slope=-0.1)
    assert [one.link for one in answer.evidence] == [f"tables/sizes.csv#L{n}" for n in (4, 3)]


def test_one_size_is_no_answer():
    assert sizes_of("better") == sizes_of() == []


# --- shipped questions ----------------------------------------------------------------------------


def test_every_outcome_has_an_answer(default_config, pytestconfig):
    published = load_published(pytestconfig.rootpath / PUBLISHED, default_config)
    assert len(published.questions) <= MOST_ANSWERS
    for question in published.questions:
        assert set(question.answers) >= set(question.outcomes) - {"mixed"}
    above = published.headline
    asked = {question.question: question for question in published.questions}
    for deciding in (above.title, *above.answer):
        assert set(deciding.words) == set(asked[deciding.decided_by].outcomes)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("    claim: gain-hc-exponential", "    claim: gain-hc", "unknown claim 'gain-hc'"),
        ("      worse: no, worse", "      wrose: no, worse", "unknown outcome 'wrose'"),
        ("      worse: No, not", "      wrose: No, not", "unknown outcome 'wrose'"),
        ("  - question: *as-long", "  - question: Is it?", "unknown question 'Does mHC beat"),
        ("    part: text", "    part: texts", "headline.part: unknown part 'texts'"),
    ],
)
def test_a_wrong_question_is_refused_by_name(
    tmp_path, pytestconfig, default_config, old, new, said
):
    text = (pytestconfig.rootpath / PUBLISHED).read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "published.yaml").write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(said)):
        load_published(tmp_path / "published.yaml", default_config)
