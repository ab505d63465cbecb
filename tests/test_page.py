"""The page: what Markdown becomes, what curves hold, and that nothing is loaded from elsewhere."""

import base64
import csv
import gzip
import json
import math
import posixpath
import re
import shutil
import struct
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fathom import tasks
from fathom.analysis.claims import load_published
from fathom.cli import main
from fathom.report.figures.style import COLOURS, colour_of
from fathom.report.page import write_page
from fathom.report.page.cards import cards_of
from fathom.report.page.evidence import evidence_of
from fathom.report.page.explorer import EARLY, EVENLY, encoded, looks_of, packed_study
from fathom.report.render import write_reports
from fathom.report.reports import DOCUMENTS
from fathom.report.verify import verify
from fathom.settings import ConfigError
from fathom.system.files import write_json
from page_helpers import TEMPLATES, Page, make_page, trained, write_results
from report_helpers import analyze_runs
from run_helpers import config_with
from tables_helpers import CHANCE, frame

pytest.importorskip("plotly", reason="plotly is not installed")
pytest.importorskip("markdown_it", reason="markdown-it-py is not installed")

NAN, INF = math.nan, math.inf
THREE = [4.0, 2.0, 1.0]


@pytest.fixture
def results(tmp_path):
    return tmp_path / "results"


@pytest.fixture
def page(results):
    """A function that makes the page of reports, with one run; gives (page, its text)."""

    def make(reports, runs=None, **more):
        runs = [trained(THREE)] if runs is None else runs
        text = make_page(write_results(results, runs, reports, **more))
        return Page(text), text

    return make


def unpacked(text):
    return gzip.decompress(base64.b64decode(text))


def evidence_in(text):
    """The rows of tables that the page has."""
    (evidence,) = re.findall(r'<script type="application/gzip">(.*?)</script>', text)
    return json.loads(unpacked(evidence))


def studies_in(text):
    """What the explorer has, by study: see `read_study`."""
    packed = re.findall(r'<script type="application/gzip" data-study="(.*?)">(.*?)</script>', text)
    return {study: read_study(data) for study, data in packed}


def numbers_in(columns):
    """The numbers, unpacked without NumPy."""
    count = len(columns) // 4
    raw = bytes(columns[place * count + i] for i in range(count) for place in range(4))
    return list(struct.unpack(f"<{count}f", raw))


def read_study(data):
    """What is said of a study; its runs, each with its values by metric, of steps and of itself."""
    line, _, columns = unpacked(data).partition(b"\n")
    study, numbers = json.loads(line), iter(numbers_in(columns))
    for run_ in study["runs"]:
        run_ |= {"steps": study["grids"][run_["grid"]], "values": {}, "ends": {}}
    for metric in study["metrics"]["step"]:
        for i in metric["runs"]:
            found = [next(numbers) for _ in study["runs"][i]["steps"]]
            study["runs"][i]["values"][metric["name"]] = found
    for metric in study["metrics"]["depth"]:
        for run_ in study["runs"]:
            run_["ends"][metric["name"]] = next(numbers)
    assert not list(numbers)
    return study


def main_part(text):
    """The page without its styles and scripts."""
    return re.sub(r"<(script|style).*?</\1>", "", text, flags=re.DOTALL)


# --- Markdown -----------------------------------------------------------------------------------


def test_reports_are_sections_in_order_and_links_between_them_stay_inside(page):
    found, _ = page(
        {
            "ZULU.md": "# Zulu\n",
            "COMPARISON.md": '# Comparison\n\n<a id="here"></a>\nSee [above](#here).\n',
            "RESULTS.md": (
                "# Results\n\n## One part\n\n[a](studies/b.md) [b](COMPARISON.md#here)"
                " [c](#one-part) [d](tables/summary.csv#L2) [e](../docs/definitions.md)"
                " [f](https://example.org/x#y)\n"
            ),
            "studies/a.md": "# a\n\n[up](../RESULTS.md) [row](../tables/cells.csv#L7)\n",
            "studies/b.md": "# b\n",
            "studies/left_over.md": "# of a study that is gone\n",
        },
        studies=("b", "a"),
    )
    sections = [attrs["id"] for tag, attrs in found.elements if tag == "section"]
    assert sections == ["results", "explorer", "studies-b", "studies-a", "comparison", "zulu"]
    inside = [href for href in found.all("a", "href") if "?" not in href][-9:]
    assert inside == [
        "#studies-b", "#comparison--here", "#results--one-part", "tables/summary.csv#L2",
        "../docs/definitions.md", "https://example.org/x#y",
        "#results", "tables/cells.csv#L7",
        "#comparison--here",
    ]  # fmt: skip
    assert {"comparison--here", "results--one-part"} <= set(found.ids)


