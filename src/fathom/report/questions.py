"""The first screen: readers' questions, each with a short answer and its evidence.

`report/published.yaml` defines each question, its study or claim, and the answer to each outcome.
The outcome follows from the tables alone. A question is left out if its study was not run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from fathom.analysis.claims.evidence import NOT_MEASURED
from fathom.analysis.claims.questions import (
    Contrasts,
    Deciding,
    Each,
    EffectiveDepth,
    Effects,
    Headline,
    Limit,
    OfClaim,
    Question,
    Rates,
    Shares,
    Sizes,
)
from fathom.analysis.effective_depth import BELOW, BEYOND, UNKNOWN
from fathom.analysis.effects import AT_BEST_RATE
from fathom.analysis.significance import BETTER, UNDECIDED
from fathom.config import common_depth
from fathom.report.comparisons import describe_effect, size_of
from fathom.report.formatting import number, percent
from fathom.report.stability import compared_rate, largest_rate
from fathom.report.worth import saved_in_words

if TYPE_CHECKING:
    from fathom.analysis.claims.published import Published
    from fathom.report.presenters import StudyPresenter
    from fathom.report.records import Record
    from fathom.report.scale import ScalePresenter
    from fathom.report.verdicts import VerdictsPresenter

MOST_ANSWERS = 11
"""Maximum number of questions on the first screen; pages of studies show all."""

MOST_ROWS = 2
"""Maximum number of pieces of evidence per answer; an answer with more parts has one per part."""


@dataclass(frozen=True)
class Evidence:
    """The evidence of an answer: a few words, and the table row behind them."""

    text: str
    """Empty if templates put the `test` into words."""
    link: str
    part: str = ""
    """The part of the question that the evidence is about, if the question has parts."""
    test: Record | None = None
    """A test of a claim."""


@dataclass(frozen=True)
class Answer:
    """A question, with its answer in a few words."""

    question: str
    outcome: str
    """An outcome of the question's kind: docs/definitions.md, "The first screen"."""
    answer: str
    evidence: list[Evidence]
    parts: Mapping[str, str] = field(default_factory=dict)
    """The outcome of each part, if the question has parts."""


@dataclass(frozen=True)
class Results:
    """The inputs of answers."""

    studies: Mapping[str, StudyPresenter]
    """Studies with runs, by name."""
    verdicts: VerdictsPresenter
    shares: list[Record]
    """Shares of recipe, platform and seed in the variance, as in variance_summary.csv."""
    labels: Mapping[str, str]
    """Display names of variants."""
    rates: Sequence[Record] = ()
    """The largest rates that train, as in stability.csv."""
    scale: ScalePresenter | None = None
    """Designs at other sizes of the network."""

    def name(self, variant: str) -> str:
        """The display name of a variant."""
        return self.labels.get(variant, variant)


class Found(NamedTuple):
    """An outcome and its evidence."""

    outcome: str
    evidence: list[Evidence]
    sizes: str = ""
    """Text that replaces `{sizes}` in the answer."""
    parts: Mapping[str, str] = MappingProxyType({})
    """The outcome of each part."""


def answer_all(questions: list[Question], results: Results) -> list[Answer]:
    """Answers to the questions that can be answered, in order, at most MOST_ANSWERS."""
    answers: list[Answer] = []
    for question in questions:
        if question.studies and results.studies.keys().isdisjoint(question.studies):
            continue
        found: Found | None = KINDS[type(question)](question, results)
        if found:
            words = _words(question, found)
            evidence = found.evidence[: max(MOST_ROWS, len(found.parts))]
            answers.append(Answer(question.question, found.outcome, words, evidence, found.parts))
    return answers[:MOST_ANSWERS]


def _words(question: Question, found: Found) -> str:
    """The words of the answer: one answer for all parts, unless their answers differ."""
    told = {part: question.answers.get(one, one) for part, one in found.parts.items()}
    if len(set(told.values())) > 1:
        return "; ".join(f"{part}: {words}" for part, words in told.items())
    return question.answers.get(found.outcome, found.outcome).replace("{sizes}", found.sizes)


