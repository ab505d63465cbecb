"""Markdown → the sections of the page. Only this module knows markdown-it."""

from __future__ import annotations

import base64
import itertools
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, unquote

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markupsafe import Markup

ANCHOR = re.compile(r'<a id="([\w.-]+)"></a>')
"""The only HTML that the reports use; whatever else looks like HTML is shown as text."""

ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)
"""How a link starts that leads to no file here."""

FIGURES = "figures"
READABLE = " !$'()*+,-./:;=?@[]^_`{|}~"
"""What may stand as it is in a data: address, between double quotes."""

BULKIER = 3
"""An SVG of many curves is longer still."""


@dataclass(frozen=True)
class Heading:
    """An entry of the contents."""

    title: str
    anchor: str


@dataclass(frozen=True)
class Section:
    """What one Markdown file becomes."""

    name: str
    """Of the file, without ending."""
    anchor: str
    title: str
    introduction: Markup
    """What stands before its first part."""
    parts: Markup
    headings: list[Heading]
    """Of its parts."""


def sections_of(files: Sequence[str], folder: Path, figures: Path) -> list[Section]:
    """A section for each Markdown file, named from `folder`; figures are put into them.

    `figures`: the folder that `figures/…` in a report stands for.
    """
    anchors = {file: _slug(file.removesuffix(".md").replace("/", "-")) for file in files}
    return [
        _section(file, (folder / file).read_text(encoding="utf-8"), anchors, figures, lower=i > 0)
        for i, file in enumerate(files)
    ]


def _section(
    file: str, text: str, anchors: Mapping[str, str], figures: Path, *, lower: bool
) -> Section:
    """The section of one file; with `lower`, its headings are one level below their own."""
    parser, environment = _parser(), {"prefix": anchors[file]}
    tokens = parser.parse(text, environment)
    parts = next((i for i, token in enumerate(tokens) if _opens(token, "h2")), len(tokens))
    titles, headings = _name_headings(tokens, anchors[file])
    for token in tokens:
        if lower and token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + 1)}"
        for child in token.children or ():
            if child.type == "link_open":
                child.attrSet("href", _target(str(child.attrGet("href")), file, anchors))
            elif child.type == "image":
                child.meta["html"] = _picture(child, file, figures)

    def rendered(some: list[Token]) -> Markup:
        html = parser.renderer.render(_with_figures(some, parser), parser.options, environment)
        return Markup(html)  # noqa: S704, the parser escapes

    return Section(
        PurePosixPath(file).stem,
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
    for kind, rule in (
        ("anchor", _kept),
        ("image", _kept),
        ("table_open", _table_open),
        ("table_close", _table_close),
    ):
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


def _kept(
    renderer: RendererHTML,
    tokens: Sequence[Token],
    i: int,
    options: Mapping[str, Any],
    environment: Mapping[str, Any],
) -> str:
    """What was put beside the token, as it is."""
    return tokens[i].meta["html"]


def _table_open(*_: object) -> str:
    """A box that scrolls by itself, with the keyboard too."""
    return '<div class="table" role="region" aria-label="Table" tabindex="0">\n<table>\n'


def _table_close(*_: object) -> str:
    return "</table>\n</div>\n"


# --- anchors and links --------------------------------------------------------------------------


def _opens(token: Token, tag: str) -> bool:
    return token.type == "heading_open" and token.tag == tag


def _slug(heading: str) -> str:
    """The anchor that a code-hosting page gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _name_headings(tokens: Sequence[Token], prefix: str) -> tuple[list[str], list[Heading]]:
    """Give every heading its anchor; return the titles of the file, and its parts."""
    titles: list[str] = []
    parts: list[Heading] = []
    used: dict[str, int] = {}
    for opening, inline in itertools.pairwise(tokens):
        if opening.type != "heading_open":
            continue
        words = "".join(child.content for child in inline.children or ())
        slug = _slug(words)
        again = used[slug] = used.get(slug, -1) + 1
        heading = Heading(words, f"{prefix}--{slug}" + (f"-{again}" if again else ""))
        opening.attrSet("id", heading.anchor)
        if opening.tag == "h1":
            titles.append(words)
        elif opening.tag == "h2":
            parts.append(heading)
    return titles, parts


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
    return f'<img alt="{name}" src="{found}">'


def _embedded(figure: Path) -> str:
    """A figure as a data: address; empty if it is not drawn.

    As SVG, which is sharp at any size, if that is at most BULKIER times as long as the PNG.
    """
    png, svg = figure.with_suffix(".png"), figure.with_suffix(".svg")
    pixels = drawing = ""
    if svg.is_file():
        # Text in an address takes less room than base64; a line break would vanish from it.
        text = quote(b" ".join(svg.read_bytes().splitlines()), safe=READABLE)
        drawing = f"data:image/svg+xml,{text}"
    if png.is_file():
        pixels = f"data:image/png;base64,{base64.b64encode(png.read_bytes()).decode()}"
    is_bulky = len(drawing) > BULKIER * len(pixels)
    return pixels if pixels and (is_bulky or not drawing) else drawing


def _with_figures(tokens: Sequence[Token], parser: MarkdownIt) -> list[Token]:
    """A paragraph of one image becomes a figure; one in italics after it, its caption."""
    found: list[Token] = []
    i = 0
    while i < len(tokens):
        image = _only(tokens[i : i + 3])
        if len(image) != 1 or image[0].type != "image":
            found.append(tokens[i])
            i += 1
            continue
        words = _only(tokens[i + 3 : i + 6])
        has_caption = _is_emphasis(words)
        caption = parser.renderer.render(words[1:-1], parser.options, {}) if has_caption else ""
        figure = Token("html_block", "", 0)
        figure.content = _figure(image[0].meta["html"], caption)
        found.append(figure)
        i += 6 if has_caption else 3
    return found


def _only(tokens: Sequence[Token]) -> Sequence[Token]:
    """What is in a paragraph; nothing if these tokens are none."""
    is_paragraph = [t.type for t in tokens] == ["paragraph_open", "inline", "paragraph_close"]
    return (tokens[1].children or ()) if is_paragraph else ()


def _is_emphasis(words: Sequence[Token]) -> bool:
    """Whether a paragraph is in italics from its start to its end."""
    if len(words) < 2 or (words[0].type, words[-1].type) != ("em_open", "em_close"):
        return False
    return not any(token.type == "em_close" and token.level == 0 for token in words[1:-1])


def _figure(picture: str, caption: str) -> str:
    below = f"<figcaption>{caption}</figcaption>\n" if caption else ""
    return f"<figure>\n{picture}\n{below}</figure>\n"
