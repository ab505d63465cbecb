"""Figures: colours, labels, curves and bands by hand, marks of divergence, and the same bytes."""

import itertools
import math
import re
import subprocess
import sys
import types
import warnings
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib import colors
from matplotlib import pyplot as plt
from matplotlib.collections import PolyCollection
from PIL import Image
from safetensors.numpy import save_file

from fathom.analysis.tables import summary_table
from fathom.config import Cell
from fathom.measures import LARGEST_VALUE
from fathom.models.connections.schemes import SCHEMES, resolve
from fathom.models.convnet import NAMES
from fathom.report import figures
from fathom.report.figures import (
    draw_family,
    figures_for,
    figures_of,
    figures_of_study,
    save,
    style,
)
from fathom.report.figures import figure as declare
from fathom.report.figures.bench import bench
from fathom.report.figures.image import comparison, mixing_matrix
from fathom.report.figures.overview import loss_against_depth, published, sweeps_of, variance
from fathom.report.figures.sweep import (
    deepest_comparison,
    depth_panels,
    depth_scaling,
    gain_comparison,
)
from fathom.report.figures.text import alike, evaluations
from fathom.report.mixing import Mixing, mixing_file, mixing_matrices, shown_cells
from fathom.settings import ConfigError
from param_helpers import quick_ones
from run_helpers import CPU_PLATFORM, GPU_PLATFORM, config_with
from tables_helpers import CHANCE, curve, frame, half_width, run, seeds

NAN, INF = math.nan, math.inf
GAIN = "gain_proxy_log10_max_entry"
RESOLVED = {
    name: resolve(name, {**SCHEMES, **NAMES}, 4, "here")
    for name in ("hc_causal", "hc_static", "mhc_static", "mhc_paper", "mhc_gated_dynamic")
}
COLOURS = {"baseline": "#000000", "hc": "#d55e00", "mhc": "#0072b2"}  # Okabe and Ito's


# --- data ------------------------------------------------------------------------------------


def steps_of(losses, variants=("mhc",), depths=(4, 8), count=3):
    """Rows of steps with these losses; gradient norm and gain follow them."""
    rows = []
    for variant in variants:
        for depth in depths:
            for seed in range(count):
                for row in curve([loss * (1 + seed) for loss in losses], variant, depth, seed):
                    rows.append({**row, "grad_norm": row["loss"], GAIN: row["loss"]})
    return frame(rows).assign(nonfinite_total=0)


def summary_of(values, variants=("mhc",), depths=(4, 8)):
    """A summary in which every cell has these gains at its last step, and 2 at its first."""
    rows = [
        run(variant=v, depth=d, seed=seed, gain_final=value, gain_first=2.0)
        for v in variants
        for d in depths
        for seed, value in enumerate(values)
    ]
    return summary_table(frame(rows))


def variance_of(*shares):
    rows = [{"depth": 4 * n, "variant": "mhc", **share} for n, share in enumerate(shares, 1)]
    return pd.DataFrame(rows, columns=["depth", "variant", "recipe", "place", "seed", "other"])


SHARES = {"recipe": 0.6, "place": 0.2, "seed": 0.15, "other": 0.05}


def published_of(*rows):
    base = {"study": "a", "measure": "loss_final", "variant": "mhc", "depth": 8,
            "published": 0.5, "backend": "torch", "platform": CPU_PLATFORM, "origin": "here",
            "mean": 0.6, "low": 0.5, "high": 0.7}  # fmt: skip
    return pd.DataFrame([{**base, **row} for row in rows], columns=list(base))


def cells_of(*rows):
    """Runs: three seeds with the same loss for each row, which names study, variant and so on."""
    base = {"loss_final": 0.6}
    return frame([run(seed=seed, **{**base, **row}) for row in rows for seed in range(3)])


def drawn(steps, summary):
    """Every figure that draws variants, by name."""
    own = steps[steps["depth"] == steps["depth"].max()].assign(chance_loss=CHANCE)
    found = draw_family("sweep", "a study", steps=steps, summary=summary)
    return {**found, **draw_family("cell", "a cell", rows=own)}


def overview(shares, values):
    table = published_of(*values)
    axes = ["study", "variant", "depth", "backend", "platform", "origin"]
    rows = table[axes].to_dict("records")
    cells = cells_of(*rows) if rows else frame(run()).iloc[:0]
    return draw_family("overview", variance=variance_of(*shares), published=table, cells=cells)


# --- what there is ---------------------------------------------------------------------------


def test_names_of_all_figures():
    assert {family: list(figures_of(family)) for family in FAMILIES} == {
        "sweep": ["loss_comparison", "grad_norm_comparison", "gain_comparison", "depth_scaling",
                  "deepest_comparison"],
        "image": ["comparison", "mixing_matrix"],
        "text": ["validation", "final_bits", "similarity", "gates", "matrices", "trade_off"],
        "contrasts": ["effects", "variants"],
        "rates": ["loss_against_rate", "effects"],
        "overview": ["loss_against_depth", "variance", "published"],
        "cell": ["loss", "grad_norm", "nan_inf_events", "gain_proxy"],
        "bench": ["bench"],
        "explained": ["signal", "products", "differences", "sinkhorn"],
    }  # fmt: skip


FAMILIES = (
    "sweep", "image", "text", "contrasts", "rates", "overview", "cell", "bench", "explained",
)  # fmt: skip
FORMATS = ("png", "svg")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_figure_has_a_caption_of_whole_sentences(family):
    for declared in figures_of(family).values():
        assert declared.reads
        assert re.fullmatch(r"[A-Za-z].*[^.]\.", declared.caption), declared.name
        assert "\n" not in declared.caption


def test_a_figure_is_declared_by_its_function_alone():
    def a_new_one(summary, steps, title):
        """Shows it.

        In two paragraphs.
        """

    a_new_one.__module__ = "fathom.report.figures.sweep"
    try:
        assert declare(a_new_one) is a_new_one
        declared = figures_of("sweep")["a_new_one"]
        assert declared.reads == ("summary", "steps")
        assert declared.caption == "Shows it. In two paragraphs."
        assert declared.label == "a new one"
    finally:
        figures_of("sweep").pop("a_new_one", None)


def test_a_figure_gets_what_it_reads(monkeypatch):
    seen = []

    def of_two(steps, title):
        """Shows."""
        seen.append((steps, title))

    of_two.__module__ = "fathom.report.figures.a_test"
    monkeypatch.setitem(sys.modules, of_two.__module__, types.ModuleType("a_test"))
    declare(of_two)
    assert list(draw_family("a_test", "the title", steps=1, summary=2)) == ["of_two"]
    assert seen == [(1, "the title")]


def test_a_figure_may_not_read_what_there_is_not():
    def of_steps(stpes, title):
        """Shows."""

    with pytest.raises(TypeError, match="figure of_steps: nothing is called 'stpes'"):
        declare(of_steps)


def test_a_figure_needs_a_caption():
    def of_steps(steps):
        pass

    with pytest.raises(TypeError, match="of_steps"):
        declare(of_steps)


def test_declarations_are_read_without_matplotlib():
    """The workflow reads them at every start."""
    code = (
        "import sys; from fathom.report.figures import figures_of; "
        f"[figures_of(f) for f in {FAMILIES}]; from fathom.report.mixing import mixing_file; "
        "print([m for m in ('matplotlib', 'scipy', 'fathom.train') if m in sys.modules])"
    )
    run_it = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert run_it.stdout == "[]\n"


WHOLE = [4.0, 2.0, 1.0]


def one_depth(losses, **changes):
    return steps_of(losses, depths=[8], **changes)


