"""Source text of connections as a user would write them, for the tests."""

LITE = '''
"""mhc_lite by its formulas, with nothing of fathom's."""

import itertools

import torch
from torch import nn


class Lite(nn.Module):
    no_decay = ("alpha", "b_pre", "b_post", "b_res")

    def __init__(self, layers, width, streams=4):
        super().__init__()
        L, S = layers, streams
        orders = list(itertools.permutations(range(S)))
        self.register_buffer("P", torch.stack([torch.eye(S)[list(o)] for o in orders]))
        each = torch.full((L, S), -1.0)
        each[torch.arange(L), torch.arange(L) % S] = 1.0
        res = torch.full((L, len(orders)), -8.0)
        res[:, 0] = 0.0
        self.phi_pre = nn.Parameter(torch.zeros(L, S, S * width))
        self.phi_post = nn.Parameter(torch.zeros(L, S, S * width))
        self.phi_res = nn.Parameter(torch.zeros(L, len(orders), S * width))
        self.alpha = nn.Parameter(torch.full((L, 3), 0.01))
        self.b_pre, self.b_post = nn.Parameter(each.clone()), nn.Parameter(each.clone())
        self.b_res = nn.Parameter(res)
        self.S = S

    def open(self, x):
        return torch.stack([x] * self.S, dim=-2), ()  # [B, T, S, C], H_res so far

    def read(self, state, k):
        X, passed = state
        flat = X.flatten(-2)
        flat = flat / (flat.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        a = self.alpha[k]
        pre = torch.sigmoid(a[0] * flat @ self.phi_pre[k].T + self.b_pre[k])
        post = 2 * torch.sigmoid(a[1] * flat @ self.phi_post[k].T + self.b_post[k])
        shares = torch.softmax(a[2] * flat @ self.phi_res[k].T + self.b_res[k], dim=-1)
        H = torch.einsum("btr,rij->btij", shares, self.P)
        return torch.einsum("bts,btsc->btc", pre, X), (X, (*passed, H), post)

    def write(self, state, k, y):
        X, passed, post = state
        return passed[-1] @ X + post[..., None] * y[..., None, :], passed

    def close(self, state):
        return state[0].sum(dim=-2)

    def trace(self, state):
        X, passed = state
        return {"H_res": torch.stack([H.mean((0, 1)) for H in passed]), "streams": X.movedim(-2, 0)}
'''


PLAIN = """
from torch import nn


def function(x0, functions, scale=1.0):
    x = x0
    for f in functions:
        x = x + scale * f(x)
    return x


class Class(nn.Module):
    def forward(self, x0, functions):
        return function(x0, functions)
"""

LEAKING = '''
from torch import nn
import torch


class Leaking(nn.Module):
    """Adds the mean over all positions, later ones too. Its weight begins at zero."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x0, functions):
        x = x0
        for f in functions:
            x = x + f(x) + self.weight * x.mean(dim=1, keepdim=True)
        return x
'''

SHIFTED = LEAKING.replace("Leaking", "Shifted").replace(
    "x.mean(dim=1, keepdim=True)", "torch.nn.functional.pad(x, (0, 0, 1, 0))[:, :-1]"
)
"""Reads the previous token: causal."""


def write(file, text):
    """Write text to a file."""
    from pathlib import Path

    Path(file).write_text(text, encoding="utf-8")
