"""What each scheme adds to a plain step, over the least that its work takes on this machine.

    python benchmarks/floor.py --out benchmarks/floor.csv       every named scheme, 6 minutes
    python benchmarks/floor.py mhc_paper altup                  these

Schemes take turns with `plain`, as in `steps.py schemes` and in the same network, on PyTorch. The
least is the operations of `fathom.connections.cost` at the rate of the products of `plain`, and its
bytes at the bandwidth of a copy of an array that no cache holds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated

import numpy as np
import steps
import typer

from fathom.connections.cost import Machine, cost
from fathom.connections.schemes import SCHEMES
from fathom.system.errors import UserError, fail
from fathom_study.backends.torch_counting import count_step
from fathom_study.cli.options import check_known, output_file
from fathom_study.config import Spec
from fathom_study.runs.folder import platform_name
from fathom_study.system.hardware import cpu_model, operating_system
from fathom_study.tasks import Problem

IDENTITY = ("variant", "machine", "width")
COLUMNS = (
    *IDENTITY, "turns", "seconds", "extra", "extra_low", "extra_high", "operations", "bytes",
    "rate", "bandwidth", "least", "over", "over_low", "over_high",
)  # fmt: skip
"""Seconds of plain's step, and of what is added to it: medians of turns, and ranges. The work that
this needs, plain's operations and a copy's bytes a second, the least seconds, and the extra time
over it; empty if the least is zero."""

COPIED = 2**26
"""Elements of the array that is copied: 256 MiB."""


def bandwidth(times: int = 7) -> float:
    """Bytes a second that a copy on one thread reads and writes."""
    source, target, seconds = np.ones(COPIED, np.float32), np.zeros(COPIED, np.float32), []
    for _ in range(times):
        begun = time.process_time()
        np.copyto(target, source)
        seconds.append(time.process_time() - begun)
    return 2 * source.nbytes / median(seconds)


def rows_of(
    specs: Mapping[steps.Key, Spec], times: Mapping[steps.Key, Sequence[float]], copied: float
) -> Iterator[dict[str, object]]:
    """A row of COLUMNS for each scheme of a group but `plain`, from the seconds of its turns."""
    (plain, first), *others = specs.items()
    rate = count_step(Problem(first)).products / median(times[plain])
    machine = platform_name("cpu", cpu_model(), operating_system())
    for key, spec in others:
        extra = [a - b for a, b in zip(times[key], times[plain], strict=True)]
        tokens = spec.batch_size * spec.model.length
        work = cost(Problem(spec).network.connection, tokens, np.dtype(np.float32).itemsize)
        least = work.seconds(Machine(rate, copied))
        yield {
            **dict(zip(IDENTITY, (key[0], machine, spec.model.width), strict=True)),
            "turns": len(extra), "seconds": f"{median(times[plain]):.4g}",
            "operations": work.operations, "bytes": work.bytes, "rate": f"{rate:.4g}",
            "bandwidth": f"{copied:.4g}", "least": f"{least:.4g}",
            **steps.spread(("extra", "extra_low", "extra_high"), extra),
            **(steps.spread(("over", "over_low", "over_high"), [t / least for t in extra])
               if least else {}),
        }  # fmt: skip


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Only these; default: all.")] = None,
    turns: Annotated[int, typer.Option(min=1, help="How many times each side runs.")] = 7,
    out: Annotated[Path | None, output_file(help="Add the rows to this table.")] = None,
) -> None:
    """Time named schemes against the least of their work. Run nothing else meanwhile."""
    known = [name for name in SCHEMES if name != "plain"]
    check_known("scheme", names or (), known)
    found, copied = [], bandwidth()
    with steps.processes() as process:
        for group in steps.groups_of_schemes(names or known):
            if next(iter(group.values())).backend != "torch":
                continue
            times = steps.take_turns(group, turns, 1, process)
            for row in rows_of(group, times, copied):
                found.append(row)
                told = f"{row['over']} of the least" if "over" in row else "the least is zero"
                typer.echo(f"{row['variant']:20} {1e3 * float(row['extra']):6.1f} ms, {told}")
    if out:
        steps.write_rows(out, steps.with_earlier(found, out, IDENTITY, COLUMNS), COLUMNS)


if __name__ == "__main__":
    try:
        typer.run(main)
    except UserError as error:
        fail(str(error))
