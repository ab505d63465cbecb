"""MLX on gpu (Apple's, or CUDA where MLX is built for it) or cpu."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np

from fathom.operations.mlx_ops import BLAS, MlxOps  # before MLX: it chooses the BLAS MLX binds to
from fathom_study.backends import (
    Backend,
    Device,
    InferredFunction,
    ObjectiveFunction,
    Trainer,
    choose_device,
)

# isort: split
import mlx.core as mx
import mlx.optimizers
from mlx.core import array

from fathom_study.batch import Batch
from fathom_study.optimizers import (
    OptimizerConfig,
    ParamGroup,
    ScheduledValues,
    clip_coefficient,
    muon,
)
from fathom_study.system.hardware import cpu_model

COMPILE_SWITCH = "FATHOM_MLX_COMPILE"
"""Environment variable: `off` leaves the step uncompiled on a GPU too."""

NamedArrays = dict[str, array]


def l2_norm(x: array) -> array:
    """√Σx², summed axis by axis, since one long float32 sum would lose precision."""
    return mx.sqrt(mx.sum(mx.sum(mx.square(x), axis=-1)))


class MlxTrainer(Trainer):
    """Updates of stacked parameters; on a GPU the whole step is compiled."""

    def __init__(
        self,
        ops: MlxOps,
        params: dict[str, np.ndarray],
        objective: ObjectiveFunction,
        update: OptimizerConfig,
    ) -> None:
        self.ops = ops
        self.update = update
        self.objective = objective
        self.params = {name: ops.asarray(value) for name, value in params.items()}
        self.adams = [self._adam(group) for group in update.groups if group.rule == "adamw"]
        self.averages = {
            name: mx.zeros_like(self.params[name])
            for group in update.groups
            if group.rule == "muon"
            for name in group.names
        }
        self.steps = 0
        self.measured: list[NamedArrays] = []
        self.whole_step = self._whole_step
        # On the CPU, compilation runs a C compiler for ten seconds and does not speed up mixing.
        if mx.default_device() == mx.gpu and os.environ.get(COMPILE_SWITCH, "on") != "off":
            mutated = [self.params, self.averages, [adam.state for _, adam in self.adams]]
            self.whole_step = mx.compile(self._whole_step, inputs=mutated, outputs=mutated)

    def _adam(self, group: ParamGroup) -> tuple[ParamGroup, mlx.optimizers.Adam]:
        update = self.update
        adam = mlx.optimizers.Adam(
            learning_rate=group.lr,
            betas=[update.beta1, update.beta2],
            eps=update.eps,
            bias_correction=update.bias_correction,
        )
        adam.init({name: self.params[name] for name in group.names})
        return group, adam

    def step(self, batches: Sequence[Batch], scheduled: ScheduledValues) -> None:
        for group, adam in self.adams:
            adam.learning_rate = group.lr * scheduled.rate
        arrays = [batch.arrays(self.ops.asarray) for batch in batches]
        measured = self.whole_step(arrays, mx.array([scheduled.rate, scheduled.momentum]))
        # Start the computation: unevaluated steps would only accumulate as a graph.
        mx.async_eval(measured, self.params, self.averages, [adam.state for _, adam in self.adams])
        self.measured.append(measured)
        self.steps += 1

    def _whole_step(self, batches: list[NamedArrays], scheduled: array) -> NamedArrays:
        loss, grads, report = self._mean_over(batches)
        norms = mx.stack([l2_norm(grads[name]) for name in self.params])
        if self.update.clip is not None:
            factor = clip_coefficient(self.ops, norms, self.update.clip)
            grads = {name: g * factor for name, g in grads.items()}
        self._apply(grads, scheduled)
        return {"loss": loss, "grad_norms": norms, **report}

    def _mean_over(self, batches: list[NamedArrays]) -> tuple[array, NamedArrays, NamedArrays]:
        """(Mean loss, mean gradients, last batch's reports; `logits_finite` is of all batches)."""
        losses, sums, finite = [], None, []
        for arrays in batches:
            (loss, report), grads = mx.value_and_grad(self.objective)(
                self.params, Batch.of_arrays(arrays)
            )
            sums = grads if sums is None else {k: sums[k] + g for k, g in grads.items()}
            losses.append(loss)
            finite.append(report["logits_finite"])
        if len(batches) == 1:
            return losses[0], sums, report
        report["logits_finite"] = mx.all(mx.stack(finite))
        means = {name: g / len(batches) for name, g in sums.items()}
        return mx.mean(mx.stack(losses)), means, report

    def _apply(self, grads: NamedArrays, scheduled: array) -> None:
        for group, adam in self.adams:
            # AdamW is Adam on decayed parameters.
            kept = 1 - adam.learning_rate * group.decay
            before = {name: self.params[name] * kept for name in group.names}
            own = {name: grads[name] for name in group.names}
            self.params.update(adam.apply_gradients(own, before))
        for group in self.update.groups:
            if group.rule == "muon":
                for name in group.names:
                    self.params[name], self.averages[name] = muon(
                        self.ops, self.params[name], grads[name], self.averages[name],
                        scheduled[0] * group.lr, scheduled[1], group.parts,
                    )  # fmt: skip

    def infer(self, function: InferredFunction, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        arrays = {name: self.ops.asarray(x) for name, x in inputs.items()}
        return np.array(function(self.params, arrays))

    def collect(self) -> dict[str, np.ndarray]:
        measured, self.measured = self.measured, []
        return {name: np.array(mx.stack([m[name] for m in measured])) for name in measured[0]}

    def state(self) -> dict[str, np.ndarray]:
        state = {"step": np.array(self.steps)}
        state |= {f"param.{name}": np.array(value) for name, value in self.params.items()}
        state |= {f"m.{name}": np.array(value) for name, value in self.averages.items()}
        for group, adam in self.adams:
            for name in group.names:
                state |= {f"{kind}.{name}": np.array(adam.state[name][kind]) for kind in "mv"}
        return state

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        self.steps = int(state["step"])
        for name in self.params:
            self.params[name] = self.ops.asarray(state[f"param.{name}"])
        for name in self.averages:
            self.averages[name] = self.ops.asarray(state[f"m.{name}"])
        for group, adam in self.adams:
            adam.state["step"] = mx.array(self.steps, dtype=mx.uint64)
            for name in group.names:
                for kind in "mv":
                    adam.state[name][kind] = self.ops.asarray(state[f"{kind}.{name}"])


class MlxBackend(Backend):
    """MLX on one device."""

    trainer_class = MlxTrainer

    def __init__(self, kind: str) -> None:
        gpu = kind == "gpu"
        self.ops = MlxOps(on_host=not gpu, once=True)
        info = mx.device_info() if gpu else {}
        self.device = Device(
            framework="mlx",
            framework_version=mx.__version__,
            kind=kind,
            name=str(info.get("device_name", "GPU")) if gpu else cpu_model(),
            blas=None if gpu else BLAS,
        )

    def peak_memory_bytes(self) -> int | None:
        return mx.get_peak_memory() if self.device.kind == "gpu" else None


def connect(device: str = "auto") -> MlxBackend:
    """MLX on `device` (auto: gpu, else cpu). Raises BackendError for a missing device."""
    device = choose_device("mlx", device, {"gpu": mx.is_available(mx.gpu), "cpu": True})
    mx.set_default_device(mx.gpu if device == "gpu" else mx.cpu)
    return MlxBackend(device)
