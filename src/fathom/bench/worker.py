"""One side of a comparison, in a process of its own that computes on command.

    python -m fathom.bench.worker '{"side": "ours", "threads": 1, "blas": "auto", "spec": {…}}'

`fathom bench` starts several, which take turns. The first line on stdout says whether the side has
such a step. Then each line on stdin is a command, and a line on stdout its answer in JSON:
`steps N` → seconds per step of N training steps with metrics; `matmul N` → seconds per product of N
products of square matrices; `memory` → the process's peak memory in bytes, and how much of it the
steps took.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Callable

import numpy as np

from fathom.backends import Backend, connect
from fathom.config import Spec, parse_spec
from fathom.models.ops import Ops
from fathom.system.errors import fail
from fathom.system.hardware import peak_host_memory_bytes
from fathom.tasks import Problem
from fathom.train import step_rows, take_step, trainer_for

MATRIX = 1024
"""Rows of the matrices whose product gives the machine's rate."""


def main() -> None:
    """Answer commands until stdin closes."""
    wanted = json.loads(sys.argv[1])
    spec = parse_spec(wanted["spec"], "bench")
    backend = connect(spec.backend, "cpu", wanted["threads"], wanted["blas"])
    side = wanted["side"]
    try:
        run = ours(spec, backend) if side == "ours" else theirs(side, spec)
    except ModuleNotFoundError as error:  # of a package that a side needs
        fail(f"side {side} needs {error.name}, which is not here; pip install -e '.[bench]'")
    if run is None:
        print(json.dumps({"ready": False}), flush=True)
        return
    product = matmul(backend.ops)
    before = peak_host_memory_bytes()
    run(1)  # the first step allocates and compiles
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command, _, count = line.strip().partition(" ")
        if command == "memory":
            peak = peak_host_memory_bytes()
            answer = {"bytes": peak, "of_steps": peak - before}
        else:
            timed = {"steps": run, "matmul": product}[command]
            start = time.perf_counter()
            timed(int(count))
            answer = {"seconds": (time.perf_counter() - start) / int(count)}
        print(json.dumps(answer), flush=True)


def ours(spec: Spec, backend: Backend) -> Callable[[int], None]:
    """Steps of the training loop, with metrics of every step."""
    problem = Problem(spec)
    trainer = trainer_for(problem, backend, problem.initial_parameters())

    def run(count: int) -> None:
        for step in range(count):
            take_step(problem, trainer, step)
        list(step_rows(problem, trainer.collect()))

    return run


def theirs(side: str, spec: Spec) -> Callable[[int], None] | None:
    """Steps of a folder in `benchmarks/`; None if it has none for the spec."""
    name = f"{side}.{spec.backend}"
    if importlib.util.find_spec(name) is None:
        return None
    module = importlib.import_module(name)
    if spec.variant not in module.VARIANTS:
        return None
    steps, problem = module.Steps(spec), Problem(spec)

    def run(count: int) -> None:
        for step in range(count):
            (batch,) = problem.batches(step)
            steps.step(*batch.inputs.values(), batch.targets)

    return run


def matmul(ops: Ops) -> Callable[[int], None]:
    """Products of square matrices, each of the previous one, so none can be optimised away."""
    rng = np.random.default_rng(0)
    factor = ops.asarray(rng.standard_normal((MATRIX, MATRIX), dtype=np.float32) / MATRIX**0.5)

    def run(count: int) -> None:
        product = factor
        for _ in range(count):
            product = product @ factor
        ops.to_numpy(product[0, 0])  # waits for the device

    return run


if __name__ == "__main__":
    main()
