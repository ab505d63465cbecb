"""Commands as a user gives them: in this process, or several in a shell."""

import os
import subprocess
import sys

from fathom import cli


def exit_status(arguments):
    """Run one command line here; its exit status."""
    try:
        cli.main(arguments)
    except SystemExit as stop:
        return stop.code
    return 0


def shell(block, folder):
    """What a block of commands prints, run in a folder with this `fathom`; none may fail."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    (tools / "fathom").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fathom "$@"\n')
    (tools / "fathom").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-e", "-c", block],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
