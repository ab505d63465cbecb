"""Both networks and every named scheme as a textbook has them: float64, loops, one unit at a time.

Written from what the schemes' authors published and compute, and independent of `fathom.models`.
A unit is what has one set of weights in a dynamic connection: a token, or an image. Activations
are [U, N, C]: units, positions that are averaged over (1 for a token, 14·14 for an image),
channels. Parameters are float64 by name; those of a connection lack their prefix.
"""

import itertools
import math
from functools import partial

import numpy as np


def softmax(x):
    weights = np.exp(x - max(x))
    return weights / sum(weights)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def rms_norm(x, eps=1e-6):
    """x over the root of its mean square."""
    return x / math.sqrt(sum(x**2) / len(x) + eps)


# --- families of mixing matrices ------------------------------------------------------------------


def sinkhorn(matrix, iterations=20, floor=1e-12, added=0.0, last="columns"):
    """Rows and columns divided by their sums in turn, ending with `last`."""

    def rows(H):
        return np.array([row / (max(sum(row), floor) + added) for row in H])

    H = np.array(matrix, dtype=np.float64)
    for _ in range(iterations):
        H = rows(rows(H).T).T if last == "columns" else rows(rows(H.T).T)
    return H


def log_sum_exp(x):
    return max(x) + math.log(sum(np.exp(x - max(x))))


def log_sinkhorn(logits, tau, iterations=20):
    """exp(Z + u + v), Z = logits/τ: u = −lse of rows of Z + v, v = −lse of columns of Z + u."""
    Z = logits / tau
    u, v = np.zeros(len(Z)), np.zeros(len(Z))
    for _ in range(iterations):
        u = -np.array([log_sum_exp(row + v) for row in Z])
        v = -np.array([log_sum_exp(column + u) for column in Z.T])
    return np.array(
        [[math.exp(Z[i, j] + u[i] + v[j]) for j in range(len(Z))] for i in range(len(Z))]
    )


def kernel_sinkhorn(logits, iterations=20, eps=1e-6):
    """DeepSeek's kernels: a softmax of rows plus ε, columns; then rows and columns in turn.

    They apply it transposed: stream k becomes Σ_j H_jk x_j.
    """
    H = np.array([softmax(row) for row in logits]) + eps
    for step in range(iterations):
        if step > 0:
            H = np.array([row / (sum(row) + eps) for row in H])
        H = np.array([column / (sum(column) + eps) for column in H.T]).T
    return H


def permutations(logits, S):
    """Σ_r softmax(logits)_r P_r over all permutations, the identity first."""
    H = np.zeros((S, S))
    for weight, order in zip(softmax(logits), itertools.permutations(range(S)), strict=True):
        for row, column in enumerate(order):
            H[row, column] += weight
    return H


def kronecker(logits):
    """The Kronecker product of [[p, 1 − p], [1 − p, p]] over pairs of logits."""
    H = np.ones((1, 1))
    for pair in logits:
        p, q = softmax(pair)
        H = np.kron(H, np.array([[p, q], [q, p]]))
    return H


def circulant(logits, gamma):
    """Σ_k c_k shiftᵏ, where shift moves every stream to the next and the last to the first."""
    S = len(logits)
    c = gamma * softmax(logits)
    c[0] += 1 - gamma
    H = np.zeros((S, S))
    for k in range(S):
        for s in range(S):
            H[(s + k) % S, s] += c[k]
    return H


def orthostochastic(logits, steps=5):
    """Newton–Schulz to the nearest orthogonal matrix; then the squares of its entries."""
    X = logits / (math.sqrt(np.sum(logits**2)) + 1e-7)
    for _ in range(steps):
        A = X @ X.T
        X = 3 * X - 3.2 * A @ X + 1.2 * A @ A @ X
    return X**2


def cayley(logits, alpha=0.1, steps=2):
    """Y ← I + (α/2) W (I + Y) from Y = I + α W, with the antisymmetric W = logits − logitsᵀ."""
    I = np.eye(len(logits))  # noqa: E741, its name
    W = logits - logits.T
    Y = I + alpha * W
    for _ in range(steps):
        Y = I + alpha / 2 * W @ (I + Y)
    return Y


