"""The page in a real browser, opened from disk: display, pointer and clicks."""

import csv
import io
import itertools
import math
import shutil
from collections import defaultdict
from functools import partial

import pytest

from tests.report.pages import make_page, trained, write_claims, write_results
from tests.support.commands import wait_until

OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking")
CELLS = ("| a metric ", "|---:", "| [1.2345 ± 0.0012](tables/summary.csv#L2) ")
WIDE = "".join(f"{cell * 12}|\n" for cell in CELLS)
RESULTS = f"""# Results

`code` and [a row](tables/summary.csv#L2), [the study](studies/a.md).

| question | answer | evidence |
|---|---|---|
| {"Does it? " * 9} | **no** | {"a long_name_without_any_space_" * 4} |

{WIDE}
## Scorecard

| claim |
|---|
| one |

"""
PHONE, DESK = (390, 844), (1280, 900)


def losses(start, steps=150):
    return [start * math.exp(-i / 40) + i / 3e4 for i in range(steps)]


START = {"baseline": 4.0, "hc": 5.0, "mhc": 3.0}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page") / "results"
    runs = [
        trained(losses(START[variant] * (1 + seed)), variant, depth, seed)
        for variant, depth, seed in itertools.product(START, (8, 16), (0, 1))
        if (variant, depth) != ("hc", 16)
    ]
    runs += [trained(losses(4.0)[:20] + [math.nan] * 130, "hc", 16)]
    runs += [trained([4.0, 2.0, 1.0], "mhc", study="b")]
    reports = {"RESULTS.md": RESULTS, "studies/a.md": "# a\n\n## Part\n\nWords.\n"}
    config = write_results(folder, runs, reports, ("a", "b"))
    write_claims(folder, ["reproduced", "contradicted", "contradicted"])
    make_page(config.model_copy(update={"labels": {"mhc": "the demo's mHC"}}))
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
def visit(browser, results):
    """Function that opens the page at an address; the console must be empty at the end."""

    def visit(address="", size=DESK):
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1}
        metrics["mobile"] = size == PHONE
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        browser.get("about:blank")
        browser.get((results / "index.html").as_uri() + address)
        if "#explorer" in address:
            until(lambda: browser.execute_script("return Boolean(shown?.rows.length)"))
        return browser

    yield visit
    assert browser.get_log("browser") == []


until = partial(wait_until, seconds=20)


def find(page, selector):
    return page.find_elements("css selector", selector)


def choose(page, **choices):
    """Choose in the form of the explorer, as a reader does; wait for the new curves."""
    from selenium.webdriver.support.ui import Select

    for name, value in choices.items():
        page.execute_script("shown = null")
        Select(find(page, f"[name={name}]")[0]).select_by_value(value)
        until(lambda: page.execute_script("return Boolean(shown)"))


def drawn(page):
    """Shown curves, from the CSV: {(variant, seed): {x: value}}; a band has the number of seeds."""
    text = page.execute_script("return csvOf(shown)")
    curves = defaultdict(dict)
    for row in csv.DictReader(io.StringIO(text)):
        axis = row.get("step", row["depth"])
        value = row.get("value", row.get("mean"))
        curves[row["variant"], int(row.get("seed", row.get("seeds")))][int(axis)] = float(value)
    return curves


def near(value):
    """The value within two roundings to five digits: of the table and of the computed number."""
    return pytest.approx(value, rel=1e-4)


def test_curves_match_the_runs(visit):
    page = visit("#explorer")
    curves = drawn(page)
    assert set(curves) == {
        (variant, seed) for variant in ("baseline", "mhc") for seed in (0, 1)
    } | {("hc", 0)}
    own = losses(8.0)
    assert {0, 1, 149} <= set(curves["baseline", 1])
    assert curves["baseline", 1] == {step: near(own[step]) for step in curves["baseline", 1]}
    assert max(curves["hc", 0]) < 20
    (note,) = [note.text for note in find(page, "#notes li")]
    assert note == "✕ hc, 16 layers: loss not finite from step 20 (seed 0)"
    choose(page, seeds="band")
    assert drawn(page)["mhc", 2][0] == near(math.sqrt(3.0 * 6.0))  # losses: the geometric mean
    choose(page, values="ratio", seeds="each")
    for seed, own in enumerate((losses(4.0), losses(8.0))):  # over plain, seed by seed
        assert drawn(page)["mhc", seed][149] == near(losses(3.0 * (1 + seed))[149] / own[149])
    choose(page, values="difference")
    # Both are below 0.2 and rounded to five digits: each is off by at most 5e-6.
    assert drawn(page)["mhc", 1][149] == pytest.approx(losses(6.0)[149] - own[149], abs=1.1e-5)
    choose(page, values="own", against="depth", metric="loss_final")
    assert drawn(page)["hc", 0] == {8: near(losses(5.0)[149])}
    assert drawn(page)["baseline", 0] == dict.fromkeys((8, 16), near(losses(4.0)[149]))


