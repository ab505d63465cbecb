"""Step multipliers at several sizes: the table of sizes, and sentences of reports."""

import math

import pandas as pd
import pytest
from scipy import stats

from fathom_study.analysis.claims import load_published
from fathom_study.analysis.claims.verdicts import published_sizes_table
from fathom_study.analysis.pair_verdicts import verdicts_of
from fathom_study.analysis.scale import pooled_table, sizes_table
from fathom_study.config import ConfigError
from fathom_study.report.tables.records import records
from fathom_study.report.tables.size_words import notes_on_sizes, pooled_share, present_scale
from tests.support.runs import CPU_PLATFORM, GPU_PLATFORM, config_with
from tests.support.tables import T_ROUNDING, frame, half_width, run, step_times, table_of_worth

NAN = math.nan
# --- the table of sizes --------------------------------------------------------------------------


def study(width, depths=(4,), plain=("baseline",), rates=(), **changes):
    return {
        "variants": [
            "baseline",
            {"hc": {"connection": "hc"}},
            {"mhc": {"connection": "mhc"}},
            *({f"baseline_{i}": {"connection": "baseline", "optimizer": {"lr": rate}}}
              for i, rate in enumerate(rates)),
        ],
        "depths": list(depths), "backends": ["torch"], "steps": 100,
        "model": {"vocab": 64, "length": 8, "width": width, "heads": 4, "hidden": 32},
        "ladder": {name: [0.5, 2] for name in plain}, "plain_at_size": list(plain), **changes,
    }  # fmt: skip


def config():
    fast = {"optimizer": {"lr": 0.004}}
    at_rate = {"mhc_fast": {"connection": "mhc", **fast}}
    two = study(32, plain=["baseline_0", "baseline"], rates=[0.004], depths=[4, 8])
    two["variants"].append(at_rate)
    studies = {"one": study(16, rates=[0.001, 0.003]), "two": two}
    return config_with(studies=("one", "two"), **studies)


def ladder(study, base, depth=4, machine="", seeds=(0, 1, 2), factors=(0.5, 1, 2)):
    """Plain runs whose loss falls by one nat per doubling of the steps."""
    labels = {0.5: f"{base}_x050", 1: base, 2: f"{base}_x200"}
    return [
        run(labels[f], depth, seed, study, machine=machine, loss_final=3 - math.log2(f))
        for f in factors for seed in seeds
    ]  # fmt: skip


def ours(study, variant, doublings, depth=4, machine=""):
    return [
        run(variant, depth, seed, study, machine=machine, loss_final=3 - value)
        for seed, value in enumerate(doublings)
    ]


def cells():
    tuning = {"baseline_0": 2.2, "baseline_1": 2.0, "baseline": 2.1}
    tuned = [
        {
            **run(name, 4, 7, "one", machine=GPU_PLATFORM, loss_final=NAN),
            "score": NAN,
            "tuning_loss": loss,
        }
        for name, loss in tuning.items()
    ]  # rates may be tried on another platform than the design's
    here = {"study": "two", "machine": CPU_PLATFORM}
    return frame(
        *ladder("one", "baseline"), *ours("one", "mhc", [0.1, 0.2, 0.3]), *tuned,
        # Not designs: hc at a single size, and mhc at the other rate.
        *ours("one", "hc", [0.5, 0.5, 0.5]), *ladder("two", "baseline", machine=CPU_PLATFORM),
        *ours(**here, variant="mhc", doublings=[0.9, 0.9, 0.9]),
        *ladder("two", "baseline_0", machine=CPU_PLATFORM),
        *ours(**here, variant="mhc_fast", doublings=[0.2, 0.4, 0.6]),
        # Fewer seeds on another machine; a depth with the other plain network and no ladder.
        *ladder("two", "baseline_0", machine=GPU_PLATFORM),
        *ours("two", "mhc_fast", [0.7, 0.7], machine=GPU_PLATFORM),
        *ladder("two", "baseline", 8, machine=CPU_PLATFORM, factors=[1]),
        *ours(**here, variant="mhc", doublings=[0.3, 0.3, 0.3], depth=8),
    )  # fmt: skip


def sizes_of(settings, rows):
    worth = table_of_worth(settings, rows)
    verdicts = verdicts_of(settings, rows)
    return sizes_table(settings, rows, worth.fillna({"answer": ""}), verdicts)