def mixing(name, logits, S, layers):
    """H_res of a scheme from the logits of one unit and layer, before any gate."""
    match name:
        case "hc_demo":
            return np.exp(logits)
        case "mhc_demo":
            return sinkhorn(np.exp(logits))
        case "mhc_static":
            return sinkhorn(np.exp(logits), floor=0, added=1e-6)
        case "mhc_dynamic":
            return sinkhorn(np.exp(np.clip(logits, -10, 10)), floor=0, added=1e-6)
        case "mhc_paper" | "mhc_scaled":
            return sinkhorn(np.exp(logits), last="rows")
        case "mhc_kernels" | "deepseek_v4" | "deepseek_v41" | "glm5_next":
            return kernel_sinkhorn(logits).T
        case "mhc_identity" | "hy_v4" | "wide_residual":
            return np.eye(S)
        case "mhc_uniform":
            return np.ones((S, S)) / S
        case "mhc_lite":
            return permutations(logits, S)
        case "krom_hc":
            return kronecker(logits)
        case "circulant_mhc":
            return circulant(logits, min(1, 4 / (2 * layers)))
        case "orthostochastic_mhc":
            return orthostochastic(logits)
        case "cayley_mhc":
            return cayley(logits)
        case "mhc_gated_static" | "mhc_gated_dynamic":
            return log_sinkhorn(logits, tau=0.05)
        case "hc_static" | "hc_dynamic" | "hc_paper" | "hc_paper_static":
            return logits


# --- connections ----------------------------------------------------------------------------------

DEMOS = ("hc_demo", "mhc_demo")
IMAGE_STUDY = ("hc_static", "mhc_static", "hc_dynamic", "mhc_dynamic")
STATIC = (
    *DEMOS, "hc_static", "mhc_static", "hc_paper_static", "mhc_gated_static", "wide_residual",
)  # fmt: skip
RAW = ("hc_dynamic", "hc_paper", "hc_paper_static")
PLUS_EPSILON = ("mhc_kernels", "deepseek_v4", "deepseek_v41", "glm5_next", "hy_v4")
NORM_EPS = {"deepseek_v41": 1e-20, "glm5_next": 1e-5, "hy_v4": 1e-5}
SOFTMAX = ("hc_static", "mhc_static", "cayley_mhc", "mhc_gated_static", "mhc_gated_dynamic")


def summary(unit, eps=1e-6):
    """The means over positions of a unit's streams [S, N, C], of mean square one: S·C numbers."""
    return rms_norm(means_of(unit).ravel(), eps)


def means_of(unit):
    """Streams [S, N, C] → their means over positions [S, C]."""
    S, N, C = unit.shape
    return np.array([[sum(unit[s, :, c]) / N for c in range(C)] for s in range(S)])


def logits_of(name, p, i, unit):
    """{part: logits} of layer i for a unit's streams [S, N, C]: learned, or computed from them."""
    if name in STATIC:
        return {part: p[f"H_{part}"][i] for part in ("pre", "post", "res") if f"H_{part}" in p}
    parts = [part for part in ("pre", "post", "res") if f"b_{part}" in p]
    found = {}
    for k, part in enumerate(parts):
        phi, b = p[f"phi_{part}"][i], p[f"b_{part}"][i]
        if name == "hc_paper":  # tanh, and a stream knows itself alone
            x = [rms_norm(stream) for stream in means_of(unit)]
            dynamic = np.tanh([[sum(row * stream) for stream in x] for row in phi])
        else:
            x = summary(unit, NORM_EPS.get(name, 1e-6))
            dynamic = np.array([sum(row * x) for row in phi])
        alpha = 1.0
        if "alpha" in p:  # the circulant has one for all
            alpha = p["alpha"][i][min(k, len(p["alpha"][i]) - 1)]
        found[part] = alpha * dynamic.reshape(b.shape) + b
    return found


