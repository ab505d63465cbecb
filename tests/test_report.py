"""Reports: what templates may say, numbers as text, links to rows, and sentences that follow."""

import csv
import itertools
import math
import os
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from markdown_it import MarkdownIt

from fathom import tasks
from fathom.analysis.attribution import diverged_cells, variance_summary, variance_table
from fathom.analysis.claims import load_published
from fathom.analysis.claims.questions import Deciding, Headline
from fathom.analysis.tables import TableError
from fathom.config import check_config
from fathom.config.study import Contrast
from fathom.report.figures import figures_of
from fathom.report.formatting import plus_minus, ratio
from fathom.report.records import records
from fathom.report.render import environment_of, write_reports
from fathom.report.reports import reports_of
from fathom.runs.bundle import record_refusals
from fathom.settings import ConfigError
from report_helpers import (
    DEPTHS,
    IMAGES,
    TEXT,
    by_recipe,
    rows_of,
    small_config,
    study_config,
    vary,
    write_all,
    write_world,
)
from run_helpers import GPU_PLATFORM, config_with
from tables_helpers import frame, run

NAN, INF = math.nan, math.inf


# --- a whole report --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world(shipped, tmp_path_factory):
    """The reports of runs in which the recipe decides: their folder."""
    return write_world(study_config(tmp_path_factory.mktemp("world")), *shipped, by_recipe)


@pytest.fixture(scope="module")
def quick(shipped):
    """As `shipped`, without published values and claims, which take longer than all the rest."""
    published, templates = shipped
    return published.model_copy(update={"values": [], "claims": []}), templates


@pytest.fixture(scope="module")
def say(shipped):
    """A function that gives what a macro of a template says, on one line."""
    environment = environment_of(shipped[1])
    environment.globals |= {
        "ratio": ratio,
        "pm": plus_minus,
        "absent": "–",
        "metrics": {},
        "docs": "",
    }

    def told(template, macro, *given):
        words = getattr(environment.get_template(template).module, macro)(*given)
        return " ".join(words.split())

    return told


def section(text, heading):
    """What stands below a heading, up to the next of the same or a higher level."""
    level = heading.partition(" ")[0]
    _, found, below = f"\n{text}".partition(f"\n{heading}\n")
    assert found, heading
    return re.split(rf"^#{{1,{len(level)}}} ", below, maxsplit=1, flags=re.MULTILINE)[0]


def read(folder, name="RESULTS.md"):
    return (folder / name).read_text(encoding="utf-8")


def page(folder, study):
    """The page of a study."""
    return read(folder, f"studies/{study}.md")


def by_claim(rows, shipped):
    """Rows that begin with what a claim says, by its id."""
    ids = {claim.statement: claim.id for claim in shipped[0].claims}
    said = ((re.match(r"\[(.*)\]\(", row[0]), row) for row in rows)
    return {ids[found[1]]: row for found, row in said if found and found[1] in ids}


def is_sentence(text):
    """None may be blank, or begin or end as a torn one would."""
    return re.fullmatch(r"[A-Z0-9].*[.?]", text)


def answer(folder):
    """(question, answer, evidence) of every row of the answer; none where nothing is asked."""
    found = tables_in(section(read(folder), "## The answer"))
    return [tuple(row) for row in found[0][2:]] if found else []


def short(folder, study):
    """What a study's page says in short, if it says anything."""
    text = page(folder, study)
    if "\n## In short\n" not in text:
        return []
    found = re.findall(r"^- (.*)$", section(text, "## In short"), re.MULTILINE)
    assert all(map(is_sentence, found)), found
    return found


def tables_in(text):
    """Every Markdown table, as a list of rows of cells."""
    found = [[]]
    for line in text.splitlines():
        if line.startswith("|"):
            found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        elif found[-1]:
            found.append([])
    return [table for table in found if table]


HOSTILE = "A|B `c` *d* <e> $f$ _g_ [h](i) ~~j~~ 🙂 \\ k`l*m"
"""What does something in Markdown, in pairs and alone."""


def parsed(text):
    """(the types of all tokens, what they show) of Markdown."""
    pieces = []
    for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text):
        pieces += token.children or [token]
    shown = "".join(piece.content for piece in pieces if piece.type.startswith("text"))
    return [piece.type for piece in pieces if not piece.type.startswith("text")], shown


def test_words_of_a_config_are_shown_and_do_nothing(tmp_path, quick):
    def reports(folder, words, description):
        config = small_config(tmp_path / folder)
        contrast = Contrast(question=f"{words}?", pairs=[["mhc", "hc"]])
        studies = {
            name: study.model_copy(update={"description": description, "contrasts": [contrast]})
            for name, study in config.studies.items()
        }
        labels = dict.fromkeys(["mhc", "depth-mlx"], words)
        config = config.model_copy(update={"labels": labels, "studies": studies})
        published = quick[0].model_copy(update={"questions": []})  # those of the config instead
        made = write_world(config, published, quick[1], by_recipe)
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
def test_tables_are_whole_and_nothing_of_python_shows_through(world, name):
    text = read(world, name)
    tables = tables_in(text)
    assert len(tables) > 2
    for head, ruler, *rows in tables:
        assert all(set(cell) <= set("-:") for cell in ruler)
        assert rows
        assert {len(row) for row in (ruler, *rows)} == {len(head)}
    text = text.replace("hc-nan-48", "").replace("None if a norm", "")
    assert not re.findall(r"\b(?:nan|None|True|False|Undefined|dtype)\b|\{\{|\}\}|\{%", text)


def test_a_page_begins_with_its_variants(world):
    head, _, *rows = tables_in(page(world, "depth-mlx"))[0]
    assert re.fullmatch(r"\[scheme\]\(\.\./.*/docs/schemes.md\)", head[2])
    assert [*head[:2], head[3]] == ["variant", "", "differs from the scheme in"]
    schemes = {"baseline": "plain", "hc": "hc_demo", "mhc": "mhc_demo"}
    expected = [[name, f"`{name}`", f"`{scheme}`", "–", "–"] for name, scheme in schemes.items()]
    assert [row[:5] for row in rows] == expected
    plain, hc, mhc = (int(row[5]) for row in rows)
    assert 0 < plain < hc == mhc


