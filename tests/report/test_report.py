"""Reports: sentences that follow from tables, links to rows, numbers as text."""

import csv
import json
import math
import os
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from markdown_it import MarkdownIt

from fathom_study import cli
from fathom_study.analysis.claims import load_published
from fathom_study.config import Contrast
from fathom_study.report.pages.render import write_reports
from fathom_study.runs.bundle import record_refusals
from tests.support.reports import (
    DEPTHS,
    by_recipe,
    small_config,
    study_config,
    vary,
    write_all,
    write_world,
)
from tests.support.runs import GPU_PLATFORM, config_with
from tests.support.tables import run

# --- a whole report --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world(shipped, tmp_path_factory):
    """Folder of the reports of runs in which the recipe decides."""
    return write_world(study_config(tmp_path_factory.mktemp("world")), *shipped, by_recipe)


@pytest.fixture(scope="module")
def quick(shipped):
    """As `shipped`, without published values and claims, which take longer than all the rest."""
    published, templates = shipped
    return published.model_copy(update={"values": [], "claims": []}), templates


def section(text, heading):
    """Text below a heading, up to the next of the same or a higher level."""
    level = heading.partition(" ")[0]
    _, there, below = f"\n{text}".partition(f"\n{heading}\n")
    assert there, heading
    return re.split(rf"^#{{1,{len(level)}}} ", below, maxsplit=1, flags=re.MULTILINE)[0]


def report_of(config, shipped, rows):
    """Folder of the reports of these runs, with the published values of their studies."""
    published = load_published(shipped[1].parent / "published.yaml", config)
    return write_all(config, published, shipped[1], rows, [])


def read(folder, name="RESULTS.md"):
    return (folder / name).read_text(encoding="utf-8")


def page(folder, study):
    """The page of a study."""
    return read(folder, f"studies/{study}.md")


def by_claim(rows, shipped):
    """Rows that begin with the statement of a claim, by its id."""
    ids = {claim.statement: claim.id for claim in shipped[0].claims}
    # Claims without a test on a page have no link.
    statements = [re.match(r"\[?(.*?)(?:\]\(|$)", row[0])[1] for row in rows]
    return {ids[text]: row for text, row in zip(statements, rows, strict=True) if text in ids}


def tables_in(text):
    """Every Markdown table, as a list of rows of cells."""
    tables = [[]]
    for line in text.splitlines():
        if line.startswith("|"):
            tables[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        elif tables[-1]:
            tables.append([])
    return [table for table in tables if table]


HOSTILE = "A|B `c` *d* <e> $f$ _g_ [h](i) ~~j~~ 🙂 \\ k`l*m"
"""Characters with a meaning in Markdown, in pairs and alone."""


def parsed(text):
    """(types of all tokens except text, text shown) of Markdown."""
    pieces = []
    for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text):
        pieces += token.children or [token]
    shown = "".join(piece.content for piece in pieces if piece.type.startswith("text"))
    return [piece.type for piece in pieces if not piece.type.startswith("text")], shown


def test_words_of_a_config_are_shown_literally(tmp_path, quick):
    def reports(folder, words, description):
        config = small_config(tmp_path / folder)
        contrast = Contrast(question=f"{words}?", pairs=[["mhc", "hc"]])
        studies = {
            name: study.model_copy(update={"description": description, "contrasts": [contrast]})
            for name, study in config.studies.items()
        }
        labels = dict.fromkeys(["mhc", "depth-mlx"], words)
        config = config.model_copy(update={"labels": labels, "studies": studies})
        made = write_world(config, *quick, by_recipe)
        return {file.name: parsed(file.read_text()) for file in sorted(made.rglob("*.md"))}

    plain = reports("plain", "PLAIN", "A sentence.")
    hostile = reports("hostile", HOSTILE, "A | sentence * of <b> one ` mark.")
    assert len(plain) == 4
    for name, (types, text) in hostile.items():
        text = text.replace(HOSTILE, "PLAIN").replace(
            "A | sentence * of <b> one ` mark.", "A sentence."
        )
        assert (types, text) == plain[name], name
    assert "PLAIN?" in plain["depth-mlx.md"][1]
    assert "A sentence." in plain["depth-mlx.md"][1]


