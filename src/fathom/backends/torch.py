"""PyTorch on cpu, cuda or mps."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812, the name that PyTorch's own documentation uses
from torch import Tensor
from torch.optim.adamw import adamw

from fathom.backends import (
    Backend,
    Device,
    InferredFunction,
    ObjectiveFunction,
    Trainer,
    choose_device,
)
from fathom.backends.torch_gradients import (
    CustomVJPFunction,
    OnHost,
    Product,
    is_on_host,
    runs_eagerly,
)
from fathom.models.ops import CustomVJP
from fathom.optimizers import OptimizerConfig, ScheduledValues, clip_coefficient, muon
from fathom.system.errors import say
from fathom.system.hardware import cpu_model
from fathom.tasks import Batch


class TorchOps:
    """Ops in a float type. Docstrings: `fathom.models.ops`."""

    reshape = staticmethod(torch.reshape)
    transpose = staticmethod(torch.permute)
    broadcast = staticmethod(torch.broadcast_to)
    concatenate = staticmethod(torch.concatenate)
    stack = staticmethod(torch.stack)
    contiguous = staticmethod(Tensor.contiguous)
    unstack = staticmethod(torch.unbind)
    exp = staticmethod(torch.exp)
    relu = staticmethod(torch.relu)
    tanh = staticmethod(torch.tanh)
    sigmoid = staticmethod(torch.sigmoid)
    sqrt = staticmethod(torch.sqrt)
    abs = staticmethod(torch.abs)
    tril = staticmethod(torch.tril)
    max = staticmethod(torch.max)
    maximum = staticmethod(torch.clamp_min)
    sum = staticmethod(torch.sum)
    mean = staticmethod(torch.mean)
    matmul = staticmethod(torch.matmul)
    add_product = staticmethod(torch.addcmul)
    stop_gradient = staticmethod(Tensor.detach)
    gelu = staticmethod(F.gelu)
    linear = staticmethod(F.linear)

    def __init__(self, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        self.device = device
        self.dtype = dtype
        self.constants: dict[tuple[tuple[int, ...], bytes], Tensor] = {}

    def asarray(self, x: np.ndarray) -> Tensor:
        dtype = torch.int64 if np.issubdtype(x.dtype, np.integer) else self.dtype
        return torch.tensor(x, dtype=dtype, device=self.device)

    def constant(self, x: np.ndarray) -> Tensor:
        if not runs_eagerly():
            # The recorder's or the transform's own, not to be kept; and float: a compiler cannot
            # ask NumPy for the type.
            return torch.as_tensor(x, dtype=self.dtype, device=self.device)
        # Kept: while a graph is captured nothing may be copied from the host.
        key = (x.shape, x.tobytes())
        if key not in self.constants:
            with torch.inference_mode(False):  # gradients may need it later
                self.constants[key] = self.asarray(x)
        return self.constants[key]

    def split(self, x: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
        return x.split(list(sizes), dim=-1)

    # Not partial(…), which PyTorch's compiler does not take.

    def softmax(self, x: Tensor) -> Tensor:
        return torch.softmax(x, dim=-1)

    def logsumexp(self, x: Tensor, axis: int) -> Tensor:
        return torch.logsumexp(x, axis, keepdim=True)

    def largest(self, x: Tensor, axis: int) -> Tensor:
        return x.amax(axis, keepdim=True)

    def l2_norm(self, x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x, dim=-1, keepdim=True)

    def tensordot(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.tensordot(a, b, dims=1)

    def clip(self, x: Tensor, bound: float) -> Tensor:
        return x.clamp(-bound, bound)

    def identity_like(self, x: Tensor) -> Tensor:
        return torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)

    def add_matmul(self, c: Tensor, a: Tensor, b: Tensor) -> Tensor:
        if not runs_eagerly():
            return c + torch.matmul(a, b)  # a transform may know more axes of a than of c
        return c.baddbmm_(a, b) if c.ndim == 3 else c.addmm_(a, b)

    def sum_of_products(self, a: Tensor, b: Tensor) -> Tensor:
        return (a * b).sum(dim=1)

    def sum_of_outer_products(self, a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
        return (torch.stack(tuple(a))[:, :, None] * torch.stack(tuple(b))[:, None]).sum(dim=0)

    def weighted_sum(self, weights: Tensor, x: Tensor) -> Tensor:
        return torch.matmul(weights[:, None], x)[:, 0]

    def row_products(self, row: Tensor, x: Tensor) -> Tensor:
        # A row times xᵀ is faster than x times a column.
        return torch.matmul(row[:, None], x.mT)[:, 0]

    def custom_vjp(self, function: CustomVJP, *xs: Tensor) -> tuple[Tensor, ...]:
        if not runs_eagerly():
            return function.plain(self, *xs)
        loops = function.compiled() if all(map(is_on_host, xs)) else None
        return CustomVJPFunction.apply(self, function, OnHost(loops) if loops else function, *xs)

    def embedding(self, table: Tensor, ids: Tensor) -> Tensor:
        return F.embedding(ids, table)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(x, weight.shape, weight, bias, eps=1e-5)

    def conv2d(self, x: Tensor, weight: Tensor, bias: Tensor, stride: int = 1) -> Tensor:
        # Views: the memory stays channels-last, which the kernels take as it is.
        y = F.conv2d(x.movedim(-1, 1), weight.movedim(-1, 1), bias, stride=stride, padding=1)
        return y.movedim(1, -1)

    def group_norm(self, x: Tensor, groups: int, weight: Tensor, bias: Tensor) -> Tensor:
        return F.group_norm(x.movedim(-1, 1), groups, weight, bias, eps=1e-5).movedim(1, -1)

    def causal_attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def cross_entropy(
        self, logits: Tensor, targets: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        reduction = "mean" if weights is None else "none"
        losses = F.cross_entropy(
            logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORE_NONE, reduction=reduction
        )
        if weights is None:
            return losses
        shares = weights.flatten()
        return (losses * shares).sum() / shares.sum()

    def to_numpy(self, x: Tensor) -> np.ndarray:
        return x.detach().cpu().numpy()

    def all_finite(self, x: Tensor) -> Tensor:
        return x.isfinite().all()


class OpsAmidAutocast(TorchOps):
    """Ops whose gradients have the digits that they have outside of autocast.

    PyTorch's own products would take their gradient in 16 bits if `backward` is called inside.
    """

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        return CustomVJPFunction.apply(self, Product(torch.matmul), None, a, b)[0]

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return CustomVJPFunction.apply(self, Product(F.linear), None, x, weight)[0]

    def tensordot(self, a: Tensor, b: Tensor) -> Tensor:
        of = partial(torch.tensordot, dims=1)
        return CustomVJPFunction.apply(self, Product(of), None, a, b)[0]


IGNORE_NONE = torch.iinfo(torch.int64).min
"""PyTorch leaves out targets of −100 unless it is told of another number."""

GRAPH_SWITCH = "FATHOM_TORCH_GRAPH"
"""Environment variable: `off` runs the operations of a step on a GPU one by one."""

UNCORRECTED = 2**30
"""Steps that PyTorch's AdamW believes to have taken where the recipe corrects no bias.

