"""What the explorer of the page draws: steps and cells of a study, packed for the page's script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from fathom import tasks
from fathom.metrics import Score
from fathom.report.figures.frames import constant, first_nonfinite
from fathom.report.figures.panels import run_label, score_label, step_label
from fathom.report.figures.style import colour_of
from fathom.report.page.inline import as_json, packed

EVENLY, EARLY = 25, 15
"""How many steps of a study are drawn: evenly spaced, and ever closer towards the first."""

HALF = np.uint32(1 << 6)
"""Half of the last of 16 bits of a number in single precision, which has 23."""

EXTREMES = ("loss", "grad_norm")
"""The metrics whose lowest and highest values of a run are drawn, at whatever step."""

DRAWN = ("every step", "evaluations")
"""When a metric is taken that is drawn against step: others are one number of a run."""

NOT_DRAWN = ("step", "step_seconds", "elapsed_seconds")
"""The axis itself, and what the clock says: it is of the machine and of the moment."""

ALWAYS = "loss"
SCORE = "score"
RUN = ["platform", "depth", "variant", "seed"]

DASHES = ("none", "8px,3px", "2px,3px", "8px,3px,2px,3px", "16px,4px", "16px,4px,2px,4px")
"""Of the first variant of a colour, of the second …; further ones are ever longer."""

SWATCH = "M2 6H38"
"""The line of a variant in a legend, as SVG has it."""


@dataclass(frozen=True)
class Look:
    """What a variant is called, and how its lines look: no two of a study look the same."""

    label: str
    colour: str
    dash: str


def packed_study(
    names: Sequence[str],
    plain: str | None,
    steps: pd.DataFrame,
    cells: pd.DataFrame,
    score: Score,
    labels: Mapping[str, str],
    depth_unit: str = "layer",
) -> Markup:
    """The curves of one study: a line of JSON, then all numbers.

    `names`: its variants in order, `plain` that which others are compared with; `steps` and `cells`
    its rows; `labels`: what people read for the names of variants and platforms; `depth_unit`: what
    depth counts, in the singular.
    """
    runs = {key: rows.sort_values("step") for key, rows in steps.groupby(RUN, sort=False)}
    ends = cells.set_index(RUN).reindex(list(runs)).reset_index()
    against_step = _step_metrics(steps)
    against_depth = _run_metrics(ends, score)
    grid = thinned(int(steps["step"].max()) + 1)
    drawn = [_drawn(rows, grid, against_step) for rows in runs.values()]
    shown = [tuple(map(int, rows["step"])) for rows in drawn]
    grids = list(dict.fromkeys(shown))  # most runs share one
    for metric in against_step:
        has = [np.isfinite(rows[metric["name"]].to_numpy(float)).any() for rows in runs.values()]
        metric["runs"] = np.flatnonzero(has).tolist()
    there = set(steps["variant"])
    looks = looks_of([name for name in names if name in there], labels)
    head = {
        "variants": {name: asdict(look) for name, look in looks.items()},
        "plain": plain if plain in there else None,
        "depth_unit": depth_unit,
        "platforms": {name: labels.get(name, name) for name in steps["platform"].unique()},
        "metrics": {"step": against_step, "depth": against_depth},
        "chance": {
            "step": {ALWAYS: constant(ends, "chance_loss")},
            "depth": {SCORE: constant(ends, "score_chance")},
        },
        "grids": grids,
        "runs": [
            _described(rows, reason) | {"grid": grids.index(own)}
            for rows, own, reason in zip(runs.values(), shown, ends["reason"], strict=True)
        ],
    }
    numbers = [drawn[run][metric["name"]] for metric in against_step for run in metric["runs"]]
    numbers += [ends[metric["name"]] for metric in against_depth]
    return packed(as_json(head).encode() + b"\n" + encoded(np.concatenate(numbers)))


def looks_of(names: Sequence[str], labels: Mapping[str, str]) -> dict[str, Look]:
    """How the variants of a study look. A dash tells those apart that share a colour.

    A label that two of them share has the name beside it.
    """
    called = Counter(labels.get(name, name) for name in names)
    drawn: Counter[str] = Counter()
    looks = {}
    for name in names:
        label, colour = labels.get(name, name), colour_of(name)
        earlier = drawn[colour]
        dash = DASHES[earlier] if earlier < len(DASHES) else f"{4 * earlier}px,3px"
        drawn[colour] += 1
        looks[name] = Look(label if called[label] == 1 else f"{label} ({name})", colour, dash)
    return looks


def _step_metrics(steps: pd.DataFrame) -> list[dict[str, Any]]:
    """The metrics of which there is a curve; one that is a constant of the study has none."""
    return [
        _metric(name, step_label(name, steps), log=metric.log)
        | {"sparse": metric.when == "evaluations"}
        for name, metric in tasks.step_metrics().items()
        if name in steps
        and name not in NOT_DRAWN
        and metric.when in DRAWN
        and (name == ALWAYS or steps[name].nunique() > 1)
    ]


def _run_metrics(cells: pd.DataFrame, score: Score) -> list[dict[str, Any]]:
    """The score, and every other number of a run that is not the same in all of them."""
    judged = tasks.step_metrics()[tasks.run_metrics()[score.metric].of]
    others = (
        _metric(name, run_label(name, cells), log=tasks.step_metrics()[metric.of].log)
        for name, metric in tasks.run_metrics().items()
        if name in cells and name not in tasks.times() and cells[name].nunique() > 1
    )
    return [_metric(SCORE, f"score: {score_label(score)}", log=judged.log), *others]


def _metric(name: str, label: str, *, log: bool) -> dict[str, Any]:
    words = " ".join(label.split())
    return {"name": name, "label": words, "title": label.replace("\n", "<br>"), "log": log}


def _described(rows: pd.DataFrame, reason: str) -> dict[str, Any]:
    """Where a run stands, what it was made by, and where it stopped being finite."""
    first, broken = rows.iloc[0], first_nonfinite(rows)
    return {
        "platform": first["platform"],
        "backend": first["backend"],
        "depth": int(first["depth"]),
        "variant": first["variant"],
        "seed": int(first["seed"]),
        "reason": reason if isinstance(reason, str) else "",
        "broken": None if broken is None else {"step": broken[0], "what": broken[1]},
    }


def thinned(count: int) -> set[int]:
    """Which of so many steps are drawn of every run, with the first and the last."""
    evenly = np.linspace(0, count - 1, EVENLY)
    early = np.geomspace(1, count, EARLY) - 1
    return set(np.concatenate([evenly, early]).round().astype(int).tolist())


def _drawn(
    rows: pd.DataFrame, grid: Iterable[int], metrics: Sequence[Mapping[str, Any]]
) -> pd.DataFrame:
    """The rows of one run that are drawn: steps of the grid, evaluations, extremes, the last."""
    sparse = [metric["name"] for metric in metrics if metric["sparse"]]
    kept = rows["step"].isin(list(grid)) | rows[sparse].notna().any(axis=1)
    kept.iloc[-1] = True
    for name in EXTREMES:
        finite = rows[name].astype(float).replace([np.inf, -np.inf], np.nan).dropna()
        kept[[*finite.nsmallest(1).index, *finite.nlargest(1).index]] = True
    return rows[kept]


def encoded(values: np.ndarray) -> bytes:
    """Numbers in single precision, rounded to 16 bits, five digits; what is not finite is a gap.

    The first bytes of all numbers stand before the second ones: so they are alike, and take less
    room when packed; the last ones are nearly all zero.
    """
    with np.errstate(over="ignore"):
        single = values.astype("<f4")
    bits = single.view("<u4")
    bits[:] = (bits + HALF) & ~(2 * HALF - np.uint32(1))
    single[~np.isfinite(single)] = np.nan
    return single.view(np.uint8).reshape(-1, single.itemsize).T.tobytes()