def test_design_has_a_row_per_size():
    sizes = sizes_of(config(), cells())
    axes = ["design", "study", "depth", "variant", "against"]
    axes += ["channels", "lr", "seeds", "platform"]
    cpu = f"torch-{CPU_PLATFORM}"
    assert sizes[axes].to_numpy().tolist() == [
        ["mhc", "one", 4, "mhc", "baseline", 16, 0.002, 3, "torch"],
        ["mhc", "two", 4, "mhc_fast", "baseline_0", 32, 0.004, 3, cpu],
        ["mhc", "two", 8, "mhc", "baseline", 32, 0.002, 3, cpu],
    ]
    assert sizes["answer"].tolist() == ["at", "at", ""]
    assert sizes["gain"].tolist() == pytest.approx(
        [0.2, 0.4, 0.3], rel=T_ROUNDING
    )  # nats per token
    # The losses 2.8, 2.6 and 2.4 are compared with 3 as ratios. Two of the family's tests are not
    # significant, so their level is 2.5 %.
    logs = [math.log10(loss / 3) for loss in (2.8, 2.6, 2.4)]
    half = stats.t.ppf(1 - 0.025 / 2, 2) * stats.sem(logs)
    lowest = 3 * 10 ** (sum(logs) / 3 - half)
    assert sizes["gain_high"][1] == pytest.approx(3 - lowest, rel=T_ROUNDING)
    assert sizes["multiplier"][:2].tolist() == pytest.approx([2**0.2, 2**0.4], rel=T_ROUNDING)
    assert sizes["tried"].tolist() == ["0.001 0.002 0.003", "0.002 0.004", "0.002"]
    assert sizes["best_tried"][0] == 0.003  # `baseline_1`
    assert sizes["best_tried"][1:].isna().all()


@pytest.mark.parametrize("beyond", [CPU_PLATFORM, GPU_PLATFORM])
def test_of_two_platforms_with_as_many_seeds_that_with_fewer_outside_the_ladder_counts(beyond):
    doublings = {CPU_PLATFORM: [0.4, 0.4, 0.4], GPU_PLATFORM: [0.4, 0.4, 0.4]}
    doublings[beyond] = [0.4, 0.4, 1.2]  # the last rung has one doubling
    rows = [*ladder("one", "baseline"), *ours("one", "mhc", [0.1, 0.2, 0.3])]
    for machine, of in doublings.items():
        rows += ladder("two", "baseline", machine=machine)
        rows += ours("two", "mhc", of, machine=machine)
    sizes = sizes_of(config(), frame(*rows))
    assert sizes["outside"].tolist() == [0, 0]
    assert beyond not in sizes["platform"][1]


def table_with_a_long_training(doublings, ladder_of=("baseline",), width=64, timed="", **changes):
    """Table of a study with `width` channels, and one with 64 channels and 4 times the steps.

    `timed` is the file of step times.
    """
    short, long = study(width), study(64, plain=ladder_of, steps=400, **changes)
    settings = config_with(studies=("short", "long"), short=short, long=long)
    settings = settings.model_copy(update={"step_times": timed or None})
    rungs = {} if ladder_of else {"factors": [1]}
    rows = frame(
        *ladder("short", "baseline"), *ours("short", "mhc", [0.3, 0.4, 0.5]),
        *ladder("long", "baseline", **rungs), *ours("long", "mhc", doublings),
    )  # fmt: skip
    return sizes_of(settings, rows)


def timed(folder, *rows):
    """Step times of study `short`; rows: (width, variant, seconds / 2, operations and bytes)."""
    return step_times(folder, *(
        {"study": "short", "depth": 4, "variant": variant, "seconds": 2 * cost,
         "low": 2 * cost - 0.1, "high": 2 * cost + 0.1, "width": width, "operations": work,
         "bytes": work}
        for width, variant, cost, work in rows
    ))  # fmt: skip


def test_cost_is_read_at_the_width_of_each_size(tmp_path):
    narrow = [(32, "baseline", 1, 100), (32, "mhc", 1.9, 140)]
    wide = [(64, "baseline", 1, 400), (64, "mhc", 1.5, 480)]
    file = timed(tmp_path, *narrow, *wide)
    sizes = table_with_a_long_training([0.1, 0.2, 0.5], width=32, timed=file)
    ends = {"cost": [1.9, 1.5], "cost_low": [1.85, 1.45], "cost_high": [1.95, 1.55]}
    for column, values in ends.items():
        assert sizes[column].tolist() == pytest.approx(values, rel=T_ROUNDING)
    assert sizes["machine"].tolist() == [CPU_PLATFORM] * 2
    assert sizes["operations"].tolist() == pytest.approx([1.4, NAN], nan_ok=True)


def test_tokens_include_all_accumulated_batches_of_a_step():
    batches = {"batch_size": {4: 2}, "accumulate": 3, "depths": [4]}
    sizes = table_with_a_long_training([0.1, 0.2, 0.5], **batches)
    assert sizes["tokens"].tolist() == [400 * 2 * 3 * 8, 100 * 8 * 8][::-1]


