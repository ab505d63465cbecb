"""`python -m fathom`, and the `fathom` command."""

import io
import os
import sys

from fathom.system.errors import fail_for_interrupt, fail_for_missing


def main() -> None:
    """Run the command; a job of the workflow goes where what it needs is loaded."""
    try:
        from fathom import preload

        if preload.FOLDER in os.environ and sys.argv[1:2] and sys.argv[1] in preload.DELEGATED:
            preload.run_job(sys.argv[1:])
        from fathom import cli
    except ModuleNotFoundError as error:  # of the core, which `cli` imports
        fail_for_missing(error)
    except KeyboardInterrupt:
        fail_for_interrupt()
    # Not in `cli`: a loaded process runs that over the streams of another.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # its encoding may lack a letter that is printed
            stream.reconfigure(errors="backslashreplace")
    cli.main()


if __name__ == "__main__":
    main()
