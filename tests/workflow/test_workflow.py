"""The real Snakemake on the real rules."""

import csv
import importlib.util
import json
import re
import shlex
import shutil
import zipfile
from pathlib import Path

import pytest
import typer

from conftest import PROJECT, SMOKE
from fathom import cli
from fathom.config import load_config
from param_helpers import quick_ones

CELL = "runs/depth-mlx/3L/mhc/torch/seed0"

FIGURES = {"figures_depth_mlx", "figures_depth_torch", "overview_figures"}
PAPERS = {"paper"} if importlib.util.find_spec("typst") else set()
PAGES = {"page"} if importlib.util.find_spec("plotly") else set()
COLLECTORS = {"run_tables", "claims", "reports"} | FIGURES | PAGES | PAPERS


def rules(jobs):
    return {rule for rule, _ in jobs}


def jobs_in(text):
    """How many jobs the table of a plan has, by rule."""
    counts = {}
    for what, jobs in re.findall(r"^(\S.*?) {2,}([0-9]+)(?:  .*)?$", text, re.M):
        rule = what if what == "in all" else what.split()[0]
        counts[rule] = counts.get(rule, 0) + int(jobs)
    return counts


def trained(jobs):
    return sorted(output.rpartition("/")[0] for rule, output in jobs if rule == "train")


def test_all_leaves_reports_tables_and_figures(finished):
    results = finished.folder / "results/smoke"
    assert (results / "RESULTS.md").read_text().startswith("# Results")
    assert (results / "COMPARISON.md").read_text().startswith("# Comparison")
    with (results / "tables/cells.csv").open() as file:
        cells = list(csv.DictReader(file))
    # depth-mlx: 2 depths × 2 variants; depth-torch: mhc at one depth; both on 2 backends.
    assert len(cells) == 8 + 2
    assert {cell["status"] for cell in cells} == {"measured"}
    assert (results / "figures/depth-mlx/mlx/deepest_comparison.png").stat().st_size > 10_000


def test_a_second_run_has_nothing_to_do(finished):
    assert finished.planned("all") == []
    assert "Nothing to be done" in finished.smoke("all").stderr


def test_every_image_of_a_report_exists(finished):
    results = finished.folder / "results/smoke"
    for report in ("RESULTS.md", "COMPARISON.md"):
        for image in re.findall(r"!\[.*?\]\((.*?)\)", (results / report).read_text()):
            assert (results / image).is_file(), image


def test_a_deleted_file_brings_back_its_cell_and_what_depends_on_it(workflow):
    metrics = workflow.folder / "results/smoke" / CELL / "metrics.jsonl"
    metrics.unlink()
    jobs = workflow.planned("all")
    assert trained(jobs) == [CELL]
    assert rules(jobs) == {"train"} | COLLECTORS

    workflow.smoke(f"results/smoke/{CELL}/metrics.jsonl")
    assert len(metrics.read_text().splitlines()) == 4


def test_one_file_can_be_asked_for(untouched):
    jobs = untouched.planned(f"results/smoke/{CELL}/metrics.jsonl")
    assert trained(jobs) == [CELL]
    assert len(jobs) == 1


def test_a_study_is_a_target(untouched):
    jobs = untouched.planned("depth-torch")
    assert trained(jobs) == [f"runs/depth-torch/2L/mhc/{name}/seed0" for name in ("mlx", "torch")]
    assert rules(jobs) == {"train"}


def test_another_learning_rate_retrains_its_study_alone(workflow):
    workflow.edit(
        "workflow/presets/smoke.yaml",
        "  depth-torch:\n",
        "  depth-torch:\n    optimizer: {lr: 0.01}\n",
    )
    jobs = workflow.planned("all")
    assert trained(jobs) == [
        f"runs/depth-torch/2L/mhc/{backend}/seed0" for backend in ("mlx", "torch")
    ]
    assert rules(jobs) == {"train", "resolve"} | COLLECTORS


def test_how_jobs_compute_retrains_nothing(workflow):
    workflow.edit("config.yaml", "checkpoint_seconds: 30", "checkpoint_seconds: 7")
    workflow.edit("config.yaml", "mem_mb: 2000", "mem_mb: 4000")
    assert workflow.planned("all") == []


EDITS = {
    "an ingredient": (
        "models/connections/sinkhorn.py", "* iterations", "* (iterations + 1)",
        {"mhc/torch", "mhc/mlx"},
    ),
    "a measure": (
        "models/gain.py", "np.where(scale == 0, 1, scale)", "np.where(scale == 0, 2, scale)",
        {"hc/torch", "mhc/torch", "hc/mlx", "mhc/mlx"},
    ),
    "a backend": (
        "backends/mlx.py", "return mx.tanh(x)", "return +mx.tanh(x)", {"hc/mlx", "mhc/mlx"},
    ),
    "a message": (
        "models/transformer.py", "is not divisible by heads", "cannot be split between them",
        set(),
    ),
    "a docstring": ("train.py", "Train one cell, yielding", "Train a cell, yielding", set()),
    "a comment": ("models/transformer.py", "# a norm of zeros", "# the norm of zeros", set()),
    "a check of settings": ("settings.py", "?\" if match", "!\" if match", set()),
    "another task": ("tasks/fashion.py", "MARGIN = 2", "MARGIN = 3", set()),
}  # fmt: skip


