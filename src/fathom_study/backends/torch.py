"""PyTorch on cpu, cuda or mps."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.optim.adamw import adamw

from fathom.operations.torch_ops import TorchOps
from fathom.system.errors import say
from fathom_study.backends import (
    Backend,
    Device,
    InferredFunction,
    ObjectiveFunction,
    Trainer,
    choose_device,
)
from fathom_study.batch import Batch
from fathom_study.optimizers import OptimizerConfig, ScheduledValues, clip_coefficient, muon
from fathom_study.system.hardware import cpu_model

GRAPH_SWITCH = "FATHOM_TORCH_GRAPH"
"""Environment variable: `off` disables CUDA graphs, so operations of a step run one by one."""

UNCORRECTED = 2**30
"""Initial step count of PyTorch's AdamW without bias correction: 1 − β^t is then exactly one."""

NamedTensors = dict[str, Tensor]

Step = Callable[[tuple[NamedTensors, ...], Tensor], NamedTensors]
"""(Batches as `Batch.arrays`, scheduled values [2]) → measurements; updates the parameters."""


class Captured:
    """A step recorded once as a CUDA graph, then replayed: one launch instead of thousands.

    A graph reads and writes fixed addresses. So batches are copied into the memory of the first
    ones, the scheduled values are a tensor, and measurements are copied after each replay.
    """

    WARM_UP = 3
    """Initial steps that run as usual, on a separate CUDA stream, while libraries initialise."""

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
        """Record a step without computing it. If recording fails, `graph` stays None."""
        graph = torch.cuda.CUDAGraph()
        try:
            # A failed recording would leave its own stream as the current one.
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
        # Contiguous like the gradients; the fused update would misread them otherwise.
        self.params = {k: ops.asarray(v).contiguous().requires_grad_() for k, v in params.items()}
        self.m = {k: torch.zeros_like(p, requires_grad=False) for k, p in self.params.items()}
        self.v = {
            k: torch.zeros_like(self.params[k], requires_grad=False)
            for group in update.groups
            for k in group.names
            if group.rule == "adamw"
        }
        self.ahead = 0 if update.bias_correction else UNCORRECTED
        # One for each parameter, as the fused update requires.
        self.counters = {k: torch.tensor(float(self.ahead), device=ops.device) for k in self.v}
        self.steps = 0
        self.measured: list[NamedTensors] = []
        captures = ops.device.type == "cuda" and os.environ.get(GRAPH_SWITCH, "on") != "off"
        self.whole_step: Step = Captured(self._whole_step) if captures else self._whole_step

    def step(self, batches: Sequence[Batch], scheduled: ScheduledValues) -> None:
        arrays = tuple(batch.arrays(self.ops.asarray) for batch in batches)
        device = self.ops.device
        # On a GPU the values are an operand and have the parameters' type.
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
            # Copies: a report may be a parameter itself, which the update changes.
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
        """(Mean loss, mean gradients, last batch's reports; `logits_finite` is of all batches)."""
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
            # The function, not torch.optim.AdamW: creating that object imports torch's compiler,
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
    """PyTorch on `device` (auto: cuda, else mps, else cpu). Raises BackendError if missing."""
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