def coefficients(name, p, i, unit, layers):
    """(H_pre [R, S], H_post [R, S], H_res [S, S]) of layer i for a unit's streams [S, N, C].

    A layer reads the mean of the R rows of H_pre x, and writes y to every row of H_postᵀ. R is S
    in the demo and 1 elsewhere.
    """
    logits = logits_of(name, p, i, unit)
    pre, post = logits["pre"], logits["post"]
    if name in DEMOS:
        pre, post = (np.array([softmax(row) for row in rows]) for rows in (pre, post))
    elif name in SOFTMAX:
        pre, post = softmax(pre)[None], softmax(post)[None]
    elif name in RAW:
        pre, post = pre[None], post[None]
    else:
        pre, post = sigmoid(pre)[None], 2 * sigmoid(post)[None]
    if name in PLUS_EPSILON:
        pre = pre + 1e-6
    if name == "hy_v4":
        post = post + 1e-6
    S = len(unit)
    H = mixing(name, logits.get("res"), S, layers)
    if name in ("mhc_static", "mhc_gated_static", "mhc_gated_dynamic"):
        gate = sigmoid(p["gate"][i])
        H = (1 - gate) * np.eye(S) + gate * H
    return pre, post, H


def opened(name, p, x, S):
    """The first streams [S, U, N, C] from the embedded input."""
    if name in IMAGE_STUDY:
        return np.array([x if s == 0 else 0 * x for s in range(S)])
    if name.startswith("mhc_gated"):
        return np.array([x + p["stream_embedding"][s] for s in range(S)])
    if name == "mhc_scaled":
        return np.array([x * p["stream_scales"][s] for s in range(S)])
    return np.array([x] * S)


def readout(name, p, S):
    """The weights [S] with which the last streams are summed."""
    if name in (*DEMOS, "circulant_mhc", "glm5_next"):
        return np.ones(S) / S
    if name == "wide_residual":
        return sigmoid(p["readout"])
    if name in IMAGE_STUDY:
        return softmax(p["readout"]) if name.endswith("static") else sigmoid(p["readout"])
    return np.ones(S)


def computed_readout(name, p, unit):
    """The weights with which `deepseek_v4` and `hy_v4` sum a unit's last streams [S, N, C]."""
    x = summary(unit, NORM_EPS.get(name, 1e-6))
    rows, alpha, b = p["readout_phi"], p["readout_alpha"][0], p["readout"]
    return [sigmoid(alpha * sum(row * x) + b[s]) + 1e-6 for s, row in enumerate(rows)]


def through_streams(name, p, x, layers, S):
    streams = opened(name, p, x, S)
    late = [np.eye(S)[:1]] * len(x)
    for i, layer in enumerate(layers):
        found = [coefficients(name, p, i, streams[:, u], len(layers)) for u in range(len(x))]
        if name == "deepseek_v41":  # this layer's pre is for the next one
            own = [pre for pre, _, _ in found]
            found = [(before, *rest) for before, (_, *rest) in zip(late, found, strict=True)]
            late = own
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
    out = np.zeros_like(x)
    for u in range(len(x)):
        if name == "deepseek_v41":
            (weights,) = late[u]
        elif name in ("deepseek_v4", "hy_v4"):
            weights = computed_readout(name, p, streams[:, u])
        else:
            weights = readout(name, p, S)
        out[u] = sum(w * stream for w, stream in zip(weights, streams[:, u], strict=True))
    return out


# --- connections of released models that follow another equation ----------------------------------


def gated_read(p, i, unit, per_unit):
    """What read i of `qwen4_exp` makes of a unit's streams [S, N, C]: [N, C].

    `per_unit`: the normed streams [S, C] that the gates are computed from.
    """
    S, N, C = unit.shape
    hidden = [sum(row * per_unit.ravel()) / S for row in p["gate_down"][i]]
    hidden = np.array([h / (1 + math.exp(-h)) for h in hidden])  # silu
    gates = np.array([sigmoid(sum(row * hidden)) for row in p["gate_up"][i]]).reshape(S, C)
    read = np.zeros((N, C))
    for s in range(S):
        for n in range(N):
            gain = p["gain"][i, s * C : (s + 1) * C]
            read[n] += gates[s] * (1 + gain) * rms_norm(unit[s, n]) / S
    return read


