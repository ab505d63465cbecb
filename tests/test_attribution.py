"""Recipe or platform: trajectories side by side, and shares of variance of designed factorials."""

import itertools
import math
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest

from fathom.analysis.attribution import (
    designs,
    diverged_cells,
    trajectories_table,
    variance_shares,
    variance_summary,
    variance_table,
    write_attribution,
)
from fathom.analysis.tables import read_table, save_tables
from fathom.config import load_config
from run_helpers import CPU_PLATFORM, GPU_PLATFORM, config_with
from tables_helpers import curve, frame

NAN, INF = math.nan, math.inf


# --- trajectories --------------------------------------------------------------------------------


def parted(*seeds):
    """The row for torch beside mlx; a pair of losses for each seed."""
    rows = []
    for seed, (left, right) in enumerate(seeds):
        rows += curve(left, seed=seed) + curve(right, seed=seed, backend="mlx")
    (row,) = trajectories_table(frame(rows)).to_dict("records")
    return row


def test_equal_trajectories_never_part():
    row = parted(([4.0, 2.0, 1.0], [4.0, 2.0, 1.0]))
    assert pd.isna(row["first_step_apart"])
    assert (row["largest_difference"], row["final_difference"]) == (0, 0)


def test_differences_by_hand():
    # Relative to the second place: 0, 0.0004, 0.5, 0.1.
    row = parted(([4.0, 2.5010, 3.0, 1.1], [4.0, 2.5, 2.0, 1.0]))
    assert (row["backend_a"], row["backend_b"]) == ("torch", "mlx")
    assert row["first_step_apart"] == 2
    assert row["largest_difference"] == pytest.approx(0.5)
    assert row["final_difference"] == pytest.approx(0.1)


@pytest.mark.parametrize("loss", [1.00101, 0.99899])
def test_more_than_a_thousandth_is_apart(loss):
    assert parted(([1.0, loss], [1.0, 1.0]))["first_step_apart"] == 1


@pytest.mark.parametrize("loss", [1.00099, 0.99901])
def test_less_than_a_thousandth_is_not_apart(loss):
    assert pd.isna(parted(([1.0, loss], [1.0, 1.0]))["first_step_apart"])


def test_the_earliest_seed_and_the_largest_difference_are_told():
    row = parted(
        ([1.0, 1.0, 1.0, 1.5], [1.0, 1.0, 1.0, 1.0]),
        ([1.0, 1.0, 1.2, 1.0], [1.0, 1.0, 1.0, 1.0]),
        ([1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]),
    )
    assert row["seeds"] == 3
    assert row["first_step_apart"] == 2
    assert row["largest_difference"] == pytest.approx(0.5)
    assert row["final_difference"] == pytest.approx(0.5)


def test_the_spread_over_seeds_is_the_second_places_and_relative():
    row = parted(([1.0, 9.0], [1.0, 1.0]), ([1.0, 9.0], [1.0, 2.0]), ([1.0, 9.0], [1.0, 6.0]))
    # 1, 2, 6: mean 3, standard deviation √((4 + 1 + 9) / 2) = √7.
    assert row["seed_spread"] == pytest.approx(math.sqrt(7) / 3)


@pytest.mark.parametrize(("final", "within"), [(1.1, True), (4.0, False)])
def test_whether_the_final_difference_is_within_the_spread(final, within):
    # Spread √7 / 3 = 0.88; the first seed's difference is 0.1 or 3.
    row = parted(([final], [1.0]), ([2.0], [2.0]), ([6.0], [6.0]))
    assert row["within_seed_spread"] == within


def test_places_that_agree_are_within_a_spread_of_zero():
    assert parted(([1.0], [1.0]), ([1.0], [1.0]))["within_seed_spread"]


@pytest.mark.parametrize("broken", [NAN, INF])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_step_at_which_one_side_is_not_finite_is_infinitely_apart(side, broken):
    whole, ends = [1.0, 1.0, 1.0], [1.0, broken, 1.0]
    row = parted((ends, whole) if side == "left" else (whole, ends))
    assert row["first_step_apart"] == 1
    assert row["largest_difference"] == INF
    assert row["final_difference"] == 0


@pytest.mark.parametrize("broken", [(NAN, NAN), (NAN, INF), (INF, NAN), (INF, INF)])
def test_a_step_at_which_neither_is_finite_is_not_apart(broken):
    left, right = broken
    row = parted(([1.0, left], [1.0, right]))
    assert pd.isna(row["first_step_apart"])
    assert (row["largest_difference"], row["final_difference"]) == (0, 0)