def test_size_without_a_ladder_has_only_a_gain():
    for_one = {"ladder": {}, "plain_at_size": ["baseline"]}
    one = table_with_a_long_training([0.1, 0.2, 0.3], ladder_of=(), **for_one)
    assert one.empty  # only one size has a step multiplier
    settings = config().model_dump(mode="json")["studies"]
    sizes = {"one": settings["one"], "two": settings["two"], "long": study(32, **for_one)}
    changed = config_with(studies=tuple(sizes), **sizes)
    rows = frame(
        *cells().to_dict("records"), *ladder("long", "baseline", factors=[1]),
        *ours("long", "mhc", [0.1, 0.2, 0.3]),
    )  # fmt: skip
    sizes = sizes_of(changed, rows)
    (row,) = sizes[sizes["study"] == "long"].to_dict("records")
    assert row["answer"] == ""
    assert row["gain"] == pytest.approx(0.2, rel=T_ROUNDING)


def test_parameters_are_counted_in_the_plain_network():
    # Embeddings of 64 tokens and 8 positions, the head and a last norm, 16 channels each. A layer:
    # two norms; weights and biases of q, k, v, the output projection and both MLP layers.
    block = 2 * 32 + 48 * 17 + 16 * 17 + 32 * 17 + 16 * 33
    sizes = sizes_of(config(), cells())
    assert sizes["parameters"][0] == (64 + 8 + 64) * 16 + 4 * block + 32


def test_plain_network_with_its_own_width_has_no_tried_rates():
    narrow = {"baseline_8": {"connection": "baseline", "model": {"width": 8}}}
    like_it = {"mhc_8": {"connection": "mhc", "model": {"width": 8}}}
    one = study(16, plain=["baseline_8"])
    settings = config_with(studies=("one",), one={**one, "variants": [narrow, like_it, "mhc"]})
    rows = frame(*ladder("one", "baseline_8"), *ours("one", "mhc", [0.1, 0.2, 0.3]))
    sizes = sizes_of(settings, rows)
    assert sizes["tried"].tolist() == [""] * len(sizes)


# --- sentences of reports ------------------------------------------------------------------------

SIZE = {"design": "mhc", "backend": "torch", "study": "one", "depth": 4,
        "channels": 32, "layers": 4, "parameters": 1, "steps": 1000, "answer": "at",
        "tried": "0.1", "multiplier": 1.2, "pays_here": "pays", "pays_operations": "costs more",
        "verdict": "better", "cost": 1.0, "operations": 1.1, "platform": "torch", "seeds": 3,
        "gain": 0.1}  # fmt: skip


def show(rows):
    sizes = pd.DataFrame(rows)
    return present_scale(sizes, pooled_table(sizes))


@pytest.mark.parametrize(
    ("answers", "never"),
    [
        (["costs more"] * 3, True),
        (["costs more", "pays", "undecided"], False),
        (["costs more", "undecided", "costs more"], False),
        (["costs more", "", "costs more"], False),
    ],
)
def test_design_never_pays_if_it_costs_more_at_every_size(answers, never):
    rows = [{**SIZE, "parameters": i, "depth": i, "pays_here": a} for i, a in enumerate(answers)]
    shown = show(rows)
    assert shown.never_pays("mhc", "pays_here") == never
    assert shown.never_pays("mhc", "pays_operations")
    assert [row["parameters"] for row in shown.sizes] == [0, 1, 2]


def test_multipliers_are_pooled_over_sizes_and_over_the_longest_training_of_each():
    logs = {(32, 1000): 0.1, (32, 4000): 0.3, (64, 1000): 0.2, (128, 1000): 0.4}
    rows = pd.DataFrame(
        {**SIZE, "channels": channels, "steps": steps, "multiplier": math.exp(log),
         "verdict": "better" if log > 0.15 else "worse", "cost": 1 + log,
         "gain": 0.2 - log, "answer": "beyond" if log == 0.4 else "at"}
        for (channels, steps), log in logs.items()
    )  # fmt: skip
    every, longest = pooled_table(rows).to_dict("records")
    mean, half = 0.25, half_width([0.1, 0.2, 0.3, 0.4])
    ends = [math.exp(mean + side * half) for side in (0, -1, 1)]
    assert [every[name] for name in ("multiplier", "low", "high")] == pytest.approx(ends)
    assert (every["sizes"], every["better"], every["worse"]) == (4, 3, 1)
    assert (every["networks"], every["lower"], every["bounds"]) == (3, 1, 1)
    assert (every["cost_low"], every["cost_high"]) == pytest.approx((1.1, 1.4))
    assert every["operations_low"] == every["operations_high"] == 1.1
    assert longest["multiplier"] == pytest.approx(math.exp(0.3)) and longest["sizes"] == 3


