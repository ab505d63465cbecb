"""The models of the questions in report/published.yaml, which the first screen answers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from fathom.analysis.claims.evidence import CONTRADICTED, NOT_REPRODUCED, REPRODUCED
from fathom.analysis.effects import ALIKE
from fathom.analysis.significance import BETTER, EQUIVALENT, UNDECIDED, WORSE
from fathom.analysis.stability import EQUAL, LARGER, SMALLER
from fathom.settings import OneLine, Settings, unknown

OF_SCORES = (BETTER, WORSE, EQUIVALENT, UNDECIDED, ALIKE)
"""Verdicts of comparisons of scores."""


class Question(Settings):
    """A question of readers, with an answer to each outcome."""

    outcomes: ClassVar[tuple[str, ...]]
    """The possible outcomes; one without an answer of its own is printed by this name."""

    question: OneLine
    answers: Annotated[dict[str, OneLine], Field(default_factory=dict)]
    """Answers of a few words, by outcome."""

    @model_validator(mode="after")
    def _answers_what_may_come_out(self) -> Question:
        for outcome in self.answers:
            if outcome not in self.outcomes:
                raise ValueError(f"answers: {unknown('outcome', outcome, self.outcomes)}")
        return self

    @property
    def studies(self) -> set[str]:
        """The studies that it is about."""
        return {self.study} if "study" in type(self).model_fields else set()

    @property
    def parts(self) -> Iterable[str]:
        """Parts with an outcome each; empty if it has a single outcome."""
        return ()


class OfClaim(Question):
    """A question about the verdict of a claim."""

    outcomes = (REPRODUCED, NOT_REPRODUCED, CONTRADICTED)
    kind: Literal["claim"]
    claim: str


class Limit(Question):
    """A question about the depths tried at which every run of a variant learns."""

    outcomes = ("all", "some", "none")
    kind: Literal["limit"]
    study: str
    variant: str


class EffectiveDepth(Question):
    """A question whether the variants' deepest networks are worth their number of plain layers."""

    outcomes = ("less", "as many", "more", "unknown", "mixed")
    kind: Literal["effective_depth"]
    study: str
    variants: Annotated[dict[OneLine, str], Field(min_length=1, max_length=3)]
    """Variants by the word for each."""

    @property
    def parts(self) -> Iterable[str]:
        return self.variants


class Contrasts(Settings):
    """Contrasts of a study, at the depth of most pairs or at a given depth."""

    study: str
    pairs: Annotated[list[tuple[str, str]], Field(min_length=1)] | None = None
    """Pairs [variant, against]; None: all pairs of `contrast`."""
    contrast: OneLine | None = None
    """The question of the contrast in effects.csv."""
    depth: int | None = None

    @model_validator(mode="after")
    def _asks_of_pairs_or_a_contrast(self) -> Contrasts:
        if (self.pairs is None) == (self.contrast is None):
            raise ValueError("give either pairs or contrast")
        return self


class Effects(Question, Contrasts):
    """A question about the contrasts of a study's score."""

    outcomes = (*OF_SCORES, "none better", "mixed")
    kind: Literal["effects"]


class Each(Question):
    """A question about a score's contrasts in two or three studies or depths, by the word for each.

    Answers have one or two words: where the outcomes differ, all are printed.
    """

    outcomes = Effects.outcomes
    kind: Literal["each"]
    of: Annotated[dict[OneLine, Contrasts], Field(min_length=2, max_length=3)]

    @property
    def studies(self) -> set[str]:
        return {asked.study for asked in self.of.values()}

    @property
    def parts(self) -> Iterable[str]:
        return self.of


class Sizes(Question):
    """A question about the sizes at which a design ends better than the plain network.

    `{sizes}` stands for their number, as in '3 of 9 sizes, undecided at the others'.
    """

    outcomes = ("all", "some", "none")
    kind: Literal["sizes"]
    design: str


class Shares(Question):
    """A question whether recipe, platform or seed decides the final loss."""

    outcomes = ("recipe", "platform", "seed", "none")
    kind: Literal["shares"]


class Rates(Question):
    """A question whether a variant trains at larger rates than others, in a study with `rates`."""

    outcomes = (LARGER, EQUAL, SMALLER, UNDECIDED, "mixed")
    kind: Literal["rates"]
    study: str
    variant: str
    than: Annotated[dict[OneLine, str], Field(min_length=1, max_length=3)]
    """The other variants, by the word for each."""

    @property
    def parts(self) -> Iterable[str]:
        return self.than


KINDS = (OfClaim, Limit, EffectiveDepth, Effects, Each, Sizes, Shares, Rates)
AnyQuestion = Annotated[reduce(or_, KINDS), Field(discriminator="kind")]


class Deciding(Settings):
    """Words that follow from the outcome of a question."""

    decided_by: OneLine
    """The question, worded as in `questions`."""
    part: OneLine | None = None
    """The deciding part, if the question has parts."""
    words: dict[str, OneLine]
    """Words by outcome."""


class Headline(Settings):
    """The heading above all questions."""

    title: Deciding
    asks: OneLine
    answer: Annotated[list[Deciding], Field(min_length=1, max_length=2)]
    """One sentence for each item."""
    tested: OneLine
    """Sentences on what was tested and what was not."""
    words: Annotated[dict[OneLine, OneLine], Field(default_factory=dict)]
    """Definitions of the words in questions."""
