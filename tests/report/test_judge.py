"""`fathom judge`: a page that compares a user's connection with a kept result."""

import json
import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from fathom_study.analysis.run_tables import write_tables
from fathom_study.cli import main
from fathom_study.config import installed_backends, load_config
from fathom_study.runs.bundle import create_bundle
from fathom_study.runs.training import run_cell
from tests.support.commands import finished
from tests.support.own_connections import LATE, LEAKING, LITE, PLAIN, write
from tests.support.runs import read_csv

pytestmark = pytest.mark.skipif("torch" not in installed_backends(), reason="needs torch")

PROJECT = Path(__file__).parents[2]
SIZES = {"vocab": 16, "length": 8, "width": 8, "heads": 2, "hidden": 16, "wrap": "sublayer"}
STUDY = {
    "task": "tokens", "recipe": "torch-defaults", "variants": ["baseline", "mhc_lite"],
    "depths": [2], "seeds": [0, 1, 2], "steps": 8, "batch_size": 4, "backends": ["torch"],
    "optimizer": {"lr": 0.01, "weight_decay": 0.1, "decay": "matrices"}, "model": SIZES,
    "ladder": {"baseline": [0.5, 2]}, "plain_depths": [1, 3],
}  # fmt: skip
CONFIG = {"results": "kept", "studies": {"released": STUDY}}

DIVERGING = """
import torch
from torch import nn

class Wild(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, x0, functions):
        moved = (self.gain - 1).detach().abs()
        # The first step of AdamW moves the gain by the rate, 0.01; no check moves it by that.
        lost = torch.where((moved - 0.01).abs() < 0.0005, torch.nan, 1.0)
        for f in functions:
            x0 = x0 + self.gain * lost * f(x0)
        return x0
"""

FALLING = PLAIN.replace("x = x + scale * f(x)", "x = 1e-9 * (x + scale * f(x))")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folder with a config and its result, like the kept result in a clone."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        write("config.yaml", json.dumps(CONFIG))
        config = load_config(["config.yaml"])
        for cell in config.cells():
            run_cell(config.spec(cell), Path("kept/runs") / cell.path())
        write_tables(config, Path("kept/tables"))
    return home


@pytest.fixture
def home(trained, tmp_path, monkeypatch):
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    write("plain.py", PLAIN)
    write("lite.py", LITE)
    monkeypatch.setattr("fathom_study.report.judge.judgement.TURNS", 1)  # no test reads the cost
    return tmp_path


def judge(module, *options, config="config.yaml"):
    main(["judge", module, "--config", config, *options])
    return Path("results/judge") / module.rpartition(":")[2]


def refusal(fathom, module, *options, config="config.yaml"):
    status, _, lines = fathom("judge", module, "--config", config, *options)
    assert status == 1
    return [line for line in lines if line.startswith("fathom: ")]


def test_a_rewritten_scheme_has_the_verdict_and_worth_of_the_original(home):
    """Scores differ by float32 rounding, 2⁻²⁴ per step; ln m by that over the ladder's slope."""
    folder = judge("lite.py:Lite")
    worth = {row["variant"]: row for row in read_csv(folder / "tables" / "worth.csv")}
    ours, theirs = worth["lite"], worth["mhc_lite"]
    for name in ("verdict", "answer", "seeds", "against"):
        assert ours[name] == theirs[name]
    for name in ("multiplier", "low", "high"):
        if theirs[name]:
            assert float(ours[name]) == pytest.approx(float(theirs[name]), rel=1e-4)
    depth = {row["variant"]: row for row in read_csv(folder / "tables" / "effective_depth.csv")}
    assert depth["lite"]["answer"] == depth["mhc_lite"]["answer"]


def test_the_page_has_contract_worth_all_rows_and_a_note_on_seeds(home):
    # In a clone, the runs of the kept result are in bundles of any name.
    create_bundle(load_config(["config.yaml"]), Path("kept/bundles/others.tar.xz"))
    shutil.rmtree("kept/runs")
    judge("lite.py:Lite", "--settings", "{streams: 2}")
    folder = Path("results/judge/Lite-streams-2")
    page = (folder / "JUDGE.md").read_text(encoding="utf-8")
    for row in ("| causality | ", "| reproduces our plain network | yes: ", "| cost of a step |",
                "| **Lite** | 3 |", "| baseline | 3 |", "| mhc_lite | 3 |"):  # fmt: skip
        assert row in page, row
    assert "baseline_x050" not in page
    assert "--seeds" not in page  # the kept result has only these three
    html = (folder / "JUDGE.html").read_text(encoding="utf-8")
    assert html.count("<tr>") > 10 and "<script" not in html


