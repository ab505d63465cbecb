"""Attribution: trajectories on two platforms, and shares of variance of factorial designs."""

import itertools
import math
from dataclasses import asdict

import pandas as pd
import pytest

from fathom_study.analysis.attribution import (
    SHARES,
    designs,
    diverged_cells,
    trajectories_table,
    variance_shares,
    variance_summary,
    variance_table,
)
from fathom_study.config import load_config
from tests.support.runs import GPU_PLATFORM, config_with
from tests.support.tables import curve, frame, run

NAN, INF = math.nan, math.inf


# --- trajectories --------------------------------------------------------------------------------


def parted(*seeds, scores=None, metric="exact_loss", **axes):
    """Row of trajectories.csv for torch and mlx, from a pair of loss curves for each seed.

    `scores`: a pair of final scores for each seed, by default the last losses.
    """
    cells, steps = [], []
    for seed, pair in enumerate(seeds):
        ends = scores[seed] if scores else [losses[-1] for losses in pair]
        for backend, losses, score in zip(("torch", "mlx"), pair, ends, strict=True):
            finite = score if score is not None and math.isfinite(score) else None
            steps += curve(losses, seed=seed, backend=backend)
            cells.append(run(seed=seed, backend=backend, score=finite, score_metric=metric, **axes))
    (row,) = trajectories_table(frame(cells), frame(steps)).to_dict("records")
    assert (row["platform_a"], row["platform_b"]) == ("torch", "mlx")
    return row


ONE = [1.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("pairs", "seeds", "first", "largest", "final"),
    [
        ([([4.0, 2.0, 1.0], [4.0, 2.0, 1.0])], 1, None, 0, 0),
        # Relative to the second platform: 0, 0.0004, 0.5, 0.1.
        ([([4.0, 2.5010, 3.0, 1.1], [4.0, 2.5, 2.0, 1.0])], 1, 2, 0.5, 0.1),
        ([([1.0, 1.00101], [1.0, 1.0])], 1, 1, 0.00101, 0.00101),
        ([([1.0, 1.00099], [1.0, 1.0])], 1, None, 0.00099, 0.00099),
        # The earliest step over seeds, and the largest difference over seeds.
        ([([1.0, 1.0, 1.0, 1.5], ONE), ([1.0, 1.0, 1.2, 1.0], ONE), (ONE, ONE)], 3, 2, 0.5, 0.5),
        # One non-finite side is infinitely apart; two are not apart.
        *(([(left, right)], 1, 1, INF, 0)
          for broken in (NAN, INF)
          for left, right in (([1.0, broken, 1.0], ONE[:3]), (ONE[:3], [1.0, broken, 1.0]))),
        *(([([1.0, left], [1.0, right])], 1, None, 0, 0)
          for left in (NAN, INF) for right in (NAN, INF)),
    ],
)  # fmt: skip
def test_trajectories_by_hand(pairs, seeds, first, largest, final):
    row = parted(*pairs)
    assert row["seeds"] == seeds
    assert pd.isna(row["first_step_apart"]) if first is None else row["first_step_apart"] == first
    assert row["largest_difference"] == pytest.approx(largest)
    assert row["final_difference"] == pytest.approx(final)


@pytest.mark.parametrize(
    ("scores", "metric", "difference", "spread", "within"),
    [
        # 1, 2, 6: mean 3, standard deviation √((4 + 1 + 9) / 2) = √7; the losses do not matter.
        ([(1.1, 1.0), (2.0, 2.0), (6.0, 6.0)], "exact_loss", 0.1, math.sqrt(7) / 3, True),
        # Shares are compared by their absolute difference.
        ([(0.5, 0.4), (0.5, 0.5), (0.6, 0.6)], "test_accuracy", 0.1, 0.1, True),
        ([(None, 1.0), (2.0, 2.0), (6.0, 6.0)], "exact_loss", INF, math.sqrt(7) / 3, False),
        ([(None, None), (2.0, 2.0), (6.0, 6.0)], "exact_loss", 0.0, math.sqrt(8) / 4, True),
    ],
)
def test_final_scores_are_compared_with_seed_spread(scores, metric, difference, spread, within):
    row = parted(*[([9.0], [7.0])] * 3, scores=scores, metric=metric)
    assert row["final_difference"] == pytest.approx(difference)
    assert row["seed_spread"] == pytest.approx(spread)
    assert row["within_seed_spread"] == within
    assert parted(*[([9.0], [7.0])] * 2, scores=[(1.0, 0.0)] * 2)["seed_spread"] == 0
    row = parted(([9.0], [7.0]), outcome="not scored")
    assert math.isnan(row["final_difference"])
    assert not row["within_seed_spread"]


# --- shares of variance --------------------------------------------------------------------------


