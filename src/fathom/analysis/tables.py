"""Runs → tidy CSVs. Every number that a report shows is read from one of these.

A folder has the tables of all studies. Below it, in `studies/STUDY`, are the same tables with the
rows of one study, which its figures read: so a run of one study changes no figure of another. The
steps of runs are there alone.

Intervals and counts: docs/definitions.md, "Statistics".
"""

from __future__ import annotations

import gzip
import itertools
import math
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtrit  # of all of scipy.stats, which takes a second to load

from fathom import datasets, tasks
from fathom.analysis.platforms import Platform
from fathom.config import Config, Spec
from fathom.metrics.runs import significant, summarise
from fathom.metrics.scores import OUTCOMES, Score, score_midway
from fathom.metrics.steps import CLOCKS, POSITIVE, UNBOUNDED, Row, split_place
from fathom.runs.bundle import refused_bundles
from fathom.runs.folder import RunError, read_rows
from fathom.runs.run import COUNTED, Run
from fathom.runs.validate import find_runs
from fathom.system.errors import UserError
from fathom.system.files import write_bytes
from fathom.system.text import one_line

AXES = ["study", "depth", "variant", "backend", "seed"]
CELL = ["study", "depth", "variant"]
GROUP = [*CELL, "platform"]
"""What a row of the summary stands for: everything but the seed."""

TRAINED = ["recipe", "connection", "lr"]
"""How a variant was trained, and the name of the connection that it is made of."""


CONFIDENCE = 0.95
"""Of every interval."""

MIN_SEEDS = 3
"""Below this many values an interval would say more than is known: there is none."""

LEVEL = 3
"""Of gzip. The highest takes five times as long for six per cent less."""


class TableError(UserError):
    """A file that is no table of ours; the message names it and what makes it again."""


def write_tables(config: Config, folder: Path) -> None:
    """Write the tables of runs into `folder`. Raises RunError naming each corrupt run."""
    runs = find_runs(config)
    corrupt = [run for run in runs if run.status == "corrupt"]
    if corrupt:
        lines = [
            f"{run.folder}: {run.reason}; delete the folder and run it again" for run in corrupt
        ]
        raise RunError("\n".join(lines))
    rows = {run.folder: read_rows(run.folder) for run in runs if run.counts}
    cells = cells_table(config, runs, rows)
    summary = summary_table(cells)
    tables = {
        "cells.csv": cells,
        "summary.csv": summary,
        PROFILES: profiles_table(runs, rows),
        "comparison.csv": comparison_table(cells, summary),
        "platforms.csv": platforms_table(runs),
    }
    save_tables(tables, folder, config.studies)
    for study in config.studies:
        steps = steps_table([run for run in runs if run.cell.study == study], rows)
        save_tables({STEPS: steps}, of_study(folder, study))


def of_study(folder: Path, study: str) -> Path:
    """Where the tables of one study are, in the folder of the tables of all."""
    return folder / "studies" / study


def save_tables(tables: dict[str, pd.DataFrame], folder: Path, studies: Iterable[str] = ()) -> None:
    """Write tables by file name, each all at once; those in BY_STUDY also for each of `studies`.

    A table with a row for each run or step (it has a column `seed`) holds what runs recorded, to
    the last digit. In any other, numbers have as many digits as are the same on every processor.
    What clocks measured is in the tables of TIMES alone: so what does not show times is the same
    when a run is repeated.
    """
    pattern = f"({'|'.join((*CLOCKS, *tasks.times()))})(_(n|mean|sd|low|high|fastest))?"
    files = {}
    for name, table in tables.items():
        of_clocks = [column for column in table if re.fullmatch(pattern, column)]
        files[name] = table.drop(columns=of_clocks)
        if name in TIMES:
            own, keys = TIMES[name]
            files[own] = table[[*keys, *of_clocks]]
    for name, table in files.items():
        table = _edit_text(table if "seed" in table else _rounded(table), FORMULA, r"'\g<0>")
        content = table.to_csv(index=False).encode()
        # No name or time inside the archive: the same runs make the same bytes.
        packed = gzip.compress(content, LEVEL, mtime=0) if name.endswith(".gz") else content
        write_bytes(folder / name, packed)
        for study in studies if name in BY_STUDY else ():
            own = table[table["study"] == study].to_csv(index=False).encode()
            write_bytes(of_study(folder, study) / name, own)


