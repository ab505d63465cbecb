"""Worth: step multipliers read from ladders of the plain network, against values by hand."""

import math

import pandas as pd
import pytest
from scipy import stats

from fathom_study.analysis.ladder import ladder_at, log_multiplier, log_multipliers
from fathom_study.analysis.worth import compare_costs, fused_cost
from fathom_study.config import ConfigError
from tests.support.runs import config_with
from tests.support.tables import (
    T975,
    T_ROUNDING,
    frame,
    half_width,
    run,
    seeds,
    step_times,
    table_of_effects,
    table_of_worth,
)

LADDER = {0.5: 4.0, 1.0: 3.0, 2.0: 2.0, 4.0: 1.0}
"""Loss by factor: one nat less per doubling of the steps."""


@pytest.mark.parametrize(
    ("score", "factor"),
    [
        (3.0, 1),
        (2.5, math.sqrt(2)),  # half-way between 1 and 2 on the logarithm of the steps
        (2.0, 2),
        (1.25, 2 * 2**0.75),
        (4.0, 0.5),
        (1.0, 4),
        (4.001, 0),
        (0.999, math.inf),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])  # -1: higher scores are better
def test_multiplier_is_interpolated_linearly_in_log_steps(score, factor, sign):
    ladder = {f: sign * plain for f, plain in LADDER.items()}
    log = log_multiplier(ladder, sign * score, sign)
    assert math.exp(log) == pytest.approx(factor, rel=1e-12)


def test_nonmonotone_ladder_is_read_at_its_first_crossing():
    ladder = {1.0: 3.0, 2.0: 2.0, 4.0: 2.5, 8.0: 1.0}
    assert math.exp(log_multiplier(ladder, 2.25, 1)) == pytest.approx(2**0.75, rel=1e-12)


def config_of(variants=("baseline", "mhc"), ladder=(0.5, 2, 4), **changes):
    study = {"variants": list(variants), "steps": 100, "seeds": [0, 1, 2, 3]}
    study["ladder"] = {"baseline": list(ladder)} if ladder else {}
    return config_with(a=study | changes)


def plain_ladder(slope=1.0, noise=(0, 0, 0, 0)):
    """Plain runs whose loss falls by `slope` per doubling, with `noise` by seed."""
    return [
        run(label, seed=seed, loss_final=3 - slope * math.log2(factor) + extra)
        for factor, label in config_of().studies["a"].rungs("baseline").items()
        for seed, extra in enumerate(noise)
    ]


def worth_of(*runs, config=None):
    table = table_of_worth(config or config_of(), frame(*runs))
    return {row["variant"]: row for row in table.to_dict("records")}


def test_the_multiplier_of_a_variant_is_the_geometric_mean_over_seeds():
    logs = [0.1, 0.3, 0.2, 0.6]  # to base 2: doublings that the plain network needs
    noise = [0, 0.01, -0.02, 0.03]  # both sides have it: seeds are paired
    ours = seeds("loss_final", [3 - d + e for d, e in zip(logs, noise, strict=True)])
    row = worth_of(plain_ladder(noise=noise), ours)["mhc"]
    mean = sum(logs) / 4
    sd = math.sqrt(sum((x - mean) ** 2 for x in logs) / 3)
    half = T975[3] * sd / 2
    assert row["answer"] == "at"
    assert row["multiplier"] == pytest.approx(2**mean, rel=T_ROUNDING)
    assert row["low"] == pytest.approx(2 ** (mean - half), rel=1e-7)
    assert row["high"] == pytest.approx(2 ** (mean + half), rel=1e-7)
    assert row["break_even"] == pytest.approx(2**mean - 1, rel=1e-7)


@pytest.mark.parametrize(
    ("losses", "answer", "outside", "bound"),
    [
        ([0.9, 0.8, 0.7, 0.6], "beyond", 4, 4),
        ([4.1, 4.2, 4.3, 4.4], "below", 4, 0.5),
        ([1.0, 1.0, 1.0, 0.9], "beyond", 1, 4),
        ([0.9, 4.1, 3.0, 3.0], "both", 2, 2**0.25),
    ],
)
def test_multiplier_is_not_extrapolated_outside_the_ladder(losses, answer, outside, bound):
    row = worth_of(plain_ladder(), seeds("loss_final", losses))["mhc"]
    assert (row["answer"], row["outside"]) == (answer, outside)
    assert row["multiplier"] == pytest.approx(bound, rel=1e-9)
    assert math.isnan(row["low"]) and math.isnan(row["high"])


