"""Gain of the mixing matrices, on the host in float64 (docs/definitions/metrics.md)."""

from typing import NamedTuple

import numpy as np


class Gain(NamedTuple):
    """log10 of metrics of the composite H_res[L−1] … H_res[0], each of shape […]."""

    max_entry: np.ndarray
    """Largest absolute entry, the gain proxy of the sources."""
    amax_forward: np.ndarray
    """Largest absolute row sum (of signed entries), the paper's Amax gain of the signal."""
    amax_backward: np.ndarray
    """Largest absolute column sum (of signed entries), the paper's Amax gain of the gradient."""
    row_error: np.ndarray
    """Largest |log10 |row sum||: 0 where every row sums to one."""
    column_error: np.ndarray
    """Largest |log10 |column sum||."""


def composite_gain(H_res: np.ndarray) -> Gain:
    """Gain of the product over layers of H_res […, L, S, S], later layers on the left.

    After every factor the product is divided by its largest entry and that entry's logarithm is
    added to a running sum, so nothing overflows at any depth. Non-finite matrices give NaN; a
    product of exactly zero gives −inf.
    """
    H = np.asarray(H_res, dtype=np.float64)
    *batch, L, S, _ = H.shape
    product = np.broadcast_to(np.eye(S), (*batch, S, S))
    log_scale = np.zeros(batch)
    with np.errstate(divide="ignore", invalid="ignore"):
        for layer in range(L):
            product = H[..., layer, :, :] @ product
            scale = np.abs(product).max(axis=(-2, -1))
            log_scale = log_scale + np.log10(scale)
            product = product / np.where(scale == 0, 1, scale)[..., None, None]
        rows, columns = (
            log_scale[..., None] + np.log10(np.abs(product.sum(axis=axis))) for axis in (-1, -2)
        )
        gain = Gain(
            max_entry=log_scale,
            amax_forward=rows.max(axis=-1),
            amax_backward=columns.max(axis=-1),
            row_error=np.abs(rows).max(axis=-1),
            column_error=np.abs(columns).max(axis=-1),
        )
    finite = np.isfinite(H).all(axis=(-3, -2, -1))
    return Gain(*(np.where(finite, values, np.nan) for values in gain))
