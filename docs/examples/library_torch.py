"""A character model with mHC around every branch, in PyTorch: it learns this file by heart.

Run it: `python docs/examples/library_torch.py`.
"""

from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812, the name that PyTorch's own documentation uses
from torch import Tensor, nn

from fathom.torch import ResidualConnection

BLOCKS, WIDTH, HEADS, LENGTH, BATCH, STEPS = 4, 64, 4, 64, 8, 60


class Attention(nn.Module):
    """Norm and causal attention, [B, T, C] → the same. It does not add its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1))
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


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
        self.branches = nn.ModuleList(f() for _ in range(BLOCKS) for f in (Attention, mlp))
        self.connection = ResidualConnection(scheme, layers=2 * BLOCKS, width=WIDTH)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, vocab)

    def forward(self, ids: Tensor) -> Tensor:
        c = self.connection
        state = c.open(self.tokens(ids) + self.places.weight[: ids.shape[1]])
        for k, branch in enumerate(self.branches):
            state = c.wrap(branch, k)(state)  # where `x = x + branch(x)` would be
        return self.head(self.norm(c.close(state)))


def main() -> None:
    """Train and print the loss, in nats per character."""
    torch.manual_seed(0)
    text = Path(__file__).read_text(encoding="utf-8")
    characters = sorted(set(text))
    data = torch.tensor([characters.index(c) for c in text])
    model = Model(len(characters))
    exempt = {f"connection.{name}" for name in model.connection.no_decay}
    matrices, others = [], []
    for name, p in model.named_parameters():
        (others if p.ndim < 2 or name in exempt else matrices).append(p)
    groups = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3)
    for step in range(STEPS):
        starts = torch.randint(len(data) - LENGTH, (BATCH, 1))
        windows = data[starts + torch.arange(LENGTH + 1)]
        logits = model(windows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step in (0, STEPS - 1):
            print(f"step {step + 1}: loss {loss.item():.2f}")


if __name__ == "__main__":
    main()
