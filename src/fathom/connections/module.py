"""`module`: your own connection in PyTorch, from a file that a config names.

How to write one: docs/library.md, "Your own connection". The file is executed when its parameters
are first needed, and only if its hash is that in the settings.
"""

from __future__ import annotations

import copy
import inspect
import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path, PurePath
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from fathom.connections.connection import Connection, ConnectionContext, MixingTrace, Scheme
from fathom.init import Parameter
from fathom.operations.ops import Layers, Ops, Params
from fathom.settings import ConfigError, Text, did_you_mean
from fathom.system.errors import UserError
from fathom.system.text import digits, one_line

if TYPE_CHECKING:
    from torch import Tensor, nn

VERBS = ("open", "read", "write", "close")

FOLDER = "FATHOM_JUDGED"
"""Environment variable: the folder of a file from elsewhere, which runs record by its name alone.
`fathom judge` sets it, and the processes that it starts inherit it."""

CONTEXT = ("layers", "width", "per_block", "pooled_axes")
"""Facts about the network, passed to classes or functions with arguments of these names."""


class TorchModule(Scheme):
    """A PyTorch module or function in your own file; other settings are its arguments."""

    kind: Literal["module"] = "module"
    module: Text = Field(description="FILE.py:NAME")
    digest: Text = Field("", description="hash of the file, computed if it is empty")
    settings: dict[str, Any] = {}  # noqa: RUF012, pydantic copies it

    backends: ClassVar[tuple[str, ...]] = ("torch",)

    @model_validator(mode="before")
    @classmethod
    def _take_settings(cls, data: object) -> object:
        """Move other keys into `settings`, the arguments.

        Raises ValueError if the file cannot be read, and for arguments that a run cannot record.
        """
        if not isinstance(data, Mapping) or not isinstance(data.get("module"), str):
            return data
        known = {key: value for key, value in data.items() if key in cls.model_fields}
        rest = {key: value for key, value in data.items() if key not in cls.model_fields}
        if not isinstance(given := known.get("settings", {}), Mapping):
            raise ValueError("settings: must be a mapping of arguments")
        known["settings"] = {**given, **rest}
        for name, value in known["settings"].items():
            if name in CONTEXT:
                raise ValueError(f"{name}: the network sets it; give your argument another name")
            try:
                json.dumps(value, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{name}: cannot be recorded as JSON ({error})") from error
        if not known.get("digest"):
            known["digest"] = digits(_read(known["module"]))
        return known

    def at(self, context: ConnectionContext) -> ModuleConnection:
        """The connection in a network. Does not execute the file yet."""
        return ModuleConnection(self, context)

    def build(self, context: ConnectionContext, seed: int) -> nn.Module:
        """The module, built with PyTorch's random numbers at a seed. Raises ConfigError.

        Executes the file.
        """
        import torch

        made = _load(self.module, self.digest)
        if not inspect.isclass(made):
            return _as_module(partial(made, **self._arguments(made, context, passed=2)))
        if not issubclass(made, torch.nn.Module):
            raise ConfigError(f"{self.module} is not a torch.nn.Module; make it a subclass")
        arguments = self._arguments(made, context)
        # Not in inference mode: gradients may need its buffers later.
        with OwnCode(self.module), torch.random.fork_rng([]), torch.inference_mode(False):
            torch.manual_seed(seed)
            module = made(**arguments)
        if hidden := _hidden_modules(module):
            raise ConfigError(
                f"{self.module}: {hidden} holds parameters that PyTorch does not find; use "
                "torch.nn.ModuleList, ModuleDict or ParameterList"
            )
        for name, p in module.named_parameters():
            if torch.nn.parameter.is_lazy(p):
                raise ConfigError(
                    f"{self.module}: {name} is lazy, so it has no shape yet; build its module with "
                    "sizes"
                )
            if p.is_complex():
                raise ConfigError(f"{self.module}: {name} is complex; use torch.view_as_real")
        if has_verbs(module) or type(module).forward is not torch.nn.Module.forward:
            return module
        raise ConfigError(f"{self.module} has no forward(x0, functions), nor {', '.join(VERBS)}")

    def _arguments(
        self, made: Callable[..., Any], context: ConnectionContext, passed: int = 0
    ) -> dict[str, Any]:
        """Arguments of `made` by name, after the first `passed`. Raises ConfigError."""
        signature = inspect.signature(made)
        names = [*signature.parameters][passed:]
        facts = {name: getattr(context, name) for name in CONTEXT if name in names}
        arguments = {**facts, **self.settings}
        try:
            signature.bind(*[None] * passed, **arguments)
        except TypeError as error:
            takes = ", ".join(names) or "none"
            raise ConfigError(f"{self.module}: {error} (its arguments: {takes})") from None
        return arguments


def split_name(module: str) -> tuple[str, str]:
    """(FILE.py, NAME) from FILE.py:NAME. Raises ConfigError."""
    file, _, name = module.rpartition(":")
    if PurePath(file).suffix != ".py" or not name.isidentifier():
        raise ConfigError(f"module must be like my_connection.py:TwoStreams, but is {module!r:.80}")
    return file, name


def _read(module: str) -> bytes:
    """Content of the file in FILE.py:NAME. Raises ConfigError."""
    file, _ = split_name(module)
    if not is_inside(file):
        raise ConfigError(
            f"module: {file} is outside this folder, or hidden; copy it into this folder, or "
            "link to it"
        )
    try:
        return _place(file).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"module: {file} cannot be read ({error.strerror}); give its path from the config"
        ) from error