DRAWN = {
    "whole": (steps_of(WHOLE), summary_of([1.0, 2.0, 3.0])),
    "nan from step 0": (one_depth([NAN, NAN, NAN]), summary_of([None, None, None])),
    "nan from step 1": (one_depth([4.0, NAN, NAN]), summary_of([1.0, None, 3.0])),
    "infinite": (one_depth([4.0, INF, INF]), summary_of([None, None, None])),
    "zero": (one_depth([0.0, 0.0]), summary_of([0.0, 0.0])),
    "one seed": (one_depth(WHOLE, count=1), summary_of([1.0])),
    "one step": (one_depth([4.0]), summary_of([1.0, 2.0])),
    "one step, nan": (one_depth([NAN]), summary_of([None])),
    "one number": (one_depth([4.0], count=1), summary_of([1.0], depths=[8])),
    "negative": (one_depth([-0.6, -0.6]), summary_of([-0.6, -0.6, -0.6])),
}


@pytest.mark.parametrize(
    ("steps", "summary"), quick_ones(DRAWN, "nan from step 1", "infinite", "one number")
)
def test_every_figure_can_be_drawn_and_saved(steps, summary, tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "FORMATS", {"png": {}})  # SVGs: with their bytes, below
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = drawn(steps, summary)
        save(found, tmp_path)
    assert len(found) == 9
    for name in found:
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("shares", "values"),
    [
        ([], []),
        ([SHARES], [{}]),
        ([SHARES] * 9, [{"published": NAN}, {"mean": NAN, "low": NAN, "high": NAN}]),
        ([], [{"low": NAN, "high": NAN}, {"mean": 1e-5, "low": 1e-7, "high": 1e-3}]),
        ([], [{"measure": "gain_final", "published": -0.6}]),
        ([], [{"measure": "nonfinite_total"}]),
        ([], [{"backend": ""}]),
    ],
    ids=["empty", "one", "nine, nan", "wide", "one measure", "no measure", "not measured"],
)
def test_the_overview_can_be_drawn_and_saved(shares, values, tmp_path):
    """Each figure reads one of the two alone."""
    found = overview(shares, values)
    save(found, tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        f"{name}.{kind}" for name in ("loss_against_depth", "published", "variance")
        for kind in FORMATS
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["loss_against_depth", "variance", "published"])
def test_an_overview_of_nothing_says_so_and_has_no_axes(name):
    (ax,) = overview([], [])[name].axes
    assert not ax.axison
    (text,) = ax.texts
    assert text.get_text() in (
        "nothing to decompose",
        "no published value was repeated",
        "no study was measured at more than one depth",
    )


# --- colours ---------------------------------------------------------------------------------


def lines_of(figure):
    """All but those that stand for no run, as that at chance."""
    return [line for ax in figure.axes for line in ax.lines if line.get_color() != style.GREY]


def hex_of(artist):
    return colors.to_hex(artist.get_color())


def legend_of(figure):
    """Label → colour; grey signs stand for no variant."""
    (legend,) = figure.legends
    labels = [text.get_text() for text in legend.get_texts()]
    return dict(zip(labels, map(hex_of, legend.legend_handles), strict=True))


def variants_in(legend):
    return {label: colour for label, colour in legend.items() if colour != style.GREY.lower()}


@pytest.mark.parametrize(("variant", "colour"), COLOURS.items())
@pytest.mark.parametrize("losses", [WHOLE, [4.0, NAN, NAN]], ids=["whole", "diverging"])
def test_a_variant_alone_has_its_colour_in_every_figure(variant, colour, losses):
    gains = [1.0, 2.0] if losses is WHOLE else [1.0, None]
    found = drawn(steps_of(losses, [variant]), summary_of(gains, [variant]))
    for name, figure in found.items():
        assert {hex_of(line) for line in lines_of(figure)} == {colour}, name
        assert variants_in(legend_of(figure)) == {variant: colour}, name


@pytest.mark.parametrize("order", [["baseline", "hc", "mhc"], ["mhc", "hc", "baseline"]])
def test_variants_together_have_the_same_colours(order):
    found = drawn(steps_of(WHOLE, order), summary_of([1.0], order))
    for name, figure in found.items():
        assert variants_in(legend_of(figure)) == COLOURS, name
        assert {hex_of(line) for line in lines_of(figure)} == set(COLOURS.values()), name


def test_a_curve_has_the_colour_that_the_legend_gives_it():
    steps = frame(curve([1.0, 1.0], "hc"), curve([2.0, 2.0], "mhc"))
    (ax,) = depth_panels(steps, "loss", "a").axes
    assert {hex_of(line): line.get_ydata()[0] for line in ax.lines} == pytest.approx(
        {COLOURS["hc"]: 1.0, COLOURS["mhc"]: 2.0}
    )


def test_published_values_have_the_colour_of_their_variant():
    rows = [{"variant": variant, "depth": 8} for variant in COLOURS]
    figure = overview([], rows)["published"]
    left = figure.axes[0]
    hollow = [line for line in left.lines if line.get_markerfacecolor() == "none"]
    assert [colors.to_hex(line.get_markeredgecolor()) for line in hollow] == list(COLOURS.values())
    assert legend_of(figure).items() >= COLOURS.items()


def test_a_variant_without_a_colour_of_its_own_keeps_one():
    colour = style.colour_of("identity")
    assert colour == style.colour_of("identity")
    assert colour.lower() not in COLOURS.values()


# --- labels ----------------------------------------------------------------------------------


def test_every_axis_says_what_it_shows():
    units = {
        "loss_comparison": "nats", "grad_norm_comparison": "L2", "gain_comparison": "log10",
        "depth_scaling": "log10", "deepest_comparison": "nats", "loss": "nats", "grad_norm": "L2",
        "nan_inf_events": "steps", "gain_proxy": "log10",
    }  # fmt: skip
    found = drawn(steps_of(WHOLE), summary_of([1.0, 2.0]))
    for name, figure in found.items():
        assert units[name] in figure.axes[0].get_ylabel(), name
        x = "layers" if name == "depth_scaling" else "step"
        assert {ax.get_xlabel() for ax in figure.axes} == {x}, name


def test_panels_beside_each_other_share_the_axis_that_has_the_label():
    figure = depth_panels(steps_of(WHOLE), "loss", "a")
    first, second = figure.axes
    assert first.get_shared_y_axes().joined(first, second)


def test_the_head_to_head_labels_both_sides():
    steps = frame(curve([1.0, 1.0], depth=4), curve([2.0, 2.0], depth=8))
    figure = deepest_comparison(steps, summary_of([1.0]), "a")
    assert figure.axes[0].lines[0].get_ydata()[0] == pytest.approx(2)
    assert "nats" in figure.axes[0].get_ylabel()
    assert "log10" in figure.axes[1].get_ylabel()
    assert figure.get_suptitle() == "a, 8 layers"


def test_many_depths_take_several_rows():
    figure = depth_panels(steps_of(WHOLE, depths=[1, 2, 4, 8, 16, 32]), "loss", "the study")
    heights = [round(ax.get_position().y0, 3) for ax in figure.axes]
    assert [heights.count(y) for y in sorted(set(heights), reverse=True)] == [4, 2]
    labelled = [ax.get_title() for ax in figure.axes if ax.get_ylabel()]
    assert labelled == ["1 layers", "16 layers"]


def test_panels_are_titled_by_depth_in_order():
    figure = depth_panels(steps_of(WHOLE, depths=[16, 4, 8]), "loss", "the study")
    assert [ax.get_title() for ax in figure.axes] == ["4 layers", "8 layers", "16 layers"]
    assert figure.get_suptitle() == "the study"


