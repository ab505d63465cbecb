"""Steps through the modules of released models, a file for each backend: the extra `bench`.

Not a part of fathom: it is what `fathom bench` sets our form of these connections against.
PyTorch's is transformers' for DeepSeek V4, MLX's is mlx-lm's for DeepSeek V4.1. Each starts with
the parameters of ours, and so at the same loss.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

PARTS = "pre", "post", "res"


def coefficients(params: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    """`fn`, `base` and `scale` of each module: φ, b and α of a wrapped function."""
    phi = np.concatenate([params[f"connection.phi_{part}"] for part in PARTS], axis=1)
    flat = [params[f"connection.b_{part}"].reshape(len(phi), -1) for part in PARTS]
    layers = zip(phi, np.concatenate(flat, axis=1), params["connection.alpha"], strict=True)
    for fn, base, scale in layers:
        yield {"fn": fn, "base": base, "scale": scale}
