"""The board: check a submission, and write the board's page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from fathom_study.cli.options import example
from fathom_study.config import Compute

app = typer.Typer()
board = typer.Typer()
app.add_typer(board, name="board", help="The board: connections of all authors, by track.")


@board.command(epilog=example("fathom board check board/quick/two_streams-jane"))
def check(
    folder: Annotated[Path, Argument(help="A submission, such as board/quick/NAME.")],
    commit: Annotated[
        str, Option(help="Commit that draws the seed to train anew; default: HEAD.")
    ] = "",
    no_train: Annotated[
        bool, Option("--no-train", help="Execute nothing of the submission.")
    ] = False,
    approved: Annotated[
        bool,
        Option(
            "--approved", help="A maintainer has read the file: execute it also with a network."
        ),
    ] = False,
    data: Annotated[Path, Option(help="Folder of data sets.")] = Path("data"),
) -> None:
    """Check a submission to the board.

    Checks format and hashes, recomputes every number from the curves, and looks for the seeds of
    the track. Then executes the submitted file in a process without network, within limits: checks
    its contract, counts its operations, and trains one seed anew. Exits with status 1 at a failure.
    """
    from fathom_study.board.check import check_submission, head

    drawn = "" if no_train else commit or head()
    compute = Compute(data=str(data))
    for line in check_submission(
        folder, compute, commit=drawn, train=not no_train, approved=approved
    ):
        typer.echo(line)
    typer.echo(f"{folder}: passed")


@board.command(epilog=example("fathom board tracks"))
def tracks() -> None:
    """List the tracks, with seeds and hash."""
    from rich.console import Console
    from rich.table import Table

    from fathom_study.board.track import load_track, track_names

    table = Table("track", "hash", "seeds", "from", "about", box=None)
    for track in map(load_track, track_names()):
        state = f"not open: {track.closed}. " if track.closed else ""
        code = "" if track.closed else track.hash
        table.add_row(track.name, code, str(len(track.seeds)), track.date, state + track.about)
    Console().print(table)
