"""The contract of a user's own connection: "The contract" in docs/library-details.md."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fathom.connections.connection import MixingTrace
from fathom.connections.module import ModuleConnection, OwnCode, created_parameters
from fathom.connections.plain import Plain
from fathom.operations.ops import Array, Layers, Ops
from fathom.settings import ConfigError, join_values
from fathom_study.backends import Backend
from fathom_study.models.network import inference_inputs
from fathom_study.tasks import Problem, Trained, example_batch
from fathom_study.train import take_step, trainer_for

if TYPE_CHECKING:
    from torch import nn

PERTURBED = 0.1
"""Standard deviation of noise on parameters: zeros hide leaks and gradients."""

TOLERANCE = 1e-5
"""Tolerance of logits relative to the largest: over a hundred float32 roundings of 2⁻²⁴."""


class Check(NamedTuple):
    """A part of the contract and its result."""

    name: str
    text: str
    failed: bool = False
    value: float = math.nan
    """The measured number in the text, if there is one."""
    flagged: bool = False
    """Whether it is no part of the contract, but a reason to doubt the connection."""


def check_contract(problem: Problem, backend: Backend) -> None:
    """Raise ConfigError with a line for each broken part; does nothing for fathom's connections."""
    connection = problem.network.connection
    if not isinstance(connection, ModuleConnection):
        return
    broken = [check for check in examine(problem, backend) if check.failed]
    if broken:
        module = connection.settings.module
        raise ConfigError("\n".join(f"{module}: {check.name}: {check.text}" for check in broken))


def examine(problem: Problem, backend: Backend) -> Iterator[Check]:
    """Every check of a module at its initial parameters. Raises ConfigError for errors in it."""
    with OwnCode(problem.network.connection.settings.module):
        yield from _examine(without_data(problem), backend)


def _examine(problem: Problem, backend: Backend) -> Iterator[Check]:
    connection = problem.network.connection
    yield _seeds(connection, problem.spec.seed)
    watched, watching = copy.copy(problem), Watched(connection)
    watched.network = copy.copy(problem.network)
    vars(watched.network)["connection"] = watching
    initial = problem.initial_parameters()
    once = first_logits(watched, backend, initial)
    yield watching.check()
    kept = watching.kept()
    first_logits(watched, backend, initial, step=0)  # a counter may count training passes alone
    kept = list(dict.fromkeys([*kept, *watching.kept()]))
    if not np.isfinite(once).all():
        yield Check("at the start", "logits are not finite", failed=True)
        return  # the rest compares numbers
    perturbed = with_noise(initial)
    evaluated, trained, again, other = (
        first_logits(problem, backend, perturbed, step=step) for step in (None, 0, 0, 1)
    )
    mode, repeats = _mode(evaluated, trained, other), _same(trained, again)
    passes = list(_passes(problem, backend, initial, once, repeats, kept))
    yield from (*passes, mode)
    if any(check.failed for check in passes):
        return
    gradients = list(_gradients(problem, backend, initial, perturbed))
    yield from gradients
    if any(check.failed for check in gradients):
        return
    plain = plain_problem(problem)
    separate = list(_separate(problem, plain, backend, perturbed, None))
    if mode.text != SAME_IN_BOTH and not any(check.failed for check in separate):
        separate = list(_separate(problem, plain, backend, perturbed, 0))
    yield from separate
    theirs = first_logits(plain, backend, plain.initial_parameters())
    apart = relative(once, theirs)
    why = f"logits differ from the plain network's by {apart:.2g} of the largest"
    same = "equals the plain network, but for rounding"
    yield Check("at the start", same if apart < TOLERANCE else why)


def without_data(problem: Problem) -> Problem:
    """The same problem, with the task's example in place of every batch: it needs no files."""
    result = copy.copy(problem)
    result.task = copy.copy(problem.task)
    vars(result.task)["batch"] = lambda spec, step: example_batch(spec)
    return result


