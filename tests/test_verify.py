"""Damage to a run, a table, a report or a figure is found and named, and is never averaged in."""

import gzip
import hashlib
import json
import random
import shlex
import shutil
import struct
import zlib
from pathlib import Path

import pytest
import yaml
from PIL import Image

from command_helpers import exit_status
from fathom.analysis.attribution import write_attribution
from fathom.analysis.claims import load_published, write_claims
from fathom.analysis.effects import write_effects
from fathom.analysis.places import Place
from fathom.analysis.tables import read_table, write_tables
from fathom.cli.options import workflow_command
from fathom.config import check_config
from fathom.report.draw import keep, title_of
from fathom.report.figures import figures_of
from fathom.report.render import write_reports
from fathom.report.verify import verify
from fathom.runs.folder import RunError, run_folder
from fathom.runs.inspect import find_runs, inspect
from fathom.system.files import write_json
from param_helpers import quick_ones
from run_helpers import (
    GPU,
    GPU_PLATFORM,
    RUN_FILES,
    config_with,
    read_manifest,
    seal,
    write_cell,
    write_manifest,
)

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
    """Everything but the runs; their tables, the reports, and figures that stand for drawn ones."""
    published = load_published(project / "published.yaml", config)
    folder = Path(config.report_folder)
    write_json(folder / "config.json", config.resolved())
    write_tables(config, folder / "tables")
    write_attribution(config, folder / "tables")
    write_effects(config, folder / "tables")
    write_claims(config, published, folder / "tables")
    write_reports(config, published, project / "templates", folder)
    for study in ("a", "kept"):
        draw(folder, study)
    draw_into(folder, "overview", "overview", "overview", "cells.csv", "variance.csv",
              "published.csv")  # fmt: skip


class Picture:
    """Stands for a figure of matplotlib, and is as different from others as they are."""

    def __init__(self, words):
        self.words = words

    def draw_without_rendering(self):
        pass

    def get_layout_engine(self):
        return None

    def set_layout_engine(self, _):
        pass

    def savefig(self, file, format, **_):
        digest = hashlib.sha256(self.words.encode()).digest()
        if format == "png":
            Image.frombytes("L", (8, 4), digest).save(file, format="PNG", dpi=(110, 110))
        else:
            file.write_bytes(digest)


def draw(results, study):
    """The figures of a study at the place where all of these runs are from."""
    of = title_of(study, Place.named("torch"))
    draw_into(results, f"{study}/torch", "sweep", of, "steps.csv.gz", "summary.csv", "effects.csv")


def draw_into(results, folder, family, of, *tables):
    figures = {name: Picture(f"{name} of {of}") for name in figures_of(family)}
    keep(figures, results / "figures" / folder, of, [results / "tables" / name for name in tables])


def draw_cell(config, cell):
    figures = {name: Picture(name) for name in figures_of("cell")}
    metrics = run_folder(Path(config.results), cell) / "metrics.jsonl"
    keep(figures, Path(config.results) / "figures/cells" / cell.path(), cell.path(), [metrics])


def draw_bench(results):
    (results / "tables").mkdir(exist_ok=True)
    (results / "tables/bench.csv").write_text("size,ms\ndemo,1\n", encoding="utf-8")
    draw_into(results, ".", "bench", "bench", "bench.csv")


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
    copy = Path(shutil.copytree(made, tmp_path / "project"))
    # It names the folder of results.
    write_json(copy / "results/config.json", studies(copy / "results").resolved())
    return copy


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
        status = exit_status([*arguments, "--config", str(file)])
        return status, capsys.readouterr()

    return run


# --- whole results -------------------------------------------------------------------------------


def test_whole_results_have_no_problem(problems):
    assert problems() == []


def test_everything_there_is_checked(config, project):
    assert verified(config, project).checked == {
        "runs": 3,
        "reports": 2,
        "config": 1,
        "tables": 13,
        "figures": 5 + 5 + 3,
    }


