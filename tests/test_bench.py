"""Bench: the textbook steps compute what the models compute, and every ratio follows by hand."""

import csv
import importlib
import io
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from fathom import tasks
from fathom.backends import BackendError
from fathom.bench import measure as bench
from fathom.bench import worker
from fathom.runs.estimate import operations_of_step
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
    params = tasks.initial_parameters(spec)
    (tokens,), targets = tasks.load(spec.task).batch(spec, 0)
    trainer.step([tasks.Batch((tokens,), targets)], STEADY)
    (row,) = step_rows(tasks.network_of(spec), trainer.collect(), list(params))
    return params, (tokens, targets), row


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


@pytest.mark.parametrize("variant", ["hc_paper", "mhc_paper"])
def test_pypis_connections_wrap_the_same_network(variant, connect_cpu, start):
    """Both hc start as the ordinary residual network; their mhc does not start as ours does."""
    pytest.importorskip("hyper_connections")
    spec = bench.spec_for("sublayer", variant, "torch", depth=3)
    spec = spec.model_copy(update={"batch_size": 2})
    _, batch, ours = our_step(start(connect_cpu("torch"), spec), spec)
    losses = [steps["loss"] for steps in two_steps(spec, batch)]
    if variant == "hc_paper":
        assert math.isclose(losses[0], ours["loss"], rel_tol=1e-5)
    assert losses[1] < losses[0]


def two_steps(spec, batch):
    pypi = importlib.import_module("pypi.torch").Steps(spec)
    return [pypi.step(*batch) for _ in range(2)]


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
    spec = spec_of("mhc", backend.device.framework)
    ready, steps, product, memory = answers(spec, side, "steps 2", "matmul 1", "memory")
    assert ready == {"ready": True}
    assert steps["seconds"] > 0
    assert product["seconds"] > 0
    assert memory["bytes"] > 10e6
    assert 0 <= memory["of_steps"] < memory["bytes"]


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


def test_a_variant_that_the_textbook_lacks_is_not_ready(answers, connect_cpu):
    connect_cpu("mlx")
    assert answers(spec_of("baseline", "mlx"), "textbook", "steps 1") == [{"ready": False}]


def test_a_backend_without_a_file_is_not_ready(answers, connect_cpu):
    connect_cpu("mlx")
    spec = bench.spec_for("sublayer", "mhc_paper", "mlx", depth=1)
    assert answers(spec, "pypi", "steps 1") == [{"ready": False}]


def test_a_package_that_is_not_installed_has_no_steps(answers, connect_cpu, monkeypatch):
    connect_cpu("torch")
    monkeypatch.delitem(sys.modules, "pypi.torch", raising=False)
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda n: None if n == "hyper_connections" else found(n)
    )
    spec = bench.spec_for("sublayer", "mhc_paper", "torch", depth=1)
    assert answers(spec, "pypi", "steps 1") == [{"ready": False}]
    monkeypatch.delitem(sys.modules, "pypi.torch")


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
    monkeypatch.setattr(bench, "WORKER", "this")  # a module that answers nothing
    monkeypatch.setattr(bench.subprocess, "Popen", silent := Silent())
    with pytest.raises(BackendError, match=r"^this ended with status 3$"):
        bench.Worker(spec_of("mhc", "torch"), "ours", threads=1)
    assert silent.arguments[1:3] == ["-m", "this"]


class Silent:
    """A process that ends before it says anything."""

    def __call__(self, arguments, **streams):
        self.arguments = arguments
        self.stdout = io.StringIO("")
        return self

    def wait(self):
        return 3


# --- what follows from seconds -------------------------------------------------------------------


SECONDS = {
    ("torch", "baseline", "ours"): (9, 0.010, 0.014),
    ("torch", "hc", "ours"): (9, 0.018, 0.018),
    ("torch", "mhc", "ours"): (9, 0.020, 0.028),
    ("torch", "baseline", "textbook"): (9, 0.040, 0.042),
    ("torch", "mhc", "textbook"): (9, 0.100, 0.070),
    ("torch", "mhc", "pypi"): (9, 0.060, 0.112),
    ("mlx", "baseline", "ours"): (9, 0.020, 0.028),
    ("mlx", "hc", "ours"): (9, 0.054, 0.054),
    ("mlx", "mhc", "ours"): (9, 0.050, 0.070),
    ("mlx", "mhc", "textbook"): (9, 3.0, 4.2),
}
"""By (backend, variant, side): the warm-up, then two turns; absent: there is no such side."""

