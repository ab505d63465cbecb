"""Figures: each is one function, in any module of this package.

    @figure
    def loss_comparison(steps: pd.DataFrame, title: str) -> Figure:
        '''Training loss against step for every depth.'''

This is its declaration: the function's name is that of the file, its parameters are what it reads
(READS), its docstring is the caption. The outputs and inputs of the workflow, the
figures of the reports and what `fathom verify` expects follow from it.

A task's `Presentation.figures` names such functions, or metrics. A metric needs no function: a step
metric is drawn against step, a profile along its axis, a run metric against depth.
`@figure(everywhere=True)` declares a figure that every study has.

What others use:

    figures_of_study(config, study)    the declarations of a study, the same on every platform
    figures_of("overview")             also "cell", "bench", "explained": by name
    Declaration.name .reads .caption .label .module
    files_of(folder, name)             the files of a figure, one for each format

    fathom figures --config FILE --study NAME --platform PLATFORM --steps FILE --summary FILE
                   --effects FILE --out FOLDER [--only FIGURE …]
    fathom overview-figures --config FILE --cells FILE --variance FILE --published FILE --out FOLDER
    fathom cell-figures RUN --out FOLDER

PLATFORM is a value of the column `platform` (`torch`, `torch-cpu-amd-epyc-linux`). Without `--only`
all figures of the study are drawn. The config may be the resolved `config.json`: from it come the
figures of the study, its score, and the folder of its runs.

Nothing here loads matplotlib: the workflow reads the declarations at every start.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fathom import tasks
from fathom.metrics import CLOCKS
from fathom.models.connections.schemes import settings_of
from fathom.report.figures import style
from fathom.settings import ConfigError, Registry, Settings, unknown
from fathom.system.files import atomic_write

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from fathom.config import Config
    from fathom.models.connections.schemes import Scheme

STUDY = "study"
OTHERS = ("overview", "cell", "bench", "explained")
"""The groups of figures, each drawn into one folder: those of studies, and these modules."""

READS = {
    "title": "what the figures are of, as in 'depth-mlx on torch'",
    "steps": "steps.csv.gz, the rows of one study on one platform",
    "summary": "summary.csv, the same rows",
    "profiles": "profiles.csv, the same rows",
    "times": "the same with the columns of times_summary.csv",
    "effects": "effects.csv, the same rows",
    "effective_depth": "effective_depth.csv, the same rows",
    "score": "the study's score (`fathom.metrics.Score`)",
    "mixing": "learned mixing over depth by variant (`fathom.report.mixing.Mixing`)",
    "samples": "what networks generate, by run (`fathom.report.samples.Drawn`)",
    "variance": "variance.csv",
    "published": "published.csv",
    "cells": "cells.csv",
    "scores": "the score of every study, by its name",
    "bench": "bench.csv",
    "explained": "networks before their first step (`fathom.report.explained.Explained`)",
    "rows": "the metrics of every step of one run, with its variant, depth, seed and chance level",
}
"""What a figure can read, by the name of its parameter."""

FORMATS: dict[str, dict[str, None]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}
"""The formats of every figure: SVG for paper and page, PNG for Markdown. The metadata are left out,
as a date or a version would change the bytes of the same numbers."""

MOST_LINES = 12
"""A study with more variants has no figures with a line for each: colours would repeat."""


@dataclass(frozen=True)
class Declaration:
    """A figure, and what others need to know of it."""

    name: str
    """Of its file, without ending."""
    reads: tuple[str, ...]
    """Names from READS."""
    caption: str
    draw: Callable[..., Figure]
    """From what it reads, by name."""
    module: str
    """The module with the code of the figure."""
    needs: type[Settings] = Settings
    """A kind of connection, or an ingredient of one, without which there is nothing to draw."""
    everywhere: bool = False
    """Whether every study has it."""

    @property
    def label(self) -> str:
        """Its name in words."""
        return self.name.replace("_", " ")


_groups: dict[str, Registry[Declaration]] = {}


def figure(
    draw: Callable[..., Figure] | None = None,
    *,
    needs: type[Settings] = Settings,
    everywhere: bool = False,
) -> Callable[..., Any]:
    """Declare a figure: `@figure`, or `@figure(…)`.

    `needs`: a kind of connection, or an ingredient of one, without which there is nothing to draw.
    `everywhere`: every study has it, whatever its task names. Raises TypeError for an unknown
    parameter of the function.
    """
    if draw is None:
        return functools.partial(figure, needs=needs, everywhere=everywhere)
    name, group = draw.__name__, draw.__module__.rpartition(".")[2]
    reads = tuple(inspect.signature(draw).parameters)
    for read in reads:
        if read not in READS:
            raise TypeError(f"figure {name}: nothing is called '{read}'; there are {list(READS)}")
    caption = " ".join((draw.__doc__ or "").split())
    declared = Declaration(name, reads, caption, draw, draw.__module__, needs, everywhere)
    _groups.setdefault(group if group in OTHERS else STUDY, Registry())[name] = declared
    return draw


def figures_of(group: str) -> Registry[Declaration]:
    """The declared figures of STUDY, or of one of OTHERS, by name."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return _groups[group]


