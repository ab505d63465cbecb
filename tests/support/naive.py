"""All networks, every named scheme and AdamW as textbook code, in float64.

Written from the publications and code of the schemes' authors, and independent of the models.
A unit, a token or an image, has one set of weights in a dynamic connection. Activations are
[U, N, C]: units, positions that are averaged over (1 for a token, 14·14 for an image), channels.
Parameters are float64 by name; names of a connection's parameters lack their prefix.
"""

import itertools
import math
from functools import partial

import numpy as np
import scipy.special
from scipy.special import expit as sigmoid
from scipy.special import logsumexp, ndtr

softmax = partial(scipy.special.softmax, axis=-1)


def rms_norm(x, eps=1e-6):
    """x divided by its root mean square, along the last axis."""
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)


def gelu(x):
    return x * ndtr(x)


# --- families of mixing matrices ------------------------------------------------------------------


def sinkhorn(matrix, iterations=20, floor=1e-12, added=0.0, last="columns"):
    """Rows and columns divided by their sums in turn, ending with `last`."""
    H = np.array(matrix, dtype=np.float64)
    for _ in range(iterations):
        for axis in (1, 0) if last == "columns" else (0, 1):
            H = H / (np.maximum(H.sum(axis=axis, keepdims=True), floor) + added)
    return H


def log_sinkhorn(logits, tau, iterations=20):
    """exp(Z + u + v), Z = logits/τ: u = −lse of rows of Z + v, v = −lse of columns of Z + u."""
    Z = logits / tau
    u, v = np.zeros((len(Z), 1)), np.zeros((1, len(Z)))
    for _ in range(iterations):
        u = -logsumexp(Z + v, axis=1, keepdims=True)
        v = -logsumexp(Z + u, axis=0, keepdims=True)
    return np.exp(Z + u + v)


def kernel_sinkhorn(logits, iterations=20, eps=1e-6):
    """DeepSeek's kernels: softmax of rows plus ε, then columns; then rows and columns in turn.

    The kernels apply H transposed: stream k becomes Σ_j H_jk x_j.
    """
    H = softmax(logits) + eps
    for step in range(iterations):
        if step > 0:
            H = H / (H.sum(axis=1, keepdims=True) + eps)
        H = H / (H.sum(axis=0, keepdims=True) + eps)
    return H


def permutations(logits, S):
    """Σ_r softmax(logits)_r P_r over all permutations, the identity first."""
    orders = itertools.permutations(range(S))
    return sum(w * np.eye(S)[list(o)] for w, o in zip(softmax(logits), orders, strict=True))


def kronecker(logits):
    """The Kronecker product of [[p, 1 − p], [1 − p, p]] over pairs of logits."""
    H = np.ones((1, 1))
    for p, q in softmax(logits) if len(logits) else ():
        H = np.kron(H, np.array([[p, q], [q, p]]))
    return H


def circulant(logits, gamma):
    """Σ_k c_k shiftᵏ, where shift moves every stream to the next and the last to the first."""
    S, c = len(logits), gamma * softmax(logits)
    c[0] += 1 - gamma
    return sum(c[k] * np.roll(np.eye(S), k, axis=0) for k in range(S))


def newton_schulz(X, a, b, c):
    """Five steps X ← a X + b A X + c A² X with A = X Xᵀ, towards the nearest orthogonal matrix."""
    X = X / (math.sqrt(np.sum(X**2)) + 1e-7)
    for _ in range(5):
        A = X @ X.T
        X = a * X + b * A @ X + c * A @ A @ X
    return X


def orthostochastic(logits):
    """Squares of the entries of a nearly orthogonal matrix."""
    return newton_schulz(logits, 3, -3.2, 1.2) ** 2


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
        case "mhc_paper" | "mhc_averaged" | "mhc_cycle":
            return sinkhorn(np.exp(logits), last="rows")
        case "deepseek_v4" | "deepseek_v41" | "glm5_next":
            return kernel_sinkhorn(logits).T
        case "mhc_identity" | "mhc_identity_cycle" | "hy_v4":
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
        case "mhc_gated_static" | "mhc_gated_dynamic":
            return log_sinkhorn(logits, tau=0.05)
        case "hc_static" | "hc_dynamic" | "hc_paper" | "hc_paper_static":
            return logits


# --- connections ----------------------------------------------------------------------------------

PARTS = ("pre", "post", "res")
DEMOS = ("hc_demo", "mhc_demo")
IMAGE_STUDY = ("hc_static", "mhc_static", "hc_dynamic", "mhc_dynamic")
STATIC = (
    *DEMOS, "hc_static", "mhc_static", "hc_paper_static", "mhc_gated_static",
)  # fmt: skip
RAW = ("hc_dynamic", "hc_paper", "hc_paper_static")
PLUS_EPSILON = ("deepseek_v4", "deepseek_v41", "glm5_next", "hy_v4")
NORM_EPS = {"deepseek_v41": 1e-20, "glm5_next": 1e-5, "hy_v4": 1e-5}
SOFTMAX = ("hc_static", "mhc_static", "mhc_gated_static", "mhc_gated_dynamic")


