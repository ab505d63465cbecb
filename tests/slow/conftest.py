"""Fixtures of the folders whose slow tests are here."""

from tests.library.conftest import framework, on_torch, torch  # noqa: F401
from tests.system.conftest import steps  # noqa: F401
from tests.workflow.conftest import finished, fresh, untouched, workflow  # noqa: F401