def through_gated(p, x, layers, S):
    """Streams that are never mixed; a gate for each channel of each stream in every read."""
    streams = np.array([x] * S)

    def normed(i, u):
        gains = p["gain"][i].reshape(S, -1)
        return np.array(
            [(1 + g) * rms_norm(x) for g, x in zip(gains, means_of(streams[:, u]), strict=True)]
        )

    def read(i):
        return np.array([gated_read(p, i, streams[:, u], normed(i, u)) for u in range(len(x))])

    for i, layer in enumerate(layers):
        found = [normed(i, u).ravel() for u in range(len(x))]
        y = layer(read(i))
        streams = streams.copy()
        for u, s in itertools.product(range(len(x)), range(S)):
            streams[s, u] += 2 * sigmoid(sum(p["phi_post"][i, s] * found[u]) / S) * y[u]
    return read(len(layers))


def through_altup(p, x, layers, S, has_residual):
    """Alternating updates: predict all streams, compute the first, correct all."""
    C = x.shape[-1]

    def of_size(y, like):
        """Each row of y [U, N, C] with the root mean square of the same row of `like`."""
        size = np.sqrt((like**2).sum(-1) / C) / np.sqrt(np.maximum((y**2).sum(-1) / C, 1e-5))
        return y * size[..., None]

    def routed(i, z):
        """r of one unit's z [N, C]."""
        mean = sum(z) / len(z)
        return np.tanh(p["router"][i] @ (p["router_gain"][i] * rms_norm(mean)) / C)

    streams = [x, *(of_size(x @ W.T, x) for W in p["open_projections"])]
    for i, layer in enumerate(layers):
        routes = [p["predict"][i] @ routed(i, z) for z in streams[0]]
        predicted = np.zeros((S, *x.shape))
        for u, s in itertools.product(range(len(x)), range(S)):
            predicted[s, u] = streams[s][u]
            for t in range(S):
                predicted[s, u] += routes[u][s * S + t] * streams[t][u]
        y = layer(predicted[0])
        if not has_residual:
            y = predicted[0] + y
        innovation, streams = y - predicted[0], predicted
        for u in range(len(x)):
            weights = 1 + p["correct"][i] @ routed(i, y[u])
            for s in range(S):
                streams[s, u] = streams[s, u] + weights[s] * innovation[u]
    last = zip(streams[1:], p["close_projections"], strict=True)
    parts = [streams[0], *(of_size(stream @ W.T, streams[0]) for stream, W in last)]
    return sum(parts) / S


def rows_normed(x, eps):
    """Each position of x [U, N, C] over the root of its mean square."""
    return np.array([[rms_norm(row, eps) for row in unit] for unit in x])


def on_sphere(x):
    """Each position of x [U, N, C] over its length."""
    return np.array([[row / math.sqrt(sum(row**2) + 1e-6) for row in unit] for unit in x])


def scaled_sum(name, p, i, x, y, is_last):
    """The stream after function i, the last of its block or not, which read x and returned y."""
    if name == "muse_spark":
        y = rows_normed(y * (1 + p["output_gain"][is_last]) if is_last is not None else y, 1e-8)
        beta = sigmoid(p["gate"][i] / 0.3)
        return np.sqrt(np.maximum(1 - beta**2, 1e-3)) * x + beta * y
    if name == "doge":
        return p["stream_scale"][i] * x + y
    if name == "talkie":
        return x + p["output_gain"][i] * y
    if name == "minimax":
        return x + y
    if name == "dory":
        rate = np.abs(p["rate"][i] * 0.05 / 0.0177)
        return x + rate * (on_sphere(y) - x)
    a, b = 2 * softmax(p["weights"][i]) if "weights" in p else (1, 1)
    kept = x + x @ p["down"][i].T @ p["up"][i].T if "down" in p else x
    return a * y + b * kept


RELEASED_SUMS = ("muse_spark", "doge", "talkie", "neomme", "minimax", "dory")
PUBLISHED_SUMS = ("laurel", "laurel_rw", "laurel_lr")
OWN_SUMS = ("scaled", "depth_scaled", "layer_scaled", "residual_scaled")
ONE_STREAM = (*OWN_SUMS, *RELEASED_SUMS, *PUBLISHED_SUMS)