def is_inside(file: str) -> bool:
    """Whether runs may record a path: not an absolute one, nor one outside of this folder.

    Nor one in a hidden folder such as .venv, whose files are publicly known.
    """
    path = PurePath(file)
    return not path.is_absolute() and all(part[0] != "." for part in path.parts)


def _place(file: str) -> Path:
    """The file of a recorded path, first in the folder that the environment names."""
    given = Path(os.environ.get(FOLDER, ""), file)
    return given if given.is_file() else Path(file)


@cache
def _load(module: str, digest: str) -> Any:  # noqa: ANN401, a class or a function
    """Execute a file and return its class or function. Raises ConfigError."""
    file, _, name = module.rpartition(":")
    content = _read(module)
    if digits(content) != digest:
        raise ConfigError(f"{file} differs from that of this training (hash {digest}); start again")
    loaded = ModuleType(f"{Path(file).stem}_{digest}")
    loaded.__file__ = str(_place(file))
    sys.modules[loaded.__name__] = loaded  # where dataclasses look up their own module
    try:
        code = compile(content, file, "exec")
    except SyntaxError as error:
        raise ConfigError(f"{file}: line {error.lineno}: {error.msg}") from error
    before = set(sys.modules)
    with OwnCode(module):
        exec(code, vars(loaded))  # noqa: S102, the config names it
    if beside := [name for name in sys.modules if name not in before and _is_beside(name, file)]:
        raise ConfigError(
            f"{file} imports {', '.join(beside)} from a file beside it, whose changes no run would "
            "record; copy it into this file"
        )
    if not callable(member := vars(loaded).get(name)):
        own = [n for n, value in vars(loaded).items() if callable(value)]
        raise ConfigError(f"{file} has no class or function {name}{did_you_mean(name, own)}")
    return member


def _is_beside(name: str, file: str) -> bool:
    """Whether an imported module's own file is in the folder of `file`, and not installed there."""
    own_file = getattr(sys.modules[name], "__file__", None)
    if not own_file or name.partition(".")[0] == "fathom":
        return False
    path, installed = Path(own_file).resolve(), (sys.prefix, sys.base_prefix)
    if "site-packages" in path.parts or any(path.is_relative_to(prefix) for prefix in installed):
        return False
    return path.is_relative_to(_place(file).resolve().parent)


class OwnCode:
    """Context that turns errors of a user's module into ConfigError with the line in the file.

    `anywhere`: also errors raised outside of the file. UserError, which names its fix, and OSError
    are not changed.
    """

    def __init__(self, module: str, *, anywhere: bool = True) -> None:
        self.module, self.anywhere = module, anywhere

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        mistakes = Exception, SystemExit
        if not isinstance(error, mistakes) or isinstance(error, (UserError, Reached, OSError)):
            return
        file = self.module.rpartition(":")[0]
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
        if lines or self.anywhere:
            where = f" (line {lines[-1]})" if lines else ""
            message = one_line(f"{type(error).__name__}: {error}".partition("\n")[0], 300)
            raise ConfigError(f"{self.module}: {message}{where}") from error