def test_a_check_trains_nothing_and_counts_what_a_pass_allows(home, capsys):
    """A pass that reads a number cannot be counted on tensors without numbers."""
    write("reads.py", PLAIN.replace("scale * f(x)", "f(x) * (1 if x.norm() >= 0 else 2)"))
    folder = judge("reads.py:function", "--check")
    said = capsys.readouterr()
    for part in ("causality: a later", "cost of a step", "operations of a step: not counted"):
        assert part in said.err
    assert said.out.splitlines() == ["reads.py:function: passed"]
    assert not (folder / "runs").exists() and not (folder / "JUDGE.md").exists()


def test_a_check_needs_no_data_and_prints_nothing_twice(home, capsys, fathom):
    shutil.rmtree("kept")
    text = {**STUDY, "task": "text", "model": {k: v for k, v in SIZES.items() if k != "vocab"}}
    studies = {"released": text, "state": STUDY}
    write("two.yaml", json.dumps({"studies": studies, "compute": {"data": "no-data"}}))
    write("falling.py", FALLING)
    judge("falling.py:Class", "--check", config="two.yaml")
    said = capsys.readouterr()
    lines = [re.sub("^(released|state): ", "", line) for line in said.err.splitlines()]
    assert len(lines) == len({*lines})
    assert any("not compared" in line for line in lines)
    assert said.out.splitlines() == ["falling.py:Class: look at gradients by layer; passed"]

    write("leak.py", LEAKING)
    *_, last = refusal(fathom, "leak.py:Leaking", "--check", config="two.yaml")
    assert last == "fathom: leak.py:Leaking: refused"


# Not imported here: setuptools refuses a process that has loaded the standard library's distutils.
@pytest.mark.skipif(find_spec("setuptools") is None, reason="setuptools builds the wheel")
def test_a_wheel_judges_a_file_anywhere_without_a_clone(home, tmp_path_factory):
    copy, site = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("site")
    for name in ("src", "report", "workflow"):
        hidden = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(PROJECT / name, copy / name, symlinks=True, ignore=hidden)
    for name in ("pyproject.toml", "README.md", "LICENSE", "config.yaml"):
        shutil.copy(PROJECT / name, copy)
    build = "from setuptools import build_meta; build_meta.build_wheel('.')"
    assert finished(sys.executable, "-c", build, folder=copy).returncode == 0
    (wheel,) = copy.glob("*.whl")
    shutil.unpack_archive(wheel, site, "zip")

    elsewhere = tmp_path_factory.mktemp("elsewhere")
    write(elsewhere / "own.py", PLAIN)
    shutil.rmtree("kept")
    program = "import fathom_study.__main__ as it; print(it.__file__); it.main()"

    def run(*options):
        command = sys.executable, "-c", program, "judge", f"{elsewhere}/own.py:Class"
        done = finished(*command, *options, PYTHONPATH=str(site))
        assert done.stdout.startswith(str(site))
        return done

    done = run("--check", "--config", "config.yaml")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("own.py:Class: passed\n")
    assert "other connections: not compared: the kept result" in done.stderr
    assert "results/reference/tables/cells.csv: missing" in run().stderr  # the default config
    done = run("--train-plain", "--config", "config.yaml")
    assert done.returncode == 0, done.stderr
    assert str(elsewhere) not in "".join(
        file.read_text(encoding="utf-8") for file in Path("results").rglob("spec.json")
    )


def test_a_second_call_trains_nothing(home, capsys):
    judge("plain.py:Class")
    page = (Path("results/judge/Class") / "JUDGE.md").read_text(encoding="utf-8")
    capsys.readouterr()
    judge("plain.py:Class")
    assert "every chosen cell is trained" in capsys.readouterr().err
    again = (Path("results/judge/Class") / "JUDGE.md").read_text(encoding="utf-8")
    # Each call measures the cost, and the gain over it, again.
    pages = [re.sub(r"a step takes.*|\| cost of.*", "", text) for text in (page, again)]
    assert pages[0] == pages[1]


def test_without_a_kept_result_the_plain_network_is_trained_too(home):
    shutil.rmtree("kept")
    study = {key: value for key, value in STUDY.items() if key != "ladder"}
    write("small.yaml", json.dumps({"studies": {"released": {**study, "evaluate_every": 8}}}))
    folder = judge("plain.py:Class", "--train-plain", config="small.yaml")
    rows = {row["variant"]: row for row in read_csv(folder / "tables" / "worth.csv")}
    # It equals the plain network, so the scores are equal and the multiplier is one.
    assert float(rows["class"]["multiplier"]) == pytest.approx(1, abs=1e-3)
    page = (folder / "JUDGE.md").read_text(encoding="utf-8")
    assert "was compared with the plain network, trained here." in page
    assert "fathom judge plain.py:Class --config small.yaml --train-plain --seeds 5" in page
    assert "| at the start | equals the plain network, but for rounding |" in page


