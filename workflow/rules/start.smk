# The sources of fathom, how Snakemake was started, and a first look at the config files.

import sys
import tarfile
import tempfile
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
            with open(f"{fresh}/tar", "wb") as archive:
                repository.archive(archive, commit)
            with tarfile.open(f"{fresh}/tar") as files:
                files.extractall(f"{fresh}/project", filter="data")
            Path(fresh, "project").rename(folder)
    return folder


PROJECT = find_project()
sys.path.insert(0, str(PROJECT / "src"))
# A profile may have loaded fathom from another project, in the folder where Snakemake started.
for name in [name for name in sys.modules if name.partition(".")[0] == "fathom"]:
    if not Path(sys.modules[name].__file__ or "").is_relative_to(PROJECT):
        del sys.modules[name]


from fathom_study import preload
from fathom_study.config.snakemake_start import Start
from fathom.system.errors import UserError, broken_link, fail, of_system


def warn(message):
    print(f"fathom: {message}", file=sys.stderr)


def or_exit(function, *arguments, **options):
    """Call the function; an error that the user can fix ends everything, a line for each problem."""
    try:
        return function(*arguments, **options)
    except (UserError, OSError) as error:
        fail(of_system(error) if isinstance(error, OSError) else str(error))


if set("{}") & set(str(PROJECT)):
    fail(f"{PROJECT}: Snakemake reads braces as wildcards; move the project to a path without them")
START = Start.of(workflow)
or_exit(START.check_files, PROJECT)
