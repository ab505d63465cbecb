"""The unrolled task: one answer about a sequence, by a cell whose time steps are the layers.

Definition: docs/definitions.md, "Task unrolled".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from statistics import median
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from fathom.batch import Batch
from fathom.metrics.runs import RunMetric, first, last
from fathom.metrics.scores import Score
from fathom.metrics.steps import POSITIVE, SHARE, StepMetric, grad_norm_of
from fathom.models.connections.schemes import Scheme
from fathom.models.recipes import Recipe
from fathom.models.unrolled import Sizes, Unrolled
from fathom.settings import Positive, Registry, Settings
from fathom.spec import Spec
from fathom.tasks import Presentation, Table, Task, Trained

# Keeps the sequences' random numbers apart from those of the initial parameters.
STREAM = 0x756E726F6C6C6564
HELD_OUT = (0x68656C64, STREAM)
"""Seeds of the held-out sequences. Training may draw one of them too: docs/definitions.md."""

EVALUATION_BATCH = 256
"""Sequences in one forward pass of an evaluation."""

DIGITS = 10
"""Number of values of an expression."""


class Model(Settings):
    """The question of a sequence, and the sizes of the cell. Its length T is the study's depth."""

    kind: Literal["copy", "recall", "listops"] = Field(
        "copy",
        description="copy: the first token, after a gap; recall: the value of a key, after pairs "
        "and a gap; listops: the value of a nested expression",
    )
    symbols: Positive = Field(
        DIGITS, ge=2, description="V: tokens to copy, or keys and as many values; of listops ten"
    )
    gap: Literal["blank", "symbols"] = Field(
        "blank", description="of copy: what the gap holds; symbols: others, drawn at random"
    )
    pairs: Positive = Field(4, description="of recall: pairs of a key and a value")
    width: Positive = Field(description="D, channels of the state")
    hidden: Positive = Field(description="F, channels between the cell's two layers")
    held_out: Positive = Field(512, description="held-out sequences in every evaluation")

    @model_validator(mode="after")
    def _symbols_are_enough(self) -> Model:
        if self.kind == "listops" and self.symbols != DIGITS:
            raise ValueError(f"symbols: listops has its {DIGITS} digits; leave symbols out")
        if self.kind == "recall" and self.pairs > self.symbols:
            raise ValueError(
                f"pairs is {self.pairs}, but keys are distinct and there are {self.symbols}; make "
                "symbols larger"
            )
        return self


# --- sequences ----------------------------------------------------------------------------------


def sizes_of(model: Model) -> Sizes:
    """The sizes of the network for a task of this kind."""
    tokens, least_steps = {
        "copy": (model.symbols + 1, 2),
        "recall": (2 * model.symbols + 1, 2 * model.pairs + 1),
        "listops": (BLANK + 1, SHORTEST),
    }[model.kind]
    return Sizes(model.width, model.hidden, tokens, model.symbols, least_steps)


def sequences(model: Model, length: int, count: int, rng: np.random.Generator) -> Batch:
    """`count` sequences [N, T] of `length` tokens, with their answers [N]."""
    draw = {"copy": draw_copies, "recall": draw_recalls, "listops": draw_expressions}[model.kind]
    tokens, answers = draw(model, length, count, rng)
    return Batch({"tokens": tokens.astype(np.int32)}, answers.astype(np.int32))


