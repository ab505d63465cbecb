"""Tables made by hand, for tests of the code that reads them."""

import math
import statistics
import zlib

import pandas as pd

from fathom.settings import validate
from fathom_study import tasks
from fathom_study.analysis.claims import Published
from fathom_study.analysis.effective_depth import effective_depth_table
from fathom_study.analysis.effects import effects_table
from fathom_study.analysis.pair_verdicts import verdicts_of
from fathom_study.analysis.platforms import Platform
from fathom_study.analysis.tables import STEPS, of_study, save_tables
from fathom_study.analysis.worth import worth_table
from tests.support.runs import CPU_PLATFORM

CHANCE = math.log(64)
"""The chance level of the 64 tokens of STUDY."""

T975 = {
    1: 12.706204736, 2: 4.302652730, 3: 3.182446305, 4: 2.776445105, 5: 2.570581836,
    7: 2.364624252,
}  # fmt: skip
"""Student's t, 97.5 %, by degrees of freedom: from a printed table."""

T_ROUNDING = 1e-8
"""Relative tolerance, because T975 has ten digits."""


def half_width(values):
    """Half of the 95 % interval of the mean, from the formula and the printed table."""
    n = len(values)
    return T975[n - 1] * statistics.stdev(values) / math.sqrt(n)


# --- rows of tables ------------------------------------------------------------------------------


def run(variant="mhc", depth=8, seed=0, study="a", backend="torch", machine="", **values):
    """A row of cells.csv; metrics that are not given are NaN.

    `machine`: machine of an imported run; empty for a run made here. The score is the final loss
    by default.
    """
    row = {
        "key": f"{study}/{depth}L/{variant}/{backend}/seed{seed}",
        "study": study,
        "depth": depth,
        "variant": variant,
        "backend": backend,
        "seed": seed,
        "recipe": "mlx-defaults",
        "connection": variant,
        "lr": 0.002,
        "platform": Platform(backend, machine).name,
        "machine": machine or CPU_PLATFORM,
        "made_by": "commit 0d34bb1" if machine else "",
        "status": "imported" if machine else "measured",
        "reason": "",
        "outcome": "learned",
        **dict.fromkeys(tasks.run_metrics(), math.nan),
        "score_metric": "exact_loss",
        "score": values.get("loss_final", math.nan),
        "score_chance": CHANCE,
        "nonfinite_total": 0,
        "chance_loss": CHANCE,
        "steps": 3,
    }
    strange = set(values) - set(row)
    assert not strange, f"no column {strange}"
    return {**row, **values}


def seeds(metric, values, **axes):
    """A run for each value of a metric: seed 0 has the first."""
    return [run(seed=seed, **{metric: value}, **axes) for seed, value in enumerate(values)]


def curve(
    losses, variant="mhc", depth=8, seed=0, study="a", backend="torch", machine="", column="loss"
):
    """The rows of steps.csv of one run."""
    axes = {"study": study, "depth": depth, "variant": variant, "backend": backend, "seed": seed}
    axes["platform"] = Platform(backend, machine).name
    rows = []
    for step, value in enumerate(losses):
        names = {"loss": 1.0, "grad_norm": 1.0, "gain_proxy_log10_max_entry": 0.0}
        rows.append({**axes, "step": step, **names, column: value})
    return rows


def unlike_others(rows):
    """The steps of a run, with losses scaled by a factor unique to its variant."""
    factor = 1 + 1e-9 * zlib.crc32(rows[0]["variant"].encode()) / 2**32
    return [{**row, "loss": row["loss"] * factor} for row in rows]


def groundless(published):
    """Published claims without minimum scale: networks in these tables are tiny."""
    free = {"minimum_scale": {}, "past_oracle": False}
    claims = [claim.model_copy(update=free) for claim in published.claims]
    return published.model_copy(update={"claims": claims})


SOURCES = {
    "lab": {"title": "A lab", "platform": "some GPU", "backend": "torch"},
    "elsewhere": {"title": "Elsewhere", "platform": "not stated"},
}


def published_with(*claims, values=(), thresholds=()):
    """Published claims; each dict overrides fields of a claim of the lab."""
    base = {"source": "lab", "statement": "It is so."}
    entries = [{**base, "id": f"claim-{n}", **claim} for n, claim in enumerate(claims)]
    data = {"sources": SOURCES, "notes": [], "values": list(values), "claims": entries}
    data["thresholds"] = list(thresholds)
    return validate(Published, data, "published.yaml")


def frame(*groups):
    """Rows, or lists of rows, as a table."""
    rows = []
    for group in groups:
        rows += group if isinstance(group, list) else [group]
    return pd.DataFrame(rows)


def save_by_study(tables, folder, studies=("a",)):
    """Write tables by file name as `write_tables` does, with a file of steps per study."""
    steps = tables[STEPS]
    save_tables({k: v for k, v in tables.items() if k != STEPS}, folder, studies)
    for study in studies:
        steps[steps["study"] == study].to_csv(of_study(folder, study) / STEPS, index=False)


def step_times(folder, *rows):
    """Write step times measured in turns; rows override defaults. Low and high equal the time."""
    base = {"study": "a", "depth": 8, "backend": "torch", "machine": CPU_PLATFORM, "turns": 3,
            "width": 16, "operations": "", "bytes": ""}  # fmt: skip
    every = [{**base, "low": row["seconds"], "high": row["seconds"], **row} for row in rows]
    pd.DataFrame(every).to_csv(folder / "times.csv", index=False)
    return str(folder / "times.csv")


def table_of_worth(config, cells):
    """Table worth.csv of a table of cells."""
    depths = effective_depth_table(config, cells)
    return worth_table(config, cells, depths, verdicts_of(config, cells))


def table_of_effects(config, cells):
    """Table effects.csv of a table of cells."""
    return effects_table(config, cells, verdicts_of(config, cells))
