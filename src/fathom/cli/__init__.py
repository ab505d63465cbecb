"""The command line: each command is a call into one room.

A command imports what it needs when it runs, so that those which train work where only the core and
a framework are installed, and `--help` is quick everywhere.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from fathom.cli import bench, bundles, data, export, results, training
from fathom.system.errors import (
    UserError,
    fail,
    fail_for_interrupt,
    fail_for_missing,
    fail_for_system,
)

app = typer.Typer(
    help="Do multi-stream residual connections keep very deep networks trainable?",
    epilog="`fathom COMMAND --help` shows an example of the command. A good start: fathom status",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # square brackets in a help text are no markup
)
for part in (training, bundles, data, results, export, bench):
    app.add_typer(part.app)

UsageError = typer.BadParameter.__base__
"""A command line that cannot be read; where it is defined depends on the version of typer."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command of these arguments, by default the program's own.

    An error that the user can mend is one line and exit status 1.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        status = app(arguments or ["--help"], prog_name="fathom", standalone_mode=False)
    except UsageError as error:
        command = error.ctx.command_path if error.ctx else "fathom"
        problem = " ".join(error.format_message().split()).removesuffix(".")
        fail(f"{problem} ({command} --help shows what can be given)")
    except UserError as error:
        fail(str(error))
    except ModuleNotFoundError as error:
        fail_for_missing(error)
    except OSError as error:
        fail_for_system(error)
    except (KeyboardInterrupt, typer.Abort):
        fail_for_interrupt()
    if status == 130:  # what newer versions of typer make of Ctrl-C
        fail_for_interrupt()
    if status:
        raise SystemExit(status)
