"""Both networks and every named scheme as a textbook has them: float64, loops, one unit at a time.

Written from docs/definitions.md and independent of `fathom.models`. A unit is what has one set of
weights in a dynamic connection: a token, or an image. Activations are [U, N, C]: units, positions
that are averaged over (1 for a token, 14·14 for an image), channels. Parameters are float64 by
name; those of a connection lack their prefix.
"""

import math

import numpy as np


def softmax(x):
    return np.exp(x) / np.exp(x).sum()


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def sinkhorn(matrix, iterations=20, floor=1e-12):
    H = np.array(matrix)
    for _ in range(iterations):
        H = np.array([row / max(sum(row), floor) for row in H])
        H = np.array([column / max(sum(column), floor) for column in H.T]).T
    return H


# --- connections --------------------------------------------------------------------------------


def mixing(name, p, i):
    """H_res of layer i from static logits."""
    logits = p["H_res"][i]
    match name:
        case "hc_demo":
            return np.exp(logits)
        case "mhc_demo":
            return sinkhorn(np.exp(logits))
        case "mhc_static":
            gate = sigmoid(p["gate"][i])
            return (1 - gate) * np.eye(len(logits)) + gate * sinkhorn(np.exp(logits))
        case _:
            return logits


def summary(unit):
    """The means over positions of a unit's streams [S, N, C], of mean square one: S·C numbers."""
    S, N, C = unit.shape
    means = np.array([sum(unit[s, n, c] for n in range(N)) / N for s in range(S) for c in range(C)])
    return means / math.sqrt(sum(means**2) / (S * C) + 1e-6)


def coefficients(name, p, i, unit):
    """(H_pre [R, S], H_post [R, S], H_res [S, S]) of layer i for a unit's streams [S, N, C].

    A layer reads the mean of the R rows of H_pre x, and writes y to every row of H_postᵀ. R is S
    in the demo and 1 elsewhere.
    """
    if name.endswith("_demo"):
        rows = [[softmax(row) for row in p[kind][i]] for kind in ("H_pre", "H_post")]
        return *map(np.array, rows), mixing(name, p, i)
    if not name.endswith("_dynamic"):
        weights = softmax if name.endswith("c_static") else np.asarray
        pre, post = (np.array([weights(p[kind][i])]) for kind in ("H_pre", "H_post"))
        return pre, post, mixing(name, p, i)
    x = summary(unit)
    S = len(unit)
    pre, post, res = (
        p["alpha"][i][k] * np.array([sum(row * x) for row in p[f"phi_{part}"][i]])
        for k, part in enumerate(("pre", "post", "res"))
    )
    pre, post = pre + p["b_pre"][i], post + p["b_post"][i]
    res = res.reshape(S, S) + p["b_res"][i]
    if name == "mhc_dynamic":
        pre, post = sigmoid(pre), 2 * sigmoid(post)
        res = sinkhorn(np.exp(np.clip(res, -10, 10)))
    return np.array([pre]), np.array([post]), res


def readout(name, p, unit):
    """The weights [S] with which a unit's last streams are summed."""
    S = len(unit)
    if name.endswith("_demo"):
        return np.ones(S) / S
    if name == "hc_paper_static":
        return np.ones(S)
    if name.endswith("_static"):
        return softmax(p["readout"])
    x = summary(unit)
    logits = np.array([sum(row * x) for row in p["phi_readout"]]) * p["alpha_readout"]
    logits = logits + p["b_readout"]
    return sigmoid(logits) if name == "mhc_dynamic" else logits


def through_streams(name, p, x, layers, S):
    copies = name.endswith("_demo") or name == "hc_paper_static"
    streams = np.array([x if copies or s == 0 else 0 * x for s in range(S)])  # [S, U, N, C]
    for i, layer in enumerate(layers):
        found = [coefficients(name, p, i, streams[:, u]) for u in range(len(x))]
        read = np.zeros_like(x)
        for u, (pre, _, _) in enumerate(found):
            for row in pre:
                read[u] += sum(row[s] * streams[s, u] for s in range(S)) / len(pre)
        y = layer(read)
        written = np.zeros_like(streams)
        for u, (_, post, H) in enumerate(found):
            for r in range(S):
                written[r, u] = sum(H[r, s] * streams[s, u] for s in range(S))
                written[r, u] += sum(row[r] * y[u] for row in post)
        streams = written
    result = np.zeros_like(x)
    for u in range(len(x)):
        weights = readout(name, p, streams[:, u])
        result[u] = sum(weights[s] * streams[s, u] for s in range(S))
    return result


def causal_weights(name, p):
    """[L, L]: with which weights every layer reads the states so far."""
    matrix = np.exp(p["mixing"])
    if name == "mhc_causal":
        matrix = sinkhorn(matrix, floor=1e-6)
    weights = np.zeros_like(matrix)
    for i in range(len(matrix)):
        weights[i, : i + 1] = matrix[i, : i + 1] / sum(matrix[i, : i + 1])
    return weights


def through(name, p, x, layers, S, has_residual):
    """`x` [U, N, C] through layers joined by the named scheme."""
    if name == "plain":
        for layer in layers:
            x = layer(x) if has_residual else x + layer(x)
        return x
    if not name.endswith("_causal"):
        return through_streams(name, p, x, layers, S)
    states = [x]
    for weights, layer in zip(causal_weights(name, p), layers, strict=True):
        read = sum(w * state for w, state in zip(weights, states, strict=False))
        states.append(layer(read) if has_residual else read + layer(read))
    return states[-1]


