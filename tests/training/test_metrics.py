"""Metrics of steps and runs by hand, and the gain against exact arithmetic."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from fathom_study import tasks
from fathom_study.metrics import runs
from fathom_study.metrics.scores import Score, outcome
from fathom_study.metrics.steps import Steps
from fathom_study.models.gain import composite_gain
from fathom_study.tasks import example_batch
from tests.support import naive
from tests.support.gradients import first_row
from tests.support.specs import make_spec, parameters_off_symmetry, trainer_on


def summarise(rows):
    return dict.fromkeys(tasks.run_metrics()) | runs.summarise(rows, tasks.run_metrics())


def outcome_of(spec, rows, *judged_by):
    return tasks.outcome_of(spec, tasks.summary_of(spec, rows), *judged_by)


# Rescaling rounds once per factor and once per product: 500 layers stay far below this.
ROUNDING = 1e-11


def exact_product(matrices):
    """The product of integer matrices, later ones on the left, in Python's unbounded integers."""
    product = np.eye(len(matrices[0]), dtype=object)
    for matrix in matrices:
        product = matrix.astype(object) @ product
    return product


def exact_gain(product):
    """The fields of a Gain, from Python integers of any length."""

    def log10(number):
        return math.log10(abs(number)) if number else -math.inf

    rows, columns = (list(map(log10, product.sum(axis))) for axis in (1, 0))
    return (
        max(map(log10, product.ravel())),
        max(rows),
        max(columns),
        max(map(abs, rows)),
        max(map(abs, columns)),
    )


@pytest.mark.parametrize("depth", [1, 2, 7, 30, 500])
def test_the_gain_equals_the_exact_integer_product(depth):
    matrices = np.random.default_rng(depth).integers(-9, 10, (depth, 4, 4))
    expected = exact_gain(exact_product(matrices))
    assert composite_gain(matrices) == pytest.approx(expected, abs=ROUNDING)
    assert depth < 500 or expected[0] > np.log10(np.finfo(np.float64).max)


def test_a_zero_product_has_gain_minus_infinity():
    nilpotent = [[0, 1], [0, 0]]
    gain = composite_gain([nilpotent, nilpotent])
    assert gain == (-np.inf, -np.inf, -np.inf, np.inf, np.inf)


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_nonfinite_matrix_has_no_gain_and_does_not_affect_its_batch(broken):
    matrices = np.ones((2, 3, 2, 2))
    matrices[0, 1, 0, 1] = broken
    gain = np.array(composite_gain(matrices))
    assert np.isnan(gain[:, 0]).all()
    # The product of three 2×2 matrices of ones is 4 everywhere.
    assert gain[0, 1] == pytest.approx(np.log10(4))
    assert np.isnan(composite_gain([np.zeros((2, 2)), [[broken, 1.0], [1.0, 1.0]]])).all()


# --- metrics of a step ---------------------------------------------------------------------------

INF, NAN = math.inf, math.nan


def steps_of(**changes):
    """Three steps of a network with two parameters and two layers of two streams."""
    one, two = np.eye(2), np.array([[2.0, 0.0], [1.0, 1.0]])
    fields = {
        "loss": np.array([3.0, 2.0, 1.0]),
        "logits_finite": np.array([True, True, True]),
        "grad_norms": np.array([[3.0, 4.0], [0.0, 5.0], [6.0, 8.0]]),
        "parameters": ["stem.weight", "connection.H_res"],
        "reports": {"H_res": np.array([[one, one], [two, one], [two, two]])},
        "one_stream": False,
        **changes,
    }
    return Steps(**fields)


def column(name, steps):
    return tasks.step_metrics()[name].compute(steps)


@pytest.mark.parametrize("broken", [NAN, INF, -INF])
def test_a_step_is_not_finite_if_its_loss_or_a_logit_is_not(broken):
    assert column("nonfinite_event", steps_of()).tolist() == [0, 0, 0]
    loss = steps_of(loss=np.array([3.0, broken, 1.0]))
    assert column("nonfinite_event", loss).tolist() == [0, 1, 0]
    logits = steps_of(logits_finite=np.array([True, True, False]))
    assert column("nonfinite_event", logits).tolist() == [0, 0, 1]


