"""From tests to verdicts: published.csv, claims.csv and verdicts.csv.

Definitions: docs/definitions.md, "Verdicts".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd

from fathom.analysis.claims.published import Claim, Published
from fathom.analysis.claims.rules import (
    CONTRADICTED,
    NOT_MEASURED,
    NOT_REPRODUCED,
    REPRODUCED,
    Evidence,
    not_measured,
)
from fathom.analysis.places import PLACE, Place
from fathom.analysis.tables import MIN_SEEDS, read_table, save_tables
from fathom.config import Config
from fathom.settings import listed


def write_claims(config: Config, published: Published, folder: Path) -> None:
    """Write published.csv, claims.csv and verdicts.csv beside the tables they are made from."""
    cells, steps, summary = (
        read_table(folder / name) for name in ("cells.csv", "steps.csv.gz", "summary.csv")
    )
    claims = claims_table(config, cells, steps, published)
    tables = {
        "published.csv": published_table(config, summary, published),
        "claims.csv": claims,
        "verdicts.csv": verdicts_table(claims),
    }
    save_tables(tables, folder)


# --- verdicts -----------------------------------------------------------------------------------


def claims_table(
    config: Config, cells: pd.DataFrame, steps: pd.DataFrame, published: Published
) -> pd.DataFrame:
    """A row per claim, test and place, with verdict, numbers and reason."""
    counted = cells[cells["status"].isin(["measured", "imported"])]
    places = [Place(*row) for row in counted[PLACE].drop_duplicates().itertuples(index=False)]
    evidence = {place: Evidence.at(place, counted, steps) for place in places}
    rows = []
    for claim in published.claims:
        base = {"claim": claim.id, "source": claim.source, "says": claim.says}
        home = published.sources[claim.source].backend
        if not claim.tests:
            reason = "what it needs is not part of this project yet"
            untested = {"verdict": NOT_MEASURED, "interval": False, "reason": reason}
            rows.append({**base, **untested, "decides": True})
        for test in claim.tests:
            known = [config.studies[name] for name in test.studies if name in config.studies]
            scale = _scale_of(claim, known)
            recipes = ", ".join(dict.fromkeys(study.recipe_name for study in known))
            judged = [(place, test.judge(found)) for place, found in evidence.items()]
            # A source without a backend here has no home: it is decided everywhere.
            homes = {p for p in places if claim.holds == "everywhere" or home in (None, p.backend)}
            # Where no home was measured there is one line, not one for each place.
            seen = [(p, j) for p, j in judged if j.verdict != NOT_MEASURED]
            if not homes & {p for p, _ in seen}:
                gaps = [j for p, j in judged if p in homes]
                nowhere = gaps[0] if gaps else not_measured(listed(test.studies))
                seen.append((Place("", "", ""), nowhere))
            for place, judgement in seen:
                decides = place in homes or not place.backend
                rows.append(
                    {
                        **base,
                        "test": test.kind,
                        "studies": listed(test.studies),
                        "recipe": recipes,
                        **asdict(place),
                        **asdict(judgement),
                        "interval": test.uses_interval,
                        "scale": scale,
                        "decides": decides,
                    }
                )
    columns = ["claim", "source", "says", "test", "studies", "recipe", *PLACE, "verdict"]
    columns += ["observed", "ci95_half", "published", "seeds", "interval", "scale", "decides"]
    columns += ["reason"]
    return pd.DataFrame(rows, columns=columns)


def verdicts_table(claims: pd.DataFrame) -> pd.DataFrame:
    """A row per claim: the verdict of the rows that decide it.

    Contradicted if one of them is, else not reproduced if one of them is, else reproduced if one
    is, else not measured. `qualifier` says what a reader must know beside it.
    """
    rows = []
    for claim, tests in claims.groupby("claim", sort=False):
        deciding = tests[tests["decides"].astype(bool)]
        found = set(deciding["verdict"])
        order = (CONTRADICTED, NOT_REPRODUCED, REPRODUCED, NOT_MEASURED)
        verdict = next((v for v in order if v in found), NOT_MEASURED)
        measured = deciding[deciding["verdict"] != NOT_MEASURED]
        qualifiers = []
        if not measured.empty and (measured["scale"].fillna("") != "").any():
            qualifiers.append("at another scale")
        seeds = int(measured["seeds"].min()) if not measured.empty else 0
        if 0 < seeds < MIN_SEEDS:
            qualifiers.append("one run" if seeds == 1 else f"{seeds} runs")
        if not measured.empty and (deciding["verdict"] == NOT_MEASURED).any():
            qualifiers.append("in part")
        others = tests[~tests["decides"].astype(bool)]
        elsewhere = sorted(set(others["verdict"]) - {verdict, NOT_MEASURED})
        rows.append(
            {
                "claim": claim,
                "source": tests["source"].iloc[0],
                "says": tests["says"].iloc[0],
                "verdict": verdict,
                "qualifier": ", ".join(qualifiers),
                "elsewhere": ", ".join(elsewhere),
                "tests": len(measured),
            }
        )
    columns = ["claim", "source", "says", "verdict", "qualifier", "elsewhere", "tests"]
    return pd.DataFrame(rows, columns=columns)


def _scale_of(claim: Claim, studies: Sequence[Any]) -> str:
    """How the studies of a test differ from the published scale; empty if none does."""
    found = [scale_difference(claim.scale, s.model_dump(), s.depths) for s in studies]
    return "; ".join(dict.fromkeys(text for text in found if text))


# --- published figures beside ours --------------------------------------------------------------


def published_table(config: Config, summary: pd.DataFrame, published: Published) -> pd.DataFrame:
    """A row per published value and place that measured its cell, with our mean and half-width.

    `scale` says how our study differs from the published one; it is empty where they agree.
    `deviates` says whether the published value lies outside our interval (both finite or not).
    """
    rows = []
    for entry in published.values:
        study = config.studies.get(entry.study)
        depths = sorted({depth for by_depth in entry.cells.values() for depth in by_depth})
        scale = scale_difference(entry.scale, study.model_dump(), depths) if study else ""
        for variant, by_depth in entry.cells.items():
            for depth, value in by_depth.items():
                base = {
                    "source": entry.source,
                    "study": entry.study,
                    "measure": entry.measure,
                    "variant": variant,
                    "depth": depth,
                    "published": value,
                    "scale": scale,
                }
                cell = [entry.study, depth, variant]
                found = summary[(summary[["study", "depth", "variant"]] == cell).all(axis=1)]
                if found.empty:
                    rows.append(base)
                for _, row in found.iterrows():
                    mean, half = (row[f"{entry.measure}_{part}"] for part in ("mean", "ci95_half"))
                    rows.append(
                        {
                            **base,
                            **row[PLACE],
                            "mean": mean,
                            "ci95_half": half,
                            "n": row["n"],
                            "diverged": row["diverged"],
                            "deviates": deviates(value, mean, half),
                        }
                    )
    columns = ["source", "study", "measure", "variant", "depth", "published", *PLACE]
    columns += ["mean", "ci95_half", "n", "diverged", "deviates", "scale"]
    return pd.DataFrame(rows, columns=columns)


def deviates(published: float, mean: float, ci95_half: float) -> bool:
    """Whether a published value is outside our interval, or only one of the two is finite.

    Half a unit of the last printed digit is allowed for rounding. Without an interval a value
    deviates by more than that alone.
    """
    if not (math.isfinite(published) and math.isfinite(mean)):
        return math.isfinite(published) != math.isfinite(mean)
    rounding = 0.5 * 10.0 ** int(Decimal(repr(published)).as_tuple().exponent)
    return abs(published - mean) > (0.0 if math.isnan(ci95_half) else ci95_half) + rounding


def scale_difference(published: dict[str, Any], ours: dict[str, Any], depths: Iterable[int]) -> str:
    """How our scale differs, as in 'width 32 for 256, steps 100 for 800'; empty if it does not.

    A setting may be one number or one for each depth; it is compared at the given depths.
    """
    depths = list(depths)
    flat = {**ours, **ours["model"], **ours["optimizer"]}
    flat["depth"] = dict(zip(depths, depths, strict=True))
    differences = []
    for name, value in published.items():
        here, there = (_at_depths(v, depths) for v in (flat.get(name), value))
        if here != there:
            differences.append(f"{name} {here} for {there}")
    return ", ".join(differences)


def _at_depths(value: float | dict[int, float], depths: Iterable[int]) -> str:
    values = [value.get(d) if isinstance(value, dict) else value for d in depths]
    texts = ["none" if v is None else f"{v:g}" for v in values]
    return texts[0] if len(set(texts)) == 1 else "/".join(texts)
