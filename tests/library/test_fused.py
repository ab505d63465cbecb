"""CUDA kernels of Sinkhorn against the CPU's loops; interpreted on a machine without a GPU."""

import os

import numpy as np
import pytest

from fathom_study.config import installed_backends

if "torch" not in installed_backends():  # not importorskip: an empty folder would be imported
    pytest.skip("torch is not installed", allow_module_level=True)
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
pytest.importorskip("triton", reason="needs Triton, which PyTorch for CUDA installs")

from fathom.arithmetic import fused, loops

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("passes", [1, 2, 3, 40])
@pytest.mark.parametrize("floor, added", [(0.0, 0.0), (1e-6, 0.0), (0.3, 0.0), (0.0, 1e-3)])
@pytest.mark.parametrize("streams, matrices", [(4, 70), (2, 32), (8, 5)])
def test_kernels_equal_loops(passes, floor, added, streams, matrices):
    rng = np.random.default_rng(0)
    K = np.exp(rng.normal(size=(streams, streams, matrices))).astype(np.float32)
    g = rng.normal(size=K.shape).astype(np.float32)
    scales = loops.scales_of_passes(K, passes, floor, added)
    on_device = torch.tensor(K, device=DEVICE)
    device_scales = fused.scales_of_passes(on_device, passes, floor, added)
    # A pass adds `streams` products and divides once; scales accumulate rounding over passes.
    rounding = (streams + 2) * passes * np.finfo(np.float32).eps
    np.testing.assert_allclose(device_scales.cpu(), scales, rtol=rounding)
    of_K = loops.passes_backward(K, scales, g, added)
    of_device = fused.passes_backward(
        on_device, device_scales, torch.tensor(g, device=DEVICE), added
    )
    np.testing.assert_allclose(of_device.cpu(), of_K, atol=rounding * np.abs(of_K).max())
