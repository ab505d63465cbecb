"""Causal mixing by finished blocks against the plain sum, and against the residual network.

    python benchmarks/causal_mixing.py --depths 50 100 200 500 --width 8 --batch 4

For every depth: median seconds per training step of `resnet`, `mhc_causal` and the plain sum, taken
in turns in one process, and the largest difference of logits and gradients between the two sums,
relative to the largest entry.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from fathom.backends import Backend, Objective, Trainer, connect
from fathom.models import vision
from fathom.models.connections import CausalManifoldConnection, Connection, PlainCausalConnection
from fathom.recipes import RECIPES
from fathom.study import Spec
from fathom.train import connection_of, initial_parameters


class PlainManifoldConnection(CausalManifoldConnection):
    """`mhc_causal` with the plain sum."""

    read = PlainCausalConnection.read


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--depths", type=int, nargs="+", default=[50, 100, 200, 500])
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--backend", default="torch")
    options = parser.parse_args()
    backend = connect(options.backend, "cpu", options.threads)
    print(f"{backend.device.framework} {backend.device.framework_version}, {backend.device.name}, "
          f"{options.threads} threads, width {options.width}, batch {options.batch}")  # fmt: skip
    print("depth  resnet s  blocks s  plain s  blocks/resnet  plain/resnet  logits    gradients")
    for depth in options.depths:
        print(measure(backend, depth, options), flush=True)


def measure(backend: Backend, depth: int, options: argparse.Namespace) -> str:
    """One line of the table."""
    rng = np.random.default_rng(0)
    images = rng.random((options.batch, 28, 28, 1), dtype=np.float32)
    labels = rng.integers(0, 10, options.batch).astype(np.int32)
    specs = {name: spec_of(name, depth, options) for name in ("resnet", "mhc_causal")}
    causal = connection_of(specs["mhc_causal"])
    trainers = {
        "resnet": start(backend, specs["resnet"], connection_of(specs["resnet"])),
        "blocks": start(backend, specs["mhc_causal"], causal),
        "plain": start(backend, specs["mhc_causal"], PlainManifoldConnection(1, 20)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in trainers}
    gradients, logits = {}, {}
    for repeat in range(options.repeats + 1):
        for name, trainer in trainers.items():
            begun = time.perf_counter()
            trainer.step((images,), labels, 1e-9)  # too small a step to part the two sums
            measured = trainer.collect()
            if repeat:
                seconds[name].append(time.perf_counter() - begun)
            else:  # the first step is warm-up; β1 is 0, so its moments are the gradients
                logits[name] = measured["logits"][0]
                gradients[name] = trainer.state()
    r, b, p = (statistics.median(seconds[name]) for name in ("resnet", "blocks", "plain"))
    gradient = max(
        relative(gradients["blocks"][name], value)
        for name, value in gradients["plain"].items()
        if name.startswith("m.")
    )
    difference = relative(logits["blocks"], logits["plain"])
    return (
        f"{depth:5d}  {r:8.3f}  {b:8.3f}  {p:7.3f}  {b / r:13.2f}  {p / r:12.2f}  "
        f"{difference:.1e}  {gradient:.1e}"
    )


def spec_of(variant: str, depth: int, options: argparse.Namespace) -> Spec:
    """The published optimiser, at the asked sizes, without dropout."""
    return Spec.model_validate(
        {
            "study": "benchmark", "depth": depth, "variant": variant, "backend": options.backend,
            "seed": 0, "task": "fashion", "recipe": "mlx", "steps": 1,
            "batch_size": options.batch, "model": {"width": options.width, "dropout": 0.0},
            "optimizer": {"lr": 8e-4, "beta1": 0.0, "weight_decay": 0.1},
        }
    )  # fmt: skip


def start(backend: Backend, spec: Spec, connection: Connection) -> Trainer:
    """A trainer that also reports its logits."""

    def objective(params: dict, inputs: tuple, targets: object) -> Objective:
        output = vision.forward(backend.ops, spec.model, connection, params, *inputs)
        loss = backend.ops.cross_entropy(output.logits, targets)
        return Objective(loss, {"logits": output.logits})

    return backend.trainer(
        initial_parameters(spec), objective, spec.optimizer, RECIPES[spec.recipe]
    )


def relative(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference, relative to the largest entry."""
    return float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30))


if __name__ == "__main__":
    main()
