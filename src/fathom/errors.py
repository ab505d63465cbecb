"""How a command ends when something is wrong that its user can mend."""

from __future__ import annotations

import sys
from typing import NoReturn


def fail(message: str, code: int = 1) -> NoReturn:
    """Print each line of the message as the program's own and exit with the status."""
    for line in message.splitlines():
        print(f"fathom: {line}", file=sys.stderr)
    raise SystemExit(code)


def fail_for_system(error: OSError) -> NoReturn:
    """Exit with what the system said, as in 'results/x.csv: No space left on device'."""
    fail(f"{error.filename or 'writing'}: {error.strerror or error}")


def fail_for_interrupt() -> NoReturn:
    """Exit as a shell expects after Ctrl-C."""
    fail("interrupted; a training goes on from its last checkpoint", code=130)
