"""Connections in networks that FSDP2 has sharded."""

from functools import partial

import pytest

from tests.library.frameworks import Torch, mixture

LAYERS, WIDTH = 4, 8


@pytest.fixture
def mesh(torch):
    """A mesh of this process alone."""
    from torch import distributed

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield distributed.init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def gradients(torch, scheme, shard, step):
    """Gradients by name after a second pass, each function called through `step`."""

    class Branch(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(WIDTH, WIDTH)

        def forward(self, *x):
            return torch.tanh(self.linear(mixture(*x)))

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.c = Torch().module(scheme, LAYERS, WIDTH, per_block=2, takes_apart=True)
            self.branches = torch.nn.ModuleList(Branch() for _ in range(LAYERS))

        def forward(self, x):
            state = self.c.open(x)
            for k, branch in enumerate(self.branches):
                state = step(self.c.wrap(branch, k), state)
            return self.c.close(state)

    torch.manual_seed(0)
    network, x = Network(), torch.randn(2, 3, WIDTH)
    shard(network)
    for _ in range(2):
        network.zero_grad()
        (network(x) ** 2).sum().backward()
    found = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    return {n: g.full_tensor() if hasattr(g, "full_tensor") else g for n, g in found.items()}


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view tensor")
# The last four hand loops a part of a parameter, or one as a whole.
@pytest.mark.parametrize("scheme", ["mhc_paper", "deepseek_v4", "altup", "minimax", "gmr_cyclic"])
def test_checkpointed_functions_of_a_sharded_network_have_its_gradients(torch, mesh, scheme):
    """FSDP2 frees and gathers parameters, so their memory must stay resizable."""
    from torch.distributed.fsdp import fully_shard
    from torch.utils.checkpoint import checkpoint

    def shard(network):
        for branch in network.branches:
            fully_shard(branch, mesh=mesh)
        fully_shard(network, mesh=mesh)

    expected = gradients(torch, scheme, lambda network: None, lambda f, state: f(state))
    found = gradients(torch, scheme, shard, partial(checkpoint, use_reentrant=False))
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        # Sums of some tens of products in float32, in another order.
        size = float(expected[name].abs().max())
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-5 * size)
