"""Types of the entries of a study in config.yaml: variants, exclusions, contrasts, names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from operator import not_
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from fathom.settings import (
    NO_BOOL,
    QUOTED,
    Label,
    NonNegative,
    Number,
    OneLine,
    Positive,
    Settings,
    Text,
    distinct,
    either,
)
from fathom_study.spec import Backend

MAX_BATCH = 1_000_000

RESERVED_NAMES = {
    "all", "claims", "data", "everything", "fetch", "figures", "page", "paper", "report",
    "reports", "resolve", "tables", "train", "verify", "cells", "overview",
}  # fmt: skip
"""Names that no study can have: rules of the workflow, since a study is a target, and folders."""


def _check_study_name(name: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,63}", name):
        raise ValueError(
            "a study's name must be up to 64 lower-case letters, digits and hyphens, a letter first"
        )
    if name in RESERVED_NAMES:
        raise ValueError("the workflow uses this name; choose another")
    return name


def _parse_variant(value: object) -> object:
    """{label: settings} of a variant, which is written as a name or as `label: settings`."""
    if isinstance(value, str):
        return {value: value}
    if isinstance(value, Mapping) and len(value) == 1:
        return value
    if isinstance(value, bool):
        raise ValueError(f"must be text, but YAML reads {value}; put it in quotes")
    raise ValueError("must be a name, or one label with its settings")


def _parse_values(value: object) -> object:
    """A list from one value or several; null gives an empty list."""
    if value is None:
        return []
    return value if isinstance(value, list | tuple) else [value]


def _check_labels(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    distinct([label for entry in entries for label in entry])
    return entries


BatchSize = Annotated[int, Field(gt=0, le=MAX_BATCH), NO_BOOL]
StudyName = Annotated[Text, AfterValidator(_check_study_name)]
NameOrSettings = either(str, dict[str, Any])
VariantEntry = Annotated[dict[Label, NameOrSettings], BeforeValidator(_parse_variant)]
VariantEntries = Annotated[list[VariantEntry], AfterValidator(_check_labels)]
PartName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$"), QUOTED]
Factor = Annotated[Number, Field(ge=0.01, lt=10)]
Pair = Annotated[list[Label], Field(min_length=2, max_length=2)]
Values = BeforeValidator(_parse_values)


class VariantSettings(Settings):
    """Settings that a variant may change besides its connection, laid over the study's."""

    recipe: NameOrSettings = Field({})
    optimizer: dict[str, Any] = Field({})
    model: dict[str, Any] = Field({})
    steps: Positive | None = None


class Exclusion(Settings):
    """Combinations of axis values that a study leaves out; an axis without a value matches all."""

    depth: Annotated[tuple[Positive, ...], Values] = Field((), description="one depth or a list")
    variant: Annotated[tuple[Label, ...], Values] = Field((), description="one variant or a list")
    backend: Annotated[tuple[Backend, ...], Values] = Field((), description="one backend or a list")
    seed: Annotated[tuple[NonNegative, ...], Values] = Field((), description="one seed or a list")

    @model_validator(mode="after")
    def _names_an_axis(self) -> Exclusion:
        if not self.named:
            raise ValueError("must name at least one of depth, variant, backend, seed")
        return self

    @cached_property
    def named(self) -> dict[str, tuple[Any, ...]]:
        """The excluded values by axis, of the axes it names."""
        return {axis: values for axis, values in self.model_dump().items() if values}


class Contrast(Settings):
    """A question, and the pairs of variants that answer it."""

    question: OneLine = Field(description="as the report prints it")
    pairs: Annotated[list[Pair], Field(min_length=1)] = Field(
        description="[variant, against]: each pair is compared seed by seed"
    )
    seeds: tuple[NonNegative, ...] = Field(
        (),
        exclude_if=not_,
        description="seeds to compare; by default all. Leave out a seed whose scores a variant "
        "was chosen by",
    )


class AfterLooking(Settings):
    """How a setting was chosen by results of the study itself, or of runs like it."""

    why: OneLine = Field(description="how it was chosen, for the report")
    verdicts_at: tuple[Positive, ...] = Field(
        (), description="depths at which verdicts on effects and worth rest on the choice"
    )
    verdicts_of: tuple[Label, ...] = Field(
        (), description="variants whose verdicts on effects and worth rest on it, at any depth"
    )