def own_code(connection: object) -> AbstractContextManager[None]:
    """`OwnCode` for errors in a module's file alone; no effect for settings of other kinds."""
    if isinstance(connection, TorchModule):
        return OwnCode(connection.module, anywhere=False)
    return nullcontext()


def _as_module(function: Callable[..., Tensor]) -> nn.Module:
    """A function (x0, functions) → x as a module without parameters."""
    from torch import nn

    class Function(nn.Module):
        def forward(self, x0: Tensor, functions: Layers) -> Tensor:
            return function(x0, functions)

    return Function()


def _hidden_modules(module: nn.Module) -> str:
    """The first attribute whose list, tuple or dict holds modules or parameters; empty if none.

    A list of registered parameters alone hides none: `torch.nn.GRU` has one.
    """
    from torch import nn

    known = vars(nn.Module())
    for part in module.modules():
        listed = _lists_of_parameters(part)
        for name, value in vars(part).items():
            inner = value.values() if isinstance(value, dict) else value
            is_plain = isinstance(value, (list, tuple, dict)) and name not in {*known, *listed}
            if is_plain and any(isinstance(one, (nn.Module, nn.Parameter)) for one in inner):
                return name
    return ""


def _lists_of_parameters(module: nn.Module) -> dict[str, list[Tensor]]:
    """The attributes of a module that are lists of its own parameters."""
    own = {*map(id, module._parameters.values())}
    lists = {name: value for name, value in vars(module).items() if isinstance(value, list)}
    return {name: value for name, value in lists.items() if value and {*map(id, value)} <= own}


def has_verbs(module: nn.Module) -> bool:
    """Whether a module has the four verbs, which are then called instead of `forward`."""
    return all(callable(getattr(module, verb, None)) for verb in VERBS)


@dataclass(frozen=True)
class Drawn:
    """Distribution of one parameter: the initial values that its module gives it."""

    connection: ModuleConnection
    name: str

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Values at the seed of the training; all parameters of a module are drawn together."""
        seed, _ = rng.bit_generator.seed_seq.entropy  # as `init.draw` sets it
        return self.connection.initial(seed)[self.name]


class ModulePass(NamedTuple):
    """A pass up to a verb."""

    module: nn.Module
    """The module with the parameters of this pass."""
    state: Any
    """State of the verbs. With `forward`: the input, then the outputs of functions so far."""
    read: Tensor | None = None
    """The input of the function that has not written yet."""


class Reached(Exception):  # noqa: N818, no error
    """Ends a `forward` at a function, and carries the function's input."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.x = x


