"""Cost of a connection in the user's own network: `fathom.torch` around branches, in turns.

    python benchmarks/library.py mhc_paper hc_paper

Prints the CPU time of a forward and backward pass on one thread, relative to `plain`: the median of
seven turns and their range. Also prints the bytes that the forward pass keeps for the backward
pass, beyond those of the branches, per token, channel and branch. A branch is a norm and a linear
layer, so little else is computed. A loop of `x = x + branch(x)` takes turns too, as do PyPI's
hyper-connections if they are installed.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn

from fathom.torch import ResidualConnection

LAYERS, WIDTH, STREAMS, TURNS = 24, 128, 4, 7
SCHEMES = ["mhc_paper", "mhc_lite", "hc_paper", "deepseek_v4", "hy_v4"]


def branches() -> nn.ModuleList:
    """LAYERS branches, each a norm and a linear layer."""
    pairs = ((nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)) for _ in range(LAYERS))
    return nn.ModuleList(nn.Sequential(*pair) for pair in pairs)


def by_hand(x: Tensor, functions: nn.ModuleList) -> Tensor:
    """The ordinary residual path."""
    for function in functions:
        x = x + function(x)
    return x


def pypi(name: str) -> Callable[[Tensor, nn.ModuleList], Tensor]:
    """A residual path with a module of the package's class `name` for each branch."""
    kind = getattr(importlib.import_module("hyper_connections"), name)
    modules = nn.ModuleList(kind(STREAMS, dim=WIDTH, layer_index=k) for k in range(LAYERS))

    def run(x: Tensor, functions: nn.ModuleList) -> Tensor:
        x = x.repeat_interleave(STREAMS, dim=0)
        for module, function in zip(modules, functions, strict=True):
            read, write = module(x)
            x = write(function(read))
        return x.unflatten(0, (-1, STREAMS)).sum(dim=1)

    return run


def kept_bytes(run: Callable[[Tensor, nn.ModuleList], Tensor], functions: nn.ModuleList) -> float:
    """Bytes that a forward pass keeps for the backward pass, per token, channel and branch."""
    x, kept = torch.randn(8, 64, WIDTH), {}

    def pack(saved: Tensor) -> Tensor:
        kept[saved.untyped_storage().data_ptr()] = saved.untyped_storage().nbytes()
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        run(x, functions)
    modules = (module for module in (run, functions) if isinstance(module, nn.Module))
    own = {p.untyped_storage().data_ptr() for module in modules for p in module.parameters()}
    return sum(size for place, size in kept.items() if place not in own) / x.numel() / LAYERS


def main() -> None:
    """Measure and print a table."""
    torch.set_num_threads(1)
    names = ["plain", *(sys.argv[1:] or SCHEMES)]
    sides = {name: ResidualConnection(name, LAYERS, WIDTH, streams=STREAMS) for name in names}
    sides["by hand"] = by_hand
    if importlib.util.find_spec("hyper_connections") is not None:
        sides |= {f"pypi {name}": pypi(name) for name in ("mHC", "HyperConnections")}
    functions = {name: branches() for name in sides}
    x, seconds = torch.randn(32, 64, WIDTH), {name: [] for name in sides}
    for turn in range(TURNS + 1):
        for name, run in sides.items():
            begun = time.process_time()
            run(x, functions[name]).square().mean().backward()
            if turn:  # the first is warm-up
                seconds[name].append(time.process_time() - begun)
    of_branches = kept_bytes(by_hand, functions["by hand"])
    for name, own in seconds.items():
        ratios = [a / b for a, b in zip(own, seconds["plain"], strict=True)]
        over = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        kept = kept_bytes(sides[name], functions[name]) - of_branches
        print(f"{name:22} {1e3 * median(own):6.0f} ms  {over}  {kept:5.1f} bytes")


if __name__ == "__main__":
    main()
