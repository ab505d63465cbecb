"""`start="plain"`: an untrained connection equals the plain network, and every parameter learns."""

import re
from fnmatch import filter as matching

import numpy as np
import pytest

from fathom.connections.schemes import SCHEMES
from fathom.settings import ConfigError
from tests.support.project import PROJECT

LAYERS, WIDTH = 12, 16
REASONS = {"means of sources": "reads means of its sources", "softmaxes": "softmax writes"}
ROWS = re.findall(
    r"^\| (.*) \| (none: .*) \|$", (PROJECT / "docs/library.md").read_text("utf-8"), re.M
)
WITHOUT = {
    scheme: next((said for part, said in REASONS.items() if part in why), "no initial values")
    for names, why in ROWS
    for name in names.split(",")
    for scheme in matching(SCHEMES, name.strip(" `"))
}
"""Schemes without a start that equals the plain network, and a part of the reason."""


def connection(scheme, **arguments):
    from fathom.torch import ResidualConnection

    return ResidualConnection(
        scheme, LAYERS, WIDTH, per_block=2, takes_apart=True, start="plain", **arguments
    )


def inputs(torch, *shape):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*shape, WIDTH, generator=generator, dtype=torch.float64)


def functions(torch):
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(LAYERS, WIDTH, WIDTH, generator=generator, dtype=torch.float64) / 4
    return [lambda q, k=None, v=None, W=W: torch.tanh((q if v is None else q + k - v) @ W)
            for W in weights]  # fmt: skip


@pytest.mark.parametrize("scheme", SCHEMES)
def test_plain_start_equals_the_plain_network_and_is_refused_where_there_is_none(torch, scheme):
    if scheme in WITHOUT:
        with pytest.raises(ConfigError, match=f"start: .*{WITHOUT[scheme]}"):
            connection(scheme)
        return
    x = expected = inputs(torch, 2, 3)
    branches = functions(torch)
    for branch in branches:
        expected = expected + branch(expected)
    # Initial logits are float32, and so are weights within 2⁻²⁴ · 12 functions · 4 streams.
    assert torch.allclose(connection(scheme)(x, branches), expected, rtol=0, atol=3e-6)


@pytest.mark.parametrize(
    "scheme", [name for name in SCHEMES if name not in WITHOUT and name != "plain"]
)
def test_every_parameter_learns_from_a_plain_start(torch, scheme):
    """φ starts at zero, so α has a gradient from the second step. Streams start as copies, so
    mixing them has one from the third: if they stayed copies, it would have none.
    """
    c, branches = connection(scheme).double(), functions(torch)
    x, target = inputs(torch, 2, 2, 3)
    optimizer = torch.optim.SGD(c.parameters(), lr=0.003)
    for _ in range(4):
        loss = (c(x, branches) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    sizes = {name: float(p.grad.abs().max()) for name, p in c.named_parameters()}
    assert sizes
    assert all(1e-10 < size < 100 for size in sizes.values()), sizes


@pytest.mark.parametrize("sizes", [{"streams": 1}, {"streams": 2}, {"pooled_axes": 2}])
def test_plain_start_of_other_sizes(torch, sizes):
    x = expected = inputs(torch, 2, 3, 2)
    for branch in (branches := functions(torch)):
        expected = expected + branch(expected)
    scheme = "hc_paper" if sizes.get("streams") == 1 else "mhc_cycle"
    assert torch.allclose(connection(scheme, **sizes)(x, branches), expected, rtol=0, atol=3e-6)


def test_plain_start_is_the_same_in_mlx(connect_cpu):
    connect_cpu("mlx")
    import mlx.core as mx

    from fathom.mlx import ResidualConnection

    c = ResidualConnection("mhc_cycle", LAYERS, WIDTH, start="plain")
    x = np.random.default_rng(0).standard_normal((2, WIDTH)).astype(np.float32)
    expected = x
    for k in range(LAYERS):
        expected = expected + np.tanh(np.roll(expected, k, -1))
    out = c(mx.array(x), [lambda x, k=k: mx.tanh(mx.roll(x, k, -1)) for k in range(LAYERS)])
    np.testing.assert_allclose(np.array(out), expected, rtol=0, atol=1e-5)


def test_unknown_start_is_refused(torch):
    from fathom.torch import ResidualConnection

    with pytest.raises(ConfigError, match="start"):
        ResidualConnection("mhc_cycle", 2, 4, start="zero")
