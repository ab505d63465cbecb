"""Kept results: edits are named, and refused bundles are reported."""

import pytest

from fathom.system.errors import UserError
from fathom_study.report.integrity.kept import SUMS, differences, record
from fathom_study.runs.bundle import create_bundle, refused_bundles
from tests.support.runs import config_with, write_cell

FILES = ("RESULTS.md", "studies/a.md", "tables/verdicts.csv", "figures/a/torch/loss.png",
         "bundles/gpu.tar.xz")  # fmt: skip


@pytest.fixture
def kept(tmp_path):
    """Recorded kept result with a file of each kind, and some files that are not recorded."""
    others = ("tables/studies/a/summary.csv", "figures/a/torch/loss.svg", "runs/a/spec.json")
    for name in (*FILES, *others):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert record(tmp_path) == len(FILES)
    return tmp_path


def test_a_recorded_result_has_no_differences(kept):
    assert list(differences(kept)) == []
    (kept / "tables/studies/a/summary.csv").write_text("made again")
    assert list(differences(kept)) == []


@pytest.mark.parametrize("name", FILES)
def test_an_edited_file_is_named(kept, name):
    (kept / name).write_text("39 reproduced")
    assert list(differences(kept)) == [(kept / name, f"does not match {SUMS}")]


@pytest.mark.parametrize("name", ["studies/b.md", "bundles/mac.tar.xz"])
def test_missing_and_additional_files_are_named(kept, name):
    beside = "studies/a.md" if name.startswith("studies") else "bundles/gpu.tar.xz"
    (kept / beside).rename(kept / name)
    assert dict(differences(kept)) == {
        kept / beside: f"missing, but {SUMS} lists it",
        kept / name: f"is not listed in {SUMS}",
    }


@pytest.mark.parametrize("text", [None, "nonsense\n", b"\xff\xfe"])
def test_a_missing_or_invalid_list_of_hashes_is_a_difference(kept, text):
    (kept / SUMS).unlink()
    if text is not None:
        (kept / SUMS).write_bytes(text if isinstance(text, bytes) else text.encode())
    ((file, why),) = differences(kept)
    assert file == kept / SUMS
    assert why.endswith(f"run: python benchmarks/record.py {kept}")


def test_a_folder_without_a_result_is_not_recorded(tmp_path):
    with pytest.raises(UserError, match="contains no result"):
        record(tmp_path)
    ((_, why),) = differences(tmp_path / "gone")
    assert "is not a folder, but the config names it as `reference`" in why


# --- refused bundles -----------------------------------------------------------------------------


def test_a_truncated_bundle_is_remembered_until_it_is_whole(tmp_path, monkeypatch, fathom):
    monkeypatch.chdir(tmp_path)
    there = config_with("there", ("a",), variants=["mhc"], depths=[2], backends=["torch"])
    for cell in there.cells():
        write_cell(there, cell, [4.0, 2.0, 1.0])
    file, results = tmp_path / "a.tar.xz", tmp_path / "results"
    create_bundle(there, file)
    config = there.model_copy(update={"results": "results"})
    (tmp_path / "config.yaml").write_text(config.model_dump_json())
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    status, _, errors = fathom("bundle", "import", "a.tar.xz", "gone.tar.xz")
    assert (status, len(errors)) == (1, 2)
    (line,) = refused_bundles(results)
    assert line.startswith("a.tar.xz: not an intact .tar.xz file")
    (results / "RESULTS.md").write_text("made without it")
    with pytest.raises(UserError, match="replace it with the whole bundle"):
        record(results)
    file.write_bytes(whole)
    assert fathom("bundle", "import", "a.tar.xz")[0] == 0
    assert refused_bundles(results) == []
    assert record(results) == 1
