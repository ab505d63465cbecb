"""The page in a real browser, opened from disk: what a reader sees, points at and clicks."""

import csv
import gzip
import math
import re
import shutil
import time

import pytest

from page_helpers import make_page, trained, write_results

pytestmark = pytest.mark.browser

OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--window-size=1280,900",
)  # fmt: skip

REPORT = """# Results

## The answer

| question | answer | evidence |
|---|---|---|
| Does it? | **no** | [a test](tables/summary.csv#L2) |
| Or so? | **cannot be told** | [another](tables/summary.csv#L3) |

See [the other](COMPARISON.md#here), [a row](tables/summary.csv#L2) and [a part](#numbers).

## Numbers

| variant | layers | value | share | wide |
|---|---:|---:|---:|---|
| mhc | 12 | 1.66 ± 0.62 | 93 % | {wide} |
| hc | 48 | NaN (3 of 3) | <0.5 % | {wide} |
| baseline | 8 | (1.7 ± 0.6)·10^−6 | 0.5 % | {wide} |
| hc_paper | 24 | −0.6 | 100 % | {wide} |
| mhc_lite | 24 | 28 650 | 7 % | {wide} |
| v1 | 24 | not run here | NaN | {wide} |
| v2 | 24 | 2.2e−07 | 8 % | {wide} |

![loss](figures/overview/x.png)

*What it shows.*
""".format(wide="some_words_without_a_space " * 6)

VERDICTS = """
| claim | source | what it says | seeds | verdict |
|---|---|---|---:|---|
| one | {wide} | {wide} | 3 | **reproduced**, at another scale |
| two | {wide} | {wide} | | **contradicted** |
{more}
""".format(
    wide="some words " * 9,
    more="\n".join(f"| more {i} | x | a gain | 3 | **reproduced** |" for i in range(9)),
)

SCORECARD = """# Both scales

| claim | source | what it says | at the reference scale | here |
|---|---|---|---|---|
| <a id="one"></a>one | x | a gain | [contradicted](RESULTS.md) | **reproduced**, at another scale |
| two | x | a gain | [reproduced](RESULTS.md) | **not measured**: no runs; elsewhere: reproduced |
{more}

[To the first one](#one).
""".format(
    more="\n".join(f"| more {i} | x | a gain | reproduced | **reproduced** |" for i in range(9))
)

STUDY = """# a

| variant | | scheme | differs from the scheme in |
|---|---|---|---|
| hc | `hc` | hc_demo | – |
| the demo's mHC | `mhc` | mhc_demo | – |

In words, the demo's
mHC ends below `hc`; `hc-like` is no name, and mhc and hc are words here.
"""

FIGURE = (
    b'<svg xmlns="http://www.w3.org/2000/svg" width="800" height="300">'
    b'<rect width="800" height="300" fill="#eee"/></svg>'
)


LABELS = {"mhc": "the demo's mHC", "scaled": "scaled branches (two)", "b": "Does it end well?"}


