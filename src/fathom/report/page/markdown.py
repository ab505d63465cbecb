"""Markdown → the sections of the page. Only this module knows markdown-it."""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markupsafe import Markup

from fathom.report.page.inline import packed

ANCHOR = re.compile(r'<a id="([\w.-]+)"></a>')
"""The only HTML that the reports use; whatever else looks like HTML is shown as text."""

MARK = re.compile(r"^<!-- [a-z ]+ -->\n", re.MULTILINE)
"""A line that marks where a table of a document is put: see `fathom.report.definitions`."""

ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)
"""How a link starts that leads to no file here."""

PICTURE = re.compile(
    r'<p>(<img [^>]*>|<span class="missing">[^<]*</span>)</p>\n'
    r"(?:<p><em>((?:(?!</?em>|</p>).)*)</em></p>\n)?",
    re.DOTALL,
)
"""A paragraph of one image, and one in italics after it, as this module renders them."""

FIGURES, STUDIES = "figures", "studies"

TABLE_OPEN = '<div class="table" role="region" aria-label="Table" tabindex="0">\n<table>\n'
"""A box that scrolls by itself, with the keyboard too."""

RIGHT = "text-align:right"
"""The style that the parser gives cells of columns of numbers."""

SIZE = re.compile(r'<svg\b[^>]* width="([\d.]+)(?:pt)?" height="([\d.]+)(?:pt)?"')
PLACES = re.compile(r'\b(?:d|x|y)="[^"]*"')
LENGTH = re.compile(r"-?\d+\.\d+")
"""Of a drawing: its size, where its lines and letters are, and a number of those."""


@dataclass(frozen=True)
class Section:
    """What one Markdown file becomes."""

    study: str
    """Whose report it is; empty if it is no study's."""
    anchor: str
    title: str
    introduction: Markup
    """What stands before its first part."""
    parts: Markup
    headings: dict[str, str]
    """The titles of its parts, by anchor."""


def read_sections(
    files: Mapping[str, Path], figures: Path, titles: Mapping[str, str]
) -> list[Section]:
    """A section for each Markdown file; figures are put into them.

    `files`: by their path as seen from the page. `figures`: the folder that `figures/…` in a report
    stands for. `titles`: what people read for the name of a study, which heads its report.
    """
    anchors = {file: _anchor_of(file) for file in files}
    return [
        _section(file, path.read_text(encoding="utf-8"), anchors, figures, titles, lower=i > 0)
        for i, (file, path) in enumerate(files.items())
    ]


def _section(
    file: str,
    text: str,
    anchors: Mapping[str, str],
    figures: Path,
    studies: Mapping[str, str],
    *,
    lower: bool,
) -> Section:
    """The section of one file; with `lower`, its headings are one level below their own."""
    parser, environment = _parser(), {"prefix": anchors[file]}
    tokens = parser.parse(MARK.sub("", text), environment)
    place = PurePosixPath(file)
    study = place.stem if place.parent.name == STUDIES else ""
    opens_part = (token.type == "heading_open" and token.tag == "h2" for token in tokens)
    parts = next((i for i, opens in enumerate(opens_part) if opens), len(tokens))
    titles, headings = _name_headings(tokens, anchors[file])
    names = studies if study else {}
    titles = [_entitle(tokens, title, names.get(title, title)) for title in titles[:1]]
    for token in tokens:
        if lower and token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + 1)}"
        if token.attrGet("style") == RIGHT:  # of thousands of cells: a class is shorter
            token.attrs = {"class": "n"}
        for child in token.children or ():
            if child.type == "link_open":
                child.attrSet("href", _target(str(child.attrGet("href")), file, anchors))
            elif child.type == "image":
                child.meta["html"] = _picture(child, file, figures)

    def rendered(some: list[Token]) -> Markup:
        html = parser.renderer.render(some, parser.options, environment)
        return Markup(PICTURE.sub(_figure, html))  # noqa: S704, the parser escapes

    return Section(
        study,
        anchors[file],
        titles[0] if titles else file,
        rendered(tokens[:parts]),
        rendered(tokens[parts:]),
        headings,
    )


# --- the parser ---------------------------------------------------------------------------------


