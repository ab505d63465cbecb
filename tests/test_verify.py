"""Damage to a run, a table, a report or a figure is found and named, and is never averaged in."""

import gzip
import io
import json
import random
import shutil
import struct
import zlib
from pathlib import Path

import pytest
import yaml

from fathom import cli
from fathom.analysis.attribution import write_attribution
from fathom.analysis.claims import load_published, write_claims
from fathom.analysis.tables import read_table, write_tables
from fathom.config import check_config
from fathom.report.figures import figures_of
from fathom.report.render import write_reports
from fathom.report.verify import is_whole_png, verify
from fathom.runs.folder import RunError, run_folder
from fathom.runs.inspect import find_runs, inspect
from run_helpers import GPU, GPU_PLATFORM, RUN_FILES, config_with, seal, write_cell

LOSSES = [4.0, 2.0, 1.0]


# --- results made by hand, once, and copied ------------------------------------------------------

PUBLISHED = """
sources: {lab: {title: A lab, platform: some GPU, backend: torch}}
notes: []
values: [{source: lab, study: a, measure: loss_final, scale: {width: 256}, cells: {mhc: {4: 0.5}}}]
claims:
  - id: it-is-so
    source: lab
    says: It converges.
    tests: [{kind: converges_below, studies: [a], variants: [mhc], depths: [4]}]
"""

TEMPLATES = {
    "RESULTS.md.j2": """# Results
{% for study in studies if study.is_measured %}
{% for depth in study.depths %}
- {{ study.name }} at {{ depth }}: {{ study.value(depth, "mhc", study.places[0], "loss_final") }}
{% endfor %}
{% endfor %}
{% for row in left_out %}
- {{ row.study }}: {{ row.cells }} {{ row.status }} {{ row.reason }}
{% endfor %}
""",
    "COMPARISON.md.j2": """# Comparison
{% for row in verdicts.rows %}
- {{ row.claim }}: {{ row.verdict }}
{% endfor %}
""",
}


def studies(results):
    """Two depths; a study that keeps its weights; one of images, of which nothing was trained."""
    pictures = {"task": "fashion", "variants": ["mhc_causal"], "model": {"width": 8}}
    one = {"variants": ["mhc"], "depths": [4, 8], "backends": ["torch"], "seeds": [0]}
    kept = {"weights": True, "depths": [4]}
    return config_with(results, ("a", "kept", "pictures"), **one, kept=kept, pictures=pictures)


def make(config, project):
    """Everything but the runs; their tables, the reports, and figures with a picture of nothing."""
    published = load_published(project / "published.yaml", config)
    folder = Path(config.report_folder)
    write_tables(config, folder / "tables")
    write_attribution(config, folder / "tables")
    write_claims(config, published, folder / "tables")
    write_reports(config, published, project / "templates", folder)
    families = {"a/torch": "sweep", "kept/torch": "sweep", "overview": "overview"}
    for place, family in families.items():
        for name in figures_of(family):
            file = folder / "figures" / place / f"{name}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(PNG)


def png():
    """A picture of one black dot, from the format's definition."""

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    dots = zlib.compress(b"\0\0")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        chunk(*part) for part in ((b"IHDR", header), (b"IDAT", dots), (b"IEND", b""))
    )


