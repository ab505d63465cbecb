"""A result as an RO-Crate: the project's files, what it computed, and how, for an archive.

The folder is a copy of the project with its results: `make setup` and `fathom verify` work in it.
`ro-crate-metadata.json` lists every file with its SHA-256, and every training with its start, its
end and what it left, by the profile Provenance Run Crate.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rocrate.model.contextentity import ContextEntity
from rocrate.model.person import Person
from rocrate.rocrate import ROCrate

import fathom
from fathom.config import Config
from fathom.report.citation import Author, Citation, Reference, read_citation
from fathom.report.page import PAGE
from fathom.report.paper import PAPER
from fathom.report.reports import reports_of
from fathom.runs.folder import MANIFEST, METRICS, MIXING, SPEC, WEIGHTS, read_json
from fathom.runs.inspect import Run, find_runs
from fathom.settings import lines_of
from fathom.system.errors import UserError
from fathom.system.files import sha256

PROJECT_FILES = (
    "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md",
    "config.yaml", "pyproject.toml", "requirements.txt",
)  # fmt: skip
PROJECT_FOLDERS = ("benchmarks", "config", "docs", "envs", "report", "src", "tests", "workflow")
"""What makes the results again."""

NOT_KEPT = ("__pycache__", ".egg-info")
"""How names of folders end that no archive needs."""

WORKFLOW = Path("workflow/Snakefile")

PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.5": "Workflow Run Crate",
    "https://w3id.org/ro/wfrun/provenance/0.5": "Provenance Run Crate",
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": "Workflow RO-Crate",
}
CRATE_VERSION = "1.1"
"""Of RO-Crate: the one that these profiles extend."""

TERMS = {
    name: f"https://w3id.org/ro/terms/workflow-run#{name}" for name in ("resourceUsage", "sha256")
}
"""Terms of the profiles that RO-Crate itself does not have."""

FORMATS = {
    ".cff": "text/yaml", ".css": "text/css", ".csv": "text/csv", ".gz": "application/gzip",
    ".html": "text/html", ".j2": "text/plain", ".js": "text/javascript",
    ".json": "application/json", ".jsonl": "application/jsonl", ".md": "text/markdown",
    ".pdf": "application/pdf", ".png": "image/png", ".py": "text/x-python", ".rst": "text/x-rst",
    ".safetensors": "application/octet-stream", ".smk": "text/plain", ".svg": "image/svg+xml",
    ".toml": "application/toml", ".txt": "text/plain", ".typ": "text/plain", ".yaml": "text/yaml",
}  # fmt: skip

UNITS = {"seconds": "SEC", "peak_host_memory_bytes": "AD", "peak_device_memory_bytes": "AD"}
"""What of a manifest is a use of resources; and its unit by UN/CEFACT (AD: byte)."""

CONTENTS = {
    SPEC: "every number that the training uses",
    METRICS: "a row of measures for each step",
    MIXING: "the connection's matrices after the last step",
    WEIGHTS: "the parameters after the last step",
    MANIFEST: "where, when and with what it was computed",
}


class CrateError(UserError):
    """An archive that cannot be made; the message says what is missing and what makes it."""


@dataclass(frozen=True)
class Written:
    """What went into a crate."""

    files: int
    bytes: int
    runs: int


def write_crate(config: Config, files: Sequence[Path], templates: Path, folder: Path) -> Written:
    """Write the config's results into a new `folder`, whole or not at all.

    `files`: the config's own. Raises CrateError if the folder has something in it, or if there is
    nothing current to archive; ConfigError for a damaged CITATION.cff.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise CrateError(f"{folder}: is there already; name a new folder, or an empty one")
    citation = read_citation()
    runs = _current_runs(config)
    results = _result_files(config, templates)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
        fresh = Path(scratch, "crate")
        crate = _Crate(config, citation)
        crate.add_all(files, runs, results)
        crate.rocrate.write(fresh)
        sizes = [file.stat().st_size for file in fresh.rglob("*") if file.is_file()]
        fresh.rename(folder)
    return Written(len(sizes), sum(sizes), len(runs))


def _current_runs(config: Config) -> list[Run]:
    """The runs, each with its files checked. Raises CrateError if one of them does not count."""
    runs = [run for run in find_runs(config) if run.status != "missing"]
    unfit = [f"{run.folder}: {run.status}: {run.reason}" for run in runs if not run.counts]
    if unfit:
        raise CrateError(f"{lines_of(unfit)}\nfathom verify says what repairs this")
    if not runs:
        raise CrateError(
            f"{config.results}: has no run to archive; run: snakemake all (with the same config)"
        )
    return runs


