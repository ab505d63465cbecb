"""benchmarks/convert.py on runs with known losses."""

import json

import convert
import pandas as pd
import pytest


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