@pytest.mark.parametrize("name", ["RESULTS.md", "COMPARISON.md", "studies/depth-mlx.md"])
def test_tables_are_whole_and_show_no_python_values(world, name):
    text = read(world, name)
    tables = tables_in(text)
    assert len(tables) > 2
    for head, ruler, *rows in tables:
        assert all(set(cell) <= set("-:") for cell in ruler)
        assert rows
        assert {len(row) for row in (ruler, *rows)} == {len(head)}
    text = text.replace("hc-nan-48", "")
    assert not re.findall(r"\b(?:nan|None|True|False|Undefined|dtype)\b|\{\{|\}\}|\{%", text)


def test_every_cell_links_to_its_row(world):
    checked = 0
    for study in ("depth-mlx", "depth-torch"):
        for (first, _, *variants), _, *rows in tables_in(
            page(world, study).partition("\n## Score\n")[2].partition("\n## Variants\n")[0]
        ):
            assert first == "layers"
            for depth, platform, *cells in rows:
                for variant, cell in zip(variants, cells, strict=True):
                    if cell == "–":
                        continue
                    table, line = re.search(r"\]\(\.\./(tables/\w+\.csv)#L(\d+)\)", cell).groups()
                    lines = read(world, table).splitlines()
                    head, row = csv.reader([lines[0], lines[int(line) - 1]])
                    cited = dict(zip(head, row, strict=True))
                    expected = {"study": study, "depth": depth, "variant": variant}
                    assert expected.items() <= cited.items()
                    assert cited["platform"] == {"PyTorch": "torch", "MLX": "mlx"}[platform]
                    checked += 1
    # The score and two gradient norms of every variant, and metrics of only some of them.
    assert checked > 2 * 3 * len(DEPTHS) * 3 * 2


def cell_of(text, heading, depth, place, variant):
    """The text of one cell of the first table below a heading of a study's page."""
    below = section(text, f"## {heading}")
    (_, _, *variants), _, *rows = tables_in(below)[0]
    cells = {tuple(row[:2]): row[2:] for row in rows}
    cell = cells[str(depth), place][variants.index(variant)]
    return re.fullmatch(r"\[(.*)\]\(.*\)", cell)[1]


def test_page_shows_failed_runs_and_missing_metrics(world):
    text = page(world, "depth-mlx")
    # The logarithms of 0.9, 1 and 1/0.9 are ∓0.105 and 0: the factor is exp(4.303 · 0.105 / √3).
    for study, expected in (
        ("depth-mlx", "0.010 (0.0077 to 0.013)"),
        ("depth-torch", "1.0 (0.77 to 1.3)"),
    ):
        for depth in DEPTHS:
            assert cell_of(page(world, study), "Score", depth, "MLX", "mhc") == expected
    assert cell_of(text, "Score", 48, "PyTorch", "hc") == "NaN (3 of 3)"
    failures = section(text, "## Score")
    assert "- 48 layers, hc on PyTorch: 3 diverged and 0 at chance, of 3\n" in failures
    assert "- 48 layers, hc on MLX: 0 diverged and 3 at chance, of 3\n" in failures
    # A metric that is zero everywhere, equal everywhere, or of no run has no column.
    gain = section(text, "## Gain")
    assert [head for (head, *_) in tables_in(gain)] == [["layers", "measured on", "hc", "mhc"]]
    streams = section(text, "## Streams and activations")
    assert re.search(r"`overflow_layer`, .*: \[30\]\(.*#L16\)", streams)
    assert "stream_similarity_min" not in streams


