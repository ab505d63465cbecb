"""Text that comes from elsewhere."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text as a terminal can only show it: escaped is what it would obey, or not show.

    That is every control character, mark of direction, invisible character and half of a pair.
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
