"""Rules of a single stream: networks of many blocks, values by hand, rates of their own."""

import numpy as np
import pytest

from fathom.connections.rules import RULES
from fathom.operations.numpy_ops import NumpyOps
from fathom.settings import ConfigError
from fathom_study.optimizers import optimizer_config
from fathom_study.tasks import Problem
from tests.library import frameworks
from tests.library.test_connections import WIDTH, moved, tanh_layers
from tests.support import naive
from tests.support.gradients import STEADY
from tests.support.specs import OF_OWN_SUM, make_spec, parameters_of, trainer_on

OPS = NumpyOps()


def connection_of(settings, layers, per_block=1, **sizes):
    return frameworks.connection_of(settings, layers, WIDTH, per_block=per_block, **sizes)


def passed(connection, params, x, layers, noise=None):
    exact = {name: OPS.asarray(value) for name, value in params.items()}
    return connection.through(OPS, exact, x, layers, noise)[0]


# --- the textbook, in networks of many blocks -----------------------------------------------------


@pytest.mark.parametrize(
    ("blocks", "per_block"),
    [*((blocks, 1) for blocks in (1, 2, 3, 5, 11, 12)), (1, 2), (4, 2), (11, 2), (4, 3)],
)
@pytest.mark.parametrize("name", naive.RACERS)
def test_networks_of_many_blocks_equal_the_textbook(name, blocks, per_block):
    layers = blocks * per_block
    connection, functions = connection_of(name, layers, per_block), tanh_layers(OPS, layers)
    params, x = moved(connection), np.random.default_rng(4).standard_normal((2, 3, WIDTH))
    exact = naive.connection_of(naive.exact(params))
    expected = naive.through(name, exact, x, functions, 4, False, per_block)
    size = np.abs(expected).max()
    assert passed(connection, params, x, functions) == pytest.approx(expected, abs=1e-12 * size)


@pytest.mark.parametrize("name", [name for name in RULES if name not in OF_OWN_SUM])
def test_functions_with_their_own_residual_give_the_same(name):
    functions, x = tanh_layers(OPS, 6), np.random.default_rng(4).standard_normal((2, WIDTH))
    params = moved(connection_of(name, 6, 2))
    own = [lambda x, f=f: x + f(x) for f in functions]
    expected = passed(connection_of(name, 6, 2), params, x, functions)
    found = passed(connection_of(name, 6, 2, has_residual=True), params, x, own)
    assert found == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("name", OF_OWN_SUM)
def test_rules_that_need_the_output_alone_refuse_functions_with_a_residual(name):
    with pytest.raises(ConfigError, match=rf"rule {name} .*use model\.wrap: sublayer$"):
        connection_of(name, 6, 2, has_residual=True)


# --- by hand --------------------------------------------------------------------------------------


def test_scales_of_nanochat_fall_over_the_depth():
    numbers = {"resid_first": 1.15, "resid_last": 1.05, "x0_first": 0.2, "x0_last": 0.05}
    connection = connection_of({"connection": "x0_lambda", "numbers": numbers}, 11)
    drawn = {n: p.distribution.sample(None, p.shape) for n, p in connection.parameters().items()}
    steps = np.arange(11) / 10
    assert drawn["connection.resid"] == pytest.approx(1.15 - 0.1 * steps)
    assert drawn["connection.x0"] == pytest.approx(0.2 - 0.15 * steps)


def test_outputs_warm_up_block_by_block():
    connection = connection_of("prores", 6, 2)
    share = 0.12  # of the steps, for the last of three blocks; the first takes a third of it
    factors = [connection.sample_noise(None, done * share) for done in (0, 1 / 6, 2 / 3, 1, 5)]
    assert factors[0].tolist() == [0] * 6
    assert factors[1] == pytest.approx([1 / 2, 1 / 2, 1 / 4, 1 / 4, 1 / 6, 1 / 6])
    assert factors[2] == pytest.approx([1, 1, 1, 1, 2 / 3, 2 / 3])
    assert factors[3].tolist() == factors[4].tolist() == [1] * 6
    functions, x = tanh_layers(OPS, 6), np.random.default_rng(4).standard_normal((2, WIDTH))
    stream = x
    for factor, function in zip(factors[1], functions, strict=True):
        stream = stream + factor * function(stream)
    found = passed(connection, {}, x, functions, noise=factors[1])
    assert found == pytest.approx(stream, rel=1e-13)