def test_shares_are_labelled_in_percent_and_by_cell():
    (ax,) = variance(variance_of(SHARES, SHARES)).axes
    assert "(%)" in ax.get_xlabel()
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "mhc, 4 layers",
        "mhc, 8 layers",
    ]


def test_published_panels_are_labelled_with_units_and_depths():
    figure = overview([], [{"depth": 4}, {"depth": 8}])["published"]
    left, right = figure.axes
    assert "nats" in left.get_ylabel()
    assert "log10" in right.get_ylabel()
    assert [label.get_text() for label in left.get_xticklabels()] == ["4 layers", "8 layers"]


# --- curves ----------------------------------------------------------------------------------


def band_of(ax):
    """(lower, upper) edge of the one band."""
    (band,) = [c for c in ax.collections if isinstance(c, PolyCollection)]
    (path,) = band.get_paths()
    xs = sorted(set(path.vertices[:, 0]))
    at = [path.vertices[path.vertices[:, 0] == x, 1] for x in xs]
    return [min(ys) for ys in at], [max(ys) for ys in at]


@pytest.mark.parametrize("column", ["loss", "grad_norm"])
def test_a_curve_is_the_geometric_mean_and_its_band_the_range(column):
    steps = frame(
        curve([1.0, 10.0], seed=0, column=column),
        curve([10.0, 10.0], seed=1, column=column),
        curve([100.0, 80.0], seed=2, column=column),
    )
    (ax,) = depth_panels(steps, column, "a").axes
    (line,) = ax.lines
    assert list(line.get_xdata()) == [0, 1]
    assert list(line.get_ydata()) == pytest.approx([10, 20])  # the third root of 8000
    low, high = band_of(ax)
    assert low == pytest.approx([1, 10])
    assert high == pytest.approx([100, 80])
    assert ax.get_yscale() == "log"


@pytest.mark.parametrize(("last", "scale"), [(0.5, "linear"), (0.39, "log")])
def test_an_axis_is_logarithmic_where_more_than_a_decade_is_spanned(last, scale):
    """In all panels that share it: 4 to 0.5, and 4 to 0.39, at two depths."""
    steps = frame(curve([4.0, 2.0], depth=4), curve([1.0, last], depth=8))
    figure = depth_panels(steps, "loss", "a")
    assert [ax.get_yscale() for ax in figure.axes] == [scale, scale]
    chosen = depth_panels(steps[steps["depth"] == 8], "loss", "a", chance=last * 11)
    assert chosen.axes[0].get_yscale() == "log"  # the line at chance counts


def test_few_decades_have_ticks_between_them():
    figure = depth_panels(frame(curve([4.0, 0.1])), "loss", "a")
    figure.draw_without_rendering()
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert {"0.1", "0.2", "0.5", "1", "2"} <= set(labels)


def test_losses_have_a_line_at_chance():
    steps, summary = steps_of(WHOLE), summary_of([1.0])
    found = drawn(steps, summary)
    for name in ("loss_comparison", "deepest_comparison", "loss"):
        figure = found[name]
        panels = figure.axes if name == "loss_comparison" else figure.axes[:1]
        for ax in panels:
            (line,) = [line for line in ax.lines if line.get_linestyle() == ":"]
            assert list(line.get_ydata()) == [math.log(64)] * 2
            assert "chance" in remarks(ax)
    assert not [line for ax in found["grad_norm"].axes for line in ax.lines
                if line.get_linestyle() == ":"]  # fmt: skip


def test_counts_stand_on_whole_numbers_from_zero():
    for total, expected in ((0, {0, 1}), (2, {0, 1, 2})):
        rows = steps_of(WHOLE, depths=[8], count=1).assign(nonfinite_total=total, chance_loss=1.0)
        (ax,) = draw_family("cell", "a", rows=rows)["nan_inf_events"].axes
        low, high = ax.get_ylim()
        assert {tick for tick in ax.get_yticks() if low <= tick <= high} == expected
        assert low > -0.2


def test_figures_of_a_study_are_equally_wide(tmp_path):
    found = drawn(steps_of(WHOLE), summary_of([1.0, None]))
    assert {figure.get_figwidth() for figure in found.values()} == {style.WIDTH}
    save(found, tmp_path)
    headers = {(tmp_path / f"{name}.png").read_bytes()[16:20] for name in found}
    assert len(headers) == 1  # a PNG's width


def test_a_panel_without_anything_finite_has_no_numbers():
    (ax,) = depth_panels(frame(curve([NAN, NAN])), "loss", "a").axes
    assert list(ax.get_yticks()) == []


def test_a_gain_is_a_logarithm_already_and_is_averaged_as_it_is():
    steps = frame(curve([1.0, -2.0], column=GAIN), curve([3.0, -6.0], seed=1, column=GAIN))
    (ax,) = depth_panels(steps, GAIN, "a").axes
    (line,) = ax.lines
    assert list(line.get_ydata()) == pytest.approx([2, -4])
    assert ax.get_yscale() == "linear"


def test_each_panel_shows_its_own_depth():
    steps = frame(curve([1.0, 1.0], depth=4), curve([2.0, 2.0], depth=8))
    figure = depth_panels(steps, "loss", "a")
    assert [ax.lines[0].get_ydata()[0] for ax in figure.axes] == pytest.approx([1, 2])


def test_a_single_step_is_a_point_that_can_be_seen():
    (ax,) = depth_panels(frame(curve([2.0])), "loss", "a").axes
    (line,) = ax.lines
    assert line.get_marker() == "o"
    low, high = ax.get_xlim()
    assert low <= 0 < high


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("family", ["sweep", "image"])
def test_the_largest_value_that_a_run_may_hold_can_be_drawn(family, sign, tmp_path):
    value = sign * LARGEST_VALUE
    steps = steps_of([value, 0.0, 1.0]).assign(grad_norm_stem=value)
    runs = [run(seed=s, gain_final=value, gain_first=value, test_accuracy=v)
            for s, v in enumerate((value, 0.0, 1.0))]  # fmt: skip
    save(draw_family(family, steps=steps, summary=summary_table(frame(runs)), mixing={}), tmp_path)


@pytest.mark.parametrize("family", ["sweep", "image"])
def test_a_measure_that_no_run_has_leaves_its_panel_empty(family):
    """As the gain where every variant mixes causally, over depth."""
    steps = steps_of([4.0, 2.0]).drop(columns=[GAIN])
    drawn = draw_family(family, steps=steps, summary=summary_of([NAN] * 3), mixing={})
    assert not any("not finite" in text for f in drawn.values() for ax in f.axes
                   for text in remarks(ax))  # fmt: skip
    lines = [line for page in drawn.values() for ax in page.axes for line in ax.lines]
    assert any(len(line.get_xdata()) == 2 for line in lines)  # the loss


def test_gain_against_depth_by_hand():
    cells = frame(
        seeds("gain_final", [1.0, 2.0, 6.0], depth=4), seeds("gain_final", [5.0], depth=16)
    )
    (ax,) = depth_scaling(summary_table(cells), "a").axes
    (container,) = ax.containers
    points, _, (bars,) = container.lines
    (line,) = [line for line in ax.lines if line is not points and line.get_linestyle() == "-"]
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([4, 16], [3, 5])
    assert list(points.get_xdata()) == [4, 16]
    assert list(points.get_ydata()) == pytest.approx([3, 5])
    half = half_width([1.0, 2.0, 6.0])
    edges = [(segment[0][1], segment[1][1]) for segment in bars.get_segments() if len(segment)]
    assert edges == [pytest.approx((3 - half, 3 + half))]  # one seed has no interval
    assert list(ax.get_xticks()) == [4, 16]


