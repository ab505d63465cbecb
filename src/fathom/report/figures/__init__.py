"""Figures: each is one function, in the module of the family that it belongs to.

    @figure
    def loss_comparison(steps: pd.DataFrame, title: str) -> Figure:
        '''Training loss against step for every depth.'''

This is its declaration: the function's name is the file's, its parameters are what it reads (READS,
and `title`), its docstring is its caption. The outputs and inputs of the workflow, the figures of
the reports and what `fathom verify` expects follow from it.

A family is drawn together, into one folder. A task names the family of its studies; `overview`,
`cell`, `bench` and `explained` are the others. Nothing here loads matplotlib: the workflow reads
the declarations at every start.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fathom.models.connections.schemes import sections_of
from fathom.report.figures import style
from fathom.settings import ConfigError, Registry, Section, unknown
from fathom.system.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fathom.config import Config
    from fathom.models.connections.schemes import Scheme

READS = {
    "steps": "steps.csv.gz, the rows of one study at one place",
    "summary": "summary.csv, likewise",
    "effects": "effects.csv, likewise",
    "mixing": "learned mixing over depth by variant (`fathom.report.mixing.Mixing`)",
    "variance": "variance.csv",
    "published": "published.csv",
    "cells": "cells.csv",
    "bench": "bench.csv",
    "explained": "networks before their first step (`fathom.report.explained.Explained`)",
    "rows": "the metrics of every step of one run, with its variant, seed and chance level",
}
"""What a figure can read, by the name of its parameter."""

FORMATS: dict[str, dict[str, None]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}
"""What every figure is saved as: SVG for paper and page, PNG for Markdown. By format, what it would
say of itself: no version or date inside, so the same numbers make the same bytes."""


@dataclass(frozen=True)
class Declaration:
    """A figure and what others need to know of it."""

    name: str
    """Of its file, without ending."""
    reads: tuple[str, ...]
    """Names from READS."""
    caption: str
    draw: Callable[..., Figure]
    needs: type[Section] | None = None
    """A kind of connection, or an ingredient of one, without which there is nothing to draw."""

    def fits(self, connections: Iterable[Scheme]) -> bool:
        """Whether networks with these connections have what it draws."""
        if self.needs is None:
            return True
        return any(isinstance(s, self.needs) for c in connections for s in sections_of(c))

    @property
    def label(self) -> str:
        """Its name in words."""
        return self.name.replace("_", " ")


_families: dict[str, Registry[Declaration]] = {}


def figure(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Declare a figure. Raises TypeError if it reads what there is not."""
    return _declare(draw, None)


def figure_needing(
    needs: type[Section],
) -> Callable[[Callable[..., Figure]], Callable[..., Figure]]:
    """Declare a figure of networks that have such a connection, or one with such an ingredient."""
    return functools.partial(_declare, needs=needs)


def _declare(draw: Callable[..., Figure], needs: type[Section] | None) -> Callable[..., Figure]:
    name, family = draw.__name__, draw.__module__.rpartition(".")[2]
    reads = tuple(p for p in inspect.signature(draw).parameters if p != "title")
    for read in reads:
        if read not in READS:
            raise TypeError(f"figure {name}: nothing is called '{read}'; there are {list(READS)}")
    caption = " ".join((draw.__doc__ or "").split())
    if not caption:
        raise TypeError(f"figure {name}: has no docstring, which is its caption")
    _families.setdefault(family, Registry())[name] = Declaration(name, reads, caption, draw, needs)
    return draw


def figures_of(family: str) -> Registry[Declaration]:
    """The figures of a family by name, in the order of their module.

    Raises ConfigError for a family that there is not.
    """
    families = [module.name for module in pkgutil.iter_modules(__path__) if module.name != "style"]
    if family not in {*families, *_families}:
        raise ConfigError(unknown("family of figures", family, families))
    importlib.import_module(f"{__name__}.{family}")
    return _families[family]


def figures_for(family: str, connections: Iterable[Scheme]) -> list[Declaration]:
    """The figures of a family that networks with these connections have."""
    given = list(connections)
    return [declared for declared in figures_of(family).values() if declared.fits(given)]


def figures_of_study(config: Config, study: str) -> list[Declaration]:
    """The figures that the workflow draws of a study, at every place."""
    variants = dict.fromkeys(cell.variant for cell in config.cells() if cell.study == study)
    connections = (config.connection(study, variant) for variant in variants)
    return figures_for(config.studies[study].figures, connections)


def draw_family(
    family: str,
    title: str = "",
    only: Iterable[str] = (),
    **data: Any,  # noqa: ANN401
) -> dict[str, Figure]:
    """Every figure of a family, by name; `data` is what they read.

    `only`: names of those to draw; none means all.
    """
    given = {**data, "title": title}
    declared = figures_of(family)
    found = {}
    for name in only or declared:
        draw = declared.find("figure", name).draw
        takes = inspect.signature(draw).parameters
        found[name] = draw(**{parameter: given[parameter] for parameter in takes})
    return found


def files_of(folder: Path, name: str, only: Iterable[str] = ()) -> list[Path]:
    """Where a figure is kept in a folder, as every format. `only`: these; none means all."""
    return [folder / f"{name}.{format_}" for format_ in only or FORMATS]


def save(figures: dict[str, Figure], folder: Path, only: Iterable[str] = ()) -> None:
    """Write every figure into `folder` as every format, each file all at once.

    `only`: these formats; none means all.
    """
    with style.in_style():
        for name, figure_ in figures.items():
            # Where panels lie decides how many ticks fit, and ticks decide where panels lie. Then
            # they stay: each format would find its own places, and take a third longer.
            figure_.draw_without_rendering()
            if layout := figure_.get_layout_engine():
                layout.execute(figure_)
            figure_.set_layout_engine("none")
            for file in files_of(folder, name, only):
                format_ = file.suffix.removeprefix(".")
                with replacing(file) as temporary:
                    figure_.savefig(temporary, format=format_, metadata=FORMATS[format_])
                    if format_ == "png":
                        _reduce_colours(temporary)


def _reduce_colours(file: Path) -> None:
    """Write a PNG again with 256 colours of its own, at a third of its size.

    Of Pillow's methods, maximum coverage alone moves no pixel by more than 20 of 255 levels.
    """
    from PIL import Image

    with Image.open(file) as picture:
        few = picture.convert("RGB").quantize(
            256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
        )
        few.save(file, format="PNG", dpi=picture.info["dpi"])
