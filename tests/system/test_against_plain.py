"""benchmarks/ingredients.py, against_plain.py and convert.py on networks with known losses."""

import itertools
import json

import against_plain
import convert
import ingredients
import orders
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


def test_what_two_add_to_one_is_a_family_of_its_own():
    both, one = ingredients.PAIRS[0]
    rows = [
        {"network": name, "seed": seed, "validation_loss": loss * (1 + 0.0001 * seed)}
        for seed in SEEDS
        for name, loss in (
            (name, 0.98 if name == both else 1.0) for p in ingredients.PAIRS for name in p
        )
    ]
    table = pd.DataFrame(rows).drop_duplicates(["network", "seed"])
    found = ingredients.additions(table).set_index("pair")
    assert set(found["tests"]) == {4}
    row = found.loc[f"`{both}` | `{one}`"]
    assert row["effect"] == pytest.approx(-2) and row["verdict"] == "lower"
    assert found["effect"].iloc[2:].abs().max() < 1e-9


def test_networks_are_read_on_the_ladder_of_the_plain_one():
    rows = against_plain.against_plain(TABLE).set_index("network")
    assert len(rows) == 16 + 1 and set(rows["tests"]) == {17}
    row = rows.loc["as_after_115"]
    assert row["effect"] == pytest.approx(-1) and row["multiplier"] == pytest.approx(1.15)
    assert row["least"] < row["multiplier"] < row["most"]


def test_the_orders_of_two_studies_are_compared_by_their_ranks():
    rows = [("here", "a", 1.3), ("here", "b", 1.2), ("here", "c", 1.1), ("here", "alone", 2.0),
            ("there", "b", 5.0), ("there", "a", 9.0), ("there", "c", 4.0),
            ("turned", "a", 1.0), ("turned", "b", 2.0), ("turned", "c", 3.0)]  # fmt: skip
    worth = pd.DataFrame(rows, columns=["study", "variant", "multiplier"])
    worth = worth.assign(rate="one rate", platform="most")
    # One of the networks again on another platform, which has fewer.
    worth = pd.concat([worth.head(1).assign(multiplier=0.5, platform="fewer"), worth])
    first, *_, correlation = orders.of_studies(worth, "here", "there")
    assert first == "| `a` | 1.30 | 9.00 |"
    assert correlation == "Spearman's rank correlation: 1.00."
    turned = [*orders.of_studies(worth, "here", "turned")]
    assert turned[-1] == "Spearman's rank correlation: -1.00."
    with pytest.raises(ConfigError, match="unknown study 'ther'"):
        orders.column(worth, "ther", "multiplier")


def test_the_order_of_a_study_is_compared_with_that_of_each_published_size():
    """One of the 24 orders of four networks is that of the study, and one agrees least."""
    rows = [("here", name, change) for name, change in zip("abcd", (-4, -3, -2, 1), strict=True)]
    worth = pd.DataFrame(rows, columns=["study", "variant", "change"])
    worth = worth.assign(rate="one rate", platform="one")
    below = {1e6: (0.4, 0.3, 0.2, -0.1), 2e6: (-0.1, 0.2, 0.3, 0.4), 3e6: (0.4, 0.3)}
    rows = [(name, n, b) for n, bs in below.items() for name, b in zip("abcd", bs, strict=False)]
    published = pd.DataFrame(rows, columns=["variant", "parameters", "below"])
    header, first, *_, same, turned = orders.of_published(worth, "here", published)
    assert header == "| network | here | 1.0 M | 2.0 M | 3.0 M |"
    assert first == "| `a` | -4.00 % | 0.4000 | -0.1000 | 0.4000 |"
    assert same == f"1.0 M: 4 networks, rho 1.00, p {1 / 24:.3f}."
    assert turned == "2.0 M: 4 networks, rho -1.00, p 1.000."


def test_losses_of_earlier_runs_stay_and_the_newest_of_a_run_counts(tmp_path, monkeypatch):
    earlier, again = TABLE[TABLE["seed"] < 2], TABLE[TABLE["seed"] > 0].assign(validation_loss=1.0)
    earlier.to_csv(tmp_path / "losses.csv", index=False)
    monkeypatch.setattr(against_plain, "losses", lambda *_: again.to_dict("records"))
    both = against_plain.read_losses("a", tmp_path, tmp_path / "losses.csv")
    assert len(both) == len(TABLE)
    assert set(both[both["seed"] > 0]["validation_loss"]) == {1.0}
    assert 1.0 not in set(both[both["seed"] == 0]["validation_loss"])


def test_the_document_has_the_numbers_of_the_tables():
    """Else they were typed, or the losses changed since."""
    document = (PROJECT / "docs/further-studies.md").read_text(encoding="utf-8")
    table = pd.read_csv(PROJECT / "benchmarks/ingredients.csv")
    lines = [*ingredients.lines(table), *against_plain.lines(table)]
    assert len(lines) == 10 + len(ingredients.PAIRS) + 23
    worth, published = (
        pd.read_csv(orders.TABLES / f"{name}.csv") for name in ("worth", "published_sizes")
    )
    lines += orders.of_studies(worth, "corpus-python", "scale-6-layers")
    theirs = published[published["source"] == "connection-factory"]
    lines += orders.of_published(worth, "scale-6-layers-4k", theirs)
    assert [line for line in lines if line not in document] == []


def test_without_runs_nothing_is_written(tmp_path):
    kept = tmp_path / "kept.csv"
    kept.write_text("network,seed,validation_loss\n")
    with pytest.raises(ConfigError, match="no run of baseline"):
        ingredients.main(tmp_path, kept)
    with pytest.raises(ConfigError, match="no run of cycle_cycle_dynamic_sinkhorn"):
        ingredients.effects(TABLE[TABLE["network"] != "cycle_cycle_dynamic_sinkhorn"])
    assert kept.read_text() == "network,seed,validation_loss\n"


# --- convert.py ----------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path):
    """Losses of three seeds: `delta` is 4 % below plain, converted or from the start."""
    for seed, loss in enumerate((2.0, 2.1, 2.2)):
        converted, started = tmp_path / "converted", tmp_path / "runs/convert-start/12L"
        runs = {
            converted / "plain": loss, converted / "delta": 0.96 * loss,
            started / "baseline/torch": loss, started / "delta/torch": 0.96 * loss,
        }  # fmt: skip
        for folder, last in runs.items():
            (folder / f"seed{seed}").mkdir(parents=True)
            rows = [{"step": 0, "loss": 3.0}, {"step": 1, "loss": 1.0, "validation_loss": last}]
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / f"seed{seed}" / "metrics.jsonl").write_text(text)
            (folder / f"seed{seed}" / "manifest.json").touch()
    return convert.compare(pd.DataFrame(convert.losses(tmp_path)))


def test_each_is_compared_with_plain_and_with_itself_from_the_start(table):
    rows = table.set_index(["connection", "against"])
    better = rows.loc["delta", "plain, trained on"]
    assert better["effect"] == pytest.approx(-4) and better["verdict"] == "lower"
    # Without spread over seeds, the known one: 0.54 % with 2.5 of 4.5 degrees of freedom.
    assert better["low"] < -4 < better["high"] < 0
    for name in ("delta", "plain"):
        same = rows.loc[name, "itself, from the start"]
        assert same["effect"] == pytest.approx(0) and same["verdict"] == "undecided"
    assert set(table["seeds"]) == {3}
