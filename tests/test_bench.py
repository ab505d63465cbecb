"""Bench: the textbook steps compute what the models compute, and every ratio follows by hand."""

import csv
import importlib
import importlib.machinery
import io
import json
import math
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from fathom import tasks
from fathom.backends import BackendError
from fathom.bench import measure as bench
from fathom.bench import worker
from fathom.train import step_rows
from gradients import STEADY

VARIANTS = ("baseline", "hc", "mhc")


@pytest.fixture(autouse=True)
def in_the_project(monkeypatch, pytestconfig):
    """Where the sizes are, with the textbook steps to import."""
    monkeypatch.chdir(pytestconfig.rootpath)
    monkeypatch.syspath_prepend(str(pytestconfig.rootpath / "benchmarks"))


def spec_of(variant, backend):
    spec = bench.spec_for("default", variant, backend, depth=3)
    return spec.model_copy(update={"batch_size": 2})


# --- the textbook steps --------------------------------------------------------------------------


def our_step(trainer, spec):
    """The initial parameters, (tokens, targets), and the row of a first step."""
    problem = tasks.Problem(spec)
    batches = problem.batches(0)
    trainer.step(batches, STEADY)
    (row,) = step_rows(problem, trainer.collect())
    batch = batches[0]
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
    found = {
        "embedding.weight": params["embedding.token"], "position": params["embedding.position"],
        "norm.weight": params["norm.weight"], "norm.bias": params["norm.bias"],
        "head.weight": params["head.weight"],
    }  # fmt: skip
    mixes = "connection.H_pre" in params
    for layer in range(depth):
        inside = f"layers.{layer}.block" if mixes else f"layers.{layer}"
        for ours, theirs in names.items():
            found[f"{inside}.{theirs}"] = params[f"block.{ours}"][layer]
        for name in ("pre", "post", "res") if mixes else ():
            found[f"layers.{layer}.{name}"] = params[f"connection.H_{name}"][layer]
    return found


def load_torch(network, weights):
    import torch

    network.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in weights.items()})


def load_mlx(network, weights):
    import mlx.core as mx

    named = {}
    for name, value in weights.items():
        parts = {name: value}
        if ".in_proj_" in name:
            start, kind = name.split("in_proj_")
            three = np.split(value, 3)
            letters = ("query", "key", "value")
            parts = {
                f"{start}{letter}_proj.{kind}": v for letter, v in zip(letters, three, strict=True)
            }
        named |= {k.replace("mlp.", "mlp.layers."): mx.array(v) for k, v in parts.items()}
    network.load_weights(list(named.items()))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ["torch", "mlx"])
def test_a_textbook_step_from_the_same_weights_has_the_same_metrics(
    name, variant, connect_cpu, start
):
    spec, backend = spec_of(variant, name), connect_cpu(name)
    params, batch, ours = our_step(start(backend, spec), spec)
    textbook = importlib.import_module(f"textbook.{name}").Steps(spec)
    load = {"torch": load_torch, "mlx": load_mlx}[name]
    load(textbook.network, flattened(params, spec.depth))
    theirs = textbook.step(*batch)
    assert math.isclose(theirs["loss"], ours["loss"], rel_tol=1e-5)
    assert math.isclose(theirs["grad_norm"], ours["grad_norm"], rel_tol=1e-4)
    assert math.isclose(
        theirs["gain"], ours["gain_proxy_log10_max_entry"], rel_tol=1e-5, abs_tol=1e-6
    )
    assert theirs["nonfinite"] == ours["nonfinite_event"] == 0


def stand_in():
    """A module with the interface of hyper-connections, whose connections are plain residuals."""
    import torch
    from torch import nn

    class HyperConnections(nn.Module):
        def __init__(self, streams, *, dim, layer_index):
            super().__init__()
            self.streams, self.scale = streams, nn.Parameter(torch.ones(dim))

        def forward(self, residuals):
            x = residuals.unflatten(0, (-1, self.streams)).mean(dim=1)
            return x * self.scale, lambda y: residuals + y.repeat_interleave(self.streams, dim=0)

    module = types.ModuleType("hyper_connections")
    module.__spec__ = importlib.machinery.ModuleSpec("hyper_connections", None)
    module.HyperConnections = module.mHC = HyperConnections
    return module


