"""Named schemes and variants in words, for docs/schemes.md, `fathom schemes` and reports."""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from fathom.connections.connection import ConnectionContext
from fathom.connections.schemes import ABOUT, SCHEMES, resolve
from fathom.settings import ConfigError, Settings, join_values, unknown
from fathom_study import tasks
from fathom_study.config import AXES, Config, common_depth, count_parameters
from fathom_study.report.tables.formatting import count_layers, markdown_table, raise_powers

STREAMS = 4
CONTEXT = ConnectionContext(
    layers=12,
    width=128,
    pooled_axes=0,
    has_residual=False,
    per_block=2,
    optional_norms=True,
    takes_apart=True,
)
"""Network in which parameters are counted and `benchmarks/steps.py` measures schemes."""

COSTS = Path("benchmarks/schemes.csv")
MEASURE = f"python benchmarks/steps.py schemes --turns 3 --no-count --out {COSTS}"
COLUMNS = (
    "variant", "backend", "machine", "ratio", "ratio_low", "ratio_high", "operations", "bytes",
)  # fmt: skip
"""The kept table of step costs, the command that makes it, and the columns read here."""

_named = partial(resolve, names=SCHEMES, source="schemes")


# --- settings in words --------------------------------------------------------------------------


def in_words(value: Any, base: Any = None) -> str:  # noqa: ANN401, settings or a value
    """A value in words: of settings, kind and `differences`; empty if they have neither."""
    if isinstance(value, float | str):
        return f"{value:g}" if isinstance(value, float) else value
    if not isinstance(value, Settings | Mapping):
        return json.dumps(value, default=str)
    settings, kind = list_settings(value, base), getattr(value, "kind", "")
    return " ".join(filter(None, (kind, settings and f"({settings})")))


def list_settings(value: Settings | Mapping[str, Any], base: Any = None) -> str:  # noqa: ANN401
    """The `differences`, or all items of a mapping, as in 'tau 1, iterations 5'."""
    items = value.items() if isinstance(value, Mapping) else differences(value, base).items()
    return join_values(f"{name} {in_words(setting)}" for name, setting in items)


def differences(value: Settings, base: Any = None) -> dict[str, str]:  # noqa: ANN401
    """The settings that differ from those of `base`, or from defaults if it is of another kind.

    Without a base, a `start` lists every nonzero number, since defaults differ.
    """
    changed = {}
    for name, field in type(value).model_fields.items():
        own, is_like = getattr(value, name), type(base) is type(value)
        other = getattr(base, name) if is_like else None if name == "start" else field.default
        if name != "kind" and own != other and (words := in_words(own, other)):
            changed[name] = words
    return changed


def components(scheme: Settings) -> dict[str, str]:
    """The component in each slot of a scheme."""
    slots = (name for name in type(scheme).model_fields if name not in ("kind", "streams"))
    return {slot: in_words(getattr(scheme, slot)) for slot in slots}


def variant_rows(config: Config, study_name: str) -> Iterator[dict[str, str]]:
    """The scheme of each variant of a study, and its differences from scheme and study.

    `parameters`: number of learned parameters at the most common depth, the deepest on a tie;
    empty without a cell there. `layers`: that depth.
    """
    study = config.studies[study_name]
    cells = {(cell.depth, cell.variant) for cell in config.cells_of(study_name)}
    depth = common_depth(depth for depth, _ in cells)
    for label in study.compared:
        scheme, name = config.connection(study_name, label), config.scheme_name(study_name, label)
        base = _named(name, streams=study.streams) if name in SCHEMES else None
        settings, training = list_settings(scheme, base), list_settings(study.changes(label))
        count = ""
        if (depth, label) in cells:
            count = str(count_parameters(config.network(study_name, depth, label)))
        words = {"scheme": name, "settings": settings, "training": training}
        layers = count_layers(depth, tasks.presentation(study.task).depth_unit)
        yield {"variant": label, **words, "parameters": count, "layers": layers}


def study_settings(config: Config, name: str) -> dict[str, str]:
    """All settings of a study: its axes, and the spec of its first cell by path: 'optimizer.lr'.

    Settings of connections are left out: they belong to variants. Empty for a subset without cells.
    """
    cells = config.cells_of(name)
    if not cells:
        return {}
    study, spec = config.studies[name], config.spec(cells[0])
    axes = {axis: join_values(study.values(axis)) for axis in AXES if axis != "variants"}
    axes = {"variants": join_values(study.compared), **axes}
    own = {field.name for field in fields(spec.cell)}
    return axes | dict(_flat(spec.model_dump(mode="json", exclude=own | {"connection"})))


def _flat(settings: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield (path, value) of every nested setting."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{path}{name}.")
        else:
            text = value if isinstance(value, str) else raise_powers(json.dumps(value))
            yield f"{path}{name}", text


# --- named schemes ------------------------------------------------------------------------------


