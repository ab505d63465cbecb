"""Stability: the largest rate that trains, good rates and spikes, against values by hand."""

import math
from itertools import chain

import numpy as np
import pytest

from fathom_study.analysis.claims import load_published
from fathom_study.analysis.platforms import Platform
from fathom_study.analysis.stability import stability_table, trains
from fathom_study.config import load_config
from fathom_study.metrics.runs import count_recovered, count_spikes
from fathom_study.report.drawing.draw import draw_study
from fathom_study.report.figures import figures_of_study
from fathom_study.report.tables.rate_words import compared_rate
from tests.support.project import PROJECT
from tests.support.reports import write_tables
from tests.support.runs import config_with
from tests.support.tables import CHANCE, curve, frame, run

RATES = {0.001: "", 0.002: "_002", 0.004: "_004", 0.008: "_008"}
"""Rates of every variant, with the suffix of its label; the study's own rate is 0.001."""


def config_of(results="results", **changes):
    study = {"rates": [0.004, 0.002, 0.008], "depths": [8], "backends": ["torch"], "steps": 100}
    return config_with(results, a={**study, "optimizer": {"lr": 0.001}, **changes})


def runs_of(variant, ends, **changes):
    """Runs of a variant; `ends` holds the scores of the seeds for each rate.

    None marks a run that diverged, CHANCE a run that learned nothing.
    """
    return [
        run(
            variant=f"{variant}{end}", seed=seed, lr=rate, score=score, connection=variant,
            outcome="diverged" if score is None else "at chance" if score == CHANCE else "learned",
            **changes,
        )
        for (rate, end), scores in zip(RATES.items(), ends, strict=True)
        for seed, score in enumerate(scores)
    ]  # fmt: skip


# At 0.004 one seed diverges; at 0.008 one learns nothing and two diverge.
PLAIN = runs_of("baseline", [(2.0,) * 3, (1.0,) * 3, (1.5, None, 1.5), (CHANCE, None, None)])
ALWAYS = runs_of("mhc", [(2.0,) * 3, (1.0,) * 3, (1.0,) * 3, (1.5,) * 3])
WORSE = runs_of("hc", [(2.0,) * 3, (None, None, 3.0), (None,) * 3, (None,) * 3])


def table_of(*runs, config=None):
    table = stability_table(config or config_of(), frame(*runs))
    return {(row["variant"], row["against"]): row for row in table.to_dict("records")}


def test_rates_apply_to_variants_without_a_rate_of_their_own():
    own = {"mhc_fast": {"connection": "mhc", "optimizer": {"lr": 0.5}}}
    config = config_of(variants=["baseline", "mhc", own])
    rates = {cell.variant: config.spec(cell).optimizer.lr for cell in config.cells()}
    expected = {f"{v}{end}": rate for v in ("baseline", "mhc") for rate, end in RATES.items()}
    assert rates == expected | {"mhc_fast": 0.5}
    assert list(rates)[:4] == ["baseline", "baseline_002", "baseline_004", "baseline_008"]
    assert config.labels["mhc_004"] == "mhc at rate 0.004"
    alone = {**config.spec(config.cells()[0]).model_dump(), "variant": "", "optimizer": ""}
    other = config.spec(next(c for c in config.cells() if c.variant == "baseline_008"))
    assert {**other.model_dump(), "variant": "", "optimizer": ""} == alone


def test_largest_rate_is_the_median_over_seeds_with_its_range():
    """By seed: plain 0.004, 0.002, 0.004; hc 0.001, 0.001, 0.002; mhc trains at every rate."""
    table = table_of(PLAIN, ALWAYS, WORSE)
    plain, mhc, hc = table["baseline", ""], table["mhc", "baseline"], table["hc", "baseline"]
    rates = [
        [row[name] for name in ("largest", "largest_low", "largest_high", "at_top", "seeds")]
        for row in (plain, mhc, hc)
    ]
    assert rates == [[0.004, 0.002, 0.004, 0, 3], [0.008] * 3 + [3, 3], [0.001, 0.001, 0.002, 0, 3]]
    assert [row["best"] for row in (plain, mhc, hc)] == [0.002, 0.002, 0.001]
    counts = [[row[name] for name in ("runs", "diverged", "untrained")] for row in (plain, hc)]
    assert counts == [[12, 3, 1], [12, 8, 0]]
    assert rates_of(plain) == [0.001, 0.002, 0.004, 0.008]


