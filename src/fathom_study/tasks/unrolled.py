"""The unrolled task: copy a token; time steps are layers (docs/definitions/unrolled.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import numpy as np
from pydantic import Field

from fathom.settings import Positive, Registry, Settings
from fathom_study.batch import Batch
from fathom_study.metrics.runs import RunMetric, first, last
from fathom_study.metrics.scores import Score
from fathom_study.metrics.steps import POSITIVE, SHARE, StepMetric, grad_norm_of
from fathom_study.models.unrolled import Unrolled
from fathom_study.spec import Spec
from fathom_study.tasks import Presentation, Table, Task, accuracy_on, mean_loss_on

# Keeps the sequences' random numbers apart from those of the initial parameters.
STREAM = 0x756E726F6C6C6564
HELD_OUT = (0x68656C64, STREAM)
"""Seeds of the held-out sequences. Training may draw one too: docs/definitions/unrolled.md."""

EVALUATION_BATCH = 256
"""Sequences in one forward pass of an evaluation."""


class Model(Settings):
    """The sequence, and the sizes of the cell. Its length T is the study's depth."""

    # Recorded specs have `kind` and `pairs`, so no other value is allowed.
    kind: Literal["copy"] = Field("copy", description="the only kind")
    symbols: Positive = Field(10, ge=2, description="V, distinct tokens to copy")
    gap: Literal["blank", "symbols"] = Field(
        "blank", description="what follows the token to copy; symbols: others, drawn at random"
    )
    pairs: Literal[4] = Field(4, description="unused")
    width: Positive = Field(description="D, channels of the state")
    hidden: Positive = Field(description="F, channels between the cell's two layers")
    held_out: Positive = Field(512, description="held-out sequences in every evaluation")


# --- sequences ----------------------------------------------------------------------------------


def sequences(model: Model, length: int, count: int, rng: np.random.Generator) -> Batch:
    """`count` sequences [N, T] of a symbol and a gap; the answers [N] are the symbols."""
    V = model.symbols
    tokens = np.full((count, length), V, np.int32)
    if model.gap == "symbols":
        tokens[:] = rng.integers(0, V, tokens.shape)
    tokens[:, 0] = rng.integers(0, V, count)
    return Batch({"tokens": tokens}, tokens[:, 0].copy())


def held_out(spec: Spec) -> Iterator[Batch]:
    """The sequences of every evaluation; if blanks follow a symbol, all possible sequences."""
    model, length = spec.model, spec.depth
    if model.gap == "blank":
        symbols = np.arange(model.symbols, dtype=np.int32)
        tokens = np.full((model.symbols, length), model.symbols, dtype=np.int32)
        tokens[:, 0] = symbols
        batch = Batch({"tokens": tokens}, symbols)
    else:
        batch = sequences(model, length, model.held_out, np.random.default_rng(HELD_OUT))
    return batch.parts(EVALUATION_BATCH)


# --- metrics ------------------------------------------------------------------------------------

STEP_METRICS = Registry(
    {
        "grad_norm_start": StepMetric(
            "gradient norm\nof the first state (L2)",
            "L2 norm of the loss's gradient with respect to the state before the first time step, "
            "which all sequences share",
            grad_norm_of("state.start"),
            bounds=POSITIVE,
        ),
        "answer_loss": StepMetric(
            "held-out loss (nats)",
            "mean cross-entropy on the held-out answers, in nats",
            mean_loss_on(held_out),
            when="evaluations",
            shown="held-out {:.4g}",
            bounds=POSITIVE,
        ),
        "answer_accuracy": StepMetric(
            "held-out accuracy",
            "share of the held-out answers that have the largest logit",
            accuracy_on(held_out),
            when="evaluations",
            shown="accuracy {:.3f}",
            bounds=SHARE,
            finite=True,
        ),
    }
)

RUN_METRICS = Registry(
    {
        "grad_norm_start_first": RunMetric(
            "grad_norm_start",
            first,
            "of the first training step",
            label="gradient norm of the first state\nbefore training (L2)",
        ),
        "grad_norm_start_final": RunMetric(
            "grad_norm_start",
            last,
            "of the last training step",
            label="gradient norm of the first state\nafter training (L2)",
        ),
    }
)


class UnrolledTask(Task):
    """Answer after the last token."""

    Model = Model
    Network = Unrolled
    step_metrics = STEP_METRICS
    depths_compare = False
    run_metrics = RUN_METRICS

    def batch(self, spec: Spec, step: int) -> Batch:
        """Fresh sequences for every step."""
        rng = np.random.default_rng([spec.seed, STREAM, step])
        return sequences(spec.model, spec.depth, spec.batch_size, rng)

    def classes(self, model: Model) -> int:
        return model.symbols


SCORE = Score(
    metric="answer_loss",
    label="held-out loss",
    unit="nats per answer",
    chance=lambda spec: math.log(spec.model.symbols),
)

PRESENTATION = Presentation(
    unit="answer",
    depth_unit="time step",
    sizes=lambda model: f"{model.kind}, V {model.symbols}, D {model.width}, F {model.hidden}",
    tables=(
        Table("Answers", ("answer_accuracy",)),
        Table("Gradient of the first state", ("grad_norm_start_first", "grad_norm_start_final")),
    ),
    figures=("loss", "score", "answer_accuracy", "grad_norm_start_first", "grad_norm_start_final"),
    compared=("answer_accuracy",),
)
