"""Checks to run before `fathom contribute`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fathom.config import Compute, Config, Spec
from fathom.runs.folder import platform_name
from fathom.runs.import_preview import find_kept
from fathom.runs.training import connect
from fathom.system.errors import UserError
from fathom.system.hardware import operating_system
from fathom.tasks import Problem


def why_not(specs: Sequence[Spec], compute: Compute) -> Iterator[str]:
    """Lines, one per study and backend: the missing device or data."""
    first = {(spec.study, spec.backend): spec for spec in reversed(specs)}
    for (study, backend), spec in first.items():
        try:
            connect(spec, compute)
            Problem(spec).batches(0)
        except UserError as error:
            yield f"{study} on {backend}: {str(error).partition(chr(10))[0]}"


def there_already(
    config: Config, specs: Sequence[Spec], compute: Compute, bundle: Path | None
) -> Iterator[str]:
    """Lines, one per backend: the cells that already have a run from this platform."""
    for name in dict.fromkeys(spec.backend for spec in specs):
        device = connect(next(s for s in specs if s.backend == name), compute).device
        platform = platform_name(device.kind, device.name, operating_system())
        cells = [spec.cell for spec in specs if spec.backend == name]
        found = find_kept(config, cells, platform, bundle)
        if found:
            yield (
                f"{len(found)} of {len(cells)} cells have a run from {platform} in "
                f"{config.results} already, as {found[0]}: only one can stay there"
            )
