"""benchmarks/optimiser.py on networks with known losses."""

import against_plain
import optimiser
import pandas as pd
import pytest

from fathom.settings import ConfigError
from tests.support.project import PROJECT

SEEDS = (0, 1, 2, 4, 5)
GAINS = {"optimiser-muon": 0.97, "optimiser-decay-0": 0.98, "optimiser-decay-03": 0.98}
"""The loss of the connection over that of the plain network; it is 0.98 with the control."""


def rows_of(study, plain, gain):
    """Seeds differ in all losses alike, and a little in what the connection changes."""
    for n, seed in enumerate(SEEDS):
        level = plain * (1 + 0.01 * n)
        # The plain network is worse by 1 % at each rung than at the next one.
        for rung, name in enumerate(("_x085", "", "_x115", "_x130", "_x165")):
            if not name or study != "optimiser-decay-0":
                yield study, f"baseline{name}", seed, level * 0.99 ** (rung - 1)
        yield study, "mhc_identity_cycle", seed, level * gain * (1 + 1e-4 * (n - 2))


COLUMNS = ["study", "network", "seed", "validation_loss"]
CONTROL = pd.DataFrame(rows_of(optimiser.CONTROL, 2.0, 0.98), columns=COLUMNS)
TABLE = pd.DataFrame(
    [row for study, gain in GAINS.items() for row in rows_of(study, 1.9, gain)], columns=COLUMNS
)


def test_a_gain_is_compared_with_the_plain_network_and_with_the_controls_gain():
    rows = optimiser.compare(TABLE, CONTROL)
    assert set(rows["tests"]) == {3} and set(rows["seeds"]) == {5}
    muon = rows.loc[("optimiser-muon", "mhc_identity_cycle")]
    assert muon["effect"] == pytest.approx(-3, abs=1e-3) and muon["verdict"] == "lower"
    assert muon["control"] == pytest.approx(-2, abs=1e-3)
    # 0.97 / 0.98: the wobble of both is the same, so it goes.
    assert muon["difference"] == pytest.approx(100 * (0.97 / 0.98 - 1))
    assert muon["apart"] == "lower"
    decay = rows.loc[("optimiser-decay-0", "mhc_identity_cycle")]
    assert decay["difference"] == pytest.approx(0) and decay["apart"] == "undecided"


def test_plain_networks_of_two_optimisers_are_compared_by_seed():
    rows = optimiser.plain_networks(TABLE, CONTROL)
    # AdamW with 1.65 times the steps ends 1 % lower at each of three rungs.
    longer = 100 * (0.95 / 0.99**3 - 1)
    assert list(rows["effect"]) == pytest.approx([-5, -5, -5, longer])
    assert set(rows["verdict"]) == {"lower"}


def test_the_control_shares_networks_with_another_study():
    names = set(optimiser.read_control()["network"])
    assert {"baseline", "baseline_x130", "mhc_identity_cycle"} <= names
    assert not names & {"averaged_even_static_identity", "value_residual"}


def test_runs_are_added_to_those_kept_and_nothing_is_written_without_any(tmp_path, monkeypatch):
    kept = tmp_path / "kept.csv"
    TABLE[TABLE["seed"] < 2].to_csv(kept, index=False)
    before = kept.read_text()
    again = TABLE[(TABLE["seed"] == 1) & (TABLE["study"] == "optimiser-muon")]
    monkeypatch.setattr(
        optimiser, "losses",
        lambda study, _: again.assign(validation_loss=1.0).to_dict("records")
        if study == "optimiser-muon"
        else [],
    )  # fmt: skip
    both = optimiser.read_losses(tmp_path, kept)
    assert len(both) == (TABLE["seed"] < 2).sum()
    new = both[(both["study"] == "optimiser-muon") & (both["seed"] == 1)]
    assert set(new["validation_loss"]) == {1.0}
    assert 1.0 not in set(both.drop(new.index)["validation_loss"])
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="no run of baseline in study optimiser-muon"):
        optimiser.main(tmp_path / "none", tmp_path / "other.csv")
    assert kept.read_text() == before and not (tmp_path / "other.csv").exists()


def test_the_document_has_the_numbers_of_the_table():
    """Else they were typed, or the losses changed since."""
    document = (PROJECT / "docs/further-studies.md").read_text(encoding="utf-8")
    table = pd.read_csv(PROJECT / "benchmarks/optimiser.csv")
    lines = [*optimiser.lines(table, optimiser.read_control())]
    assert len(lines) == 4 + 6
    assert [line for line in lines if line not in document] == []
    assert against_plain.LOOKS == 2  # as the preset and the document say
