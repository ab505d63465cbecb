"""Times of a step that reports compare: those of runs, or those measured in turns."""

import math

import pytest

from fathom.analysis.run_tables import summary_table
from fathom.analysis.step_times import with_times_of_networks
from run_helpers import CPU_PLATFORM, GPU_PLATFORM, config_with
from tables_helpers import frame, run

VARIANTS = [
    "baseline",
    {"plain_fast": {"connection": "baseline", "optimizer": {"lr": 0.1}}},
    {"plain_long": {"connection": "baseline", "steps": 9}},
    {"plain_wide": {"connection": "baseline", "model": {"hidden": 80}}},
    "mhc",
]
CLOCKS = {"baseline": 0.2, "plain_fast": 0.1, "plain_long": 0.5, "plain_wide": 0.3, "mhc": 0.4}


def summary_of(**axes):
    """Runs of every variant, each with its own time."""
    return [run(variant=v, seconds_per_step=t, **axes) for v, t in CLOCKS.items()]


def times_of(runs, config):
    found = with_times_of_networks(summary_table(frame(*runs)), config)
    return dict(zip(found["variant"], found["seconds_per_step_fastest"], strict=True))


def measured(tmp_path, *rows):
    """A config that names a table of measured times."""
    names = ("study", "depth", "variant", "backend", "machine", "seconds", "low", "high")
    spread = [(*row, row[-1], row[-1]) for row in rows]
    lines = [",".join(map(str, row)) for row in (names, *spread)]
    (tmp_path / "times.csv").write_text("\n".join(lines) + "\n")
    config = config_with(studies=("a", "b"), variants=VARIANTS)
    return config.model_copy(update={"step_times": str(tmp_path / "times.csv")})


def test_variants_of_one_network_have_one_time_of_a_step():
    """That of the first, as others may be of another day; of another network its own."""
    found = times_of(summary_of(depth=8), config_with(variants=VARIANTS))
    assert found == {**CLOCKS, "plain_fast": 0.2, "plain_long": 0.2}


def test_measured_times_stand_for_the_clocks_of_runs(tmp_path):
    """Of every variant of the network; what was not measured has none."""
    rows = [("a", 8, "baseline", "torch", CPU_PLATFORM, 0.1), ("a", 8, "mhc", "torch", "other", 3)]
    config = measured(tmp_path, *rows)
    plain = dict.fromkeys(("baseline", "plain_fast", "plain_long"), 0.1)
    # Made here: no table says the machine.
    assert times_of(summary_of(depth=8), config) == pytest.approx(
        {**plain, "plain_wide": math.nan, "mhc": 3}, nan_ok=True
    )
    imported = times_of(summary_of(depth=8, machine=CPU_PLATFORM), config)
    assert imported == pytest.approx(
        {**plain, "plain_wide": math.nan, "mhc": math.nan}, nan_ok=True
    )
    for axes in ({"depth": 4}, {"machine": GPU_PLATFORM}, {"backend": "mlx"}, {"study": "b"}):
        assert times_of(summary_of(**{"depth": 8, **axes}), config)["mhc"] == CLOCKS["mhc"]
