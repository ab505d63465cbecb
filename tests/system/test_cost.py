"""`fathom cost`: what a connection adds to a step of a large transformer."""

import pytest

from fathom_study.cli import cost
from tests.support.commands import exit_status
from tests.support.project import PROJECT

SIZES = ["--width", "4096", "--blocks", "32"]


@pytest.fixture(autouse=True)
def project(monkeypatch):
    """The project's folder, with its tables of measured steps."""
    monkeypatch.chdir(PROJECT)


def printed(capsys, *words):
    assert exit_status(["cost", *words]) == 0
    return capsys.readouterr().out


def refused(capsys, *words):
    assert exit_status(["cost", *words]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_shares_and_what_was_measured(capsys):
    text = printed(capsys, "mhc_paper", *SIZES, "--tokens", "1000")
    assert "12 C² parameters a block" in text
    assert "+0.39%" in text and "at 400 TFLOP/s reached" in text  # 16/4096
    assert "+2.75%" in text and "at 3.35 TB/s" in text
    assert "+3.14%" in text
    # 72 · 4096² · 32 · 1000 / 400e12 s.
    assert "the plain step 96.64 ms" in text
    assert "measured, torch on cpu-amd-epyc-linux: " in text and "at C 128" in text


def test_a_machine_is_a_name_or_numbers(capsys):
    words = ("mhc_paper", *SIZES, "--rate", "800", "--bandwidth", "6.7")
    assert "+0.39%" in printed(capsys, *words)  # twice as fast in both
    assert "+2.75%" in printed(capsys, *words)
    text = printed(capsys, "mhc_paper", *SIZES, "--dtype", "float32")
    assert "+5.51%" in text  # twice the bytes


def test_settings_have_no_measured_steps(capsys):
    text = printed(capsys, "{connection: mhc_paper, streams: 2}", *SIZES)
    assert "measured" not in text


def test_without_tables_nothing_was_measured(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "measured" not in printed(capsys, "mhc_paper", *SIZES)


def test_other_tables_are_refused(capsys, tmp_path, monkeypatch):
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    monkeypatch.setattr(cost, "TABLES", (tmp_path / "other.csv",))
    assert "other.csv: is not a table of benchmarks/steps.py" in refused(
        capsys, "mhc_paper", *SIZES
    )


@pytest.mark.parametrize(
    "words, told",
    [
        (["mhc_papr", *SIZES], "did you mean 'mhc_paper'?"),
        (["mhar", "--width", "42", "--blocks", "2"], "width 42 is not divisible by heads 4"),
        (["mhc_paper", *SIZES, "--gpu", "h20"], "unknown GPU 'h20'; did you mean 'h200'?"),
        (["mhc_paper", *SIZES, "--dtype", "half"], "unknown float type 'half'"),
        (["mhc_paper", "--width", "4096"], "--blocks"),
        (["mhc_paper", *SIZES, "--rate", "inf"], "--rate: must be finite"),
    ],
)
def test_refusals_name_the_fix(capsys, words, told):
    assert told in refused(capsys, *words)
