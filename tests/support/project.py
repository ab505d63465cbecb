"""A copy of the project, and a grid of a few cells of the smoke config."""

import json
import shutil
from pathlib import Path

from fathom_study.config import read_yaml

PROJECT = Path(__file__).parents[2]
PARTS = (".test", "src", "Snakefile", "profiles", "workflow", "report", "envs", "config.yaml")


def only(studies, **settings):
    """An overlay in YAML with these studies and their changes, and without all others.

    `settings`: further keys of the config. An overlay is no subset: results keep their folder.
    """
    names = read_yaml(PROJECT / "config.yaml")["studies"]
    every = {name: studies.get(name) for name in names}
    return json.dumps({"studies": every, **settings})


def copy_parts(folder, parts):
    """Copy these files, folders and links of the project, without `__pycache__`, `*.egg-info`."""
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for part in parts:
        source = PROJECT / part
        if source.is_dir() and not source.is_symlink():
            shutil.copytree(source, folder / part, ignore=ignore)
        else:
            shutil.copy(source, folder / part, follow_symlinks=False)


def copy_project(folder, grid):
    """Copy the files that the workflow needs, and write the overlay `grid` as grid.yaml."""
    folder.mkdir(exist_ok=True)
    copy_parts(folder, PARTS)
    (folder / "grid.yaml").write_text(grid)
