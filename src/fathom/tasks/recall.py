"""The recall task: multi-query associative recall, MQAR (Arora et al. 2023, arXiv:2312.04927).

Definition: docs/definitions.md, "Task recall".
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from pydantic import Field, model_validator

from fathom.batch import Batch
from fathom.metrics.scores import Oracle, Score
from fathom.metrics.steps import POSITIVE, SHARE, StepMetric
from fathom.models.transformer import Transformer, TransformerModel, sizes
from fathom.settings import Positive, Registry
from fathom.spec import Spec
from fathom.tasks import Presentation, Table, Task, Trained

# Keep the random numbers of batches and of held-out sequences apart from each other and from those
# of the initial parameters.
STREAM = 0x726563616C6C
HELD_OUT_STREAM = 0x68656C64

HELD_OUT = 512
"""Held-out sequences of each number of pairs, the same for every run."""

EVALUATION_BATCH = 256
"""Sequences in one forward pass of an evaluation."""

BLANK = 0
"""The token after the last query."""


class Model(TransformerModel):
    """Sizes and parts of the transformer; a sequence has room for T/3 pairs and their queries."""

    vocab: Positive = Field(
        description="V, number of distinct tokens: a blank and V/2 − 1 keys, then V/2 values"
    )
    length: Positive = Field(description="T, tokens in a sequence: three for each of up to K pairs")

    @property
    def pairs(self) -> int:
        """K, the maximum number of pairs in a sequence."""
        return self.length // 3

    @property
    def values(self) -> int:
        """Number of tokens that are values."""
        return self.vocab // 2

    @model_validator(mode="after")
    def _has_room(self) -> Model:
        if self.length % 3:
            raise ValueError(
                f"length is {self.length}, but a pair takes two tokens and its query one; make it "
                "a multiple of 3"
            )
        if self.vocab % 2 or self.pairs >= self.values:
            raise ValueError(
                f"vocab is {self.vocab}, but half of it is values, and half a blank and at least "
                f"{self.pairs} keys; make it even, and {2 * self.pairs + 2} or more"
            )
        keys, K = self.values - 1, self.pairs
        count = math.perm(keys, K) * math.perm(self.values, K) * math.factorial(K)
        if count < 2 * HELD_OUT:
            raise ValueError(
                f"length {self.length} and vocab {self.vocab} allow only {count} sequences with "
                f"pairs: {K}, and {HELD_OUT} are held out of training; make vocab or length larger"
            )
        return self


def sequences(model: Model, pairs: np.ndarray, rng: np.random.Generator) -> Batch:
    """Sequences [N, T] with `pairs` [N] pairs: key, value, key, value, …; queries; blanks.

    Keys are distinct, and so are values. Every key is queried once, in random order; the target is
    its value. Weights are 1 at queries and 0 elsewhere.
    """
    shape = N, K = len(pairs), model.pairs
    keys = BLANK + 1 + some_of(model.values - 1, K, N, rng)
    values = model.values + some_of(model.values, K, N, rng)
    is_shown = np.arange(K) < pairs[:, None]
    order = np.where(is_shown, rng.random(shape), np.inf).argsort(axis=1)  # shown pairs first
    row, j = np.nonzero(is_shown)
    query = 2 * pairs[row] + j

    tokens, targets = np.full((2, N, model.length), BLANK, np.int32)
    tokens[row, 2 * j], tokens[row, 2 * j + 1] = keys[row, j], values[row, j]
    tokens[row, query] = keys[row, order[row, j]]
    targets[row, query] = values[row, order[row, j]]
    weights = np.zeros((N, model.length), np.float32)
    weights[row, query] = 1
    return Batch({"tokens": tokens}, targets, weights)


def some_of(whole: int, some: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Numbers [count, some] below `whole`, distinct in each row, in random order."""
    return rng.random((count, whole)).argsort(axis=1)[:, :some]


