"""One side of a comparison, in a process of its own that computes only when it is told to.

    python benchmarks/worker.py '{"side": "ours", "threads": 1, "blas": "auto", "spec": {…}}'

`fathom bench` starts several and lets them take turns. Each line on stdin is a command, each line
on stdout its answer in JSON: `steps N` → seconds of each of N training steps, metrics included;
`matmul N` → seconds of each of N products of two 1024×1024 matrices; `memory` → the most bytes that
the process has held.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fathom import tasks
from fathom.backends import Backend, connect
from fathom.bench import MATRIX, MODULES
from fathom.hardware import peak_host_memory_bytes
from fathom.recipes import RECIPES
from fathom.study import Spec
from fathom.train import initial_parameters, objective, step_metrics, training_batch


def main() -> None:
    """Answer commands until stdin closes."""
    wanted = json.loads(sys.argv[1])
    spec = Spec.model_validate(wanted["spec"])
    backend = connect(spec.backend, "cpu", wanted["threads"], wanted["blas"])
    run = {"ours": ours, "textbook": textbook}[wanted["side"]](spec, backend)
    product = matmul(spec.backend)
    run(1)  # the first step allocates and compiles
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command, _, count = line.strip().partition(" ")
        if command == "memory":
            answer = {"bytes": peak_host_memory_bytes()}
        else:
            timed = {"steps": run, "matmul": product}[command]
            start = time.perf_counter()
            timed(int(count))
            answer = {"seconds": (time.perf_counter() - start) / int(count)}
        print(json.dumps(answer), flush=True)


def ours(spec: Spec, backend: Backend) -> Callable[[int], None]:
    """Steps as the training loop takes them, with metrics for every step."""
    params = initial_parameters(spec)
    function = objective(spec, backend.ops)
    trainer = backend.trainer(params, function, spec.optimizer, RECIPES[spec.recipe])

    def run(count: int) -> None:
        for step in range(count):
            trainer.step(*training_batch(spec, step), spec.optimizer.lr)
        list(step_metrics(spec, trainer.collect(), list(params)))

    return run


def textbook(spec: Spec, backend: Backend) -> Callable[[int], None]:
    """Steps as `benchmarks/textbook` takes them."""
    sys.path.insert(0, str(Path(__file__).parent))
    module = importlib.import_module(f"textbook.{backend.device.framework}")
    network = module.Textbook(spec)

    def run(count: int) -> None:
        for step in range(count):
            network.step(*tasks.load(spec.task).batch(spec, step))

    return run


def matmul(name: str) -> Callable[[int], None]:
    """Products of two square matrices, one after the other."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((MATRIX, MATRIX), dtype=np.float32) for _ in range(2))
    framework = importlib.import_module(MODULES[name])
    if name == "torch":
        x, y = framework.from_numpy(a), framework.from_numpy(b)
        return lambda count: [x @ y for _ in range(count)] and None
    x, y = framework.array(a), framework.array(b)
    return lambda count: [framework.eval(x @ y) for _ in range(count)] and None


if __name__ == "__main__":
    main()