MATMUL = {"torch": [0.02, 0.01], "mlx": [0.05, 0.04]}

asked = []
"""(variant, side, command) of every command, in order."""


class KnownWorker:
    """Answers as a worker whose seconds are known."""

    def __init__(self, spec, side, threads, blas="auto"):
        self.spec, self.side, self.blas = spec, side, blas
        seconds = SECONDS.get((spec.backend, spec.variant, side))
        self.is_ready = seconds is not None
        self.seconds = list(seconds or ())
        self.matmul = list(MATMUL[spec.backend])

    def ask(self, command):
        asked.append((self.spec.variant, self.side, command))
        what, _, _ = command.partition(" ")
        if what == "memory":
            of_steps = {"baseline": 2**29, "hc": 2**28, "mhc": 2**30}[self.spec.variant]
            side = {"ours": 2, "textbook": 3, "pypi": 4}[self.side]
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


def found_in(rows):
    return {(r.measure, r.backend, r.variant): r for r in rows}


def test_steps_by_hand(known):
    rows = list(bench.step_rows(["demo"], turns=2, threads=1))
    assert {(r.part, r.size, r.threads) for r in rows} == {("steps", "demo", 1)}
    values = {key: row.value for key, row in found_in(rows).items()}
    assert len(values) == len(rows)
    step = {key: value for key, value in values.items() if key[0].endswith(" step")}
    assert step == pytest.approx(  # medians of the two turns, in milliseconds
        {
            ("ours step", "torch", "baseline"): 12, ("textbook step", "torch", "baseline"): 41,
            ("ours step", "torch", "hc"): 18,
            ("ours step", "torch", "mhc"): 24, ("textbook step", "torch", "mhc"): 85,
            ("pypi step", "torch", "mhc"): 86,
            ("ours step", "mlx", "baseline"): 24,
            ("ours step", "mlx", "hc"): 54,
            ("ours step", "mlx", "mhc"): 60, ("textbook step", "mlx", "mhc"): 3600,
        }
    )  # fmt: skip
    ratios = {
        key: value
        for key, value in values.items()
        if "over" in key[0].split() and "memory" not in key[0]
    }
    assert ratios == pytest.approx(
        {
            # The median over turns of how many times longer the textbook took in that turn.
            ("textbook over ours", "torch", "baseline"): 3.5,  # of 4 and 3
            ("textbook over ours", "torch", "mhc"): 3.75,  # of 5 and 2.5
            ("textbook over ours", "mlx", "mhc"): 60,  # of 60 and 60
            ("pypi over ours", "torch", "mhc"): 3.5,  # of 3 and 4
            ("over baseline", "torch", "hc"): (18 / 10 + 18 / 14) / 2,
            ("over baseline", "torch", "mhc"): 2,  # of 2 and 2
            ("over baseline", "mlx", "hc"): (54 / 20 + 54 / 28) / 2,
            ("over baseline", "mlx", "mhc"): 2.5,  # of 2.5 and 2.5
            ("over torch", "mlx", "baseline"): 2,
            ("over torch", "mlx", "hc"): 3,
            ("over torch", "mlx", "mhc"): 2.5,
        }
    )


def test_the_range_of_turns_by_hand(known):
    rows = found_in(bench.step_rows(["demo"], turns=2, threads=1))
    ratio, step = (rows[m, "torch", "mhc"] for m in ("textbook over ours", "ours step"))
    assert (ratio.low, ratio.high) == pytest.approx((2.5, 5))
    assert (step.low, step.high) == pytest.approx((20, 28))
    assert (ratio.unit, step.unit) == ("×", "ms")


