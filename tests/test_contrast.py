"""Every line and text has a contrast of 4.5 : 1, in light and in dark, from the colours alone.

`test_browser.py` measures the same of the pixels of the page.
"""

import re

import pytest

from contrast import contrast, pixel_of, turned
from fathom.config import load_config
from fathom.report.figures.contrasts import APART, NEUTRAL
from fathom.report.figures.style import COLOURS, GREY, PALE, SPARE_COLOURS, colour_of

LEAST = 4.5
LINES = sorted({*COLOURS.values(), *SPARE_COLOURS, GREY, PALE, NEUTRAL})
WHITE, BLACK = (255, 255, 255), (0, 0, 0)


def test_contrast_by_hand():
    """#767676 is the lightest grey that WCAG's examples allow on white."""
    assert contrast(WHITE, BLACK) == pytest.approx(21)
    assert contrast(pixel_of("#767676"), WHITE) == pytest.approx(4.54, abs=0.005)
    assert contrast(pixel_of("#777777"), WHITE) < LEAST
    assert turned(WHITE, 1) == pytest.approx(BLACK, abs=1e-9)


def test_every_line_has_contrast_in_light():
    assert APART == "black"
    assert [line for line in LINES if contrast(pixel_of(line), WHITE) < LEAST] == []


def test_every_line_has_contrast_in_dark(pytestconfig):
    page = pytestconfig.rootpath / "report/page"
    assert "filter: invert(1) hue-rotate(180deg) url(#lift)" in (page / "page.css").read_text()
    template = (page / "index.html.j2").read_text()
    (exponent,) = {float(e) for e in re.findall(r'<feFunc[RGB][^>]*exponent="([\d.]+)"', template)}
    ground = turned(WHITE, exponent)
    assert [
        line for line in LINES if contrast(turned(pixel_of(line), exponent), ground) < LEAST
    ] == []


def test_variants_of_a_study_have_colours_of_their_own(pytestconfig):
    """But for one connection at several rates: it has the same colour in every figure."""
    root, alike = pytestconfig.rootpath, {}
    config = load_config([root / "config.yaml", root / "workflow/presets/reference.yaml"])
    for name, study in config.studies.items():
        for variant in study.compared:
            changes = {k: v for k, v in study.changes(variant).items() if k != "optimizer"}
            network = config.connection(name, variant).model_dump_json(), str(changes)
            alike.setdefault((name, colour_of(variant)), {}).setdefault(network, variant)
    shared = {place: [*found.values()] for place, found in alike.items() if len(found) > 1}
    assert shared == {}


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("ground", ["page", "shade"])
def test_every_text_of_the_page_has_contrast(pytestconfig, scheme, ground):
    css = (pytestconfig.rootpath / "report/page/page.css").read_text()
    found = re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\)", css)
    colours = {name: pixel_of(both[scheme]) for name, *both in found}
    for text in ("text", "quiet", "link"):
        assert contrast(colours[text], colours[ground]) >= LEAST, text
