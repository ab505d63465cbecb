"""benchmarks/essays.py: networks before training against closed forms."""

import importlib
import math
import sys

import pytest

from fathom_study.config import load_config
from tests.support.project import PROJECT

NEAR = math.exp(-8)
LEFT = {
    "hc_paper": 1.0,
    "krom_hc": math.tanh(4),  # 2p − 1 of p = σ(8)
    # The sum of all permutations removes every difference, so all but the identity give −1.
    "mhc_lite": (1 - NEAR) / (1 + 23 * NEAR),
    "mhc_paper": (1 - math.exp(-6)) / (1 + 3 * math.exp(-6)),  # logits 3 and −3
    "circulant_mhc": 1 - 2 / 4,  # of four functions
    "mhc_averaged": 0.0,
}
"""Remaining share of a difference between streams for each matrix."""


@pytest.fixture(scope="module")
def essays():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PROJECT / "benchmarks")
        yield importlib.import_module("essays")
    sys.modules.pop("essays")


@pytest.mark.parametrize("variant", LEFT)
def test_differences_between_streams_shrink_as_the_formula_says(essays, variant):
    network = essays.untrained(load_config([PROJECT / "config.yaml"]), "ingredients", 2, variant)
    left = [essays.left(product) for product in network.products]
    # φ moves the circulant's matrices a little, and mhc_averaged's from the uniform one.
    assert left == pytest.approx([LEFT[variant] ** n for n in range(1, 5)], abs=1e-3)


def test_the_table_of_processors_has_kept_and_new_scores(essays, capsys, monkeypatch):
    monkeypatch.chdir(PROJECT)
    essays.processors()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert len({line.split("|")[4].strip() for line in rows[2:]}) == 2  # an Intel CPU, a GPU