def test_memory_and_the_rate_of_products_by_hand(known):
    rows = found_in(bench.step_rows(["demo"], turns=2, threads=1))
    assert rows["ours memory", "torch", "mhc"].value == 2048
    assert rows["textbook memory", "torch", "mhc"].value == 3072
    # What the steps took, without what the process held before: 1 GiB and a quarter over a half.
    assert rows["memory over baseline", "torch", "mhc"].value == 2
    assert rows["memory over baseline", "torch", "hc"].value == 0.5
    # 1024 columns and rows of 1024 products and sums each, in the faster of two turns.
    rate = 2 * 1024**3 / 0.01
    assert rows["matmul rate", "torch", ""].value == pytest.approx(rate / 1e9)
    flops = operations_of_step(bench.spec_for("demo", "mhc", "torch"))
    assert rows["share of matmul rate", "torch", "mhc"].value == pytest.approx(flops / 0.024 / rate)


def test_sides_take_turns_and_the_first_does_not_count(known):
    workers = {
        (side,): KnownWorker(bench.spec_for("demo", "mhc", "torch"), side, 1)
        for side in ("ours", "textbook")
    }
    times = bench.in_turns(workers, turns=2)
    assert times == {("ours",): [0.020, 0.028], ("textbook",): [0.100, 0.070]}
    order = [side for _, side, _ in asked]
    assert order == ["ours", "textbook"] * 3


@pytest.mark.parametrize(("once", "count"), [(9, 1), (0.5, 1), (0.1, 5), (0.3, 2), (0.001, 50)])
def test_a_turn_takes_about_half_a_second_and_at_most_fifty_steps(known, monkeypatch, once, count):
    monkeypatch.setitem(SECONDS, ("torch", "mhc", "ours"), (once, 1.0))
    one = KnownWorker(bench.spec_for("demo", "mhc", "torch"), "ours", 1)
    assert bench.in_turns({("ours",): one}, turns=1) == {("ours",): [1.0]}
    assert [command for *_, command in asked] == ["steps 1", f"steps {count}"]


def test_the_textbook_runs_on_the_plain_wheel(known, monkeypatch):
    started = []

    class Noted(KnownWorker):
        def __init__(self, spec, side, threads, blas="auto"):
            started.append((side, threads, blas))
            super().__init__(spec, side, threads, blas)

    monkeypatch.setattr(bench, "Worker", Noted)
    list(bench.step_rows(["demo"], turns=2, threads=3))
    assert set(started) == {("ours", 3, "auto"), ("textbook", 3, "off"), ("pypi", 3, "auto")}


def test_growth_by_hand(monkeypatch):
    class ByDepth(KnownWorker):
        def __init__(self, spec, side, threads, blas="auto"):
            assert (side, spec.study) == ("ours", "default")
            self.spec, self.side, self.matmul = spec, side, []
            self.seconds = [9, 0.001 * spec.depth, 0.003 * spec.depth]

    monkeypatch.setattr(bench, "Worker", ByDepth)
    monkeypatch.setattr(bench, "installed_backends", lambda: ("torch",))
    rows = list(bench.growth_rows(turns=2, threads=1))
    assert {(r.measure, r.variant): (r.value, r.low, r.high) for r in rows} == {
        (f"step at {depth} layers", variant): pytest.approx((2 * depth, depth, 3 * depth))
        for depth in (12, 24, 48, 96)
        for variant in VARIANTS
    }


def test_each_part_of_a_start_is_what_it_adds(monkeypatch):
    monkeypatch.setattr(bench, "installed_backends", lambda: ("torch",))

    def seconds(command):
        arguments = " ".join(command[1:3])
        for text, value in (("-m fathom", 4.0), ("fathom.cli", 3.0), ("load", 2.5)):
            if text in arguments:
                return value
        return 0.5

    monkeypatch.setattr(bench, "_seconds", seconds)
    assert [(r.measure, r.value) for r in bench.startup_rows(turns=1)] == [
        ("interpreter", 0.5),
        ("framework", 2.0),
        ("fathom", 0.5),
        ("first step", 1.0),
        ("job of one step", 4.0),
    ]


def test_dry_runs_plan_as_many_cells_as_they_say(monkeypatch, default_config):
    planned = []

    def seconds(command):
        (studies,) = (a for a in command if a.startswith("studies="))
        planned.append(json.loads(studies.removeprefix("studies="))["depth-mlx"]["seeds"])
        return float(len(planned[-1]))

    monkeypatch.setattr(bench, "_seconds", seconds)
    rows = list(bench.dry_run_rows(turns=2))
    study = default_config.studies["depth-mlx"]
    per_seed = len(study.depths) * len(study.labels) * len(study.backends)
    assert [r.measure for r in rows] == [f"dry-run of {per_seed * n} cells" for n in (3, 30, 300)]
    assert [r.value for r in rows] == [3, 30, 300]


