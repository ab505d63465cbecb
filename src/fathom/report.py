"""Tables → RESULTS.md and COMPARISON.md.

Python here only looks up and formats what the tables hold; the words are in report/templates. A
name that a template misspells is an error, not a blank; so is a digit, or a word that judges, that
does not come from an expression.
"""

from __future__ import annotations

import math
import os
import re
import traceback
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from fathom.attribution import APART
from fathom.claims import CONFIDENCE, MIN_SEEDS, NOT_MEASURED, VERDICTS, Published
from fathom.files import write_text
from fathom.runs import AT_CHANCE, WILD_GRADIENT
from fathom.study import Config, ConfigError, Study, VisionModel
from fathom.tables import PLACE, Place, read_table
from fathom.train import PUBLISHED_DEPTH

TABLES = (
    "cells", "summary", "comparison", "platforms", "trajectories", "variance", "variance_summary",
    "published", "claims", "verdicts",
)  # fmt: skip


def write_reports(config: Config, published: Published, templates: Path, folder: Path) -> None:
    """Fill every template `NAME.md.j2` into `NAME.md` in `folder`, from the tables in it.

    Raises ConfigError naming the template and the line if it cannot be filled, or says by itself
    what only an expression may say.
    """
    check_prose(templates)
    tables = {name: read_table(folder / "tables" / f"{name}.csv") for name in TABLES}
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701, the output is Markdown
    )
    environment.filters |= {"number": number, "largest": largest, "percent": percent}
    context = {
        "studies": [StudyView(name, s, tables) for name, s in config.studies.items()],
        "platforms": records(tables["platforms"]),
        "left_out": left_out(tables["cells"]),
        "sources": published.sources,
        "notes": published.notes,
        "verdicts": VerdictsView(tables["verdicts"], tables["claims"]),
        "attribution": AttributionView(tables["variance"], tables["variance_summary"]),
        "pm": plus_minus,
        "ms": 1000,
        "apart": f"{APART:g}",
        "confidence": round(100 * CONFIDENCE),
        "min_seeds": MIN_SEEDS,
        "at_chance": round(100 * AT_CHANCE),
        "wild_gradient": f"{WILD_GRADIENT:g}",
        "raw_start": 5,
        "published_depth": PUBLISHED_DEPTH,
        # From where the reports belong, which may be deeper than the default results folder.
        "docs": Path(os.path.relpath(templates.parent.parent / "docs", config.results)).as_posix(),
    }
    for file in sorted(templates.glob("*.md.j2")):
        try:
            text = environment.get_template(file.name).render(context)
        except jinja2.TemplateSyntaxError as error:
            # The file may be one that this one imports.
            where = f"{error.filename or file}: line {error.lineno}"
            raise ConfigError(f"{where}: {error.message}") from error
        except jinja2.TemplateError as error:
            raise ConfigError(f"{_place_of(error) or file}: {error}") from error
        write_text(folder / file.name.removesuffix(".j2"), text)


def _place_of(error: jinja2.TemplateError) -> str:
    """The template and the line that raised it: Jinja puts its templates into the traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{f.filename}: line {f.lineno}" for f in frames if f.filename.endswith(".j2")]
    return places[-1] if places else ""


# --- what a template may say by itself ----------------------------------------------------------

NOT_PROSE = re.compile(
    r"\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}"  # Jinja's own
    r"|`[^`\n]*`"  # names
    r"|\]\([^)\n]*\)|<[^>\n]*>",  # where links lead
    re.DOTALL,
)


def check_prose(templates: Path) -> None:
    """Refuse a template with a digit, or a word that judges, outside an expression.

    The words are in judging_words.txt beside the folder of templates. Raises ConfigError, one line
    for each find, naming template and line.
    """
    file = templates.parent / "judging_words.txt"
    lines = file.read_text(encoding="utf-8").splitlines()
    words = {word for line in lines if not line.startswith("#") for word in line.split()}
    finds = []
    for template in sorted(templates.glob("*.j2")):
        source = template.read_text(encoding="utf-8")
        # Blanked rather than removed, so that line numbers stay.
        prose = NOT_PROSE.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), source)
        for number_, line in enumerate(prose.splitlines(), start=1):
            for word in re.findall(r"[A-Za-z]+|[0-9][0-9.]*", line):
                if word[0].isdigit():
                    finds.append(f"{template}: line {number_}: the number {word} is typed by hand")
                elif word.lower() in words:
                    finds.append(f"{template}: line {number_}: '{word}' judges; compute it")
    if finds:
        raise ConfigError("\n".join(finds))


# --- what a template may ask --------------------------------------------------------------------


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table as dicts."""
    return table.to_dict("records")