@pytest.mark.parametrize(
    ("file", "old", "new", "retrained"), quick_ones(EDITS, "an ingredient", "a comment")
)
def test_an_edit_of_code_retrains_what_it_changes_the_meaning_of(
    workflow, file, old, new, retrained
):
    workflow.edit(f"src/fathom/{file}", old, new)
    cells = trained(workflow.planned("all"))
    assert {"/".join(cell.split("/")[3:5]) for cell in cells} == retrained


@pytest.mark.slow
def test_an_edit_of_a_template_only_writes_the_reports_again(workflow):
    workflow.edit("report/templates/RESULTS.md.j2", "# Results\n", "# All results\n")
    pages = [(rule, "index.html") for rule in PAGES]
    assert workflow.planned("all") == [*pages, ("reports", "COMPARISON.md")]
    workflow.smoke("all")
    text = (workflow.folder / "results/smoke/RESULTS.md").read_text()
    assert text.startswith("# All results")


def test_an_edit_of_the_figures_trains_nothing(workflow):
    workflow.edit("src/fathom/report/figures/style.py", '"font.size": 13', '"font.size": 12')
    jobs = workflow.planned("all")
    assert rules(jobs) == FIGURES | {"reports"} | PAGES | PAPERS


def test_a_tampered_run_is_refused_by_name(workflow):
    metrics = workflow.folder / "results/smoke" / CELL / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"loss":', '"loss":1', 1))
    result = workflow.snakemake("tables", *SMOKE)
    assert result.returncode != 0
    lines = result.stderr.splitlines()
    assert "failed: run_tables" in lines
    (line,) = [line for line in lines if line.startswith("fathom: ")]  # out of the job's log
    assert CELL in line
    assert "metrics.jsonl" in line
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_a_dry_run_says_what_would_run_and_why_on_a_screen(untouched, workflow):
    text = untouched.snakemake("-n").stdout
    assert len(text.splitlines()) <= 32  # a line for each study and kind of job
    assert max(map(len, text.splitlines())) <= 100
    assert re.search("^train depth-mlx +54  not made yet$", text, re.M)

    workflow.edit("workflow/presets/smoke.yaml", "steps: 4", "steps: 5")
    (workflow.folder / "results/smoke" / CELL / "mixing.safetensors").unlink()
    workflow.edit("src/fathom/backends/mlx.py", "return mx.tanh(x)", "return +mx.tanh(x)")
    why = dict(re.findall(r"^(.*?)  +[0-9]+  (.*)$", workflow.smoke("-n", "all").stdout, re.M))
    found = "code and settings changed (4), settings changed (3), not made yet (1)"
    assert why["train depth-mlx"] == found
    assert why["reports"] == "an input is made again"


def test_a_run_shows_a_line_for_each_job(finished):
    lines = [line for line in finished.said.splitlines() if line.startswith("[")]
    table = jobs_in(finished.said)
    assert len(lines) == table["in all"] == sum(n for what, n in table.items() if what != "in all")
    numbers = [line.partition("]")[0] for line in lines]
    assert numbers == [f"[{i}/{len(lines)}" for i in range(1, len(lines) + 1)]
    names = {line.partition("] ")[2] for line in lines}
    assert {"train depth-mlx/3L/mhc/torch/seed0", "figures_depth_mlx torch", "reports"} <= names
    assert len(finished.said) < 4000


def test_a_log_file_has_every_job_in_full(finished):
    (log,) = re.findall(r"^Complete log\(s\): (.*)$", finished.said, re.M)
    assert f"output: results/smoke/{CELL}/spec.json" in Path(log).read_text()


