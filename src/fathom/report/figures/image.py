"""The figures of a study of images."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fathom.report.figures import figure, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@figure
def comparison(steps: pd.DataFrame, summary: pd.DataFrame, title: str) -> Figure:
    """Loss, accuracy on all test images, and the gradient norm of the first weight."""
    depths = sorted(steps["depth"].unique())
    page, axes = style.grid(len(depths), 3, (14, 4.6 * len(depths)))
    for (left, middle, right), depth in zip(axes, depths, strict=True):
        chosen = steps[steps["depth"] == depth]
        # Batches of pictures differ much in difficulty: single steps would hide the course.
        window = max(1, chosen["step"].nunique() // 16)
        marks = [style.curves(ax, chosen, measure, window)
                 for ax, measure in ((left, "loss"), (right, "grad_norm_stem"))]  # fmt: skip
        over = f",\nmean of {window} steps" if window > 1 else ""
        left.set_ylabel(style.label_of("loss") + over)
        right.set_ylabel(style.label_of("grad_norm_stem") + over)
        groups = summary[summary["depth"] == depth]
        for position, (_, row) in enumerate(groups.iterrows()):
            half = 100 * row["test_accuracy_ci95_half"]
            middle.errorbar(
                100 * row["test_accuracy_mean"], position, xerr=0 if np.isnan(half) else half,
                marker="o", ms=9, capsize=5, color=style.colour_of(row["variant"]),
            )  # fmt: skip
        middle.set_yticks(range(len(groups)), groups["variant"])
        middle.invert_yaxis()
        middle.axvline(10, color="#999999", ls=":", lw=1.5)
        middle.set_xlabel("test accuracy (%); dotted: chance")
        for ax in (left, middle, right):
            ax.set_title(f"{depth} layers", pad=6 + 26 * max(marks))
    return style.finished(page, list(steps["variant"].unique()), title)


@figure
def mixing_matrix(mixing: dict[str, np.ndarray], title: str) -> Figure:
    """Learned mixing over depth, with the sums of the rows and columns of each matrix."""
    if not mixing:
        return style.without_data("no variant here mixes over depth")
    page, axes = style.grid(len(mixing), 2, (11, 4.8 * len(mixing)))
    style.entitle(page, title)
    for (left, right), (variant, matrix) in zip(axes, mixing.items(), strict=True):
        image = left.imshow(matrix, cmap="cividis", interpolation="nearest")
        left.set_title(variant)
        left.set_xlabel("state read")
        left.set_ylabel("layer")
        left.grid(visible=False)
        page.colorbar(image, ax=left, label="weight")
        right.plot(matrix.sum(axis=1) - 1, color="#0072B2", label="rows")
        right.plot(matrix.sum(axis=0) - 1, color="#D55E00", ls="--", label="columns")
        right.set_xlabel("row or column")
        right.set_ylabel("sum − 1")
        right.legend(frameon=False, fontsize=13)
        style.whole_ticks(right)
    return page