FORMULA, PLAIN_FORMULA = re.compile(r"^'*[=+\-@]"), re.compile(r"^'(?='*[=+\-@])")
"""Of a text: a spreadsheet would compute what begins so. With a quote before it it is text."""


def _edit_text(table: pd.DataFrame, pattern: re.Pattern[str], new: str) -> pd.DataFrame:
    """The table with this replaced in every text; numbers stay numbers."""

    def edit(value: object) -> object:
        return pattern.sub(new, value) if isinstance(value, str) else value

    edited = {}
    for name in table.select_dtypes(exclude=["number", "bool"]).columns:
        texts = table[name].tolist()
        # Hardly any column has one, and pandas takes longer for a column than Python for its rows.
        if any(isinstance(text, str) and pattern.match(text) for text in texts):
            edited[name] = table[name].map(edit)
    return table.assign(**edited)


def _rounded(table: pd.DataFrame) -> pd.DataFrame:
    """The table with every fraction rounded as `significant` does."""
    fractions = table.select_dtypes("float")
    # All at once: pandas takes as long for a column as Python for a hundred numbers.
    rounded = np.array([significant(value) for value in fractions.to_numpy().ravel().tolist()])
    rounded = pd.DataFrame(rounded.reshape(fractions.shape), table.index, fractions.columns)
    return pd.concat([table.drop(columns=fractions.columns), rounded], axis=1)[list(table)]


STEPS, PROFILES = "steps.csv.gz", "profiles.csv"

BY_STUDY = (
    "cells.csv",
    "summary.csv",
    "times_summary.csv",
    PROFILES,
    "effects.csv",
    "effective_depth.csv",
)
"""Tables that are also there for each study alone: what its figures read, besides its steps."""

STEP_TIMES = "step_times.csv"
"""What `benchmarks/steps.py studies` makes; a config says where it is."""

TEXT = (
    "key", "study", "variant", "against", "connection", "backend", "platform", "platform_a",
    "platform_b", "machine", "answer", "plain_depths", "plain_diverged",
    "status", "reason", "outcome", "score_metric", "made_by", "question", "at_edge",
    "framework_version", "python", "numpy", "depths", "metric", "unit", "gap", "gap_of", "part",
)  # fmt: skip
"""Columns of text that could look like a number, or be empty."""

TIMES = {
    "cells.csv": ("times.csv", [*AXES, "platform"]),
    "summary.csv": ("times_summary.csv", GROUP),
}
"""By table, the one that has its times, row by row, and what names a row there."""

COLUMNS = {
    "cells.csv": ["key", *AXES, *TRAINED, "platform", "machine", "status", "reason", "outcome",
                  "score_metric", "score", "score_chance", "chance_loss", "steps"],
    "summary.csv": [*GROUP, "n"],
    STEPS: [*AXES, "platform", "step", "loss"],
    PROFILES: [*AXES, "platform", "metric", "at", "value"],
    "comparison.csv": [*CELL, "platform_a", "platform_b"],
    "platforms.csv": ["platform", "machine", "backend", "runs"],
    "verdicts.csv": ["claim", "verdict", "undecided", "studies"],
    "claims.csv": ["claim", "verdict", "confidence", "scale", "gap"],
    "answers.csv": ["question", "part", "outcome", "answer", "evidence", "link"],
    "effects.csv": [*CELL, "platform", "question", "against", "metric", "verdict"],
    "effective_depth.csv": [*CELL, "platform", "answer"],
    "published.csv": ["source", *CELL, "metric", "platform", "published", "mean", "deviates"],
    "thresholds.csv": ["source", *GROUP, "metric", "grade"],
    "trajectories.csv": [*CELL, "platform_a", "platform_b"],
    "variance.csv": ["depth", "variant", "recipe_share", "platform_share", "seed_share",
                     "other_share"],
    "variance_summary.csv": ["factor", "median", "decides"],
    STEP_TIMES: ["study", "depth", "variant", "backend", "machine", "seconds", "low", "high"],
    **dict(TIMES.values()),
}  # fmt: skip
"""What tables have whatever they are of, by file name."""


