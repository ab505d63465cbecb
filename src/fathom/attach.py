"""A connection in place of the residual additions of a decoder, for both frameworks.

Blocks are recognised by the name of their class and by their modules. Neither transformers nor
mlx-lm is imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from fathom.library import Pass, Verbs
from fathom.operations.ops import Array

Path = tuple[str, ...]
"""Names of the modules that a function of a block applies in turn, norms included."""

_LLAMA = (("input_layernorm", "self_attn"), ("post_attention_layernorm", "mlp"))
_OLMO2 = (("self_attn", "post_attention_layernorm"), ("mlp", "post_feedforward_layernorm"))
BLOCKS: Mapping[str, tuple[Path, ...]] = {
    "LlamaDecoderLayer": _LLAMA,
    "MistralDecoderLayer": _LLAMA,
    "Qwen2DecoderLayer": _LLAMA,
    "Qwen3DecoderLayer": _LLAMA,
    "OlmoDecoderLayer": _LLAMA,
    "Olmo2DecoderLayer": _OLMO2,
    "Olmo3DecoderLayer": _OLMO2,
    "GPT2Block": (("ln_1", "attn"), ("ln_2", "mlp")),
    "GPTNeoXLayer": (
        ("input_layernorm", "attention", "post_attention_dropout"),
        ("post_attention_layernorm", "mlp", "post_mlp_dropout"),
    ),
    "llama.TransformerBlock": _LLAMA,
    "qwen2.TransformerBlock": _LLAMA,
    "qwen3.TransformerBlock": _LLAMA,
}
"""Functions of a block by its class; of mlx-lm, whose classes share a name, with the module's."""

ATTENTIONS = ("self_attn", "attn", "attention")
"""Modules that take the block's other arguments: the mask, positions, the cache."""

BY_HAND = """do it by hand in its forward:
    state = c.open(x)                  # before the first block; c = ResidualConnection(…)
    state = c.wrap(branch, k)(state)   # in place of x = x + branch(x); k counts all branches
    x = c.close(state)                 # after the last block"""


class Site(NamedTuple):
    """The place of a block in a network with a connection."""

    owner: Any
    """The model, whose `connection` this is: it may be replaced, as by PEFT."""
    first: int
    """Number of the block's first function."""
    functions: tuple[tuple[Path, ...], ...]
    """Functions of the block; each is the sum of paths with the same input."""
    arguments: tuple[str, ...]
    """Names of the block's arguments after the first."""


Block = Any
"""A module of transformers or mlx-lm, with its `Site` as `site`."""


class Between(NamedTuple):
    """What a block hands to the next one."""

    x: Array
    """Input of the next function, which transformers returns as the hidden state."""
    state: Pass


def functions_of(block: Block, modules: Iterable[str]) -> tuple[tuple[Path, ...], ...]:
    """The functions of a block that has these modules. Raises ValueError for an unknown block."""
    cls = type(block)
    module = cls.__module__.rpartition(".")[2]
    paths = BLOCKS.get(cls.__name__) or BLOCKS.get(f"{module}.{cls.__name__}")
    if paths is None:
        raise ValueError(f"attach does not know {cls.__name__} of {cls.__module__}; {BY_HAND}")
    if other := sorted(set(chain(*paths)).symmetric_difference(modules)):
        listed = ", ".join(other)
        raise ValueError(f"attach knows {cls.__name__} without a difference in {listed}; {BY_HAND}")
    # In GPT-NeoX both may have the same input.
    is_parallel = getattr(block, "use_parallel_residual", False)
    return (paths,) if is_parallel else tuple((path,) for path in paths)


def place(
    model: Any,  # noqa: ANN401, a module of either framework
    blocks: Sequence[Block],
    functions: tuple[tuple[Path, ...], ...],
    connection: Callable[..., Verbs],
    method: str,
    **methods: Callable[..., Any],
) -> Verbs:
    """Put a connection around the functions of a model's blocks, in place, and return it.

    `functions`: of each block, as `functions_of` returns them. `connection`: makes it from
    `layers`, the number of all functions, and `per_block`, that of a block. `method`: name of the
    method that calls a block. `methods`: further ones of blocks. Raises ValueError for a connection
    that norms the inputs of functions itself, or needs random numbers in training.
    """
    n = len(functions)
    c = connection(layers=n * len(blocks), per_block=n)
    if c.reads_normed:
        raise ValueError(
            f"{c.scheme!r} norms inputs itself, and blocks keep their norms; {BY_HAND}"
        )
    if c._noise_shape is not None:
        raise ValueError(f"{c.scheme!r} needs `noise` in training: c.open(x, noise); {BY_HAND}")
    cls = type(blocks[0])
    if hasattr(cls, "site"):
        raise ValueError("the model has a connection already; load it again without one")
    # A class of the same name: wrappers that look for it, such as FSDP's policies, find it.
    methods |= {method: forward}
    own = type(cls.__name__, (cls,), {**methods, "__module__": cls.__module__, "site": None})
    names = tuple(inspect.signature(getattr(cls, method)).parameters)[2:]
    for i, block in enumerate(blocks):
        block.__class__ = own
        vars(block)["site"] = Site(model, n * i, functions, names)  # not registered as a module
    model.connection = c
    return c


def forward(block: Block, x: Array | Between, *arguments: Any, **named: Any) -> Array | Between:  # noqa: ANN401
    """A block whose additions are the connection's; the last one returns the output.

    Raises TypeError if the state is lost between two blocks.
    """
    model, first, functions, names = block.site
    c = model.connection
    named |= zip(names, arguments, strict=False)
    if first == 0:
        x = Between(*c.read(c.open(x), 0))
    if not isinstance(x, Between):
        raise TypeError(
            f"a block got a {type(x).__name__} for the state of the connection; checkpoint with "
            "use_reentrant=False, and use transformers 5.23 or newer"
        )
    m, state = x
    for k, paths in enumerate(functions, first):
        first_output, *others = (along(block, path, m, named) for path in paths)
        state = c.write(state, k, sum(others, first_output))
        if k + 1 == c.connection.context.layers:
            return c.close(state)
        m, state = c.read(state, k + 1)
    return Between(m, state)


def along(block: Block, path: Path, x: Array, named: dict[str, Any]) -> Array:
    """x after the modules of a path; `named`: the block's other arguments."""
    for name in path:
        x = getattr(block, name)(x, **(named if name in ATTENTIONS else {}))
        if isinstance(x, tuple):  # the output and attention weights
            x = x[0]
    return x
