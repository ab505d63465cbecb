"""Figures, each declared by one function in a module of this package.

    @figure
    def loss_comparison(steps: pd.DataFrame, title: str) -> Figure:
        '''Does the loss fall at every depth? Training loss against step.'''

The function's name is the file's name, and its parameters are the data that it reads (see below).
The docstring begins with the question that the figure answers, which is its title; the rest is the
caption. The outputs and inputs of the workflow, the figures of the reports and the files that
`fathom verify` expects follow from this declaration.

A task's `Presentation.figures` names such functions, or metrics. A metric needs no function: a step
metric is drawn against step, a profile along its axis, a run metric against depth. `needs`,
`depths`, `points` and `timed` set the minimum content of a study; below it the figure would be
empty and is not made.

Data that a figure can read, by the name of its parameter:

    title            study and platform, as in 'depth-mlx on torch'
    score            the study's score (`fathom_study.metrics.scores.Score`)
    steps, cells, profiles, effects, worth, stability
                     rows of one study on one platform in the table of that name, without the
                     trainings of ladders
    ladder           cells.csv of plain networks, with a column `factor` of their steps

Figures over all studies read whole tables (cells, sizes, published_sizes), and `scores` and
`depth_units` by study.

Nothing here loads matplotlib: the workflow reads the declarations at every start.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any

from fathom.connections.schemes import settings_of
from fathom.settings import ConfigError, Registry, Settings, unknown
from fathom_study import tasks
from fathom_study.metrics.steps import CLOCKS
from fathom_study.report.figures import style
from fathom_study.system.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fathom_study.config import Config
    from fathom_study.config.study import Study

STUDY = "study"
OVERVIEW = "overview"
"""The module whose figures are over all studies; all other figures form STUDY."""

OF_A_CELL = ("loss", "grad_norm", "nonfinite_total", "gain_proxy_log10_max_entry")
"""Metrics drawn for one run."""

FORMATS: dict[str, dict[str, None]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}
"""Formats of every figure, SVG for paper and page, PNG for Markdown, with the metadata to omit: a
date or a version would change the bytes for the same numbers."""

MOST_ROWS = 24
"""Maximum number of variants in a figure with a row for each."""


@dataclass(frozen=True)
class Declaration:
    """A figure and its metadata."""

    name: str
    """Its file name without suffix."""
    reads: tuple[str, ...]
    """The names of the parameters of `draw`."""
    caption: str
    draw: Callable[..., Figure]
    """Draws the figure from the data of `reads`, passed by name."""
    module: str
    """The module with the code of the figure."""
    question: str
    """The first line of its title: its question, or a metric and the axis it is drawn against."""
    needs: type[Settings] | UnionType = Settings
    """Type of a connection or component that the study must have."""
    depths: int = 1
    """Minimum number of depths; fewer would show no curve."""
    points: int = 1
    """Minimum number of points (variant × depth); fewer would compare nothing."""
    timed: bool = False
    """Whether it needs the table of step times to have the study, on the platform."""
    everywhere: bool = False
    """Whether every study has it."""

    @property
    def label(self) -> str:
        """Its name in words."""
        return self.name.replace("_", " ")


_groups: dict[str, Registry[Declaration]] = {}


def figure(draw: Callable[..., Figure] | None = None, **limits: Any) -> Callable[..., Any]:  # noqa: ANN401
    """Declare a figure: `@figure`, or `@figure(…)` with limits or `everywhere`."""
    if draw is None:
        return functools.partial(figure, **limits)
    name, group = draw.__name__, draw.__module__.rpartition(".")[2]
    reads = tuple(inspect.signature(draw).parameters)
    asked, _, caption = " ".join((draw.__doc__ or "").split()).partition("? ")
    declared = Declaration(name, reads, caption, draw, draw.__module__, f"{asked}?", **limits)
    _groups.setdefault(group if group == OVERVIEW else STUDY, Registry())[name] = declared
    return draw


def figures_of(group: str) -> Registry[Declaration]:
    """The declared figures of STUDY or of OVERVIEW, by name."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return _groups[group]


def find(name: str) -> Declaration:
    """The figure of studies with this name, or the figure of the metric with this name.

    Raises ConfigError if there is neither.
    """
    declared = figures_of(STUDY)
    if name in declared:
        return declared[name]
    if declaration := _figure_of_metric(name):
        return declaration
    metrics = (*tasks.step_metrics(), *tasks.run_metrics())
    known = list(dict.fromkeys([*declared, *filter(_figure_of_metric, metrics)]))
    raise ConfigError(unknown("figure or metric", name, known))