def _parser() -> MarkdownIt:
    """Markdown as the reports are written in: with tables, anchors, and no other HTML."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.inline.ruler.before("html_inline", "anchor", _anchor)
    rules = {
        "anchor": lambda self, tokens, i, *_: tokens[i].meta["html"],
        "image": lambda self, tokens, i, *_: tokens[i].meta["html"],
        "table_open": lambda *_: TABLE_OPEN,
        "table_close": lambda *_: "</table>\n</div>\n",
    }
    for kind, rule in rules.items():
        parser.add_render_rule(kind, rule)
    return parser


def _anchor(state: StateInline, silent: bool) -> bool:
    """The rule that finds `<a id="…"></a>`."""
    found = ANCHOR.match(state.src, state.pos, state.posMax)
    if not found:
        return False
    if not silent:
        token = state.push("anchor", "", 0)
        token.meta["html"] = f'<a id="{state.env["prefix"]}--{found[1]}"></a>'
    state.pos = found.end()
    return True


# --- anchors and links --------------------------------------------------------------------------


def _slug(heading: str) -> str:
    """The anchor that a code-hosting page gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _anchor_of(file: str) -> str:
    """That of a file's section, from its name and its folder, wherever that is."""
    return _slug("-".join(PurePosixPath(file).with_suffix("").parts[-2:]))


def _name_headings(tokens: Sequence[Token], prefix: str) -> tuple[list[str], dict[str, str]]:
    """Give every heading its anchor; return the titles of the file, and its parts."""
    titles: list[str] = []
    parts: dict[str, str] = {}
    used: dict[str, int] = {}
    for opening, inline in itertools.pairwise(tokens):
        if opening.type != "heading_open":
            continue
        words = "".join(child.content for child in inline.children or ())
        slug = _slug(words)
        again = used[slug] = used.get(slug, -1) + 1
        anchor = f"{prefix}--{slug}" + (f"-{again}" if again else "")
        opening.attrSet("id", anchor)
        if opening.tag == "h1":
            titles.append(words)
        elif opening.tag == "h2":
            parts[anchor] = words
    return titles, parts


def _entitle(tokens: Sequence[Token], name: str, title: str) -> str:
    """Put a title into the first heading, with the name that stood there, small; return it."""
    if title != name:
        heading = next(inline for opens, inline in itertools.pairwise(tokens) if opens.tag == "h1")
        words, small = Token("text", "", 0), Token("html_inline", "", 0)
        words.content, small.content = title, f" <small><code>{escape(name)}</code></small>"
        heading.children = [words, small]
    return title


def _from_page(path: str, file: str) -> str:
    """A path of a link in `file`, as seen from the page."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(file), path))


def _target(href: str, file: str, anchors: Mapping[str, str]) -> str:
    """Where a link of `file` leads on the page: to a section, or to a file beside the page."""
    if ELSEWHERE.match(href):
        return href
    path, _, anchor = href.partition("#")
    target = _from_page(path, file) if path else file
    if target in anchors:
        return f"#{anchors[target]}" + (f"--{anchor}" if anchor else "")
    return f"{target}#{anchor}" if anchor else target


# --- figures ------------------------------------------------------------------------------------


def _picture(image: Token, file: str, figures: Path) -> str:
    """The HTML of an image: with its data, or a line that says that it is not there."""
    name, source = escape(image.content), unquote(str(image.attrGet("src")))
    place = PurePosixPath(_from_page(source, file)).parts
    found = _embedded(figures.joinpath(*place[1:])) if place[:1] == (FIGURES,) else ""
    if not found:
        return f'<span class="missing">The figure {name} is not drawn here.</span>'
    return f'<img alt="{name}" loading="lazy" decoding="async" {found}>'


def _embedded(figure: Path) -> str:
    """The attributes of an image that is a figure, with its drawing; empty if it is not drawn.

    A drawing is sharp at any size, and packed it is smaller than pixels are. Its size keeps its
    place until the page's script unpacks it.
    """
    svg = figure.with_suffix(".svg")
    if not svg.is_file():
        return ""
    drawing = PLACES.sub(_rounded, svg.read_text(encoding="utf-8"))
    size = SIZE.search(drawing)
    width, height = (round(float(length)) for length in size.groups()) if size else (0, 0)
    return f'width="{width}" height="{height}" data-svg="{packed(drawing)}"'


def _rounded(places: re.Match[str]) -> str:
    """Places in a drawing with one digit after the point, far less than a line is wide."""
    return LENGTH.sub(lambda length: f"{float(length[0]):.1f}".removesuffix(".0"), places[0])


def _figure(found: re.Match[str]) -> str:
    """A paragraph of one image as a figure; one in italics after it, its caption."""
    picture, caption = found.groups()
    below = f"<figcaption>{caption}</figcaption>\n" if caption else ""
    return f"<figure>\n{picture}\n{below}</figure>\n"
