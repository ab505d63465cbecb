"""Terminal output: the state of a grid of cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fathom.system.text import format_duration
from fathom_study import tasks
from fathom_study.analysis.platforms import labels_of
from fathom_study.report.tables.formatting import count_layers
from fathom_study.runs.estimate import basis_of
from fathom_study.runs.run import STATUSES, Run, group_of
from fathom_study.runs.status import Status, count_statuses

if TYPE_CHECKING:
    import pandas as pd

    from fathom_study.config import Config

LOOKS = {
    "measured": ("●", "green"),
    "imported": ("◆", "cyan"),
    "stale": ("○", "yellow"),
    "corrupt": ("✗", "bold red"),
    "failed": ("!", "red"),
    "missing": ("·", "dim"),
}
"""Sign and colour of each status; the signs alone distinguish them."""


MAX_STATUS_LINES = 10
"""Maximum number of reasons or effects in a summary."""


def print_status(status: Status, *, every_cell: bool = False) -> None:
    """Print the cells left with a time estimate, a line per study, and the stale runs.

    With `every_cell` a grid for each study in place of its line, and every reason.
    """
    console = Console()
    console.print(_left(status))
    for name, n in status.counts.items():
        console.print(f"{_sign(name)} {n} {name} ({STATUSES[name]})")
    studies = list(dict.fromkeys(run.cell.study for run in status.runs))
    if every_cell:
        for study in studies:
            console.print(_grid(study, [run for run in status.runs if run.cell.study == study]))
    else:
        console.print(_studies(status, studies))
    reasons = list(_reasons(status.runs))
    shown = reasons if every_cell else reasons[:MAX_STATUS_LINES]
    for line in shown:
        console.print(line, soft_wrap=True, markup=False)
    if len(reasons) > len(shown):
        console.print(f"… and {len(reasons) - len(shown)} more lines like these")
    if not every_cell:
        console.print("Every cell: fathom status --all, or fathom status STUDY")


def print_undecided(effects: pd.DataFrame, config: Config, *, every: bool = False) -> None:
    """Print undecided contrasts with their intervals, and how many more seeds may decide them.

    `every`: print all contrasts in place of the first.
    """
    from fathom_study.analysis.statistics import MIN_SEEDS
    from fathom_study.report.tables.effect_words import effect_with_interval  # it loads pandas

    if effects.empty:
        return
    console = Console()
    console.print(f"\n{len(effects)} contrasts are undecided:")
    labels = labels_of(effects["platform"], config.labels)
    shown = effects if every else effects.head(MAX_STATUS_LINES)
    for row in shown.to_dict("records"):
        seeds, needed = row["seeds"], row["seeds_needed"]
        if seeds < MIN_SEEDS:
            more = f"a verdict needs at least {MIN_SEEDS}"
        elif needed > seeds:
            more = f"{needed - seeds:.0f} more may decide it"
        else:
            more = "no feasible number is expected to decide it"
        study, platform = row["study"], labels[row["platform"]]
        unit = tasks.presentation(config.studies[study].task).depth_unit
        where = f"{study}, {count_layers(row['depth'], unit)}, {platform}"
        one, other = (labels.get(row[side], row[side]) for side in ("variant", "against"))
        text = f"{where}: {one} against {other}: {effect_with_interval(row)}; "
        text += f"{seeds} seed{'s' if seeds > 1 else ''}, {more}"
        console.print(text, soft_wrap=True, markup=False)
    if len(effects) > len(shown):
        console.print(f"… and {len(effects) - len(shown)} more contrasts: fathom status --all")


def print_schemes(schemes: Sequence[tuple[str, str, str]]) -> None:
    """Print a line for each (name, source, formula), cut to the width of the terminal."""
    table = Table(header_style="", box=None, pad_edge=False, expand=True)
    table.add_column("scheme", no_wrap=True, width=max(len(name) for name, _, _ in schemes))
    table.add_column("source", no_wrap=True, overflow="ellipsis", ratio=2)
    table.add_column("formula", no_wrap=True, overflow="ellipsis", ratio=3)
    for row in schemes:
        table.add_row(*map(Text, row))
    console = Console()
    console.print(table)
    hint = "fathom schemes NAME: its settings as YAML; "
    hint += "fathom schemes --long: components and costs of all"
    console.print(hint, soft_wrap=True, markup=False)


def _left(status: Status) -> str:
    if not status.left:
        return "Nothing is left to run here."
    cells = len({run.cell for run in status.runs})
    left = f"{len(status.left)} of {cells} cells left to run here"
    time = f"{format_duration(status.seconds)} on one core.\nThe time is {basis_of(status.timed)}."
    return f"{left}: about {time}"


def _studies(status: Status, studies: Sequence[str]) -> Table:
    table = Table(header_style="")
    table.add_column("study")
    for name in status.counts:
        table.add_column(f"{_sign(name)} {name}", justify="right")
    if status.left:
        table.add_column("left, about", justify="right")
    for study in studies:
        counts = count_statuses([run for run in status.runs if run.cell.study == study])
        seconds = sum(s for cell, s in status.left_seconds.items() if cell.study == study)
        numbers = (str(counts.get(name, "")) for name in status.counts)
        time = [format_duration(seconds) if seconds else ""] if status.left else []
        table.add_row(study, *numbers, *time)
    return table


def _reasons(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a line for each run with a reason; a platform's replays with the same one share it."""
    for run in runs:
        if run.reason and not run.replay:
            yield f"{run.cell}: {run.status}: {run.reason}"
    replays: Counter[tuple[str, ...]] = Counter()
    for run in runs:
        if run.replay:
            # A run that differs has its own numbers, so its group is named.
            group = group_of(run.cell) if run.replay == "differs" else ""
            replays[run.platform, group, run.status, run.explanation] += 1
    for (platform, group, status, reason), n in replays.items():
        runs_of = f"{n} run" if n == 1 else f"{n} runs"
        of = f"{group}, {runs_of}" if group else runs_of
        yield f"imported/{platform}: {of}: {status}: {reason}"


def _grid(study: str, runs: list[Run]) -> Table:
    table = Table(title=study, title_justify="left", title_style="bold", header_style="")
    table.add_column("depth", justify="right")
    table.add_column("variant")
    backends = list(dict.fromkeys(run.cell.backend for run in runs))
    for backend in backends:
        seeds = sorted({run.cell.seed for run in runs if run.cell.backend == backend})
        table.add_column(f"{backend} (seeds {', '.join(map(str, seeds))})")
    for depth, variant in dict.fromkeys((run.cell.depth, run.cell.variant) for run in runs):
        row = [r for r in runs if (r.cell.depth, r.cell.variant) == (depth, variant)]
        signs = [
            " ".join(_sign(r.status) for r in row if r.cell.backend == backend)
            for backend in backends
        ]
        table.add_row(str(depth), variant, *signs)
    return table


def _sign(status: str) -> str:
    sign, style = LOOKS[status]
    return f"[{style}]{sign}[/]"
