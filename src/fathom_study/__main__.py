"""`python -m fathom_study`, and the `fathom` command."""

import io
import os
import sys

from fathom.system.errors import fail_for_interrupt, fail_for_missing


def main() -> None:
    """Run the command; a job of the workflow runs in a preloaded process if there is one."""
    try:
        from fathom_study import preload

        if preload.FOLDER in os.environ and sys.argv[1:2] == ["job"]:
            status = preload.run_job(sys.argv[1:])
            if status is not None:
                sys.exit(status)
        from fathom_study import cli
    except ModuleNotFoundError as error:  # a core package that `cli` imports
        fail_for_missing(error)
    except KeyboardInterrupt:
        fail_for_interrupt()
    # Not in `cli`: a preloaded process runs `cli` with the streams of another process.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # its encoding may lack a printed character
            stream.reconfigure(errors="backslashreplace")
    cli.main()


if __name__ == "__main__":
    main()
