"""JAX on cpu or gpu: an example of a backend. As src/fathom_study/backends/jax.py it is one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fathom.operations.ops import CustomVJP
from fathom_study.backends import Backend, BackendError, Device, ObjectiveFunction, Trainer
from fathom_study.batch import Batch
from fathom_study.optimizers import clip_coefficient, muon
from fathom_study.system.hardware import cpu_model

if TYPE_CHECKING:
    from fathom_study.optimizers import OptimizerConfig, ScheduledValues

# Read when JAX starts, hence before its import.
os.environ["PJRT_NPROC"] = os.environ["OMP_NUM_THREADS"]

import jax
import jax.numpy as jnp
from jax import Array


class JaxOps:
    """Ops in float32. Docstrings: `fathom.operations.ops`."""

    def asarray(self, x: np.ndarray) -> Array:
        return jnp.array(x, jnp.int32 if np.issubdtype(x.dtype, np.integer) else jnp.float32)

    def constant(self, x: np.ndarray) -> Array:
        return self.asarray(x)  # the compiled step holds it

    def unstack(self, x: Array) -> Sequence[Array]:
        return jnp.unstack(x)

    def split(self, x: Array, sizes: Sequence[int]) -> Sequence[Array]:
        return jnp.split(x, np.cumsum(list(sizes))[:-1], axis=-1)

    def reshape(self, x: Array, shape: Sequence[int]) -> Array:
        return jnp.reshape(x, shape)

    def transpose(self, x: Array, axes: Sequence[int]) -> Array:
        return jnp.transpose(x, axes)

    def broadcast(self, x: Array, shape: Sequence[int]) -> Array:
        return jnp.broadcast_to(x, shape)

    def concatenate(self, xs: Sequence[Array], axis: int) -> Array:
        return jnp.concatenate(xs, axis)

    def contiguous(self, x: Array) -> Array:
        return x

    def exp(self, x: Array) -> Array:
        return jnp.exp(x)

    def relu(self, x: Array) -> Array:
        return jax.nn.relu(x)

    def tanh(self, x: Array) -> Array:
        return jnp.tanh(x)

    def sigmoid(self, x: Array) -> Array:
        return jax.nn.sigmoid(x)

    def clip(self, x: Array, bound: float) -> Array:
        return jnp.clip(x, -bound, bound)

    def tril(self, x: Array) -> Array:
        return jnp.tril(x)

    def identity_like(self, x: Array) -> Array:
        return jnp.eye(x.shape[-1])

    def sqrt(self, x: Array) -> Array:
        return jnp.sqrt(x)

    def abs(self, x: Array) -> Array:
        return jnp.abs(x)

    def largest_size(self, x: Array) -> Array:
        return jnp.max(jnp.abs(x))

    def maximum(self, x: Array, floor: float) -> Array:
        return jnp.maximum(x, floor)

    def sum(self, x: Array, axis: int, keepdims: bool = False) -> Array:
        return jnp.sum(x, axis=axis, keepdims=keepdims)

    def mean(self, x: Array, axis: int) -> Array:
        return jnp.mean(x, axis=axis)

    def logsumexp(self, x: Array, axis: int) -> Array:
        return jax.nn.logsumexp(x, axis=axis, keepdims=True)

    def l2_norm(self, x: Array) -> Array:
        return jnp.linalg.norm(x, axis=-1, keepdims=True)

    def softmax(self, x: Array) -> Array:
        return jax.nn.softmax(x)

    def stack(self, xs: Sequence[Array]) -> Array:
        return jnp.stack(xs)

    def matmul(self, a: Array, b: Array) -> Array:
        return a @ b

    def add_matmul(self, c: Array, a: Array, b: Array) -> Array:
        return c + a @ b

    def add_product(self, a: Array, b: Array, c: Array) -> Array:
        return a + b * c

    def custom_vjp(self, function: CustomVJP, *xs: Array) -> tuple[Array, ...]:
        if function.is_composed:
            return function.plain(self, *xs)
        own = jax.custom_vjp(lambda *xs: function.forward(self, *xs)[0])
        own.defvjp(
            lambda *xs: function.forward(self, *xs),
            lambda saved, gradients: function.backward(self, saved, gradients),
        )
        return own(*xs)

    def sum_of_products(self, a: Array, b: Array) -> Array:
        return (a * b).sum(axis=1)

    def sum_of_outer_products(self, a: Sequence[Array], b: Sequence[Array]) -> Array:
        return (jnp.stack(a)[:, :, None] * jnp.stack(b)[:, None]).sum(axis=0)

    def weighted_sum(self, weights: Array, x: Array) -> Array:
        return (weights[:, :, None] * x).sum(axis=1)

    def row_products(self, row: Array, x: Array) -> Array:
        return (row[:, None] * x).sum(axis=2)

    def largest(self, x: Array, axis: int) -> Array:
        return x.max(axis=axis, keepdims=True)

    def tensordot(self, a: Array, b: Array) -> Array:
        return jnp.tensordot(a, b, axes=1)

    def embedding(self, table: Array, ids: Array) -> Array:
        return table[ids]

    def linear(self, x: Array, weight: Array, bias: Array | None = None) -> Array:
        y = x @ weight.T
        return y if bias is None else y + bias

    def gelu(self, x: Array) -> Array:
        return jax.nn.gelu(x, approximate=False)

    def layer_norm(self, x: Array, weight: Array, bias: Array) -> Array:
        return normed(x, axes=-1) * weight + bias

    def conv2d(self, x: Array, weight: Array, bias: Array, stride: int = 1) -> Array:
        border = ((1, 1), (1, 1))
        order = ("NHWC", "OHWI", "NHWC")
        y = jax.lax.conv_general_dilated(x, weight, (stride, stride), border, None, None, order)
        return y + bias

    def group_norm(self, x: Array, groups: int, weight: Array, bias: Array) -> Array:
        grouped = x.reshape(x.shape[0], -1, groups, x.shape[-1] // groups)
        return normed(grouped, axes=(1, 3)).reshape(x.shape) * weight + bias

    def causal_attention(self, q: Array, k: Array, v: Array) -> Array:
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))  # heads are JAX's third axis
        return jax.nn.dot_product_attention(q, k, v, is_causal=True).swapaxes(1, 2)

    def cross_entropy(self, logits: Array, targets: Array, weights: Array | None = None) -> Array:
        log_shares = jax.nn.log_softmax(logits)
        index = jnp.where(targets < 0, logits.shape[-1], targets)  # one below 0 would count back
        picked = jnp.take_along_axis(log_shares, index[..., None], -1, mode="fill").squeeze(-1)
        return -jnp.average(picked, weights=weights)

    def stop_gradient(self, x: Array) -> Array:
        return jax.lax.stop_gradient(x)

    def to_numpy(self, x: Array) -> np.ndarray:
        return np.asarray(x)

    def all_finite(self, x: Array) -> Array:
        return jnp.isfinite(x).all()


def normed(x: Array, axes: int | tuple[int, ...]) -> Array:
    """Mean 0 and variance 1 over the axes; zeros where the variance overflows.

    A division: the gradient of `rsqrt` cubes 1/σ, which underflows once σ passes 1e13.
    """
    centred = x - x.mean(axis=axes, keepdims=True)
    return centred / jnp.sqrt(jnp.square(centred).mean(axis=axes, keepdims=True) + 1e-5)


class JaxTrainer(Trainer):
    """Updates of stacked parameters, the whole step compiled."""

    def __init__(
        self,
        ops: JaxOps,
        params: dict[str, np.ndarray],
        objective: ObjectiveFunction,
        update: OptimizerConfig,
    ) -> None:
        self.ops, self.objective, self.update = ops, objective, update
        self.names = list(params)  # JAX sorts the keys of a dict; `grad_norms` keeps this order
        self.params = {name: ops.asarray(value) for name, value in params.items()}
        self.m = {name: jnp.zeros_like(value) for name, value in self.params.items()}
        adamw = [group.names for group in update.groups if group.rule == "adamw"]
        self.v = {name: self.m[name] for names in adamw for name in names}
        self.steps = 0
        self.measured: list[dict[str, Array]] = []
        self.whole_step = jax.jit(self._whole_step)

    def step(self, batches: Sequence[Batch], scheduled: ScheduledValues) -> None:
        self.steps += 1
        betas, corrects = (self.update.beta1, self.update.beta2), self.update.bias_correction
        corrections = [1 - beta**self.steps if corrects else 1.0 for beta in betas]
        state = (self.params, self.m, self.v)
        arrays = [batch.arrays(self.ops.asarray) for batch in batches]
        numbers = (scheduled.rate, scheduled.momentum, *corrections)
        (self.params, self.m, self.v), measured = self.whole_step(state, arrays, *numbers)
        self.measured.append(measured)

    def _whole_step(
        self,
        state: tuple[dict[str, Array], ...],
        batches: list[dict[str, Array]],
        rate: Array,
        momentum: Array,
        correction1: Array,
        correction2: Array,
    ) -> tuple[tuple[dict[str, Array], ...], dict[str, Array]]:
        params, m, v = map(dict, state)
        loss, grads, report = self._mean_over(params, batches)
        norms = jnp.stack([jnp.linalg.norm(grads[name].ravel()) for name in self.names])
        update = self.update
        if update.clip is not None:
            factor = clip_coefficient(self.ops, norms, update.clip)
            grads = {name: g * factor for name, g in grads.items()}
        for group in update.groups:
            lr = group.lr * rate
            for name in group.names:
                p, g = params[name], grads[name]
                if group.rule == "muon":
                    after = muon(self.ops, p, g, m[name], lr, momentum, group.parts)
                    params[name], m[name] = after
                    continue
                m[name] = update.beta1 * m[name] + (1 - update.beta1) * g
                v[name] = update.beta2 * v[name] + (1 - update.beta2) * jnp.square(g)
                size = jnp.sqrt(v[name] / correction2) + update.eps
                params[name] = p * (1 - lr * group.decay) - lr * (m[name] / correction1) / size
        return (params, m, v), {"loss": loss, "grad_norms": norms, **report}

    def _mean_over(
        self, params: dict[str, Array], batches: list[dict[str, Array]]
    ) -> tuple[Array, dict[str, Array], dict[str, Array]]:
        """Mean loss and gradients, and the reports: those of the last, but finite if all are."""

        def loss_and_report(
            params: dict[str, Array], arrays: dict[str, Array]
        ) -> tuple[Array, dict[str, Array]]:
            return self.objective(params, Batch.of_arrays(arrays))

        gradient = jax.value_and_grad(loss_and_report, has_aux=True)
        found = [gradient(params, arrays) for arrays in batches]
        losses = jnp.stack([loss for (loss, _), _ in found])
        reports = [report for (_, report), _ in found]
        grads = {name: sum(g[name] for _, g in found) / len(found) for name in params}
        finite = jnp.stack([report["logits_finite"] for report in reports]).all()
        return losses.mean(), grads, {**reports[-1], "logits_finite": finite}

    def infer(
        self,
        function: Callable[[dict[str, Array], dict[str, Array]], Array],
        inputs: Mapping[str, np.ndarray],
    ) -> np.ndarray:
        arrays = {name: self.ops.asarray(x) for name, x in inputs.items()}
        return np.asarray(jax.jit(function)(self.params, arrays))

    def collect(self) -> dict[str, np.ndarray]:
        measured, self.measured = self.measured, []
        return {name: np.stack([np.asarray(m[name]) for m in measured]) for name in measured[0]}

    def state(self) -> dict[str, np.ndarray]:
        state = {"step": np.array(self.steps)}
        for kind, values in (("param", self.params), ("m", self.m), ("v", self.v)):
            state |= {f"{kind}.{name}": np.array(value) for name, value in values.items()}
        return state

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        self.steps = int(state["step"])
        self.params, self.m, self.v = (
            {name: self.ops.asarray(state[f"{kind}.{name}"]) for name in values}
            for kind, values in (("param", self.params), ("m", self.m), ("v", self.v))
        )


class JaxBackend(Backend):
    """JAX on one device."""

    trainer_class = JaxTrainer

    def __init__(self, kind: str) -> None:
        self.ops = JaxOps()
        self.place = jax.devices(kind)[0]
        name = cpu_model() if kind == "cpu" else self.place.device_kind
        self.device = Device("jax", jax.__version__, kind, name)

    def peak_memory_bytes(self) -> int | None:
        statistics = self.place.memory_stats()  # none on the CPU
        return statistics["peak_bytes_in_use"] if statistics else None


def connect(device: str = "auto") -> JaxBackend:
    """JAX on `device` (auto: gpu where there is one, else cpu).

    Raises BackendError for a device that is not there.
    """
    present = sorted({found.platform for found in jax.devices()} | {"cpu"})
    if device == "auto":
        device = "gpu" if "gpu" in present else "cpu"
    if device not in present:
        here = ", ".join(["auto", *present])
        raise BackendError(f"jax has no device '{device}' here; device can be {here}")
    jax.config.update("jax_default_device", jax.devices(device)[0])
    # Products in full float32 on a GPU too, so that devices can be compared.
    jax.config.update("jax_default_matmul_precision", "highest")
    return JaxBackend(device)
