"""A copy of the project, and a grid of a few cells of the smoke config."""

import shutil
from pathlib import Path

import yaml

PROJECT = Path(__file__).parents[1]
PARTS = (".test", "src", "workflow", "report", "envs", "config.yaml")


def only(studies, **settings):
    """An overlay in YAML: these studies, with what they change, and no other.

    `settings`: of the config, beside its studies. It is an overlay of studies, which is no cut.
    """
    names = yaml.safe_load((PROJECT / "config.yaml").read_text(encoding="utf-8"))["studies"]
    every = {name: studies.get(name) for name in names}
    return yaml.safe_dump({"studies": every, **settings}, sort_keys=False)


def copy_parts(folder, parts):
    """These files and folders of the project, but for what Python and pip leave in them."""
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for part in parts:
        source = PROJECT / part
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=ignore)
        else:
            shutil.copy(source, folder / part)


def copy_project(folder, grid):
    """What the workflow needs, and the overlay `grid` as grid.yaml."""
    folder.mkdir(exist_ok=True)
    copy_parts(folder, PARTS)
    (folder / "grid.yaml").write_text(grid)
