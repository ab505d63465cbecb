"""What a connection costs in a network of one's own: `fathom.torch` around branches, in turns.

    python benchmarks/library.py --schemes mhc_paper hc_paper

CPU time of a forward and backward pass on one thread, over that of `plain`: the median of turns and
their range. A branch is a norm and a linear layer, so little is done besides. PyPI's
hyper-connections take turns where they are installed (the extra `bench`), and so does a loop of
`x = x + branch(x)`.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fathom.torch import ResidualConnection

Pass = Callable[[Tensor], Tensor]

SCHEMES = ["mhc_paper", "mhc_lite", "hc_paper", "deepseek_v4", "hy_v4"]


def branches(layers: int, width: int) -> nn.ModuleList:
    """A norm and a linear layer each."""
    pairs = ((nn.LayerNorm(width), nn.Linear(width, width)) for _ in range(layers))
    return nn.ModuleList(nn.Sequential(*pair) for pair in pairs)


def by_hand(layers: int, width: int) -> Pass:
    """The ordinary residual path."""
    functions = branches(layers, width)

    def run(x: Tensor) -> Tensor:
        for function in functions:
            x = x + function(x)
        return x

    return run


def ours(scheme: str, layers: int, width: int, streams: int) -> Pass:
    """A module of ours."""
    connection = ResidualConnection(scheme, layers, width, streams=streams)
    functions = branches(layers, width)
    return lambda x: connection(x, functions)


def pypi(name: str, layers: int, width: int, streams: int) -> Pass:
    """A class of the package, a module for each branch."""
    import hyper_connections

    kind = getattr(hyper_connections, name)
    modules = nn.ModuleList(kind(streams, dim=width, layer_index=k) for k in range(layers))
    functions = branches(layers, width)

    def run(x: Tensor) -> Tensor:
        x = x.repeat_interleave(streams, dim=0)
        for module, function in zip(modules, functions, strict=True):
            read, write = module(x)
            x = write(function(read))
        return x.unflatten(0, (-1, streams)).sum(dim=1)

    return run


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--schemes", nargs="+", default=SCHEMES)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    size = (options.layers, options.width)
    sides = {name: ours(name, *size, options.streams) for name in ("plain", *options.schemes)}
    sides["by hand"] = by_hand(*size)
    if importlib.util.find_spec("hyper_connections") is not None:
        names = ("mHC", "HyperConnections")
        sides |= {f"pypi {name}": pypi(name, *size, options.streams) for name in names}
    x = torch.randn(options.batch, options.length, options.width)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(options.turns + 1):
        for name, run in sides.items():
            begun = time.process_time()
            run(x).square().mean().backward()
            if turn:  # the first is warm-up
                seconds[name].append(time.process_time() - begun)
    for name, own in seconds.items():
        ratios = [a / b for a, b in zip(own, seconds["plain"], strict=True)]
        over = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"{name:22} {1e3 * statistics.median(own):6.0f} ms  {over}")


if __name__ == "__main__":
    main()