def test_the_scorecard_has_every_claim_with_the_test_that_decides(world, shipped):
    card = section(read(world), "## Scorecard")
    claims = len(shipped[0].claims)
    assert f"has {claims} claims of the sources: " in card
    counted = re.findall(
        r"(\d+) (?:is|are) ([a-z ]+)(?<! )(?: \((\d+) undecided\))?[,.]", card.split("\n")[1]
    )
    table = pd.read_csv(world / "tables" / "verdicts.csv")
    assert {v: int(n) for n, v, _ in counted} == table["verdict"].value_counts().to_dict()
    (undecided,) = [int(n) for _, _, n in counted if n]
    assert undecided == table["undecided"].sum()
    rows = by_claim(tables_in(card)[0][2:], shipped)
    # The source of hc-fails-48 is an MLX program; on MLX hc ends at chance.
    reason, line = re.fullmatch(
        r"\[(.*)\]\(tables/claims.csv#L(\d+)\)", rows["hc-fails-48"][3]
    ).groups()
    assert reason == "3 of 3 runs do not learn"
    assert read(world, "tables/claims.csv").splitlines()[int(line) - 1].startswith("hc-fails-48,")
    scale = "vocab 64 for 256, length 8 for 128, width 16 for 256"
    assert re.search(rf"^.*\b{rows['hc-fails-48'][-1]}: {scale}", card, re.MULTILINE)
    tests = pd.read_csv(world / "tables" / "claims.csv")
    made, resting = (tests["verdict"] != "not measured").sum(), tests["confidence"].notna().sum()
    text = " ".join(card.split())
    assert f"{made} tests were made, {resting} of them with" in text
    assert f"up to {0.05 * resting:.2g} of these" in text


# --- published beside ours -------------------------------------------------------------------


def test_deviating_values_are_bold_only_at_the_published_scale(world, shipped, tmp_path):
    # Published for the MLX runs at 12 layers: baseline 1.78, hc 0.0001, mhc 0.002.
    losses = {"baseline": [1.7, 1.8, 1.9], "hc": [0.2, 0.21, 0.22], "mhc": [0.002, 0.002, 0.002]}
    published, templates = shipped
    values = [figures.model_copy(update={"scale": {}}) for figures in published.values]
    published = published.model_copy(update={"values": values, "claims": []})
    config = study_config(tmp_path, depths=[12], backends=["mlx"])
    folder = write_world(config, published, templates, lambda cell: losses[cell.variant][cell.seed])
    heading = "## mHC demo, MLX results: depth-mlx"
    beside = section(read(folder, "COMPARISON.md"), heading)
    rows = {tuple(row[:3]): row[3:] for row in tables_in(beside)[0][2:]}
    assert rows["`loss_final`", "12", "baseline"] == ["1.78", "1.80 ± 0.27"]
    assert rows["`loss_final`", "12", "hc"] == ["0.0001", "**0.210 ± 0.026**"]
    assert rows["`loss_final`", "12", "mhc"] == ["0.002", "0.002 ± 0"]
    assert rows["`loss_final`", "24", "mhc"] == ["0.0002", "not run here"]
    assert "Ours is at the published scale." in beside
    other = section(read(world, "COMPARISON.md"), heading)
    assert "**Ours is at another scale**: vocab 64 for 256, " in other
    assert not [cell for row in tables_in(other)[0][2:] for cell in row[4:] if "**" in cell]


def test_agreement_of_platforms_is_judged_by_the_spread_over_seeds(world, quick, tmp_path):
    # mlx ends 5 % above torch, 1/21 relative to mlx; the seeds spread by 0.105 of the mean.
    def loss(cell):
        return vary(cell, 1.05 if cell.backend == "mlx" else 1.0)

    config = study_config(tmp_path, depths=[12], variants=["mhc"])
    text = read(write_world(config, *quick, loss), "COMPARISON.md")
    _, after, parted = tables_in(section(text, "### PyTorch beside MLX: depth-mlx"))
    assert not [name for name in after[0] if "step" in name]  # clocks of different days
    assert parted[2] == ["12", "mhc", "2", "0.048", "0.048", "0.11", "yes"]
    (_, _, row) = tables_in(text)[0][:3]
    same = "the same, within the spread over seeds"
    assert row[1:] == ["PyTorch, MLX", "0", "1 of 1", "2", "1 of 1", same]
    # In `world` hc at 48 layers is NaN on torch, and at chance on mlx.
    rows = tables_in(read(world, "COMPARISON.md"))[0][2:]
    assert [row[-1] for row in rows] == ["differs: hc at 48 layers"] * 2


