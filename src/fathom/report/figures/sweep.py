"""The figures of a study over depth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from fathom.report.figures import figure, frames, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fathom.metrics import Score

GAIN = "gain_proxy_log10_max_entry"


@figure
def loss_comparison(steps: pd.DataFrame, summary: pd.DataFrame, title: str) -> Figure:
    """Training loss against step for every depth.

    A line is the geometric mean over seeds, a band their range, a cross the step at which a run
    stopped being finite. Dotted: the loss at chance.
    """
    levels = {"chance": frames.constant(summary, "chance_loss")}
    return panels.against_step(steps, "loss", title, levels=levels)


@figure
def grad_norm_comparison(steps: pd.DataFrame, title: str) -> Figure:
    """L2 norm of all gradients against step for every depth."""
    return panels.against_step(steps, "grad_norm", title)


@figure
def gain_comparison(steps: pd.DataFrame, title: str) -> Figure:
    """log10 of the largest entry of the product of all mixing matrices, against step."""
    return panels.against_step(steps, GAIN, title)


@figure
def score(summary: pd.DataFrame, score: Score, title: str) -> Figure:
    """The score against depth, with the 95 % interval over seeds. With one depth: by variant.

    A cross, at the edge that is worse: a run diverged. Dotted: the score at chance.
    """
    return panels.against_depth(summary, score.metric, title, score=score)


@figure
def depth_scaling(summary: pd.DataFrame, title: str) -> Figure:
    """Gain at the last step against depth, with the 95 % interval over seeds.

    A cross is the gain at the first step of runs that diverged. With one depth: by variant.
    """
    return panels.against_depth(summary, "gain_final", title, start="gain_first")


@figure
def deepest_comparison(steps: pd.DataFrame, summary: pd.DataFrame, title: str) -> Figure:
    """Loss and gain against step at the largest depth. Dotted: the loss at chance."""
    deepest = steps[steps["depth"] == steps["depth"].max()]
    chance = frames.constant(summary, "chance_loss")
    return panels.side_by_side(deepest, ("loss", GAIN), title, {"loss": chance})
