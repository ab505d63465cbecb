"""Published figures and statements against the tables: from numbers to verdicts."""

from fathom_study.analysis.claims.published import Published, load_published
from fathom_study.analysis.claims.verdicts import write_claims

__all__ = ["Published", "load_published", "write_claims"]