# --- the answer ------------------------------------------------------------------------------


def test_without_any_run_a_report_says_so(quick, tmp_path):
    folder = write_world(small_config(tmp_path), *quick, lambda cell: None)
    text = read(folder)
    assert section(text, "## The answer").strip().startswith("Nothing was measured here.")
    assert "- [depth-mlx](studies/depth-mlx.md) It was not run here." in text
    assert "- [depth-mlx](studies/depth-mlx.md) On PyTorch: 6 cells missing" in text
    assert "\nNot run here.\n" in page(folder, "depth-mlx")


def test_a_refused_bundle_is_not_called_a_study_that_was_not_run(quick, tmp_path):
    config = small_config(tmp_path)
    (tmp_path / "imported").mkdir()
    refused = {Path("bundles/a.tar.xz"): "not an intact .tar.xz file (x)"}
    record_refusals(Path(config.results), refused)
    folder = write_world(config, *quick, lambda cell: None)
    pages = [read(folder), read(folder, "COMPARISON.md"), page(folder, "depth-mlx")]
    assert "not run here" not in " ".join(pages).lower()
    assert "**A bundle was refused, and its runs are not shown**: bundles/a.tar.xz: " in pages[0]
    assert "(studies/depth-mlx.md) It was not imported: a bundle was refused." in pages[0]
    assert "\nNot imported: a bundle was refused.\n" in pages[2]


def test_study_in_which_no_run_learned_is_below_the_answers_of_others(shipped, tmp_path):
    pair = {"variants": ["baseline", "mhc"], "depths": [12], "backends": ["torch"], "part": None}
    config = config_with(tmp_path, ("own", "other"), own=pair, other=pair)
    config.labels["own"] = "Does it train?"
    rows = [
        run(study=study, depth=12, variant=v, seed=s, loss_final=loss * (1 + s / 100), **outcome)
        for study, outcome in (("own", {"outcome": "at chance"}), ("other", {}))
        for v, loss in (("baseline", 1.0), ("mhc", 0.1))
        for s in range(3)
    ]
    text = read(report_of(config, shipped, rows))
    said = "**Does it train? This task does not separate its variants: none of 6 runs learned.**"
    assert 0 < text.index("| question | answer | evidence |") < text.index(said)
    assert text.count(said) == 1


# --- tasks and parts ---------------------------------------------------------------------------


@pytest.mark.parametrize("part", [None, "demos"])  # with `<<: *depth` a study has the latter
def test_own_study_is_answered_and_mentions_no_claim(shipped, tmp_path, part):
    labels = ["baseline", {"mine": {"connection": "krom_hc", "gate": "learned"}}]
    own = {"variants": labels, "depths": [12], "backends": ["torch"], "part": part}
    config = config_with(tmp_path, ("own",), own=own)
    rows = [
        run(study="own", depth=12, variant=v, seed=s, loss_final=loss * (1 + s / 100))
        for v, loss in (("baseline", 1.0), ("mine", 0.1))
        for s in range(3)
    ]
    folder = report_of(config, shipped, rows)
    (_, _, effect), *_ = tables_in(section(read(folder), "## The answer"))
    assert effect[0] == "own: Is the variant better than the plain residual network?"
    assert effect[1] == "**better**"
    text = read(folder)
    for heading in ("## Scorecard", "## What could not be judged", "## The sources"):
        assert heading not in text
    assert "Published beside ours" not in read(folder, "COMPARISON.md")
    assert "figures/overview" not in text  # no study was measured at more than one depth
    command = f"`fathom train-all --config {config.report_folder}/config.json`"
    assert command in text and command in page(folder, "own")
    settings = tables_in(section(page(folder, "own"), "## Settings"))[0]
    spec = config.spec(next(iter(config.cells())))
    assert ["`optimizer.lr`", str(spec.optimizer.lr)] in settings
    assert ["`steps`", str(spec.steps)] in settings
    assert ["`seeds`", ", ".join(map(str, config.studies["own"].seeds))] in settings
    assert (
        "fathom train own --depth 12 --variant baseline --backend torch --seed 0 --out again "
        f"--config {config.report_folder}/config.json"
    ) in section(page(folder, "own"), "## How to repeat it")


