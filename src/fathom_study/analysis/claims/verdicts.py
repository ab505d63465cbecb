"""From tests to verdicts: published.csv, thresholds.csv, claims.csv and verdicts.csv.

Definitions: docs/definitions/verdicts.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from fathom.settings import join_values
from fathom_study import tasks
from fathom_study.analysis.claims import untestable
from fathom_study.analysis.claims.comparisons import judge_step_times
from fathom_study.analysis.claims.estimator import NO_INTERVAL, OVER_RUNS, OVER_SEEDS, Estimator
from fathom_study.analysis.claims.evidence import (
    IDENTITY,
    NO_RUN,
    NOT_MEASURED,
    NOT_REPRODUCED,
    REPRODUCED,
    TOO_SMALL,
    UNTESTED,
    Evidence,
    Judgement,
    NotMeasured,
    combine_verdicts,
)
from fathom_study.analysis.claims.published import ANY, Claim, Published, Threshold, Value, rounding
from fathom_study.analysis.platforms import DEVICES, Platform
from fathom_study.analysis.statistics import CONFIDENCE, MIN_SEEDS, mean_with_ci
from fathom_study.analysis.step_times import StepTimes, read_step_times
from fathom_study.analysis.tables import (
    CELL,
    GROUP,
    TIMES,
    counted,
    read_steps,
    read_with_times,
    save_tables,
    scores_of,
    table_of,
)
from fathom_study.config import Config, Study
from fathom_study.metrics.scores import Score


def write_claims(config: Config, published: Published, folder: Path) -> None:
    """Write the tables of published values, sizes and thresholds, of claims and of verdicts."""
    cells, summary = (read_with_times(folder / name) for name in TIMES)
    tested = {s for claim in published.claims for s in (*claim.named_studies, claim.control)}
    steps = read_steps(folder, [study for study in config.studies if study in tested])
    claims = claims_table(config, cells, steps, published, read_step_times(config))
    tables = {
        "published.csv": published_table(config, summary, published),
        "published_sizes.csv": published_sizes_table(published),
        "thresholds.csv": thresholds_table(cells, published),
        "claims.csv": claims,
        "verdicts.csv": verdicts_table(claims),
    }
    save_tables(tables, folder)


def published_sizes_table(published: Published) -> pd.DataFrame:
    """A row per published network and size: nats below the plain one, as printed."""
    rows = [
        {"source": entry.source, "data": entry.data, "variant": variant, **point.model_dump()}
        for entry in published.sizes
        for variant, points in entry.points.items()
        for point in points
    ]
    return table_of(rows, "published_sizes.csv")


# --- verdicts -----------------------------------------------------------------------------------

JUDGED = [field.name for field in fields(Judgement)]


def claims_table(
    config: Config,
    cells: pd.DataFrame,
    steps: pd.DataFrame,
    published: Published,
    times: StepTimes = MappingProxyType({}),
) -> pd.DataFrame:
    """The table of tests: a row per claim, test and platform, with the fields of its Judgement.

    A claim with a control has each test a second time, made in that study (column `control`).
    `rests_on` is the evidence of the verdict; `confidence` is that of its interval, if it has one.
    """
    valid = counted(cells).copy()  # in one block per type, for the row selections of all tests
    valid[untestable.SAME_AS] = untestable.first_of_same(valid, steps)
    scores = scores_of(config)
    evidence = {
        name: Evidence(
            cells, steps[steps["platform"] == name], valid, scores, config, str(name), times
        )
        for name, cells in valid.groupby("platform", sort=False)
    }
    rows = []
    for claim in published.claims:
        base = {name: getattr(claim, name) for name in ("source", "statement", "remark")}
        base["claim"] = claim.id
        home = published.sources[claim.source].backend
        # A source without a backend here has no home: it is decided everywhere.
        everywhere = claim.scope == "everywhere" or home is None
        homes = {name for name in evidence if everywhere or Platform.parse(name).backend == home}
        if not claim.tests:
            untested = asdict(Judgement(NOT_MEASURED, gap=UNTESTED, gap_of=claim.untested))
            rows.append({**base, **untested, "control": False, "decides": True})
        for number, test in enumerate(claim.tests, 1):
            base["number"] = number
            rows += [{**base, **row} for row in _test_rows(config, claim, test, evidence, homes)]
            if claim.control in config.studies:
                again = test.model_copy(update={"studies": [claim.control]})
                made = _test_rows(config, claim, again, evidence, homes)
                rows += [{**base, **row, "control": True, "decides": False} for row in made]
    columns = ["claim", "source", "statement", "remark", "number", "test", "studies", "recipe"]
    columns += ["platform", *JUDGED, "confidence", "scale", "control", "decides"]
    return pd.DataFrame(rows, columns=columns)


def _test_rows(
    config: Config, claim: Claim, test: Estimator, evidence: Mapping[str, Evidence], homes: set[str]
) -> Iterator[dict[str, Any]]:
    """The rows of one test, a row for each platform on which it was made.

    `homes` are the platforms that decide. If it was made on none of them, one row has the reason.
    """
    judged = {name: judge(config, claim, test, runs) for name, runs in evidence.items()}
    made = {name: one for name, one in judged.items() if one.verdict != NOT_MEASURED}
    if not homes & made.keys():
        gaps = [one for name, one in judged.items() if name in homes]
        made[""] = gaps[0] if gaps else _no_run(claim)
    study = config.studies.get(test.study)
    for platform, one in made.items():
        yield {
            "test": test.kind,
            "studies": test.study,
            "recipe": study.recipe_name if study else "",
            "scale": _scale_of(claim, test, study) if study else "",
            "control": False,
            "decides": platform in homes or not platform,
            "platform": platform,
            **asdict(one),
            **_basis(test, one),
        }


def judge(config: Config, claim: Claim, test: Estimator, evidence: Evidence) -> Judgement:
    """The judgement of one test on one platform, from the runs that can speak for the claim.

    These runs are on the claim's device, are large enough, have learned enough, and have metrics
    that can change. If too few are left to make the test, the gap says why.
    """
    study = config.studies.get(test.study)
    barred = too_small(claim, test, study) if study else ""
    if claim.device:
        evidence = evidence.on(claim.device)
    if not barred and not (evidence.cells["study"] == test.study).any():
        return _no_run(claim)
    if test.of_seeds is not None:
        evidence = evidence.of_seeds(test.of_seeds)
    cells = evidence.cells
    still = untestable.is_constant(cells, test.named_metrics, of_mixing=test.of_mixing)
    constant = test.select(cells[still])
    evidence = replace(evidence, cells=cells[~still])
    short = find_short(evidence, test) if claim.past_oracle else evidence.cells.head(0)
    evidence = replace(evidence, cells=evidence.cells.drop(short.index))
    try:
        if barred:
            raise NotMeasured(TOO_SMALL)
        if not {*tasks.times()}.isdisjoint(test.named_metrics):  # it comes from a clock
            return judge_step_times(test, evidence.step_times, evidence.platform)
        return test.judge(evidence.of_depth(claim.minimum_scale_of(test).get("depth", 0)))
    except NotMeasured as gap:
        if barred or len(short):
            behind = _how_short(evidence.scores[test.study], short) if len(short) else ""
            why = "; ".join(filter(None, (barred, behind)))
            return Judgement(NOT_MEASURED, gap=TOO_SMALL, gap_of=why)
        if len(constant):
            variants = ", ".join(constant["variant"].unique())
            return Judgement(NOT_MEASURED, gap=IDENTITY, gap_of=variants)
        return gap.judgement


def _no_run(claim: Claim) -> Judgement:
    return Judgement(NOT_MEASURED, gap=NO_RUN, gap_of=DEVICES.get(claim.device, ""))


def too_small(claim: Claim, test: Estimator, study: Study) -> str:
    """The sizes of a study below the test's minimum scale, as in 'width 8 for 32'; else empty."""
    ours, below = _sizes(study, study.labels[0], study.depths), []
    for name, least in claim.minimum_scale_of(test, study.recipe_name).items():
        if name in ours and (size := max(ours[name])) < least:
            published = claim.scale.get(name)
            needed = published if isinstance(published, float) else least
            below.append(f"{name} {size:g} for {needed:g}")
    return ", ".join(below)


