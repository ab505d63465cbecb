"""Compressed data in the page, which its script unpacks when needed."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

from markupsafe import Markup


def packed(data: Any) -> Markup:  # noqa: ANN401, whatever JSON takes
    """A text, or data as JSON: compressed, in base64. The page's script unpacks it when needed."""
    text = data if isinstance(data, str) else json.dumps(data, allow_nan=False, ensure_ascii=False)
    return Markup(base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode())  # noqa: S704
