"""How data stand in the page: as JSON, or packed where they are long."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

from markupsafe import Markup


def as_json(data: Any) -> Markup:  # noqa: ANN401, whatever JSON takes
    """JSON that can stand in a script element: nothing in it ends one."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return Markup(text.replace("<", "\\u003c"))  # noqa: S704


def packed(data: str | bytes) -> Markup:
    """What is needed later: compressed, in base64; the page's script unpacks it.

    A browser reads neither plotly nor numbers nor rows before a reader asks for them.
    """
    compressed = gzip.compress(data.encode() if isinstance(data, str) else data, mtime=0)
    return Markup(base64.b64encode(compressed).decode())  # noqa: S704, letters and digits