def plain_problem(problem: Problem) -> Problem:
    """The same problem for the plain network."""
    plain = Problem(problem.spec.model_copy(update={"connection": Plain()}))
    plain.task = problem.task
    return plain


def gradients_by_layer(problem: Problem, backend: Backend) -> np.ndarray:
    """Norms of the first step's gradients by layer, relative to their mean, [L]."""
    trainer = trainer_for(problem, backend, problem.initial_parameters())
    take_step(problem, trainer, 0)
    # After one step the optimiser's first moment is the gradient times a constant.
    stacks = [v for name, v in trainer.state().items() if name.startswith("m.block.")]
    squares = sum((s.astype(np.float64) ** 2).reshape(len(s), -1).sum(axis=1) for s in stacks)
    norms = np.sqrt(squares)
    return norms / (norms.mean() or 1.0)  # zero if no branch reaches the output


# --- single checks --------------------------------------------------------------------------------


def _seeds(connection: ModuleConnection, seed: int) -> Check:
    one, other = (connection.draw(seed) for _ in range(2))
    differ = [n for n, p in one.items() if not np.array_equal(p, other[n], equal_nan=True)]
    if differ:
        why = f"{join_values(differ)} start differently at the same seed; draw only with torch"
        return Check("seed", why, failed=True)
    return Check("seed", "decides every initial number")


class Watched:
    """A connection that checks shapes and types in a pass and records the order of calls."""

    def __init__(self, whole: ModuleConnection) -> None:
        self.whole = copy.copy(whole)
        vars(self.whole)["bound"] = self._bound
        self.calls: list[int] = []
        self.before: list[tuple[nn.Module, dict[str, Any]]] = []

    def _bound(self, *given: Any) -> nn.Module:  # noqa: ANN401
        """The module of a pass, whose attributes are recorded."""
        module = ModuleConnection.bound(self.whole, *given)
        self.before = [(part, {**vars(part)}) for part in module.modules()]
        return module

    def kept(self) -> list[str]:
        """Attributes that the last pass set to an array or a number; the next does not see them."""
        return [
            name
            for part, before in self.before
            for name, value in vars(part).items()
            if value is not before.get(name)
            and (hasattr(value, "dtype") or isinstance(value, int | float))
            and name != "training"
        ]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """Every other attribute is the connection's."""
        return getattr(self.whole, name)

    def through(
        self, ops: Ops, params: dict[str, Array], x: Array, layers: Layers, noise: Array | None
    ) -> tuple[Array, MixingTrace | None]:
        """Run a pass. Raises ConfigError for a shape or type that is not the input's."""
        self.calls = []
        wanted = _form(x)

        def check(form: str, what: str) -> None:
            if form != wanted:
                raise ConfigError(
                    f"{self.whole.settings.module}: shapes: {what} is {form}, but must be "
                    f"{wanted}, as the input of the pass"
                )

        def called(k: int, layer: Callable[[Array], Array], x: Array) -> Array:
            check(_form(x), f"the input of function {k}")
            self.calls.append(k)
            return layer(x)

        functions = [partial(called, k, layer) for k, layer in enumerate(layers)]
        with created_parameters() as created:
            try:
                result = self.whole.through(ops, params, x, functions, noise)
            except (TypeError, AttributeError, RuntimeError, ValueError) as error:
                if not self.calls and (lines := self.whole.lines_of_branch(params, x)):
                    raise ConfigError(lines) from error
                raise
        if created:
            raise ConfigError(
                f"{self.whole.settings.module}: parameters: a pass creates {join_values(created)}, "
                "which no training changes; create them in __init__"
            )
        check(_form(result[0]), "the output")
        return result

    def check(self) -> Check:
        """Whether the last pass called every function once, in order."""
        if self.calls == list(range(self.whole.context.layers)):
            return Check("shapes", "inputs of functions and the output are as the input")
        order = join_values([*self.calls[:12], *(["…"] if len(self.calls) > 12 else [])])
        layers = self.whole.context.layers
        why = f"of {layers} functions it calls {order or 'none'}; call each once, in order"
        return Check("order", why, failed=True)


