"""`python -m fathom`, and the `fathom` command."""

import sys

from fathom.errors import fail_for_interrupt

PORTABLE = ("train-all", "bundle")
"""Commands that work where the packages below are not installed."""

OPTIONAL = ("typer", "click", "rich", "pandas", "scipy", "matplotlib", "jinja2", "snakemake")
"""What the other commands need."""


def main() -> None:
    """Hand over to the portable commands, or to the full command line where typer is there."""
    if sys.argv[1:2] and sys.argv[1] in PORTABLE:
        from fathom import portable

        portable.main(sys.argv[1:])
        return
    try:
        if sys.argv[1:2] == ["job"]:
            from fathom import warm

            status = warm.delegate(sys.argv[1:])
            warm.leave(warm.run() if status is None else status)
        from fathom import cli

        cli.main()  # which imports what a command needs only when that is run
    except KeyboardInterrupt:
        fail_for_interrupt()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in OPTIONAL:
            raise
        sys.exit(
            f"fathom: {package} is not installed, so only {' and '.join(PORTABLE)} are sure to "
            "work here; pip install -e '.[workflow]' brings the rest"
        )


if __name__ == "__main__":
    main()
