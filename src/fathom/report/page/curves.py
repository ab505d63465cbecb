"""The curves of a study: values of steps.csv.gz for the page's script, which draws them."""

from __future__ import annotations

import base64
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from fathom import tasks
from fathom.analysis.platforms import Platform
from fathom.report.figures.frames import constant, first_nonfinite
from fathom.report.figures.panels import step_label
from fathom.report.figures.style import colour_of
from fathom.report.page.inline import as_json, packed

MOST_STEPS = 100
"""How many steps of a run are drawn, but for evaluations, of which there are few."""

DRAWN = ("every step", "evaluations")
"""When a metric is taken that is drawn: others are one number of a run."""

NOT_DRAWN = ("step", "step_seconds", "elapsed_seconds")
"""The axis itself, and what the clock says: it is of the machine and of the moment."""

ALWAYS = "loss"

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


@dataclass(frozen=True)
class Curves:
    """What there is to draw of a study."""

    study: str
    variants: dict[str, Look]
    """Every variant, in the order of the config."""
    metrics: list[dict[str, Any]]
    platforms: list[str]
    depths: list[int]
    data: Markup
    """With the runs: packed JSON."""


def curves_of(
    study: str,
    names: Sequence[str],
    steps: pd.DataFrame,
    summary: pd.DataFrame,
    labels: Mapping[str, str],
) -> Curves:
    """The curves of one study: `steps` are its rows, `names` its variants in order.

    `labels`: what people read for the name of a variant.
    """
    metrics = _metrics_in(steps)
    there = set(steps["variant"])
    variants = looks_of([name for name in names if name in there], labels)
    chance = constant(summary[summary["study"] == study], "chance_loss")
    data = {
        "variants": {name: asdict(look) for name, look in variants.items()},
        "metrics": {metric["name"]: metric for metric in metrics},
        "chance": {} if chance is None else {ALWAYS: chance},
        "runs": [
            _run(rows.sort_values("step"), [metric["name"] for metric in metrics])
            for _, rows in steps.groupby(["platform", "depth", "variant", "seed"], sort=False)
        ],
    }
    return Curves(
        study,
        variants,
        metrics,
        [Platform.parse(name).label for name in steps["platform"].unique()],
        sorted(map(int, steps["depth"].unique())),
        packed(as_json(data)),
    )


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


def _metrics_in(steps: pd.DataFrame) -> list[dict[str, Any]]:
    """The metrics of which there is a curve; one that is a constant of the study has none."""
    return [
        {
            "name": name,
            "label": " ".join(step_label(name, steps).split()),
            "title": step_label(name, steps).replace("\n", "<br>"),
            "log": metric.log,
            "sparse": metric.when == "evaluations",
        }
        for name, metric in tasks.step_metrics().items()
        if name in steps
        and name not in NOT_DRAWN
        and metric.when in DRAWN
        and (name == ALWAYS or steps[name].nunique() > 1)
    ]


def _run(rows: pd.DataFrame, metrics: Sequence[str]) -> dict[str, Any]:
    """One run: where it stands, and its values at the steps that are drawn."""
    first = rows.iloc[0]
    sparse = [m for m in metrics if tasks.step_metrics()[m].when == "evaluations"]
    evaluated = rows[sparse].notna().any(axis=1).to_numpy()
    shown = rows[_thinned(len(rows)) | evaluated]
    broken = first_nonfinite(rows)
    return {
        "platform": Platform.parse(first["platform"]).label,
        "depth": int(first["depth"]),
        "variant": first["variant"],
        "seed": int(first["seed"]),
        "broken": None if broken is None else {"step": broken[0], "what": broken[1]},
        "steps": [int(step) for step in shown["step"]],
        "values": {
            metric: encoded(shown[metric].to_numpy(float))
            for metric in metrics
            if np.isfinite(rows[metric].to_numpy(float)).any()
        },
    }


def _thinned(count: int) -> np.ndarray:
    """Which of so many are kept: at most MOST_STEPS, evenly spaced, with the first and the last."""
    steps = np.arange(count)
    return (steps % max(1, math.ceil((count - 1) / (MOST_STEPS - 1))) == 0) | (steps == count - 1)


def encoded(values: np.ndarray) -> dict[str, str]:
    """Numbers as bytes in base64, in single precision where that changes none of them.

    What is not finite becomes NaN: a gap. The first bytes of all numbers stand before the second
    ones: so they are alike, and take less room when packed.
    """
    gaps = np.where(np.isfinite(values), values, np.nan)
    with np.errstate(over="ignore"):
        single = gaps.astype("<f4")
    is_exact = np.array_equal(single.astype(float), gaps, equal_nan=True)
    kept = single if is_exact else gaps.astype("<f8")
    columns = kept.view(np.uint8).reshape(-1, kept.itemsize).T.tobytes()
    return {"dtype": kept.dtype.str[1:], "bytes": base64.b64encode(columns).decode()}
