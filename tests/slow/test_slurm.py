"""Requests of the Slurm profile that the one-node cluster of tests/cluster cannot check."""

import math
import re

import pytest

from fathom_study.config import load_config
from tests.support.project import PROJECT
from tests.workflow.conftest import SMOKE, own_lines

pytest.importorskip("snakemake_executor_plugin_slurm")

PROFILE = ("--workflow-profile", "workflow/profiles/slurm")


def test_cells_of_a_backend_that_only_the_cluster_has_are_planned(untouched, tmp_path):
    """Also with `--config` on the command line, which replaces the one of a profile."""
    # To Python, a module that is None in sys.modules cannot be found.
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['mlx'] = None\n")
    without_mlx, few = {"PYTHONPATH": str(tmp_path)}, ("--config", "seeds=[0]")
    plan = ("-n", "-p", "all", *SMOKE, *few)
    here, there = (
        untouched.snakemake(*plan, *profile, environment=without_mlx) for profile in ((), PROFILE)
    )
    listed = [re.findall(r"^ *Job [0-9]+: train ", p.stdout, re.M) for p in (here, there)]
    assert [*map(len, listed)] == [5, 10]
    assert [line for line in own_lines(here) if "mlx is not installed here" in line]
    assert not [line for line in own_lines(there) if "is not installed here" in line]


@pytest.mark.parametrize(("preset", "group"), [(None, 40), ("paper", 1)])
def test_short_cells_share_submissions_and_long_ones_do_not(fresh, preset, group):
    """An account and a partition on the command line replace no other resource."""
    files = ["config.yaml"] + ([f"workflow/presets/{preset}.yaml"] if preset else [])
    # One seed of the paper: planning all of its cells takes eleven seconds.
    config = load_config([PROJECT / file for file in files], {"seeds": [0]} if preset else {})
    cells = len(config.cells())
    overlay = ("--configfile", files[1], "--config", "seeds=[0]") if preset else ()
    named = ("--default-resources", "slurm_account=physics", "slurm_partition=short")
    # A job without a message is listed with its resources.
    fresh.edit("workflow/rules/train.smk", '    message:\n        f"train {CELL_NAME}"\n', "")
    plan = fresh.snakemake("all", "-n", "-p", *overlay, *PROFILE, *named).stdout
    assert len(jobs_of("train", plan)) == cells
    assert plan.count("Group job cells") == (math.ceil(cells / group) if group > 1 else 0)
    compute = config.compute
    wanted = {"slurm_account=physics", "slurm_partition=short", f"mem_mb={compute.mem_mb}"}
    for resources in jobs_of("train", plan):
        assert set(resources.split(", ")) >= wanted | {f"runtime={compute.runtime}"}
    if preset is None:
        text = (PROJECT / "docs/cluster.md").read_text(encoding="utf-8")
        assert f"| the default scale | none | {math.ceil(cells / group)} |" in text
        for more in (100, 6):
            assert f"`--group-components cells={more}` | {math.ceil(cells / more)} |" in text


def jobs_of(rule, plan):
    """Resources of each job of a rule in a plan."""
    return re.findall(rf"^ *rule {rule}:.*?resources: (.*?)$", plan, re.M | re.S)
