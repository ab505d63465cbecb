# Before anything else: the sources, and a config.yaml that can be read.

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(workflow.basedir).parent / "src"))

from fathom import provenance, study, warm
from fathom.study import Cell


def or_exit(check, *arguments):
    """The result of a check of the config; a problem ends everything with one line for each.

    Nothing has started yet, and an exception would bury the lines in a traceback.
    """
    try:
        return check(*arguments)
    except study.ConfigError as error:
        for line in str(error).splitlines():
            print(f"fathom: {line}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)


or_exit(study.read_yaml, "config.yaml")
