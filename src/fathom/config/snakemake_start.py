"""Checks before Snakemake starts, for errors that it reports before it reads the workflow.

The profiles call this (`workflow/profiles`), since nothing else of the project is read earlier.
"""

from __future__ import annotations

import sys
from itertools import takewhile
from pathlib import Path

from fathom.config.load import read_yaml
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
