"""Rules of a single stream: networks of many blocks, values by hand, rates of their own."""

import math

import numpy as np
import pytest

from fathom.connections.connection import ConnectionContext
from fathom.connections.rules import RULES
from fathom.connections.schemes import SCHEMES, resolve
from fathom.operations.numpy_ops import NumpyOps
from fathom.settings import ConfigError
from fathom_study.models.network import through_layers
from fathom_study.optimizers import optimizer_config
from fathom_study.tasks import Problem, example_batch
from tests.library.test_connections import moved, tanh_layers
from tests.support import naive
from tests.support.gradients import STEADY
from tests.support.specs import make_spec, parameters_of, parameters_off_symmetry, trainer_on

WIDTH = 5
OPS = NumpyOps()
OF_OWN_SUM = [name for name, rule in RULES.items() if rule.needs_own_sum]


def connection_of(settings, layers, per_block=1, has_residual=False):
    context = ConnectionContext(layers, WIDTH, 0, has_residual, per_block, optional_norms=True)
    return resolve(settings, SCHEMES, 4, "test").at(context)


def passed(connection, params, x, layers, noise=None):
    exact = {name: OPS.asarray(value) for name, value in params.items()}
    return through_layers(OPS, connection, exact, x, layers, noise)[0]


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


def inputs_of(name, blocks=11):
    """Inputs of attention and of MLP of each block, [blocks, 2], and the streams after each."""
    connection = connection_of(name, 2 * blocks, 2)
    params = {n: p.distribution.sample(None, p.shape) for n, p in connection.parameters().items()}
    seen = []

    def function(x):
        seen.append(float(x[0]))
        return np.full_like(x, 10.0 ** -len(seen))

    output = passed(connection, params, np.ones(WIDTH), [function] * (2 * blocks))
    return np.reshape(seen, (blocks, 2)), float(output[0])


def test_attention_of_the_last_three_of_eleven_blocks_reads_the_eighth():
    seen, output = inputs_of("late_read")
    digits = np.cumsum([1.0, *(10.0**-k for k in range(1, 23))])
    eighth = digits[16]
    assert seen[:, 1] == pytest.approx(digits[1:22:2], abs=1e-15)
    assert seen[:8, 0] == pytest.approx(digits[:16:2], abs=1e-15)
    assert (seen[8:, 0] == eighth).all()
    assert output == pytest.approx(digits[22] - 0.5 * eighth, abs=1e-15)


def test_the_skip_of_eleven_blocks_is_from_block_3_to_block_6():
    """As in modded-nanogpt, whose blocks count from 0."""
    seen, _ = inputs_of("one_skip")
    sums = np.cumsum([1.0, *(10.0**-k for k in range(1, 23))])
    gate = 1 / (1 + math.exp(1.5))
    assert seen[5, 0] == pytest.approx(sums[10], abs=1e-15)
    assert seen[6, 0] == pytest.approx(sums[12] + gate * sums[8], abs=1e-15)


def test_scales_of_nanochat_fall_over_the_depth():
    numbers = {"resid_first": 1.15, "resid_last": 1.05, "x0_first": 0.2, "x0_last": 0.05}
    connection = connection_of({"connection": "x0_lambda", "numbers": numbers}, 11)
    drawn = {n: p.distribution.sample(None, p.shape) for n, p in connection.parameters().items()}
    steps = np.arange(11) / 10
    assert drawn["connection.resid"] == pytest.approx(1.15 - 0.1 * steps)
    assert drawn["connection.x0"] == pytest.approx(0.2 - 0.15 * steps)


def test_an_orthogonal_update_is_orthogonal_to_the_stream():
    x, y = np.random.default_rng(0).standard_normal((2, 7, WIDTH))
    update = passed(connection_of("orthogonal", 1), {}, x, [lambda _: y]) - x
    assert (update * x).sum(axis=-1) == pytest.approx(0, abs=1e-5)  # eps / x·x
    assert np.linalg.norm(update) > 1


def test_a_reflection_of_deep_delta():
    """β = 2 and v = 0: the stream is reflected at the hyperplane orthogonal to the output."""
    x, y = np.random.default_rng(0).standard_normal((2, 7, WIDTH))
    numbers = {"connection": "deep_delta", "numbers": {"value": 0}}
    params = {"connection.gate": np.zeros((1, WIDTH)), "connection.gate_bias": np.full(1, 50.0)}
    reflected = passed(connection_of(numbers, 1), params, x, [lambda _: y])
    assert np.linalg.norm(reflected, axis=-1) == pytest.approx(np.linalg.norm(x, axis=-1))
    assert (reflected * y).sum(axis=-1) == pytest.approx(-(x * y).sum(axis=-1))


def test_the_gate_is_the_gru_cell_of_pytorch(torch):
    connection = connection_of("gru_gate", 1)
    params = moved(connection)
    cell = torch.nn.GRUCell(WIDTH, WIDTH, dtype=torch.float64)
    names = {"weight_ih": "output_gates", "weight_hh": "stream_gates",
             "bias_ih": "output_bias", "bias_hh": "stream_bias"}  # fmt: skip
    for theirs, ours in names.items():
        value = torch.tensor(params[f"connection.{ours}"][0], dtype=torch.float64)
        getattr(cell, theirs).data = value
    x, y = np.random.default_rng(0).standard_normal((2, 7, WIDTH))
    expected = cell(torch.tensor(y), torch.tensor(x)).detach().numpy()
    assert passed(connection, params, x, [lambda _: y]) == pytest.approx(expected, rel=1e-12)


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
        ("backout", {"backout": "x"}, r"numbers\.backout: .*but is 'x'"),
        ("backout", 3, "numbers: "),
        ("deep_delta", {"beta": 2}, r"numbers\.beta: .*less than 2, but is 2"),
        ("prores", {"share": 0}, r"numbers\.share: .*greater than 0, but is 0"),
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


def test_a_first_step_moves_each_number_by_its_rate(connect_cpu):
    """With its averages corrected, AdamW's first step is the rate times the sign."""
    spec = make_spec(variant="x0_lambda", weight_decay=0.0, lr=0.01)
    params = parameters_off_symmetry(spec)
    for name in ("torch", "mlx"):
        trainer = trainer_on(connect_cpu(name), spec, params)
        trainer.step([example_batch(spec)], STEADY)
        state = trainer.state()
        for number, rate in (("resid", 1e-4), ("x0", 1e-2)):
            moves = state[f"param.connection.{number}"] - params[f"connection.{number}"]
            # Rounding of a number near 1, and eps beside the gradient.
            assert np.abs(moves) == pytest.approx(rate, abs=2e-7 + 1e-3 * rate), (name, number)


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