def test_only_the_first_report_has_a_heading_of_the_first_level(page):
    again = "## Same\n\n## Same\n\n###### Deep\n"
    _, text = page({"RESULTS.md": f"# Results\n\n{again}", "COMPARISON.md": "# C\n\n## Same\n"})
    assert re.findall(r'<(h\d) id="([^"]+)">', main_part(text)) == [
        ("h1", "results--results"), ("h2", "results--same"), ("h2", "results--same-1"),
        ("h6", "results--deep"), ("h2", "comparison--c"), ("h3", "comparison--same"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("labels", "described", "title"),
    [
        ({"a": "How deep <can> it be?"}, "Words.", "How deep &lt;can&gt; it be?"),
        ({}, "What it asks.", "What it asks"),
        ({}, "", "a"),
    ],
)
def test_a_study_is_headed_by_what_it_asks_and_named_once(results, labels, described, title):
    reports = {"RESULTS.md": "# R\n\n[to it](studies/a.md#a)\n", "studies/a.md": "# a\n"}
    config = write_results(results, [trained(THREE)], reports, a={"description": described})
    text = make_page(config.model_copy(update={"labels": labels}))
    (heading,) = re.findall(r'<h2 id="studies-a--a">(.*)</h2>', text)
    named = "" if title == "a" else " <small><code>a</code></small>"
    assert heading == title + named
    assert f'<a href="#studies-a">{title}</a>' in text
    assert f'<option value="a">{title}</option>' in text


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        '<a id="x" onclick="alert(1)"></a>',
        '<a id="x"><b></b></a>',
        '<a id="a&quot;b"></a>',
        "| a |\n|---|\n| <script>alert(1)</script> |",
        "<!-- -->\n<div onclick='alert(1)'>",
    ],
)
def test_other_html_is_shown_as_text(page, text):
    found, made = page({"RESULTS.md": f"# Results\n\n{text}\n"})
    section = made.partition("<section")[2].partition("</section>")[0]
    tags = set(re.findall(r"<(\w+)", section)) - {"h1", "p", "div", "table"}
    assert tags <= {"thead", "tbody", "tr", "th", "td"}
    assert "alert(1)" in found.text or "alert" not in text


def test_cells_of_numbers_are_told_from_words(page):
    found, text = page({"RESULTS.md": "# R\n\n| a | b |\n|---|---:|\n| x | 1 |\n| y | 2 |\n"})
    assert re.findall(r'<t[hd] class="n">(.)<', text) == ["b", "1", "2"]
    assert not {style for tag in ("th", "td") for style in found.all(tag, "style")}


@pytest.mark.parametrize("href", ["javascript:alert(1)", "data:text/html,x", "vbscript:x"])
def test_a_link_that_would_run_something_is_none(page, href):
    found, _ = page({"RESULTS.md": f"# Results\n\n[x]({href})\n"})
    assert all(link.startswith("#") for link in found.all("a", "href"))


# --- documents ----------------------------------------------------------------------------------

DEFINITIONS = """# Definitions

<!-- step metrics -->
| field | meaning |
|---|---|
| `loss` | its meaning |
<!-- end -->

## Effects

[Itself](#effects), [the others](schemes.md#formulas), [another file](library.md).
"""


@pytest.fixture
def with_docs(tmp_path, results):
    """A function that makes the page of reports in a project with these documents."""

    def make(reports, documents):
        shutil.copytree(TEMPLATES, tmp_path / "report/page")
        (tmp_path / "docs").mkdir()
        for name, text in documents.items():
            (tmp_path / "docs" / name).write_text(text, encoding="utf-8")
        config = write_results(results, [trained(THREE)], reports, ("a", "schemes"))
        write_page(config, tmp_path / "report/page", results, results / "figures")
        return Page((results / "index.html").read_text(encoding="utf-8"))

    return make


