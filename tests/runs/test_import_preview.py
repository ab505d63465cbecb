"""`fathom bundle check`: a dry run of an import, with hand-made runs."""

from pathlib import Path

import pytest

from fathom_study.runs.bundle import create_bundle, import_bundle
from fathom_study.runs.import_preview import preview_import
from tests.support.runs import CPU_PLATFORM, config_with, read_manifest, write_cell, write_manifest

LOSSES = [4.0, 2.0, 1.0]
SIZES = {"depths": [4], "variants": ["mhc"], "backends": ["torch"]}


@pytest.fixture
def here(tmp_path):
    """The config of the machine where the bundle arrives."""
    return config_with(tmp_path / "here", **SIZES)


@pytest.fixture
def packed(tmp_path):
    """Function that makes a bundle, with changed facts, of the three cells of another machine."""
    there = config_with(tmp_path / "there", **SIZES)

    def pack(name="b.tar.xz", **facts):
        for cell in there.cells():
            folder = write_cell(there, cell, LOSSES)
            write_manifest(folder, {**read_manifest(folder), **facts})
        create_bundle(there, tmp_path / name)
        return tmp_path / name

    return pack


def outcomes(config, file):
    return [(p.cell.seed, p.outcome, p.reason) for p in preview_import(config, file)]


def test_outcomes_of_runs_depend_on_config_and_current_code(here, packed, tmp_path, monkeypatch):
    file = packed()
    previews = preview_import(here, file)
    assert [(p.cell.seed, p.platform, p.outcome) for p in previews] == [
        (seed, CPU_PLATFORM, "counts") for seed in (0, 1, 2)
    ]
    assert not (tmp_path / "here").exists()

    other_numbers = config_with(tmp_path / "here", **SIZES, a={"optimizer": {"lr": 0.5}})
    assert outcomes(other_numbers, file) == [
        (seed, "left out", "spec differs: optimizer.lr 0.002 → 0.5") for seed in (0, 1, 2)
    ]
    fewer = config_with(tmp_path / "here", **SIZES, seeds=[2])
    results = [outcome for _, outcome, _ in outcomes(fewer, file)]
    assert results == ["not asked for", "not asked for", "counts"]

    other_code = {"fathom_study.train:train": "of today"}
    monkeypatch.setattr("fathom_study.runs.validate.training_code", lambda spec: other_code)
    for _, outcome, reason in outcomes(here, file):
        assert outcome == "replay"
        assert reason.startswith("code differs: ")


def test_a_damaged_bundle_in_the_results_is_ignored(here, packed):
    file, kept = packed(), Path(here.results, "bundles/damaged.tar.xz")
    kept.parent.mkdir(parents=True)
    kept.write_bytes(file.read_bytes()[:100])
    assert {outcome for _, outcome, _ in outcomes(here, file)} == {"counts"}


def test_imported_runs_and_other_runs_of_a_cell_are_distinguished(here, packed):
    file = packed()
    import_bundle(Path(here.results), file)
    assert {outcome for _, outcome, _ in outcomes(here, file)} == {"same"}
    assert {outcome for _, outcome, _ in outcomes(here, packed("other.tar.xz", threads=7))} == {
        "another"
    }