def left_out(cells: pd.DataFrame) -> list[dict[str, Any]]:
    """Cells that no table counts, grouped by study, backend, status and reason."""
    out = cells[~cells["status"].isin(["measured", "imported"])]
    groups = out.groupby(["study", "backend", "status", "reason"], sort=False)
    return records(groups.size().reset_index(name="cells"))


NOT_ALWAYS = ("stream_", "overflow_", "grad_norm_H_", "mixing_")
"""Measures that a run may lack: it has no streams, or nothing overflows."""


class StudyView:
    """What a template may ask about one study."""

    def __init__(self, name: str, study: Study, tables: dict[str, pd.DataFrame]) -> None:
        self.name = name
        self.study = study
        self.tables = {k: t[t["study"] == name] for k, t in tables.items() if "study" in t}
        # The line of the CSV that a row came from, to link to; the header is the first.
        self.summary = self.tables["summary"].copy().assign(line=lambda t: t.index + 2)

    @property
    def is_measured(self) -> bool:
        """Whether any run of the study counts."""
        return not self.summary.empty

    @property
    def backends_not_run(self) -> list[str]:
        """Backends that the study names and no run counts for."""
        return [b for b in self.study.backends if b not in set(self.summary["backend"])]

    @property
    def places(self) -> list[Place]:
        """Where the study was measured."""
        return [
            Place(*row) for row in self.summary[PLACE].drop_duplicates().itertuples(index=False)
        ]

    @property
    def variants(self) -> list[str]:
        """The variants measured, in the order of the config."""
        return [v for v in self.study.variants if v in set(self.summary["variant"])]

    @property
    def depths(self) -> list[int]:
        """The depths measured, in ascending order."""
        return sorted(self.summary["depth"].unique())

    @property
    def seeds(self) -> int:
        """The largest number of seeds behind any value."""
        return int(self.summary["n"].max())

    @property
    def steps(self) -> int:
        """Optimiser steps of a run."""
        return self.study.steps

    @property
    def scale(self) -> str:
        """The sizes, in the letters of docs/definitions.md."""
        model, batch = self.study.model, self.study.batch_size
        if isinstance(batch, dict):
            batch = " / ".join(f"{size} at {depth}L" for depth, size in batch.items())
        if isinstance(model, VisionModel):
            sizes = f"W {model.width}, S {model.streams}, dropout {model.dropout:g}"
        else:
            sizes = (
                f"V {model.vocab}, T {model.length}, D {model.width}, H {model.heads}, "
                f"F {model.hidden}, S {model.streams}"
            )
        optimizer = self.study.optimizer
        return (
            f"{sizes}, B {batch}, {self.study.steps} steps, lr {optimizer.lr:g} "
            f"({optimizer.schedule}), decay {optimizer.weight_decay:g}"
        )

    @property
    def chance_accuracy(self) -> float:
        """The accuracy of guessing."""
        return math.exp(-float(self.summary["chance_loss"].iloc[0]))

    def row(self, depth: int, variant: str, place: Place) -> dict[str, Any] | None:
        """The summary of one group of seeds, or None if it was not measured."""
        s = self.summary
        wanted = [depth, variant, *astuple(place)]
        found = s[(s[["depth", "variant", *PLACE]] == wanted).all(axis=1)]
        return None if found.empty else found.iloc[0].to_dict()

    def value(self, depth: int, variant: str, place: Place, measure: str) -> str:
        """Mean ± half-interval over seeds, or what stood in its way, linked to its row."""
        row = self.row(depth, variant, place)
        if row is None:
            return "not run here"
        mean, half, finite = (row[f"{measure}_{part}"] for part in ("mean", "half", "n"))
        if finite == 0 and measure.startswith(NOT_ALWAYS):
            return "none"
        return f"[{plus_minus(mean, half, finite, row['n'])}](tables/summary.csv#L{row['line']})"

    def failed(self, variant: str, depth: int) -> tuple[int, int]:
        """How many runs of a variant did not learn, of how many, over all places."""
        s = self.summary
        rows = s[(s["variant"] == variant) & (s["depth"] == depth)]
        return int((rows["diverged"] + rows["at_chance"]).sum()), int(rows["n"].sum())

    def first_row(self, variant: str, depth: int) -> dict[str, Any] | None:
        """The summary at the first place that has an overflow to tell of, else at the first."""
        rows = [r for p in self.places if (r := self.row(depth, variant, p))]
        return next((r for r in rows if r["overflow_layer_n"]), rows[0] if rows else None)

    def mean_text(self, variant: str, depth: int, measure: str) -> str:
        """The mean at every place, once if they print alike."""
        rows = [self.row(depth, variant, place) for place in self.places]
        texts = [number(row[f"{measure}_mean"]) for row in rows if row]
        return " / ".join(dict.fromkeys(texts)) or "not run here"

    def greatest(self, variant: str) -> dict[str, float] | None:
        """The maximum over cells and seeds of what is logged about streams and gradients."""
        c = self.tables["cells"]
        rows = c[(c["variant"] == variant) & (c["outcome"] == "learned")]
        names = ("stream_difference_max", "grad_norm_H_res_max", "grad_norm_max")
        return {name: float(rows[name].max()) for name in names} if len(rows) else None

    @property
    def deepest_figure(self) -> str:
        """The name of the head-to-head figure."""
        return f"{max(self.depths)}l_comparison"

    def trajectories(self, a: Place, b: Place) -> list[dict[str, Any]]:
        """How the losses at two places part."""
        t = self.tables["trajectories"]
        sides = [f"{name}_{side}" for side in "ab" for name in PLACE]
        return records(t[(t[sides] == [*astuple(a), *astuple(b)]).all(axis=1)])

    def failures(self) -> Iterator[dict[str, Any]]:
        """Groups in which a run did not learn, with the counts and the place."""
        for row in records(self.summary):
            if row["diverged"] or row["at_chance"]:
                yield {**row, "place": Place(*(row[name] for name in PLACE))}

    def pairs(self) -> Iterator[tuple[Place, Place, list[dict[str, Any]]]]:
        """Every two places that were compared, with their rows of the comparison table."""
        table = self.tables["comparison"]
        sides = [[f"{name}_{side}" for name in PLACE] for side in "ab"]
        if table.empty:
            return
        for key, rows in table.groupby([*sides[0], *sides[1]], sort=False):
            yield Place(*key[: len(PLACE)]), Place(*key[len(PLACE) :]), records(rows)

    def published(self) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
        """(source, how our scale differs, rows): a row holds ours by the label of the place."""
        for source, table in self.tables["published"].groupby("source", sort=False):
            rows = []
            for key, values in table.groupby(["measure", "depth", "variant"], sort=False):
                ours = {
                    Place(*(v[name] for name in PLACE)).label: _marked(v)
                    for v in records(values)
                    if v["backend"]
                }
                named = dict(zip(("measure", "depth", "variant"), key, strict=True))
                rows.append({**named, "published": values["published"].iloc[0], "ours": ours})
            scales = table["scale"].dropna()
            yield source, "" if scales.empty else scales.iloc[0], rows


