"""Places: where numbers were measured. The workflow names figures by them, so: standard library."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PLACE = ["backend", "platform", "origin"]
"""Where a run was measured, as columns of tables; `origin` is `here` or `imported`."""


@dataclass(frozen=True)
class Place:
    """Where numbers were measured: the columns of PLACE."""

    backend: str
    platform: str
    origin: str

    @classmethod
    def named(cls, backend: str, platform: str = "") -> Place:
        """The place of runs that were imported from a platform, or, without one, made here."""
        return cls(backend, platform, "imported" if platform else "here")

    @classmethod
    def parse(cls, folder: str) -> Place:
        """The inverse of `folder`, which does not name the platform here."""
        backend, _, platform = folder.partition("-")
        return cls.named(backend, platform)

    @property
    def label(self) -> str:
        """The backend for what was measured here; with its platform for what was imported."""
        return self.backend if self.origin == "here" else f"{self.backend}, {self.platform}"

    @property
    def folder(self) -> str:
        """The name of its folder of figures."""
        return self.backend if self.origin == "here" else f"{self.backend}-{self.platform}"

    def runs(self, results: str | Path) -> Path:
        """The folder of the runs that were measured there."""
        here = self.origin == "here"
        return Path(results) / "runs" if here else Path(results) / "imported" / self.platform