def test_the_config_that_a_report_names_is_there_and_current(shipped, tmp_path):
    own = {"variants": ["baseline", "mhc"], "depths": [12], "backends": ["torch"]}
    config = config_with(tmp_path / "results", ("own",), own=own)
    rows = [run(study="own", depth=12, variant=v) for v in ("baseline", "mhc")]
    folder = report_of(config, shipped, rows)
    resolved = json.loads(json.dumps(config.resolved()))
    (tmp_path / "own.yaml").write_text(json.dumps(resolved), encoding="utf-8")
    names = ("--published", shipped[1].parent / "published.yaml", "--templates", shipped[1])
    for before in (None, {"results": "elsewhere"}):
        (folder / "config.json").unlink(missing_ok=True)
        if before:
            (folder / "config.json").write_text(json.dumps(before), encoding="utf-8")
        cli.main(["report", "--config", str(tmp_path / "own.yaml"), *map(str, names)])
        assert json.loads((folder / "config.json").read_text(encoding="utf-8")) == resolved


def test_a_pair_without_a_common_score_says_why(quick, tmp_path):
    own = {"variants": ["baseline", "mhc", "hc"], "backends": ["torch"], "depths": [12]}
    pairs = [["mhc", "baseline"], ["hc", "baseline"]]
    own["contrasts"] = [{"question": "Is it better?", "pairs": pairs}]
    config = config_with(tmp_path, ("own",), own=own)
    diverged = {"outcome": "diverged", "score": math.nan}
    rows = [
        run(study="own", variant=v, seed=s, machine=GPU_PLATFORM, loss_final=9.0 + s) | outcome
        for v, outcome in (("baseline", {}), ("hc", diverged))
        for s in range(3)
    ]
    text = page(write_all(config, *quick, rows, []), "own")
    assert "- mhc and baseline: mhc was not trained." in text
    assert "- hc and baseline: hc diverged in 3 of 3 runs." in text


def test_page_marks_settings_chosen_after_looking_and_their_verdicts(quick, tmp_path):
    chosen = {
        "seeds": {"why": "two were added", "verdicts_at": [24], "verdicts_of": ["hc"]},
        "optimizer.lr": {"why": "on the plain network"},
    }
    own = {"variants": ["baseline", "mhc", "hc"], "backends": ["torch"], "depths": [12, 24]}
    pairs = [["mhc", "baseline"], ["hc", "baseline"]]
    own["contrasts"] = [{"question": "Is it better?", "pairs": pairs}]
    config = config_with(tmp_path, ("own",), own={**own, "chosen_after_looking": chosen})
    rows = [
        run(study="own", depth=depth, variant=v, seed=s, machine=GPU_PLATFORM, loss_final=loss + s)
        for depth in (12, 24)
        for v, loss in (("baseline", 10.0), ("mhc", 1.0), ("hc", 1.0))
        for s in range(3)
    ]
    text = page(write_all(config, *quick, rows, []), "own")
    settings = {row[0]: row[2] for row in tables_in(section(text, "## Settings"))[0][2:]}
    marked = {name: why for name, why in settings.items() if why}
    assert marked == {"`seeds`": "two were added", "`optimizer.lr`": "on the plain network"}
    verdicts = {(row[1], row[4]): row[-1] for row in tables_in(section(text, "## Effects"))[0][2:]}
    marked = "better, seeds added after looking"
    assert verdicts.pop(("mhc", "12")) == "better"
    assert verdicts == {("mhc", "24"): marked, ("hc", "12"): marked, ("hc", "24"): marked}
    assert [f"{depth} layers: mhc against baseline is" in text for depth in (12, 24)] == [True] * 2
    assert "made by commit 0d34bb1 (18 runs)." in section(text, "## How to repeat it")


