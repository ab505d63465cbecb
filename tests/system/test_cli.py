"""The command line: commands, options, `train-all`, `bundle`, and small installations."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from fathom_study import cli
from fathom_study.config import installed_backends, load_config
from fathom_study.runs.validate import find_runs
from tests.support.commands import exit_status, finished
from tests.support.runs import ARRIVED, TINY, numbers_of, read_manifest

BACKENDS = installed_backends()
BACKEND = BACKENDS[0] if BACKENDS else "torch"
OTHER = {"torch": "mlx", "mlx": "torch"}[BACKEND]
STUDY = {**TINY, "backends": [BACKEND]}

# Packages that a machine with only Python, the core and a framework lacks.
ABSENT = ("pandas", "scipy", "matplotlib", "jinja2", "snakemake")

pytestmark = pytest.mark.skipif(not BACKENDS, reason="neither torch nor mlx is installed")


# --- a folder to work in, and the commands -------------------------------------------------------


def write_config(folder, **changes):
    """Write config.yaml into a folder, with `changes` to its only study."""
    data = {"studies": {"small": {**STUDY, **changes}}, "compute": {"device": "cpu"}}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(json.dumps(data), encoding="utf-8")
    return folder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, which holds only a config."""
    monkeypatch.chdir(write_config(tmp_path / "here"))
    return tmp_path / "here"


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory):
    folder = write_config(tmp_path_factory.mktemp("cli") / "here")
    results = ["--set", f"results={folder / 'results'}"]
    assert exit_status(["train-all", "-c", str(folder / "config.yaml"), *results]) == 0
    return folder


