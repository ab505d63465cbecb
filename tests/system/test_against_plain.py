"""benchmarks/ingredients.py and against_plain.py on networks with known losses."""

import itertools

import against_plain
import ingredients
import pandas as pd
import pytest

from fathom.settings import ConfigError
from tests.support.project import PROJECT

COEFFICIENTS, BOTH = -0.01, 0.004
"""Effects on log10 of the loss: of dynamic coefficients, and of these together with H_res."""
SEEDS = (0, 1, 2, 4, 5)


def known_losses():
    """Seeds differ in all losses alike, and a little in the effect of the coefficients."""
    for n, seed in enumerate(SEEDS):
        wobble = 0.0005 * (n - 2)
        for kinds in itertools.product(*ingredients.INGREDIENTS.values()):
            dynamic, sinkhorn = kinds[2] == "dynamic", kinds[3] == "sinkhorn"
            both = BOTH / 2 if dynamic == sinkhorn else -BOTH / 2
            log = 0.3 + 0.01 * n + dynamic * (COEFFICIENTS + wobble) + both
            yield {"network": "_".join(kinds), "seed": seed, "validation_loss": 10**log}
        # Plain is worse by 1 % at each rung than at the next one.
        for rung, name in enumerate(("_x085", "", "_x115", "_x130")):
            loss = 10 ** (0.3 + 0.01 * n) * 0.99 ** (rung - 1)
            yield {"network": f"baseline{name}", "seed": seed, "validation_loss": loss}
        loss = 10 ** (0.3 + 0.01 * n) * 0.99
        yield {"network": "as_after_115", "seed": seed, "validation_loss": loss}
    # Of a seed that chose the rate, and of one that is not whole.
    yield {"network": "baseline_004", "seed": 3, "validation_loss": 1.0}
    yield {"network": "baseline", "seed": 9, "validation_loss": 1.0}


TABLE = pd.DataFrame(known_losses())


def test_the_effects_are_those_that_the_losses_have():
    rows = ingredients.effects(TABLE).set_index("ingredient")
    assert len(rows) == 4 + 6 and set(rows["seeds"]) == {5} and set(rows["tests"]) == {10}
    alone = rows.loc["coefficients"]
    assert alone["effect"] == pytest.approx(100 * (10**COEFFICIENTS - 1))
    assert alone["low"] < alone["effect"] < alone["high"] < 0 and alone["verdict"] == "lower"
    together = rows.loc["coefficients and H_res"]
    assert together["effect"] == pytest.approx(100 * (10**BOTH - 1))
    assert together["verdict"] == "higher"
    others = rows.drop(["coefficients", "coefficients and H_res"])
    assert others["effect"].abs().max() < 1e-9


def test_networks_are_read_on_the_ladder_of_the_plain_one():
    rows = against_plain.against_plain(TABLE).set_index("network")
    assert len(rows) == 16 + 1 and set(rows["tests"]) == {17}
    row = rows.loc["as_after_115"]
    assert row["effect"] == pytest.approx(-1) and row["multiplier"] == pytest.approx(1.15)
    assert row["least"] < row["multiplier"] < row["most"]


def test_the_orders_of_two_studies_are_compared_by_their_ranks():
    ours = pd.Series({"a": 1.3, "b": 1.2, "c": 1.1, "only here": 2.0})
    assert against_plain.ranks_agree(ours, pd.Series({"a": 9.0, "b": 5.0, "c": 4.0})) == 1
    assert against_plain.ranks_agree(ours, pd.Series({"a": 1.0, "b": 2.0, "c": 3.0})) == -1


def test_the_document_has_the_numbers_of_the_tables():
    """Else they were typed, or the losses changed since."""
    document = (PROJECT / "docs/further-studies.md").read_text(encoding="utf-8")
    table = pd.read_csv(PROJECT / "benchmarks/ingredients.csv")
    lines = [*ingredients.lines(table), *against_plain.lines(table)]
    assert len(lines) == 10 + 21
    assert [line for line in lines if line not in document] == []


def test_without_runs_nothing_is_written(tmp_path):
    kept = tmp_path / "kept.csv"
    kept.write_text("kept")
    with pytest.raises(ConfigError, match="no run of baseline"):
        ingredients.main(tmp_path, kept)
    with pytest.raises(ConfigError, match="no run of cycle_cycle_dynamic_sinkhorn"):
        ingredients.effects(TABLE[TABLE["network"] != "cycle_cycle_dynamic_sinkhorn"])
    assert kept.read_text() == "kept"


def test_multipliers_stand_beside_those_of_the_reference(tmp_path, monkeypatch):
    rows = [("a", "other"), ("as_after_115", "here")]
    worth = pd.DataFrame(rows, columns=["variant", "study"]).assign(rate="one rate", multiplier=1.5)
    worth.to_csv(tmp_path / "worth.csv", index=False)
    monkeypatch.setattr(against_plain, "WORTH", tmp_path / "worth.csv")
    line, correlation = against_plain.lines_beside(TABLE, "here")
    assert line == "| `as_after_115` | 1.15 | 1.50 |"
    assert correlation == "Spearman's rank correlation: nan."  # one network has no order
