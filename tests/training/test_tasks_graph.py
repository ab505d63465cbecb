"""The graph task: its graphs, belief propagation, its network and its metrics."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
from scipy.sparse.csgraph import shortest_path

from fathom.operations.numpy_ops import NumpyOps
from fathom_study import tasks
from fathom_study.models.belief_propagation import log_marginals
from fathom_study.tasks import graph as module
from tests.support.specs import end_of, make_spec, parameters_of, parameters_off_symmetry

task = tasks.load("graph")
spec_on = partial(make_spec, task="graph", variant="resgcn")


# --- belief propagation --------------------------------------------------------------------------


def enumerated(links, log_fields, linked, apart):
    """Exact marginals [n, q] of one graph, summed over all assignments.

    `linked`, `apart`: weights [q, q] of a pair of nodes with and without a link.
    """
    n, q = log_fields.shape
    result = np.zeros((n, q))
    pairs = list(itertools.combinations(range(n), 2))
    for assigned in itertools.product(range(q), repeat=n):
        log_weight = sum(log_fields[i, s] for i, s in enumerate(assigned))
        if log_weight == -math.inf:
            continue
        weight = math.exp(log_weight)
        for i, j in pairs:
            table = linked if links[i, j] else apart
            weight *= table[assigned[i], assigned[j]]
        for i, s in enumerate(assigned):
            result[i, s] += weight
    return result / result.sum(axis=1, keepdims=True)


def random_tree(n, rng):
    """Links [n, n] of a tree: each node after the first has one to an earlier node."""
    links = np.zeros((n, n), bool)
    for node in range(1, n):
        other = rng.integers(0, node)
        links[node, other] = links[other, node] = True
    return links


def test_k_rounds_of_belief_propagation_are_exact_on_trees_within_distance_k():
    rng, n, q = np.random.default_rng(1), 7, 3
    affinity = rng.uniform(0.2, 3, (q, q))
    affinity += affinity.T
    trees = np.stack([random_tree(n, rng) for _ in range(2)])
    fields = rng.standard_normal((2, n, q))
    fields[:, 2, 1:] = -np.inf  # a label
    result = np.exp(log_marginals(trees, fields, affinity, rounds=n, absence_counts=False))
    for links, field, beliefs in zip(trees, fields, np.moveaxis(result, 1, 0), strict=True):
        apart = np.ones((q, q))
        exact = enumerated(links, field, affinity, apart)
        np.testing.assert_allclose(beliefs[-1], exact, rtol=0, atol=1e-10)
        for rounds, node in ((0, 0), (1, 3), (2, 5)):
            near = np.flatnonzero(shortest_path(links, unweighted=True)[node] <= rounds)
            part = enumerated(links[np.ix_(near, near)], field[near], affinity, apart)
            own = part[list(near).index(node)]
            np.testing.assert_allclose(beliefs[rounds, node], own, rtol=0, atol=1e-10)


def test_belief_propagation_is_close_to_enumeration_on_graphs_with_loops():
    model = spec_on(nodes=11, degree=2, edge_signal=0.7, labelled=0.2).model
    graphs = module.draw(model, 4, np.random.default_rng(5))
    assert graphs.links.sum(axis=(1, 2)).max() / 2 >= 13  # a tree has 10 links
    fields, chance = module.log_fields(model, graphs), model.affinity / model.nodes

    def error(*, absence_counts, apart):
        options = {"rounds": 40, "absence_counts": absence_counts}
        result = np.exp(log_marginals(graphs.links, fields, model.affinity, **options)[-1])
        pairs = zip(graphs.links, fields, strict=True)
        exact = np.stack([enumerated(links, field, chance, apart) for links, field in pairs])
        return np.abs(result - exact)

    of_loops = error(absence_counts=False, apart=np.ones((2, 2)))
    assert of_loops.mean() < 0.005
    assert of_loops.max() < 0.06
    # Absent links are counted with an error of order 1/n, here a tenth.
    of_both = error(absence_counts=True, apart=1 - chance)
    assert of_both.max() < 0.15
    assert error(absence_counts=False, apart=1 - chance).max() > 0.3


# --- graphs --------------------------------------------------------------------------------------


def test_affinities_by_hand():
    two = spec_on(degree=4, edge_signal=1.5).model.affinity
    np.testing.assert_allclose(two, [[7, 1], [1, 7]])  # d ± λ√d
    three = spec_on(communities=3, nodes=20, degree=4, edge_signal=-0.5).model.affinity
    np.testing.assert_allclose(three, np.full((3, 3), 5) - 3 * np.eye(3))
    assert three.mean() == pytest.approx(4)  # the degree
    inside, outside = three[0, 0], three[0, 1]
    signal = (inside - outside) ** 2 / (3 * (inside + 2 * outside))  # Kesten and Stigum
    assert signal == pytest.approx(0.5**2)


def test_graphs_have_the_requested_links_and_features():
    sizes = {"nodes": 60, "communities": 3, "degree": 4, "edge_signal": 1.2, "features": 5}
    model = spec_on(**sizes, feature_signal=6, labelled=0.1).model
    graphs = module.draw(model, 200, np.random.default_rng(3))
    assert (graphs.links == graphs.links.swapaxes(1, 2)).all()
    assert not graphs.links[:, np.arange(60), np.arange(60)].any()
    assert (graphs.labelled.sum(axis=1) == 6).all()
    assert graphs.labelled.mean(axis=0).min() > 0  # any node may be labelled
    shares = np.bincount(graphs.communities.ravel(), minlength=3) / graphs.communities.size
    assert shares == pytest.approx(1 / 3, abs=0.02)
    pairs = ~np.eye(60, dtype=bool)
    same = graphs.communities[:, :, None] == graphs.communities[:, None, :]
    # 700 000 ordered pairs, each counted twice: standard errors near 0.0004.
    inside, outside = (graphs.links[where & pairs].mean() for where in (same, ~same))
    assert inside == pytest.approx((4 + 2 * 1.2 * 2) / 60, abs=0.003)
    assert outside == pytest.approx((4 - 1.2 * 2) / 60, abs=0.002)
    means = np.stack([graphs.features[graphs.communities == s].mean(axis=0) for s in range(3)])
    # |mean|² = μ p / n, at 120° to each other; 4000 nodes each.
    assert means @ means.T == pytest.approx(0.5 * (1.5 * np.eye(3) - 0.5), abs=0.05)
    noise = graphs.features - means[graphs.communities]
    assert noise.var(axis=(0, 1)) == pytest.approx(1, abs=0.05)


def test_links_are_normalised_as_by_kipf_and_welling():
    path = np.array([[[0, 1, 0], [1, 0, 1], [0, 1, 0]]], bool)
    half, sixth = 1 / 2, 1 / math.sqrt(6)
    expected = [[half, sixth, 0], [sixth, 1 / 3, sixth], [0, sixth, half]]
    np.testing.assert_allclose(module.normalised(path)[0], expected, atol=1e-7)


def test_fresh_graphs_show_some_labels_and_ask_for_the_others():
    batch = task.batch(spec_on(seed=4, batch_size=6), 17)
    features, labels = np.split(batch.inputs["nodes"], [3], axis=-1)
    assert features.std() > 0.5
    named = labels.sum(axis=-1) == 1
    assert (named.sum(axis=1) == 3).all()
    assert (labels.argmax(axis=-1) == batch.targets)[named].all()
    assert (labels[~named] == 0).all()
    assert (batch.weights == ~named).all()


def test_held_out_graphs_are_equal_for_all_seeds_and_never_trained_on():
    first, second = (list(module.held_out_batches(spec_on(seed=s))) for s in (0, 1))
    assert [b.targets.shape for b in first] == [(5, 12)]
    assert (first[0].inputs["nodes"] == second[0].inputs["nodes"]).all()
    assert [len(b.targets) for b in module.held_out_batches(spec_on(held_out=33))] == [16, 16, 1]
    for step in range(3):
        trained = task.batch(spec_on(batch_size=5), step).inputs["nodes"]
        assert (trained != first[0].inputs["nodes"]).any(axis=(1, 2)).all()


# --- metrics -------------------------------------------------------------------------------------


def test_dirichlet_energy_is_the_sum_over_links():
    rng = np.random.default_rng(2)
    links = np.stack([random_tree(6, rng) for _ in range(2)])
    links[0, 0, 5] = links[0, 5, 0] = True
    x = rng.standard_normal((2, 6, 3))
    scaled = x / np.sqrt(1 + links.sum(axis=2))[..., None]
    energy = sum(
        ((scaled[g, i] - scaled[g, j]) ** 2).sum()
        for g, i, j in itertools.product(range(2), range(6), range(6))
        if i < j and links[g, i, j]
    )
    exact = module.normalised(links).astype(np.float64)
    assert module.dirichlet_energy(x, exact) == pytest.approx(energy / (x**2).sum(), rel=1e-6)
    smoothest = np.sqrt(1 + links.sum(axis=2))[..., None] * [1.0, -2.0, 0.5]
    assert module.dirichlet_energy(smoothest, exact) == pytest.approx(0, abs=1e-6)
    assert math.isnan(module.dirichlet_energy(x * math.inf, exact))


def test_energies_run_from_the_embedding_to_the_input_of_the_head():
    spec = spec_on(depth=2)
    params = parameters_off_symmetry(spec)
    params["block.down.weight"][1] = params["block.down.bias"][1] = 0  # the last block adds nothing
    (batch,) = module.held_out_batches(spec)
    embedded = batch.inputs["nodes"].astype(float) @ params["embedding.weight"].astype(float).T
    first = module.dirichlet_energy(embedded, batch.inputs["links"].astype(float))
    trained = end_of(spec, params)
    result = task.step_metrics["dirichlet_energy_by_block"].compute(trained)
    assert list(result) == [0, 1, 2]
    assert result[0] == pytest.approx(first, rel=1e-9)
    assert result[1] == result[2] != result[0]
    assert task.step_metrics["dirichlet_energy"].compute(trained) == result[2]


def test_accuracy_and_loss_use_unlabelled_held_out_nodes():
    spec = spec_on()
    params = parameters_of(spec)
    params["norm.weight"][:], params["norm.bias"][:] = 0, 1
    params["head.weight"][0], params["head.weight"][1] = 0, math.log(3) / 8
    (batch,) = module.held_out_batches(spec)
    asked = batch.targets[batch.weights == 1]
    assert len(asked) == 5 * 9
    trained = end_of(spec, params)  # always predicts the second community, by 3 to 1
    assert trained.value("node_accuracy") == pytest.approx((asked == 1).mean())
    loss = np.where(asked == 1, math.log(4 / 3), math.log(4)).mean()
    assert trained.value("node_loss") == pytest.approx(loss, rel=1e-6)


def test_bayes_optimum_without_edge_signal_uses_features_alone():
    spec = spec_on(nodes=32, edge_signal=0, features=4, feature_signal=4.5, held_out=300)
    start = tasks.Untrained(tasks.Problem(spec), NumpyOps(), {})
    result = {name: task.step_metrics[name].compute(start) for name in task.step_metrics if
             name.startswith("bayes")}  # fmt: skip
    separation = math.sqrt(4.5 * 4 / 32)
    expected = (1 + math.erf(separation / math.sqrt(2))) / 2
    # Standard error over 7200 nodes: 0.005.
    assert result["bayes_accuracy"] == pytest.approx(expected, abs=0.015)
    assert set(result["bayes_accuracy_by_round"].values()) == {result["bayes_accuracy"]}
    assert list(result["bayes_accuracy_by_round"]) == list(range(module.ROUNDS + 1))
    rng = np.random.default_rng(0)
    shown = separation + rng.standard_normal(100_000)  # of a node along the centroids
    loss = np.log1p(np.exp(-2 * separation * shown)).mean()
    assert result["bayes_loss"] == pytest.approx(loss, abs=0.02)