class ModuleConnection(Connection):
    """A PyTorch module around functions; if they add their input, it is subtracted."""

    settings: TorchModule

    @cached_property
    def template(self) -> nn.Module:
        """The module of seed 0, whose buffers and frozen parameters serve every seed."""
        return self.settings.build(self.context, 0)

    @cached_property
    def _kept(self) -> dict[Any, Any]:
        """Cache: initial values of the last seed, and the template by device and type."""
        return {}

    def initial(self, seed: int) -> dict[str, np.ndarray]:
        """Initial values of every parameter, by its name in the module."""
        if self._kept.get("seed") != seed:
            self._kept.update(seed=seed, values=self.draw(seed))
        return self._kept["values"]

    def draw(self, seed: int) -> dict[str, np.ndarray]:
        """The values of `initial`, drawn without the cache, float64."""
        module = self.settings.build(self.context, seed)
        return {name: p.detach().double().numpy() for name, p in module.named_parameters()}

    @property
    def exempt(self) -> tuple[str, ...]:
        """Parameters named in the module's `no_decay`. Raises ConfigError for unknown names."""
        names = getattr(self.template, "no_decay", ())
        if not isinstance(names, (list, tuple, set, frozenset)):
            raise ConfigError(f"{self.settings.module}: no_decay: must be a list of names")
        self._refuse_unknown("no_decay", names)
        return tuple(names)

    @property
    def rates(self) -> dict[str, float]:
        """Factors of the learning rate in the module's `rates`. Raises ConfigError."""
        rates = getattr(self.template, "rates", {})
        numbers = rates.values() if isinstance(rates, Mapping) else [None]
        if not all(isinstance(r, int | float) and 0 <= r < math.inf for r in numbers):
            raise ConfigError(
                f"{self.settings.module}: rates: must be a dict of factors by name, 0 or more each"
            )
        self._refuse_unknown("rates", rates)
        return {name: float(rate) for name, rate in rates.items()}

    def _refuse_unknown(self, key: str, names: Iterable[str]) -> None:
        """Raise ConfigError if the module has no parameter of one of the names."""
        known = dict(self.template.named_parameters())
        for name in names:
            if name not in known:
                hint = did_you_mean(str(name), known)
                raise ConfigError(f"{self.settings.module}: {key}: no parameter {name}{hint}")

    def parameters(self) -> dict[str, Parameter]:
        exempt, rates = self.exempt, self.rates
        return {
            f"connection.{name}": Parameter(
                tuple(p.shape),
                Drawn(self, name),
                is_matrix=p.ndim > 1 and name not in exempt,
                rate=rates.get(name, 1.0),
                decays=name not in exempt,
            )
            for name, p in self.template.named_parameters()
            if p.requires_grad
        }

    def sample_noise(self, rng: np.random.Generator, progress: float) -> np.ndarray:
        """Seed PyTorch's generator for a training step; the array marks a pass of training.

        So a module with its own dropout draws the same masks whenever a training is repeated.
        """
        import torch

        torch.manual_seed(int(rng.integers(2**63)))
        return np.zeros(1, np.float32)

    def bound(self, params: Params, x: Tensor, noise: Tensor | None = None) -> nn.Module:
        """The module with these parameters, in evaluation mode unless there is `noise`.

        Raises ConfigError for arrays of other frameworks.
        """
        import torch

        if not isinstance(x, torch.Tensor):
            raise ConfigError(f"{self.settings.module} is a PyTorch module; use backend torch")
        place = x.device, x.dtype
        if place not in self._kept:
            with torch.inference_mode(False):
                self._kept[place] = copy.deepcopy(self.template).to(*place)
        module = self._kept[place]
        values = {
            id(p): params.get(f"connection.{name}", p) for name, p in module.named_parameters()
        }
        return _with_parameters(module, values, training=noise is not None)

    def open(self, ops: Ops, params: Params, x: Tensor, noise: Tensor | None = None) -> ModulePass:
        module = self.bound(params, x, noise)
        return ModulePass(module, module.open(x) if has_verbs(module) else (x,))

    def read(self, ops: Ops, state: ModulePass, k: int) -> tuple[Tensor, ModulePass]:
        if has_verbs(state.module):
            x, inner = state.module.read(state.state, k)
            return x, state._replace(state=inner, read=x)
        x = self._read_of_forward(state, k)
        return x, state._replace(read=x)

    def _read_of_forward(self, state: ModulePass, k: int) -> Tensor:
        """Input of function k, found by running `forward` again with the outputs so far."""

        def reach(x: Tensor) -> Tensor:
            raise Reached(x)

        x0, *outputs = state.state
        functions = [*map(_constant, outputs), *[reach] * (self.context.layers - k)]
        try:
            state.module(x0, functions)
        except Reached as reached:
            return reached.x
        raise ConfigError(f"{self.settings.module}: forward does not call function {k}")

    def write(self, ops: Ops, state: ModulePass, k: int, y: Tensor) -> ModulePass:
        y = y - state.read if self.context.has_residual else y
        inner = (
            state.module.write(state.state, k, y) if has_verbs(state.module) else (*state.state, y)
        )
        return state._replace(state=inner, read=None)

    def close(self, ops: Ops, state: ModulePass) -> Tensor:
        if has_verbs(state.module):
            return state.module.close(state.state)
        x0, *outputs = state.state
        return state.module(x0, [*map(_constant, outputs)])

    def through(
        self, ops: Ops, params: Params, x: Tensor, layers: Layers, noise: Tensor | None
    ) -> tuple[Tensor, MixingTrace | None]:
        if has_verbs(self.template):
            return super().through(ops, params, x, layers, noise)
        functions = [partial(_branch, f) for f in layers] if self.context.has_residual else layers
        return self.bound(params, x, noise)(x, functions), None

    def lines_of_branch(self, params: Params, x: Tensor) -> str:
        """The fix for a `forward(x, fx)` of one branch, in four lines; empty for another mistake.

        It is recognised by trying: it accepts x with the output of a function, or with a function.
        """
        module, zeros = self.bound(params, x), x * 0

        def takes(branch: object) -> bool:
            with suppress(TypeError, AttributeError, RuntimeError, ValueError):
                return module(x, branch).shape == x.shape
            return False

        if has_verbs(module) or not (takes(zeros) or takes(_constant(zeros))):
            return ""
        is_class = inspect.isclass(_load(self.settings.module, self.settings.digest))
        name = "forward" if is_class else self.settings.module.rpartition(":")[2]
        indent, own, step = ("    ", "self, ", "self.step") if is_class else ("", "", "step")
        return (
            f"{self.settings.module}: {name} takes one branch, but gets all functions of the "
            "network in one call; rename it to step, and add these three lines:\n"
            f"{indent}def {name}({own}x, functions):\n"
            f"{indent}    for f in functions: x = {step}(x, {'f(x)' if takes(zeros) else 'f'})\n"
            f"{indent}    return x"
        )

    def trace(self, ops: Ops, params: Params, state: ModulePass) -> MixingTrace | None:
        """From the module's method `trace`, if it has one: `H_res` [L, S, S], `streams` [S, …]."""
        if not has_verbs(state.module) or not hasattr(state.module, "trace"):
            return None
        trace = state.module.trace(state.state)
        if not (isinstance(trace, Mapping) and {"H_res", "streams"} <= trace.keys()):
            raise ConfigError(
                f"{self.settings.module}: trace: must return a dict of H_res and streams"
            )
        shape, layers = list(trace["H_res"].shape), self.context.layers
        if len(shape) != 3 or shape[0] != layers or shape[1] != shape[2]:
            raise ConfigError(
                f"{self.settings.module}: trace: H_res must be [{layers}, S, S], the mean over "
                f"positions, but is {shape}"
            )
        if (streams := list(trace["streams"].shape))[:1] != shape[1:2]:
            raise ConfigError(
                f"{self.settings.module}: trace: streams must be [{shape[1]}, …], but is {streams}"
            )
        return MixingTrace(H_res=trace["H_res"], streams=trace["streams"])