def find_short(evidence: Evidence, test: Estimator) -> pd.DataFrame:
    """The runs of a test's variants whose mean score is not better than the task oracle's.

    Means are over the seeds of a variant at a depth. Empty for a task whose runs do not measure
    an oracle.
    """
    score = evidence.scores[test.study]
    level = score.oracle.level if score.oracle else None

    def is_short(seeds: pd.DataFrame) -> bool:
        return isinstance(level, str) and not (
            score.sign * (seeds["score"].mean() - seeds[level].mean()) < 0
        )

    return test.select(evidence.cells).groupby(CELL, sort=False).filter(is_short)


def _how_short(score: Score, short: pd.DataFrame) -> str:
    """The best mean score, as in 'held-out loss 3.05 against 2.9 of …'."""
    means = short.groupby(CELL)["score"].mean()
    best = means.min() if score.better == "lower" else means.max()
    level = short[score.oracle.level].mean()
    return f"{score.label} {best:.3g} against {level:.3g} of {score.oracle.label}"


def _basis(test: Estimator, judged: Judgement) -> dict[str, Any]:
    if judged.verdict == NOT_MEASURED:
        return {"rests_on": None, "confidence": math.nan}
    rests_on = judged.rests_on or test.rests_on
    if rests_on == OVER_SEEDS and judged.seeds < MIN_SEEDS:
        rests_on = NO_INTERVAL
    # A range over turns has no confidence level.
    has_interval = rests_on in (OVER_SEEDS, OVER_RUNS)
    return {"rests_on": rests_on, "confidence": CONFIDENCE if has_interval else math.nan}


