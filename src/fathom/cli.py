"""The command line: each command is a call into one room."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from fathom import study
from fathom.errors import fail, fail_for_interrupt, fail_for_system
from fathom.files import write_json, write_text
from fathom.study import Cell, Compute, Config, ConfigError, Spec

app = typer.Typer(
    help="Do multi-stream residual connections keep very deep networks trainable?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

ConfigFiles = Annotated[
    list[Path],
    typer.Option("--config", "-c", help="Config files; later ones are laid over earlier ones."),
]
Overrides = Annotated[
    list[str],
    typer.Option("--set", help="KEY=VALUE laid over the files, as in depths=[12] (repeatable)."),
]
PublishedFile = Annotated[
    Path, typer.Option("--published", help="Published figures to set beside ours.")
]
TemplatesFolder = Annotated[Path, typer.Option("--templates", help="Folder of the templates.")]
DEFAULT_CONFIG = [Path("config.yaml")]
PUBLISHED = Path("report/published.yaml")
TEMPLATES = Path("report/templates")
SCHEMA = Path("workflow/schemas/config.schema.json")


def main() -> None:
    """Run the command; an error that the user can mend is one line and exit status 1."""
    from fathom.backends import BackendError
    from fathom.data import DataError
    from fathom.runs import RunError

    try:
        app()
    except (ConfigError, BackendError, DataError, RunError) as error:
        fail(str(error))
    except OSError as error:
        fail_for_system(error)
    except KeyboardInterrupt:
        fail_for_interrupt()


def _read_config(files: list[Path], overrides: list[str]) -> Config:
    values: dict[str, Any] = {}
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator:
            raise ConfigError(f"--set {override}: write KEY=VALUE, as in depths=[12]")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"--set {override}: the value is not valid YAML") from error
        for part in reversed(key.split(".")):
            value = {part: value}
        study.merge(values, value)
    return study.load_config(files, values)


@app.command()
def train(
    name: Annotated[str, typer.Argument(metavar="STUDY", help="A study of the config.")],
    depth: Annotated[int | None, typer.Option(help="Number of layers.")] = None,
    variant: Annotated[str | None, typer.Option(help="Residual scheme.")] = None,
    backend: Annotated[str | None, typer.Option(help="torch or mlx.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of parameters and batches.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the run; by default its place in results.")
    ] = None,
    config: ConfigFiles = DEFAULT_CONFIG,
    override: Overrides = [],  # noqa: B006, typer copies it
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, mps or gpu.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
) -> None:
    """Train one cell, such as: fathom train depth-mlx --depth 48 --variant mhc --backend torch.

    An axis for which the study has only one value can be left out; one that the study does not
    list is tried all the same. A cell that was interrupted goes on from its checkpoint. The run
    folder holds spec.json, metrics.jsonl, summary.json and manifest.json.
    """
    settings = _read_config(config, override)
    wanted = {"depth": depth, "variant": variant, "backend": backend, "seed": seed}
    spec = _spec_of(settings, name, wanted)
    forced = {"device": device, "threads": threads}
    changes = {key: value for key, value in forced.items() if value is not None}
    compute = study.checked(Compute, {**settings.compute.model_dump(), **changes}, "compute")
    _train(spec, out or Path(settings.results) / "runs" / spec.cell.path(), compute)


@app.command()
def fetch(
    record: Annotated[
        Path | None, typer.Option(help="Where to keep what was tried, if nothing works.")
    ] = None,
) -> None:
    """Get the official Fashion-MNIST, from wherever this machine can, and check it.

    It goes to the folder `fashion-mnist` of the one that FATHOM_DATA names, by default data.
    """
    from fathom.data import DataError, fashion_mnist_folder
    from fathom.data import fetch as get

    try:
        get(fashion_mnist_folder(), lambda line: typer.echo(line, err=True))
    except DataError as error:
        if record:
            write_text(record, f"{error}\n")
        raise
    if record:
        record.unlink(missing_ok=True)


@app.command()
def compare(
    task: Annotated[str, typer.Argument(metavar="TASK", help="fashion.")] = "fashion",
    mode: Annotated[
        list[str] | None,
        typer.Option(help="Only this variant (repeatable); without it, all that are published."),
    ] = None,
    depth: Annotated[int, typer.Option(min=1, help="Residual blocks.")] = 100,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 500,
    width: Annotated[int, typer.Option(min=1, help="Channels.")] = 64,
    batch_size: Annotated[int, typer.Option(min=1, help="Images in a batch.")] = 64,
    seed: Annotated[int, typer.Option(min=0, help="Of parameters, batches and dropout.")] = 42,
    streams: Annotated[int, typer.Option(min=1, help="Streams of hc and mhc.")] = 1,
    lr: Annotated[float, typer.Option(help="Learning rate.")] = 8e-4,
    weight_decay: Annotated[float, typer.Option(help="Decoupled decay.")] = 0.1,
    warmup_steps: Annotated[int, typer.Option(min=0, help="Of linear warm-up.")] = 0,
    dropout: Annotated[float, typer.Option(help="Share of activations dropped.")] = 0.1,
    no_schedule: Annotated[bool, typer.Option("--no-schedule", help="Constant rate.")] = False,
    no_compile: Annotated[
        bool, typer.Option("--no-compile", help="MLX on a GPU: do not compile the step.")
    ] = False,
    backend: Annotated[str, typer.Option(help="torch or mlx.")] = "torch",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, mps or gpu.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; all cores.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for everything.")] = Path("results/compare"),
) -> None:
    """Train several variants one after the other and set them side by side, without the workflow.

    Leaves a figure, heat maps of the mixing matrices, a table, the weights, and one JSON file with
    configuration, summary and history. The data set is fetched if it is not there.
    """
    from fathom.compare import PUBLISHED_MODES, compare_variants

    if task != "fashion":
        raise ConfigError(f"compare knows the task fashion, not '{task}'")
    if no_compile:
        os.environ["FATHOM_MLX_COMPILE"] = "off"
    numbers = {
        "depth": depth, "seed": seed, "steps": steps, "batch_size": batch_size,
        "backend": backend, "task": task, "recipe": "mlx", "study": "compare",
        "model": {"width": width, "streams": streams, "dropout": dropout},
        "optimizer": {
            "lr": lr, "weight_decay": weight_decay, "warmup_steps": warmup_steps,
            "schedule": "constant" if no_schedule else "cosine",
        },
    }  # fmt: skip
    specs = [
        study.checked(Spec, {**numbers, "variant": variant}, "compare")
        for variant in mode or PUBLISHED_MODES
    ]
    cores = threads or os.cpu_count() or 1
    compute = study.checked(Compute, {"device": device, "threads": cores}, "compare")
    compare_variants(specs, compute, out)


@app.command()
def status(
    studies: Annotated[list[str] | None, typer.Argument(help="Only these studies.")] = None,
    config: ConfigFiles = DEFAULT_CONFIG,
    override: Overrides = [],  # noqa: B006, typer copies it
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Show what is trained, what is left, and how long that will take."""
    from fathom.status import status_of
    from fathom.terminal import print_status

    settings = _read_config(config, override)
    unknown = [name for name in studies or [] if name not in settings.studies]
    if unknown:
        raise ConfigError(f"no study '{unknown[0]}'; the config has {', '.join(settings.studies)}")
    found = status_of(settings, studies or ())
    if as_json:
        print(json.dumps(found.as_json(), indent=2))
    else:
        print_status(found)


