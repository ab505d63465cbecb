# Before anything else: the sources, and config files that can be read.

import sys
import tarfile
import tempfile
from pathlib import Path


def find_project():
    """The project's folder. As a module from a git host, it is first unpacked into .snakemake.

    Snakemake fetches such files one at a time; fathom needs its sources and templates as folders.
    """
    if (fetched := checkout()) is None:
        return Path(rules_folder()).resolve().parents[1]
    repository, commit = fetched
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


def in_project(path):
    """A path of the project, as seen from the folder that the workflow runs in."""
    return path if PROJECT == Path.cwd() else str(PROJECT / path)


from fathom import preload
from fathom.config import read_yaml
from fathom.system.errors import UserError, broken_link, fail

if set("{}") & set(str(PROJECT)):
    fail(f"{PROJECT}: Snakemake reads braces as wildcards; move the project to a path without them")


def warn(message):
    """Tell the user what is left out."""
    print(f"fathom: {message}", file=sys.stderr)


def or_exit(function, *arguments):
    """Call the function; an error that the user can fix ends everything, a line for each problem."""
    try:
        return function(*arguments)
    except UserError as error:
        fail(str(error))


if not IS_MODULE and not Path("config.yaml").exists():
    fail(
        f"config.yaml is not in this folder; go to {PROJECT}, or add --directory {PROJECT} to the "
        "command"
    )
for file in READ_STRICTLY:  # Snakemake accepts duplicate keys
    or_exit(read_yaml, file)