def verdicts_table(claims: pd.DataFrame) -> pd.DataFrame:
    """The table of claims: each with the verdict of its deciding rows and its limits.

    `undecided`: more seeds may decide it. `other_scale`: a study differs from the published run.
    `in_part`: a test could not be made. `control` is the verdict of the same tests in the study
    `control_study`, measured if every test could be made there; both are empty without one.
    """
    columns = ["claim", "source", "statement", "remark", "verdict", "undecided", "other_scale"]
    columns += ["seeds", "in_part", "elsewhere", "studies", "control_study", "control", "tests"]
    rows = (_verdict_row(tests) for _, tests in claims.groupby("claim", sort=False))
    return pd.DataFrame(rows, columns=columns)


def _verdict_row(tests: pd.DataFrame) -> dict[str, Any]:
    decides, control = tests["decides"], tests["control"]
    deciding, controls, others = tests[decides], tests[control], tests[~decides & ~control]
    verdict = combine_verdicts(deciding["verdict"])
    measured = deciding[deciding["verdict"] != NOT_MEASURED]
    open_ = measured[measured["verdict"] == NOT_REPRODUCED]
    # A platform on which only part of the tests could be made says nothing about the claim.
    on_platforms = {
        combine_verdicts(there["verdict"])
        for _, there in others.groupby("platform")
        if there["number"].nunique() == tests["number"].nunique()
    }
    lacks = (controls["verdict"] == NOT_MEASURED).any()
    return {
        **tests.iloc[0][["claim", "source", "statement", "remark"]],
        "verdict": verdict,
        "undecided": verdict == NOT_REPRODUCED and bool(open_["undecided"].all()),
        "other_scale": bool((measured["scale"].fillna("") != "").any()),
        "seeds": _seeds_behind(measured, verdict),
        "in_part": 0 < len(measured) < len(deciding),
        "elsewhere": ", ".join(sorted(on_platforms - {verdict, NOT_MEASURED})),
        "studies": join_values(deciding["studies"].dropna().unique()),
        "control_study": controls["studies"].iloc[0] if len(controls) else "",
        "control": ""
        if controls.empty
        else NOT_MEASURED
        if lacks
        else combine_verdicts(controls["verdict"]),
        "tests": len(measured),
    }


