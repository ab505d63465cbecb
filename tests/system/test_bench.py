"""Benchmarks: other sides compute the same step as ours, and ratios are taken per turn."""

import csv
import importlib
import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from fathom.connections.schemes import SCHEMES
from fathom_study import tasks
from fathom_study.config import installed_backends
from tests.support.gradients import first_row
from tests.support.specs import parameters_off_symmetry, trainer_on

pytestmark = pytest.mark.usefixtures("steps")
counts_operations = pytest.mark.skipif(
    "torch" not in installed_backends(), reason="operations are counted in PyTorch's graph"
)


def small(steps, *size):
    return steps.spec_for(*size, depth=3).model_copy(update={"batch_size": 2})


# --- steps of the sides ---------------------------------------------------------------------------


def our_step(trainer, spec):
    """(initial parameters, (tokens, targets), row of metrics) of the first step."""
    problem = tasks.Problem(spec)
    batches = problem.batches(0)
    row, batch = first_row(trainer, problem, batches), batches[0]
    return problem.initial_parameters(), (batch.inputs["tokens"], batch.targets), row


def flattened(params, depth):
    """Our stacked parameters under the names of PyTorch's and MLX's own modules."""
    names = {
        "norm1.weight": "norm1.weight", "norm1.bias": "norm1.bias",
        "norm2.weight": "norm2.weight", "norm2.bias": "norm2.bias",
        "qkv.weight": "attention.in_proj_weight", "qkv.bias": "attention.in_proj_bias",
        "attention_out.weight": "attention.out_proj.weight",
        "attention_out.bias": "attention.out_proj.bias",
        "up.weight": "mlp.0.weight", "up.bias": "mlp.0.bias",
        "down.weight": "mlp.2.weight", "down.bias": "mlp.2.bias",
    }  # fmt: skip
    result = {
        "embedding.weight": params["embedding.token"], "position": params["embedding.position"],
        "norm.weight": params["norm.weight"], "norm.bias": params["norm.bias"],
        "head.weight": params["head.weight"],
    }  # fmt: skip
    mixes = "connection.H_pre" in params
    for layer in range(depth):
        inside = f"layers.{layer}.block" if mixes else f"layers.{layer}"
        for ours, theirs in names.items():
            result[f"{inside}.{theirs}"] = params[f"block.{ours}"][layer]
        for name in ("pre", "post", "res") if mixes else ():
            result[f"layers.{layer}.{name}"] = params[f"connection.H_{name}"][layer]
    return result


def load_torch(network, weights):
    import torch

    network.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in weights.items()})


@pytest.mark.parametrize("variant", ["baseline", "hc", "mhc"])
def test_textbook_step_from_the_same_weights_has_the_same_metrics(steps, variant, connect_cpu):
    backend, spec = connect_cpu("torch"), small(steps, "default", variant, "torch")
    params = parameters_off_symmetry(spec)
    _, batch, ours = our_step(trainer_on(backend, spec, params), spec)
    textbook = importlib.import_module("textbook").Steps(spec)
    load_torch(textbook.network, flattened(params, spec.depth))
    theirs = textbook.step(*batch)
    assert math.isclose(theirs["loss"], ours["loss"], rel_tol=1e-5)
    assert math.isclose(theirs["grad_norm"], ours["grad_norm"], rel_tol=1e-4)
    gain = ours["gain_proxy_log10_max_entry"]
    assert math.isclose(theirs["gain"], gain, rel_tol=1e-5, abs_tol=1e-6)
    assert theirs["nonfinite"] == ours["nonfinite_event"] == 0


