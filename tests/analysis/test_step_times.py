"""Step times that reports compare: from the clocks of runs, or measured in turns."""

import math

import pytest

from fathom_study.analysis.claims.verdicts import claims_table
from fathom_study.analysis.run_tables import summary_table
from fathom_study.analysis.step_times import StepTime, read_step_times, with_times_of_networks
from fathom_study.analysis.worth import ratios
from tests.analysis.test_claims import NO_STEPS
from tests.support.runs import CPU_PLATFORM, GPU_PLATFORM, config_with
from tests.support.tables import frame, published_with, run, seeds, step_times

VARIANTS = [
    "baseline",
    {"plain_fast": {"connection": "baseline", "optimizer": {"lr": 0.1}}},
    {"plain_long": {"connection": "baseline", "steps": 9}},
    {"plain_wide": {"connection": "baseline", "model": {"hidden": 80}}},
    "mhc",
]
CLOCKS = {"baseline": 0.2, "plain_fast": 0.1, "plain_long": 0.5, "plain_wide": 0.3, "mhc": 0.4}


def summary_of(**axes):
    """Runs of every variant, each with its own step time."""
    return [run(variant=v, seconds_per_step=t, **axes) for v, t in CLOCKS.items()]


def times_of(runs, config):
    table = with_times_of_networks(summary_table(frame(*runs)), config)
    return dict(zip(table["variant"], table["seconds_per_step_fastest"], strict=True))


def measured(tmp_path, *rows):
    """A config with a table of measured step times."""
    config = config_with(studies=("a", "b"), variants=VARIANTS)
    return config.model_copy(update={"step_times": step_times(tmp_path, *rows)})


def test_variants_of_one_network_share_a_step_time():
    """They take the first one's, since others may be of another day; other networks keep theirs."""
    times = times_of(summary_of(depth=8), config_with(variants=VARIANTS))
    assert times == {**CLOCKS, "plain_fast": 0.2, "plain_long": 0.2}


def test_measured_times_replace_the_clocks_of_runs(tmp_path):
    """All variants of a measured network have its time; networks not measured have none."""
    other = {"variant": "mhc", "machine": "other", "seconds": 3}
    config = measured(tmp_path, {"variant": "baseline", "seconds": 0.1}, other)
    plain = dict.fromkeys(("baseline", "plain_fast", "plain_long"), 0.1)
    # For runs made here, tables name no machine.
    assert times_of(summary_of(depth=8), config) == pytest.approx(
        {**plain, "plain_wide": math.nan, "mhc": 3}, nan_ok=True
    )
    imported = times_of(summary_of(depth=8, machine=CPU_PLATFORM), config)
    assert imported == pytest.approx(
        {**plain, "plain_wide": math.nan, "mhc": math.nan}, nan_ok=True
    )
    for axes in ({"depth": 4}, {"machine": GPU_PLATFORM}, {"backend": "mlx"}, {"study": "b"}):
        assert math.isnan(times_of(summary_of(**{"depth": 8, **axes}), config)["mhc"])


def test_turns_are_whole_beside_a_network_that_was_only_counted(tmp_path):
    counted = {"variant": "mhc", "seconds": math.nan, "turns": math.nan, "operations": 4}
    timed = {"variant": "baseline", "seconds": 0.1}
    times = read_step_times(measured(tmp_path, timed, counted))
    turns = {variant: str(time.turns) for (_, _, variant, _), time in times.items()}
    assert (turns["baseline"], turns["mhc"]) == ("3", "0")


def test_ratio_of_turns_is_used_if_timed_with_the_plain_network(tmp_path):
    """Seconds of three turns: 0.1 and 0.3, 0.2 and 0.4, 0.4 and 0.4; the median ratio is 2."""
    plain = {"variant": "baseline", "seconds": 0.2, "low": 0.1, "high": 0.4}
    ours = {"variant": "mhc", "seconds": 0.4, "low": 0.3, "high": 0.4}
    ours |= {"ratio": 2, "ratio_low": 1, "ratio_high": 3}
    for over, expected in (("baseline", (2, 1, 3)), ("hc", (2, 1.5, 2))):
        times = read_step_times(measured(tmp_path, plain, {**ours, "over": over}))
        sides = (times["a", 8, variant, "torch"] for variant in ("mhc", "baseline"))
        assert tuple(ratios("cost", *sides).values()) == pytest.approx(expected)


# --- claims about time ----------------------------------------------------------------------------

FASTER = {
    "kind": "difference", "studies": ["a"], "variant": "baseline", "than": ["hc", "mhc"],
    "metric": "seconds_per_step", "high": 0,
}  # fmt: skip


def judged(**ranges):
    """Row of the claim that plain is faster, from each variant's (low, median, high) seconds."""
    cells = [seeds("score", [1.0] * 3, variant=v) for v in ("baseline", "hc", "mhc")]
    times = {
        ("a", 8, variant, "torch"): StepTime(median, low, high, CPU_PLATFORM, 5)
        for variant, (low, median, high) in ranges.items()
    }
    published = published_with({"scope": "everywhere", "tests": [FASTER]})
    config = config_with(studies=("a", "b"))
    (row,) = claims_table(config, frame(*cells), NO_STEPS, published, times).to_dict("records")
    return row


@pytest.mark.parametrize(
    ("hc", "verdict"),
    [
        ((2.5, 3.0, 4.0), "reproduced"),
        ((1.9, 3.0, 4.0), "not reproduced"),  # its fastest turn is within plain's range
        ((0.5, 0.6, 0.9), "contradicted"),
    ],
)
def test_time_claim_is_judged_by_ranges_over_turns(hc, verdict):
    row = judged(baseline=(1.0, 1.5, 2.0), hc=hc, mhc=(20.0, 30.0, 40.0))
    assert (row["verdict"], row["against"], row["cases"]) == (verdict, "hc", 2)
    low, median, high = hc
    expected = [math.log10(ratio) for ratio in (1.5 / median, 1.0 / high, 2.0 / low)]
    assert [row[name] for name in ("observed", "low", "high")] == pytest.approx(expected)
    assert (row["rests_on"], str(row["seeds"]), row["unit"]) == ("range of turns", "5", "log10")
    assert math.isnan(row["confidence"])


@pytest.mark.parametrize("mhc", [{}, {"mhc": (math.nan,) * 3}])
def test_untimed_variant_leaves_the_claim_unmeasured(mhc):
    """It is not in the table, or only its operations were counted."""
    row = judged(baseline=(1.0, 1.5, 2.0), hc=(2.5, 3.0, 4.0), **mhc)
    assert (row["verdict"], row["gap"]) == ("not measured", "clock")
