"""`fathom verify` finds and names damage to runs, tables, reports and figures."""

import gzip
import itertools
import json
import random
import shutil
from pathlib import Path

import pytest

from fathom_study.analysis.claims import load_published
from fathom_study.analysis.platforms import Platform
from fathom_study.analysis.tables import BY_STUDY
from fathom_study.report.drawing.draw import title_of
from fathom_study.report.drawing.figure_manifest import (
    OVERVIEW_TABLES,
    tables_of,
    write_figure_manifest,
)
from fathom_study.report.figures import OF_A_CELL, figures_of, figures_of_study, files_of
from fathom_study.report.integrity.verify import verify
from fathom_study.report.pages.render import write_reports
from fathom_study.runs.bundle import record_refusals
from fathom_study.runs.folder import run_folder
from fathom_study.runs.validate import find_runs, validate_run
from fathom_study.system.files import write_json
from tests.support.reports import analyze_runs
from tests.support.runs import RUN_FILES, config_with, shift, write_cell
from tests.support.specs import quick_cases

LOSSES = [4.0, 2.0, 1.0]
OVERVIEW = tuple(figures_of("overview"))


# --- results made by hand, once, and copied ------------------------------------------------------

PUBLISHED = """
sources: {lab: {title: A lab, platform: some GPU, backend: torch}}
notes: []
values: [{source: lab, study: a, metric: loss_final, scale: {width: 256}, cells: {mhc: {4: 0.5}}}]
claims:
  - id: it-is-so
    source: lab
    statement: It converges.
    tests: [{kind: level, studies: [a], variants: [mhc], depths: [4], metric: left, high: 0.1}]
"""