def test_bars_are_the_shares_one_after_the_other():
    other = {"recipe": 0.1, "place": 0.2, "seed": 0.3, "other": 0.4}
    figure = variance(variance_of(SHARES, other))
    (ax,) = figure.axes
    bars = {bar.get_label(): [(p.get_x(), p.get_width()) for p in bar] for bar in ax.containers}
    assert np.array(bars["recipe"]) == pytest.approx(np.array([(0, 60), (0, 10)]))
    assert np.array(bars["backend"]) == pytest.approx(np.array([(60, 20), (10, 20)]))
    assert np.array(bars["seed"]) == pytest.approx(np.array([(80, 15), (30, 30)]))
    assert np.array(bars["interactions"]) == pytest.approx(np.array([(95, 5), (60, 40)]))
    assert ax.get_xlim() == (0, 100)


# --- divergence ------------------------------------------------------------------------------


def crosses(ax):
    """(x, colour) of every cross in a panel against step."""
    return [(line.get_xdata()[0], hex_of(line)) for line in ax.lines if line.get_marker() == "x"]


def remarks(ax):
    return [text.get_text() for text in ax.texts]


WORDS = {"loss": "loss", "grad_norm": "gradient", GAIN: "H_res"}


@pytest.mark.parametrize("column", ["loss", "grad_norm", GAIN])
@pytest.mark.parametrize("broken", [NAN, INF, -INF])
@pytest.mark.parametrize("step", [1, 2])
def test_a_cross_marks_the_step_from_which_a_run_is_not_finite(column, broken, step):
    values = [1.0] * step + [broken] * (4 - step)
    steps = frame(curve([1.0] * 4, "mhc", column=column), curve(values, "hc", column=column))
    (ax,) = depth_panels(steps, column, "a").axes
    assert crosses(ax) == [(step, COLOURS["hc"])]
    assert remarks(ax) == [f"{WORDS[column]} not finite from step {step}"]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"loss": [NAN, NAN, NAN], "grad_norm": [NAN] * 3, GAIN: [5.0, NAN, NAN],
          "nonfinite_event": [1, 1, 1]}, "loss not finite from step 0"),
        ({"loss": [4.0, NAN, NAN], "nonfinite_event": [1, 1, 1]}, "logits not finite from step 0"),
        ({"loss": [4.0, 4.0, NAN], "grad_norm": [1.0, INF, NAN], GAIN: [5.0, 5.0, NAN],
          "nonfinite_event": [0, 0, 1]}, "gradient not finite from step 1"),
        ({GAIN: [5.0, NAN, NAN]}, "H_res not finite from step 1"),
    ],
    ids=["loss", "logits", "gradient", "H_res"],
)  # fmt: skip
def test_every_measure_says_the_same_step_and_reason(rows, said):
    steps = frame(curve([4.0] * 3)).assign(**rows)
    for measure in ("loss", "grad_norm", GAIN):
        (ax,) = depth_panels(steps, measure, "a").axes
        assert remarks(ax) == [said], measure
        assert crosses(ax) == [(int(said[-1]), COLOURS["mhc"])]
    (left, right) = deepest_comparison(steps, summary_of([1.0]), "a").axes
    assert said in remarks(left)
    assert said in remarks(right)


def test_what_was_finite_before_the_loss_was_not_is_still_drawn():
    steps = frame(curve([NAN, NAN])).assign(**{GAIN: [27.0, NAN]})
    (ax,) = depth_panels(steps, GAIN, "a").axes
    (point,) = [line for line in ax.lines if line.get_marker() == "o"]
    assert (list(point.get_xdata()), list(point.get_ydata())) == ([0], [27])


def test_a_remark_at_the_end_stands_on_the_left_of_its_cross():
    steps = frame(curve([4.0] * 9 + [NAN]))
    (ax,) = depth_panels(steps, "loss", "a").axes
    (text,) = ax.texts
    assert text.get_ha() == "right"
    assert text.get_position()[0] < 9


def test_no_cross_where_all_is_finite():
    (ax,) = depth_panels(steps_of(WHOLE, depths=[8]), "loss", "a").axes
    assert crosses(ax) == []
    assert remarks(ax) == []


@pytest.mark.parametrize("column", ["loss", "grad_norm"])
def test_zero_is_finite_although_it_has_no_logarithm(column):
    """A cross there would say of a run that learned everything that it diverged."""
    steps = frame(curve([4.0, 1.0, 0.0], column=column))
    (ax,) = depth_panels(steps, column, "a").axes
    assert remarks(ax) == []


def test_the_first_seed_to_diverge_ends_the_curve():
    # A mean over the survivors would flatter.
    steps = frame(curve([4.0, 3.0, 2.0, 1.0]), curve([4.0, 3.0, NAN, NAN], seed=1))
    (ax,) = depth_panels(steps, "loss", "a").axes
    (line,) = [line for line in ax.lines if line.get_marker() != "x"]
    assert list(line.get_xdata()) == [0, 1]
    assert crosses(ax) == [(2, COLOURS["mhc"])]


def test_a_cross_stands_in_the_panel_of_its_depth():
    steps = frame(curve([1.0, 1.0], depth=4), curve([1.0, NAN], depth=8))
    whole, broken = depth_panels(steps, "loss", "a").axes
    assert crosses(whole) == []
    assert crosses(broken) == [(1, COLOURS["mhc"])]


def test_two_crosses_do_not_cover_each_other():
    steps = frame(curve([NAN, NAN], "hc"), curve([NAN, NAN], "mhc"))
    (ax,) = depth_panels(steps, "loss", "a").axes
    heights = [line.get_ydata()[0] for line in ax.lines if line.get_marker() == "x"]
    assert len(set(heights)) == 2
    assert min(heights) > 1  # above the panel, so over no curve


def test_gain_against_depth_crosses_cells_that_diverged():
    cells = frame(
        seeds("gain_final", [1.0, 1.0], depth=4),
        [run(depth=8, gain_first=2.5, gain_final=1.0), run(depth=8, seed=1, gain_first=2.5)],
    )
    figure = depth_scaling(summary_table(cells), "a")
    (ax,) = figure.axes
    (cross,) = [line for line in ax.lines if line.get_marker() == "x"]
    assert (list(cross.get_xdata()), list(cross.get_ydata())) == ([8], [2.5])
    (line,) = [line for line in ax.lines if line.get_linestyle() == "--"]
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([4, 8], [1, 2.5])
    assert figure.get_suptitle() == "a"
    assert "at the first step: a run diverged" in legend_of(figure)


def test_gain_against_depth_without_divergence_has_no_remark():
    assert list(legend_of(depth_scaling(summary_of([1.0]), "a"))) == ["mhc"]


def test_the_gain_at_one_depth_is_a_point_for_each_variant():
    cells = frame(
        seeds("gain_final", [1.0, 2.0, 6.0], variant="hc"),
        [run(gain_first=-0.5, gain_final=None)],
    )
    figure = depth_scaling(summary_table(cells), "a")
    (ax,) = figure.axes
    assert figure.get_suptitle() == "a, 8 layers"
    assert [label.get_text() for label in ax.get_yticklabels()] == ["hc", "mhc"]
    (container,) = ax.containers
    point, _, (bar,) = container.lines
    assert (point.get_xdata()[0], point.get_ydata()[0]) == (3, 0)
    half = half_width([1.0, 2.0, 6.0])
    assert bar.get_segments()[0][:, 0] == pytest.approx([3 - half, 3 + half])
    (cross,) = [line for line in ax.lines if line.get_marker() == "x"]
    assert (cross.get_xdata()[0], cross.get_ydata()[0]) == (-0.5, 1)
    assert "log10" in ax.get_xlabel()