def rates_of(row):
    return [float(rate) for rate in row["rates"].split()]


def test_verdict_needs_every_seed():
    """Ratios of hc to plain are 0.25, 0.5 and 0.5; mhc is larger by an unknown factor."""
    table = table_of(PLAIN, ALWAYS, WORSE)
    mhc, hc = table["mhc", "baseline"], table["hc", "baseline"]
    assert (mhc["verdict"], mhc["larger"], mhc["equal"], mhc["smaller"]) == ("larger", 3, 0, 0)
    assert math.isnan(mhc["ratio"])
    assert (hc["verdict"], hc["smaller"]) == ("smaller", 3)
    assert [hc["ratio"], hc["ratio_low"], hc["ratio_high"]] == pytest.approx([0.5, 0.25, 0.5])
    other = runs_of("hc", [(2.0,) * 3, (1.0,) * 3, (None, None, 1.0), (None,) * 3])
    mixed = table_of(PLAIN, other)["hc", "baseline"]  # ratios 0.5, 1 and 1
    assert (mixed["verdict"], mixed["equal"], mixed["smaller"]) == ("undecided", 2, 1)
    alike = table_of(
        PLAIN, runs_of("hc", [[r["score"] for r in PLAIN[i : i + 3]] for i in (0, 3, 6, 9)])
    )
    # A score at chance, at the last rate, counts as not learned.
    assert alike["hc", "baseline"]["verdict"] == "equal"


def test_two_bounds_or_two_seeds_leave_the_verdict_undecided():
    both = table_of(ALWAYS, runs_of("baseline", [(1.0,) * 3] * 4))["mhc", "baseline"]
    assert (both["verdict"], both["larger"] + both["equal"] + both["smaller"]) == ("undecided", 0)
    two = [row for row in [*PLAIN, *ALWAYS] if row["seed"] < 2]
    row = table_of(two)["mhc", "baseline"]
    assert (row["verdict"], row["both"]) == ("undecided", 2)
    assert compared_rate(row) == "undecided: larger at 2 of 2 seeds"
    assert compared_rate(both) == "undecided: unknown at 3 of 3 seeds"


def test_seeds_without_every_rate_are_left_out():
    lacking = [r for r in PLAIN if (r["variant"], r["seed"]) != ("baseline_002", 2)]
    row = table_of(lacking, ALWAYS)["baseline", ""]
    assert (row["seeds"], row["largest_low"], row["largest_high"]) == (2, 0.002, 0.004)
    assert row["largest"] == pytest.approx(0.004 / math.sqrt(2))  # geometric mean of two
    assert not table_of([r for r in PLAIN if r["variant"] != "baseline_002"])


DEEP = {
    "depths": [8, 16],
    "exclude": [
        {"depth": 16, "variant": ["hc", "hc_002", "hc_004", "hc_008"]},
        {"depth": 16, "variant": ["baseline", "baseline_008", "mhc", "mhc_008"]},
        {"depth": 16, "variant": ["baseline_002_x050", "baseline_002_x200"]},
    ],
    "ladder": {"baseline_002": [0.5, 2]},
}
"""At 16 layers two networks train at two of the four rates, without the study's own."""


RUNGS = [
    run(variant=f"baseline_002_{end}", seed=seed, score=score)
    for end, score in (("x050", 2.0), ("x200", 0.0))
    for seed in range(3)
]