LINKED = {
    "RESULTS.md": "# Results\n\n[effects](../docs/definitions.md#effects)\n",
    "studies/schemes.md": "# schemes\n\n[all](../../docs/schemes.md)\n",
}


def links_of(page):
    """Of the sections, without those that the page has of its own."""
    links = page.all("a", "href")
    own = {"#explorer", "#explorer?study=a", "#explorer?study=schemes"}
    return [href for href in links[links.index("#docs-schemes--formulas") + 1 :] if href not in own]


def test_documents_that_reports_lead_to_are_sections_of_the_page(with_docs):
    documents = {"definitions.md": DEFINITIONS, "schemes.md": "# Schemes\n\n## Formulas\n"}
    found = with_docs(LINKED, documents | {"library.md": "# Library\n"})
    sections = {attrs["id"]: attrs for tag, attrs in found.elements if tag == "section"}
    of_studies = [name for name, attrs in sections.items() if "data-study" in attrs]
    assert list(sections)[-3:] == ["studies-schemes", "docs-definitions", "docs-schemes"]
    assert of_studies == ["studies-schemes"]
    assert links_of(found) == [
        "#docs-definitions--effects", "#docs-schemes", "#docs-definitions--effects",
        "#docs-schemes--formulas", "../docs/library.md",
    ]  # fmt: skip
    assert {"docs-definitions--effects", "docs-schemes--formulas"} <= set(found.ids)
    assert "<!--" not in found.text
    assert "its meaning" in found.text


def test_a_link_to_a_document_that_is_not_there_stays(with_docs):
    hrefs = with_docs(LINKED, {"schemes.md": "# Schemes\n"}).all("a", "href")
    assert "../docs/definitions.md#effects" in hrefs
    assert "../../docs/schemes.md" not in hrefs


def test_a_page_that_leads_to_no_document_has_none(with_docs):
    found = with_docs({"RESULTS.md": "# Results\n"}, {"definitions.md": DEFINITIONS})
    assert not [name for name in found.ids if name.startswith("docs")]


def test_every_place_of_a_document_that_the_kept_reports_name_is_there(pytestconfig):
    from fathom.report.page.markdown import read_sections

    root = pytestconfig.rootpath
    reference = root / "results/reference"
    documents = [root / "docs" / name for name in DOCUMENTS]
    files = {posixpath.relpath(f, reference): f for f in [*reference.rglob("*.md"), *documents]}
    text = "".join(s.introduction + s.parts for s in read_sections(files, root / "none", {}))
    named = set(re.findall(r'href="#([^"]*)"', text))
    ids = set(re.findall(r' id="([^"]*)"', text)) | {"docs-schemes", "docs-definitions"}
    assert {"docs-definitions--effects", "docs-definitions--the-demos-connections"} <= named
    assert not {name for name in named if name.startswith("docs-")} - ids
    assert "docs/schemes.md" not in text


# --- evidence -----------------------------------------------------------------------------------


def rows_in(file):
    with file.open(encoding="utf-8", newline="") as opened:
        return list(csv.reader(opened))


def test_every_row_that_a_link_leads_to_is_there_once_as_in_the_csv(page, results):
    links = "[a](tables/summary.csv#L2) [b](tables/summary.csv#L3) [c](tables/summary.csv#L2)"
    runs = [trained(THREE), trained(THREE, "hc"), trained(THREE, "baseline")]
    reports = {"RESULTS.md": f"# R\n\n{links}\n", "studies/a.md": f"# a\n\n{links}\n"}
    for name in reports:
        reports[name] = reports[name].replace("(tables", "(../tables" if "/" in name else "(tables")
    found, text = page(reports, runs)
    (table,) = evidence_in(text).values()
    head, *rows = rows_in(results / "tables/summary.csv")
    assert len(rows) == 3
    assert table["columns"] == head
    assert table["rows"] == {"2": rows[0], "3": rows[1]}
    assert table["naming"] == ["study", "platform", "depth", "variant"]
    assert found.all("a", "href").count("tables/summary.csv#L2") == 4  # they stay what they are


def test_values_of_evidence_stay_text(results, tmp_path):
    (tmp_path / "x.csv").write_text('claim,b\n"a, </script><b>",0.10\n"é",\n', encoding="utf-8")
    data = evidence_of(['<a href="tables/x.csv#L2">', '<a href="tables/x.csv#L3">'], tmp_path)
    assert "<" not in data
    assert json.loads(unpacked(data))["x.csv"]["rows"] == {
        "2": ["a, </script><b>", "0.10"],
        "3": ["é", ""],
    }