def test_every_cell_links_to_its_row(world):
    checked = 0
    for study in ("depth-mlx", "depth-torch"):
        for (first, _, *variants), _, *rows in tables_in(
            page(world, study).partition("\n## Score\n")[2]
        ):
            assert first == "layers"
            for depth, platform, *cells in rows:
                for variant, cell in zip(variants, cells, strict=True):
                    if cell == "–":
                        continue
                    table, line = re.search(r"\]\(\.\./(tables/\w+\.csv)#L(\d+)\)", cell).groups()
                    lines = read(world, table).splitlines()
                    head, row = csv.reader([lines[0], lines[int(line) - 1]])
                    found = dict(zip(head, row, strict=True))
                    expected = {"study": study, "depth": depth, "variant": variant}
                    assert expected.items() <= found.items()
                    assert found["platform"] == {"PyTorch": "torch", "MLX": "mlx"}[platform]
                    checked += 1
    # The score and two gradient norms of every variant, and what only some of them have.
    assert checked > 2 * 3 * len(DEPTHS) * 3 * 2


def test_every_test_of_a_claim_links_to_its_row(world):
    lines = (world / "tables" / "claims.csv").read_text(encoding="utf-8").splitlines()
    text = page(world, "depth-mlx") + page(world, "depth-torch")
    links, claims = 0, set()
    for block in text.split('<a id="')[1:]:
        claim = block.partition('"')[0]
        claims.add(claim)
        for verdict, line in re.findall(
            r"^- \[(.*)\]\(\.\./tables/claims\.csv#L(\d+)\)", block, re.M
        ):
            (row,) = csv.reader(lines[int(line) - 1 : int(line)])
            assert row[0] == claim
            assert verdict in row
            links += 1
    assert claims  # the others are of studies that this config does not have
    assert links == sum(next(csv.reader([line]))[0] in claims for line in lines)


def cell_of(text, heading, depth, place, variant):
    """The text of one cell of the first table below a heading of a study's page."""
    below = section(text, f"## {heading}")
    (_, _, *variants), _, *rows = tables_in(below)[0]
    found = {tuple(row[:2]): row[2:] for row in rows}
    cell = found[str(depth), place][variants.index(variant)]
    return re.fullmatch(r"\[(.*)\]\(.*\)", cell)[1]


def test_a_page_shows_what_runs_have_lost_and_do_not_have(world):
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
    assert "less than 5 % of the way from chance to 0" in " ".join(failures.split())
    assert "- 48 layers, hc on PyTorch: 3 diverged and 0 at chance, of 3\n" in failures
    assert "- 48 layers, hc on MLX: 0 diverged and 3 at chance, of 3\n" in failures
    gain = section(text, "## Gain")
    assert [head for (head, *_) in tables_in(gain)] == [["layers", "measured on", "hc", "mhc"]]
    assert re.search(r"`gain_first`, gain of the .*: zero in every run that has it\.", gain)
    assert "Zero in every run of baseline." in gain
    streams = section(text, "## Streams and activations")
    assert re.search(r"`overflow_layer`, .*: \[30\]\(.*#L16\) in every run that has it", streams)
    assert "stream_similarity_min" not in streams  # no run has it


def images_of(text):
    return re.findall(r"!\[.*?\]\((.*?)\)", text)


def test_every_figure_of_the_workflow_is_shown(world):
    names = [*tasks.presentation("tokens").figures, "effective_depth"]
    for study in ("depth-mlx", "depth-torch"):
        text = page(world, study)
        first, second = (
            [f"../figures/{study}/{backend}/{name}.png" for name in names]
            for backend in ("torch", "mlx")
        )
        assert images_of(text) == first
        assert [file for file in second if f"]({file})" in text] == second
    shown = [*images_of(read(world)), *images_of(read(world, "COMPARISON.md"))]
    assert sorted(shown) == sorted(f"figures/overview/{n}.png" for n in figures_of("overview"))


def test_claims_link_to_their_tests(world, shipped):
    rows = tables_in(section(read(world), "## Scorecard"))[0][2:]
    ids = {claim.statement: claim.id for claim in shipped[0].claims}
    links = [re.match(r"\[(.*)\]\((.*?)#(.*)\)", row[0]).groups() for row in rows]
    for statement, file, anchor in links:
        claim = ids[statement]
        if file == "RESULTS.md":
            assert anchor == "what-could-not-be-judged"
        else:
            assert anchor == claim
            assert f'<a id="{claim}"></a>' in read(world, file)
    assert {file for _, file, _ in links} == {
        "RESULTS.md", "studies/depth-mlx.md", "studies/depth-torch.md"
    }  # fmt: skip


def test_the_scorecard_has_every_claim_with_the_test_that_decides(world, shipped):
    card = section(read(world), "## Scorecard")
    claims = len(shipped[0].claims)
    assert f"Of {claims} claims of the sources, " in card
    counted = re.findall(
        r"(\d+) (?:is|are) ([a-z ]+)(?<! )(?: \((\d+) undecided\))?[,.]", card.split("\n")[1]
    )
    table = pd.read_csv(world / "tables" / "verdicts.csv")
    assert {v: int(n) for n, v, _ in counted} == table["verdict"].value_counts().to_dict()
    (undecided,) = [int(n) for _, _, n in counted if n]
    assert undecided == table["undecided"].sum()
    rows = by_claim(tables_in(card)[0][2:], shipped)
    # Of hc-fails-48 the source is an MLX program, and there hc ends at chance.
    reason, line = re.fullmatch(
        r"\[(.*)\]\(tables/claims.csv#L(\d+)\)", rows["hc-fails-48"][3]
    ).groups()
    assert reason == "3 of 3 runs do not learn"
    assert read(world, "tables/claims.csv").splitlines()[int(line) - 1].startswith("hc-fails-48,")
    assert rows["demo-converges-fast"][2:] == ["**not measured**: no run of “demo-50”", "", ""]
    scale = "vocab 64 for 256, length 8 for 128, width 16 for 256"
    assert re.search(rf"^.*\b{rows['hc-fails-48'][-1]}: {scale}", card, re.MULTILINE)
    tests = pd.read_csv(world / "tables" / "claims.csv")
    made, resting = (tests["verdict"] != "not measured").sum(), tests["confidence"].notna().sum()
    text = " ".join(card.split())
    assert f"{made} tests were made. {resting} of them rest on an interval, at 95 %" in text
    assert f"about {0.05 * resting:.2g} of these" in text


