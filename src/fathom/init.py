"""Initial parameters, sampled with NumPy: every backend starts from the same numbers.

A network declares its parameters as `{name: Parameter(shape, distribution)}`; `draw` samples them
as float32 arrays. Each name has its own generator, so adding a parameter changes no other.
Parameters are stacked over layers along the first axis, so a deeper network starts with the layers
of a shallower one.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Protocol

import numpy as np


class Distribution(Protocol):
    """The distribution of a parameter's initial values."""

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Float64 values of the given shape."""


@dataclass(frozen=True)
class Normal:
    """N(0, std²)."""

    std: float

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return self.std * rng.standard_normal(shape)


@dataclass(frozen=True)
class Uniform:
    """U(−bound, bound)."""

    bound: float

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return rng.uniform(-self.bound, self.bound, shape)


@dataclass(frozen=True)
class Constant:
    """`value` everywhere."""

    value: float

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return np.full(shape, self.value)


@dataclass(frozen=True)
class ScaledIdentity:
    """scale·I + offset in the last two axes, plus N(0, noise²) everywhere."""

    scale: float
    offset: float = 0.0
    noise: float = 0.0

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return (
            self.scale * np.eye(shape[-1]) + self.offset + self.noise * rng.standard_normal(shape)
        )


@dataclass(frozen=True)
class OneStream:
    """`on` for one stream of the last axis and `off` for the others.

    `stream`: its index, the same in every layer; None: the next stream every `layers` layers.
    """

    on: float
    off: float
    stream: int | None = 0
    layers: int = 1

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        values, layers = np.full(shape, self.off), np.arange(shape[0])
        if self.stream is None:
            values[layers, layers // self.layers % shape[-1]] = self.on
        else:
            values[..., self.stream] = self.on
        return values


@dataclass(frozen=True)
class Orthogonal:
    """`scale` times orthonormal rows (columns if there are more rows), uniformly distributed."""

    scale: float

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        rows, columns = shape
        q, r = np.linalg.qr(rng.standard_normal((max(shape), min(shape))))
        q = q * np.sign(np.diag(r))  # the signs of QR are not uniform
        return self.scale * (q.T if rows < columns else q)


@dataclass(frozen=True)
class CyclicRows:
    """`value` where the column modulo the number of rows equals the row; zero elsewhere."""

    value: float

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        rows, columns = shape[-2:]
        mask = np.arange(columns) % rows == np.arange(rows)[:, None]
        return np.broadcast_to(self.value * mask, shape)


@dataclass(frozen=True)
class Affine:
    """`offset` plus `scale` times samples of another distribution."""

    of: Distribution
    scale: float = 1.0
    offset: float = 0.0

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return self.offset + self.scale * self.of.sample(rng, shape)


@dataclass(frozen=True)
class Stacked:
    """A distribution for each entry of the first axis."""

    of: tuple[Distribution, ...]

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return np.stack([one.sample(rng, shape[1:]) for one in self.of])


@dataclass(frozen=True)
class Parameter:
    """A declared parameter: its shape and the distribution of its initial values."""

    shape: tuple[int, ...]
    distribution: Distribution
    is_matrix: bool = False
    """Whether it is a matrix that multiplies activations, or a table of embeddings. Biases, gains,
    gates, scales and mixing logits are not, and can be exempt from weight decay."""
    parts: int = 1
    """Number of matrices stacked along its rows, such as q, k and v."""
    rate: float = 1.0
    """Factor of the learning rate."""
    decays: bool = True
    """Whether it has weight decay where all parameters have it."""


def draw(parameters: dict[str, Parameter], seed: int) -> dict[str, np.ndarray]:
    """Float32 initial values of every declared parameter, a pure function of (name, seed)."""
    return {
        name: parameter.distribution.sample(
            np.random.default_rng([seed, zlib.crc32(name.encode())]), parameter.shape
        ).astype(np.float32)
        for name, parameter in parameters.items()
    }