@pytest.fixture(params=["stand-in", "installed"])
def pypi(request, connect_cpu, monkeypatch):
    """The side of PyPI's package, or of one with its interface where it is not installed."""
    connect_cpu("torch")
    if request.param == "stand-in":
        monkeypatch.setitem(sys.modules, "hyper_connections", stand_in())
    else:
        pytest.importorskip("hyper_connections", reason="hyper-connections is not installed")
    monkeypatch.delitem(sys.modules, "pypi.torch", raising=False)
    yield importlib.import_module("pypi.torch")
    sys.modules.pop("pypi.torch", None)


@pytest.mark.parametrize("variant", ["hc_paper", "mhc_paper"])
def test_pypis_connections_wrap_the_same_network(variant, pypi, connect_cpu, start):
    """Both hc start as the ordinary residual network; their mhc does not start as ours does."""
    spec = bench.spec_for("sublayer", variant, "torch", depth=3)
    spec = spec.model_copy(update={"batch_size": 2})
    _, batch, ours = our_step(start(connect_cpu("torch"), spec), spec)
    steps = pypi.Steps(spec)
    losses = [steps.step(*batch)["loss"] for _ in range(2)]
    if variant == "hc_paper":
        assert math.isclose(losses[0], ours["loss"], rel_tol=1e-5)
    assert losses[1] < losses[0]


def test_pypis_mhc_is_as_much_smaller_as_its_ratio_says():
    modules = pytest.importorskip("hyper_connections", reason="hyper-connections is not installed")
    theirs = sum(p.numel() for p in modules.mHC(4, dim=128, layer_index=0).parameters())
    spec = bench.spec_for("sublayer", "mhc_paper", "torch", depth=1)
    params = tasks.Problem(spec).initial_parameters()
    ours = sum(v.size for k, v in params.items() if k.startswith("connection.")) // 2
    note = bench.NOTES["pypi over ours", "mhc_paper"]
    assert f"{theirs} parameters at S 4 and C 128, ours {ours}" in note


RELEASED = {"torch": ("transformers", "deepseek_v4"), "mlx": ("mlx_lm", "deepseek_v41")}
"""The package of each backend, and the scheme that has its module's formulas."""


@pytest.fixture
def released(backend):
    """On each backend, the side of a released model's module, and a spec that it takes."""
    name = backend.device.framework
    package, scheme = RELEASED[name]
    pytest.importorskip(package, reason=f"{package} is not installed")
    spec = bench.spec_for("sublayer-default", scheme, name, depth=3)
    module = importlib.import_module(f"released.{name}")
    return module, spec.model_copy(update={"batch_size": 2})


@pytest.mark.slow
def test_a_released_module_is_the_same_function_as_ours(released, backend, start):
    module, spec = released
    _, batch, ours = our_step(start(backend, spec), spec)
    steps = module.Steps(spec)
    losses = [steps.step(*batch)["loss"] for _ in range(2)]
    assert math.isclose(losses[0], ours["loss"], rel_tol=1e-6)
    assert losses[1] < losses[0]


# --- a side of a comparison ----------------------------------------------------------------------


@pytest.fixture
def answers(monkeypatch, capsys):
    """A function that puts commands to a worker in this process, and gives its answers."""

    def ask(spec, side, *commands):
        wanted = {"side": side, "threads": 1, "blas": "auto", "spec": spec.model_dump()}
        monkeypatch.setattr(sys, "argv", ["worker", json.dumps(wanted)])
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{c}\n" for c in commands)))
        worker.main()
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return ask


@pytest.mark.parametrize("side", ["ours", "textbook"])
def test_a_worker_answers_every_command(answers, backend, side):
    check_answers(answers, spec_of("mhc", backend.device.framework), side)


def test_so_does_one_of_pypis_package(answers, pypi):
    spec = bench.spec_for("sublayer", "mhc_paper", "torch", depth=1)
    check_answers(answers, spec.model_copy(update={"batch_size": 2}), "pypi")


@pytest.mark.slow
def test_so_does_one_of_a_released_model(answers, released):
    _, spec = released
    check_answers(answers, spec, "released")