def summary(name, unit):
    """Means over positions of a unit's streams [S, N, C], divided by their RMS, [S·C]."""
    return rms_norm(unit.mean(axis=1).ravel(), NORM_EPS.get(name, 1e-6))


def logits_of(name, p, i, unit):
    """{part: logits} of layer i for a unit's streams [S, N, C]: learned, or computed from them."""
    if name in STATIC:
        return {part: p[f"H_{part}"][i] for part in PARTS if f"H_{part}" in p}
    result = {}
    for k, part in enumerate(part for part in PARTS if f"b_{part}" in p):
        phi, b = p[f"phi_{part}"][i], p[f"b_{part}"][i]
        if name == "hc_paper":  # tanh, and each stream depends on itself alone
            dynamic = np.tanh(phi @ rms_norm(unit.mean(axis=1)).T)
        else:
            dynamic = phi @ summary(name, unit)
        # The circulant has one α for all parts, and some schemes have none.
        alpha = p["alpha"][i][min(k, len(p["alpha"][i]) - 1)] if "alpha" in p else 1.0
        result[part] = alpha * dynamic.reshape(b.shape) + b
    return result


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
    """Initial streams [S, U, N, C] from the embedded input."""
    if name in IMAGE_STUDY:
        return np.array([x if s == 0 else 0 * x for s in range(S)])
    if name.startswith("mhc_gated"):
        return np.array([x + p["stream_embedding"][s] for s in range(S)])
    return np.array([x] * S)


def readout(name, p, S):
    """The weights [S] with which the last streams are summed."""
    if name in (*DEMOS, "circulant_mhc", "glm5_next"):
        return np.ones(S) / S
    if name in IMAGE_STUDY:
        return softmax(p["readout"]) if name.endswith("static") else sigmoid(p["readout"])
    return np.ones(S)


def computed_readout(name, p, unit):
    """The weights with which `deepseek_v4` and `hy_v4` sum a unit's last streams [S, N, C]."""
    logits = p["readout_phi"] @ summary(name, unit)
    return sigmoid(p["readout_alpha"][0] * logits + p["readout"]) + 1e-6


def through_streams(name, p, x, layers, S):
    streams, late = opened(name, p, x, S), np.array([np.eye(S)[:1]] * len(x))
    for i, layer in enumerate(layers):
        units = np.moveaxis(streams, 1, 0)
        result = [coefficients(name, p, i, unit, len(layers)) for unit in units]
        pre, post, H = map(np.array, zip(*result, strict=True))
        if name == "deepseek_v41":  # this layer's pre is for the next one
            pre, late = late, pre
        y = layer(np.einsum("urs,sunc->unc", pre, streams) / pre.shape[1])
        streams = np.einsum("urs,sunc->runc", H, streams) + np.einsum("urs,unc->sunc", post, y)
    if name == "deepseek_v41":
        weights = late[:, 0]
    elif name in ("deepseek_v4", "hy_v4"):
        weights = [computed_readout(name, p, unit) for unit in np.moveaxis(streams, 1, 0)]
    else:
        weights = [readout(name, p, S)] * len(x)
    return np.einsum("us,sunc->unc", weights, streams)


# --- connections of released models that follow another equation ----------------------------------


def through_gated(p, x, layers, S):
    """Streams that are never mixed; a gate for each channel of each stream in every read."""
    streams = np.array([x] * S)

    def normed(i, streams):
        return (1 + p["gain"][i].reshape(S, 1, 1, -1)) * rms_norm(streams)

    def by_unit(i):
        """The normed means over positions, [U, S·C]."""
        means = normed(i, streams.mean(axis=2, keepdims=True))
        return np.moveaxis(means, 0, 1).reshape(len(x), -1)

    def read(i):
        hidden = by_unit(i) @ p["gate_down"][i].T / S
        gates = sigmoid(hidden * sigmoid(hidden) @ p["gate_up"][i].T).reshape(len(x), S, 1, -1)
        return (np.moveaxis(gates, 1, 0) * normed(i, streams)).mean(axis=0)

    for i, layer in enumerate(layers):
        post = 2 * sigmoid(by_unit(i) @ p["phi_post"][i].T / S)
        streams = streams + np.einsum("us,unc->sunc", post, layer(read(i)))
    return read(len(layers))