@pytest.mark.parametrize("variant", ["hc_paper", "mhc_paper"])
def test_pypi_connections_wrap_the_same_network(steps, variant, connect_cpu):
    """Both hc start as the residual network; the package's mhc has fewer parameters than ours."""
    package = pytest.importorskip("hyper_connections", reason="hyper-connections is not installed")
    spec = small(steps, "sublayer", variant, "torch")
    params, batch, ours = our_step(trainer_on(connect_cpu("torch"), spec), spec)
    wrapped = importlib.import_module("pypi").Steps(spec)
    losses = [wrapped.step(*batch)["loss"] for _ in range(2)]
    assert losses[1] < losses[0]
    if variant == "hc_paper":
        assert math.isclose(losses[0], ours["loss"], rel_tol=1e-5)
    else:  # as docs/speed.md says
        own = sum(v.size for k, v in params.items() if k.startswith("connection."))
        theirs = sum(p.numel() for p in package.mHC(4, dim=128, layer_index=0).parameters())
        assert (theirs, own // (2 * spec.depth)) == (923, 12315)


# --- turns ----------------------------------------------------------------------------------------

SECONDS = {
    ("baseline", "ours"): [9, 0.1, 10, 14],
    ("mhc", "ours"): [9, 0.3, 20, 28],
    ("mhc", "textbook"): [9, 2.0, 100, 70],
}
"""Answers by side: preparation, one step to count steps per half second, two turns."""


@pytest.fixture
def process(steps):
    """Function that returns the process for a backend and a place in a group."""
    with steps.processes() as process:
        yield process


@pytest.fixture
def asked(steps, monkeypatch):
    """Calls to the sides, in order; simulated processes answer with SECONDS."""
    asked, keys = [], iter([*SECONDS, ("baseline", "textbook")])

    class Pool:
        def __init__(self, *_):
            self.key = next(keys)
            self.answers = iter(SECONDS.get(self.key, [0]))

        def submit(self, function, *given):
            asked.append((self.key, function.__name__, given))
            answer = next(self.answers)
            return SimpleNamespace(result=lambda: answer)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(steps, "ProcessPoolExecutor", Pool)
    return asked


def test_sides_take_turns_of_half_a_second_and_ratios_are_per_turn(steps, asked, process):
    keys = [*SECONDS, ("baseline", "textbook")]  # the last has no step for its variant
    specs = {key: small(steps, "default", key[0], "torch") for key in keys}
    rows = steps.rows(specs, turns=2, threads=3, process=process, count=False)
    result = {(row["variant"], row["side"]): row for row in rows}
    assert list(result) == list(SECONDS)
    assert not any("operations" in row for row in result.values())
    turns = [(key, given) for key, name, given in asked if name == "seconds"][len(SECONDS) :]
    assert turns == [(key, (n,)) for key, n in zip(SECONDS, (5, 2, 1), strict=True)] * 2
    names = ("seconds", "low", "high", "over", "ratio", "ratio_low", "ratio_high")
    assert {key: [row[name] for name in names] for key, row in result.items()} == {
        ("baseline", "ours"): ["12", "10", "14", "baseline", "1", "1", "1"],
        ("mhc", "ours"): ["24", "20", "28", "baseline", "2", "2", "2"],  # 20/10 and 28/14
        ("mhc", "textbook"): ["85", "70", "100", "ours", "3.75", "2.5", "5"],  # 100/20 and 70/28
    }


def test_new_rows_replace_earlier_rows_of_the_same_side(steps, tmp_path):
    """Rows of another width stay; a row that is only counted again keeps its times."""
    file = tmp_path / "times.csv"
    row = dict(zip(steps.IDENTITY, ("a", 2, "mhc", "torch", "ours", "here", 64), strict=True))
    assert steps.with_earlier([row | {"seconds": "1", "bytes": 5}], file) == [
        row | {"seconds": "1", "bytes": 5}
    ]
    columns = [*row, "seconds", "bytes"]
    file.write_text(f"{','.join(columns)}\na,2,mhc,torch,ours,here,64,1,5\n", encoding="utf-8")
    wide = row | {"width": 128, "seconds": "7"}
    first, second = steps.with_earlier([row | {"bytes": 6}, wide], file)
    assert (first["seconds"], first["bytes"], second["seconds"]) == ("1", 6, "7")
    (first,) = steps.with_earlier([row | {"seconds": "2"}], file)
    assert (first["seconds"], first["bytes"]) == ("2", "5")


@counts_operations
def test_without_turns_networks_are_counted_but_not_timed(steps, process):
    keys = [("baseline", "ours"), ("mhc", "ours")]
    specs = {key: small(steps, "default", key[0], "torch") for key in keys}
    plain, mhc = steps.rows(specs, turns=0, threads=1, process=process)
    assert "seconds" not in plain
    assert mhc["operations"] > plain["operations"] > 0 and mhc["bytes"] > plain["bytes"] > 0
    assert plain["width"] == mhc["width"] == 32


def test_groups_share_one_plain_and_time_every_scheme_on_every_backend(steps, monkeypatch):
    monkeypatch.setattr(steps, "installed_backends", lambda: ["torch", "mlx"])
    names = [name for name in SCHEMES if name != "plain"]
    groups = [*steps.groups_of_schemes(names)]
    assert all(next(iter(group)) == ("plain", "ours") for group in groups)
    timed = [(s.backend, v) for g in groups for (v, _), s in g.items() if v != "plain"]
    assert timed == [(backend, name) for backend in ("torch", "mlx") for name in names]
    assert max(map(len, groups)) == 1 + steps.AT_ONCE


# --- counted work ---------------------------------------------------------------------------------


@counts_operations
def test_stored_counts_cover_every_scheme_and_match_current_code(steps, process):
    """Recounts the cheapest and dearest scheme within 2 %: PyTorch may split a kernel in two."""
    lines = Path("benchmarks/schemes.csv").read_text(encoding="utf-8").splitlines()
    kept = {row["variant"]: row for row in csv.DictReader(lines) if row["operations"]}
    assert list(kept) == list(SCHEMES)
    for specs in steps.groups_of_schemes(["scaled", "qwen4_exp"]):
        for row in steps.rows(specs, turns=0, threads=1, process=process):
            for what in ("operations", "bytes"):
                assert row[what] == pytest.approx(float(kept[row["variant"]][what]), rel=0.02)


@counts_operations
def test_extra_time_over_the_least_of_its_work(steps):
    """A connection that takes twice its least, in a network whose products take a second."""
    floor = importlib.import_module("floor")
    (group,) = (g for g in steps.groups_of_schemes(["hc_static", "scaled"])
                if next(iter(g.values())).backend == "torch")  # fmt: skip
    plain, scheme, free = group
    copied, tokens = 1e9, 32 * 64
    least = 17 * 12 * 128 * 4 * tokens / copied  # 12 functions; static streams have no products
    times = {plain: [1.0, 1.0, 1.0], scheme: [1 + least, 1 + 2 * least, 1 + 3 * least],
             free: [1.0, 1.5, 1.0]}  # fmt: skip
    row, of_free = floor.rows_of(group, times, copied)
    assert row["operations"] == 0 and float(row["least"]) == pytest.approx(least, rel=1e-3)
    assert [row["over"], row["over_low"], row["over_high"]] == ["2", "1", "3"]
    # 12 C² parameters a block, the head, and the scores of attention; not the embedding.
    products = 6 * tokens * (6 * (12 * 128**2 + 2 * 64 * 128) + 256 * 128)
    assert float(row["rate"]) == pytest.approx(products, rel=0.1)
    assert "over" not in of_free and float(of_free["extra"]) == 0


# --- learned connections -------------------------------------------------------------------------


@pytest.mark.skipif("torch" not in installed_backends(), reason="the cells train on PyTorch")
def test_only_the_connection_is_reset_after_training(tmp_path):
    """A reset leaves the score as it is at a rate near 0, and changes it after learning."""
    config = tmp_path / "config.yaml"
    config.write_text("""\
results: none
studies:
  still: &study
    {task: tokens, recipe: torch-defaults, variants: [baseline, attn_res], depths: [2],
     backends: [torch], seeds: [0], steps: 8, batch_size: 4, optimizer: {lr: 1.0e-30},
     model: {vocab: 8, length: 4, width: 8, heads: 2, hidden: 16}}
  moving: {<<: *study, optimizer: {lr: 0.1}}
""")
    out = tmp_path / "learned.csv"
    importlib.import_module("learned").main(["*"], out, [config])
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["key"].split("/")[0] for row in rows] == ["still", "moving"]  # none for plain
    still, moving = ((float(row["score"]), float(row["reset"])) for row in rows)
    assert still[0] == still[1]
    assert abs(moving[0] - moving[1]) > 0.01
