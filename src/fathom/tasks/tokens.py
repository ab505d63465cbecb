"""The incrementing-token task: (start + t) mod V, with a uniformly random start.

Definition: docs/definitions.md, "Task tokens".
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from fathom.study import Spec

# Keeps the batches' random numbers apart from those of the initial parameters.
STREAM = 0x746F6B656E73


def batch(spec: Spec, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets, int32 [B, T] each, a pure function of (seed, step).

    The sequence has T + 1 tokens: the input drops the last, the target drops the first.
    """
    vocab = spec.model.vocab
    rng = np.random.default_rng([spec.seed, STREAM, step])
    start = rng.integers(0, vocab, size=(spec.batch_size, 1))
    sequence = ((start + np.arange(spec.model.length + 1)) % vocab).astype(np.int32)
    return sequence[:, :-1], sequence[:, 1:]


def chance_loss(spec: Spec) -> float:
    """ln V: every token equally likely."""
    return math.log(spec.model.vocab)