@pytest.mark.parametrize(("longest", "shown"), [((1.01, 1.2), True), ((0.99, 1.2), False)])
def test_a_gain_that_is_gone_in_the_longest_training_is_no_headline(longest, shown):
    ends = {"all": (1.05, 1.15), "longest": longest}
    rows = [
        {"design": "mhc", "backend": "torch", "trainings": trainings, "sizes": 3, "better": 3,
         "worse": 0, "multiplier": 1.1, "low": low, "high": high, "cost_low": 1.2, "cost_high": 1.3}
        for trainings, (low, high) in ends.items()
    ]  # fmt: skip
    scale = present_scale(pd.DataFrame([SIZE]), pd.DataFrame(rows))
    assert (scale.best_lasting() is not None) == shown


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.011, 0.03, "lasts"),
        (0.009, 0.03, "undecided"),
        (-0.02, 0.009, "an early speed-up alone"),
        (-0.03, -0.001, "no gain"),
        (NAN, NAN, "undecided"),  # one seed only
    ],
)
def test_gain_lasts_if_above_0_01_after_12000_steps(low, high, verdict):
    ends = {"gain_low": low, "gain_high": high}
    rows = [{**SIZE, **ends, "study": str(steps), "steps": steps} for steps in (11_999, 12_000)]
    shown = show(rows)
    assert [(row["steps"], row["lasts"]) for row in shown.long] == [(12_000, verdict)]


def test_backend_with_most_rows_is_shown():
    rows = [SIZE, {**SIZE, "depth": 8}, {**SIZE, "backend": "mlx"}]
    shown = show(rows)
    assert [row["backend"] for row in shown.rows] == ["torch"] * 2


def test_sizes_name_their_steps_if_steps_differ():
    long = {**SIZE, "study": "long", "steps": 4000, "pays_here": "costs more"}
    shown = show([long, SIZE])
    assert shown.steps == [1000, 4000]
    assert shown.pays("mhc", "pays_here") == {
        "pays": ["32 × 4 after 1000 steps"],
        "costs more": ["32 × 4 after 4000 steps"],
    }
    assert show([SIZE]).pays("mhc", "pays_here") == {"pays": ["32 × 4"]}


def test_rows_have_their_line_numbers():
    sizes = pd.DataFrame([{**SIZE, "parameters": 9}, {**SIZE, "depth": 8, "parameters": 3}])
    shown = show(sizes)
    assert [(row["parameters"], row["line"]) for row in shown.rows] == [(3, 3), (9, 2)]
    assert [row["line"] for row in records(sizes)] == [2, 3]


# --- published sizes -----------------------------------------------------------------------------

PUBLISHED = """
notes: []
values: []
claims: []
sources: {lab: {title: A lab, platform: some GPU}}
sizes:
  - source: lab
    data: its own
    points: {VARIANT: [{parameters: 27000000000, below: 0.021, spread: 0.002, seeds: 3}]}
"""


def test_published_sizes_are_shown_only_with_studies_over_sizes(tmp_path):
    file = tmp_path / "published.yaml"
    file.write_text(PUBLISHED.replace("VARIANT", "mhc"), encoding="utf-8")
    (row,) = published_sizes_table(load_published(file, config())).to_dict("records")
    assert row == {"source": "lab", "data": "its own", "variant": "mhc", "parameters": 27 * 10**9,
                   "below": 0.021, "spread": 0.002, "seeds": 3}  # fmt: skip
    (note,) = notes_on_sizes(load_published(file, config()), {"mhc": "mHC"})
    assert (note.source, note.statement) == (
        "lab",
        "nats below a plain network (data: its own), by millions of parameters: mHC 0.021 ± 0.002 "
        "(3 seeds) at 27,000.",
    )
    without = load_published(file, config_with())
    assert published_sizes_table(without).empty
    assert not without.sources
    file.write_text(PUBLISHED.replace("VARIANT", "mhd"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"sizes\.0: unknown variant 'mhd'"):
        load_published(file, config())


def test_a_multiplier_pooled_over_two_sizes_has_no_interval():
    row = {"multiplier": 1.25, "low": 1.0, "high": 1.6}
    assert pooled_share(row) == "20 % of the steps (0 to 38 %)"
    row = {"multiplier": 1.25, "low": float("nan"), "high": float("nan")}
    assert pooled_share(row) == "20 % of the steps, too few sizes for an interval"
