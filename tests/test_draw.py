"""Which rows of the tables the commands that draw choose, and what they call the figures."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save_file

from command_helpers import exit_status
from fathom.analysis.effects import COLUMNS
from fathom.analysis.places import Place
from fathom.analysis.tables import save_tables, summary_table
from fathom.config import Cell
from fathom.report import draw
from run_helpers import GPU_PLATFORM, config_with, write_cell
from tables_helpers import curve, frame, run

THERE = {"platform": GPU_PLATFORM, "origin": "imported"}
OTHER = {"platform": "another-gpu", "origin": "imported"}
PLACES = {
    "here": {},
    "mlx": {"backend": "mlx"},
    "there": THERE,
    "other": OTHER,
    "study b": {"study": "b"},
}


@pytest.fixture
def tables(tmp_path):
    """(steps, summary, effects): every place's loss is its position in PLACES."""
    steps, cells = [], []
    for loss, axes in enumerate(PLACES.values()):
        steps += curve([float(loss)], **axes)
        status = "imported" if "origin" in axes else "measured"
        cells.append(run(loss_final=float(loss), status=status, **axes))
    found = {
        "steps.csv.gz": frame(steps),
        "summary.csv": summary_table(frame(cells)),
        "effects.csv": pd.DataFrame(columns=COLUMNS),
    }
    save_tables(found, tmp_path)
    return tuple(tmp_path / name for name in found)


@pytest.fixture
def drawn(monkeypatch):
    """What was given to be drawn: (family, title, data), and how it was kept."""
    found = []

    def draw_family(family, title="", only=(), **data):
        found.append((family, title, data))
        return {"one": "a figure"}

    monkeypatch.setattr(draw, "draw_family", draw_family)
    monkeypatch.setattr(draw, "keep", lambda *given: found.append(given))
    return found


@pytest.mark.parametrize(
    ("place", "chosen", "title"),
    [
        (Place.named("torch"), "here", "a on torch"),
        (Place.named("mlx"), "mlx", "a on mlx"),
        (Place.named("torch", GPU_PLATFORM), "there", f"a on torch, {GPU_PLATFORM}"),
        (Place.named("torch", "another-gpu"), "other", "a on torch, another-gpu"),
    ],
)
def test_a_study_is_drawn_from_the_rows_of_one_place(tables, drawn, tmp_path, place, chosen, title):
    draw.draw_study("a", "sweep", place, tables, tmp_path / "runs", tmp_path / "figures")
    (family, shown, data), kept = drawn
    assert (family, shown) == ("sweep", title)
    value = list(PLACES).index(chosen)
    assert data["steps"]["loss"].tolist() == [value]
    assert data["summary"]["loss_final_mean"].tolist() == [value]
    assert data["mixing"] == {}  # no figure of a sweep reads it, and no run need be there
    assert kept == ({"one": "a figure"}, tmp_path / "figures", title, tables)


def test_mixing_is_read_where_a_figure_of_the_family_reads_it(tables, drawn, tmp_path):
    matrix = np.full((2, 2), 0.5, np.float32)
    folder = tmp_path / "runs" / Cell("a", 8, "mhc", "torch", 0).path()
    folder.mkdir(parents=True)
    save_file({"mixing": matrix, "weights": matrix}, folder / "mixing.safetensors")
    draw.draw_study("a", "image", Place.named("torch"), tables, tmp_path / "runs", tmp_path)
    (_, _, data), _ = drawn
    assert list(data["mixing"]) == ["mhc"]
    np.testing.assert_array_equal(data["mixing"]["mhc"].matrix, matrix)


def test_only_the_figures_that_are_named_are_drawn_and_read_for(tables, tmp_path, monkeypatch):
    """No run need be there where the figure of what they learned is not drawn."""
    seen = []
    monkeypatch.setattr(draw, "draw_family", lambda *given, **_: seen.append(given) or {})
    monkeypatch.setattr(draw, "keep", lambda *_: None)
    place = Place.named("torch")
    draw.draw_study("a", "image", place, tables, tmp_path / "runs", tmp_path, ["comparison"])
    assert seen == [("image", "a on torch", ["comparison"])]


MISTAKES = {
    ("--study", "aa"): "unknown study and place 'aa on torch'; did you mean 'a on torch'? (known: "
    f"a on torch, a on mlx, a on torch, {GPU_PLATFORM}, a on torch, another-gpu, b on torch)",
    ("--backend", "jax"): "unknown study and place 'a on jax'",
    ("--platform", "nowhere"): "unknown study and place 'a on torch, nowhere'",
    ("--family", "sweeps"): "unknown family of figures 'sweeps'; did you mean 'sweep'?",
    ("--family", "style"): "unknown family of figures 'style'",
    ("--family", "overview"): "family 'overview' is of no study: it is drawn from cells",
    ("--only", "loss"): "unknown figure 'loss'",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_nothing_is_drawn(tables, tmp_path, capsys, mistake):
    options = dict(zip(("--steps", "--summary", "--effects"), map(str, tables), strict=True))
    options |= {"--study": "a", "--backend": "torch", "--out": str(tmp_path / "figures")}
    options |= dict([mistake])
    assert exit_status(["figures", *itertools.chain(*options.items())]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    file = "" if mistake[0] in ("--family", "--only") else f"{tables[0]}: "
    assert line.startswith(f"fathom: {file}{MISTAKES[mistake]}")
    assert not (tmp_path / "figures").exists()


def test_a_run_is_drawn_from_its_own_folder(drawn, tmp_path):
    config = config_with(tmp_path, variants=["mhc"], depths=[4], backends=["torch"], seeds=[2])
    (cell,) = config.cells()
    folder = write_cell(config, cell, [4.0, 2.0, 1.0])
    draw.draw_cell(folder, tmp_path / "figures")
    (family, title, data), (_, *kept) = drawn
    assert (family, title) == ("cell", cell.path())
    assert kept == [tmp_path / "figures", cell.path(), (folder / "metrics.jsonl",)]
    assert data["rows"]["loss"].tolist() == [4, 2, 1]
    assert set(data["rows"]["variant"]) == {"mhc"}
    assert set(data["rows"]["seed"]) == {2}
    vocab = config.studies[cell.study].model.vocab
    assert data["rows"]["chance_loss"].tolist() == pytest.approx([math.log(vocab)] * 3)


def test_overview_and_bench_are_drawn_from_their_tables(drawn, tmp_path):
    names = ("runs", "variance", "published")
    save_tables(
        {f"{name}.csv": pd.DataFrame({"value": [n]}) for n, name in enumerate(names)}, tmp_path
    )
    sources = tuple(tmp_path / f"{name}.csv" for name in names)
    draw.draw_overview(*sources, tmp_path / "over")
    (family, _, data), (_, *kept) = drawn
    assert family == "overview"
    assert kept == [tmp_path / "over", "overview", sources]
    assert {name: table["value"].tolist() for name, table in data.items()} == {
        "cells": [0], "variance": [1], "published": [2],
    }  # fmt: skip
    drawn.clear()
    draw.draw_bench(tmp_path / "variance.csv", tmp_path / "speed/mine.png")
    (family, _, data), kept = drawn
    assert (family, data["bench"]["value"].tolist()) == ("bench", [1])
    assert kept == ({"mine": "a figure"}, tmp_path / "speed", "bench", sources[1:2])
