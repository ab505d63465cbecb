"""CITATION.cff: who made this and under which licence; and a deposit's metadata made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from fathom.config import ConfigError, read_yaml
from fathom.settings import PlainText, Settings, Text, Unique, validate

CITATION = Path("CITATION.cff")

Date = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]


class Author(Settings):
    """A person by two names, or a group by one."""

    name: PlainText | None = None
    family_names: PlainText | None = Field(None, alias="family-names")
    given_names: PlainText | None = Field(None, alias="given-names")
    affiliation: PlainText | None = None
    orcid: Annotated[str, Field(pattern=r"^https://orcid\.org/[0-9X-]{19}$")] | None = None

    @property
    def full_name(self) -> str:
        """As in 'Zhenda Xie'."""
        return " ".join(filter(None, (self.given_names, self.family_names, self.name)))

    @property
    def sorted_name(self) -> str:
        """As in 'Xie, Zhenda'."""
        return ", ".join(filter(None, (self.family_names or self.name, self.given_names)))


class Identifier(Settings):
    """Another name of a work, as in 'arXiv:2512.24880'."""

    type: Literal["doi", "url", "swh", "other"]
    value: PlainText
    description: PlainText | None = None


class Reference(Settings):
    """A work that this one refers to."""

    type: PlainText
    title: Text
    authors: list[Author]
    year: int | None = None
    identifiers: list[Identifier] = []  # noqa: RUF012, pydantic copies it
    doi: PlainText | None = None
    url: PlainText | None = None


class Citation(Settings):
    """What of the Citation File Format is understood here."""

    cff_version: Literal["1.2.0"] = Field(alias="cff-version")
    message: Text
    title: PlainText
    type: Literal["software", "dataset"] = "software"
    abstract: Text = ""
    authors: Annotated[list[Author], Unique]
    version: PlainText
    license: PlainText = Field(description="a name of the SPDX list, as in MIT")
    keywords: list[PlainText] = []  # noqa: RUF012, likewise
    references: list[Reference] = []  # noqa: RUF012
    identifiers: list[Identifier] = []  # noqa: RUF012
    date_released: Date | None = Field(None, alias="date-released")
    doi: PlainText | None = None
    url: PlainText | None = None
    repository_code: PlainText | None = Field(None, alias="repository-code")

    @property
    def license_url(self) -> str:
        """Where the licence is described."""
        return f"https://spdx.org/licenses/{self.license}"


def read_citation(file: Path = CITATION) -> Citation:
    """The citation file. Raises ConfigError, a line for each problem."""
    citation = validate(Citation, read_yaml(file), str(file))
    for place, author in enumerate(citation.authors):
        if not author.full_name:
            raise ConfigError(f"{file}: authors.{place}: give name, or family-names")
    return citation


def zenodo_metadata(citation: Citation) -> dict[str, Any]:
    """The content of `.zenodo.json`: what Zenodo asks of a deposit."""
    related = filter(None, map(_identifier, citation.references))
    return given(
        upload_type=citation.type,
        title=citation.title,
        description=citation.abstract.strip() or citation.title,
        creators=[_creator(author) for author in citation.authors],
        version=citation.version,
        access_right="open",
        license=citation.license,
        publication_date=citation.date_released,
        keywords=citation.keywords,
        related_identifiers=[
            {"identifier": name, "relation": "references", "resource_type": "publication"}
            for name in related
        ],
    )


def _creator(author: Author) -> dict[str, Any]:
    orcid = (author.orcid or "").removeprefix("https://orcid.org/")
    return given(name=author.sorted_name, affiliation=author.affiliation, orcid=orcid)


def given(**fields: Any) -> dict[str, Any]:  # noqa: ANN401, any JSON
    """Those with a value."""
    return {key: value for key, value in fields.items() if value not in (None, "", [])}


def _identifier(reference: Reference) -> str | None:
    """A name that a registry knows, or the address."""
    named = (identifier.value for identifier in reference.identifiers)
    return next(filter(None, (reference.doi, *named, reference.url)), None)
