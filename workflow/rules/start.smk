# Before anything else: the sources, and config files that can be read.

import sys
from pathlib import Path

PROJECT = Path(workflow.basedir).resolve().parent
sys.path.insert(0, str(PROJECT / "src"))

from fathom import preload
from fathom.config import ConfigError, read_yaml
from fathom.runs import provenance
from fathom.system.errors import fail


def or_exit(check, *arguments):
    """The result of a check of the config; a problem ends everything with one line for each."""
    try:
        return check(*arguments)
    except ConfigError as error:
        fail(str(error))


if not Path("config.yaml").exists():
    fail(
        f"config.yaml is not in this folder; go to {PROJECT}, or add --directory {PROJECT} to the "
        "command"
    )
for file in ("config.yaml", *workflow.configfiles):  # Snakemake lets a key be there twice
    or_exit(read_yaml, file)
