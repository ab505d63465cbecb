"""Effects: a study's contrasts, compared seed by seed."""

import math

import pytest
from matplotlib.text import Text

from fathom.analysis.effects import effects_table
from fathom.config import ConfigError, check_config
from fathom.report.figures import contrasts
from run_helpers import config_with
from tables_helpers import T975, TOLD, frame, half_width, run, seeds

QUESTION = "Does it matter?"


def config_of(pairs, question=QUESTION):
    """A study `a` of baseline, hc and mhc with one question."""
    data = config_with(studies=("a",)).model_dump(mode="json")
    data["studies"]["a"] |= {
        "variants": ["baseline", "hc", "mhc"],
        "contrasts": [{"asks": question, "pairs": pairs}],
    }
    return check_config(data)


def effect_of(*rows, measure="loss_final"):
    """The only row of a measure for mhc against hc."""
    table = effects_table(config_of([["mhc", "hc"]]), frame(*rows))
    (row,) = table[table["measure"] == measure].to_dict("records")
    return row


def test_an_effect_on_a_loss_is_the_mean_log_ratio_over_common_seeds():
    ours, theirs = [1.0, 1.5, 2.25], [2.0, 2.25, 3.5]
    found = effect_of(
        seeds("loss_final", ours, variant="mhc"),
        seeds("loss_final", theirs, variant="hc"),
        run(variant="hc", seed=7, loss_final=100.0),  # no mhc of this seed
    )
    ratios = [math.log10(a / b) for a, b in zip(ours, theirs, strict=True)]
    assert found["seeds"] == 3
    assert found["effect"] == pytest.approx(sum(ratios) / 3, rel=TOLD)
    assert found["ci95_half"] == pytest.approx(half_width(ratios), rel=TOLD)
    assert found["verdict"] == "lower"


def test_an_effect_on_what_is_no_loss_is_the_mean_difference():
    ours, theirs = [0.5, 0.25, 0.0], [1.0, 1.0, 0.5]
    found = effect_of(
        seeds("stream_similarity_final", ours, variant="mhc"),
        seeds("stream_similarity_final", theirs, variant="hc"),
        measure="stream_similarity_final",
    )
    assert found["effect"] == pytest.approx(-1.75 / 3)
    assert found["ci95_half"] == pytest.approx(half_width([-0.5, -0.75, -0.5]), rel=TOLD)
    assert found["against_mean"] == pytest.approx(2.5 / 3)


def test_the_spread_is_that_of_the_second_variant():
    found = effect_of(
        seeds("loss_final", [1.0, 1.0, 1.0], variant="mhc"),
        seeds("loss_final", [0.1, 1.0, 10.0], variant="hc"),
    )
    assert found["against_mean"] == pytest.approx(1)  # the geometric mean
    assert found["seed_sd"] == pytest.approx(1)  # of -1, 0 and 1


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ([1.0, 1.1, 0.9], "higher"),
        ([-0.5, -0.55, -0.45], "lower"),
        ([1.0, -0.5, 0.25], "not distinguishable"),
        ([5.0, 5.0], "not distinguishable"),  # two seeds have no interval
        ([0.0, 0.0, 0.0], "the same"),
        ([9e-6, 9.1e-6, 8.9e-6], "the same"),  # its interval excludes zero: it is rounding
        ([9e-6, 1.1e-5, 1e-5], "higher"),
        ([0.0, 0.0], "not distinguishable"),
    ],
)
def test_an_effect_is_established_where_its_interval_excludes_zero(differences, expected):
    found = effect_of(
        seeds("loss_final", [1 + d for d in differences], variant="mhc"),
        seeds("loss_final", [1.0] * len(differences), variant="hc"),
    )
    assert found["verdict"] == expected


def test_a_loss_that_is_lower_by_orders_is_lower_although_its_size_scatters():
    # As of plain networks of 48 layers: the mean difference is -0.46, its interval ± 1.5.
    found = effect_of(
        seeds("loss_final", [4e-4, 3e-4, 4e-4], variant="mhc"),
        seeds("loss_final", [1.2, 0.1, 0.09], variant="hc"),
    )
    assert found["verdict"] == "lower"