def _result_files(config: Config, templates: Path) -> list[Path]:
    """Config, tables, figures and reports. Raises CrateError if they are not the config's."""
    results = Path(config.report_folder)
    kept = results / "config.json"
    if not kept.is_file() or read_json(kept) != json.loads(json.dumps(config.resolved())):
        raise CrateError(
            f"{kept}: is not what this config gives; run: snakemake all (with the same config)"
        )
    reports = [results / report.name for report in reports_of(config, templates)]
    lacking = [file for file in (results / "tables/cells.csv", *reports) if not file.is_file()]
    if lacking:
        raise CrateError(f"{lacking[0]}: missing; run: snakemake all (with the same config)")
    on_request = [results / name for name in (PAGE, PAPER)]
    folders = (_files(results / name) for name in ("tables", "figures", "replay"))
    return [
        kept,
        *reports,
        *(file for file in on_request if file.is_file()),
        *(file for files in folders for file in files),
    ]


def _reference_files(config: Config) -> list[Path]:
    """Of the kept result what reports read and lead to: pages, tables and figures; no runs."""
    if config.reference is None:
        return []
    reference = Path(config.reference)
    patterns = ("*.md", "studies/*.md", "tables/*.csv", "figures/**/*.png")
    return [file for pattern in patterns for file in sorted(reference.glob(pattern))]


def _files(folder: Path) -> list[Path]:
    """Every file below a folder, but for hidden ones and those that Python compiles."""
    return sorted(
        file
        for file in folder.rglob("*")
        if file.is_file()
        and not file.name.startswith(".")
        and not any(part.endswith(NOT_KEPT) for part in file.parts)
    )


