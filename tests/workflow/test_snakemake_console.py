"""Cells that a workflow trains, why again, and the shell code of its jobs."""

import subprocess

from fathom_study import datasets
from fathom_study.config import Compute, check_config
from fathom_study.runs.plan import shell_prefix
from fathom_study.runs.status import trainable
from fathom_study.runs.validate import summarize_reasons
from tests.support.runs import STUDY, config_with


def test_the_three_most_frequent_reasons_are_named():
    assert summarize_reasons(["a", "b", "b"]) == (
        "3 runs are not current and will be retrained: b (2); a (1)"
    )
    line = summarize_reasons(["a", "b", "c", "d", "d"])
    assert line.startswith("5 runs are not current and will be retrained: d (2); a (1); b (1); ")
    assert "fathom status" in line
    assert "c (1)" not in line


def test_cells_without_data_or_backend_are_left_out_with_one_line(tmp_path):
    plain = config_with(studies=("a", "b"))
    both = {"torch", "mlx"}
    assert trainable(plain, both) == (list(plain.cells()), [])
    cells, (line,) = trainable(plain, {"torch"})
    assert {cell.backend for cell in cells} == {"torch"}
    left = len(plain.cells()) - len(cells)
    assert f"backend mlx is not installed here: {left} cells" in line

    model = {"length": 4, "width": 8, "heads": 2, "hidden": 16, "validation_windows": 4}
    text = {**STUDY, "task": "text", "batch_size": 2, "evaluate_every": 1, "model": model}
    data = {"studies": {"a": STUDY, "b": text}, "compute": {"data": str(tmp_path)}}
    config = check_config(data)
    assert trainable(config, both)[1] == []
    folder = datasets.folder_of("shakespeare", str(tmp_path))
    folder.mkdir()
    (folder / datasets.UNAVAILABLE).write_text("nothing answered\n")
    cells, (line,) = trainable(config, both)
    assert {cell.study for cell in cells} == {"a"}
    assert str(folder / datasets.UNAVAILABLE) in line
    (folder / datasets.SUMS).write_text("")  # fetched since then
    assert trainable(config, both) == (list(config.cells()), [])
    imported_only = check_config({**data, "train": False})
    assert trainable(imported_only, set()) == ([], [])


def test_job_imports_its_own_fathom_first_and_reports_a_kill(tmp_path):
    source = tmp_path / "it's here"
    (source / "fathom_study").mkdir(parents=True)
    (source / "fathom_study/__main__.py").write_text(
        "import os, sys\n"
        "print(os.environ['PYTHONPATH'], os.environ['FATHOM_DATA'])\n"
        "sys.exit(int(sys.argv[1]))\n"
    )
    prefix = shell_prefix("python3", source, Compute(data="my data"))

    def run(status):
        return subprocess.run(
            ["bash", "-c", f"{prefix}fathom {status}"],
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": "/mine"},
            capture_output=True,
            text=True,
            check=False,
        )

    failed, killed = run(1), run(137)
    assert (failed.returncode, killed.returncode) == (1, 137)
    assert failed.stdout == f"{source}:/mine my data\n"
    assert failed.stderr == ""
    assert killed.stderr.startswith("fathom: killed")
