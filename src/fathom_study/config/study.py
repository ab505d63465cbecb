"""A study of config.yaml, validated: its task, recipe, variants and axes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import cached_property
from operator import not_
from typing import Annotated, Any

from pydantic import Field, SerializeAsAny, ValidationInfo, field_validator, model_validator

from fathom.settings import (
    ConfigError,
    Flag,
    Label,
    NonNegative,
    Nullable,
    Number,
    OneLine,
    Positive,
    Settings,
    Unique,
    deep_merge,
    either,
    join_values,
    one_of,
    unknown,
    validate,
)
from fathom_study import tasks
from fathom_study.config.entries import (
    AfterLooking,
    BatchSize,
    Contrast,
    Exclusion,
    Factor,
    PartName,
    Values,
    VariantEntries,
    VariantEntry,
    VariantSettings,
)
from fathom_study.models.recipes import RECIPES, AnyRecipe, Recipe
from fathom_study.spec import Backend, Cell, Depth, Optimizer

AXES = ("variants", "depths", "backends", "seeds")
"""The axes of a study; the singular of each is a field of a cell and of an exclusion."""


class Study(Settings):
    """One experiment: what is trained, by which recipe, over which axes, for how long."""

    task: Annotated[str, one_of("task", tasks.TASKS)] = Field(description="name of the task")
    model: SerializeAsAny[Settings] = Field(description="settings of the task's network and data")
    description: OneLine = Field("", description="one sentence for the report")
    recipe: AnyRecipe = Field(description="the name of a recipe, or its settings")
    variants: VariantEntries = Field(
        description="names of connections, or label: {connection: name, setting: value}; a "
        "variant's recipe, optimizer, model and steps override the study's"
    )
    extra_variants: tuple[VariantEntry, ...] = Field(
        (),
        exclude_if=not_,
        description="further variants in the form of `variants`, for overlays; each is compared to "
        "the study's plain network",
    )
    rates: tuple[Annotated[Number, Field(gt=0, lt=1)], ...] = Field(
        (),
        exclude_if=not_,
        description="further learning rates at which to train every variant that sets no lr; at "
        "0.016 the variant is NAME_016",
    )
    streams: Positive = Field(4, description="S, number of residual streams")
    depths: Annotated[list[Depth], Unique] = Field(description="L, numbers of layers")
    plain_depths: tuple[Depth, ...] = Field(
        (),
        exclude_if=not_,
        description="further depths of the first plain network, for effective depths",
    )
    backends: Annotated[list[Backend], Unique] = Field(description="frameworks to train on")
    seeds: Annotated[list[NonNegative], Unique] = Field(
        description="seeds of initial parameters and batches; intervals need three or more"
    )
    exclude: tuple[Exclusion, ...] = Field((), description="combinations to leave out")
    steps: Positive = Field(description="optimiser steps of a run")
    batch_size: either(BatchSize, dict[Depth, BatchSize]) = Field(
        description="B: one number, or one per depth, such as {12: 32, 24: 24}"
    )
    accumulate: either(Positive, dict[Label, Positive]) = Field(
        1,
        description="batches per step, with averaged gradients: one number for all variants, or "
        "numbers for some, such as {v2: 4}",
    )
    evaluate_every: Annotated[Positive | None, Nullable] = Field(
        None, description="steps from one evaluation to the next; null: only after the last"
    )
    optimizer: Optimizer
    weights: Flag = Field(False, description="keep the trained parameters of every run")
    leave_out_blocks: Flag = Field(
        False,
        exclude_if=not_,
        description="after the last step, measure the score without each block: one evaluation per "
        "block",
    )
    contrasts: tuple[Contrast, ...] = Field(
        (), description="questions, each with the pairs of variants to compare"
    )
    looks: tuple[Annotated[int, Field(ge=3)], ...] = Field(
        (),
        exclude_if=not_,
        description="numbers of seeds at which verdicts may be read before more seeds are trained, "
        "ascending, such as [5, 8, 12, 16]; each spends an equal part of the error rate",
    )
    chosen_after_looking: dict[str, AfterLooking] = Field(
        {},
        exclude_if=not_,
        description="settings that were chosen by results, such as {seeds: {why: two were added}}; "
        "reports mark them, and the verdicts that rest on them",
    )
    ladder: dict[Label, Annotated[list[Factor], Unique]] = Field(
        {},
        exclude_if=not_,
        description="factors of the steps at which to train a plain variant too, each with a full "
        "schedule, such as {baseline: [0.5, 2]}; step multipliers come from them",
    )
    plain_at_size: Annotated[tuple[Label, ...], Values] = Field(
        (),
        exclude_if=not_,
        description="makes the study one of the sizes at which step multipliers are compared: the "
        "plain variant at this size's learning rate, with a `ladder` if the study has any; of "
        "several, a depth uses the first that was trained there",
    )
    part: Annotated[PartName | None, Nullable] = Field(
        None,
        description="name of this study's own part of the report, report/templates/parts/NAME.j2",
    )
    score: tasks.JUDGED_BY = Field(
        "held_out",
        description="metric that judges runs: the task's score on held-out data, or (for runs "
        "without it) the mean training loss over the last tenth of the steps",
    )

    @field_validator("model", mode="plain")
    @classmethod
    def _is_its_tasks(cls, value: object, info: ValidationInfo) -> object:
        """Validate the model by its task. An unknown task has its own error."""
        task = info.data.get("task")
        return value if task is None else tasks.load(task).Model.model_validate(value)

    @model_validator(mode="after")
    def _can_be_trained(self) -> Study:
        taken = Counter(label for label, _ in self._written)
        for label in self.extra_labels:
            if taken[label] > 1:
                raise ValueError(f"extra_variants: {label} already exists; choose another label")
        named: dict[str, Iterable[str]] = {}
        for i, contrast in enumerate(self.contrasts):
            named[f"contrasts.{i}.pairs"] = itertools.chain(*contrast.pairs)
            for one, other in contrast.pairs:
                if one == other:
                    raise ValueError(f"contrasts.{i}.pairs: {one} is compared with itself")
            for seed in contrast.seeds:
                if seed not in self.seeds:
                    raise ValueError(f"contrasts.{i}.seeds: {unknown('seed', seed, self.seeds)}")
        if list(self.looks) != sorted(set(self.looks)):
            raise ValueError("looks: must be ascending numbers of seeds, such as [5, 8, 12, 16]")
        if self.looks and self.looks[-1] < self.most_seeds:
            raise ValueError(
                f"looks: the last is at {self.looks[-1]} seeds, but the study has "
                f"{self.most_seeds}; add a look, or remove seeds"
            )
        for key in self.chosen_after_looking:
            own: Any = self.model_dump()
            for part in key.split("."):
                if not isinstance(own, Mapping) or part not in own:
                    raise ValueError(
                        f"chosen_after_looking: the study has no setting '{key}'; name one "
                        "like seeds, steps or optimizer.lr"
                    )
                own = own[part]
        named |= {
            f"chosen_after_looking.{key}.verdicts_of": one.verdicts_of
            for key, one in self.chosen_after_looking.items()
        }
        named["accumulate"] = self.accumulate if isinstance(self.accumulate, dict) else ()
        named |= {"ladder": self.ladder, "plain_at_size": self.plain_at_size}
        for key, labels in named.items():
            for label in labels:
                if label not in self.compared:
                    raise ValueError(f"{key}: {unknown('variant', label, self.compared)}")
        for label in self.plain_at_size if self.ladder else ():
            if label not in self.ladder:
                problem = unknown("variant with a ladder", label, self.ladder)
                raise ValueError(f"plain_at_size: {problem}")
        families = self.rate_families.items()
        at_rates = [label for base, of in families for label in of.values() if label != base]
        rungs = [rung for base in self.ladder for rung in self.rungs(base).values() if rung != base]
        for key, added, or_else in (
            ("rates", at_rates, ""),
            ("ladder", rungs, ", or use factors further apart"),
        ):
            taken.update(added)
            if twice := [label for label in added if taken[label] > 1]:
                raise ValueError(
                    f"{key}: one of its trainings needs the label {twice[0]}, which is taken; "
                    f"rename that variant{or_else}"
                )
        for depth in self.values("depths"):
            self.batch_size_at(depth)
        for label in self.labels:
            study = self.of(label)
            _ = study.recipe_settings  # raises if there is no such recipe
            if study.dataset != self.dataset:
                raise ValueError(
                    f"variants.{label}.model: needs other data than the study; make it a "
                    "separate study"
                )
            key = f"variants.{label}." if self._own(label).model_fields_set else ""
            if tasks.load(study.task).classes(study.model) == 1:
                raise ValueError(
                    f"{key}model: has 1 class to predict, so chance is a perfect score; make vocab "
                    "2 or more"
                )
            if study.optimizer.warmup_steps >= study.steps:
                raise ValueError(
                    f"{key}optimizer.warmup_steps is {study.optimizer.warmup_steps} of "
                    f"{study.steps} steps; it must be below steps"
                )
            if (study.evaluate_every or 0) > study.steps:
                raise ValueError(
                    f"{key}evaluate_every is {study.evaluate_every} of {study.steps} steps; it "
                    "must not be above steps"
                )
        return self

    def values(self, axis: str) -> list[Any]:
        """The study's values on one of AXES."""
        if axis == "depths":
            return list(dict.fromkeys([*self.plain_depths, *self.depths]))
        return self.labels if axis == "variants" else getattr(self, axis)

    def excludes(self, cell: Cell) -> bool:
        """Whether an exclusion has the cell's value on every axis that it names."""
        return any(
            all(getattr(cell, axis) in values for axis, values in exclusion.named.items())
            for exclusion in self.exclude
        )

    @property
    def most_seeds(self) -> int:
        """The largest number of seeds of a variant, without those excluded."""
        places = itertools.product(self.depths, self.compared, self.backends)
        return max(
            sum(not self.excludes(Cell("", *place, seed)) for seed in self.seeds)
            for place in places
        )

    @property
    def labels(self) -> list[str]:
        """The variants' labels, in order."""
        return list(self.connections)

    @property
    def extra_labels(self) -> list[str]:
        """The labels of `extra_variants`, in order."""
        return [label for entry in self.extra_variants for label in entry]

    @property
    def _written(self) -> list[tuple[str, Any]]:
        """(label, value) of each entry of `variants` and `extra_variants`, in order."""
        return [pair for entry in (*self.variants, *self.extra_variants) for pair in entry.items()]

    @cached_property
    def connections(self) -> dict[str, Any]:
        """The name or settings of each variant's connection, by label, in order."""
        return {label: connection for label, (connection, _) in self._parsed_variants.items()}

    @cached_property
    def _parsed_variants(self) -> dict[str, tuple[Any, VariantSettings]]:
        """Each variant's connection and its other changes, by label, in order."""
        parsed = {}
        for label, value in self._written:
            given = value if isinstance(value, Mapping) else {"connection": value}
            own = {key: given[key] for key in VariantSettings.model_fields if key in given}
            rest = {key: setting for key, setting in given.items() if key not in own}
            connection = rest if isinstance(value, Mapping) else value
            settings = validate(VariantSettings, own, place=("variants", label))
            parsed[label] = connection, settings
            for rate, at_rate in self._at_rates(label, settings).items():
                if at_rate != label:
                    optimizer = settings.optimizer | {"lr": rate}
                    changed = settings.model_copy(update={"optimizer": optimizer})
                    parsed[at_rate] = connection, changed
        for base in [label for label in parsed if label in self.ladder]:
            connection, own = parsed[base]
            for factor, label in self.rungs(base).items():
                if factor != 1:
                    steps = max(1, round(factor * (own.steps or self.steps)))
                    parsed[label] = connection, own.model_copy(update={"steps": steps})
        return parsed

    def _at_rates(self, base: str, own: VariantSettings) -> dict[float, str]:
        """Labels of a variant by learning rate, ascending; empty unless `rates` trains it too."""
        if not self.rates or "lr" in own.optimizer:
            return {}
        rates = sorted({self.optimizer.lr, *self.rates})
        digits = {rate: f"{Decimal(repr(rate)):f}".removeprefix("0.") for rate in rates}
        return {r: base if r == self.optimizer.lr else f"{base}_{digits[r]}" for r in rates}

    @cached_property
    def rate_families(self) -> dict[str, dict[float, str]]:
        """Labels by learning rate, ascending, of every variant that `rates` trains too."""
        families = {label: self._at_rates(label, self._own(label)) for label, _ in self._written}
        return {label: family for label, family in families.items() if family}

    @cached_property
    def bases(self) -> dict[str, str]:
        """Labels at the study's own rate, by the label at any rate that `rates` trains."""
        return {label: base for base, of in self.rate_families.items() for label in of.values()}

    def rungs(self, base: str) -> dict[float, str]:
        """Labels of a variant's ladder by factor of its steps, ascending; 1 is the variant."""
        factors = sorted({1.0, *self.ladder.get(base, ())})
        return {f: base if f == 1 else f"{base}_x{round(100 * f):03d}" for f in factors}

    @cached_property
    def ladder_trainings(self) -> frozenset[str]:
        """Labels of the trainings that ladders add; these variants are not compared."""
        return frozenset(
            label for base in self.ladder for label in self.rungs(base).values() if label != base
        )

    @property
    def compared(self) -> list[str]:
        """The variants' labels, in order, without the trainings that ladders add."""
        return [label for label in self.labels if label not in self.ladder_trainings]

    def trains_alike(self, variant: str, other: str) -> bool:
        """Whether two variants may differ in connection and model alone."""
        one, another = ({**self.changes(label), "model": None} for label in (variant, other))
        return one == another

    def _own(self, variant: str) -> VariantSettings:
        """The changes of a variant; none if the study does not list it."""
        return self._parsed_variants.get(variant, (None, VariantSettings()))[1]

    def of(self, variant: str) -> Study:
        """The study with the changes of a variant. Raises ConfigError."""
        own = self._own(variant)
        changed: dict[str, Any] = {"steps": own.steps or self.steps}
        if variant in self.ladder_trainings and (self.evaluate_every or 0) > changed["steps"]:
            changed["evaluate_every"] = None  # a short rung: only after its last step
        if isinstance(self.accumulate, dict):
            changed["accumulate"] = self.accumulate.get(self.bases.get(variant, variant), 1)
        for key in ("recipe", "optimizer", "model"):
            changes = getattr(own, key)
            if isinstance(changes, str):  # a recipe's name
                changed[key] = changes
            elif changes:
                settings = self.recipe_settings if key == "recipe" else getattr(self, key)
                merged = deep_merge(settings.model_dump(exclude_unset=True), changes)
                changed[key] = validate(type(settings), merged, place=("variants", variant, key))
        return self.model_copy(update=changed)

    def changes(self, variant: str) -> dict[str, Any]:
        """The settings that a variant changes besides its connection, as data."""
        own = self._own(variant).model_dump(exclude_unset=True)
        base = self.bases.get(variant, variant)
        is_own = isinstance(self.accumulate, dict) and base in self.accumulate
        return own | ({"accumulate": self.accumulate[base]} if is_own else {})

    def changes_plain(self, variant: str) -> bool:
        """Whether a variant changes a setting that affects the plain network."""
        changes = self.changes(variant)
        model = changes.pop("model", {}).keys() - tasks.load(self.task).Model.connection_settings
        return bool(changes or model)

    @property
    def recipe_name(self) -> str:
        """The name of the recipe that has these settings, or the settings in words."""
        recipe = self.recipe_settings
        names = (name for name, known in RECIPES.items() if known == recipe)
        settings = recipe.model_dump().items()
        return next(names, join_values(f"{name} {value}" for name, value in settings))

    def connection_name(self, variant: str) -> str:
        """The name of a variant's connection, or of the one it is based on; else its label."""
        value = self.connections.get(variant, variant)
        named = value if isinstance(value, str) else value.get("connection", variant)
        return named if isinstance(named, str) else variant

    @property
    def recipe_settings(self) -> Recipe:
        """The recipe's settings. Raises ConfigError."""
        return RECIPES.find("recipe", self.recipe) if isinstance(self.recipe, str) else self.recipe

    @property
    def dataset(self) -> str | None:
        """The name of the data set that it trains on; None if it needs none."""
        return tasks.load(self.task).dataset(self.model)

    def batch_size_at(self, depth: int) -> int:
        """B at the given depth. Raises ConfigError if the study has none for it."""
        if not isinstance(self.batch_size, dict):
            return self.batch_size
        if depth not in self.batch_size:
            raise ConfigError(f"batch_size has no entry for depth {depth}; add one")
        return self.batch_size[depth]

    def tokens_per_step_at(self, depth: int) -> int:
        """Tokens of an optimiser step, or examples without sequences. Raises ConfigError."""
        return self.batch_size_at(depth) * self.accumulate * getattr(self.model, "length", 1)