def questions_of(published: Published, results: Results) -> list[Question]:
    """Questions of published.yaml; if none of their studies ran, contrasts of the others first."""
    asked = published.questions
    if any(question.studies & results.studies.keys() for question in asked):
        return asked
    own = []
    for name, study in results.studies.items():
        for question, rows in study.effects("score").items():
            pairs = list(dict.fromkeys((row["variant"], row["against"]) for row in rows))
            text = f"{name}: {question}"
            own.append(Effects(kind="effects", question=text, study=name, pairs=pairs))
    return [*own, *asked]


COLUMNS = ["question", "part", "outcome", "answer", "evidence", "link"]


def answers_table(answers: Sequence[Answer], reason: Callable[[Record], str]) -> pd.DataFrame:
    """The table of answers: a row per piece of evidence, and one for an answer without any.

    `reason` puts the finding of a test into words. `part` and `outcome` belong to the evidence.
    """
    rows = [
        (
            answer.question,
            one.part,
            answer.parts.get(one.part, answer.outcome),
            answer.answer,
            reason(one.test) if one.test else one.text,
            one.link,
        )
        for answer in answers
        for one in answer.evidence or [Evidence("", "")]
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def answers_of(table: pd.DataFrame) -> list[Answer]:
    """The answers in a table made by `answers_table`."""
    found = []
    for question, rows in table.groupby("question", sort=False):
        parts = {row.part: row.outcome for row in rows.itertuples() if row.part}
        outcome = _common([*parts.values()] or [rows["outcome"].iloc[0]])
        evidence = [
            Evidence(row.evidence, row.link, row.part) for row in rows.itertuples() if row.link
        ]
        found.append(Answer(question, outcome, rows["answer"].iloc[0], evidence, parts))
    return found


def headline(above: Headline | None, answers: list[Answer]) -> dict[str, Any] | None:
    """The heading above the answers: `title`, `asks`, `answer`, `tested` and `words`.

    None if title or answer is empty, as when the questions that decide it were not asked.
    """
    asked = {answer.question: answer for answer in answers}

    def words(deciding: Deciding) -> str:
        answer = asked.get(deciding.decided_by)
        if answer is None:
            return ""
        outcome = answer.parts.get(deciding.part, "") if deciding.part else answer.outcome
        return deciding.words.get(outcome, "")

    if above is None:
        return None
    title = words(above.title)
    answer = " ".join(filter(None, map(words, above.answer)))
    if not (title and answer):
        return None
    told = {"asks": above.asks, "tested": above.tested, "words": above.words}
    return {"title": title, "answer": answer, **told}


def of_claim(question: OfClaim, results: Results) -> Found | None:
    """The verdict of a claim; its evidence is the test that decides."""
    row = next((r for r in results.verdicts.rows if r["claim"] == question.claim), None)
    if row is None or row["verdict"] == NOT_MEASURED:
        return None
    test = results.verdicts.deciding(row)
    link = f"tables/claims.csv#L{test['line']}" if test else ""
    return Found(row["verdict"], [Evidence("", link, test=test)] if test else [])


def of_limit(question: Limit, results: Results) -> Found | None:
    """Whether a variant trains at every depth that was tried: `all`, `some` or `none`."""
    study = results.studies[question.study]
    if question.variant not in study.variants:
        return None
    deepest, failed = study.limit(question.variant)
    at = failed or deepest
    row = study.rows_of(question.variant, at)[0]
    lost, n = study.failed(question.variant, at)
    trained = f"every run learns at {study.count_layers(deepest)}" if deepest else ""
    fails = (
        f"{lost} of {n} runs fail at {study.count_layers(failed)}"
        if failed
        else "the deepest tried"
    )
    text = ", ".join(filter(None, (trained, fails)))
    outcome = "all" if not failed else "some" if deepest else "none"
    return Found(outcome, [Evidence(text, f"tables/summary.csv#L{row['line']}")])


def of_depth(question: EffectiveDepth, results: Results) -> Found | None:
    """Effective depth of each variant's deepest network, compared with its own depth.

    `less` or `more` if the whole interval is on that side, else `as many`; `unknown` if there is
    none or plain networks are too shallow. Each variant is a part; `mixed` if they disagree.
    """
    study = results.studies[question.study]
    table = study.effective_depths() or {"rows": ()}
    cells = [cell for row in table["rows"] for cell in row["cells"] if cell]
    outcomes, evidence = {}, []
    for part, variant in question.variants.items():
        rows = [cell for cell in cells if cell["variant"] == variant]
        if rows:
            deepest = max(rows, key=lambda row: row["depth"])
            outcomes[part], text = _worth(deepest, study, results.name(variant))
            link = f"tables/effective_depth.csv#L{deepest['line']}"
            evidence.append(Evidence(text, link, part))
    if not outcomes:
        return None
    return Found(_common(list(outcomes.values())), evidence, parts=outcomes)


def _worth(row: Record, study: StudyPresenter, name: str) -> tuple[str, str]:
    """The outcome and the words of one effective depth."""
    own, low, high = row["depth"], row["low"], row["high"]
    if row["answer"] in (BEYOND, UNKNOWN):
        text, outcome = f"more than {row['deepest']}", "more"
        if row["deepest"] < own or row["answer"] == UNKNOWN:
            outcome = "unknown"  # no plain network is as deep, or depth does not help it
    elif row["answer"] == BELOW:
        text, outcome = f"less than {row['shallowest']}", "less"
    else:
        text = _layers(row["effective_depth"])
        has_interval = not math.isnan(low)
        if has_interval:
            text += f" ({_layers(low)} to {_layers(high)})"
        is_less, is_more = high < own and not row["high_open"], low > own
        outcome = "less" if is_less else "more" if is_more else "as many"
        outcome = outcome if has_interval else "unknown"
    own_layers = f"{study.count_layers(own)} of {name}"
    return outcome, f"{own_layers} are worth {text} plain {study.depth_label}"


def _layers(count: float) -> str:
    return number(count, 2) if count < 99.5 else f"{count:.0f}"


def _common(outcomes: Sequence[str]) -> str:
    """The outcome if all are the same, else 'mixed'."""
    return outcomes[0] if len(set(outcomes)) == 1 else "mixed"


def of_effects(question: Contrasts, results: Results) -> Found | None:
    """Outcome of pairs of variants on a study's score.

    The verdict if all pairs agree, else `none better` if no pair is better, else `mixed`. Evidence
    begins with the largest effect of each verdict.
    """
    study = results.studies[question.study]
    rows = _contrasts(study, question.pairs, question.contrast, question.depth)
    if not rows:
        return None
    rows.sort(key=lambda row: (row["verdict"] == UNDECIDED, -size_of(row)))
    firsts = {row["verdict"]: row for row in reversed(rows)}
    rows.sort(key=lambda row: row is not firsts[row["verdict"]])
    outcome = _common(list(firsts))
    if outcome == "mixed" and BETTER not in firsts:
        outcome = "none better"
    return Found(outcome, [_evidence(row, study, results) for row in rows])


def of_each(question: Each, results: Results) -> Found | None:
    """The outcome on which all parts agree, else `mixed`.

    Parts whose study was not run are skipped. Each part has its evidence, which names it.
    """
    ran = {
        part: found
        for part, asked in question.of.items()
        if asked.study in results.studies and (found := of_effects(asked, results))
    }
    if not ran:
        return None
    each = max(1, MOST_ROWS // len(ran))
    evidence = [
        Evidence(f"{part}: {one.text}", one.link, part)
        for part, found in ran.items()
        for one in found.evidence[:each]
    ]
    outcomes = {part: one.outcome for part, one in ran.items()}
    return Found(_common(list(outcomes.values())), evidence, parts=outcomes)


def of_sizes(question: Sizes, results: Results) -> Found | None:
    """Whether a design is better at `all`, `some` or `none` of the network sizes with a ladder.

    Evidence: the largest training where it is better, and the other size that saves fewest steps.
    """
    rows = results.scale.of_design(question.design) if results.scale else []
    if len(rows) < 2:
        return None
    better = [row for row in rows if row["verdict"] == BETTER]
    largest = max(better, key=lambda r: r["parameters"] * r["tokens"], default=None)
    least = min((r for r in rows if r is not largest), key=lambda row: row["multiplier"])
    evidence = [
        Evidence(
            f"{row['channels']:g} channels, {row['layers']:g} layers, {row['steps']:g} steps: "
            f"{saved_in_words(row)}, {row['verdict']}",
            f"tables/sizes.csv#L{row['line']}",
        )
        for row in (largest, least)
        if row
    ]
    others = sorted({row["verdict"] for row in rows} - {BETTER})
    outcome = "none" if not better else "some" if others else "all"
    told = f"{len(better)} of {len(rows)} sizes"
    if better and others:
        told += f", {' or '.join(others)} at the others"
    return Found(outcome, evidence, told)


def _contrasts(
    study: StudyPresenter,
    pairs: Sequence[tuple[str, str]] | None,
    contrast: str | None = None,
    depth: int | None = None,
) -> list[Record]:
    """Effects on the score of pairs or of a whole contrast, on the first platform that has any.

    At the given depth, else at the depth of most pairs, the deepest on a tie.
    """
    rows = [
        row
        for question, found in study.effects("score").items()
        for row in found
        if (
            question == contrast
            if pairs is None
            else question != AT_BEST_RATE and (row["variant"], row["against"]) in pairs
        )
        and depth in (None, row["depth"])
    ]
    rows = [row for row in rows if row["platform"] == rows[0]["platform"]]
    most = common_depth(row["depth"] for row in rows)
    return [row for row in rows if row["depth"] == most]


def _evidence(row: Record, study: StudyPresenter, results: Results) -> Evidence:
    sides = f"{results.name(row['variant'])} against {results.name(row['against'])}"
    if row["question"] == AT_BEST_RATE:  # another seed may have chosen another rate
        sides += f" (the rates of most of {row['seeds']:g} seeds)"
    found = describe_effect(row, study.score.label)
    text = f"{sides}, {study.count_layers(row['depth'])}, is {found}"
    return Evidence(text, f"tables/effects.csv#L{row['line']}")


def of_shares(question: Shares, results: Results) -> Found | None:
    """The factor that decides the training loss: recipe, platform or seed; else `none`."""
    if not results.shares:
        return None
    decides = [row for row in results.shares if row["decides"]]
    first = decides[0] if decides else max(results.shares, key=lambda row: row["median"])
    text = ", ".join(f"{row['factor']} {percent(row['median'])}" for row in results.shares)
    evidence = Evidence(
        f"share of the variance of the log training loss in the median cell: {text}; losses of the "
        f"two recipes: {number(first['loss_low'], 2)} and {number(first['loss_high'], 2)}",
        f"tables/variance_summary.csv#L{first['line']}",
    )
    return Found(decides[0]["factor"] if decides else "none", [evidence])


def of_rates(question: Rates, results: Results) -> Found | None:
    """Whether a variant trains at larger learning rates than each of the others, one part each.

    The verdict on which all depths and platforms agree; undecided if one of them is, else `mixed`.
    Evidence is from the deepest network.
    """
    outcomes, evidence = {}, []
    for part, against in question.than.items():
        place = (question.study, question.variant, against)
        rows = [r for r in results.rates if (r["study"], r["variant"], r["against"]) == place]
        if rows:
            verdicts = [row["verdict"] for row in rows]
            outcomes[part] = UNDECIDED if UNDECIDED in verdicts else _common(verdicts)
            row = max(rows, key=lambda row: row["depth"])
            layers = results.studies[question.study].count_layers(row["depth"])
            text = f"{part}, {layers}: up to {largest_rate(row)}, {compared_rate(row)}"
            evidence.append(Evidence(text, f"tables/stability.csv#L{row['line']}", part))
    if not outcomes:
        return None
    return Found(_common(list(outcomes.values())), evidence, parts=outcomes)


KINDS: dict[type[Question], Callable[[Any, Results], Found | None]] = {
    OfClaim: of_claim,
    Limit: of_limit,
    EffectiveDepth: of_depth,
    Effects: of_effects,
    Each: of_each,
    Sizes: of_sizes,
    Shares: of_shares,
    Rates: of_rates,
}
