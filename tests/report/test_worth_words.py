"""First sentences of reports on worth: words and numbers from rows, by hand."""

import math
import re
from functools import partial
from itertools import chain

import pandas as pd
import pytest

from fathom_study.analysis.claims import load_published
from fathom_study.analysis.claims.published import Worth
from fathom_study.config import check_config, load_config
from fathom_study.report.pages.render import environment_of
from fathom_study.report.tables.size_words import ScalePresenter
from fathom_study.report.tables.worth_words import (
    WorthPresenter,
    depth_multiplier,
    overhead,
    pays_below,
    present_worth,
    saving,
    seeds_of,
    steps_saved,
)
from tests.reference.rendering import PROJECT
from tests.support.reports import write_all
from tests.support.runs import CPU_PLATFORM, config_with
from tests.support.tables import curve, run

NAN = math.nan
ABOVE = Worth(
    title="What is it worth?",
    study="a",
    task="text",
    overheads={"mhc": {"words": "little", "url": "https://example.org"}},
)
LABELS = {"mhc": "cyclic mHC"}


def row(variant="mhc", multiplier=1.25, low=1.2, high=1.3, **changes):
    values = {
        "study": "a", "platform": "torch", "depth": 12, "variant": variant, "against": "baseline",
        "design": variant, "rate": "one rate", "seeds": 5, "answer": "at", "verdict": "better",
        "multiplier": multiplier, "corrected_low": low, "corrected_high": high, "least": 0.5,
        "most": 2.0, "on_ladder": 5, "outside": 0, "break_even": multiplier - 1, "width": 64.0,
        "cost": 1.7, "wider": NAN, "cost_wider": NAN, "pays_here": "costs more",
        "operations": 1.1, "pays_operations": "undecided", "cost_fused": 1.03, "pays_fused": "pays",
    }  # fmt: skip
    return values | changes


beyond = partial(row, answer="beyond", multiplier=2)
below = partial(row, answer="below", multiplier=0.6)


@pytest.mark.parametrize(
    ("function", "given", "words"),
    [
        (steps_saved, row(), "20 % (17 to 23 %)"),  # 1 − 1/1.25, 1 − 1/1.2, 1 − 1/1.3
        (steps_saved, row(multiplier=0.8, low=0.5, high=1.0), "−25 % (−100 to 0 %)"),
        (steps_saved, row(low=NAN, high=NAN), "20 %"),
        # The ladder spans half to twice the steps.
        (steps_saved, row(low=0, high=math.inf), "20 % (less to more)"),
        (steps_saved, beyond(low=1.6, high=math.inf), "beyond 50 % (38 to more)"),
        (steps_saved, below(low=0, high=0.8), "below −100 % (less to −25 %)"),
        (steps_saved, below(low=0, high=0), "below −100 %"),
        (steps_saved, beyond(low=math.inf, high=math.inf), "beyond 50 %"),
        (steps_saved, row(answer="both"), "beyond both ends of the ladder"),
        (saving, row(), "saves 20 % (17 to 23 %) of the steps"),
        # 1/0.8 − 1; of the interval 1/0.5 − 1 and 1/1 − 1, in the order of size.
        (saving, row("mhc", 0.8, 0.5, 1.0), "needs 25 % more steps (0 to 100 %)"),
        (saving, row("mhc", 0.8, 0.4, 1.25), "needs 25 % more steps (−20 to more)"),
        (saving, row("mhc", 0.8, NAN, NAN), "needs 25 % more steps"),
        (saving, row(answer="both"), "ends beyond both ends of the ladder"),
        (pays_below, row(), "25 % more"),
        (pays_below, beyond(), "at least 100 % more"),
        (pays_below, row(multiplier=0.9), ""),
        (pays_below, row(answer="both"), ""),
        (overhead, 1.7, "70 % more"), (overhead, 0.9, "10 % less"), (overhead, 1.0, "0 % more"),
        (overhead, NAN, ""),
    ],
)  # fmt: skip
def test_words_of_a_multiplier_or_a_cost(function, given, words):
    assert function(given) == words


NONE_PAYS = "keep x + f(x): no connection is shown to save time"
MOST_COST = f"{NONE_PAYS}, and most cost more than they save."


def scale(longest=(1.05, 1.2)):
    """Presenter of a design `mhc` over three sizes."""
    ends = {"all": (1.09, 1.15), "longest": longest}
    rows = [
        {"design": "mhc", "backend": "torch", "trainings": trainings, "sizes": 3, "better": 3,
         "worse": 0, "multiplier": 1.12, "low": low, "high": high, "cost_low": 1.2,
         "cost_high": 1.35, "operations_low": 1.06, "operations_high": 1.2, "networks": 2}
        for trainings, (low, high) in ends.items()
    ]  # fmt: skip
    return ScalePresenter([], [], rows)


