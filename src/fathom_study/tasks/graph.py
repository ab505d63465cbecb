"""The graph task: name the community of nodes in a random graph (docs/definitions/graph.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from fathom.init import Orthogonal
from fathom.operations.ops import Array
from fathom.settings import Number, Positive, Registry, Settings
from fathom_study.batch import Batch
from fathom_study.metrics.scores import Oracle, Score
from fathom_study.metrics.steps import POSITIVE, SHARE, StepMetric, held_out_accuracy, held_out_loss
from fathom_study.models.belief_propagation import log_marginals
from fathom_study.models.graphnet import GraphNet
from fathom_study.models.network import recording
from fathom_study.spec import Spec
from fathom_study.tasks import (
    Presentation,
    Table,
    Task,
    Trained,
    Untrained,
    accuracy_on,
    mean_loss_on,
)  # fmt: skip

# Keep the random numbers of batches, of held-out graphs and of centroids apart from each other and
# from those of the initial parameters.
STREAM = 0x6772617068
HELD_OUT = (STREAM, 0x68656C64)
CENTROIDS = (STREAM, 0x63656E74)

EVALUATION_BATCH = 16
"""Graphs in one forward pass of an evaluation."""

ROUNDS = 24
"""Number of rounds of belief propagation."""


class Model(Settings):
    """The graphs, and sizes of the network."""

    nodes: Positive = Field(description="n, nodes of a graph")
    communities: Annotated[Positive, Field(ge=2)] = Field(2, description="q, of equal chances")
    degree: Annotated[Number, Field(gt=0)] = Field(description="d, mean number of links of a node")
    edge_signal: Number = Field(
        description="λ, what links tell; below 0 they join communities more often than they stay in"
    )
    features: Positive = Field(description="p, numbers that a node shows")
    feature_signal: Annotated[Number, Field(ge=0)] = Field(description="μ, what features tell")
    labelled: Annotated[Number, Field(gt=0, lt=1)] = Field(
        description="ρ, share of nodes of a graph whose community is known"
    )
    # Recorded specs have `graphs`, so no other value is allowed.
    graphs: Literal["fresh"] = Field("fresh", description="the only kind: others in every step")
    held_out: Positive = Field(256, description="held-out graphs")
    width: Positive = Field(description="W, channels of a stream")
    hidden: Positive = Field(description="F, channels between the two linear layers of a block")

    @model_validator(mode="after")
    def _exists(self) -> Model:
        q, d = self.communities, self.degree
        low, high = -math.sqrt(d) / (q - 1), math.sqrt(d)
        if not low < self.edge_signal < high:
            raise ValueError(
                f"edge_signal {self.edge_signal:g} needs negative probabilities; with degree "
                f"{d:g} and {q} communities it must lie between {low:.4g} and {high:.4g}"
            )
        if self.affinity.max() > self.nodes:
            raise ValueError(
                f"degree {d:g} needs probabilities above 1 in a graph of {self.nodes} nodes; "
                "use more nodes, or a smaller degree"
            )
        if self.features < q:
            raise ValueError(f"features {self.features} must be at least communities, {q}")
        if not 0 < self.labelled_nodes < self.nodes:
            raise ValueError(
                f"labelled {self.labelled:g} is {self.labelled_nodes} of {self.nodes} nodes; at "
                "least one must be labelled, and one not"
            )
        return self

    @property
    def affinity(self) -> np.ndarray:
        """n times the probability of a link between nodes of two communities, [q, q]."""
        q, signal = self.communities, self.edge_signal * math.sqrt(self.degree)
        return self.degree + signal * (q * np.eye(q) - 1)

    @property
    def labelled_nodes(self) -> int:
        """Number of labelled nodes of a graph."""
        return round(self.labelled * self.nodes)

    @property
    def channels(self) -> int:
        """Number of inputs of a node: its features, and its label if known."""
        return self.features + self.communities


# --- graphs -------------------------------------------------------------------------------------


class Graphs(NamedTuple):
    """G graphs of n nodes each."""

    communities: np.ndarray
    """Int32 [G, n], from 0 to q − 1."""
    links: np.ndarray
    """Booleans [G, n, n], symmetric, none of a node with itself."""
    features: np.ndarray
    """[G, n, p], with noise of variance one."""
    labelled: np.ndarray
    """Booleans [G, n]."""


def draw(model: Model, count: int, rng: np.random.Generator) -> Graphs:
    """Draw `count` graphs from the contextual stochastic block model."""
    n = model.nodes
    communities = rng.integers(0, model.communities, (count, n), dtype=np.int32)
    chances = model.affinity[communities[:, :, None], communities[:, None, :]] / n
    upper = np.triu(rng.random((count, n, n)) < chances, k=1)
    noise = rng.standard_normal((count, n, model.features))
    order = rng.permuted(np.tile(np.arange(n), (count, 1)), axis=1)
    return Graphs(
        communities,
        upper | upper.swapaxes(1, 2),
        centroids(model)[communities] + noise,
        order < model.labelled_nodes,
    )


def centroids(model: Model) -> np.ndarray:
    """The mean features of each community, [q, p]: the corners of a regular simplex around 0.

    In units of the noise, their length is √(μ p / n). The same in every graph of every seed.
    """
    q, p = model.communities, model.features
    corners = math.sqrt(q / (q - 1)) * (np.eye(q) - 1 / q)
    directions = Orthogonal(1.0).sample(np.random.default_rng(CENTROIDS), (p, q))
    return math.sqrt(model.feature_signal * p / model.nodes) * corners @ directions.T


def normalised(links: np.ndarray) -> np.ndarray:
    """D^(−1/2) (A + I) D^(−1/2) of links A [G, n, n], D the degrees of A + I; float32."""
    joined = (links | np.eye(links.shape[-1], dtype=bool)).astype(np.float32)
    scale = 1 / np.sqrt(joined.sum(axis=-1))
    joined *= scale[:, :, np.newaxis]
    joined *= scale[:, np.newaxis, :]
    return joined


def batch_of(model: Model, graphs: Graphs) -> Batch:
    """A batch of graphs, with the unlabelled nodes as targets."""
    labels = np.eye(model.communities)[graphs.communities] * graphs.labelled[..., None]
    nodes = np.concatenate([graphs.features, labels], axis=-1)
    inputs = {"nodes": nodes.astype(np.float32), "links": normalised(graphs.links)}
    return Batch(inputs, graphs.communities, (~graphs.labelled).astype(np.float32))


@lru_cache(maxsize=1)  # several metrics of a cell use them
def held_out_graphs(spec: Spec) -> Graphs:
    """The graphs of every evaluation."""
    return draw(spec.model, spec.model.held_out, np.random.default_rng(HELD_OUT))


def held_out_batches(spec: Spec) -> Iterator[Batch]:
    """The held-out graphs, in the batches of an evaluation."""
    return batch_of(spec.model, held_out_graphs(spec)).parts(EVALUATION_BATCH)


# --- metrics ------------------------------------------------------------------------------------


def log_fields(model: Model, graphs: Graphs) -> np.ndarray:
    """Log-likelihoods [G, n, q] of each node's features by community; −inf for a wrong label."""
    distances = graphs.features[..., np.newaxis, :] - centroids(model)
    likelihood = -np.square(distances).sum(axis=-1) / 2
    is_own = np.arange(model.communities) == graphs.communities[..., np.newaxis]
    return np.where(graphs.labelled[..., np.newaxis] & ~is_own, -np.inf, likelihood)