@pytest.mark.parametrize(
    "href",
    ["tables/x.csv", "tables/x.csv#L1", "tables/x.csv#L3", "tables/x.csv#L02", "tables/gone.csv#L2",
     "tables/../x.csv#L2", "../tables/x.csv#L2", "tables/x.csv#top"],
)  # fmt: skip
def test_a_link_that_leads_to_no_row_has_none(tmp_path, href):
    (tmp_path / "x.csv").write_text("a\n1\n", encoding="utf-8")
    assert unpacked(evidence_of([f'<a href="{href}">'], tmp_path)) == b"{}"


# --- figures ------------------------------------------------------------------------------------

SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="792pt" height="316.8pt">'
    '<path d="M 0.04 316.76 \nL 12 -3.96" transform="scale(0.015625)"/>\n'
    '<text id="50.25%">é</text></svg>'
)
REPORT = "# Results\n\n![a <b>](figures/overview/x.png)\n\n*Its `caption` & more.*\n\nText.\n"


@pytest.fixture
def drawn(results):
    """The drawing of the figure x."""
    file = results / "figures/overview/x.svg"
    file.parent.mkdir(parents=True)
    file.write_text(SVG, encoding="utf-8")


@pytest.mark.usefixtures("drawn")
def test_a_figure_is_put_into_the_page_as_its_drawing(page):
    found, text = page({"RESULTS.md": REPORT})
    (data,) = found.all("img", "data-svg")
    shown = unpacked(data).decode()
    # Places to a tenth of a point, and all else as it is: scales have many digits that count.
    assert shown == SVG.replace("0.04", "0").replace("316.76", "316.8").replace("-3.96", "-4")
    assert (found.all("img", "width"), found.all("img", "height")) == (["792"], ["317"])
    assert "<figcaption>Its <code>caption</code> &amp; more.</figcaption>" in text
    assert found.all("img", "alt")[0] == "a <b>"


@pytest.mark.parametrize("source", ["figures/overview/x.png", "x.png", ".", "figures", "/etc/hosts",
                                    "../x.png", "https://example.org/x.png"])  # fmt: skip
def test_a_figure_that_is_not_there_is_named_and_nothing_is_loaded(page, results, source):
    (results.parent / "x.png").write_bytes(b"secret")
    found, _ = page({"RESULTS.md": f"# Results\n\n![loss]({source})\n"})
    assert (found.all("img", "src"), found.all("img", "data-svg")) == ([], [])
    assert "The figure loss is not drawn here." in found.text


# --- explorer -----------------------------------------------------------------------------------


@given(st.lists(st.floats() | st.floats(width=32), max_size=20))
def test_numbers_keep_five_digits_and_gaps_are_nan(numbers):
    back = numbers_in(encoded(np.array(numbers, dtype=float)))
    largest, smallest = 3.4e38, 1.2e-38  # of single precision
    assert len(back) == len(numbers)
    for number, found in zip(numbers, back, strict=True):
        if smallest < abs(number) < largest:
            assert found == pytest.approx(number, rel=2**-17)
        else:
            assert found == pytest.approx(number, abs=smallest) or math.isnan(found)
        assert math.isfinite(number) or math.isnan(found)


def study_of(runs, names=("baseline", "hc", "mhc"), labels=None, plain="baseline"):
    """What the explorer reads of these runs: (row of cells, rows of steps) each."""
    cells, steps = zip(*runs, strict=True)
    score = tasks.score_of("tokens", "held_out")
    packed = packed_study(names, plain, frame(*steps), frame(*cells), score, labels or {})
    return read_study(packed)


