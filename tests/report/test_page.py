"""The page: HTML from Markdown, its data, and that it loads nothing from elsewhere."""

import base64
import dataclasses
import gzip
import json
import math
import re
import shutil
import sys

import pytest

from fathom.settings import ConfigError
from fathom.system.errors import UserError
from fathom_study.analysis import effective_depth, effects, worth
from fathom_study.analysis.claims.evidence import Judgement
from fathom_study.cli import main
from fathom_study.config import read_yaml
from fathom_study.report.figures.palette import COLOURS
from fathom_study.report.integrity.verify import verify
from fathom_study.report.pages import explorer
from fathom_study.report.pages.lines import BESIDE
from fathom_study.report.pages.page import write_page
from fathom_study.report.pages.render import write_reports
from fathom_study.system.files import write_json
from tests.report.pages import (
    PUBLISHED,
    TEMPLATES,
    Page,
    make_page,
    trained,
    write_claims,
    write_results,
)
from tests.support.reports import analyze_runs
from tests.support.runs import config_with
from tests.support.tables import frame, save_by_study

THREE = [4.0, 2.0, 1.0]
SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 80 30"><path d="M1.23456 2"/></svg>'
SCORECARD = "## Scorecard\n\nOf two.\n\n| claim |\n|---|\n| from Markdown |\n"


@pytest.fixture
def results(tmp_path):
    return tmp_path / "results"


def unpacked(text):
    return gzip.decompress(base64.b64decode(text)).decode()


def data_in(text, name):
    """The data of a packed script element."""
    return json.loads(unpacked(re.search(f'id="{name}">([^<]*)<', text)[1]))


def test_reports_are_sections_that_link_to_each_other(results):
    reports = {
        "ZULU.md": "# Zulu\n",
        "COMPARISON.md": '# C\n\n## Same\n\n## Same\n\n<a id="here"></a>\n[above](#here)\n',
        "RESULTS.md": (
            "# Results\n\n[a](studies/b.md) [b](COMPARISON.md#here) [c](#part) [d](x.csv#L2)"
            " [e](tables/summary.csv#L2) [f](https://example.org/x#y) [g](../docs/x.md)"
            "\n\n## Part\n\n![A loss](figures/a/loss.png)\n\n![gone](figures/a/gone.png)\n"
            "\n<details>\n<summary>Two < more</summary>\n\nfolded\n\n</details>\n\n<b>shown</b>\n"
        ),
        "studies/a.md": "# How deep?\n\n[up](../RESULTS.md) [row](../tables/cells.csv#L7)\n",
        "studies/b.md": "# b\n",
        "studies/left_over.md": "# of a study that is gone\n",
    }
    config = write_results(results, [trained(THREE)], reports, studies=("b", "a"))
    (results / "figures/a").mkdir(parents=True)
    (results / "figures/a/loss.svg").write_text(SVG)
    text = make_page(config)
    page = Page(text)
    sections = [attrs["id"] for tag, attrs in page.elements if tag == "section"]
    assert sections[:6] == ["results", "explorer", "studies-b", "studies-a", "comparison", "zulu"]
    assert "<summary>Two &lt; more</summary>\n<p>folded</p>\n</details>" in text
    assert "&lt;b&gt;shown" in text
    *definitions, last = sections[6:]
    assert {"definitions-readme", "definitions-worth"} <= set(definitions)
    assert last == "docs-schemes"
    links = [
        (attrs.get("href"), attrs.get("data-row")) for tag, attrs in page.elements if tag == "a"
    ]
    assert {
        ("#studies-b", None), ("#comparison--here", None), ("#results--part", None),
        ("x.csv#L2", None), ("tables/summary.csv#L2", "summary.csv#L2"), ("../docs/x.md", None),
        ("https://example.org/x#y", None), ("tables/cells.csv#L7", "cells.csv#L7"),
        ("?study=a#explorer", None), ("#studies-a", None),
    } <= set(links)  # fmt: skip
    assert {"comparison--here", "results--part", "comparison--same", "comparison--same-1"} <= {
        *page.ids
    }
    assert [tag for tag, _ in page.elements].count("h1") == 1
    (drawn,) = (attrs for tag, attrs in page.elements if tag == "img")
    assert (drawn["alt"], drawn["width"], drawn["height"]) == ("A loss", "80", "30")
    (svg,) = page.all("img", "data-svg")
    assert unpacked(svg) == SVG.replace("1.23456", "1.2")
    assert "The figure gone is not drawn here." in page.text
    assert set(data_in(text, "rows")) == {"summary.csv#L2"}  # cells.csv has no line 7
    assert make_page(config) == text
    # Nothing is loaded from elsewhere.
    sources = [*page.all("img", "src"), *page.all("script", "src"), *page.all("link", "href")]
    assert sources == ["data:,"]
    own = "".join(file.read_text() for file in TEMPLATES.iterdir())
    assert not re.findall(r"https?:|@import|url\((?!#)|fetch\(|import\(", own)


