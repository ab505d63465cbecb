"""Results as an RO-Crate for an archive: the project's files, what was computed, and how.

The crate is a copy of the project with its results: `make setup` and `fathom verify` work in it.
`ro-crate-metadata.json` lists every file with its SHA-256, and every training with its start, end
and files, following the profile Provenance Run Crate.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rocrate.rocrate import ROCrate

import fathom
from fathom.config import Config
from fathom.report.citation import Author, Citation, Reference, given, read_citation
from fathom.report.kept import SUMS, shown_files
from fathom.report.page import PAGE
from fathom.report.paper import PAPER
from fathom.report.reports import reports_of
from fathom.runs.folder import MANIFEST, METRICS, MIXING, SPEC, WEIGHTS, read_json
from fathom.runs.run import Run
from fathom.runs.validate import find_runs
from fathom.settings import join_problems
from fathom.system.errors import UserError
from fathom.system.files import sha256

PROJECT = (
    "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md",
    "config.yaml", "pyproject.toml", "requirements.txt",
    "benchmarks", "config", "docs", "envs", "report", "src", "tests", "workflow",
)  # fmt: skip
"""What is needed to make the results again."""

NOT_KEPT = ("__pycache__", ".egg-info")
"""Endings of folders that no archive needs."""

WORKFLOW = Path("workflow/Snakefile")

PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.5": "Workflow Run Crate",
    "https://w3id.org/ro/wfrun/provenance/0.5": "Provenance Run Crate",
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": "Workflow RO-Crate",
}
CRATE_VERSION = "1.1"
"""The version of RO-Crate that these profiles extend."""

TERMS = {
    name: f"https://w3id.org/ro/terms/workflow-run#{name}" for name in ("resourceUsage", "sha256")
}
"""Terms that the profiles add to RO-Crate's own."""

FORMATS = {
    ".cff": "text/yaml", ".css": "text/css", ".csv": "text/csv", ".gz": "application/gzip",
    ".html": "text/html", ".j2": "text/plain", ".js": "text/javascript",
    ".json": "application/json", ".jsonl": "application/jsonl", ".md": "text/markdown",
    ".pdf": "application/pdf", ".png": "image/png", ".py": "text/x-python", ".rst": "text/x-rst",
    ".safetensors": "application/octet-stream", ".smk": "text/plain", ".svg": "image/svg+xml",
    ".toml": "application/toml", ".txt": "text/plain", ".typ": "text/plain", ".yaml": "text/yaml",
}  # fmt: skip

UNITS = {"seconds": "SEC", "peak_host_memory_bytes": "AD", "peak_device_memory_bytes": "AD"}
"""Resource usage recorded in a manifest → its UN/CEFACT unit code (AD: byte)."""

CONTENTS = {
    SPEC: "every number that the training uses",
    METRICS: "a row of metrics for each step",
    MIXING: "the connection's matrices after the last step",
    WEIGHTS: "the parameters after the last step",
    MANIFEST: "where, when and with what it was computed",
}


TRAIN, WORKFLOW_RUN = "#fathom-train", "#workflow-run"


