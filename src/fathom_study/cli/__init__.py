"""The command line: each command calls into one part of the package.

Commands import their modules when they run, so training works with only the core and a framework
installed, and `--help` is fast.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import Annotated

import typer
from typer import Option

from fathom import __version__
from fathom.system.errors import UserError, fail, fail_for_interrupt, fail_for_missing, of_system
from fathom_study.cli import board, bundles, cost, data, judge, library, results, training

app = typer.Typer(
    help="Train networks with different residual connections; test published claims about them.",
    epilog="`fathom COMMAND --help` shows an example of each command. Start with: fathom status",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # square brackets in a help text are not markup
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fathom {__version__}")
        raise typer.Exit


Version = Annotated[
    bool,
    Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
]


@app.callback()
def _options(version: Version = False) -> None:
    pass


for part in (training, library, cost, judge, board, bundles, data, results):
    app.add_typer(part.app)

UsageError = typer.BadParameter.__base__
"""The error for a malformed command line; its module depends on the version of typer."""


@cache
def commands() -> typer.core.TyperGroup:
    """All commands as one group, built once: calling the app would build them every time."""
    return typer.main.get_command(app)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command given by `arguments`, by default the arguments of the process.

    An error that the user can fix prints its message and exits with status 1.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        status = commands()(arguments or ["--help"], prog_name="fathom", standalone_mode=False)
    except UsageError as error:
        command = error.ctx.command_path if error.ctx else "fathom"
        problem = " ".join(error.format_message().split()).removesuffix(".")
        fail(f"{problem} (see {command} --help)")
    except UserError as error:
        fail(str(error))
    except ModuleNotFoundError as error:
        fail_for_missing(error)
    except OSError as error:
        fail(of_system(error))
    except MemoryError as error:
        fail(f"out of memory ({error})")
    except (KeyboardInterrupt, typer.Abort):
        fail_for_interrupt()
    if status == 130:  # newer versions of typer return it for Ctrl-C
        fail_for_interrupt()
    if status:
        raise SystemExit(status)