def check_answers(answers, spec, side):
    ready, steps, product, memory = answers(spec, side, "steps 2", "matmul 1", "memory")
    assert ready == {"ready": True}
    assert steps["seconds"] > 0
    assert product["seconds"] > 0
    assert memory["bytes"] > 10e6
    assert 0 <= memory["of_steps"] < memory["bytes"]


def test_a_package_without_one_that_it_needs_is_one_line(answers, pypi, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "einops", None)  # how Python says that there is no such module
    monkeypatch.setattr(pypi, "connection", lambda spec: importlib.import_module("einops"))
    with pytest.raises(SystemExit):
        answers(bench.spec_for("sublayer", "mhc_paper", "torch", depth=1), "pypi")
    said = capsys.readouterr().err.splitlines()
    assert said == ["fathom: side pypi needs einops, which is not here; pip install -e '.[bench]'"]


def test_seconds_are_those_of_one_of_several_steps(answers, connect_cpu, monkeypatch):
    """A clock that stands still but for the steps: each takes a quarter of a second."""
    connect_cpu("torch")
    now = [0.0]

    def step_of(spec, backend):
        def run(count):
            now[0] += 0.25 * count

        return run

    monkeypatch.setattr(worker, "ours", step_of)
    monkeypatch.setattr(worker.time, "perf_counter", lambda: now[0])
    _, steps = answers(spec_of("mhc", "torch"), "ours", "steps 6")
    assert steps == {"seconds": 0.25}


@pytest.mark.parametrize(
    ("size", "variant", "backend", "side"),
    [
        ("default", "baseline", "mlx", "textbook"),  # the file lacks the variant
        ("sublayer", "mhc_paper", "mlx", "pypi"),  # no file for the backend
        ("sublayer", "mhc_paper", "torch", "pypi"),  # the package is not installed
    ],
)
def test_a_side_without_such_a_step_is_not_ready(
    answers, connect_cpu, monkeypatch, size, variant, backend, side
):
    connect_cpu(backend)
    monkeypatch.delitem(sys.modules, "pypi.torch", raising=False)
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda n: None if n == "hyper_connections" else found(n)
    )
    spec = bench.spec_for(size, variant, backend, depth=1)
    assert answers(spec, side, "steps 1") == [{"ready": False}]
    monkeypatch.delitem(sys.modules, "pypi.torch", raising=False)


@pytest.mark.parametrize("side", ["ours", "textbook"])
def test_a_side_takes_the_batches_of_its_steps_in_turn(side, connect_cpu, monkeypatch):
    backend, spec = connect_cpu("torch"), spec_of("mhc", "torch")
    task, taken = tasks.load(spec.task), []
    batch = type(task).batch
    monkeypatch.setattr(
        type(task), "batch", lambda self, spec, n: taken.append(n) or batch(self, spec, n)
    )
    run = worker.ours(spec, backend) if side == "ours" else worker.theirs(side, spec)
    run(3)
    assert taken == [0, 1, 2]


def test_a_worker_is_a_process_of_its_own(backends_here):
    """Which finds the textbook steps, wherever fathom is installed."""
    name = min(backends_here)  # mlx starts within a second, torch's optimisers take five
    with bench.Worker(spec_of("mhc", name), "textbook", threads=1) as started:
        assert started.is_ready
        assert 0 < started.ask("steps 1")["seconds"] < 60
    assert started.process.returncode == 0


def test_a_worker_that_ends_is_one_line(monkeypatch):
    monkeypatch.setattr(bench, "WORKER", "fathom.system.text")  # a module that answers nothing
    with pytest.raises(BackendError, match=r"^fathom.system.text ended with status 0$"):
        bench.Worker(spec_of("mhc", "torch"), "ours", threads=1)


# --- what follows from seconds -------------------------------------------------------------------


SECONDS = {
    ("torch", "baseline", "ours"): (9, 0.010, 0.014),
    ("torch", "hc", "ours"): (9, 0.018, 0.018),
    ("torch", "mhc", "ours"): (9, 0.020, 0.028),
    ("torch", "baseline", "textbook"): (9, 0.040, 0.042),
    ("torch", "mhc", "textbook"): (9, 0.100, 0.070),
    ("torch", "mhc", "pypi"): (9, 0.060, 0.112),
    ("torch", "mhc", "released"): (9, 0.060, 0.056),
    ("mlx", "baseline", "ours"): (9, 0.020, 0.028),
    ("mlx", "hc", "ours"): (9, 0.054, 0.054),
    ("mlx", "mhc", "ours"): (9, 0.050, 0.070),
    ("mlx", "mhc", "textbook"): (9, 3.0, 4.2),
}
"""By (backend, variant, side): the warm-up, then two turns; absent: there is no such side."""

