"""Check that `snakemake -n` with these options plans the training of every cell of the config.

    python tests/workflow/dry_run.py [--configfile OVERLAY.yaml] [OPTION …]

The plan assumes that nothing is made yet, every framework is installed and no data set is known to
be unavailable. Exits with 1 if the plan has fewer trainings than the config has cells, because
Snakemake accepts an empty plan.
"""

import re
import subprocess
import sys

from fathom_study.config import load_config

AS_AT_FIRST = ("--forceall", "--config", "assume_backends=true", "compute={data: data/none}")


def main(options: list[str]) -> None:
    """Print the number of cells, or exit with Snakemake's errors and both counts."""
    overlays = [option for option in options if option.endswith(".yaml")]
    cells = len(load_config(["config.yaml", *overlays]).cells())
    command = ("-n", *options, *AS_AT_FIRST)
    plan = subprocess.run(
        [sys.executable, "-m", "snakemake", *command], capture_output=True, text=True, check=False
    )
    planned = len(re.findall(r"^ *Job [0-9]+: train ", plan.stdout, re.M))
    name = " ".join(["snakemake -n", *options])
    if plan.returncode or not 0 < cells <= planned:
        print(plan.stderr, file=sys.stderr)
        sys.exit(f"{name}: plans {planned} trainings, and the config has {cells} cells")
    print(f"{name}: all {cells} cells")


if __name__ == "__main__":
    main(sys.argv[1:])
