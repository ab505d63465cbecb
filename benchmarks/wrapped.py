"""Helpers of the sides that wrap our sub-layers in a package's modules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import numpy as np

from fathom.connections.connection import Connection
from fathom_study import tasks
from fathom_study.config import Spec
from fathom_study.models.transformer import Transformer

PARTS = "pre", "post", "res"


def network_in(connection: Connection, spec: Spec) -> Transformer:
    """The spec's transformer with this connection."""
    ours = tasks.Problem(spec).network
    network = Transformer(**{field.name: getattr(ours, field.name) for field in fields(ours)})
    vars(network)["connection"] = connection  # where `cached_property` looks first
    return network


def coefficients(params: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    """`fn`, `base` and `scale` of each released module: φ, b and α of a wrapped function."""
    phi = np.concatenate([params[f"connection.phi_{part}"] for part in PARTS], axis=1)
    flat = [params[f"connection.b_{part}"].reshape(len(phi), -1) for part in PARTS]
    layers = zip(phi, np.concatenate(flat, axis=1), params["connection.alpha"], strict=True)
    for fn, base, scale in layers:
        yield {"fn": fn, "base": base, "scale": scale}