Its corrections 1 − β^t are then exactly one."""

NamedTensors = dict[str, Tensor]

Step = Callable[[tuple[NamedTensors, ...], Tensor], NamedTensors]
"""From batches as `Batch.arrays` and the scheduled values [2]: updates the parameters, returns what
it measured."""


class Captured:
    """A step recorded once as a CUDA graph, then replayed: one launch instead of thousands.

    A graph reads and writes fixed addresses. So batches are copied to where the first ones were,
    the scheduled values are a tensor, and what a replay measured is copied before the next.
    """

    WARM_UP = 3
    """Steps run as usual first, on a stream of their own: libraries set themselves up in them."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.stream = torch.cuda.Stream()
        self.runs = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.batches: tuple[NamedTensors, ...] = ()
        self.scheduled: Tensor | None = None
        self.measured: NamedTensors = {}

    def __call__(self, batches: tuple[NamedTensors, ...], scheduled: Tensor) -> NamedTensors:
        if self.scheduled is None:
            self.batches = tuple({k: x.clone() for k, x in batch.items()} for batch in batches)
            self.scheduled = scheduled.clone()
        for kept, given in zip(self.batches, batches, strict=True):
            for name, x in given.items():
                kept[name].copy_(x)
        self.scheduled.copy_(scheduled)
        if self.runs < self.WARM_UP:
            self.runs += 1
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                measured = self.step(self.batches, self.scheduled)
            torch.cuda.current_stream().wait_stream(self.stream)
            if self.runs == self.WARM_UP:
                self._record()
            return measured
        if self.graph is None:
            return self.step(self.batches, self.scheduled)
        self.graph.replay()
        return {name: value.clone() for name, value in self.measured.items()}

    def _record(self) -> None:
        """Record a step, which computes nothing yet. Where that fails, no graph is there."""
        graph = torch.cuda.CUDAGraph()
        try:
            # A recording that fails would leave its own stream the current one.
            with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph):
                measured = self.step(self.batches, self.scheduled)
        except RuntimeError as error:
            reason = str(error).strip().partition("\n")[0]
            say(f"no CUDA graph of a step ({reason}); its operations run one by one, more slowly")
            return
        self.graph, self.measured = graph, measured


