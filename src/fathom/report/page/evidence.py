"""The rows of tables that links of the page lead to, for its script, which shows them in place."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from markupsafe import Markup

from fathom.report.page.inline import as_json, packed

LINK = re.compile(r'href="tables/([\w-]+\.csv)#L([1-9]\d*)"')
"""A link to a line of a table, as the page has it."""

NAMING = (
    "claim", "question", "study", "studies", "platform", "depth", "variant", "against", "metric",
)  # fmt: skip
"""The columns that say what a row is of, where a table has them."""


def evidence_of(texts: Iterable[str], tables: Path) -> Markup:
    """Packed JSON: of every table its columns and its linked rows.

    Values are those of the CSV, letter by letter. A link to what is not there has no row.
    """
    lines: dict[str, set[int]] = defaultdict(set)
    for text in texts:
        for name, line in LINK.findall(text):
            lines[name].add(int(line))
    found = {
        name: table
        for name in sorted(lines)
        if (file := tables / name).is_file() and (table := _rows_of(file, lines[name]))["rows"]
    }
    return packed(as_json(found))


def _rows_of(file: Path, wanted: set[int]) -> dict[str, Any]:
    """The columns of a table, those that name a row, and the wanted rows by line."""
    with file.open(encoding="utf-8", newline="") as opened:
        reader = csv.reader(opened)
        columns = next(reader, [])
        rows = {str(line): row for line, row in enumerate(reader, start=2) if line in wanted}
    naming = [column for column in NAMING if column in columns]
    return {"columns": columns, "naming": naming, "rows": rows}