def _figure_of_metric(name: str) -> Declaration | None:
    """The figure of a metric against step, along its axis or against depth; None if it has none."""
    from fathom_study.report.figures import panels

    step, run = tasks.step_metrics().get(name), tasks.run_metrics().get(name)
    label = panels.in_words((step or run).label or name.replace("_", " ")) if step or run else ""
    title = label[:1].upper() + label[1:]
    draw: Callable[..., Figure]
    reads: tuple[str, ...]
    if step and step.along:
        reads, draw, over = ("profiles", "title"), panels.along, f"along the {step.along}"
        rest = f", for every depth: {step.definition}."
        rest += " A line is the mean over seeds, a band their range."
    elif step and step.when in ("every step", "evaluations") and name not in ("step", *CLOCKS):
        reads, draw, over = ("steps", "title"), panels.against_step, "against step"
        rest = f", for every depth: {step.definition}."
    elif run and run.averaged and name not in tasks.times():
        reads, draw, over = ("cells", "score", "title"), panels.against_depth, "against depth"
        rest = f": {run.definition}. A dot is a run, a marker the mean over seeds."
        rest += " A cross marks a run that diverged."
    else:
        return None
    question, draw = f"{title} {over}", functools.partial(draw, metric=name)
    return Declaration(name, reads, question + rest, draw, panels.__name__, question)


def figures_of_study(config: Config, study: str) -> list[Declaration]:
    """The figures of a study, without those that would be empty on every platform."""
    return [declared for declared, why in _considered(config, study) if not why]


def left_out(config: Config, study: str) -> dict[str, str]:
    """Reasons why figures of a study would be empty, by their labels."""
    return {declared.label: why for declared, why in _considered(config, study) if why}


def _considered(config: Config, study: str) -> list[tuple[Declaration, str]]:
    """Every figure that a study could have, and why it would be empty; '' if it would not.

    Figures that need a part that no connection has are not among them.
    """
    added = config.studies[study].ladder_trainings
    points = {(c.variant, c.depth) for c in config.cells_of(study) if c.variant not in added}
    variants, depths = ({*values} for values in zip(*points, strict=True)) if points else ((), ())
    parts = [part for v in variants for part in settings_of(config.connection(study, v))]

    def why_nothing(declared: Declaration) -> str:
        if len(depths) < declared.depths:
            return "there is one depth" if len(depths) == 1 else f"there are {len(depths)} depths"
        return "there is one variant at one depth" if len(points) < declared.points else ""

    return [
        (declared, why_nothing(declared))
        for declared in map(find, _named(config.studies[study], len(variants)))
        if any(isinstance(part, declared.needs) for part in parts)
    ]


def _named(study: Study, variants: int) -> Iterator[str]:
    """The names of the figures that a study with this number of variants can have."""
    from fathom_study.report.figures.panels import MOST_LINES

    points = [
        (study.connection_name(label), study.of(label).optimizer.lr) for label in study.compared
    ]
    names, rates = ({*values} for values in zip(*points, strict=True))
    is_grid = len(points) == len({*points}) == len(names) * len(rates)
    is_rates = is_grid and len(rates) > 1 and len(names) <= MOST_LINES
    if study.rate_families:
        yield "stability"
    if is_rates:
        yield "score_against_rate"
    if study.ladder and not study.rate_families:
        if getattr(study.model, "wrap", "") == "sublayer":  # else there are no fused kernels
            yield "answer"
        yield from ("worth", "ladder")
    elif study.contrasts:
        yield "effects"
    if variants <= MOST_LINES:
        yield from tasks.presentation(study.task).figures
        yield from (name for name, one in figures_of(STUDY).items() if one.everywhere)
    elif variants <= MOST_ROWS and not is_rates:
        yield "score"


def draw_figures(
    declared: Iterable[Declaration],
    title: str = "",
    labels: Mapping[str, str] | None = None,
    depth_unit: str = "layer",
    loss_unit: str = "",
    **data: Any,  # noqa: ANN401
) -> dict[str, Figure]:
    """Draw figures from `data`; returns them by name. `labels`: display names of variants.

    `depth_unit`, `loss_unit`: the units of depth and loss, if all data are of one task.
    """
    figures, words = {}, (labels or {}, depth_unit, loss_unit)
    with style.from_defaults(), style.worded(*words):
        for one in declared:
            data["title"] = "\n".join(filter(None, (one.question, style.words(title))))
            figures[one.name] = one.draw(**{read: data[read] for read in one.reads})
    return figures


def files_of(folder: Path, name: str, only: Iterable[str] = ()) -> list[Path]:
    """Paths of a figure's files in a folder. `only`: these formats; empty means all."""
    return [folder / f"{name}.{format_}" for format_ in only or FORMATS]


def save(figures: dict[str, Figure], folder: Path, only: Iterable[str] = ()) -> None:
    """Write every figure into `folder` in every format, each file atomically.

    `only`: these formats; empty means all.
    """
    with style.from_defaults():
        for name, figure_ in figures.items():
            # Panel positions and tick counts depend on each other, as do a title and image panels,
            # so the layout runs twice. Then it is removed, as each format would lay the figure out
            # again: by None, not "none", with whose placeholder engine matplotlib draws twice per
            # format.
            if layout := figure_.get_layout_engine():
                layout.execute(figure_)
                layout.execute(figure_)
            figure_.set_layout_engine(None)
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
