"""Damage to a run, a table, a report or a figure is found and named, and is never averaged in."""

import gzip
import hashlib
import json
import random
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import yaml

from fathom import cli, data, provenance
from fathom.attribution import write_attribution
from fathom.bundle import create_bundle, import_bundle
from fathom.claims import load_published, write_claims
from fathom.figures import overview_figures, save, study_figures
from fathom.report import write_reports
from fathom.runs import RunError, find_runs, inspect, run_cell, run_folder
from fathom.study import Cell, Compute, installed_backends, load_config
from fathom.tables import read_table, write_tables
from fathom.verify import verify

BACKENDS = installed_backends()
RUN_FILES = ("spec.json", "metrics.jsonl", "summary.json", "manifest.json")
GRID = {"variants": ["mhc"], "depths": [2, 3], "seeds": [0], "backends": list(BACKENDS[:1])}


# --- tiny results, made once and copied ----------------------------------------------------------


def write_config(project, results, **changes):
    """The smoke preset, cut to four cells, with its results in a folder of its own."""
    files = (project / "config.yaml", project / "workflow/presets/smoke.yaml")
    config = load_config(files, {"results": str(results), **GRID, **changes})
    file = results.parent / "config.yaml"
    file.write_text(
        yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False), encoding="utf-8"
    )
    return config


@pytest.fixture(scope="session")
def made(tmp_path_factory, pytestconfig):
    """The folder of results that hold everything: runs, tables, reports, figures."""
    if not BACKENDS:
        pytest.skip("neither torch nor mlx is installed")
    results = tmp_path_factory.mktemp("verify") / "results"
    config = write_config(pytestconfig.rootpath, results)
    for cell in config.cells():
        run_cell(config.spec(cell), run_folder(results, cell), Compute(device="cpu"))
    make_tables(config, pytestconfig.rootpath)
    make_figures(results)
    return results


def make_tables(config, project):
    results = Path(config.results)
    published = load_published(project / "report/published.yaml")
    write_tables(config, results / "tables")
    write_attribution(config, results / "tables")
    write_claims(config, published, results / "tables")
    write_reports(config, published, project / "report/templates", results)


def make_figures(results):
    steps, summary = (read_table(results / "tables" / n) for n in ("steps.csv.gz", "summary.csv"))
    backend = BACKENDS[0]
    for study in sorted(set(summary["study"])):
        own = (frame.query(f"study == '{study}'") for frame in (steps, summary))
        save(study_figures(*own, title=study), results / "figures" / study / backend)
    tables = (read_table(results / f"tables/{name}.csv") for name in ("variance", "published"))
    save(overview_figures(*tables), results / "figures/overview")


@pytest.fixture
def results(made, tmp_path):
    """A copy of it all, for a test to change."""
    shutil.copytree(made, tmp_path / "results")
    return tmp_path / "results"


@pytest.fixture
def config(results, pytestconfig):
    return write_config(pytestconfig.rootpath, results)


@pytest.fixture
def problems(config, pytestconfig):
    """A function that verifies the copy and returns the problems, each of which is a line."""
    project = pytestconfig.rootpath

    def check(changed=None):
        published = load_published(project / "report/published.yaml")
        found = verify(changed or config, published, project / "report/templates").problems
        assert all(line.isprintable() for line in found)  # a line break is not
        return found

    return check


@pytest.fixture
def command(results, config, pytestconfig, capsys, monkeypatch):
    """A function that runs `fathom NAME` on the copy: (exit status, what it printed)."""

    def run(name):
        arguments = ["fathom", name, "--config", str(results.parent / "config.yaml")]
        monkeypatch.setattr("sys.argv", arguments)
        monkeypatch.chdir(pytestconfig.rootpath)  # where published.yaml and the templates are
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return caught.value.code or 0, capsys.readouterr()

    return run


# --- whole results -------------------------------------------------------------------------------


def test_whole_results_have_no_problem(problems):
    assert problems() == []


