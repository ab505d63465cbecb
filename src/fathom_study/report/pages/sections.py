"""Convert Markdown to the sections of the page, by markdown-it."""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from fathom.system.errors import UserError
from fathom_study.report.pages.lines import Line
from fathom_study.report.pages.packing import packed
from fathom_study.report.pages.reports import PAGE

ANCHOR = re.compile(r'<a id="([\w.-]+)">')
FOLDED = re.compile(r"<details>\n<summary>(.*)</summary>\n?")
"""The only HTML that reports use, beside comments; any other is shown as text."""

PLACES, LENGTH = re.compile(r'\b(?:d|x|y)="[^"]*"'), re.compile(r"-?\d+\.\d+")
"""In an SVG of matplotlib: the coordinates of lines and letters, and a number in them."""

FIGURES, STUDIES, TABLES = "figures", "studies", "tables"


@dataclass(frozen=True)
class Section:
    """One Markdown file as HTML."""

    study: str
    """The study that the file reports on; empty if there is none."""
    anchor: str
    title: str
    introduction: Markup
    """The text before its first part."""
    parts: Markup
    headings: dict[str, str]
    """The titles of its parts, by anchor."""


def read_sections(
    files: Mapping[str, Path],
    figures: Path,
    replaced: Mapping[tuple[str, str], str],
    lines: set[Line],
    reference: str = "",
) -> list[Section]:
    """A section for each Markdown file, with its figures.

    `files`: by path relative to the page. `figures`: the folder that `figures/…` in a report stands
    for. `replaced`: by file and part, HTML in place of the first table of that part. `lines`: gets
    the table lines that links lead to. `reference`: the folder of the kept result, if it has a
    page, to which links to its reports then lead.
    """
    anchors = {file: _anchor_of(file) for file in files}
    reader = _Reader(figures, anchors, replaced, lines, reference)
    return [reader.section(file, path, lower=i > 0) for i, (file, path) in enumerate(files.items())]


def keep_units(text: str) -> str:
    """The text without line breaks before % and after ±."""
    return re.sub(r"(?<=[\d>]) (?=%)|(?<=±) ", "\u00a0", text)


def _block(html: str) -> str:
    if match := FOLDED.fullmatch(html):
        return f"<details>\n<summary>{escape(match[1])}</summary>\n"
    if html.strip() == "</details>":
        return "</details>\n"
    return "" if html.startswith("<!--") else f"<p>{escape(html)}</p>\n"


def _inline(html: str, prefix: str) -> str:
    if match := ANCHOR.fullmatch(html):
        return f'<a id="{prefix}--{match[1]}"></a>'
    return "" if html == "</a>" else escape(html)


RULES = {
    "html_block": lambda _, tokens, i, *__: _block(tokens[i].content),
    "html_inline": lambda _, tokens, i, __, env: _inline(tokens[i].content, env["prefix"]),
    "table_open": lambda *_: '<div class="table" tabindex="0">\n<table>\n',
    "table_close": lambda *_: "</table>\n</div>\n",
    "image": lambda _, tokens, i, *__: tokens[i].content,
    "text": lambda _, tokens, i, *__: keep_units(escape(tokens[i].content, quote=False)),
    "replaced": lambda _, tokens, i, *__: tokens[i].content,
}
"""Rendering rules that differ from the default."""


