"""results/reference: its bundles render to the committed files, and a sample of runs replays."""

import json
import sys

import numpy as np
import pytest
from PIL import Image

from fathom_study.analysis.platforms import device_of
from fathom_study.config import load_config
from fathom_study.report.integrity.kept import SUMS
from fathom_study.report.integrity.kept import differences as differences_of_kept
from fathom_study.runs.folder import MANIFEST
from fathom_study.spec import Cell
from reference_helpers import (
    BUNDLES,
    MAX_PAGE_BYTES,
    MAX_PAPER_PAGES,
    PRESET,
    PROJECT,
    REFERENCE,
    copy_of_project,
    differences,
    kept,
    make_reference,
    pages_of,
    run,
)


def fathom(folder, *arguments):
    """(exit status, output) of a command with the preset of the reference."""
    command = (sys.executable, "-m", "fathom_study", *arguments, "-c", "config.yaml", "-c", PRESET)
    return run(folder, *command)


def config():
    return load_config([PROJECT / "config.yaml", PROJECT / PRESET])


# --- the reference itself ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def committed():
    folder = PROJECT / REFERENCE
    if not (folder / BUNDLES).is_dir():
        pytest.skip(f"there is no {REFERENCE / BUNDLES} in this checkout")
    return folder


@pytest.fixture(scope="module")
def rendered(committed, tmp_path_factory):
    """A copy of the project after `make reference`, which replays a sample of the runs."""
    folder = tmp_path_factory.mktemp("reference")
    copy_of_project(folder, committed / BUNDLES)
    status, said = make_reference(folder)
    assert status == 0, said
    return folder


@pytest.mark.reference
def test_bundles_render_to_the_committed_files(committed, rendered):
    assert len(kept(committed)) > len(config().studies)
    assert differences(committed, rendered / REFERENCE) == []


@pytest.mark.reference
def test_every_run_of_the_bundles_counts_and_todays_code_repeats_a_sample(rendered):
    """No run is corrupt, of another spec, or like a sampled run that today's code does not repeat.

    Runs of a device that is missing here are not repeated; all others are.
    """
    status, said = fathom(rendered, "status", "--json", "--set", "train=false")
    assert status == 0, said
    runs = [run for run in json.loads(said)["runs"] if run["status"] != "missing"]
    here = {"cpu", *(["cuda"] if pytest.importorskip("torch").cuda.is_available() else [])}

    def expected(run):
        is_here = device_of(run["platform"]) in here
        return "imported", "agrees" if is_here else "unavailable"

    wrong = [run for run in runs if (run["status"], run["replay"]) != expected(run)]
    assert wrong == []
    # Every cell of the config has a run. Some have two: contrasts compare runs of one platform, so
    # a variant that was added on another one brought its partners with it.
    cells = [Cell.parse(run["cell"]) for run in runs]
    assert set(cells) == set(config().cells())
    assert {cell.backend for cell in cells} == {"torch", "mlx"}
    # Every imported run has a cell in the config; no table would show another run.
    assert len(runs) == len(list((rendered / REFERENCE / "imported").rglob(MANIFEST)))


def test_reference_has_its_recorded_hashes(committed):
    assert list(differences_of_kept(committed)) == []
    recorded = (committed / SUMS).read_text(encoding="utf-8").splitlines()
    assert len(recorded) > len(kept(committed))  # and the bundles


@pytest.mark.reference
def test_its_page_and_its_paper_stay_short(rendered):
    folder = rendered / REFERENCE
    assert (folder / "index.html").stat().st_size <= MAX_PAGE_BYTES
    assert 0 < pages_of(folder / "fathom.pdf") <= MAX_PAPER_PAGES


# --- comparison ----------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path):
    """Two equal references with every kind of file."""
    folders = tmp_path / "committed", tmp_path / "rendered"
    noise = np.random.default_rng(0).integers(0, 256, (100, 200, 3), np.uint8)
    for level, folder in enumerate(folders):
        for name in ("studies", "tables", "figures/a/torch", "imported/x"):
            (folder / name).mkdir(parents=True)
        (folder / "RESULTS.md").write_text("# Results\n")
        (folder / "studies/a.md").write_text("# a\n")
        (folder / "tables/summary.csv").write_text("n,mean\n3,0.5\n")
        Image.fromarray(noise).save(folder / "figures/a/torch/loss.png", compress_level=level)
        # Files that are not kept may differ.
        (folder / "tables/studies/a").mkdir(parents=True)
        (folder / "tables/studies/a/summary.csv").write_bytes(bytes([level]))
        (folder / "figures/a/torch/loss.svg").write_text(f"<svg id='{level}'/>")
        (folder / "figures/a/torch/figures.json").write_text(f"{level}")
        (folder / "imported/x/metrics.jsonl").write_text(f"{level}")
    return folders


@pytest.mark.parametrize("file", ["RESULTS.md", "studies/a.md", "tables/summary.csv"])
def test_changed_character_is_found(two, file):
    committed, rendered = two
    assert differences(committed, rendered) == []  # also if pictures are packed differently
    (rendered / file).write_text((rendered / file).read_text() + " ")
    assert differences(committed, rendered) == [f"{file}: holds something else"]


def test_extra_and_missing_files_are_found(two):
    committed, rendered = two
    (rendered / "studies/a.md").rename(rendered / "studies/b.md")
    (committed / "tables/old.txt").write_text("")
    assert differences(committed, rendered) == [
        "studies/a.md: is there, and is not made",
        "tables/old.txt: is there, and is not made",
        "studies/b.md: is made, and is not there",
    ]


@pytest.mark.parametrize(
    ("change", "is_found"),
    [
        (lambda p: np.clip(p.astype(int) + 30, 0, 255), False),  # shades
        (lambda p: np.where(np.arange(p.size).reshape(p.shape) < 30, 255 - p, p), False),  # a spot
        (lambda p: np.vstack([255 - p[:1], p[1:]]), True),  # a line
        (lambda p: p[:-1], True),  # another size
    ],
)
def test_pictures_differ_by_lines_and_sizes_not_by_shades(two, change, is_found):
    committed, rendered = two
    file = rendered / "figures/a/torch/loss.png"
    with Image.open(file) as picture:
        changed = change(np.asarray(picture)).astype(np.uint8)
    Image.fromarray(changed).save(file)
    assert bool(differences(committed, rendered)) == is_found
