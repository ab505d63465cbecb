"""Checks before Snakemake starts, and texts for its jobs.

The profiles (`workflow/profiles`) call `check_start`, as Snakemake reads no other file of the
project before the config, and reports each error of the config in many lines.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fathom.settings import ConfigError
from fathom.system.errors import UserError, fail, of_system
from fathom.system.text import digits
from fathom_study.config.config import Compute, Config
from fathom_study.config.load import check_config, load_config, read_yaml
from fathom_study.system.files import write_text


def check_start() -> None:
    """Exit with one line if Snakemake's cache or a file after `--configfile` cannot be used."""
    from platformdirs import user_cache_dir  # a package that Snakemake needs

    try:
        cache = Path(user_cache_dir("snakemake", "snakemake"), "snakemake/source-cache")
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(
            f"{of_system(error)}; Snakemake needs a cache in the home folder; choose a writable "
            'folder: export XDG_CACHE_HOME="$PWD/.snakemake"'
        )
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    options.add_argument("--configfile", "--configfiles", nargs="+", action="append", default=[])
    options.add_argument("--config", "-C", nargs="*", action="append", default=[])
    given, _ = options.parse_known_args(sys.argv[1:])
    for name, values in vars(given).items():
        if len(values) > 1:
            fail(f"--{name} is given {len(values)} times, but Snakemake uses only the last; "
                 f"write one: --{name} {' '.join(itertools.chain(*values))}")  # fmt: skip
    try:
        for file in itertools.chain(*given.configfile):
            read_yaml(file)
    except UserError as error:
        fail(str(error))


@dataclass(frozen=True)
class Start:
    """Options with which Snakemake was started, from private attributes of its workflow."""

    is_module: bool
    """Whether another workflow uses this one, and passes the config."""
    files: list[str]
    """Config files as the user gave them. Snakemake's `config` has the keys of an overlay before
    those of config.yaml, so studies would lose their order."""
    changes: dict[str, Any]
    """Keys and values after --config."""
    conda: bool
    """Whether jobs have a Python of their own."""
    is_remote: bool
    """Whether jobs run on other machines."""
    is_main: bool
    """Whether this is not the process of a job."""
    runs_jobs: bool
    """Whether this process starts jobs on this machine."""

    @property
    def any_backend(self) -> bool:
        """Whether jobs may have frameworks that are missing here."""
        return self.conda or self.is_remote

    @classmethod
    def of(cls, workflow: Any) -> Start:  # noqa: ANN401, Snakemake's
        """Read the workflow that Snakemake is about to run."""
        settings = workflow.config_settings
        is_module = workflow.modifier.skip_configfile
        own = [] if settings.replace_workflow_config else ["config.yaml"]
        # Only the profile of a cluster has default resources.
        resources = workflow.resource_settings.default_resources
        conda = bool(workflow.deployment_settings.deployment_method)
        return cls(
            is_module=is_module,
            files=[*own, *map(str, workflow.overwrite_configfiles)],
            changes=settings.config,
            conda=conda,
            is_remote=workflow.remote_exec or resources is not None,
            is_main=workflow.is_main_process,
            runs_jobs=workflow.local_exec and not conda,
        )

    def check_file(self, project: Path) -> None:
        """Raise ConfigError for a missing or malformed config.yaml, before Snakemake reads it."""
        if self.is_module:
            return
        if not Path("config.yaml").exists():
            raise ConfigError(
                f"config.yaml is not in this folder; change to {project}, or add "
                f"--directory {project}"
            )
        read_yaml("config.yaml")

    def load(self, passed: dict[str, Any]) -> Config:
        """The config: `passed` for a module, else from files and changes. Raises ConfigError."""
        return check_config(passed) if self.is_module else load_config(self.files, self.changes)

    def options(self, config: Config) -> list[str]:
        """Options of `fathom` for the same config."""
        if self.is_module:
            return ["--config", f"{config.report_folder}/config.json"]
        changes = [f"--set={key}={json.dumps(value)}" for key, value in self.changes.items()]
        return [word for file in self.files for word in ("--config", file)] + changes


def resolved_text(config: Config) -> str:
    """The content of config.json."""
    return json.dumps(config.resolved(), indent=2, allow_nan=False) + "\n"


def is_resolved(config: Config) -> bool:
    """Whether config.json exists and has the content of this config."""
    file = Path(config.report_folder, "config.json")
    return file.is_file() and file.read_bytes() == resolved_text(config).encode()


def write_resolved(config: Config) -> str:
    """Path of a file with `resolved_text`, named after its hash, for the job that copies it."""
    text = resolved_text(config)
    file = Path(".snakemake/fathom-config", f"{digits(text)}.json")
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, text)
    return str(file)


KILLED = (
    "killed, perhaps out of memory; run the same command again to resume from the last checkpoint"
)


def shell_prefix(python: str, source: Path, compute: Compute) -> str:
    """Shell code that defines `fathom` and its environment.

    `source` is put at the front of PYTHONPATH. `compute` is in the environment, since it changes no
    result: as a parameter it would make jobs run again.
    """
    words = (str(source), compute.model_dump_json(), compute.data)
    path, settings, data = map(shlex.quote, words)
    return (
        f'export PYTHONPATH={path}"${{PYTHONPATH:+:$PYTHONPATH}}" '
        f"FATHOM_COMPUTE={settings} FATHOM_DATA={data}; "
        f'fathom() {{ {python} -m fathom_study "$@" || {{ '
        f's=$?; [ $s -le 130 ] || echo "fathom: {KILLED}" >&2; return $s; }}; }}; '
    )
