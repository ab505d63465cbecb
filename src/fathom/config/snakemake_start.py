"""Checks before Snakemake starts, for errors that it reports before it reads the workflow.

The profiles call `check_start` (`workflow/profiles`), since nothing else of the project is read
earlier. And what the shell of every job begins with.
"""

from __future__ import annotations

import shlex
import sys
from itertools import takewhile
from pathlib import Path

from fathom.config.load import read_yaml
from fathom.config.config import Compute
from fathom.system.errors import UserError, fail, of_system


def check_start() -> None:
    """Exit with one line if Snakemake's cache or a file after `--configfile` cannot be used."""
    from platformdirs import user_cache_dir  # a package that Snakemake needs

    try:
        cache = Path(user_cache_dir("snakemake", "snakemake"), "snakemake/source-cache")
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(
            f"{of_system(error)}; Snakemake keeps a cache in the home folder; name a folder that "
            'can be written with: export XDG_CACHE_HOME="$PWD/.snakemake"'
        )
    try:
        for file in configfiles(sys.argv[1:]):
            read_yaml(file)
    except UserError as error:
        fail(str(error))


def configfiles(arguments: list[str]) -> list[str]:
    """The files after `--configfile` or `--configfiles`, as Snakemake reads its command line."""
    found: list[str] = []
    for place, argument in enumerate(arguments):
        option, _, first = argument.partition("=")
        if option in ("--configfile", "--configfiles"):
            rest = takewhile(lambda word: not word.startswith("-"), arguments[place + 1 :])
            found += [first] if first else rest
    return found


KILLED = (
    "killed, perhaps for lack of memory; the same command again goes on from the last checkpoint"
)


def shell_prefix(python: str, source: Path, compute: Compute) -> str:
    """Shell code that defines `fathom` and its environment: how jobs compute is no parameter.

    `source` comes before what PYTHONPATH holds already.
    """
    words = (str(source), compute.model_dump_json(), compute.data)
    path, settings, data = map(shlex.quote, words)
    return (
        f'export PYTHONPATH={path}"${{PYTHONPATH:+:$PYTHONPATH}}" '
        f"FATHOM_COMPUTE={settings} FATHOM_DATA={data}; "
        f'fathom() {{ {python} -m fathom "$@" || {{ '
        f's=$?; [ $s -le 130 ] || echo "fathom: {KILLED}" >&2; return $s; }}; }}; '
    )
