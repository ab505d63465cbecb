"""State dicts of PyTorch's module name the settings of its connection."""

import copy
import io
import warnings

import pytest

from tests.library.frameworks import Torch

SCHEME, LAYERS, WIDTH = "mhc_paper", 4, 8
FEW = {"connection": "mhc_paper", "H_res": {"iterations": 5}}


def network(torch, *arguments, **named):
    """A module with the connection as `c`; it has also its own parameters."""
    made = torch.nn.Module()
    made.c = Torch().module(*(arguments or (SCHEME, LAYERS, WIDTH)), **named)
    made.linear = torch.nn.Linear(WIDTH, WIDTH)
    return made


def from_file(torch, state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize(
    ("scheme", "named", "said"),
    [
        (FEW, {}, "H_res.iterations is 20, here 5"),
        ("glm5_next", {}, "pre.added is 0.0, here 1e-06"),
        (SCHEME, {"start": "plain"}, "close.kind is sum, here mean"),
    ],
    ids=["iterations", "scheme", "start"],
)
def test_other_settings_with_the_same_shapes_are_named(torch, scheme, named, said):
    state = from_file(torch, network(torch).state_dict())
    other = network(torch, scheme, LAYERS, WIDTH, **named)
    with pytest.warns(UserWarning, match="the state dict is of another connection") as given:
        other.load_state_dict(state)
    (warning,) = given
    assert said in str(warning.message)
    assert all(torch.equal(value, state[name]) for name, value in other.state_dict().items())


@pytest.mark.parametrize("sizes", [{"layers": 6}, {"streams": 2}])
def test_another_number_of_layers_or_streams_is_named_beside_the_shapes(torch, sizes):
    sizes, (name,) = {"layers": LAYERS, "width": WIDTH, **sizes}, sizes
    other = network(torch, SCHEME, **sizes)
    with (
        pytest.warns(UserWarning, match=f"{name} is 4, here {sizes[name]}"),
        pytest.raises(RuntimeError, match="size mismatch for c"),
    ):
        other.load_state_dict(network(torch).state_dict())


def test_the_same_settings_and_files_without_settings_load_in_silence(torch):
    state = network(torch).state_dict()
    assert {*state} == {name for name, _ in network(torch).named_parameters()}
    old, other = dict(state), network(torch, FEW, LAYERS, WIDTH)  # as safetensors reads it
    of_before = from_file(torch, state)
    del of_before._metadata["c"]["connection"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for before in (old, of_before):
            other.load_state_dict(before, strict=True)
        copy.deepcopy(network(torch, seed=1)).load_state_dict(from_file(torch, state))
        # The same function with other initial values.
        network(torch, "mhc_averaged", LAYERS, WIDTH).load_state_dict(state)
        state_of_plain = network(torch, "plain", LAYERS, WIDTH).state_dict()
        network(torch, "plain", LAYERS, WIDTH).load_state_dict(state_of_plain)


LATE = {"connection": "mhc_paper", "read": "late"}


@pytest.mark.parametrize(
    ("saved", "loaded", "said"),
    [
        ((LATE, {}), (SCHEME, {}), "read is late, here the default"),
        ((SCHEME, {}), (LATE, {}), "read is the default, here late"),
        ((SCHEME, {"pooled_axes": 1}), (SCHEME, {}), "pooled_axes is 1, here 0"),
        (("two_lanes", {"per_block": 2}), ("two_lanes", {}), "per_block is 2, here 1"),
        (("attn_res", {"has_residual": True}), ("attn_res", {}), "has_residual is True, here"),
    ],
)
def test_settings_that_one_side_leaves_out_and_facts_of_the_network_are_named(
    torch, saved, loaded, said
):
    (scheme, sizes), (own, own_sizes) = saved, loaded
    state = network(torch, scheme, LAYERS, WIDTH, **sizes).state_dict()
    with pytest.warns(UserWarning, match=said):
        network(torch, own, LAYERS, WIDTH, **own_sizes).load_state_dict(state)


@pytest.mark.parametrize("scheme", ["resid_growth", "unet", "mhc_paper"])
def test_numbers_that_are_initial_values_alone_are_no_other_settings(torch, scheme):
    start = {"start": "plain"} if scheme != SCHEME else {"seed": 1}
    state = network(torch, scheme, LAYERS, WIDTH, **start).state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network(torch, scheme, LAYERS, WIDTH).load_state_dict(state)