@pytest.mark.slow
def test_a_cut_has_reports_of_its_own_and_trains_nothing_again(workflow):
    results = workflow.folder / "results/smoke"
    before = {f: f.read_bytes() for f in results.rglob("*") if f.is_file()}
    cut = ("--config", "depths=[3]", 'variants=["hc"]', 'backends=["torch"]')
    result = workflow.snakemake("all", *SMOKE, *cut)
    assert result.returncode == 0, result.stderr
    assert "train" not in jobs_in(result.stderr)
    assert {f: f.read_bytes() for f in before if f.suffix != ".log"} == {
        f: content for f, content in before.items() if f.suffix != ".log"
    }
    folder = results / "cuts/variants-hc+depths-3+backends-torch"
    for name in ("RESULTS.md", "COMPARISON.md"):
        head = (folder / name).read_text().split("\n\n")[1].strip("*")
        assert (
            head == "This is a cut of the whole grid: only variants hc, depths 3, backends torch."
        )
        assert "cut of the whole grid" not in (results / name).read_text()
    with (folder / "tables/cells.csv").open(newline="") as file:
        assert [r["study"] for r in csv.DictReader(file)] == ["depth-mlx"]
    # And a run that the whole lacks is trained once, for both.
    shutil.rmtree(results / CELL)
    plan = workflow.snakemake("-n", "all", *SMOKE, "--config", "depths=[3]").stdout
    assert jobs_in(plan)["train"] == 1


# --- README's table of commands ------------------------------------------------------------------

ROW = re.compile(r"^\| (.+?) \| (.+?) \|$", re.M)
BROWSABLE = "make a browsable report: unpack it, open its `report.html`"
PAPER = "snakemake all --configfile workflow/presets/paper.yaml"
PLANS = {
    "see what would run, and why": {"train": 408, "reports": 1},
    "train one study": {"train": 54},
    "do one cell again": {"train": 1},
    "cut an axis": {"train": 119, "reports": 1},
    "draw every cell's own figures": {"train": 408, "cell_figure": 408},
    "make the page, `results/index.html`": {"train": 408, "reports": 1, "page": 1},
    "make the paper, `results/fathom.pdf`": {"train": 408, "reports": None},
    "get the images, or see why not": {"data_fashion_mnist": 1},
    "run the published scale": {"train": 558, "reports": 1},
    "… on a Slurm cluster ([how](docs/cluster.md))": {"train": 558, "reports": 1},
}
"""What a command plans where nothing has run yet; the data set and tables go without saying."""


def readme_commands():
    """(what for, command) of every row."""
    text = (PROJECT / "README.md").read_text(encoding="utf-8")
    table = text.partition("| to … | run |\n|---|---|\n")[2].partition("\n\n")[0]
    for purpose, cell in ROW.findall(table):
        command = re.search("`(.*?)`", cell)[1]
        yield (
            purpose.partition(",")[0] if "cut" in purpose else purpose,
            (f"{PAPER} {command}" if cell.startswith("the same with") else command),
        )


COMMANDS = dict(readme_commands())


def test_every_row_of_the_readme_is_tried_here():
    own = {purpose for purpose, command in COMMANDS.items() if command.startswith("fathom ")}
    assert set(COMMANDS) - own == set(PLANS) | {BROWSABLE}


@pytest.mark.parametrize("purpose", PLANS)
@pytest.mark.slow
def test_a_command_of_the_readme_plans_what_the_readme_says(untouched, purpose):
    program, *arguments = shlex.split(COMMANDS[purpose])
    assert program == "snakemake"
    result = untouched.snakemake(*arguments, *([] if "-n" in arguments else ["-n"]))
    assert result.returncode == 0, result.stderr
    jobs = jobs_in(result.stdout)
    expected = PLANS[purpose]
    assert {what: jobs.get(what) for what in expected} == expected
    if "reports" not in expected:  # nothing else, but the data that some cells need
        assert set(jobs) <= set(expected) | {"data_fashion_mnist", "data_shakespeare", "in all"}


@pytest.mark.parametrize("command", [c for c in COMMANDS.values() if c.startswith("fathom ")])
def test_a_command_of_the_readme_can_be_read(command):
    _, name, *arguments = shlex.split(command)
    typer.main.get_command(cli.app).commands[name].make_context(name, arguments)


@pytest.mark.slow
def test_a_browsable_report_is_made(finished, tmp_path):
    program, option, file = shlex.split(COMMANDS[BROWSABLE])
    assert (program, option) == ("snakemake", "--report")
    finished.smoke(option, str(tmp_path / file))
    # A zip, since a browser shows no page of this size that is inside of another one.
    with zipfile.ZipFile(tmp_path / file) as report:
        names = report.namelist()
        shown = [Path(name).name for name in names if "/data/" in name]
        (entry,) = [name for name in names if name.count("/") == 1]
        assert Path(entry).name == "report.html"
        text = report.read(entry).decode()
    assert {"index.html", "fathom.pdf", "loss_comparison.png"} <= set(shown)
    assert not [name for name in shown if name.endswith(".md")]
    labels = {"study": "depth-mlx", "backend": "torch", "measure": "loss comparison"}
    assert re.search(r'"labels": ?' + re.escape(json.dumps(labels)), text)