SAVES = "it saves 11 % of the steps (8 to 13 %)."
TRY = f"For a wide network with fused kernels, try cyclic mHC (`mhc`): {SAVES}"
BEST = f"Measured in steps, the best is cyclic mHC (`mhc`): {SAVES}"
COSTS = "Its step takes 20 to 35 % more time here"
FUSED = f"{COSTS}, 6 to 20 % more operations, and by calculation 3 % more time with fused kernels."


@pytest.mark.parametrize(
    ("rows", "sizes", "parts"),
    [
        ([row(), row("altup")], scale(), [MOST_COST, TRY, FUSED]),
        ([row(), row("altup", pays_here="undecided")], scale(), [f"{NONE_PAYS}.", TRY]),
        ([row(), row("altup", pays_here="pays")], scale(), ["Use altup: ", TRY]),
        # The gain may be smaller than the computed cost.
        ([row(cost_fused=1.2)], scale(), [NONE_PAYS, BEST]),
        ([row(pays_here="", pays_fused="")], scale(),
         [BEST, f"{COSTS} and 6 to 20 % more operations."]),
        # A gain that is gone in the longest trainings is no headline.
        ([row(), row("altup", 1.1)], scale((0.9, 1.2)),
         [NONE_PAYS, "steps, cyclic mHC saves most: 20 % (17 to 23 %) of the steps; its step "
          "takes 1.7 times as long with 64 channels."]),
        ([row(verdict="undecided")], None, ["No connection is shown to save training steps"]),
        # Only a connection's row at one rate counts.
        ([row(rate="best rates", pays_here="pays"), row(verdict="worse")], None,
         ["No connection is shown to save training steps"]),
    ],
)  # fmt: skip
def test_the_advice_follows_from_the_rows(rows, sizes, parts):
    environment = environment_of(PROJECT / "report/templates", LABELS)
    worth = WorthPresenter("a", "text", "", rows, {}, "baseline")
    advice = " ".join(environment.get_template("words.j2").module.advice(worth, sizes).split())
    assert [part for part in parts if part not in advice] == [], advice
    assert ("Use" in advice) == any(part.startswith("Use") for part in parts)


def test_what_stands_behind_the_advice_is_counted():
    environment = environment_of(PROJECT / "report/templates", LABELS)
    pays = row("altup", pays_here="pays", pays_operations="pays")
    worth = WorthPresenter(
        "a", "text", "", [row(), row("hc", pays_here="undecided"), pays], {}, "baseline"
    )
    long = {"design": "mhc", "steps": 12000, "channels": 64, "layers": 12, "gain": 0.012,
            "gain_low": 0.004, "gain_high": 0.02}  # fmt: skip
    sizes = scale()._replace(rows=[long, {**long, "steps": 4000}, {**long, "design": "hc"}])
    said = environment.get_template("words.j2").module.behind_advice(worth, sizes)
    assert " ".join(said.split()) == (
        "Comparisons at one rate that cost more time than they save: 1 of 3; that are shown to "
        "save time: 1 (altup); operations: 1 (altup). The gain of cyclic mHC is pooled over 3 "
        "trainings of 2 networks; over the longest training of each it is 11 % of the steps (5 to "
        "17 %). After 12000 steps (64 channels, 12 layers) it is undecided: 0.0120 ± 0.0080 nats "
        "below plain."
    )


def test_a_gain_fades_if_the_longest_trainings_do_not_show_it():
    assert scale().fading(["mhc"]) == []
    assert [row["trainings"] for row in scale((0.9, 1.2)).fading(["mhc", "hc"])] == ["longest"]
    assert scale((0.9, 1.2)).fading(["hc"]) == []


def test_rows_are_of_one_study_platform_and_depth_significant_first():
    rows = [
        row("altup", 3.0, verdict="undecided"),
        row("hc", 0.9),
        row(),
        row("v1", 1.1),
        row("v1", 2.0, depth=24),
        row("v1", 2.0, study="b"),
        row("v1", 2.0, platform="mlx"),
        row("v1", 2.0, seeds=2),
        row("v1", 2.0, answer=""),
    ]
    worth = present_worth(ABOVE, pd.DataFrame(rows), "baseline")
    lines = [(one["variant"], one["line"]) for one in worth.rows]
    assert lines == [("mhc", 4), ("v1", 5), ("hc", 3), ("altup", 2)]
    assert worth.overheads["mhc"].words == "little"


def test_a_connection_has_one_row_with_its_result_at_the_best_rates():
    """Decided is what is better or worse at one of the two; a fading gain comes last."""
    best = partial(row, rate="best rates", against="baseline_8", seeds=3)
    rows = [
        row("altup"),
        row("mhc", 1.1),
        row("hc", 0.9, verdict="worse"),
        row("hc_8", 0.8, verdict="worse", against="baseline_8"),
        row("v1", 1.0, verdict="undecided"),
        row("v2", 1.0, verdict="undecided"),
        best("v2_8", 1.3, design="v2"),
        best("mhc_8", 1.2, verdict="undecided", design="mhc"),
    ]
    worth = present_worth(ABOVE, pd.DataFrame(rows), "baseline")
    decided = worth.decided(["altup"])
    shown = [(one["variant"], one["at_best"] and one["at_best"]["variant"]) for one in decided]
    assert shown == [("mhc", "mhc_8"), ("v2", "v2_8"), ("altup", None), ("hc", None)]
    assert [seeds_of(one) for one in decided] == ["5, 3 at best rates"] * 2 + ["5"] * 2
    assert [one["variant"] for one in worth.undecided(decided)] == ["v1"]


