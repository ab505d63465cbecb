"""The contract of a user's own connection, checked before training.

docs/library.md, "Your own connection", lists the checks.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fathom.backends import Backend
from fathom.models.connections.connection import MixingTrace
from fathom.models.connections.module import ModuleConnection, OwnCode, created_parameters
from fathom.models.connections.plain import Plain
from fathom.models.network import inference_inputs
from fathom.models.ops import Array, Layers, Ops
from fathom.settings import ConfigError, join_values
from fathom.tasks import Problem, Trained
from fathom.train import take_step, trainer_for

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
    """Every check of a module at its initial parameters.

    Raises ConfigError for wrong shapes, and for errors raised in a pass.
    """
    with OwnCode(problem.network.connection.settings.module):
        yield from _examine(problem, backend)


def _examine(problem: Problem, backend: Backend) -> Iterator[Check]:
    connection = problem.network.connection
    yield _seeds(connection, problem.spec.seed)
    watched, watching = copy.copy(problem), Watched(connection)
    watched.network = copy.copy(problem.network)
    vars(watched.network)["connection"] = watching
    initial = problem.initial_parameters()
    perturbed = _perturbed(initial)
    once, again = (_logits(watched, backend, initial) for _ in range(2))
    yield watching.check()
    same = np.array_equal(once, again, equal_nan=True)
    yield Check(
        "second pass",
        "gives the same numbers"
        if same
        else "gives different numbers; keep no state between passes and draw nothing at random",
        failed=not same,
    )
    if not same:
        return  # the rest compares passes
    yield from _gradients(problem, backend, initial, perturbed)
    plain = plain_problem(problem)
    yield from _causality(problem, plain, backend, perturbed)
    theirs = _logits(plain, backend, plain.initial_parameters())
    apart = _relative(once, theirs)
    if not np.isfinite(once).all():
        yield Check("at the start", "logits are not finite")
    elif apart < TOLERANCE:
        yield Check("at the start", "equals the plain network, but for rounding")
    else:
        why = f"logits differ from the plain network's by {apart:.2g} of the largest"
        yield Check("at the start", why)


def plain_problem(problem: Problem) -> Problem:
    """The same problem for the plain network."""
    return Problem(problem.spec.model_copy(update={"connection": Plain()}))


def gradients_by_layer(problem: Problem, backend: Backend) -> np.ndarray:
    """Norms of the first step's gradients by layer, relative to their mean, [L]."""
    trainer = trainer_for(problem, backend, problem.initial_parameters())
    take_step(problem, trainer, 0)
    # After one step the optimiser's first moment is the gradient times a constant.
    stacks = [v for name, v in trainer.state().items() if name.startswith("m.block.")]
    squares = sum((s.astype(np.float64) ** 2).reshape(len(s), -1).sum(axis=1) for s in stacks)
    norms = np.sqrt(squares)
    return norms / norms.mean()


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
        self.whole = whole
        self.calls: list[int] = []

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
            found = self.whole.through(ops, params, x, functions, noise)
        if created:
            raise ConfigError(
                f"{self.whole.settings.module}: parameters: a pass creates {join_values(created)}, "
                "which no training changes; create them in __init__"
            )
        check(_form(found[0]), "the output")
        return found

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


def _gradients(
    problem: Problem, backend: Backend, *at: Mapping[str, np.ndarray]
) -> Iterator[Check]:
    """Check that finite gradients reach all parameters, at the start and when perturbed."""
    prefix, names = "connection.", list(problem.network.parameters())
    own = [name for name in names if name.startswith(prefix)]
    zeros, wild = [], []
    for params in at:
        trainer = trainer_for(problem, backend, dict(params))
        take_step(problem, trainer, 0)
        norms = dict(zip(names, trainer.collect()["grad_norms"][0], strict=True))
        zeros.append([name.removeprefix(prefix) for name in own if norms[name] == 0])
        wild.append([name.removeprefix(prefix) for name in own if not np.isfinite(norms[name])])
    at_start, perturbed = zeros
    if any(wild):
        where = "at the start" if wild[0] else "at perturbed numbers"
        yield Check("gradients", f"not finite {where}: {join_values(wild[0] or wild[1])}")
    elif unused := [name for name in at_start if name in perturbed]:
        yield Check("gradients", f"none reaches {join_values(unused)}", failed=True)
    elif at_start:
        yield Check("gradients", f"reach all parameters; zero at first: {join_values(at_start)}")
    else:
        yield Check("gradients", "reach all parameters" if own else "it has no parameters")


def _causality(
    problem: Problem, plain: Problem, backend: Backend, params: dict[str, np.ndarray]
) -> Iterator[Check]:
    """Check that later tokens do not change earlier outputs, unless they do in the plain network.

    One window is tested at every place: from there on it gets other tokens.
    """
    inputs = inference_inputs(problem.task.batch(problem.spec, 0).inputs)
    tokens = inputs.get("tokens")
    if tokens is None or tokens.ndim != 2:
        return
    places = np.arange(tokens.shape[1])
    window = np.broadcast_to(tokens[0], (len(places) - 1, len(places)))
    is_later = places >= places[1:, None]
    changed = np.where(is_later, (window + 1) % (tokens.max() + 1), window).astype(tokens.dtype)
    of_plain = {name: params[name] for name in plain.network.parameters()}
    leaks, finite = [], True
    for each, numbers in ((plain, of_plain), (problem, params)):
        one, other = (
            _logits(each, backend, numbers, {**inputs, "tokens": np.ascontiguousarray(given)})
            for given in (window, changed)
        )
        if one.shape[:2] != window.shape:
            return
        leaks.append(_relative(other[~is_later], one[~is_later]))
        finite = bool(np.isfinite([one[~is_later], other[~is_later]]).all())
    if leaks[0] > TOLERANCE:
        return  # the network itself reads later tokens
    if leaks[1] > TOLERANCE:
        why = f"a later token changes outputs before it, by {leaks[1]:.2g} of the largest"
        yield Check("causality", why, failed=True)
    elif not finite:
        yield Check("causality", "unknown, since outputs are not finite")
    else:
        yield Check("causality", "a later token changes nothing before it")


def _perturbed(params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The parameters with noise on those of the connection."""
    rng = np.random.default_rng(0)
    noise = {n: PERTURBED * rng.standard_normal(p.shape) for n, p in params.items()}
    return {
        name: (p + noise[name]).astype(np.float32) if name.startswith("connection.") else p
        for name, p in params.items()
    }


def _logits(
    problem: Problem,
    backend: Backend,
    params: dict[str, np.ndarray],
    inputs: Mapping[str, np.ndarray] | None = None,
) -> np.ndarray:
    """The logits of the first batch, or of the given inputs."""
    infer = trainer_for(problem, backend, params).infer
    given = inference_inputs(problem.task.batch(problem.spec, 0).inputs)
    return Trained(problem, backend.ops, infer).logits(given if inputs is None else inputs)


def _relative(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference, relative to the largest number of `other`; NaN is ignored."""
    largest = np.nanmax(np.abs(other), initial=0.0)
    return float(np.nanmax(np.abs(one - other), initial=0.0) / max(largest, 1e-30))
