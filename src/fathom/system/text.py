"""Text for terminals, logs and tables, and hashes of text."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any


def printable(text: str) -> str:
    """Escape control, bidirectional and invisible characters, and lone surrogates."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def one_line(text: str, limit: int = 500) -> str:
    """The printable text, cut to at most `limit` characters and an ellipsis."""
    shown = printable(text)
    return shown if len(shown) <= limit else f"{shown[:limit]}…"


def format_duration(seconds: float) -> str:
    """A duration in words, such as '40 seconds', '12 minutes', '2.5 hours', '3.1 days'."""
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    if seconds < 5400:
        return f"{seconds / 60:.0f} minutes"
    hours = seconds / 3600
    return f"{hours:.1f} hours" if hours < 48 else f"{hours / 24:.1f} days"


def load_json(text: str) -> Any:  # noqa: ANN401, any JSON data
    """The data of a JSON text. Raises ValueError, or RecursionError for one nested too deeply.

    A duplicate key is refused, and so is a lone surrogate, which JSON can escape but no table or
    terminal accepts.
    """
    data = json.loads(text, object_pairs_hook=_object)
    json.dumps(data, ensure_ascii=False).encode()
    return data


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        twice = next(key for key in entries if sum(key == other for other, _ in pairs) > 1)
        raise ValueError(f"duplicate key {twice!r}")
    return entries


def digits(content: str | bytes) -> str:
    """The first sixteen hexadecimal digits of the SHA-256 of a text, in UTF-8, or of bytes."""
    return sha256(content.encode() if isinstance(content, str) else content).hexdigest()[:16]