def test_one_depth_is_said_in_the_title_alone():
    figure = depth_panels(steps_of(WHOLE, depths=[8]), "loss", "the study")
    assert figure.get_suptitle() == "the study, 8 layers"
    assert figure.axes[0].get_title() == ""


# --- published beside ours -------------------------------------------------------------------


def test_published_is_hollow_and_ours_is_filled_with_its_interval():
    left = published(published_of({"mean": 1.0, "low": 0.1, "high": 10.0})).axes[0]
    hollow, ours = [line for line in left.lines if line.get_marker() in "Do"]
    assert list(hollow.get_ydata()) == [0.5]
    assert hollow.get_markerfacecolor() == "none" != ours.get_markerfacecolor()
    assert list(ours.get_ydata()) == [1.0]
    (container,) = left.containers
    (bars,) = container.lines[2]
    assert bars.get_segments()[0][:, 1] == pytest.approx([0.1, 10])
    assert left.get_yscale() == "log"


@pytest.mark.parametrize("missing", ["published", "mean"])
def test_a_value_that_is_not_finite_is_a_cross(missing):
    left = published(published_of({missing: NAN})).axes[0]
    (cross,) = [line for line in left.lines if line.get_marker() == "x"]
    assert cross.get_ydata()[0] < 1  # of the panel
    assert not cross.get_clip_on()


def test_each_measure_stands_in_its_own_panel():
    figure = published(
        published_of({"published": 0.5}, {"measure": "gain_final", "published": -0.6})
    )
    for ax, value in zip(figure.axes, (0.5, -0.6), strict=True):
        (hollow,) = [line for line in ax.lines if line.get_markerfacecolor() == "none"]
        assert list(hollow.get_ydata()) == [value]


def test_each_study_has_its_row():
    figure = overview([], [{"study": "a"}, {"study": "b"}])["published"]
    assert [ax.get_title("left") for ax in figure.axes] == ["a", "", "b", ""]


@pytest.mark.parametrize(
    "other",
    [{"backend": "mlx"}, {"platform": GPU_PLATFORM, "origin": "imported"}],
    ids=["backend", "platform"],
)
def test_places_are_told_apart(other):
    """Two values of ours must not lie on each other, and the legend must name both."""
    figure = overview([], [{}, {**other, "mean": 0.8}])["published"]
    left = figure.axes[0]
    points = [line for line in left.lines if line.get_marker() in "os" and line.get_xdata().size]
    assert len({point.get_xdata()[0] for point in points}) == 2
    assert len({point.get_marker() for point in points}) == 2
    assert len([label for label in legend_of(figure) if label.startswith("ours")]) == 2


# --- images ----------------------------------------------------------------------------------


def test_curves_of_the_image_study_are_means_over_a_sixteenth_of_the_steps():
    """32 steps, so two at a time: the geometric mean of 1 and 100, the plain mean of 0 and 6."""
    steps = steps_of([1.0, 100.0] * 16, depths=(4,), count=1).assign(grad_norm_stem=[0.0, 6.0] * 16)
    summary = pd.DataFrame(
        [
            {
                "depth": 4,
                "variant": "mhc",
                "test_accuracy_mean": 0.5,
                "test_accuracy_low": NAN,
                "test_accuracy_high": NAN,
                "chance_loss": math.log(10),
            }
        ]
    )
    left, _, right = comparison(steps, summary, "images").axes
    assert left.lines[0].get_ydata() == pytest.approx([1.0] + [10.0] * 31)
    assert right.lines[0].get_ydata() == pytest.approx([0.0] + [3.0] * 31)
    assert left.get_ylabel().endswith("mean of 2 steps")


def matrix_files(folder, **matrices):
    """A file of matrices for each variant: the cells that have them."""
    cells = [Cell("images", 2, variant, "torch", 5) for variant in matrices]
    for cell, arrays in zip(cells, matrices.values(), strict=True):
        file = mixing_file(cell, folder)
        file.parent.mkdir(parents=True)
        save_file({name: np.asarray(v, np.float32) for name, v in arrays.items()}, file)
    return cells


def test_shown_is_the_first_seed_of_the_deepest_cell():
    cells = [
        Cell("images", depth, variant, "torch", seed)
        for depth, variant, seed in [(4, "a", 0), (8, "a", 7), (8, "a", 2), (4, "b", 3)]
    ]
    for order in (cells, cells[::-1]):
        shown = shown_cells(order)
        assert shown == {"a": cells[2], "b": cells[3]}
    assert mixing_file(cells[2], "results/runs") == Path(
        "results/runs/images/8L/a/torch/seed2/mixing.safetensors"
    )
    assert list(shown_cells(cells)) == ["a", "b"]


def test_mixing_over_depth_is_the_whole_matrix_and_the_weights_read_with(tmp_path):
    whole, weights = [[54.6, 1.0], [1.0, 54.6]], [[1.0, 0.0], [0.25, 0.75]]
    cells = matrix_files(
        tmp_path,
        plain={"mixing": whole, "weights": weights},
        streams={"H_res": np.eye(4)[None]},
        none={},
        broken={"mixing": [[NAN, 1], [1, 1]], "weights": weights},
    )
    found = mixing_matrices(cells, tmp_path)
    assert list(found) == ["plain", "broken"]
    assert (found["plain"].depth, found["plain"].seed) == (2, 5)
    assert found["plain"].matrix == pytest.approx(np.array(whole, np.float32))
    assert found["plain"].weights == pytest.approx(np.array(weights))
    assert [mixing.is_finite for mixing in found.values()] == [True, False]


@pytest.mark.parametrize("content", [None, b"", b"no safetensors"])
def test_a_file_of_matrices_that_cannot_be_read_is_named(tmp_path, content):
    cell = Cell("images", 2, "mhc_causal", "torch", 5)
    file = mixing_file(cell, tmp_path)
    file.parent.mkdir(parents=True)
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(f"{file}: cannot be read")):
        mixing_matrices([cell], tmp_path)


MATRIX = np.array([[3.0, 1.0], [2.0, 6.0]])
WEIGHTS = np.array([[1.0, 0.0], [0.25, 0.75]])


def test_weights_are_shown_beside_the_sums_of_the_whole_matrix():
    learned = Mixing(2, 5, MATRIX, WEIGHTS)
    left, right, _ = mixing_matrix({"mhc_causal": learned}, "images").axes
    assert left.get_title("left") == "mhc_causal, 2 layers, seed 5"
    shown = left.images[0].get_array()
    assert shown.compressed() == pytest.approx([1, 0.25, 0.75])
    assert shown.mask.tolist() == [[False, True], [False, False]]  # what a layer cannot read
    _, rows, columns = right.lines
    assert rows.get_ydata() == pytest.approx([4, 8])
    assert columns.get_ydata() == pytest.approx([5, 7])
    assert [text.get_text() for text in right.get_legend().get_texts()] == ["row", "column"]


def test_weights_of_many_layers_can_be_told_from_none():
    even = np.tril(np.ones((64, 64))) / np.arange(1, 65)[:, None]
    even[5, 0] = 0
    left, *_ = mixing_matrix({"mhc_causal": Mixing(64, 0, even, even)}, "images").axes
    image = left.images[0]
    assert image.norm(image.get_array())[63, 0] == pytest.approx(math.log(10) / math.log(640))
    assert image.norm(image.get_array())[5, 0] == 0
    assert image.get_array().mask[0, 1]