@pytest.mark.parametrize(
    ("losses", "verdict"),
    [
        ([2.8, 2.81, 2.79, 2.8], "better"),
        ([3.2, 3.21, 3.19, 3.2], "worse"),
        ([3.001, 2.999, 3.002, 2.998], "equivalent"),
        ([2.5, 3.5, 2.6, 3.3], "undecided"),
    ],
)
def test_verdicts(losses, verdict):
    assert worth_of(plain_ladder(), seeds("loss_final", losses))["mhc"]["verdict"] == verdict


def test_equivalent_if_the_interval_of_the_verdict_is_within_5_percent():
    """The loss of the plain network falls by one nat per doubling, from 3 nats."""

    def row(spread):
        ours = seeds("loss_final", [3 * 10 ** (k * spread) for k in (-1, -1, 1, 1)])
        return worth_of(plain_ladder(), ours)["mhc"]

    sd = math.sqrt(4 / 3)
    # The worse end is nearer to its bound: 1 / 1.05, and losses between rungs are on a line.
    widest = math.log10(1 + math.log2(1.05) / 3) / (T975[3] * sd / 2)
    for share, verdict in ((0.99, "equivalent"), (1.01, "undecided")):
        shown, half = row(share * widest), T975[3] * share * widest * sd / 2
        assert shown["corrected_low"] == pytest.approx(2 ** (3 - 3 * 10**half), rel=1e-6)
        assert shown["corrected_high"] == pytest.approx(2 ** (3 - 3 * 10**-half), rel=1e-6)
        assert shown["verdict"] == verdict


def test_open_end_of_an_interval_is_beyond_the_ladder():
    row = worth_of(plain_ladder(), seeds("loss_final", [4.5, 4.4, 4.6, 4.5]))["mhc"]
    assert (row["corrected_low"], row["corrected_high"], row["verdict"]) == (0, 0, "worse")


@pytest.mark.parametrize(
    ("cost", "here"), [(1.2, "pays"), (1.4, "undecided"), (1.6, "costs more"), (math.nan, "")]
)
def test_a_design_pays_if_its_interval_lies_above_the_cost(cost, here):
    row = {"corrected_low": 1.25, "corrected_high": 1.5, "cost": cost, "cost_low": cost - 0.01,
           "cost_high": cost + 0.01, "operations": 1.1, "cost_fused": 1.7}  # fmt: skip
    costs = compare_costs(row)
    assert costs == {"pays_here": here, "pays_operations": "pays", "pays_fused": "costs more"}
    assert set(compare_costs(row | {"corrected_low": math.nan}).values()) == {""}
    assert compare_costs(row | {"corrected_high": math.inf})["pays_fused"] == "undecided"


def test_cost_with_fused_kernels_is_that_of_the_library():
    """Four streams: 5 · 4 + 5 elements a function, 8 of them the plain network's; 2 bytes each."""
    config = config_with(a={"task": "text", "recipe": "unit-variance", "variants": ["baseline",
        "mhc_identity_cycle"], "model": {"corpus": None, "length": 8, "width": 16, "heads": 2,
        "hidden": 32, "wrap": "sublayer"}})  # fmt: skip
    byte_time = 2 * (25 - 8) * 4096 * 2 / 3.35e12
    step = 6 * 12 * 4096**2 / 400e12
    products = 2 * 4 * 4 * 2 * 4096 * 6 / 400e12  # two functions, φ: 4 C to 4 + 4 logits
    expected = 1 + (byte_time + products) / step
    assert fused_cost(config, "a", "mhc_identity_cycle") == pytest.approx(expected, rel=0.01)
    assert math.isnan(fused_cost(config, "a", "baseline"))


def test_variant_with_its_own_rate_is_not_read_on_the_ladder():
    config = config_of(
        variants=["baseline", "mhc", {"mhc_fast": {"connection": "mhc", "optimizer": {"lr": 0.5}}}]
    )
    runs = [seeds("loss_final", [2.5] * 4, variant=v) for v in ("mhc", "mhc_fast")]
    assert worth_of(plain_ladder(), *runs, config=config).keys() == {"mhc"}