def losses(start, steps=150):
    """Thirds of thirds, so that no value is short; long enough that not every step is drawn."""
    return [start * math.exp(-i / 40) + i / 3e4 for i in range(steps)]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page") / "results"
    runs = [
        trained(losses(4.0 * 1.25 ** (2 * i + seed)), variant, depth, seed, backend)
        for i, variant in enumerate(("baseline", "hc", "mhc"))
        for depth in (8, 16)
        for seed in (0, 1)
        for backend in ("torch", "mlx")
        if (variant, depth) != ("hc", 16)
    ]
    broken = losses(4.0)[:20] + [math.nan] * 130
    runs += [trained(broken, "hc", 16, seed) for seed in (0, 1)]
    runs += [trained([4.0] + [math.nan] * 149, "hc", 32)]
    runs += [trained([4.0, 2.0, 1.0], "mhc", study="b", seed=seed) for seed in (0, 1)]
    comparison = f'# Comparison\n\n<a id="here"></a>\nHere.\n\n{VERDICTS}'
    reports = {"RESULTS.md": REPORT, "COMPARISON.md": comparison, "studies/a.md": STUDY}
    reports["studies/b.md"] = (
        "# b\n\nA scaled gain: `scaled` has scaled branches (two).\n\n"
        "| study | verdict |\n|---|---|\n" + "".join(f"| s{i} | **differs** |\n" for i in range(12))
    )
    reports["SCORECARD.md"] = SCORECARD
    variants = ["mhc", {"scaled": {"connection": "mhc", "H_res": {"iterations": 3}}}]
    config = write_results(folder, runs, reports, ("a", "b"), b={"variants": variants})
    (folder / "figures/overview").mkdir(parents=True)
    (folder / "figures/overview/x.svg").write_bytes(FIGURE)
    make_page(config.model_copy(update={"labels": LABELS}))
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for option in (*OPTIONS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield browser
    browser.quit()


@pytest.fixture
def page(browser, results):
    """The page, newly opened; after every test its console must be empty."""
    browser.get("about:blank")
    browser.get((results / "index.html").as_uri())
    until(lambda: browser.execute_script("return document.readyState === 'complete'"))
    browser.execute_cdp_cmd("Page.resetNavigationHistory", {})  # chromium keeps fifty steps
    yield browser
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert browser.get_log("browser") == []


def find(page, selector):
    return page.find_elements("css selector", selector)


def until(condition, seconds=10):
    """What the condition gives, once that is true."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.05)
    return found


def visit(page, anchor):
    """Go to a section by its link in the contents."""
    page.execute_script(f"document.querySelector('nav a[href=\"#{anchor}\"]').click()")


def shown_sections(page):
    return [section.get_attribute("id") for section in find(page, "main > section:not([hidden])")]


# --- sections -----------------------------------------------------------------------------------


def test_one_section_is_shown_at_a_time_and_its_link_is_marked(page):
    current = "return [...document.querySelectorAll('nav a[aria-current]')].map(a => a.hash)"
    for anchor in ("results", "studies-a", "comparison"):
        if anchor != "results":
            visit(page, anchor)
        assert shown_sections(page) == [anchor]
        assert page.execute_script(current) == [f"#{anchor}"]
        assert page.execute_script("return scrollY") < 50
    go(page, -1)
    until(lambda: shown_sections(page) == ["studies-a"])


def test_a_link_into_another_section_shows_its_place(page):
    find(page, "#results p a[href='#comparison--here']")[0].click()
    assert shown_sections(page) == ["comparison"]


def test_answers_are_cards_beside_each_other(page):
    first, second = find(page, "#results .answers tbody tr")
    assert first.rect["y"] == second.rect["y"]
    assert first.rect["x"] + first.rect["width"] <= second.rect["x"]
    assert [cell.text for cell in find(page, ".answers tr:first-child td")] == [
        "Does it?", "no", "a test",
    ]  # fmt: skip


def test_claims_are_filtered_by_words_and_verdicts(page):
    visit(page, "comparison")
    names = lambda: [c.text for c in find(page, "#comparison tbody td:first-child") if c.text]  # noqa: E731
    assert names() == []  # until they are asked for
    (words,) = find(page, "#comparison .filter input")
    words.send_keys("A Gain")
    assert names() == [f"more {i}" for i in range(9)]
    words.clear()
    words.send_keys(" ")
    reproduced, contradicted = find(page, "#comparison .filter button")
    assert (reproduced.text, contradicted.text) == ("reproduced 10", "contradicted 1")
    contradicted.click()
    assert names() == ["two"]
    reproduced.click()
    assert len(names()) == 11
    contradicted.click()
    assert len(names()) == 10


def test_verdicts_on_what_is_no_claim_have_no_filter(page):
    visit(page, "studies-b")
    assert find(page, "#studies-b table")[0].is_displayed()
    assert not find(page, "#studies-b .filter")


def test_beside_a_kept_result_the_verdicts_here_are_filtered(page):
    visit(page, "scorecard")
    reproduced, unmeasured = find(page, "#scorecard .filter button")
    assert (reproduced.text, unmeasured.text) == ("reproduced 10", "not measured 1")
    unmeasured.click()
    assert [c.text for c in find(page, "#scorecard tbody td:first-child") if c.text] == ["two"]


def open_claims(page, section):
    visit(page, section)
    find(page, f"#{section} summary")[0].click()


def test_the_scorecard_is_folded_until_a_reader_asks_for_it(page):
    visit(page, "scorecard")
    (fold,), (table,) = find(page, "#scorecard details"), find(page, "#scorecard table")
    (summary,) = find(page, "#scorecard summary")
    assert summary.text == "The 11 claims, by source"
    assert not table.is_displayed()
    assert find(page, "#scorecard .filter")[0].is_displayed()
    summary.click()
    assert table.is_displayed()
    summary.click()
    assert not table.is_displayed()
    find(page, "#scorecard p a")[0].click()
    until(table.is_displayed)
    assert fold.get_attribute("open")
    # Tables of numbers, and those of answers, are seen at once.
    assert not find(page, "#results details")


def test_on_paper_the_scorecard_is_there(page):
    visit(page, "scorecard")
    (fold,) = find(page, "#scorecard details")
    assert fold.rect["height"] < 100
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert fold.rect["height"] > 300  # eleven rows
    assert not find(page, "#scorecard .filter")[0].is_displayed()


# --- links and images ---------------------------------------------------------------------------


def test_every_link_leads_somewhere(page, results):
    links = page.execute_script(
        "return [...document.querySelectorAll('a[href]')].map(a => a.getAttribute('href'))"
    )
    assert "tables/summary.csv#L2" in links
    assert "#comparison--here" in links
    for link in links:
        path, _, anchor = link.partition("?")[0].partition("#")
        if path:
            assert (results / path).is_file(), link
        else:
            assert page.execute_script("return document.getElementById(arguments[0])", anchor), link
    assert page.execute_script(
        "const ids = [...document.querySelectorAll('[id]')].map(e => e.id);"
        "return ids.length === new Set(ids).size"
    )


def test_every_image_is_shown_and_nothing_was_loaded(page):
    page.execute_script("document.querySelector('main img').scrollIntoView()")
    sizes = (
        "return [...document.querySelectorAll('main img')].map(i => [i.complete, i.naturalWidth])"
    )
    until(lambda: page.execute_script(sizes) == [[True, 800]])
    loaded = page.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert [name for name in loaded if not name.startswith(("data:", "blob:"))] == []


def test_a_figure_enlarges_and_closes(page):
    (small,) = find(page, "main .enlarge")
    page.execute_script("arguments[0].scrollIntoView()", small)
    small.click()
    (dialog,) = find(page, "dialog[open]")
    assert find(page, "dialog img")[0].size["width"] > 800
    assert find(page, "dialog p")[0].text == "What it shows."
    find(page, "dialog button")[0].click()
    assert not dialog.is_displayed()


# --- evidence -----------------------------------------------------------------------------------

ROW = "main a[href='tables/summary.csv#L2']"


def test_a_link_to_a_row_opens_it_in_place(page, results):
    address = page.current_url
    find(page, ROW)[0].click()
    (dialog,) = until(lambda: find(page, "dialog[open]"))
    with (results / "tables/summary.csv").open(newline="") as file:
        head, row, *_ = csv.reader(file)
    values = dict(zip(head, row, strict=True))
    shown = page.execute_script(
        "return [...document.querySelectorAll('dialog[open] tbody tr')]"
        ".map(row => [...row.cells].map(cell => cell.textContent))"
    )
    assert shown == [[name, value] for name, value in values.items() if value]
    title = f"summary.csv: a, {values['platform']}, depth {values['depth']}, {values['variant']}"
    assert find(page, "dialog[open] h2")[0].text == title
    empty = sum(not value for value in row)
    assert find(page, "dialog[open] p")[0].text == (
        f"Line 2 of tables/summary.csv, without the {empty} columns that are empty there."
    )
    assert page.current_url == address
    names = until(lambda: find(page, "dialog[open] td abbr"))
    told = {(name.text, name.get_attribute("title")) for name in names}
    assert told == {(values["variant"], "scheme plain")}
    find(page, "dialog[open] button")[0].click()
    assert not dialog.is_displayed()


def test_evidence_opens_and_closes_by_keyboard(page):
    link = find(page, ROW)[0]
    link.send_keys("\ue007")
    (dialog,) = until(lambda: find(page, "dialog[open]"))
    assert page.switch_to.active_element.text == "Close"
    page.switch_to.active_element.send_keys("\ue00c")  # Escape
    until(lambda: not dialog.is_displayed())
    assert page.switch_to.active_element == link


def test_a_link_to_a_row_that_the_page_does_not_have_leads_to_the_file(page):
    script = (
        "const link = document.querySelector(arguments[0]);"
        "link.setAttribute('href', 'tables/summary.csv#L999');"
        "navigation.addEventListener('navigate', e => {"
        "  window.led = e.destination.url; e.preventDefault() }, {once: true});"
        "link.click()"
    )
    page.execute_script(script, ROW)
    led = until(lambda: page.execute_script("return window.led"))
    assert led.endswith("/tables/summary.csv#L999")
    assert not find(page, "dialog[open]")


# --- tables -------------------------------------------------------------------------------------


def column(page, number):
    return page.execute_script(
        "return [...document.querySelectorAll('#results table:not(.answers) tbody tr')]"
        ".map(row => row.cells[arguments[0]].innerText)",
        number,
    )


UP = ["−0.6", "2.2e−07", "(1.7 ± 0.6)·10^−6", "1.66 ± 0.62", "28 650", "NaN (3 of 3)",
      "not run here"]  # fmt: skip
SORTED = {
    0: ["baseline", "hc", "hc_paper", "mhc", "mhc_lite", "v1", "v2"],
    1: ["8", "12", "24", "24", "24", "24", "48"],
    2: UP,
    3: ["<0.5 %", "0.5 %", "7 %", "8 %", "93 %", "100 %", "NaN"],
}


@pytest.mark.parametrize("number", SORTED)
def test_a_click_sorts_a_column(page, number):
    heads = find(page, "#results table:not(.answers) th")
    written = column(page, number)
    button = find(page, "#results table:not(.answers) th button")[number]
    button.click()
    assert column(page, number) == SORTED[number]
    assert heads[number].get_attribute("aria-sort") == "ascending"
    assert {h.get_attribute("aria-sort") for h in heads if h != heads[number]} == {"none"}
    button.click()
    assert heads[number].get_attribute("aria-sort") == "descending"
    words = {"NaN", "NaN (3 of 3)", "not run here"}
    last = [cell for cell in SORTED[number] if cell in words]
    first = [cell for cell in reversed(SORTED[number]) if cell not in words]
    assert column(page, number) == first + last
    button.click()
    assert column(page, number) == written
    assert heads[number].get_attribute("aria-sort") == "none"


@pytest.mark.parametrize("key", ["\ue007", " "], ids=["enter", "space"])
def test_the_keyboard_sorts_too(page, key):
    button = find(page, "#results table:not(.answers) th button")[2]
    button.send_keys(key)
    assert column(page, 2) == UP


# --- explorer -----------------------------------------------------------------------------------


@pytest.fixture
def plot(page):
    """The explorer, drawn, at eight layers."""
    (section,) = find(page, ".explorer")
    assert not find(page, ".plot svg")  # nothing is drawn before it can be seen
    page.execute_script("location.replace('#explorer')")  # which adds no step
    until(lambda: find(page, ".plot .scatterlayer .trace"))
    assert find(page, ".controls [name=depth]")[0].get_attribute("value") == "16"
    choose(page, "depth", "8")
    return section


def choose(page, name, option):
    (control,) = find(page, f".explorer [name={name}]")
    page.execute_script(
        "arguments[0].value = arguments[1];"
        "arguments[0].dispatchEvent(new Event('change', {bubbles: true}))",
        control,
        option,
    )
    until(lambda: control.get_attribute("value") == option)


def traces(page):
    """The lines that are drawn, but for levels and areas."""
    return page.execute_script(
        "return document.querySelector('.plot').data.filter(t => t.name)"
        ".map(t => ({name: t.name, x: t.x, y: t.y, look: [t.line.color, t.line.dash],"
        "            words: t.hovertemplate}))"
    )


def points(line):
    return dict(zip(line["x"], line["y"], strict=True))


def near(number):
    """A number as the page has it: in 16 bits, or what follows from two of them."""
    return pytest.approx(number, rel=2**-16)


def rows(results, **where):
    found = []
    for table in sorted(results.glob("tables/studies/*/steps.csv.gz")):
        with gzip.open(table, "rt", newline="") as file:
            found += list(csv.DictReader(file))
    return [row for row in found if all(row[k] == str(v) for k, v in where.items())]


def losses_of(results, depth=8, backend="torch", **where):
    """The losses of one run, by step."""
    found = rows(results, study="a", depth=depth, backend=backend, **where)
    return {int(row["step"]): float(row["loss"]) for row in found}


def test_a_line_for_every_variant_and_seed_with_the_numbers_of_the_table(page, plot, results):
    drawn = traces(page)
    assert [line["name"] for line in drawn] == ["baseline"] * 2 + ["hc"] * 2 + ["mhc"] * 2
    colours = ["#000000", "#D55E00", "#0072B2"]
    assert [line["look"] for line in drawn[::2]] == [[colour, "solid"] for colour in colours]
    assert "baseline, seed 0" in drawn[0]["words"]
    assert "the demo's mHC, seed 1" in drawn[-1]["words"]
    exact = losses_of(results, variant="hc", seed=1)
    line = drawn[3]
    assert (line["x"][0], line["x"][-1]) == (0, 149)
    assert 30 < len(line["x"]) < 100
    assert line["y"] == [near(exact[step]) for step in line["x"]]


def test_other_depths_and_platforms_are_other_runs(page, plot, results):
    choose(page, "depth", "16")
    choose(page, "platform", "mlx")
    until(lambda: [line["name"] for line in traces(page)] == ["baseline"] * 2 + ["mhc"] * 2)
    assert find(page, ".notes li")[0].text == "Not run here: hc"


def test_a_band_is_the_geometric_mean_and_the_range_of_the_seeds(page, plot, results):
    choose(page, "seeds", "band")
    lines = {line["name"]: points(line) for line in traces(page)}
    assert list(lines) == ["baseline", "hc", "mhc"]
    one, two = (losses_of(results, variant="hc", seed=seed)[50] for seed in (0, 1))
    assert lines["hc"][50] == near(math.sqrt(one * two))
    area = page.execute_script("return document.querySelector('.plot').data[1]")
    assert area["fill"] == "toself"
    corners = [y for x, y in zip(area["x"], area["y"], strict=True) if x == 50]
    assert sorted(corners) == [near(one), near(two)]


def test_with_a_seed_that_is_not_finite_there_is_no_mean(page, plot):
    choose(page, "depth", "16")
    choose(page, "seeds", "band")
    (line,) = (line for line in traces(page) if line["name"] == "hc")
    assert {x for x, y in points(line).items() if y is None} == {x for x in line["x"] if x >= 20}


def test_against_depth_a_dot_is_the_score_of_a_run(page, plot, results):
    choose(page, "against", "depth")
    assert not find(page, ".controls [name=depth]")[0].is_displayed()
    baseline = points(traces(page)[0])
    last = [losses_of(results, variant="baseline", seed=0, depth=d)[149] for d in (8, 16)]
    assert list(baseline.items()) == [(8, near(last[0])), (16, near(last[1]))]
    choose(page, "seeds", "band")
    both = [losses_of(results, variant="mhc", seed=seed)[149] for seed in (0, 1)]
    (mhc,) = (points(line) for line in traces(page) if line["name"] == "mhc")
    assert mhc[8] == near(math.sqrt(both[0] * both[1]))
    (hc,) = (points(line) for line in traces(page) if line["name"] == "hc")
    assert (hc[16], hc[32]) == (None, None)  # not finite, so no mean of the rest
    assert "hc at 32 layers" in find(page, ".notes")[0].text


def test_against_plain_is_a_run_beside_the_plain_run_of_its_seed(page, plot, results):
    choose(page, "values", "ratio")
    own, plain = (losses_of(results, variant=name, seed=1) for name in ("hc", "baseline"))
    lines = [points(line) for line in traces(page)]
    assert lines[3] == {step: near(own[step] / plain[step]) for step in lines[3]}
    assert len(lines[3]) > 30
    assert set(lines[0].values()) == {1}
    choose(page, "values", "difference")
    (axis,) = find(page, ".controls [name=axis]")
    assert (axis.get_attribute("value"), axis.is_enabled()) == ("linear", False)
    assert points(traces(page)[3])[50] == pytest.approx(own[50] - plain[50], abs=1e-5)
    find(page, ".legend input[name=baseline]")[0].click()  # others are still compared with it
    assert points(traces(page)[1])[50] == pytest.approx(own[50] - plain[50], abs=1e-5)


def test_another_study_has_its_own_controls(page, plot):
    choose(page, "values", "ratio")
    choose(page, "study", "b")
    until(lambda: [line["y"] for line in traces(page)] == [[4, 2, 1]] * 2)
    assert not find(page, ".controls [name=values]")[0].is_enabled()  # it has no plain network
    assert [box.get_attribute("name") for box in find(page, ".legend input")] == ["mhc"]
    (chosen,) = find(page, ".controls [name=study] option:checked")
    assert chosen.text == "Does it end well?"


def test_a_link_of_a_study_leads_to_its_curves(page):
    (link,) = find(page, "#studies-b a[href='#explorer?study=b']")
    page.execute_script("arguments[0].click()", link)
    until(lambda: find(page, ".plot .scatterlayer .trace"))
    assert [line["y"] for line in traces(page)] == [[4, 2, 1]] * 2
    top = "return document.querySelector('#explorer').getBoundingClientRect().top"
    assert 0 <= page.execute_script(top) < 400
    assert page.current_url.endswith("#explorer?study=b")


@pytest.mark.parametrize("seeds", ["each", "band"])
@pytest.mark.parametrize("against", ["step", "depth"])
def test_the_csv_has_what_is_shown(page, plot, tmp_path, against, seeds):
    page.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
    )
    choose(page, "against", against)
    choose(page, "seeds", seeds)
    find(page, ".legend input[name=baseline]")[0].click()
    drawn = traces(page)
    find(page, "[data-csv]")[0].click()
    # It is there, and empty, before it is written.
    (file,) = until(lambda: [f for f in tmp_path.glob("a-*.csv") if f.stat().st_size])
    with file.open(newline="") as opened:
        found = list(csv.DictReader(opened))
    shown = [
        (line["name"], x, y) for line in drawn for x, y in points(line).items() if y is not None
    ]
    across, value = against, "value" if seeds == "each" else "mean"
    assert [(row["variant"], int(row[across])) for row in found] == [(v, x) for v, x, _ in shown]
    assert [float(row[value]) for row in found] == [pytest.approx(y, rel=5e-5) for _, _, y in shown]
    assert {(row["study"], row["platform"], row["values"]) for row in found} == {
        ("a", "torch", "as measured")
    }


def test_beside_a_curve_stands_the_command_of_its_run(page, plot, results):
    (command,) = find(page, ".run code")
    axes = "--depth 8 --variant {} --backend torch --seed {}"
    config = f"--config {results / 'config.json'}"
    assert command.text == f"fathom train a {axes.format('baseline', 0)} {config}"
    choose(page, "run", "8/mhc/1")
    assert command.text == f"fathom train a {axes.format('mhc', 1)} {config}"
    settle(page, page.current_url)
    (command,) = find(page, ".run code")
    assert axes.format("mhc", 1) in command.text
    find(page, ".run [data-card]")[0].click()
    until(lambda: find(page, "dialog[open]"))
    assert find(page, "dialog[open] h2")[0].text == "the demo's mHC (mhc)"


def test_the_keyboard_reaches_and_uses_every_control(page, plot):
    page.execute_script("document.querySelector('.controls [name=study]').focus()")
    reached = []
    for _ in range(40):
        focused = page.switch_to.active_element
        reached.append(
            focused.get_attribute("name") or focused.text or focused.get_attribute("aria-label")
        )
        if reached[-1] == "its settings":
            break
        focused.send_keys("\t")
    wanted = ["study", "against", "metric", "depth", "platform", "seeds", "values", "axis"]
    assert reached[: len(wanted)] == wanted
    assert {"baseline", "hc", "mhc", "all", "none", "run"} <= set(reached)
    assert "Download these numbers as CSV" in reached
    (against,) = find(page, ".controls [name=against]")
    against.send_keys("d")  # as in depth
    until(lambda: "against=depth" in page.current_url)
    assert traces(page)[0]["x"] == [8, 16]


# --- variants -----------------------------------------------------------------------------------


def titles_in(page, selector):
    """(the words, their tooltip) of what has one there."""
    names = until(lambda: find(page, f"{selector} abbr"))
    words = [" ".join(name.get_attribute("textContent").split()) for name in names]
    return [*zip(words, [name.get_attribute("title") for name in names], strict=True)]


def test_a_label_in_words_and_a_name_in_code_say_what_they_are(page):
    visit(page, "studies-a")
    label, hc = ("the demo's mHC", "mhc; scheme mhc_demo"), ("hc", "scheme hc_demo")
    mhc = ("mhc", "the demo's mHC; scheme mhc_demo")
    assert titles_in(page, "#studies-a tbody") == [hc, label, mhc]
    words = find(page, "#studies-a > p:not(:has(a))")[-1]
    assert words.text == (
        "In words, the demo's mHC ends below hc; hc-like is no name, and mhc and hc are words here."
    )
    assert titles_in(page, "#studies-a > p") == [label, hc]


def test_a_name_that_is_a_plain_word_says_nothing_outside_code(page):
    visit(page, "studies-b")
    own = "scheme mhc_demo; H_res sinkhorn (iterations 3)"
    assert titles_in(page, "#studies-b > p") == [
        ("scaled", f"scaled branches (two); {own}"),
        ("scaled branches (two)", f"scaled; {own}"),
    ]
    assert find(page, "#studies-b > p > code > abbr")[0].text == "scaled"
    assert not find(page, "#results td:first-child abbr")  # names, where no label is


@pytest.mark.parametrize("column", [0, 1, 2])
def test_a_variant_in_the_table_of_its_study_opens_its_card(page, column):
    visit(page, "studies-a")
    buttons = until(lambda: find(page, "#studies-a button.card"))
    assert len(buttons) == 6
    buttons[3 + column].send_keys("\ue007")
    (dialog,) = until(lambda: find(page, "dialog[open]"))
    assert find(page, "dialog[open] h2")[0].text == "the demo's mHC (mhc)"
    shown = {
        row.find_element("css selector", "th").text: row.find_element("css selector", "td").text
        for row in find(page, "dialog[open] tbody tr")
    }
    assert shown["scheme"] == "mhc_demo"
    assert {"formula", "source", "H_res"} <= set(shown)
    assert [key for key in shown if re.fullmatch(r"parameters, \d+ layers?", key)]
    page.switch_to.active_element.send_keys("\ue00c")  # Escape
    until(lambda: not dialog.is_displayed())


def test_pointing_at_a_line_shows_the_number_of_the_table(page, plot, results):
    """The pointer is put where a step of a run must stand, by the axes that plotly drew."""
    from selenium.webdriver import ActionChains

    loss = losses_of(results, variant="baseline", seed=0)[50]
    x, y = page.execute_script(
        "const plot = document.querySelector('.plot'), layout = plot._fullLayout;"
        "const box = plot.getBoundingClientRect();"
        "return [box.x + layout.xaxis._offset + layout.xaxis.d2p(50),"
        "        box.y + layout.yaxis._offset + layout.yaxis.d2p(arguments[0])]",
        loss,
    )
    pointer = ActionChains(page)
    pointer.w3c_actions.pointer_action.move_to_location(int(x) - 30, int(y) - 30)
    pointer.w3c_actions.pointer_action.move_to_location(round(x), round(y))
    pointer.perform()
    until(lambda: find(page, ".plot .hovertext"))
    lines = [line.text for line in find(page, ".plot .hovertext tspan")]
    assert lines == ["step 50", str(float(f"{loss:.5g}"))]
    assert find(page, ".plot .hovertext .name")[0].text == "baseline, seed 0"


def test_a_variant_is_switched_off_as_a_whole(page, plot):
    (box,) = find(page, ".legend input[name=hc]")
    box.click()
    assert {line["name"] for line in traces(page)} == {"baseline", "mhc"}
    box.click()
    assert {line["name"] for line in traces(page)} == {"baseline", "hc", "mhc"}
    find(page, "[data-none]")[0].click()
    assert traces(page) == []
    find(page, "[data-all]")[0].click()
    assert len(traces(page)) == 6


def test_a_variant_goes_by_its_label_and_its_name_is_the_tooltip(page, plot):
    entries = [(e.text, e.get_attribute("title")) for e in find(page, ".legend label")]
    assert entries == [
        ("baseline", "baseline: scheme plain"),
        ("hc", "hc: scheme hc_demo"),
        ("the demo's mHC", "mhc: the demo's mHC; scheme mhc_demo"),
    ]
    choose(page, "depth", "32")
    assert find(page, ".notes li")[-1].text == "Not run here: baseline, the demo's mHC"


def test_a_double_click_shows_a_variant_alone_and_is_one_step(page, plot):
    from selenium.webdriver import ActionChains

    before = page.current_url
    ActionChains(page).double_click(find(page, ".legend label")[1]).perform()
    assert {line["name"] for line in traces(page)} == {"hc"}
    page.back()
    until(lambda: {line["name"] for line in traces(page)} == {"baseline", "hc", "mhc"})
    assert page.current_url == before


@pytest.mark.parametrize("key", ["\ue007", " "], ids=["enter", "space"])
def test_the_keyboard_shows_a_variant_alone(page, plot, key):
    find(page, ".legend input[name=mhc]")[0].send_keys("\t")
    button = page.switch_to.active_element
    assert button.get_attribute("aria-label") == "only the demo's mHC"
    until(lambda: button.value_of_css_property("opacity") == "1")
    button.send_keys(key)
    assert {line["name"] for line in traces(page)} == {"mhc"}


# --- the address --------------------------------------------------------------------------------


def shown(page):
    """What the curves show, as their controls and lines have it."""
    controls = page.execute_script(
        "const form = document.querySelector('.controls').elements;"
        "return ['metric', 'depth', 'platform', 'axis'].map(name => form[name].value)"
    )
    return controls, sorted({line["name"] for line in traces(page)})


def go(page, steps):
    """As a reader's buttons do, which skip what no click has led to."""
    page.execute_script("history.go(arguments[0])", steps)


def settle(page, url):
    page.get("about:blank")
    page.get(url)
    until(lambda: find(page, ".plot .scatterlayer .trace"))


def test_a_copied_address_shows_the_same(page, plot):
    first = shown(page)
    choose(page, "depth", "16")
    choose(page, "platform", "mlx")
    choose(page, "axis", "linear")
    find(page, ".legend input[name=mhc]")[0].click()
    now = shown(page)
    assert now == (["loss", "16", "mlx", "linear"], ["baseline"])
    assert now != first
    settle(page, page.current_url)
    assert shown(page) == now
    assert not find(page, ".legend input[name=mhc]")[0].is_selected()
    assert find(page, ".legend input[name=hc]")[0].is_selected()


def test_back_and_forward_go_through_what_was_shown(page, plot):
    states = [shown(page)]
    for name, option in (("depth", "16"), ("platform", "mlx"), ("axis", "linear")):
        choose(page, name, option)
        states.append(shown(page))
    for state in reversed(states[:-1]):
        go(page, -1)
        until(lambda state=state: shown(page) == state)
    for state in states[1:]:
        go(page, 1)
        until(lambda state=state: shown(page) == state)


def test_what_is_shown_at_first_is_not_in_the_address(page, plot):
    choose(page, "depth", "16")
    assert "?" not in page.current_url


@pytest.mark.parametrize("state", ["", "?depth=32"])
def test_an_address_of_an_anchor_leads_to_it(page, results, state):
    on_a_phone(page)  # where the page is long enough
    page.get("about:blank")
    page.get((results / "index.html").as_uri() + f"#explorer{state}")
    top = "return document.querySelector('#explorer').getBoundingClientRect().top"
    until(lambda: 0 <= page.execute_script(top) < 400)
    until(lambda: find(page, ".plot .scatterlayer .trace"))
    assert shown(page)[0][1] == ("32" if state else "16")


def test_a_link_keeps_what_the_explorer_shows(page, plot):
    visit(page, "comparison")
    assert page.current_url.endswith("#comparison?depth=8")
    go(page, -1)
    until(lambda: not page.current_url.endswith("#comparison?depth=8"))
    go(page, -1)
    until(lambda: shown(page)[0][1] == "16")


def test_reading_on_changes_the_address_and_adds_no_step(page):
    on_a_phone(page, height=300)
    steps = page.execute_script("return history.length")
    page.execute_script("document.querySelector('#results--numbers').scrollIntoView()")
    until(lambda: page.current_url.endswith("#results--numbers"))
    page.execute_script("scrollTo(0, 0)")
    until(lambda: page.current_url.endswith("#results"))
    assert page.execute_script("return history.length") == steps


@pytest.mark.parametrize(
    "state",
    [
        "#%?depth=%",
        "#nowhere?study=x&depth=7&metric=x&axis=&platform=9&hidden=x&seeds=y&against=z",
        "#?a.depth=8",
    ],
)
def test_an_address_that_makes_no_sense_shows_what_is_there_at_first(page, results, state):
    page.get("about:blank")
    page.get((results / "index.html").as_uri() + state)
    assert shown_sections(page) == ["results"]
    visit(page, "explorer")
    until(lambda: find(page, ".plot .scatterlayer .trace"))
    assert shown(page) == (["loss", "16", "torch", "log"], ["baseline", "hc", "mhc"])


def test_at_first_it_shows_the_depth_at_which_most_variants_can_be_compared(page, results):
    variants = {}
    for row in rows(results, study="a"):
        variants.setdefault(int(row["depth"]), set()).add(row["variant"])
    page.execute_script("location.replace('#explorer')")
    until(lambda: find(page, ".plot .scatterlayer .trace"))
    depth = int(find(page, ".controls [name=depth]")[0].get_attribute("value"))
    assert depth == max(variants, key=lambda one: (len(variants[one]), one)) < max(variants)


# --- axes and marks -----------------------------------------------------------------------------


def test_the_axis_is_switched_between_linear_and_logarithmic(page, plot):
    kind = "return document.querySelector('.plot')._fullLayout.yaxis.type"
    assert page.execute_script(kind) == "log"  # as figures have the loss
    choose(page, "axis", "linear")
    assert page.execute_script(kind) == "linear"
    choose(page, "axis", "log")
    assert page.execute_script(kind) == "log"


def test_a_run_that_diverged_has_a_gap_and_a_mark(page, plot):
    choose(page, "depth", "16")
    gone = [line for line in traces(page) if line["name"] == "hc"]
    assert len(gone) == 2
    for line in gone:
        assert {x for x, y in zip(line["x"], line["y"], strict=True) if y is None} == {
            x for x in line["x"] if x >= 20
        }
    assert [mark.text for mark in find(page, ".plot .annotation")] == ["✕"]
    assert find(page, ".notes li")[0].text == "✕ hc: loss not finite from step 20 (seeds 0, 1)"


def test_a_point_that_no_line_reaches_is_a_dot(page, plot):
    choose(page, "depth", "32")
    (line,) = traces(page)
    assert line["y"] == [4.0] + [None] * (len(line["y"]) - 1)
    (dot,) = find(page, ".plot .points path")
    assert dot.size["width"] > 5


# --- screens ------------------------------------------------------------------------------------


def on_a_phone(page, height=844):
    size = {"width": 390, "height": height, "deviceScaleFactor": 1, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def test_nothing_scrolls_sideways_on_a_phone(page, results):
    on_a_phone(page)
    visit(page, "explorer")
    until(lambda: find(page, ".plot .scatterlayer .trace"))
    width = "return [document.scrollingElement.scrollWidth, innerWidth]"
    assert page.execute_script(width) == [390, 390]
    visit(page, "results")
    assert page.execute_script(width) == [390, 390]
    # The wide table scrolls by itself.
    box = (
        "const b = document.querySelectorAll('.table')[1]; return [b.scrollWidth > b.clientWidth, "
    )
    assert page.execute_script(box + "b.getBoundingClientRect().right <= innerWidth]") == [
        True,
        True,
    ]


def test_on_a_phone_verdicts_are_seen_without_scrolling_sideways(page):
    on_a_phone(page)
    open_claims(page, "comparison")
    cells = find(page, "#comparison tbody tr:first-child td")
    shown = sorted((cell.rect["y"], cell.text) for cell in cells)
    # The name of a row first, then its verdict.
    assert [text for _, text in shown][:2] == ["one", "reproduced, at another scale"]
    for cell in cells:
        assert 0 <= cell.rect["x"] < cell.rect["x"] + cell.rect["width"] <= 390
    title = "return getComputedStyle(arguments[0], '::before').content"
    assert page.execute_script(title, cells[4]) == '"verdict: "'
    empty = find(page, "#comparison tbody tr:nth-child(2) td")[3]
    assert not empty.is_displayed()


def test_on_a_phone_the_first_column_of_numbers_stays(page):
    on_a_phone(page)
    box = find(page, "#results .table")[1]
    page.execute_script("arguments[0].scrollLeft = 200", box)
    first, second = box.find_elements("css selector", "tbody tr:first-child td")[:2]
    x = "return arguments[0].getBoundingClientRect().x"
    assert page.execute_script(x, first) == page.execute_script(x, box)
    assert page.execute_script(x, second) < 0


def test_on_a_phone_words_of_a_table_are_whole(page):
    """In the first column of one of numbers, and of a row that opens."""
    on_a_phone(page)
    lines = (
        "const range = document.createRange(); range.selectNodeContents(arguments[0]);"
        "return new Set([...range.getClientRects()].map(box => Math.round(box.top))).size"
    )
    names = find(page, "#results table:not(.answers) tbody td:first-child")
    find(page, ROW)[0].click()
    until(lambda: find(page, "dialog[open] tbody th"))
    names += find(page, "dialog[open] tbody th")
    short = [name for name in names if len(name.text) < 15]
    assert len(short) > 10
    assert {name.text: page.execute_script(lines, name) for name in short} == {
        name.text: 1 for name in short
    }


def test_on_a_phone_an_enlarged_figure_is_larger_than_the_screen_and_scrolls(page):
    on_a_phone(page)
    (small,) = find(page, "main .enlarge")
    page.execute_script("arguments[0].scrollIntoView()", small)
    small.click()
    (dialog,), (image,) = find(page, "dialog[open]"), find(page, "dialog[open] img")
    assert image.size["width"] > 2 * small.size["width"]
    assert dialog.size["width"] <= 390
    page.execute_script("arguments[0].scrollLeft = 300", dialog)
    (button,) = find(page, "dialog[open] button")
    x = page.execute_script("return arguments[0].getBoundingClientRect().x", button)
    assert 0 <= x < 390
    button.click()
    assert not dialog.is_displayed()


def test_numbers_stand_at_the_right_and_words_at_the_left(page):
    align = "return getComputedStyle(arguments[0]).textAlign"
    cells = find(page, "#results table:not(.answers) tbody tr:first-child td")
    assert [page.execute_script(align, cell) for cell in cells] == [
        "left", "right", "right", "right", "left",
    ]  # fmt: skip


def test_on_a_large_screen_a_table_is_a_table(page):
    open_claims(page, "comparison")
    first, second = find(page, "#comparison tbody tr:first-child td")[:2]
    assert first.rect["y"] == second.rect["y"]


def test_on_a_phone_the_contents_open_lead_and_close(page):
    on_a_phone(page)
    (button,), (nav,) = find(page, "header button"), find(page, "nav")
    assert not nav.is_displayed()
    button.click()
    assert nav.is_displayed()
    find(page, "nav a[href='#comparison']")[0].click()
    assert not nav.is_displayed()
    (section,) = find(page, "#comparison")
    until(lambda: section.rect["y"] - page.execute_script("return scrollY") < 844)


def luminance(page, selector):
    """From 0, black, to 255: of an element's background."""
    colour = page.execute_script(
        "return getComputedStyle(document.querySelector(arguments[0])).backgroundColor", selector
    )
    return sum(map(float, colour[4:-1].split(","))) / 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_follow_the_reader(page, scheme):
    scheme_of = {"name": "prefers-color-scheme", "value": scheme}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme_of]})
    body = luminance(page, "body")
    assert body > 230 if scheme == "light" else body < 40
    for drawn in (".plot", ".enlarge"):  # in the dark a white card is turned
        assert luminance(page, drawn) > 230
        style = f"return getComputedStyle(document.querySelector('{drawn}')).filter"
        assert ("invert" in page.execute_script(style)) == (scheme == "dark")


def test_what_plotly_draws_is_turned_once_in_the_dark(page, plot):
    """Its elements have names of classes of their own, which the page's styles must not meet."""
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [dark]})
    choose(page, "values", "difference")  # of which the axis has a title of two lines
    until(lambda: find(page, ".plot .ytitle tspan"))
    filters = (
        "return [...new Set([...document.querySelectorAll('.plot *')]"
        ".map(e => getComputedStyle(e).filter))]"
    )
    assert page.execute_script(filters) == ["none"]
