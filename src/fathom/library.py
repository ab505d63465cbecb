"""Connections for your own networks: the code shared by `fathom.torch` and `fathom.mlx`.

Each of them has one class, a framework module that holds a connection's parameters. Its verbs are
those of `fathom.connections`. In addition, the module checks sizes, types and the order of
calls, and accepts any float type.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from itertools import count
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np

from fathom import init
from fathom.connections.connection import Apart, Connection, ConnectionContext, State
from fathom.connections.cost import FLOATS, Cost, cost
from fathom.connections.plain_start import plain_start
from fathom.connections.released import check_release, of_release
from fathom.connections.schemes import SCHEMES, name_behind, resolve
from fathom.operations.ops import Array, Ops
from fathom.settings import ConfigError, Flag, NonNegative, Nullable, Positive, Settings, validate

PREFIX = "connection."
"""Prefix of parameter names in fathom's networks; names in a module lack it."""


class Sizes(Settings):
    """Validated arguments of a module other than its scheme."""

    layers: Positive
    width: Positive
    streams: Positive
    seed: NonNegative
    per_block: Positive
    pooled_axes: NonNegative
    has_residual: Flag
    takes_apart: Flag
    start: Annotated[Literal["plain"] | None, Nullable]


def connection_for(scheme: str | Mapping[str, Any], **sizes: int | str | None) -> Connection:
    """The connection of a named scheme, or of settings. `sizes`: a value per field of `Sizes`.

    Raises ConfigError that names the key and the fix.
    """
    checked = validate(Sizes, sizes)
    layers, per_block = checked.layers, checked.per_block
    if over := layers % per_block:
        fits = " or ".join(f"{n}" for n in (layers - over, layers - over + per_block) if n)
        raise ConfigError(
            f"layers: {layers} is not a multiple of per_block, {per_block}; use {fits}"
        )
    sizes = checked.model_dump(exclude={"streams", "seed", "start"})
    context = ConnectionContext(**sizes, optional_norms=True)
    if isinstance(scheme, Mapping) and "module" in scheme:
        raise ConfigError("connection: your own module is not a scheme; call it directly")
    resolved = resolve(scheme, SCHEMES, checked.streams, "", ["connection"])
    if checked.start == "plain":
        resolved = plain_start(resolved, context)
    connection = resolved.at(context)
    for name, _ in inspect.getmembers(type(connection), lambda m: isinstance(m, cached_property)):
        getattr(connection, name)  # now: torch.compile cannot trace its lock in Python 3.11
    return connection


def type_name(x: Array) -> str:
    """Name of the type of an array of any framework, such as float32."""
    return str(x.dtype).rpartition(".")[2]


class Pass(NamedTuple):
    """State of a pass as `open`, `read` and `write` return it, made of arrays and constants."""

    verb: str
    """Next verb: read, write or close."""
    k: int
    """Function of the next verb, from 0; the number of functions for close."""
    shape: tuple[int, ...]
    """Shape of the pass's input and output, and of every function's input and output."""
    given: str
    """Type of the input."""
    computed: str
    """Type of the streams and of all computations with them."""
    device: Any
    """Device of the input; None in frameworks whose arrays have none."""
    state: State
    of: str
    """The `_key` of its module."""
    records: bool
    """Whether gradients of the parameters were recorded when it began."""


_keys = count()