def test_everything_there_is_checked(config, pytestconfig):
    project = pytestconfig.rootpath
    published = load_published(project / "report/published.yaml")
    checked = verify(config, published, project / "report/templates").checked
    results = Path(config.results)
    assert checked == {
        "runs": 4,
        "tables": len(list((results / "tables").iterdir())),
        "reports": len(list(results.glob("*.md"))),
        "figures": len(list((results / "figures").rglob("*.png"))),
    }
    assert checked["tables"] == 11
    assert checked["reports"] == 2
    assert checked["figures"] == 3 * 5 + 2


def test_the_command_says_what_it_checked(command):
    status, printed = command("verify")
    assert status == 0, printed.err
    assert printed.out == "verified: 4 runs, 2 reports, 11 tables, 17 figures\n"


def test_results_that_were_not_made_yet_are_no_problem(results, problems):
    shutil.rmtree(results)
    assert problems() == []


# --- damaged runs --------------------------------------------------------------------------------


def truncate(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def truncate_by_a_byte(file):
    content = file.read_bytes()
    file.write_bytes(content.rstrip()[:-1])


def empty(file):
    file.write_bytes(b"")


def remove(file):
    file.unlink()


def replace_by_a_folder(file):
    file.unlink()
    file.mkdir()


def replace_by_a_dangling_link(file):
    file.unlink()
    file.symlink_to("nowhere")


def replace_by_junk(file):
    file.write_bytes(random.Random(7).randbytes(1000))  # noqa: S311, nothing secret


def replace_by_zeros(file):
    """What some file systems leave after a power loss."""
    file.write_bytes(bytes(file.stat().st_size))


def replace_by_a_list(file):
    file.write_bytes(b"[]\n")


def replace_by_deep_nesting(file):
    file.write_bytes(b'{"a":' * 100_000)


def append(file):
    file.write_bytes(file.read_bytes() + b"{}\n")


def flip(seed):
    """Change one byte at a random place to any other; but no blank, where JSON has as good ones."""

    def damage(file):
        rng = random.Random(seed)  # noqa: S311, nothing secret
        content = bytearray(file.read_bytes())
        place = rng.choice([i for i, byte in enumerate(content) if not bytes([byte]).isspace()])
        content[place] ^= rng.randrange(1, 256)
        file.write_bytes(content)

    damage.__name__ = f"flip_{seed}"
    return damage


DAMAGES = [
    truncate,
    truncate_by_a_byte,
    empty,
    remove,
    replace_by_a_folder,
    replace_by_a_dangling_link,
    replace_by_junk,
    replace_by_zeros,
    replace_by_a_list,
    replace_by_deep_nesting,
    append,
    *(flip(seed) for seed in range(12)),
]


@pytest.fixture
def first_run(config):
    """The spec and the folder of the run that tests damage."""
    cell = config.cells()[0]
    return config.spec(cell), run_folder(Path(config.results), cell)


@pytest.mark.parametrize("name", RUN_FILES)
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_file_of_a_run_is_named_by_everything(damage, name, config, first_run, problems):
    spec, folder = first_run
    damage(folder / name)

    run = inspect(folder, spec)
    assert run.status == "corrupt"
    assert not run.counts
    assert run.reason.startswith(name)

    with pytest.raises(RunError) as caught:
        write_tables(config, Path(config.results) / "tables")
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{folder}: {name}")

    assert f"{folder}: corrupt: {run.reason}" in problems()


@pytest.mark.parametrize("name", RUN_FILES)
def test_many_flipped_bytes_are_all_found(first_run, name):
    """Each at another place: no part of a file may go unchecked."""
    spec, folder = first_run
    whole = (folder / name).read_bytes()
    missed = []
    for seed in range(100, 200):
        flip(seed)(folder / name)
        run = inspect(folder, spec)
        if run.status != "corrupt" or not run.reason.startswith(name):
            missed.append(f"{seed}: {run.status}: {run.reason}")
        (folder / name).write_bytes(whole)
    assert missed == []


@pytest.mark.parametrize("damage", [truncate, empty, remove, flip(1)], ids=lambda d: d.__name__)
@pytest.mark.parametrize(
    ("name", "said"), [("tables", "run it again"), ("verify", "corrupt: metrics.jsonl")]
)
def test_the_commands_name_damage_in_one_line_and_fail(
    damage, name, said, first_run, results, command
):
    _, folder = first_run
    damage(folder / "metrics.jsonl")
    before = {file: file.read_bytes() for file in (results / "tables").iterdir()}
    status, printed = command(name)
    assert status == 1
    lines = printed.err.splitlines()
    assert all(line.startswith("fathom: ") for line in lines)
    (named,) = [line for line in lines if str(folder) in line]
    assert said in named
    assert before == {file: file.read_bytes() for file in (results / "tables").iterdir()}


def test_every_damaged_run_is_named_and_not_just_the_first(config, problems):
    folders = [run_folder(Path(config.results), cell) for cell in config.cells()]
    for folder in folders[1:]:
        empty(folder / "summary.json")
    named = [line for line in problems() if ": corrupt: summary.json: 0 bytes" in line]
    assert [line.partition(": ")[0] for line in named] == [str(folder) for folder in folders[1:]]


def test_a_run_without_its_manifest_and_files_is_missing(first_run, problems, config):
    spec, folder = first_run
    shutil.rmtree(folder)
    assert inspect(folder, spec).status == "missing"
    # Nothing is wrong with it, but the tables say that it is there.
    assert problems() != []
    assert not any("corrupt" in line for line in problems())


def test_a_run_that_began_and_did_not_finish_has_failed(first_run, problems):
    spec, folder = first_run
    shutil.rmtree(folder)
    (folder / ".partial").mkdir(parents=True)
    run = inspect(folder, spec)
    assert run.status == "failed"
    assert f"{folder}: failed: {run.reason}" in problems()


def test_a_file_in_the_place_of_a_run_is_no_run(first_run, problems):
    spec, folder = first_run
    shutil.rmtree(folder)
    folder.write_text("not a folder", encoding="utf-8")
    assert not inspect(folder, spec).counts
    problems()  # and nothing raises


# --- tampering with numbers and hashes at once ---------------------------------------------------


def seal(folder):
    """Let the manifest say what the files hold now."""
    file = folder / "manifest.json"
    manifest = json.loads(file.read_text(encoding="utf-8"))
    for name in manifest["files"]:
        content = (folder / name).read_bytes()
        recorded = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        manifest["files"][name] = recorded
    rewrite_manifest(file, manifest)


def rewrite_manifest(file, manifest):
    """Write it with its own hash, where manifests have one: over all of its other fields."""
    if manifest.pop("sha256", None):
        text = json.dumps(manifest, sort_keys=True)
        manifest["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    file.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def edit_json(file, change):
    data = json.loads(file.read_text(encoding="utf-8"))
    change(data)
    file.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def edit_rows(folder, change):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    change(rows)
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")


def better_final_loss(folder):
    edit_json(folder / "summary.json", lambda summary: summary.update(loss_final=0.001))
    return "summary.json: ", "loss_final"


def better_outcome(folder):
    edit_json(folder / "summary.json", lambda summary: summary.update(outcome="learned!"))
    return "summary.json: ", "outcome"


def other_chance_loss(folder):
    edit_json(folder / "summary.json", lambda summary: summary.update(chance_loss=99.0))
    return "summary.json: ", "chance_loss"


def null_as_gain(folder):
    edit_json(folder / "summary.json", lambda summary: summary.update(gain_final=None))
    return "summary.json: ", "gain_final"


def last_digit_of_a_loss(folder):
    edit_rows(folder, lambda rows: rows[-1].update(loss=rows[-1]["loss"] * (1 + 1e-7)))
    return "summary.json: ", "loss_final"


def a_norm_within_the_run(folder):
    edit_rows(folder, lambda rows: rows[1].update(grad_norm=rows[1]["grad_norm"] * 1.01))
    return "summary.json: ", "grad_norm"


def a_row_left_out(folder):
    edit_rows(folder, lambda rows: rows.pop(2))
    return "metrics.jsonl: ", "does not hold steps 0 to 3 in order"


def two_rows_exchanged(folder):
    edit_rows(folder, lambda rows: rows.reverse())
    return "metrics.jsonl: ", "does not hold steps 0 to 3 in order"


def a_row_without_a_loss(folder):
    edit_rows(folder, lambda rows: rows[1].pop("loss"))
    return "metrics.jsonl: ", "loss"


def a_loss_as_text(folder):
    edit_rows(folder, lambda rows: rows[1].update(loss="2.5"))
    return "metrics.jsonl: ", ""


def a_gain_as_text_everywhere(folder):
    """What the summary only copies must be a number as well, or the tables fall over it."""
    edit_rows(folder, lambda rows: [row.update(amax_forward_log10="high") for row in rows])
    edit_json(folder / "summary.json", lambda s: s.update(amax_forward_log10_final="high"))
    return "metrics.jsonl: ", ""


def other_learning_rate(folder):
    edit_json(folder / "spec.json", lambda spec: spec["optimizer"].update(lr=0.5))
    return "spec.json: ", "is not the spec that the manifest names"


@pytest.mark.parametrize(
    "tamper",
    [
        better_final_loss,
        better_outcome,
        other_chance_loss,
        null_as_gain,
        last_digit_of_a_loss,
        a_norm_within_the_run,
        a_row_left_out,
        two_rows_exchanged,
        a_row_without_a_loss,
        a_loss_as_text,
        a_gain_as_text_everywhere,
        other_learning_rate,
    ],
)
def test_numbers_changed_along_with_their_hashes_are_found(tamper, first_run, problems, config):
    spec, folder = first_run
    where, what = tamper(folder)
    seal(folder)
    run = inspect(folder, spec)
    assert run.status == "corrupt"
    assert run.reason.startswith(where)
    assert what in run.reason
    assert f"{folder}: corrupt: {run.reason}" in problems()
    with pytest.raises(RunError):
        write_tables(config, Path(config.results) / "tables")


def test_sealing_again_is_no_damage(first_run):
    """Or the tampering above might be found for the way in which it is written."""
    spec, folder = first_run
    edit_rows(folder, lambda rows: None)
    edit_json(folder / "summary.json", lambda summary: None)
    seal(folder)
    assert inspect(folder, spec).status == "measured"


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest["device"].pop("framework_version"),
        lambda manifest: manifest["device"].update(framework_version=["2"]),
        lambda manifest: manifest["device"].update(driver=["550"]),
        lambda manifest: manifest["device"].update(blas={"a": 1}),
        lambda manifest: manifest.update(python=["3.11"]),
        lambda manifest: manifest.update(numpy={"major": 2}),
        lambda manifest: manifest.update(threads=[1]),
    ],
    ids=["no framework version", "framework version", "driver", "blas", "python", "numpy",
         "threads"],
)  # fmt: skip
def test_what_the_table_of_platforms_shows_is_checked(change, first_run, problems):
    spec, folder = first_run
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    change(manifest)
    rewrite_manifest(folder / "manifest.json", manifest)
    run = inspect(folder, spec)
    assert run.status == "corrupt"
    assert run.reason.startswith("manifest.json: has no valid")
    assert f"{folder}: corrupt: {run.reason}" in problems()


