"""Figures of every task, drawn as files, and of extreme tables."""

import warnings

import pytest

from fathom_study import tasks
from fathom_study.report.figures import save
from tests.report.test_figures import all_figures


@pytest.mark.parametrize(
    ("task", "depths", "only"),
    [  # all for `text`; the others draw their own, and fashion scores, where higher is better
        ("tokens", (4, 8), tasks.presentation("tokens").figures),
        ("fashion", (4, 8), (*tasks.presentation("fashion").figures, "score_against_depth")),
        ("text", (1, 2, 4, 8, 32), ()),
    ],
)
def test_every_figure_fits_and_is_drawn_as_png_and_svg_for_every_task(task, depths, only, tmp_path):
    pages = all_figures(task, only, depths=depths)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save(pages, tmp_path)
    for name, page in pages.items():
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG"), name
        assert b"<svg" in (tmp_path / f"{name}.svg").read_bytes()[:1000], name
        for legend in page.legends:
            space = legend.get_window_extent()
            assert page.bbox.containsx(space.x0) and page.bbox.containsx(space.x1), name
            assert not any(space.overlaps(ax.get_tightbbox()) for ax in page.axes), name
