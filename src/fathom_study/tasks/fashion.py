"""The Fashion-MNIST task: which of ten kinds of clothing a picture shows.

Batches come from a shuffle by NumPy, so that every backend sees the same pictures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator

from fathom.connections.causal import CausalConnection
from fathom.connections.constraints import Exp
from fathom.settings import Flag, Number, Positive, Registry, Settings
from fathom_study.batch import Batch
from fathom_study.datasets import DataError, folder_of
from fathom_study.datasets import fashion_mnist as data
from fathom_study.metrics.runs import RunMetric, largest
from fathom_study.metrics.scores import Score
from fathom_study.metrics.steps import POSITIVE, SHARE, Row, StepMetric, grad_norm_of
from fathom_study.models.convnet import SIDE, ConvNet, groups_of
from fathom_study.spec import Spec
from fathom_study.tasks import Presentation, Problem, Table, Task, Trained, Untrained, accuracy_on

# Keep the random numbers of shuffles, translations and dropout apart from each other and from
# those of the initial parameters.
STREAM = 0x66617368696F6E
TRANSLATIONS = 0x736869667473
DROPOUT_STREAM = 0x64726F70

MEAN, STD = 0.2860, 0.3530
"""Mean and standard deviation of all training pixels, on the scale from 0 to 1."""

MARGIN = 2
"""Maximum pixels by which augmentation moves a picture along each axis."""

PUBLISHED_DEPTH = 100
"""Layers of the source's first network; the default scale has fewer."""

EVALUATION_BATCH = 100


class Model(Settings):
    """Sizes of the convolutional network, and the preparation of its images."""

    width: Positive = Field(description="W, channels")
    dropout: Annotated[Number, Field(ge=0, lt=1)] = Field(0.1, description="share dropped")
    normalise: Flag = Field(
        False, description="subtract the mean of all pixels, divide by their sd"
    )
    augment: Flag = Field(False, description="crop with a border of two pixels at random")

    @model_validator(mode="after")
    def _groups_divide_width(self) -> Model:
        groups = groups_of(self.width)
        if self.width % groups:
            raise ValueError(f"width {self.width} is not divisible by its {groups} groups; use 64")
        return self


def overflow_depth(untrained: Untrained) -> int | None:
    """The first block, from 0, with a non-finite input in a network of PUBLISHED_DEPTH layers.

    The network is otherwise the cell's, with its initial parameters and first batch. None if all
    inputs are finite: the connection alone does not leave float32.
    """
    spec = untrained.problem.spec.model_copy(update={"depth": PUBLISHED_DEPTH})
    ops, deep = untrained.ops, Problem(spec)
    inputs = deep.block_inputs(ops, deep.initial_parameters())
    finite = [bool(ops.to_numpy(ops.all_finite(x))) for x in inputs]
    return None if all(finite) else finite.index(False)


def held_out(spec: Spec) -> Iterator[Batch]:
    """All test images and their labels, in the files' order, prepared as `batch` prepares them."""
    *_, images, labels = _files()
    inputs = {"images": _prepared(images, spec.model.normalise)}
    return Batch(inputs, labels.astype(np.int32)).parts(EVALUATION_BATCH)


def causal_matrix(trained: Trained, name: str, **settings: Any) -> np.ndarray | None:  # noqa: ANN401
    """A matrix of causal layers with these `settings`, in float64; None for other layers."""
    connection = trained.problem.network.connection
    if not isinstance(connection, CausalConnection):
        return None
    changed = connection.settings.model_copy(update=settings)
    connection = replace(connection, settings=changed)
    return trained.of_parameters(lambda params: connection.matrices(trained.ops, params)[name])


def sum_error(name: str, axis: int) -> Callable[[Trained], float | None]:
    """The metric of the largest |sum − 1| of a causal matrix along an axis."""

    def error(trained: Trained) -> float | None:
        matrix = causal_matrix(trained, name)
        return None if matrix is None else float(np.abs(matrix.sum(axis=axis) - 1).max())

    return error


def weights_difference(trained: Trained) -> float | None:
    """Largest difference of the weights that layers read with from those of exp alone."""
    weights = causal_matrix(trained, "weights")
    unconstrained = causal_matrix(trained, "weights", constraint=Exp())
    return None if weights is None else float(np.abs(weights - unconstrained).max())


causal_metric = partial(StepMetric, when="last step", optional=True, bounds=POSITIVE)

STEP_METRICS = Registry(
    {
        "grad_norm_stem": StepMetric(
            "gradient norm of the\nfirst weight (L2)",
            "L2 norm of the gradient of the stem's weight",
            grad_norm_of("stem.weight"),
            bounds=POSITIVE,
        ),
        "overflow_depth": StepMetric(
            "first block with a non-finite input",
            "first block, from 0, with a non-finite input; null if there is none. Measured on the "
            "first batch in the cell's untrained network, but with 100 layers",
            overflow_depth,
            when="first step",
            whole=True,
            optional=True,
            bounds=POSITIVE,
        ),
        "test_accuracy": StepMetric(
            "test accuracy",
            "share of all test images whose class has the largest logit; non-finite logits count "
            "as wrong",
            accuracy_on(held_out),
            when="last step",
            shown="test accuracy {:.4f}",
            bounds=SHARE,
            finite=True,
        ),
        "mixing_row_error": causal_metric(
            "largest |row sum − 1|",
            "causal connections: largest distance from 1 of a row sum of the whole matrix",
            sum_error("mixing", axis=1),  # before its row prefixes are normalised
        ),
        "mixing_column_error": causal_metric(
            "largest |column sum − 1|",
            "causal connections: largest distance from 1 of a column sum of the whole matrix",
            sum_error("mixing", axis=0),
        ),
        "weights_column_error": causal_metric(
            "largest |column sum − 1|\nof the weights read with",
            "causal connections: largest distance from 1 of a column sum of the weights with which "
            "layers read; their rows sum to one",
            sum_error("weights", axis=0),
        ),
        "weights_difference": causal_metric(
            "largest difference from unconstrained weights",
            "causal connections: largest difference between a weight with which layers read and "
            "that of exp of the same logits; 0 without a constraint",
            weights_difference,
        ),
    }
)

