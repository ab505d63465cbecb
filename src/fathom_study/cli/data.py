"""Download the data sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument

from fathom_study import datasets
from fathom_study.cli.options import DATA, check_known, example, output_file, output_folder
from fathom_study.datasets import shakespeare
from fathom_study.system.files import write_text

app = typer.Typer()


@app.command(epilog=example("fathom fetch"))
def fetch(
    names: Annotated[
        list[str] | None,
        Argument(metavar="[NAME]...", help="Data sets, such as fashion_mnist; by default all."),
    ] = None,
    data: Annotated[
        Path, output_folder(help="Folder for data sets, the same as compute.data of the config.")
    ] = DATA,
    record: Annotated[
        Path | None, output_file(help="File for the list of attempts if a data set fails.")
    ] = None,
) -> None:
    """Download the data sets and check them.

    Each data set gets its own folder inside the folder of data sets.
    """
    names = names or list(datasets.DATASETS)
    check_known("data set", names, datasets.DATASETS)
    problems = []
    for name in names:
        try:
            datasets.fetch(name, str(data), lambda line: typer.echo(line, err=True))
        except datasets.DataError as error:  # the others may be available
            problems.append(str(error))
    if problems:
        message = "\n".join(problems)
        if record:
            write_text(record, f"{message}\n")
        raise datasets.DataError(message)
    if record:
        record.unlink(missing_ok=True)


@app.command(epilog=example("fathom corpus my-texts"))
def corpus(
    folder: Annotated[Path, Argument(help="A folder of .txt files, in UTF-8.")],
) -> None:
    """Print the settings that name your own text.

    Put them under `model:` in a study of task text. They tie its runs to these files: training
    checks the hash.
    """
    text = shakespeare.own(folder)
    typer.echo(f"corpus: {json.dumps(str(folder), ensure_ascii=False)}")
    typer.echo(f"vocab: {len(text.characters)}")
    typer.echo(f"corpus_sha256: {text.digest}")