def through_sums(name, p, x, layers, per_block):
    """One stream, with whatever the releases and LAuReL do to it."""
    if name in ("talkie", "neomme"):
        x = rows_normed(x, 2.0**-23 if name == "talkie" else 1e-6)
    first = x

    def normed(k, x):
        if name == "minimax":
            return p["norm_gain"][k] * rows_normed(x, 1e-5)
        return on_sphere(x) if name == "dory" else x

    for i, layer in enumerate(layers):
        block, place = divmod(i, per_block)
        x = read = normed(i, x)
        if name == "dory":
            read = math.sqrt(x.shape[-1]) * x
        is_last = block if place == per_block - 1 else None
        if name == "neomme":
            if place == 0:
                read = p["initial"][block, 0] * x + p["initial"][block, 1] * first
            x = x + layer(read) / math.sqrt(len(layers) / per_block) / math.sqrt(2)
        else:
            x = scaled_sum(name, p, i, x, layer(read), is_last)
        if name == "talkie" and is_last is not None:
            x = x + p["initial"][block] * first
    x = normed(len(layers), x)
    return math.sqrt(x.shape[-1]) * x if name == "dory" else x


def through_scaled(name, p, x, layers, per_block):
    """One stream, whose sum has scales."""
    if name in (*RELEASED_SUMS, *PUBLISHED_SUMS):
        return through_sums(name, p, x, layers, per_block)
    if name == "residual_scaled":
        x = (x + p["input_bias"]) * p["input_scale"]
    for i, layer in enumerate(layers):
        y = layer(x)
        if name == "scaled":
            x = x + 1.4 / math.sqrt(len(layers) / per_block) * y
        elif name == "depth_scaled":
            added = i + 2  # the embedding, the layers before, and this one
            x = math.sqrt((added - 1) / added) * x + math.sqrt(1 / added) * y
        elif name == "layer_scaled":
            x = x + float(p["output_scale"][i, 0]) * y
        else:
            kept = p["stream_scale"][i] * (x + p["stream_bias"][i])
            x = kept + p["output_scale"][i] * (y + p["output_bias"][i])
    return x


# --- attention over depth -------------------------------------------------------------------------

DEPTH_ATTENTION = ("attn_res", "attn_res_block", "inkling2", "mhar", "delta_attn_res")