def test_matrices_share_the_scale_of_colours_and_of_sums_and_have_whole_ticks():
    """The sums of the two are 4 to 8 and 40 to 80: more than a decade."""
    of = {"a": Mixing(2, 5, MATRIX, WEIGHTS), "b": Mixing(2, 5, 10 * MATRIX, 0.5 * WEIGHTS)}
    figure = mixing_matrix(of, "images")
    maps = [ax for ax in figure.axes if ax.images and ax.get_xlabel()]
    sums = [ax for ax in figure.axes if ax.get_ylabel().startswith("sum")]
    assert [ax.images[0].get_clim() for ax in maps] == [(0, 1), (0, 1)]
    assert [ax.get_yscale() for ax in sums] == ["log", "log"]
    assert sums[0].get_ylim() == sums[1].get_ylim()
    for ax in maps:
        for ticks in (ax.get_xticks(), ax.get_yticks()):
            assert all(tick == round(tick) for tick in ticks)


def test_a_matrix_that_is_not_finite_is_said_to_be():
    broken = Mixing(2, 5, MATRIX * NAN, WEIGHTS)
    left, right = mixing_matrix({"mhc_causal": broken}, "images").axes
    assert remarks(left) == ["not finite"]
    assert not right.axison


def test_a_figure_of_mixing_over_depth_is_only_where_something_mixes_so():
    names = [
        [figure.name for figure in figures_for("image", [connection, RESOLVED["mhc_static"]])]
        for connection in (RESOLVED["hc_causal"], RESOLVED["hc_static"])
    ]
    assert names == [["comparison", "mixing_matrix"], ["comparison"]]
    assert len(figures_for("sweep", [RESOLVED["hc_static"]])) == 5


@pytest.mark.parametrize(
    ("changes", "has"),
    [
        ({}, True),
        ({"exclude": [{"variant": "mhc_causal"}]}, False),
        ({"variants": ["resnet", {"mine": "mhc_causal"}]}, True),
        ({"variants": ["resnet", "mhc_static"]}, False),
    ],
    ids=["one", "left out", "by another name", "none"],
)
def test_a_study_has_the_figures_of_its_cells(tmp_path, changes, has):
    study = {"task": "fashion", "variants": ["resnet", "mhc_causal"], "model": {"width": 8}}
    config = config_with(tmp_path, ("pictures",), pictures={**study, **changes})
    names = [declared.name for declared in figures_of_study(config, "pictures")]
    assert names == ["comparison", *(["mixing_matrix"] if has else [])]


def test_where_no_run_with_mixing_over_depth_counts_one_small_line_says_so():
    figure = mixing_matrix({}, "images")
    (ax,) = figure.axes
    assert remarks(ax) == ["images: no variant mixes over depth"]
    assert figure.get_figheight() < 1


# --- loss against depth ----------------------------------------------------------------------


def test_a_panel_has_a_study_over_depth_and_what_continues_it():
    cells = cells_of(
        {"study": "sweep", "depth": 4}, {"study": "sweep", "depth": 8},
        {"study": "sweep", "depth": 8, "variant": "hc"},
        {"study": "beyond", "depth": 16, "steps": 40},
        {"study": "beyond", "depth": 16, "variant": "hc", "steps": 40},
        {"study": "same depth", "depth": 8},
        {"study": "arms", "depth": 4}, {"study": "arms", "depth": 8},
        {"study": "arms", "depth": 8, "variant": "hc"},
        {"study": "arms", "depth": 8, "variant": "mhc_lite"},
        {"study": "strange", "depth": 32, "variant": "mhc_lite"},
        {"study": "recipe", "depth": 32, "recipe": "another"},
        {"study": "task", "depth": 32, "chance_loss": 2.0},
    )  # fmt: skip
    (found,) = sweeps_of(cells)
    assert set(found["study"]) == {"sweep", "beyond"}
    (ax,) = loss_against_depth(cells).axes
    assert ax.get_title("left") == "sweep, beyond\nrecipe mlx-defaults"
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert labels == ["4", "8", "16\n40 steps"]


def test_losses_against_depth_by_hand():
    """0.1, 1 and 10: geometric mean 1, range 0.1 to 10; a point per seed's group and backend."""
    cells = frame(
        seeds("loss_final", [0.1, 1.0, 10.0], depth=4),
        seeds("loss_final", [2.0, 2.0], depth=8),
        seeds("loss_final", [0.5], depth=4, backend="mlx"),
        seeds("loss_final", [0.25], depth=8, backend="mlx"),
    )
    figure = loss_against_depth(cells)
    (ax,) = figure.axes
    torch, mlx = [line for line in ax.lines if len(line.get_xdata()) == 2
                  and line.get_color() == COLOURS["mhc"].upper()]  # fmt: skip
    assert list(torch.get_ydata()) == pytest.approx([1, 2])
    assert list(mlx.get_ydata()) == pytest.approx([0.5, 0.25])
    assert torch.get_linestyle() != mlx.get_linestyle()
    segments = [c.lines[2][0].get_segments()[0][:, 1] for c in ax.containers]
    assert segments[0] == pytest.approx([0.1, 10])
    assert {"mhc", "torch", "mlx"} == set(legend_of(figure))
    (chance,) = [line for line in ax.lines if line.get_linestyle() == ":"]
    assert chance.get_ydata()[0] == math.log(64)


def test_equal_losses_have_no_bar_below_zero_length():
    for loss in (0.1, 0.3, 0.7, 1.9, 3.3):
        rows = [{"depth": depth, "loss_final": loss} for depth in (4, 8)]
        (ax,) = loss_against_depth(cells_of(*rows)).axes
        assert len(ax.containers) == 2


def test_failures_are_marked_where_no_mean_can_be():
    """Diverged: a cross above all else, though another seed is finite. At chance: hollow."""
    cells = frame(
        seeds("loss_final", [1.0, 1.0], depth=4),
        [run(depth=8, loss_final=1.0), run(depth=8, seed=1, outcome="diverged")],
        [run(depth=4, variant="hc", loss_final=4.1, outcome="at chance")],
        [run(depth=8, variant="hc", loss_final=1.0)],
    )
    figure = loss_against_depth(cells)
    (ax,) = figure.axes
    marks = {
        (c.lines[0].get_marker(), c.lines[0].get_markerfacecolor() == "white"):
        c.lines[0].get_ydata()[0] for c in ax.containers
    }  # fmt: skip
    assert set(marks) == {("o", False), ("x", False), ("o", True)}
    assert marks["o", True] == pytest.approx(4.1)
    assert marks["x", False] > math.log(64)
    assert ax.get_ylim()[1] > marks["x", False]
    assert {"at chance", "diverged"} <= set(legend_of(figure))


def test_panels_of_one_task_share_their_losses():
    rows = [{"study": study, "depth": d, "chance_loss": level} for d in (4, 8)
            for study, level in (("a", CHANCE), ("b", CHANCE), ("c", 2.0), ("d", 2.0))]  # fmt: skip
    a, b, c, d, *empty = loss_against_depth(cells_of(*rows)).axes
    assert a.get_shared_y_axes().joined(a, b)
    assert not a.get_shared_y_axes().joined(a, c)
    assert c.get_shared_y_axes().joined(c, d)
    assert [ax.axison for ax in empty] == [False, False]


# --- speed -----------------------------------------------------------------------------------


def bench_of(*rows):
    names = ["part", "measure", "size", "backend", "variant", "value", "low", "high"]
    return pd.DataFrame([dict(zip(names, row, strict=True)) for row in rows])