def _single(value: Any) -> Any:  # noqa: ANN401, whatever an entity holds
    """A list of one as that one, as RO-Crate recommends."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


class _Crate:
    """A crate that is being filled. Entities are named by the place of their file in it."""

    def __init__(self, config: Config, citation: Citation) -> None:
        self.config, self.citation = config, citation
        self.rocrate = ROCrate(version=CRATE_VERSION)
        self.rocrate.metadata.extra_terms.update(TERMS)
        self.files: dict[Path, Any] = {}
        self.sources: dict[Path, Path] = {}

    def add_all(
        self, config_files: Iterable[Path], runs: Sequence[Run], results: Sequence[Path]
    ) -> None:
        """Everything, the root last."""
        workflow = self.add_workflow()
        for file in (*self.project_files(), *config_files, *_reference_files(self.config)):
            self.add_file(file)
        made = [self.add_file(file) for file in results]
        tool = self.add_tool(runs)
        workflow["hasPart"] = [tool]
        trainings = [self.add_training(run, tool) for run in runs]
        action = self.add_action(workflow, runs, made)
        self.describe(workflow, [action, *trainings], runs)

    def project_files(self) -> Iterator[Path]:
        """The files of the project that are there, as seen from its folder."""
        yield from (path for path in map(Path, PROJECT_FILES) if path.is_file())
        for folder in PROJECT_FOLDERS:
            yield from _files(Path(folder))

    def place(self, file: Path) -> Path:
        """Where a file goes: where it is, or below a folder of its own if that is elsewhere."""
        if not (file.is_absolute() or ".." in file.parts):
            return file
        for name in ("results", "reference"):
            folder = getattr(self.config, name)
            if folder and file.is_relative_to(folder):
                return name / file.relative_to(folder)
        return Path("configs", file.name)

    def add_file(self, file: Path, **properties: Any) -> Any:  # noqa: ANN401, an entity
        """A file with its size and its hash; once, however often it is asked for."""
        place = self.place(file)
        if self.sources.setdefault(place, file) != file:
            raise CrateError(f"{file}: has the name of {self.sources[place]}; give it another")
        if place not in self.files:
            facts = {"sha256": sha256(file), "contentSize": str(file.stat().st_size)}
            if file.suffix in FORMATS:
                facts["encodingFormat"] = FORMATS[file.suffix]
            properties = {"name": place.as_posix(), **facts, **properties}
            self.files[place] = self.rocrate.add_file(file, place.as_posix(), properties=properties)
        return self.files[place]

    def add(self, identity: str, kind: str, **properties: Any) -> Any:  # noqa: ANN401, an entity
        """Something that is no file. Properties of None are left out."""
        given = {
            key: _single(value) for key, value in properties.items() if value not in (None, "")
        }
        entity = ContextEntity(self.rocrate, identity, {"@type": kind, **given})
        return self.rocrate.add(entity)

    def add_workflow(self) -> Any:  # noqa: ANN401, an entity
        if not WORKFLOW.is_file():
            raise CrateError(f"{WORKFLOW}: missing; run this in the folder of the project")
        facts = {"sha256": sha256(WORKFLOW), "contentSize": str(WORKFLOW.stat().st_size)}
        workflow = self.rocrate.add_workflow(
            WORKFLOW, WORKFLOW.as_posix(), main=True, lang="snakemake",
            properties={"name": f"{self.citation.title}: the workflow", **facts},
        )  # fmt: skip
        self.files[WORKFLOW] = workflow
        return workflow

    def add_tool(self, runs: Sequence[Run]) -> Any:  # noqa: ANN401, an entity
        """What trains a cell, and the software that it was run with."""
        with_versions = {("snakemake", version("snakemake"))}
        for run in runs:
            manifest = run.manifest
            with_versions |= {
                (manifest.device.framework, manifest.device.framework_version),
                ("numpy", manifest.numpy),
                ("python", manifest.python),
            }
        needed = [
            self.add(f"#{name}-{number}", "SoftwareApplication", name=name, version=number)
            for name, number in sorted(with_versions)
            if name and number
        ]
        return self.add(
            "#fathom-train",
            "SoftwareApplication",
            name="fathom train",
            description="Trains one cell of a study.",
            version=fathom.__version__,
            softwareRequirements=needed,
        )

    def add_training(self, run: Run, tool: Any) -> Any:  # noqa: ANN401, an entity
        manifest, cell = run.manifest, run.cell.path()
        entities = {
            name: self.add_file(run.folder / name, description=CONTENTS[name])
            for name in (*manifest.run_files, MANIFEST)
        }
        identity = self.place(run.folder).as_posix()
        usage = {name: getattr(manifest, name) for name in UNITS}
        device = manifest.device
        return self.add(
            f"#train/{identity}",
            "CreateAction",
            name=f"training of {cell}",
            description=(
                f"{device.framework} {device.framework_version} on {device.kind} {device.name}, "
                f"{manifest.os}, threads: {manifest.threads}; fathom {manifest.fathom}, commit "
                f"{manifest.git.get('commit') or 'unknown'}"
            ),
            instrument=tool,
            object=[entities.pop(SPEC)],
            result=list(entities.values()),
            startTime=manifest.started,
            endTime=manifest.ended,
            actionStatus="http://schema.org/CompletedActionStatus",
            resourceUsage=[
                self.add(
                    f"#{name}/{identity}",
                    "PropertyValue",
                    name=name,
                    propertyID=name,
                    value=value,
                    unitCode=UNITS[name],
                )
                for name, value in usage.items()
                if value is not None
            ],
        )

    def add_action(self, workflow: Any, runs: Sequence[Run], made: Sequence[Any]) -> Any:  # noqa: ANN401, entities
        """The run of the workflow: from its config to tables, figures and reports."""
        kept, *results = made
        return self.add(
            "#workflow-run",
            "CreateAction",
            name="snakemake all",
            description=(
                f"{len(runs)} trainings, and what follows from them. Start and end are those of "
                "the trainings."
            ),
            instrument=workflow,
            object=[kept],
            result=results,
            startTime=min(run.manifest.started for run in runs),
            endTime=max(run.manifest.ended for run in runs),
            actionStatus="http://schema.org/CompletedActionStatus",
        )

    def describe(self, workflow: Any, actions: Sequence[Any], runs: Sequence[Run]) -> None:  # noqa: ANN401
        """The root: what this is, whose, and under which licence."""
        citation, root = self.citation, self.rocrate.root_dataset
        authors = [self.add_author(number, a) for number, a in enumerate(citation.authors, 1)]
        licence = self.add(citation.license_url, "CreativeWork", name=citation.license)
        profiles = [
            self.add(url, "CreativeWork", name=name, version=url.rpartition("/")[2])
            for url, name in PROFILES.items()
        ]
        # The day of the last training, and not of the export: the same results, the same crate.
        released = citation.date_released or max(run.manifest.ended for run in runs)
        if Path("README.md") in self.files:
            self.files[Path("README.md")]["about"] = root
        described = {
            "name": f"{citation.title}: results",
            "description": citation.abstract.strip() or citation.title,
            "datePublished": released,
            "author": authors,
            "license": licence,
            "keywords": ", ".join(citation.keywords),
            "version": citation.version,
            "conformsTo": profiles,
            "mentions": list(actions),
            "citation": [
                self.add_reference(number, r) for number, r in enumerate(citation.references, 1)
            ],
        }
        for key, value in described.items():
            if value:
                root[key] = _single(value)
        workflow["license"] = licence
        workflow["author"] = _single(authors)
        workflow["version"] = citation.version

    def add_author(self, number: int, author: Author) -> Any:  # noqa: ANN401, an entity
        identity = author.orcid or f"#author-{number}"
        given = {"name": author.full_name}
        if not author.is_person:
            return self.add(identity, "Organization", **given)
        if author.affiliation:
            given["affiliation"] = author.affiliation
        return self.rocrate.add(Person(self.rocrate, identity, given))

    def add_reference(self, number: int, reference: Reference) -> Any:  # noqa: ANN401, an entity
        return self.add(
            reference.url or f"#reference-{number}",
            "ScholarlyArticle",
            name=reference.title,
            author=", ".join(author.full_name for author in reference.authors),
        )
