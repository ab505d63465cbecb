# Before anything else: the sources, and config files that can be read.

import sys
import tarfile
import tempfile
from pathlib import Path


def project_of(snakefiles):
    """The folder of the project that the folder `workflow/rules` is in.

    A module can stand in a repository, as in `github("owner/fathom", …)`. Snakemake fetches such
    files one by one, as they are named. The sources are read as a folder: so all files of that
    commit are unpacked, once.
    """
    if not hasattr(snakefiles, "ref"):
        return Path(snakefiles.get_path_or_uri(secret_free=True)).resolve().parents[1]

    from git import Repo

    hosted = hasattr(snakefiles, "hosted_repo")
    repository = snakefiles.hosted_repo.repo if hosted else Repo(snakefiles.repo_path)
    commit = repository.commit(snakefiles.ref).hexsha
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


PROJECT = project_of(workflow.current_basedir)
sys.path.insert(0, str(PROJECT / "src"))


def in_project(path):
    """A path of the project, as seen from the folder that the workflow runs in."""
    return path if PROJECT == Path.cwd() else str(PROJECT / path)


from fathom import preload
from fathom.config import read_yaml
from fathom.runs import provenance
from fathom.system.errors import UserError, fail


def or_exit(check, *arguments):
    """The result of a check; what its user can mend ends everything with a line for each problem."""
    try:
        return check(*arguments)
    except UserError as error:
        fail(str(error))


# Whether another workflow has this one as a module, and has given it its config.
HAS_CONFIG = workflow.modifier.skip_configfile
OWN_CONFIG = [] if HAS_CONFIG else ["config.yaml"]

if OWN_CONFIG and not Path("config.yaml").exists():
    fail(
        f"config.yaml is not in this folder; go to {PROJECT}, or add --directory {PROJECT} to the "
        "command"
    )
for file in (*OWN_CONFIG, *workflow.configfiles):  # Snakemake lets a key be there twice
    or_exit(read_yaml, file)
