"""The page: what Markdown becomes, what curves hold, and that nothing is loaded from elsewhere."""

import base64
import csv
import gzip
import json
import math
import re
import shutil
import struct
import sys
from urllib.parse import unquote_to_bytes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fathom.analysis.claims import load_published
from fathom.analysis.tables import summary_table
from fathom.cli import main
from fathom.report.figures.style import COLOURS, colour_of
from fathom.report.page import write_page
from fathom.report.page.curves import MOST_STEPS, curves_of, encoded, looks_of
from fathom.report.page.evidence import evidence_of
from fathom.report.render import write_reports
from fathom.report.verify import verify
from fathom.settings import ConfigError
from fathom.system.files import write_json
from page_helpers import TEMPLATES, Page, make_page, trained, write_results
from report_helpers import analyze_runs
from run_helpers import config_with
from tables_helpers import CHANCE, curve, frame, run

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
    return gzip.decompress(base64.b64decode(text)).decode()


def json_in(text):
    """The data of the page: of evidence, then of the curves of every study."""
    (evidence,) = re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    curves = re.findall(r'<script type="application/gzip">(.*?)</script>', text)
    return [json.loads(data) for data in (evidence, *map(unpacked, curves))]


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
    assert sections == ["results", "studies-b", "studies-a", "comparison", "zulu"]
    inside = found.all("a", "href")[-9:]
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
    assert re.findall(r'<(h\d) id="([^"]+)">', text) == [
        ("h1", "results--results"), ("h2", "results--same"), ("h2", "results--same-1"),
        ("h6", "results--deep"), ("h2", "comparison--c"), ("h3", "comparison--same"),
        ("h3", "curves--a"),
    ]  # fmt: skip


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


@pytest.mark.parametrize("href", ["javascript:alert(1)", "data:text/html,x", "vbscript:x"])
def test_a_link_that_would_run_something_is_none(page, href):
    found, _ = page({"RESULTS.md": f"# Results\n\n[x]({href})\n"})
    assert all(link.startswith("#") for link in found.all("a", "href"))


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
    (table,) = json_in(text)[0].values()
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
    assert json.loads(data)["x.csv"]["rows"] == {"2": ["a, </script><b>", "0.10"], "3": ["é", ""]}


@pytest.mark.parametrize(
    "href",
    ["tables/x.csv", "tables/x.csv#L1", "tables/x.csv#L3", "tables/x.csv#L02", "tables/gone.csv#L2",
     "tables/../x.csv#L2", "../tables/x.csv#L2", "tables/x.csv#top"],
)  # fmt: skip
def test_a_link_that_leads_to_no_row_has_none(tmp_path, href):
    (tmp_path / "x.csv").write_text("a\n1\n", encoding="utf-8")
    assert evidence_of([f'<a href="{href}">'], tmp_path) == "{}"


# --- figures ------------------------------------------------------------------------------------

SVG = b'<svg xmlns="http://www.w3.org/2000/svg" fill="#123">\n<g id="50%"/></svg>'
REPORT = "# Results\n\n![a <b>](figures/overview/x.png)\n\n*Its `caption` & more.*\n\nText.\n"


@pytest.fixture
def drawn(results):
    """A function that puts the files of the figure x there."""

    def put(**files):
        folder = results / "figures/overview"
        folder.mkdir(parents=True)
        for ending, content in files.items():
            (folder / f"x.{ending}").write_bytes(content)

    return put


@pytest.mark.parametrize(
    ("png", "svg", "kind", "shown"),
    [
        (bytes(40), SVG, "svg+xml", SVG.replace(b"\n", b" ")),  # half as long
        (bytes(range(256)), SVG * 100, "png;base64", bytes(range(256))),
    ],
)
def test_a_figure_is_put_into_the_page_as_svg_unless_that_is_bulky(
    drawn, page, png, svg, kind, shown
):
    drawn(png=png, svg=svg)
    found, text = page({"RESULTS.md": REPORT})
    (source,) = found.all("img", "src")  # the image of the dialog has none yet
    head, _, data = source.partition(",")
    assert head == f"data:image/{kind}"
    assert (base64.b64decode(data) if "64" in kind else unquote_to_bytes(data)) == shown
    assert "<figcaption>Its <code>caption</code> &amp; more.</figcaption>" in text
    assert found.all("img", "alt")[0] == "a <b>"


@pytest.mark.parametrize("source", ["figures/overview/x.png", "x.png", ".", "figures", "/etc/hosts",
                                    "../x.png", "https://example.org/x.png"])  # fmt: skip
def test_a_figure_that_is_not_there_is_named_and_nothing_is_loaded(page, results, source):
    (results.parent / "x.png").write_bytes(b"secret")
    found, _ = page({"RESULTS.md": f"# Results\n\n![loss]({source})\n"})
    assert found.all("img", "src") == []
    assert "The figure loss is not drawn here." in found.text


# --- curves -------------------------------------------------------------------------------------


def values_of(encoded_values):
    """The numbers, unpacked without NumPy."""
    raw = base64.b64decode(encoded_values["bytes"])
    letter, size = {"f4": ("f", 4), "f8": ("d", 8)}[encoded_values["dtype"]]
    count = len(raw) // size
    raw = bytes(raw[place * count + i] for i in range(count) for place in range(size))
    return list(struct.unpack(f"<{len(raw) // size}{letter}", raw))


