"""Every line and text has a contrast of 4.5 : 1 in light and dark, computed from colours.

WCAG 2.2 defines the contrast; `turned` is the page's filter for drawings in the dark.
"""

import re

import pytest

from fathom_study.config import load_config
from fathom_study.report.figures.palette import COLOURS, GREY, PALE, SPARE_COLOURS, colour_of

LEAST = 4.5
LINES = sorted({*COLOURS.values(), *SPARE_COLOURS, GREY, PALE})
WHITE, BLACK = (255, 255, 255), (0, 0, 0)


def luminance(pixel):
    """The relative luminance of red, green and blue in 0 to 255."""
    parts = [c / 255 for c in pixel[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(*colours):
    """The contrast of two pixels, from 1 to 21."""
    low, high = sorted(map(luminance, colours))
    return (high + 0.05) / (low + 0.05)


def pixel_of(colour):
    """(red, green, blue) of a colour such as '#0b5c9e'."""
    digits = colour.removeprefix("#")
    return tuple(int(digits[i : i + 2], 16) for i in (0, 2, 4))


# The matrix of hue-rotate(180deg) in the specification of CSS filters: cos is -1, sin is 0.
HALF_TURN = ((-0.574, 1.430, 0.144), (0.426, 0.430, 0.144), (0.426, 1.430, -0.856))


def turned(pixel, lifts=((1, 0),) * 3):
    """A pixel after invert(1), hue-rotate(180deg) and a line (slope, intercept) per channel."""
    inverse = [1 - c / 255 for c in pixel]
    rotated = (sum(w * c for w, c in zip(row, inverse, strict=True)) for row in HALF_TURN)
    return tuple(
        255 * (slope * min(max(c, 0), 1) + intercept)
        for c, (slope, intercept) in zip(rotated, lifts, strict=True)
    )


def test_contrast_by_hand():
    """#767676 is the lightest grey that WCAG's examples allow on white."""
    assert contrast(WHITE, BLACK) == pytest.approx(21)
    assert contrast(pixel_of("#767676"), WHITE) == pytest.approx(4.54, abs=0.005)
    assert contrast(pixel_of("#777777"), WHITE) < LEAST
    assert turned(WHITE) == pytest.approx(BLACK, abs=1e-9)


def test_every_line_has_contrast_in_light():
    assert [line for line in LINES if contrast(pixel_of(line), WHITE) < LEAST] == []


def test_every_line_has_contrast_in_dark(pytestconfig):
    page = pytestconfig.rootpath / "report/page"
    assert "filter: invert(1) hue-rotate(180deg) url(#lift)" in (page / "page.css").read_text()
    template = (page / "index.html.j2").read_text()
    numbers = re.findall(r'<feFunc[RGB] type="linear" slope="(.+?)" intercept="(.+?)"', template)
    lifts = [(float(slope), float(intercept)) for slope, intercept in numbers]
    ground = turned(WHITE, lifts)
    (dark,) = re.findall(r"--page: light-dark\(.*, (#\w{6})\)", (page / "page.css").read_text())
    assert ground == pytest.approx(pixel_of(dark), abs=0.5)
    assert turned(BLACK, lifts) == pytest.approx(WHITE, abs=0.5)
    assert [line for line in LINES if contrast(turned(pixel_of(line), lifts), ground) < LEAST] == []


def test_variants_of_a_study_have_different_colours(pytestconfig):
    """Except one connection at several rates, which has the same colour in every figure."""
    root, alike = pytestconfig.rootpath, {}
    config = load_config([root / "config.yaml", root / "workflow/presets/reference.yaml"])
    for name, study in config.studies.items():
        for variant in study.compared:
            changes = {k: v for k, v in study.changes(variant).items() if k != "optimizer"}
            network = config.connection(name, variant).model_dump_json(), str(changes)
            alike.setdefault((name, colour_of(variant)), {}).setdefault(network, variant)
    shared = {place: [*networks.values()] for place, networks in alike.items() if len(networks) > 1}
    assert shared == {}


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("ground", ["page", "shade"])
def test_every_text_of_the_page_has_contrast(pytestconfig, scheme, ground):
    css = (pytestconfig.rootpath / "report/page/page.css").read_text()
    matches = re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\)", css)
    colours = {name: pixel_of(both[scheme]) for name, *both in matches}
    for text in ("text", "quiet", "link"):
        assert contrast(colours[text], colours[ground]) >= LEAST, text