def test_the_border_is_the_interval_itself():
    # Logarithms m ± 1 around m: sd 1, so the half-width is t/√3.
    half = T975[2] / math.sqrt(3)
    for mean, expected in ((half * 1.01, "higher"), (half * 0.99, "not distinguishable")):
        found = effect_of(
            seeds("loss_final", [10 ** (mean + d) for d in (-1, 0, 1)], variant="mhc"),
            seeds("loss_final", [1.0, 1.0, 1.0], variant="hc"),
        )
        assert found["verdict"] == expected


def test_a_seed_that_diverged_on_one_side_is_left_out():
    found = effect_of(
        seeds("loss_final", [1.0, math.nan, 1.0, 1.0], variant="mhc"),
        seeds("loss_final", [2.0, 9.0, 2.0, 2.0], variant="hc"),
    )
    assert (found["seeds"], found["effect"]) == (3, pytest.approx(-math.log10(2)))


def test_places_and_depths_are_compared_apart():
    table = effects_table(
        config_of([["mhc", "hc"]]),
        frame(
            run(variant="mhc", loss_final=1.0), run(variant="hc", loss_final=2.0),
            run(variant="mhc", loss_final=4.0, depth=16),
            run(variant="hc", loss_final=2.0, depth=16),
            run(variant="mhc", loss_final=9.0, backend="mlx"),
        ),
    )  # fmt: skip
    rows = table[table["measure"] == "loss_final"]
    found = {(r.backend, r.depth): r.effect for r in rows.itertuples()}
    two = math.log10(2)
    assert found == {("torch", 8): pytest.approx(-two), ("torch", 16): pytest.approx(two)}


def test_runs_that_do_not_count_are_not_compared():
    table = effects_table(
        config_of([["mhc", "hc"]]),
        frame(
            run(variant="mhc", loss_final=1.0, status="stale"), run(variant="hc", loss_final=2.0)
        ),
    )
    assert table.empty


def test_a_study_without_contrasts_has_no_effects():
    cells = frame(run(variant="mhc", loss_final=1.0), run(variant="hc", loss_final=2.0))
    assert effects_table(config_with(studies=("a",)), cells).empty


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([["mhc", "mch"]], "contrasts.0.pairs: unknown variant 'mch'; did you mean 'mhc'?"),
        ([["mhc"]], "list should have at least 2 items"),
        ([["mhc", "hc", "baseline"]], "list should have at most 2 items"),
    ],
)
def test_a_contrast_of_what_is_not_there_is_refused(pairs, message):
    with pytest.raises(ConfigError) as caught:
        config_of(pairs)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


# --- its figures ---------------------------------------------------------------------------------


def drawn_effects(*groups):
    table = effects_table(config_of([["mhc", "hc"], ["mhc", "baseline"]]), frame(*groups))
    figure = contrasts.effects(table, "a on torch")
    (ax,) = figure.axes
    return figure, ax


def test_the_figure_of_effects_has_a_row_for_each_pair():
    ours, theirs, others = [1.0, 1.5, 2.25], [10.0, 15.0, 22.5], [0.1, 1.0, 10.0]
    _, ax = drawn_effects(
        seeds("loss_final", ours, variant="mhc"),
        seeds("loss_final", theirs, variant="hc"),
        seeds("loss_final", others, variant="baseline"),
    )
    rows = {
        label.get_text(): y for label, y in zip(ax.get_yticklabels(), ax.get_yticks(), strict=True)
    }
    assert list(rows) == ["mhc − hc", "mhc − baseline"]
    points = {
        line.get_ydata()[0]: line.get_xdata()[0] for line in ax.lines if line.get_marker() == "o"
    }
    assert points[rows["mhc − hc"]] == pytest.approx(-1.0)
    assert points[rows["mhc − baseline"]] == pytest.approx(math.log10(1.5))
    bars = {patch.get_y() + patch.get_height() / 2: patch.get_width() for patch in ax.patches}
    assert bars[rows["mhc − baseline"]] == pytest.approx(2)


def test_a_study_whose_contrasts_were_not_measured_says_so():
    figure, _ = drawn_effects(run(variant="mhc", loss_final=1.0))
    assert "no contrast was measured" in [text.get_text() for text in figure.findobj(Text)]