@dataclass(frozen=True)
class _Reader:
    """Makes sections that link to each other; the arguments are those of `read_sections`."""

    figures: Path
    anchors: Mapping[str, str]
    replaced: Mapping[tuple[str, str], str]
    lines: set[Line]
    reference: str

    def section(self, file: str, path: Path, *, lower: bool) -> Section:
        """The section of one file; with `lower`, its headings are one level below their own."""
        parser = MarkdownIt("commonmark").enable("table")
        environment = {"prefix": self.anchors[file]}
        for kind, rule in RULES.items():
            parser.add_render_rule(kind, rule)
        with _damage_named(path):
            tokens = parser.parse(path.read_text(encoding="utf-8"))
        replaced = {part: html for (of, part), html in self.replaced.items() if of == file}
        tokens = _replace(tokens, replaced)
        titles, headings = _name_headings(tokens, self.anchors[file])
        is_part = (token.type == "heading_open" and token.tag == "h2" for token in tokens)
        first = next((i for i, opens in enumerate(is_part) if opens), len(tokens))
        for token in tokens:
            if lower and token.type in ("heading_open", "heading_close"):
                token.tag = f"h{min(6, int(token.tag[1]) + 1)}"
            if token.attrGet("style") == "text-align:right":  # a class is shorter
                token.attrs = {"class": "n"}
            for child in token.children or ():
                if child.type == "link_open":
                    child.attrs |= self._link(str(child.attrGet("href")), file)
                elif child.type == "image":
                    child.content = self._image(child, file)
        introduction, parts = (
            Markup(parser.renderer.render(some, parser.options, environment))  # noqa: S704, escaped
            for some in (tokens[:first], tokens[first:])
        )
        study = PurePosixPath(file).stem if PurePosixPath(file).parent.name == STUDIES else ""
        title = titles[0] if titles else file
        return Section(study, self.anchors[file], title, introduction, parts, headings)

    def _link(self, href: str, file: str) -> dict[str, str]:
        """The attributes of a link of `file`: to a section, a row, or a file beside the page."""
        parts = urlsplit(href)
        if parts.scheme or parts.netloc:
            return {"href": href}
        target = _from_page(parts.path, file) if parts.path else file
        place = f"--{parts.fragment}" if parts.fragment else ""
        if target in self.anchors:
            return {"href": f"#{self.anchors[target]}{place}"}
        of_reference = target.removeprefix(f"{self.reference}/")
        if self.reference and of_reference != target and target.endswith(".md"):
            return {"href": f"{self.reference}/{PAGE}#{_anchor_of(of_reference)}{place}"}
        to = f"{target}#{parts.fragment}" if parts.fragment else target
        folder, _, name = target.rpartition("/")
        line = parts.fragment.removeprefix("L")
        if folder == TABLES and line.isdecimal():
            self.lines.add((name, int(line)))
            return {"href": to, "data-row": f"{name}#L{line}"}
        return {"href": to}

    def _image(self, image: Token, file: str) -> str:
        """HTML of an image: with its SVG, or a note that the figure is missing.

        An SVG is sharp at any size and, packed, smaller than pixels. The page's script unpacks it
        shortly before it is in view; until then width and height reserve its place.
        """
        name, place = escape(image.content), Path(_from_page(str(image.attrGet("src")), file))
        svg = self.figures.joinpath(*map(unquote, place.parts[1:])).with_suffix(".svg")
        if place.parts[:1] != (FIGURES,) or not svg.is_file():
            return f'<span class="missing">The figure {name} is not drawn here.</span>'
        with _damage_named(svg):
            text = svg.read_text(encoding="utf-8")
            root = ElementTree.fromstring(text)  # noqa: S314, our own figure
            width, height = map(float, root.attrib["viewBox"].split()[2:])
        data = packed(PLACES.sub(_rounded, text))
        return f'<img alt="{name}" width="{width:.0f}" height="{height:.0f}" data-svg="{data}">'


@contextmanager
def _damage_named(file: Path) -> Iterator[None]:
    """Context that turns errors of a damaged file into UserError with its name."""
    try:
        yield
    except (ElementTree.ParseError, ValueError, KeyError) as error:
        raise UserError(f"{file}: is damaged ({error}); delete it and make it again") from error


def _rounded(places: re.Match[str]) -> str:
    """Coordinates with one decimal, finer than the width of a line: a third of the file's size."""
    return LENGTH.sub(lambda length: f"{float(length[0]):.1f}".removesuffix(".0"), places[0])


def _replace(tokens: list[Token], replaced: Mapping[str, str]) -> list[Token]:
    """The tokens with the first table of each of these parts replaced by HTML."""
    result, waiting, skipping = [], dict(replaced), False
    part = ""
    for token, after in itertools.pairwise([*tokens, Token("end", "", 0)]):
        if token.type == "heading_open":
            part = slug(_words(after))
        if token.type == "table_open" and part in waiting:
            skipping = True
            result.append(Token("replaced", "", 0, content=waiting.pop(part)))
        if not skipping:
            result.append(token)
        if token.type == "table_close":
            skipping = False
    return result


def _words(heading: Token) -> str:
    return "".join(child.content for child in heading.children or ())


def slug(heading: str) -> str:
    """The anchor that a code-hosting page gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _anchor_of(file: str) -> str:
    return slug("-".join(PurePosixPath(file).with_suffix("").parts[-2:]))


def _name_headings(tokens: Sequence[Token], prefix: str) -> tuple[list[str], dict[str, str]]:
    """Give every heading its anchor; return the titles of the file, and its parts."""
    titles: list[str] = []
    parts: dict[str, str] = {}
    used: dict[str, int] = {}
    for opening, inline in itertools.pairwise(tokens):
        if opening.type == "heading_open":
            words = _words(inline)
            name = slug(words)
            again = used[name] = used.get(name, -1) + 1
            anchor = f"{prefix}--{name}" + (f"-{again}" if again else "")
            opening.attrSet("id", anchor)
            if opening.tag == "h1":
                titles.append(words)
            elif opening.tag == "h2":
                parts[anchor] = words
    return titles, parts


def _from_page(path: str, file: str) -> str:
    """The path of a link in `file`, relative to the page."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(file), path))