def through_altup(p, x, layers, S, has_residual):
    """Alternating updates: predict all streams, compute the first, correct all."""

    def of_size(y, like):
        """y [U, N, C] with each row scaled to the RMS of the same row of `like`."""
        ours, theirs = ((z**2).mean(axis=-1, keepdims=True) for z in (y, like))
        return y * np.sqrt(theirs / np.maximum(ours, 1e-5))

    def routed(i, z):
        """Router output r of each unit, from z [U, N, C]."""
        means = p["router_gain"][i] * rms_norm(z.mean(axis=1))
        return np.tanh(means @ p["router"][i].T / x.shape[-1])

    streams = np.array([x, *(of_size(x @ W.T, x) for W in p["open_projections"])])
    for i, layer in enumerate(layers):
        routes = (routed(i, streams[0]) @ p["predict"][i].T).reshape(-1, S, S)
        predicted = streams + np.einsum("ust,tunc->sunc", routes, streams)
        y = layer(predicted[0])
        if not has_residual:
            y = predicted[0] + y
        weights = 1 + routed(i, y) @ p["correct"][i].T
        streams = predicted + np.einsum("us,unc->sunc", weights, y - predicted[0])
    last = zip(streams[1:], p["close_projections"], strict=True)
    return sum([streams[0], *(of_size(z @ W.T, streams[0]) for z, W in last)]) / S


def on_sphere(x):
    """Each position of x [U, N, C] divided by its norm."""
    return x / np.sqrt((x**2).sum(axis=-1, keepdims=True) + 1e-6)


ONE_STREAM = (
    "scaled", "depth_scaled", "layer_scaled", "residual_scaled", "muse_spark", "doge", "talkie",
    "neomme", "minimax", "dory", "laurel", "laurel_rw", "laurel_lr",
)  # fmt: skip


def scaled_sum(name, p, i, x, y, blocks, is_last):
    """Stream after function i, from stream x and output y; is_last: the block that i ends."""
    match name:
        case "scaled":
            return x + 1.4 / math.sqrt(blocks) * y
        case "depth_scaled":
            added = i + 2  # the embedding, the layers before, and this one
            return math.sqrt((added - 1) / added) * x + math.sqrt(1 / added) * y
        case "layer_scaled":
            return x + p["output_scale"][i, 0] * y
        case "residual_scaled":
            kept = p["stream_scale"][i] * (x + p["stream_bias"][i])
            return kept + p["output_scale"][i] * (y + p["output_bias"][i])
        case "muse_spark":
            y = rms_norm(y if is_last is None else y * (1 + p["output_gain"][is_last]), 1e-8)
            beta = sigmoid(p["gate"][i] / 0.3)
            return np.sqrt(np.maximum(1 - beta**2, 1e-3)) * x + beta * y
        case "doge":
            return p["stream_scale"][i] * x + y
        case "talkie":
            return x + p["output_gain"][i] * y
        case "neomme":
            return x + y / math.sqrt(2 * blocks)
        case "minimax":
            return x + y
        case "dory":
            return x + np.abs(p["rate"][i] * 0.05 / 0.0177) * (on_sphere(y) - x)
    a, b = 2 * softmax(p["weights"][i]) if "weights" in p else (1, 1)
    return a * y + b * (x + x @ p["down"][i].T @ p["up"][i].T if "down" in p else x)


def through_sums(name, p, x, layers, per_block):
    """One stream, with the norms and weighted sums of the releases and LAuReL."""
    if name == "residual_scaled":
        x = (x + p["input_bias"]) * p["input_scale"]
    if name in ("talkie", "neomme"):
        x = rms_norm(x, 2.0**-23 if name == "talkie" else 1e-6)
    first, blocks = x, len(layers) // per_block

    def normed(k, x):
        if name == "minimax":
            return p["norm_gain"][k] * rms_norm(x, 1e-5)
        return on_sphere(x) if name == "dory" else x

    for i, layer in enumerate(layers):
        block, place = divmod(i, per_block)
        is_last = block if place == per_block - 1 else None
        x = read = normed(i, x)
        if name == "dory":
            read = math.sqrt(x.shape[-1]) * x
        if name == "neomme" and place == 0:
            read = p["initial"][block, 0] * x + p["initial"][block, 1] * first
        x = scaled_sum(name, p, i, x, layer(read), blocks, is_last)
        if name == "talkie" and is_last is not None:
            x = x + p["initial"][block] * first
    x = normed(len(layers), x)
    return math.sqrt(x.shape[-1]) * x if name == "dory" else x


# --- attention over depth -------------------------------------------------------------------------

DEPTH_ATTENTION = ("attn_res", "attn_res_block", "inkling2", "mhar", "delta_attn_res")
DENSE = ("denseformer", "muddformer", "muddformer_last")