@app.command()
def verify(
    config: ConfigFiles = DEFAULT_CONFIG,
    override: Overrides = [],  # noqa: B006, typer copies it
    published: PublishedFile = PUBLISHED,
    templates: TemplatesFolder = TEMPLATES,
) -> None:
    """Check every run, table, report and figure; exit 1 and list the problems if there are any."""
    from fathom.claims import load_published
    from fathom.verify import verify as check

    settings = _read_config(config, override)
    found = check(settings, load_published(published), templates)
    counts = ", ".join(f"{n} {what}" for what, n in found.checked.items())
    if found.problems:
        fail("\n".join([*found.problems, f"{len(found.problems)} problems in {counts}"]))
    print(f"verified: {counts}")


def _portable(arguments: list[str]) -> None:
    from fathom import portable

    portable.main(arguments)


# These two parse their own arguments, so that they work without typer; here they are for --help.
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command("train-all", context_settings=_PASS_ON)
def train_all(context: typer.Context) -> None:
    """Train cells without Snakemake, for machines that have only Python and a framework."""
    _portable(["train-all", *context.args])


@app.command(context_settings=_PASS_ON)
def bundle(context: typer.Context) -> None:
    """Carry runs from one machine to another: bundle create, bundle import."""
    _portable(["bundle", *context.args])