def design(y):
    """A full factorial in which y is a function of recipe, platform and seed, each coded ±1."""
    rows = [(*axes, float(y(*axes))) for axes in itertools.product((-1, 1), repeat=3)]
    return pd.DataFrame(rows, columns=["recipe", "platform", "seed", "y"])


@pytest.mark.parametrize(
    ("y", "shares"),
    [
        (lambda r, p, s: r, [1, 0, 0, 0]),
        (lambda r, p, s: r * p * s, [0, 0, 0, 1]),
        # Contrasts are orthogonal, so the squares of their sizes add up: 9 + 4 + 1 + 1 = 15.
        (lambda r, p, s: 3 * r + 2 * p + s + r * s, [9 / 15, 4 / 15, 1 / 15, 1 / 15]),
    ],
)
def test_shares_of_a_designed_factorial(y, shares):
    result = variance_shares(design(y))
    names = ("recipe", "platform", "seed", "other")
    assert [result[f"{name}_share"] for name in names] == pytest.approx(shares, abs=1e-9)


BY_ALL = design(lambda r, p, s: 3 * r + p + s)


@pytest.mark.parametrize(
    "cell",
    [
        BY_ALL.iloc[1:],
        BY_ALL.iloc[[1, *range(1, 8)]],  # one run twice, another missing
        *(BY_ALL[BY_ALL[factor] == 1] for factor in ("recipe", "platform", "seed")),
        *(BY_ALL.assign(y=[*BY_ALL["y"][:7], broken]) for broken in (NAN, INF, -INF)),
        design(lambda r, p, s: 2.5),  # no variance to share
    ],
)
def test_incomplete_or_constant_design_has_no_variance_shares(cell):
    assert variance_shares(cell) is None


# --- from steps to shares ------------------------------------------------------------------------


def two_recipes(**changes):
    """Config of studies a (mlx-defaults) and b (torch-defaults); `changes` are of b alone."""
    return config_with(studies=("a", "b"), a={}, b={"recipe": "torch-defaults", **changes})


def grid(loss, steps=(3, 3), depths=(8,), variants=("mhc",)):
    """Curves of both studies on both backends, two seeds, from loss(study, backend, seed, step)."""
    rows = []
    for (study, count), depth, variant, backend, seed in itertools.product(
        zip("ab", steps, strict=True), depths, variants, ("torch", "mlx"), (0, 1)
    ):
        losses = [loss(study, backend, seed, step) for step in range(count)]
        rows += curve(losses, variant, depth, seed, study, backend)
    return rows


def by_recipe(study, backend, seed, step):
    return {"a": 10.0, "b": 0.1}[study]


def by_platform(study, backend, seed, step):
    return {"torch": 10.0, "mlx": 0.1}[backend]


@pytest.mark.parametrize(
    ("loss", "platform", "shares"),
    [
        (by_recipe, "mlx", [1, 0, 0]),
        (by_platform, "mlx", [0, 1, 0]),
        (by_platform, f"torch-{GPU_PLATFORM}", [0, 1, 0]),  # another machine, the same backend
    ],
)
def test_factor_that_alone_sets_the_loss_has_the_whole_share(loss, platform, shares):
    steps = frame(grid(loss)).replace({"platform": {"mlx": platform}})
    (row,) = variance_table(two_recipes(), steps).to_dict("records")
    assert (row["depth"], row["variant"], row["step"], row["runs"]) == (8, "mhc", 2, 8)
    assert [row[f"{f}_share"] for f in ("recipe", "platform", "seed")] == pytest.approx(shares)
    assert row["sd"] == pytest.approx(math.sqrt(8 / 7))  # log10 of the loss is ±1
    # Geometric means over the runs of each recipe: 10 and 0.1, or √(10 · 0.1) for both.
    ends = [0.1, 10.0] if loss is by_recipe else [1.0, 1.0]
    assert [row["loss_low"], row["loss_high"]] == pytest.approx(ends)


def test_loss_is_the_mean_over_the_last_tenth_of_common_steps():
    # Means over the last two of twenty steps: 10 of 7 and 13, 0.1 of 0.02 and 0.18.
    def loss(study, backend, seed, step):
        last = {"a": {18: 7.0, 19: 13.0}, "b": {18: 0.02, 19: 0.18}}
        return last[study].get(step, 10.0 ** (seed + 1))

    (row,) = variance_table(two_recipes(), frame(grid(loss, steps=(25, 20)))).to_dict("records")
    assert (row["step"], row["recipe_share"]) == (19, pytest.approx(1))
    assert row["sd"] == pytest.approx(math.sqrt(8 / 7))


