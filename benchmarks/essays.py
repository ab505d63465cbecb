"""Pictures and numbers of docs/explained, and the tables of docs/trust.md.

    python benchmarks/essays.py pictures --out docs/images/explained
    python benchmarks/essays.py start        # numbers of networks before training
    python benchmarks/essays.py processors   # kept runs, and the same trained on another processor
    python benchmarks/essays.py origins      # processor, rounding version and commits of each study

The pages keep the numbers of the day they name. All other numbers in them are in the tables that
they link to.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections import Counter, defaultdict
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import pandas as pd
import typer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fathom.operations.numpy_ops import NumpyOps
from fathom_study import tasks
from fathom_study.analysis.pair_verdicts import PERCENT, in_unit, unit_of
from fathom_study.analysis.statistics import differences, to_scale
from fathom_study.analysis.tables import GROUP, read_table, scores_of
from fathom_study.cli.options import output_folder
from fathom_study.config import Cell, Config, load_config
from fathom_study.models.network import recording
from fathom_study.report.figures import palette, save, style
from fathom_study.report.pages.documents import CONFIG, REFERENCE
from fathom_study.report.tables.formatting import markdown_table
from fathom_study.runs.folder import MANIFEST, Manifest, read_manifest

app = typer.Typer()

MATRICES = 48
BLOCKS = ("depth-torch", MATRICES, ("baseline", "hc", "mhc"))
SUBLAYERS = (
    "ingredients",
    MATRICES // 2,
    ("baseline", "hc_paper", "mhc_paper", "mhc_averaged", "circulant_mhc", "mhc_lite", "krom_hc"),
)
"""A study, a number of blocks, and the variants in the pictures."""

PASSES = Cell("fashion-streams", 4, "mhc_static", "torch", 0)
"""A cell whose first matrix is normalised step by step. It starts with noise."""

COUNTS = (1, 12, 24, 48)
SIGNAL = {"baseline": "-", "hc": "-", "mhc": "-", "hc_paper": "--", "mhc_paper": ":"}
"""Line styles by variant; three lines coincide."""
PRODUCTS = ("hc_paper", "mhc_lite", "mhc", "hc")
LEFT = ("hc_paper", "krom_hc", "mhc_lite", "mhc_paper", "circulant_mhc", "mhc", "mhc_averaged")
"""Variants from the least mixing to the most."""

OVERFLOWS = float(np.sqrt(np.finfo(np.float32).max))
"""The largest number whose square is finite in float32."""


# --- networks before training --------------------------------------------------------------------


class Untrained(NamedTuple):
    """A network at its initial parameters, on its first batch, in float64."""

    sizes: np.ndarray
    """Root mean square of each wrapped function's input relative to the first's, [L]."""
    products: np.ndarray
    """Products of the first 1, 2, … L matrices H_res, later ones on the left, [L, S, S]."""


def untrained(config: Config, study: str, depth: int, variant: str) -> Untrained:
    problem = tasks.Problem(config.spec(Cell(study, depth, variant, "torch", 0)))
    ops, read = NumpyOps(), []
    params = {name: ops.asarray(value) for name, value in problem.initial_parameters().items()}
    (batch,) = problem.batches(0)
    inputs = {name: ops.asarray(value) for name, value in batch.inputs.items()}
    output = recording(problem.network, read).forward(ops, params, inputs)
    sizes = np.array([np.sqrt((x * x).mean()) for x in read])
    H_res = output.mixed.H_res if output.mixed else np.ones((len(sizes), 1, 1))
    products = itertools.accumulate(H_res, lambda product, H: H @ product)
    return Untrained(sizes / sizes[0], np.stack(list(products)))


def networks(config: Config) -> dict[tuple[str, str], Untrained]:
    """The networks of the pictures, by study and variant."""
    return {
        (study, variant): untrained(config, study, depth, variant)
        for study, depth, variants in (BLOCKS, SUBLAYERS)
        for variant in variants
    }


def left(product: np.ndarray) -> float:
    """The largest factor by which a product [S, S] scales a difference between streams."""
    apart = np.eye(len(product)) - 1 / len(product)
    return float(np.linalg.norm(apart @ product @ apart, ord=2))


@app.command()
def start() -> None:
    """Print sizes of inputs, gains and remaining differences of networks before training."""
    rows = []
    for (study, variant), network in networks(load_config(CONFIG[:1])).items():
        at = [network.products[count - 1] for count in COUNTS]
        gains = (f"{np.log10(product.max()):.4f}" for product in at)
        rest = (f"{left(product):.3g}" for product in at)
        rows.append((study, variant, f"{network.sizes[-1]:.3g}", *gains, *rest))
    counts = [f"{what} {count}" for what in ("gain", "left") for count in COUNTS]
    print(markdown_table(["study", "variant", "last input", *counts], rows))


# --- pictures ------------------------------------------------------------------------------------


@app.command()
def pictures(out: Annotated[Path, output_folder(help="Folder for the pictures.")]) -> None:
    """Draw the four pictures."""
    config = load_config(CONFIG[:1])
    by_study = networks(config)
    one = {variant: network for (_, variant), network in by_study.items()}
    with style.from_defaults({}), style.worded(config.labels, "layer"):
        drawn = {
            "signal": signal(by_study),
            "products": products(one),
            "differences": remaining(one),
            "sinkhorn": sinkhorn(config),
        }
    save(drawn, out, only=["png"])


def grid(rows, columns, size):
    """An empty figure of rows × columns panels [rows, columns], `size` in inches."""
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def legend_handle(label, **looks):
    return Line2D([], [], label=label, **looks)


def legend_handles(variants):
    """Legend entries of variants in their colours."""
    return [legend_handle(style.label_of(v), color=palette.colour_of(v)) for v in variants]


def signal(by_study):
    page, axes = grid(1, 2, (7.5, 3.6))
    places = (BLOCKS, "the demo: around blocks"), (SUBLAYERS, "the papers: around sub-layers")
    for ax, ((study, _, variants), what) in zip(axes[0], places, strict=True):
        ax.sharey(axes[0][0])
        for variant in (v for v in SIGNAL if v in variants):
            sizes, colour = by_study[study, variant].sizes, palette.colour_of(variant)
            ax.plot(np.arange(1, len(sizes) + 1), sizes, color=colour, ls=SIGNAL[variant])
        ax.axhline(OVERFLOWS, color=palette.GREY, lw=1)
        ax.set(xlabel="layer", yscale="log", xticks=COUNTS)
        ax.set_title(what, fontsize=12)
    axes[0][0].set_ylabel("size of the input")
    axes[0][1].tick_params(labelleft=False)
    axes[0][1].annotate(
        "the square overflows float32", (0.5, OVERFLOWS), ha="center", va="bottom", fontsize=10,
        xycoords=axes[0][1].get_yaxis_transform(), xytext=(0, 3), textcoords="offset points",
        color=palette.GREY,
    )  # fmt: skip
    handles = [
        legend_handle(style.label_of(v), color=palette.colour_of(v), ls=dashes)
        for v, dashes in SIGNAL.items()
    ]
    return style.finish(page, "The signal in an untrained network", handles)


def products(one):
    page, axes = grid(len(PRODUCTS), len(COUNTS), (7.5, 1.45 * len(PRODUCTS) + 0.7))
    for line, variant in zip(axes, PRODUCTS, strict=True):
        for ax, count in zip(line, COUNTS, strict=True):
            product = one[variant].products[count - 1]
            sums = product.sum(axis=1)
            image = ax.imshow(product / sums[:, None], vmin=0, vmax=1, cmap="viridis")
            power = np.log10(sums.max())
            factor = f"{sums.max():.3g}" if power < 3 else f"$10^{{{power:.1f}}}$"
            ax.set_title(f"× {factor}", fontsize=12)
            bare(ax)
        label = textwrap.fill(style.label_of(variant), 12)
        line[0].set_ylabel(label, color=palette.colour_of(variant), fontsize=11)
    for ax, count in zip(axes[-1], COUNTS, strict=True):
        ax.set_xlabel("1 matrix" if count == 1 else f"{count} matrices")
    bar = page.colorbar(image, ax=axes, shrink=0.6, aspect=30)
    bar.set_label("share of the row")
    return style.finish(page, "Products of mixing matrices")


def remaining(one):
    page, ((ax,),) = grid(1, 1, (7.5, 3.9))
    for variant in LEFT:
        values = [left(product) for product in one[variant].products]
        counts = np.arange(1, len(values) + 1)
        ax.plot(counts, values, color=palette.colour_of(variant), marker="o", ms=3)
    ax.set(xlabel="matrices multiplied", ylabel="remaining difference", ylim=(-0.03, 1.03))
    ax.set_xticks(COUNTS)
    return style.finish(page, "Mixing makes streams alike", legend_handles(LEFT))


def sinkhorn(config):
    problem, ops = tasks.Problem(config.spec(PASSES)), NumpyOps()
    logits = ops.asarray(problem.initial_parameters()["connection.H_res"])[:1]
    positive, scheme = np.exp(logits[0]), problem.spec.connection
    S = scheme.streams
    steps = {
        "exp of the logits": positive,
        "rows divided by their sums": positive / positive.sum(axis=1, keepdims=True),
        "after all passes": scheme.H_res.matrix(ops, logits, S, problem.spec.depth)[0],
    }
    page, axes = grid(1, len(steps), (7.5, 2.9))
    for ax, (what, matrix) in zip(axes[0], steps.items(), strict=True):
        ax.imshow(matrix / matrix.max(), vmin=0, vmax=1, cmap="Blues")
        digits = 1 if matrix.max() > 1 else 3
        sums = {(i, S): matrix[i].sum() for i in range(S)}
        sums |= {(S, i): matrix[:, i].sum() for i in range(S)}
        for (row, column), value in [*np.ndenumerate(matrix), *sums.items()]:
            colour = "white" if value > 0.6 * matrix.max() else "black"
            colour = palette.GREY if (row, column) in sums else colour
            text = f"{value:.{digits}f}"
            ax.text(column, row, text, ha="center", va="center", fontsize=9, color=colour)
        ax.set_title(what, fontsize=12)
        ax.set(xlim=(-0.5, S + 0.5), ylim=(S + 0.5, -0.5))
        bare(ax)
        ax.spines[:].set_visible(False)
    return style.finish(page, "Sinkhorn on an initial matrix, step by step")


def bare(ax):
    ax.set(xticks=[], yticks=[])
    ax.grid(visible=False)


# --- another processor ---------------------------------------------------------------------------


@app.command()
def origins() -> None:
    """Print where the runs of each study were trained: processor, rounding version, commits.

    A commit with a + had changes that were not committed.
    """
    studies: dict[str, list[Manifest]] = defaultdict(list)
    for file in sorted(REFERENCE.glob(f"imported/**/{MANIFEST}")):
        manifest = read_manifest(file.parent)
        studies[Cell.parse(manifest.cell).study].append(manifest)
    rows = []
    for study in (name for name in load_config(CONFIG).studies if name in studies):
        own = studies[study]
        places = Counter(
            one.device.name if one.device.kind != "cpu" else ", ".join(one.cpu.split(", ")[:3])
            for one in own
        )
        commits = {
            f"{one.git['commit'][:8]}{'+' * bool(one.git['dirty'])}" for one in own if one.git
        }
        rows.append([
            f"`{study}`",
            "; ".join(f"{place}: {runs}" for place, runs in places.most_common()),
            ", ".join(map(str, sorted({one.rounding for one in own}))),
            ", ".join(f"`{commit}`" for commit in sorted(commits)),
        ])  # fmt: skip
    head = ["study", "runs on each processor", "rounding", "commits"]
    print(markdown_table(head, rows))


@app.command()
def processors() -> None:
    """Print how far scores move on another processor or a GPU.

    A run that diverges on one side only counts as infinitely far.
    """
    config = load_config(CONFIG)
    cells, summary, platforms = (
        read_table(REFERENCE / f"tables/{name}.csv") for name in ("cells", "summary", "platforms")
    )
    on = platforms["cpu"].where(platforms["kind"] == "cpu", platforms["device"])
    made_on = on.groupby(platforms["platform"]).agg(set)
    gpus = platforms[platforms["kind"] != "cpu"].drop_duplicates("platform")
    on_gpus = cells.merge(gpus[["platform", "device"]], on="platform")
    again = [
        read_table(Path("benchmarks/processors.csv")),
        on_gpus.rename(columns={"device": "cpu"}),
    ]
    again = pd.concat(again)[["key", "cpu", "score"]].merge(
        cells, on="key", suffixes=("_again", "")
    )
    scores, rows = scores_of(config), []
    for (*place, cpu), runs in again.groupby([*GROUP, "cpu"], sort=False):
        place = dict(zip(GROUP, place, strict=True))
        kept = summary[(summary[GROUP] == pd.Series(place)).all(axis=1)].iloc[0]
        if made_on[place["platform"]] == {cpu} or pd.isna(kept["score_mean"]):
            continue
        unit = unit_of(scores[place["study"]])
        low, mean, high = to_scale(
            kept[["score_low", "score_mean", "score_high"]], ratio=unit == PERCENT
        )
        far = differences(runs["score_again"], runs["score"], ratio=unit == PERCENT)
        if (runs["score_again"].isna() != runs["score"].isna()).any():
            far = far + math.inf
        sizes = far.abs().max(), abs(far.mean()), max(high - mean, mean - low)
        told = (f"{in_unit(size, unit):.2g} {unit}" for size in sizes)
        rows.append(
            (place["variant"], f"{place['depth']}", place["study"], cpu, f"{len(runs)}", *told)
        )
    head = (
        "variant", "depth", "study", "trained again on", "seeds", "largest change of a run",
        "change of the mean", "± 95 % over seeds",
    )  # fmt: skip
    print(markdown_table(head, rows, numbers=4))


if __name__ == "__main__":
    app()