MATMUL = {"torch": [0.02, 0.01], "mlx": [0.05, 0.04]}


asked = []
"""(side, command) of every command, in order."""

started = set()
"""(side, threads, BLAS) of every worker."""


class KnownWorker:
    """Answers as a worker whose seconds are known."""

    def __init__(self, spec, side, threads, blas="auto"):
        started.add((side, threads, blas))
        self.spec, self.side = spec, side
        seconds = SECONDS.get((spec.backend, spec.variant, side))
        self.is_ready = seconds is not None
        self.seconds = [s * spec.depth / 24 if s < 9 else s for s in seconds or ()]
        self.matmul = list(MATMUL[spec.backend])

    def ask(self, command):
        asked.append((self.side, command))
        what, _, _ = command.partition(" ")
        if what == "memory":
            of_steps = {"baseline": 2**29, "hc": 2**28, "mhc": 2**30}[self.spec.variant]
            side = {"ours": 2, "textbook": 3, "pypi": 4, "released": 5}[self.side]
            return {"bytes": side * 2**30, "of_steps": of_steps}
        return {"seconds": {"steps": self.seconds, "matmul": self.matmul}[what].pop(0)}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        assert not self.seconds


@pytest.fixture
def known(monkeypatch):
    """Workers of known seconds, on both backends."""
    monkeypatch.setattr(bench, "Worker", KnownWorker)
    monkeypatch.setattr(bench, "installed_backends", lambda: ("mlx", "torch"))
    asked.clear()
    started.clear()


FLOPS = 3 * 2 * 32 * 64 * (24 * (4 * 128**2 + 2 * 128 * 512 + 2 * 64 * 128) + 128 * 256)
"""Of a step of the demo: forward, and twice that backward."""

RATES = 2 * 1024**3 / 0.01, 2 * 1024**3 / 0.04
"""FLOP/s: 1024 columns and rows of 1024 products and sums each, in the faster of two turns."""

# (metric, variant): value of torch, value of mlx; None where there is no such row.
BY_HAND = {
    # Medians of the two turns, in milliseconds.
    ("ours step", "baseline"): (12, 24),
    ("ours step", "hc"): (18, 54),
    ("ours step", "mhc"): (24, 60),
    ("textbook step", "baseline"): (41, None),
    ("textbook step", "mhc"): (85, 3600),
    ("pypi step", "mhc"): (86, None),
    ("released step", "mhc"): (58, None),
    # Medians over turns of the ratio in that turn.
    ("textbook over ours", "baseline"): (3.5, None),  # of 4 and 3
    ("textbook over ours", "mhc"): (3.75, 60),  # of 5 and 2.5; of 60 and 60
    ("pypi over ours", "mhc"): (3.5, None),  # of 3 and 4
    ("released over ours", "mhc"): (2.5, None),  # of 3 and 2
    ("over baseline", "hc"): ((18 / 10 + 18 / 14) / 2, (54 / 20 + 54 / 28) / 2),
    ("over baseline", "mhc"): (2, 2.5),
    ("over torch", "baseline"): (None, 2),
    ("over torch", "hc"): (None, 3),
    ("over torch", "mhc"): (None, 2.5),
    # MiB that a side holds; what the steps took: 1 GiB and a quarter over a half.
    ("ours memory", "baseline"): (2048, 2048),
    ("ours memory", "hc"): (2048, 2048),
    ("ours memory", "mhc"): (2048, 2048),
    ("textbook memory", "baseline"): (3072, None),
    ("textbook memory", "mhc"): (3072, 3072),
    ("pypi memory", "mhc"): (4096, None),
    ("released memory", "mhc"): (5120, None),
    ("memory over baseline", "hc"): (0.5, 0.5),
    ("memory over baseline", "mhc"): (2, 2),
    ("matmul rate", ""): (RATES[0] / 1e9, RATES[1] / 1e9),
    ("share of matmul rate", "baseline"): (FLOPS / 0.012 / RATES[0], FLOPS / 0.024 / RATES[1]),
    ("share of matmul rate", "hc"): (FLOPS / 0.018 / RATES[0], FLOPS / 0.054 / RATES[1]),
    ("share of matmul rate", "mhc"): (FLOPS / 0.024 / RATES[0], FLOPS / 0.060 / RATES[1]),
}