def test_points_are_drawn_at_their_values(visit):
    """Positions follow from the ends of the axes; the tooltip shows the value of the table."""
    from selenium.webdriver import ActionChains

    page = visit("#explorer")
    scale = "const y = shown.chart.view.scale('y'); return [y.type, ...y.domain(), ...y.range()]"
    kind, low, high, bottom, top = page.execute_script(scale)
    loss = losses(4.0)[149]
    said = "step: 149;", f"variant: baseline; seed: 0; loss: {loss:.5g}"
    marks = {
        mark.get_attribute("aria-label"): mark for mark in find(page, "#plot path[aria-label]")
    }
    (point,) = [mark for label, mark in marks.items() if all(words in label for words in said)]
    height = float(point.get_attribute("transform")[10:-1].split(",")[1])
    assert kind == "log"
    share = math.log(loss / low) / math.log(high / low)
    assert height == pytest.approx(bottom + share * (top - bottom), abs=0.01)
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", point)
    ActionChains(page).move_to_element(point).perform()
    cells = until(lambda: [cell.text for cell in find(page, "#vg-tooltip-element.visible td")])
    assert {"149", f"{loss:.5g}"} <= set(cells)
    choose(page, axis="linear")
    assert page.execute_script(scale)[0] == "linear"


def test_address_keeps_the_view(visit):
    page = visit("#explorer")
    choose(page, depth="8", seeds="band")
    page.execute_script("shown = null")
    find(page, "[name=variant][value=hc]")[0].click()
    until(lambda: page.execute_script("return Boolean(shown)"))
    before = drawn(page)
    assert {variant for variant, _ in before} == {"baseline", "mhc"}
    address = page.current_url.partition("index.html")[2]
    assert address.endswith("#explorer")
    assert drawn(visit(address)) == before
    labels = [label.text for label in find(page, "#variants label")]
    assert labels == ["baseline", "hc", "the demo's mHC"]
    wrong = drawn(visit("?study=x&depth=%&metric=x&seeds=y&variant=mhc#explorer"))
    assert {variant for variant, _ in wrong} == {"mhc"}
    page.execute_script("shown = null")
    find(page, "[data-check=none]")[0].click()
    until(lambda: page.execute_script("return Boolean(shown)"))
    assert drawn(page) == {}


def test_one_section_is_shown_and_marked(visit):
    page = visit(size=PHONE)
    visible = """return [[...document.querySelectorAll('main > section')]
      .filter((one) => one.checkVisibility()).map(({ id }) => `#${id}`),
      [...document.querySelectorAll('nav li a[aria-current]')].map(({ hash }) => hash)]"""
    (contents,) = find(page, "#contents")
    for section, part in (("#results", ""), ("#studies-a", "--part"), ("#results", "")):
        if contents.get_attribute("open") is None:
            contents.find_element("tag name", "summary").click()
        link = f"document.querySelector('#contents li a[href=\"{section}{part}\"]').click()"
        page.execute_script(link)
        until(lambda s=section: page.execute_script(visible) == [[s], [s]])
        assert page.current_url.endswith(section + part)


def test_claims_are_filtered_and_a_click_shows_the_row(visit):
    from selenium.webdriver.support.ui import Select

    page = visit("#results--scorecard")
    rows = find(page, "#claims tbody tr")
    assert [row.text[:7] for row in rows] == ["Claim 0", "Claim 1", "Claim 2"]
    Select(find(page, "[name=verdict]")[0]).select_by_visible_text("contradicted (2)")
    until(lambda: [row.is_displayed() for row in rows] == [False, True, True])
    find(page, "[name=words]")[0].send_keys("NATS OF LAST LOSS 2.5")
    until(lambda: [row.is_displayed() for row in rows] == [False, False, True])
    find(page, "#claims tr:not([hidden]) a[data-row]")[0].click()
    until(lambda: find(page, "dialog[open]"))
    cells = [tuple(cell.text for cell in row.find_elements("css selector", "th, td"))
            for row in find(page, "dialog tr")]  # fmt: skip
    assert {("rule of the test", "level"), ("whether it decides", "yes")} <= set(cells)
    find(page, "dialog button")[0].click()
    assert not find(page, "dialog[open]")


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
@pytest.mark.parametrize("address", ["#results", "#explorer"])
def test_nothing_is_cut(visit, address, size):
    """No element reaches beyond the screen, unless it is in a box that scrolls."""
    page = visit(address, size)
    beyond = """return [...document.querySelectorAll('main *')].filter((one) => {
      const box = one.closest('.table, figure, pre, p:has(> img)')?.getBoundingClientRect();
      const { left, right, width } = box ?? one.getBoundingClientRect();
      return width && one.checkVisibility() && (left < 0 || right > innerWidth);
    }).map((one) => one.outerHTML.slice(0, 80))"""
    assert page.execute_script(beyond) == []
    assert page.execute_script("return document.scrollingElement.scrollWidth <= innerWidth")
    if address == "#results":
        box = find(page, ".table")[1]  # the wide one
        page.execute_script("arguments[0].scrollLeft = 9999", box)
        last = box.find_elements("tag name", "td")[-1].rect
        assert last["x"] + last["width"] <= size[0]
