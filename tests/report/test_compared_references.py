"""results/reference has its hashes; two references are compared file by file."""

import numpy as np
import pytest
from PIL import Image

from fathom_study.report.integrity.kept import SUMS
from fathom_study.report.integrity.kept import differences as differences_of_kept
from tests.reference.rendering import (
    differences,
    kept,
)


def test_reference_has_its_recorded_hashes(committed):
    assert list(differences_of_kept(committed)) == []
    recorded = (committed / SUMS).read_text(encoding="utf-8").splitlines()
    assert len(recorded) > len(kept(committed))  # and the bundles


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
