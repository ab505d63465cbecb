"""Your own PyTorch module as a connection: parts of it that it has compiled."""

import pytest

from fathom_study.config import installed_backends

if "torch" not in installed_backends():  # not importorskip: an empty folder would be imported
    pytest.skip("needs PyTorch", allow_module_level=True)

from fathom.connections.connection import ConnectionContext
from fathom.connections.module import TorchModule
from fathom.operations.torch_ops import TorchOps

FILE = """
import torch
from torch import nn

class Plain(nn.Module):
    def __init__(self, layers, width):
        super().__init__()
        made = [nn.Linear(width, width) for _ in range(layers)]
        self.gates = nn.ModuleList(self.compiled(gate) for gate in made)

    def compiled(self, gate):
        return gate

    def forward(self, x0, functions):
        x = x0
        for gate, f in zip(self.gates, functions):
            x = x + torch.sigmoid(gate(x)) * f(x)
        return x

class Compiled(Plain):
    def compiled(self, gate):
        return torch.compile(gate, backend="eager")

class InPlace(Plain):
    def compiled(self, gate):
        gate.compile(backend="eager")
        return gate
"""


def test_compiled_submodules_use_the_parameters_of_the_pass(torch, tmp_path, monkeypatch):
    """A compiled module calls the one that it was made of, whose parameters are not trained."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(FILE, encoding="utf-8")
    context, ops = ConnectionContext(2, 4, 0, has_residual=False), TorchOps(torch.device("cpu"))
    x, found = torch.linspace(-1, 1, 12).reshape(3, 4), {}
    for name in ("Plain", "Compiled", "InPlace"):
        connection = TorchModule(module=f"own.py:{name}").at(context)
        values = connection.initial(5)
        params = {
            f"connection.{n}": torch.tensor(v, dtype=torch.float32, requires_grad=True)
            for n, v in values.items()
        }
        output, _ = connection.through(ops, params, x, [torch.tanh] * 2, None)
        found[name] = output, torch.autograd.grad(output.sum(), list(params.values()))
    for name in ("Compiled", "InPlace"):
        torch.testing.assert_close(found[name], found["Plain"])