@pytest.fixture
def trained(trained_once, tmp_path, monkeypatch):
    """The current folder, a copy of one in which every cell is trained."""
    shutil.copytree(trained_once, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def config_of(folder):
    """The folder's config, with an absolute path to its results."""
    return load_config([folder / "config.yaml"], {"results": str(folder / "results")})


def statuses(folder):
    return {run.cell.path(): run.status for run in find_runs(config_of(folder))}


def test_run_of_another_cell_is_not_replaced(trained, fathom):
    """Repeats a command with `--out` and another seed."""
    folder = trained / "results/runs/small"
    run = next(folder.rglob("seed0/manifest.json")).parent
    before = {file.name: file.read_bytes() for file in run.iterdir()}
    _, depth, variant, backend, _ = run.relative_to(trained / "results/runs").parts
    words = ["--depth", depth[:-1], "--variant", variant, "--backend", backend, "--seed", "1"]
    status, _, (line, *_) = fathom("train", "small", *words, "--out", run)
    assert status == 1
    assert f"{run}: contains a run of another spec" in line
    assert {file.name: file.read_bytes() for file in run.iterdir()} == before


def cell_of(variant, backend=BACKEND):
    return f"small/2L/{variant}/{backend}/seed0"


def run_of(folder, variant):
    return folder / "results/runs" / cell_of(variant)


# --- commands and options ------------------------------------------------------------------------


def commands_below(group, words=("fathom",)):
    """(words, command) of every command below a group, nested groups included."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_below(command, (*words, name))
        else:
            yield (*words, name), command


REFUSED = {
    # arguments: text in the error line
    "trian": "'trian'",
    "train-all --device abacus": "abacus",
    "train-all -c none.yaml": "none.yaml: cannot be read (No such file or directory)",
    "train-all --set studies.small.stepz=4": "unknown key 'stepz'; did you mean 'steps'?",
    "train-all --set backends=torch": "input should be a valid list, but is 'torch'; write it as "
    "'backends=[\"torch\"]'",
    "status larger": "unknown study 'larger' (known: small)",
    "bundle import --keep --replace b.tar.xz": "--keep and --replace exclude each other",
    "fetch minst": "unknown data set 'minst'",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_a_bad_command_is_refused_in_one_line(folder, fathom, arguments):
    status, printed, errors = fathom(*arguments.split())
    assert (status, printed) == (1, "")
    (line,) = errors
    assert line.startswith("fathom: ")
    assert REFUSED[arguments] in line
    assert not (folder / "results").exists()


OUTPUTS = [
    (words[1:], option.opts[0], option.metavar.partition(".")[0].lower())
    for words, command in commands_below(cli.commands())
    for option in command.params
    if option.param_type_name == "option" and (option.metavar or "").startswith(("FILE", "FOLDER"))
]
"""Every option that names an output: (command, option, file or folder)."""


@pytest.mark.parametrize(("words", "option", "kind"), OUTPUTS)
def test_invalid_output_is_refused_before_any_work(folder, fathom, words, option, kind):
    status, printed, (line,) = fathom(*words, option, "")
    assert (status, printed) == (1, "")
    assert f"Invalid value for '{option}'" in line
    assert f"is empty; name a {kind}" in line
    if kind == "file":
        os.mkfifo("pipe")
        said = "fathom: pipe: is a pipe, which is not replaced; name a file"
        assert fathom(*words, option, "pipe") == (1, "", [said])
        assert Path("pipe").is_fifo()


# --- train-all -----------------------------------------------------------------------------------


def test_every_chosen_cell_is_trained(folder, fathom):
    status, _, errors = fathom("train-all", "*/mhc/*", "--estimate")
    assert (status, statuses(folder)[cell_of("mhc")]) == (0, "missing")
    assert [line.partition(" for ")[2] for line in errors][1:] == ["1 cells, one after the other"]
    status, _, errors = fathom("train-all", "*/mhc/*")
    assert status == 0
    assert statuses(folder) == {cell_of("baseline"): "missing", cell_of("mhc"): "measured"}
    assert [line for line in errors if line.startswith("[1/1]") and ": done" in line]
    for manifest in folder.rglob("manifest.json"):
        assert {file.name for file in manifest.parent.iterdir()} == ARRIVED


@pytest.mark.parametrize("absent", [[], ["snakemake"]])
def test_training_ends_with_its_folder_and_the_next_command(trained, absent):
    Path("config.yaml").rename("mine.yaml")
    command = ["train-all", "--config", "mine.yaml", "--set", "seeds=[0]"]
    line = run_without(absent, trained, command).stderr.splitlines()[-1]
    assert line.startswith("made results/runs; next: ")
    if absent:
        assert "`fathom bundle create --out runs.tar.xz --config=mine.yaml`" in line
    else:
        assert "--configfile mine.yaml --replace-workflow-config --config 'seeds=[0]'`" in line
        assert "results/cuts/seeds-0/index.html" in line


def test_only_missing_corrupt_or_stale_cells_are_trained(trained, fathom):
    before = {file: file.stat().st_mtime_ns for file in trained.rglob("*")}
    status, _, (line, *_) = fathom("train-all")
    assert status == 0
    assert line.startswith("fathom: nothing to do")
    assert {file: file.stat().st_mtime_ns for file in trained.rglob("*")} == before

    kept = read_manifest(run_of(trained, "baseline"))
    run = run_of(trained, "mhc")
    for spoil in (lambda: shutil.rmtree(run), lambda: (run / "metrics.jsonl").write_text("")):
        spoil()
        assert statuses(trained)[cell_of("mhc")] in ("missing", "corrupt")
        _, _, errors = fathom("train-all")
        assert [line for line in errors if line.startswith(f"[1/1] {cell_of('mhc')}: done")]
        assert set(statuses(trained).values()) == {"measured"}
        assert read_manifest(run_of(trained, "baseline")) == kept

    write_config(trained, steps=5)
    assert set(statuses(trained).values()) == {"stale"}
    fathom("train-all")
    assert set(statuses(trained).values()) == {"measured"}


def test_parallel_training_gives_the_numbers_of_sequential_training(folder, trained_once, fathom):
    status, _, errors = fathom("train-all", "--jobs", "2")
    assert status == 0
    assert set(statuses(folder).values()) == {"measured"}
    assert [line for line in errors if line.startswith("[2/2]")]
    for variant in ("baseline", "mhc"):
        assert numbers_of(run_of(folder, variant)) == numbers_of(run_of(trained_once, variant))


def test_failing_cell_does_not_stop_the_others(folder, fathom):
    blocked = run_of(folder, "baseline")
    blocked.parent.mkdir(parents=True)
    blocked.write_text("a file in the place of the folder", "utf-8")
    status, _, errors = fathom("train-all")
    assert status == 1
    assert statuses(folder)[cell_of("mhc")] == "measured"
    (failure,) = [line for line in errors if line.startswith("fathom: ")]
    assert failure.startswith(f"fathom: {cell_of('baseline')}: ")


BAD_COMPUTE = {
    "{bad": "--compute: malformed JSON (",
    '{"thread": 2}': "--compute: top level: unknown key 'thread'; did you mean 'threads'?",
}


def test_bad_json_of_spec_or_compute_is_refused_in_one_line(folder, fathom):
    spec = config_of(folder).spec(config_of(folder).cells()[0]).json()
    given = {(spec, compute): said for compute, said in BAD_COMPUTE.items()}
    given |= {("{", "{}"): "SPEC: malformed JSON (", ("{}", "{}"): "SPEC: task: "}
    for (of_job, compute), said in given.items():
        status, _, errors = fathom("job", of_job, "--out", "run", "--compute", compute)
        assert (status, errors[0].startswith(f"fathom: {said}")) == (1, True)
        assert not (folder / "run").exists()


# --- bundles from the command line ---------------------------------------------------------------


def test_refused_bundle_does_not_stop_the_others(trained, tmp_path, fathom, monkeypatch):
    bundles = [tmp_path / f"{name}.tar.xz" for name in ("damaged", "gone", "good", "foreign")]
    damaged, gone, good, foreign = map(str, bundles)
    fathom("bundle", "create", "-o", good, "*/mhc/*")
    fathom("bundle", "create", "-o", foreign, "*/baseline/*")
    bundles[0].write_bytes(bundles[2].read_bytes()[:-100])

    other = write_config(tmp_path / "other", variants=["mhc"])
    monkeypatch.chdir(other)
    status, printed, errors = fathom("bundle", "import", *map(str, bundles), "--keep")
    assert status == 1
    first, *others = [line for line in errors if line.startswith("fathom: ")]
    assert first.startswith(f"fathom: {damaged}: not an intact .tar.xz file")
    assert others == [f"fathom: {gone}: no such file"]
    (unknown,) = (path for path in statuses(trained) if "baseline" in path)
    assert printed.splitlines()[:3] == [
        f"{good}: 1 imported, under results/imported",
        f"{foreign}: 1 imported, under results/imported",
        f"{foreign}: cells not in this config: 1, such as {unknown}",
    ]
    assert set(statuses(other).values()) == {"imported"}


# --- small installations -------------------------------------------------------------------------


def run_without(packages, folder, *commands):
    """Run the commands in the folder, in a process without these packages."""
    # An import of a module that is None in sys.modules raises ModuleNotFoundError.
    program = (
        "import json, sys\n"
        f"sys.modules.update(dict.fromkeys({packages!r}))\n"
        "from fathom_study import cli\n"
        "for words in json.loads(sys.argv[1]): cli.main(words)"
    )
    return finished(sys.executable, "-c", program, json.dumps(commands), folder=folder)


def test_training_and_bundles_need_no_other_package(folder, tmp_path):
    (spec, _) = (config_of(folder).spec(cell).json() for cell in config_of(folder).cells())
    bundle = str(tmp_path / "b.tar.xz")
    done = run_without(
        ABSENT, folder,
        ["--help"], ["status"], ["train", "small", "--help"],
        ["train", "small", "--variant", "mhc"],
        ["job", spec, "--out", "again", "--compute", '{"device": "cpu"}'], ["train-all"],
        ["bundle", "create", "-o", bundle],
        ["bundle", "check", bundle], ["bundle", "import", bundle],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "is not installed" not in done.stdout + done.stderr
    assert (folder / "again/manifest.json").is_file()
    assert [run.status for run in find_runs(config_of(folder))] == ["measured", "imported"] * 2


def test_missing_backend_is_left_out_with_a_message(folder, fathom, monkeypatch):
    write_config(folder, backends=[BACKEND, OTHER], variants=["mhc"])
    monkeypatch.setattr("fathom_study.runs.train_all.installed_backends", lambda: (BACKEND,))
    line = f"fathom: backend {OTHER} is not installed here: its cells are left out"
    status, _, errors = fathom("train-all", f"*/{OTHER}/*")
    assert (status, errors[0]) == (1, line)
    assert "no chosen cell can be trained here" in errors[1]
    status, _, errors = fathom("train-all")
    assert (status, errors[0]) == (0, line)
    assert statuses(folder) == {cell_of("mhc"): "measured", cell_of("mhc", OTHER): "missing"}