def test_the_command_says_what_it_checked(command, project):
    templates, published = (str(project / name) for name in ("templates", "published.yaml"))
    status, printed = command("verify", "--templates", templates, "--published", published)
    assert status == 0, printed.err
    assert printed.out == "verified: 3 runs, 2 reports, 1 config, 13 tables, 13 figures\n"


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
    expected = {"runs": 2, "reports": 2, "config": 1, "tables": 13, "figures": 13}
    assert found.checked == expected
    (folder / "figures/overview/variance.png").unlink()
    (folder / "figures/a/torch/depth_scaling.png").write_bytes(PNG[:-1])
    empty(folder / "RESULTS.md")
    assert sorted(verified(cut, project).problems) == [
        f"{folder}/RESULTS.md: is not what its inputs give",
        f"{folder}/figures/a/torch/depth_scaling.png: is not as it was drawn",
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
        place = rng.randrange(len(content))
        while content[place : place + 1].isspace():
            place = rng.randrange(len(content))
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
    (named,) = [line for line in lines if line.startswith(f"fathom: {folder}: ")]
    assert said in named
    assert before == {file: file.read_bytes() for file in (results / "tables").iterdir()}
    if name == "verify":
        assert lines[-2] == "fathom: 2 problems in 3 runs, 1 config, 13 figures"
        deleted = shlex.quote(str(folder))
        assert lines[-1].startswith(f"fathom: to repair: rm -r {deleted} && snakemake all")


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
    assert f"{results}/tables/cells.csv: is not what its inputs give" in found
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
    assert verified(config, project).repair("snakemake all") == "snakemake all"


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
        "variance_summary", "effects", "published", "thresholds", "claims", "verdicts",
    )),
    "tables/steps.csv.gz",
    "RESULTS.md",
    "COMPARISON.md",
    "config.json",
]  # fmt: skip


def test_the_list_of_tables_and_reports_is_complete(results):
    found = [*results.glob("tables/*"), *(f for f in results.iterdir() if f.is_file())]
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
    assert problems() == [f"{file}: is not what its inputs give"]


def test_a_number_within_the_packed_table_is_compared(results, problems):
    file = results / "tables/steps.csv.gz"
    text = gzip.decompress(file.read_bytes()).decode()
    file.write_bytes(gzip.compress(text.replace(",0,", ",1,", 1).encode(), mtime=0))
    (problem,) = problems()
    assert problem.startswith(f"{file}: is not what its inputs give")


def test_a_template_that_cannot_be_filled_is_a_problem(project, problems):
    with (project / "templates/RESULTS.md.j2").open("a", encoding="utf-8") as template:
        template.write("{{ verdcts }}\n")
    (problem,) = problems()
    assert "RESULTS.md.j2: line 10: 'verdcts' is undefined" in problem


# --- what else can happen to derived files, and what repairs it -----------------------------------

CHANGED, MISSING = "is not what its inputs give", "missing"
REDRAWN, STRAY = "is not as it was drawn", "does not belong there"


def change(name, damage):
    return lambda config: damage(Path(config.report_folder) / name)


