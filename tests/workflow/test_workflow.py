"""The real Snakemake on the real rules."""

import csv
import json
import re

import pytest

CELL = "runs/depth-mlx/3L/mhc/torch/seed0"

FIGURES = {
    "figures_depth_mlx",
    "figures_depth_torch",
    "figures_depth_beyond",
    "overview_figures",
}
COLLECTORS = {"run_tables", "claims", "reports"} | FIGURES


def rules(jobs):
    return {rule for rule, _ in jobs}


def trained(jobs):
    return sorted(output.rpartition("/")[0] for rule, output in jobs if rule == "train")


def test_all_leaves_reports_tables_and_figures(finished):
    results = finished.folder / "results/smoke"
    assert (results / "RESULTS.md").read_text().startswith("# Results")
    assert (results / "COMPARISON.md").read_text().startswith("# Comparison")
    with (results / "tables/cells.csv").open() as file:
        cells = list(csv.DictReader(file))
    # depth-mlx: 2 depths × 2 variants; the other two: mhc at one depth; all on 2 backends.
    assert len(cells) == 8 + 2 + 2
    assert {cell["status"] for cell in cells} == {"measured"}
    assert (results / "figures/depth-mlx/mlx/3l_comparison.png").stat().st_size > 10_000


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
    assert {cell.split("/")[1] for cell in trained(jobs) if "depth-torch" in cell} == {
        "depth-torch"
    }
    assert "figures_depth_torch" in rules(jobs)
    assert "figures_depth_mlx" not in rules(jobs)


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


@pytest.mark.parametrize(
    ("module", "backends"),
    [
        ("models/connections.py", {"torch", "mlx"}),
        ("metrics.py", {"torch", "mlx"}),
        ("backends/mlx.py", {"mlx"}),
    ],
)
def test_an_edit_of_training_code_retrains_what_uses_it(workflow, module, backends):
    with (workflow.folder / "src/fathom" / module).open("a") as file:
        file.write("\n# a change\n")
    assert {cell.split("/")[4] for cell in trained(workflow.planned("all"))} == backends


def test_an_edit_of_a_template_only_writes_the_reports_again(workflow):
    workflow.edit("report/templates/RESULTS.md.j2", "# Results\n", "# All results\n")
    assert workflow.planned("all") == [("reports", "RESULTS.md")]
    workflow.smoke("all")
    text = (workflow.folder / "results/smoke/RESULTS.md").read_text()
    assert text.startswith("# All results")


def test_an_edit_of_the_figures_trains_nothing(workflow):
    with (workflow.folder / "src/fathom/figures.py").open("a") as file:
        file.write("\n# a change\n")
    jobs = workflow.planned("all")
    assert rules(jobs) == FIGURES | {"reports"}


def test_a_tampered_run_is_refused_by_name(workflow):
    metrics = workflow.folder / "results/smoke" / CELL / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"loss":', '"loss":1', 1))
    result = workflow.snakemake(
        "tables", "--configfile", "workflow/presets/smoke.yaml", "--config", "seeds=[0]",
        'variants=["hc","mhc"]',
    )  # fmt: skip
    assert result.returncode != 0
    log = (workflow.folder / "results/smoke/logs/tables.log").read_text()
    assert CELL in log
    assert "metrics.jsonl" in log


@pytest.mark.parametrize(
    ("arguments", "cells"),
    [
        (["-n"], 136),
        (["-n", "--configfile", "workflow/presets/paper.yaml"], 207),
        (["-n", "--configfile", "workflow/presets/paper.yaml", "--workflow-profile", "slurm"], 207),
        (["-n", "--config", 'backends=["torch"]', "seeds=[0]"], 30),
    ],
    ids=["default", "paper", "slurm", "cut"],
)
def test_dry_runs_plan_every_cell(untouched, arguments, cells):
    result = untouched.snakemake(*arguments)
    assert result.returncode == 0, result.stderr
    assert re.search(rf"^train +{cells}$", result.stdout, re.MULTILINE)


def test_a_missing_backend_is_left_out_and_said(untouched, tmp_path):
    # None in sys.modules is how Python itself says that a module is not to be found.
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['mlx'] = None\n")
    result = untouched.snakemake("-n", environment={"PYTHONPATH": str(tmp_path)})
    assert result.returncode == 0, result.stderr
    assert re.search(r"^train +76$", result.stdout, re.MULTILINE)
    said = [line for line in result.stderr.splitlines() if "mlx is not installed here" in line]
    assert len(said) == 1


def test_without_the_images_everything_else_is_made_and_the_tables_say_why(fresh):
    record = fresh.folder / "data/fashion-mnist/unavailable.txt"
    record.parent.mkdir(parents=True)
    record.write_text("nothing answered\nand more about it\n")
    grid = ("seeds=[0]", "depths=[2]", 'variants=["mhc","mhc_causal"]', 'backends=["torch"]')
    result = fresh.smoke("tables", grid=("--config", *grid))
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
        ("depths=[7]", "no cells"),
    ],
)
def test_bad_config_is_one_line_and_nothing_starts(untouched, setting, said):
    result = untouched.snakemake("all", "--config", setting)
    assert result.returncode != 0
    complaints = [line for line in result.stderr.splitlines() if line.startswith("fathom:")]
    assert len(complaints) == 1
    assert said in complaints[0]
    assert "Traceback" not in result.stderr
    assert not (untouched.folder / "results").exists()


def test_malformed_yaml_is_refused_by_file_and_line(fresh):
    fresh.edit("config.yaml", "variants: null", "variants: [unclosed")
    result = fresh.snakemake("-n")
    assert result.returncode != 0
    (complaint,) = [line for line in result.stderr.splitlines() if line.startswith("fathom:")]
    assert re.search(r"config.yaml: line \d+ malformed YAML", complaint)


def test_the_config_a_run_used_is_kept(finished):
    kept = json.loads((finished.folder / "results/smoke/config.json").read_text())
    assert kept["seeds"] == [0]
    assert kept["studies"]["depth-mlx"]["steps"] == 4