def draw_copies(
    model: Model, length: int, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """A symbol and a gap; the answer is the symbol."""
    V = model.symbols
    tokens = np.full((count, length), V)
    if model.gap == "symbols":
        tokens[:] = rng.integers(0, V, tokens.shape)
    tokens[:, 0] = rng.integers(0, V, count)
    return tokens, tokens[:, 0]


def draw_recalls(
    model: Model, length: int, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Keys, each followed by its value, then a gap and one of the keys; the answer is its value.

    Keys are tokens 0 … V − 1 and distinct in a sequence, values V … 2V − 1, the blank is 2V.
    """
    V, K = model.symbols, model.pairs
    keys = rng.permuted(np.broadcast_to(np.arange(V), (count, V)), axis=1)[:, :K]
    values = rng.integers(0, V, (count, K))
    asked, rows = rng.integers(0, K, count), np.arange(count)
    tokens = np.full((count, length), 2 * V)
    tokens[:, 0 : 2 * K : 2], tokens[:, 1 : 2 * K : 2] = keys, V + values
    tokens[:, -1] = keys[rows, asked]
    return tokens, values[rows, asked]


OPERATORS = {
    "MAX": max,
    "MIN": min,
    "MED": lambda values: int(median(values)),
    "SM": lambda values: sum(values) % DIGITS,
}
"""Operators by name; SM is the sum modulo ten, a median between two digits is rounded down."""

END = DIGITS + len(OPERATORS)
BLANK = END + 1
"""Tokens: the digits, the operators, each with its opening bracket; then the closing one; blank."""

SHORTEST = 4
"""Number of tokens of the shortest expression, which has two digits."""

NESTED, MOST_ARGUMENTS, MOST_NESTED = 0.25, 5, 20
"""As published: probability that an argument is an expression, maximum arguments and levels."""


def draw_expressions(
    model: Model, length: int, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Expressions of at most `length` tokens, after blanks; the answers are their values.

    An expression that is longer is drawn again.
    """
    tokens, answers = np.full((count, length), BLANK), np.empty(count, dtype=int)
    drawn = (draw_expression(rng) for _ in iter(int, 1))
    fitting = (one for one in drawn if len(one[0]) <= length)
    for row, (expression, answer) in zip(range(count), fitting, strict=False):
        tokens[row, -len(expression) :], answers[row] = expression, answer
    return tokens, answers


def draw_expression(rng: np.random.Generator, level: int = 1) -> tuple[list[int], int]:
    """(the tokens of an operator, its arguments and the closing bracket; their value)."""
    operator = int(rng.integers(len(OPERATORS)))
    values = rng.integers(0, DIGITS, rng.integers(2, MOST_ARGUMENTS + 1)).tolist()
    nested = rng.random(len(values)) < (NESTED if level < MOST_NESTED else 0)
    tokens = [DIGITS + operator]
    for k, is_nested in enumerate(nested):
        argument = [values[k]]
        if is_nested:
            argument, values[k] = draw_expression(rng, level + 1)
        tokens += argument
    return [*tokens, END], [*OPERATORS.values()][operator](values)


@lru_cache(maxsize=4)
def held_out(model: Model, length: int) -> Batch:
    """The sequences of every evaluation; if blanks follow a symbol, all possible sequences."""
    if model.kind == "copy" and model.gap == "blank":
        symbols = np.arange(model.symbols, dtype=np.int32)
        tokens = np.full((model.symbols, length), model.symbols, dtype=np.int32)
        tokens[:, 0] = symbols
        return Batch({"tokens": tokens}, symbols)
    return sequences(model, length, model.held_out, np.random.default_rng(HELD_OUT))


# --- metrics ------------------------------------------------------------------------------------


def evaluation_batches(spec: Spec) -> Iterator[Batch]:
    """The held-out sequences, in batches of EVALUATION_BATCH."""
    found = held_out(spec.model, spec.depth)
    tokens = found.inputs["tokens"]
    for i in range(0, len(tokens), EVALUATION_BATCH):
        rows = slice(i, i + EVALUATION_BATCH)
        yield Batch({"tokens": tokens[rows]}, found.targets[rows])


def answer_loss(trained: Trained) -> float:
    """Mean cross-entropy of the held-out answers, in nats."""
    return trained.mean_loss(evaluation_batches(trained.problem.spec))


def answer_accuracy(trained: Trained) -> float:
    """The share of held-out answers whose logit is the largest."""
    return trained.accuracy(evaluation_batches(trained.problem.spec))


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
            answer_loss,
            when="evaluations",
            shown="held-out {:.4g}",
            bounds=POSITIVE,
        ),
        "answer_accuracy": StepMetric(
            "held-out accuracy",
            "share of the held-out answers that have the largest logit",
            answer_accuracy,
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

    def network(self, model: Model, depth: int, recipe: Recipe, scheme: Scheme) -> Unrolled:
        return Unrolled(sizes_of(model), depth, recipe, scheme)

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
    figures=(
        "loss",
        "score",
        "answer_accuracy",
        "grad_norm_start_first",
        "grad_norm_start_final",
    ),
    compared=("answer_accuracy",),
)