PNG = png()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with published.yaml, templates, and results that hold everything."""
    project = tmp_path_factory.mktemp("verify")
    (project / "published.yaml").write_text(PUBLISHED, encoding="utf-8")
    (project / "templates").mkdir()
    for name, text in TEMPLATES.items():
        (project / "templates" / name).write_text(text, encoding="utf-8")
    config = studies(project / "results")
    for cell in config.cells():
        if cell.study != "pictures":
            write_cell(config, cell, LOSSES)
    make(config, project)
    return project


@pytest.fixture
def project(made, tmp_path):
    """A copy of it all, for a test to change."""
    return Path(shutil.copytree(made, tmp_path / "project"))


@pytest.fixture
def results(project):
    return project / "results"


@pytest.fixture
def config(results):
    return studies(results)


@pytest.fixture
def problems(config, project):
    """A function that verifies the copy and returns the problems, each of which is a line."""

    def check(changed=None):
        found = verified(changed or config, project).problems
        assert all(line.isprintable() for line in found)  # a line break is not
        return found

    return check


def verified(config, project):
    published = load_published(project / "published.yaml", config)
    return verify(config, published, project / "templates")


@pytest.fixture
def command(config, project, capsys):
    """A function that runs a command on the copy: (exit status, what it printed)."""
    file = project / "config.yaml"
    file.write_text(yaml.safe_dump(config.model_dump(mode="json")), encoding="utf-8")

    def run(*arguments):
        status = 0
        try:
            cli.main([*arguments, "--config", str(file)])
        except SystemExit as end:
            status = end.code
        return status, capsys.readouterr()

    return run


# --- whole results -------------------------------------------------------------------------------


def test_whole_results_have_no_problem(problems):
    assert problems() == []


def test_everything_there_is_checked(config, project):
    assert verified(config, project).checked == {
        "runs": 3,
        "reports": 2,
        "tables": 11,
        "figures": 5 + 5 + 2,
    }


def test_the_command_says_what_it_checked(command, project):
    templates, published = (str(project / name) for name in ("templates", "published.yaml"))
    status, printed = command("verify", "--templates", templates, "--published", published)
    assert status == 0, printed.err
    assert printed.out == "verified: 3 runs, 2 reports, 11 tables, 12 figures\n"


def test_results_that_were_not_made_yet_are_no_problem(results, problems):
    shutil.rmtree(results)
    assert problems() == []


def test_the_results_of_a_cut_are_checked_in_their_own_folder(config, project):
    cut = check_config({**config.model_dump(mode="json"), "depths": [4]})
    make(cut, project)
    folder = Path(cut.report_folder)
    assert folder != Path(config.report_folder)
    found = verified(cut, project)
    assert found.problems == []
    assert found.checked == {"runs": 2, "reports": 2, "tables": 11, "figures": 12}
    (folder / "figures/overview/variance.png").unlink()
    (folder / "figures/a/torch/depth_scaling.png").write_bytes(PNG[:-1])
    empty(folder / "RESULTS.md")
    assert sorted(verified(cut, project).problems) == [
        f"{folder}/RESULTS.md: is not what its inputs give; run snakemake all",
        f"{folder}/figures/a/torch/depth_scaling.png: not a whole PNG file",
        f"{folder}/figures/overview/variance.png: missing",
    ]
    assert verified(config, project).problems == []  # nothing of the whole grid has changed


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
    # Each at another place: no part of a file may go unchecked.
    *(flip(seed) for seed in range(100)),
]


def run_of(config, study):
    """(spec, folder) of a study's first run."""
    cell = next(cell for cell in config.cells() if cell.study == study)
    return config.spec(cell), run_folder(Path(config.results), cell)


@pytest.mark.parametrize("name", [*RUN_FILES, "weights.safetensors"])
def test_every_damage_to_any_file_of_a_run_is_found(name, config):
    spec, folder = run_of(config, "kept")
    file, missed = folder / name, []
    whole = file.read_bytes()
    for damage in DAMAGES:
        damage(file)
        run = inspect(folder, spec)
        if run.status != "corrupt" or run.counts or not run.reason.startswith(name):
            missed.append(f"{damage.__name__}: {run.status}: {run.reason}")
        if file.is_dir():
            file.rmdir()
        file.unlink(missing_ok=True)
        file.write_bytes(whole)
    assert missed == []


@pytest.mark.parametrize("name", [*RUN_FILES, "weights.safetensors"])
def test_a_damaged_run_is_named_by_everything_and_in_no_table(name, config, problems):
    spec, folder = run_of(config, "kept")
    truncate(folder / name)
    reason = inspect(folder, spec).reason
    with pytest.raises(RunError) as caught:
        write_tables(config, Path(config.results) / "tables")
    assert str(caught.value) == f"{folder}: {reason}; delete the folder and run it again"
    tables = Path(config.results) / "tables"
    assert problems() == [
        f"{folder}: corrupt: {reason}",
        f"{tables}: not checked, since a run is corrupt",
    ]