def test_a_page_says_how_its_claims_were_tested(world):
    blocks = {b.partition('"')[0]: b for b in page(world, "depth-mlx").split('<a id="')[1:]}
    block = blocks["hc-fails-48"]
    assert ", by `count`, count of runs: 3 of 3 runs do not learn" in block
    assert "at another scale" in block
    assert "Scale: vocab 64 for 256, length 8 for 128, width 16 for 256" in block
    assert ", by `level`, interval over seeds at 95 %: holds in 3 of" in blocks["gain-mhc-bounded"]


def test_why_a_claim_could_not_be_judged_is_said(world, shipped, tmp_path):
    below = section(read(world), "## What could not be judged")
    assert "No run of mhc at 24 layers." not in below.partition("- ")[0]
    assert "- Compiling is not what makes the bits per byte better. No setting" in below
    assert "; on a CPU nothing is compiled.\n" in below
    published, templates = shipped
    (claim,) = (claim for claim in published.claims if claim.id == "hc-fails-48")
    deep = claim.model_copy(update={"minimum_scale": {"width": 32}})
    one = published.model_copy(update={"claims": [deep], "values": []})
    folder = write_world(small_config(tmp_path), one, templates, by_recipe)
    (row,) = tables_in(section(read(folder), "## Scorecard"))[0][2:]
    assert row[2] == "**not measured**: too small to speak for the claim: width 16 for 256"


# --- published beside ours -------------------------------------------------------------------


def test_deviating_values_stand_out_at_the_published_scale_alone(world, shipped, tmp_path):
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
    assert after[0][-2:] == ["ms per step, PyTorch", "ms per step, MLX"]
    assert after[2][-2:] == ["10 ± 0"] * 2  # of 0.01 s
    assert parted[2] == ["12", "mhc", "2", "0.048", "0.048", "0.11", "yes"]
    (_, _, row) = tables_in(text)[0][:3]
    same = "the same, within the spread over seeds"
    assert row[1:] == ["PyTorch, MLX", "0", "1 of 1", "2", "1 of 1", same]
    # In `world` hc at 48 layers is NaN on torch, and at chance on mlx.
    rows = tables_in(read(world, "COMPARISON.md"))[0][2:]
    assert [row[-1] for row in rows] == ["differs: hc at 48 layers"] * 2


def test_contradictions_inside_the_sources_are_named(world, shipped):
    below = section(read(world, "COMPARISON.md"), "# Notes on the sources")
    assert len(shipped[0].notes) >= 2
    assert all(note.statement in below for note in shipped[0].notes)


# --- the answer ------------------------------------------------------------------------------


def by_backend(cell):
    return vary(cell, {"torch": 0.01, "mlx": 1.0}[cell.backend])


def by_seed(cell):
    return 10.0 ** (cell.seed - 2)


def by_both(cell):
    is_same = (cell.study == "depth-mlx") == (cell.backend == "mlx")
    return vary(cell, 1.0 if is_same else 0.01)


def by_each(cell):
    """log10 of the loss: ±1 by recipe and ±1 by backend, so half of the variance each."""
    recipe = 10.0 if cell.study == "depth-mlx" else 0.1
    return vary(cell, recipe * (0.1 if cell.backend == "mlx" else 0.001))


def recipe_but_for(*diverged):
    """As by_recipe, but a run at each of these depths diverges."""

    def loss(cell):
        if cell.depth in diverged and (cell.backend, cell.seed) == ("mlx", 0):
            return NAN
        return vary(cell, {"depth-mlx": 0.01, "depth-torch": 1.0}[cell.study])

    return loss


WHOLE = {"depths": DEPTHS, "variants": ["mhc"]}


@pytest.mark.parametrize(
    ("loss_of", "changes", "said"),
    [
        (by_recipe, {}, "The recipe decides, not the platform: .* 100 % .*; the backend <0.5 %"),
        (by_backend, {}, "The platform decides, not the recipe: it explains 100 % "),
        (by_seed, {}, "Neither recipe nor platform decides: seed explains 100 % of"),
        (by_both, {}, "Neither recipe nor platform decides: .* explains 100 % of"),
        (by_each, {}, "No single .*: the recipe explains 50 %, the backend 50 %, the seed <0.5 %"),
        (recipe_but_for(), WHOLE, "The recipe decides, .* in the median of 3 cells, and"),
        (recipe_but_for(12), WHOLE, r"of 2 of 3 cells \(the other has runs that diverged\), and"),
        (recipe_but_for(12, 24), WHOLE, r"of 1 of 3 cells \(the others have runs that"),
    ],
)  # fmt: skip
def test_what_decides_is_told_from_the_shares(say, tmp_path, loss_of, changes, said):
    config = small_config(tmp_path, **changes)
    cells, steps = map(frame, rows_of(config, loss_of))
    variance = variance_table(config, steps)
    attribution = {
        "variance": records(variance),
        "summary": records(variance_summary(variance)),
        "diverged": diverged_cells(config, cells, variance),
    }
    assert re.search(said, say("words.j2", "decides", attribution))