def held_out(model: Model, pairs: int) -> list[Batch]:
    """The held-out sequences of `pairs` pairs each, in the batches of an evaluation."""
    rng = np.random.default_rng([0, HELD_OUT_STREAM, pairs])
    parts = range(0, HELD_OUT, EVALUATION_BATCH)
    return [sequences(model, np.full(EVALUATION_BATCH, pairs), rng) for _ in parts]


@lru_cache(maxsize=2)
def excluded(model: Model) -> frozenset[bytes]:
    """The tokens of the held-out sequences of K pairs, which training excludes."""
    batches = held_out(model, model.pairs)
    return frozenset(row.tobytes() for batch in batches for row in batch.inputs["tokens"])


def numbers_of_pairs(model: Model) -> list[int]:
    """Numbers of pairs in the held-out sequences: 1, 2, 4, … below K, and K."""
    return [*(2**i for i in range((model.pairs - 1).bit_length())), model.pairs]


# --- metrics ------------------------------------------------------------------------------------


def recall_loss(trained: Trained) -> float:
    """Mean cross-entropy of the answers to held-out sequences of K pairs, in nats per answer."""
    model = trained.problem.spec.model
    return trained.mean_loss(held_out(model, model.pairs))


def recall_accuracy(trained: Trained) -> float:
    """The share of correct answers to held-out sequences of K pairs."""
    model = trained.problem.spec.model
    return trained.accuracy(held_out(model, model.pairs))


def recall_accuracy_by_pairs(trained: Trained) -> dict[int, float]:
    """The share of correct held-out answers, by the number of pairs in a sequence."""
    model = trained.problem.spec.model
    return {k: trained.accuracy(held_out(model, k)) for k in numbers_of_pairs(model)}


STEP_METRICS = Registry(
    {
        "recall_loss": StepMetric(
            "held-out loss (nats)",
            "mean cross-entropy of the answers to the held-out sequences of K pairs, in nats",
            recall_loss,
            when="evaluations",
            shown="held-out loss {:.4g}",
            bounds=POSITIVE,
        ),
        "recall_accuracy": StepMetric(
            "held-out accuracy",
            "share of correct answers to the held-out sequences of K pairs; non-finite logits "
            "count as wrong",
            recall_accuracy,
            when="evaluations",
            bounds=SHARE,
            finite=True,
        ),
        "recall_accuracy_by_pairs": StepMetric(
            "held-out accuracy",
            "share of correct answers to held-out sequences of 1, 2, 4, … and K pairs",
            recall_accuracy_by_pairs,
            when="last step",
            along="pairs in the sequence",
            bounds=SHARE,
            finite=True,
        ),
    }
)


class Recall(Task):
    """Name the value that stood beside a key."""

    Model = Model
    Network = Transformer
    step_metrics = STEP_METRICS

    def batch(self, spec: Spec, step: int) -> Batch:
        """Sequences of one to K pairs, with equal probabilities.

        A held-out sequence of K pairs, on which runs are judged, is drawn again.
        """
        rng = np.random.default_rng([spec.seed, STREAM, step])
        pairs = rng.integers(1, spec.model.pairs, spec.batch_size, endpoint=True)
        batch, taken = sequences(spec.model, pairs, rng), excluded(spec.model)
        tokens = batch.inputs["tokens"]
        while again := [i for i, row in enumerate(tokens) if row.tobytes() in taken]:
            fresh = sequences(spec.model, pairs[again], rng)
            tokens[again], batch.targets[again] = fresh.inputs["tokens"], fresh.targets
        return batch

    def classes(self, model: Model) -> int:
        return model.vocab


SCORE = Score(
    metric="recall_loss",
    label="held-out loss",
    unit="nats per answer",
    chance=lambda spec: math.log(spec.model.values),
    oracle=Oracle("the rule itself", 0.0),
)

PRESENTATION = Presentation(
    unit="answer",
    sizes=lambda model: f"K {model.pairs}, {sizes(model)}",
    tables=(
        Table("Answers", ("recall_accuracy",)),
        Table("Gradient norm", ("grad_norm_final", "grad_norm_max")),
    ),
    figures=("score", "recall_accuracy_by_pairs", "loss", "grad_norm"),
    compared=("recall_accuracy",),
)
