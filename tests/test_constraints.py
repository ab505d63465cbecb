"""Families of mixing matrices: against a textbook, by hand, and as exact as they promise."""

import math
from fractions import Fraction

import numpy as np
import pytest

import naive
from fathom.backends.numpy import NumpyOps
from fathom.models.connections.constraints import CONSTRAINTS, normalize
from fathom.models.connections.sinkhorn import BoundedExp, Passes, alternating_sides

FLOAT32 = 1e-6
"""A few roundings of float32, each 6e-8, on numbers of order one."""

LAYERS = 6
"""Functions that the network wraps, which sets the circulant's γ."""


def logits_of(name, S, N=3, scale=1.0, seed=0):
    """Random logits [N, …] of a family; None where it has none."""
    shape = CONSTRAINTS[name]().shape(S)
    rng = np.random.default_rng([seed, S])
    return scale * rng.standard_normal((N, *shape)) if shape else None


def matrices(ops, name, logits, S, **settings):
    """A family's matrices [N, S, S], or [1, S, S] of a constant one, in float64."""
    given = None if logits is None else ops.asarray(logits)
    found = ops.to_numpy(CONSTRAINTS[name](**settings).matrix(ops, given, S, LAYERS))
    return found.astype(np.float64)


def sinkhorn(ops, matrix, iterations, floor=1e-12, added=0.0, last="columns"):
    """Of a matrix [S, S], or of many, [N, S, S]."""
    K = ops.asarray(np.asarray(matrix, np.float64))
    many = K if len(K.shape) == 3 else K[None]
    found = normalize(ops, many, Passes(alternating_sides(iterations, last), floor, added))
    return ops.to_numpy(found if len(K.shape) == 3 else found[0])


# --- every family against the textbook, for S from 1 to 8 -----------------------------------------

TEXTBOOK = {
    "raw": ({}, lambda x, S: x),
    "exp": ({}, lambda x, S: np.exp(x)),
    "sinkhorn": ({}, lambda x, S: naive.sinkhorn(np.exp(x))),
    "sinkhorn, rows last": ({"last": "rows"}, lambda x, S: naive.sinkhorn(np.exp(x), last="rows")),
    "sinkhorn, added": (
        {"floor": 0, "added": 1e-2, "iterations": 4, "clip": 1, "tau": 0.5},
        lambda x, S: naive.sinkhorn(np.exp(np.clip(x, -1, 1) / 0.5), 4, floor=0, added=1e-2),
    ),
    "sinkhorn, rows last, added": (
        {"added": 1e-2, "iterations": 3, "last": "rows"},
        lambda x, S: naive.sinkhorn(np.exp(x), 3, added=1e-2, last="rows"),
    ),
    "log_sinkhorn": ({"tau": 0.3}, lambda x, S: naive.log_sinkhorn(x, tau=0.3)),
    "log_sinkhorn, rows last": (
        {"last": "rows", "iterations": 3},
        lambda x, S: naive.log_sinkhorn(x.T, tau=1, iterations=3).T,
    ),
    "kernel_sinkhorn": ({}, lambda x, S: naive.kernel_sinkhorn(x).T),
    "kernel_sinkhorn, few": (
        {"iterations": 2, "eps": 1e-2},
        lambda x, S: naive.kernel_sinkhorn(x, 2, eps=1e-2).T,
    ),
    "identity": ({}, lambda x, S: np.eye(S)),
    "uniform": ({}, lambda x, S: np.full((S, S), 1 / S)),
    "permutations": ({}, naive.permutations),
    "kronecker": ({}, lambda x, S: naive.kronecker(x)),
    "circulant": ({}, lambda x, S: naive.circulant(x, gamma=1 / 3)),
    "circulant, own γ": ({"gamma": 1.0}, lambda x, S: naive.circulant(x, gamma=1)),
    "orthostochastic": ({}, lambda x, S: naive.orthostochastic(x)),
    "cayley": ({}, lambda x, S: naive.cayley(x)),
    "cayley, longer": (
        {"alpha": 0.5, "iterations": 4},
        lambda x, S: naive.cayley(x, alpha=0.5, steps=4),
    ),
}
"""{family, case: (its settings, the same of one unit's logits)}"""