@given(st.lists(st.floats() | st.floats(width=32), max_size=20))
def test_numbers_stay_what_they_are_and_gaps_are_nan(numbers):
    back = values_of(encoded(np.array(numbers, dtype=float)))
    assert len(back) == len(numbers)
    for number, found in zip(numbers, back, strict=True):
        assert found == number if math.isfinite(number) else math.isnan(found)


def study_curves(rows, names=("baseline", "hc", "mhc"), labels=None):
    """The curves of study a, and what their script reads."""
    curves = curves_of("a", names, frame(rows), summary_table(frame(run())), labels or {})
    return curves, json.loads(unpacked(curves.data))


def test_a_run_has_its_place_and_its_values():
    rows = [*curve(THREE), *curve([4.0, NAN, INF], "hc", 16, 2, backend="mlx")]
    curves, data = study_curves(rows)
    assert curves.platforms == ["torch", "mlx"]
    assert curves.depths == [8, 16]
    assert list(data["variants"]) == ["hc", "mhc"]
    assert data["variants"]["mhc"] == {"label": "mhc", "colour": COLOURS["mhc"], "dash": "none"}
    assert data["chance"] == {"loss": CHANCE}
    first, second = data["runs"]
    assert {k: first[k] for k in ("platform", "depth", "variant", "seed", "broken", "steps")} == {
        "platform": "torch", "depth": 8, "variant": "mhc", "seed": 0, "broken": None,
        "steps": [0, 1, 2],
    }  # fmt: skip
    assert values_of(first["values"]["loss"]) == THREE
    assert second["broken"] == {"step": 1, "what": "loss"}
    assert str(values_of(second["values"]["loss"])) == "[4.0, nan, nan]"


def test_a_measure_that_is_one_number_has_no_curve():
    """The gradient norm is 1 throughout; the clock, and what is measured once, have none either."""
    rows = [
        {**row, "step_seconds": row["step"], "test_accuracy": row["step"]} for row in curve(THREE)
    ]
    assert list(study_curves(rows)[1]["metrics"]) == ["loss"]


def test_a_run_that_was_never_finite_has_no_line_and_is_marked():
    (only,) = study_curves(curve([NAN, NAN]))[1]["runs"]
    assert "loss" not in only["values"]
    assert only["broken"] == {"step": 0, "what": "loss"}


@pytest.mark.parametrize("steps", [1, 2, 99, 100, 101, 150, 300, 2000])
def test_of_a_long_run_some_steps_are_drawn_with_the_first_and_the_last(steps):
    (only,) = study_curves(curve([1.0 + i for i in range(steps)]))[1]["runs"]
    drawn = only["steps"]
    assert (drawn[0], drawn[-1]) == (0, steps - 1)
    assert min(steps, MOST_STEPS // 2) <= len(drawn) <= MOST_STEPS
    assert values_of(only["values"]["loss"]) == [1.0 + step for step in drawn]


def test_evaluations_are_all_drawn():
    rows = curve([1.0 + i for i in range(1000)])
    for row in rows:
        row["validation_loss"] = 0.5 * row["step"] if row["step"] in (7, 333, 334) else NAN
    _, data = study_curves(rows)
    (only,) = data["runs"]
    kept = dict(zip(only["steps"], values_of(only["values"]["validation_loss"]), strict=True))
    assert {s: v for s, v in kept.items() if not math.isnan(v)} == {7: 3.5, 333: 166.5, 334: 167.0}
    assert [m["sparse"] for m in data["metrics"].values()] == [False, True]


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


def test_data_cannot_leave_their_element():
    curves, data = study_curves(curve(THREE, variant="</script><b>"), ("</script><b>",))
    assert "<" not in curves.data
    assert data["runs"][0]["variant"] == "</script><b>"


def test_curves_stand_in_the_report_of_their_study_or_in_a_section_of_their_own(page):
    runs = [trained(THREE, study=study) for study in ("a", "b")]
    reports = {"RESULTS.md": "# R\n", "studies/a.md": "# a\n\nWords.\n\n## Losses\n\nMore.\n"}
    found, text = page(reports, runs, studies=("a", "never", "b"))
    assert found.all("figure", "data-study") == ["a", "b"]
    (plotly,) = re.findall(r'id="plotly">(.*?)</script>', text)
    assert "* plotly.js v" in unpacked(plotly)
    order = ["Words.", 'data-study="a"', "More.", 'id="curves"', 'data-study="b"']
    assert [text.index(word) for word in order] == sorted(text.index(word) for word in order)
    assert "#curves--b" in found.all("a", "href")


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
        assert not href.startswith("#") or href[1:] in found.ids
    assert found.all("figure", "data-study") == (["a"] if WORLDS[world] else [])
    assert "The figure loss is not drawn here." in found.text
    assert not re.findall(r"\b(nan|None|True|False|Undefined)\b", found.text)
    evidence, *curves = json_in(text)
    assert evidence == {}
    assert [len(data["runs"]) for data in curves] == ([len(WORLDS[world])] if WORLDS[world] else [])


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


def test_nothing_is_loaded_from_elsewhere(page, drawn):
    drawn(png=b"x")
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