TEMPLATES = {
    "RESULTS.md.j2": """# Results
{% for study in studies if study.is_measured %}
{% for row in study.rows.values() %}
- {{ study.name }} at {{ row.depth }}: {{ study.format(row, "loss_final") }}
{% endfor %}
{% endfor %}
{% for row in uncounted %}
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
    """Config of three studies: two depths; saved weights; images, where nothing was trained."""
    pictures = {"task": "fashion", "variants": ["mhc_causal"], "model": {"width": 8}}
    one = {"variants": ["mhc"], "depths": [4, 8], "backends": ["torch"], "seeds": [0]}
    kept = {"weights": True, "depths": [4]}
    return config_with(results, ("a", "kept", "pictures"), **one, kept=kept, pictures=pictures)


NAMES = {
    study: tuple(figure.name for figure in figures_of_study(studies("results"), study))
    for study in ("a", "kept")
}


def make(config, project):
    """Write everything except runs: tables, reports, and stand-ins for figures."""
    published = load_published(project / "published.yaml", config)
    folder = analyze_runs(config, published)
    write_reports(config, published, project / "templates", folder)
    for study in NAMES:
        draw_study(config, folder, study)
    tables = (folder / "tables" / name for name in OVERVIEW_TABLES)
    draw(folder / "figures/overview", OVERVIEW, "overview", *tables)


def draw(folder, names, of, *sources):
    """Write stand-ins for figures, each with its own bytes, and their figures.json."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in (file for name in names for file in files_of(folder, name)):
        file.write_bytes(f"{file.name} of {of}".encode())
    write_figure_manifest(folder, names, of, sources)


def draw_study(config, results, study):
    declared, of = figures_of_study(config, study), title_of(study, Platform("torch"))
    tables = tables_of(declared, results / "tables/studies" / study)
    draw(results / f"figures/{study}/torch", [figure.name for figure in declared], of, *tables)


def draw_cell(config, cell):
    own, metrics = cell.path(), run_folder(Path(config.results), cell) / "metrics.jsonl"
    draw(Path(config.results, "figures/cells", own), OF_A_CELL, own, metrics)


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
    """A copy of `made`, for a test to change."""
    copy = Path(shutil.copytree(made, tmp_path / "project"))
    # config.json names the folder of results.
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
    """Function that verifies the copy and returns its problems, one line each."""

    def check(changed=None):
        lines = verified(changed or config, project).problems
        assert all(line.isprintable() for line in lines)  # so there is no line break
        return lines

    return check


def verified(config, project):
    published = load_published(project / "published.yaml", config)
    return verify(config, published, project / "templates")


# --- intact results ------------------------------------------------------------------------------

DRAWN = sum(map(len, NAMES.values())) + len(OVERVIEW)
CHECKED = {"runs": 3, "config": 1, "figures": DRAWN, "reports": 2, "tables": 48}
"""20 tables, and nine for each of three studies."""


def test_intact_results_pass_however_a_table_is_packed(config, project, results, fathom):
    table, file = results / "tables/studies/a/steps.csv.gz", project / "config.yaml"
    table.write_bytes(gzip.compress(gzip.decompress(table.read_bytes()), compresslevel=1, mtime=9))
    file.write_text(json.dumps(config.model_dump(mode="json")), encoding="utf-8")
    command = ["verify", "--config", file, "--published", project / "published.yaml"]
    command += ["--templates", project / "templates"]
    counts = ", ".join(f"{number} {kind}" for kind, number in CHECKED.items())
    assert fathom(*command) == (0, f"verified: {counts}\n", [])
    remove(results / "config.json")
    status, _, (first, *_, last) = fathom(*command)
    assert status == 1
    assert first == f"fathom: {results}/config.json: missing"
    assert last.startswith("fathom: to fix: run snakemake all")


# --- damaged runs --------------------------------------------------------------------------------


def rewrite(name, change):
    """A damage of that name: `change` makes new bytes from a file's bytes."""

    def damage(file):
        file.write_bytes(change(file.read_bytes()))

    damage.__name__ = name
    return damage


def remove(file):
    file.unlink()


def replace_by_a_folder(file):
    file.unlink()
    file.mkdir()


def replace_by_a_dangling_link(file):
    file.unlink()
    file.symlink_to("nowhere")


def replace_by_junk(file):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(random.Random(7).randbytes(1000))  # noqa: S311, nothing secret


def flip_at(content, place, bits):
    return content[:place] + bytes([content[place] ^ bits]) + content[place + 1 :]


def flip(seed):
    """Change one random byte, but no whitespace, since JSON may hold other whitespace there."""

    def change(content):
        rng = random.Random(seed)  # noqa: S311, nothing secret
        place = rng.randrange(len(content))
        while content[place : place + 1].isspace():
            place = rng.randrange(len(content))
        return flip_at(content, place, rng.randrange(1, 256))

    return rewrite(f"flip_{seed}", change)


truncate = rewrite("truncate", lambda content: content[: len(content) // 2])
empty = rewrite("empty", lambda content: b"")
append = rewrite("append", lambda content: content + b"{}\n")
replace_by_deep_nesting = rewrite("replace_by_deep_nesting", lambda content: b'{"a":' * 100_000)
break_within = rewrite("break_within", lambda old: flip_at(old, len(old) // 2, 1))
"""The beginning and the end of the file stay the same."""

DAMAGES = [
    truncate, empty, remove, replace_by_a_folder, replace_by_a_dangling_link, replace_by_junk,
    replace_by_deep_nesting, append,
    rewrite("truncate_by_a_byte", lambda content: content.rstrip()[:-1]),
    rewrite("replace_by_a_list", lambda content: b"[]\n"),
    # What some file systems leave after a power loss.
    rewrite("replace_by_zeros", lambda content: bytes(len(content))),
    # Each at a random place: no part of a file may go unchecked.
    *(flip(seed) for seed in range(100)),
]  # fmt: skip


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
        run = validate_run(folder, spec)
        if run.status != "corrupt" or run.counts or not run.reason.startswith(name):
            missed.append(f"{damage.__name__}: {run.status}: {run.reason}")
        if file.is_dir():
            file.rmdir()
        file.unlink(missing_ok=True)
        file.write_bytes(whole)
    assert missed == []


@pytest.mark.parametrize("name", [*RUN_FILES, "weights.safetensors"])
def test_a_damaged_run_is_named(name, config, results, project):
    spec, folder = run_of(config, "kept")
    truncate(folder / name)
    reason = validate_run(folder, spec).reason
    result = verified(config, project)
    assert result.problems == [
        f"{folder}: corrupt: {reason}",
        f"{results}/tables: not checked, since a run is corrupt",
    ]
    assert result.to_delete() == [folder]


def leave_a_partial_run(config, folder):
    shutil.rmtree(folder)
    (folder / ".partial").mkdir(parents=True)


def replace_run_by_a_file(config, folder):
    shutil.rmtree(folder)
    folder.write_text("not a folder", encoding="utf-8")


def replace_run_by_another(config, folder):
    _, other = run_of(config, "kept")
    shutil.rmtree(folder)
    shutil.copytree(other, folder)


def change_numbers_and_hashes(config, folder):
    shift(folder, step=-1, by=1e-7)


def use_other_code(config, folder):
    cell = next(c for c in config.cells() if run_folder(Path(config.results), c) == folder)
    write_cell(config, cell, LOSSES, code={"fathom_study.train:train": "0"})


CHANGED_RUNS = [
    # (damage, status, start of the reason) of each run, in order
    [
        (leave_a_partial_run, "failed", "began and has not finished"),
        (use_other_code, "stale", "code differs: fathom_study.train:train"),
        (change_numbers_and_hashes, "measured", ""),
    ],
    [
        (replace_run_by_another, "corrupt", "manifest.json: belongs to another cell, 'kept/"),
        (replace_run_by_a_file, "missing", ""),
    ],
]


@pytest.mark.parametrize("changes", CHANGED_RUNS, ids=["tables differ", "corrupt"])
def test_changed_runs_and_their_tables_are_named(changes, config, results, problems):
    folders = [run_folder(Path(config.results), cell) for cell in config.cells()]
    for folder, (damage, _, _) in zip(folders, changes, strict=False):
        damage(config, folder)
    lines = problems()
    statuses = {run.folder: run.status for run in find_runs(config)}
    for folder, (_, status, reason) in zip(folders, changes, strict=False):
        assert statuses[folder] == status
        is_named = any(line.startswith(f"{folder}: {status}: {reason}") for line in lines)
        assert is_named == (status not in ("missing", "measured"))
    changed = {
        f"{results}/tables/{name}: {CHANGED}"
        for name in ("cells.csv", "summary.csv", "studies/a/steps.csv.gz")
    }
    assert (changed <= set(lines)) == ("corrupt" not in statuses.values())


# --- tables, reports and figures altered by hand -------------------------------------------------


def alter_a_character(file):
    """Change the last letter or digit; in most files it belongs to a number."""
    text = file.read_text(encoding="utf-8")
    last = max(i for i, character in enumerate(text) if character.isalnum())
    changed = "8" if text[last] == "7" else "7"
    file.write_text(text[:last] + changed + text[last + 1 :], encoding="utf-8")


def drop_the_last_line(file):
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    file.write_text("".join(lines[:-1]), encoding="utf-8")


def alter_what_is_packed(file):
    text = gzip.decompress(file.read_bytes()).decode()
    file.write_bytes(gzip.compress(text.replace(",", ",1", 1).encode(), mtime=0))


OF_STUDIES = [f"tables/studies/{study}" for study in ("a", "kept", "pictures")]


ALTERATIONS = [append, empty, truncate, replace_by_junk, replace_by_a_folder, remove,
               drop_the_last_line, alter_a_character]  # fmt: skip


def test_every_table_and_report_altered_by_hand_is_named(results, problems):
    """All at once, since each is compared with the runs and not with another file."""
    texts = [f"{folder}/{name}" for folder in OF_STUDIES for name in BY_STUDY]
    packed = [f"{folder}/steps.csv.gz" for folder in OF_STUDIES]
    files = [f for f in (results / "tables").rglob("*") if f.is_file()]
    files += [f for f in results.iterdir() if f.is_file()]
    names = {str(file.relative_to(results)) for file in files}
    derived = sorted(f"tables/{file.name}" for file in (results / "tables").glob("*.csv"))
    derived += ["RESULTS.md", "COMPARISON.md", "config.json"]
    assert len(derived) > 20 and names == {*derived, *texts, *packed}
    for name, alter in zip(derived, itertools.cycle(ALTERATIONS), strict=False):
        alter(results / name)
    for name in texts:
        append(results / name)
    for name in packed:
        alter_what_is_packed(results / name)
    lines = [line.partition(": ")[0] for line in problems()]
    assert sorted(lines) == sorted(str(results / name) for name in names)


def test_a_refused_bundle_is_a_problem(results, problems):
    (results / "imported").mkdir()
    record_refusals(results, {Path("a.tar.xz"): "not an intact .tar.xz file (x)"})
    (problem,) = (one for one in problems() if "refused.txt" in one)
    line = "the bundle a.tar.xz: not an intact .tar.xz file (x); import an intact copy"
    assert problem.startswith(f"{results}/imported/refused.txt: {line}")


# --- damage → problems and their fix -------------------------------------------------------------

CHANGED, MISSING = "differs from what its inputs give", "missing"
MODIFIED, STRAY = "was modified after it was drawn", "does not belong there"
OTHER_CELLS = "its figures were drawn from another cells.csv"


def change(damages):
    """A damage of a config's results that applies each file's own damage."""

    def damage(config):
        for name, own in damages.items():
            own(Path(config.report_folder) / name)

    return damage


def draw_from_an_edited_table(config):
    """Draw from an edited table, as Snakemake does if a table is newer than the figures."""
    results = Path(config.report_folder)
    alter_a_character(results / "tables/studies/a/cells.csv")
    draw_study(config, results, "a")


def retrain_a_cell_that_was_drawn(config):
    """Retrain a drawn cell and make everything again except its own figures."""
    cell = config.cells()[0]
    draw_cell(config, cell)
    write_cell(config, cell, [4.0, 3.0, 1.0])
    make(config, Path(config.results).parent)


def spoil_what_is_drawn_on_request(config):
    cell = config.cells()[0]
    draw_cell(config, cell)
    break_within(Path(config.results, "figures/cells", cell.path(), "loss.png"))


TORCH = "figures/a/torch"
NORMS = f"{TORCH}/grad_norm.png"
CELL = "figures/cells/a/4L/mhc/torch/seed0"
OLD = ("figures/of-old/torch/loss.png", "figures/pictures/torch/comparison.png",
       "figures/cells/a/2L/mhc/torch/seed0/loss.png", "tables/old.csv")  # fmt: skip


FIGURE_DAMAGES = {
    NORMS: (break_within, MODIFIED),
    f"{TORCH}/grad_norm.svg": (truncate, MODIFIED),
    f"{TORCH}/loss.png": (append, MODIFIED),
    f"{TORCH}/loss.svg": (replace_by_junk, MODIFIED),
    f"{TORCH}/score.png": (replace_by_a_folder, MISSING),
    f"{TORCH}/score.svg": (replace_by_a_dangling_link, MISSING),
    "figures/overview/score_against_depth.png": (remove, MISSING),
}


CORRUPTIONS = {
    "tables, reports, config and strays": (
        change({"config.json": remove, "tables/claims.csv": alter_a_character,
                "RESULTS.md": alter_a_character, **dict.fromkeys(OLD, replace_by_junk)}),
        {"config.json": MISSING, "tables/claims.csv": CHANGED, "RESULTS.md": CHANGED,
         **dict.fromkeys(OLD, STRAY)},
    ),
    "figures": (
        change({name: damage for name, (damage, _) in FIGURE_DAMAGES.items()}),
        {name: what for name, (_, what) in FIGURE_DAMAGES.items()},
    ),
    "an edit that flowed on": (
        draw_from_an_edited_table,
        {"tables/studies/a/cells.csv": CHANGED, f"{TORCH}/figures.json": OTHER_CELLS},
    ),
    "what is drawn on request": (
        spoil_what_is_drawn_on_request,
        {f"{CELL}/loss.png": MODIFIED},
    ),
    "figures of a cell before it was trained again": (
        retrain_a_cell_that_was_drawn,
        {f"{CELL}/figures.json": "its figures were drawn from another metrics.jsonl"},
    ),
}  # fmt: skip

QUICK = "tables, reports, config and strays", "figures", "an edit that flowed on"


@quick_cases("damage, expected", CORRUPTIONS, *QUICK)
def test_a_corruption_is_named_and_the_advice_fixes_it(config, project, results, damage, expected):
    damage(config)
    result = verified(config, project)
    assert sorted(result.problems) == sorted(f"{results}/{n}: {why}" for n, why in expected.items())

    files = result.to_delete()
    present = {results / name for name in expected}
    assert {file for file in present if file.exists() or file.is_symlink()} <= set(files)
    advice = result.advice("snakemake all")
    delete = f"delete {', '.join(map(str, files))}, then " if files else ""
    assert advice == f"to fix: {delete}run snakemake all"
    for file in files:
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    # Only missing files are left, and the workflow makes them.
    after = verified(config, project)
    assert all(line.endswith(": missing") for line in after.problems)
    assert after.to_delete() == []
    # It draws figures of cells only on request: all of those were deleted.
    assert not any("figures/cells" in line for line in after.problems)