def test_a_run_has_its_place_and_its_values():
    study = study_of([trained(THREE), trained([4.0, NAN, INF], "hc", 16, 2, backend="mlx")])
    assert list(study["variants"]) == ["hc", "mhc"]
    assert study["variants"]["mhc"] == {"label": "mhc", "colour": COLOURS["mhc"], "dash": "none"}
    assert study["chance"]["step"] == {"loss": CHANCE}
    first, second = study["runs"]
    assert {k: first[k] for k in ("platform", "depth", "variant", "seed", "broken", "steps")} == {
        "platform": "torch", "depth": 8, "variant": "mhc", "seed": 0, "broken": None,
        "steps": [0, 1, 2],
    }  # fmt: skip
    assert (second["platform"], second["depth"], second["seed"]) == ("mlx", 16, 2)
    assert first["values"]["loss"] == THREE
    assert second["broken"] == {"step": 1, "what": "loss"}
    assert str(second["values"]["loss"]) == "[4.0, nan, nan]"


def test_what_others_are_compared_with_must_have_been_run():
    assert study_of([trained(THREE), trained(THREE, "baseline")])["plain"] == "baseline"
    assert study_of([trained(THREE)])["plain"] is None


def test_against_depth_stand_the_score_and_what_else_is_one_number_of_a_run():
    """Whatever the order of the rows of cells.csv."""
    (one, a), (two, b) = trained([4.0, 2.5]), trained([4.0, 1.5], depth=16)
    two |= {"grad_norm_max": 7.0}
    one |= {"grad_norm_max": 6.0}
    cells, steps = frame(two, one), frame(a, b)
    score = tasks.score_of("tokens", "held_out")
    study = read_study(packed_study(("mhc",), None, steps, cells, score, {}, "time step"))
    assert study["depth_unit"] == "time step"
    assert [run_["depth"] for run_ in study["runs"]] == [8, 16]
    assert [run_["ends"]["score"] for run_ in study["runs"]] == [2.5, 1.5]
    assert [run_["ends"]["grad_norm_max"] for run_ in study["runs"]] == [6.0, 7.0]
    names = [metric["name"] for metric in study["metrics"]["depth"]]
    assert names[0] == "score"
    assert "loss_first" not in names  # never measured here


def test_a_measure_that_is_one_number_has_no_curve():
    """The gradient norm is 1 throughout; the clock, and what is measured once, have none either."""
    cell, rows = trained(THREE)
    rows = [{**row, "step_seconds": row["step"], "test_accuracy": row["step"]} for row in rows]
    metrics = study_of([(cell, rows)])["metrics"]["step"]
    assert [metric["name"] for metric in metrics] == ["loss"]


def test_a_run_that_was_never_finite_has_no_line_and_is_marked():
    (only,) = study_of([trained([NAN, NAN])])["runs"]
    assert "loss" not in only["values"]
    assert only["broken"] == {"step": 0, "what": "loss"}


@pytest.mark.parametrize("steps", [1, 2, 39, 40, 41, 60, 150, 2000])
def test_of_a_long_run_some_steps_are_drawn_with_the_first_and_the_last(steps):
    (only,) = study_of([trained([1.0 + i for i in range(steps)])])["runs"]
    drawn = only["steps"]
    assert (drawn[0], drawn[-1]) == (0, steps - 1)
    assert min(steps, EVENLY) <= len(drawn) <= EVENLY + EARLY
    assert only["values"]["loss"] == [1.0 + step for step in drawn]


def test_extremes_of_a_run_are_drawn_and_its_beginning_is_drawn_closely():
    losses = [2.0] * 1000
    losses[777], losses[888], losses[600] = 50.0, 0.25, NAN
    (only,) = study_of([trained(losses)])["runs"]
    values = dict(zip(only["steps"], only["values"]["loss"], strict=True))
    assert (values[777], values[888]) == (50.0, 0.25)
    assert {0, 1, 2, 3} <= set(only["steps"])


def test_runs_of_a_study_have_the_same_steps_so_that_they_compare():
    falling = [5.0 - 0.001 * i for i in range(1000)]
    whole, broken = study_of([trained(falling), trained(falling[:400], "hc")])["runs"]
    assert set(broken["steps"]) - {399} == {step for step in whole["steps"] if step < 399}


def test_evaluations_are_all_drawn():
    cell, rows = trained([1.0 + i for i in range(1000)])
    for row in rows:
        row["validation_loss"] = 0.5 * row["step"] if row["step"] in (7, 333, 334) else NAN
    study = study_of([(cell, rows)])
    (only,) = study["runs"]
    kept = dict(zip(only["steps"], only["values"]["validation_loss"], strict=True))
    assert {s: v for s, v in kept.items() if not math.isnan(v)} == {7: 3.5, 333: 166.5, 334: 167.0}
    assert [m["sparse"] for m in study["metrics"]["step"]] == [False, True]


