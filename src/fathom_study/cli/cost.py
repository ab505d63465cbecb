"""What a connection costs in a large transformer, at the least and as measured."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from fathom.connections.cost import (
    FLOATS,
    MACHINES,
    PER_BLOCK,
    PER_PARAMETER,
    Machine,
    cost,
    over_transformer,
    transformer_operations,
)
from fathom.connections.schemes import SCHEMES, name_behind
from fathom.library import connection_for
from fathom.settings import ConfigError, join_values
from fathom_study.cli.options import Scheme, Streams, example
from fathom_study.config import parse_yaml

app = typer.Typer()

TABLES = (Path("benchmarks/schemes.csv"), Path("benchmarks/step_times.csv"))
"""Times of `benchmarks/steps.py` over plain."""


@app.command("cost", epilog=example("fathom cost mhc_paper --width 4096 --blocks 32"))
def print_cost(
    scheme: Scheme,
    width: Annotated[int, Option(min=1, help="Channels C of the transformer.")],
    blocks: Annotated[int, Option(min=1, help="Blocks: attention and MLP.")],
    tokens: Annotated[
        int | None, Option(min=1, help="Tokens in a step: prints totals and milliseconds.")
    ] = None,
    streams: Streams = 4,
    dtype: Annotated[
        str, Option(help=f"Float type of the streams: {join_values(FLOATS)}.")
    ] = "bfloat16",
    gpu: Annotated[str, Option(help=f"Rate and bandwidth of: {join_values(MACHINES)}.")] = "h100",
    rate: Annotated[
        float | None, Option(min=0.001, help="TFLOP/s of products, in place of the GPU's.")
    ] = None,
    bandwidth: Annotated[
        float | None, Option(min=0.001, help="TB/s of the memory, in place of the GPU's.")
    ] = None,
) -> None:
    """Print the least that a connection adds to a training step of a transformer.

    As a share of the plain step, which has 12 C² parameters a block and 6 operations for each
    parameter and token, without scores of attention. One kernel forward and one backward run
    between two functions. Formulas: src/fathom/connections/cost.py. The last lines have steps
    measured on a CPU, if benchmarks/ has this scheme.
    """
    settings = parse_yaml(scheme, "SCHEME")
    connection = connection_for(
        settings, layers=2 * blocks, width=width, streams=streams, seed=0, per_block=2,
        pooled_axes=0, has_residual=False, takes_apart=True, start=None,
    )  # fmt: skip
    for name, value in (("--rate", rate), ("--bandwidth", bandwidth)):
        if value is not None and not math.isfinite(value):
            raise ConfigError(f"{name}: must be finite, but is {value}")
    given = MACHINES.find("GPU", gpu)
    machine = Machine(
        given.rate if rate is None else rate * 1e12,
        given.bandwidth if bandwidth is None else bandwidth * 1e12,
    )
    size = FLOATS.find("float type", dtype)
    shares, of_token = over_transformer(connection, machine, size), cost(connection, 1, size)
    name = name_behind(settings, SCHEMES) or connection.settings.kind
    typer.echo(
        f"{name} over a plain step ({PER_BLOCK} C² parameters a block, {PER_PARAMETER} operations "
        f"each and token; C {width}, {blocks} blocks, {dtype}), with fused kernels:\n"
        f"  operations  {shares.operations:+8.2%}  {of_token.operations:.4g} a token, "
        f"at {machine.rate / 1e12:g} TFLOP/s reached\n"
        f"  bytes       {shares.bytes:+8.2%}  {of_token.bytes:.4g} a token, "
        f"at {machine.bandwidth / 1e12:g} TB/s\n"
        f"  both        {sum(shares):+8.2%}  one after the other"
    )
    if tokens:
        step = cost(connection, tokens, size)
        plain = tokens * transformer_operations(width, blocks) / machine.rate
        typer.echo(
            f"  {tokens} tokens: {step.operations:.4g} operations, {step.bytes:.4g} bytes, "
            f"{1e3 * step.seconds(machine):.4g} ms, and the plain step {1e3 * plain:.4g} ms"
        )
    for line in measured(name) if settings == name else ():
        typer.echo(line)


def measured(name: str) -> Iterator[str]:
    """Steps of the scheme over plain in the kept tables: a line for each machine and backend."""
    found: dict[tuple[str, str], dict[int, list[float]]] = {}
    for file in TABLES:
        rows = csv.DictReader(file.read_text("utf-8").splitlines()) if file.is_file() else ()
        for row in rows:
            if not {"machine", "backend", "side", "variant", "width", "ratio"} <= row.keys():
                raise ConfigError(f"{file}: is not a table of benchmarks/steps.py")
            if (row["variant"], row["side"]) == (name, "ours") and row["ratio"] and row["width"]:
                widths = found.setdefault((row["machine"], row["backend"]), {})
                widths.setdefault(int(row["width"]), []).append(float(row["ratio"]) - 1)
    for (machine, backend), widths in found.items():
        shares = (
            f"{_range(extra)} at C {width}" for width, extra in sorted(widths.items(), reverse=True)
        )
        yield f"measured, {backend} on {machine}: {join_values(shares)}"


def _range(shares: Sequence[float]) -> str:
    ends = dict.fromkeys(f"{share:+.0%}" for share in (min(shares), max(shares)))
    return " to ".join(ends)
