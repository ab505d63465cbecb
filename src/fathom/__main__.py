"""`python -m fathom`, and the `fathom` command."""

import sys

from fathom.system.errors import fail_for_missing


def main() -> None:
    """Run the command; a job of the workflow goes where its framework is loaded already."""
    try:
        if sys.argv[1:2] == ["job"]:
            from fathom import preload

            preload.run_job(sys.argv[1:])
        from fathom import cli
    except ModuleNotFoundError as error:  # of the core, which `cli` imports
        fail_for_missing(error)
    cli.main()


if __name__ == "__main__":
    main()
