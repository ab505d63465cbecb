"""The Fashion-MNIST task: which of ten kinds of clothing a picture shows.

Batches come from a shuffle by NumPy, so that every backend sees the same pictures.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from fathom import data

if TYPE_CHECKING:
    from fathom.study import Spec

# Keep the random numbers of shuffles and translations apart from each other and from those of
# the initial parameters.
STREAM = 0x66617368696F6E
TRANSLATIONS = 0x736869667473

MEAN, STD = 0.2860, 0.3530
"""Of all pixels of the training set, on the scale from 0 to 1."""

MARGIN = 2
"""Pixels by which augmentation moves a picture at most, along each axis."""


def batch(spec: Spec, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Images, float32 [B, 28, 28, 1], and labels, int32 [B], a pure function of (seed, step).

    Every epoch has a shuffle of its own; what does not fill a last batch is left out of it.
    """
    images, labels, *_ = _files()
    per_epoch = len(images) // spec.batch_size
    if not per_epoch:
        raise data.DataError(
            f"batch_size {spec.batch_size} is more than the {len(images)} training images"
        )
    epoch, index = divmod(step, per_epoch)
    start = index * spec.batch_size
    rows = _permutation(spec.seed, epoch, len(images))[start : start + spec.batch_size]
    chosen = images[rows]
    if spec.model.augment:
        chosen = _translated(chosen, np.random.default_rng([spec.seed, TRANSLATIONS, step]))
    return _prepared(chosen, spec.model.normalise), labels[rows].astype(np.int32)


def test_set(spec: Spec) -> tuple[np.ndarray, np.ndarray]:
    """All test images and their labels, in the files' order, prepared as `batch` prepares them."""
    *_, images, labels = _files()
    return _prepared(images, spec.model.normalise), labels.astype(np.int32)


def chance_loss(spec: Spec) -> float:
    """ln 10: every class equally likely."""
    return math.log(data.CLASSES)


def _files() -> data.FashionMnist:
    return data.load(data.fashion_mnist_folder())


@lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, count: int) -> np.ndarray:
    return np.random.default_rng([seed, STREAM, epoch]).permutation(count)


def _translated(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Each image moved by up to MARGIN pixels along both axes; what moves in is black."""
    padded = np.pad(images, ((0, 0), (MARGIN, MARGIN), (MARGIN, MARGIN)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, images.shape[1:], axis=(1, 2))
    down, right = rng.integers(0, 2 * MARGIN + 1, size=(2, len(images)))
    return windows[np.arange(len(images)), down, right]


def _prepared(images: np.ndarray, normalise: bool) -> np.ndarray:
    values = images[..., np.newaxis].astype(np.float32) / 255
    return (values - MEAN) / STD if normalise else values