def about_schemes(costs: Path = COSTS) -> dict[str, dict[str, str]]:
    """Facts about each scheme besides its components, by name, in order.

    `costs`: the table of `benchmarks/steps.py schemes`, which may be missing.
    """
    measured, facts = read_costs(costs), {}
    for name, about in ABOUT.items():
        parameters = _named(name, streams=STREAMS).at(CONTEXT).parameters().values()
        count = sum(math.prod(parameter.shape) for parameter in parameters)
        facts[name] = {
            "source": about.source,
            "formula": about.formula,
            "starts plain": "yes" if about.starts_plain else "no",
            "released in": join_values(about.releases),
            "parameters": str(count),
            **measured.get(name, {}),
        }
    return facts


def read_costs(file: Path) -> dict[str, dict[str, str]]:
    """By scheme: operations, bytes, and step times by backend, over plain's. Raises ConfigError.

    The times are from one machine: `timed_on`.
    """
    costs: dict[str, dict[str, str]] = {}
    rows, machine = _rows_of_costs(file), timed_on(file)
    work = {row["variant"]: row for row in rows if row["operations"]}
    for name, row in work.items():
        for what in ("operations", "bytes"):
            ratio = int(row[what]) / int(work["plain"][what])
            costs.setdefault(name, {})[what] = f"{ratio:.3f}"
    for row in rows:
        if row["ratio"] and row["machine"] == machine:
            ratio, low, high = (float(row[key]) for key in ("ratio", "ratio_low", "ratio_high"))
            cost = f"{ratio:.2f} ({low:.2f} to {high:.2f})"
            costs.setdefault(row["variant"], {})[f"cost, {row['backend']}"] = cost
    costs.pop("plain", None)
    return costs


def timed_on(file: Path = COSTS) -> str:
    """The machine with most timings of schemes, the last on a tie; empty without timings."""
    timed = Counter(row["machine"] for row in reversed(_rows_of_costs(file)) if row["ratio"])
    return max(timed, key=timed.__getitem__, default="")


def _rows_of_costs(file: Path) -> list[dict[str, str]]:
    """The rows of the table of costs, none without it. Raises ConfigError if it lacks a column."""
    rows = list(csv.DictReader(file.read_text("utf-8").splitlines())) if file.is_file() else []
    if rows and not {*COLUMNS} <= rows[0].keys():
        raise ConfigError(f"{file}: needs columns {', '.join(COLUMNS)}; make it: {MEASURE}")
    return rows


def in_short() -> Iterator[tuple[str, str, str]]:
    """Yield name, source and formula of each named scheme."""
    for name in SCHEMES:
        about = ABOUT[name]
        others = len(about.releases) - 1
        is_more = others > 1  # a second one is the same model in another package
        yield name, f"{about.source}{f' and {others} more' if is_more else ''}", about.formula


def as_text() -> str:
    """All named schemes as paragraphs."""
    lines, about = [], about_schemes()
    for name in SCHEMES:
        facts = about.get(name, {}) | components(_named(name, streams=STREAMS))
        lines += [name, *(f"  {key}: {words}" for key, words in facts.items() if words)]
    return "\n".join([*lines, "docs/schemes.md explains these numbers."])


def as_yaml(name: str) -> str:
    """A scheme as `connections` of a config; several if networks use the name for different ones.

    Raises ConfigError for an unknown name.
    """
    short = (tasks.load(task).Network.names for task in tasks.TASKS)
    meant = [name] if name in SCHEMES else [names[name] for names in short if name in names]
    if not meant:
        raise ConfigError(unknown("scheme", name, SCHEMES))
    lines, about = ["connections:"], about_schemes()
    for own in dict.fromkeys(meant):
        lines += [f"  # {key}: {words}" for key, words in about.get(own, {}).items() if words]
        settings = _named(own, streams=STREAMS).model_dump(exclude={"streams"})
        lines.append(f"  {own}:")
        lines += [f"    {slot}: {json.dumps(value)}" for slot, value in settings.items()]
    return "\n".join(lines)


# --- docs/schemes.md ----------------------------------------------------------------------------


def schemes_table() -> str:
    """Table of schemes: source, formula, parameters and costs."""
    rows = about_schemes().items()
    quoted = {name: row | {"formula": f"`{row['formula']}`"} for name, row in rows}
    where = f"Times are those of `{machine}`.\n\n" if (machine := timed_on()) else ""
    return where + _table(quoted, '<a id="{0}"></a>`{0}`')


def components_tables() -> str:
    """Tables of the component in each slot, one for all schemes with the same slots."""
    rows = {name: components(_named(name, streams=STREAMS)) for name in SCHEMES}
    kinds = dict.fromkeys(tuple(row) for row in rows.values() if row)
    return "\n".join(_table({n: r for n, r in rows.items() if tuple(r) == k}) for k in kinds)


def _table(rows: Mapping[str, Mapping[str, str]], name: str = "`{0}`") -> str:
    """A table with a row for each scheme; `name`: how the first column writes a name."""
    head = list(dict.fromkeys(itertools.chain(*rows.values())))
    cells = ([name.format(of), *(row.get(key, "") for key in head)] for of, row in rows.items())
    return markdown_table(["scheme", *head], cells)
