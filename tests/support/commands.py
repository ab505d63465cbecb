"""Run commands as a user does: in this process, in a new one, or several in a shell.

And read the contents of a folder.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fathom.system.errors import UserError
from fathom_study import cli


def exit_status(arguments):
    """Run one command line in this process and return its exit status."""
    try:
        cli.main(arguments)
    except SystemExit as stop:
        return stop.code
    return 0


def refusal(function, *arguments, error=UserError, **named):
    """Message of the error that a call raises; it must be a single line."""
    with pytest.raises(error) as caught:
        function(*arguments, **named)
    message = str(caught.value)
    assert "\n" not in message
    return message


def finished(*command, folder=None, text=None, **environment):
    """Run a command to its end, with `text` on stdin and these extra environment variables."""
    return subprocess.run(
        list(map(str, command)), cwd=folder, env={**os.environ, **environment}, input=text,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def shell(block, folder):
    """Stdout of a block of commands, run in a folder with this environment; none may fail."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = finished("bash", "-e", "-c", block, folder=folder, PATH=path)
    assert done.returncode == 0, done.stderr
    return done.stdout


def contents(folder):
    """Content of every path below a folder, hidden ones too; None if it is not a file."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def wait_until(condition, process=None, seconds=300):
    """Wait until the condition is true and return its value; fail if `process` ends first."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert process is None or process.poll() is None, process.stdout and process.stdout.read()
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.005)
    return value
