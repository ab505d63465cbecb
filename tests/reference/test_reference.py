"""results/reference: its bundles render to the committed files, and a sample of runs replays."""

import json
import sys

import pytest

from fathom_study.analysis.platforms import device_of
from fathom_study.config import load_config
from fathom_study.runs.folder import MANIFEST
from fathom_study.spec import Cell
from tests.reference.rendering import (
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


@pytest.fixture(scope="module")
def rendered(committed, tmp_path_factory):
    """A copy of the project after `make reference`, which replays a sample of the runs."""
    folder = tmp_path_factory.mktemp("reference")
    copy_of_project(folder, committed / BUNDLES)
    status, said = make_reference(folder)
    assert status == 0, said
    return folder


def test_bundles_render_to_the_committed_files(committed, rendered):
    assert len(kept(committed)) > len(config().studies)
    assert differences(committed, rendered / REFERENCE) == []


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


def test_its_page_and_its_paper_stay_short(rendered):
    folder = rendered / REFERENCE
    assert (folder / "index.html").stat().st_size <= MAX_PAGE_BYTES
    assert 0 < pages_of(folder / "fathom.pdf") <= MAX_PAPER_PAGES