@given(st.lists(st.sampled_from([*COLOURS, *"abcdefghij"]), unique=True, max_size=40))
def test_no_two_variants_of_a_study_look_the_same(names):
    looks = looks_of(names, {})
    assert list(looks) == names
    assert len({(look.colour, look.dash) for look in looks.values()}) == len(names)
    for name, look in looks.items():
        assert look.colour == colour_of(name)  # as figures have it
    solid = [look.colour for look in looks.values() if look.dash == "none"]
    assert sorted(solid) == sorted({look.colour for look in looks.values()})


def test_a_variant_goes_by_its_label_and_by_its_name_too_where_others_have_that_label():
    labels = {"baseline": "plain", "resnet": "plain", "hc": "the demo's HC"}
    looks = looks_of(["baseline", "resnet", "hc", "mhc"], labels)
    called = ["plain (baseline)", "plain (resnet)", "the demo's HC", "mhc"]
    assert [look.label for look in looks.values()] == called
    assert looks_of(["baseline", "hc"], labels)["baseline"].label == "plain"


def test_the_explorer_stands_after_the_first_report_and_studies_lead_into_it(page):
    runs = [trained(THREE, study=study) for study in ("a", "b")]
    reports = {"RESULTS.md": "# R\n", "studies/a.md": "# a\n\nWords.\n\n## Losses\n\nMore.\n"}
    found, text = page(reports, runs, studies=("a", "never", "b"))
    assert list(studies_in(text)) == found.all("option", "value")[:2] == ["a", "b"]
    (plotly,) = re.findall(r'id="plotly">(.*?)</script>', text)
    assert b"* plotly.js v" in unpacked(plotly)
    order = ['id="results"', 'id="explorer"', "Words.", 'href="#explorer?study=a"', "More."]
    assert [text.index(word) for word in order] == sorted(text.index(word) for word in order)


# --- cards --------------------------------------------------------------------------------------


def test_a_card_says_what_a_variant_is_from_whom_and_what_it_costs(tmp_path):
    costs = tmp_path / "schemes.csv"
    costs.write_text("variant,backend,ratio,ratio_low,ratio_high\nmhc_paper,torch,1.75,1.5,2\n")
    own = {"own": {"connection": "mhc_paper", "H_res": {"iterations": 3}, "steps": 2}}
    config = config_with(variants=["baseline", own]).model_copy(update={"labels": {"own": "mine"}})
    card = cards_of(config, costs)["a"]["own"]
    assert (card["label"], card["scheme"]) == ("mine", "mhc_paper")
    assert card["differs from the scheme in"] == "H_res sinkhorn (iterations 3)"
    assert card["differs from the study in"] == "steps 2"
    assert card["cost, torch"] == "1.75 (1.50 to 2.00)"
    assert "Sinkhorn" in card["formula"] and "2512.24880" in card["source"]
    assert "iterations 3" in card["H_res"]
    assert all(card.values())
    assert "label" not in cards_of(config, tmp_path / "none")["a"]["baseline"]


# --- worlds of runs -----------------------------------------------------------------------------

RESULTS = "# Results\n\n## a\n\n![loss](figures/a/torch/loss.png)\n\n| a |\n|---:|\n| NaN |\n"
WORLDS = {
    "nothing was run": [],
    "one place, one seed": [trained(THREE)],
    "two places, seeds": [
        trained(THREE, backend=b, seed=s) for b in ("torch", "mlx") for s in (0, 1, 2)
    ],
    "a platform is missing": [trained(THREE), trained(THREE, "hc", 16, backend="mlx")],
    "a run diverged": [trained(THREE), trained([4.0, NAN, NAN], "hc")],
    "all diverged": [trained([NAN, NAN, NAN])],
    "a single step": [trained([4.0])],
}


@pytest.mark.parametrize("world", WORLDS)
def test_the_page_of_any_world_is_well_formed(page, world):
    found, text = page({"RESULTS.md": RESULTS, "COMPARISON.md": "# Comparison\n"}, WORLDS[world])
    assert len(found.ids) == len(set(found.ids))
    for href in found.all("a", "href"):
        assert not href.startswith("#") or href[1:].partition("?")[0] in found.ids
    assert "The figure loss is not drawn here." in found.text
    assert not re.findall(r"\b(nan|None|True|False|Undefined)\b", found.text)
    assert evidence_in(text) == {}
    told = {study: len(data["runs"]) for study, data in studies_in(text).items()}
    assert told == ({"a": len(WORLDS[world])} if WORLDS[world] else {})


