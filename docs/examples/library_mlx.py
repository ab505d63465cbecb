"""A character model with mHC around every branch, in MLX: it learns this file by heart.

Run it: `python docs/examples/library_mlx.py`.
"""

from pathlib import Path

from fathom.mlx import ResidualConnection  # before MLX: on Linux that makes it faster

# isort: split
import mlx.core as mx
import mlx.optimizers
from mlx import nn

BLOCKS, WIDTH, HEADS, LENGTH, BATCH, STEPS = 4, 64, 4, 64, 8, 60


class Attention(nn.Module):
    """Norm and causal attention, [B, T, C] → the same. It does not add its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def __call__(self, x: mx.array) -> mx.array:
        qkv = self.qkv(self.norm(x)).reshape(*x.shape[:2], 3, HEADS, -1)
        q, k, v = (qkv[:, :, i].swapaxes(1, 2) for i in range(3))
        scale = (WIDTH // HEADS) ** -0.5
        y = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask="causal")
        return self.out(y.swapaxes(1, 2).flatten(2))


def mlp() -> nn.Module:
    """Norm and two layers. It does not add its input."""
    hidden = 4 * WIDTH
    parts = (nn.LayerNorm(WIDTH), nn.Linear(WIDTH, hidden), nn.GELU(), nn.Linear(hidden, WIDTH))
    return nn.Sequential(*parts)


class Model(nn.Module):
    """A pre-norm transformer, [B, T] → logits [B, T, V], with its residual path in a module."""

    def __init__(self, vocab: int, scheme: str = "mhc_paper") -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.branches = [f() for _ in range(BLOCKS) for f in (Attention, mlp)]
        self.connection = ResidualConnection(scheme, layers=2 * BLOCKS, width=WIDTH)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, vocab)

    def __call__(self, ids: mx.array) -> mx.array:
        c = self.connection
        state = c.open(self.tokens(ids) + self.places.weight[: ids.shape[1]])
        for k, branch in enumerate(self.branches):
            state = c.wrap(branch, k)(state)  # where `x = x + branch(x)` would be
        return self.head(self.norm(c.close(state)))


def loss_of(model: Model, windows: mx.array) -> mx.array:
    """The loss on windows [B, LENGTH + 1], in nats per character."""
    return nn.losses.cross_entropy(model(windows[:, :-1]), windows[:, 1:], reduction="mean")


def main() -> None:
    """Train and print the loss."""
    mx.random.seed(0)
    text = Path(__file__).read_text(encoding="utf-8")
    characters = sorted(set(text))
    data = mx.array([characters.index(c) for c in text])
    model = Model(len(characters))
    exempt = {f"connection.{name}" for name in model.connection.no_decay}
    decayed, others = (mlx.optimizers.AdamW(3e-3, weight_decay=decay) for decay in (0.01, 0.0))
    optimizer = mlx.optimizers.MultiOptimizer(
        [decayed, others], [lambda name, p: p.ndim > 1 and name not in exempt]
    )
    loss_and_gradients = nn.value_and_grad(model, loss_of)
    for step in range(STEPS):
        starts = mx.random.randint(0, len(text) - LENGTH, (BATCH, 1))
        loss, gradients = loss_and_gradients(model, data[starts + mx.arange(LENGTH + 1)])
        optimizer.update(model, gradients)
        mx.eval(model.parameters(), optimizer.state)
        if step in (0, STEPS - 1):
            print(f"step {step + 1}: loss {loss.item():.2f}")


if __name__ == "__main__":
    main()