HTML = (
    "<script>alert(1)</script>", "a <img src=x onerror=alert(1)> b", "[x](javascript:alert(1))",
    '<a id="x" onclick="alert(1)"></a>', "| a |\n|---|\n| <script>alert(1)</script> |",
    "<!-- -->\n<div onclick='alert(1)'>", "[x](data:text/html,alert)",
)  # fmt: skip


def test_the_board_is_the_second_screen_and_the_explorer_follows(results):
    reports = dict.fromkeys(("COMPARISON.md", "BOARD.md", "RESULTS.md"), "# x\n")
    config = write_results(results, [trained(THREE)], reports, studies=("a",))
    page = Page(make_page(config.model_copy(update={"board": "board"})))
    sections = [attrs["id"] for tag, attrs in page.elements if tag == "section"]
    assert sections[:4] == ["results", "board", "explorer", "comparison"]


def test_other_html_is_shown_as_text(results):
    report = "\n\n".join(["# Results", *HTML, ""])
    text = make_page(write_results(results, [], {"RESULTS.md": report}))
    section = Page(text.partition("<section")[2].partition("</section>")[0])
    shown = {"h1", "p", "div", "table", "thead", "tbody", "tr", "th", "td"}
    assert {tag for tag, _ in section.elements} <= shown
    assert not [attrs for _, attrs in section.elements if {"onclick", "onerror", "href"} & {*attrs}]


def test_claims_and_their_rows_come_from_tables(results):
    report = f"# Results\n\n{SCORECARD}\n## Rest\n\n| a | b |\n|---|---:|\n| kept | 1 |\n"
    config = write_results(results, [trained(THREE)], {"RESULTS.md": report})
    write_claims(results, ["contradicted", "reproduced"])
    text = make_page(config)
    page = Page(text)
    assert page.all("tr", "data-verdict") == ["reproduced", "contradicted"]  # as in the reports
    assert "Claim 0 <holds>." in page.text
    assert "The demo" in page.text
    assert "from Markdown" not in page.text
    assert re.search(r"Of two\..*kept", page.text, re.DOTALL)
    assert ("td", {"class": "n"}) in page.elements
    row = data_in(text, "rows")["claims.csv#L2"]
    assert row["title"] == "Claim 0 <holds>. · mhc"
    words = dict(row["rows"])
    assert words["rule of the test"] == "level"
    assert words["confidence"] == "95 %"
    assert (words["whether it decides"], words["measured"]) == ("yes", "0.50 ± 0.25")


def test_a_row_has_words_units_and_intervals(results):
    """By hand: losses 1, 10 and 100 have the geometric mean 10; t(2) is 4.3027, so the interval of
    log10 is 1 ± 4.3027 / √3 = 1 ± 2.484."""
    runs = [trained([4.0, loss], seed=seed) for seed, loss in enumerate((1.0, 10.0, 100.0))]
    config = write_results(results, runs, {"RESULTS.md": "# R\n\n[x](tables/summary.csv#L2)\n"})
    config = config.model_copy(update={"labels": {"mhc": "the demo's mHC", "a": "How deep?"}})
    row = data_in(make_page(config), "rows")["summary.csv#L2"]
    assert row["title"] == "How deep? · the demo's mHC · 8 layers · PyTorch"
    words = dict(row["rows"])
    loss = words["loss (nats): loss of the last step"]
    mean, ends = re.fullmatch(r"(\S+) \((.*)\), standard deviation .*, 3 runs", loss).groups()
    assert mean == "10"
    ends = [float(end) for end in ends.split(" to ")]
    reach = 4.3027 / math.sqrt(3)
    assert ends == pytest.approx([10 ** (1 - reach), 10 ** (1 + reach)], rel=0.05)  # two digits
    assert not [name for name in words if "_" in name]
    assert words["to train its first seed again"] == (
        "fathom train a --depth 8 --variant mhc --backend torch --seed 0 --out again "
        f"--config {results}/config.json"
    )