# --- the transformer, one sequence at a time ----------------------------------------------------


def layer_norm(x, weight, bias):
    return (x - x.mean(1)[:, None]) / np.sqrt(x.var(1)[:, None] + 1e-5) * weight + bias


def attention(p, x, heads):
    T, D = x.shape
    q, k, v = (
        x @ p["qkv.weight"][rows].T + p["qkv.bias"][rows]
        for rows in (slice(0, D), slice(D, 2 * D), slice(2 * D, 3 * D))
    )
    out = np.zeros((T, D))
    for head in range(heads):
        columns = slice(head * D // heads, (head + 1) * D // heads)
        for t in range(T):  # position t looks at positions 0 … t
            scores = k[: t + 1, columns] @ q[t, columns] / math.sqrt(D / heads)
            out[t, columns] = softmax(scores) @ v[: t + 1, columns]
    return out @ p["attention_out.weight"].T + p["attention_out.bias"]


def mlp(p, x):
    h = x @ p["up.weight"].T + p["up.bias"]
    Phi = (1 + np.vectorize(math.erf)(h / math.sqrt(2))) / 2
    return (h * Phi) @ p["down.weight"].T + p["down.bias"]


def transformer_block(p, x, heads):
    x = x + attention(p, layer_norm(x, p["norm1.weight"], p["norm1.bias"]), heads)
    return x + mlp(p, layer_norm(x, p["norm2.weight"], p["norm2.bias"]))


def transformer(name, spec, params, tokens):
    """Logits [B, T, V] of tokens [B, T]."""
    p = {key: value.astype(np.float64) for key, value in params.items()}

    def block(layer):
        return lambda x: transformer_block(layer, x[:, 0], spec.model.heads)[:, None]

    def logits(row):
        x = p["embedding.token"][row] + p["embedding.position"]
        blocks = [block(layer) for layer in layers_of(p, spec.depth)]
        S = spec.connection.streams if spec.connection.kind == "streams" else 1
        x = through(name, connection_of(p), x[:, None], blocks, S, has_residual=True)[:, 0]
        return layer_norm(x, p["norm.weight"], p["norm.bias"]) @ p["head.weight"].T

    return np.stack([logits(row) for row in tokens])


# --- the convolutional network ------------------------------------------------------------------


def convolution(x, weight, bias, stride=1):
    """3×3 with a border of one zero: the sum over nine places of the kernel."""
    B, H, W, _ = x.shape
    padded = np.zeros((B, H + 2, W + 2, x.shape[-1]))
    padded[:, 1:-1, 1:-1] = x
    y = sum(
        padded[:, dy : dy + H, dx : dx + W] @ weight[:, dy, dx].T
        for dy in range(3)
        for dx in range(3)
    )
    return y[:, ::stride, ::stride] + bias


def group_norm(x, weight, bias):
    """min(32, max(1, C // 4)) groups of consecutive channels."""
    C = x.shape[-1]
    size = C // min(32, max(1, C // 4))
    normed = np.empty_like(x)
    for image in range(len(x)):
        for first in range(0, C, size):
            part = x[image, :, :, first : first + size]
            normed[image, :, :, first : first + size] = (part - part.mean()) / math.sqrt(
                part.var() + 1e-5
            )
    return normed * weight + bias


def image_block(p, x, dropout, keep):
    x = np.maximum(group_norm(x, p["norm1.weight"], p["norm1.bias"]), 0)
    x = convolution(x, p["conv1.weight"], p["conv1.bias"])
    x = np.where(keep, x / (1 - dropout), 0)
    x = np.maximum(group_norm(x, p["norm2.weight"], p["norm2.bias"]), 0)
    return convolution(x, p["conv2.weight"], p["conv2.bias"])


def convnet(name, spec, params, images, keeps):
    """Logits [B, 10] of images [B, 28, 28, 1], with the kept activations of every layer."""
    p = {key: value.astype(np.float64) for key, value in params.items()}
    x = convolution(images.astype(np.float64), p["stem.weight"], p["stem.bias"], stride=2)
    shape = x.shape
    B, *_, C = shape

    def block(layer, keep):
        def function(x):
            y = image_block(layer, x.reshape(shape), spec.model.dropout, keep)
            return y.reshape(x.shape)

        return function

    layers = zip(layers_of(p, spec.depth), keeps, strict=True)
    blocks = [block(layer, keep) for layer, keep in layers]
    S = spec.connection.streams if spec.connection.kind == "streams" else 1
    x = through(name, connection_of(p), x.reshape(B, -1, C), blocks, S, has_residual=False)
    x = np.maximum(group_norm(x.reshape(shape), p["norm.weight"], p["norm.bias"]), 0)
    return x.mean(axis=(1, 2)) @ p["head.weight"].T + p["head.bias"]


def layers_of(p, depth):
    """The parameters of each block."""
    return [
        {key.removeprefix("block."): v[i] for key, v in p.items() if key.startswith("block.")}
        for i in range(depth)
    ]


def connection_of(p):
    """The parameters of the connection."""
    prefix = "connection."
    return {key.removeprefix(prefix): v for key, v in p.items() if key.startswith(prefix)}


def cross_entropy(logits, targets):
    """Mean of −ln p(target) over logits […, classes]."""
    rows = zip(logits.reshape(-1, logits.shape[-1]), targets.ravel(), strict=True)
    return np.mean([-math.log(softmax(row)[target]) for row, target in rows])


NETWORKS = {"tokens": transformer, "fashion": convnet}