@app.command(hidden=True)
def job(
    spec: Annotated[str, typer.Argument(help="A whole spec, as JSON.")],
    out: Annotated[Path, typer.Option()],
    compute: Annotated[str, typer.Option(help="That section of the config, as JSON.")] = "{}",
) -> None:
    """Train the cell of a spec: what the workflow calls."""
    _train(Spec.model_validate_json(spec), out, Compute.model_validate_json(compute))


@app.command(hidden=True)
def resolve(
    config: Annotated[str, typer.Argument(help="A whole config, as JSON.")],
    out: Annotated[Path, typer.Option()],
) -> None:
    """Keep the config that a workflow ran with, for the tables and the reports."""
    checked = study.check_config(json.loads(config))
    write_json(out, checked.model_dump(mode="json", exclude={"compute"}))


@app.command()
def tables(config: ConfigFiles = DEFAULT_CONFIG) -> None:
    """Gather all runs of the config into the CSVs of results/tables."""
    from fathom.attribution import write_attribution
    from fathom.tables import write_tables

    settings = study.load_config(config)
    folder = Path(settings.results) / "tables"
    write_tables(settings, folder)
    write_attribution(settings, folder)


@app.command()
def claims(config: ConfigFiles = DEFAULT_CONFIG, published: PublishedFile = PUBLISHED) -> None:
    """Put the published figures and claims to their tests: claims.csv, verdicts.csv."""
    from fathom.claims import load_published, write_claims

    settings = study.load_config(config)
    write_claims(settings, load_published(published), Path(settings.results) / "tables")


@app.command()
def figures(
    steps: Annotated[Path, typer.Option(help="The table of steps.")],
    summary: Annotated[Path, typer.Option(help="The table of groups of seeds.")],
    name: Annotated[str, typer.Option("--study", help="Which study.")],
    backend: Annotated[str, typer.Option(help="Which backend.")],
    out: Annotated[Path, typer.Option(help="Folder for the PNGs.")],
    platform: Annotated[
        str, typer.Option(help="An imported platform; without it, what was measured here.")
    ] = "",
    runs: Annotated[Path, typer.Option(help="Folder of these runs.")] = Path("results/runs"),
) -> None:
    """Draw the figures of one study on one backend."""
    from fathom.figures import image_figures, save, study_figures
    from fathom.mixing import mixing_matrices
    from fathom.tables import read_table

    where = f"origin == 'imported' and platform == '{platform}'" if platform else "origin == 'here'"
    wanted = f"study == '{name}' and backend == '{backend}' and {where}"
    chosen, groups = (read_table(file).query(wanted) for file in (steps, summary))
    title = f"{name} on {backend}" + (f", {platform}" if platform else "")
    if "grad_norm_stem" in chosen and chosen["grad_norm_stem"].notna().any():
        matrices = mixing_matrices(runs, chosen)
        save(image_figures(chosen, groups, matrices, title), out)
    else:
        save(study_figures(chosen, groups, title), out)


@app.command()
def overview_figures(
    variance: Annotated[Path, typer.Option(help="The table of shares of variance.")],
    published: Annotated[Path, typer.Option(help="The table of published values.")],
    out: Annotated[Path, typer.Option(help="Folder for the PNGs.")],
) -> None:
    """Draw the figures over all studies: variance, published."""
    from fathom.figures import overview_figures as draw
    from fathom.figures import save
    from fathom.tables import read_table

    save(draw(read_table(variance), read_table(published)), out)


