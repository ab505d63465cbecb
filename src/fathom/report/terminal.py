"""How the state of a grid looks on a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from fathom.runs.inspect import STATUSES, Run
from fathom.runs.replay import group_of
from fathom.runs.status import Status

LOOKS = {
    "measured": ("●", "green"),
    "imported": ("◆", "cyan"),
    "stale": ("○", "yellow"),
    "corrupt": ("✗", "bold red"),
    "failed": ("!", "red"),
    "missing": ("·", "dim"),
}
"""A sign and a colour each: the signs alone tell them apart."""


def print_status(status: Status) -> None:
    """A grid for each study, the reasons behind what is not current, and what is left."""
    console = Console()
    for study in dict.fromkeys(run.cell.study for run in status.runs):
        console.print(_grid(study, [run for run in status.runs if run.cell.study == study]))
    for line in _reasons(status.runs):
        console.print(line, soft_wrap=True, markup=False)
    legend = (f"{_sign(s)} {n} {s} ({STATUSES[s]})" for s, n in status.counts.items())
    console.print("\n".join(legend))
    if not status.left:
        console.print("Nothing is left to run here.")
    else:
        time = "not known yet" if status.seconds is None else f"about {_duration(status.seconds)}"
        console.print(f"{len(status.left)} cells left to run here: {time} on one core.")


def _reasons(runs: Sequence[Run]) -> Iterator[str]:
    """A line for every run with a reason; one for all that a platform's replays say alike."""
    for run in runs:
        if run.reason and not run.replay:
            yield f"{run.cell}: {run.status}: {run.reason}"
    replays = Counter(
        (run.platform, _named_group(run), run.status, run.explanation) for run in runs if run.replay
    )
    for (platform, group, status, reason), n in replays.items():
        runs_of = f"{n} run" if n == 1 else f"{n} runs"
        of = f"{group}, {runs_of}" if group else runs_of
        yield f"imported/{platform}: {of}: {status}: {reason}"


def _named_group(run: Run) -> str:
    """The group of a run whose replay differs: it has numbers of its own. Empty for any other."""
    return group_of(run.cell) if run.replay == "differs" else ""


def _grid(study: str, runs: list[Run]) -> Table:
    table = Table(title=study, title_justify="left", title_style="bold", header_style="")
    table.add_column("layers", justify="right")
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


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
