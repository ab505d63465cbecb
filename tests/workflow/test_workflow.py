"""The real Snakemake on the real rules."""

import importlib.util
import re
import shlex
from itertools import pairwise

import typer

from fathom_study import cli
from tests.support.project import PROJECT
from tests.support.specs import quick_cases
from tests.workflow.conftest import SMOKE, own_lines


def rules(jobs):
    return {rule for rule, _ in jobs}


# --- results of a run ----------------------------------------------------------------------------


def test_the_file_at_the_top_plans_what_the_catalogs_file_does(untouched):
    plan = untouched.planned()
    assert {"train", "reports"} <= rules(plan)
    assert plan == untouched.planned("all", "--snakefile", "workflow/Snakefile")
    assert "specific profile profiles/default" in untouched.smoke("-n").stderr


def test_jobs_read_the_config_that_snakemake_was_started_with(untouched):
    options = ("--printshellcmds", "--config", "assume_backends=True", *SMOKE)
    result = untouched.snakemake("-n", "verify", *options)
    (line,) = [line for line in result.stdout.splitlines() if "fathom verify" in line]
    words = shlex.split(line.partition("fathom verify ")[2])
    folder = untouched.folder.resolve()
    files = [word for flag, word in pairwise(words) if flag == "--config"]
    assert files == ["config.yaml", *(str(folder / file) for file in SMOKE[1:])]
    assert "--set=assume_backends=true" in words
    only = untouched.snakemake("-n", "verify", "--replace-workflow-config", *options)
    assert "--config config.yaml" not in only.stdout


# --- edits and their jobs ------------------------------------------------------------------------

SRC, PRESET = "src/fathom_study/", ".test/config/config.yaml"


# --- the table of docs/commands.md ---------------------------------------------------------------

ROW = re.compile(r"^\| (.+?) \| (.+?) \|$", re.M)
BROWSABLE = "make a browsable report: unpack it, open its `report.html`"
PAPER = "snakemake all --configfile workflow/presets/paper.yaml"
PLANS = {
    "see what would run, why, and how long it takes": ({}, "reports"),
    "train one study and write its report, `results/studies/depth-mlx.md`": (
        {"studies": ["depth-mlx"]},
        "reports",
    ),
    "train one cell again": (1, None),
    "take a part of an axis": ({"backends": ["torch"], "seeds": [0]}, "reports"),
    "draw every cell's own figures": ({}, "cell_figure"),
    "make the page, `results/index.html`": ({}, "page"),
    "make the paper, `results/fathom.pdf`": ({}, "paper"),
    "get the data sets, or see why not": (0, "fetch"),
}
"""By purpose: the cells that train in a project without runs, and a rule that follows."""
DRY_RUNS = {"run the published scale", "… on a Slurm cluster ([how](cluster.md))"}
"""Commands that `make dry-runs` plans."""


def documented_commands():
    """(purpose, command) of every row."""
    text = (PROJECT / "docs/commands.md").read_text(encoding="utf-8")
    table = text.partition("| to … | run |\n|---|---|\n")[2].partition("\n\n")[0]
    for purpose, cell in ROW.findall(table):
        command = re.search("`(.*?)`", cell)[1]
        yield (
            purpose.partition(",")[0] if "cut" in purpose else purpose,
            (f"{PAPER} {command}" if cell.startswith("the same with") else command),
        )


COMMANDS = dict(documented_commands())


def test_every_command_is_tried_here_or_parses(monkeypatch):
    own, timing = (
        {purpose: shlex.split(line) for purpose, line in COMMANDS.items() if line.startswith(start)}
        for start in ("fathom ", "python benchmarks/steps.py ")
    )
    tests = {purpose for purpose, line in COMMANDS.items() if line.startswith("pytest ")}
    assert set(COMMANDS) - {*own, *timing, *tests} == set(PLANS) | DRY_RUNS | {BROWSABLE}
    planned = (PROJECT / "Makefile").read_text(encoding="utf-8")
    for purpose in DRY_RUNS:
        assert f"$(PLAN){COMMANDS[purpose].removeprefix('snakemake all')}\n" in planned
    for _, name, *arguments in own.values():
        cli.commands().commands[name].make_context(name, arguments)
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))
    (app := typer.Typer()).command()(importlib.import_module("steps").main)
    for _, script, *arguments in timing.values():
        typer.main.get_command(app).make_context(script, arguments)


# --- missing data and mistakes -------------------------------------------------------------------


REFUSED = {
    "a missing table of step times": (
        (PRESET, "results: ", "step_times: times.csv\nresults: "), SMOKE,
        "step_times: times.csv is missing; make it with benchmarks/steps.py",
    ),
    "malformed YAML": (
        ("config.yaml", "variants: null", "variants: [unclosed"), (), "malformed YAML",
    ),
}  # fmt: skip


@quick_cases("edit, arguments, said", REFUSED, "malformed YAML")
def test_a_mistake_is_refused_in_one_line_and_nothing_starts(fresh, edit, arguments, said):
    fresh.edit(*edit)
    result = fresh.snakemake("-n", *arguments)
    assert result.returncode == 1
    lines = own_lines(result)
    (line,) = [line for line in lines if "is not installed here" not in line]
    assert said in line
    assert not (fresh.folder / "results").exists()


def test_a_cell_with_a_leading_zero_is_no_target(untouched):
    """It would be another folder for the same cell."""
    target = "results/runs/depth-mlx/048L/mhc/torch/seed0/metrics.jsonl"
    result = untouched.snakemake("-n", target)
    assert result.returncode == 1
    assert "MissingRuleException" in result.stdout + result.stderr