@pytest.mark.parametrize(
    ("name", "said"), [("tables", "run it again"), ("verify", "corrupt: metrics.jsonl")]
)
def test_the_commands_name_damage_in_one_line_and_fail(
    name, said, config, results, project, command
):
    _, folder = run_of(config, "a")
    truncate(folder / "metrics.jsonl")
    before = {file: file.read_bytes() for file in (results / "tables").iterdir()}
    published = ["--published", str(project / "published.yaml")] if name == "verify" else []
    status, printed = command(name, *published)
    assert status == 1
    lines = printed.err.splitlines()
    assert all(line.startswith("fathom: ") for line in lines)
    (named,) = [line for line in lines if str(folder) in line]
    assert said in named
    assert before == {file: file.read_bytes() for file in (results / "tables").iterdir()}
    if name == "verify":
        assert lines[-1] == "fathom: 2 problems in 3 runs, 12 figures"


def test_every_damaged_run_is_named_and_not_just_the_first(config, problems):
    folders = [run.folder for run in find_runs(config) if run.counts]
    for folder in folders[1:]:
        empty(folder / "metrics.jsonl")
    named = [line for line in problems() if ": corrupt: metrics.jsonl: 0 bytes" in line]
    assert [line.partition(": ")[0] for line in named] == [str(folder) for folder in folders[1:]]


def test_a_damaged_run_that_was_imported_is_named(config, results, problems):
    folder = write_cell(config, config.cells()[0], LOSSES, platform=GPU_PLATFORM, device=GPU)
    truncate(folder / "metrics.jsonl")
    assert any(line.startswith(f"{folder}: corrupt: metrics.jsonl") for line in problems())


def test_a_run_that_is_gone_is_missed_by_the_tables(config, results, problems):
    spec, folder = run_of(config, "a")
    shutil.rmtree(folder)
    assert inspect(folder, spec).status == "missing"
    found = problems()  # nothing is wrong with it, but the tables say that it is there
    assert f"{results}/tables/cells.csv: is not what its inputs give; run snakemake all" in found
    assert not any("corrupt" in line for line in found)


def test_a_run_that_began_and_did_not_finish_has_failed(config, problems):
    spec, folder = run_of(config, "a")
    shutil.rmtree(folder)
    (folder / ".partial").mkdir(parents=True)
    run = inspect(folder, spec)
    assert run.status == "failed"
    assert f"{folder}: failed: {run.reason}" in problems()


def test_a_file_in_the_place_of_a_run_is_no_run(config, problems):
    spec, folder = run_of(config, "a")
    shutil.rmtree(folder)
    folder.write_text("not a folder", encoding="utf-8")
    assert not inspect(folder, spec).counts
    problems()  # and nothing raises


def test_a_run_in_the_place_of_another_is_found(config, problems):
    first, second = config.cells()[:2]
    there = run_folder(Path(config.results), first)
    shutil.rmtree(there)
    shutil.copytree(run_folder(Path(config.results), second), there)
    reason = f"manifest.json: is of another cell, '{second}'"
    assert inspect(there, config.spec(first)).reason == reason
    assert f"{there}: corrupt: {reason}" in problems()


def test_numbers_changed_along_with_their_hashes_are_not_those_of_the_tables(config, problems):
    spec, folder = run_of(config, "a")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows[-1]["loss"] *= 1 + 1e-7
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    seal(folder)
    assert inspect(folder, spec).status == "measured"
    altered = {Path(line.partition(": ")[0]).name for line in problems()}
    assert altered >= {"cells.csv", "summary.csv", "steps.csv.gz"}


# --- stale runs ----------------------------------------------------------------------------------


def test_a_stale_run_is_named_with_what_differs(config, results, problems):
    data = config.model_dump(mode="json")
    data["studies"]["kept"] |= {"steps": 5, "optimizer": {"lr": 0.01}}
    changed = check_config(data)
    _, folder = run_of(config, "kept")
    stale = f"{folder}: stale: spec differs: optimizer.lr 0.002 → 0.01, steps 3 → 5"
    assert stale in problems(changed)