def test_another_judgement_keeps_the_plain_runs_that_were_trained_here(home, capsys):
    judge("plain.py:Class", "--train-plain")
    plain = {f: f.stat().st_mtime_ns for f in Path("results/judge").rglob("baseline*/**/*.jsonl")}
    assert len(plain) == 3 * (2 + 3)  # two rungs and three depths at three seeds
    capsys.readouterr()
    judge("plain.py:function", "--train-plain", "--settings", "{scale: 0.01}")
    said = capsys.readouterr()
    assert "3 cells to train" in said.err
    assert plain == {file: file.stat().st_mtime_ns for file in plain}
    *_, last = said.out.splitlines()
    assert last.startswith("function needs ")


def test_a_diverging_connection_gets_its_page(home):
    write("wild.py", DIVERGING)
    folder = judge("wild.py:Wild")
    page = (folder / "JUDGE.md").read_text(encoding="utf-8")
    assert "every run diverged, so it has no score" in page
    assert "| **Wild** | 0 | – | – | – | – |" in page


def test_a_wrong_name_is_one_line_for_all_studies(home, fathom):
    write(
        "two.yaml", json.dumps({"results": "kept", "studies": {"released": STUDY, "state": STUDY}})
    )
    (line,) = refusal(fathom, "plain.py:Clas", config="two.yaml")
    assert line.startswith("fathom: plain.py has no class or function Clas")


def test_without_ladder_runs_the_page_says_so(home):
    rows = Path("kept/tables/cells.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    write("kept/tables/cells.csv", "".join(row for row in rows if "baseline_x" not in row))
    page = (judge("plain.py:Class") / "JUDGE.md").read_text(encoding="utf-8")
    assert "has no run of the ladder of baseline at these seeds yet" in page
    assert "| **Class** | 3 |" in page


def test_missing_requirements_print_one_line_with_the_fix(home, fathom):
    kept = "kept/runs/released/2L/baseline/torch/seed0/metrics.jsonl"
    first, *rest = Path(kept).read_text(encoding="utf-8").splitlines(keepends=True)
    row = json.loads(first)
    write(kept, json.dumps({**row, "loss": row["loss"] * 1.01}) + "\n" + "".join(rest))
    line, _ = refusal(fathom, "plain.py:Class")
    assert "reproduces our plain network: loss of step 0 was" in line
    assert line.endswith("add --train-plain to train the plain network here")

    shutil.rmtree("kept")
    (line,) = refusal(fathom, "plain.py:Class")
    assert "git checkout kept" in line
    assert "--train-plain" in line

    text = {key: value for key, value in SIZES.items() if key != "vocab"}
    study = {**STUDY, "task": "text", "model": text}
    data = {"studies": {"released": study}, "compute": {"data": "no-data"}}
    write("text.yaml", json.dumps(data))
    (line,) = refusal(fathom, "plain.py:Class", "--train-plain", config="text.yaml")
    assert "fathom fetch" in line

    _, _, (line,) = fathom("judge", "plain.py:Class", "--track", "code", "--train-plain")
    assert "data/python-sources is no folder" in line and "`fathom fetch python_sources`" in line

    write("other.yaml", json.dumps({"studies": {"other": STUDY}}))
    (line,) = refusal(fathom, "plain.py:Class", config="other.yaml")
    assert "has neither released nor state" in line
    (line,) = refusal(fathom, "plain.py:Class", "--settings", "[1]")
    assert "--settings" in line


def test_other_seeds_the_kept_folder_and_a_wrong_setting_are_refused(home, fathom):
    (line,) = refusal(fathom, "plain.py:Class", "--seeds", "4")
    assert line.startswith("fathom: --seeds: 4 exceeds the kept result's 3")
    write("kept/config.json", "{}")
    (line,) = refusal(fathom, "plain.py:Class", "--out", "kept")
    assert line.startswith("fathom: kept: has the results of a config; choose another folder")
    there = {"connection": {"module": "other.py:Class", "settings": {"scale": 2}}}
    Path("mine/runs/released/2L/class/torch/seed0").mkdir(parents=True)
    write("mine/runs/released/2L/class/torch/seed0/spec.json", json.dumps(there))
    (line,) = refusal(fathom, "plain.py:Class", "--out", "mine")
    assert line.startswith("fathom: mine: has runs of other.py:Class with settings {'scale': 2}; ")
    (line,) = refusal(fathom, "plain.py:Class", "--settings", "{kind: plain}")
    assert "kind" in line
    assert "unknown kind of connection" not in line  # it is an argument that the class lacks


def test_a_module_that_fails_after_its_checks_prints_one_line(home, fathom):
    write("late.py", LATE)
    line, _ = refusal(fathom, "late.py:Late")
    assert line.startswith("fathom: late.py:Late: AssertionError: not again")
    assert not Path("results").exists()
