"""CITATION.cff: who made this and under which licence; and a deposit's metadata made of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from fathom.config import ConfigError, parse_yaml
from fathom.settings import PlainText, Section, Text, Unique, checked

CITATION = Path("CITATION.cff")

Date = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]


class Author(Section):
    """A person by two names, or a group by one."""

    name: PlainText | None = None
    family_names: PlainText | None = Field(None, alias="family-names")
    given_names: PlainText | None = Field(None, alias="given-names")
    affiliation: PlainText | None = None
    orcid: Annotated[str, Field(pattern=r"^https://orcid\.org/[0-9X-]{19}$")] | None = None

    @property
    def is_person(self) -> bool:
        """Whether it is a person."""
        return self.family_names is not None

    @property
    def full_name(self) -> str:
        """As in 'Zhenda Xie'."""
        parts = (self.given_names, self.family_names, self.name)
        return " ".join(part for part in parts if part)

    @property
    def sorted_name(self) -> str:
        """As in 'Xie, Zhenda'."""
        parts = (self.family_names or self.name, self.given_names)
        return ", ".join(part for part in parts if part)


class Identifier(Section):
    """Another name of a work, as in 'arXiv:2512.24880'."""

    type: Literal["doi", "url", "swh", "other"]
    value: PlainText
    description: PlainText | None = None


class Reference(Section):
    """A work that this one refers to."""

    type: PlainText
    title: Text
    authors: list[Author]
    year: int | None = None
    identifiers: list[Identifier] = []  # noqa: RUF012, pydantic copies it
    doi: PlainText | None = None
    url: PlainText | None = None


class Citation(Section):
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
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"{file}: missing; run this in the folder of the project, which has its authors there"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: is not UTF-8 ({error.reason})") from error
    citation = checked(Citation, parse_yaml(text, f"{file}:"), str(file))
    for place, author in enumerate(citation.authors):
        if not author.full_name:
            raise ConfigError(f"{file}: authors.{place}: give name, or family-names")
    return citation


def zenodo_metadata(citation: Citation) -> dict[str, Any]:
    """The content of `.zenodo.json`: what Zenodo asks of a deposit."""
    optional = {
        "publication_date": citation.date_released,
        "keywords": citation.keywords,
        "related_identifiers": [
            {"identifier": name, "relation": "references", "resource_type": "publication"}
            for name in map(_identifier, citation.references)
            if name
        ],
    }
    return {
        "upload_type": citation.type,
        "title": citation.title,
        "description": citation.abstract.strip() or citation.title,
        "creators": [_creator(author) for author in citation.authors],
        "version": citation.version,
        "access_right": "open",
        "license": citation.license,
        **{key: value for key, value in optional.items() if value},
    }


def _creator(author: Author) -> dict[str, str]:
    optional = {
        "affiliation": author.affiliation,
        "orcid": re.sub(r"^https://orcid\.org/", "", author.orcid or ""),
    }
    return {"name": author.sorted_name, **{key: value for key, value in optional.items() if value}}


def _identifier(reference: Reference) -> str | None:
    """A name that a registry knows, or the address."""
    named = [i.value for i in reference.identifiers]
    return next((name for name in (reference.doi, *named, reference.url) if name), None)
