"""results/reference: a copy of the project that renders it anew; how two results are compared."""

import re
import shutil
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from command_helpers import finished
from fathom.config import installed_backends
from grid_helpers import PROJECT, copy_parts

REFERENCE = Path("results/reference")
PRESET = "workflow/presets/reference.yaml"
BUNDLES = "bundles"
PARTS = ("src", "workflow", "report", "docs", "envs", "benchmarks", "config.yaml", "Makefile")
"""Of the project, what rendering needs."""

MAX_BYTES = 95 * 10**6
"""Of all of the reference, which a clone has to fetch: results on counting took 40, and five seeds
of each released design took seven, of all sizes on text five, and AltUp in the longest trainings
the last five."""

MAX_PAGE_BYTES = 8 * 10**6
"""Of its page, which opens at once and is sent as one file."""

MAX_PAPER_PAGES = 10
"""Of its paper, which is read in one sitting: what is longer belongs into the reports."""

LEVELS = 40
"""Of 255: a pixel of a picture differs if a channel does by more."""
MOST_PIXELS = 1e-3
"""The share of pixels that may differ.

The tables are the same bytes, so the pictures show the same numbers. What is left to a processor is
the last digit of where something is drawn. It shades the edges of lines and letters otherwise, by a
few levels, and may move a label by one pixel: some hundred pixels of half a million. A curve that
moves changes more than that, and so does anything larger.
"""


def copy_of_project(folder, bundles):
    """The project in an empty folder, with these bundles as its reference."""
    copy_parts(folder, PARTS)
    shutil.copytree(bundles, folder / REFERENCE / BUNDLES)
    if (PROJECT / "data").is_dir():
        (folder / "data").symlink_to(PROJECT / "data")


def run(folder, *command):
    """What a command said in a folder, by the program of that folder; its exit status first."""
    done = finished(*command, folder=folder, PYTHONPATH=str(folder / "src"))
    return done.returncode, done.stdout + done.stderr


def make_reference(folder):
    """`make reference` in a copy, with page and paper, this interpreter and its packages.

    A sample of the runs is replayed.
    """
    python, script = sys.executable, PROJECT / "tests/replay_sample.py"
    # Runs of text and images are repeated where their data can be had, as the workflow does it.
    fetch = f"{{ {python} -m fathom fetch || true; }}"
    samples = (f"{python} {script} {name} config.yaml {PRESET}" for name in installed_backends())
    sample = " && ".join((fetch, *samples))
    programs = (f"BIN={Path(python).parent}", f"REPLAY={sample}", "ALSO=page paper")
    return run(folder, "make", "-o", ".venv/.complete", "reference", *programs)


def kept(reference):
    """The files of a reference that .gitignore does not leave out, but for its bundles."""
    folders = [reference / name for name in ("studies", "figures")]
    files = [*reference.glob("*.md"), *reference.glob("tables/*")]
    files += [file for folder in folders for file in folder.rglob("*")]
    return {
        file.relative_to(reference)
        for file in files
        if file.is_file() and file.suffix != ".svg" and file.name != "figures.json"
    }


def differences(committed, rendered):
    """What differs between two references, in a line for each file."""
    ours, theirs = kept(committed), kept(rendered)
    found = [f"{file}: is there, and is not made" for file in sorted(ours - theirs)]
    found += [f"{file}: is made, and is not there" for file in sorted(theirs - ours)]
    for file in sorted(ours & theirs):
        if file.suffix == ".png":
            share = pixels_apart(committed / file, rendered / file)
            if share > MOST_PIXELS:
                found.append(f"{file}: {share:.2%} of its pixels differ")
        elif (committed / file).read_bytes() != (rendered / file).read_bytes():
            found.append(f"{file}: holds something else")
    return found


def pixels_apart(one, other):
    """The share of pixels that differ; all of them where the sizes do."""
    pictures = []
    for file in (one, other):
        with Image.open(file) as picture:
            pictures.append(np.asarray(picture.convert("RGBA"), np.int16))
    if pictures[0].shape != pictures[1].shape:
        return 1.0
    return float((abs(pictures[0] - pictures[1]).max(axis=-1) > LEVELS).mean())


def pages_of(pdf):
    """How many pages a PDF has, as typst writes it."""
    return len(re.findall(rb"/Type\s*/Page\b", pdf.read_bytes()))


def size_of(folder):
    """Bytes of all that a reference keeps in git."""
    files = [folder / file for file in kept(folder)] + sorted((folder / BUNDLES).rglob("*"))
    return sum(file.stat().st_size for file in files if file.is_file())