RUN_METRICS = Registry(
    {
        "grad_norm_stem_max": RunMetric(
            "grad_norm_stem", largest, "largest finite gradient norm of the first weight"
        )
    }
)

EXPLODED_GRADIENT = 1e6
"""A gradient norm of the first weight above this counts as diverged."""


class Fashion(Task):
    """Name the kind of clothing."""

    Model = Model
    Network = ConvNet
    step_metrics = STEP_METRICS
    run_metrics = RUN_METRICS

    def dataset(self, model: Model) -> str:
        return "fashion_mnist"

    def batch(self, spec: Spec, step: int) -> Batch:
        """Images, float32 [B, 28, 28, 1], and labels, int32 [B].

        With dropout, `keep` [L, B, 14, 14, W] marks the activations that are not dropped.
        Every epoch has its own shuffle; images that do not fill a last batch are left out of it.
        """
        images, labels, *_ = _files()
        per_epoch = len(images) // spec.batch_size
        if not per_epoch:
            raise DataError(
                f"batch_size {spec.batch_size} is more than the {len(images)} training "
                "images; reduce it"
            )
        epoch, index = divmod(step, per_epoch)
        start = index * spec.batch_size
        rows = _permutation(spec.seed, epoch, len(images))[start : start + spec.batch_size]
        chosen = images[rows]
        if spec.model.augment:
            chosen = _translated(chosen, np.random.default_rng([spec.seed, TRANSLATIONS, step]))
        inputs = {"images": _prepared(chosen, spec.model.normalise)}
        if spec.model.dropout:
            inputs["keep"] = _kept_activations(spec, step)
        return Batch(inputs, labels[rows].astype(np.int32))

    def classes(self, model: Model) -> int:
        return data.CLASSES

    def diverged(self, rows: Sequence[Row]) -> bool:
        """Whether the last loss is not finite or a gradient exploded, as in the source."""
        return super().diverged(rows) or any(
            row["grad_norm_stem"] > EXPLODED_GRADIENT for row in rows
        )


def noise_batch(spec: Spec) -> Batch:
    """A batch of noise in the shapes of `batch`."""
    rng, B = np.random.default_rng(7), spec.batch_size
    inputs = {"images": rng.random((B, 28, 28, 1), dtype=np.float32)}
    if spec.model.dropout:
        inputs["keep"] = _kept_activations(spec, 0)
    return Batch(inputs, rng.integers(0, data.CLASSES, B).astype(np.int32))


def _files() -> data.FashionMnist:
    return data.load(folder_of("fashion_mnist"))


def _kept_activations(spec: Spec, step: int) -> np.ndarray:
    rng = np.random.default_rng([spec.seed, DROPOUT_STREAM, step])
    shape = (spec.depth, spec.batch_size, SIDE, SIDE, spec.model.width)
    # Sixteen random bits each: exact to 1e-5, at a quarter of the cost of a float.
    bits = np.frombuffer(rng.bytes(2 * math.prod(shape)), np.uint16).reshape(shape)
    return bits >= round(spec.model.dropout * 65536)


@lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, count: int) -> np.ndarray:
    return np.random.default_rng([seed, STREAM, epoch]).permutation(count)


def _translated(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Each image moved by up to MARGIN pixels along both axes; uncovered pixels are black."""
    padded = np.pad(images, ((0, 0), (MARGIN, MARGIN), (MARGIN, MARGIN)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, images.shape[1:], axis=(1, 2))
    down, right = rng.integers(0, 2 * MARGIN + 1, size=(2, len(images)))
    return windows[np.arange(len(images)), down, right]


def _prepared(images: np.ndarray, normalise: bool) -> np.ndarray:
    values = images[..., np.newaxis].astype(np.float32) / 255
    return (values - MEAN) / STD if normalise else values


SCORE = Score(
    metric="test_accuracy",
    label="test accuracy",
    unit="",
    chance=lambda spec: 1 / data.CLASSES,
    better="higher",
    perfect=1.0,
)

PRESENTATION = Presentation(
    unit="image",
    sizes=lambda model: f"W {model.width}, dropout {model.dropout:g}",
    tables=(
        Table("First weight", ("grad_norm_stem_max",)),
        Table(
            "Overflow", ("overflow_depth",), note="Of an untrained network of the published depth."
        ),
        Table(
            "Matrices over depth",
            (
                "mixing_row_error",
                "mixing_column_error",
                "weights_column_error",
                "weights_difference",
            ),
        ),
    ),
    figures=("loss", "score", "grad_norm_stem"),
    compared=("test_accuracy",),
    # The source's first experiment.
    comparison={
        "task": "fashion",
        "recipe": "mlx-defaults",
        "variants": ["resnet", "hc_causal", "mhc_causal", "hc", "mhc"],
        "streams": 1,
        "depths": [100],
        "seeds": [42],
        "steps": 500,
        "batch_size": 64,
        "weights": True,
        "model": {"width": 64},
        "optimizer": {"lr": 8e-4, "weight_decay": 0.1, "schedule": "cosine"},
    },
)