def find(name: str) -> Declaration:
    """The figure of studies with this name, or that of the metric with this name.

    Raises ConfigError if there is neither.
    """
    declared = figures_of(STUDY)
    if name in declared:
        return declared[name]
    if found := _figure_of_metric(name):
        return found
    metrics = (*tasks.step_metrics(), *tasks.run_metrics())
    known = list(dict.fromkeys([*declared, *filter(_figure_of_metric, metrics)]))
    raise ConfigError(unknown("figure or metric", name, known))


def _figure_of_metric(name: str) -> Declaration | None:
    """A step metric against step or along its axis, or a run metric against depth."""
    from fathom.report.figures import panels

    step, run = tasks.step_metrics().get(name), tasks.run_metrics().get(name)
    draw: Callable[..., Figure]
    if step and step.along:
        reads, draw = ("profiles", "title"), functools.partial(panels.along, metric=name)
        caption = (
            f"{name} along the {step.along}, for every depth: {step.definition}. A line is the "
            "mean over seeds, a band their range."
        )
    elif step and step.when in ("every step", "evaluations") and name not in ("step", *CLOCKS):
        reads, draw = ("steps", "title"), functools.partial(panels.against_step, metric=name)
        caption = f"{name} against step, for every depth: {step.definition}."
    elif run and run.averaged:
        reads = ("summary", "score", "title")
        draw = functools.partial(panels.against_depth, metric=name)
        if name in tasks.times():
            reads, draw = ("times", "score", "title"), functools.partial(_of_times, metric=name)
        caption = (
            f"{name} against depth: {run.definition}. A point is the mean over seeds, with its "
            "95 % interval; a cross: a run diverged."
        )
    else:
        return None
    return Declaration(name, reads, caption, draw, panels.__name__)


def _of_times(times: pd.DataFrame, **others: Any) -> Figure:  # noqa: ANN401
    """A run metric that comes from a clock, against depth."""
    from fathom.report.figures import panels

    return panels.against_depth(times, **others)


def figures_for(names: Iterable[str], connections: Iterable[Scheme]) -> list[Declaration]:
    """The figures with these names that networks with these connections have."""
    parts = [part for connection in connections for part in settings_of(connection)]
    declared = [find(name) for name in names]
    return [one for one in declared if any(isinstance(part, one.needs) for part in parts)]


def figures_of_study(config: Config, study: str) -> list[Declaration]:
    """The figures of a study, the same at every platform.

    Those that its task names, those that are everywhere, effective depth where its plain network
    has a curve over depth, and scores without a block where it asks for them, unless it has more
    than MOST_LINES variants; before them the score against the learning rate where rates differ,
    and contrasts where it has some, or too many variants.
    """
    settings = config.studies[study]
    variants = dict.fromkeys(cell.variant for cell in config.cells() if cell.study == study)
    names: list[str] = []
    if len({settings.of(label).optimizer.lr for label in settings.labels}) > 1:
        names.append("score_against_rate")
    if settings.contrasts or len(variants) > MOST_LINES:
        names += ["effects", "variants"]
    if len(variants) <= MOST_LINES:
        names += tasks.presentation(settings.task).figures
        if config.depth_control(study):
            names.append("effective_depth")
        if settings.leave_out_blocks:
            names.append("score_without_block")
        names += [name for name, one in figures_of(STUDY).items() if one.everywhere]
    return figures_for(names, (config.connection(study, variant) for variant in variants))


def draw_figures(
    declared: Iterable[Declaration],
    title: str = "",
    labels: Mapping[str, str] | None = None,
    **data: Any,  # noqa: ANN401
) -> dict[str, Figure]:
    """The figures, by name; `data` is what they read, `labels` what variants are called."""
    data["title"] = title
    with style.labelled(labels or {}):
        return {one.name: one.draw(**{read: data[read] for read in one.reads}) for one in declared}


def files_of(folder: Path, name: str, only: Iterable[str] = ()) -> list[Path]:
    """The files of a figure in a folder. `only`: of these formats; none means all."""
    return [folder / f"{name}.{format_}" for format_ in only or FORMATS]


def save(figures: dict[str, Figure], folder: Path, only: Iterable[str] = ()) -> None:
    """Write every figure into `folder` as every format, each file all at once.

    `only`: these formats; none means all.
    """
    with style.in_style():
        for name, figure_ in figures.items():
            # Positions of panels and numbers of ticks depend on each other. They are settled once:
            # each format would lay the figure out again, and take a third longer.
            figure_.draw_without_rendering()
            if layout := figure_.get_layout_engine():
                layout.execute(figure_)
            figure_.set_layout_engine("none")
            for file in files_of(folder, name, only):
                format_ = file.suffix.removeprefix(".")
                with atomic_write(file) as temporary:
                    figure_.savefig(temporary, format=format_, metadata=FORMATS[format_])
                    if format_ == "png":
                        _reduce_colours(temporary)


def _reduce_colours(file: Path) -> None:
    """Rewrite a PNG with a palette of 256 colours, at a third of its size.

    Of Pillow's methods, only maximum coverage moves no pixel by more than 20 of 255 levels.
    """
    from PIL import Image

    with Image.open(file) as picture:
        few = picture.convert("RGB").quantize(
            256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
        )
        few.save(file, format="PNG", dpi=picture.info["dpi"])