@pytest.mark.parametrize(
    "gone", [{"study": "a", "backend": "mlx", "seed": 1}, {"backend": "mlx"}, {"seed": 1}]
)
def test_cell_with_missing_runs_is_left_out(gone):
    steps = grid(by_recipe, depths=(4, 8))
    steps = frame([row for row in steps if not {"depth": 8, **gone}.items() <= row.items()])
    assert variance_table(two_recipes(), steps)["depth"].tolist() == [4]


def test_cells_without_shares_are_counted_if_a_run_diverged():
    steps = frame(grid(by_recipe, depths=(4, 8, 16)))
    axes = steps[["study", "depth", "variant", "backend", "seed"]].drop_duplicates()
    cells = frame([run(**row) for row in axes.to_dict("records")])
    cells.loc[cells["depth"] > 4, "outcome"] = "diverged"
    variance = variance_table(two_recipes(), steps)
    assert diverged_cells(two_recipes(), cells, variance) == 0
    assert diverged_cells(two_recipes(), cells, variance.query("depth < 8")) == 2


@pytest.mark.parametrize("alone", [{"seed": 2}, {"platform": "torch-cuda-h100-linux"}])
def test_seed_or_platform_in_only_one_study_does_not_count(alone):
    rows = grid(by_recipe)
    more = [{**row, **alone, "loss": 1e6} for row in rows if row["study"] == "a"]
    (row,) = variance_table(two_recipes(), frame(rows, more)).to_dict("records")
    assert (row["runs"], row["recipe_share"]) == (8, pytest.approx(1))


@pytest.mark.parametrize(
    "change",
    [
        {"recipe": "mlx-defaults"},
        {"optimizer": {"lr": 0.001}},
        {"model": {"vocab": 64, "length": 8, "width": 32, "heads": 4, "hidden": 32}},
        {"accumulate": {"mhc": 2}},
        {"batch_size": {4: 8, 8: 16, 16: 8}},  # would be attributed to the recipe
        {"variants": [{"mhc": {"connection": "mhc_paper"}}]},  # one label for two connections
    ],
)
def test_studies_with_other_differences_form_no_design(change):
    steps = frame(grid(by_recipe, depths=(4, 8)))
    whole = [4] if "batch_size" in change else []  # at 4 layers the batches are the same
    assert variance_table(two_recipes(**change), steps)["depth"].tolist() == whole


# --- which studies form a design -----------------------------------------------------------------


@pytest.mark.parametrize("preset", ["", "reference", "paper"])
def test_two_depth_sweeps_form_the_design_at_every_scale(pytestconfig, preset):
    files = [pytestconfig.rootpath / "config.yaml"] + (
        [pytestconfig.rootpath / f"workflow/presets/{preset}.yaml"] if preset else []
    )
    config = load_config(files, {"assume_backends": True})
    runs = pd.DataFrame(map(asdict, config.cells())).assign(platform=lambda t: t["backend"])
    cells = [
        *itertools.product((12, 24, 48), ("baseline", "hc", "mhc")),
        *itertools.product((1, 2, 3, 6), ("baseline",)),
    ]
    # The paper's batches differ at 24 layers: 24 on MLX, 32 on CUDA.
    expected = [cell for cell in cells if preset != "paper" or cell[0] != 24]
    assert designs(config, runs) == dict.fromkeys(expected, ("depth-mlx", "depth-torch"))


# --- which factor decides ------------------------------------------------------------------------


def summary_of(*shares):
    """The summary by factor, from a tuple of four shares for each cell."""
    losses = {"loss_low": range(1, len(shares) + 1), "loss_high": 9.0}
    variance = pd.DataFrame(shares, columns=list(SHARES.values())).assign(**losses)
    return variance_summary(variance).set_index("factor")


@pytest.mark.parametrize(
    ("cells", "factor"),
    [
        ([(0.9, 0.05, 0.03, 0.02)], ["recipe"]),
        ([(0.1, 0.1, 0.1, 0.7)], ["other"]),
        ([(0.5, 0.5, 0.0, 0.0)], []),
        # Medians 0.6 and 0.4; the means would be 0.45 and 0.55.
        ([(0.6, 0.4, 0, 0), (0.65, 0.35, 0, 0), (0.1, 0.9, 0, 0)], ["recipe"]),
        ([], []),
    ],
)
def test_factor_decides_if_its_median_share_exceeds_half(cells, factor):
    summary = summary_of(*cells)
    assert list(summary.index[summary["decides"]]) == factor


def test_median_and_range_by_hand():
    row = summary_of((0.9, 0.1, 0, 0), (0.2, 0.7, 0.1, 0), (0.6, 0.1, 0.1, 0.2)).loc["recipe"]
    assert (row["median"], row["lowest"], row["highest"], row["cells"]) == (0.6, 0.2, 0.9, 3)
    assert (row["loss_low"], row["loss_high"]) == (2, 9)