@contextmanager
def created_parameters() -> Iterator[list[str]]:
    """The names of parameters that are registered in any module meanwhile."""
    from torch.nn.modules.module import register_module_parameter_registration_hook

    created: list[str] = []
    hook = register_module_parameter_registration_hook(lambda _, name, p: created.append(name))
    try:
        yield created
    finally:
        hook.remove()


def _constant(y: Tensor) -> Callable[[Tensor], Tensor]:
    """A function that returns y for every input."""
    return lambda _: y


def _branch(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Output of a function with a residual, minus its input."""
    return function(x) - x


def _with_parameters(
    module: nn.Module, values: Mapping[int, Tensor], *, training: bool
) -> nn.Module:
    """A shallow copy of a module, with parameters replaced by `values`, by their id.

    By id, since two names may share a parameter. Without `training` it is in evaluation mode. A
    module compiled by `torch.compile` calls its original, so the original is taken in its place.
    """
    module = module._modules.get("_orig_mod", module)
    twin = object.__new__(type(module))  # `copy.copy` refuses parametrised modules
    parts = {
        "_parameters": {n: values.get(id(p), p) for n, p in module._parameters.items()},
        "_modules": {
            n: None if m is None else _with_parameters(m, values, training=training)
            for n, m in module._modules.items()
        },
        **{
            name: [values.get(id(p), p) for p in listed]
            for name, listed in _lists_of_parameters(module).items()
        },
    }
    vars(twin).update(vars(module) | parts, training=training and module.training)
    return twin