def depth_read(name, query, gain, sources):
    """Weighted sum of the sources of one row; in `mhar`, of each quarter of the channels."""
    sources, C, heads = np.array(sources), len(query), 4 if name == "mhar" else 1
    keys = rms_norm(sources, 1e-5 if name == "attn_res_block" else 1e-6)
    logits = (query * gain * keys).reshape(*keys.shape[:-1], heads, -1).sum(axis=-1)
    if name == "inkling2":
        logits, sources = logits / math.sqrt(C), keys
    shares = scipy.special.softmax(logits, axis=0)
    return (shares.repeat(C // heads, axis=-1) * sources).sum(axis=0)


def through_depth_attention(name, p, x, layers, per_block, has_residual, block_size=2):
    """Every function reads a weighted sum of all sources so far.

    A block of sources is `block_size` blocks of the network. In `inkling2`, the attention of every
    sixth block of the network reads three times.
    """
    is_by_block, rows = name in ("attn_res_block", "inkling2"), itertools.count()

    def read(sources):
        row = next(rows)
        gain = p["key_gain"][row] if "key_gain" in p else 1
        return depth_read(name, p["query"][row], gain, sources)

    stream, finished, summed = x, [x], None
    for k, layer in enumerate(layers):
        if is_by_block and k and k % (block_size * per_block) == 0:
            finished, summed = [*finished, summed], None
        sources = finished if summed is None else [*finished, summed]
        is_apart = name == "inkling2" and k % (6 * per_block) == 5 * per_block
        reads = [x] if k == 0 else [read(sources) for _ in range(3 if is_apart else 1)]
        if name == "delta_attn_res":
            reads = [stream + result for result in reads]
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


def through_dense(name, p, x, layers, per_block, has_residual):
    """Weighted sums of the outputs of all blocks so far; in `muddformer` four sums."""
    reads, outputs = None, [x]
    blocks = len(layers) // per_block
    for i in range(1, blocks + 1):
        for k, layer in enumerate(layers[(i - 1) * per_block : i * per_block]):
            y = layer(x if k or reads is None else reads)
            x = y if has_residual else x + y
        outputs.append(x)
        reads = None
        if name == "muddformer_last" and i < blocks - 1:
            continue
        shape = (*x.shape[:2], 4 if name != "denseformer" and i < blocks else 1, i + 1)
        weights = np.broadcast_to(p[f"weights_{i}"], shape)
        if name != "denseformer":
            hidden = gelu(rms_norm(x) @ p[f"hidden_{i}"].T)
            weights = weights + (hidden @ p[f"dynamic_{i}"].T).reshape(shape)
        sums = np.einsum("unwj,junc->wunc", weights, np.array(outputs))
        *apart, x = sums
        reads = tuple(apart) if apart else None
    return x


def frac_matrices(name, p, i, unit):
    """(H_pre [m, m], H_res [m, m], H_post [m]) of layer i for a unit's parts [N, m, C/m]."""
    parts = ("pre", "res", "post")
    if name == "frac_static":
        return [p[f"H_{part}"][i] for part in parts]
    dynamic = (np.tanh(p[f"phi_{part}"][i] @ rms_norm(unit.mean(axis=0)).T) for part in parts)
    b, alpha = [p[f"b_{part}"][i] for part in parts], p["alpha"][i]
    return [a * h.reshape(b.shape) + b for a, h, b in zip(alpha, dynamic, b, strict=True)]


def through_frac(name, p, x, layers):
    """One stream split into two parts, which are mixed."""
    for i, layer in enumerate(layers):
        units = x.reshape(*x.shape[:2], 2, -1)
        result = [frac_matrices(name, p, i, unit) for unit in units]
        pre, res, post = map(np.array, zip(*result, strict=True))
        y = layer(np.einsum("ust,untc->unsc", pre, units).reshape(x.shape))
        kept = np.einsum("ust,untc->unsc", res, units)
        x = (kept + post[:, None, :, None] * y.reshape(units.shape)).reshape(x.shape)
    return x


def through_gated_multi(p, x, layers, S):
    """x-transformers' gated multi residual and the final norm of its decoder."""
    streams = [x + row for row in p["stream_embedding"]]
    for k, layer in enumerate(layers):
        flat = [p["gain"][k][s] * rms_norm(z.mean(axis=1)) for s, z in enumerate(streams)]
        hidden = np.concatenate(flat, axis=-1) / S @ p["down"][k].T
        hidden = p["gate_scale"][k] * hidden * sigmoid(hidden)
        logits = (hidden @ p["up_read"][k].T).reshape(len(x), S, -1) + p["read_bias"][k]
        read = sum(
            sigmoid(logits[:, s])[:, None] * p["gain"][k][s] * rms_norm(z) / S
            for s, z in enumerate(streams)
        )
        y, beta = layer(read), 2 * sigmoid(hidden @ p["up_write"][k].T + p["write_bias"][k])
        streams = [z + beta[:, s, None, None] * y for s, z in enumerate(streams)]
    return p["end_gain"] * rms_norm(sum(streams))


def through_state_attention(p, x, layers, has_residual):
    """x-transformers' attention over all earlier hiddens; the query depends on the last."""
    hiddens = [x]
    for k, layer in enumerate(layers):
        read, last = hiddens[0], hiddens[-1]
        if k:
            delta = (p["input_gain"][k - 1] * rms_norm(last)) @ p["down"][k - 1].T
            query = p["query_gain"][k - 1] * rms_norm(last + delta @ p["up"][k - 1].T)
            keys = [p["key_gain"][k - 1] * rms_norm(h) for h in hiddens]
            logits = np.array([(query * key).sum(axis=-1) for key in keys]) / math.sqrt(x.shape[-1])
            shares = scipy.special.softmax(logits, axis=0)
            read = sum(share[..., None] * h for share, h in zip(shares, hiddens, strict=True))
        y = layer(read)
        hiddens.append(last + (y - read if has_residual else y))
    return hiddens[-1]


# --- one stream, in the words of those who race ---------------------------------------------------

RACERS = (
    "resid_growth", "orthogonal", "gru_gate", "review", "deep_delta", "prores", "x0_lambda",
    "unet", "unet_concatenated", "one_skip", "backout", "late_read", "two_lanes",
)  # fmt: skip


def gru_cell(p, k, y, x):
    """PyTorch's GRUCell: input y, hidden state x."""
    W, V, b, c = (p[name][k] for name in
                  ("output_gates", "stream_gates", "output_bias", "stream_bias"))  # fmt: skip
    (ri, zi, ni), (rh, zh, nh) = (
        np.split(a @ matrix.T + bias, 3, axis=-1) for a, matrix, bias in ((y, W, b), (x, V, c))
    )
    z, new = sigmoid(zi + zh), np.tanh(ni + sigmoid(ri + rh) * nh)
    return (1 - z) * new + z * x


def racing_sum(name, p, k, x, y):
    """The stream after function k with the output y."""
    match name:
        case "resid_growth":
            return p["resid"][k] * x + y
        case "orthogonal":
            inner = np.einsum("unc,unc->un", x, y) / (np.einsum("unc,unc->un", x, x) + 1e-6)
            return x + (y - inner[..., None] * x)
        case "gru_gate":
            return gru_cell(p, k, y, x)
        case "review":
            seen = np.concatenate([rms_norm(x, 1e-5), rms_norm(y, 1e-5)], axis=-1)
            return x + sigmoid(seen @ p["gate"][k].T + p["gate_bias"][k]) * y
        case "deep_delta":
            unit = y / np.sqrt((y**2).sum(axis=-1, keepdims=True) + 1e-12)
            beta = 2 * sigmoid(rms_norm(x) @ p["gate"][k] + p["gate_bias"][k])[..., None]
            erased = np.einsum("unc,und->uncd", unit, unit) @ x[..., None]
            return x - beta * erased[..., 0] + beta * 2 * unit
    return x + y


def through_racer(name, p, x, layers, per_block, has_residual):
    """One stream; a list of the streams before every block."""
    blocks, before, lanes, saved = len(layers) // per_block, [], None, None
    first_half = -(-blocks // 2)
    skip_to = max(1, round(6 * blocks / 11))
    save_after = min(blocks - 1, round(blocks * (8 / 11 if name == "late_read" else 3 / 4)))
    lanes_from = min(blocks - 1, round(7 * blocks / 11))
    for k, layer in enumerate(layers):
        block, within = divmod(k, per_block)
        is_attention = k % 2 == 0 if per_block == 1 else within == 0
        if within == 0:
            before.append(x)
            mirrored = blocks - 1 - block
            if name == "x0_lambda":
                x = p["resid"][block] * x + p["x0"][block] * before[0]
            if name == "unet" and block >= first_half and block:
                x = x + p["skip"][block - first_half] * before[mirrored + 1]
            if name == "unet_concatenated" and block >= first_half and block:
                W = p["combine"][block - first_half]
                x = before[mirrored] @ W[:, : x.shape[-1]].T + x @ W[:, x.shape[-1] :].T
            if name == "one_skip" and block == skip_to:
                x = x + sigmoid(p["skip_gate"][0]) * before[min(round(4 * blocks / 11), block - 1)]
            if name == "late_read" and block == save_after:
                saved = x
            if name == "two_lanes" and block == lanes_from:
                lanes = [x, x]
        if lanes:
            y = layer(lanes[0] if is_attention else lanes[1])
            lanes = [p["resid"][k] * lane + w * y
                     for lane, w in zip(lanes, p["post"][k], strict=True)]  # fmt: skip
            continue
        if name == "two_lanes":
            x = p["resid"][k] * x + p["post"][k, 0] * layer(x)
            continue
        y = layer(saved if saved is not None and is_attention else x)
        x = y if has_residual else racing_sum(name, p, k, x, y)
    if lanes:
        return (lanes[0] + lanes[1]) / 2
    if name in ("backout", "late_read"):
        x = x - p["backout"][0] * before[save_after]
    if name == "one_skip" and skip_to == blocks:
        x = x + sigmoid(p["skip_gate"][0]) * before[0]
    return x


# --- causal mixing --------------------------------------------------------------------------------


def causal_weights(name, p):
    """Weights with which each layer reads the states so far, [L, L]."""
    matrix = np.exp(p["mixing"])
    if name == "mhc_causal":
        matrix = sinkhorn(matrix, floor=0, added=1e-6)
    read = np.tril(matrix)
    return read / (read.sum(axis=1, keepdims=True) + 1e-6)


def through(name, p, x, layers, S, has_residual, per_block=1):
    """`x` [U, N, C] after layers joined by the named scheme, `per_block` layers a block."""
    if name == "qwen4_exp":
        return through_gated(p, x, layers, S)
    if name == "altup":
        return through_altup(p, x, layers, S, has_residual)
    if name.startswith("frac"):
        return through_frac(name, p, x, layers)
    if name == "gmr_cyclic":
        return through_gated_multi(p, x, layers, S)
    if name == "attn_res_state":
        return through_state_attention(p, x, layers, has_residual)
    if name in RACERS:
        return through_racer(name, p, x, layers, per_block, has_residual)
    if name in ONE_STREAM:
        return through_sums(name, p, x, layers, per_block)
    if name in DENSE:
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


# --- parameters and norms ------------------------------------------------------------------------


def exact(params):
    return {key: value.astype(np.float64) for key, value in params.items()}


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


def connected(spec, p, x, functions, **site):
    """Tokens, points or nodes [N, C] after a network's functions, joined by its scheme."""
    by_unit = [lambda x, f=f: f(rows_of(x))[:, None] for f in functions]
    streams = getattr(spec.connection, "streams", 1)
    site = {"has_residual": False, **site}
    return through(spec.variant, connection_of(p), x[:, None], by_unit, streams, **site)[:, 0]


def rows_of(x):
    """[N, 1, C] → [N, C], also for each part of a tuple."""
    return tuple(part[:, 0] for part in x) if isinstance(x, tuple) else x[:, 0]


def layer_norm(p, x, name):
    """Layer norm along the last axis; the identity without parameters."""
    if f"{name}.weight" not in p:
        return x
    scaled = (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return scaled * p[f"{name}.weight"] + p[f"{name}.bias"]


def linear(p, x, name):
    """Matrix product, plus a bias if there is one."""
    return x @ p[f"{name}.weight"].T + p.get(f"{name}.bias", 0)


# --- the transformer, one sequence at a time ----------------------------------------------------


def normed(p, x, name, model):
    """Layer norm with gain and bias, or RMS norm without them and with PyTorch's eps."""
    return rms_norm(x, 2.0**-23) if model.norm == "rms" else layer_norm(p, x, name)


def apply_rope(x):
    """Rotary positions of [T, d]: x_i + √−1 · x_(i + d/2) times exp(−√−1 · t · 10000^(−2i/d))."""
    T, d = x.shape
    angles = np.arange(T)[:, None] * 10000 ** (-2 * np.arange(d // 2) / d)
    z = (x[:, : d // 2] + 1j * x[:, d // 2 :]) * np.exp(-1j * angles)
    return np.hstack([z.real, z.imag])


def attention(p, x, model):
    """Causal attention on `x` [T, D], or on a tuple of inputs of queries, keys and values."""
    inputs, heads = (x if isinstance(x, tuple) else (x, x, x)), model.heads
    T, D = inputs[0].shape
    q, k, v = (linear(p, part, "qkv")[:, i * D : (i + 1) * D] for i, part in enumerate(inputs))
    v = valued(p, inputs[0], v, heads)
    out = np.zeros((T, D))
    for head in range(heads):
        columns = slice(head * D // heads, (head + 1) * D // heads)
        own_q, own_k = q[:, columns], k[:, columns]
        if model.positions == "rotary":
            own_q, own_k = apply_rope(own_q), apply_rope(own_k)
        if model.qk_norm:
            own_q, own_k = rms_norm(own_q, 2.0**-23), rms_norm(own_k, 2.0**-23)
        for t in range(T):  # position t looks at positions 0 … t
            scores = own_k[: t + 1] @ own_q[t] / math.sqrt(D / heads)
            out[t, columns] = softmax(scores) @ v[: t + 1, columns]
    return linear(p, out, "attention_out")


def valued(p, x, v, heads):
    """Values [T, D] of a control: mixed with the first layer's, or with those of tokens."""
    D = v.shape[1]
    if "first_values" in p and not p["first_values"]:
        p["first_values"].append(v)
        return v
    mixed = v.copy()
    for t in range(len(v)):
        for head in range(heads):
            columns = slice(head * D // heads, (head + 1) * D // heads)
            if "first_values" in p:
                share = sigmoid(p["share.weight"][head] @ x[t] + p["share.bias"][head])
                first = p["first_values"][0][t, columns]
                mixed[t, columns] = (1 - share) * v[t, columns] + share * first
            elif "gate.weight" in p:
                gate = 2 * sigmoid(p["gate.weight"][head] @ x[t, :32])
                mixed[t, columns] += gate * p["token_values"][t, columns]
    return mixed


def with_values(p, layers, model, row):
    """The parameters of each layer, with those of a control of attention's values."""
    if model.values == "residual":
        first, stacks = [], ("share.weight", "share.bias")
        shares = [{}] + [{k: p[f"values.{k}"][i] for k in stacks} for i in range(len(layers) - 1)]
        return [
            {**layer, **own, "first_values": first}
            for layer, own in zip(layers, shares, strict=True)
        ]
    if model.values == "embeddings":
        own, taken = [dict(layer) for layer in layers], 0
        for i, layer in enumerate(own):
            if (len(layers) - 1 - i) % 2 == 0:
                layer["gate.weight"] = p["values.gate.weight"][taken]
                layer["token_values"] = p["values.embedding"][taken][row]
                taken += 1
        return own
    return layers


def mlp(p, x, model):
    h = linear(p, x, "up")
    h = np.where(h > 0, h, 0) ** 2 if model.activation == "relu2" else gelu(h)
    return linear(p, h, "down")


def attended(p, x, model):
    if isinstance(x, tuple):
        return attention(p, tuple(normed(p, part, "norm1", model) for part in x), model)
    return attention(p, normed(p, x, "norm1", model), model)


def processed(p, x, model):
    return mlp(p, normed(p, x, "norm2", model), model)


def transformer_block(p, x, model):
    x = x + attended(p, x, model)
    return x + processed(p, x, model)


def transformer(spec, params, tokens):
    """Logits [B, T, V] of tokens [B, T]."""
    p, model, by_block = exact(params), spec.model, spec.model.wrap == "block"
    # These connections norm the inputs of functions and of the head.
    is_normed = spec.variant in ("qwen4_exp", "gmr_cyclic", "minimax", "dory")
    parts = (transformer_block,) if by_block else (attended, processed)
    parts = (attention, mlp) if is_normed else parts
    layers = layers_of(p, spec.depth)

    def logits(row):
        own = with_values(p, layers, model, row)
        functions = [partial(part, layer, model=model) for layer in own for part in parts]
        x = p["embedding.token"][row]
        if model.positions == "learned":
            x = x + p["embedding.position"]
        if model.embedding_norm:
            x = rms_norm(x, 2.0**-23)
        x = connected(spec, p, x, functions, has_residual=by_block, per_block=len(parts))
        z = (x if is_normed else normed(p, x, "norm", model)) @ p["head.weight"].T
        return z if model.logit_cap is None else model.logit_cap * np.tanh(z / model.logit_cap)

    return np.stack([logits(row) for row in tokens])


# --- the convolutional network ------------------------------------------------------------------


def convolution(x, weight, bias, stride=1):
    """3×3 convolution with zero padding 1: the sum over the nine places of the kernel."""
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
    """min(32, max(1, C // 4)) groups of consecutive channels; the identity without parameters."""
    if f"{name}.weight" not in p:
        return x
    *_, C = x.shape
    groups = x.reshape(*x.shape[:3], min(32, max(1, C // 4)), -1)
    mean, variance = (f(axis=(1, 2, 4), keepdims=True) for f in (groups.mean, groups.var))
    normed = ((groups - mean) / np.sqrt(variance + 1e-5)).reshape(x.shape)
    return normed * p[f"{name}.weight"] + p[f"{name}.bias"]


def image_block(p, x, dropout, keep):
    x = np.maximum(group_norm(p, x, "norm1"), 0)
    x = convolution(x, p["conv1.weight"], p["conv1.bias"])
    x = np.where(keep, x / (1 - dropout), 0)
    x = np.maximum(group_norm(p, x, "norm2"), 0)
    return convolution(x, p["conv2.weight"], p["conv2.bias"])


def convnet(spec, params, images, keep):
    """Logits [B, 10] of images [B, 28, 28, 1], with the dropout mask of every layer."""
    p = exact(params)
    x = convolution(images.astype(np.float64), p["stem.weight"], p["stem.bias"], stride=2)
    shape = x.shape
    B, *_, C = shape

    def block(layer, keep):
        def function(x):
            y = image_block(layer, x.reshape(shape), spec.model.dropout, keep)
            return y.reshape(x.shape)

        return function

    blocks = [block(*each) for each in zip(layers_of(p, spec.depth), keep, strict=True)]
    S = getattr(spec.connection, "streams", 1)
    x = through(spec.variant, connection_of(p), x.reshape(B, -1, C), blocks, S, has_residual=False)
    x = np.maximum(group_norm(p, x.reshape(shape), "norm"), 0)
    return linear(p, x.mean(axis=(1, 2)), "head")


# --- the MLP of a flow, graphs, the unrolled cell -------------------------------------------------


def velocity_block(layer, x):
    hidden = linear(layer, layer_norm(layer, x, "norm"), "up")
    return linear(layer, hidden * sigmoid(hidden), "down")


def velocity_mlp(spec, params, points, times):
    """Velocities [B, 2] at points [B, 2] and times [B, 1]."""
    p = exact(params)
    x = linear(p, np.hstack([points, times]).astype(np.float64), "embedding")
    blocks = [partial(velocity_block, layer) for layer in layers_of(p, spec.depth)]
    return linear(p, layer_norm(p, connected(spec, p, x, blocks), "norm"), "head")


def graph_network(spec, params, nodes, links):
    """Logits [B, n, q], one graph at a time; links are normalised."""
    p = exact(params)

    def convolution(layer, links, x):
        hidden = linear(layer, links @ layer_norm(layer, x, "norm"), "up")
        return linear(layer, np.maximum(hidden, 0), "down")

    def logits(nodes, links):
        blocks = [partial(convolution, layer, links) for layer in layers_of(p, spec.depth)]
        x = connected(spec, p, linear(p, nodes, "embedding"), blocks)
        return linear(p, layer_norm(p, x, "norm"), "head")

    pairs = zip(nodes.astype(float), links.astype(float), strict=True)
    return np.stack([logits(*graph) for graph in pairs])


def unrolled_cell(spec, params, tokens):
    """Logits [B, symbols], sequence by sequence and step by step."""
    p = exact(params)

    def step(state, token):
        inside = linear(p, p["embedding.token"][token], "cell.input")
        hidden = np.tanh(layer_norm(p, state, "cell.norm") @ p["cell.state.weight"].T + inside)
        return linear(p, hidden, "cell.out")

    last = [
        connected(spec, p, p["state.start"][None], [partial(step, token=token) for token in row])[0]
        for row in tokens
    ]
    return layer_norm(p, np.array(last), "norm") @ p["head.weight"].T


NETWORKS = {
    **dict.fromkeys(("tokens", "text", "state"), transformer),
    "fashion": convnet, "flow": velocity_mlp, "graph": graph_network, "unrolled": unrolled_cell,
}  # fmt: skip
"""Network of each task: a function of spec, parameters and inputs, which returns the output. The
variant names the scheme."""


# --- losses and optimisers ------------------------------------------------------------------------


def cross_entropy(logits, targets):
    """Mean of −ln p(target) over logits […, classes]."""
    chosen = np.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return np.mean(logsumexp(logits, axis=-1) - chosen)


def squared_distance(result, targets):
    """Mean of |result − target|² over rows."""
    return ((result - targets) ** 2).sum(axis=-1).mean()


def clipped(gradients, limit):
    """Gradients by name, scaled so that their joint norm is at most `limit`."""
    norm = math.sqrt(sum((g**2).sum() for g in gradients.values()))
    return {name: g * min(1, limit / norm) for name, g in gradients.items()}


def adamw(value, g, m, v, t, lr, beta1, beta2, eps, decay, bias_correction):
    """(value, m, v) after step t = 1, 2, … with the gradient g."""
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    m_hat, v_hat = (m / (1 - beta1**t), v / (1 - beta2**t)) if bias_correction else (m, v)
    return value * (1 - lr * decay) - lr * m_hat / (np.sqrt(v_hat) + eps), m, v


def orthogonalised(G):
    """Muon's five steps on one matrix."""
    if len(G) > len(G[0]):
        return orthogonalised(G.T).T
    return newton_schulz(G, 3.4445, -4.7750, 2.0315)


def muon(value, g, m, lr, momentum, parts):
    """(value, m) after a step with the gradient g; a layer is a stack of `parts` matrices."""
    m, value = momentum * m + (1 - momentum) * g, value.copy()
    for layer, nesterov in enumerate(momentum * m + (1 - momentum) * g):
        matrices = np.split(nesterov, parts)
        rows, columns = matrices[0].shape
        step = np.concatenate([orthogonalised(matrix) for matrix in matrices])
        value[layer] -= lr * math.sqrt(max(1, rows / columns)) * step
    return value, m


def optimised(start, update, gradients_at, paces):
    """(parameters, m, v) after a step for each of `paces`, its rate and its momentum.

    `update` has the groups of parameters; `gradients_at(step, params)` their gradients.
    """
    params = exact(start)
    m, v = ({name: 0 * value for name, value in params.items()} for _ in range(2))
    group_of = {name: group for group in update.groups for name in group.names}
    for t, pace in enumerate(paces):
        gradients = gradients_at(t, params)
        if update.clip is not None:
            gradients = clipped(gradients, update.clip)
        for name, group in group_of.items():
            before, lr = (params[name], gradients[name], m[name]), group.lr * pace.rate
            if group.rule == "muon":
                params[name], m[name] = muon(*before, lr, pace.momentum, group.parts)
                continue
            settings = lr, update.beta1, update.beta2, update.eps, group.decay
            params[name], m[name], v[name] = adamw(
                *before, v[name], t + 1, *settings, update.bias_correction
            )
    return params, m, v
