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

from fathom import tasks
from fathom.backends import Backend, Trainer, connect
from fathom.config import Spec, check_config
from fathom.models.connections.causal import Causal, CausalConnection, History
from fathom.models.connections.connection import ConnectionContext
from fathom.models.network import Network
from fathom.models.ops import Array, Ops
from fathom.optimizers import ScheduledValues, optimizer_config


class PlainSum(CausalConnection):
    """A causal connection whose every layer sums its whole history, state by state."""

    def read(self, ops: Ops, state: History, k: int) -> tuple[Array, History]:
        x = state.weights[k, 0] * state.states[0]
        for j in range(1, k + 1):
            x = x + state.weights[k, j] * state.states[j]
        return x, state._replace(read=x)


class PlainCausal(Causal):
    """The settings of such a connection: those of `causal`."""

    def at(self, context: ConnectionContext) -> PlainSum:
        """The scheme at its site."""
        return PlainSum(self, context)


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
    networks = {name: tasks.Problem(spec).network for name, spec in specs.items()}
    causal = specs["mhc_causal"]
    scheme = PlainCausal.model_validate(causal.connection.model_dump())
    task = tasks.load(causal.task)
    networks["plain"] = task.network(causal.model, causal.depth, causal.recipe, scheme)
    trainers = {
        "resnet": start(backend, specs["resnet"], networks["resnet"]),
        "blocks": start(backend, causal, networks["mhc_causal"]),
        "plain": start(backend, causal, networks["plain"]),
    }
    seconds: dict[str, list[float]] = {name: [] for name in trainers}
    gradients, logits = {}, {}
    for repeat in range(options.repeats + 1):
        for name, trainer in trainers.items():
            begun = time.perf_counter()
            # Too small a step to part the two sums.
            trainer.step(
                [tasks.Batch({"images": images}, labels)], ScheduledValues(rate=1e-6, momentum=0.0)
            )
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
    study = {
        "task": "fashion", "recipe": "mlx-defaults", "variants": [variant], "streams": 1,
        "depths": [depth], "backends": [options.backend], "seeds": [0], "steps": 1,
        "batch_size": options.batch, "model": {"width": options.width, "dropout": 0.0},
        "optimizer": {"lr": 8e-4, "beta1": 0.0, "weight_decay": 0.1},
    }  # fmt: skip
    config = check_config({"studies": {"benchmark": study}})
    return config.spec(config.cells()[0])


def start(backend: Backend, spec: Spec, network: Network) -> Trainer:
    """A trainer that also reports its logits."""

    def objective(params: dict, batch: tasks.Batch) -> tuple[object, dict]:
        output = network.forward(backend.ops, params, batch.inputs)
        loss = backend.ops.cross_entropy(output.logits, batch.targets)
        finite = backend.ops.all_finite(output.logits)
        return loss, {"logits": output.logits, "logits_finite": finite}

    params = tasks.Problem(spec).initial_parameters()
    return backend.trainer(params, objective, optimizer_config(spec, network.parameters()))


def relative(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference, relative to the largest entry."""
    return float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30))


if __name__ == "__main__":
    main()
