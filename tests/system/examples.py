"""Examples of docs/extending: list them, and put them into a copy of the project."""

import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.support.markdown import parsed, slug
from tests.support.project import PROJECT, copy_parts

PARTS = ("src", "workflow", ".test", "report", "envs", "docs", "config.yaml", "pyproject.toml")
CONTRIBUTING = (PROJECT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PAGES = sorted((PROJECT / "docs/extending").glob("*.md"))


@dataclass(frozen=True)
class Block:
    """A fenced block whose first line names its file and its place there."""

    file: str
    how: str
    """`in X`: an entry of X; `before X`: above it; empty: the whole file."""
    text: str


def sections(text):
    """(language, content) of the fenced blocks below each heading, by the heading's anchor."""
    blocks, current = {}, None
    tokens = parsed(text)
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "heading_open":
            current = blocks.setdefault(slug(following.content), [])
        elif token.type == "fence" and current is not None:
            current.append((token.info, token.content))
    return blocks


MARK = re.compile(r"(?:# |\{# )([\w./-]+\.\w+)(?:, ([\w ]+?))?(?: #\})?")


def blocks_of(section):
    """The blocks of a section that name a file."""
    for _, content in SECTIONS[section]:
        first, _, rest = content.partition("\n")
        if mark := MARK.fullmatch(first):
            yield Block(mark[1], mark[2] or "", rest)


def copied_by(section):
    """(from, to) of every `cp` in a section."""
    for language, content in SECTIONS[section]:
        for line in content.splitlines() if language == "sh" else ():
            command, *arguments = shlex.split(line, comments=True) or [""]
            if command == "cp":
                yield arguments


def rows_of_the_table():
    """Glob patterns of the files to touch, by the page that a row links to."""
    table = CONTRIBUTING.partition("## What to touch")[2].partition("\n## ")[0]
    patterns = {}
    for line in table.splitlines():
        if row := re.match(r"\| \[.*?\]\(docs/extending/([\w-]+)\.md\) \| (.*?) \|", line):
            named = re.findall("`(.*?)`", row[2])
            patterns[row[1]] = {re.sub(r"\bNAME\b|\bSUFFIX\b", "*", name) for name in named}
    return patterns


SECTIONS = {
    page.stem: [block for blocks in sections(page.read_text("utf-8")).values() for block in blocks]
    for page in PAGES
}
"""(language, content) of the fenced blocks of each page."""
ROWS = rows_of_the_table()


def apply(section, folder):
    """Put a section's examples into a copy of the project; returns the files touched."""
    touched = set()
    for source, target in copied_by(section):
        copied = Path(shutil.copy(folder / source, folder / target))
        touched.add(copied.relative_to(folder).as_posix())
    for block in blocks_of(section):
        file = folder / block.file
        assert file.exists() == bool(block.how), f"{block.file} is there, or missing"
        file.write_text(inserted(file.read_text(), block) if block.how else block.text)
        touched.add(block.file)
    return touched


def inserted(text, block):
    """The text of a file with a block: above its place, or as an entry of it."""
    where, name = block.how.split()
    if block.file.endswith(".yaml"):  # at the end of the key, for anchors precede their use
        place = re.compile(rf"^({name}:)(?: \{{\}})?(.*\n(?:(?:[ #].*)?\n)*)", re.MULTILINE)
        return place.sub(lambda m: f"{m[1]}{m[2]}{block.text}", text, count=1)
    (start,) = re.finditer(rf"^{name}\b.* = ", text, re.MULTILINE)
    at = start.start() if where == "before" else text.index("{", start.end()) + 1
    return f"{text[:at]}\n{block.text}\n\n{text[at:]}"


def copy_of_project(folder):
    copy_parts(folder, PARTS)
