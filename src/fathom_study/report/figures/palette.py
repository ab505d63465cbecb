"""Colours, markers and line styles: the same variant has the same colour everywhere.

Hues are those of Okabe and Ito's palette as far as they suffice. Everything else is grey.
"""

import re

# Plain networks are black and grey. A variant of the demo and its namesake of the paper are dark
# and light of one hue: HC orange, mHC blue. Green: H_res is the identity. Labels have the colour of
# their line, so each has a contrast of 4.5 : 1 with white, and with black when the page inverts it.
COLOURS = {
    "baseline": "#000000", "resnet": "#000000", "resgcn": "#000000",
    "baseline_wider": "#525252", "baseline_longer": "#747474",
    "hc": "#8F3200", "hc_paper": "#BA5A00", "hc_paper_static": "#8A6D3B",
    "hc_causal": "#8F3200", "hc_static": "#BA5A00", "hc_dynamic": "#B0408A",
    "mhc": "#004578", "mhc_paper": "#0079C0", "mhc_averaged": "#A03A6A",
    "mhc_cycle": "#332288", "mhc_cycle_static": "#6A3D9A",
    "mhc_causal": "#004578", "mhc_static": "#0079C0", "mhc_dynamic": "#332288",
    "mhc_identity": "#00805C", "mhc_identity_cycle": "#1B5E20",
    "mhc_lite": "#B0408A", "krom_hc": "#7A4A40", "circulant_mhc": "#6A3D9A",
    "deepseek_v4": "#BE0F25", "deepseek_v41": "#D81B72", "glm5_next": "#6A3D9A",
    "v4_identity": "#3C0000", "v4_late": "#840030", "v4_mean": "#3C3000",
    "v4_small_alpha": "#782400", "hy_v4": "#7A6E00", "altup": "#147D74",
    "attn_res": "#7A4A40", "attn_res_block": "#002454", "attn_res_block_1": "#E40000",
    "attn_res_block_4": "#8430FC", "attn_res_block_normed": "#9C006C", "inkling2": "#1800B4",
    "delta_attn_res": "#0060FC", "mhar": "#A84830", "muddformer": "#54003C",
    "muddformer_together": "#9054E4", "denseformer": "#0000FC", "laurel": "#C000E4",
    "frac": "#9C6090", "muse_spark": "#008400", "qwen4_exp": "#CC0CA8",
    "qwen4_per_stream": "#1860CC",
    "x0_lambda": "#6000CC", "unet": "#3C30FC", "one_skip": "#4878A8", "backout": "#CC483C",
    "late_read": "#6C0090", "two_lanes": "#9024C0", "resid_growth": "#5460E4",
    "orthogonal": "#603060", "gru_gate": "#186090", "review": "#604800", "deep_delta": "#004848",
    "prores": "#1848A8", "unet_concatenated": "#A86060", "muddformer_last": "#780060",
    "gmr_cyclic": "#006060", "attn_res_state": "#784878", "scaled": "#7860C0",
    "depth_scaled": "#A848C0", "residual_scaled": "#484878", "doge": "#606090",
    "talkie": "#4830A8", "neomme": "#903090", "minimax": "#606030", "dory": "#3000D8",
    "mhc_free": "#E40000", "mhc_cycle_free": "#D80048", "mhc_uniform": "#0000FC",
    "mhc_near_identity": "#488400", "mhc_at_identity": "#0060FC", "mhc_1_pass": "#480C3C",
    "mhc_5_passes": "#183C00", "mhc_averaged_static": "#C000E4", "mhc_apart": "#780000",
    "mhc_cycle_apart": "#1800B4", "averaged_cycle_dynamic_identity": "#488400",
    "value_residual": "#8F3200", "orthostochastic_mhc": "#003054",
    "resnet_all": "#6A3D9A", "resnet_crops": "#147D74", "resnet_constant": "#7A4A40",
    "resnet_normalised": "#7A6E00",
    "v1": "#BA5A00", "v1_20": "#7A4A40", "v1_noise": "#8F3200", "v2": "#B0408A",
    "v3": "#004578", "v4a": "#0079C0", "v4b": "#6A3D9A", "v4c": "#00805C", "v4d": "#7A6E00",
    "v4d_50": "#747474",
    "v5": "#4D4D4D",
}  # fmt: skip
SPARE_COLOURS = ("#7A6E00", "#6A3D9A", "#7A4A40", "#1B5E20", "#BE0F25", "#4D4D4D", "#D81B72")
MARKERS = ("o", "s", "^", "D", "v", "P", "*", "h")
LINES = ("-", "--", ":", "-.")

PAYING = {"pays": "#0079C0", "undecided": "#555555", "costs more": "#BA5A00"}
"""Colours of whether a connection pays."""

GREY, PALE = "#555555", "#747474"
"""Colours of everything except variants: legend entries, levels, secondary marks."""


def colour_of(variant: str) -> str:
    """The colour of a variant; `NAME_008`, NAME at another rate, has the colour of NAME.

    A variant without a colour always gets the same spare one.
    """
    base = re.sub(r"_\d+$", "", variant)
    spare = SPARE_COLOURS[sum(base.encode()) % len(SPARE_COLOURS)]
    return COLOURS.get(variant) or COLOURS.get(base) or spare


def marker_of(position: int) -> str:
    """The marker of the n-th series; markers repeat if there are more series than markers."""
    return MARKERS[position % len(MARKERS)]


def line_of(position: int) -> str:
    """The line style of the n-th series; styles repeat as markers do."""
    return LINES[position % len(LINES)]
