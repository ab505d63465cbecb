"""Parse Markdown as a code-hosting page does."""

import itertools
import re
from functools import cache

from markdown_it import MarkdownIt


@cache  # all documents take a second, and each of their tests reads them
def parsed(text):
    """The tokens of a document."""
    return MarkdownIt("commonmark").enable("table").parse(text)


def inline(text):
    """The tokens inside paragraphs, headings and tables: texts, codes, links."""
    return [child for token in parsed(text) for child in token.children or ()]


def slug(heading):
    """The anchor that a heading gets."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@cache
def anchors(text):
    """Every anchor of a document: of its headings, and the explicit ones of reports."""
    pairs = itertools.pairwise(parsed(text))
    headings = {slug(inner.content) for token, inner in pairs if token.type == "heading_open"}
    return headings | set(re.findall(r'<a id="([\w.-]+)"></a>', text))


def table(text, heading, level="###"):
    """Rows of the first table below a heading: the cells without their backticks."""
    below = f"\n{text}".partition(f"\n{level} {heading}\n")[2]
    lines = itertools.dropwhile(lambda line: not line.startswith("|"), below.splitlines())
    _, _, *rows = itertools.takewhile(lambda line: line.startswith("|"), lines)
    return [
        [cell.strip().replace("`", "") for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
        for row in rows
    ]