@app.command()
def cell_figures(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[Path, typer.Option(help="Folder for the PNGs.")],
) -> None:
    """Draw the figures of one run: loss, grad_norm, nan_inf_events, gain_proxy."""
    import pandas as pd

    from fathom.figures import cell_figures as draw
    from fathom.figures import save
    from fathom.runs import read_json, read_rows

    spec = study.checked(Spec, read_json(run / "spec.json"), str(run / "spec.json"))
    rows = pd.DataFrame(read_rows(run)).assign(variant=spec.variant, seed=spec.seed)
    save(draw(rows, title=spec.cell.path()), out)


@app.command()
def report(
    config: ConfigFiles = DEFAULT_CONFIG,
    published: PublishedFile = PUBLISHED,
    templates: TemplatesFolder = TEMPLATES,
) -> None:
    """Fill the templates from the tables: RESULTS.md and COMPARISON.md."""
    from fathom.claims import load_published
    from fathom.report import write_reports

    settings = study.load_config(config)
    write_reports(settings, load_published(published), templates, Path(settings.results))


@app.command()
def bench(
    parts: Annotated[
        list[str] | None,
        typer.Argument(help="steps, growth, startup, dry-run, sweep (default: all but sweep)."),
    ] = None,
    size: Annotated[
        list[str] | None, typer.Option(help="demo, small or default (repeatable; default: all).")
    ] = None,
    turns: Annotated[int, typer.Option(min=1, help="How often each side runs.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of a step.")] = 1,
    out: Annotated[Path, typer.Option(help="The table.")] = Path("results/tables/bench.csv"),
    figure: Annotated[Path | None, typer.Option(help="Draw it too, as this PNG.")] = None,
) -> None:
    """Measure training steps against a textbook step and the machine, and the workflow's overhead.

    Both sides take turns, so a machine that slows down slows both. Leave the machine alone
    meanwhile: the steps take ten minutes, the sweep as long as `snakemake all`.
    """
    from fathom import bench as benchmark

    parts = parts or [part for part in benchmark.PARTS if part != "sweep"]
    sizes = size or list(benchmark.SIZES)
    for given, known in ((parts, benchmark.PARTS), (sizes, tuple(benchmark.SIZES))):
        unknown = [name for name in given if name not in known]
        if unknown:
            raise ConfigError(f"bench knows no '{unknown[0]}'; there are {', '.join(known)}")
    benchmark.write_bench(out, parts, sizes, turns, threads, typer.echo)
    if figure:
        from fathom.figures import bench_figure, save
        from fathom.tables import read_table

        save({figure.stem: bench_figure(read_table(out))}, figure.parent)


@app.command()
def schema(
    out: Annotated[Path, typer.Option(help="The file.")] = SCHEMA,
    check: Annotated[bool, typer.Option("--check", help="Only see whether it is current.")] = False,
) -> None:
    """Write the JSON schema of config.yaml, from the models that check it."""
    text = json.dumps(Config.model_json_schema(), indent=2) + "\n"
    if not check:
        write_text(out, text)
    elif not out.exists() or out.read_text(encoding="utf-8") != text:
        fail(f"{out} is not what the models say; run: fathom schema")


def _spec_of(settings: Config, name: str, wanted: dict[str, Any]) -> Spec:
    if name not in settings.studies:
        raise ConfigError(f"no study '{name}'; the config has {', '.join(settings.studies)}")
    chosen = settings.studies[name]
    values = {}
    for axis, value in wanted.items():
        listed = getattr(chosen, f"{axis}s")
        if value is None and len(listed) > 1:
            known = ", ".join(map(str, listed))
            raise ConfigError(f"{name}: add --{axis}, one of {known}")
        values[axis] = listed[0] if value is None else value
    return settings.spec(Cell(name, **values))


def _train(spec: Spec, out: Path, compute: Compute) -> None:
    from fathom import runs
    from fathom.progress import training_progress

    with training_progress(spec) as on_chunk:
        summary = runs.run_cell(spec, out, compute, on_chunk)
    typer.echo(f"{spec.cell}: {summary['outcome']}; the run is in {out}", err=True)
