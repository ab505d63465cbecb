"""The reference in this checkout."""

from tests.reference.conftest import committed  # noqa: F401
