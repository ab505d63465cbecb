"""Untrusted text: terminals do not interpret it, and Markdown shows it literally."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from fathom.system.errors import fail
from fathom.system.text import printable
from fathom_study.report.pages.render import as_prose, escape_markdown, escape_words

# A separate parser, with tables and links like GitHub's.
MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])

HOSTILE = [
    "a | b",
    "<script>alert(1)</script>",
    "![x](https://example.org/x.png)",
    "[x](https://example.org)",
    "**bold** _word_ `code` ~~gone~~",
    "&lt;b&gt; \\",
    "<https://example.org>",
]


def shows(markdown, text):
    """Whether Markdown in the cell of a table shows exactly the text, without markup."""
    tokens = MARKDOWN.parse(f"| a | b |\n|---|---|\n| {markdown} | end |\n")
    cells = [after for before, after in pairwise(tokens) if before.type == "td_open"]
    if [cell.content for cell in cells[1:]] != ["end"]:
        return False
    pieces = cells[0].children
    shown = "".join(piece.content for piece in pieces)
    return {piece.type for piece in pieces} <= {"text", "text_special"} and shown == text


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_shows_hostile_text_literally(text):
    assert not shows(text, text)
    assert shows(escape_markdown(text), text)


@given(st.text(st.characters(codec="utf-8")).map(lambda text: f"x{text}x"))
def test_markdown_shows_any_text(text):
    assert shows(escape_markdown(text), printable(text))


BLOCKS = [
    "# x", "###### x", "#", "- x", "+ x", "* x", "1. x", "12) x", "> x", "```", "~~~ x", "---",
    "* * *",
    "a | b", "| a |", "a\n\n# b", "a\n===", "a\n---", "<h1>x</h1>", "a <h1>b</h1>",
]  # fmt: skip


@pytest.mark.parametrize("text", BLOCKS)
@pytest.mark.parametrize("begin", ["", "- ", "1. "])
def test_a_description_begins_no_block_and_ends_no_cell(begin, text):
    shown = as_prose(text)
    plain = ["paragraph_open", "inline", "paragraph_close"]
    listed = {"": [], "- ": ["bullet_list", "list_item"], "1. ": ["ordered_list", "list_item"]}
    opened = [f"{name}_open" for name in listed[begin]]
    closed = [f"{name}_close" for name in reversed(listed[begin])]
    tokens = MARKDOWN.parse(f"{begin}{shown}\n")
    assert [token.type for token in tokens] == [*opened, *plain, *closed]
    assert shows(shown, " ".join(text.split()))


@pytest.mark.parametrize("text", HOSTILE)
def test_escape_words_keeps_inner_underscores(text):
    assert shows(escape_words(text), text)
    assert escape_words("H_res of mhc_paper, _x_") == r"H_res of mhc_paper, \_x\_"


@pytest.mark.parametrize("mark", ["\x1b[2J", "\x9b2J", "\r", "\u202e", "\u2028", "\x07", "\u200b"])
def test_messages_escape_control_characters(mark, capsys):
    with pytest.raises(SystemExit):
        fail(f"first {mark} line\nsecond")
    said = capsys.readouterr().err
    assert mark not in said
    assert said.split("\n") == [f"fathom: first {ascii(mark)[1:-1]} line", "fathom: second", ""]
