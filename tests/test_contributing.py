"""Examples of docs/extending.md work, applied unchanged to a copy of the project."""

import ast
import fnmatch
import inspect
import json
import math
import os
import shlex
import shutil
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from command_helpers import finished, server
from contributing_helpers import (
    PROJECT,
    ROWS,
    SECTIONS,
    apply,
    blocks_of,
    copied_by,
    copy_of_project,
    differing,
)
from fathom import datasets, tasks
from fathom.analysis.claims import load_published
from fathom.analysis.claims.verdicts import claims_table, published_table, verdicts_table
from fathom.analysis.run_tables import summary_table
from fathom.backends import Backend, Trainer
from fathom.backends.numpy import NumpyOps
from fathom.config import Cell, Compute, installed_backends, load_config
from fathom.models.ops import Ops
from fathom.runs.code_hash import definition_hashes
from fathom.runs.folder import read_manifest, read_rows, read_spec, run_folder
from fathom.runs.training import run_cell
from fathom.runs.training_code import training_roots
from fathom.runs.validate import changed_code
from param_helpers import make_spec, parameters_of
from run_helpers import read_csv
from tables_helpers import curve, frame, seeds

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("torch" not in installed_backends(), reason="torch is not installed"),
]


# --- the table of CONTRIBUTING -------------------------------------------------------------------


def test_every_example_belongs_to_a_row_of_the_table():
    with_examples = {name for name in SECTIONS if [*blocks_of(name), *copied_by(name)]}
    assert with_examples == set(ROWS)


# --- one example at a time ------------------------------------------------------------------------

TINY_MODEL = {"vocab": 16, "length": 4, "width": 8, "heads": 2, "hidden": 16}
TINY = {"depths": [2], "backends": ["torch"], "seeds": [0], "steps": 3, "batch_size": 2}
STUDIES = ("gated-torch", "blend-torch", "communities", "repeat")
FILES = ("config.yaml", ".test/config/config.yaml")
KEPT = Cell("depth-mlx", 2, "mhc", "torch", 0)
"""A cell of the smoke scale, trained before any example is applied."""


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """(results folder, spec) of a run that the unchanged project trained."""
    results = tmp_path_factory.mktemp("kept")
    spec = load_config([PROJECT / file for file in FILES]).spec(KEPT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(datasets.ENVIRONMENT, "data")  # set by training; restored afterwards
        run_cell(spec, run_folder(results, KEPT), Compute(device="cpu"))
    return results, spec


@pytest.mark.parametrize("section", ROWS)
def test_example_touches_the_files_of_its_row_and_makes_no_run_stale(section, kept, tmp_path):
    copy_of_project(tmp_path)
    apply(section, tmp_path)
    touched, patterns = set(differing(tmp_path)), ROWS[section]
    for pattern in patterns:
        assert fnmatch.filter(touched, pattern), f"no example for {pattern}"
    of_the_row = {f for f in touched if any(fnmatch.fnmatch(f, p) for p in patterns)}
    assert touched - of_the_row <= {"config.yaml"}, "a study to try it may be there, no more"

    assert changed(kept, tmp_path) == []


def changed(kept, folder):
    """The definitions of a copy that differ from those of the kept run."""
    results, spec = kept
    then = read_manifest(run_folder(results, KEPT)).code
    now = definition_hashes(*training_roots(spec), package=folder / "src" / "fathom")
    return changed_code(then, now)


def test_changed_behaviour_is_detected(kept, tmp_path):
    """Shows that the test above can fail."""
    copy_of_project(tmp_path)
    file = tmp_path / "src/fathom/models/connections/constraints.py"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("else bounded\n", "else 2 * bounded\n"), encoding="utf-8")
    assert changed(kept, tmp_path) == ["fathom.models.connections.constraints:Sinkhorn"]


# --- everything at once, in use ------------------------------------------------------------------


