"""The real Snakemake on the real rules: whole runs, edits, cuts, plans."""

import importlib.util
import json
import re
import shlex
import shutil
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from fathom_study.config import installed_backends, load_config
from tests.support.project import only
from tests.support.runs import read_csv, read_manifest, write_cell
from tests.workflow.conftest import SMOKE, jobs_in, own_lines
from tests.workflow.test_workflow import BROWSABLE, COMMANDS, PLANS, PRESET, SRC, rules

BACKENDS = installed_backends()


CELL = f"runs/depth-mlx/3L/mhc/{BACKENDS[-1]}/seed0"


FIGURES = {"figures_depth_mlx", "figures_depth_torch", "overview_figures"}


PAPERS = {"paper"} if importlib.util.find_spec("typst") else set()


PAGES = {"page"} if importlib.util.find_spec("vl_convert") else set()


COLLECTORS = {"run_tables", "claims", "reports"} | FIGURES | PAGES | PAPERS


def counts_in(text):
    """Number of jobs in the table of a plan, by rule."""
    return Counter({rule: int(jobs) for rule, jobs in re.findall(r"^(\w+) +([0-9]+)$", text, re.M)})


def trained(jobs):
    return sorted(cell for rule, cell in jobs if rule == "train")


def test_all_makes_everything_once_with_a_line_for_each_job(finished):
    results = finished.folder / "results/smoke"
    for report in ("RESULTS.md", "COMPARISON.md", "studies/depth-mlx.md"):
        text = (results / report).read_text()
        assert text.startswith("# ")
        images = re.findall(r"!\[.*?\]\((.*?)\)", text)
        assert images or not report.startswith("studies")
        folder = (results / report).parent
        assert [image for image in images if not (folder / image).is_file()] == []
    # depth-mlx: 2 depths × 2 variants; depth-torch: mhc at one depth; both on 2 backends.
    cells = read_csv(results / "tables/cells.csv")
    assert [cell["status"] for cell in cells] == ["measured"] * (8 + 2)
    pictures = list((results / "figures/depth-mlx/mlx").glob("*.png"))
    assert pictures
    assert all(picture.stat().st_size > 5000 for picture in pictures)

    assert len(trained(jobs_in(finished.said))) == 8 + 2
    done, jobs = re.findall(r"^([0-9]+) of ([0-9]+) steps", finished.said, re.M)[-1]
    assert done == jobs
    assert re.search("^10 cells to train take about .*, a guess from the", finished.said, re.M)
    assert ("results/smoke/index.html: " in finished.said) == bool(PAGES)

    assert finished.planned("all") == []
    said = finished.smoke("all").stderr
    assert "Nothing to be done" in said
    assert "results/smoke/RESULTS.md: " in said


@pytest.mark.parametrize("preset", ["smoke", "paper"])
def test_kept_config_equals_the_one_that_commands_read(finished, preset):
    """The paper's preset adds studies, before and after those of config.yaml that it changes."""
    files = ["config.yaml", f"workflow/presets/{preset}.yaml"]
    if preset == "smoke":
        files[1:] = SMOKE[1:]
    else:
        target = (f"results/{preset}/config.json", "--configfile", *files[1:])
        assert finished.snakemake(*target).returncode == 0
    kept = json.loads((finished.folder / f"results/{preset}/config.json").read_text())
    config = load_config([finished.folder / file for file in files])
    assert json.dumps(kept) == json.dumps(config.resolved())


def test_retrained_cell_redraws_nothing(workflow):
    """Only its times differ, and only reports show them."""
    run = workflow.folder / "results/smoke" / CELL
    times = workflow.folder / "results/smoke/tables/times.csv"
    before = times.read_bytes()
    shutil.rmtree(run)
    ran = rules(jobs_in(workflow.smoke("all").stderr))
    assert ran == {"train", "run_tables", "claims", "reports"} | PAGES
    assert times.read_bytes() != before
    assert workflow.planned("all") == []