class VerdictsView:
    """What a template may ask about the claims."""

    order = VERDICTS

    def __init__(self, verdicts: pd.DataFrame, claims: pd.DataFrame) -> None:
        self.rows = records(verdicts.astype(object).fillna(""))
        self.claims = claims.assign(line=claims.index + 2)

    def named(self, verdict: str) -> list[dict[str, Any]]:
        """The claims with that verdict."""
        return [row for row in self.rows if row["verdict"] == verdict]

    def tests_of(self, claim: str) -> Iterator[dict[str, Any]]:
        """The rows of the table of claims that belong to one claim."""
        rows = self.claims[self.claims["claim"] == claim]
        for row in records(rows):
            yield {**row, "place": Place(*(row[name] for name in PLACE))}

    def scales_of(self, claim: str) -> list[str]:
        """How the tests of one claim differ from the published scale, where they do."""
        measured = self.claims[self.claims["verdict"] != NOT_MEASURED]
        scales = measured.loc[measured["claim"] == claim, "scale"].fillna("")
        return [scale for scale in scales.unique() if scale]

    @property
    def tests(self) -> int:
        """How many tests were made."""
        return int((self.claims["verdict"] != NOT_MEASURED).sum())

    @property
    def expected_by_chance(self) -> float:
        """How many of them would fail by chance alone, were all claims true."""
        return self.tests * (1 - CONFIDENCE)


