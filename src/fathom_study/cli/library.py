"""Trained networks with a connection; reference numbers for other implementations."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from fathom.connections.plain_start import plain_start
from fathom.connections.schemes import ABOUT, SCHEMES, name_behind, resolve
from fathom.settings import ConfigError
from fathom.system.text import digits
from fathom_study.cli.options import (
    Device,
    Replace,
    RunFolder,
    Scheme,
    Streams,
    Threads,
    changed,
    end_with,
    example,
    output_file,
    output_folder,
)
from fathom_study.cli.training import is_free, train_spec
from fathom_study.config import Compute, parse_yaml
from fathom_study.system.files import write_bytes

app = typer.Typer()


@app.command(epilog=example("fathom convert RUN --connection mhc_cycle --steps 500 --out FOLDER"))
def convert(
    run: RunFolder,
    connection: Annotated[
        str, Option(help="A scheme, or its settings such as '{connection: hc_paper}'.")
    ],
    steps: Annotated[int, Option(min=1, help="Training steps.")],
    out: Annotated[Path, output_folder(help="Folder of the new run.")],
    streams: Streams = 4,
    seed: Annotated[
        int | None, Option(min=0, help="Seed of batches; by default the run's plus 1000.")
    ] = None,
    device: Device = None,
    threads: Threads = None,
    replace: Replace = False,
) -> None:
    """Continue the training of a plain network with a connection.

    The run must keep its weights: `weights: true` in its study. The connection starts as the plain
    network, so the first loss is that of the plain network; both are printed. `--connection plain`
    continues the plain network. The optimiser starts anew.
    """
    from fathom_study.runs.folder import WEIGHTS, read_spec
    from fathom_study.runs.training import connect, first_loss
    from fathom_study.spec import Initial
    from fathom_study.tasks import Problem

    before, file = read_spec(run), run / WEIGHTS
    if before.connection.kind != "plain":
        raise ConfigError(f"{run}: has a {before.connection.kind} connection; convert a plain run")
    if out.resolve() == run.resolve():
        raise ConfigError(f"--out: {out} is the run itself; use another folder")
    if not file.is_file():
        raise ConfigError(f"{run}: keeps no weights; set weights: true in its study, and train it")
    settings = parse_yaml(connection, "--connection")
    resolved = resolve(settings, SCHEMES, streams, "", ["--connection"])
    plain = before.model_copy(
        update={
            "initial": Initial(weights=str(file), digest=digits(file.read_bytes())),
            "steps": steps,
            "seed": before.seed + 1000 if seed is None else seed,
        }
    )
    context = Problem(plain).network.connection.context
    name = name_behind(settings, SCHEMES) or resolved.kind
    spec = plain.model_copy(
        update={"connection": plain_start(resolved, context), "variant": f"to_{name}"}
    )
    if not (replace or is_free(out, spec)):
        return
    compute = changed(Compute(), device=device, threads=threads)
    backend = connect(spec, compute)
    losses = [first_loss(Problem(each), backend) for each in (plain, spec)]
    typer.echo(f"loss of the first batch: plain {losses[0]:.6f}, {name} {losses[1]:.6f}", err=True)
    train_spec(spec, out, compute)
    end_with(out, f"`fathom cell-figures {out} --out figures` draws it")


@app.command(epilog=example("fathom oracle mhc_paper --out mhc_paper.safetensors"))
def oracle(
    scheme: Scheme,
    out: Annotated[Path, output_file(help="File to write.")],
    # Seven blocks: Inkling 2 reads q, k and v apart in the sixth, and a sum of two blocks is open.
    layers: Annotated[int, Option(min=1, help="Wrapped functions, two in a block.")] = 14,
    width: Annotated[int, Option(min=1, help="Channels.")] = 8,
    streams: Streams = 4,
    seed: Annotated[int, Option(min=0, help="Seed of all numbers.")] = 0,
) -> None:
    """Write numbers to test another implementation with.

    A safetensors file in float64: parameters, the input, inputs and outputs of every function, the
    output, and gradients. Its metadata have the formula, the settings, and the meaning of names.
    """
    from safetensors.torch import save

    from fathom.torch import ResidualConnection, oracle_vectors

    settings = parse_yaml(scheme, "SCHEME")
    c = ResidualConnection(
        settings, layers, width, streams=streams, seed=seed, per_block=2, takes_apart=True
    ).double()
    name = name_behind(settings, SCHEMES)
    metadata = {
        "scheme": name,
        "formula": ABOUT[name].formula if name else "",
        "settings": resolve(settings, SCHEMES, streams, "").model_dump_json(),
        "layers": str(layers),
        "per_block": "2",
        "names": inspect.cleandoc(oracle_vectors.__doc__),
    }
    write_bytes(out, save(oracle_vectors(c, seed), metadata))
    end_with(out, "read it with safetensors")
