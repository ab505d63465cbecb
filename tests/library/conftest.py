"""The frameworks that have modules."""

import pytest

from tests.library.frameworks import Mlx, Torch, installed


@pytest.fixture(params=[Torch, Mlx], ids=lambda kind: kind.name)
def framework(request):
    """Each framework in turn."""
    return installed(request.param)


@pytest.fixture
def on_torch():
    """PyTorch alone."""
    return installed(Torch)


@pytest.fixture
def torch(on_torch):
    return on_torch.library
