"""The workflow as a module of another workflow, as the workflow catalog deploys it."""

import shutil
import subprocess

from tests.support.project import PROJECT, only
from tests.workflow.conftest import Workflow, copy_of_project

# The catalog's instructions make a workflow of a few lines and a copy of `config`.
SNAKEFILE = """\
configfile: "config/config.yaml"

module fathom:
    snakefile: {snakefile}
    config: config

use rule * from fathom
"""
PRESET = PROJECT / ".test/config/config.yaml"


def deployed(folder, snakefile):
    """A workflow in an empty folder, with `snakefile` as its module."""
    shutil.copytree(PROJECT / "config", folder / "config")  # links become files
    (folder / "workflow").mkdir()
    (folder / "workflow/Snakefile").write_text(SNAKEFILE.format(snakefile=snakefile))
    (folder / "cut.yaml").write_text(only({"depth-torch": {"backends": ["torch"]}}))
    return Workflow(folder)


def smoke(workflow, *arguments, environment=None):
    """Output of Snakemake, in a new process if `environment` is given."""
    options = ("--cores", "2", "--configfile", str(PRESET), "cut.yaml")
    done = workflow.snakemake(*arguments, *options, environment=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_module_makes_tables_and_reports_in_an_empty_folder(tmp_path):
    workflow = deployed(tmp_path, f'"{PROJECT / "Snakefile"}"')
    smoke(workflow)
    results = tmp_path / "results/smoke"
    assert (results / "RESULTS.md").read_text().startswith("# Results")
    cells = (results / "tables/cells.csv").read_text().splitlines()
    runs = sorted(file.parent for file in results.glob("runs/**/manifest.json"))
    assert len(cells) - 1 == len(runs) >= 1
    assert {run.relative_to(results / "runs").parts[0] for run in runs} == {"depth-torch"}
    assert (results / "figures/overview/score_against_depth.png").stat().st_size > 1000
    smoke(workflow, "verify")
    assert (results / "logs/verify.log").read_text().startswith("verified: ")
    assert {path.name for path in tmp_path.iterdir()} <= {
        "config", "workflow", "cut.yaml", "results", ".snakemake",
    }  # fmt: skip


def test_all_files_of_a_hosted_repository_are_unpacked(tmp_path):
    """Git is configured to find GitHub in a folder; Snakemake then works as usual."""
    repository = tmp_path / "host/owner/fathom"
    repository.mkdir(parents=True)
    copy_of_project(repository)
    identity = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
    for command in (["init"], ["add", "."], [*identity, "commit", "-m", "all"], ["tag", "v1"]):
        subprocess.run(["git", *command], cwd=repository, check=True, capture_output=True)
    folder = tmp_path / "deployed"
    folder.mkdir()
    workflow = deployed(folder, 'github("owner/fathom", path="workflow/Snakefile", tag="v1")')
    environment = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.file://{tmp_path}/host/.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://github.com/",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    smoke(workflow, "tables", environment=environment)
    assert (folder / "results/smoke/tables/claims.csv").is_file()
    (unpacked,) = (folder / ".snakemake/fathom").iterdir()
    assert (unpacked / "report/templates/RESULTS.md.j2").is_file()
