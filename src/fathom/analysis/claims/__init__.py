"""Published figures and statements against the tables: from numbers to verdicts."""

from fathom.analysis.claims.published import Published, load_published
from fathom.analysis.claims.verdicts import write_claims

__all__ = ["Published", "load_published", "write_claims"]
