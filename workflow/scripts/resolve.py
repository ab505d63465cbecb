"""Write the validated config of this workflow, for the commands that make tables and reports."""

from pathlib import Path

Path(snakemake.output.config).write_text(snakemake.params.config, encoding="utf-8")  # noqa: F821
