"""Every named scheme on every network: a textbook ↔ the float64 oracle ↔ both backends."""

import numpy as np
import pytest

import naive
from fathom import tasks
from fathom.backends.numpy import NumpyOps
from fathom.config import ConfigError
from fathom.models.connections.schemes import SCHEMES
from gradients import assert_gradients, first_step

CASES = [
    (task, scheme, streams)
    for task in naive.NETWORKS
    for scheme, row in SCHEMES.items()
    for streams in ((1, 4) if row["kind"] == "streams" else (4,))
]


@pytest.fixture
def small(make_spec):
    """A function to a spec of three small layers: enough for a causal block of two states."""

    def make(task, connection, **changes):
        sizes = {"length": 5} if task == "tokens" else {}
        return make_spec(
            task=task, variant="own", connection={"connection": connection}, depth=3,
            batch_size=2, beta1=0.0, **sizes, **changes,
        )  # fmt: skip

    return make


@pytest.mark.parametrize(("task", "scheme", "streams"), CASES)
def test_the_oracle_equals_the_textbook(
    small, parameters_off_symmetry, first_batch, oracle_forward, oracle_loss, task, scheme, streams
):
    spec = small(task, scheme, streams=streams)
    params, batch = parameters_off_symmetry(spec), first_batch(spec)
    expected = naive.NETWORKS[task](scheme, spec, params, *batch.inputs)
    # Both are float64: only the order of their sums differs.
    found = oracle_forward(spec, params, batch.inputs).logits
    assert found == pytest.approx(expected, abs=1e-11 * np.abs(expected).max())
    loss = naive.cross_entropy(expected, batch.targets)
    assert oracle_loss(spec, params, *batch) == pytest.approx(loss, rel=1e-11)


@pytest.mark.parametrize(("task", "scheme", "streams"), CASES)
def test_the_first_step_on_each_backend_equals_the_oracle(
    small, parameters_off_symmetry, first_batch, oracle_loss, backends_here, start,
    task, scheme, streams,
):  # fmt: skip
    spec = small(task, scheme, streams=streams)
    params, batch = parameters_off_symmetry(spec), first_batch(spec)
    found = {}
    for name, backend in backends_here.items():
        measured, found[name] = first_step(start(backend, spec, params), spec, batch)
        # A mean of numbers near 4 over a few dozen roundings of float32.
        expected = oracle_loss(spec, params, *batch)
        assert measured["loss"] == pytest.approx(expected, rel=3e-6), name
        norms = [np.linalg.norm(gradient) for gradient in found[name].values()]
        assert measured["grad_norms"] == pytest.approx(norms, rel=1e-5), name
    # Relative rounding, plus what cancellation leaves of order-one terms.
    assert_gradients(lambda p: oracle_loss(spec, p, *batch), params, found, rel=2e-5, floor=1e-6)


# --- what the published names stand for ----------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "published", "scheme"),
    [
        ("tokens", "baseline", "plain"),
        ("tokens", "hc", "hc_demo"),
        ("tokens", "mhc", "mhc_demo"),
        ("fashion", "resnet", "plain"),
        # Of 25 January, the version with published results; that of 19 January is hc_static.
        ("fashion", "hc", "hc_dynamic"),
        ("fashion", "mhc", "mhc_dynamic"),
    ],
)
def test_a_published_name_is_that_of_its_source(make_spec, task, published, scheme):
    found = make_spec(task=task, variant=published)
    assert found.variant == published
    assert found.connection == make_spec(task=task, variant=scheme).connection


@pytest.mark.parametrize(("task", "name"), [("fashion", "baseline"), ("tokens", "resnet")])
def test_a_published_name_of_another_network_is_refused(make_spec, task, name):
    with pytest.raises(ConfigError, match=rf"variants\.{name}: unknown connection '{name}'"):
        make_spec(task=task, variant=name)


# --- composition ---------------------------------------------------------------------------------


def first_only(**start):
    """The start of an S-vector in Surviving Depth: 5 on the first stream."""
    return {"on": 5.0, "off": -5.0, **start}