def test_a_place_that_is_not_finite_from_the_start_parts_at_step_0():
    row = parted(([NAN, NAN], [4.0, 4.0]))
    assert row["first_step_apart"] == 0
    assert row["final_difference"] == INF
    assert not row["within_seed_spread"]


def test_only_seeds_of_both_places_are_compared():
    rows = curve([1.0, 1.0]) + curve([1.0, 1.0], backend="mlx") + curve([1.0, 9.0], seed=1)
    (row,) = trajectories_table(frame(rows)).to_dict("records")
    assert row["seeds"] == 1
    assert row["largest_difference"] == 0


def test_every_two_places_of_a_cell_are_compared():
    rows = curve([1.0]) + curve([1.0], backend="mlx") + curve([1.0], depth=16)
    rows += curve([2.0], platform=GPU_PLATFORM, origin="imported")
    table = trajectories_table(frame(rows))
    pairs = table[["depth", "backend_a", "origin_a", "backend_b", "origin_b", "final_difference"]]
    assert pairs.to_numpy().tolist() == [
        [8, "torch", "here", "mlx", "here", 0],
        [8, "torch", "here", "torch", "imported", 0.5],
        [8, "mlx", "here", "torch", "imported", 0.5],
    ]


def test_the_same_platform_here_and_imported_are_two_places():
    rows = curve([1.0]) + curve([1.0], platform=CPU_PLATFORM, origin="imported")
    assert len(trajectories_table(frame(rows))) == 1


def test_one_place_has_nothing_to_part_from():
    assert trajectories_table(frame(curve([1.0, 2.0]))).empty


# --- shares of variance --------------------------------------------------------------------------


def design(y, seeds=2):
    """A full factorial in which y is a function of recipe, place and seed, each coded ±1, or for
    three seeds −1, 0, 1."""
    rows = [
        {"recipe": r, "place": p, "seed": s, "y": float(y(r, p, s))}
        for r in (-1, 1)
        for p in (-1, 1)
        for s in ((-1, 1) if seeds == 2 else (-1, 0, 1))
    ]
    return pd.DataFrame(rows)


def shares_of(cell):
    found = variance_shares(cell)
    return [found[name] for name in ("recipe", "place", "seed", "other")]


@pytest.mark.parametrize(
    ("y", "shares"),
    [
        (lambda r, p, s: r, [1, 0, 0, 0]),
        (lambda r, p, s: 7 - 2 * p, [0, 1, 0, 0]),
        (lambda r, p, s: s, [0, 0, 1, 0]),
        (lambda r, p, s: r * p, [0, 0, 0, 1]),
        (lambda r, p, s: r * p * s, [0, 0, 0, 1]),
        # Contrasts are orthogonal, so the squares of their sizes add up: 9 + 4 + 1 + 1 = 15.
        (lambda r, p, s: 3 * r + 2 * p + s + r * s, [9 / 15, 4 / 15, 1 / 15, 1 / 15]),
    ],
)
def test_shares_of_a_designed_factorial(y, shares):
    assert shares_of(design(y)) == pytest.approx(shares, abs=1e-9)  # their decimals


def test_shares_with_three_seeds():
    # Per run the recipe's square is 1, the seed's (1 + 0 + 1) / 3.
    assert shares_of(design(lambda r, p, s: r + s, seeds=3)) == pytest.approx([0.6, 0, 0.4, 0])