# --- platforms ----------------------------------------------------------------------------------


def test_imported_platform_has_its_own_rows_and_escaped_texts(quick, tmp_path):
    """These texts are untrusted: a mark, an element, a cell of a table, a link, a mention."""
    config = study_config(tmp_path, depths=[12, 24], variants=["mhc"], backends=["torch"])
    nasty = "<b>x</b> | [a](http://b) `c` *d* @e $f$ www.g"
    rows = [
        run(study="depth-mlx", depth=12, seed=seed, machine=machine, loss_final=loss)
        for machine, loss in (("", 0.5), (GPU_PLATFORM, 0.75))
        for seed in range(3)
    ]
    rows.append(run(study="depth-mlx", depth=12, seed=3, status="stale", reason=nasty))
    folder = write_all(config, *quick, rows, [], device=nasty)
    own, label = page(folder, "depth-mlx"), f"PyTorch on {GPU_PLATFORM}"
    assert cell_of(own, "Score", 12, "PyTorch", "mhc").startswith("0.5 ")
    assert cell_of(own, "Score", 12, label, "mhc").startswith("0.75 ")
    assert f"figures/depth-mlx/torch-{GPU_PLATFORM}/loss.png" in own
    assert f"### PyTorch beside {label}: depth-mlx" in read(folder, "COMPARISON.md")
    text = read(folder)
    # The head, the table of two platforms, runs that are not counted.
    assert text.count(r"\<b\>x\</b\> \| \[a\](http\://b) \`c\` \*d\* \@e \$f\$ www\.g") == 4
    assert nasty not in text


# --- beside a kept result ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def beside(world, shipped, tmp_path_factory):
    """The reports of `world` beside a kept result with verdicts on two claims alone."""
    kept = tmp_path_factory.mktemp("kept")
    (kept / "tables").mkdir()
    (kept / "studies").mkdir()
    (kept / "studies" / "depth-mlx.md").write_text("", encoding="utf-8")
    verdicts = pd.read_csv(world / "tables" / "verdicts.csv").set_index("claim")
    verdicts["verdict"] = "not measured"
    judged = ["verdict", "undecided", "seeds", "other_scale", "in_part", "studies"]
    verdicts.loc["hc-fails-48", judged] = ["contradicted", False, 1, False, False, "depth-mlx"]
    verdicts.loc["text-compile", judged] = ["reproduced", False, 3, False, False, "text-arms"]
    verdicts.to_csv(kept / "tables" / "verdicts.csv")
    shutil.copy(world / "tables" / "claims.csv", kept / "tables" / "claims.csv")
    config = study_config(world).model_copy(update={"reference": str(kept)})
    folder = tmp_path_factory.mktemp("beside")
    shutil.copytree(world / "tables", folder / "tables")
    write_reports(config, *shipped, folder)
    return folder, Path(os.path.relpath(kept, config.report_folder)).as_posix()


def test_a_kept_results_verdicts_stand_beside_ours_with_links(beside, shipped):
    folder, link = beside
    text, own = read(folder), read(folder, "studies/depth-mlx.md")
    (header, _, *rows), *_ = tables_in(section(text, "## Scorecard"))
    assert header[2:4] == ["at the reference scale", "here"]
    kept = {claim: row[2] for claim, row in by_claim(rows, shipped).items()}
    there = f"[contradicted, one seed]({link}/studies/depth-mlx.md#hc-fails-48)"
    assert kept.pop("hc-fails-48") == there
    assert kept.pop("text-compile") == f"[reproduced]({link}/RESULTS.md)"  # it has no such page
    assert set(kept.values()) == {"not measured"}
    # The scorecard has it already.
    assert "Compiling is not" not in text.partition("## What could not be judged")[2]
    assert f"[the reference scale](../{link}/studies/depth-mlx.md)" in own
    assert f"At the reference scale: [contradicted, one seed](../{link}/studies/" in own
    assert "reference scale" not in read(folder, "studies/depth-torch.md").partition("##")[0]