WRITTEN_OUT = {
    "mhc_demo": {
        "kind": "streams",
        "streams": 4,
        "open": "copies",
        "coefficients": "static",
        "pre": {"kind": "row_softmax_mean", "start": {"diagonal": 1, "off_diagonal": -1}},
        "post": {"kind": "row_softmax_sum", "start": {"diagonal": 1, "off_diagonal": -1}},
        "H_res": {"kind": "sinkhorn", "iterations": 20, "floor": 1e-12, "clip": None},
        "H_res_start": {"diagonal": 1, "off_diagonal": -1, "noise": 0},
        "gate": "none",
        "close": "mean",
    },
    "mhc_static": {
        "kind": "streams",
        "open": {"kind": "first_only"},
        "pre": {"kind": "softmax", "start": {"on": 5}},
        "post": {"kind": "softmax", "start": {"on": 5}},
        "H_res": "sinkhorn",
        "H_res_start": {"diagonal": 4, "noise": 0.05},
        "gate": {"kind": "learned", "start": 0.01},
        "close": {"kind": "readout", "map": {"kind": "softmax", "start": {"on": 5}}},
    },
    "mhc_dynamic": {
        "kind": "streams",
        "open": "first_only",
        "coefficients": {"kind": "dynamic", "alpha": 0.01, "eps": 1e-6},
        "pre": {"kind": "sigmoid", "start": first_only()},
        "post": {"kind": "sigmoid", "scale": 2, "start": first_only()},
        "H_res": {"kind": "sinkhorn", "clip": 10},
        "H_res_start": {"diagonal": 5, "off_diagonal": -5, "noise": 0.01},
        "close": {"kind": "readout", "map": {"kind": "sigmoid", "start": first_only(stream=0)}},
    },
    "mhc_causal": {
        "kind": "causal",
        "constraint": {"kind": "sinkhorn", "iterations": 20, "floor": 1e-6},
        "start": {"diagonal": 4, "off_diagonal": 0, "noise": 0.05},
    },
}


@pytest.mark.parametrize("task", naive.NETWORKS)
@pytest.mark.parametrize("scheme", WRITTEN_OUT)
def test_a_row_written_out_is_the_named_scheme(make_spec, first_batch, oracle_loss, task, scheme):
    named = make_spec(task=task, variant=scheme, batch_size=2)
    written = make_spec(task=task, variant="own", connection=WRITTEN_OUT[scheme], batch_size=2)
    ours, theirs = (tasks.initial_parameters(spec) for spec in (written, named))
    assert list(ours) == list(theirs)
    assert all((ours[name] == theirs[name]).all() for name in theirs)
    batch = first_batch(named)
    assert oracle_loss(written, ours, *batch) == oracle_loss(named, theirs, *batch)


def differences(a, b, path=""):
    """{path: (value in a, value in b)} of two nested mappings."""
    if isinstance(a, dict) and isinstance(b, dict):
        found = {}
        for key in {**a, **b}:
            found |= differences(a.get(key), b.get(key), f"{path}.{key}" if path else key)
        return found
    return {} if a == b else {path: (a, b)}


@pytest.mark.parametrize(
    ("task", "base", "change", "expected"),
    [
        ("tokens", "mhc", {"H_res": {"iterations": 1}}, {"H_res.iterations": (20, 1)}),
        ("fashion", "mhc", {"H_res": {"iterations": 1}}, {"H_res.iterations": (20, 1)}),
        (
            "fashion", "mhc_causal", {"constraint": {"floor": 1e-3}},
            {"constraint.floor": (1e-6, 1e-3)},
        ),
        ("tokens", "mhc", {"close": "sum"}, {"close.kind": ("mean", "sum")}),
        ("tokens", "mhc", {"streams": 2}, {"streams": (4, 2)}),
        (
            "tokens", "mhc", {"gate": "learned"},
            {"gate.kind": ("none", "learned"), "gate.start": (None, 0.01)},
        ),
        (  # of another kind: none of the old settings stays
            "fashion", "mhc", {"H_res": {"kind": "exp"}},
            {
                "H_res.kind": ("sinkhorn", "exp"), "H_res.iterations": (20, None),
                "H_res.floor": (1e-12, None), "H_res.clip": (10, None),
            },
        ),
        (  # settings of a setting
            "fashion", "mhc_static", {"close": {"map": {"start": {"on": 3}}}},
            {"close.map.start.on": (5, 3)},
        ),
    ],
)  # fmt: skip
def test_settings_over_a_name_change_nothing_else(make_spec, task, base, change, expected):
    named = make_spec(task=task, variant=base)
    own = make_spec(task=task, variant=base, connection={"connection": base, **change})
    found = differences(named.model_dump(), own.model_dump())
    assert found == {f"connection.{key}": value for key, value in expected.items()}


def one_pass(H):
    H = H / H.sum(axis=1, keepdims=True)
    return H / H.sum(axis=0)