def test_the_list_above_is_complete():
    assert {case.partition(",")[0] for case in TEXTBOOK} == set(CONSTRAINTS)


@pytest.mark.parametrize("case", TEXTBOOK)
def test_each_family_equals_its_textbook_for_every_number_of_streams(case):
    name, (settings, textbook) = case.partition(",")[0], TEXTBOOK[case]
    sizes = [S for S in range(1, 9) if not CONSTRAINTS[name]().refusal(S)]
    assert {"permutations": 5, "kronecker": 4}.get(name, 8) == len(sizes)
    for S in sizes:
        logits = logits_of(name, S)
        units = [None] if logits is None else logits
        expected = np.array([textbook(unit, S) for unit in units])
        found = matrices(NumpyOps(), name, logits, S, **settings)
        assert found.shape == expected.shape
        assert found == pytest.approx(expected, abs=1e-13), S


@pytest.mark.parametrize("case", TEXTBOOK)
def test_each_family_on_each_backend(backend, case):
    name, (settings, _) = case.partition(",")[0], TEXTBOOK[case]
    for S in (1, 4):
        logits = logits_of(name, S)
        expected = matrices(NumpyOps(), name, logits, S, **settings)
        found = matrices(backend.ops, name, logits, S, **settings)
        assert found == pytest.approx(expected, rel=3 * FLOAT32, abs=FLOAT32), S


# --- as exact as promised -------------------------------------------------------------------------

BY_CONSTRUCTION = ["identity", "uniform", "permutations", "kronecker", "circulant"]


def sums(found):
    """(rows, columns), summed in float64."""
    return found.sum(axis=2), found.sum(axis=1)


@pytest.mark.parametrize("scale", [0.01, 1, 30])
@pytest.mark.parametrize("name", BY_CONSTRUCTION)
def test_sums_are_one_by_construction(backend, name, scale):
    found = matrices(backend.ops, name, logits_of(name, 4, N=200, scale=scale), 4)
    for side in sums(found):
        assert side == pytest.approx(1, abs=1e-6)
    assert (found >= 0).all()


@pytest.mark.parametrize("last", ["rows", "columns"])
@pytest.mark.parametrize("name", ["sinkhorn", "log_sinkhorn"])
def test_the_last_side_of_sinkhorn_is_exact_and_the_other_is_not(backend, name, last):
    logits = logits_of(name, 4, N=200, scale=2)
    found = matrices(backend.ops, name, logits, 4, last=last)
    exact, other = sums(found) if last == "rows" else reversed(sums(found))
    assert exact == pytest.approx(1, abs=1e-6)
    # Measured of these 200: 20 iterations leave up to 2e-2.
    assert 1e-4 < np.abs(other - 1).max() < 0.1


def test_kernels_divide_rows_of_what_they_apply_last(backend):
    """Their columns come last, and are rows of the transposed matrix; ε is missing from each."""
    found = matrices(backend.ops, "kernel_sinkhorn", logits_of("kernel_sinkhorn", 4, N=200), 4)
    rows, columns = sums(found)
    assert rows == pytest.approx(1, abs=3e-6)
    assert np.abs(columns - 1).max() > 1e-5


def test_how_orthogonal_cayley_is(backend):
    """Two steps give I + 2a + 2a² + 2a³ for a = αW/2, where Cayley's series goes on for ever.

    So Y Yᵀ = I − 4a⁴ − 4a⁶; a's eigenvalues are ± i s, and the error is 4s⁴ − 4s⁶ of the largest.
    """
    logits = logits_of("cayley", 4, N=200)
    Y = matrices(backend.ops, "cayley", logits, 4)
    errors = np.linalg.norm(Y @ Y.transpose(0, 2, 1) - np.eye(4), ord=2, axis=(1, 2))
    W = logits - logits.transpose(0, 2, 1)
    s = 0.1 / 2 * np.linalg.norm(W, ord=2, axis=(1, 2))
    assert errors == pytest.approx(4 * s**4 - 4 * s**6, abs=3 * FLOAT32)
    assert 0.01 < errors.max() < 0.1  # logits of order one
    assert np.abs(sums(Y)[0] - 1).max() > 0.1  # and nothing makes its sums one


