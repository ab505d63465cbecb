"""Table rows that the drawing commands select, and titles and hashes of their figures."""

import itertools

import pandas as pd
import pytest

from fathom_study.analysis import worth
from fathom_study.analysis.platforms import Platform, labels_of
from fathom_study.report.drawing import draw
from fathom_study.report.drawing.figure_manifest import read_figure_manifest
from tests.support.runs import GPU_PLATFORM, config_with
from tests.support.tables import curve, frame, run, save_by_study

PLATFORMS = {
    "torch": {},
    "mlx": {"backend": "mlx"},
    f"torch-{GPU_PLATFORM}": {"machine": GPU_PLATFORM},
    "torch-another-gpu": {"machine": "another-gpu"},
    "study b": {"study": "b"},
}


CELLS = "cells.csv"


@pytest.fixture
def config(tmp_path):
    images = {"task": "fashion", "variants": ["mhc_causal"], "model": {"width": 8}}
    return config_with(tmp_path / "results", ("a", "images"), images=images)


@pytest.fixture
def tables(tmp_path):
    """Folder of tables; the loss on each platform is its position in PLATFORMS."""
    rows = PLATFORMS.values()
    frames = {
        "steps.csv.gz": frame(*(curve([float(i)], **axes) for i, axes in enumerate(rows))),
        CELLS: frame(
            *(run(loss_final=float(i), **axes) for i, axes in enumerate(PLATFORMS.values()))
        ),
    }
    save_by_study(frames, tmp_path, ("a", "images"))
    return tmp_path


@pytest.fixture
def drawn(monkeypatch):
    """Recorded calls: (figure names, title, data) of drawing, then the arguments of `keep`."""
    calls = []

    def draw_figures(declared, title="", labels=None, depth_unit="layer", **data):
        calls.append(([figure.name for figure in declared], title, data))
        return {"one": "a figure"}

    monkeypatch.setattr(draw, "draw_figures", draw_figures)
    monkeypatch.setattr(draw, "keep", lambda *given: calls.append(given))
    return calls


def test_platform_names_include_machine_labels_if_machines_differ():
    names = ["torch-cpu-a-linux", "mlx-cuda-b-linux", "torch"]
    labels = labels_of(names, {"cpu-a-linux": "an A"})
    assert [labels[name] for name in names] == ["PyTorch on an A", "MLX on cuda-b-linux", "PyTorch"]
    assert labels_of(names[:1], {"cpu-a-linux": "an A"})[names[0]] == "PyTorch"


@pytest.mark.parametrize(
    ("platform", "title"),
    [("torch", "a (PyTorch)"), (f"torch-{GPU_PLATFORM}", f"a (PyTorch on {GPU_PLATFORM})")],
)
def test_a_study_is_of_one_platform(config, tables, drawn, tmp_path, platform, title):
    draw.draw_study(config, "a", Platform.parse(platform), tables, tmp_path / "figures")
    (names, shown, data), kept = drawn
    assert (names[0], shown) == ("loss", title)
    value = list(PLATFORMS).index(platform)
    assert data["steps"]["loss"].tolist() == [value]
    assert data["cells"]["loss_final"].tolist() == [value]
    assert data["score"].metric == "exact_loss"
    of = f"a on {platform}"
    inputs = tuple(tables / "studies/a" / name for name in (CELLS, "steps.csv.gz"))
    assert kept == ({"one": "a figure"}, tmp_path / "figures", of, inputs)


def test_ladder_runs_are_drawn_only_in_the_ladder_figure(drawn, tmp_path):
    config = config_with(tmp_path / "results", a={"ladder": {"baseline": [0.5]}})
    labels = ("baseline", "baseline_x050", "mhc")
    cells = frame(*(run(variant=label, loss_final=1.0) for label in labels))
    frames = {
        "steps.csv.gz": frame(*(curve([1.0], variant=label) for label in ("baseline", "mhc"))),
        CELLS: cells,
        "worth.csv": pd.DataFrame(columns=worth.COLUMNS),
    }
    save_by_study(frames, tmp_path, ("a",))
    names = ["ladder", "score", "loss"]
    draw.draw_study(config, "a", Platform("torch"), tmp_path, tmp_path / "figures", names)
    data = drawn[0][2]
    assert {*data["cells"]["variant"]} == {"baseline", "mhc"}
    ladder = data["ladder"][["variant", "factor"]].itertuples(index=False, name=None)
    assert [*ladder] == [("baseline", 1), ("baseline", 0.5)]


MISTAKES = {
    ("--study", "b2"): "unknown study 'b2' (known: a, images)",
    ("--study", "images"): "studies/images: unknown platform 'torch' (known: )",
    ("--platform", ""): "--study and --platform belong together",
    ("--platform", "jax"): "studies/a: unknown platform 'jax'",
    ("--platform", "torch-nowhere"): "unknown platform 'torch-nowhere'",
    ("--only", "los"): "unknown figure or metric 'los'; did you mean 'loss'?",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_prints_one_line_and_draws_nothing(config, tables, tmp_path, fathom, mistake):
    file = tmp_path / "config.json"
    file.write_text(config.model_dump_json(), encoding="utf-8")
    options = {"--tables": tables, "--study": "a", "--platform": "torch"}
    options |= {"--out": tmp_path / "figures", "--config": file} | dict([mistake])
    status, _, (line,) = fathom("figures", *itertools.chain(*options.items()))
    assert (status, MISTAKES[mistake] in line) == (1, True), line
    assert not (tmp_path / "figures").exists()


def test_figures_are_kept_with_the_hashes_of_their_inputs(config, tables, tmp_path):
    """Hashes are of unpacked content, because versions of zlib pack it differently."""
    out = tmp_path / "figures"
    draw.draw_study(config, "a", Platform("torch"), tables, out, ["loss"])
    manifest = read_figure_manifest(out)
    assert set(manifest.files) == {"loss.png", "loss.svg"} == {p.name for p in out.glob("loss.*")}
    inputs = [tables / "studies/a" / name for name in ("steps.csv.gz", CELLS)]
    assert manifest.why_other("a on torch", inputs) == ""
    assert manifest.why_other("a on mlx", inputs) == "belongs to 'a on torch', not to 'a on mlx'"
    inputs[1].write_text("another", encoding="utf-8")
    why = manifest.why_other("a on torch", inputs)
    assert why == "its figures were drawn from another cells.csv"
