"""Examples of docs/extending touch one room each, make no run stale, and work together."""

import ast
import fnmatch
import json
import math
import os
import statistics
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

from fathom.operations.ops import Ops
from fathom_study.backends import Backend, Trainer
from fathom_study.config import Cell, installed_backends, load_config
from fathom_study.runs.code_hash import module_hashes
from fathom_study.runs.folder import read_rows
from fathom_study.runs.training_code import training_code
from tests.support.commands import finished
from tests.support.runs import read_csv
from tests.system.examples import (
    PROJECT,
    ROWS,
    SECTIONS,
    apply,
    blocks_of,
    copied_by,
    copy_of_project,
)

pytestmark = pytest.mark.skipif("torch" not in installed_backends(), reason="needs torch")

FILES = ("config.yaml", ".test/config/config.yaml")
CELL = Cell("depth-mlx", 2, "mhc", "torch", 0)


def test_every_example_belongs_to_a_row_of_the_table():
    with_examples = {name for name in SECTIONS if [*blocks_of(name), *copied_by(name)]}
    assert with_examples == set(ROWS)


@pytest.mark.parametrize("section", ROWS)
def test_example_touches_the_files_of_its_row_and_stales_only_runs_of_these(section, tmp_path):
    copy_of_project(tmp_path)
    touched, patterns = apply(section, tmp_path), ROWS[section]
    for pattern in patterns:
        assert fnmatch.filter(touched, pattern), f"no example for {pattern}"
    of_the_row = {f for f in touched if any(fnmatch.fnmatch(f, p) for p in patterns)}
    assert touched - of_the_row <= {"config.yaml"}, "a study to try it may be there, no more"
    code = training_code(load_config([PROJECT / file for file in FILES]).spec(CELL))
    changed = code.items() - module_hashes(*code, sources=tmp_path / "src").items()
    assert {f"src/{name.replace('.', '/')}.py" for name, _ in changed} <= of_the_row


# --- all examples in one copy --------------------------------------------------------------------

TINY = {
    "plain_depths": [], "depths": [2], "backends": ["torch"], "seeds": [0], "steps": 3,
    "batch_size": 2, "model": {"vocab": 16, "length": 4, "width": 8, "heads": 2, "hidden": 16},
}  # fmt: skip
LEARNS = {"seeds": [0, 1, 2], "steps": 40, "batch_size": 8, "model": {"width": 16}}
STUDIES = {
    **dict.fromkeys(("gated-torch", "blend-torch", "repeat"), TINY), "communities": TINY | LEARNS
}  # fmt: skip


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The results of a copy with every example, in which every command has succeeded."""
    folder = tmp_path_factory.mktemp("project")
    copy_of_project(folder)
    for section in ROWS:
        apply(section, folder)
    (folder / "tiny.yaml").write_text(json.dumps({"studies": STUDIES}))
    path = os.pathsep.join(filter(None, [str(folder / "src"), os.environ.get("PYTHONPATH")]))
    config = [word for file in (*FILES, "tiny.yaml") for word in ("-c", file)]
    tables = ["--tables", "results/smoke/tables"]
    figures = ["--platform", "torch", "--out", "results/smoke/figures", *tables]
    for command in (
        ["status"],
        ["train-all", *(f"{name}/*" for name in STUDIES)],
        ["tables"],
        ["claims"],
        ["report"],
        ["figures", "--study", "gated-torch", *figures],
        ["figures", "--study", "communities", *figures],
    ):
        done = finished(
            sys.executable, "-m", "fathom_study", *command, *config, folder=folder, PYTHONPATH=path
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "results/smoke"


def test_a_scheme_and_a_component_mix_as_they_say(results):
    """mhc's initial H_res has the diagonal e/(e + 3/e); a logit moves by 0.006 in three steps."""
    mhc = math.e / (math.e + 3 / math.e)
    for label, gate in (("mhc_gated", 0.01), ("mhc_half_open", 0.5)):
        file = results / f"runs/gated-torch/2L/{label}/torch/seed0/mixing.safetensors"
        diagonal = np.diagonal(load_file(file)["H_res"], axis1=1, axis2=2)
        assert diagonal == pytest.approx(np.full((2, 4), 1 - gate + gate * mhc), abs=0.003)
    for label, start in (("blend_static", -2), ("blend_dynamic", 0)):
        row, *_ = read_rows(results / f"runs/blend-torch/2L/{label}/torch/seed0")
        # Of 16 entries 4 are m·¾ from the identity and 12 are m·¼; a computed logit has noise.
        m = 1 / (1 + math.exp(-start))
        assert row["H_res_distance"] == pytest.approx(m * 6 / 16, rel=0.02)


def test_a_task_is_judged_by_its_own_score(results):
    rows = {row["key"]: row for row in read_csv(results / "tables/cells.csv")}
    for study, metric, chance in (
        ("communities", "hidden_accuracy", 4),
        ("repeat", "recalled", 15),
    ):
        of_study = [row for key, row in rows.items() if key.startswith(f"{study}/")]
        assert of_study
        for row in of_study:
            last = read_rows(results / "runs" / row["key"])[-1][metric]
            assert float(row["score"]) == last
            assert float(row["score_chance"]) == pytest.approx(1 / chance)
    assert {row["outcome"] for key, row in rows.items() if key.startswith("comm")} == {"learned"}


def test_metrics_of_step_run_and_task_are_in_rows_and_tables(results):
    path = "gated-torch/2L/mhc_gated/torch/seed0"
    rows = read_rows(results / "runs" / path)
    for row in rows:
        parts = [row[f"grad_norm_{name}"] ** 2 for name in ("H_pre", "H_post", "H_res", "gate")]
        assert row["grad_norm_connection"] == pytest.approx(math.sqrt(sum(parts)), rel=1e-12)
    assert ["activation_growth_log10" in row for row in rows] == [True, False, False]
    (cell,) = (row for row in read_csv(results / "tables/cells.csv") if row["key"] == path)
    assert float(cell["loss_median"]) == statistics.median(row["loss"] for row in rows)


def test_a_figure_a_claim_and_a_report_are_there(results):
    for name in ("loss_scaling", "hidden_accuracy"):
        assert (results / f"figures/{name}.png").stat().st_size > 100
    assert "gated-trains" in {row["claim"] for row in read_csv(results / "tables/verdicts.csv")}
    assert r"mhc\_gated" in (results / "SCORES.tex").read_text()


# --- the backend ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "protocol"), [("JaxOps", Ops), ("JaxTrainer", Trainer), ("JaxBackend", Backend)]
)
def test_the_backend_has_every_method(name, protocol):
    tree = ast.parse((PROJECT / "docs/examples/jax.py").read_text(encoding="utf-8"))
    (cls,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    methods = {node.name for node in cls.body if isinstance(node, ast.FunctionDef)}
    asked = {n for n, f in vars(protocol).items() if callable(f) and not n.startswith("_")}
    assert (asked if protocol is Ops else set(protocol.__abstractmethods__)) <= methods