def test_every_linked_column_has_words():
    words = read_yaml(TEMPLATES / "columns.yaml")
    claims = [field.name for field in dataclasses.fields(Judgement)]
    for columns in (effects.COLUMNS, effective_depth.COLUMNS, worth.COLUMNS, claims):
        assert {name for name in columns if "_" in name} <= words.keys() | set().union(
            *BESIDE.values()
        )
    assert not [text for text in words.values() if "_" in text]


def test_links_to_the_reference_lead_to_its_page_if_it_has_one(results, tmp_path):
    """Otherwise they lead to the Markdown file."""
    kept = tmp_path / "kept"
    for name in ("verdicts", "claims"):
        (kept / "tables").mkdir(parents=True, exist_ok=True)
        (kept / "tables" / f"{name}.csv").touch()
    text = "# R\n\n[kept](../kept/RESULTS.md) [a](../kept/studies/a.md#score)\n"
    config = write_results(results, [trained(THREE)], {"RESULTS.md": text})
    config = config.model_copy(update={"reference": str(kept)})
    assert "../kept/RESULTS.md" in Page(make_page(config)).all("a", "href")
    (kept / "index.html").touch()
    links = Page(make_page(config)).all("a", "href")
    assert {"../kept/index.html#results", "../kept/index.html#studies-a--score"} <= set(links)


def test_explorer_has_every_run_with_gaps_at_non_finite_steps(results):
    long = [4.0 * 0.99**i for i in range(1000)]
    runs = [trained(long, "baseline"), trained([*long[:500], *[math.nan] * 500], "mhc")]
    runs += [trained([4.0, math.inf], "mhc", study="b")]
    study = data_in(
        make_page(write_results(results, runs, {"RESULTS.md": "# R"}, ("a", "b"))), "study-a"
    )
    columns = study["data"]["step"]
    rows = [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]
    plain = {row["step"]: row["loss"] for row in rows if row["variant"] == "baseline"}
    assert {0, 1, 2, 999} <= set(plain)
    assert 24 <= len(plain) <= 31
    assert all(value == float(f"{long[step]:.5g}") for step, value in plain.items())
    broken = {row["step"]: row["loss"] for row in rows if row["variant"] == "mhc"}
    assert set(broken) == set(plain)
    assert {step for step, value in broken.items() if value == "NaN"} == {
        s for s in plain if s >= 500
    }
    ends = study["data"]["depth"]
    assert ends["broken"] == [None, 500]
    assert ends["reason"] == [None, "loss"]
    assert study["plain"] == "baseline"
    assert study["chance"]["step"]["loss"] == pytest.approx(math.log(64))


def test_explorer_keeps_fewer_steps_per_run_of_more_runs(monkeypatch):
    """A single run keeps 13 evenly spaced steps and 13 early ones; two keep half of each."""
    monkeypatch.setattr(explorer, "MANY", 1)
    steps = frame(*(trained([1.0] * 1000, seed=seed)[1] for seed in (0, 1)))
    drawn = explorer.thinned(steps, []).groupby("seed")["step"]
    assert drawn.nunique().between(10, 13).all()
    assert (drawn.min() == 0).all() and (drawn.max() == 999).all()