def test_steps_stand_by_size_and_growth_by_depth():
    figure = bench(
        bench_of(
            ("steps", "ours step", "demo", "torch", "mhc", 3.0, 2.0, 5.0),
            ("steps", "textbook step", "demo", "torch", "mhc", 9.0, 8.0, 9.5),
            ("steps", "over baseline", "demo", "torch", "mhc", 1.2, NAN, NAN),
            ("growth", "step at 12 layers", "default", "torch", "mhc", 1.0, 1.0, 1.0),
            ("growth", "step at 96 layers", "default", "torch", "mhc", 8.0, 8.0, 8.0),
            ("startup", "framework", "default", "mlx", "mhc", 1.5, NAN, NAN),
        )
    )
    left, right = figure.axes
    ours, textbook = [container.lines[0] for container in left.containers]
    assert (ours.get_ydata()[0], textbook.get_ydata()[0]) == (3.0, 9.0)
    assert textbook.get_markerfacecolor() == "none" != ours.get_markerfacecolor()
    assert [tuple(path[:, 1]) for path in left.collections[0].get_segments()] == [(2.0, 5.0)]
    (line,) = right.lines
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([12, 96], [1.0, 8.0])
    assert {"mhc", "torch", "hollow: textbook"} <= set(legend_of(figure))


# --- files -----------------------------------------------------------------------------------


def test_a_picture_of_few_colours_looks_like_one_of_all(tmp_path):
    ramp, axes = plt.subplots()
    axes.imshow(np.linspace(0, 1, 10_000).reshape(100, 100), cmap="viridis")
    figures.save({"ramp": ramp}, tmp_path, only=["png"])
    with figures.style.in_style():
        ramp.savefig(tmp_path / "all.png")
    with Image.open(tmp_path / "all.png") as whole, Image.open(tmp_path / "ramp.png") as few:
        assert few.mode == "P"
        assert few.info["dpi"] == whole.info["dpi"]
        apart = np.abs(np.asarray(whole.convert("RGB"), int) - np.asarray(few.convert("RGB"), int))
    assert apart.max() <= 20
    assert (tmp_path / "ramp.png").stat().st_size < 0.7 * (tmp_path / "all.png").stat().st_size


@pytest.mark.slow
def test_the_same_numbers_make_the_same_bytes(tmp_path):
    names = set()
    for folder in ("one", "two"):
        found = drawn(one_depth([4.0, NAN, NAN]), summary_of([1.0, None], depths=[8]))
        found |= overview([SHARES], [{}])
        found["mixing"] = mixing_matrix({"mhc_causal": Mixing(2, 5, MATRIX, WEIGHTS)}, "images")
        save(found, tmp_path / folder)
        names |= set(found)
    assert len(names) == 13
    for name, kind in itertools.product(names, FORMATS):
        one, two = (tmp_path / folder / f"{name}.{kind}" for folder in ("one", "two"))
        assert one.read_bytes() == two.read_bytes(), name
        assert {"png": b"\x89PNG", "svg": b"<svg"}[kind] in one.read_bytes()


def test_a_file_holds_no_date_and_no_version(tmp_path):
    save({"a": variance(variance_of(SHARES))}, tmp_path)
    content = (tmp_path / "a.png").read_bytes()
    assert b"tEXt" not in content
    assert b"tIME" not in content
    vectors = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "dc:date" not in vectors
    assert matplotlib.__version__ not in vectors


# --- text ------------------------------------------------------------------------------------

LEVELS = {"unigram_bpc": 4.8, "bigram_bpc": 3.6, "trigram_bpc": 2.9}


def text_run(variant, losses, seed=0, depth=2, **measures):
    """The steps of a run that is evaluated at every second step: losses in nats; a measure has a
    value, or one for each step."""
    rows = curve([3.0] * len(losses), variant, depth, seed)
    for step, (row, loss) in enumerate(zip(rows, losses, strict=True)):
        row |= {name: level if step == 0 else NAN for name, level in LEVELS.items()}
        row["validation_loss"] = loss if step % 2 else NAN
        row |= {n: v[step] if isinstance(v, list) else v for n, v in measures.items()}
    return rows


def arm(variant, seed=0, **changes):
    """A run with everything that the figures of text draw."""
    measures = {"stream_embedding_similarity": 0.1, "stream_similarity": 0.5, "gate_first": 0.3,
                "gate_mean": 0.2, "base_row_error": 0.01, "base_diagonal": 0.9}  # fmt: skip
    return text_run(variant, [0, 3.0, 0, 2.0 + seed], seed, **{**measures, **changes})


def text_figures(*runs):
    return draw_family("text", "a study", steps=frame(*runs))


def curves_in(ax):
    """x and y of every line that is a curve: not of one point, nor dotted."""
    return [
        (list(line.get_xdata()), list(line.get_ydata()))
        for line in ax.lines
        if line.get_linestyle() == "-" and len(line.get_xdata()) > 1
    ]


def test_validation_is_drawn_in_bits_where_it_was_measured():
    found = text_figures(arm("v1"), arm("v1", seed=1))["validation"]
    (ax,) = found.axes
    ((x, y),) = curves_in(ax)
    assert x == [1, 3]
    assert y == pytest.approx([3 / math.log(2), 2.5 / math.log(2)])
    (band,) = [c for c in ax.collections if isinstance(c, PolyCollection)]
    assert max(v for _, v in band.get_paths()[0].vertices) == pytest.approx(3 / math.log(2))
    assert ax.get_ylabel().endswith("(bits per character)")


def test_the_lines_to_beat_are_drawn_and_named():
    found = text_figures(arm("v1"), text_run("v1", [0, 3.0], depth=4))["validation"]
    left, right = found.axes
    assert [ax.get_title() for ax in found.axes] == ["2 layers", "4 layers"]
    for ax in (left, right):
        dotted = [line.get_ydata()[0] for line in ax.lines if line.get_linestyle() == ":"]
        assert dotted == [4.8, 3.6, 2.9]
    assert [(t.get_text(), t.xy[1]) for t in left.texts] == [
        ("unigram", 4.8), ("bigram", 3.6), ("trigram", 2.9),
    ]  # fmt: skip
    assert not right.texts


def test_depths_share_the_axis_of_the_bits():
    left, right = text_figures(arm("v1"), text_run("v1", [0, 9.0], depth=4))["final_bits"].axes
    assert left.get_xlim() == right.get_xlim()


def test_values_that_differ_by_rounding_are_drawn_as_one():
    losses = [4.0, 2.0, 1.0]
    for values, is_flat in (([-0.6, -0.600001, -0.6], True), ([-0.6, -0.61, -0.6], False)):
        steps = steps_of(losses, depths=(4,), count=1).assign(**{GAIN: values})
        (ax,) = gain_comparison(steps, "a").axes
        low, high = ax.get_ylim()
        assert (high - low > 0.05) == is_flat


def test_a_figure_is_drawn_where_some_variant_has_what_it_needs():
    names = [figure.name for figure in figures_for("text", [RESOLVED["mhc_paper"]])]
    assert "gates" not in names
    both = [RESOLVED["mhc_paper"], RESOLVED["mhc_gated_dynamic"]]
    assert "gates" in [figure.name for figure in figures_for("text", both)]


def test_every_seed_has_a_point_at_the_end_and_their_mean_a_bar():
    runs = arm("v1"), arm("v1", seed=1), arm("v5", seed=1)
    (ax,) = text_figures(*runs)["final_bits"].axes
    points = {
        tuple(line.get_ydata()): list(line.get_xdata())
        for line in ax.lines
        if line.get_marker() == "o"
    }
    two, three = 2 / math.log(2), 3 / math.log(2)
    assert points == {(0, 0): pytest.approx([two, three]), (1,): pytest.approx([three])}
    bars = [x for x, y in curves_in(ax) if len(set(y)) == 2]
    assert bars == [pytest.approx([math.sqrt(two * three)] * 2), pytest.approx([three] * 2)]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["v1", "v5"]
    # Between 2.9 and 4.3 and as much around: every line is near.
    assert [t.get_text() for t in ax.texts] == ["unigram", "bigram", "trigram"]