def test_one_iteration_is_one_pass_over_rows_and_columns(make_spec, parameters_off_symmetry):
    spec = make_spec(variant="own", connection={"connection": "mhc", "H_res": {"iterations": 1}})
    params = parameters_off_symmetry(spec)
    logits = params["connection.H_res"].astype(np.float64)
    expected = [one_pass(np.exp(layer)) for layer in logits]
    assert matrices_of(spec, params)["H_res"] == pytest.approx(np.array(expected), rel=1e-12)


@pytest.mark.parametrize("base", ["mhc_demo", "mhc_dynamic"])
def test_a_gate_leaves_the_identity_at_zero_and_the_matrix_at_one(
    make_spec, parameters_off_symmetry, first_batch, oracle_forward, base
):
    def logits(connection, **changes):
        spec = make_spec(variant="own", connection={"connection": base, **connection})
        assert ("connection.gate" in tasks.initial_parameters(spec)) == ("gate" in connection)
        params = {**parameters_off_symmetry(ungated), **changes}
        return oracle_forward(spec, params, first_batch(spec).inputs).logits

    ungated = make_spec(variant=base)
    unit = np.full((3, 4, 4), -1e3) + 2e3 * np.eye(4)  # exp and Sinkhorn make this the identity
    name = "connection.H_res" if base == "mhc_demo" else "connection.b_res"
    gate = {"gate": "learned"}
    wide = {"H_res": {"clip": 500.0}}
    shut, half, open_ = (
        logits(gate, **{"connection.gate": np.full(3, g, np.float32)}) for g in (-40.0, 0.0, 40.0)
    )
    assert open_ == pytest.approx(logits({}), abs=1e-9)
    assert shut == pytest.approx(logits(wide, **{name: unit}), abs=1e-9)
    assert np.abs(half - open_).max() > 1e-5
    assert np.abs(half - shut).max() > 1e-5


def test_the_sum_of_streams_is_S_times_their_mean(make_spec):
    streams = np.random.default_rng(0).standard_normal((4, 2, 3))

    def closed(close):
        spec = make_spec(variant="own", connection={"connection": "mhc", "close": close})
        return connection_at(spec).close(NumpyOps(), {}, streams)

    assert closed("mean") == pytest.approx(sum(streams) / 4)
    assert closed("sum") == pytest.approx(sum(streams))


@pytest.mark.parametrize("base", ["hc_static", "hc_dynamic"])
def test_every_map_to_weights_serves_in_every_place(
    make_spec, parameters_off_symmetry, first_batch, oracle_loss, base
):
    def loss(**changes):
        spec = make_spec(variant="own", connection={"connection": base, **changes})
        return oracle_loss(spec, parameters_off_symmetry(spec), *first_batch(spec))

    losses = [loss()]
    for kind in ("softmax", "sigmoid", "row_softmax_mean", "row_softmax_sum"):
        for place in ({"pre": kind}, {"post": kind}, {"close": {"kind": "readout", "map": kind}}):
            losses.append(loss(**place))
    assert np.isfinite(losses).all()
    # A softmax where there was one already, but for its start, is all that may change nothing.
    assert len(set(losses)) >= len(losses) - 3


