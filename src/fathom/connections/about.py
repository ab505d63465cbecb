"""Facts about each named scheme: source, formula, start, releases."""

from __future__ import annotations

from typing import NamedTuple

from fathom.settings import Registry


class About(NamedTuple):
    """Facts about a named scheme."""

    source: str
    formula: str
    """Its distinguishing formula. A are logits; other symbols as in docs/definitions."""
    starts_plain: bool = False
    """Whether it initially equals the plain network in every network, up to the eps of norms."""
    releases: tuple[str, ...] = ()
    """Modules of released models that compute it, as package.module."""


_JANUARY, _JANUARY_25 = "Surviving Depth, 19 and 21 January", "Surviving Depth, 25 January"
_HC_SOURCE = "HC, arXiv 2409.19606, as the mHC paper restates it"
_EQUAL = "H_pre = A, H_post = A, H_res = A"
_ROWS = "H_pre = column means and H_post = column sums of row softmaxes of A, H_res = "
_HISTORY = "x_{l+1} = y + f(y), y = Σ_k W_lk x_k / (Σ_k W_lk + 1e-6) over k ≤ l, W = "
_SOFTMAX = "H_pre = softmax(A), H_post = softmax(A), H_res = "
_SIGMOID = "H_pre = σ(A), H_post = 2σ(A), H_res = "
_OF_X = "; A = α·(φ x̄) + b"
_MHC = f"{_SIGMOID}Sinkhorn(exp(A)){_OF_X}"
_KERNELS = f"H_pre = σ(A) + 1e-6, H_post = 2σ(A), H_res = Sinkhorn(softmax(A) + ε){_OF_X}"
_RACE = "modded-nanogpt, change {}"
_READ = "read = Σ_i a_i v_i, a = softmax_i(w·(g ∘ r(v_i)))"
_READ_OUT = "the output is read with an H_pre of its own"


def _modules(**packages: str) -> tuple[str, ...]:
    """Modules as package.module, from one string of module names per package."""
    return tuple(f"{p}.{module}" for p, names in packages.items() for module in names.split())