def _form(x: object) -> str:
    if not hasattr(x, "dtype"):
        return f"a {type(x).__name__}"
    return f"{list(x.shape)} {str(x.dtype).rpartition('.')[2]}"


def _passes(
    problem: Problem,
    backend: Backend,
    initial: dict[str, np.ndarray],
    once: np.ndarray,
    repeats: bool,
    kept: list[str],
) -> Iterator[Check]:
    """Check that no pass depends on an earlier one.

    `once`: logits of the first pass; `repeats`: whether two passes of training were the same;
    `kept`: attributes that a pass sets.
    """
    name = "second pass"
    # Other sequences after these: a fresh module must give the same.
    others = {n: np.ascontiguousarray(np.flip(x)) for n, x in _inputs(problem).items()}
    fresh = without_data(Problem(problem.spec))
    second, first = (first_logits(each, backend, initial, others) for each in (problem, fresh))
    again = first_logits(problem, backend, initial)
    if not (_same(second, first) and _same(again, once)):
        why = (
            "gives different numbers; keep no array or statistic of a pass for the next, and draw "
            "random numbers only in training"
        )
    elif not repeats:
        why = "gives different numbers in training at the same seed; draw only with torch"
    else:
        unseen = f"; the next pass does not see {join_values(kept)} of this one" if kept else ""
        yield Check(name, f"gives the same numbers{unseen}")
        return
    yield Check(name, why, failed=True)


SAME_IN_BOTH = "training and evaluation give the same numbers"


def _mode(evaluated: np.ndarray, trained: np.ndarray, other: np.ndarray) -> Check:
    """Whether logits depend on the mode; `other`: those of training at another seed."""
    if _same(evaluated, trained) and _same(trained, other):
        return Check("mode", SAME_IN_BOTH)
    random = "" if _same(trained, other) else "draws at random and "
    why = f"training {random}differs from evaluation; scores are measured in evaluation mode"
    return Check("mode", why)


FUNCTIONS = ("block.", "cell.")
"""Prefixes of the parameters of wrapped functions; a recurrent cell is one."""


def _gradients(
    problem: Problem, backend: Backend, *at: Mapping[str, np.ndarray]
) -> Iterator[Check]:
    """Check that finite gradients reach all parameters, at the start and when perturbed."""
    prefix, names = "connection.", list(problem.network.parameters())
    own = [name for name in names if name.startswith(prefix)]
    zeros, wild = [], []
    for params in at:
        trainer = trainer_for(problem, backend, dict(params))
        try:
            take_step(problem, trainer, 0)
        except RuntimeError as error:
            # Buffers are made outside of inference mode: this array is of an earlier evaluation.
            if "nference tensor" not in str(error):
                raise
            why = "uses an array of an earlier pass; keep no array of a pass for the next"
            yield Check("second pass", why, failed=True)
            return
        norms = dict(zip(names, trainer.collect()["grad_norms"][0], strict=True))
        zeros.append([name.removeprefix(prefix) for name in own if norms[name] == 0])
        wild.append([name.removeprefix(prefix) for name in names if not np.isfinite(norms[name])])
    at_start, perturbed = zeros
    of_functions = [norms[name] for name in names if name.startswith(FUNCTIONS)]  # as perturbed
    if any(wild):
        where = "at the start" if wild[0] else "at perturbed numbers"
        few = [*(wild[0] or wild[1])[:6], *["…"][: len(wild[0] or wild[1]) > 6]]
        yield Check("gradients", f"not finite {where}: {join_values(few)}", failed=True)
    elif not any(of_functions):
        yield Check(
            "gradients", "none reaches the functions; remove detach or no_grad", failed=True
        )
    elif unused := [name for name in at_start if name in perturbed]:
        yield Check("gradients", f"none reaches {join_values(unused)}", failed=True)
    elif at_start:
        yield Check("gradients", f"reach all parameters; zero at first: {join_values(at_start)}")
    else:
        yield Check("gradients", "reach all parameters" if own else "it has no parameters")


