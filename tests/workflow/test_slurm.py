"""What the Slurm profile asks for, where the one-node cluster of tests/cluster cannot tell.

Stand-ins for Slurm's commands run jobs on this machine. They know an account, and the machine that
submits has no MLX.
"""

import json
import math
import os
import re
import sys

import pytest

from conftest import SMOKE
from fathom.config import installed_backends, load_config
from grid_helpers import PROJECT

pytest.importorskip("snakemake_executor_plugin_slurm")

pytestmark = pytest.mark.slow

RUN = "results/smoke/runs/depth-mlx/2L/mhc/mlx/seed0"
PROFILE = ("--workflow-profile", "workflow/profiles/slurm")
# As the profile says for such a cluster; and a first look after one second.
WITHOUT_ACCOUNTING = (
    "--slurm-status-command", "squeue", "--slurm-init-seconds-before-status-checks", "1",
)  # fmt: skip

COMMANDS = {
    # Runs the job at once, as on a machine that has every framework, and keeps how it was asked to.
    "sbatch": """\
#!{python}
import json, os, subprocess, sys
*options, script = sys.argv[1:]
with open("{folder}/submitted", "a") as file:
    print(json.dumps(options), file=file)
node = {{name: value for name, value in os.environ.items() if name != "PYTHONPATH"}}
with open("{folder}/log", "a") as log:
    script = script.removeprefix("--wrap=")
    done = subprocess.run(script, shell=True, env=node, stdout=log, stderr=log)
with open("{folder}/states", "a") as file:
    print("7|FAILED" if done.returncode else "7|COMPLETED", file=file)
print("7")
""",
    "srun": '#!/bin/sh\nwhile [ "${{1#-}}" != "$1" ]; do shift; done\nexec "$@"\n',
    "squeue": "#!/bin/sh\ncat {folder}/states\n",
    "sacct": "#!/bin/sh\necho 'Slurm accounting storage is disabled' >&2\nexit 1\n",
    "sacctmgr": "#!/bin/sh\necho physics\n",
    "sinfo": "#!/bin/sh\nprintf 'PARTITION\\nshort\\nlong*\\n'\n",
    "scontrol": "#!/bin/sh\necho 'MinJobAge = 300 sec'\n",
}


@pytest.fixture
def slurm(tmp_path):
    """(environment of the machine that submits, folder of what the stand-ins have seen)."""
    folder, commands = tmp_path / "seen", tmp_path / "commands"
    for made in (folder, commands):
        made.mkdir()
    for name, text in COMMANDS.items():
        file = commands / name
        file.write_text(text.format(python=sys.executable, folder=folder))
        file.chmod(0o755)
    without_mlx = tmp_path / "sitecustomize.py"
    without_mlx.write_text("import sys\nsys.modules['mlx'] = None\n")
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "PYTHONPATH": str(tmp_path)}, folder


def test_the_profile_trains_a_cell_of_a_backend_that_only_the_cluster_has(fresh, slurm):
    """Whatever else stands on the command line: `--config` replaces the one of a profile."""
    if "mlx" not in installed_backends():
        pytest.skip("mlx is not installed")
    environment, folder = slurm
    environment["SBATCH_ACCOUNT"] = "physics"
    arguments = (f"{RUN}/metrics.jsonl", *SMOKE, *PROFILE, *WITHOUT_ACCOUNTING)
    result = fresh.snakemake(*arguments, "--config", "seeds=[0]", environment=environment)
    log = folder / "log"
    assert result.returncode == 0, result.stderr + (log.read_text() if log.exists() else "")
    assert len((fresh.folder / RUN / "metrics.jsonl").read_text().splitlines()) == 4
    (submitted,) = (folder / "submitted").read_text().splitlines()
    options = " ".join(json.loads(submitted))
    for asked in ("-A physics", "-p long", "-t 10", "--mem 2000", "--cpus-per-task=1"):
        assert asked in options


@pytest.mark.parametrize(("preset", "group"), [(None, 40), ("paper", 1)])
def test_short_cells_share_submissions_and_long_ones_do_not(untouched, preset, group):
    """And an account and a partition of the command line replace no other resource."""
    files = ["config.yaml"] + ([f"workflow/presets/{preset}.yaml"] if preset else [])
    config = load_config([PROJECT / file for file in files])
    cells = len(config.cells())
    overlay = ("--configfile", files[1]) if preset else ()
    named = ("--default-resources", "slurm_account=physics", "slurm_partition=short")
    plan = untouched.snakemake("all", "-n", "-p", *overlay, *PROFILE, *named).stdout
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
    """The resources of each job that a plan has of a rule."""
    return re.findall(rf"^ *rule {rule}:.*?resources: (.*?)$", plan, re.M | re.S)