def _seeds_behind(measured: pd.DataFrame, verdict: str) -> int:
    """Number of seeds behind a verdict, by docs/definitions/verdicts.md; 0 without a test."""
    fails = verdict not in (REPRODUCED, NOT_MEASURED)
    rows = measured[measured["verdict"] == verdict] if fails else measured
    by_test = rows.groupby("number")["seeds"].max()
    if by_test.empty:
        return 0
    return int(by_test.max() if fails else by_test.min())


def _scale_of(claim: Claim, test: Estimator, study: Study) -> str:
    """The differences of a test's study from the published scale; empty if there are none.

    They are compared at the depths that the test looks at.
    """
    least = claim.minimum_scale_of(test).get("depth", 0)
    asked = [d for d in study.depths if d >= least and d in (test.depths or study.depths)]
    return _scale(claim.scale, study, study.labels[0], asked or study.depths)


# --- published figures beside ours --------------------------------------------------------------


def published_table(config: Config, summary: pd.DataFrame, published: Published) -> pd.DataFrame:
    """The table of published values: a row per value and platform, with our mean and interval.

    A published range is from `published` to `published_high`; both are equal for one number.
    `scale` lists the differences of our study from the published one; empty if there are none.
    `deviates`: by the function of that name; False for a time, which is from another machine.
    """
    columns = ["source", "study", "metric", "variant", "depth", "published", "published_high"]
    columns += ["platform", "mean", "low", "high", "n", "diverged", "deviates", "scale"]
    ours_of: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in summary.to_dict("records"):
        ours_of.setdefault(tuple(row[name] for name in CELL), []).append(row)
    rows = []
    for entry in published.values:
        study = config.studies.get(entry.study)
        cells = {
            variant: _at_our_depths(by_depth, study) for variant, by_depth in entry.cells.items()
        }
        depths = sorted({depth for by_depth in cells.values() for depth in by_depth})
        scale = _scale(entry.scale, study, next(iter(cells)), depths) if study else ""
        is_time = entry.metric in tasks.times()
        for variant, by_depth in cells.items():
            for depth, value in by_depth.items():
                labels = (entry.source, entry.study, entry.metric, variant, depth, *value)
                base = {**dict(zip(columns, labels, strict=False)), "scale": scale}
                for row in ours_of.get((entry.study, depth, variant), []):
                    ours = {part: row[f"{entry.metric}_{part}"] for part in ("mean", "low", "high")}
                    counts = {name: row[name] for name in ("platform", "n", "diverged")}
                    there = {"deviates": not is_time and deviates(value, **ours)}
                    rows.append({**base, **counts, **ours, **there})
                if (entry.study, depth, variant) not in ours_of:
                    rows.append(base)
    return pd.DataFrame(rows, columns=columns)


def _at_our_depths(by_depth: Mapping[int | str, Value], study: Study | None) -> dict[int, Value]:
    """The values by depth; a value for ANY depth is repeated at each depth of the study."""
    values: dict[int, Value] = {}
    for depth, value in by_depth.items():
        ours = study.depths if study else []
        values |= dict.fromkeys(ours if depth == ANY else [int(depth)], value)
    return values