# WIDE and TALL equal their squares: one doubles the signal, the other the gradient. Their mean,
# [[1, ½], [½, 0]], would do less than either.
WIDE, TALL = np.array([[1.0, 1.0], [0.0, 0.0]]), np.array([[1.0, 0.0], [1.0, 0.0]])
ONE = np.eye(2)
POSITIONS = np.array([[[ONE, ONE]] * 2, [[WIDE, ONE]] * 2, [[WIDE, TALL]] * 2])
# Rows sum to 1 and 1.5, columns to 0.75 and 1.75, the diagonal is 0.5 and 1.25.
A = np.array([[0.5, 0.5], [0.25, 1.25]])
SHARES = np.array([[0.25, 0.75], [1.0, 0.0], [1.5, -0.5]])
GATES = np.array([[0.25, 0.5, 0.75], [0.5, 0.25, 0.0], [1.0, 0.0, 0.5]])
GAINS = {  # two · two = [[4, 0], [3, 1]]: entry 4, rows 4 and 4, columns 7 and 1
    "gain_proxy_log10_max_entry": np.log10([1, 2, 4]),
    "amax_forward_log10": np.log10([1, 2, 4]),
    "amax_backward_log10": np.log10([1, 3, 7]),
    "row_error_log10": np.log10([1, 2, 4]),
    "column_error_log10": np.log10([1, 3, 7]),
}


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ({}, {"grad_norm": [5, 5, 10], "grad_norm_stem": [3, 0, 6], "grad_norm_H_res": [4, 5, 8]}),
        ({}, GAINS),
        # |two − I| is [[1, 0], [1, 0]]: a mean of ½ in each layer that has `two`.
        ({}, {"H_res_distance": [0, 0.25, 0.5]}),
        (  # the largest over positions, each with its own product
            {"H_res_of_one": POSITIONS},
            {
                "amax_forward_largest_log10": np.log10([1, 2, 2]),
                "amax_backward_largest_log10": np.log10([1, 1, 2]),
            },
        ),
        (  # means over three matrices and two rows, columns or entries
            {"base": np.array([[ONE, ONE, ONE], [A, ONE, ONE], [A, A, A]])},
            {
                "base_row_error": [0, 0.25 / 3, 0.25],
                "base_column_error": [0, 0.5 / 3, 0.5],
                "base_diagonal": [1, (0.875 + 2) / 3, 0.875],
            },
        ),
        (
            {"gates": GATES},
            {
                "gate_first": [0.25, 0.5, 1],
                "gate_mean": [0.5, 0.25, 0.5],
                "gate_largest": [0.75, 0.5, 1],
            },
        ),
        (
            {"readout_shares": SHARES},
            {"readout_share_0": [0.25, 1, 1.5], "readout_share_1": [0.75, 0, -0.5]},
        ),
    ],
)
def test_metrics_of_each_step_by_hand(reports, expected):
    steps = steps_of()
    steps = replace(steps, reports=steps.reports | reports)
    for name, values in expected.items():
        assert column(name, steps) == pytest.approx(values), name
        if not name.startswith("grad_norm"):
            assert column(name, steps_of(reports={})) is None


