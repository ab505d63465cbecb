"""Count the operations and bytes of a training step with every named scheme, over `plain`.

    python benchmarks/count.py --out benchmarks/counted.csv

Nothing is computed, so the counts depend on no device. The network is that of
`benchmarks/steps.py schemes`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from steps import SCHEME_DEPTH, SCHEME_SIZE, counts, spec_for

from fathom.cli.options import output_file
from fathom.models.connections.schemes import SCHEMES
from fathom.system.errors import UserError, fail
from fathom.system.files import atomic_write

COLUMNS = ("scheme", "operations", "bytes")


def counted(scheme: str) -> dict[str, int]:
    """The work of a step with a named scheme."""
    return counts(spec_for(SCHEME_SIZE, scheme, "torch", SCHEME_DEPTH))


def rows(schemes: list[str]) -> Iterator[dict[str, str]]:
    """Of each scheme, operations and bytes of a step over those of a step with `plain`."""
    plain = counted("plain")
    for scheme in schemes:
        found = counted(scheme)
        ratios = (found[what] / plain[what] for what in COLUMNS[1:])
        yield {
            "scheme": scheme,
            **{w: f"{r:.4f}" for w, r in zip(COLUMNS[1:], ratios, strict=True)},
        }


def main(out: Annotated[Path, output_file(help="The table; - prints it.")]) -> None:
    """Count a step with every named scheme."""
    with atomic_write(out) as temporary, temporary.open("w", encoding="utf-8") as opened:
        writer = csv.DictWriter(opened, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows([name for name in SCHEMES if name != "plain"]))


if __name__ == "__main__":
    try:
        typer.run(main)
    except UserError as error:
        fail(str(error))
