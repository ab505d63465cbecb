"""Connections as modules of either framework, under one interface."""

import importlib
from functools import partial

import numpy as np
import pytest

from fathom.library import connection_for, type_name
from fathom_study.config import installed_backends


class Framework:
    """Array operations of the tests that are common to both frameworks."""

    def array(self, x, dtype="float32"):
        return self.made(np.ascontiguousarray(x), dtype=getattr(self.library, dtype))

    def tanh_of(self, x, weight):
        return self.library.tanh(x @ weight)


class Torch(Framework):
    """Module operations of the tests in PyTorch."""

    name = "torch"

    def __init__(self):
        self.library = importlib.import_module("torch")
        self.made = self.library.tensor
        self.module = importlib.import_module("fathom.torch").ResidualConnection

    def numpy(self, x):
        return x.detach().double().numpy()

    def retype(self, module, dtype):
        module.to(getattr(self.library, dtype))

    def values(self, module):
        return {name: self.numpy(value) for name, value in module.state_dict().items()}

    def load(self, module, values):
        types = {name: type_name(value) for name, value in module.state_dict().items()}
        module.load_state_dict({k: self.array(v, types[k]) for k, v in values.items()})

    def save_file(self, module, file):
        importlib.import_module("safetensors.torch").save_file(module.state_dict(), file)

    def load_file(self, module, file):
        module.load_state_dict(importlib.import_module("safetensors.torch").load_file(file))

    def second(self, module, x, loss):
        """Gradients, named as in `gradients`, of half the squared norm of all gradients."""
        x, arrays = x.clone().requires_grad_(), dict(module.named_parameters())
        wanted = [x, *arrays.values()]
        take = partial(self.library.autograd.grad, materialize_grads=True)
        penalty = sum((g * g).sum() / 2 for g in take(loss(x), wanted, create_graph=True))
        gradients = dict(zip(["x", *arrays], take(penalty, wanted), strict=True))
        return {name: self.numpy(g) for name, g in gradients.items()}

    def gradients(self, module, x, loss):
        """Gradients by parameter name, with the input's as `x`."""
        x = x.clone().requires_grad_()
        module.zero_grad()
        loss(x).backward()
        gradients = {name: p.grad for name, p in module.named_parameters()}
        return {name: self.numpy(g) for name, g in {**gradients, "x": x.grad}.items()}


class Mlx(Framework):
    """Module operations of the tests in MLX."""

    name = "mlx"

    def __init__(self):
        self.module = importlib.import_module("fathom.mlx").ResidualConnection
        self.library = importlib.import_module("mlx.core")
        self.library.set_default_device(self.library.cpu)
        self.made = self.library.array

    def numpy(self, x):
        return np.array(x.astype(self.library.float64))

    def retype(self, module, dtype):
        module.set_dtype(getattr(self.library, dtype))

    def values(self, module):
        return {name: self.numpy(value) for name, value in module.parameters().items()}

    def load(self, module, values):
        types = {name: type_name(value) for name, value in module.parameters().items()}
        module.load_weights([(k, self.array(v, types[k])) for k, v in values.items()])

    def save_file(self, module, file):
        module.save_weights(str(file))

    def load_file(self, module, file):
        module.load_weights(str(file))

    def slopes(self, module, loss):
        """Function from parameters and input to the gradients of both."""

        def objective(params, x):
            module.update(params)
            return loss(x)

        return self.library.grad(objective, argnums=(0, 1))

    def second(self, module, x, loss):
        def penalty(params, x):
            of_params, of_x = self.slopes(module, loss)(params, x)
            return sum((g * g).sum() / 2 for g in (of_x, *of_params.values()))

        params = module.trainable_parameters()
        of_params, of_x = self.library.grad(penalty, argnums=(0, 1))(params, x)
        return {name: self.numpy(g) for name, g in {**of_params, "x": of_x}.items()}

    def gradients(self, module, x, loss):
        of_params, of_x = self.slopes(module, loss)(module.trainable_parameters(), x)
        return {name: self.numpy(g) for name, g in {**of_params, "x": of_x}.items()}


def installed(kind):
    """The framework; skips the test where it is not installed."""
    # Not importorskip: MLX must not be imported before fathom has chosen its BLAS.
    if kind.name not in installed_backends():
        pytest.skip(f"{kind.name} is not installed")
    return kind()


def connection_of(scheme, layers, width, **sizes):
    """The connection of a scheme, for functions that add nothing and take one input."""
    sizes = {
        "streams": 4, "seed": 0, "per_block": 1, "pooled_axes": 0, "has_residual": False,
        "takes_apart": False, "start": None, **sizes,
    }  # fmt: skip
    return connection_for(scheme, layers=layers, width=width, **sizes)


LAYERS, WIDTH, SHAPE = 3, 4, (2, 3, 4)


WEIGHTS = np.random.default_rng(0).standard_normal((LAYERS, WIDTH, WIDTH)) / 2


INPUT = np.random.default_rng(1).standard_normal(SHAPE)


def branches(framework, dtype="float32", layers=LAYERS):
    """Functions […, WIDTH] → […, WIDTH]; function k uses matrix k mod LAYERS."""
    matrices = [framework.array(WEIGHTS[k % LAYERS], dtype) for k in range(layers)]
    return [lambda *x, w=w: framework.tanh_of(mixture(*x), w) for w in matrices]


def mixture(q, k=None, v=None):
    """The only input q, or q/2 − k + 2·v of three inputs."""
    return q if k is None else 0.5 * q - k + 2 * v


def moved(framework, scheme, dtype="float32", by=0.3, **sizes):
    """(module with every parameter moved at random, the moved values in float64)."""
    sizes = {"layers": LAYERS, "width": WIDTH, "takes_apart": True, **sizes}
    module = framework.module(scheme, **sizes)
    rng = np.random.default_rng(2)
    framework.retype(module, dtype)
    values = framework.values(module)
    framework.load(module, {k: v + by * rng.standard_normal(v.shape) for k, v in values.items()})
    return module, framework.values(module)


def stepped(framework, module, functions, step=None, dtype="float32"):
    """Output and gradients of a pass that calls each wrapped function through `step`."""

    def loss(x):
        state = module.open(x)
        for k, function in enumerate(functions):
            wrapped = module.wrap(function, k)
            state = wrapped(state) if step is None else step(wrapped, state)
        loss.out = module.close(state)
        return (loss.out * loss.out).sum()

    gradients = framework.gradients(module, framework.array(INPUT, dtype), loss)
    return {**gradients, "out": framework.numpy(loss.out)}