def test_without_a_ladder_there_is_no_advice():
    assert present_worth(ABOVE, pd.DataFrame([row(answer="")]), "baseline") is None
    assert present_worth(ABOVE, pd.DataFrame(), "baseline") is None
    assert present_worth(None, pd.DataFrame([row()]), "baseline") is None


@pytest.mark.parametrize(
    ("answer", "low", "high", "words"),
    [
        ("at", 0.25, 0.75, "0.5 (0.25 to 0.75)"),
        ("at", 0, 0.75, "0.5 (below 0.75)"),
        ("at", 0.25, math.inf, "at least 0.25"),
        ("at", 0, math.inf, "0.5 (open at both ends)"),
        ("at", NAN, NAN, "0.5"),
        ("beyond", NAN, NAN, "beyond 0.5"),
        ("unknown", NAN, NAN, "unknown"),
        ("", NAN, NAN, ""),
    ],
)
def test_a_depth_multiplier_in_words(answer, low, high, words):
    given = {"depth_answer": answer, "depth_multiplier": 0.5, "depth_low": low, "depth_high": high}
    assert depth_multiplier(given) == words


# --- reports of a study with a ladder -------------------------------------------------------------

LADDER = {"baseline": [0.5, 2, 4]}
"""Factors of steps; the loss is 3 nats at factor 1, and one nat less per doubling."""


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Folder of the reports of one study with a ladder."""
    folder = tmp_path_factory.mktemp("worth")
    columns = "study,depth,variant,backend,machine,seconds,low,high,width,operations,bytes,turns"
    times = [("baseline", 2, 16), ("mhc", 3, 16), ("baseline", 10, 128), ("mhc", 11, 128)]
    lines = [f"released,8,{v},torch,{CPU_PLATFORM},{s},{s},{s},{w},7,7,3" for v, s, w in times]
    (folder / "times.csv").write_text("\n".join([columns, *lines]) + "\n", encoding="utf-8")
    data = config_with(folder / "results", ("released",)).model_dump(mode="json")
    own = {"depths": [8], "backends": ["torch"], "steps": 100, "ladder": LADDER}
    data["studies"]["released"] |= own | {"variants": ["baseline", "hc", "mhc"]}
    config = check_config(data | {"step_times": str(folder / "times.csv")})
    ends = {"baseline": 3.0, "hc": 3.5, "mhc": 2.5}
    rungs = config.studies["released"].rungs("baseline").items()
    ends |= {label: 3 - math.log2(factor) for factor, label in rungs}
    axes = {"study": "released", "depth": 8}
    cells = [
        run(variant=v, seed=seed, loss_final=loss + 0.001 * seed, **axes)
        for v, loss in ends.items()
        for seed in range(3)
    ]
    steps = [
        curve([4.0, loss], variant=v, seed=s, **axes) for v, loss in ends.items() for s in range(3)
    ]
    published = load_published(PROJECT / "report/published.yaml", config)
    templates = PROJECT / "report/templates"
    return write_all(config, published, templates, cells, [*chain(*steps)])


def test_report_begins_with_the_worth_of_connections(reports):
    """mhc ends at 2.5 nats, half a doubling of the steps, so m = √2 = 1.41."""
    text = (reports / "RESULTS.md").read_text(encoding="utf-8")
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in row] for row in rows[:4]]
    assert rows[0] == [
        "connection", "steps saved", "verdict", "a step costs here, 16 channels", "128 channels",
        "operations, counted", "seeds", "in its authors' words",
    ]  # fmt: skip
    shown = [[re.sub(r"\[(.*)\]\(.*\)", r"\1", cell) for cell in row] for row in rows[2:]]
    assert shown == [
        ["mhc", "29 % (29 to 29 %)", "better", "50 % more: costs more", "10 % more",
         "0 % more: pays", "3", "–"],
        ["hc", "−41 % (−41 to −41 %)", "worse", "–", "–", "–", "3", "–"],
    ]  # fmt: skip


def test_authors_are_quoted_only_on_variants_of_the_study():
    config = load_config([PROJECT / "config.yaml"])
    worth = load_published(PROJECT / "report/published.yaml", config).worth
    assert {*worth.overheads} <= {*config.studies[worth.study].labels}


def test_pages_do_not_list_rungs_among_variants(reports):
    for file in ("RESULTS.md", "studies/released.md"):
        assert "× the steps |" not in (reports / file).read_text(encoding="utf-8")
    tables = (reports / "tables/studies/released").glob("*.csv")
    assert any("baseline_x200" in table.read_text(encoding="utf-8") for table in tables)