def deviates(published: Value, mean: float, low: float, high: float) -> bool:
    """Whether a published value is outside our interval, `low` to `high`, or only one is finite.

    Half a unit of the last printed digit is allowed for rounding.
    """
    if not (math.isfinite(published.low) and math.isfinite(mean)):
        return math.isfinite(published.low) != math.isfinite(mean)
    # Where there is no interval, low and high are NaN, and no comparison holds.
    return high < published.low - rounding(published.low) or low > published.high + rounding(
        published.high
    )


# --- thresholds ---------------------------------------------------------------------------------

GOOD, BETWEEN, BAD = "good", "between", "bad"


def thresholds_table(cells: pd.DataFrame, published: Published) -> pd.DataFrame:
    """The table of thresholds: a row per threshold and group of seeds that has its metric.

    `grade` is the grade of the mean over seeds; `good` and `bad` count such runs among the `n`.
    """
    valid = counted(cells)
    rows = []
    for threshold in (t for t in published.thresholds if t.metric in valid):
        runs = valid[valid["study"].isin(threshold.studies)]
        runs = runs[runs[threshold.metric].notna()]
        runs = runs[~untestable.is_constant(runs, [threshold.metric])]
        for group, seeds in runs.groupby(GROUP, sort=False):
            if untestable.is_untrained_gate(seeds, threshold.metric):
                continue
            values = mean_with_ci(seeds[threshold.metric], tasks.bounds_of(threshold.metric))
            grades = [_grade(threshold, value) for value in seeds[threshold.metric]]
            rows.append(
                {
                    "source": threshold.source,
                    **dict(zip(GROUP, group, strict=True)),
                    "metric": threshold.metric,
                    "good_is": threshold.good.text,
                    "bad_is": threshold.bad.text,
                    **{part: values[part] for part in ("n", "mean", "low", "high")},
                    "grade": _grade(threshold, values["mean"]),
                    "good": grades.count(GOOD),
                    "bad": grades.count(BAD),
                }
            )
    columns = ["source", *GROUP, "metric", "good_is", "bad_is", "n", "mean", "low", "high"]
    return pd.DataFrame(rows, columns=[*columns, "grade", "good", "bad"])


def _grade(threshold: Threshold, value: float) -> str:
    if threshold.good.holds(value):
        return GOOD
    return BAD if threshold.bad.holds(value) else BETWEEN


# --- scales -------------------------------------------------------------------------------------


def _sizes(study: Study, variant: str, depths: Sequence[int]) -> dict[str, list[Any]]:
    """The settings that a scale may name, at each of the depths.

    The variant decides how many batches make a step.
    """
    study = study.of(variant)
    flat = {**study.model_dump(), **study.model.model_dump(), **study.optimizer.model_dump()}
    sizes = {name: _at_depths(value, depths) for name, value in flat.items()}
    if "length" in flat:
        sizes["tokens_per_step"] = [study.tokens_per_step_at(depth) for depth in depths]
    return {**sizes, "depth": list(depths)}


def _scale(published: dict[str, Any], study: Study, variant: str, depths: Sequence[int]) -> str:
    """The differences of our scale, such as 'width 32 for 256, steps 100 for 800'; may be empty.

    A setting may be one number or one for each depth; it is compared at the given depths.
    """
    ours = _sizes(study, variant, depths)
    differences = []
    for name, value in published.items():
        both = ours.get(name, [None]), _at_depths(value, depths)
        here, there = (_in_words(values) for values in both)
        if here != there:
            differences.append(f"{name} {here} for {there}")
    return ", ".join(differences)


def _in_words(values: Sequence[float | str | None]) -> str:
    texts = [f"{v:g}" if isinstance(v, int | float) else v or "none" for v in values]
    return texts[0] if len(set(texts)) == 1 else "/".join(texts)


def _at_depths(value: Any, depths: Sequence[int]) -> list[Any]:  # noqa: ANN401, any setting
    """The value of a setting at each depth; a setting has one value, or one for each depth."""
    return [value.get(depth) if isinstance(value, dict) else value for depth in depths]