def test_a_run_in_the_place_of_another_is_found(config, problems):
    first, second = (run_folder(Path(config.results), cell) for cell in config.cells()[:2])
    shutil.rmtree(first)
    shutil.copytree(second, first)
    assert inspect(first, config.spec(config.cells()[0])).reason.startswith(
        f"manifest.json: is of another cell, '{config.cells()[1]}'"
    )
    assert any(line.startswith(f"{first}: corrupt") for line in problems())


# --- stale runs ----------------------------------------------------------------------------------


def test_a_stale_spec_is_named_with_what_differs(config, results, pytestconfig, problems):
    studies = {"depth-torch": {"optimizer": {"lr": 0.01}, "steps": 5}}
    changed = write_config(pytestconfig.rootpath, results, studies=studies)
    stale = {run.cell.study: run.reason for run in find_runs(changed) if run.status == "stale"}
    assert stale == {"depth-torch": "spec differs: optimizer.lr 0.002 → 0.01, steps 4 → 5"}
    (cell,) = [cell for cell in changed.cells() if cell.study == "depth-torch"]
    folder = run_folder(results, cell)
    assert f"{folder}: stale: {stale['depth-torch']}" in problems(changed)


def test_stale_code_is_named_with_the_modules_that_differ(config, problems, monkeypatch):
    now = provenance.code_hashes

    def edited(*modules):
        hashes = {**now(*modules), "fathom.models.connections": "0" * 16}
        hashes.pop("fathom.metrics")
        return hashes

    monkeypatch.setattr(provenance, "code_hashes", edited)
    runs = find_runs(config)
    assert {run.status for run in runs} == {"stale"}
    reason = "code differs: fathom.metrics, fathom.models.connections"
    assert {run.reason for run in runs} == {reason}
    assert f"{runs[0].folder}: stale: {reason}" in problems()