def _separate(
    problem: Problem,
    plain: Problem,
    backend: Backend,
    params: dict[str, np.ndarray],
    step: int | None,
) -> Iterator[Check]:
    """Check that other sequences and later tokens change no output, unless in the plain network.

    `step`: in training mode at its seed; None: in evaluation mode.
    """
    inputs = _inputs(problem)
    tokens = inputs.get("tokens")
    if tokens is None or tokens.ndim != 2:
        return
    of_plain = {name: params[name] for name in plain.network.parameters()}

    def change(one: np.ndarray, other: np.ndarray, kept: np.ndarray) -> float:
        """Change of the outputs of the kept tokens; 0 if the plain network's change too."""
        changes = []
        for each, numbers in ((plain, of_plain), (problem, params)):
            before, after = (
                first_logits(each, backend, numbers, {**inputs, "tokens": given}, step)
                for given in (one, other)
            )
            if before.shape[:2] != one.shape:
                return 0.0  # no output for each token
            finite = np.isfinite([before[kept], after[kept]]).all()
            changes.append(relative(after[kept], before[kept]) if finite else math.inf)
        return changes[1] if changes[0] < TOLERANCE else 0.0

    first, count = tokens[:1], tokens.shape[1]
    another = (first + 1) % (tokens.max() + 1)
    mixed = change(
        np.concatenate([first, first]), np.concatenate([first, another]), np.array([True, False])
    )
    # One window is tested at every place: from there on it gets other tokens.
    is_later = np.arange(count) >= np.arange(1, count)[:, None]
    window = np.repeat(first, count - 1, axis=0)
    later = np.where(is_later, another, window)
    leak = 0.0 if mixed > TOLERANCE else change(window, later, ~is_later)
    of_largest = f"by {max(mixed, leak):.2g} of the largest"
    if math.inf in (mixed, leak):
        yield Check("causality", "unknown, since outputs are not finite", failed=True)
    elif mixed > TOLERANCE:
        why = f"mixes sequences of the batch: another one changes outputs {of_largest}"
        yield Check("batch", why, failed=True)
    elif leak > TOLERANCE:
        why = f"leaks the future: a later token changes outputs before it {of_largest}"
        yield Check("causality", why, failed=True)
    else:
        yield Check("causality", "a later token changes nothing before it")
        yield Check("batch", "no sequence changes another")


def with_noise(params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The parameters with noise on those of the connection."""
    rng = np.random.default_rng(0)
    noise = {n: PERTURBED * rng.standard_normal(p.shape) for n, p in params.items()}
    return {
        name: (p + noise[name]).astype(np.float32) if name.startswith("connection.") else p
        for name, p in params.items()
    }


def _inputs(problem: Problem) -> dict[str, np.ndarray]:
    """The inputs of the first batch, without dropout and noise."""
    return inference_inputs(problem.task.batch(problem.spec, 0).inputs)


def first_logits(
    problem: Problem,
    backend: Backend,
    params: dict[str, np.ndarray],
    inputs: Mapping[str, np.ndarray] | None = None,
    step: int | None = None,
) -> np.ndarray:
    """The logits of the first batch, or of the given inputs; with `step`, as in training."""
    infer = trainer_for(problem, backend, params).infer
    given = {**(_inputs(problem) if inputs is None else inputs)}
    noise = None
    if step is not None:
        noise = problem.network.connection.sample_noise(np.random.default_rng(step), 0.0)
    if noise is not None:
        given["noise"] = noise
    return Trained(problem, backend.ops, infer).logits(given)


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return np.array_equal(one, other, equal_nan=True)


def relative(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference, relative to the largest number of `other`; NaN is ignored."""
    largest = np.nanmax(np.abs(other), initial=0.0)
    return float(np.nanmax(np.abs(one - other), initial=0.0) / max(largest, 1e-30))