def test_a_sweep_is_set_against_its_training_seconds(monkeypatch):
    def seconds(command):
        (results,) = (a for a in command if a.startswith("results="))
        for n, value in enumerate((30.0, 50.0)):
            folder = Path(results.removeprefix("results=")) / f"runs/a/4L/mhc/torch/seed{n}"
            folder.mkdir(parents=True)
            (folder / "manifest.json").write_text(json.dumps({"seconds": value}))
        return 60.0

    monkeypatch.setattr(bench, "_seconds", seconds)
    monkeypatch.setattr(bench.os, "cpu_count", lambda: 2)
    assert [(r.measure, r.value) for r in bench.sweep_rows()] == [
        ("wall", 60),
        ("training seconds per core", 40),
        ("wall over training seconds per core", 1.5),
    ]


def test_a_command_that_fails_is_one_line():
    command = [sys.executable, "-c", r"import sys; sys.exit('first\nno such thing')"]
    with pytest.raises(BackendError, match=r"… failed: no such thing$"):
        bench._seconds(command)


def test_flops_are_those_of_a_network_counted_by_hand():
    """One layer, D 32, F 128, T 16, B 8, V 64: 3·2·128 tokens · (12 288 + 1 024 + 2 048)."""
    spec = bench.spec_for("default", "baseline", "torch", depth=1)
    assert operations_of_step(spec) == 3 * 2 * 128 * (12_288 + 1_024 + 2_048)


@pytest.mark.parametrize(
    ("value", "target", "met"),
    [(2.6, ">= 2.5", "yes"), (2.4, ">= 2.5", "no"), (1.3, "<= 1.2", "no"), (1.0, "", "")],
)
def test_a_target_is_met_or_missed(value, target, met):
    assert bench.Row("steps", "m", "demo", "torch", "mhc", value, "×", target=target).met == met


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
    assert [row["value"] for row in second[-3:]] == ["20.0"] * 3


def test_targets_stand_beside_what_they_are_set_for(known, tmp_path):
    said = []
    bench.write_bench(tmp_path / "bench.csv", ["steps"], ["demo"], 2, 1, said.append)
    rows = {
        (r["measure"], r["backend"], r["variant"]): (r["target"], r["met"])
        for r in table_of(tmp_path / "bench.csv")
        if r["target"]
    }
    assert rows["textbook over ours", "torch", "mhc"] == (">= 2.5", "yes")  # 3.75
    assert rows["textbook over ours", "torch", "baseline"] == (">= 1.7", "yes")  # 3.5
    assert rows["over baseline", "torch", "mhc"] == ("<= 1.15", "no")  # 2
    assert rows["textbook over ours", "mlx", "mhc"] == (">= 20", "yes")  # 60
    assert rows["over torch", "mlx", "mhc"] == ("<= 3", "yes")  # 2.5
    assert any("(target <= 1.15: no)" in line for line in said)


@pytest.mark.parametrize("here", [True, False])
def test_a_line_says_that_the_package_is_not_here(known, tmp_path, monkeypatch, here):
    said = []
    monkeypatch.setattr(bench.importlib.util, "find_spec", lambda name: here or None)
    bench.write_bench(tmp_path / "bench.csv", ["steps"], ["demo"], 2, 1, said.append)
    assert ("pip install -e '.[bench]'" in said[0]) is not here


def test_outside_the_project_nothing_is_measured(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BackendError, match="benchmarks/textbook is not here; run bench in"):
        bench.write_bench(tmp_path / "bench.csv", ["startup"], [], 1, 1, print)


def test_a_target_is_set_for_something_that_is_measured():
    """A measure or a variant that is renamed must not lose its target in silence."""
    measured = {
        "textbook over ours", "pypi over ours", "over baseline", "over torch",
        "share of matmul rate", "memory over baseline",
    }  # fmt: skip
    for measure, size, backend, variant in bench.TARGETS:
        if size:
            assert measure in measured
            assert size in bench.sizes().studies
            assert variant in bench.sizes().studies[size].labels
            assert backend in bench.sizes().studies[size].backends
