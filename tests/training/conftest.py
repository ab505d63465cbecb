"""A device without numbers."""

import pytest


@pytest.fixture(scope="module")
def meta(connect_cpu):
    """PyTorch's meta device, which computes only shapes and refuses what CUDA refuses."""
    connect_cpu("torch")
    import torch

    from fathom_study.backends.torch import TorchBackend

    def fused(params, grads, m, v, largest, steps, *, lr, **settings):
        """Check inputs as the GPU kernels of this update do; it has no kernel for meta tensors."""
        for x in (*params, *grads, *m, *v, *steps, lr):
            assert (x.device.type, x.dtype, x.is_contiguous()) == ("meta", torch.float32, True)

    library = torch.library.Library("aten", "IMPL")
    library.impl("_fused_adamw_.tensor_lr", fused, "Meta")
    yield TorchBackend(torch.device("meta"))
    library._destroy()
