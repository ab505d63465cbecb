"""The script benchmarks/steps.py."""

import importlib

import pytest

from tests.support.project import PROJECT


@pytest.fixture
def steps(monkeypatch):
    """The script steps.py, in the project folder; modules of the sides can be imported too."""
    monkeypatch.chdir(PROJECT)
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))
    return importlib.import_module("steps")
