"""Families of mixing matrices: against a textbook, by hand, and within their precision."""

import numpy as np
import pytest

from fathom.arithmetic.sinkhorn import BoundedExp, Passes, alternating_sides
from fathom.connections.constraints import CONSTRAINTS, normalize
from fathom.operations.numpy_ops import NumpyOps
from tests.support import naive

FLOAT32 = 1e-6
"""A few roundings of float32, each 6e-8, on numbers of order one."""

LAYERS = 6
"""Number of wrapped functions, which sets the circulant's γ."""


def logits_of(name, S):
    """Random logits [3, …] of a family; None if it has none."""
    shape = CONSTRAINTS[name]().shape(S)
    return np.random.default_rng(S).standard_normal((3, *shape)) if shape else None


def matrices(ops, name, logits, S, **settings):
    """A family's matrices in float64: [N, S, S], or [1, S, S] if constant."""
    given = None if logits is None else ops.asarray(logits)
    result = ops.to_numpy(CONSTRAINTS[name](**settings).matrix(ops, given, S, LAYERS))
    return result.astype(np.float64)


def sinkhorn(ops, matrix, iterations, floor=1e-12, added=0.0, last="columns"):
    """Normalise a matrix [S, S], or matrices [N, S, S]."""
    K = ops.asarray(np.asarray(matrix, np.float64))
    many = K if len(K.shape) == 3 else K[None]
    normalized = normalize(ops, many, Passes(alternating_sides(iterations, last), floor, added))
    return ops.to_numpy(normalized if len(K.shape) == 3 else normalized[0])


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
}
"""{"family, case": (settings, textbook function of a unit's logits)}"""


def test_textbook_covers_every_family():
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
        result = matrices(NumpyOps(), name, logits, S, **settings)
        assert result.shape == expected.shape
        assert result == pytest.approx(expected, abs=1e-13), S


# --- Sinkhorn by hand -----------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [1e-30, 1e-9, 0.3, 1.0, 2e4])
def test_sinkhorn_of_one_stream_is_exactly_one_and_has_no_gradient(entry, connect_cpu):
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
def test_large_logits_do_not_overflow(backend, deviation, last):
    """exp(88.8) overflows float32; reference: log domain, float64."""
    logits = deviation * np.random.default_rng(0).standard_normal((64, 4, 4))
    result = matrices(backend.ops, "sinkhorn", logits, 4, last=last, floor=0)
    assert np.isfinite(result).all()
    assert result.sum(axis=2 if last == "rows" else 1) == pytest.approx(1, abs=1e-5)
    # In a wider range, some entries are raised to `MIN_ENTRY`.
    clear = [one for one in range(64) if np.ptp(logits[one]) < 80]
    for one in clear:
        Z = logits[one].T if last == "rows" else logits[one]
        expected = naive.log_sinkhorn(Z, tau=1)
        expected = expected.T if last == "rows" else expected
        assert result[one] == pytest.approx(expected, abs=1e-4)
    assert deviation != 30 or clear


def test_small_logits_are_exponentiated_unchanged(backend):
    """Bit for bit, so that current code repeats runs from before the limit."""
    logits = np.random.default_rng(0).uniform(-30, 13, (4, 4, 64)).astype(np.float32)
    values = backend.ops.to_numpy(BoundedExp().values(backend.ops, backend.ops.asarray(logits)))
    assert np.array_equal(
        values, backend.ops.to_numpy(backend.ops.exp(backend.ops.asarray(logits)))
    )


@pytest.mark.parametrize("settings", [{}, {"floor": 0, "added": 1e-6}])
def test_underflowed_entries_stay_finite_and_count_as_equal(backend, settings):
    matrix = sinkhorn(backend.ops, np.zeros((2, 2)), 20, **settings)
    assert matrix == pytest.approx(np.full((2, 2), 0.5), abs=1e-5)
    # A row of e⁻⁹⁵ counts as any other.
    matrix = sinkhorn(backend.ops, np.array([[1e-41, 1e-41], [1, 1]]), 20, **settings)
    assert matrix == pytest.approx(np.full((2, 2), 0.5), abs=1e-5)
