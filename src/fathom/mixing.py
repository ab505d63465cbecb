"""The mixing matrices that image networks have learned, from the weights that runs keep."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from safetensors.numpy import load_file

from fathom.backends.numpy import NumpyOps
from fathom.models.connections import CausalConnection
from fathom.runs import WEIGHTS, read_json
from fathom.study import Cell, Spec, checked
from fathom.train import connection_of


def mixing_matrices(runs: Path, steps: pd.DataFrame) -> dict[str, np.ndarray]:
    """[L, L] by variant, of the deepest cell's first seed; none for variants without one.

    `steps` says which cells there are, `runs` is the folder that they are in. Of `mhc_causal` it
    is the matrix that Sinkhorn leaves, of `hc_causal` the weights that layers read with.
    """
    deepest = steps[steps["depth"] == steps["depth"].max()]
    found = {}
    for variant, rows in deepest.groupby("variant", sort=False):
        row = rows.sort_values("seed").iloc[0]
        cell = Cell(row["study"], int(row["depth"]), variant, row["backend"], int(row["seed"]))
        matrix = learned_mixing(runs / cell.path())
        if matrix is not None:
            found[variant] = matrix
    return found


def learned_mixing(folder: Path) -> np.ndarray | None:
    """The mixing matrix [L, L] of one run; None if it has none or did not keep its weights."""
    if not (folder / WEIGHTS).is_file():
        return None
    spec = checked(Spec, read_json(folder / "spec.json"), str(folder / "spec.json"))
    connection, ops = connection_of(spec), NumpyOps()
    if not isinstance(connection, CausalConnection):
        return None
    params = {name: ops.asarray(value) for name, value in load_file(folder / WEIGHTS).items()}
    if spec.variant == "mhc_causal":
        return connection.positive(ops, params["connection.mixing"])
    return connection.coefficients(ops, params)