@pytest.mark.slow
def test_a_missing_backend_is_left_out_and_said(untouched, tmp_path):
    # None in sys.modules is how Python itself says that a module is not to be found.
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['mlx'] = None\n")
    result = untouched.snakemake("-n", environment={"PYTHONPATH": str(tmp_path)})
    assert result.returncode == 0, result.stderr
    assert jobs_in(result.stdout)["train"] == 338
    said = [line for line in result.stderr.splitlines() if "mlx is not installed here" in line]
    assert len(said) == 1


@pytest.mark.slow
def test_without_the_images_everything_else_is_made_and_the_tables_say_why(fresh):
    record = fresh.folder / "data/fashion-mnist/unavailable.txt"
    record.parent.mkdir(parents=True)
    record.write_text("nothing answered\nand more about it\n")
    (fresh.folder / "grid.yaml").write_text(
        "studies:\n"
        "  depth-mlx:\n"
        "    {variants: [mhc], depths: [2], seeds: [0], backends: [torch], exclude: []}\n"
        "  depth-torch: {exclude: [{seed: 0}]}\n"
        "  depth-beyond: {exclude: [{seed: 0}]}\n"
    )
    result = fresh.smoke("tables")
    said = [line for line in result.stderr.splitlines() if line.startswith("fathom:")]
    assert len(said) == 1
    assert "data/fashion-mnist/unavailable.txt says what was tried" in said[0]
    with (fresh.folder / "results/smoke/tables/cells.csv").open(newline="") as file:
        cells = [(r["study"], r["status"], r["reason"]) for r in csv.DictReader(file)]
    assert ("fashion", "missing", "nothing answered") in cells
    assert ("depth-mlx", "measured", "") in cells


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("studies={depth-mlx: {model: {widht: 3}}}", "did you mean 'width'"),
        ("seeds=[]", "seeds: must list at least one value"),
        ("depths=[7]", "depths: unknown depth 7"),
    ],
)
@pytest.mark.slow
def test_bad_config_is_one_line_and_nothing_starts(untouched, setting, said):
    result = untouched.snakemake("all", "--config", setting)
    assert result.returncode != 0
    complaints = [line for line in result.stderr.splitlines() if line.startswith("fathom:")]
    assert len(complaints) == 1
    assert said in complaints[0]
    assert "Traceback" not in result.stderr
    assert not (untouched.folder / "results").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["dpeth-mlx"], "did you mean depth-mlx?"),
        (["results/runs/depth-mlx/48L/mhk/torch/seed0/metrics.jsonl"], "did you mean 'mhc'?"),
        (["results/runs/dpeth-mlx/48L/mhc/torch/seed0/metrics.jsonl"], "no study 'dpeth-mlx'"),
    ],
)
@pytest.mark.slow
def test_a_wrong_target_is_refused_in_one_line(untouched, arguments, said):
    result = untouched.snakemake("-n", *arguments)
    assert result.returncode == 1
    own = "Using workflow specific profile"  # which Snakemake says before it reads the workflow
    lines = (result.stdout + result.stderr).splitlines()
    (line,) = [line for line in lines if line and not line.startswith(own)]
    assert line.startswith("fathom: ")
    assert said in line


def test_from_another_folder_the_line_says_what_to_do(untouched):
    result = untouched.snakemake("-n", "-s", "../workflow/Snakefile", folder="report")
    assert result.returncode == 1
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("fathom:")]
    assert line == (
        f"fathom: config.yaml is not in this folder; go to {untouched.folder}, "
        f"or add --directory {untouched.folder} to the command"
    )


def test_malformed_yaml_is_refused_by_file_and_line(fresh):
    fresh.edit("config.yaml", "variants: null", "variants: [unclosed")
    result = fresh.snakemake("-n")
    assert result.returncode != 0
    (complaint,) = [line for line in result.stderr.splitlines() if line.startswith("fathom:")]
    assert re.search(r"config.yaml: line \d+ malformed YAML", complaint)


def test_the_config_a_run_used_is_kept(finished):
    kept = json.loads((finished.folder / "results/smoke/config.json").read_text())
    assert kept["studies"]["depth-mlx"]["seeds"] == [0]
    assert kept["studies"]["depth-mlx"]["steps"] == 4


@pytest.mark.slow
def test_the_workflow_has_studies_in_the_order_of_every_command(fresh):
    """The preset adds studies, before and after those of config.yaml that it changes."""
    preset = "workflow/presets/paper.yaml"
    result = fresh.snakemake("results/paper/config.json", "--configfile", preset)
    assert result.returncode == 0, result.stderr
    kept = json.loads((fresh.folder / "results/paper/config.json").read_text())
    config = load_config([fresh.folder / "config.yaml", fresh.folder / preset])
    assert list(kept["studies"]) == list(config.studies)
    assert kept["studies"]["depth-mlx"]["batch_size"] == {"12": 32, "24": 24, "48": 16}
    assert json.dumps(kept) == json.dumps(config.resolved())