def test_what_decides_stands_in_the_answer_and_beside_its_shares(world):
    (decides,) = [row for row in answer(world) if row[0].startswith("Framework or recipe")]
    assert decides[1] == "**the recipe**"
    assert "The recipe decides, not the platform" in read(world, "COMPARISON.md")


def test_the_demos_are_told_with_their_numbers(world):
    found = [*short(world, "depth-mlx"), *short(world, "depth-torch")]
    (overflow,) = [s for s in short(world, "depth-mlx") if "hc does not learn" in s]
    assert overflow.startswith("At 48 layers, hc does not learn in 6 of 6 runs: ")
    assert "layer norm of block 30" in overflow
    assert "10^20.2" in overflow
    assert "PyTorch: 3 not finite and 0 at chance; MLX: 0 not finite and 3 at chance." in overflow
    (depth,) = [s for s in found if s.startswith("With recipe `torch-defaults`, mhc")]
    assert "mhc ends at a loss over all sequences of 1 at 12, 1 at 24, 1 at 48 layers" in depth
    assert "do not learn" not in depth
    (streams,) = [s for s in short(world, "depth-mlx") if s.startswith("The streams")]
    assert "The streams of mhc differ by at most 0.00015 of" in streams
    assert "H_res is at most 6.9e−06 in any run, beside 1.5 for all" in streams
    assert "9 of 54 runs diverged" not in found
    assert "3 of 54 runs diverged, and 3 stayed at chance." in found


def test_a_study_of_the_demos_says_nothing_of_what_it_does_not_have(quick, tmp_path):
    """Neither of networks that it did not train, nor of numbers that are not there."""
    config = small_config(tmp_path, variants=["baseline", "mhc"], seeds=[0])

    def fails_on_torch(cell):
        if cell.study == "depth-torch" or cell.variant == "baseline":
            return None
        return NAN if cell.backend == "torch" else 0.01

    folder = write_world(config, *quick, fails_on_torch)
    found = short(folder, "depth-mlx")
    assert not any("hc does not learn" in s.replace("mhc", "") for s in found)
    assert not any("depth-torch" in sentence for sentence in found)
    (depth,) = [s for s in found if s.startswith("With recipe `mlx-defaults`, mhc")]
    assert "of no value or 0.01 at 48 layers, where 1 of 2 runs at 48 layers do not learn" in depth
    assert "\nNot run here.\n" in page(folder, "depth-torch")


def test_without_any_run_a_report_says_so(quick, tmp_path):
    folder = write_world(small_config(tmp_path), *quick, lambda cell: None)
    text = read(folder)
    assert section(text, "## The answer").strip().startswith("Nothing was measured here.")
    assert "- [depth-mlx](studies/depth-mlx.md) It was not run here." in text
    assert "- [depth-mlx](studies/depth-mlx.md) On PyTorch: 6 cells missing" in text
    assert "\nNot run here.\n" in page(folder, "depth-mlx")


def test_cells_and_backends_that_were_not_run_say_so(quick, tmp_path):
    def loss(cell):
        is_there = cell.backend == "torch" or (cell.study, cell.variant) == ("depth-torch", "mhc")
        return 0.1 if is_there else None

    folder = write_world(small_config(tmp_path), *quick, loss)
    for name in ("COMPARISON.md", "studies/depth-mlx.md"):
        assert "MLX: not run here." in read(folder, name)
    (head, _, *rows), *_ = tables_in(section(page(folder, "depth-torch"), "## Score"))
    hc = {row[1]: row[head.index("hc")] for row in rows}
    assert hc["MLX"] == "not run here"
    assert hc["PyTorch"].startswith("[0.1 ± 0]")


def test_a_refused_bundle_is_not_called_a_study_that_was_not_run(quick, tmp_path):
    config = small_config(tmp_path)
    (tmp_path / "imported").mkdir()
    refused = {Path("bundles/a.tar.gz"): "not a whole gzipped tar (x)"}
    record_refusals(Path(config.results), refused)
    folder = write_world(config, *quick, lambda cell: None)
    pages = [read(folder), read(folder, "COMPARISON.md"), page(folder, "depth-mlx")]
    assert "not run here" not in " ".join(pages).lower()
    assert "**A bundle was refused, and its runs are not shown**: bundles/a.tar.gz: " in pages[0]
    assert "(studies/depth-mlx.md) It was not imported: a bundle was refused." in pages[0]
    assert "\nNot imported: a bundle was refused.\n" in pages[2]


def test_a_missing_reference_is_said(quick, tmp_path):
    config = small_config(tmp_path).model_copy(update={"reference": "gone"})
    text = read(write_world(config, *quick, lambda cell: None))
    assert "The config names a reference, `gone`, which has no verdicts" in text


# --- tasks and parts ---------------------------------------------------------------------------

LEVELS = {"unigram_bpc": 4.8, "bigram_bpc": 3.6, "trigram_bpc": 2.9}


def image_runs(study, variant, accuracies, outcome="learned", **values):
    return [
        run(study=study, depth=4, variant=variant, seed=seed, test_accuracy=value, score=value,
            score_metric="test_accuracy", score_chance=0.1, chance_loss=math.log(10),
            outcome=outcome, loss_final=0.9, **values)
        for seed, value in enumerate(accuracies)
    ]  # fmt: skip


def prose_runs(study, variant, bits, **values):
    return [
        run(study=study, depth=2, variant=variant, seed=seed, validation_bpc=value, score=value,
            score_metric="validation_bpc", score_chance=math.log2(84), chance_loss=math.log(84),
            **LEVELS, **values)
        for seed, value in enumerate(bits)
    ]  # fmt: skip