def write_crate(config: Config, files: Sequence[Path], templates: Path, folder: Path) -> str:
    """Write the config's results into a new `folder`, all or nothing; say how much went into it.

    `files`: the config files. Raises UserError if the folder is not empty, or if there is nothing
    current to archive; ConfigError for a damaged CITATION.cff.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"{folder}: is there already; name a new folder, or an empty one")
    if not WORKFLOW.is_file():
        raise UserError(f"{WORKFLOW}: missing; run this in the folder of the project")
    citation = read_citation()
    runs = _current_runs(config)
    results = _result_files(config, templates)
    run_files = [run.folder / n for run in runs for n in (*run.manifest.files, MANIFEST)]
    kept = _reference_files(config)
    own = _files(*map(Path, PROJECT))
    sources = _sources(config, (*own, *files, *kept, *results, *run_files))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
        fresh = Path(scratch, "crate")
        _crate(config, citation, runs, results, sources).write(fresh)
        sizes = [file.stat().st_size for file in fresh.rglob("*") if file.is_file()]
        fresh.rename(folder)
    return f"{len(sizes)} files, {sum(sizes) / 1e6:.1f} MB, {len(runs)} runs"


# --- which files ----------------------------------------------------------------------------------


def _current_runs(config: Config) -> list[Run]:
    """The runs, each with its files checked. Raises UserError if any does not count."""
    runs = [run for run in find_runs(config) if run.status != "missing"]
    unfit = [f"{run.folder}: {run.status}: {run.reason}" for run in runs if not run.counts]
    if unfit:
        raise UserError(f"{join_problems(unfit)}\nfathom verify says how to fix this")
    if not runs:
        raise UserError(
            f"{config.results}: has no run to archive; run: snakemake all (with the same config)"
        )
    return runs


def _result_files(config: Config, templates: Path) -> list[Path]:
    """config.json, then reports, tables and figures. Raises UserError if they do not fit it."""
    results = Path(config.report_folder)
    kept = results / "config.json"
    if not kept.is_file() or read_json(kept) != json.loads(json.dumps(config.resolved())):
        raise UserError(
            f"{kept}: is not what this config gives; run: snakemake all (with the same config)"
        )
    reports = [results / report.name for report in reports_of(config, templates)]
    for file in (results / "tables/cells.csv", *reports):
        if not file.is_file():
            raise UserError(f"{file}: missing; run: snakemake all (with the same config)")
    others = (results / name for name in (PAGE, PAPER, "tables", "figures", "replay"))
    return [kept, *reports, *_files(*others)]


def _reference_files(config: Config) -> list[Path]:
    """What reports read from the reference result and link to: pages, tables, figures; no runs."""
    if config.reference is None:
        return []
    reference = Path(config.reference)
    return [*shown_files(reference), *reference.glob(SUMS)]


def _files(*paths: Path) -> list[Path]:
    """These files, and every file below these folders; without hidden and compiled ones."""
    return [
        file
        for path in paths
        for file in ([path] if path.is_file() else sorted(path.rglob("*")))
        if file.is_file()
        and not file.name.startswith(".")
        and not any(part.endswith(NOT_KEPT) for part in file.parts)
    ]


def _place(config: Config, file: Path) -> str:
    """The path in the crate: the same, or below a folder of its own if that is elsewhere."""
    if not (file.is_absolute() or ".." in file.parts):
        return file.as_posix()
    for name in ("results", "reference"):
        folder = getattr(config, name)
        if folder and file.is_relative_to(folder):
            return f"{name}/{file.relative_to(folder).as_posix()}"
    return f"configs/{file.name}"


def _sources(config: Config, files: Iterable[Path]) -> dict[str, Path]:
    """Path in the crate → file. Raises UserError if two files would have the same path."""
    sources: dict[str, Path] = {}
    for file in files:
        other = sources.setdefault(_place(config, file), file)
        if other != file:
            raise UserError(f"{file}: has the name of {other}; give it another")
    return sources


# --- what the metadata says -----------------------------------------------------------------------


def _crate(
    config: Config,
    citation: Citation,
    runs: Sequence[Run],
    results: Sequence[Path],
    sources: dict[str, Path],
) -> ROCrate:
    crate = ROCrate(version=CRATE_VERSION)
    crate.metadata.extra_terms.update(TERMS)
    described = {run.folder / name: words for run in runs for name, words in CONTENTS.items()}
    for place, file in sources.items():
        properties = given(
            name=place,
            description=described.get(file),
            encodingFormat=FORMATS.get(file.suffix),
            sha256=sha256(file),
            contentSize=str(file.stat().st_size),
        )
        if file == WORKFLOW:
            properties |= _whose(citation)
            properties |= {"name": f"{citation.title}: the workflow", "hasPart": _refs([TRAIN])}
            crate.add_workflow(file, place, main=True, lang="snakemake", properties=properties)
        else:
            about = {"about": _refs(["./"])} if place == "README.md" else {}
            crate.add_file(file, place, properties=properties | about)
    for entity in _entities(config, citation, runs, results):
        crate.add_jsonld(entity)
    root = given(
        name=f"{citation.title}: results",
        description=citation.abstract.strip() or citation.title,
        # The day of the last training, not of the export: the same results give the same crate.
        datePublished=citation.date_released or max(run.manifest.ended for run in runs),
        keywords=", ".join(citation.keywords),
        conformsTo=_refs(PROFILES),
        mentions=_refs([WORKFLOW_RUN, *(f"#train/{_place(config, run.folder)}" for run in runs)]),
        citation=_refs(_references(citation)),
        **_whose(citation),
    )
    crate.update_jsonld({"@id": "./", **root})
    return crate


def _refs(identities: Iterable[str]) -> list[dict[str, str]] | dict[str, str]:
    """References to these; of one alone no list, as RO-Crate recommends."""
    found = [{"@id": identity} for identity in identities]
    return found[0] if len(found) == 1 else found


def _whose(citation: Citation) -> dict[str, Any]:
    """By whom a work is, in which version and under which licence."""
    return {
        "author": _refs(_authors(citation)),
        "license": _refs([citation.license_url]),
        "version": citation.version,
    }


def _authors(citation: Citation) -> dict[str, Author]:
    return {a.orcid or f"#author-{number}": a for number, a in enumerate(citation.authors, 1)}


def _references(citation: Citation) -> dict[str, Reference]:
    return {r.url or f"#reference-{number}": r for number, r in enumerate(citation.references, 1)}


def _entity(identity: str, kind: str, name: str, **properties: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"@id": identity, "@type": kind, "name": name, **given(**properties)}


def _entities(
    config: Config, citation: Citation, runs: Sequence[Run], results: Sequence[Path]
) -> Iterator[dict[str, Any]]:
    """Every entity that is no file: software, actions, licence, profiles, authors, references."""
    software = _software(runs)
    for name, number in software:
        yield _entity(f"#{name}-{number}", "SoftwareApplication", name, version=number)
    yield _entity(
        TRAIN,
        "SoftwareApplication",
        "fathom train",
        description="Trains one cell of a study.",
        version=fathom.__version__,
        softwareRequirements=_refs(f"#{name}-{number}" for name, number in software),
    )
    for run in runs:
        yield from _training(config, run)
    kept, *made = (_place(config, file) for file in results)
    yield _action(
        WORKFLOW_RUN,
        "snakemake all",
        description=(
            f"{len(runs)} trainings, and everything made from them. Start and end are those of "
            "the trainings."
        ),
        instrument=_refs([WORKFLOW.as_posix()]),
        object=_refs([kept]),
        result=_refs(made),
        startTime=min(run.manifest.started for run in runs),
        endTime=max(run.manifest.ended for run in runs),
    )
    yield _entity(citation.license_url, "CreativeWork", citation.license)
    for url, name in PROFILES.items():
        yield _entity(url, "CreativeWork", name, version=url.rpartition("/")[2])
    for identity, author in _authors(citation).items():
        if author.family_names:
            yield _entity(identity, "Person", author.full_name, affiliation=author.affiliation)
        else:
            yield _entity(identity, "Organization", author.full_name)
    for identity, reference in _references(citation).items():
        authors = ", ".join(author.full_name for author in reference.authors)
        yield _entity(identity, "ScholarlyArticle", reference.title, author=authors)


def _software(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """(name, version) of the workflow system and of what the runs were trained with."""
    found = {("snakemake", version("snakemake"))}
    for manifest in (run.manifest for run in runs):
        framework = manifest.device.framework, manifest.device.framework_version
        found |= {framework, ("numpy", manifest.numpy), ("python", manifest.python)}
    return sorted(pair for pair in found if all(pair))


def _training(config: Config, run: Run) -> Iterator[dict[str, Any]]:
    """A training, and the resources that it used."""
    manifest, device, identity = run.manifest, run.manifest.device, _place(config, run.folder)
    usage = {name: value for name in UNITS if (value := getattr(manifest, name)) is not None}
    for name, value in usage.items():
        facts = {"propertyID": name, "value": value, "unitCode": UNITS[name]}
        yield _entity(f"#{name}/{identity}", "PropertyValue", name, **facts)
    outputs = [name for name in (*manifest.files, MANIFEST) if name != SPEC]
    yield _action(
        f"#train/{identity}",
        f"training of {run.cell.path()}",
        description=(
            f"{device.framework} {device.framework_version} on {device.kind} {device.name}, "
            f"{manifest.os}, threads: {manifest.threads}; fathom {manifest.fathom}, commit "
            f"{manifest.git.get('commit') or 'unknown'}"
        ),
        instrument=_refs([TRAIN]),
        object=_refs([f"{identity}/{SPEC}"]),
        result=_refs(f"{identity}/{name}" for name in outputs),
        startTime=manifest.started,
        endTime=manifest.ended,
        resourceUsage=_refs(f"#{name}/{identity}" for name in usage),
    )


def _action(identity: str, name: str, **properties: Any) -> dict[str, Any]:  # noqa: ANN401
    completed = "http://schema.org/CompletedActionStatus"
    return _entity(identity, "CreateAction", name, actionStatus=completed, **properties)
