"""`fathom.connections.cost`: formulas of extra operations and bytes, against counts by hand."""

import math

import numpy as np
import pytest

from fathom.connections.cost import (
    MACHINES,
    PLAIN,
    Cost,
    Machine,
    cost,
    elements,
    over_transformer,
    products,
)
from fathom.connections.schemes import SCHEMES
from fathom.operations.numpy_ops import NumpyOps
from fathom.settings import ConfigError
from tests.library import frameworks
from tests.support.commands import refusal

TOKENS, WIDTH, BLOCKS = 5, 8, 4
LAYERS = 2 * BLOCKS


def connection(scheme, width=WIDTH, layers=LAYERS, **sizes):
    sizes = {"per_block": 2, "takes_apart": True, **sizes}
    return frameworks.connection_of(scheme, layers, width, **sizes)


def beyond_plain(scheme, **sizes):
    """C elements beyond the plain network's, of all functions."""
    c = connection(scheme, **sizes)
    return elements(c) - PLAIN * c.context.layers


# --- operations -----------------------------------------------------------------------------------


class Recording(NumpyOps):
    """Counts the products and sums of each `linear`."""

    done = 0

    def linear(self, x, weight, bias=None):
        self.done += x.size * weight.shape[0]
        return super().linear(x, weight, bias)


# Logits of depth attention are a sum over each source while it passes, not a product of matrices.
WITH_MATRICES = [name for name, row in SCHEMES.items() if row.get("kind") != "depth_attention"]


@pytest.mark.parametrize("scheme", WITH_MATRICES)
def test_products_are_those_that_a_pass_computes(scheme):
    ops, c = Recording(), connection(scheme, width=16)
    params = {
        name: np.full(one.shape, 0.1) if one.is_matrix else np.ones(one.shape)
        for name, one in c.parameters().items()
    }
    state = c.open(ops, params, np.ones((TOKENS, 16)))
    for k in range(LAYERS):
        read, state = c.read(ops, state, k)
        state = c.write(ops, state, k, frameworks.mixture(*read) if c.reads_apart(k) else read)
    c.close(ops, state)
    rows = LAYERS * 16 if scheme == "deep_delta" else 0  # a sum of products, without `linear`
    assert TOKENS * (products(c) - rows) == ops.done


# --- bytes ----------------------------------------------------------------------------------------

PER_FUNCTION = {
    "plain": 0,
    "mhc_paper": 25 - 8,
    "hc_static": 17,
    "qwen4_exp": 17,
    "altup": 17,
    "{connection: mhc_paper, streams: 2}": 15 - 8,
    "scaled": 0,
    "doge": 2,
    "frac": 2,
    "laurel": 2,
    "resid_growth": 2,
    "prores": 0,
}


@pytest.mark.parametrize("scheme", PER_FUNCTION)
def test_elements_of_each_function(scheme):
    given = {"connection": "mhc_paper", "streams": 2} if scheme.startswith("{") else scheme
    assert beyond_plain(given) == PER_FUNCTION[scheme] * LAYERS


def test_an_earlier_stream_is_read_twice_and_its_gradient_once():
    assert beyond_plain("x0_lambda") == 3 * BLOCKS
    assert beyond_plain("unet") == 3 * 2  # before blocks 2 and 3
    assert beyond_plain("backout") == 3
    assert beyond_plain("neomme") == 3 * BLOCKS
    # X_3 of 4 blocks, then the attention of block 3 reads it.
    assert beyond_plain("late_read") == 3 + 2
    # Lanes from block 3 on: two of eight functions have two streams, the others learned scales.
    assert beyond_plain("two_lanes") == 6 * 2 + 2 * 7


def test_a_read_passes_over_its_sources_once_in_each_direction():
    # Sources 2 to 9, the last read is the output's.
    assert beyond_plain("attn_res") == sum(2 * i + 5 - 8 for i in range(2, 10))
    assert beyond_plain("delta_attn_res") == sum(2 * i + 9 - 8 for i in range(2, 10))
    # Sources of two blocks, four functions: x_0 and an open sum, then one source more.
    assert beyond_plain("attn_res_block") == sum(2 * i + 7 - 8 for i in (2, 2, 2, 2, 3, 3, 3, 3))


def test_reads_of_q_k_and_v_share_the_forward_pass():
    """With one block in two, function 2 of four reads apart: three reads of three sources."""
    settings = {"connection": "inkling2", "apart": 2}
    one = {"connection": "inkling2", "apart": None}
    further = elements(connection(settings, layers=4)) - elements(connection(one, layers=4))
    # Backward two more passes over gradients of the two sources; two more inputs and gradients.
    assert further == 2 * 2 + 2 * 2


def test_sums_of_all_outputs():
    blocks = range(1, BLOCKS + 1)
    assert beyond_plain("denseformer") == sum(2 * i + 11 - 8 for i in blocks)
    assert beyond_plain("hc_causal") == sum(2 * i + 11 - 8 for i in range(1, LAYERS))
    assert beyond_plain("attn_res_state") == sum(4 * i + 9 - 8 for i in range(1, LAYERS))
    # Four sums of dynamic weights before blocks 1 to 3, one for the output.
    assert beyond_plain("muddformer") == sum(4 * i + 17 - 8 for i in (1, 2, 3)) + 3 * 4 + 11 - 8


@pytest.mark.parametrize("scheme", SCHEMES)
def test_bytes_are_proportional_to_tokens_width_and_size_of_an_element(scheme):
    small, large = connection(scheme), connection(scheme, width=4 * WIDTH)
    assert cost(large, 3 * TOKENS, 2).bytes == 6 * cost(small, TOKENS, 4).bytes >= 0


# --- over a transformer ---------------------------------------------------------------------------


def test_mhc_paper_at_4096_channels_on_an_h100():
    """Per block 72 C² operations; 2 · 6 · 24 · 4 C more, and 2 · 17 C elements of two bytes."""
    shares = over_transformer(connection("mhc_paper", width=4096, layers=64), MACHINES["h100"])
    assert shares.operations == pytest.approx(16 / 4096)
    assert shares.bytes == pytest.approx((2 * 17 * 2 / 3.35e12) / (72 * 4096 / 400e12))
    assert shares.bytes == pytest.approx(0.0275, abs=0.0001)


def test_times_add():
    assert Cost(300, 50).seconds(Machine(rate=100.0, bandwidth=25.0)) == 5


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("key, value", [("has_residual", True), ("pooled_axes", 2)])
def test_unknown_costs_are_refused(key, value):
    sizes = {"per_block": 1, key: value}
    line = refusal(cost, connection("mhc_paper", **sizes), 1, 4, error=ConfigError)
    assert f"{key} is {value}" in line and f"use {key}={type(value)()}" in line


def test_a_module_tells_its_cost(framework):
    c = framework.module("mhc_paper", layers=LAYERS, width=WIDTH)
    assert c.cost(TOKENS) == cost(connection("mhc_paper"), TOKENS, 4)
    assert 2 * c.cost(TOKENS, "bfloat16").bytes == c.cost(TOKENS).bytes
    with pytest.raises(ValueError, match=r"unknown float type 'bfloat'; did you mean 'bfloat16'"):
        c.cost(TOKENS, "bfloat")
    for tokens in ("4", -4):
        with pytest.raises(ValueError, match="tokens must be a number of tokens"):
            c.cost(tokens)
    assert math.isclose(c.cost(2 * TOKENS).operations, 2 * c.cost(TOKENS).operations)