def deep_runs():
    """Runs at 8 layers, as elsewhere, and at 16: plain trains at 0.002, mhc at both rates."""
    deep = [*PLAIN, *ALWAYS]
    deep = [{**row, "depth": 16} for row in deep if row["lr"] in (0.002, 0.004)]
    failed = {"outcome": "diverged", "score": math.nan}
    deep = [row | (failed if row["variant"] == "baseline_004" else {}) for row in deep]
    return [*PLAIN, *ALWAYS, *WORSE, *deep, *RUNGS]


def test_row_lists_only_rates_trained_at_its_depth():
    table = stability_table(config_of(**DEEP), frame(*deep_runs()))
    rows = {(row["depth"], row["variant"]): row for row in table.to_dict("records")}
    assert [*rows] == [(8, "baseline"), (8, "hc"), (8, "mhc"), (16, "baseline"), (16, "mhc")]
    plain, mhc = rows[16, "baseline"], rows[16, "mhc"]
    assert rates_of(rows[8, "baseline"]) == [0.001, 0.002, 0.004, 0.008]
    assert rates_of(plain) == rates_of(mhc) == [0.002, 0.004]
    assert (plain["largest"], plain["at_top"], plain["runs"]) == (0.002, 0, 6)
    # 0.004 is the largest rate tried there: a bound, so there is no ratio.
    assert (mhc["largest"], mhc["greatest"], mhc["at_top"]) == (0.004, 0.004, 3)
    assert (mhc["against"], mhc["verdict"]) == ("baseline", "larger")
    assert math.isnan(mhc["ratio"])
    # The ladder has rungs only at 8 layers.
    assert rows[8, "baseline"]["good"] == 1
    assert math.isnan(plain["good"]) and math.isnan(mhc["good"])


def test_variants_are_compared_over_common_rates():
    """mhc lacks 0.008, so plain's runs there do not count and 0.004 is a bound for both."""
    config = config_of(exclude=[{"variant": "mhc_008"}])
    here = [row for row in ALWAYS if row["variant"] != "mhc_008"]
    plain = runs_of("baseline", [(1.0,) * 3] * 4)
    row = table_of(plain, here, config=config)["mhc", "baseline"]
    assert (row["largest"], row["both"], row["larger"], row["smaller"]) == (0.004, 3, 0, 0)
    assert row["verdict"] == "undecided"
    missing = [row for row in here if row["variant"] != "mhc_004"]  # planned but not trained
    assert ("mhc", "baseline") not in table_of(plain, missing, config=config)


def test_contrast_compares_two_variants_other_than_plain():
    asked = [{"question": "So?", "pairs": [["mhc_004", "hc_004"], ["mhc_002", "mhc_004"]]}]
    table = table_of(PLAIN, ALWAYS, WORSE, config=config_of(contrasts=asked))
    assert [*table] == [
        ("baseline", ""), ("hc", "baseline"), ("mhc", "baseline"), ("mhc", "hc"),
    ]  # fmt: skip
    assert table["mhc", "hc"]["verdict"] == "larger"


def test_good_rates_cost_less_than_5_percent_of_the_steps():
    """Plain's loss falls by one nat per doubling of the steps at its best rate, 0.002."""
    config = config_of(ladder={"baseline_002": [0.5, 2]})
    near, far = math.log2(1.04), math.log2(1.06)  # 4 and 6 % of the steps, in doublings
    other = runs_of("mhc", [(0.5 + near,) * 3, (0.5,) * 3, (0.5 + far,) * 3, (0.5 + near,) * 3])
    table = table_of(PLAIN, RUNGS, other, config=config)
    mhc, plain = table["mhc", "baseline"], table["baseline", ""]
    # 0.008 is as good, but not next to a good rate.
    assert (mhc["best"], mhc["good"], mhc["good_low"], mhc["good_high"]) == (0.002, 2, 0.001, 0.002)
    assert (plain["good"], plain["good_low"]) == (1, 0.002)
    beyond = table_of(PLAIN, RUNGS, runs_of("mhc", [(-1.0,) * 3] * 4), config=config)
    assert math.isnan(beyond["mhc", "baseline"]["good"])
    assert math.isnan(table_of(PLAIN)["baseline", ""]["good"])


