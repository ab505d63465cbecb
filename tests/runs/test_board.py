"""A submission passes its check; each forged one is refused in one line that names file and key."""

import json
import re
import shutil
from pathlib import Path

import pytest

from fathom.connections.module import FOLDER
from fathom_study.analysis.run_tables import write_tables
from fathom_study.board import check, track
from fathom_study.board.rows import rows_of
from fathom_study.board.scoring import numbers_of, plain_cells_left
from fathom_study.board.submission import read_submission
from fathom_study.cli import main
from fathom_study.cli.judge import FULL_CONFIG
from fathom_study.config import Cell, installed_backends
from fathom_study.report.judge.judgement import make_plan
from fathom_study.runs.bundle import unpack, write_bundle
from fathom_study.runs.training import run_cell
from tests.support.own_connections import PLAIN, write
from tests.support.runs import shift

pytestmark = pytest.mark.skipif("torch" not in installed_backends(), reason="needs torch")

SMOKE = {
    "title": "Smoke", "date": "2026-01-01", "about": "Counting, for tests.",
    "study": {
        "smoke": {
            "task": "tokens", "recipe": "torch-defaults", "variants": ["baseline"], "depths": [2],
            "seeds": [0, 1, 2], "steps": 6, "batch_size": 4, "backends": ["torch"],
            "optimizer": {"lr": 0.01}, "ladder": {"baseline": [0.5, 2]},
            "model": {"vocab": 16, "length": 8, "width": 8, "heads": 2, "hidden": 16,
                      "wrap": "sublayer"},
        }
    },
}  # fmt: skip
"""A track for tests alone."""

SUBMITTED = Path("board/smoke/class-jane-doe")
CALL = ("judge", "mine.py:Class", "--track", "smoke", "--submit")
CHOICE = "NUMBA_OPT", "3"
"""A variable that chooses instructions, at its default: a repeated training needs it too."""
AUTHOR = ("--who", "Jane Doe", "--licence", "MIT")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Folder with a track and a submission to it."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.setenv(FOLDER, "")
        patch.setenv(*CHOICE)
        patch.setattr(track, "TRACKS", home / "tracks")
        patch.setattr("fathom_study.report.judge.judgement.TURNS", 1)
        Path("tracks").mkdir()
        write("tracks/smoke.yaml", json.dumps(SMOKE))
        write(
            "mine.py",
            PLAIN.replace("return function(x0, functions)", "return function(x0, functions, 0.9)"),
        )
        # In this process, which has loaded the framework; the command then trains nothing.
        out, smoke = Path("results/judge/Class/track-smoke"), track.load_track("smoke")
        how = {"seeds": 3, "train_plain": False, "check": False, "track": smoke}
        plan = make_plan(FULL_CONFIG, "mine.py:Class", {}, out, **how)
        for cell in plan.to_train():
            run_cell(plan.config.spec(cell), plan.folder(cell))
        main([*CALL, *AUTHOR])
    return home


