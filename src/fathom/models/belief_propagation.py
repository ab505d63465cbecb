"""Belief propagation on graphs with communities: the posterior of every node's community.

Formulas: docs/definitions.md, "Task graph".
"""

from __future__ import annotations

import numpy as np


def log_marginals(
    links: np.ndarray,
    log_fields: np.ndarray,
    affinity: np.ndarray,
    rounds: int,
    *,
    absence_counts: bool = True,
) -> np.ndarray:
    """Log-probabilities of each node's community after 0 … `rounds` rounds, [rounds + 1, G, n, q].

    `links`: [G, n, n], symmetric, of G graphs. `log_fields`: [G, n, q], the log of the prior times
    the likelihood of what a node shows by itself; −inf excludes a community. `affinity`: [q, q],
    positive: n times the probability of a link between two communities. With `absence_counts`,
    pairs without a link are evidence too, through the mean over all nodes, as Decelle et al. (2011)
    have it. Without, the result is exact on trees once there are as many rounds as links on their
    longest path.
    """
    G, n, q = log_fields.shape
    graphs, starts, ends = np.nonzero(links)
    sources, targets = graphs * n + starts, graphs * n + ends
    # Messages stand in the order of (source, target), by which that of the other way is found.
    order = sources * (G * n) + targets
    reverse = np.searchsorted(order, targets * (G * n) + sources)

    # Communities stand first in here: NumPy is slow to reduce a last axis of a few numbers.
    fields = np.ascontiguousarray(log_fields.reshape(G * n, q).T)
    beliefs = _normalise(fields)
    messages = np.exp(beliefs[:, sources])
    found = [beliefs]
    for _ in range(rounds):
        received = np.log(affinity @ messages)
        total = fields + [np.bincount(targets, row, minlength=G * n) for row in received]
        if absence_counts:
            present = np.exp(beliefs).reshape(q, G, n).mean(axis=2)
            total -= np.repeat(affinity @ present, n, axis=1)
        messages = np.exp(_normalise(total[:, sources] - received[:, reverse]))
        beliefs = _normalise(total)
        found.append(beliefs)
    return np.moveaxis(np.stack(found), 1, 2).reshape(rounds + 1, G, n, q)


def _normalise(logs: np.ndarray) -> np.ndarray:
    """Log-probabilities over the first axis from logarithms up to a constant."""
    logs = logs - logs.max(axis=0)
    return logs - np.log(np.exp(logs).sum(axis=0))