def test_shares_of_random_numbers_against_sums_of_squares():
    y = np.random.default_rng(0).normal(size=(2, 2, 3))
    frame_of_y = design(lambda r, p, s: y[(r + 1) // 2, (p + 1) // 2, s + 1], seeds=3)
    total = ((y - y.mean()) ** 2).sum()
    recipe = 6 * ((y.mean(axis=(1, 2)) - y.mean()) ** 2).sum()
    place = 6 * ((y.mean(axis=(0, 2)) - y.mean()) ** 2).sum()
    seed = 4 * ((y.mean(axis=(0, 1)) - y.mean()) ** 2).sum()
    expected = np.array([recipe, place, seed, total - recipe - place - seed]) / total
    assert shares_of(frame_of_y) == pytest.approx(expected)


def test_the_number_of_runs_and_their_spread():
    found = variance_shares(design(lambda r, p, s: r))
    assert found["runs"] == 8
    assert found["sd"] == pytest.approx(math.sqrt(8 / 7))


def test_the_order_of_the_runs_does_not_matter():
    cell = design(lambda r, p, s: 3 * r + p + s)
    assert shares_of(cell.sample(frac=1, random_state=1)) == pytest.approx(shares_of(cell))


def test_an_unbalanced_design_is_not_decomposed():
    assert variance_shares(design(lambda r, p, s: r).iloc[1:]) is None


def test_a_run_that_is_there_twice_does_not_stand_for_one_that_is_missing():
    cell = design(lambda r, p, s: r)
    cell.iloc[0] = cell.iloc[1]
    assert variance_shares(cell) is None


@pytest.mark.parametrize("factor", ["recipe", "place", "seed"])
def test_a_factor_with_one_level_is_not_decomposed(factor):
    cell = design(lambda r, p, s: r + p + s)
    assert variance_shares(cell[cell[factor] == 1]) is None


@pytest.mark.parametrize("broken", [NAN, INF, -INF])
def test_a_design_with_a_run_that_is_not_finite_is_not_decomposed(broken):
    cell = design(lambda r, p, s: r)
    cell.loc[3, "y"] = broken
    assert variance_shares(cell) is None


def test_runs_that_are_all_equal_have_no_variance_to_share():
    assert variance_shares(design(lambda r, p, s: 2.5)) is None


# --- from steps to shares ------------------------------------------------------------------------


def two_recipes(**changes):
    """Studies a (mlx-defaults) and b (torch-defaults), alike but for what is given for b."""
    return config_with(studies=("a", "b"), a={}, b={"recipe": "torch-defaults", **changes})


def grid(loss, steps=(3, 3), depths=(8,), variants=("mhc",)):
    """Curves of both studies in both places, two seeds; `loss` is of study, place, seed, step."""
    rows = []
    for (study, count), depth, variant, backend, seed in itertools.product(
        zip("ab", steps, strict=True), depths, variants, ("torch", "mlx"), (0, 1)
    ):
        losses = [loss(study, backend, seed, step) for step in range(count)]
        rows += curve(losses, variant, depth, seed, study, backend)
    return rows


def by_recipe(study, backend, seed, step):
    return {"a": 10.0, "b": 0.1}[study]


def test_a_loss_that_the_recipe_sets_is_all_the_recipes():
    (row,) = variance_table(two_recipes(), frame(grid(by_recipe))).to_dict("records")
    assert (row["depth"], row["variant"], row["step"], row["runs"]) == (8, "mhc", 2, 8)
    assert [row[f] for f in ("recipe", "place", "seed")] == pytest.approx([1, 0, 0])
    assert row["sd"] == pytest.approx(math.sqrt(8 / 7))  # log10 of the loss is ±1


def test_a_loss_that_the_platform_sets_is_all_the_platforms():
    steps = frame(grid(lambda study, backend, seed, step: {"torch": 10.0, "mlx": 0.1}[backend]))
    (row,) = variance_table(two_recipes(), steps).to_dict("records")
    assert [row[f] for f in ("recipe", "place", "seed")] == pytest.approx([0, 1, 0])


def test_platforms_of_one_backend_are_different_places():
    rows = grid(lambda study, backend, seed, step: {"torch": 10.0, "mlx": 0.1}[backend])
    for row in rows:
        if row["backend"] == "mlx":
            row |= {"backend": "torch", "platform": GPU_PLATFORM, "origin": "imported"}
    (row,) = variance_table(two_recipes(), frame(rows)).to_dict("records")
    assert row["place"] == pytest.approx(1)


def test_losses_are_taken_at_the_last_step_that_all_runs_have():
    # At step 2 the recipe decides; what study a does afterwards must not count.
    def loss(study, backend, seed, step):
        return by_recipe(study, backend, seed, step) if step == 2 else 10.0 ** (seed + step)

    (row,) = variance_table(two_recipes(), frame(grid(loss, steps=(6, 3)))).to_dict("records")
    assert (row["step"], row["runs"]) == (2, 8)
    assert row["recipe"] == pytest.approx(1)


def test_every_depth_and_variant_has_a_row():
    steps = frame(grid(by_recipe, depths=(4, 8), variants=("baseline", "mhc")))
    table = variance_table(two_recipes(), steps)
    assert sorted(zip(table["depth"], table["variant"], strict=True)) == [
        (4, "baseline"), (4, "mhc"), (8, "baseline"), (8, "mhc"),
    ]  # fmt: skip


def without(rows, **axes):
    return [row for row in rows if any(row[name] != value for name, value in axes.items())]


@pytest.mark.parametrize(
    "gone",
    [
        {"study": "a", "backend": "mlx", "seed": 1},
        {"study": "a", "backend": "mlx"},
        {"study": "a"},
        {"backend": "mlx"},
        {"seed": 1},
    ],
)
def test_a_cell_that_lacks_runs_is_left_out(gone):
    whole = grid(by_recipe, depths=(4,))
    steps = frame(whole, without(grid(by_recipe, depths=(8,)), **gone))
    assert variance_table(two_recipes(), steps)["depth"].tolist() == [4]


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize("broken", [NAN, INF, 0.0])
def test_a_cell_with_a_loss_without_a_logarithm_is_left_out(broken):
    rows = grid(by_recipe, depths=(4, 8))
    rows[-1]["loss"] = broken  # the last row is of 8 layers
    assert variance_table(two_recipes(), frame(rows))["depth"].tolist() == [4]


@pytest.mark.parametrize(
    "change",
    [
        {"recipe": "mlx-defaults"},
        {"optimizer": {"lr": 0.001}},
        {"model": {"vocab": 64, "length": 8, "width": 32, "heads": 4, "hidden": 32}},
    ],
)
def test_studies_that_differ_otherwise_are_no_design(change):
    assert variance_table(two_recipes(**change), frame(grid(by_recipe))).empty


def test_cells_with_other_batch_sizes_are_no_design():
    # Other batches would count as the recipe's doing. At 4 layers they are the same.
    config = two_recipes(batch_size={4: 8, 8: 16, 16: 8})
    steps = frame(grid(by_recipe, depths=(4, 8)))
    assert variance_table(config, steps)["depth"].tolist() == [4]


# --- which studies form a design -----------------------------------------------------------------

OWN = {
    "mhc_e": {"connection": "mhc", "recipe": {"embedding": "unit"}},
    "mhc_r": {"connection": "mhc", "optimizer": {"lr": 0.001}},
}
"""Variants with a recipe or an optimiser of their own."""


@pytest.mark.parametrize(
    "third",
    [
        {"recipe": "torch-defaults", "batch_size": 4},
        {"recipe": "torch-defaults"},
        {"recipe": "mlx-defaults"},
        {"recipe": "torch-defaults", "streams": 2},
    ],
)
@pytest.mark.parametrize("backends", [("torch",), ("torch", "mlx")])
def test_a_third_study_of_these_sizes_changes_nothing(third, backends):
    config = config_with(studies=("a", "b", "c"), b={"recipe": "torch-defaults"}, c=third)
    rows = grid(by_recipe)
    others = [
        curve([9.0, 8.0, 7.0], seed=s, study="c", backend=b) for b in backends for s in (0, 1)
    ]
    pd.testing.assert_frame_equal(
        variance_table(config, frame(rows, *others)), variance_table(config, frame(rows))
    )
    (row,) = variance_table(config, frame(rows, *others)).to_dict("records")
    assert (row["runs"], row["recipe"]) == (8, pytest.approx(1))


def test_a_study_that_ran_in_one_place_forms_no_design():
    config = config_with(studies=("c", "a", "b"), b={"recipe": "torch-defaults"})
    alone = [curve([9.0], seed=s, study="c") for s in (0, 1)]
    assert designs(config, frame(*alone, grid(by_recipe))) == {(8, "mhc"): ("a", "b")}


def test_a_cell_that_two_pairs_could_fill_belongs_to_the_pair_that_was_there_first():
    recipes = {"b": {"recipe": "torch-defaults"}, "c": {"recipe": "torch-defaults"}}
    config = config_with(studies=("a", "b", "c"), **recipes)
    rows = grid(by_recipe, depths=(4, 8))
    third = [{**row, "study": "c"} for row in rows if row["study"] == "b"]
    rows = without(rows, study="b", depth=8)
    assert designs(config, frame(rows, third)) == {(4, "mhc"): ("a", "b"), (8, "mhc"): ("a", "c")}


@pytest.mark.parametrize("change", [{"streams": 2}, {"accumulate": 2}, {"accumulate": {"mhc": 2}}])
def test_studies_with_other_streams_or_longer_steps_are_no_design(change):
    assert designs(two_recipes(**change), frame(grid(by_recipe))) == {}


@pytest.mark.parametrize("label", OWN)
def test_a_variant_with_training_of_its_own_takes_part_in_no_design(label):
    variants = ["mhc", {label: OWN[label]}]
    config = config_with(variants=variants, studies=("a", "b"), b={"recipe": "torch-defaults"})
    steps = frame(grid(by_recipe, variants=("mhc", label)))
    assert designs(config, steps) == {(8, "mhc"): ("a", "b")}


def test_one_label_for_two_connections_is_no_design():
    config = two_recipes(variants=[{"mhc": {"connection": "mhc_paper"}}])
    assert designs(config, frame(grid(by_recipe))) == {}


@pytest.mark.parametrize("preset", ["", "reference", "paper"])
def test_the_two_sweeps_over_depth_are_the_design_at_every_scale(pytestconfig, preset):
    files = [pytestconfig.rootpath / "config.yaml"] + (
        [pytestconfig.rootpath / f"workflow/presets/{preset}.yaml"] if preset else []
    )
    config = load_config(files, {"assume_backends": True})
    runs = pd.DataFrame(map(asdict, config.cells())).assign(platform=CPU_PLATFORM, origin="here")
    cells = itertools.product((12, 24, 48), ("baseline", "hc", "mhc"))
    # The paper's batches differ at 24 layers: 24 on MLX, 32 on CUDA.
    expected = [cell for cell in cells if preset != "paper" or cell[0] != 24]
    assert designs(config, runs) == dict.fromkeys(expected, ("depth-mlx", "depth-torch"))


@pytest.mark.parametrize(
    ("at_4", "at_8", "diverged"),
    [
        ("learned", "learned", 0),
        ("learned", "diverged", 1),
        ("diverged", "diverged", 2),
        ("learned", "at chance", 0),
    ],
)
def test_cells_that_lack_a_share_because_a_run_diverged_are_counted(at_4, at_8, diverged):
    outcomes = {4: at_4, 8: at_8}
    rows = grid(by_recipe, depths=(4, 8), steps=(1, 1))
    cells = frame([{**row, "outcome": "learned"} for row in rows])
    for depth, outcome in outcomes.items():
        row = cells.index[cells["depth"] == depth][-1]
        cells.loc[row, "outcome"] = outcome
        if outcome == "diverged":
            cells.loc[row, "loss"] = NAN
    variance = variance_table(two_recipes(), cells)
    assert diverged_cells(two_recipes(), cells, variance) == diverged
    assert len(variance) == 2 - diverged


# --- which factor decides ------------------------------------------------------------------------


def summary_of(*shares):
    """The summary by factor; a tuple of the four shares for each cell."""
    variance = pd.DataFrame(shares, columns=["recipe", "place", "seed", "other"])
    return variance_summary(variance).set_index("factor")


def deciding(*shares):
    summary = summary_of(*shares)
    return list(summary.index[summary["decides"]])


@pytest.mark.parametrize(
    ("shares", "factor"),
    [
        ((0.9, 0.05, 0.03, 0.02), ["recipe"]),
        ((0.1, 0.6, 0.2, 0.1), ["place"]),
        ((0.1, 0.1, 0.8, 0.0), ["seed"]),
        ((0.1, 0.1, 0.1, 0.7), ["other"]),
        ((0.49, 0.3, 0.2, 0.01), []),
        ((0.5, 0.5, 0.0, 0.0), []),
    ],
)
def test_a_factor_decides_with_more_than_half(shares, factor):
    assert deciding(shares) == factor


def test_the_median_decides_and_not_the_mean():
    # Medians 0.6 and 0.4; the means would be 0.45 and 0.55.
    cells = [(0.6, 0.4, 0, 0), (0.65, 0.35, 0, 0), (0.1, 0.9, 0, 0)]
    assert deciding(*cells) == ["recipe"]


def test_median_and_range_by_hand():
    row = summary_of((0.9, 0.1, 0, 0), (0.2, 0.7, 0.1, 0), (0.6, 0.1, 0.1, 0.2)).loc["recipe"]
    assert (row["median"], row["lowest"], row["highest"], row["cells"]) == (0.6, 0.2, 0.9, 3)


def test_without_any_cell_nothing_decides():
    assert deciding() == []


# --- files ---------------------------------------------------------------------------------------


def test_three_tables_are_written_beside_the_steps(tmp_path):
    save_tables({"steps.csv.gz": frame(grid(by_recipe))}, tmp_path)
    write_attribution(two_recipes(), tmp_path)
    assert len(read_table(tmp_path / "trajectories.csv")) == 2  # one for each study
    assert read_table(tmp_path / "variance.csv")["recipe"].tolist() == pytest.approx([1])
    summary = read_table(tmp_path / "variance_summary.csv")
    assert summary.loc[summary["decides"], "factor"].tolist() == ["recipe"]


def test_tables_of_no_steps_are_empty(tmp_path):
    columns = ["study", "depth", "variant", "backend", "seed", "platform", "origin", "step", "loss"]
    save_tables({"steps.csv.gz": pd.DataFrame(columns=columns)}, tmp_path)
    write_attribution(two_recipes(), tmp_path)
    assert read_table(tmp_path / "trajectories.csv").empty
    assert read_table(tmp_path / "variance.csv").empty
