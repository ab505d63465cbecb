"""The frameworks that have modules."""

import pytest

from tests.library.frameworks import Mlx, Torch, installed


@pytest.fixture(params=[Torch, Mlx], ids=lambda kind: kind.name)
def framework(request):
    """Each framework in turn."""
    return installed(request.param)


@pytest.fixture
def torch():
    return installed(Torch).library