def test_steps_by_hand(known):
    rows = list(bench.step_rows(["demo"], turns=2, threads=3))
    assert {(r.part, r.size, r.depth, r.threads) for r in rows} == {("steps", "demo", 24, 3)}
    found = {(r.metric, r.backend, r.variant): r for r in rows}
    assert len(found) == len(rows)
    expected = {
        (metric, backend, variant): value
        for (metric, variant), values in BY_HAND.items()
        for backend, value in zip(("torch", "mlx"), values, strict=True)
        if value is not None
    }
    assert {key: row.value for key, row in found.items()} == pytest.approx(expected)
    ratio, step = (found[m, "torch", "mhc"] for m in ("textbook over ours", "ours step"))
    assert (ratio.low, ratio.high, ratio.unit) == (pytest.approx(2.5), pytest.approx(5), "×")
    assert (step.low, step.high, step.unit) == (pytest.approx(20), pytest.approx(28), "ms")
    # The published demos run on the plain wheel.
    assert started == {
        ("ours", 3, "auto"), ("textbook", 3, "off"), ("pypi", 3, "auto"), ("released", 3, "auto"),
    }  # fmt: skip


def test_schemes_are_measured_against_plain_two_at_a_time(known, monkeypatch):
    seconds = {"plain": 0.01, "hc": 0.018, "mhc": 0.02}
    for variant, each in seconds.items():
        turns = 2 if variant == "plain" else 1  # beside each of the others
        for backend in ("torch", "mlx"):
            monkeypatch.setitem(SECONDS, (backend, variant, "ours"), (9, each, 2 * each) * turns)
    monkeypatch.setattr(bench, "SCHEMES", seconds)
    rows = list(bench.scheme_rows(turns=2, threads=3))
    assert [(r.backend, r.variant) for r in rows] == [
        ("torch", "hc"), ("torch", "mhc"), ("mlx", "hc"), ("mlx", "mhc"),
    ]  # fmt: skip
    for row in rows:
        ratio = pytest.approx(seconds[row.variant] / seconds["plain"])
        assert (row.metric, row.value, row.low, row.high) == ("over plain", *[ratio] * 3)
        assert (row.size, row.depth, row.threads) == ("sublayer", 6, 3)


def test_a_size_is_measured_at_each_of_its_depths(known):
    rows = bench.step_rows(["default"], turns=2, threads=1)
    found = {r.depth: r.value for r in rows if (r.metric, r.variant) == ("ours step", "hc")}
    assert found == pytest.approx({d: 54 * d / 24 for d in (48, 12, 24, 96)})  # MLX's, the last


@pytest.mark.parametrize(("once", "count"), [(9, 1), (0.5, 1), (0.1, 5), (0.3, 2), (0.001, 50)])
def test_sides_take_turns_of_half_a_second_and_the_first_step_does_not_count(
    known, monkeypatch, once, count
):
    for side in ("ours", "textbook"):
        monkeypatch.setitem(SECONDS, ("torch", "mhc", side), (once, 1.0, 2.0))
    spec = bench.spec_for("demo", "mhc", "torch")
    workers = {("mhc", side): KnownWorker(spec, side, 1) for side in ("ours", "textbook")}
    times = bench.time_in_turns(workers, turns=2)
    assert times == {key: [1.0, 2.0] for key in workers}
    assert asked == [
        (side, f"steps {n}") for n in (1, count, count) for side in ("ours", "textbook")
    ]


def test_each_part_of_a_start_is_what_it_adds(monkeypatch):
    monkeypatch.setattr(bench, "installed_backends", lambda: ("torch",))

    def seconds(command):
        arguments = " ".join(command[1:3])
        for text, value in (("-m fathom", 4.0), ("fathom.cli", 3.0), ("load", 2.5)):
            if text in arguments:
                return value
        return 0.5

    monkeypatch.setattr(bench, "_seconds", seconds)
    assert [(r.metric, r.value) for r in bench.startup_rows(turns=1)] == [
        ("interpreter", 0.5),
        ("framework", 2.0),
        ("fathom", 0.5),
        ("first step", 1.0),
        ("job of one step", 4.0),
    ]