# --- verify ---------------------------------------------------------------------------------------


def test_verify_makes_the_page_again_if_it_can(results, pytestconfig, default_config, monkeypatch):
    published = load_published(pytestconfig.rootpath / "report/published.yaml", default_config)
    few = published.model_copy(update={"values": [], "claims": published.claims[:1]})
    config, templates = config_with(results), results.parent / "templates"
    templates.mkdir()
    (templates / "RESULTS.md.j2").write_text("# Results\n\nWords.\n", encoding="utf-8")
    shutil.copytree(TEMPLATES, results.parent / "page")
    write_reports(config, few, templates, analyze_runs(config, few))
    file = results / "index.html"

    def problems():
        found = verify(config, few, templates).problems
        return [problem for problem in found if "index.html" in problem]

    assert problems() == [f"{file}: missing"]
    make_page(config)
    assert problems() == []
    file.write_text(file.read_text().replace("Words", "Other words"))
    assert problems() == [f"{file}: is not what its inputs give"]
    monkeypatch.delitem(sys.modules, "fathom.report.page.markdown", raising=False)
    monkeypatch.setitem(sys.modules, "markdown_it", None)
    assert problems() == [
        f"{file}: not checked, since markdown_it is not installed here; "
        "pip install -e '.[workflow]' brings it"
    ]
    file.unlink()
    assert problems() == []


# --- the file -----------------------------------------------------------------------------------


def test_the_same_results_make_the_same_bytes(results):
    config = write_results(results, [trained(THREE)], {"RESULTS.md": RESULTS})
    assert make_page(config) == make_page(config)


@pytest.mark.usefixtures("drawn")
def test_nothing_is_loaded_from_elsewhere(page):
    found, text = page({"RESULTS.md": REPORT})
    loaded = [*found.all("img", "src"), *found.all("script", "src"), *found.all("link", "href")]
    assert loaded
    assert all(source.startswith("data:") for source in loaded)
    assert not {tag for tag, _ in found.elements} & {"iframe", "object", "embed", "base", "video"}
    own = (TEMPLATES / "page.css").read_text() + (TEMPLATES / "page.js").read_text()
    assert not re.findall(r"https?:|@import|url\(|fetch\(|import\(", own + main_part(text))


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{{ sections.oops }}", "has no attribute 'oops'"),
        ("{% for %}", "line 1: Expected"),
        ("The loss is 4.", r"line 1: the number 4\. is typed"),
    ],
)
def test_a_template_that_cannot_be_filled_is_named(results, tmp_path, source, problem):
    config = write_results(results, [trained(THREE)], {"RESULTS.md": RESULTS})
    templates = tmp_path / "page"
    shutil.copytree(TEMPLATES, templates)
    (templates / "index.html.j2").write_text(source, encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"index\.html\.j2: .*{problem}"):
        write_page(config, templates, results, results / "figures")


def test_without_reports_one_line_says_what_makes_them(results):
    config = write_results(results, [trained(THREE)], {})
    with pytest.raises(ConfigError, match="has no report to make a page of; run: snakemake report"):
        make_page(config)


def test_the_command_writes_the_page(results):
    config = write_results(results, [trained(THREE)], {"RESULTS.md": RESULTS})
    write_json(results / "config.json", config.resolved())
    main(["page", "--config", str(results / "config.json"), "--templates", str(TEMPLATES)])
    assert (results / "index.html").read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize("package", ["plotly", "markdown_it"])
def test_without_a_package_one_line_says_what_brings_it(results, monkeypatch, capsys, package):
    config = write_results(results, [trained(THREE)], {"RESULTS.md": RESULTS})
    write_json(results / "config.json", config.resolved())
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "fathom.report.page.markdown", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit):
        main(["page", "--config", str(results / "config.json"), "--templates", str(TEMPLATES)])
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"fathom: this needs {package}, which is not installed here; "
        "pip install -e '.[workflow]' brings it"
    )