@dataclass(frozen=True)
class Project:
    """A copy of the project with every example applied."""

    folder: Path

    def python(self, *arguments, text=None):
        """Output of Python in the copy, which imports the copy's fathom."""
        path = [str(self.folder / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        done = finished(
            sys.executable, *arguments, folder=self.folder, text=text,
            PYTHONPATH=os.pathsep.join(path),
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @property
    def results(self):
        return self.folder / "results/smoke"

    def rows(self, path):
        return read_rows(self.results / "runs" / path)

    def table(self, name):
        return read_csv(self.results / "tables" / name)


@pytest.fixture(scope="module")
def project(kept, tmp_path_factory):
    """The copy, with the kept run among its results."""
    folder = tmp_path_factory.mktemp("project")
    copy_of_project(folder)
    for section in ROWS:
        apply(section, folder)
    project = Project(folder)
    shutil.copytree(kept[0] / "runs", project.results / "runs")
    tiny = {name: {**TINY, "plain_depths": [], "model": TINY_MODEL} for name in STUDIES}
    # Three seeds for an interval; enough steps to learn communities, but not repeat.
    seeds = [0, 1, 2]
    tiny["communities"] |= {"seeds": seeds, "steps": 40, "batch_size": 8, "model": {"width": 16}}
    tiny["repeat"] |= {"seeds": seeds}
    (folder / "tiny.yaml").write_text(json.dumps({"studies": tiny}))
    return project


FIGURE = "results/smoke/figures/gated-torch/torch/loss_scaling.png"
REPORT = "results/smoke/SCORES.tex"


@pytest.fixture(scope="module")
def said(project):
    """(exit status, output) of every command run in the copy, by its first word."""
    config = " ".join(f"-c {file}" for file in (*FILES, "tiny.yaml"))
    tables = "results/smoke/tables"
    patterns = " ".join(f"'{name}/*'" for name in STUDIES)
    lines = [
        f"status --json {config}",
        f"train-all {patterns} {config}",
        f"tables {config}",
        f"claims {config}",
        f"report {config}",
        f"figures --study gated-torch --platform torch --out {Path(FIGURE).parent} {config}"
        f" --tables {tables}",
        f"figures --study communities --platform torch --out drawn {config} --tables {tables}",
        "schema",
    ]
    loaded = server(
        f"import sys; sys.path.insert(0, {str(project.folder / 'src')!r}); import fathom.cli"
    )
    answers = {}
    for line in lines:
        done = loaded.run("-m", "fathom", *shlex.split(line), folder=project.folder)
        answers[line.split()[0]] = (done.returncode, done.stdout + done.stderr)
    return answers


def test_every_command_works_with_every_example_in_place(project, said):
    for command in ("status", "train-all", "tables", "claims", "report", "figures", "schema"):
        status, text = said[command]
        assert status == 0, f"{command}: {text}"
    assert all((project.folder / file).stat().st_size > 100 for file in (FIGURE, REPORT))


def test_scheme_settings_override_those_of_its_base(project, said):
    """The initial diagonal of mhc's H_res is e / (e + 3/e): see definitions, "Connections"."""
    mhc = math.e / (math.e + 3 / math.e)
    for label, gate in (("mhc_gated", 0.01), ("mhc_half_open", 0.5)):
        run = project.results / f"runs/gated-torch/2L/{label}/torch/seed0"
        diagonal = np.diagonal(load_file(run / "mixing.safetensors")["H_res"], axis1=1, axis2=2)
        # Three steps of AdamW at a rate of 0.002 move a logit by 0.006.
        assert diagonal == pytest.approx(np.full((2, 4), 1 - gate + gate * mhc), abs=0.003)
        spec = json.loads((run / "spec.json").read_text())
        assert spec["connection"]["H_res"]["iterations"] == 5


@pytest.mark.parametrize(("label", "start"), [("blend_static", -2), ("blend_dynamic", 0)])
def test_component_mixes_by_one_number(project, said, label, start):
    m = 1 / (1 + math.exp(-start))
    rows = project.rows(f"blend-torch/2L/{label}/torch/seed0")
    # Of 16 entries, 4 are m·¾ from the identity and 12 are m·¼. A computed logit is off by
    # α = 0.01 times a sample of N(0, 1).
    assert rows[0]["H_res_distance"] == pytest.approx(m * (4 * 0.75 + 12 * 0.25) / 16, rel=0.02)
    for row in rows:
        # Sums of four float32 entries, in two layers.
        for sums in ("amax_forward_log10", "amax_backward_log10"):
            assert row[sums] == pytest.approx(0, abs=1e-6)
        for sums in ("row_error_log10", "column_error_log10"):
            assert row[sums] == pytest.approx(0, abs=1e-6)
        gradient = row["grad_norm_b_res" if "dynamic" in label else "grad_norm_H_res"]
        assert gradient > 1e-6  # rounding gives about 1e-9


TASKS = {"communities": ("hidden_accuracy", 1 / 4), "repeat": ("recalled", 1 / 15)}
"""{study of an example task: (metric, chance level)}"""


@pytest.mark.parametrize("study", TASKS)
def test_a_task_is_judged_by_its_own_score(project, said, study):
    metric, chance = TASKS[study]
    rows = [row for row in project.table("cells.csv") if row["study"] == study]
    assert len(rows) == 6
    for row in rows:
        last = project.rows(row["key"])[-1]
        assert float(row["score"]) == float(row[metric]) == last[metric]
        assert row["score_metric"] == metric
        assert float(row["score_chance"]) == pytest.approx(chance)
        learned = last[metric] >= chance + 0.05 * (1 - chance)
        assert row["outcome"] == ("learned" if learned else "at chance")
    if study == "communities":
        assert {row["outcome"] for row in rows} == {"learned"}


def test_step_metric_is_in_every_row_and_in_the_table_of_steps(project, said):
    path = "gated-torch/2L/mhc_gated/torch/seed0"
    rows = project.rows(path)
    for row in rows:
        parts = [row[f"grad_norm_{name}"] ** 2 for name in ("H_pre", "H_post", "H_res", "gate")]
        assert row["grad_norm_connection"] == pytest.approx(math.sqrt(sum(parts)), rel=1e-12)
    steps = project.table("studies/gated-torch/steps.csv.gz")
    table = [r for r in steps if r["variant"] == "mhc_gated"]
    assert [float(r["grad_norm_connection"]) for r in table] == [
        row["grad_norm_connection"] for row in rows
    ]


def test_run_metric_is_in_both_tables_even_for_earlier_runs(project, said):
    for path in ("gated-torch/2L/mhc_gated/torch/seed0", KEPT.path()):
        expected = statistics.median(row["loss"] for row in project.rows(path))
        (row,) = (row for row in project.table("cells.csv") if row["key"] == path)
        assert float(row["loss_median"]) == expected
    of_gated = [r for r in project.table("summary.csv") if r["variant"] == "mhc_gated"]
    expected = statistics.median(
        row["loss"] for row in project.rows("gated-torch/2L/mhc_gated/torch/seed0")
    )
    # Statistics have nine digits.
    assert [float(row["loss_median_mean"]) for row in of_gated] == [pytest.approx(expected, 1e-8)]


def test_task_metric_is_in_the_first_row(project, said):
    """Compared with the oracle's float64 forward pass."""
    rows = project.rows("blend-torch/2L/mhc/torch/seed0")
    assert ["activation_growth_log10" in row for row in rows] == [True, False, False]
    spec = read_spec(project.results / "runs/blend-torch/2L/mhc/torch/seed0")
    ops, params = NumpyOps(), parameters_of(spec)
    inputs = tasks.Problem(spec).block_inputs(ops, params)
    first, last = (np.abs(x).max() for x in inputs)
    assert rows[0]["activation_growth_log10"] == pytest.approx(math.log10(last / first), abs=1e-6)


def test_workflow_plans_the_runs_figures_and_report(project, said):
    config = ["--configfile", *FILES, "tiny.yaml"]
    arguments = ["-n", "--forceall", "--printshellcmds", "all", *config]
    text = project.python("-m", "snakemake", *arguments)
    for file in (
        "runs/communities/2L/gcn/torch/seed0/manifest.json",
        "runs/gated-torch/2L/mhc_half_open/torch/seed0/manifest.json",
        "figures/blend-torch/torch/loss_scaling.png",
        "figures/communities/torch/hidden_accuracy.png",
        "SCORES.tex",
    ):
        assert f"results/smoke/{file}" in text


@pytest.mark.parametrize(
    ("losses", "verdict", "deviates"),
    [((0.150, 0.151, 0.155), "reproduced", False), ((4.0, 4.1, 4.2), "contradicted", True)],
)
def test_claim_has_a_verdict_and_published_value_is_compared_with_ours(
    tmp_path, losses, verdict, deviates
):
    """The chance level of 64 tokens is 4.159; a tenth of it is the rule's limit."""
    claims, published = judged(tmp_path, losses)
    verdicts = verdicts_table(claims).set_index("claim")["verdict"]
    assert verdicts["gated-trains"] == verdict
    assert set(verdicts.drop("gated-trains")) == {"not measured"}
    (row,) = published[published["source"] == "my-lab"].to_dict("records")
    assert (row["published"], row["variant"], row["depth"]) == (0.152, "mhc_gated", 12)
    assert row["mean"] == pytest.approx(statistics.geometric_mean(losses))
    assert row["deviates"] == deviates


def judged(folder, losses):
    """(claims, published values) with the examples applied, for these final losses of the cell."""
    copy_of_project(folder)
    apply("a-scheme-of-known-components", folder)
    apply("a-claim-or-a-published-value", folder)
    config = load_config([folder / "config.yaml"])
    published = load_published(folder / "report/published.yaml", config)
    axes = {"variant": "mhc_gated", "depth": 12, "study": "gated-torch"}
    cells = frame(seeds("loss_final", losses, **axes))
    claims = claims_table(config, cells, frame(curve([1.0], **axes)), published)
    return claims, published_table(config, summary_table(cells), published)


# --- the backend ---------------------------------------------------------------------------------

JAX = ast.parse((PROJECT / "docs/examples/jax.py").read_text(encoding="utf-8"))


def methods_of(name):
    """(arguments, arguments with defaults) of every method of a class of the example."""
    (found,) = (node for node in JAX.body if isinstance(node, ast.ClassDef) and node.name == name)
    methods = {}
    for node in found.body:
        if isinstance(node, ast.FunctionDef):
            arguments = [a.arg for a in node.args.args]
            optional = arguments[len(arguments) - len(node.args.defaults) :]
            rest = [f"*{node.args.vararg.arg}"] if node.args.vararg else []
            by_name = [a.arg for a in node.args.kwonlyargs]
            methods[node.name] = ([*arguments, *rest, *by_name], [*optional, *by_name])
    return methods


def asked_of(protocol):
    """The same for the methods of a protocol, and the names of the required methods."""
    methods = {}
    for name, function in vars(protocol).items():
        if inspect.isfunction(function) and not name.startswith("_"):
            parameters = inspect.signature(function).parameters.values()
            names = [f"*{p.name}" if p.kind is p.VAR_POSITIONAL else p.name for p in parameters]
            methods[name] = (names, [p.name for p in parameters if p.default is not p.empty])
    needed = set(methods) if protocol is Ops else protocol.__abstractmethods__
    return methods, needed


@pytest.mark.parametrize(
    ("name", "protocol"), [("JaxOps", Ops), ("JaxTrainer", Trainer), ("JaxBackend", Backend)]
)
def test_backend_defines_required_methods_with_the_same_arguments(name, protocol):
    asked, needed = asked_of(protocol)
    defined = methods_of(name)
    assert set(needed) <= set(defined)
    for method in set(asked) & set(defined):
        assert defined[method] == asked[method], method


COMPARE_WITH_TORCH = """\
import json, sys
import numpy as np
from fathom import backends, tasks
from fathom.config import parse_spec
from fathom.optimizers import ScheduledValues
from fathom.train import trainer_for

losses = []
for text in json.load(sys.stdin):
    spec = parse_spec(text, "given")
    rng = np.random.default_rng(7)
    if spec.task == "tokens":
        batches = [tasks.load(spec.task).batch(spec, step) for step in range(4)]
    else:
        B, W = spec.batch_size, spec.model.width
        batches = [
            tasks.Batch({"images": rng.random((B, 28, 28, 1), dtype=np.float32),
              "keep": rng.random((spec.depth, B, 14, 14, W)) >= 0.1},
             rng.integers(0, 10, B).astype(np.int32))
            for _ in range(4)
        ]
    found = {}
    for name in ("torch", sys.argv[1]):
        backend = backends.connect(name, "cpu")
        def trainer():
            params = tasks.Problem(spec).initial_parameters()
            return trainer_for(tasks.Problem(spec), backend, params)
        first, second = trainer(), trainer()
        first.step(batches[:1], ScheduledValues(1.0, 0.85))
        first.step(batches[1:2] * 2, ScheduledValues(1.0, 0.9))
        before = first.collect()
        second.load_state(first.state())  # and goes on as if it had not stopped
        for batch in batches[2:]:
            second.step([batch], ScheduledValues(2.0, 0.95))
        after = second.collect()
        found[name] = {k: [*before[k].tolist(), *after[k].tolist()] for k in ("loss", "grad_norms")}
    losses.append(found)
json.dump(losses, sys.stdout)
"""


@pytest.mark.parametrize("name", ["jax", "mlx"])  # mlx checks the script itself
def test_backend_trains_as_pytorch_does(project, name):
    pytest.importorskip(name, reason=f"{name} is not installed")
    few = {"connection": "mhc", "H_res": {"iterations": 2}}  # JAX compiles each iteration
    specs = [
        make_spec(depth=2, recipe="mlx-defaults", weight_decay=0.1, connection=few),
        make_spec(depth=2, task="fashion", variant="hc_dynamic", recipe="torch-defaults"),
        make_spec(depth=2, variant="baseline", wrap="sublayer", muon={"lr": 0.02}, clip=1.0),
    ]
    given = json.dumps([spec.model_dump() for spec in specs])
    for found in json.loads(project.python("-c", COMPARE_WITH_TORCH, name, text=given)):
        # Four steps in float32: AdamW divides gradients that are rounding alone by their size.
        assert found[name]["loss"] == pytest.approx(found["torch"]["loss"], rel=1e-4)
        assert np.array(found[name]["grad_norms"])[0] == pytest.approx(
            np.array(found["torch"]["grad_norms"])[0], rel=1e-4, abs=1e-6
        )