def test_dry_runs_and_a_sweep_are_timed(monkeypatch, default_config):
    planned = []

    def seconds(command):
        given = dict(a.split("=", 1) for a in command if "=" in a)
        if "studies" in given:
            planned.append(json.loads(given["studies"])["depth-mlx"])
            return float(len(planned[-1]["seeds"]))
        for n, value in enumerate((30.0, 50.0)):
            folder = Path(given["results"]) / f"runs/a/4L/mhc/torch/seed{n}"
            folder.mkdir(parents=True)
            (folder / "manifest.json").write_text(json.dumps({"seconds": value}))
        return 60.0

    monkeypatch.setattr(bench, "_seconds", seconds)
    monkeypatch.setattr(bench.os, "cpu_count", lambda: 2)
    study = default_config.studies["depth-mlx"]
    rows = [(r.metric, r.value) for r in bench.dry_run_rows(turns=2)]
    per_seed = len(planned[0]["depths"]) * len(study.labels) * len(study.backends)
    assert rows == [(f"dry-run of {per_seed * n} cells", n) for n in (3, 30, 300)]
    assert planned[0]["exclude"] == []
    assert [(r.metric, r.value) for r in bench.sweep_rows()] == [
        ("wall", 60),
        ("training seconds per core", 40),
        ("wall over training seconds per core", 1.5),
    ]


def test_a_command_that_fails_is_one_line():
    command = [sys.executable, "-c", r"import sys; sys.exit('first\nno such thing')"]
    with pytest.raises(BackendError, match=r"… failed: no such thing$"):
        bench._seconds(command)


# --- the table -----------------------------------------------------------------------------------


def table_of(file):
    with file.open(newline="", encoding="utf-8") as opened:
        return list(csv.DictReader(opened))


def test_a_part_replaces_its_own_rows_and_no_others(known, tmp_path, monkeypatch):
    out, said = tmp_path / "bench.csv", []
    monkeypatch.setattr(bench, "_seconds", lambda command: 7.0)
    bench.write_bench(out, ["dry-run"], [], 1, 1, said.append)
    bench.write_bench(out, ["steps"], ["demo"], 2, 1, said.append)
    first = table_of(out)
    assert [row["part"] for row in first[:3]] == ["dry-run"] * 3
    assert len(first) == len([line for line in said if not line.startswith("steps without")])
    monkeypatch.setattr(bench, "_seconds", lambda command: 20.0)
    bench.write_bench(out, ["dry-run"], [], 1, 1, said.append)
    second = table_of(out)
    assert second[:-3] == first[3:]
    assert [(row["value"], row["met"]) for row in second[-3:]] == [
        ("20.0", ""), ("20.0", ""), ("20.0", "no"),
    ]  # fmt: skip
    targets = {
        (r["metric"], r["backend"], r["variant"]): (r["target"], r["met"])
        for r in second
        if r["target"]
    }
    assert targets["textbook over ours", "torch", "mhc"] == (">= 2.5", "yes")  # 3.75
    assert targets["over baseline", "torch", "mhc"] == ("<= 1.15", "no")  # 2
    assert targets["over torch", "mlx", "mhc"] == ("<= 3", "yes")  # 2.5
    assert any("(target <= 1.15: no)" in line for line in said)


def test_outside_the_project_nothing_is_measured(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BackendError, match="benchmarks/textbook is not here; run bench in"):
        bench.write_bench(tmp_path / "bench.csv", ["startup"], [], 1, 1, print)


def test_a_target_is_set_for_something_that_is_measured():
    """A metric or a variant that is renamed must not lose its target or its note in silence."""
    assert {metric for metric, _ in bench.NOTES} <= {name for name, _ in BY_HAND}
    for metric, size, backend, variant in bench.TARGETS:
        if size:
            assert metric in {name for name, _ in BY_HAND}
            study = bench.sizes().studies[size]
            assert variant in study.labels
            assert backend in study.backends