def break_within(file):
    """Flip a byte in the middle: the file still begins and ends as it did."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def replace_by_a_dot(file):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(PNG)


def without_a_study(file):
    kept = json.loads(file.read_text())
    del kept["studies"]["kept"]
    file.write_text(json.dumps(kept, indent=2) + "\n")


def remove_tables_and_reports(config):
    results = Path(config.report_folder)
    shutil.rmtree(results / "tables")
    for name in ("RESULTS.md", "COMPARISON.md"):
        (results / name).unlink()


def remove_figures(config):
    shutil.rmtree(Path(config.report_folder) / "figures")


def swap_figures(config):
    own, other = (
        Path(config.report_folder) / f"figures/{study}/torch/depth_scaling.png"
        for study in ("a", "kept")
    )
    content = own.read_bytes()
    own.write_bytes(other.read_bytes())
    other.write_bytes(content)


def figures_of_another_study(config):
    figures = Path(config.report_folder) / "figures"
    shutil.copytree(figures / "kept/torch", figures / "a/torch", dirs_exist_ok=True)


def let_an_edit_flow_on(config):
    """What Snakemake does when a table is newer than the figures."""
    results = Path(config.report_folder)
    alter_a_character(results / "tables/summary.csv")
    draw(results, "a")


def draw_from_an_edited_table(config):
    """And then somebody has put the table right."""
    table = Path(config.report_folder) / "tables/summary.csv"
    before = table.read_bytes()
    let_an_edit_flow_on(config)
    table.write_bytes(before)


def edit_the_hashes(file):
    drawn = json.loads(file.read_text())
    drawn["files"]["depth_scaling.png"] = drawn["files"]["loss_comparison.png"]
    file.write_text(json.dumps(drawn))


def spoil_a_cell(config):
    cell = config.cells()[0]
    draw_cell(config, cell)
    break_within(Path(config.results) / "figures/cells" / cell.path() / "loss.png")


def retrain_a_cell_that_was_drawn(config):
    """The tables are made again, and nobody has asked for the figures of the cell."""
    cell = config.cells()[0]
    draw_cell(config, cell)
    write_cell(config, cell, [4.0, 3.0, 1.0])
    make(config, Path(config.results).parent)


def edit_the_bench(config):
    results = Path(config.results)
    draw_bench(results)
    (results / "tables/bench.csv").write_text("size,ms\ndemo,9\n", encoding="utf-8")


def remove_the_bench_figure(config):
    draw_bench(Path(config.results))
    (Path(config.results) / "figures/bench.png").unlink()


TORCH = "figures/a/torch"
CELL = "figures/cells/a/4L/mhc/torch/seed0"
CELL_FILES = tuple(
    f"{CELL}/{name}"
    for name in ("figures.json", "gain_proxy.png", "gain_proxy.svg", "grad_norm.png",
                 "grad_norm.svg", "loss.png", "loss.svg", "nan_inf_events.png",
                 "nan_inf_events.svg")
)  # fmt: skip
SWEEP = ("deepest_comparison", "depth_scaling", "gain_comparison", "grad_norm_comparison",
         "loss_comparison")  # fmt: skip

CORRUPTIONS = {
    "a broken config": (change("config.json", replace_by_junk), {"config.json": CHANGED}),
    "no config": (change("config.json", remove), {"config.json": MISSING}),
    "a config without a study": (change("config.json", without_a_study), {"config.json": CHANGED}),
    "an edited table": (
        change("tables/claims.csv", alter_a_character), {"tables/claims.csv": CHANGED},
    ),
    "an edited report": (change("RESULTS.md", alter_a_character), {"RESULTS.md": CHANGED}),
    "no tables and no reports": (
        remove_tables_and_reports, {n: MISSING for n in DERIVED if n != "config.json"},
    ),
    "no figures": (
        remove_figures,
        {
            **{f"figures/{study}/torch/{name}.{kind}": MISSING for study in ("a", "kept")
               for name in SWEEP for kind in ("png", "svg")},
            **{f"figures/overview/{name}.{kind}": MISSING
               for name in ("loss_against_depth", "variance", "published")
               for kind in ("png", "svg")},
            **{f"figures/{folder}/figures.json": MISSING
               for folder in ("a/torch", "kept/torch", "overview")},
        },
    ),
    "a deleted figure": (
        change(f"{TORCH}/depth_scaling.png", remove), {f"{TORCH}/depth_scaling.png": MISSING},
    ),
    "a figure of the overview deleted": (
        change("figures/overview/variance.png", remove),
        {"figures/overview/variance.png": MISSING},
    ),
    "a flipped figure": (
        change(f"{TORCH}/depth_scaling.png", break_within), {f"{TORCH}/depth_scaling.png": REDRAWN},
    ),
    "a cut figure": (
        change(f"{TORCH}/depth_scaling.png", truncate), {f"{TORCH}/depth_scaling.png": REDRAWN},
    ),
    "a longer figure": (
        change(f"{TORCH}/depth_scaling.png", append), {f"{TORCH}/depth_scaling.png": REDRAWN},
    ),
    "a dot for a figure": (
        change(f"{TORCH}/depth_scaling.png", replace_by_a_dot),
        {f"{TORCH}/depth_scaling.png": REDRAWN},
    ),
    "a folder for a figure": (
        change(f"{TORCH}/depth_scaling.png", replace_by_a_folder),
        {f"{TORCH}/depth_scaling.png": MISSING},
    ),
    "a dangling link for a figure": (
        change(f"{TORCH}/depth_scaling.png", replace_by_a_dangling_link),
        {f"{TORCH}/depth_scaling.png": MISSING},
    ),
    "two studies' figures swapped": (
        swap_figures,
        {f"{TORCH}/depth_scaling.png": REDRAWN, "figures/kept/torch/depth_scaling.png": REDRAWN},
    ),
    "all figures are another study's": (
        figures_of_another_study,
        {f"{TORCH}/figures.json": "is of 'kept on torch', not of 'a on torch'"},
    ),
    "an edit that flowed on": (
        let_an_edit_flow_on,
        {
            "tables/summary.csv": CHANGED,
            f"{TORCH}/figures.json": "its figures were drawn from another summary.csv",
        },
    ),
    "figures of an edited table": (
        draw_from_an_edited_table,
        {f"{TORCH}/figures.json": "its figures were drawn from another summary.csv"},
    ),
    "hashes edited": (
        change(f"{TORCH}/figures.json", edit_the_hashes), {f"{TORCH}/depth_scaling.png": REDRAWN},
    ),
    "no hashes": (change(f"{TORCH}/figures.json", remove), {f"{TORCH}/figures.json": MISSING}),
    "junk for hashes": (
        change(f"{TORCH}/figures.json", replace_by_junk),
        {f"{TORCH}/figures.json": "is no list of figures"},
    ),
    "nesting for hashes": (
        change(f"{TORCH}/figures.json", replace_by_deep_nesting),
        {f"{TORCH}/figures.json": "is no list of figures"},
    ),
    "a figure of no study": (
        change("figures/of-old/torch/loss.png", replace_by_a_dot),
        {"figures/of-old/torch/loss.png": STRAY},
    ),
    "a figure of a place without runs": (
        change("figures/pictures/torch/comparison.png", replace_by_a_dot),
        {"figures/pictures/torch/comparison.png": STRAY},
    ),
    "a figure of no cell": (
        change("figures/cells/a/2L/mhc/torch/seed0/loss.png", replace_by_a_dot),
        {"figures/cells/a/2L/mhc/torch/seed0/loss.png": STRAY},
    ),
    "a table of no one": (change("tables/old.csv", replace_by_a_dot), {"tables/old.csv": STRAY}),
    "a flipped figure of a cell": (spoil_a_cell, {f"{CELL}/loss.png": REDRAWN}),
    "figures of a cell before it was trained again": (
        retrain_a_cell_that_was_drawn,
        {f"{CELL}/figures.json": "its figures were drawn from another metrics.jsonl"},
    ),
    "an edited bench": (
        edit_the_bench,
        {"figures/figures.json": "its figures were drawn from another bench.csv"},
    ),
    "no figure of the bench": (remove_the_bench_figure, {"figures/bench.png": MISSING}),
}  # fmt: skip


QUICK = (
    "no config", "an edited table", "an edited report", "no figures", "a flipped figure",
    "a figure of no study", "an edit that flowed on", "a table of no one", "an edited bench",
)  # fmt: skip


@pytest.mark.parametrize(("damage", "expected"), quick_ones(CORRUPTIONS, *QUICK))
def test_a_corruption_is_named_and_what_repairs_it(config, project, results, damage, expected):
    damage(config)
    found = verified(config, project)
    assert sorted(found.problems) == sorted(f"{results}/{n}: {why}" for n, why in expected.items())

    delete, _, workflow = found.repair("snakemake all").rpartition(" && ")
    assert workflow == "snakemake all"
    deleted = {Path(name) for name in shlex.split(delete)[2:]}
    present = [results / name for name in expected]
    assert deleted >= {file for file in present if file.exists() or file.is_symlink()}
    for file in deleted:
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    # What is left to do is what the workflow does of itself.
    after = verified(config, project)
    assert all(line.endswith(": missing") for line in after.problems)
    assert after.repair("snakemake all") == ("snakemake all" if after.problems else "")


def test_figures_that_are_drawn_on_request_may_be_there_or_not(config, results, problems):
    draw_bench(results)
    draw_cell(config, config.cells()[0])
    assert problems() == []


def test_figures_of_a_cell_that_are_not_whole_are_deleted_together(config, project, results):
    """The workflow draws them only on request."""
    spoil_a_cell(config)
    repair = verified(config, project).repair("snakemake all")
    files = [str(results / name) for name in CELL_FILES]
    assert shlex.split(repair) == ["rm", "-r", *files, "&&", "snakemake", "all"]


def test_before_the_tables_are_made_only_the_config_is_compared(config, project, results):
    for name in ("tables", "figures"):
        shutil.rmtree(results / name)
    for name in ("RESULTS.md", "COMPARISON.md"):
        (results / name).unlink()
    draw_bench(results)
    draw_cell(config, config.cells()[0])
    assert verified(config, project).problems == []
    without_a_study(results / "config.json")
    assert verified(config, project).problems == [f"{results}/config.json: {CHANGED}"]


def test_a_strange_name_is_in_no_command(config, project, results):
    (results / "figures/a\x1b[2J\nb.png").write_bytes(b"")
    found = verified(config, project)
    assert found.problems == [f"{results}/figures/a\\x1b[2J\\nb.png: {STRAY}"]
    assert found.repair("snakemake all") == "snakemake all"


def test_hidden_files_are_nobodys(results, problems):
    (results / "figures/.DS_Store").write_bytes(b"")
    assert problems() == []


def test_an_imported_run_of_another_spec_is_mended_by_hand(config, project, results):
    cell = config.cells()[0]
    folder = write_cell(config, cell, LOSSES, platform=GPU_PLATFORM, device=GPU)
    spec = json.loads((folder / "spec.json").read_text(encoding="utf-8"))
    (folder / "spec.json").write_text(json.dumps({**spec, "batch_size": 9}), encoding="utf-8")
    write_manifest(folder, {**read_manifest(folder), "spec_hash": "0" * 16})
    seal(folder)
    found = verified(config, project)
    named = f"{folder}: stale: spec differs: batch_size 9 → 8"
    assert f"{named}; import it anew, or delete the folder" in found.problems
    assert str(folder) not in found.repair("snakemake all")


def test_the_workflow_replays_an_imported_run_of_other_code(config, project, results):
    folder = write_cell(
        config, config.cells()[0], LOSSES, platform=GPU_PLATFORM, device=GPU,
        code={"fathom.train:train": "0"},
    )  # fmt: skip
    found = verified(config, project)
    waits = "waits for a replay (fathom replay); code differs: fathom.train:train"
    assert f"{folder}: stale: {waits}" in found.problems
    assert found.repair("snakemake all").endswith("snakemake all")
    assert str(folder) not in found.repair("snakemake all")


def test_the_repair_reads_the_config_that_was_verified():
    files = [Path("config.yaml"), Path("of mine.yaml")]
    assert workflow_command(files, ["depths=[4]", "studies.a.steps=5"]) == (
        "snakemake all --configfile 'of mine.yaml' --config 'depths=[4]' 'studies={a: {steps: 5}}'"
    )
    assert workflow_command(files[:1], []) == "snakemake all"
    assert workflow_command([Path("results/config.json")], []) == (
        "snakemake all --configfile results/config.json --replace-workflow-config"
    )