class Verbs:
    """`open`, `read`, `write`, `close` and `wrap`: the framework-independent part of a module.

    Everything is computed in float32, or in float64 if the input or a parameter is float64. The
    inputs of functions and the output have the type of the input.
    """

    _array_kind: ClassVar[type]
    """The class of the framework's arrays."""

    connection: Connection
    scheme: str | Mapping[str, Any]
    """Name of the connection, or its settings as given."""
    seed: int
    """Seed of the initial parameters."""
    _names: Sequence[str]
    """Names of the parameters in this module."""
    _key: str
    """Tells the passes of one module from those of another."""
    _noise_shape: tuple[int, ...] | None
    """Shape of a sample of `sample_noise`; None for a connection without noise."""

    def _prepare(self, scheme: str | Mapping[str, Any], **sizes: int | str | None) -> None:
        """Set all but the parameters; arguments and errors as of `connection_for`."""
        connection = connection_for(scheme, **sizes)
        noise = connection.sample_noise(np.random.default_rng(0), 0.0)
        # Not by assignment: MLX registers lists and mappings as parameters.
        vars(self).update(
            connection=connection,
            scheme=copy.deepcopy(scheme),  # the caller may change settings for the next connection
            seed=int(sizes["seed"]),
            _names=[name.removeprefix(PREFIX) for name in connection.parameters()],
            _key=f"{next(_keys)}",
            _noise_shape=None if noise is None else noise.shape,
        )

    def __setstate__(self, state: Any) -> None:  # noqa: ANN401
        """Restore a copy or a pickle, whose passes are its own."""
        getattr(super(), "__setstate__", vars(self).update)(state)
        vars(self)["_key"] = f"{next(_keys)}"

    def _sizes(self) -> str:
        """Scheme, layers and width, for `repr`."""
        context = self.connection.context
        return f"{self.scheme!r}, layers={context.layers}, width={context.width}"

    @property
    def no_decay(self) -> tuple[str, ...]:
        """Names of the parameters to exclude from weight decay: all but matrices.

        The number of axes does not identify them: `b_res` [layers, S, S] is a vector per layer.
        """
        declared = self.connection.parameters()
        return tuple(
            name.removeprefix(PREFIX) for name, one in declared.items() if not one.is_matrix
        )

    def _groups(self, lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """Names of parameters as `params`, with their `lr` and `weight_decay`."""
        groups: dict[tuple[float, float], list[str]] = {}
        for name, one in self.connection.parameters().items():
            decay = weight_decay if one.is_matrix and one.decays else 0.0
            groups.setdefault((one.rate, decay), []).append(name.removeprefix(PREFIX))
        return [
            {"params": names, "lr": lr * rate, "weight_decay": decay}
            for (rate, decay), names in groups.items()
        ]

    @property
    def reads_normed(self) -> bool:
        """Whether function inputs and the output are already normed, so that you omit norms."""
        return self.connection.reads_normed

    def cost(self, tokens: int, dtype: str = "float32") -> Cost:
        """Operations and bytes that it adds to a training step of `tokens` tokens, at the least.

        `dtype`: float type of the streams; here they are float32. `fathom.connections.cost` has the
        formulas and what they assume. Raises ConfigError where they do not hold.
        """
        return cost(self.connection, tokens, FLOATS.find("float type", dtype))

    def _arrays(self) -> dict[str, Array]:
        """The parameters by name."""
        # By attribute, which parametrised, pruned and replicated modules replace.
        return {name: getattr(self, name) for name in self._names}

    def _params(self, arrays: Mapping[str, Array], dtype: str) -> dict[str, Array]:
        """Parameters in a float type, by their names in a network."""
        return {f"{PREFIX}{name}": self._cast(value, dtype) for name, value in arrays.items()}

    def _ops(self, dtype: str, device: Any) -> Ops:  # noqa: ANN401
        """The framework's primitives in a float type on a device."""
        raise NotImplementedError

    def _cast(self, x: Array, dtype: str) -> Array:
        """Convert `x` to a float type."""
        raise NotImplementedError

    def _exactly(self, device: Any) -> AbstractContextManager[None]:  # noqa: ANN401
        """Context in which every operation runs in the type of its arguments."""
        return nullcontext()

    def _records(self) -> bool:
        """Whether gradients of its parameters are recorded now."""
        return True

    def _run(self, verb: Callable[..., Any], ops: Ops, state: State, *given: object) -> Any:  # noqa: ANN401
        """What a verb of the connection returns; a module may keep less of it for gradients."""
        return verb(ops, state, *given)

    def _initial(self, seed: int) -> dict[str, np.ndarray]:
        """Initial parameters by name, float32; fathom's networks with this seed have the same."""
        drawn = init.draw(self.connection.parameters(), seed)
        return {name.removeprefix(PREFIX): value for name, value in drawn.items()}

    def _set(self, values: Mapping[str, Array]) -> None:
        """Set parameters to these values, without changing the parameters' types."""
        raise NotImplementedError

    def load_release(self, weights: Mapping[str, Array], prefix: str | None = None) -> None:
        """Load the parameters from the state dict of a released model.

        Names may be those of the release's own files, or of transformers or MLX.
        `prefix`: prefix of these names, such as `model.`; None: the only one present. Raises
        ValueError for weights of another model or size.
        """
        arrays, layers = self._arrays(), self.connection.context.layers
        name = name_behind(self.scheme, SCHEMES)
        check_release(name)
        ops = self._ops("float32", getattr(next(iter(arrays.values())), "device", None))
        values = of_release(ops, name, weights, layers, prefix)
        for own, value in values.items():
            shape, wanted = list(value.shape), list(arrays[own].shape)
            if shape != wanted:
                raise ValueError(
                    f"{own} has shape {shape} in the release, but {wanted} in this connection: "
                    "build it with the release's width, streams, rank and per_block=2"
                )
        self._set(values)

    def open(self, x: Array, noise: np.ndarray | None = None) -> Pass:
        """Begin a pass with the embedded input […, width].

        `noise` [layers, 3]: a sample of `connection.sample_noise`, for training a gate with noise.
        Raises ValueError for a wrong shape or a type that is not float, and TypeError if the input
        is no array of this framework.
        """
        context = self.connection.context
        self._check_array(x, "the input")
        shape, given = tuple(x.shape), type_name(x)
        device = getattr(x, "device", None)
        if context.pooled_axes and 0 in shape[-1 - context.pooled_axes :]:
            raise ValueError(f"the input has no positions to average over: {list(shape)}")
        if len(shape) <= context.pooled_axes or shape[-1] != context.width:
            wanted = ", ".join(["…", *["…"] * context.pooled_axes, str(context.width)])
            raise ValueError(f"the input must have shape [{wanted}], but has {list(shape)}")
        if given not in FLOATS:
            raise ValueError(f"the input must be of a float type, but is {given}; embed it first")
        arrays = self._arrays()
        types = {given, *map(type_name, arrays.values())}
        computed = "float64" if "float64" in types else "float32"
        params = self._params(arrays, computed)
        ops, x = self._ops(computed, device), self._cast(x, computed)
        if noise is not None:
            noise = ops.asarray(self._checked_noise(noise))
        with self._exactly(device):
            state = self.connection.open(ops, params, x, noise)
        return Pass(
            "read", 0, shape, given, computed, device, state, self._key, records=self._records()
        )

    def _checked_noise(self, noise: object) -> np.ndarray:
        """The noise as an array. Raises ValueError for another shape than that of a sample."""
        if self._noise_shape is None:
            raise ValueError(f"{self.scheme!r} takes no noise; leave it out")
        given = np.asarray(noise)
        if given.shape != self._noise_shape:
            wanted, found = list(self._noise_shape), list(given.shape)
            raise ValueError(
                f"noise must have the shape {wanted} of connection.sample_noise(…), but has {found}"
            )
        return given

    def _check_array(self, x: object, what: str) -> None:
        """Raise TypeError unless x is an array of the parameters' framework."""
        if not isinstance(x, kind := self._array_kind):
            wanted = f"{kind.__module__}.{kind.__name__}"
            found = f"{type(x).__module__}.{type(x).__name__}"
            raise TypeError(f"{what} must be a {wanted}, but is a {found}")

    def reads_apart(self, k: int) -> bool:
        """Whether function k reads separate inputs of q, k and v; only with `takes_apart`."""
        return self.connection.reads_apart(k)

    def read(self, state: Pass, k: int) -> tuple[Array | Apart, Pass]:
        """(Input of function k, shaped like the input of `open`; the state for `write`).

        If function k `reads_apart`, three inputs: of q, k and v. Raises ValueError out of turn:
        functions 0, 1, … read and write once each, in this order.
        """
        self._check(state, "read", k)
        ops = self._ops(state.computed, state.device)
        with self._exactly(state.device):
            x, inner = self._run(self.connection.read, ops, state.state, k)
        if isinstance(x, Apart):
            x = Apart(*(self._cast(part, state.given) for part in x))
        else:
            x = self._cast(x, state.given)
        return x, state._replace(verb="write", state=inner)

    def write(self, state: Pass, k: int, y: Array) -> Pass:
        """The state after function k returned y, shaped like its input.

        Raises ValueError out of turn or for another shape, and TypeError if y is not an array.
        """
        self._check(state, "write", k)
        if not hasattr(y, "shape"):
            raise TypeError(
                f"function {k} must return an array, but returned a {type(y).__name__}; of a pair "
                "such as (output, attention weights) return only the output"
            )
        self._check_array(y, f"what function {k} returns")
        if type_name(y) not in FLOATS:
            raise ValueError(f"function {k} must return a float type, but returned {type_name(y)}")
        if tuple(y.shape) != state.shape:
            raise ValueError(
                f"function {k} must return the shape of its input, {list(state.shape)}, "
                f"but returned {list(y.shape)}"
            )
        ops, y = self._ops(state.computed, state.device), self._cast(y, state.computed)
        with self._exactly(state.device):
            inner = self._run(self.connection.write, ops, state.state, k, y)
        verb = "close" if k + 1 == self.connection.context.layers else "read"
        return state._replace(verb=verb, k=k + 1, state=inner)

    def close(self, state: Pass) -> Array:
        """The output, shaped like the input. Raises ValueError before the last function wrote.

        Apply the network's final norm to it.
        """
        self._check(state, "close", self.connection.context.layers)
        ops = self._ops(state.computed, state.device)
        with self._exactly(state.device):
            x = self.connection.close(ops, state.state)
        return self._cast(x, state.given)

    def trace(self, state: Pass) -> dict[str, Array] | None:
        """How a pass mixed its streams, for monitoring; None of a connection without streams.

        `H_res` [layers, S, S]: mixing matrices, dynamic ones averaged over positions. `streams` [S,
        …, width]: the last streams. Raises ValueError before the last function wrote, and for an
        input without positions.
        """
        self._check(state, "trace", self.connection.context.layers)
        if 0 in state.shape:
            raise ValueError(f"the input has no positions to average over: {list(state.shape)}")
        ops = self._ops(state.computed, state.device)
        params = self._params(self._arrays(), state.computed)
        with self._exactly(state.device):
            mixed = self.connection.trace(ops, params, state.state)
        return mixed and {"H_res": mixed.H_res, "streams": mixed.streams}

    def wrap(self, branch: Callable[..., Array], k: int) -> Callable[..., Pass]:
        """Function k as a step from state to state; further arguments are passed to `branch`.

        `branch` (an attention, an MLP) takes […, width] and returns the same shape. If function k
        `reads_apart`, it takes three such arrays, of q, k and v. Its parameters are not registered
        here. Raises ValueError for a k out of range.
        """
        last = self.connection.context.layers - 1
        if not 0 <= k <= last:
            raise ValueError(f"k is {k}, but functions are numbered from 0 to {last}")

        def step(state: Pass, *arguments: Any, **named: Any) -> Pass:  # noqa: ANN401
            x, state = self.read(state, k)
            inputs = x if isinstance(x, Apart) else (x,)
            return self.write(state, k, branch(*inputs, *arguments, **named))

        return step

    def through(
        self,
        x: Array,
        branches: Sequence[Callable[[Array], Array]],
        noise: np.ndarray | None = None,
    ) -> Array:
        """A whole pass through the branches, […, width] → the same; `noise`: see `open`.

        Calling a module calls this. Raises ValueError unless there is one branch per layer.
        """
        layers = self.connection.context.layers
        if not hasattr(branches, "__len__"):  # any other iterable than a list or a ModuleList
            branches = list(branches)
        if len(branches) != layers:
            raise ValueError(f"layers={layers} needs {layers} branches, but has {len(branches)}")
        state = self.open(x, noise)
        for k, branch in enumerate(branches):
            state = self.wrap(branch, k)(state)
        return self.close(state)

    def _check(self, state: Pass, verb: str, k: int) -> None:
        """Raise ValueError unless this verb of function k is next, TypeError for no `Pass`."""
        if not isinstance(state, Pass):
            raise TypeError(
                "the state must come from open, read or write, but is a "
                f"{type(state).__name__}; torch.utils.checkpoint unpacks it unless "
                "use_reentrant=False"
            )
        if state.of != self._key:
            raise ValueError("the state is of another connection; open, read and write with one")
        array = next((x for x in state.state if isinstance(x, self._array_kind)), None)
        if array is not None and (found := type_name(array)) != state.computed and found in FLOATS:
            raise ValueError(
                f"the state was cast from {state.computed} to {found}; for FSDP2 use "
                "MixedPrecisionPolicy(cast_forward_inputs=False)"
            )
        if not state.records and self._records():
            raise ValueError(
                "the pass began without gradients (torch.no_grad), and its parameters would get "
                "none from this function; begin it with gradients, and detach what functions return"
            )
        if (state.verb, state.k) != ("close" if verb == "trace" else verb, k):
            turns = [f"{name} {n!r}" if name in ("read", "write") else name for name, n in
                     ((verb, k), (state.verb, state.k))]  # fmt: skip
            raise ValueError(f"{turns[0]} is out of turn; next is {turns[1]}")
