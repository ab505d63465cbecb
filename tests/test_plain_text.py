"""Text that others may have written: no terminal obeys it, and Markdown only shows it."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from fathom.report.presenters import group_uncounted
from fathom.report.render import escape_markdown, escape_rows
from fathom.system.errors import fail
from fathom.system.text import printable
from tables_helpers import frame, run

# A parser of its own, with tables and links like GitHub's.
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
    """Whether Markdown in the cell of a table gives the text, and nothing but text."""
    tokens = MARKDOWN.parse(f"| a | b |\n|---|---|\n| {markdown} | end |\n")
    cells = [after for before, after in pairwise(tokens) if before.type == "td_open"]
    if [cell.content for cell in cells[1:]] != ["end"]:
        return False
    pieces = cells[0].children
    shown = "".join(piece.content for piece in pieces)
    return {piece.type for piece in pieces} <= {"text", "text_special"} and shown == text


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_shows_hostile_text_and_does_nothing_else(text):
    assert not shows(text, text)
    assert shows(escape_markdown(text), text)


@given(st.text(st.characters(codec="utf-8")).map(lambda text: f"x{text}x"))
def test_markdown_shows_any_text(text):
    assert shows(escape_markdown(text), printable(text))


@pytest.mark.parametrize("text", ["https://example.org", "www.example.org", "a@example.org", "$x$"])
def test_what_only_github_makes_something_of_is_escaped(text):
    assert text not in escape_markdown(text)
    assert shows(escape_markdown(text), text)


def test_names_of_devices_stay_readable():
    assert escape_markdown("AMD EPYC 7763 64-Core (R), 2.0.0+cpu") == (
        "AMD EPYC 7763 64-Core (R), 2.0.0+cpu"
    )


def test_why_a_run_is_left_out_is_escaped_in_the_report():
    cells = frame(run(status="stale", reason="code differs: fathom.x:<b>|\x1b[2J"))
    (row,) = escape_rows(group_uncounted(cells))
    assert row["reason"] == r"code differs: fathom.x:\<b\>\|\\x1b\[2J"


@pytest.mark.parametrize("mark", ["\x1b[2J", "\x9b2J", "\r", "\u202e", "\u2028", "\x07", "\u200b"])
def test_no_message_reaches_a_terminal_with_what_it_would_obey(mark, capsys):
    with pytest.raises(SystemExit):
        fail(f"first {mark} line\nsecond")
    said = capsys.readouterr().err
    assert mark not in said
    assert said.split("\n") == [f"fathom: first {ascii(mark)[1:-1]} line", "fathom: second", ""]