def test_two_studies_of_one_task_and_another_task_have_a_sentence_each(quick, tmp_path):
    """No task takes over the sentence of another; every score has its own direction and chance."""
    prose = {**TEXT, "variants": ["baseline", "mhc"]}
    config = config_with(
        tmp_path, ("pictures", "prose", "verse"), pictures=IMAGES, prose=prose, verse=prose
    )
    rows = [
        *image_runs("pictures", "resnet", (0.5, 0.5, 0.5)),
        *image_runs("pictures", "mhc_causal", (0.7, 0.75, 0.8)),
        *prose_runs("prose", "baseline", (2.0, 2.1, 2.2)),
        *prose_runs("prose", "mhc", (3.0, 3.1, 3.2)),
        *prose_runs("verse", "mhc", (3.5, 3.5, 3.5)),
    ]
    folder = write_all(config, *quick, rows, [])
    (pictures,) = (s for s in short(folder, "pictures") if s.startswith("After "))
    on_prose, on_verse = (short(folder, name)[0] for name in ("prose", "verse"))
    assert pictures == (
        "After 3 steps, the highest test accuracy of 2 variants is "
        "[0.75 ± 0.12](../tables/summary.csv#L3) at 4 layers (mhc_causal); chance is 0.1."
    )
    assert on_prose == (
        "After 3 steps, the lowest held-out loss (bits per character) of 2 "
        "variants is [2.10 ± 0.26](../tables/summary.csv#L4) at 2 layers (baseline); chance is "
        "6.392. The level to beat is 2.9 (a trigram model, which only counts): the best variant is "
        "better."
    )
    assert on_verse == (
        "After 3 steps, the lowest held-out loss (bits per character) of 1 variant is "
        "[3.5 ± 0](../tables/summary.csv#L6) at 2 layers (mhc); chance is 6.392. The level to beat "
        "is 2.9 (a trigram model, which only counts): no variant is better."
    )
    # A stranger's project is not introduced as ours.
    assert "mHC" not in read(folder).partition("## The sources")[0]


@pytest.mark.parametrize("part", [None, "demos"])  # with `<<: *depth` a study has the latter
def test_a_study_of_ones_own_is_answered_and_speaks_of_no_claim(shipped, tmp_path, part):
    labels = ["baseline", {"mine": {"connection": "krom_hc", "gate": "learned"}}]
    own = {"variants": labels, "depths": [12], "backends": ["torch"], "part": part}
    config = config_with(tmp_path, ("own",), own=own)
    published = load_published(shipped[1].parent / "published.yaml", config)
    rows = [
        run(study="own", depth=12, variant=v, seed=s, loss_final=loss * (1 + s / 100))
        for v, loss in (("baseline", 1.0), ("mine", 0.1))
        for s in range(3)
    ]
    folder = write_all(config, published, shipped[1], rows, [])
    (effect,) = answer(folder)
    assert effect[0] == "own: Does it end better than the plain residual network?"
    assert effect[1] == "**better**"
    assert effect[2].startswith(
        "[mine against baseline, 12 layers: loss over all sequences −22 % of its range]"
    )
    text = read(folder)
    assert "## Scorecard" not in text
    assert "## What could not be judged" not in text
    assert "Published beside ours" not in read(folder, "COMPARISON.md")


def test_a_study_without_matrices_or_tokens_has_no_word_of_them(quick, tmp_path):
    config = config_with(tmp_path, ("pictures",), pictures=IMAGES)
    rows = [
        *image_runs("pictures", "resnet", (0.1, 0.1, NAN), "diverged", grad_norm_stem_max=2e6),
        *image_runs("pictures", "mhc_causal", (0.7, 0.75, 0.8), grad_norm_stem_max=2.0),
        *image_runs("pictures", "mhc_causal", (0.6, 0.6, 0.6), backend="mlx"),
    ]
    folder = write_all(config, *quick, rows, [])
    text, compared = page(folder, "pictures"), read(folder, "COMPARISON.md")
    assert "W 16, dropout 0.1, S 1, B 8" in text
    assert cell_of(text, "Score", 4, "PyTorch", "mhc_causal") == "0.75 ± 0.12"
    assert cell_of(text, "Score", 4, "PyTorch", "resnet") == "0.1 (NaN: 1 of 3)"
    assert "The test accuracy, after 3 steps. The higher, the better. At chance it is 0.1." in text
    assert "- 4 layers, resnet on PyTorch: 3 diverged and 0 at chance, of 3\n" in text
    assert "3 of 9 runs diverged, and 0 stayed at chance." in short(folder, "pictures")
    words = ("token", "nats", " gain", "of mixing", "baseline", "NaN (", "± 0\n", "hc_causal` ")
    _, _, below = text.partition("## In short")
    assert not [word for word in words if word in below]
    head = tables_in(section(compared, "### PyTorch beside MLX: pictures"))[1][0]
    assert head[2:] == [
        f"{name}, {side}"
        for name in ("test accuracy", "ms per step")
        for side in ("PyTorch", "MLX")
    ]
    assert "gain: difference" not in compared


def test_a_best_rate_beside_which_no_other_was_tried_is_named(quick, tmp_path):
    own = {"depths": [12], "backends": ["torch"], "variants": [
        {f"{connection}_{k}": {"connection": connection, "optimizer": {"lr": rate}}}
        for connection in ("baseline", "mhc") for k, rate in enumerate((0.001, 0.002, 0.004))
    ], "contrasts": [{"question": "Does it help?", "pairs": [["mhc_2", "baseline_0"]]}]
    }  # fmt: skip
    config = config_with(tmp_path, ("rates",), rates=own)
    best = {"baseline": (2.0, 1.0, 3.0), "mhc": (2.0, 1.5, 0.5)}
    rows = [
        run(study="rates", depth=12, variant=f"{v}_{k}", seed=s, loss_final=loss + s / 100)
        for v, by_rate in best.items()
        for k, loss in enumerate(by_rate)
        for s in range(3)
    ]
    text = page(write_all(config, *quick, rows, []), "rates")
    _, _, after = text.partition("a better one may lie beyond it:")
    assert re.findall(r"^- (.*)$", after, re.M)[0] == "mhc_2, at 12 layers on PyTorch"
    assert "| mhc_2 | baseline_1 |" in text
    assert "; they differ in 2 settings)" in text  # of the question: the connection, and the rate


