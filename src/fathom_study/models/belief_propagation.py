"""Belief propagation: the posterior of each node's community (docs/definitions/graph.md)."""

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
    the likelihood of a node's own observation; −inf excludes a community. `affinity`: [q, q],
    positive: n times the probability of a link between two communities. With `absence_counts`,
    pairs without a link are evidence too, through the mean over all nodes, as in Decelle et al.
    (2011). Without, the result is exact on trees if `rounds` is at least the number of links on
    their longest path.
    """
    G, n, q = log_fields.shape
    graphs, starts, ends = np.nonzero(links)
    sources, targets = graphs * n + starts, graphs * n + ends
    # Messages are sorted by (source, target), by which the reverse message is found.
    order = sources * (G * n) + targets
    reverse = np.searchsorted(order, targets * (G * n) + sources)

    # Communities are the first axis here, since NumPy reduces a short last axis slowly.
    fields = np.ascontiguousarray(log_fields.reshape(G * n, q).T)
    beliefs = _normalise(fields)
    messages = np.exp(beliefs[:, sources])
    by_round = [beliefs]
    for _ in range(rounds):
        received = np.log(affinity @ messages)
        total = fields + [np.bincount(targets, row, minlength=G * n) for row in received]
        if absence_counts:
            present = np.exp(beliefs).reshape(q, G, n).mean(axis=2)
            total -= np.repeat(affinity @ present, n, axis=1)
        messages = np.exp(_normalise(total[:, sources] - received[:, reverse]))
        beliefs = _normalise(total)
        by_round.append(beliefs)
    return np.moveaxis(np.stack(by_round), 1, 2).reshape(rounds + 1, G, n, q)


def _normalise(logs: np.ndarray) -> np.ndarray:
    """Log-probabilities over the first axis from logarithms up to a constant."""
    logs = logs - logs.max(axis=0)
    return logs - np.log(np.exp(logs).sum(axis=0))
