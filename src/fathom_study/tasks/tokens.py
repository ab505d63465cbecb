"""The incrementing-token task: (start + t) mod V, random start (docs/definitions/tasks.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from fathom.settings import Registry
from fathom_study.batch import Batch
from fathom_study.metrics.scores import Oracle, Score
from fathom_study.metrics.steps import POSITIVE, StepMetric, held_out_loss
from fathom_study.models.transformer import Transformer, TransformerModel, sizes
from fathom_study.spec import Spec
from fathom_study.tasks import Presentation, Table, Task, Untrained, mean_loss_on

# Keeps the batches' random numbers apart from those of the initial parameters.
STREAM = 0x746F6B656E73

EVALUATION_BATCH = 64
"""Sequences in one forward pass of an evaluation."""


def activation_max_log10(untrained: Untrained) -> float:
    """log10 of the largest activation that enters any block; NaN if none is finite."""
    finite = [value for value in _largest_log10(untrained) if np.isfinite(value)]
    return max(finite, default=math.nan)


def overflow_layer(untrained: Untrained) -> int | None:
    """The first block whose input has a variance, in float64, beyond float32; None if none has."""
    limit = np.finfo(np.float32).max
    inputs = enumerate(untrained.block_inputs)
    return next((layer for layer, x in inputs if x.var(axis=-1).max() > limit), None)


def overflow_activation_log10(untrained: Untrained) -> float | None:
    """log10 of the largest activation that enters that block; None if there is none."""
    layer = overflow_layer(untrained)
    return None if layer is None else _largest_log10(untrained)[layer]


def _largest_log10(untrained: Untrained) -> list[float]:
    return [float(np.log10(np.abs(x).max())) for x in untrained.block_inputs]


def every_sequence(spec: Spec) -> Iterator[Batch]:
    """All V possible sequences."""
    return sequences(spec.model, np.arange(spec.model.vocab)).parts(EVALUATION_BATCH)


def sequences(model: TransformerModel, starts: np.ndarray) -> Batch:
    """Inputs and targets, int32 [B, T] each, of sequences of T + 1 tokens from these starts [B]."""
    tokens = ((starts[:, np.newaxis] + np.arange(model.length + 1)) % model.vocab).astype(np.int32)
    return Batch({"tokens": tokens[:, :-1]}, tokens[:, 1:])


STEP_METRICS = Registry(
    {
        "activation_max_log10": StepMetric(
            "log10 of the largest activation",
            "`log10` of the largest activation that enters any block",
            activation_max_log10,
            when="first step",
        ),
        "overflow_layer": StepMetric(
            "first block whose norm overflows",
            "first block, from 0, whose input has a variance (in float64) above the largest "
            "float32, so that its first layer norm overflows; null if there is none",
            overflow_layer,
            when="first step",
            whole=True,
            optional=True,
            bounds=POSITIVE,
        ),
        "overflow_activation_log10": StepMetric(
            "log10 of the largest activation there",
            "`log10` of the largest activation that enters that block",
            overflow_activation_log10,
            when="first step",
            optional=True,
        ),
        "exact_loss": held_out_loss(
            "loss over all sequences (nats)",
            "mean cross-entropy over all V possible sequences, in nats",
            mean_loss_on(every_sequence),
            shown="exact loss {:.4g}",
        ),
    }
)


class Tokens(Task):
    """Predict the next token of a sequence that counts up."""

    Model = TransformerModel
    Network = Transformer
    step_metrics = STEP_METRICS

    def batch(self, spec: Spec, step: int) -> Batch:
        """Sequences from uniformly random starts."""
        rng = np.random.default_rng([spec.seed, STREAM, step])
        return sequences(spec.model, rng.integers(0, spec.model.vocab, size=spec.batch_size))

    def classes(self, model: TransformerModel) -> int:
        return model.vocab


SCORE = Score(
    metric="exact_loss",
    label="loss over all sequences",
    unit="nats per token",
    chance=lambda spec: math.log(spec.model.vocab),
    oracle=Oracle("the rule itself", 0.0),
)

PRESENTATION = Presentation(
    unit="token",
    sizes=sizes,
    tables=(
        Table("Gain", ("gain_first", "gain_final")),
        Table("Non-finite events", ("nonfinite_total",)),
        Table("Gradient norm", ("grad_norm_final", "grad_norm_max", "grad_norm_log10_sd")),
        Table(
            "Streams and activations",
            (
                "stream_difference_max",
                "stream_similarity_min",
                "amax_forward_log10_final",
                "amax_backward_log10_final",
                "grad_norm_H_pre_max",
                "grad_norm_H_post_max",
                "grad_norm_H_res_max",
                "overflow_layer",
                "overflow_activation_log10",
            ),
        ),
    ),
    figures=("loss", "score", "grad_norm", "depth_scaling"),
    compared=("gain_final",),
)
