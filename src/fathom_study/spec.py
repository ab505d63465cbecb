"""Cells, the points of a study's grid, and specs, all settings of a cell's training."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from operator import not_
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SerializeAsAny

from fathom.connections.schemes import AnyConnection
from fathom.settings import (
    NO_BOOL,
    Flag,
    Label,
    NonNegative,
    Nullable,
    Number,
    Positive,
    Settings,
    Text,
    Whole,
    one_of,
)
from fathom.system.text import digits
from fathom_study.models.recipes import Recipe


def _backends() -> tuple[str, ...]:
    """Names of the `backends` modules that can train: all but the oracle and helper modules."""
    files = (Path(__file__).parent / "backends").glob("[a-z]*.py")
    return tuple(sorted(f.stem for f in files if f.stem != "numpy" and "_" not in f.stem))


BACKENDS = _backends()
"""Backends that can train, named after the framework they import. Add a file to add one."""

MAX_DEPTH = 10_000

Backend = Annotated[str, one_of("backend", BACKENDS)]
Depth = Annotated[int, Field(gt=0, le=MAX_DEPTH), NO_BOOL]

Rate = Annotated[Number, Field(gt=0)]
Below1 = Annotated[Number, Field(ge=0, lt=1)]


class Muon(Settings):
    """Muon for the matrices of layers, AdamW for all other parameters."""

    lr: Rate = Field(0.02, description="learning rate of the matrices")
    momentum: Below1 = 0.95
    first_momentum: Below1 = Field(0.85, description="momentum at the first step")
    momentum_steps: Positive = Field(300, description="steps until momentum is reached")
    head_lr: Rate = Field(0.004, description="AdamW's rate of the head; lr is for the others")
    reference_width: Positive = Field(
        768, description="width that AdamW's rates fit; they are scaled by √(this / width)"
    )


class Optimizer(Settings):
    """AdamW, optionally with Muon. The recipe decides whether AdamW corrects its bias."""

    schedule: Literal["constant", "cosine", "linear_end"] = Field(
        "constant",
        description="cosine: from lr to zero over the steps after the warm-up; linear_end: "
        "constant, then linearly to zero",
    )
    warmup_steps: Annotated[Whole, Field(ge=0)] = Field(0, description="steps of linear warm-up")
    final_share: Annotated[Number, Field(gt=0, le=1)] = Field(
        0.2, description="share of the steps over which linear_end falls"
    )

    lr: Rate = Field(description="learning rate")
    beta1: Below1 = 0.9
    beta2: Below1 = 0.999
    eps: Rate = 1e-8
    weight_decay: Annotated[Number, Field(ge=0)] = Field(0.0, description="decoupled weight decay")
    decay: Literal["all", "matrices"] = Field(
        "all", description="what decays; matrices: no biases, gains, gates, scales or logits"
    )
    clip: Annotated[Rate | None, Nullable] = Field(
        None, description="maximum norm of all gradients together; larger ones are scaled down"
    )
    muon: Annotated[Muon | None, Nullable] = Field(None, description="null: AdamW for all")


@dataclass(frozen=True, order=True)
class Cell:
    """One point of the grid, computed by one training job."""

    study: str
    depth: int
    variant: str
    backend: str
    seed: int

    def path(self) -> str:
        """Path of its folder, relative to the folder of runs."""
        return f"{self.study}/{self.depth}L/{self.variant}/{self.backend}/seed{self.seed}"

    @classmethod
    def parse(cls, path: str) -> Cell:
        """The inverse of `path`. Raises ValueError for text that `path` does not return."""
        match = re.fullmatch(
            r"([a-z][a-z0-9-]*)/([1-9][0-9]*)L/([a-z0-9_]+)/([a-z]+)/seed(0|[1-9][0-9]*)", path
        )
        if not match:
            raise ValueError(f"'{path}' is not study/depthL/variant/backend/seedN")
        study, depth, variant, backend, seed = match.groups()
        return cls(study, int(depth), variant, backend, int(seed))

    def __str__(self) -> str:
        return self.path()


class Initial(Settings):
    """Parameters to start from: those of a trained run, other than the connection's."""

    weights: Text = Field(description="a run's file weights.safetensors")
    digest: Text = Field(description="hash of the file")


class Spec(Settings):
    """All settings that a run depends on; equal specs mean equal computations."""

    task: Text
    model: SerializeAsAny[Settings]
    """Settings of the task's model, already validated by the task."""
    study: str
    depth: Depth
    variant: Label
    backend: Backend
    seed: NonNegative
    recipe: Recipe
    connection: AnyConnection
    steps: Positive
    batch_size: Positive
    accumulate: Positive = 1
    evaluate_every: Positive | None = None
    optimizer: Optimizer
    weights: Flag = False
    leave_out_blocks: Flag = Field(False, exclude_if=not_)
    initial: Initial | None = Field(None, exclude_if=not_)
    """None: the recipe's initial numbers."""

    @property
    def cell(self) -> Cell:
        """The cell that this spec belongs to."""
        return Cell(self.study, self.depth, self.variant, self.backend, self.seed)

    def json(self) -> str:
        """Canonical JSON: sorted keys, no spaces."""
        return json.dumps(self.model_dump(), sort_keys=True, separators=(",", ":"))

    def hash(self) -> str:
        """Hash of all settings, in sixteen hexadecimal digits."""
        return digits(self.json())