class Optimum(NamedTuple):
    """Results of belief propagation on the held-out nodes; it knows how graphs are drawn."""

    accuracies: tuple[float, ...]
    """Accuracies after 0 … ROUNDS rounds."""
    loss: float
    """Mean cross-entropy after the last round, in nats."""


@lru_cache(maxsize=1)
def optimum(spec: Spec) -> Optimum:
    """The optimum on the nodes that a spec holds out."""
    graphs = held_out_graphs(spec)
    affinity, asked = spec.model.affinity, ~graphs.labelled
    fields = log_fields(spec.model, graphs)
    log_probabilities = log_marginals(graphs.links, fields, affinity, ROUNDS)[:, asked]
    belongs = graphs.communities[asked]
    accuracies = (log_probabilities.argmax(axis=-1) == belongs).mean(axis=-1)
    own = log_probabilities[-1, np.arange(len(belongs)), belongs]
    return Optimum(tuple(accuracies.tolist()), float(-own.mean()))


def bayes_accuracy(untrained: Untrained) -> float:
    """The share of held-out nodes that belief propagation classifies correctly."""
    return optimum(untrained.problem.spec).accuracies[-1]


def bayes_loss(untrained: Untrained) -> float:
    """Mean cross-entropy of belief propagation over the held-out nodes, in nats."""
    return optimum(untrained.problem.spec).loss


def bayes_accuracy_by_round(untrained: Untrained) -> dict[int, float]:
    """The accuracy of belief propagation on the held-out nodes, by the number of rounds."""
    return dict(enumerate(optimum(untrained.problem.spec).accuracies))


def dirichlet_energies(trained: Trained) -> np.ndarray:
    """Normalised energies [L + 1] of each block's input and the last output, on held-out graphs."""
    network, ops = trained.problem.network, trained.ops
    batch = next(held_out_batches(trained.problem.spec))

    def all_features(params: dict[str, Array], inputs: dict[str, Array]) -> Array:
        block_inputs: list[Array] = []
        last, _ = recording(network, block_inputs).features(ops, params, inputs)
        return ops.stack([*block_inputs, last])

    features = trained.infer(all_features, batch.inputs).astype(np.float64)
    links = batch.inputs["links"].astype(np.float64)
    return np.array([dirichlet_energy(x, links) for x in features])