def test_a_study_is_trained_and_reported_without_the_others(workflow):
    assert workflow.planned("depth-torch") == []  # `all` has made its report
    shutil.rmtree(workflow.folder / "results/smoke" / CELL)
    others = workflow.folder / "results/smoke/runs/depth-torch"
    runs = len(list(others.rglob("manifest.json")))
    shutil.rmtree(next(others.rglob("manifest.json")).parent)
    done = workflow.smoke("depth-mlx")
    assert trained(jobs_in(done.stderr)) == [CELL.removeprefix("runs/")]
    assert "results/smoke/studies/depth-mlx.md: " in done.stderr
    rows = read_csv(workflow.folder / "results/smoke/tables/cells.csv")
    assert Counter((row["study"], row["status"]) for row in rows) == {
        ("depth-mlx", "measured"): 8, ("depth-torch", "measured"): runs - 1,
        ("depth-torch", "missing"): 1,
    }  # fmt: skip
    assert len(trained(workflow.planned("all"))) == 1


BOTH = {"mhc/torch", "mhc/mlx"}


EDITS = {
    "a learning rate": (
        PRESET, "  depth-torch:\n", "  depth-torch:\n    optimizer: {lr: 0.01}\n",
        BOTH, {"train", "resolve"} | COLLECTORS,
    ),
    "a style of figures": (
        f"{SRC}report/figures/style.py", '"font.size": 13', '"font.size": 12',
        set(), FIGURES | {"reports"} | PAGES | PAPERS,
    ),
    "a template": (
        "report/templates/RESULTS.md.j2", "## The sources\n", "## All sources\n",
        set(), {"reports"} | PAGES,
    ),
    "a backend": (
        "src/fathom/operations/mlx_ops.py",
        "staticmethod(mx.tanh)", "staticmethod(lambda x: mx.tanh(x))",
        {"hc/mlx", "mhc/mlx"}, None,
    ),
    "a comment": (
        "src/fathom/connections/connection.py", "has no gradient at zero", "has none at zero",
        set(), set(),
    ),
}  # fmt: skip
"""(file, old text, new text, cells that train, rules that run; None: not checked)."""


@pytest.mark.parametrize(
    ("file", "old", "new", "retrained", "run"),
    [pytest.param(*values, id=name) for name, values in EDITS.items()],
)
def test_edit_runs_only_the_jobs_that_it_affects(workflow, file, old, new, retrained, run):
    workflow.edit(file, old, new)
    if run == set():  # settings of `compute` change nothing either
        workflow.edit("config.yaml", "checkpoint_seconds: 30", "checkpoint_seconds: 7")
    if file == PRESET:  # as in a clone, which has results but no records
        shutil.rmtree(workflow.folder / ".snakemake/metadata")
    jobs = workflow.planned("all")
    assert {"/".join(cell.split("/")[2:4]) for cell in trained(jobs)} == retrained
    assert run is None or rules(jobs) == run


def test_data_fetched_after_a_training_retrains_nothing(fresh, monkeypatch):
    monkeypatch.chdir(fresh.folder)
    text = {"variants": ["baseline"], "backends": ["torch"], "seeds": [0]}
    Path("grid.yaml").write_text(only({"text-arms": text}))
    Path("data/shakespeare").mkdir(parents=True)
    Path("data/shakespeare/SHA256SUMS").write_text("")
    config = load_config(["config.yaml", *SMOKE[1:]])
    (cell,) = config.cells()
    target = f"results/smoke/runs/{cell.path()}/metrics.jsonl"
    assert rules(fresh.planned(target)) == {"train"}
    run = write_cell(config, cell, [3.0] * config.spec(cell).steps)
    verdict = {"manifest": read_manifest(run)["sha256"], "content": "valid"}
    (run / "verdict.json").write_text(json.dumps(verdict))
    assert fresh.planned(target) == []
    shutil.rmtree("data/shakespeare")
    shutil.rmtree(run)
    assert rules(fresh.planned(target)) == {"fetch", "train"}