MAKE_AGAIN = "run: fathom tables, then: fathom claims"


def read_table(file: Path, remedy: str = MAKE_AGAIN, name: str = "") -> pd.DataFrame:
    """A table as written. Text stays text, and an empty text is not a missing number.

    `name`: of the table that it stands for, where the file is called otherwise. Raises TableError,
    with the remedy, for a file that is no such table.
    """
    try:
        # Only what is empty is missing: a variant may be called `nan`. Given types of columns and
        # not functions, pandas would take three times as long for a wide table.
        table = pd.read_csv(
            file, converters=dict.fromkeys(TEXT, str), keep_default_na=False, na_values=[""]
        )
    except (ValueError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        why = f"cannot be read ({one_line(str(error))})"
        raise TableError(f"{file}: {why}; {remedy}") from error
    if lacking := [column for column in COLUMNS.get(name or file.name, ()) if column not in table]:
        raise TableError(f"{file}: has no column '{lacking[0]}'; {remedy}")
    texts = {name: table[name].astype(str).fillna("") for name in table if name in TEXT}
    table = table.assign(**texts)
    flags = {name: table[name].map(FLAGS).astype(object) for name in table if name in OPTIONAL}
    return _edit_text(table.assign(**flags), PLAIN_FORMULA, "")


FLAGS = {True: True, False: False, "True": True, "False": False}
OPTIONAL = ("better",)
"""Columns that say yes or no, and in some rows neither."""


def read_steps(folder: Path, studies: Iterable[str]) -> pd.DataFrame:
    """The steps of these studies, given the folder of the tables of all."""
    tables = [read_table(of_study(folder, study) / STEPS) for study in studies]
    # Columns of an empty table have no type of their own.
    return pd.concat([t for t in tables if len(t)] or tables[:1], ignore_index=True)


def read_with_times(file: Path) -> pd.DataFrame:
    """A table of TIMES with its times. Raises TableError if they are of other rows."""
    own, keys = TIMES[file.name]
    table, times = read_table(file), read_table(file.with_name(own))
    if not table[keys].astype(str).equals(times[keys].astype(str)):
        raise TableError(f"{file.with_name(own)}: does not fit {file.name}; {MAKE_AGAIN}")
    return table.join(times.drop(columns=keys))


def _table(rows: Sequence[Mapping[str, Any]], name: str) -> pd.DataFrame:
    """These rows; of none, an empty table with the columns that a table of this name has."""
    return pd.DataFrame(rows, columns=None if rows else COLUMNS[name])


def select(
    table: pd.DataFrame,
    studies: Sequence[str],
    variants: Sequence[str],
    depths: Sequence[int] | None = None,
) -> pd.DataFrame:
    """The rows of these studies, variants and depths (None: all)."""
    chosen = table["study"].isin(studies) & table["variant"].isin(variants)
    return table[chosen & (table["depth"].isin(depths) if depths else True)]


# --- one row per run ---------------------------------------------------------------------------


Rows = Mapping[Path, Sequence[Row]]
"""The rows of every run that counts, by the run's folder."""


def _axes(run: Run) -> dict[str, Any]:
    return {axis: getattr(run.cell, axis) for axis in AXES}


def platform_of(run: Run) -> str:
    """The key of where a run was measured; empty if its numbers do not count."""
    imported_from = run.platform if run.status == "imported" else ""
    return Platform(run.cell.backend, imported_from).name if run.counts else ""


def cells_table(config: Config, runs: Sequence[Run], rows: Rows) -> pd.DataFrame:
    """A row for every run: axes, platform, status, and the run metrics of those that count."""
    table = pd.DataFrame([_cell_row(config, run, rows.get(run.folder)) for run in runs])
    # Or what is written of a run would depend on whether another one is missing.
    return table.astype({"steps": "Int64", "first_nonfinite_step": float})


def _cell_row(config: Config, run: Run, rows: Sequence[Row] | None) -> dict[str, Any]:
    study, variant = config.studies[run.cell.study], run.cell.variant
    of_variant = study.of(variant)
    columns = tasks.run_metrics(tuple(sorted({s.task for s in config.studies.values()})))
    measured = run_metrics(config.spec(run.cell), rows, study.score) if rows else {}
    return {
        "key": run.cell.path(),
        **_axes(run),
        "recipe": of_variant.recipe_name,
        "connection": study.connection_name(variant),
        "lr": of_variant.optimizer.lr,
        "platform": platform_of(run),
        "machine": run.platform,
        "status": run.status,
        "reason": run.reason or _why_missing(config, run),
        **{name: measured.get(name) for name in (*FIRST, *columns, *LAST)},
    }


FIRST = ("outcome", "score_metric", "score", "score_midway", "score_chance")
LAST = ("chance_loss", "steps")


def run_metrics(spec: Spec, rows: Sequence[Row], judged_by: tasks.JUDGED_BY) -> dict[str, Any]:
    """The numbers of a whole run by the name of their column, its score and its outcome."""
    outcome, value = tasks.outcome_of(spec, rows, judged_by)
    score = tasks.score_of(spec.task, judged_by)
    return {
        "outcome": outcome,
        "score_metric": score.metric,
        # An accuracy is finite even where no logit is: it would count as 0 %.
        "score": None if outcome == "diverged" else value,
        "score_midway": score_midway(rows, tasks.run_metrics()[score.metric]),
        "score_chance": significant(score.chance(spec)),
        **summarise(rows, tasks.run_metrics()),
        "chance_loss": significant(tasks.load(spec.task).chance_loss(spec)),
        "steps": len(rows),
    }


def _why_missing(config: Config, run: Run) -> str:
    """Of a cell without a run: a bundle that was refused, or why its data are unavailable."""
    if run.status != "missing":
        return ""
    if refused := refused_bundles(Path(config.results)):
        return f"a bundle was refused, {'; '.join(refused)}"
    if not config.train:
        return ""
    dataset = config.studies[run.cell.study].dataset
    return datasets.unavailable(dataset) if dataset else ""


def counted(cells: pd.DataFrame) -> pd.DataFrame:
    """The rows of the table of cells whose numbers count."""
    return cells[cells["status"].isin(COUNTED)]


def steps_table(runs: Iterable[Run], rows: Rows) -> pd.DataFrame:
    """A row for every step of every run that counts, without its profiles."""
    steps = [
        {**_axes(run), "platform": platform_of(run), **without_profiles(row)}
        for run in runs
        for row in rows.get(run.folder, ())
    ]
    return _table(steps, STEPS)


def without_profiles(row: Row) -> Row:
    """The numbers of a step that are none of a profile."""
    return {name: value for name, value in row.items() if split_place(name)[1] is None}


def profiles_table(runs: Iterable[Run], rows: Rows) -> pd.DataFrame:
    """A row for every number of every profile of every run that counts."""
    found = []
    for run in runs:
        of_run = {**_axes(run), "platform": platform_of(run)}
        for row in rows.get(run.folder, ()):
            for name, value in row.items():
                metric, at = split_place(name)
                if at is not None:
                    found.append({**of_run, "metric": metric, "at": at, "value": value})
    return _table(found, PROFILES)


SYSTEM = ("os", "cpu", "python", "numpy", "threads")
"""What platforms.csv has of a run's manifest."""


def platforms_table(runs: Iterable[Run]) -> pd.DataFrame:
    """A row for every platform, machine and version of software that runs were measured with.

    `made_by`: of imported runs, the code that made them.
    """
    rows = []
    for run in filter(lambda run: run.counts, runs):
        device, manifest = run.manifest.device, run.manifest
        rows.append(
            {
                "platform": platform_of(run),
                "machine": run.platform,
                "backend": run.cell.backend,
                "framework_version": device.framework_version,
                "device": device.name,
                "kind": device.kind,
                "driver": device.driver or "",
                "blas": device.blas or "",
                **{name: getattr(manifest, name) for name in SYSTEM},
                "made_by": manifest.made_by if run.replay else "",
            }
        )
    if not rows:
        return _table(rows, "platforms.csv")
    table = pd.DataFrame(rows)
    return table.groupby(list(table), dropna=False).size().reset_index(name="runs")


# --- one row per group of seeds ----------------------------------------------------------------


def summary_table(cells: pd.DataFrame) -> pd.DataFrame:
    """Seeds summarised: a row per study × depth × variant × platform.

    For every metric that is averaged, what `mean_with_ci` says of it: `_n`, `_mean`, `_sd`, `_low`
    and `_high`. Of a time also `_fastest`, the shortest: other work on the machine only adds to it.
    """
    rows = []
    for group, seeds in counted(cells).groupby(GROUP, sort=False):
        outcomes = seeds["outcome"].value_counts()
        row = {
            **dict(zip(GROUP, group, strict=True)),
            **seeds.iloc[0][["backend", *TRAINED]],
            "n": len(seeds),
            **{name.replace(" ", "_"): int(outcomes.get(name, 0)) for name in OUTCOMES},
            **seeds.iloc[0][["chance_loss", "score_metric", "score_chance"]],
            "steps": int(seeds["steps"].iloc[0]),
        }
        score = {"score": tasks.bounds_of(row["score_metric"])}
        for metric, bounds in (score | _averaged_in(seeds)).items():
            found = mean_with_ci(seeds[metric], bounds)
            if metric in tasks.times():
                found["fastest"] = seeds[metric].min()
            row |= {f"{metric}_{part}": value for part, value in found.items()}
        rows.append(row)
    return _table(rows, "summary.csv")


def _averaged_in(cells: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """The run metrics that this table of cells has and summary.csv averages, with their bounds."""
    return {name: bounds for name, bounds in tasks.averaged().items() if name in cells}


def t_interval(values: pd.Series | np.ndarray) -> dict[str, float]:
    """n, mean, sd and 95 % half-width (Student's t) of the finite values.

    Below MIN_SEEDS values there is no interval: its half-width is NaN.
    """
    finite = _finite(values).tolist()
    n = len(finite)
    mean = _sum(finite) / n if n else math.nan
    sd = math.sqrt(_sum((v - mean) * (v - mean) for v in finite) / (n - 1)) if n > 1 else math.nan
    half = math.nan
    if n >= MIN_SEEDS:
        half = float(stdtrit(n - 1, 0.5 + CONFIDENCE / 2)) * sd / math.sqrt(n)
    return {"n": n, "mean": mean, "sd": sd, "ci95_half": half}


def scores_of(config: Config) -> dict[str, Score]:
    """What each study's results are judged by."""
    return {name: tasks.score_of(s.task, s.score) for name, s in config.studies.items()}


def loss_units(config: Config) -> dict[str, str]:
    """The unit of each study's loss."""
    return {name: tasks.presentation(s.task).loss_unit for name, s in config.studies.items()}


def is_ratio(metric: str) -> bool:
    """Whether two values of a run metric are compared by their ratio, and not by the difference."""
    return tasks.bounds_of(metric) == POSITIVE


def to_scale(values: pd.Series, *, ratio: bool) -> pd.Series:
    """Values on the scale on which they are compared: log10 of those compared by their ratio."""
    return log10(values) if ratio else pd.to_numeric(values)


def log10(values: pd.Series) -> pd.Series:
    """Of a metric of runs; NaN where a run has none, or it is zero.

    The last digit of NumPy's own depends on the processor, and differences of logarithms may have
    few other digits.
    """
    numbers = pd.to_numeric(values)
    positive = numbers.where(numbers > 0).astype(float)
    return positive.map(math.log10, na_action="ignore")


def differences(one: pd.Series, other: pd.Series, *, ratio: bool) -> pd.Series:
    """How far values are from others on the scale of `to_scale`.

    Of nearly equal ones the logarithm of the ratio has digits that two logarithms have lost.
    """
    one, other = pd.to_numeric(one), pd.to_numeric(other)
    if not ratio:
        return one - other
    return log10(one.where(one > 0) / other.where(other > 0))


def _finite(values: pd.Series | np.ndarray) -> np.ndarray:
    """The numbers among them. A NumPy array: small pandas series take ten times as long."""
    found = np.asarray(values, dtype=float)
    return found[~np.isnan(found)]


def _sum(values: Iterable[float]) -> float:
    """The sum, rounded once, so that no processor's order of additions is in it.

    Otherwise the spread of nearly equal values has no digit that is the same everywhere.
    """
    given = list(values)
    return math.fsum(given) if all(map(math.isfinite, given)) else sum(given)


FARTHEST = 200
"""Powers of ten from the mean: no axis has room for more."""


def mean_with_ci(values: pd.Series, bounds: tuple[float, float] = UNBOUNDED) -> dict[str, float]:
    """n, mean and sd of the finite values of a metric, and the ends of its 95 % interval.

    Of a positive metric the mean is the geometric one, and the interval that of the logarithm. If
    a value is 0, which has none, and for every other metric, both are the arithmetic ones. An
    interval never passes `bounds`. Below MIN_SEEDS values its ends are NaN.
    """
    finite = _finite(values)
    plain = t_interval(finite)
    n, mean, half = plain["n"], plain["mean"], plain["ci95_half"]
    if n and bounds == POSITIVE and (finite > 0).all():
        # Relative to one of them, so that equal values have exactly their mean.
        unit = float(finite[0])
        found = t_interval(np.log10(finite / unit))
        logs = np.array([found["mean"] - found["ci95_half"], found["mean"],
                         found["mean"] + found["ci95_half"]])  # fmt: skip
        low, mean, high = map(float, unit * 10.0 ** logs.clip(-FARTHEST, FARTHEST))
    else:
        low, high = (float(np.clip(end, *bounds)) for end in (mean - half, mean + half))
    return {"n": n, "mean": mean, "sd": plain["sd"], "low": low, "high": high}


def comparison_table(cells: pd.DataFrame, summary: pd.DataFrame) -> pd.DataFrame:
    """A row per study × depth × variant and pair of platforms.

    Step-0 differences are the largest over common seeds: relative, |a − b| / |b|, for loss and
    gradient norm, absolute for the gain, which is a logarithm. NaN where a side is not finite.
    """
    rows = []
    for a, b in itertools.combinations(summary["platform"].unique(), 2):
        left, right = (summary.loc[summary["platform"] == side, CELL] for side in (a, b))
        both = left.merge(right)
        for _, pair in both.iterrows():
            row = {**pair[CELL], "platform_a": a, "platform_b": b}
            same = cells[(cells[CELL] == pair[CELL].tolist()).all(axis=1)]
            one, other = (same[same["platform"] == side] for side in (a, b))
            seeds = one.merge(other, on="seed", suffixes=("_a", "_b"))
            row["seeds"] = len(seeds)
            for metric in ("loss_first", "grad_norm_first", "gain_first"):
                x, y = (pd.to_numeric(seeds[f"{metric}_{side}"]) for side in "ab")
                scale = 1 if metric == "gain_first" else y.abs()
                row[f"{metric}_difference"] = ((x - y).abs() / scale).max(skipna=False)
            rows.append(row)
    return _table(rows, "comparison.csv")
