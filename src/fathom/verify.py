"""Checking every result against what it was made from, without asking Snakemake.

Runs are checked against their manifests, the present spec and the present code; tables and reports
by making them again and comparing; figures for being whole PNG files.
"""

from __future__ import annotations

import gzip
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fathom.attribution import write_attribution
from fathom.claims import Published, write_claims
from fathom.report import write_reports
from fathom.runs import RunError, find_runs, one_line
from fathom.study import Config, ConfigError
from fathom.tables import write_tables

PNG_START = b"\x89PNG\r\n\x1a\n"

FIGURES = (
    {"variance", "published"},
    {"comparison", "mixing_matrix"},
    {"loss", "grad_norm", "nan_inf_events", "gain_proxy"},
    {"loss_comparison", "grad_norm_comparison", "gain_comparison", "depth_scaling"},
)
"""The figures that are drawn together: where one is, the others must be."""


@dataclass
class Verification:
    """What was checked, and every problem in a line."""

    checked: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def verify(config: Config, published: Published, templates: Path) -> Verification:
    """Check all runs, tables, reports and figures below the config's results folder."""
    found = Verification()
    results = Path(config.results)
    runs = [run for run in find_runs(config) if run.status != "missing"]
    found.checked["runs"] = len(runs)
    found.problems += [
        f"{run.folder}: {run.status}: {run.reason}" for run in runs if not run.counts
    ]

    if any(run.status == "corrupt" for run in runs):
        found.problems.append(f"{results}/tables: not checked, since a run is corrupt")
    elif (results / "tables").is_dir() or any(results.glob("*.md")):
        found.problems += _derived_problems(config, published, templates, found.checked)

    figures = sorted((results / "figures").rglob("*.png"))
    found.checked["figures"] = len(figures)
    for file in figures:
        if not (file.is_file() and is_whole_png(file.read_bytes())):
            found.problems.append(f"{file}: not a whole PNG file")
    found.problems += [f"{file}: missing" for file in _missing_figures(figures)]
    found.problems = [one_line(line, 2000) for line in found.problems]
    return found


def is_whole_png(data: bytes) -> bool:
    """Whether every chunk has its checksum, and the last of them ends the file."""
    if not data.startswith(PNG_START):
        return False
    at, kind = len(PNG_START), b""
    while at + 12 <= len(data) and kind != b"IEND":
        size = int.from_bytes(data[at : at + 4])
        kind, end = data[at + 4 : at + 8], at + 8 + size
        if zlib.crc32(data[at + 4 : end]) != int.from_bytes(data[end : end + 4]):
            return False
        at = end + 4
    return kind == b"IEND" and at == len(data)


def _missing_figures(figures: Sequence[Path]) -> Iterator[Path]:
    """Of every folder that has figures of one of the known sets, those of the set that it lacks."""
    there = set(figures)
    for folder in sorted({file.parent for file in figures}):
        names = {file.stem for file in figures if file.parent == folder}
        known = max(FIGURES, key=lambda known: len(names & known))
        if names & known:
            yield from (f for n in sorted(known) if (f := folder / f"{n}.png") not in there)


def _derived_problems(
    config: Config, published: Published, templates: Path, checked: dict[str, int]
) -> Iterator[str]:
    """Make tables and reports again in a temporary folder, and compare."""
    results = Path(config.results)
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch)
        try:
            write_tables(config, fresh / "tables")
            write_attribution(config, fresh / "tables")
            write_claims(config, published, fresh / "tables")
            write_reports(config, published, templates, fresh)
        except (RunError, ConfigError) as error:
            yield str(error)
            return
        files = sorted(p.relative_to(fresh) for p in fresh.rglob("*") if p.is_file())
        for file in files:
            kind = "tables" if file.parts[0] == "tables" else "reports"
            checked[kind] = checked.get(kind, 0) + 1
            if not (results / file).is_file():
                yield f"{results / file}: missing"
            elif _content(fresh / file) != _content(results / file):
                yield f"{results / file}: is not what its inputs give; run snakemake all"


def _content(file: Path) -> bytes:
    """What is in a file, unpacked; what cannot be unpacked equals nothing that was just made."""
    data = file.read_bytes()
    if file.suffix != ".gz":
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error):
        return b""