def test_diverged_run_has_no_worth_and_removes_no_other_seed():
    ours = seeds("loss_final", [2.5, 2.5, 2.5, 2.5])
    diverged = {"outcome": "diverged", "score": math.nan}  # as cells.csv has it
    ours[3] |= diverged
    row = worth_of(plain_ladder(), ours)["mhc"]
    assert row["seeds"] == 3
    assert row["multiplier"] == pytest.approx(math.sqrt(2), rel=1e-9)
    assert not worth_of(plain_ladder(), [one | diverged for one in ours])


AT_OTHER_RATES = [
    {f"{kind}_{name}": {"connection": kind, "optimizer": {"lr": lr}}}
    for kind in ("mhc", "baseline")
    for name, lr in (("low", 0.001), ("high", 0.004))
]


def test_rates_are_chosen_by_the_other_seeds():
    """Only seed 3 makes `mhc_low` best over all seeds; no seed may choose its own rate."""
    config = config_of(variants=["baseline", "mhc", *AT_OTHER_RATES], optimizer={"lr": 0.002})
    losses = {"mhc_low": [2.6, 2.6, 2.6, 1.0], "mhc": [2.5] * 4, "mhc_high": [2.9] * 4}
    runs = [seeds("loss_final", of_seeds, variant=v) for v, of_seeds in losses.items()]
    runs += [seeds("loss_final", [3.5] * 4, variant=f"baseline_{v}") for v in ("low", "high")]
    cells = frame(plain_ladder(), *runs)
    table = table_of_worth(config, cells)
    (best,) = table[table["rate"] == "best rates"].to_dict("records")
    # Without seed 3 `mhc` is best (2.5); without any other seed `mhc_low` is (its mean is lower).
    logs = [0.4, 0.4, 0.4, 0.5]
    assert best["multiplier"] == pytest.approx(2 ** (sum(logs) / 4), rel=1e-9)
    assert best["variant"] == "mhc_low" and best["against"] == "baseline"


def test_seed_without_a_rung_counts_only_in_the_score():
    """Seed 3 has no rung at half the steps and is 0.8 below plain; the others are 0.2 below."""
    ladder = [r for r in plain_ladder() if (r["variant"], r["seed"]) != ("baseline_x050", 3)]
    row = worth_of(ladder, seeds("loss_final", [2.8, 2.8, 2.8, 2.2]))["mhc"]
    assert row["seeds"] == 4
    logs = [math.log10(2.8 / 3)] * 3 + [math.log10(2.2 / 3)]
    assert row["change"] == pytest.approx(100 * (10 ** (sum(logs) / 4) - 1), rel=1e-9)
    assert row["multiplier"] == pytest.approx(2**0.2, rel=1e-9)


def test_ladders_of_several_plain_networks_have_their_common_factors():
    """Each seed has another network; one lacks a rung at 0.5, so the ladder begins at 1."""
    one = pd.DataFrame({0.5: [4.0] * 2, 1.0: [3.0] * 2, 2.0: [2.0] * 2}, index=[0, 1])
    other = pd.DataFrame({1.0: [3.0] * 2, 2.0: [2.0] * 2}, index=[0, 1])
    common = ladder_at({0: "one", 1: "other"}, {"one": one, "other": other})
    assert list(common.columns) == [1, 2]
    logs = log_multipliers(common, pd.Series([3.5, 3.5]), 1)
    assert list(logs) == [-math.inf, -math.inf]


def test_pair_has_one_verdict_in_both_tables_and_a_family_is_a_question():
    """Three variants against plain are one family, the two against `mhc` another."""
    pairs = [["mhc", "baseline"], ["hc", "mhc"], ["hc_paper", "mhc"]]
    config = config_of(
        variants=["baseline", "mhc", "hc", "hc_paper"],
        contrasts=[{"question": "Is it better?", "pairs": pairs}],
    )
    noise = (0, 0.1, 0.2, 0.1)
    runs = [
        seeds("loss_final", [loss + k * n for n in noise], variant=v)
        for v, loss, k in (("mhc", 2.8, 2.2), ("hc", 2.75, 0.3), ("hc_paper", 2.85, -0.3))
    ]
    cells = frame(plain_ladder(noise=noise), *runs)
    effects, worth = table_of_effects(config, cells), table_of_worth(config, cells)
    effects = effects[effects["metric"] == "score"]
    ours, theirs = (table.set_index("variant")["multiplier"] for table in (effects, worth))
    assert ours["mhc"] == pytest.approx(theirs["mhc"])
    assert ours["hc"] == pytest.approx(theirs["hc"] / theirs["mhc"])  # against mhc
    rows = effects.to_dict("records") + worth.to_dict("records")
    assert len(rows) == 6
    p = {(row["variant"], row["against"]): row["p"] for row in rows}
    assert len(p) == 5
    for against, tests in (("baseline", 3), ("mhc", 2)):
        family = [pair for pair in p if pair[1] == against]
        of_family = [row for row in rows if row["against"] == against]
        assert {row["tests"] for row in of_family} == {len(family)} == {tests}
        for row in of_family:
            pair = (row["variant"], row["against"])
            assert row["p_holm"] == corrected(p, pair, family)


