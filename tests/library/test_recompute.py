"""`recompute=True` in PyTorch: the same numbers, and less memory for the backward pass."""

import pytest

from fathom.connections.schemes import SCHEMES
from tests.library.frameworks import INPUT, LAYERS, branches, moved
from tests.support.specs import OF_EACH_KIND, quick_cases

C, S = 16, 4


@quick_cases("scheme", {name: (name,) for name in SCHEMES}, *OF_EACH_KIND)
def test_numbers_are_the_same(on_torch, scheme):
    """To the last digit: the same operations run again."""
    found = []
    for recompute in (False, True):
        module, _ = moved(on_torch, scheme, recompute=recompute)
        loss = lambda x, c=module: (c(x, branches(on_torch)) ** 2).sum()  # noqa: E731
        found.append(on_torch.gradients(module, on_torch.array(INPUT), loss))
    assert found[0].keys() == found[1].keys()
    for name, expected in found[0].items():
        assert (found[1][name] == expected).all(), name


def kept_bytes(on_torch, scheme, tokens, layers, **given):
    """Bytes of all memory that a pass keeps, around functions that need none."""
    torch, kept = on_torch.library, {}
    c = on_torch.module(scheme, layers=layers, width=C, streams=S, **given)
    own = {p.untyped_storage().data_ptr() for p in c.parameters()}

    def pack(x):
        if x.untyped_storage().data_ptr() not in own:
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        output = c(torch.randn(tokens, C), [lambda x: 2 * x] * layers)
    assert output.requires_grad
    return sum(kept.values())


def of_a_token_and_function(on_torch, scheme, **given):
    """The same for each token and function, without parameters and the ends of a network."""
    sizes = [
        kept_bytes(on_torch, scheme, tokens, layers, **given)
        for tokens, layers in ((8, 6), (4, 6), (8, 4), (4, 4))
    ]
    return (sizes[0] - sizes[1] - sizes[2] + sizes[3]) / (4 * 2)


@pytest.mark.parametrize(
    "scheme, coefficients, streams",
    [("mhc_paper", 2 * S + S * S, 1), ("hy_v4", 2 * S, 1), ("altup", C, 1)],
)
def test_streams_outputs_and_coefficients_are_kept(on_torch, scheme, coefficients, streams):
    """In float32; of AltUp the input of a function, in place of coefficients."""
    kept = of_a_token_and_function(on_torch, scheme, recompute=True)
    assert kept == 4 * (streams * S * C + C + coefficients)
    assert of_a_token_and_function(on_torch, scheme) >= kept + 4 * 2 * S


@pytest.mark.parametrize("scheme", ["qwen4_exp", "gmr_cyclic"])
def test_gates_and_norms_are_not_kept(on_torch, scheme):
    kept = of_a_token_and_function(on_torch, scheme, recompute=True)
    assert kept < 0.7 * of_a_token_and_function(on_torch, scheme)


def test_without_gradients_nothing_is_computed_again(on_torch, monkeypatch):
    module, _ = moved(on_torch, "mhc_paper", recompute=True)
    monkeypatch.setattr("fathom.torch.checkpoint", None)
    with on_torch.library.no_grad():
        module(on_torch.array(INPUT), branches(on_torch))


def test_second_derivatives(on_torch):
    """Of a gradient penalty, as without it."""
    found = []
    for recompute in (False, True):
        module, _ = moved(on_torch, "mhc_paper", "float64", recompute=recompute)
        x = on_torch.array(INPUT, "float64")
        loss = lambda x, c=module: (c(x, branches(on_torch, "float64")) ** 2).sum()  # noqa: E731
        found.append(on_torch.second(module, x, loss))
    for name, expected in found[0].items():
        assert found[1][name] == pytest.approx(expected, rel=1e-12, abs=1e-12 * abs(expected).max())
    assert len(found[0]) > LAYERS
