"""Files → figures: what the commands that draw do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from fathom import tasks
from fathom.analysis.places import PLACE, Place
from fathom.analysis.tables import AXES, read_table
from fathom.config import Cell, Config
from fathom.report.drawn import write_drawn
from fathom.report.explained import explained
from fathom.report.figures import draw_family, figures_of, save
from fathom.report.mixing import mixing_matrices
from fathom.runs.folder import METRICS, read_rows, read_spec
from fathom.settings import ConfigError, unknown

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def title_of(study: str, place: Place) -> str:
    """What the figures of a study at a place are of."""
    return f"{study} on {place.label}"


def draw_study(
    study: str,
    family: str,
    place: Place,
    tables: tuple[Path, Path, Path],
    runs: Path,
    out: Path,
    only: Sequence[str] = (),
) -> None:
    """Draw the figures of one study at one place.

    `family`: what the study names as `figures`. `tables` are those of steps, groups of seeds and
    effects, `runs` is the folder of the runs of that place. `only`: names of the figures to draw;
    none means all of the family. Raises ConfigError for a family or a figure that no study has, and
    for a study or a place that the tables do not have.
    """
    declared = figures_of(family)
    chosen = [declared.find("figure", name) for name in only or declared]
    reads = {read for figure in chosen for read in figure.reads}
    if others := reads - {"steps", "summary", "effects", "mixing"}:
        raise ConfigError(f"family '{family}' is of no study: it is drawn from {min(others)}")
    read = [read_table(file) for file in tables]
    steps, summary, effects = (_of(table, study, place) for table in read)
    title = title_of(study, place)
    if steps.empty:
        known = read[0][["study", *PLACE]].drop_duplicates().itertuples(index=False)
        titles = [title_of(row[0], Place(*row[1:])) for row in known]
        raise ConfigError(f"{tables[0]}: {unknown('study and place', title, titles)}")
    mixing = {}
    if "mixing" in reads:
        axes = steps[AXES].drop_duplicates().astype(object).itertuples(index=False)
        mixing = mixing_matrices((Cell(*row) for row in axes), runs)
    data = {"steps": steps, "summary": summary, "effects": effects, "mixing": mixing}
    keep(draw_family(family, title, only, **data), out, title, tables)


def draw_overview(cells: Path, variance: Path, published: Path, out: Path) -> None:
    """Draw the figures over all studies, from their tables."""
    files = {"cells": cells, "variance": variance, "published": published}
    tables = {name: read_table(file) for name, file in files.items()}
    keep(draw_family("overview", **tables), out, "overview", tuple(files.values()))


def draw_cell(run: Path, out: Path) -> None:
    """Draw the figures of the run in a folder."""
    spec = read_spec(run)
    chance_loss = tasks.load(spec.task).chance_loss(spec)
    rows = pd.DataFrame(read_rows(run)).assign(
        variant=spec.variant, seed=spec.seed, chance_loss=chance_loss
    )
    of = spec.cell.path()
    keep(draw_family("cell", of, rows=rows), out, of, (run / METRICS,))


def draw_bench(table: Path, figure: Path) -> None:
    """Draw bench.csv as the PNG `figure`, and beside it in every other format."""
    (drawn,) = draw_family("bench", bench=read_table(table)).values()
    keep({figure.stem: drawn}, figure.parent, "bench", (table,))


def draw_explained(config: Config, out: Path) -> None:
    """Draw the pictures of docs/explained: PNG alone, as Markdown shows them."""
    save(draw_family("explained", explained=explained(config)), out, only=["png"])


def keep(figures: dict[str, Figure], out: Path, of: str, sources: Sequence[Path]) -> None:
    """Save the figures, and with them what they show and what they were drawn from."""
    save(figures, out)
    write_drawn(out, figures, of, sources)


def _of(table: pd.DataFrame, study: str, place: Place) -> pd.DataFrame:
    """The rows of one study at one place."""
    wanted = {"study": study, "backend": place.backend, "origin": place.origin}
    if place.platform:
        wanted["platform"] = place.platform
    return table[(table[list(wanted)] == list(wanted.values())).all(axis=1)]