def test_an_order_that_turns_is_told_with_what_it_was_half_way(quick, tmp_path):
    config = config_with(tmp_path, ("turns",), turns={"depths": [12], "backends": ["torch"]})
    ends = {"baseline": (1.0, 3.0), "mhc": (0.5, 6.0)}  # score, and score_midway
    rows = [
        run(study="turns", depth=12, variant=v, seed=s, loss_final=end * 1.01**s,
            score_midway=half * 1.01**s)
        for v, (end, half) in ends.items()
        for s in range(3)
    ]  # fmt: skip
    text = page(write_all(config, *quick, rows, []), "turns")
    assert "| depends on the steps: 2 half-way |" in text.replace(" ± 0", "")


def test_contrasts_are_told_question_by_question(quick, tmp_path):
    pairs = [["mhc", "baseline"], ["hc", "baseline"]]
    own = {"variants": ["baseline", "hc", "mhc"], "depths": [12], "backends": ["torch"],
           "contrasts": [{"question": "Does it help?", "pairs": pairs},
                         {"question": "Does that?", "pairs": [["hc", "mhc"]]}]}  # fmt: skip
    config = config_with(tmp_path, ("contrast",), contrast=own)
    losses = {"baseline": (1.0, 1.1, 1.2), "mhc": (0.1, 0.11, 0.12), "hc": (0.01, 2.0, 1.0)}
    alike = {"baseline": 0.5, "mhc": 0.9, "hc": 0.5}
    rows = [
        run(
            study="contrast",
            depth=12,
            variant=v,
            seed=s,
            loss_final=loss,
            stream_similarity_final=alike[v] + s / 1000,
        )
        for v, found in losses.items()
        for s, loss in enumerate(found)
    ]
    folder = write_all(config, *quick, rows, [])
    helps, that = answer(folder)
    assert helps[:2] == ("contrast: Does it help?", "**mixed**")
    assert that[:2] == ("contrast: Does that?", "**untold**")
    assert not re.findall(r".*\bof the of\b.*", page(folder, "contrast"))
    assert "\nRatio of the loss" in page(folder, "contrast")
    # Of another number than the score what is established alone.
    below = page(folder, "contrast").partition("\nDifference of `stream_similarity_final`, of the ")
    assert [row[1:3] for row in tables_in(below[2])[0][2:]] == [["hc", "mhc"]]
    (first, second) = (s for s in short(folder, "contrast") if s.startswith("Does"))
    assert "hc cannot be told from baseline (ratio [" in first
    assert second.startswith("Does that? On PyTorch, hc cannot be told from mhc (ratio [")


# --- effective depth ------------------------------------------------------------------------------


def over_depth(folder, quick, plain, **ours):
    """The page of a study of plain networks and others with these scores, by depth."""
    depths = sorted({*plain, *(depth for scores in ours.values() for depth in scores)})
    config = config_with(
        folder, ("sweep",), sweep={"variants": ["baseline", *ours], "depths": depths,
                                   "backends": ["torch"]}
    )  # fmt: skip
    rows = [
        run(study="sweep", variant=variant, depth=depth, seed=seed, loss_final=mean * factor,
            outcome="diverged" if math.isnan(mean) else "learned")
        for variant, scores in {"baseline": plain, **ours}.items()
        for depth, mean in scores.items()
        for seed, factor in enumerate((0.99, 1.0, 1.01))
    ]  # fmt: skip
    return write_all(config, *quick, rows, [])


def test_effective_depth_is_told_of_the_deepest_networks(quick, tmp_path):
    plain = {1: 4.0, 4: 2.0, 16: 1.0, 64: NAN}
    folder = over_depth(tmp_path, quick, plain, mhc={16: 2.0}, hc={4: 3.0, 16: 5.0})
    told = [s for s in short(folder, "sweep") if "a plain network of" in s]
    assert told == [
        "With 16 layers, mhc ends where a plain network of "
        "[4 (4 to 4)](../tables/effective_depth.csv#L3) layers ends. With 16 layers, hc ends worse "
        "than a plain network of 1 layer (effective depth "
        "[below 1](../tables/effective_depth.csv#L4))."
    ]
    text = section(page(folder, "sweep"), "## Effective depth")
    assert "On PyTorch, baseline was run with 1, 4, 16 and 64 layers and ends best with 16." in text
    assert "It diverged with 64 layers, which counts as worse than any score." in text
    assert "how shallow a plain network suffices" in text
    (_, _, *rows) = tables_in(text)[0]
    assert [row[0] for row in rows] == ["4", "16"]
    assert rows[0][3].startswith("–") or rows[0][2].startswith("–")


def test_where_more_layers_do_not_help_it_is_said(quick, tmp_path):
    plain = {1: 1.0, 2: 2.0, 4: 4.0}
    folder = over_depth(tmp_path, quick, plain, mhc={4: 1.0})
    (told,) = [s for s in short(folder, "sweep") if "a plain network of" in s]
    assert told.endswith(" The plain network itself is best with 1 layer, the fewest tried.")


def test_how_many_layers_matter_is_told_of_the_deepest_networks(quick, tmp_path):
    config = config_with(tmp_path, ("sweep",), sweep={"depths": [4, 8, 16], "backends": ["torch"]})
    counts = {("baseline", 4): 4, ("baseline", 8): 1, ("mhc", 8): 6, ("hc", 8): 3}
    counts |= {("baseline", 16): 16}  # the plain network alone
    rows = [
        run(study="sweep", variant=variant, depth=depth, seed=seed, loss_final=1.0 + 0.1 * seed,
            layers_that_matter=count)
        for (variant, depth), count in counts.items()
        for seed in range(3)
    ]  # fmt: skip
    folder = write_all(config, *quick, rows, [])
    (told,) = [s for s in short(folder, "sweep") if s.startswith("Of ")]
    assert re.sub(r"\(\.\..*?\)", "", told) == (
        "Of 8 layers, [6] matter in mhc, the most, and [1] matters in baseline, the fewest."
    )
    assert "\n## Layers that matter\n" in page(folder, "sweep")