def test_a_line_that_is_far_is_left_out():
    runs = [text_run("v1", [0, loss]) for loss in (2.0, 2.02)]
    (ax,) = text_figures(runs[0], frame(runs[1]).assign(seed=1).to_dict("records"))[
        "final_bits"
    ].axes
    assert [t.get_text() for t in ax.texts] == ["trigram"]


def test_a_run_that_is_not_finite_when_it_is_evaluated_is_marked():
    found = text_figures(text_run("v1", [0, 3.0, 0, NAN]), text_run("v5", [0, 3.0, 0, 2.0]))
    (ax,) = found["validation"].axes
    assert [t.get_text() for t in ax.texts if "not finite" in t.get_text()] == [
        "validation loss not finite from step 3"
    ]


@pytest.mark.parametrize("name", ["similarity", "gates", "matrices"])
def test_measures_of_the_arms_are_drawn_against_step(name):
    measures = {
        "similarity": ("stream_embedding_similarity", "stream_similarity"),
        "gates": ("gate_first", "gate_mean"),
        "matrices": ("base_row_error", "base_diagonal"),
    }[name]
    courses = {m: [0.1 * k, 0.2 * k, 0.3 * k, 0.4 * k] for k, m in enumerate(measures, 1)}
    found = text_figures(arm("v1", **courses), text_run("baseline", [0, 3.0, 0, 2.0]))[name]
    for ax, (measure, course) in zip(found.axes, courses.items(), strict=True):
        assert curves_in(ax) == [([0, 1, 2, 3], pytest.approx(course))]
        assert ax.get_ylabel() == style.label_of(measure)
        assert ax.get_yscale() == "linear"  # even an error, within a decade
    assert list(legend_of(found)) == ["v1"]  # the baseline has none of these


def test_an_error_of_zero_is_drawn_at_the_edge():
    found = text_figures(arm("v1", base_row_error=0.0))
    assert curves_in(found["matrices"].axes[0])[0][1] == pytest.approx([1e-9] * 4)
    (point,) = found["trade_off"].axes[0].lines
    assert list(point.get_xdata()) == [1e-9]


def test_a_measure_that_no_variant_has_is_named():
    found = text_figures(text_run("mhc", [0, 3.0], stream_similarity=0.5))
    assert len(found["similarity"].axes) == 1
    assert "no variant has a similarity of the stream embedding" in (
        found["similarity"].get_suptitle()
    )
    for name, why in (("gates", "no variant has a gate of the first layer"),
                      ("trade_off", "no variant has both")):  # fmt: skip
        (ax,) = found[name].axes
        assert not ax.axison
        assert why in ax.texts[0].get_text()


def test_a_depth_at_which_no_variant_has_a_measure_says_so():
    found = text_figures(arm("v1"), text_run("v1", [0, 3.0], depth=4))["gates"]
    upper, lower = found.axes[0], found.axes[2]
    assert upper.axison
    assert not lower.axison
    assert lower.texts[0].get_text() == "no variant here has a\ngate of the first layer"


def test_a_study_without_an_evaluation_says_so():
    found = draw_family("text", "a study", steps=steps_of(WHOLE))
    for name in ("validation", "final_bits"):
        assert "nothing was evaluated" in found[name].axes[0].texts[0].get_text()


def test_the_trade_off_has_a_point_for_every_run_at_its_last_step():
    runs = (
        arm("v1", base_row_error=[1.0, 1.0, 1.0, 0.01], stream_similarity=[0, 0, 0, 0.25]),
        arm("v1", seed=1, base_row_error=0.02, stream_embedding_similarity=0.75),
        arm("v5", base_row_error=0.03),
    )
    left, right = text_figures(*runs)["trade_off"].axes
    for ax, ys in ((left, [[0.1, 0.75], [0.1]]), (right, [[0.25, 0.5], [0.5]])):
        assert [list(line.get_xdata()) for line in ax.lines] == [[0.01, 0.02], [0.03]]
        assert [list(line.get_ydata()) for line in ax.lines] == ys
        assert ax.get_xscale() == "log"


@pytest.mark.parametrize(
    ("other", "same"), [(0.3, True), (0.30001, True), (0.4, False), ([0.3, 0.3, 0.3, 0.4], False)]
)
def test_curves_that_lie_on_each_other_are_named(other, same):
    runs = frame(arm("v3"), arm("v4b", gate_first=other), arm("v1", gate_first=0.9))
    assert alike(runs, ["gate_first"]) == ("\nthese coincide: v3, v4b" if same else "")
    more_seeds = frame(arm("v3"), arm("v4b"), arm("v4b", seed=1, gate_first=0.9))
    assert alike(more_seeds, ["gate_first"]) == "\nthese coincide: v3, v4b"
    other_seeds = frame(arm("v3"), arm("v4b", seed=1))
    assert alike(other_seeds, ["gate_first"]) == ""


def test_evaluations_are_the_steps_that_have_one():
    found = evaluations(frame(arm("v1")))
    assert found["step"].tolist() == [1, 3]
    assert found["bits"].tolist() == pytest.approx([3 / math.log(2), 2 / math.log(2)])


def test_many_names_of_a_legend_stand_in_rows():
    figure, _ = style.panels(1)
    assert style.columns_for(figure, ["baseline", "hc", "mhc"]) == 3
    assert style.columns_for(figure, ["a_long_name_of_a_variant"] * 5) == 2
    assert style.columns_for(figure, []) == 1


# --- loss against the learning rate ----------------------------------------------------------


def rates_summary():
    """mhc at two rates, 1.0 and 0.5 in the mean, and at a third, where a seed of it diverges."""
    rows = []
    for lr, losses in {0.001: (0.9, 1.0, 1 / 0.9), 0.002: (0.5, 0.5, 0.5)}.items():
        rows += [run(f"mhc_{lr}", seed=i, loss_final=x, lr=lr) for i, x in enumerate(losses)]
    rows += [run("mhc_fast", seed=i, loss_final=0.4, lr=0.004) for i in range(2)]
    rows += [run("mhc_fast", seed=2, outcome="diverged", lr=0.004)]
    return summary_table(frame([{**row, "connection": "mhc"} for row in rows]))


def test_a_rate_at_which_a_run_diverged_has_a_cross_above_all_points():
    figure = draw_family("rates", "a", ["loss_against_rate"], summary=rates_summary())
    (ax,) = figure["loss_against_rate"].axes
    (points, *_), cross = ax.containers[0], ax.lines[-2]
    assert points.get_xdata().tolist() == [0.001, 0.002]
    assert points.get_ydata() == pytest.approx([1.0, 0.5])
    assert cross.get_marker() == "x"
    assert cross.get_xdata().tolist() == [0.004]
    assert cross.get_ydata()[0] > max(CHANCE, 1.0)
    assert ax.get_xscale() == "log"
    assert [text.get_text() for text in ax.get_xticklabels()] == ["0.001", "0.002", "0.004"]
    assert ax.get_xlabel() == "learning rate"


def test_a_figure_of_rates_has_one_colour_and_entry_for_each_connection():
    figure = draw_family("rates", "a", ["loss_against_rate"], summary=rates_summary())
    (legend,) = figure["loss_against_rate"].legends
    assert [text.get_text() for text in legend.get_texts()] == ["mhc"]
