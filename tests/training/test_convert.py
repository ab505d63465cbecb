"""`fathom convert`: a trained plain network goes on with a connection, from the same loss."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from fathom_study.cli import main
from fathom_study.config import installed_backends
from fathom_study.runs.folder import WEIGHTS, read_rows, read_spec
from fathom_study.runs.training import run_cell
from fathom_study.runs.validate import validate_run
from tests.support.runs import flipped
from tests.support.specs import make_spec


@pytest.fixture(scope="module", params=installed_backends())
def run(request, tmp_path_factory):
    """A trained plain run."""
    sizes = {"vocab": 16, "width": 8, "heads": 2, "hidden": 16, "wrap": "sublayer", "depth": 2}
    spec = make_spec(
        variant="baseline", backend=request.param, steps=30, batch_size=8, weights=True, **sizes
    )
    folder = tmp_path_factory.mktemp("plain")
    run_cell(spec, folder)
    return folder


def converted(run, out, connection, steps=20):
    main(
        ["convert", str(run), "--connection", connection, "--steps", str(steps), "--out", str(out)]
    )
    return read_rows(out)


@pytest.mark.parametrize("connection", ["mhc_cycle", "{connection: hc_paper, streams: 2}"])
def test_converted_network_has_the_plain_loss_at_first_and_trains_on(run, tmp_path, connection):
    plain = converted(run, tmp_path / "plain", "plain")
    rows = converted(run, tmp_path / "streams", connection)
    assert rows[0]["loss"] == pytest.approx(plain[0]["loss"], rel=1e-6)
    untrained = read_rows(run)[0]["loss"]
    assert rows[0]["loss"] < untrained
    assert np.mean([row["loss"] for row in rows[-5:]]) < np.mean([row["loss"] for row in rows[:5]])
    spec = read_spec(tmp_path / "streams")
    assert validate_run(tmp_path / "streams", spec).status == "measured"
    weights = load_file(tmp_path / "streams" / WEIGHTS)
    assert {name for name in weights if not name.startswith("connection.")} == set(
        load_file(run / WEIGHTS)
    )


def test_spec_of_a_converted_run_names_its_weights_and_others_have_no_such_key(run, tmp_path):
    converted(run, tmp_path / "new", "mhc_cycle", steps=1)
    spec = json.loads((tmp_path / "new" / "spec.json").read_text())
    assert spec["initial"]["weights"] == str(run / WEIGHTS)
    assert "initial" not in json.loads((run / "spec.json").read_text())


def refused(fathom, *arguments):
    status, _, (line,) = fathom("convert", *arguments, "--steps", "1", "--out", "new")
    assert status == 1
    return line


def test_what_cannot_be_converted_is_refused(run, tmp_path, fathom, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "spec.json: missing" in refused(fathom, tmp_path, "--connection", "mhc_cycle")
    assert "use another connection" in refused(fathom, run, "--connection", "attn_res")
    assert "did you mean" in refused(fathom, run, "--connection", "mhc_cycl")
    Path("own.py").write_text("def own(x0, functions): ...")
    own = "{module: 'own.py:own'}"
    assert "an own module sets its initial values" in refused(fathom, run, "--connection", own)
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "spec.json").write_bytes((run / "spec.json").read_bytes())
    assert "weights: true" in refused(fathom, bare, "--connection", "mhc_cycle")
    converted(run, tmp_path / "new", "mhc_cycle", steps=1)
    assert "convert a plain run" in refused(fathom, tmp_path / "new", "--connection", "mhc_cycle")
    assert "run of another spec" in refused(fathom, run, "--connection", "hc_paper")
    (tmp_path / "new").rename(tmp_path / "old")
    Path("new").symlink_to(run)
    assert "is the run itself" in refused(fathom, run, "--connection", "hc_paper", "--replace")


def test_changed_weights_are_refused(run, tmp_path, fathom, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copy = shutil.copytree(run, tmp_path / "copy")
    converted(copy, tmp_path / "new", "mhc_cycle", steps=1)
    spec = (tmp_path / "new" / "spec.json").read_text()
    (copy / WEIGHTS).write_bytes(flipped((copy / WEIGHTS).read_bytes()))
    status, _, errors = fathom("job", spec, "--out", "again")
    assert status == 1 and "differs from that of this training" in "\n".join(errors)