@pytest.fixture
def home(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(FOLDER, "")
    monkeypatch.setenv(*CHOICE)
    monkeypatch.setattr(track, "TRACKS", tmp_path / "tracks")
    return tmp_path


def refusal(fathom, *options):
    status, _, lines = fathom("board", "check", SUBMITTED, *(options or ["--no-train"]))
    assert status == 1
    assert all(line.startswith("fathom: ") for line in lines)
    return lines


def edit(change):
    """Change the record of the submission."""
    file = SUBMITTED / "submission.json"
    record = json.loads(file.read_text(encoding="utf-8"))
    change(record)
    file.write_text(json.dumps(record), encoding="utf-8")


def unpacked():
    """The run folder of each cell in the bundle of the submission."""
    cells = unpack(SUBMITTED / "runs.tar.xz", Path("unpacked"))
    return {cell: Path("unpacked") / cell.path() for cell in cells}


def test_a_submission_passes_and_a_curve_that_does_not_repeat_is_refused(home, monkeypatch, fathom):
    """Its seals, its hashes and its numbers fit the forged curve: only a training finds it."""
    run_child = check._run_child

    def kept_child(work, *options):
        """The child of the first call; another would train the same run again."""
        if not Path("work").exists():
            assert run_child(work, *options) == ""
            shutil.copytree(work, "work")
        shutil.copytree("work", work, dirs_exist_ok=True)
        return ""

    monkeypatch.setattr(check, "_run_child", kept_child)
    status, said, _ = fathom("board", "check", SUBMITTED, "--commit", "c0ffee")
    assert status == 0
    assert "numbers: recomputed from the curves" in said
    assert re.search(r"training: seed [012], drawn by commit c0ffee", said)
    assert "repeats: to the last digit" in said
    assert said.endswith("class-jane-doe: passed\n")

    runs = unpacked()
    for folder in (folder for cell, folder in runs.items() if cell.variant == "class"):
        shift(folder, step=4, by=1e-4)
    write_bundle(SUBMITTED / "runs.tar.xz", runs)
    (line,) = refusal(fathom, "--commit", "c0ffee")
    assert "runs.tar.xz: smoke/2L/class/torch/seed" in line
    assert "the training does not repeat: loss of step 4 was" in line


def test_without_training_nothing_is_executed_and_it_says_so(home, fathom):
    file = SUBMITTED / "mine.py"
    write(file, "raise SystemExit('executed')\n")
    edit(lambda record: record.update(digest=track.digits(file.read_bytes())))
    lines = refusal(fathom)  # the runs have the hash of another file
    assert all("spec.json differs from the track's: connection.digest" in line for line in lines)
    assert len(lines) == 3
    shutil.copy("mine.py", file)
    edit(lambda record: record.update(digest=track.digits(file.read_bytes())))
    status, said, _ = fathom("board", "check", SUBMITTED, "--no-train")
    assert status == 0 and "training: skipped, by --no-train" in said


FORGED = {
    "multiplier": (
        lambda r: r["numbers"].update(multiplier=1.5), "numbers.multiplier: is 1.5, but"
    ),
    "verdict": (lambda r: r["numbers"].update(verdict="better"), "numbers.verdict: is"),
    "diverged": (lambda r: r["numbers"].update(diverged=1), "numbers.diverged: is 1, but"),
    "track's hash": (lambda r: r.update(track_hash="00"), "track_hash: is 00, but track smoke has"),
    "seeds": (lambda r: r.update(seeds=[0, 1]), "seeds: is [0, 1], but track smoke asks for"),
    "versions": (lambda r: r["versions"].update(torch="1.0"), "versions.torch: is '1.0', but the"),
    "machine": (lambda r: r["cost"].update(machine="fast"), "cost.machine: is 'fast', but the"),
    "date": (lambda r: r.update(date="2025-12-31"), "date: 2025-12-31 is not between"),
    "licence": (lambda r: r.update(licence="my own!"), "licence: must be an SPDX identifier"),
    "file": (lambda r: r.update(file="../mine.py"), "file: must be the name of a Python file"),
    "settings": (lambda r: r.update(settings={"layers": 3}), "layers: the network sets it"),
    "track": (lambda r: r.update(track="smok"), "unknown track 'smok'; did you mean 'smoke'?"),
    "a key": (lambda r: r.update(extra=1), "unknown key 'extra'"),
}  # fmt: skip


@pytest.mark.parametrize("forged", FORGED)
def test_a_forged_record_is_refused(home, fathom, forged):
    change, said = FORGED[forged]
    edit(change)
    (line,) = refusal(fathom)
    assert said in line
    assert "submission.json" in line or forged == "track"


def test_a_submission_is_of_its_folders_track_and_of_its_author(home, fathom):
    elsewhere = Path("board/other") / SUBMITTED.name
    shutil.copytree(SUBMITTED, elsewhere)
    status, _, (line,) = fathom("board", "check", elsewhere, "--no-train")
    assert status == 1 and "track: is smoke; move its folder to board/smoke" in line
    for name in ("   ", "Fathom"):
        edit(lambda record, name=name: record.update(who=name))
        assert any("who: must be the name of a person" in line for line in refusal(fathom))


def test_a_changed_class_file_is_refused(home, fathom):
    with (SUBMITTED / "mine.py").open("a", encoding="utf-8") as file:
        file.write("# better\n")
    (line,) = refusal(fathom)
    assert re.search(r"mine\.py: its hash is \w{16}, but submission\.json has digest \w{16}", line)


def test_missing_seeds_and_other_files_are_refused(home, fathom):
    runs = unpacked()
    missing = Cell("smoke", 2, "class", "torch", 1)
    write_bundle(SUBMITTED / "runs.tar.xz", {c: f for c, f in runs.items() if c != missing})
    (line,) = refusal(fathom)
    assert f"runs.tar.xz: {missing}: is missing; the track asks for this run" in line

    (SUBMITTED / "weights.bin").write_bytes(b"1")
    (SUBMITTED / "JUDGE.md").unlink()
    lines = refusal(fathom)
    assert [line.rpartition(": ")[2] for line in lines] == [
        "is missing; submit again", "is no file of a submission; delete it",
    ]  # fmt: skip


def test_a_file_that_needs_the_network_or_much_time_is_stopped(home, monkeypatch, fathom):
    monkeypatch.setattr(check, "can_cut_network", lambda: False)
    (line,) = refusal(fathom, "--commit", "c0ffee")
    assert "needs a maintainer's approval first; read the file, then add --approved" in line
    job = check.Job(spec={}, threads=1, device="cpu", data="data", seconds=1)
    monkeypatch.setattr(check.sys, "executable", shutil.which("sleep"))
    monkeypatch.setattr(check.subprocess, "Popen", _sleeping(check.subprocess.Popen))
    Path("work").mkdir()
    assert "takes longer than" in check._run_child(Path("work"), job, ())


def _sleeping(popen):
    return lambda command, **options: popen(["sleep", "60"], **options)


def test_a_submission_needs_its_author_and_a_track(home, fathom):
    cases = {
        CALL: ["--submit needs --who NAME", "--submit needs --licence SPDX, such as MIT"],
        (*CALL, *AUTHOR[:3], "my own!"): ["--submit: licence: must be an SPDX identifier"],
        ("judge", "mine.py:Class", *AUTHOR, "--submit"): ["--submit needs --track NAME"],
        (*CALL[:-1], *AUTHOR): ["--who and --licence belong to a submission; add --submit"],
        (*CALL[:-1], "--seeds", "2"): ["a track has its own settings and seeds"],
        (*CALL[:-1], "--quick"): ["--quick is the track quick; omit --quick or --track smoke"],
    }
    for call, wanted in cases.items():
        status, _, lines = fathom(*call)
        assert status != 0 and len(lines) == len(wanted)
        assert all(part in line for part, line in zip(wanted, lines, strict=True)), lines


def test_the_page_begins_with_the_verdict_and_shows_its_row(home):
    page = Path("results/judge/Class/track-smoke/JUDGE.md").read_text(encoding="utf-8")
    first, verdict, *_ = [line for line in page.splitlines() if line]
    assert first == "# Class, judged"
    assert verdict.startswith("**Class needs ") and "undecided" in verdict
    assert page.count("| causality |") == 1
    assert "| **Class** | you |" in page
    html = Path("results/judge/Class/track-smoke/JUDGE.html").read_text(encoding="utf-8")
    assert html.count("<svg") == 1 and html.count("<table") == html.count('<div class="table"')


def test_the_board_groups_rows_and_names_who_replicated_them(home):
    shutil.copytree(SUBMITTED, "board/smoke/class-joe")
    shutil.copytree(SUBMITTED, "board/smoke/class-gone")
    for name, changes in (("joe", {"who": "Joe"}), ("gone", {"withdrawn": "a mistake"})):
        file = Path(f"board/smoke/class-{name}/submission.json")
        write(file, json.dumps(json.loads(file.read_text(encoding="utf-8")) | changes))
    found = rows_of(track.load_track("smoke"), Path("board"), (), {})
    (row,) = [row for group in found.groups.values() for row in group]
    assert (row.who, row.seeds, row.asked) == ("Jane Doe", 3, 3)
    assert row.replicated_by == (("Joe", row.verdict),)
    assert [row.withdrawn for row in found.withdrawn] == ["a mistake"]


def test_kept_runs_of_the_plain_network_are_not_trained_again(home, monkeypatch, fathom):
    monkeypatch.setattr("fathom_study.report.judge.judgement.TURNS", 1)
    plain = track.load_track("smoke")
    seeds = {"smoke": {"seeds": [0, 1]}}
    config = plain.config({"results": "results/judge/plain-network/smoke", "studies": seeds})
    write_tables(config, Path("kept/tables"))
    of_kept = {**plain.model_dump(), "kept": True, "reference": "kept"}
    beside = track.Track.model_validate(of_kept)
    assert {cell.seed for cell in plain_cells_left(beside, beside.kept_result)} == {2}
    runs = unpacked()
    own = {c: f for c, f in runs.items() if c.variant == "class" or c.seed == 2}
    # Kept scores and trained ones are the same runs here, so the numbers are.
    numbers = numbers_of(beside, "class", own, beside.kept_result)
    assert numbers == read_submission(SUBMITTED).numbers

    write("tracks/smoke.yaml", json.dumps({**SMOKE, "kept": True, "reference": "kept"}))
    status, said, errors = fathom(*CALL[:-1])
    assert status == 0 and any("every chosen cell is trained" in line for line in errors)
    assert "Class needs " in said and f", {numbers.verdict})" in said


def test_without_the_kept_result_the_plain_network_is_trained_and_nothing_submitted(home, fathom):
    write("tracks/smoke.yaml", json.dumps({**SMOKE, "kept": True, "reference": "kept"}))
    here = {"seeds": 3, "train_plain": False, "check": False, "track": track.load_track("smoke")}
    plan = make_plan(FULL_CONFIG, "mine.py:Class", {}, Path("results/judge/Class/here"), **here)
    assert {*here["track"].plain_cells()} < {*plan.to_train()}
    status, _, (line,) = fathom(*CALL, *AUTHOR)
    assert status == 1
    assert line.startswith(
        "fathom: --submit compares with the kept result, but the kept result, kept"
    )