@pytest.mark.parametrize(
    ("connection", "message"),
    [
        ({"pre": {"kind": "softmax", "start": {"stream": 4}}}, "pre.start.stream is 4, but"),
        ({"post": {"kind": "raw", "start": {"stream": 9}}}, "post.start.stream is 9, but"),
        (
            {"close": {"kind": "readout", "map": {"kind": "raw", "start": {"stream": "cycle"}}}},
            "close.map.start.stream: cycle is for layers",
        ),
        ({"pre": {"kind": "raw", "start": {"stream": -1}}}, "pre.start.stream: must be a whole"),
        ({"connection": 5}, "connection must be a name, or settings, but is 5"),
        ({"connection": {"kind": 5}}, "unknown kind of connection '5'"),
        ({"connection": "mch"}, "unknown connection 'mch'; did you mean 'mhc'?"),
        ({"H_res": {"iterations": 0}}, "H_res.iterations: input should be greater than 0"),
        ({"H_res": {"kind": "exp", "iterations": 5}}, "H_res: unknown key 'iterations'"),
        ({"gate": "learnt"}, "gate: unknown gate 'learnt'; did you mean 'learned'?"),
        ({"H_rse": "exp"}, "unknown key 'H_rse'; did you mean 'H_res'?"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_connection_is_refused_in_a_line(make_spec, connection, message):
    with pytest.raises(ConfigError) as caught:
        make_spec(variant="own", connection={"connection": "mhc", **connection})
    assert str(caught.value).startswith("config: studies.small.variants.own")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


# --- recipes --------------------------------------------------------------------------------------

RECIPES_BY_HAND = {
    "mlx-defaults": {
        "embedding": "inverse_sqrt_width", "attention": "linear", "bias_correction": False,
    },
    "torch-defaults": {
        "embedding": "unit", "attention": "packed_xavier", "bias_correction": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", RECIPES_BY_HAND)
def test_a_recipe_written_as_its_settings_is_the_named_one(make_spec, name):
    named, written = make_spec(recipe=name), make_spec(recipe=RECIPES_BY_HAND[name])
    assert named == written
    assert named.hash() == written.hash()


@pytest.mark.parametrize(
    ("part", "moves"),
    [
        ("embedding", {"embedding.token"}),
        ("attention", {"block.qkv.weight", "block.qkv.bias", "block.attention_out.bias"}),
        ("bias_correction", set()),
    ],
)
def test_each_part_of_a_recipe_moves_its_own_parameters(make_spec, part, moves):
    mlx, torch = RECIPES_BY_HAND.values()
    a, b = (
        tasks.initial_parameters(make_spec(recipe={**mlx, part: r[part]})) for r in (mlx, torch)
    )
    assert {name for name in a if (a[name] != b[name]).any()} == moves


# --- the learned mixing is what the forward pass applies ------------------------------------------


def connection_at(spec):
    return tasks.network_of(spec).connection


def matrices_of(spec, params):
    ops = NumpyOps()
    exact = {name: ops.asarray(value) for name, value in params.items()}
    return connection_at(spec).matrices(ops, exact)


STATIC = [name for name, row in SCHEMES.items() if "H_res" in row and "coefficients" not in row]


@pytest.mark.parametrize("scheme", STATIC)
def test_the_matrices_of_static_streams_are_those_applied(
    make_spec, parameters_off_symmetry, scheme
):
    spec = make_spec(variant=scheme)
    params, ops = parameters_off_symmetry(spec), NumpyOps()
    connection, kept = connection_at(spec), matrices_of(spec, params)
    assert {name: m.shape for name, m in kept.items()} == {
        "H_pre": (3, 4), "H_post": (3, 4), "H_res": (3, 4, 4),
    }  # fmt: skip
    exact = {name: ops.asarray(value) for name, value in params.items()}
    unit, nothing, ones = np.eye(4), np.zeros(4), np.ones(4)
    layers = connection.per_layer(ops, connection.coefficients(ops, exact))
    for i, c in enumerate(layers):
        # Stream s holds the s-th unit vector, so that channels tell streams apart.
        assert connection.pre(ops, c, unit) == pytest.approx(kept["H_pre"][i], abs=1e-14)
        mixed = connection.update(ops, c, unit, nothing)
        assert mixed == pytest.approx(kept["H_res"][i], abs=1e-14)
        written = connection.update(ops, c, np.zeros((4, 4)), ones)
        assert written == pytest.approx(np.outer(kept["H_post"][i], ones), abs=1e-14)


@pytest.mark.parametrize("scheme", ["hc_causal", "mhc_causal"])
def test_the_matrices_of_a_causal_connection_are_those_applied(
    make_spec, parameters_off_symmetry, scheme
):
    spec = make_spec(variant=scheme, depth=9)
    params, ops = parameters_off_symmetry(spec), NumpyOps()
    connection, kept = connection_at(spec), matrices_of(spec, params)
    exact = {name: ops.asarray(value) for name, value in params.items()}
    layers = connection.per_layer(ops, connection.coefficients(ops, exact))
    streams = connection.open(ops, np.eye(10)[0])
    for i, c in enumerate(layers):
        # Every state is a unit vector of its own; a layer with a residual of its own returns it.
        read = connection.pre(ops, c, streams)
        assert read[:9] == pytest.approx(kept["weights"][i], abs=1e-14)
        prefix = kept["mixing"][i, : i + 1]
        assert read[: i + 1] == pytest.approx(prefix / sum(prefix), abs=1e-14)
        streams = connection.update(ops, c, streams, np.eye(10)[i + 1])
    assert (connection.close(ops, exact, streams) == np.eye(10)[9]).all()


@pytest.mark.parametrize("scheme", ["plain", "hc_dynamic", "mhc_dynamic"])
def test_others_have_no_matrices_to_keep(make_spec, scheme):
    spec = make_spec(variant=scheme)
    assert matrices_of(spec, tasks.initial_parameters(spec)) == {}
