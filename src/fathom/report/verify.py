"""Checking every result against what it was made from, without asking Snakemake.

Runs are checked against their manifests, the present spec and the present code; tables and reports
by making them again and comparing; figures for being whole PNG files.
"""

from __future__ import annotations

import gzip
import tempfile
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fathom import tasks
from fathom.analysis.attribution import write_attribution
from fathom.analysis.claims import Published, write_claims
from fathom.analysis.tables import write_tables
from fathom.config import Config
from fathom.report.figures import figures_of
from fathom.report.render import write_reports
from fathom.runs.folder import RunError, one_line
from fathom.runs.inspect import find_runs
from fathom.settings import ConfigError

PNG_START = b"\x89PNG\r\n\x1a\n"


@dataclass
class Verification:
    """What was checked, and every problem in a line."""

    checked: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def verify(config: Config, published: Published, templates: Path) -> Verification:
    """Check all runs, tables, reports and figures of the config."""
    found = Verification()
    results = Path(config.report_folder)
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
    found.problems += [f"{file}: missing" for file in _missing_figures(config, figures)]
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


def _missing_figures(config: Config, figures: Sequence[Path]) -> Iterator[Path]:
    """Of every folder that has a figure of its family, the others that belong there."""
    root, there = Path(config.report_folder) / "figures", set(figures)
    for folder in sorted({file.parent for file in figures}):
        names = _family_in(config, folder.relative_to(root).parts)
        expected = [folder / f"{name}.png" for name in names]
        if there.intersection(expected):
            yield from (file for file in expected if file not in there)


def _family_in(config: Config, folder: Sequence[str]) -> Collection[str]:
    """The names of the figures that are drawn together into a folder below that of figures."""
    if not folder:
        return figures_of("bench")
    if folder[0] == "overview":
        return figures_of("overview")
    if folder[0] == "cells":
        return figures_of("cell")
    if folder[0] in config.studies:
        return figures_of(tasks.presentation(config.studies[folder[0]].task).figures)
    return ()


def _derived_problems(
    config: Config, published: Published, templates: Path, checked: dict[str, int]
) -> Iterator[str]:
    """Make tables and reports again in a temporary folder, and compare."""
    results = Path(config.report_folder)
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