@pytest.mark.parametrize(
    ("losses", "spikes"),
    [
        ([2.0] * 30, (0, 0)),
        ([2.0] * 10 + [2.5, 2.0], (1, 1)),
        ([2.0] * 10 + [2.39, 2.0], (0, 0)),  # 1.195 times the level
        ([2.0] * 9 + [2.5, 2.0, 2.0], (0, 0)),  # fewer than ten steps before it
        ([2.0] * 10 + [2.5, 2.3, 2.21, 2.3], (1, 0)),  # never back to 2.2
        ([2.0] * 10 + [2.5, 2.2, 2.5, 9.0, 2.0], (2, 2)),
        ([2.0] * 10 + [math.nan] * 3, (1, 0)),
        ([2.0] * 10 + [math.inf, 2.0], (1, 1)),
        # However slow the rise, the level is the smallest so far.
        ([2.0] * 10 + [2.0 + 0.02 * i for i in range(30)], (1, 0)),
        ([4.0 - 0.1 * i for i in range(30)], (0, 0)),
    ],
)
def test_spike_begins_20_percent_above_the_level_and_ends_at_10(losses, spikes):
    assert (count_spikes(np.array(losses)), count_recovered(np.array(losses))) == spikes


def test_spikes_are_counted_over_all_runs_of_a_variant():
    always, worse = ([dict(row) for row in rows] for rows in (ALWAYS, WORSE))
    always[0] |= {"spikes": 1, "spikes_recovered": 0}
    always[4] |= {"spikes": 2, "spikes_recovered": 2}
    worse[0] |= {"spikes": 1, "spikes_recovered": 0}
    row = table_of(PLAIN, always, worse)["mhc", "baseline"]
    assert (row["spikes"], row["recovered"], row["spiked"]) == (3, 2, 2)


def test_text_run_trains_if_it_beats_the_bigram_model():
    study = load_config([PROJECT / "config.yaml"]).studies["released"]
    runs = [(3.4, "learned"), (3.6, "learned"), (3.5, "learned"), (3.4, "diverged")]
    rows = [run(score=score, outcome=outcome, bigram_bpc=3.5) for score, outcome in runs]
    assert trains(study, frame(rows)).tolist() == [True, False, False, False]


def test_the_figures_draw_every_run_and_the_largest_rates(tmp_path, monkeypatch):
    config = config_of(tmp_path)
    published = load_published(PROJECT / "report/published.yaml", config)
    cells = [*PLAIN, *ALWAYS, *WORSE]
    steps = [curve([2.0], row["variant"], seed=row["seed"]) for row in cells]
    folder = write_tables(config, published, cells, [*chain(*steps)])
    drawn = {}
    monkeypatch.setattr(
        "fathom_study.report.drawing.draw.keep", lambda figures, *_: drawn.update(figures)
    )
    names = [figure.name for figure in figures_of_study(config, "a")]
    assert names == ["stability", "score_against_rate"]  # a ladder is of one rate and one depth
    draw_study(config, "a", Platform("torch"), folder / "tables", tmp_path, names)
    (ax,), (against_rate,) = (drawn[name].axes for name in names)
    rates = [*RATES]
    dots = {(rates[round(x)], y) for line in against_rate.lines if line.get_alpha()
            for x, y in line.get_xydata()}  # fmt: skip
    assert dots == {(r["lr"], r["score"]) for r in cells if r["score"] is not None}
    crosses = [rates[round(x)] for line in against_rate.lines if line.get_marker() == "x"
               for x in line.get_xdata()]  # fmt: skip
    # A mean over the other seeds would flatter plain at two rates and hc at three.
    assert sorted(crosses) == [0.002, 0.004, 0.004, 0.008, 0.008]
    rows = [line for line in ax.lines if len(line.get_xdata()) == 1]
    assert [(*line.get_xdata(), line.get_marker()) for line in rows] == [
        (0.004, "o"), (0.001, "o"), (0.008, ">"),
    ]  # fmt: skip