def corrected(p, pair, family):
    """Holm's correction by definition: the k-th smallest of n is multiplied by n − k + 1."""
    ordered = sorted(p[one] for one in family)
    n = len(ordered)
    return max(min(1, (n - k) * ordered[k]) for k in range(ordered.index(p[pair]) + 1))


def test_a_known_spread_is_of_the_tasks_own_text():
    """On a user's text Student's t judges the same scores."""
    own = {"corpus": "texts", "corpus_sha256": "0" * 64, "vocab": 84}
    scores = [2.8, 2.81, 2.79, 2.8]
    runs = [seeds("score", [3.0] * 4, variant="baseline"), seeds("score", scores, variant="mhc")]
    p = []
    for corpus in ({}, own):
        model = {"length": 8, "width": 16, "heads": 2, "hidden": 32, **corpus}
        settings = {"variants": ["baseline", "mhc"], "task": "text", "model": model}
        config = config_with(
            a={
                "contrasts": [{"question": "Is it better?", "pairs": [["mhc", "baseline"]]}],
                "seeds": [0, 1, 2, 3],
                **settings,
            }
        )
        table = table_of_effects(config, frame(*runs))
        (row,) = table[table["metric"] == "score"].to_dict("records")
        p.append(row["p"])
    logs = pd.Series([math.log10(x / 3) for x in scores])
    assert p[1] == pytest.approx(stats.ttest_1samp(logs, 0).pvalue)
    error = math.sqrt((2.5 * math.log10(1.0054) ** 2 + 3 * logs.var()) / (2.5 + 3) / 4)
    assert p[0] == pytest.approx(2 * stats.t.sf(-logs.mean() / error, 2.5 + 3))


def test_runs_that_two_families_compare_have_the_stricter_verdict():
    """Each is best at the common rate, where `hc` makes the family larger."""
    variants = ["baseline", "mhc", "hc", *AT_OTHER_RATES]
    config = config_of(variants=variants, optimizer={"lr": 0.002})
    losses = {"mhc": [2.8, 2.85, 2.9, 2.8], "hc": [2.9, 3.1, 3.0, 3.05]}
    losses |= dict.fromkeys(("mhc_low", "mhc_high", "baseline_low", "baseline_high"), [3.5] * 4)
    runs = [seeds("loss_final", of_name, variant=name) for name, of_name in losses.items()]
    table = table_of_worth(config, frame(plain_ladder(), *runs))
    rows = table[table["variant"] == "mhc"].set_index("rate")
    one, best = (rows.loc[rate] for rate in ("one rate", "best rates"))
    assert one["p"] == best["p"] and one["tests"] > 1
    assert best[["p_holm", "tests", "verdict"]].equals(one[["p_holm", "tests", "verdict"]])
    assert one["p_holm"] > one["p"]


def test_each_look_at_the_seeds_spends_its_part():
    runs = [plain_ladder(), seeds("loss_final", [2.8, 2.81, 2.79, 2.8])]
    once = worth_of(*runs)["mhc"]
    often = worth_of(*runs, config=config_of(looks=[4, 8]))["mhc"]
    assert often["p_holm"] == pytest.approx(2 * once["p_holm"])
    assert often["corrected_low"] < once["corrected_low"]
    with pytest.raises(ConfigError, match="looks: must be ascending"):
        config_of(looks=[8, 4])
    with pytest.raises(ConfigError, match="the last is at 3 seeds, but the study has 4"):
        config_of(looks=[3], seeds=[0, 1, 2, 3])
    config_of(looks=[3], seeds=[0, 1, 2, 3], exclude=[{"seed": 3}])


