"""Recompute pictures and numbers of docs/explained and of the pages with measured numbers.

Sources are closed forms, the textbook networks of `naive` and the kept result.
"""

import csv
import json
import math
import re
import subprocess
import sys
from collections import defaultdict
from functools import cache

import matplotlib.image
import numpy as np
import pytest
from explained import BLOCKS, COUNTS, DIFFERENCES, SUBLAYERS, difference_left, explained
from explained import main as draw
from scipy import stats

import naive
from command_helpers import shell
from contributing_helpers import PROJECT
from fathom import tasks
from fathom.config import Cell, load_config
from fathom.report.schemes import read_costs
from markdown_helpers import parsed
from param_helpers import parameters_of

DOCS = PROJECT / "docs"
PICTURES = DOCS / "images" / "explained"
RHO = math.e + 3 / math.e
"""Row sum of exp(2·I − 1) for four streams."""
FORGETS = (math.e - 1 / math.e) / RHO
"""Factor by which Sinkhorn's matrix of exp(2·I − 1) scales a difference between streams."""
NEAR_IDENTITY = math.exp(-8)


@pytest.fixture(scope="module")
def config():
    return load_config([PROJECT / "config.yaml"])


@pytest.fixture(scope="module")
def found(config):
    return explained(config)


# --- independent computation --------------------------------------------------------------------


def sizes_by_naive(config, study, depth, variant):
    """Root mean square of each wrapped function's input relative to the first's, [L]."""
    spec = config.spec(Cell(study, depth, variant, "torch", 0))
    by_block = spec.model.wrap == "block"
    read = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("transformer_block",) if by_block else ("attended", "processed"):
            original = getattr(naive, name)

            def recording(p, x, model, original=original):
                read.append((x * x).mean())
                return original(p, x, model)

            patch.setattr(naive, name, recording)
        # Static coefficients are the same for every token, so compute them once per layer.
        of_layer, known = naive.coefficients, {}
        patch.setattr(
            naive,
            "coefficients",
            lambda name, p, i, unit, layers: (
                known[i] if i in known else known.setdefault(i, of_layer(name, p, i, unit, layers))
            ),
        )
        scheme = {"baseline": "plain", "hc": "hc_demo", "mhc": "mhc_demo"}[variant]
        by_sequence = []
        for row in tasks.load(spec.task).batch(spec, 0).inputs["tokens"]:
            read.clear()
            named = spec.model_copy(update={"variant": scheme})
            naive.transformer(named, parameters_of(spec), row[None])
            by_sequence.append(list(read))
    sizes = np.sqrt(np.mean(by_sequence, axis=0))
    return sizes / sizes[0]


@pytest.fixture(scope="module")
def sizes(config):
    """Input sizes of the demo's networks by variant, and of the papers' baseline."""
    study, depth, variants = BLOCKS
    by_variant = {variant: sizes_by_naive(config, study, depth, variant) for variant in variants}
    return {**by_variant, "sub-layers": sizes_by_naive(config, *SUBLAYERS[:2], "baseline")}


LEFT = {
    "hc_paper": lambda n: 1.0,
    "krom_hc": lambda n: math.tanh(4) ** n,  # 2p − 1 of p = σ(8)
    # The sum of all permutations removes every difference, so all but the identity give −1.
    "mhc_lite": lambda n: ((1 - NEAR_IDENTITY) / (1 + 23 * NEAR_IDENTITY)) ** n,
    "circulant_mhc": lambda n: (1 - 2 / 48) ** n,
    "mhc": lambda n: FORGETS**n,
    "mhc_paper": lambda n: 0.0,
}
"""Remaining share of a difference between streams after n matrices."""


# --- pictures -----------------------------------------------------------------------------------