def test_tables_leave_stale_runs_out_and_reports_say_so(config, project, results, problems):
    cells = {cell.study: cell for cell in config.cells()}
    folder = write_cell(config, cells["kept"], LOSSES, code={"fathom.train:train": "0"})
    reason = "code differs: fathom.train:train"
    assert f"{folder}: stale: {reason}" in problems()
    make(config, project)
    table = read_table(results / "tables/cells.csv").set_index("study")
    assert table.loc["kept", "status"] == "stale"
    assert table.loc["kept"].isna()["loss_final"]
    assert set(read_table(results / "tables/summary.csv")["study"]) == {"a"}
    assert set(read_table(results / "tables/steps.csv.gz")["study"]) == {"a"}
    report = (results / "RESULTS.md").read_text(encoding="utf-8")
    assert f"- kept: 1 stale {reason}\n" in report
    # The run itself: the tables are right to leave it out.
    assert problems() == [f"{folder}: stale: {reason}"]


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
    found = [*results.glob("tables/*"), *results.glob("*.md")]
    assert sorted(str(file.relative_to(results)) for file in found) == sorted(DERIVED)


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
    assert problems() == [f"{file}: is not what its inputs give; run snakemake all"]


def test_a_number_within_the_packed_table_is_compared(results, problems):
    file = results / "tables/steps.csv.gz"
    text = gzip.decompress(file.read_bytes()).decode()
    file.write_bytes(gzip.compress(text.replace(",0,", ",1,", 1).encode(), mtime=0))
    (problem,) = problems()
    assert problem.startswith(f"{file}: is not what its inputs give")


def test_reports_do_not_pass_because_their_tables_are_gone(results, problems):
    shutil.rmtree(results / "tables")
    assert any("tables" in line for line in problems())


def test_a_template_that_cannot_be_filled_is_a_problem(project, problems):
    with (project / "templates/RESULTS.md.j2").open("a", encoding="utf-8") as template:
        template.write("{{ verdcts }}\n")
    (problem,) = problems()
    assert "RESULTS.md.j2: line 10: 'verdcts' is undefined" in problem


# --- figures -------------------------------------------------------------------------------------


def break_within(file):
    """Flip a byte in the middle: the file still begins and ends as a PNG does."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def cut_off_its_end(file):
    """Whole chunks, but for the one that says that no other follows."""
    file.write_bytes(file.read_bytes()[:-12])


def test_every_damaged_figure_is_named(results, problems):
    alterations = [
        truncate, cut_off_its_end, empty, replace_by_junk, append, break_within,
        replace_by_a_folder, replace_by_a_dangling_link,
    ]  # fmt: skip
    figures = sorted((results / "figures").rglob("*.png"))[: len(alterations)]
    for alter, file in zip(alterations, figures, strict=True):
        alter(file)
    assert problems() == [f"{file}: not a whole PNG file" for file in figures]


def test_what_matplotlib_draws_is_whole():
    from matplotlib.figure import Figure

    drawn = io.BytesIO()
    Figure(figsize=(1, 1)).savefig(drawn, format="png")
    assert is_whole_png(drawn.getvalue())
    assert not is_whole_png(drawn.getvalue()[1:])


def test_figures_that_their_folder_lacks_are_named(results, problems):
    gone = [
        results / f"figures/{name}.png"
        for name in ("a/torch/deepest_comparison", "overview/variance")
    ]
    for file in gone:
        file.unlink()
    assert problems() == [f"{file}: missing" for file in gone]


def test_figures_of_every_family_are_expected_where_one_is_there(results, problems):
    """One figure of a run, and one of a study of images: the others of their family are missing."""
    cell, images = (
        results / "figures/cells/a/2L/mhc/torch/seed0",
        results / "figures/pictures/torch",
    )
    for file in (cell / "loss.png", images / "comparison.png", results / "figures/bench.png"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(PNG)
    names = [cell / f"{name}.png" for name in ("gain_proxy", "grad_norm", "nan_inf_events")]
    names.append(images / "mixing_matrix.png")
    assert sorted(problems()) == sorted(f"{name}: missing" for name in names)


def test_other_pictures_are_nobodys(results, problems):
    for name in ("figures/of-mine/a.png", "figures/a/notes/b.png", "figures/c.png"):
        (results / name).parent.mkdir(exist_ok=True)
        (results / name).write_bytes(PNG)
    assert problems() == []