ABOUT: Registry[About] = Registry(
    {
        "plain": About("the pre-norm network", "x ← x + f(x)", starts_plain=True),
        "hc_demo": About("mHC-demo", f"{_ROWS}exp(A)"),
        "mhc_demo": About("mHC-demo", f"{_ROWS}Sinkhorn(exp(A))", starts_plain=True),
        "hc_causal": About("Surviving Depth", f"{_HISTORY}exp(A)"),
        "mhc_causal": About("Surviving Depth", f"{_HISTORY}Sinkhorn(exp(A))"),
        "hc_static": About(_JANUARY, f"{_SOFTMAX}A"),
        "mhc_static": About(_JANUARY, f"{_SOFTMAX}(1 − g) I + g Sinkhorn(exp(A))"),
        "hc_dynamic": About(_JANUARY_25, _EQUAL + _OF_X),
        "mhc_dynamic": About(_JANUARY_25, f"{_SIGMOID}Sinkhorn(exp(clip(A))){_OF_X}"),
        "hc_paper_static": About(_HC_SOURCE, _EQUAL, starts_plain=True),
        "hc_paper": About(_HC_SOURCE, f"{_EQUAL}; A = α·tanh(φ x̄_s) + b", starts_plain=True),
        "mhc_paper": About(
            "mHC, arXiv 2512.24880; start: its appendix A.6, as PaddleFleet cites it",
            _MHC,
            starts_plain=True,
        ),
        "mhc_averaged": About("mHC; start: hyper-connection-factory", _MHC),
        "mhc_cycle": About("mHC; a start of ours: reads and writes mostly stream k mod S", _MHC),
        "mhc_identity_cycle": About("iHC; the start of mhc_cycle", f"{_SIGMOID}I{_OF_X}"),
        "mhc_identity": About(
            "iHC, arXiv 2607.28611; start: as mhc_averaged", f"{_SIGMOID}I{_OF_X}"
        ),
        "mhc_uniform": About("a control of ours", f"{_SIGMOID}1/S everywhere{_OF_X}"),
        "mhc_lite": About(
            "mhc-lite, arXiv 2601.05732",
            f"{_SIGMOID}Σ_r softmax(A)_r P_r over all permutations P_r{_OF_X}",
        ),
        "krom_hc": About(
            "KromHC", f"{_SIGMOID}⊗_k [[p, 1−p], [1−p, p]], (p, 1−p) = softmax(A_k){_OF_X}"
        ),
        "circulant_mhc": About("C-mHC", f"{_SIGMOID}(1−γ) I + γ Σ_k softmax(A)_k shiftᵏ{_OF_X}"),
        "orthostochastic_mhc": About(
            "an implementation of mHC (mHC-manifold-constrained-hyper-connections)",
            f"{_SIGMOID}squared entries of NewtonSchulz(A), nearly orthogonal{_OF_X}",
        ),
        "mhc_gated_static": About(
            "the hyper-parameter study", f"{_SOFTMAX}(1 − g) I + g Sinkhorn(exp(A/τ))"
        ),
        "mhc_gated_dynamic": About(
            "the hyper-parameter study", f"{_SOFTMAX}(1 − g) I + g Sinkhorn(exp(A/τ)); A = φ x̄ + b"
        ),
        "deepseek_v4": About(
            "DeepSeek V4, in transformers",
            f"{_KERNELS}; {_READ_OUT}",
            releases=_modules(transformers="deepseek_v4"),
        ),
        "deepseek_v41": About(
            "DeepSeek V4.1, in mlx-lm",
            f"{_KERNELS}; layer l reads with the H_pre of l − 1, and the output is read with the "
            "last",
            releases=_modules(mlx_lm="deepseek_v41"),
        ),
        "glm5_next": About(
            "GLM-5-next, in transformers", _KERNELS, releases=_modules(transformers="glm5_next")
        ),
        "hy_v4": About(
            "Hunyuan V4, in transformers",
            f"H_pre = σ(A) + 1e-6, H_post = 2σ(A) + 1e-6, H_res = I{_OF_X}; {_READ_OUT}",
            releases=_modules(transformers="hy_v4 hy_v4_vl"),
        ),
        "qwen4_exp": About(
            "Qwen4-exp, in transformers",
            "x_s ← x_s + 2σ(W x̃/S)_s f((1/S) Σ_t a_t ∘ x̃_t), a = σ(U silu(D x̃/S)), "
            "x̃_s = (1 + g_s) ∘ RMSNorm(x_s); f without its norm",
            releases=_modules(transformers="qwen4_exp"),
        ),
        "altup": About(
            "AltUp as in Gemma 3n, in transformers",
            "x̄ = (I + P) x, y = x̄_0 + f(x̄_0), x_s ← x̄_s + (1 + (B r(y))_s)(y − x̄_0), "
            "r(z) = tanh(R RMSNorm(z)/C), P = A r(x_0)",
            releases=_modules(transformers="gemma3n", mlx_lm="gemma3n"),
        ),
        "scaled": About(
            "MiniCPM 3, in transformers",
            "x ← x + c f(x), c = 1.4/√blocks",
            releases=_modules(
                transformers="minicpm3 granite granite4_vision granite_docling granite_swa "
                "granitemoe granitemoe_swa granitemoehybrid granitemoeshared hyperclovax",
                mlx_lm="minicpm minicpm3 granite granitemoe granitemoehybrid",
            ),
        ),
        "depth_scaled": About(
            "Beam, in transformers",
            "x ← √((l + 1)/(l + 2)) x + f(x)/√(l + 2)",
            starts_plain=True,
            releases=_modules(transformers="beam"),
        ),
        "residual_scaled": About(
            "ZAYA1, in transformers",
            "x ← γ ∘ (x + β) + η ∘ (f(x) + δ), all learned",
            starts_plain=True,
            releases=_modules(transformers="zaya"),
        ),
        "attn_res": About(
            "Attention Residuals, arXiv 2603.15031",
            f"{_READ}, v_{{k+1}} = f(read)",
            starts_plain=True,
        ),
        "attn_res_block": About(
            "Kimi K3, in mlx-lm",
            f"{_READ}: blocks' sums and the sum p that is open, p ← p + f(read)",
            starts_plain=True,
            releases=_modules(mlx_lm="kimi_k3"),
        ),
        "inkling2": About(
            "Inkling 2, in transformers",
            "read = Σ_i a_i r(v_i), a = softmax_i(w·r(v_i)/√C): as attn_res_block; in every sixth "
            "block q, k and v are read apart",
            releases=_modules(transformers="inkling2"),
        ),
        "mhar": About(
            "MHAR, arXiv 2607.27230",
            "as attn_res, with a softmax for each of 4 groups of channels",
            starts_plain=True,
        ),
        "delta_attn_res": About(
            "Delta Attention Residuals, arXiv 2605.18855",
            f"x ← x + f(x + read), {_READ}, v_{{k+1}} = f(x + read)",
            starts_plain=True,
        ),
        "denseformer": About(
            "DenseFormer, arXiv 2402.02622",
            "X_{i+1} = block(Y_i), Y_i = Σ_j a_ij X_j over j ≤ i",
            starts_plain=True,
        ),
        "muddformer": About(
            "MUDDFormer, arXiv 2502.12170",
            "as denseformer, with weights a_i + W gelu(V r(X_i)) of each token, for q, k, v and "
            "the residual",
            starts_plain=True,
        ),
        "muse_spark": About(
            "Muse Spark, in transformers and mlx-lm",
            "x ← √max(1 − β², 1e-3) ∘ x + β ∘ RMSNorm(f(x)), β = σ(w/0.3); an MLP's output is "
            "scaled by 1 + g before its norm",
            releases=_modules(transformers="muse_spark", mlx_lm="muse_spark"),
        ),
        "doge": About(
            "Doge, in transformers",
            "x ← γ ∘ x + f(x)",
            starts_plain=True,
            releases=_modules(transformers="doge"),
        ),
        "talkie": About(
            "Talkie, in mlx-lm",
            "x ← x + g f(x), and after each block x ← x + s x_0; x_0 = RMSNorm(embedding)",
            releases=_modules(mlx_lm="talkie"),
        ),
        "neomme": About(
            "NeoMME, in transformers",
            "x ← x + f(x)/√L, where the first f of a block reads λ_0 x + λ_1 x_0; "
            "x_0 = RMSNorm(embedding)",
            releases=_modules(transformers="neomme"),
        ),
        "minimax": About(
            "MiniMax, in transformers",
            "x̂ = g ∘ RMSNorm(x), x ← a x̂ + c f(x̂), a = c = 1; f without its norm",
            releases=_modules(transformers="minimax"),
        ),
        "dory": About(
            "Dory, in transformers (nGPT, arXiv 2410.01131)",
            "x̂ = x/‖x‖, x ← x̂ + |λ| ∘ (y/‖y‖ − x̂), y = f(√C x̂); f without its norm",
            releases=_modules(transformers="dory"),
        ),
        "laurel": About(
            "LAuReL, arXiv 2411.07501",
            "x ← a f(x) + b (x + U D x), (a, b) = 2 softmax(w), D [C/16, C]",
            starts_plain=True,
        ),
        "frac": About(
            "Frac-Connections, arXiv 2503.14125",
            "x of two parts x_s [C/2]: x_s ← Σ_t (H_res)_st x_t + (H_post)_s f(H_pre x)_s, H_pre "
            "is 2 × 2; A = α·tanh(φ x̄_s) + b",
            starts_plain=True,
        ),
        "resid_growth": About(_RACE.format("159"), "x ← r x + f(x), r = √1.1 at first"),
        "orthogonal": About(
            "Orthogonal Residual Update, arXiv 2505.11881",
            "x ← x + f − (f·x / x·x) x, f = f(x)",
        ),
        "gru_gate": About(
            "GTrXL, arXiv 1910.06764, as in x-transformers",
            "x ← (1 − z) ∘ n + z ∘ x = GRUCell(f(x), x)",
        ),
        "review": About(
            "Review Residuals, arXiv 2606.31859",
            "x ← x + σ(W [r(x), r(f)] + b) ∘ f, W = b = 0 at first",
        ),
        "deep_delta": About(
            "Deep Delta Learning, arXiv 2601.00417, its code for d_v = 1",
            "x ← x + β (2 − k·x) k, k = f(x)/‖f(x)‖, β = 2σ(w·r(x) + b)",
        ),
        "prores": About(
            "ProRes, arXiv 2603.05369",
            "x ← x + α f(x); α of block b of B rises from 0 to 1 in the first 0.12 (b + 1)/B of "
            "training",
            starts_plain=True,
        ),
        "x0_lambda": About(
            "nanochat",
            "before block b: x ← r_b x + λ_b x_0; r learns at a hundredth of the rate",
            starts_plain=True,
        ),
        "unet": About(
            "modded-nanogpt, record 11",
            "in the second half, before block b: x ← x + w_b X_{B−b}, w = 1 at first",
        ),
        "unet_concatenated": About(
            "U-net skips of x-transformers",
            "in the second half, before block b: x ← W_b [X_{B−1−b}, x]",
        ),
        "one_skip": About(
            _RACE.format("159 and 186"),
            "before block 6B/11: x ← x + σ(g) X_{4B/11}, g = −1.5 at first",
        ),
        "backout": About(_RACE.format("140"), "at the end: x ← x − λ X_{3B/4}, λ = 0.5 at first"),
        "late_read": About(
            _RACE.format("241"),
            "attention of the last 3B/11 blocks reads X_{8B/11}; at the end x ← x − λ X_{8B/11}",
        ),
        "two_lanes": About(
            _RACE.format("230"),
            "from block 7B/11 on, attention reads lane 0 and MLP lane 1: x_s ← r x_s + w_s f(x_t); "
            "the output is their mean",
        ),
        "muddformer_last": About(
            _RACE.format("259"),
            "as muddformer, for the input of the last block and the output alone",
            starts_plain=True,
        ),
        "gmr_cyclic": About(
            "GatedMultiResidual of x-transformers",
            "as qwen4_exp, with a = σ(α U h + u) and weights 2σ(α W h + v), h = silu(D x̃/S); at "
            "first u is 1 for stream l mod S",
        ),
        "attn_res_state": About(
            "AttentionResidual of x-transformers",
            "x ← x + f(Σ_i p_i X_i) over streams so far, p = softmax_i(q·(g ∘ r(X_i))/√C), "
            "q = a ∘ r(x + U D (b ∘ r(x)))",
        ),
    }
)
"""Facts about each scheme in `schemes.SCHEMES`, in the same order."""
