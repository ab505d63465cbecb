"""The figures of one run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from fathom.report.figures import figure, frames, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@figure
def loss(rows: pd.DataFrame, title: str) -> Figure:
    """Training loss against step. Dotted: the loss at chance."""
    levels = {"chance": frames.constant(rows, "chance_loss")}
    return panels.against_step(rows, "loss", title, levels=levels)


@figure
def grad_norm(rows: pd.DataFrame, title: str) -> Figure:
    """L2 norm of all gradients against step."""
    return panels.against_step(rows, "grad_norm", title)


@figure
def nan_inf_events(rows: pd.DataFrame, title: str) -> Figure:
    """Steps so far at which the loss or a logit was not finite."""
    return panels.against_step(rows, "nonfinite_total", title)


@figure
def gain_proxy(rows: pd.DataFrame, title: str) -> Figure:
    """log10 of the largest entry of the product of all mixing matrices, against step."""
    return panels.against_step(rows, "gain_proxy_log10_max_entry", title)