def test_a_cut_has_reports_of_its_own_and_trains_nothing_again(workflow):
    results = workflow.folder / "results/smoke"
    before = {f: f.read_bytes() for f in results.rglob("*") if f.is_file() and f.suffix != ".log"}
    cut = ("--config", "depths=[3]", 'variants=["hc"]', 'backends=["torch"]')
    result = workflow.snakemake("report", *SMOKE, *cut)
    assert result.returncode == 0, result.stderr
    assert "train" not in counts_in(result.stderr)
    assert {f: f.read_bytes() for f in before} == before
    folder = results / "cuts/variants-hc+depths-3+backends-torch"
    for name in ("RESULTS.md", "COMPARISON.md"):
        head = (folder / name).read_text().split("\n\n")[1].strip("*")
        said = "This is a subset of the whole grid: only variants hc, depths 3, backends torch."
        assert head == said
        assert "subset of the whole grid" not in (results / name).read_text()
    assert [row["study"] for row in read_csv(folder / "tables/cells.csv")] == ["depth-mlx"]
    # A run missing from the whole grid is trained once, for both.
    shutil.rmtree(results / CELL)
    plan = workflow.snakemake("-n", "all", *SMOKE, "--config", "depths=[3]").stdout
    assert counts_in(plan)["train"] == 1


STUDIES = ("depth-mlx", "depth-torch", "fashion")
"""Studies that the commands name, and one more: `make dry-runs` plans the whole grid."""


@pytest.fixture(scope="session")
def few(untouched):
    """The project with an overlay of a few whole studies; for dry-runs only."""
    (untouched.folder / "few.yaml").write_text(only({name: {} for name in STUDIES}))
    return untouched


def count_cells(project, studies=None, **cut):
    cells = load_config(
        [project.folder / name for name in ("config.yaml", "few.yaml")], cut
    ).cells()
    return sum(studies is None or cell.study in studies for cell in cells)


@pytest.mark.parametrize("purpose", PLANS)
def test_a_command_plans_its_jobs(few, purpose):
    program, *arguments = shlex.split(COMMANDS[purpose])
    assert program == "snakemake"
    dry = [] if "-n" in arguments else ["-n"]
    result = few.snakemake(*arguments, *dry, "--configfile", "few.yaml")
    assert result.returncode == 0, result.stderr
    jobs, (cells, last) = counts_in(result.stdout), PLANS[purpose]
    assert jobs["train"] == (cells if isinstance(cells, int) else count_cells(few, **cells))
    assert last is None or jobs[last] >= 1
    if last != "reports":
        assert not {"figures", "claims"} & set(jobs) or last in ("page", "paper")


def test_a_browsable_report_is_made(finished, tmp_path):
    program, option, file = shlex.split(COMMANDS[BROWSABLE])
    assert (program, option) == ("snakemake", "--report")
    finished.smoke(option, str(tmp_path / file))
    # A zip, since browsers do not show a page of this size inside another one.
    with zipfile.ZipFile(tmp_path / file) as report:
        names = report.namelist()
        shown = [Path(name).name for name in names if "/data/" in name]
        (entry,) = [name for name in names if name.count("/") == 1]
        assert Path(entry).name == "report.html"
        text = report.read(entry).decode()
    figures = {f.name for f in (finished.folder / "results/smoke/figures").rglob("*.png")}
    assert {"index.html", "fathom.pdf", *figures} <= set(shown)
    assert not [name for name in shown if name.endswith(".md")]
    labels = {"study": "depth-mlx", "platform": "torch", "metric": "loss"}
    assert re.search(r'"labels": ?' + re.escape(json.dumps(labels)), text)


def test_without_images_all_else_is_made_and_tables_give_the_reason(fresh):
    record = fresh.folder / "data/fashion-mnist/unavailable.txt"
    record.parent.mkdir(parents=True)
    record.write_text("nothing answered\nand more about it\n")
    cell = {"variants": ["mhc"], "depths": [2], "seeds": [0], "backends": ["torch"], "exclude": []}
    (fresh.folder / "grid.yaml").write_text(only({"depth-mlx": cell, "fashion": {}}))
    (line,) = own_lines(fresh.smoke("tables"))
    assert "data/fashion-mnist/unavailable.txt says what was tried" in line
    rows = read_csv(fresh.folder / "results/smoke/tables/cells.csv")
    cells = [(row["study"], row["status"], row["reason"]) for row in rows]
    assert ("fashion", "missing", "nothing answered") in cells
    assert ("depth-mlx", "measured", "") in cells