def test_trainings_of_a_ladder_are_compared_with_nothing():
    """With a ladder at each of three rates, they look like a connection with three rates."""
    rates = {"baseline_low": 0.001, "baseline_high": 0.004}
    plain = [{v: {"connection": "baseline", "optimizer": {"lr": lr}}} for v, lr in rates.items()]
    ladders = {v: [0.5, 2, 4] for v in ("baseline", *rates)}
    config = config_with(a={"variants": ["baseline", "mhc", *plain], "ladder": ladders})
    study = config.studies["a"]
    runs = [
        seeds("loss_final", [3 - math.log2(factor)] * 4, variant=label)
        for base in study.ladder
        for factor, label in study.rungs(base).items()
    ]
    cells = frame(*runs, seeds("loss_final", [2.5] * 4))
    shown = {*study.labels} - {*study.ladder_trainings}
    assert shown == {*study.compared} == {"baseline", "mhc", *rates}
    for table in (table_of_worth(config, cells), table_of_effects(config, cells)):
        assert len(table)
        assert {*table["variant"], *table["against"]} <= shown


def test_change_without_a_ladder_has_no_verdict():
    """The depth multiplier is 0.5 if 8 layers end where 4 plain layers end."""
    config = config_of(ladder=[], depths=[2, 4, 8])
    plain = {2: 3.0, 4: 2.0, 8: 1.0}
    runs = [
        seeds("loss_final", [loss] * 4, variant="baseline", depth=depth)
        for depth, loss in plain.items()
    ]
    ours = [2.0, 2.0, 2.0, 2.0]
    row = worth_of(*runs, seeds("loss_final", ours, depth=8), config=config)["mhc"]
    assert (row["answer"], row["verdict"]) == ("", pytest.approx(math.nan, nan_ok=True))
    assert math.isnan(row["multiplier"]) and math.isnan(row["p"])
    assert (row["unit"], row["change"]) == ("%", pytest.approx(100))  # twice the plain one's
    assert (row["depth_answer"], row["depth_multiplier"]) == ("at", pytest.approx(0.5))
    ours = [2.1, 2.0, 1.9, 2.0]
    row = worth_of(*runs, seeds("loss_final", ours, depth=8), config=config)["mhc"]
    logs = [math.log(x) for x in ours]
    half = half_width(logs)
    ends = [100 * math.expm1(sum(logs) / 4 + side * half) for side in (-1, 0, 1)]
    change = [row[f"change{end}"] for end in ("_low", "", "_high")]
    assert change == pytest.approx(ends, rel=1e-7)
    assert row["depth_low"] < 0.5 < row["depth_high"]


def test_open_depth_interval_ends_at_zero_or_infinity():
    config = config_of(ladder=[], depths=[2, 4, 8])
    runs = [seeds("loss_final", [2.0, 2.1, 1.9, 2.0], variant="baseline", depth=d) for d in (2, 4)]
    runs.append(seeds("loss_final", [2.1, 2.0, 2.0, 1.9], variant="baseline", depth=8))
    row = worth_of(*runs, seeds("loss_final", [1.9, 2.0, 2.1, 2.0], depth=8), config=config)["mhc"]
    assert (row["depth_low"], row["depth_high"]) == (0, math.inf)


def test_costs_are_read_from_the_table_of_step_times(tmp_path):
    """Times are measured at the study's width (16) and a larger one; work is counted at 16."""
    columns = ("variant", "seconds", "low", "high", "width", "operations", "bytes")
    rows = [
        ("baseline", 2, 2, 2, 16, 100, 40),
        ("mhc", 3, 2.5, 4, 16, 150, 100),
        ("baseline", 10, 10, 10, 128, 900, 300),
        ("mhc", 12, 11, 13, 128, 990, 600),
    ]
    file = step_times(tmp_path, *(dict(zip(columns, row, strict=True)) for row in rows))
    config = config_of(model={"vocab": 64, "length": 8, "width": 16, "hidden": 64, "heads": 2})
    config = config.model_copy(update={"step_times": file})
    runs = [plain_ladder(), seeds("loss_final", [2.0] * 4)]
    row = worth_of(*runs, config=config)["mhc"]
    assert [row[f"cost{end}"] for end in ("", "_low", "_high")] == [1.5, 1.25, 2]
    assert [row[f"cost_wider{end}"] for end in ("", "_low", "_high")] == [1.2, 1.1, 1.3]
    assert (row["width"], row["wider"]) == (16, 128)
    assert (row["operations"], row["bytes"]) == (1.5, 2.5)
    assert row["multiplier"] == pytest.approx(2)
    assert row["net"] == pytest.approx(2 / 1.5)
