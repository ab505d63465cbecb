"""Tracks of the board are frozen."""

import csv
from pathlib import Path

import pytest

from fathom_study.board.track import TRACKS, Track, load_track, open_track, track_names
from fathom_study.config import ConfigError

HASHES = {
    "quick": "37e7f1a65f83ba6b",
    "standard": "3c2d43a7b8abc8a0",
    "long": "24b0be863e91cecd",
    "code": "6e730b2e0f62bbd2",
}
"""A changed number of an open track makes another track: give it another name."""

SPECS = Path(__file__).parents[1] / "training" / "spec_hashes.csv"


def test_no_frozen_track_has_changed():
    found = {name: load_track(name) for name in track_names()}
    assert {name: track.hash for name, track in found.items() if not track.closed} == HASHES
    assert {name for name, track in found.items() if track.closed} == {"gpu"}


@pytest.mark.parametrize("name", list(HASHES))
def test_a_track_beside_the_kept_result_trains_its_specs(name):
    """So kept runs of the plain network count for the track."""
    track = load_track(name)
    with SPECS.open(encoding="utf-8") as file:
        kept = {row["cell"]: row["spec_hash"] for row in csv.DictReader(file)}
    here = [cell for cell in track.plain_cells() if f"reference/{cell}" in kept]
    assert len(here) >= 15
    for cell in here:
        assert track.spec(cell).hash() == kept[f"reference/{cell}"]


def test_a_hash_changes_with_the_settings_and_not_with_the_words():
    track = load_track("quick")

    def changed(**fields):
        return Track.model_validate({**track.model_dump(), **fields}).hash

    assert changed(title="Other", about="Other words.", minutes=1) == track.hash
    assert changed(study={"quick": {**track.study["quick"], "steps": 301}}) != track.hash
    assert changed(date="2027-01-01") != track.hash


def test_an_unknown_and_a_closed_track_are_refused_in_one_line():
    with pytest.raises(ConfigError, match=r"unknown track 'standrd'; did you mean 'standard'\?"):
        open_track("standrd")
    with pytest.raises(ConfigError, match="track gpu: is not open: no network was trained"):
        open_track("gpu")
    assert TRACKS.is_dir()