def test_the_best_variant_is_told_where_several_were_run(quick, tmp_path):
    plain = {1: 1.0, 2: 2.0, 4: 4.0}
    folder = over_depth(tmp_path, quick, plain, mhc={4: 2.0})
    (told,) = [s for s in short(folder, "sweep") if "the lowest" in s]
    assert "of 2 variants is [2.0" in told
    assert "at 4 layers (mhc); chance" in told


def test_a_study_without_a_plain_curve_says_nothing_of_effective_depth(quick, tmp_path):
    folder = over_depth(tmp_path, quick, {1: 4.0, 4: 2.0}, mhc={4: 2.0})
    assert "ffective depth" not in page(folder, "sweep")
    assert "plain network of" not in page(folder, "sweep")


ARMS = {name: {"connection": "mhc_gated_dynamic"} for name in ("v1", "v4c", "v5")}


def arm(variant, *bits, study="text-arms", similarity=0.1, gate=0.5, **values):
    """Runs of an arm, with what a source has thresholds for."""
    return prose_runs(
        study, variant, bits, stream_embedding_similarity_final=similarity,
        stream_similarity_final=0.7, gate_first_final=gate, gate_mean_final=0.25,
        base_row_error_final=0.125, base_column_error_final=1e-7, base_diagonal_final=0.5,
        seconds=2.0, **values,
    )  # fmt: skip


@pytest.fixture
def arms(shipped, tmp_path):
    """A function that gives the reports' folder of runs of the two studies of arms."""

    def write(*rows):
        study = {**TEXT, "part": "arms", "variants": [{n: s} for n, s in ARMS.items()]}
        names = ("text-arms", "text-arms-adamw")
        adamw = {**study, "recipe": "unit-variance"}
        config = config_with(tmp_path, names, **{names[0]: study, names[1]: adamw})
        rows = [{**row, "validation_bpb": row["validation_bpc"]} for group in rows for row in group]
        return write_all(config, *shipped, rows, [])

    return write


def test_an_arm_stands_beside_its_source(arms):
    one = arm("v1", 3.0, 3.0, 3.0)
    for row, similarity in zip(one, (0.1, 0.15, 0.9), strict=True):
        row["stream_embedding_similarity_final"] = similarity
        row["gate_first_final"] += similarity / 10
    folder = arms(one, arm("v4c", 3.0, 3.0, 3.0, similarity=0.5, gate=1.0))
    limits, (head, _, *rows) = tables_in(section(page(folder, "text-arms"), "## Arms"))
    assert limits[2] == ["`stream_embedding_similarity_final`", "below 0.2", "above 0.4"]
    found = {row[0]: dict(zip(head, row, strict=True)) for row in rows}
    assert list(found) == ["v1", "v4c"]
    one, four = found["v1"], found["v4c"]
    # Mean 0.383: neither. One run is bad, two are good.
    assert one["similarity of the stream embedding"].endswith(
        "), between (0 of 3 runs); published: 0.087, 0.37 to 0.52"
    )
    assert four["similarity of the stream embedding"] == (
        "[0.5 ± 0](../tables/summary.csv#L3), bad; published: 0.387"
    )
    assert four["gate of the first layer"].endswith("), bad; published: 0.452")
    assert one["gate of the first layer"].endswith("), good; published: 0.688")
    assert four["row error"].endswith("); published: 0.17")
    assert four["column error"].endswith("), good")
    assert one["bits per byte"].endswith("), bad; published: 1.15")
    assert one["similarity of streams"].endswith(")")


def test_what_belongs_to_the_optimiser_is_told(arms, shipped):
    """Static mHC learns under both optimisers, but has an event under the second."""
    (event, *_) = arm("v5", 3.0, study="text-arms-adamw", nonfinite_total=1)
    folder = arms(
        arm("v5", 3.0, 3.0, 3.0), arm("v5", 3.0, 3.0, 3.0, study="text-arms-adamw"),
        [{**event, "seed": 3}],
    )  # fmt: skip
    rows = tables_in(section(page(folder, "text-arms-adamw"), "## Connection or optimiser?"))[0][2:]
    found = by_claim(rows, shipped)
    told = found["text-static-stable"][1:]
    assert told == ["reproduced", "contradicted", "the source's alone"]
    assert found["text-gate-saturates"][1:] == ["not measured"] * 3
    (told,) = [s for s in short(folder, "text-arms-adamw") if "belongs to the connection" in s]
    assert told.startswith("Of 1 claim ")
    assert "1 holds with the source's alone." in told
    rows = by_claim(itertools.chain(*tables_in(read(folder))), shipped)
    assert rows["text-static-stable"][2] == "**reproduced**, at another scale"
    assert "(control): " in page(folder, "text-arms")


# --- platforms ----------------------------------------------------------------------------------


def test_an_imported_platform_has_rows_of_its_own_and_texts_of_run_folders_do_nothing(
    quick, tmp_path
):
    """They may be anyone's: a mark, an element, a cell of a table, a link, a mention."""
    config = study_config(tmp_path, depths=[12], variants=["mhc"], backends=["torch"])
    nasty = "<b>x</b> | [a](http://b) `c` *d* @e $f$ www.g"
    rows = [
        run(study="depth-mlx", depth=12, seed=seed, machine=machine, loss_final=loss)
        for machine, loss in (("", 0.5), (GPU_PLATFORM, 0.75))
        for seed in range(3)
    ]
    rows.append(run(study="depth-mlx", depth=12, seed=3, status="stale", reason=nasty))
    folder = write_all(config, *quick, rows, [], device=nasty)
    own, label = page(folder, "depth-mlx"), f"PyTorch, {GPU_PLATFORM}"
    assert cell_of(own, "Score", 12, "PyTorch", "mhc").startswith("0.5 ")
    assert cell_of(own, "Score", 12, label, "mhc").startswith("0.75 ")
    assert f"figures/depth-mlx/torch-{GPU_PLATFORM}/loss_comparison.png" in own
    assert f"### PyTorch beside {label}: depth-mlx" in read(folder, "COMPARISON.md")
    text = read(folder)
    # The head, the table of two platforms, what is not counted.
    assert text.count(r"\<b\>x\</b\> \| \[a\](http\://b) \`c\` \*d\* \@e \$f\$ www\.g") == 4
    assert nasty not in text


