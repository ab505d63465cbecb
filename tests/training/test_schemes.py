"""Every named scheme on every network: textbook, float64 oracle and both backends agree."""

import numpy as np
import pytest

from fathom.connections.schemes import SCHEMES
from fathom.operations.numpy_ops import NumpyOps
from fathom_study import tasks
from fathom_study.tasks import example_batch
from tests.support import naive
from tests.support.specs import (
    NOT_AROUND,
    check_oracle,
    make_spec,
    parameters_of,
    parameters_off_symmetry,
    quick_cases,
)

STREAMS = [name for name, row in SCHEMES.items() if row.get("kind", "streams") == "streams"]
NETWORKS = {
    "block": {"task": "tokens", "wrap": "block"},
    "sublayer": {"task": "tokens", "wrap": "sublayer"},
    "images": {"task": "fashion"},
}
UNNAMED = {
    "laurel_rw": {"connection": "laurel", "scale": {"rank": 0.0}},
    "laurel_lr": {"connection": "laurel", "scale": {"weights": False}},
    "frac_static": {"connection": "frac", "coefficients": "static"},
}
"""Settings that no scheme has, by the textbook's name."""
ON_NETWORKS = [
    (network, scheme)
    for network in NETWORKS
    for scheme in SCHEMES
    if scheme not in NOT_AROUND[network]
]


def small(network, scheme, **changes):
    """A spec of few small layers: enough for a causal block of two states."""
    settings = NETWORKS[network]
    sizes = {"length": 5, "width": 8} if settings["task"] == "tokens" else {}
    changes = {"depth": 2 if network == "sublayer" else 3, **changes}
    connection = UNNAMED.get(scheme, {"connection": scheme})
    return make_spec(
        variant=scheme, connection=connection, batch_size=2, beta1=0.0,
        **settings, **sizes, **changes,
    )  # fmt: skip


DEEP = [(scheme, 7) for scheme in (*naive.DEPTH_ATTENTION, *naive.DENSE)]
"""7 blocks have groups of functions, blocks of sources, and separate q, k, v in the sixth."""


@pytest.mark.parametrize(
    ("network", "scheme", "changes"),
    [
        *((*pair, {}) for pair in ON_NETWORKS),
        *(("sublayer", scheme, {"streams": 1}) for scheme in STREAMS),
        *(("images", scheme, {"streams": 2}) for scheme in STREAMS),
        *(("sublayer", scheme, {"depth": depth}) for scheme, depth in DEEP),
        ("block", "hc_paper", {"streams": 8}),
        ("images", "hc_paper", {"streams": 3}),
        ("sublayer", "mhc_demo", {"streams": 7}),
        ("sublayer", "mhc_lite", {"streams": 5}),
        ("sublayer", "glm5_next", {"streams": 6}),
        *(("sublayer", label, {}) for label in UNNAMED),
        ("images", "krom_hc", {"streams": 8}),
        ("images", "qwen4_exp", {"streams": 2}),
        ("sublayer", "altup", {"streams": 3}),
    ],
)
def test_the_oracle_equals_the_textbook(network, scheme, changes):
    spec = small(network, scheme, **changes)
    check_oracle(spec, example_batch(spec))


# No scheme has its own code for one stream or for wrapped blocks with their own residuals, so one
# scheme of each kind suffices there.
SLOW = {
    "block": (),
    # Each of their components is covered by another scheme or by another network.
    "sublayer": ("glm5_next", "deepseek_v4", "depth_scaled"),
    "images": (
        "glm5_next", "deepseek_v4", "deepseek_v41", "scaled", "depth_scaled", "residual_scaled",
    ),
}  # fmt: skip
ON_BACKENDS = {
    f"{network}-{scheme}-{streams}": (network, scheme, streams)
    for network, scheme, streams in [
        *(
            (network, scheme, streams)
            for network, streams in (("sublayer", 4), ("images", 2))
            for scheme in SCHEMES
            if scheme not in NOT_AROUND[network]
        ),
        *(("block", scheme, 4) for scheme in ("plain", "hc_demo", "mhc_demo", "mhc_causal")),
        ("block", "mhc_paper", 3),
        *(("sublayer", label, 4) for label in UNNAMED),
        ("block", "attn_res_block", 4),
        ("block", "altup", 3),
        ("images", "hc_dynamic", 1),
        ("sublayer", "mhc_static", 1),
    ]
}


@quick_cases(
    "network, scheme, streams",
    ON_BACKENDS,
    *(name for name, (network, scheme, _) in ON_BACKENDS.items() if scheme not in SLOW[network]),
)
def test_the_first_step_equals_the_oracle(check_first_step, network, scheme, streams):
    spec = small(network, scheme, streams=streams)
    # Only `plain` checks the network's own parameters one by one: no scheme has code for them.
    names = () if scheme == "plain" else parameters_of(spec)
    together = [name for name in names if not name.startswith("connection.")]
    # Relative rounding error, plus cancellation among order-one terms. Five products of matrices
    # that are not yet orthogonal amplify it: with PyTorch's own operations, the float32 gradient
    # of φ differs from the float64 gradient by 1.3e-4 of its norm.
    relative = 3e-4 if (network, scheme) == ("images", "orthostochastic_mhc") else 2e-5
    # Relative error of the loss, a mean of values near 4 with dozens of float32 roundings: 1e-6.
    result = check_first_step(spec, example_batch(spec), relative, together=together)
    for name, (measured, gradients) in result.items():
        norms = [np.linalg.norm(gradients[one]) for one in parameters_of(spec)]
        assert measured["grad_norms"] == pytest.approx(norms, rel=1e-5), name


# --- matrices of the learned mixing ---------------------------------------------------------------


def connection_at(spec):
    return tasks.Problem(spec).network.connection


def matrices_of(spec, params):
    return connection_at(spec).matrices(NumpyOps(), naive.exact(params))


STATIC = [name for name in STREAMS if "coefficients" not in SCHEMES[name]]


@pytest.mark.parametrize("scheme", STATIC)
def test_static_stream_matrices_equal_the_textbook(scheme):
    """A textbook layer reads the mean of the rows of H_pre and writes to all rows of H_post."""
    spec = make_spec(variant=scheme)
    params = parameters_off_symmetry(spec)
    kept, exact = matrices_of(spec, params), naive.connection_of(naive.exact(params))
    of_layers = [naive.coefficients(scheme, exact, i, np.zeros((4, 1, 1)), 3) for i in range(3)]
    pre, post, H_res = map(np.array, zip(*of_layers, strict=True))
    expected = {"H_pre": pre.mean(axis=1), "H_post": post.sum(axis=1), "H_res": H_res}
    assert {name: m.shape for name, m in expected.items()} == connection_at(spec).matrix_shapes()
    assert kept.keys() == expected.keys()
    for name, matrix in expected.items():
        assert kept[name] == pytest.approx(matrix, rel=1e-13, abs=1e-14), name


@pytest.mark.parametrize("scheme", ["hc_causal", "mhc_causal"])
def test_causal_connection_matrices_equal_the_textbook(scheme):
    spec = make_spec(variant=scheme, depth=9)
    params = parameters_off_symmetry(spec)
    exact, kept = naive.connection_of(params), matrices_of(spec, params)
    mixing = np.exp(exact["mixing"].astype(float))
    if scheme == "mhc_causal":
        mixing = naive.sinkhorn(mixing, floor=0, added=1e-6)
    weights = naive.causal_weights(scheme, {"mixing": exact["mixing"].astype(float)})
    assert kept["mixing"] == pytest.approx(mixing, abs=1e-14)
    assert kept["weights"] == pytest.approx(weights, abs=1e-14)