@pytest.mark.parametrize(
    ("variant", "wrap", "depth", "layers"),
    [
        ("mhc_gated_static", "sublayer", 5, (0, 4, 8)),  # attention of blocks 0, 2 and 4
        ("mhc_gated_static", "block", 5, (0, 2, 4)),
        ("mhc_paper", "sublayer", 3, (0, 2, 4)),
    ],
)
def test_step_metrics_of_gates_logits_and_the_embedding(connect_cpu, variant, wrap, depth, layers):
    """These metrics use parameters alone: no gate in matrices, no dynamic part, no activation."""
    spec = make_spec(variant=variant, wrap=wrap, depth=depth)
    params, backend = parameters_off_symmetry(spec), connect_cpu("torch")
    batches = [example_batch(spec)]
    row = first_row(trainer_on(backend, spec, params), tasks.Problem(spec), batches)
    p = {name: value.astype(float) for name, value in naive.connection_of(params).items()}
    logits = p["b_res"] if "b_res" in p else p["H_res"]
    matrices = np.array([naive.mixing(variant, logits[k], 4, 2 * depth) for k in layers])
    rows, columns = (np.abs(matrices.sum(axis) - 1).mean() for axis in (2, 1))
    diagonal = np.trace(matrices, axis1=1, axis2=2).mean() / 4
    for name, value in (("row_error", rows), ("column_error", columns), ("diagonal", diagonal)):
        assert row[f"base_{name}"] == pytest.approx(value, abs=2e-6)
    if "gate" not in p:
        assert not {"gate_first", "stream_embedding_similarity"} & set(row)
        return
    g = naive.sigmoid(p["gate"])
    for name, value in (("first", g[0]), ("mean", g.mean()), ("largest", g.max())):
        assert row[f"gate_{name}"] == pytest.approx(value, rel=1e-6)
    unit = [v / np.linalg.norm(v) for v in p["stream_embedding"]]
    cosines = [sum(a * b) for a, b in itertools.combinations(unit, 2)]
    assert row["stream_embedding_similarity"] == pytest.approx(np.mean(cosines), abs=1e-6)


# --- metrics of a run ----------------------------------------------------------------------------


def row_of(step, loss, grad_norm, **changes):
    return {
        "step": step, "loss": loss, "grad_norm": grad_norm, "nonfinite_event": 0,
        "gain_proxy_log10_max_entry": 6.0 + step, "amax_forward_log10": 7.0 + step,
        "amax_backward_log10": 8.0 + step, "nonfinite_total": 0, "step_seconds": 1.0,
        "elapsed_seconds": 1.0 + step, **changes,
    }  # fmt: skip


def test_a_summary_by_hand():
    rows = [
        row_of(0, 3.5, 1.0, step_seconds=9.0, elapsed_seconds=9.0),
        row_of(1, 0.5, 100.0, step_seconds=1.0, elapsed_seconds=10.0),
        row_of(2, 2.0, 10.0, step_seconds=2.0, elapsed_seconds=12.0),
        row_of(3, 1.0, 10.0, step_seconds=6.0, elapsed_seconds=18.0),
    ]
    expected = {
        "loss_first": 3.5, "loss_final": 1.0, "loss_min": 0.5, "loss_tail": 1.0,
        "spikes": 0, "spikes_recovered": 0,
        "grad_norm_first": 1.0, "grad_norm_final": 10.0, "grad_norm_max": 100.0,
        # log10 ratios 2, −1, 0: mean 1/3, variance (25/9 + 16/9 + 1/9) / 2 = 7/3
        "grad_norm_log10_sd": pytest.approx(math.sqrt(7 / 3)),
        "gain_first": 6.0, "gain_final": 9.0,
        "amax_forward_log10_final": 10.0, "amax_backward_log10_final": 11.0,
        "nonfinite_total": 0,
        "seconds_per_step": 2.0,  # the median of 1, 2, 6: the first step includes start-up
        "seconds": 18.0,
    }  # fmt: skip
    # Other metrics are None: these rows have no values of streams, the first step or images.
    assert summarise(rows) == {**dict.fromkeys(tasks.run_metrics()), **expected}