class TorchTrainer(Trainer):
    """Updates of stacked parameters; measurements stay on the device until collected."""

    def __init__(
        self,
        ops: TorchOps,
        params: dict[str, np.ndarray],
        objective: ObjectiveFunction,
        update: OptimizerConfig,
    ) -> None:
        self.ops = ops
        self.objective = objective
        self.update = update
        # In memory row by row, as gradients are: the fused update would misread them otherwise.
        self.params = {k: ops.asarray(v).contiguous().requires_grad_() for k, v in params.items()}
        self.m = {k: torch.zeros_like(p, requires_grad=False) for k, p in self.params.items()}
        self.v = {
            k: torch.zeros_like(self.params[k], requires_grad=False)
            for group in update.groups
            for k in group.names
            if group.rule == "adamw"
        }
        self.ahead = 0 if update.bias_correction else UNCORRECTED
        # One for each parameter, as the fused update wants it.
        self.counters = {k: torch.tensor(float(self.ahead), device=ops.device) for k in self.v}
        self.steps = 0
        self.measured: list[NamedTensors] = []
        captures = ops.device.type == "cuda" and os.environ.get(GRAPH_SWITCH, "on") != "off"
        self.whole_step: Step = Captured(self._whole_step) if captures else self._whole_step

    def step(self, batches: Sequence[Batch], scheduled: ScheduledValues) -> None:
        arrays = tuple(batch.arrays(self.ops.asarray) for batch in batches)
        device = self.ops.device
        # On a GPU it is an operand, and has the parameters' type.
        kind = torch.float64 if device.type == "cpu" else torch.float32
        numbers = torch.tensor([scheduled.rate, scheduled.momentum], dtype=kind, device=device)
        self.measured.append(self.whole_step(arrays, numbers))
        self.steps += 1

    def _whole_step(self, batches: tuple[NamedTensors, ...], scheduled: Tensor) -> NamedTensors:
        loss, grads, report = self._mean_over(batches)
        norms = torch.stack([torch.linalg.vector_norm(g) for g in grads])
        measured = {
            "loss": loss,
            "grad_norms": norms,
            # Copies: a report may be a parameter itself, which the update is about to change.
            **{name: value.detach().clone() for name, value in report.items()},
        }
        with torch.no_grad():
            if self.update.clip is not None:
                factor = clip_coefficient(self.ops, norms, self.update.clip)
                grads = [g * factor for g in grads]
            self._apply(dict(zip(self.params, grads, strict=True)), scheduled)
        return measured

    def _mean_over(
        self, batches: tuple[NamedTensors, ...]
    ) -> tuple[Tensor, list[Tensor], NamedTensors]:
        """Mean loss and gradients, and the reports: those of the last, but finite if all are."""
        params = list(self.params.values())
        losses, sums, finite = [], None, []
        for arrays in batches:
            loss, report = self.objective(self.params, Batch.of_arrays(arrays))
            # A parameter that the loss does not use has a gradient of zero, as in MLX.
            grads = [
                g.contiguous() for g in torch.autograd.grad(loss, params, materialize_grads=True)
            ]
            sums = grads if sums is None else torch._foreach_add(sums, grads)
            losses.append(loss.detach())
            finite.append(report["logits_finite"])
        if len(batches) == 1:
            return losses[0], sums, report
        means = torch._foreach_div(sums, len(batches))
        report["logits_finite"] = torch.stack(finite).all()
        return torch.stack(losses).mean(), list(means), report

    def _apply(self, grads: NamedTensors, scheduled: Tensor) -> None:
        rate, momentum = (
            scheduled.tolist() if scheduled.device.type == "cpu" else scheduled.unbind()
        )
        for group in self.update.groups:
            lr = group.lr * rate
            if group.rule == "muon":
                for name in group.names:
                    p, m = self.params[name], self.m[name]
                    after, average = muon(self.ops, p, grads[name], m, lr, momentum, group.parts)
                    p.copy_(after)
                    m.copy_(average)
                continue
            # The function, not torch.optim.AdamW: to make that object imports torch's compiler,
            # which takes a second.
            adamw(
                [self.params[k] for k in group.names],
                [grads[k] for k in group.names],
                [self.m[k] for k in group.names],
                [self.v[k] for k in group.names],
                [],
                [self.counters[k] for k in group.names],
                fused=True,
                amsgrad=False,
                maximize=False,
                lr=lr,
                beta1=self.update.beta1,
                beta2=self.update.beta2,
                eps=self.update.eps,
                weight_decay=group.decay,
            )

    def infer(self, function: InferredFunction, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        with torch.inference_mode():
            arrays = {name: self.ops.asarray(x) for name, x in inputs.items()}
            return function(self.params, arrays).cpu().numpy()

    def collect(self) -> dict[str, np.ndarray]:
        measured, self.measured = self.measured, []
        return {
            name: torch.stack([m[name] for m in measured]).cpu().numpy() for name in measured[0]
        }

    def state(self) -> dict[str, np.ndarray]:
        state = {"step": np.array(self.steps)}
        for kind, values in (("param", self.params), ("m", self.m), ("v", self.v)):
            for name, value in values.items():
                state[f"{kind}.{name}"] = value.detach().cpu().numpy().copy()
        return state

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        self.steps = int(state["step"])
        with torch.no_grad():
            for counter in self.counters.values():
                counter.fill_(self.ahead + self.steps)
            for kind, values in (("param", self.params), ("m", self.m), ("v", self.v)):
                for name, value in values.items():
                    value.copy_(self.ops.asarray(state[f"{kind}.{name}"]))


class TorchBackend(Backend):
    """PyTorch on one device."""

    trainer_class = TorchTrainer

    def __init__(self, device: torch.device) -> None:
        self.torch_device = device
        self.ops = TorchOps(device)
        cuda = device.type == "cuda"
        self.device = Device(
            framework="torch",
            framework_version=torch.__version__,
            kind=device.type,
            name=torch.cuda.get_device_name(device) if cuda else cpu_model(),
            driver=f"CUDA {torch.version.cuda}" if cuda else None,
        )

    def arithmetic(self) -> dict[str, str]:
        return {"ATen": torch.backends.cpu.get_cpu_capability()}

    def peak_memory_bytes(self) -> int | None:
        if self.torch_device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.torch_device)
        return None


def connect(device: str = "auto") -> TorchBackend:
    """PyTorch on `device` (auto: cuda, else mps, else cpu).

    Raises BackendError for a device that is not there.
    """
    present = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    device = choose_device("torch", device, present)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    # TensorFloat-32 rounds products to 10 bits: off, so that devices can be compared.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    return TorchBackend(torch.device(device))
