"""The published experiment on PyTorch as tutorials write it: a module per layer, plain loops.

It computes the same as fathom in the plainest way: Sinkhorn in every layer, streams mixed by S×S
products between permutes, an optimiser that visits tensor after tensor, metrics that each wait.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from fathom_study.config import Spec

VARIANTS = ("baseline", "hc", "mhc")
"""Variants that it implements."""


class Block(nn.Module):
    """A pre-norm transformer block, [B, T, D] → [B, T, D]."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        n = self.norm1(x)
        x = x + self.attention(n, n, n, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Mixing(nn.Module):
    """A block between streams, [B, T, S, D] → [B, T, S, D]."""

    def __init__(self, block: Block, streams: int, iterations: int | None) -> None:
        super().__init__()
        self.block, self.iterations = block, iterations
        start = 2 * torch.eye(streams) - 1
        self.pre, self.post, self.res = (nn.Parameter(start.clone()) for _ in range(3))

    def mixing(self) -> Tensor:
        matrix = self.res.exp()
        for _ in range(self.iterations or 0):
            matrix = matrix / matrix.sum(dim=1, keepdim=True).clamp_min(1e-12)
            matrix = matrix / matrix.sum(dim=0, keepdim=True).clamp_min(1e-12)
        return matrix

    @staticmethod
    def mix(matrix: Tensor, x: Tensor) -> Tensor:
        """matrix · x over the streams; permutes move D out of the way and back."""
        return (matrix @ x.permute(0, 1, 3, 2).unsqueeze(-1)).squeeze(-1).permute(0, 1, 3, 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = self.block(self.mix(self.pre.softmax(dim=-1), x).mean(dim=2), mask)
        copies = y.unsqueeze(2).expand_as(x)
        return self.mix(self.mixing(), x) + self.mix(self.post.softmax(dim=-1).T, copies)


class Network(nn.Module):
    """The language model of a spec."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        m = spec.model
        self.streams = 0 if spec.variant == "baseline" else spec.connection.streams
        iterations = spec.connection.H_res.iterations if spec.variant == "mhc" else None
        blocks = [Block(m.width, m.heads, m.hidden) for _ in range(spec.depth)]
        self.embedding = nn.Embedding(m.vocab, m.width)
        self.position = nn.Parameter(torch.randn(m.length, m.width) * 0.01)
        self.layers = nn.ModuleList(
            Mixing(block, self.streams, iterations) if self.streams else block for block in blocks
        )
        self.norm = nn.LayerNorm(m.width)
        self.head = nn.Linear(m.width, m.vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.position
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        if self.streams:
            x = x.unsqueeze(2).repeat(1, 1, self.streams, 1)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.norm(x.mean(dim=2) if self.streams else x))


class Steps:
    """A network and its optimiser."""

    def __init__(self, spec: Spec) -> None:
        torch.manual_seed(spec.seed)
        self.network = Network(spec)
        o = spec.optimizer
        self.adamw = torch.optim.AdamW(
            self.network.parameters(), o.lr, (o.beta1, o.beta2), o.eps, o.weight_decay,
            foreach=False,
        )  # fmt: skip

    def step(self, tokens: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        """One step and its metrics."""
        logits = self.network(torch.from_numpy(tokens).long())
        loss = nn.functional.cross_entropy(
            logits.flatten(0, 1), torch.from_numpy(targets).long().flatten()
        )
        self.adamw.zero_grad()
        loss.backward()
        square = sum(p.grad.norm().item() ** 2 for p in self.network.parameters())
        gain = self.gain()
        self.adamw.step()
        return {
            "loss": loss.item(),
            "grad_norm": square**0.5,
            "nonfinite": int(not (loss.isfinite().item() and logits.isfinite().all().item())),
            "gain": gain,
        }

    @torch.no_grad()
    def gain(self) -> float:
        """log10 of the largest entry of the product of all H_res."""
        if not self.network.streams:
            return 0.0
        product = torch.eye(self.network.streams)
        for layer in self.network.layers:
            product = layer.mixing() @ product
        return product.abs().max().log10().item()