def test_a_warm_up_reaches_training_and_not_the_score(connect_cpu):
    spec = make_spec(variant="prores", wrap="sublayer", depth=2, steps=100)
    problem = Problem(spec)
    (first,), (late,) = problem.batches(0), problem.batches(60)
    assert first.inputs["noise"].tolist() == [0] * 4
    assert late.inputs["noise"].tolist() == [1] * 4
    for name in ("torch", "mlx"):
        trainer = trainer_on(connect_cpu(name), spec)
        trainer.step([first], STEADY)
        norms = dict(zip(parameters_of(spec), trainer.collect()["grad_norms"][0], strict=True))
        assert norms["block.qkv.weight"] == 0 < norms["head.weight"]


# --- numbers in a config --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "numbers", "message"),
    [
        ("backout", {"back_out": 1}, r"unknown key 'back_out'; did you mean 'backout'\?"),
        ("backout", {"after": 2}, r"numbers\.after: .*less than or equal to 1, but is 2"),
        ("backout", 3, "numbers: "),
        ("deep_delta", {"beta": 2}, r"numbers\.beta: .*less than 2, but is 2"),
        ("x0_lambda", {"resid_rate": -1}, r"numbers\.resid_rate: .*but is -1"),
    ],
)
def test_a_wrong_number_is_one_line(name, numbers, message):
    with pytest.raises(ConfigError, match=f"^[^\n]*{message}[^\n]*$"):
        connection_of({"connection": name, "numbers": numbers}, 2)


@pytest.mark.parametrize("rule", ["unets", 3])
def test_an_unknown_rule_is_one_line_with_the_known_ones(rule):
    with pytest.raises(ConfigError, match=r"^[^\n]*rule: [^\n]*$"):
        connection_of({"kind": "one_stream", "rule": rule}, 2)


# --- rates and decay of their own -----------------------------------------------------------------


@pytest.mark.parametrize("muon", [False, True])
def test_factors_of_the_rate_reach_every_group(muon):
    optimizer = {"muon": {}} if muon else {}
    spec = make_spec(variant="x0_lambda", weight_decay=0.1, **optimizer)
    groups = optimizer_config(spec, Problem(spec).network.parameters()).groups
    by_name = {name: group for group in groups for name in group.names}
    resid, x0, norm = (
        by_name[name] for name in ("connection.resid", "connection.x0", "block.norm1.weight")
    )
    assert resid.lr == pytest.approx(0.01 * norm.lr)
    assert x0.lr == norm.lr
    assert (resid.decay, x0.decay, norm.decay) == (0.1, 0, 0.1)


def test_groups_for_an_optimiser_of_ones_own(torch):
    from fathom.torch import ResidualConnection

    module = ResidualConnection("x0_lambda", 4, WIDTH)
    groups = module.parameter_groups(lr=0.5, weight_decay=0.1)
    by_parameter = {id(p): group for group in groups for p in group["params"]}
    for name, lr in (("resid", 0.005), ("x0", 0.5)):
        group = by_parameter[id(getattr(module, name))]
        assert (group["lr"], group["weight_decay"]) == (lr, 0)
    torch.optim.AdamW(groups)
    (matrices, vectors) = ResidualConnection("review", 4, WIDTH).parameter_groups(0.5, 0.1)
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.1, 0)


def test_groups_for_an_optimiser_in_mlx():
    pytest.importorskip("mlx.core")
    from fathom.mlx import ResidualConnection

    groups = ResidualConnection("x0_lambda", 4, WIDTH).parameter_groups(0.5, 0.1)
    assert groups == [
        {"params": ["resid"], "lr": 0.005, "weight_decay": 0.0},
        {"params": ["x0"], "lr": 0.5, "weight_decay": 0.0},
    ]