def test_explorer_leaves_out_plain_networks_of_a_ladder(results):
    runs = [trained(THREE, variant) for variant in ("baseline", "baseline_x200")]
    config = write_results(results, runs, {"RESULTS.md": "# R"}, a={"ladder": {"baseline": [2]}})
    steps = frame(runs[0][1])  # tables of steps have no trainings of ladders
    save_by_study({"steps.csv.gz": steps}, results / "tables", ("a",))
    study = data_in(make_page(config), "study-a")
    assert list(study["variants"]) == ["baseline"]
    assert set(study["data"]["depth"]["variant"]) == {"baseline"}


def test_variants_of_a_study_look_different():
    names = [*COLOURS, *(f"{name}_00{i}" for name in COLOURS for i in range(3)), "x", "y"]
    looks = explorer.looks_of(names, {"x": "alike", "y": "alike"})
    assert len({(look["colour"], *look["dash"]) for look in looks.values()}) == len(names)
    assert (looks["x"]["label"], looks["y"]["label"]) == ("alike (x)", "alike (y)")


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{{ sections.oops }}", "has no attribute 'oops'"),
        ("{% for %}", "line 1: Expected"),
        ("The loss is 4.", r"line 1: the number 4\. is typed"),
        (None, "has no report for the page; run: snakemake report"),
    ],
)
def test_a_page_that_cannot_be_made_is_refused_in_one_line(results, tmp_path, source, problem):
    config = write_results(results, [trained(THREE)], {"RESULTS.md": "# R\n"} if source else {})
    shutil.copytree(TEMPLATES, tmp_path / "page")
    (tmp_path / "page/index.html.j2").write_text(source or "", encoding="utf-8")
    with pytest.raises(ConfigError, match=problem):
        write_page(config, PUBLISHED, tmp_path / "page", results, results / "figures")


@pytest.mark.parametrize(
    ("damaged", "content"),
    [
        ("RESULTS.md", b"\xff\xfe"),
        ("figures/a/torch/loss.svg", b"\xff\xfe"),
        ("figures/a/torch/loss.svg", b"<svg viewBox='0 0 8 3'>"),
        ("figures/a/torch/loss.svg", b"<svg/>"),
    ],
)
def test_a_damaged_file_of_the_page_is_named(results, damaged, content):
    text = "# R\n\n![A loss](figures/a/torch/loss.png)\n"
    config = write_results(results, [trained(THREE)], {"RESULTS.md": text})
    (results / damaged).parent.mkdir(parents=True, exist_ok=True)
    (results / damaged).write_bytes(content)
    with pytest.raises(UserError, match=f"{damaged}: is damaged .*; delete it and make it again"):
        write_page(config, PUBLISHED, TEMPLATES, results, results / "figures")


def test_verify_and_the_command_make_the_page(results, monkeypatch, capsys):
    config, templates = config_with(results), results.parent / "templates"
    templates.mkdir()
    (templates / "RESULTS.md.j2").write_text("# Results\n\nWords.\n", encoding="utf-8")
    shutil.copy(TEMPLATES.parent / "templates" / "words.j2", templates)
    shutil.copytree(TEMPLATES, results.parent / "page")
    write_reports(config, PUBLISHED, templates, analyze_runs(config, PUBLISHED))
    write_json(results / "config.json", config.resolved())
    file, published = results / "index.html", results.parent / "published.yaml"
    write_json(published, PUBLISHED.model_dump(mode="json"))
    command = ["page", "--config", results / "config.json", "--published", published]
    command = [*map(str, command), "--templates", str(results.parent / "page")]

    def problems():
        checked = verify(config, PUBLISHED, templates).problems
        return [problem for problem in checked if "index.html" in problem]

    assert problems() == [f"{file}: missing"]
    main(command)
    assert problems() == []
    file.write_text(file.read_text().replace("Words", "Other words"))
    assert problems() == [f"{file}: differs from what its inputs give"]
    monkeypatch.delitem(sys.modules, "fathom_study.report.pages.sections")
    monkeypatch.setitem(sys.modules, "markdown_it", None)
    brings = "run: pip install -e '.[workflow]'"
    assert problems() == [f"{file}: not checked, since markdown_it is not installed here; {brings}"]
    with pytest.raises(SystemExit):
        main(command)
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == f"fathom: this needs markdown_it, which is not installed here; {brings}"