def test_how_stochastic_orthostochastic_matrices_are(backend):
    """Newton and Schulz's five steps get there where no singular value is small."""
    far = np.linalg.qr(np.random.default_rng(0).standard_normal((200, 4, 4)))[0]
    near = logits_of("orthostochastic", 4, N=200)
    errors = [
        max(np.abs(side - 1).max() for side in sums(matrices(backend.ops, "orthostochastic", x, 4)))
        for x in (7 * far, near)
    ]
    assert errors[0] < 1e-2
    assert 0.05 < errors[1] < 1.01  # of these 200 the worst row has hardly begun


# --- as they start --------------------------------------------------------------------------------


def started(ops, name, S=4, **settings):
    """The matrix [S, S] of a family's own initial logits."""
    family = CONSTRAINTS[name](**settings)
    rng = np.random.default_rng(0)
    return matrices(ops, name, family.start.distribution(S).sample(rng, (1, *family.shape(S))), S,
                    **settings)[0]  # fmt: skip


@pytest.mark.parametrize("name", ["permutations", "kronecker"])
def test_at_b_of_zero_and_minus_infinity_the_matrix_is_the_identity(backend, name):
    far = {"kind": name, "start": {"on": 0.0, "off": -1e4}}
    assert (started(backend.ops, name, **far) == np.eye(4)).all()
    # At −8 it is nearly: 23 · e⁻⁸ of others among 24, or e⁻⁸ in each factor.
    near = started(backend.ops, name)
    weight = 1 / (1 + 23 * math.exp(-8)) if name == "permutations" else 1 / (1 + math.exp(-8))
    # Of 24 permutations six have a given fixed point.
    expected = weight + 5 * (1 - weight) / 23 if name == "permutations" else weight**2
    assert np.diag(near) == pytest.approx(expected, abs=FLOAT32)


def test_orthostochastic_starts_uniform(backend):
    """16 I − 8 J is 16 (I − J/2), whose singular values are equal: ½ each over the norm.

    Five steps bring them to 1.0027, not to one: the iteration's error shrinks by 0.6 a step.
    """
    s = 0.5
    for _ in range(5):
        s = 3 * s - 3.2 * s**3 + 1.2 * s**5
    found = started(backend.ops, "orthostochastic")
    assert found == pytest.approx(np.full((4, 4), s**2 / 4), abs=FLOAT32)
    assert s**2 / 4 == pytest.approx(0.25, abs=0.002)
    # Not so for other numbers of streams: I − J/2 is orthogonal for four alone.
    assert np.ptp(started(backend.ops, "orthostochastic", S=3)) > 0.1


def test_cayley_starts_at_the_identity(backend):
    assert (started(backend.ops, "cayley") == np.eye(4)).all()


def test_logits_that_underflow_start_at_exactly_the_identity(backend):
    """e^(−8/0.05) is below float32."""
    start = {"off_diagonal": -8.0}
    assert (started(backend.ops, "log_sinkhorn", tau=0.05, start=start) == np.eye(4)).all()


# --- Sinkhorn by hand -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        # Rows: [1/3, 2/3], [3/7, 4/7]; their columns sum to 16/21 and 26/21.
        ("columns", [[Fraction(7, 16), Fraction(7, 13)], [Fraction(9, 16), Fraction(6, 13)]]),
        # Columns: [1/4, 3/4], [1/3, 2/3]; the rows then sum to 7/12 and 17/12.
        ("rows", [[Fraction(3, 7), Fraction(4, 7)], [Fraction(9, 17), Fraction(8, 17)]]),
    ],
)
def test_one_iteration_by_hand(last, expected):
    result = sinkhorn(NumpyOps(), np.array([[1.0, 2.0], [3.0, 4.0]]), 1, last=last)
    assert result == pytest.approx(np.array(expected, dtype=float), abs=1e-15)


