"""A kept result: an edit of it is found, and a bundle that was refused is said to be so."""

import pytest

from fathom.report.kept import SUMS, differences, record
from fathom.runs.bundle import create_bundle, refused_bundles
from fathom.system.errors import UserError
from run_helpers import config_with, write_cell

FILES = ("RESULTS.md", "studies/a.md", "tables/verdicts.csv", "figures/a/torch/loss.png",
         "bundles/gpu.tar.xz")  # fmt: skip


@pytest.fixture
def kept(tmp_path):
    """A kept result with a file of each kind, recorded, and some that are not kept."""
    others = ("tables/studies/a/summary.csv", "figures/a/torch/loss.svg", "runs/a/spec.json")
    for name in (*FILES, *others):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert record(tmp_path) == len(FILES)
    return tmp_path


def test_what_was_recorded_is_as_it_was(kept):
    assert list(differences(kept)) == []
    (kept / "tables/studies/a/summary.csv").write_text("made again")
    assert list(differences(kept)) == []


@pytest.mark.parametrize("name", FILES)
def test_an_edit_is_named(kept, name):
    (kept / name).write_text("39 reproduced")
    assert list(differences(kept)) == [(kept / name, f"is not what {SUMS} recorded")]


@pytest.mark.parametrize("name", ["studies/b.md", "bundles/mac.tar.xz"])
def test_one_too_few_and_one_too_many_are_named(kept, name):
    beside = "studies/a.md" if name.startswith("studies") else "bundles/gpu.tar.xz"
    (kept / beside).rename(kept / name)
    assert dict(differences(kept)) == {
        kept / beside: f"missing, but {SUMS} lists it",
        kept / name: f"is not among the files that {SUMS} lists",
    }


@pytest.mark.parametrize("text", [None, "nonsense\n", b"\xff\xfe"])
def test_without_a_list_nothing_is_trusted(kept, text):
    (kept / SUMS).unlink()
    if text is not None:
        (kept / SUMS).write_bytes(text if isinstance(text, bytes) else text.encode())
    ((file, why),) = differences(kept)
    assert file == kept / SUMS
    assert why.endswith(f"run: fathom record {kept}")


def test_a_folder_without_a_result_is_not_recorded(tmp_path):
    with pytest.raises(UserError, match="holds no result"):
        record(tmp_path)
    ((_, why),) = differences(tmp_path / "gone")
    assert "is no folder, but the config names it as `reference`" in why


# --- a bundle that was refused -------------------------------------------------------------------


@pytest.fixture
def received(tmp_path, monkeypatch):
    """A folder with a config and a whole bundle, of which nothing is imported yet."""
    monkeypatch.chdir(tmp_path)
    there = config_with("there", ("a",), variants=["mhc"], depths=[2], backends=["torch"])
    for cell in there.cells():
        write_cell(there, cell, [4.0, 2.0, 1.0])
    create_bundle(there, tmp_path / "a.tar.xz")
    config = there.model_copy(update={"results": "results"})
    (tmp_path / "config.yaml").write_text(config.model_dump_json())
    return tmp_path


def test_a_truncated_bundle_is_remembered_until_it_is_whole(received, fathom):
    whole = (received / "a.tar.xz").read_bytes()
    (received / "a.tar.xz").write_bytes(whole[: len(whole) // 2])
    status, _, errors = fathom("bundle", "import", "a.tar.xz", "gone.tar.xz")
    assert (status, len(errors)) == (1, 2)
    (line,) = refused_bundles(received / "results")
    assert line.startswith("a.tar.xz: not a whole tar packed by xz")
    (received / "results/RESULTS.md").write_text("made without it")
    with pytest.raises(UserError, match="put the whole bundle in its place"):
        record(received / "results")
    (received / "a.tar.xz").write_bytes(whole)
    assert fathom("bundle", "import", "a.tar.xz")[0] == 0
    assert refused_bundles(received / "results") == []
    assert record(received / "results") == 1