def test_a_summary_of_a_diverged_run_by_hand():
    broken = {"gain_proxy_log10_max_entry": NAN, "amax_forward_log10": INF}
    rows = [
        row_of(0, 3.0, 1.0),
        row_of(1, 2.5, INF, nonfinite_event=0),
        row_of(2, NAN, NAN, nonfinite_event=1, nonfinite_total=1),
        row_of(3, NAN, NAN, nonfinite_event=1, nonfinite_total=2, **broken),
    ]
    expected = {
        "loss_final": None, "loss_min": 2.5, "grad_norm_final": None, "grad_norm_max": 1.0,
        "grad_norm_log10_sd": None, "gain_final": None, "amax_forward_log10_final": None,
        "nonfinite_total": 2, "first_nonfinite_step": 2,
    }  # fmt: skip
    summary = summarise(rows)
    assert {name: summary[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("distances", "expected"),
    [
        ([0.375, 0.376, 0.37575], 0.00075),  # starts and stays far from the identity
        ([0.375, 0.25, 0.125], 0.25),
        ([0.375, INF], None),
    ],
)
def test_H_res_moved_is_the_change_and_not_the_distance(distances, expected):
    rows = [row_of(step, 1.0, 1.0) | {"H_res_distance": d} for step, d in enumerate(distances)]
    assert summarise(rows)["H_res_moved"] == expected


def test_the_last_tenth_of_the_steps_by_hand():
    rows = [row_of(step, float(step), 1.0) for step in range(25)]
    assert summarise(rows)["loss_tail"] == 23.5  # mean of 23 and 24
    assert summarise(rows[:3])["loss_tail"] == 2.0
    assert summarise([*rows[:24], row_of(24, NAN, 1.0)])["loss_tail"] is None


# --- scores and outcomes --------------------------------------------------------------------------

LOSS = Score("loss_tail", "loss", "nats", lambda spec: 4.0)
ACCURACY = Score("test_accuracy", "accuracy", "", lambda spec: 0.2, better="higher", perfect=1.0)


@pytest.mark.parametrize(
    ("score", "chance", "value", "expected"),
    [
        (LOSS, 4.0, NAN, "diverged"),
        (LOSS, 4.0, None, "not scored"),
        (LOSS, 4.0, 3.81, "at chance"),  # less than 5 % of the way from 4 to 0
        (LOSS, 4.0, 3.79, "learned"),
        (LOSS, 0.0, 0.0, "at chance"),  # chance is already perfect
        (ACCURACY, 0.2, 0.239, "at chance"),  # less than 5 % of the way from 0.2 to 1
        (ACCURACY, 0.2, 0.241, "learned"),
    ],
)
def test_the_outcome_by_the_score(score, chance, value, expected):
    assert outcome(False, score, value, chance) == expected
    assert outcome(True, score, value, chance) == "diverged"


@pytest.mark.parametrize(
    ("norm", "expected"), [(1e6, "learned"), (1.1e6, "diverged"), (INF, "diverged")]
)
def test_an_exploded_stem_gradient_of_an_image_network_is_divergence(norm, expected):
    spec = make_spec(task="fashion", variant="resnet")
    rows = [row_of(step, 1.0, 1.0, grad_norm_stem=norm if step == 1 else 1.0) for step in range(3)]
    rows[-1]["test_accuracy"] = 0.5
    assert outcome_of(spec, rows) == (expected, 0.5)
    tokens = make_spec()  # in other tasks the norm of such a parameter has no effect
    rows[-1]["exact_loss"] = 0.5
    assert outcome_of(tokens, rows) == ("learned", 0.5)


def test_runs_without_a_score_use_the_training_loss_if_a_study_says_so():
    rows = [row_of(step, 3.0 - step / 10, 1.0) for step in range(20)]
    assert outcome_of(make_spec(), rows) == ("not scored", None)
    label, score = outcome_of(make_spec(), rows, "training_loss")
    assert (label, score) == ("learned", pytest.approx((1.2 + 1.1) / 2))


def test_bits_per_byte_are_bits_per_character_times_characters_per_byte():
    """Bits are nats over ln 2. Rows between evaluations have no validation loss."""
    rows = [
        {"validation_loss": 3 * math.log(2)},
        {},
        {"validation_loss": math.log(2) * 4, "characters_per_byte": 0.75},
    ]
    assert summarise(rows)["validation_bpc"] == pytest.approx(4)
    assert summarise(rows)["validation_bpc_min"] == pytest.approx(3)
    assert summarise(rows)["characters_per_byte"] == 0.75
    assert summarise(rows)["validation_bpb"] == pytest.approx(3)
    assert summarise(rows[:2])["validation_bpb"] is None
    assert summarise(rows[1:2])["validation_bpb"] is None
