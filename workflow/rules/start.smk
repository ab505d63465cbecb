# Before anything else: the sources, how Snakemake was started, and config files that can be read.

import sys
import tarfile
import tempfile
import time
from pathlib import Path


def find_project():
    """The project's folder. As a module from a git host, it is first unpacked into .snakemake.

    Snakemake fetches such files one at a time; fathom needs its sources and templates as folders, so
    this reads Snakemake's own object of the file's source.
    """
    source = workflow.current_basedir
    if not hasattr(source, "ref"):
        return Path(source.get_path_or_uri(secret_free=True)).resolve().parents[1]
    from git import Repo

    hosted = hasattr(source, "hosted_repo")
    repository = source.hosted_repo.repo if hosted else Repo(source.repo_path)
    commit = repository.commit(source.ref).hexsha
    folder = Path(".snakemake", "fathom", commit).resolve()
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as fresh:
            with tempfile.TemporaryFile() as archive:
                repository.archive(archive, commit)
                archive.seek(0)
                with tarfile.open(fileobj=archive) as files:
                    files.extractall(f"{fresh}/project", filter="data")
            Path(fresh, "project").rename(folder)
    return folder


PROJECT = find_project()
sys.path.insert(0, str(PROJECT / "src"))
# A profile may have loaded fathom out of another project, the one that it is started in.
for name in [name for name in sys.modules if name.partition(".")[0] == "fathom"]:
    if not Path(sys.modules[name].__file__ or "").is_relative_to(PROJECT):
        del sys.modules[name]

# How Snakemake was started, of which rules have no public word. The config is taken as the user gave
# it: Snakemake's `config` has the keys of an overlay before those of config.yaml, so studies would
# lose their order, and it accepts a key twice.
IS_MODULE = workflow.modifier.skip_configfile
CONFIG_FILES = list(map(str, workflow.overwrite_configfiles))
CONFIG_CHANGES = workflow.config_settings.config
if not workflow.config_settings.replace_workflow_config:
    CONFIG_FILES.insert(0, "config.yaml")
READ_STRICTLY = [*([] if IS_MODULE else ["config.yaml"]), *workflow.configfiles]
# In conda, jobs have a Python of their own; on other machines, perhaps frameworks that are missing
# here. Of profiles, only a cluster's has default resources.
CONDA = bool(workflow.deployment_settings.deployment_method)
IS_REMOTE = workflow.remote_exec or workflow.resource_settings.default_resources is not None
IS_MAIN, RUNS_JOBS = workflow.is_main_process, workflow.local_exec and not CONDA
OUTPUT = workflow.output_settings

from fathom import preload
from fathom.config import read_yaml
from fathom.system.errors import UserError, broken_link, fail


def warn(message):
    print(f"fathom: {message}", file=sys.stderr)


def or_exit(function, *arguments):
    """Call the function; an error that the user can fix ends everything, a line for each problem."""
    try:
        return function(*arguments)
    except UserError as error:
        fail(str(error))


if set("{}") & set(str(PROJECT)):
    fail(f"{PROJECT}: Snakemake reads braces as wildcards; move the project to a path without them")
if not IS_MODULE and not Path("config.yaml").exists():
    fail(
        f"config.yaml is not in this folder; go to {PROJECT}, or add --directory {PROJECT} to the "
        "command"
    )
for file in READ_STRICTLY:
    or_exit(read_yaml, file)