def test_tables_leave_stale_runs_out_and_reports_say_so(config, results, pytestconfig, problems):
    studies = {"depth-torch": {"optimizer": {"lr": 0.01}}}
    changed = write_config(pytestconfig.rootpath, results, studies=studies)
    make_tables(changed, pytestconfig.rootpath)
    cells = read_table(results / "tables/cells.csv").set_index("study")
    assert cells.loc["depth-torch", "status"] == "stale"
    assert cells.loc["depth-torch"].isna()["loss_final"]
    assert "depth-torch" not in set(read_table(results / "tables/summary.csv")["study"])
    assert "depth-torch" not in set(read_table(results / "tables/steps.csv.gz")["study"])
    report = (results / "RESULTS.md").read_text(encoding="utf-8")
    (line,) = [line for line in report.splitlines() if "spec differs" in line]
    assert "optimizer.lr 0.002 → 0.01" in line
    (problem,) = problems(changed)  # the run itself: the tables are right to leave it out
    assert ": stale: " in problem


# --- runs that keep their weights ----------------------------------------------------------------

WEIGHTS = "weights.safetensors"


@pytest.fixture(scope="session")
def image_run(tmp_path_factory, pytestconfig):
    """(spec, results) of a trained image network, on a few small pictures of noise."""
    if not BACKENDS:
        pytest.skip("neither torch nor mlx is installed")
    folder = tmp_path_factory.mktemp("images")
    files = [pytestconfig.rootpath / f for f in ("config.yaml", "workflow/presets/smoke.yaml")]
    config = load_config(files, {"results": str(folder / "results")})
    spec = config.spec(Cell("fashion", 2, "mhc_causal", BACKENDS[0], 0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "FILES", write_noise(folder / "fashion-mnist"))
        patch.setenv(data.ENVIRONMENT, str(folder))
        compute = Compute(device="cpu", data=str(folder))
        run_cell(spec, run_folder(folder / "results", spec.cell), compute)
    return spec, folder / "results"


def write_noise(folder):
    """Files as those of the data set, with few pictures; returns their hashes by name."""
    rng = np.random.default_rng(8)
    folder.mkdir()
    hashes = {}
    for name in data.FILES:
        shape = (24, 28, 28) if "images" in name else (24,)
        array = rng.integers(0, 10, shape, dtype=np.uint8)
        header = struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *shape)
        (folder / name).write_bytes(gzip.compress(header + array.tobytes()))
        hashes[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    return hashes


@pytest.fixture
def with_weights(image_run, tmp_path):
    """(spec, folder) of a copy of it."""
    spec, results = image_run
    folder = tmp_path / "run"
    shutil.copytree(run_folder(results, spec.cell), folder)
    run = inspect(folder, spec)
    assert (run.status, run.reason) == ("measured", "")
    assert (folder / WEIGHTS).is_file()
    return spec, folder


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damaged_weights_are_named(damage, with_weights):
    spec, folder = with_weights
    damage(folder / WEIGHTS)
    run = inspect(folder, spec)
    assert run.status == "corrupt"
    assert run.reason.startswith(WEIGHTS)


def test_a_bundle_carries_weights(image_run, tmp_path, pytestconfig):
    spec, results = image_run
    files = [pytestconfig.rootpath / f for f in ("config.yaml", "workflow/presets/smoke.yaml")]
    create_bundle(load_config(files, {"results": str(results)}), tmp_path / "b.tar.gz")
    import_bundle(tmp_path / "results", tmp_path / "b.tar.gz")
    (platform,) = (tmp_path / "results/imported").iterdir()
    before, after = run_folder(results, spec.cell), platform / spec.cell.path()
    assert (after / WEIGHTS).read_bytes() == (before / WEIGHTS).read_bytes()
    assert inspect(after, spec, imported=True).status == "imported"


# --- tables, reports and figures altered by hand -------------------------------------------------


def alter_a_character(file):
    """The last letter or digit: in most of them, of a number."""
    text = file.read_text(encoding="utf-8")
    last = max(i for i, character in enumerate(text) if character.isalnum())
    changed = "8" if text[last] == "7" else "7"
    file.write_text(text[:last] + changed + text[last + 1 :], encoding="utf-8")


def drop_the_last_line(file):
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    file.write_text("".join(lines[:-1]), encoding="utf-8")


TEXTUAL = (drop_the_last_line, alter_a_character)
"""Alterations that make no sense in a packed file."""


def derived(folder_of_results):
    """Every table and report, by its path within the results."""
    found = [*folder_of_results.glob("tables/*"), *folder_of_results.glob("*.md")]
    return sorted(str(file.relative_to(folder_of_results)) for file in found)


DERIVED = [
    *(f"tables/{name}.csv" for name in (
        "cells", "summary", "comparison", "platforms", "trajectories", "variance",
        "variance_summary", "published", "claims", "verdicts",
    )),
    "tables/steps.csv.gz",
    "RESULTS.md",
    "COMPARISON.md",
]  # fmt: skip


def test_the_list_of_tables_and_reports_is_complete(results):
    assert derived(results) == sorted(DERIVED)


@pytest.mark.parametrize(
    "alter",
    [
        append,
        empty,
        truncate,
        replace_by_junk,
        replace_by_a_folder,
        remove,
        drop_the_last_line,
        alter_a_character,
    ],
)
def test_every_table_and_report_altered_by_hand_is_named(results, problems, alter):
    """All at once, since each is compared with what the runs give and not with another."""
    names = [name for name in DERIVED if not (alter in TEXTUAL and name.endswith(".gz"))]
    for name in names:
        alter(results / name)
    found = {line.partition(": ")[0]: line for line in problems()}
    assert sorted(found) == sorted(str(results / name) for name in names)


def test_one_character_of_one_table_is_named_alone(results, problems):
    file = results / "tables/summary.csv"
    alter_a_character(file)
    (problem,) = problems()
    assert problem == f"{file}: is not what its inputs give; run snakemake all"


def test_a_number_within_the_packed_table_is_compared(results, problems):
    file = results / "tables/steps.csv.gz"
    text = gzip.decompress(file.read_bytes()).decode()
    file.write_bytes(gzip.compress(text.replace(",0,", ",1,", 1).encode(), mtime=0))
    (problem,) = problems()
    assert problem.startswith(f"{file}: is not what its inputs give")


def test_reports_do_not_pass_because_their_tables_are_gone(results, problems):
    shutil.rmtree(results / "tables")
    assert any("tables" in line for line in problems())


def break_within(file):
    """Flip a byte in the middle: the file still begins and ends as a PNG does."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    "alter",
    [truncate, empty, replace_by_junk, append, break_within, remove, replace_by_a_folder],
)
@pytest.mark.parametrize("name", ["overview/published.png", "depth-mlx/{}/loss_comparison.png"])
def test_a_damaged_figure_is_named(results, problems, alter, name):
    file = results / "figures" / name.format(BACKENDS[0])
    alter(file)
    (problem,) = problems()
    assert problem.startswith(f"{file}: ")
