"""Which rows of the tables the commands that draw choose, and what they call the figures."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save_file

from command_helpers import exit_status
from fathom.analysis import effective_depth
from fathom.analysis.effects import COLUMNS
from fathom.analysis.platforms import Platform
from fathom.analysis.run_tables import summary_table
from fathom.analysis.tables import COLUMNS as REQUIRED
from fathom.analysis.tables import TableError, save_tables
from fathom.config import Cell
from fathom.report import draw
from fathom.report.figure_manifest import read_figure_manifest
from run_helpers import GPU_PLATFORM, config_with, write_cell
from tables_helpers import curve, frame, run, save_by_study

PLATFORMS = {
    "torch": {},
    "mlx": {"backend": "mlx"},
    f"torch-{GPU_PLATFORM}": {"machine": GPU_PLATFORM},
    "torch-another-gpu": {"machine": "another-gpu"},
    "study b": {"study": "b"},
}


DEPTHS, CELLS = "effective_depth.csv", "cells.csv"


@pytest.fixture
def config(tmp_path):
    images = {"task": "fashion", "variants": ["mhc_causal"], "model": {"width": 8}}
    return config_with(tmp_path / "results", ("a", "images"), images=images)


@pytest.fixture
def tables(tmp_path):
    """The folder of tables: the loss on every platform is its position in PLATFORMS."""
    rows = enumerate(PLATFORMS.values())
    found = {
        "steps.csv.gz": frame(*(curve([float(i)], **axes) for i, axes in rows)),
        "summary.csv": summary_table(
            frame(*(run(loss_final=float(i), **axes) for i, axes in enumerate(PLATFORMS.values())))
        ),
        "effects.csv": pd.DataFrame(columns=COLUMNS),
    }
    others = {DEPTHS: pd.DataFrame(columns=effective_depth.COLUMNS),
              CELLS: frame(*(run(**axes) for axes in PLATFORMS.values()))}  # fmt: skip
    save_by_study(found | others, tmp_path, ("a", "images"))
    return tmp_path


@pytest.fixture
def drawn(monkeypatch):
    """What was given to be drawn: (names, title, data), and how it was kept."""
    found = []

    def draw_figures(declared, title="", labels=None, depth_unit="layer", **data):
        found.append(([figure.name for figure in declared], title, data))
        return {"one": "a figure"}

    monkeypatch.setattr(draw, "draw_figures", draw_figures)
    monkeypatch.setattr(draw, "keep", lambda *given: found.append(given))
    return found


@pytest.mark.parametrize(
    ("platform", "title"),
    [
        ("torch", "a (PyTorch)"),
        ("mlx", "a (MLX)"),
        (f"torch-{GPU_PLATFORM}", f"a (PyTorch, {GPU_PLATFORM})"),
        ("torch-another-gpu", "a (PyTorch, another-gpu)"),
    ],
)
def test_a_study_is_drawn_from_the_rows_of_one_platform(
    config, tables, drawn, tmp_path, platform, title
):
    draw.draw_study(config, "a", Platform.parse(platform), tables, tmp_path / "figures")
    (names, shown, data), kept = drawn
    assert (names[0], shown) == ("loss_comparison", title)
    value = list(PLATFORMS).index(platform)
    assert data["steps"]["loss"].tolist() == [value]
    assert data["summary"]["loss_final_mean"].tolist() == [value]
    assert data["score"].metric == "exact_loss"
    assert data["mixing"] == {}  # none of its figures reads it, and no run need be there
    of = f"a on {platform}"
    inputs = tuple(tables / "studies/a" / name for name in (*draw.STUDY_TABLES, DEPTHS, CELLS))
    assert kept == ({"one": "a figure"}, tmp_path / "figures", of, inputs)


def test_a_study_is_judged_by_what_its_config_says(tables, drawn, tmp_path):
    config = config_with(tmp_path, ("a",), a={"score": "training_loss"})
    draw.draw_study(config, "a", Platform("torch"), tables, tmp_path)
    assert drawn[0][2]["score"].metric == "loss_tail"


def test_a_figure_of_times_is_drawn_from_their_table(config, tables, tmp_path):
    out = tmp_path / "figures"
    draw.draw_study(config, "a", Platform("torch"), tables, out, ["seconds"])
    own = tables / "studies/a"
    times, others = own / "times_summary.csv", [own / name for name in draw.STUDY_TABLES]
    assert (out / "seconds.png").stat().st_size > 1000
    listed, of = read_figure_manifest(out), "a on torch"
    assert listed.why_other(of, (*others, times)) == ""
    times.write_text(times.read_text() + "\n")
    assert "times_summary.csv" in listed.why_other(of, (*others, times))


def test_mixing_is_read_where_a_figure_reads_it(config, tables, drawn, tmp_path):
    matrix = np.full((2, 2), 0.5, np.float32)
    folder = tmp_path / "results/runs" / Cell("a", 8, "mhc", "torch", 0).path()
    folder.mkdir(parents=True)
    save_file({"mixing": matrix, "weights": matrix}, folder / "mixing.safetensors")
    names = ["mixing_matrix", "grad_norm"]
    draw.draw_study(config, "a", Platform("torch"), tables, tmp_path, names)
    (found, _, data), _ = drawn
    assert found == names
    assert list(data["mixing"]) == ["mhc"]
    np.testing.assert_array_equal(data["mixing"]["mhc"].matrix, matrix)


MISTAKES = {
    ("--study", "b2"): "unknown study 'b2' (known: a, images)",
    ("--study", "images"): "studies/images: unknown platform 'torch' (known: )",
    ("--platform", "jax"): "studies/a: unknown platform 'jax'",
    ("--platform", "torch-nowhere"): "unknown platform 'torch-nowhere'",
    ("--only", "los"): "unknown figure or metric 'los'; did you mean 'loss'?",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_nothing_is_drawn(config, tables, tmp_path, capsys, mistake):
    file = tmp_path / "config.json"
    file.write_text(config.model_dump_json(), encoding="utf-8")
    options = {"--tables": str(tables), "--study": "a", "--platform": "torch"}
    options |= {"--out": str(tmp_path / "figures"), "--config": str(file)} | dict([mistake])
    assert exit_status(["figures", *itertools.chain(*options.items())]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert MISTAKES[mistake] in line
    assert not (tmp_path / "figures").exists()


def test_a_run_is_drawn_from_its_own_folder(drawn, tmp_path):
    config = config_with(tmp_path, variants=["mhc"], depths=[4], backends=["torch"], seeds=[2])
    (cell,) = config.cells()
    folder = write_cell(config, cell, [4.0, 2.0, 1.0])
    draw.draw_cell(folder, tmp_path / "figures")
    (_, title, data), (_, *kept) = drawn
    assert title == cell.path()
    assert kept == [tmp_path / "figures", cell.path(), (folder / "metrics.jsonl",)]
    assert data["rows"]["loss"].tolist() == [4, 2, 1]
    row = data["rows"].iloc[0]
    vocab = config.studies[cell.study].model.vocab
    assert (row["variant"], row["depth"], row["seed"]) == ("mhc", 4, 2)
    assert row["chance_loss"] == pytest.approx(math.log(vocab))


def test_overview_and_bench_are_drawn_from_their_tables(config, drawn, tmp_path):
    names = ("runs", "variance", "published")
    tables = {
        f"{name}.csv": pd.DataFrame([dict.fromkeys(REQUIRED[table], "torch") | {"value": n}])
        for n, (name, table) in enumerate(zip(names, draw.OVERVIEW_TABLES, strict=True))
    }
    save_tables(tables, tmp_path)
    inputs = tuple(tmp_path / f"{name}.csv" for name in names)
    with pytest.raises(TableError, match=r"published\.csv: has no column 'recipe_share'"):
        draw.draw_overview(config, inputs[0], inputs[2], inputs[2], tmp_path / "over")
    draw.draw_overview(config, *inputs, tmp_path / "over")
    (_, _, data), (_, *kept) = drawn
    assert kept == [tmp_path / "over", "overview", inputs]
    scores, units = data.pop("scores"), data.pop("depth_units")
    assert units == {"a": "layer", "images": "layer"}
    assert {study: score.metric for study, score in scores.items()} == {
        "a": "exact_loss", "images": "test_accuracy",
    }  # fmt: skip
    assert {name: table["value"].tolist() for name, table in data.items()} == {
        "cells": [0], "variance": [1], "published": [2],
    }  # fmt: skip


def test_figures_are_kept_with_the_hashes_of_their_inputs(config, tables, tmp_path):
    """Of what is packed: another zlib packs it otherwise."""
    out = tmp_path / "figures"
    draw.draw_study(config, "a", Platform("torch"), tables, out, ["loss"])
    manifest = read_figure_manifest(out)
    assert set(manifest.files) == {"loss.png", "loss.svg"} == {p.name for p in out.glob("loss.*")}
    inputs = [tables / "studies/a" / name for name in draw.STUDY_TABLES]
    assert manifest.why_other("a on torch", inputs) == ""
    assert manifest.why_other("a on mlx", inputs) == "is of 'a on torch', not of 'a on mlx'"
    inputs[1].write_text("another", encoding="utf-8")
    why = manifest.why_other("a on torch", inputs)
    assert why == "its figures were drawn from another summary.csv"