REPORTS = ("RESULTS.md", "COMPARISON.md", "studies/depth-mlx.md")


def links_that_lead_nowhere(folder, name):
    """Links of a report to files that are not there; figures are not drawn here."""
    links = set(re.findall(r"\]\(([^)#]+)", read(folder, name)))
    assert any(link.endswith("definitions.md") for link in links) or name == "COMPARISON.md"
    return [
        link
        for link in links
        if "figures/" not in link
        and not link.startswith("https://")
        and not (folder / name).parent.joinpath(link).is_file()
    ]


def test_the_report_of_a_cut_says_so_in_its_head(quick, tmp_path):
    whole = study_config(tmp_path / "results", variants=["mhc"], seeds=[0])
    cut = check_config(
        {**whole.model_dump(mode="json"), "depths": [12], "backends": ["mlx", "torch"]}
    )
    folder = write_world(cut, *quick, lambda cell: 0.5)
    assert folder == tmp_path / "results/cuts/depths-12+backends-mlx-torch"
    for name in REPORTS:
        head = "\n".join(read(folder, name).splitlines()[:4])
        assert "**This is a subset of the whole grid: only depths 12, backends mlx torch.**" in head
        assert links_that_lead_nowhere(folder, name) == []


# --- beside a kept result ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def beside(world, shipped, tmp_path_factory):
    """The reports of `world` beside a kept result that judges two claims otherwise."""
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
    found = {claim: row[2] for claim, row in by_claim(rows, shipped).items()}
    there = f"[contradicted, one seed]({link}/studies/depth-mlx.md#hc-fails-48)"
    assert found.pop("hc-fails-48") == there
    assert found.pop("text-compile") == f"[reproduced]({link}/RESULTS.md)"  # it has no such page
    assert set(found.values()) == {"not measured"}
    (line,) = (
        line
        for line in section(text, "## What could not be judged").splitlines()
        if line.startswith("- Compiling is not")
    )
    assert line.endswith(f". At the reference scale: [reproduced]({link}/RESULTS.md).")
    assert f"[the reference scale](../{link}/studies/depth-mlx.md)" in own
    assert f"At the reference scale: [contradicted, one seed](../{link}/studies/" in own
    assert "reference scale" not in read(folder, "studies/depth-torch.md").partition("##")[0]


def test_what_a_kept_result_answers_stands_before_our_answer(world, shipped, tmp_path):
    """A report at a small scale begins with the title and the advice of the larger one."""
    kept = tmp_path / "kept"
    (kept / "tables").mkdir(parents=True)
    for table in ("verdicts", "claims"):
        shutil.copy(world / "tables" / f"{table}.csv", kept / "tables")
    config = study_config(world).model_copy(update={"reference": str(kept)})
    shutil.copytree(world / "tables", tmp_path / "own/tables")
    question, outcome, _ = answer(world)[0]
    words = {outcome.strip("*"): "No, here.", "there": "Yes, there."}
    deciding = Deciding(decided_by=question, words=words)
    there = dict.fromkeys(("part", "answer", "evidence", "link"), "")
    there |= {"question": [question], "outcome": "there"}
    pd.DataFrame(there).to_csv(kept / "tables/answers.csv", index=False)
    published, *others = shipped
    above = Headline(title=deciding, asks="Should I?", answer=[deciding], tested="All.")
    published = published.model_copy(update={"headline": above})
    write_reports(config, published, *others, tmp_path / "own")
    text = read(tmp_path / "own")
    assert text.startswith("# Yes, there.\n\n**Should I? Yes, there.**\n")
    assert "At the scale of\nthis page: No, here.\n" in text
    there["outcome"] = outcome.strip("*")
    pd.DataFrame(there).to_csv(kept / "tables/answers.csv", index=False)
    write_reports(config, published, *others, tmp_path / "own")
    assert read(tmp_path / "own").count("No, here.") == 2  # title and advice


@pytest.mark.parametrize("table", ["verdicts", "claims"])
def test_a_kept_table_without_its_columns_is_refused_by_name(beside, shipped, tmp_path, table):
    folder, link = beside
    shutil.copytree((folder / link).resolve(), tmp_path / "kept")
    file = tmp_path / "kept/tables" / f"{table}.csv"
    file.write_text(file.read_text(encoding="utf-8").replace("verdict", "opinion", 1))
    config = study_config(tmp_path).model_copy(update={"reference": str(tmp_path / "kept")})
    shutil.copytree(folder / "tables", tmp_path / "tables")
    with pytest.raises(
        TableError, match=rf"{table}\.csv: has no column 'verdict'; it .* put that file back"
    ):
        write_reports(config, *shipped, tmp_path)


@pytest.mark.parametrize("name", ["nowhere", "README.md", "docs"])
def test_a_folder_without_templates_is_refused(name, pytestconfig, default_config):
    folder = pytestconfig.rootpath / name
    with pytest.raises(ConfigError, match=f"{name}: has no template of a report"):
        reports_of(default_config, folder)


def test_without_a_kept_result_or_a_cut_nothing_is_said_of_one(world):
    for name in REPORTS:
        assert "eference scale" not in read(world, name)
        assert "subset of" not in read(world, name)