def depth_read(name, query, gain, sources):
    """One row's weighted sum of its sources [C] each: in `mhar` of each quarter of the channels."""
    eps = 1e-5 if name == "attn_res_block" else 1e-6
    keys = [rms_norm(source, eps) for source in sources]
    values, C = (keys if name == "inkling2" else sources), len(query)
    heads = 4 if name == "mhar" else 1
    read = np.zeros(C)
    for h in range(heads):
        own = range(h * C // heads, (h + 1) * C // heads)
        logits = [sum(query[c] * gain[c] * key[c] for c in own) for key in keys]
        if name == "inkling2":
            logits = [logit / math.sqrt(C) for logit in logits]
        for weight, value in zip(softmax(np.array(logits)), values, strict=True):
            for c in own:
                read[c] += weight * value[c]
    return read


def through_depth_attention(name, p, x, layers, per_block, has_residual, block_size=2):
    """Every function reads all sources, all of them at its turn.

    A block of sources is two blocks of the network, or `block_size`. In every sixth block of the
    network the attention reads three times.
    """
    is_by_block, row = name in ("attn_res_block", "inkling2"), 0

    def read(sources):
        nonlocal row
        query = p["query"][row]
        gain = p["key_gain"][row] if "key_gain" in p else np.ones(len(query))
        row += 1
        found = np.zeros_like(x)
        for u, n in np.ndindex(x.shape[:2]):
            found[u, n] = depth_read(name, query, gain, [source[u, n] for source in sources])
        return found

    stream, finished, summed = x, [x], None
    for k, layer in enumerate(layers):
        if is_by_block and k and k % (block_size * per_block) == 0:
            finished, summed = [*finished, summed], None
        sources = finished if summed is None else [*finished, summed]
        is_apart = name == "inkling2" and k % (6 * per_block) == 5 * per_block
        reads = [x] if k == 0 else [read(sources) for _ in range(3 if is_apart else 1)]
        if name == "delta_attn_res":
            reads = [stream + found for found in reads]
        y = layer(tuple(reads) if is_apart else reads[0])
        if has_residual:
            y = y - reads[0]
        stream = stream + y
        if is_by_block:
            summed = y if summed is None else summed + y
        else:
            finished = [*finished, y]
    if name == "delta_attn_res":
        return stream
    return read(finished if summed is None else [*finished, summed])


def gelu(x):
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def normed_tokens(x):
    """`rms_norm` of each token of [U, N, C]."""
    return np.apply_along_axis(rms_norm, -1, x)


def through_dense(name, p, x, layers, per_block, has_residual):
    """Weighted sums of the outputs of all blocks so far; in `muddformer` four of them."""
    reads, is_normed = None, name == "muddformer_normed"

    def source(i, x):
        return normed_tokens(x) * p["source_gain"][i] if is_normed else x

    outputs = [source(0, x)]
    blocks = len(layers) // per_block
    for i in range(1, blocks + 1):
        for k, layer in enumerate(layers[(i - 1) * per_block : i * per_block]):
            y = layer(x if k or reads is None else reads)
            x = y if has_residual else x + y
        outputs.append(source(i, x))
        ways = 4 if name != "denseformer" and i < blocks else 1
        sums = np.zeros((ways, *x.shape))
        for u, n in np.ndindex(x.shape[:2]):
            weights = p[f"weights_{i}"]
            if name != "denseformer":
                hidden = gelu(p[f"hidden_{i}"] @ rms_norm(x[u, n]))
                weights = weights + (p[f"dynamic_{i}"] @ hidden).reshape(ways, i + 1)
            for way in range(ways):
                sums[way, u, n] = sum(weights[way, j] * outputs[j][u, n] for j in range(i + 1))
        if is_normed:
            sums[-1] = normed_tokens(sums[-1]) * p["sum_gain"][i - 1]
            sums += x
        *apart, x = sums
        reads = tuple(apart) if apart else None
    return x


def frac_matrices(name, p, i, unit):
    """(H_pre [m, m], H_res [m, m], H_post [m]) of layer i for a unit's parts [m, N, C/m]."""
    if name == "frac_static":
        return tuple(p[f"H_{part}"][i] for part in ("pre", "res", "post"))
    found = []
    for k, part in enumerate(("pre", "res", "post")):
        rows = [[sum(row * rms_norm(x)) for x in means_of(unit)] for row in p[f"phi_{part}"][i]]
        b = p[f"b_{part}"][i]
        found.append(p["alpha"][i, k] * np.tanh(rows).reshape(b.shape) + b)
    return tuple(found)


def through_frac(name, p, x, layers, m=2):
    """One stream of m parts, which are mixed."""
    U, width = len(x), x.shape[-1] // m
    places = [slice(s * width, (s + 1) * width) for s in range(m)]
    for i, layer in enumerate(layers):
        read, kept, posts = np.zeros_like(x), np.zeros_like(x), []
        for u in range(U):
            unit = np.array([x[u][:, place] for place in places])
            pre, res, post = frac_matrices(name, p, i, unit)
            posts.append(post)
            for s, t in itertools.product(range(m), range(m)):
                read[u][:, places[s]] += pre[s, t] * unit[t]
                kept[u][:, places[s]] += res[s, t] * unit[t]
        y = layer(read)
        for u, s in itertools.product(range(U), range(m)):
            kept[u][:, places[s]] += posts[u][s] * y[u][:, places[s]]
        x = kept
    return x


# --- causal mixing --------------------------------------------------------------------------------


def causal_weights(name, p):
    """[L, L]: with which weights every layer reads the states so far."""
    matrix = np.exp(p["mixing"])
    if name == "mhc_causal":
        matrix = sinkhorn(matrix, floor=0, added=1e-6)
    weights = np.zeros_like(matrix)
    for i in range(len(matrix)):
        weights[i, : i + 1] = matrix[i, : i + 1] / (sum(matrix[i, : i + 1]) + 1e-6)
    return weights


def through(name, p, x, layers, S, has_residual, per_block=1):
    """`x` [U, N, C] through layers joined by the named scheme; a block has so many of them."""
    if name == "qwen4_exp":
        return through_gated(p, x, layers, S)
    if name == "altup":
        return through_altup(p, x, layers, S, has_residual)
    if name.startswith("frac"):
        return through_frac(name, p, x, layers)
    if name in ONE_STREAM:
        return through_scaled(name, p, x, layers, per_block)
    if name in ("denseformer", "muddformer", "muddformer_normed"):
        return through_dense(name, p, x, layers, per_block, has_residual)
    if name in DEPTH_ATTENTION:
        return through_depth_attention(name, p, x, layers, per_block, has_residual)
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


def rms_norms(x):
    """Of each row; PyTorch's eps for float32."""
    return np.array([rms_norm(row, eps=2.0**-23) for row in x])


def normed(p, x, name, model):
    """Layer norm with a gain and a bias, or RMS norm without."""
    if model.norm == "rms":
        return rms_norms(x)
    scaled = (x - x.mean(1)[:, None]) / np.sqrt(x.var(1)[:, None] + 1e-5)
    return scaled * p[f"{name}.weight"] + p[f"{name}.bias"]


def linear(p, x, name, model):
    y = x @ p[f"{name}.weight"].T
    return y + p[f"{name}.bias"] if model.biases else y


def apply_rope(x):
    """Rotary positions of a head's [T, d]: channels i and i + d/2 are a complex number, which is
    multiplied with exp(−√−1 · t · 10000^(−2i/d)).
    """
    T, d = x.shape
    found = np.zeros((T, d))
    for t in range(T):
        for i in range(d // 2):
            z = complex(x[t, i], x[t, i + d // 2])
            z = z * np.exp(-1j * t * 10000 ** (-2 * i / d))
            found[t, i], found[t, i + d // 2] = z.real, z.imag
    return found


def attention(p, x, model):
    """`x` [T, D], or a tuple of what queries, keys and values are made from."""
    inputs, heads = (x if isinstance(x, tuple) else (x, x, x)), model.heads
    T, D = inputs[0].shape
    q, k, v = (
        linear(p, part, "qkv", model)[:, i * D : (i + 1) * D] for i, part in enumerate(inputs)
    )
    out = np.zeros((T, D))
    for head in range(heads):
        columns = slice(head * D // heads, (head + 1) * D // heads)
        own_q, own_k = q[:, columns], k[:, columns]
        if model.positions == "rotary":
            own_q, own_k = apply_rope(own_q), apply_rope(own_k)
        if model.qk_norm:
            own_q, own_k = rms_norms(own_q), rms_norms(own_k)
        for t in range(T):  # position t looks at positions 0 … t
            scores = own_k[: t + 1] @ own_q[t] / math.sqrt(D / heads)
            out[t, columns] = softmax(scores) @ v[: t + 1, columns]
    return linear(p, out, "attention_out", model)


def mlp(p, x, model):
    h = linear(p, x, "up", model)
    h = np.where(h > 0, h, 0) ** 2 if model.activation == "relu2" else gelu(h)
    return linear(p, h, "down", model)


def attended(p, x, model):
    if isinstance(x, tuple):
        return attention(p, tuple(normed(p, part, "norm1", model) for part in x), model)
    return attention(p, normed(p, x, "norm1", model), model)


def processed(p, x, model):
    return mlp(p, normed(p, x, "norm2", model), model)


def transformer_block(p, x, model):
    x = x + attended(p, x, model)
    return x + processed(p, x, model)


def token_rows(x):
    """[T, 1, D] → [T, D], or of each of a tuple."""
    return tuple(part[:, 0] for part in x) if isinstance(x, tuple) else x[:, 0]


def transformer(name, spec, params, tokens):
    """Logits [B, T, V] of tokens [B, T]."""
    p = {key: value.astype(np.float64) for key, value in params.items()}
    model, by_block = spec.model, spec.model.wrap == "block"
    S = getattr(spec.connection, "streams", 1)
    is_normed = name in ("qwen4_exp", "minimax", "dory")  # what functions and the head read
    wrapped = []
    for layer in layers_of(p, spec.depth):
        if by_block:
            wrapped.append(partial(transformer_block, layer, model=model))
        else:
            parts = (attention, mlp) if is_normed else (attended, processed)
            wrapped += [partial(part, layer, model=model) for part in parts]
    functions = [lambda x, f=f: f(token_rows(x))[:, None] for f in wrapped]

    def logits(row):
        x = p["embedding.token"][row]
        if model.positions == "learned":
            x = x + p["embedding.position"]
        if model.embedding_norm:
            x = rms_norms(x)
        x = through(
            name, connection_of(p), x[:, None], functions, S, by_block, len(wrapped) // spec.depth
        )[:, 0]
        z = (x if is_normed else normed(p, x, "norm", model)) @ p["head.weight"].T
        return z if model.logit_cap is None else model.logit_cap * np.tanh(z / model.logit_cap)

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


def group_norm(p, x, name):
    """min(32, max(1, C // 4)) groups of consecutive channels; nothing without parameters."""
    if f"{name}.weight" not in p:
        return x
    C = x.shape[-1]
    size = C // min(32, max(1, C // 4))
    normed = np.empty_like(x)
    for image in range(len(x)):
        for first in range(0, C, size):
            part = x[image, :, :, first : first + size]
            normed[image, :, :, first : first + size] = (part - part.mean()) / math.sqrt(
                part.var() + 1e-5
            )
    return normed * p[f"{name}.weight"] + p[f"{name}.bias"]


def image_block(p, x, dropout, keep):
    x = np.maximum(group_norm(p, x, "norm1"), 0)
    x = convolution(x, p["conv1.weight"], p["conv1.bias"])
    x = np.where(keep, x / (1 - dropout), 0)
    x = np.maximum(group_norm(p, x, "norm2"), 0)
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
    S = getattr(spec.connection, "streams", 1)
    x = through(name, connection_of(p), x.reshape(B, -1, C), blocks, S, has_residual=False)
    x = np.maximum(group_norm(p, x.reshape(shape), "norm"), 0)
    return x.mean(axis=(1, 2)) @ p["head.weight"].T + p["head.bias"]


# --- the MLP of a flow, one point at a time -----------------------------------------------------


def layer_norm(p, row, name):
    """Of one row; nothing without parameters."""
    if f"{name}.weight" not in p:
        return row
    scaled = (row - sum(row) / len(row)) / math.sqrt(row.var() + 1e-5)
    return scaled * p[f"{name}.weight"] + p[f"{name}.bias"]


def velocity_block(layer, row):
    hidden = layer["up.weight"] @ layer_norm(layer, row, "norm") + layer["up.bias"]
    return layer["down.weight"] @ (hidden * sigmoid(hidden)) + layer["down.bias"]


def velocity_mlp(name, spec, params, points, times):
    """Velocities [B, 2] at points [B, 2] and times [B, 1]."""
    p = {key: value.astype(np.float64) for key, value in params.items()}
    S = getattr(spec.connection, "streams", 1)
    given = np.hstack([points, times]).astype(np.float64)
    x = np.array([p["embedding.weight"] @ row + p["embedding.bias"] for row in given])
    functions = [
        lambda x, layer=layer: np.array([velocity_block(layer, row) for row in x[:, 0]])[:, None]
        for layer in layers_of(p, spec.depth)
    ]
    x = through(name, connection_of(p), x[:, None], functions, S, has_residual=False)[:, 0]
    normed = [layer_norm(p, row, "norm") for row in x]
    return np.array([p["head.weight"] @ row + p["head.bias"] for row in normed])


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


NETWORKS = {
    **dict.fromkeys(("tokens", "text", "state", "recall"), transformer),
    "fashion": convnet,
    "flow": velocity_mlp,
}