def test_kept_pictures_equal_newly_drawn_ones(tmp_path, monkeypatch):
    monkeypatch.chdir(PROJECT)
    draw(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {file.name for file in PICTURES.iterdir()}
    for file in tmp_path.iterdir():
        kept, today = map(matplotlib.image.imread, (PICTURES / file.name, file))
        assert kept.shape == today.shape, "run: make schema"
        # Versions of matplotlib smooth letters differently; a moved curve exceeds the tolerance.
        assert np.abs(kept - today).mean() < 0.003, f"{file.name}: run: make schema"


def test_signal_sizes_equal_those_in_textbook_networks(found, sizes):
    for variant in ("baseline", "hc", "mhc"):
        assert found.blocks[variant].sizes == pytest.approx(sizes[variant], rel=1e-9)
    baseline = found.sublayers["baseline"].sizes
    assert baseline == pytest.approx(sizes["sub-layers"], rel=1e-9)
    # Deviations by the norms' eps on streams four times as large; the papers' mHC also has φ.
    assert found.sublayers["hc_paper"].sizes == pytest.approx(baseline, rel=1e-4)
    assert found.sublayers["mhc_paper"].sizes == pytest.approx(baseline, rel=2e-3)


@pytest.mark.parametrize(
    ("variant", "total", "left"),
    [("hc_paper", 1, "hc_paper"), ("mhc_lite", 1, "mhc_lite"), ("mhc", 1, "mhc"),
     ("hc", RHO, "mhc")],
)  # fmt: skip
def test_products_by_their_eigenvalues(found, variant, total, left):
    """Powers of a·I + b·J are (ρ^n + 3·σ^n)/4 on the diagonal and (ρ^n − σ^n)/4 off it."""
    products = {**found.sublayers, **found.blocks}[variant].products
    for n in COUNTS:
        shares = np.full((4, 4), (1 - LEFT[left](n)) / 4) + LEFT[left](n) * np.eye(4)
        assert products[n - 1] / total**n == pytest.approx(shares, abs=1e-6)


@pytest.mark.parametrize("variant", LEFT)
def test_differences_in_closed_form(found, variant):
    left = [difference_left(p) for p in {**found.sublayers, **found.blocks}[variant].products]
    # φ moves the circulant's matrices a little, and mhc_paper's from the uniform one.
    assert left == pytest.approx([LEFT[variant](n) for n in range(1, 49)], abs=1e-3)
    assert variant in DIFFERENCES


# --- numbers in the pages -------------------------------------------------------------------------


def plain(page):
    """A page's text without fenced blocks and the targets of links, in single spaces."""
    text = (DOCS / page).read_text(encoding="utf-8")
    text = re.sub(r"```.*?```", " ", text, flags=re.DOTALL)
    return " ".join(re.sub(r"\]\([^)]*\)", "]", text).split())


def measured_numbers(config):
    """Expected text by page with numbers of the kept result, without purely mathematical ones."""
    return {
        "explained/for-everyone.md": [
            f"`mhc` with 48 layers ends at {kept_mean('depth-mlx', 48, 'mhc', 'score'):.5f}",
            f"with 12 layers at {kept_mean('depth-mlx', 12, 'baseline', 'score'):.4f}",
            f"a loss of {kept_mean('depth-mlx', 1, 'baseline', 'score'):.5f}",
            f"four streams, saves {saved('mhc_cycle')} of the training steps: "
            f"{saved('mhc_cycle', 'low', '')} to {saved('mhc_cycle', 'high')} with 95 %",
            f"It pays where a step takes less than {more('mhc_cycle', 'multiplier')} longer.",
            f"On our CPU a step takes {more('mhc_cycle')} longer, and "
            f"{more('mhc_cycle', 'cost_wider')} longer in a network twice as wide",
            f"mHC saves {saved('mhc_paper')}, which is {worth_on_text('mhc_paper')['verdict']} to",
            f"{kept_mean('state', 8, 'mhc', 'layers_that_matter'):.1f} of its eight matter",
            "After 64 repetitions the ordinary network is at a loss of "
            f"{kept_mean('unrolled', 64, 'baseline', 'score'):.2f}",
            f"it is at {kept_mean('unrolled', 64, 'hc_paper_static', 'score'):.2f}; a guess has "
            f"{math.log(10):.2f}",
            f"{size(config, 64, 'hc_paper_static')} against {size(config, 64, 'baseline')}",
            f"name {pictures('hc_paper_static')} of 100 pictures right, and ordinary ones "
            f"{pictures('resnet')}",
            "an ordinary network of four layers, trained longer, names "
            f"{pictures('resnet', 'fashion-recipe', 4)} right",
            f"similarity is {min(of_runs('stream_similarity_final', 64)):.3f} in each run",
            "it ends at a distance of "
            f"{kept_mean('released', 12, 'mhc_cycle', 'H_res_distance_final'):.3f} from it",
            "With 48 layers mHC trains at a rate of "
            f"{largest_rate_of('mhc_cycle', 48)['largest']}, and the same network with free "
            f"matrices at {largest_rate_of('mhc_cycle_free', 48)['largest']}",
            f"no streams, trains at {largest_rate_of('baseline', 48)['largest']} ",
            f"its loss is {kept_mean('learning-rate', 48, 'mhc_002', 'score'):.4f} and that of the "
            "ordinary network "
            f"{kept_mean('learning-rate', 48, 'baseline_002', 'score'):.2f}",
        ],
        "explained/for-students.md": [
            steps_of_releases(),  # "none of them pays"
            f"saves {saved('altup')} of the steps, Hunyuan V4 {saved('hy_v4')}",
            f"needs {more('qwen4_exp', 'multiplier')} fewer steps",
            "DeepSeek V4, DeepSeek V4.1 and GLM-5-next are "
            + " ".join({worth_on_text(v)["verdict"] for v in RELEASES if v[:3] in ("dee", "glm")}),
        ],
        "explained/for-researchers.md": [
            *gains(),
            ", ".join(
                f"`{v}` {saved(v)} ({saved(v, 'low', '')} to {saved(v, 'high', '')})"
                for v in ("mhc_cycle", "mhc_identity_cycle", "altup", "hy_v4")
            ),
            f"`mhc_cycle` costs {more('mhc_cycle')} more here, {more('mhc_cycle', 'cost_wider')} "
            f"more at C 128, and {more('mhc_cycle', 'operations')} more operations; of `hy_v4` "
            f"{more('hy_v4')}, {more('hy_v4', 'cost_wider')} and {more('hy_v4', 'operations')}",
            f"similarity after training is {min(of_runs('stream_similarity_final', 16, 64)):.3f} "
            "in all ten runs",
            f"grows to between 10^{min(of_runs('amax_forward_log10_final', 16, 64)):.1f} and "
            f"10^{max(of_runs('amax_forward_log10_final', 16, 64)):.1f}",
            f"at each of five rates, 0.0005 to 0.008, by factors of {by_rate()}",
            f"`T` 64 `hc_paper_static` has {size(config, 64, 'hc_paper_static')} parameters, "
            f"the plain cell {size(config, 64, 'baseline')}",
            f"{size(config, 256, 'mhc_causal')} parameters at `T` 256",
            f"at most {differing('mhc_apart', 1)} of the largest entry",
            f"as in `mhc_paper` with {differing('mhc_paper', 1)}",
            f"`mhc_cycle_apart` ({differing('mhc_cycle_apart', 0)})",
            f"without the opening is at {differing('mhc_cycle', 0)}",
        ],
        "definitions.md": [*numbers_of_definitions()],
        "speed.md": [*lines_of_speed()],
    }


def lines_of_speed():
    """Rows of the table of docs/speed.md."""
    variants = (
        "hc_paper", "mhc_paper", "deepseek_v4", "deepseek_v41", "hy_v4",
        "attn_res_block", "attn_res", "inkling2",
    )  # fmt: skip
    costs = read_costs(PROJECT / "benchmarks/schemes.csv")

    def scheme_ratio(variant, backend):
        return costs[variant].get(f"cost, {backend}", "–").partition(" ")[0]

    for backend, name in (("torch", "PyTorch"), ("mlx", "MLX")):
        yield f"| {name} | {' | '.join(scheme_ratio(v, backend) for v in variants)} |"
    yield f"PyTorch | {' | '.join(f'{step_ratio(v):.2f}' for v in variants)} |"


def numbers_of_definitions():
    """The measured numbers of docs/definitions.md."""
    mhc, hc = (
        [f"{kept_mean('depth-torch', depth, variant, 'score'):.5f}" for depth in depths]
        for variant, depths in (("mhc", (12, 24, 48)), ("hc", (12, 24)))
    )
    yield f"`mhc` ends at {mhc[0]}, {mhc[1]} and {mhc[2]} with 12, 24 and 48 layers"
    yield f"`hc` at {hc[0]} and {hc[1]} with 12 and 24"
    yield f"of 12 and 24 layers, give {gain_per_layer('torch')} per layer on PyTorch and "
    yield f"and {gain_per_layer('mlx')} on MLX"
    plain, longer = (
        f"{kept_mean('released', 12, variant, 'validation_loss'):.3f}"
        for variant in ("baseline", "baseline_longer")
    )
    yield f"ends at {plain} nats after them, and at {longer}"
    yield f"after {kept('released', 12, 'baseline_longer')['steps']}."
    text = kept_rows("cells", study="released")[0]
    unigram, bigram, trigram = (
        float(text[f"{model}_bpc"]) for model in ("unigram", "bigram", "trigram")
    )
    yield (
        f"{unigram:.3f} without context (unigram), {bigram:.3f} with one character (bigram) and "
        f"{trigram:.3f} with two"
    )
    yield f"the line, {bigram * math.log(2):.3f} nats"
    (still,) = {row["score_chance"] for row in kept_rows("cells", study="flow")}
    yield f"`E|v*|²`, in the reference {float(still):.2f}"
    worst = defaultdict(float)
    for row in rows_of("benchmarks/parity.csv"):
        found = float(row["forwards"]), float(row["gradients"])
        worst[row["framework"]] = max(worst[row["framework"]], *found)
    float64, float32 = (worst[name] for name in ("PyTorch, float64", "MLX, float32"))
    yield f"is {float64:.0e} for ours on PyTorch in float64, and {float32:.0e} on MLX".replace(
        "e-0", "e-"
    )
    best = max(
        row["test_accuracy_mean"]
        for row in kept_rows("summary", depth=100)
        if row["study"].startswith("fashion") and int(row["n"]) > 2
    )
    yield f"the best network of 100 layers ends at {100 * float(best):.0f} % in the mean"
    first, again = (accuracies("fashion"), accuracies("fashion-streams"))
    ends = [100 * first[seed] for seed in sorted(first)]
    yield f"three seeds of the plain network end between {min(ends):.0f} % and {max(ends):.0f} %"
    low, middle, high = sorted(abs(100 * (first[seed] - again[seed])) for seed in first)
    yield f"end {low:.1f}, {middle:.1f} and {high:.1f} points away"
    for study, longer in (("state", 1800), ("released", 1650)):
        ratio = step_ratio("mhc_paper", study)
        steps = int(kept(study, 8 if study == "state" else 12, "baseline")["steps"])
        less = f"{100 * (1 - longer / steps / ratio):.0f} % less time"
        yield f"takes {ratio:.2f} times"
        yield f"so `baseline_longer` has {less}"
    of_graphs = (kept_mean("graph", 8, v, "score") for v in ("resgcn", "hc_paper", "mhc_paper"))
    plain, hc, mhc = (f"{accuracy:.3f}" for accuracy in of_graphs)
    yield f"the plain network ends at {plain}, `hc_paper` at {hc} and `mhc_paper` at {mhc}"
    for variants in (("baseline", "hc_paper_static"), ("hc_causal",)):
        names = ", ".join({"baseline": "plain"}.get(v, f"`{v}`") for v in variants)
        for variant in variants:
            norms = (
                f"{kept_mean('unrolled', steps, variant, 'grad_norm_start_first'):.3f}"
                for steps in (16, 64, 256)
            )
            yield f"| {names} | {' | '.join(norms)} |"
    trained = kept_rows("times", study="released", depth=12, variant="baseline")
    times = [float(row["seconds_per_step"]) for row in trained]
    assert max(times) > 2 * min(times)
    yield "took more than twice as long in some runs of the reference as in others"


def gain_per_layer(backend):
    """The slope of HC's gain over 12 and 24 layers, with its 95 % interval over runs."""
    runs = kept_rows("cells", study="depth-mlx", variant="hc", backend=backend)
    runs = [run for run in runs if run["depth"] in ("12", "24")]
    depths, gains = ([float(run[name]) for run in runs] for name in ("depth", "gain_final"))
    line = stats.linregress(depths, gains)
    half = stats.t.ppf(0.975, len(depths) - 2) * line.stderr
    return f"{line.slope:.3f} ± {half:.3f}"


def accuracies(study):
    """Test accuracies of the plain network of 100 layers, for the seeds of `fashion`."""
    runs = kept_rows("cells", study=study, depth=100, variant="resnet")
    return {r["seed"]: float(r["test_accuracy"]) for r in runs if r["seed"] in ("42", "0", "1")}


def of_runs(metric, *steps):
    """Values of a metric over runs of HC with static coefficients in `unrolled`."""
    runs = kept_rows("cells", study="unrolled", variant="hc_paper_static")
    found = [float(run[metric]) for run in runs if int(run["depth"]) in steps]
    assert len(found) == 5 * len(steps)
    return found


def by_rate():
    """Range over rates of the factor by which the demo's mHC ends below the plain network."""
    found = {
        row["variant"]: 1 / (1 + float(row["effect"]) / 100)
        for row in kept_rows("effects", study="learning-rate", metric="score", verdict="better")
        if row["variant"] == row["against"].replace("baseline", "mhc")
    }
    factors = [found[f"mhc_{rate}"] for rate in ("0005", "001", "002", "004", "008")]
    assert factors == sorted(factors)  # "the more so the higher the rate"
    return f"{factors[0]:.1f} to {1000 * round(factors[-1] / 1000)}"


def size(config, steps, variant):
    """Number of parameters of a cell of `unrolled`."""
    spec = config.spec(Cell("unrolled", steps, variant, "torch", 0))
    return sum(value.size for value in parameters_of(spec).values())


def gains():
    """Sentences on significant gains over the plain network, except on counting."""
    found = [
        row
        for row in kept_rows("effects", against_plain=True, verdict="better")
        # All of these are on counting, except the last, which has only plain connections.
        if not row["study"].startswith(("depth-", "learning-rate", "ingredients", "fashion-recipe"))
        and "accumulate" not in row["differs_in"]  # four batches per step
    ]
    pairs = {(row["study"], row["depth"], row["variant"], row["against"]) for row in found}
    assert len(pairs) == 38  # "thirty-eight comparisons", some on two platforms
    cells, gains_of = defaultdict(list), defaultdict(list)
    by = {}
    for row in found:
        cells[row["study"], row["variant"]].append(row["depth"])
        gains_of[row["study"]].append(abs(float(row["effect"])))
        by[row["study"], row["variant"], row["depth"]] = gains_of[row["study"]][-1]
    assert {
        variant: depths for (study, variant), depths in cells.items() if study == "unrolled"
    } == {
        "hc_paper_static": ["16", "64"],
        "hc_causal": ["64", "256"],
        "mhc_causal": ["64", "256"],
        "hc_paper_static_01": ["64"],  # at the best rate
        "hc_paper_static_03": ["16"],
        "hc_one_stream": ["16"],
        "hc_one_stream_03": ["16", "64"],
    }
    yield "at `T` 16 and 64, `hc_causal` and `mhc_causal` at 64 and 256"
    of_streams = [
        gain
        for (study, variant, _), gain in by.items()
        if study == "unrolled" and variant in ("hc_paper_static", "hc_causal", "mhc_causal")
    ]
    yield f"gains are {min(of_streams):.2g} % to {max(of_streams):.0f} %"
    one, faster = (
        [kept_mean("unrolled", steps, variant, "score") for steps in (16, 64)]
        for variant in ("hc_one_stream", "hc_one_stream_03")
    )
    four = [
        min(
            kept_mean("unrolled", steps, f"hc_paper_static{rate}", "score")
            for rate in ("", "_01", "_03")
        )
        for steps in (16, 64)
    ]
    yield f"four streams, at {one[0]:.3f} and {one[1]:.3f}"
    yield (
        f"it ends at {faster[0]:.2g} and {faster[1]:.2g}, four streams at the best of three rates "
        f"at {four[0]:.2g} and {four[1]:.2g}"
    )

    def on_text(variant, depth="12"):
        return f"{by['released', variant, depth]:.1f} %"

    yield (
        "have a lower loss than 12 plain layers at one rate: "
        f"`mhc_cycle` by {on_text('mhc_cycle')}, "
        f"`mhc_identity_cycle` by {on_text('mhc_identity_cycle')}, `altup` by {on_text('altup')}, "
        f"`hy_v4` by {on_text('hy_v4')}"
    )
    at_008 = only("worth", study="released", variant="altup_008", rate="one rate")
    told = (at_008["verdict"], at_008["seeds"], at_008["after_looking"])
    assert told == ("better", "5", "seeds")
    yield f"rate 0.008 `altup` does by {-float(at_008['change']):.1f} %, in five seeds"
    yield f"With 32 channels it does by {by['scale-c32', 'altup', '12']:.1f} %"
    cycle, identity = (
        {
            (row["study"], row["platform"]): abs(float(row["effect"]))
            for row in found
            if row["study"].startswith("scale-")
            and (row["variant"], row["against"]) == (variant, "baseline")
        }
        for variant in ("mhc_cycle", "mhc_identity_cycle")
    )
    assert {len({study for study, _ in rows}) for rows in (cycle, identity)} == {7}
    for study, words in (
        ("scale-24-layers-4k", "repeat their gain: {:.2f} % of the loss, {:.2f} % on the H100"),
        ("scale-c128-4k", "So does C 128: {:.2f} %, {:.2f} % on the H100"),
    ):
        yield words.format(*(gain for (name, _), gain in sorted(cycle.items()) if name == study))
    cycle, identity = cycle.values(), identity.values()
    yield f"`mhc_cycle` has a lower loss, by {min(cycle):.1f} % to {max(cycle):.1f} %"
    yield f"identity too, by {min(identity):.1f} % to {max(identity):.1f} %"
    at_best = by["stability", "mhc_cycle_016", "24"]
    yield "with 32 channels do have a lower loss after 300 steps, "
    yield f"by {at_best:.1f} %, both at their best"
    yield from of_sizes()
    yield from of_rates()
    assert not [v for study, v in cells if (study, v[-4:]) == ("released", "_008")]  # best rates
    yield (
        "24 layers of `mhc_cycle` have a lower loss than 24 plain ones by "
        f"{on_text('mhc_cycle', '24')}, of `hy_v4` by {on_text('hy_v4', '24')}"
    )
    over_depth = (
        "attn_res",
        "attn_res_block",
        "inkling2",
        "muddformer",
        "delta_attn_res",
        "denseformer",
    )
    verdicts = {(worth_on_text(v)["seeds"], worth_on_text(v)["verdict"]) for v in over_depth}
    assert verdicts == {("3", "undecided"), ("3", "equivalent")}  # "three seeds"
    arms = [f"{by['text-arms', v, '20']:.1f} %" for v in ("v1", "v1_20")]
    yield f"`v1` and `v1_20` of 20 layers have a lower loss by {arms[0]} and {arms[1]}"
    yield (
        f"of 100 pictures they name {pictures('hc_paper_static')} and {pictures('resnet')} right, "
        f"a plain network of four layers {pictures('resnet', 'fashion-recipe', 4)}"
    )
    assert not [study for study, _ in cells if study.startswith("fashion")]
    streams = kept_rows("cells", study="fashion-streams", variant="hc_paper_static")
    similar = [float(row["stream_similarity_final"]) for row in streams]
    yield f"a similarity of at least {math.floor(1000 * min(similar)) / 1000}"
    assert (cells["graph", "hc_paper"], cells["graph", "mhc_paper"]) == (["4"], ["4"])
    of_hc, of_mhc = gains_of["graph"]
    yield f"by {of_hc:.1f} and {of_mhc:.1f} percentage points in twelve seeds"
    cell = {"study": "graph", "depth": 16, "variant": "hc_paper"}
    deep, worth = (only(table, **cell) for table in ("effects", "effective_depth"))
    assert (deep["verdict"], deep["seeds"]) == ("worse", "12")
    yield f"than sixteen plain ones, by {-float(deep['effect']):.1f} points"
    assert round(float(worth["effective_depth"])) == 5  # "where five plain layers end"


RELEASES = {
    "altup": "AltUp", "deepseek_v4": "DeepSeek V4", "deepseek_v41": "DeepSeek V4.1",
    "glm5_next": "GLM-5-next", "hy_v4": "Hunyuan V4", "qwen4_exp": "Qwen4-exp",
}  # fmt: skip


def steps_of_releases():
    """Text on the released connections with the shortest and the longest step."""
    rows = [worth_on_text(variant) for variant in RELEASES]
    assert all(float(row["net"]) < 1 for row in rows)
    assert {row["seeds"] for row in rows} == {"5"}
    (low, first), *_, (high, last) = sorted((step_ratio(v), name) for v, name in RELEASES.items())
    return (
        f"{low:.1f} times as long as the ordinary network's ({first}) to {high:.1f} times ({last})"
    )


def saved_at(study, design):
    """The share of the steps that a design saves at a size, with its interval."""
    row = only("sizes", study=study, design=design)
    mean, low, high = (
        f"{100 * (1 - 1 / float(row[end])):.0f}".replace("-0", "0").replace("-", "−")
        for end in ("multiplier", "low", "high")
    )
    return f"{mean} % ({low} to {high})"


def gain_at(study, design, sign=1):
    """Nats below the plain network, or with a `sign` of -1 above it, as in 0.144 ± 0.010."""
    row = only("sizes", study=study, design=design)
    mean, low, high = (float(row[f"gain{end}"]) for end in ("", "_low", "_high"))
    return f"{sign * mean:.3f} ± {(high - low) / 2:.3f}"


def of_sizes():
    """Sentences of for-researchers.md on other sizes."""
    places = {
        "C 32, 12": "c32",
        "C 64, 6": "6-layers",
        "C 64, 24": "24-layers",
        "C 128, 12": "c128",
    }
    of_place = {place: (f"scale-{name}", f"scale-{name}-4k") for place, name in places.items()}
    of_place["C 64, 12"] = "released", "scale-4k"
    for place, pair in of_place.items():
        told = []
        for study in pair:
            is_better = only("sizes", study=study, design="mhc_cycle")["verdict"] == "better"
            told.append(
                f"**{saved_at(study, 'mhc_cycle')}**" if is_better else saved_at(study, "mhc_cycle")
            )
        yield f"| {place} layers | {told[0]} | {told[1]} |"
    rows = [row for row in kept_rows("sizes", design="mhc_cycle") if row["answer"]]
    identity = saved_at("scale-c32-4k", "mhc_identity_cycle")
    yield f"Its identity saves about as much, {identity} at C 32 after 4000 steps."
    wider = [
        row
        for row in kept_rows(
            "effects", against="baseline_wider", variant="mhc_cycle", metric="score"
        )
        if row["study"].startswith("scale-")
    ]
    assert len(wider) == 10  # "ten sizes"
    verdicts = {row["study"]: row["verdict"] for row in wider}
    assert verdicts.pop("scale-24-layers") == "better"
    assert verdicts.pop("scale-6-layers-4k") == "equivalent"
    assert set(verdicts.values()) == {"undecided"}
    (shown,) = (row for row in wider if row["verdict"] == "better")
    yield f"24 layers after 1000 steps, by {-float(shown['effect']):.1f} % of the loss"
    deep, wide, longest = (
        float(row["effect"])
        for study in ("scale-24-layers-4k", "scale-c128-4k", "scale-12k")
        for row in wider
        if row["study"] == study
    )
    yield f"with {-deep:.1f} % less loss with 24 layers after 4000 steps"
    yield f"{-wide:.1f} % less at C 128 and {longest:.1f} % more after 12000"
    assert len(rows) == 11
    assert all(float(row["high"]) < float(row["cost"]) for row in rows)  # "at none of the eleven"
    counted = kept_rows("sizes", design="mhc_identity_cycle")
    pays = {row["study"] for row in counted if float(row["low"] or 0) > float(row["operations"])}
    assert pays == {"scale-24-layers-4k", "scale-c128", "scale-c128-4k"}  # "at three"
    yield f"`mhc_cycle` ends {gain_at('scale-12k', 'mhc_cycle')} nats below the plain network"
    longest = only("sizes", study="scale-12k", design="mhc_cycle")
    low, high = float(longest["gain_low"]), float(longest["gain_high"])
    assert low < 0.01 < high  # "is undecided"
    wide, deep, deep_long, long = (
        saved_at(f"scale-{name}", "altup") for name in ("c128", "24-layers", "24-layers-4k", "4k")
    )
    yield f"`altup` saves {wide} at C 128 and {deep} with 24 layers, both undecided"
    yield f"after 4000 steps {deep_long} with 24 layers and {long} with 12"
    yield f"So it is for `altup`, {gain_at('scale-12k', 'altup', 1)} nats below."
    row = only("sizes", study="scale-12k", design="altup")
    assert float(row["gain_low"]) < 0.01 < float(row["gain_high"])
    blocks = [
        gain_at(study, "attn_res_block", -1)
        for study in ("scale-c128", "scale-c128-4k", "scale-12k")
    ]
    yield f"network, by {blocks[0]} nats at C 128, by {blocks[1]} after 4000 steps"
    yield f"and by {blocks[2]} at C 64 after 12000"


def largest_rate_of(variant, depth, **keys):
    """First row of stability.csv for a variant at a depth with these values."""
    return kept_rows("stability", variant=variant, depth=depth, **keys)[0]


def of_rates():
    """Sentences of for-researchers.md on the largest rates that train."""
    beside = [
        largest_rate_of("mhc_cycle", depth, against="mhc_cycle_free") for depth in (48, 24, 12)
    ]
    assert {row["verdict"] for row in beside} == {"larger"}
    free = largest_rate_of("mhc_cycle_free", 48)
    ratios = [f"{float(row['ratio']):g} times" for row in beside]
    yield (
        f"`mhc_cycle` trains is {ratios[0]} that of the same connection with a free H_res at 48 "
        f"layers, {beside[0]['largest']} against {free['largest']}, {ratios[1]} at 24 and "
        f"{ratios[2]} at 12"
    )
    plain, hc = (largest_rate_of(variant, 48)["largest"] for variant in ("baseline", "hc_paper"))
    yield f"at 48 layers the plain network trains at {plain}, the papers' HC at {hc}, and the"
    assert float(largest_rate_of("hc", 48)["largest"]) == 0  # "at none of the eight"
    hc = largest_rate_of("hc", 12)
    assert float(hc["ratio"]) == 0.25
    yield f"With 12 layers the demo's HC trains at {hc['largest']}, a quarter of the plain"


def worth_on_text(variant):
    """Row of worth.csv for a variant of 12 layers on text, with all variants at one rate."""
    return only("worth", study="released", depth=12, variant=variant, rate="one rate")


def saved(variant, end="multiplier", unit=" %"):
    """Share of the plain network's steps that a variant saves on text, in %."""
    return f"{100 * (1 - 1 / float(worth_on_text(variant)[end])):.0f}{unit}"


def more(variant, column="cost"):
    """Absolute difference of a cost or the multiplier from one, in %."""
    return f"{100 * abs(float(worth_on_text(variant)[column]) - 1):.0f} %"


def step_ratio(variant, study="released"):
    """Step time relative to plain: the recorded median over turns, or else from `seconds`."""
    timed = {
        row["variant"]: row for row in rows_of("benchmarks/step_times.csv", study=study, width=64)
    }
    ours, plain = timed[variant], timed["baseline"]
    return float(ours["ratio"] or float(ours["seconds"]) / float(plain["seconds"]))


def pictures(variant, study="fashion-streams", depth=100):
    """Correctly classified pictures out of 100, without the seed that chose among variants."""
    runs = kept_rows("cells", study=study, depth=depth, variant=variant, backend="torch")
    found = [float(run["test_accuracy"]) for run in runs if run["seed"] != "42"]
    return f"{100 * sum(found) / len(found):.0f}"


def differing(variant, digits):
    """Range over seeds of the largest stream difference in `ingredients` on PyTorch, in %."""
    runs = kept_rows("cells", study="ingredients", variant=variant, backend="torch")
    found = [100 * float(run["stream_difference_max"]) for run in runs]
    return f"{min(found):.{digits}f} % to {max(found):.{digits}f} %"


def kept_rows(table, **keys):
    """The rows of a table of the kept result with these values."""
    return rows_of(f"results/reference/tables/{table}.csv", **keys)


def only(table, **keys):
    (row,) = kept_rows(table, **keys)
    return row


@cache
def read(file):
    with (PROJECT / file).open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def rows_of(file, **keys):
    wanted = {name: str(value) for name, value in keys.items()}.items()
    return [row for row in read(file) if wanted <= row.items()]


def kept_mean(study, depth, variant, metric):
    """Mean of a metric over seeds in the kept result, on PyTorch."""
    return float(kept(study, depth, variant)[f"{metric}_mean"])


def kept(study, depth, variant):
    """Summary row of a cell in the kept result on PyTorch; the CPU's if devices are several."""
    rows = kept_rows("summary", study=study, depth=depth, variant=variant, backend="torch")
    (row,) = [row for row in rows if row["platform"].startswith("torch-cpu")] or rows
    return row


def test_measured_numbers_of_a_page_equal_the_kept_result(config):
    for page, pieces in measured_numbers(config).items():
        text = plain(page)
        assert [piece for piece in pieces if piece not in text] == [], page


def test_the_students_program_prints_the_stated_numbers():
    (program,) = code_of("explained/for-students.md", "python")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    printed = [float(n) for n in re.findall(r"\d+\.\d*", done.stdout)]
    assert printed == pytest.approx([27.95] * 4 + [0.25] * 16, abs=0.005)


# --- how numbers are made -------------------------------------------------------------------------


def code_of(page, language):
    """Fenced code blocks of a page in a language."""
    text = (DOCS / page).read_text(encoding="utf-8")
    fences = (token for token in parsed(text) if token.type == "fence")
    return [fence.content for fence in fences if fence.info == language]


@pytest.mark.slow
@pytest.mark.usefixtures("both_backends")  # the page trains on both
def test_the_commands_of_the_page_reproduce_its_number(tmp_path):
    for name in ("config.yaml", "report", "docs"):
        (tmp_path / name).symlink_to(PROJECT / name)
    shown = shell("\n".join(code_of("how-numbers-are-made.md", "sh")), tmp_path)
    text, runs = plain("how-numbers-are-made.md"), tmp_path / "results/runs/depth-torch/12L/mhc"

    def rows(place):
        lines = (runs / place / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["loss"] for line in lines]

    finals = [rows(f"torch/seed{seed}")[-1] for seed in range(3)]
    mean = math.prod(finals) ** (1 / 3)
    (sentence,) = re.findall(r"The final losses of the three seeds [^.]*(?:\.\d[^.]*)*", text)
    # Processors round differently.
    printed = [float(number) for number in re.findall(r"0\.\d+", sentence)]
    assert [*finals, mean] == pytest.approx(printed, abs=0.002)
    starts = [rows(place)[0] for place in ("torch/seed0", "mlx/seed0", "torch/seed1")]
    assert starts[0] == pytest.approx(starts[1], rel=1e-6)
    assert abs(starts[0] - starts[2]) > 1e-3
    # The file's hash from sha256sum equals the manifest's.
    (by_hand,) = re.findall(r"^([0-9a-f]{64})  ", shown, re.MULTILINE)
    assert f'"sha256": "{by_hand}"' in shown
    with (tmp_path / "results/tables/verdicts.csv").open() as file:
        verdicts = {row["claim"]: row["verdict"] for row in csv.DictReader(file)}
    assert verdicts["all-converge-shallow"] == "not measured"
    assert (tmp_path / "results/RESULTS.md").exists()
    # The page's own program, on the tables that were made.
    (program,) = code_of("how-numbers-are-made.md", "python")
    ours = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert float(ours.stdout.split()[-1]) == pytest.approx(mean, rel=1e-12)