@pytest.mark.parametrize("entry", [1e-30, 1e-9, 0.3, 1.0, 2e4])
def test_sinkhorn_of_one_stream_is_one_exactly_and_has_no_gradient(entry, connect_cpu):
    torch = connect_cpu("torch")
    K = torch.ops.asarray(np.array([[[entry]]])).requires_grad_()
    result = normalize(torch.ops, K, Passes(alternating_sides(20, "columns"), 1e-12, 0.0))
    result.sum().backward()
    assert result.item() == 1.0
    assert entry < 1e-12 or K.grad.item() == 0.0


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        # An all-zero row stays zero instead of becoming 0/0; the other row takes the columns.
        ([[0, 0], [1, 3]], [[0, 0], [1, 1]]),
        # Row sums below 1e-12 count as 1e-12: rows [0.01, 0.01], [0.5, 0.5].
        ([[1e-14, 1e-14], [1, 1]], [[0.01 / 0.51] * 2, [0.5 / 0.51] * 2]),
        # So do column sums: rows [1, 1e-14] twice, columns 2 and 2e-14.
        ([[1, 1e-14], [1, 1e-14]], [[0.5, 0.01], [0.5, 0.01]]),
    ],
)
def test_sums_are_clamped_at_1e_12(backend, matrix, expected):
    result = sinkhorn(backend.ops, np.array(matrix), 1)
    assert result == pytest.approx(np.array(expected), abs=FLOAT32)


@pytest.mark.parametrize("deviation", [30, 60, 300, 1000])
@pytest.mark.parametrize("last", ["rows", "columns"])
def test_large_logits_overflow_nothing(backend, deviation, last):
    """exp(88.8) is no float32; by the log domain in float64."""
    logits = deviation * np.random.default_rng(0).standard_normal((64, 4, 4))
    found = matrices(backend.ops, "sinkhorn", logits, 4, last=last, floor=0)
    assert np.isfinite(found).all()
    assert found.sum(axis=2 if last == "rows" else 1) == pytest.approx(1, abs=1e-5)
    # exp of a wider range is below `MIN_ENTRY` somewhere, which counts as that.
    clear = [one for one in range(64) if np.ptp(logits[one]) < 80]
    for one in clear:
        Z = logits[one].T if last == "rows" else logits[one]
        expected = naive.log_sinkhorn(Z, tau=1)
        expected = expected.T if last == "rows" else expected
        assert found[one] == pytest.approx(expected, abs=1e-4)
    assert deviation != 30 or clear


def test_small_logits_are_exponentiated_as_they_are(backend):
    """To the last digit: runs from before there was a limit are repeated by today's code."""
    logits = np.random.default_rng(0).uniform(-30, 13, (4, 4, 64)).astype(np.float32)
    found = backend.ops.to_numpy(BoundedExp().values(backend.ops, backend.ops.asarray(logits)))
    assert np.array_equal(found, backend.ops.to_numpy(backend.ops.exp(backend.ops.asarray(logits))))


@pytest.mark.parametrize("settings", [{}, {"floor": 0, "added": 1e-6}])
def test_what_underflows_stays_finite_and_counts_as_equal(backend, settings):
    found = sinkhorn(backend.ops, np.zeros((2, 2)), 20, **settings)
    assert found == pytest.approx(np.full((2, 2), 0.5), abs=1e-5)
    # A row of e⁻⁹⁵ is one like any other.
    found = sinkhorn(backend.ops, np.array([[1e-41, 1e-41], [1, 1]]), 20, **settings)
    assert found == pytest.approx(np.full((2, 2), 0.5), abs=1e-5)