class AttributionView:
    """What a template may ask about recipe, platform and seed."""

    def __init__(self, variance: pd.DataFrame, summary: pd.DataFrame) -> None:
        self.variance = records(variance)
        self.summary = records(summary) if len(variance) else []

    def of(self, factor: str) -> dict[str, Any]:
        """The summary of one factor."""
        return next(row for row in self.summary if row["factor"] == factor)


def _marked(row: dict[str, Any]) -> str:
    text = plus_minus(row["mean"], row["half"])
    return f"**{text}**" if str(row["deviates"]) == "True" else text


# --- numbers as text ----------------------------------------------------------------------------


def number(value: float, digits: int = 3) -> str:
    """A number in few digits; NaN as such."""
    if value is None or math.isnan(value):
        return "NaN"
    return f"{value:.{digits}g}".replace("-", "−")


def largest(rows: list[dict[str, Any]], column: str) -> float:
    """The largest finite value of a column; NaN if there is none."""
    return max((r[column] for r in rows if not math.isnan(r[column])), default=math.nan)


def percent(share: float) -> str:
    """A share as a percentage, as in '93 %'; below half a percent as such."""
    if math.isnan(share):
        return "NaN"
    return f"{100 * share:.0f} %" if share >= 0.005 else "<0.5 %"


def plus_minus(mean: float, half: float, finite: int | None = None, n: int | None = None) -> str:
    """Mean ± half-interval, the interval in two digits and the mean to the same place.

    `finite` of `n` values were finite; fewer than all is said. Without an interval (fewer than
    three values) the mean stands alone.
    """
    note = ""
    if finite is not None and n is not None and finite < n:
        if finite == 0:
            return f"NaN ({int(n)} of {int(n)})"
        note = f" (NaN: {int(n - finite)} of {int(n)})"
    if math.isnan(mean):
        return "NaN"
    if math.isnan(half):
        return number(mean) + note
    if half == 0:  # a constant of the initialisation, say
        return f"{number(mean, 5)} ± 0{note}"
    exponent = math.floor(math.log10(abs(mean))) if mean else 0
    # At most five digits of the mean: an interval can be far below what anyone needs to read.
    decimals = min(4 - exponent, 1 - math.floor(math.log10(half)))
    scale = exponent if exponent < -3 or exponent > 4 else 0
    places = max(0, decimals + scale)
    centre, width = (f"{x / 10**scale:.{places}f}" for x in (mean, half))
    if float(width) == 0:
        width = f"<{10.0**-places:.{places}f}"
    text = f"{centre} ± {width}".replace("-", "−")
    return (f"({text})·10^{scale}".replace("^-", "^−") if scale else text) + note