def dirichlet_energy(x: np.ndarray, links: np.ndarray) -> float:
    """tr(xᵀ (I − links) x) / tr(xᵀ x), from 0 to 2; x: [G, n, W], links: normalised, [G, n, n].

    NaN if x is not finite, or zero.
    """
    size = np.square(x).sum()
    if not (np.isfinite(size) and size > 0):
        return math.nan
    return float(1 - (x * (links @ x)).sum() / size)


def dirichlet_energy_last(trained: Trained) -> float:
    """The normalised energy of the output of the last block."""
    return float(dirichlet_energies(trained)[-1])


def dirichlet_energy_by_block(trained: Trained) -> dict[int, float]:
    """The normalised energies by the number of blocks passed."""
    return dict(enumerate(dirichlet_energies(trained).tolist()))


ENERGIES = (0.0, 2.0)

STEP_METRICS = Registry(
    {
        "bayes_accuracy": StepMetric(
            "Bayes-optimal accuracy",
            "share of the held-out nodes that belief propagation classifies correctly, given the "
            "distribution of graphs",
            bayes_accuracy,
            when="first step",
            bounds=SHARE,
            finite=True,
        ),
        "bayes_loss": StepMetric(
            "Bayes-optimal loss (nats)",
            "mean cross-entropy of belief propagation on the held-out nodes, in nats",
            bayes_loss,
            when="first step",
            bounds=POSITIVE,
            finite=True,
        ),
        "bayes_accuracy_by_round": StepMetric(
            "Bayes-optimal accuracy",
            "share of the held-out nodes that belief propagation classifies correctly after n "
            "rounds, from nodes up to n links away",
            bayes_accuracy_by_round,
            when="first step",
            along="rounds of belief propagation",
            bounds=SHARE,
            finite=True,
        ),
        "node_accuracy": held_out_accuracy(
            "accuracy on held-out nodes",
            "share of the held-out nodes whose community has the largest logit; non-finite logits "
            "count as wrong",
            accuracy_on(held_out_batches),
            shown="accuracy {:.3f}",
        ),
        "node_loss": held_out_loss(
            "loss on held-out nodes (nats)",
            "mean cross-entropy on the held-out nodes, in nats",
            mean_loss_on(held_out_batches),
        ),
        "dirichlet_energy": StepMetric(
            "Dirichlet energy of the\nlast features, normalised",
            "Dirichlet energy of the output of the last block, divided by its squared norm; 0: all "
            "nodes have the same features, up to their degrees",
            dirichlet_energy_last,
            when="last step",
            bounds=ENERGIES,
        ),
        "dirichlet_energy_by_block": StepMetric(
            "Dirichlet energy, normalised",
            "Dirichlet energy of the input of each block and the output of the last, divided by "
            "its squared norm",
            dirichlet_energy_by_block,
            when="last step",
            along="blocks passed",
            bounds=ENERGIES,
        ),
    }
)


class Graph(Task):
    """Name the community of each held-out node."""

    Model = Model
    Network = GraphNet
    step_metrics = STEP_METRICS

    def batch(self, spec: Spec, step: int) -> Batch:
        """Fresh graphs with unlabelled nodes as targets."""
        rng = np.random.default_rng([spec.seed, STREAM, step])
        return batch_of(spec.model, draw(spec.model, spec.batch_size, rng))

    def classes(self, model: Model) -> int:
        return model.communities


SCORE = Score(
    metric="node_accuracy",
    label="accuracy on held-out nodes",
    unit="",
    chance=lambda spec: 1 / spec.model.communities,
    better="higher",
    perfect=1.0,
    oracle=Oracle("belief propagation", "bayes_accuracy"),
)


def sizes(model: Model) -> str:
    """The sizes, in the letters of docs/definitions."""
    return (
        f"n {model.nodes}, q {model.communities}, d {model.degree:g}, λ {model.edge_signal:g}, "
        f"p {model.features}, μ {model.feature_signal:g}, ρ {model.labelled:g}, W {model.width}, "
        f"F {model.hidden}"
    )


PRESENTATION = Presentation(
    unit="node",
    sizes=sizes,
    tables=(
        Table("Held-out loss", ("node_loss", "bayes_loss")),
        Table("Oversmoothing", ("dirichlet_energy",)),
    ),
    figures=("depth_and_rounds", "loss", "dirichlet_energy", "dirichlet_energy_by_block"),
    compared=("node_loss",),
)
