"""Helpers for results/reference: render it again in a copy, compare two results."""

import re
import shutil
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageChops

from fathom_study.config import installed_backends
from tests.support.commands import finished
from tests.support.project import PROJECT, copy_parts

REFERENCE = Path("results/reference")
PRESET = "workflow/presets/reference.yaml"
BUNDLES = "bundles"
PARTS = ("src", "workflow", "report", "docs", "envs", "benchmarks", "config.yaml", "Makefile")
"""Parts of the project that rendering needs."""


MAX_PAGE_BYTES = 8 * 10**6
"""Maximum size of its page in bytes: it opens at once and is sent as one file."""

MAX_PAPER_PAGES = 10
"""Maximum pages of its paper, which is read in one sitting; details belong in the reports."""

LEVELS = 40
"""A pixel differs if a channel differs by more than this, of 255 levels."""
MOST_PIXELS = 1e-3
"""Maximum share of pixels that may differ.

The tables are the same bytes, so the pictures show the same numbers. Processors only change the
last digits of positions in a picture. This shades the edges of lines and letters differently, by a
few levels, and may move a label by one pixel: some hundred pixels of half a million. A moved curve,
or anything larger, changes more pixels.
"""


def copy_of_project(folder, bundles):
    """Copy the project to an empty folder, with these bundles as its reference."""
    copy_parts(folder, PARTS)
    shutil.copytree(bundles, folder / REFERENCE / BUNDLES)
    if (PROJECT / "data").is_dir():
        (folder / "data").symlink_to(PROJECT / "data")


def run(folder, *command):
    """(exit status, output) of a command in a folder, with the code of that folder."""
    done = finished(*command, folder=folder, PYTHONPATH=str(folder / "src"))
    return done.returncode, done.stdout + done.stderr


def make_reference(folder):
    """Run `make reference` in a copy, with page and paper, this interpreter and its packages.

    It replays a sample of the runs.
    """
    python, script = sys.executable, PROJECT / "tests/reference/replay_sample.py"
    # Runs on text and images are replayed if their data can be fetched, as in the workflow.
    fetch = f"{{ {python} -m fathom_study fetch || true; }}"
    samples = (f"{python} {script} {name} config.yaml {PRESET}" for name in installed_backends())
    sample = " && ".join((fetch, *samples))
    programs = (f"BIN={Path(python).parent}", f"REPLAY={sample}", "ALSO=page paper")
    return run(folder, "make", "-o", ".venv/.complete", "reference", *programs)


def kept(reference):
    """Files of a reference that .gitignore keeps, except its bundles."""
    folders = [reference / name for name in ("studies", "figures")]
    files = [*reference.glob("*.md"), *reference.glob("tables/*")]
    files += [file for folder in folders for file in folder.rglob("*")]
    return {
        file.relative_to(reference)
        for file in files
        if file.is_file() and file.suffix != ".svg" and file.name != "figures.json"
    }


def differences(committed, rendered):
    """Differences between two references, one line per file."""
    ours, theirs = kept(committed), kept(rendered)
    lines = [f"{file}: is there, and is not made" for file in sorted(ours - theirs)]
    lines += [f"{file}: is made, and is not there" for file in sorted(theirs - ours)]
    for file in sorted(ours & theirs):
        if file.suffix == ".png":
            share = pixels_apart(committed / file, rendered / file)
            if share > MOST_PIXELS:
                lines.append(f"{file}: {share:.2%} of its pixels differ")
        elif (committed / file).read_bytes() != (rendered / file).read_bytes():
            lines.append(f"{file}: holds something else")
    return lines


def pixels_apart(one, other):
    """Share of pixels that differ; 1 if the sizes differ."""
    first, second = (Image.open(file).convert("RGBA") for file in (one, other))
    if first.size != second.size:
        return 1.0
    apart = np.asarray(ImageChops.difference(first, second))
    return float((apart.max(axis=-1) > LEVELS).mean())


def pages_of(pdf):
    """Number of pages of a PDF made by typst."""
    return len(re.findall(rb"/Type\s*/Page\b", pdf.read_bytes()))
