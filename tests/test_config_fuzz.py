"""Any config can be planned, or is refused in a few lines: no traceback, no hang."""

import copy
import json
import math
import time

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fathom import tasks
from fathom.cli.options import read_config
from fathom.config import Cell, ConfigError, check_config, load_config
from fathom.models.connections.components import CLOSINGS, COEFFICIENTS, EXPANSIONS, GATES, WEIGHTS
from fathom.models.connections.constraints import CONSTRAINTS
from fathom.models.connections.scales import INITIALS, NORMS, SCALES
from fathom.models.connections.schemes import KINDS, SCHEMES

CONFIG = yaml.safe_load("""
results: results
connections:
  own:
    connection: mhc_demo
    pre: {kind: raw, start: {"on": 1.0, "off": 0.0, stream: cycle}}
    H_res: {kind: sinkhorn, iterations: 5, floor: 1.0e-6}
    gate: {kind: learned, start: 0.1}
    close: {kind: readout, map: softmax}
  past: {kind: causal, constraint: exp}
studies:
  deep:
    {description: The words that say what it is., task: tokens, recipe: torch-defaults, part: deep,
     score: training_loss, streams: 4, depths: [2, 3], backends: [torch, mlx], seeds: [0, 1],
     exclude: [{depth: 3, seed: 1}], steps: 9, batch_size: {"2": 4, "3": 2},
     variants: [baseline, {mine: {connection: own, streams: 2, steps: 5, model: {width: 4}}}, past],
     model: {vocab: 16, length: 4, width: 8, heads: 2, hidden: 16},
     optimizer: {lr: 0.002, schedule: cosine, warmup_steps: 2}}
  images:
    {task: fashion, recipe: {embedding: unit, attention: linear, bias_correction: true},
     variants: [resnet, mhc], depths: [2], backends: [torch], seeds: [0], steps: 3, batch_size: 8,
     model: {width: 8, dropout: 0.1, normalise: false}, optimizer: {lr: 0.01}, weights: false}
seeds: null
compute: {device: cpu, mlx_blas: auto, preload: true, checkpoint_seconds: 3.5}
assume_backends: false
""")

SECONDS = 20
"""The longest that any config may take, on a slow and busy machine."""


class Raw(str):
    """YAML as it stands; other values are written as JSON."""

    __slots__ = ()


def written(value):
    """One line of YAML."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{written(k)} : {written(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def with_value(path, value):
    """CONFIG with another value at a path of keys."""
    data = section = copy.deepcopy(CONFIG)
    *parents, key = path.split(".")
    for parent in parents:
        section = section[parent]
    section[key] = value
    return data


def outcome(read):
    """The config that `read` gives, planned, or None; the lines that refuse it otherwise."""
    start = time.perf_counter()
    try:
        config = read()
    except ConfigError as error:
        lines = str(error).splitlines()
        assert 1 <= len(lines) <= 21
        assert all(line.isprintable() and 10 < len(line) < 2500 for line in lines), lines
        return lines
    finally:
        assert time.perf_counter() - start < SECONDS
    cells = config.cells()
    assert 0 < len(cells) == len(set(cells))
    for cell in cells[:30]:
        spec = config.spec(cell)
        assert spec.cell == cell == Cell.parse(cell.path())
        network = tasks.Problem(spec).network
        assert sum(math.prod(p.shape) for p in network.parameters().values()) <= 10**10
        spec.json().encode()
    # What the workflow keeps of it is read as the same.
    kept = config.model_dump_json(exclude={"compute"})
    again = check_config((yaml.safe_load if len(kept) < 9000 else json.loads)(kept))
    assert [again.spec(c).hash() for c in cells[:30]] == [config.spec(c).hash() for c in cells[:30]]
    assert again.report_folder == config.report_folder
    return None


@pytest.fixture(scope="module")
def outcome_of(tmp_path_factory):
    """The outcome of a config that is written as YAML."""
    file = tmp_path_factory.mktemp("fuzz") / "my.yaml"

    def of(text):
        file.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
        lines = outcome(lambda: load_config([file]))
        assert not lines or lines[0].startswith(f"{file}: ")
        return lines

    return of


# --- the corpus ----------------------------------------------------------------------------------


REFUSED = {
    # (path, value): words of the line that refuses it
    "an impossible date": ("studies.deep.steps", Raw("2024-13-45"), "integer"),
    "an unknown tag": ("studies.deep.steps", Raw("!!python/name:os.system x"), "malformed YAML"),
    "beyond every float": ("studies.deep.optimizer.lr", Raw("1.0e+999"), "finite"),
    "a surrogate as a key": ("studies.deep.variants", Raw(r'[{"\ud800": mhc}]'), "variants.0"),
    "a folder that is a file": ("results", "/etc/passwd", "not a folder"),
    "a folder with braces": ("results", "a{b}", "hold braces"),
    "the folder itself": ("results", "./", "must name a folder of its own"),
    "a variant that is a number": ("studies.deep.variants", Raw("[{12: mhc}]"), "YAML reads 12"),
    "an excluded seed": ("studies.deep.exclude", [{"seed": 9}], "exclude.0.seed: unknown seed 9"),
    "more than the data set": ("studies.images.batch_size", 60_001, "60000 examples of fashion"),
    "an impossible vocabulary": ("studies.deep.model.vocab", 10**13, "1.6e+14 parameters"),
    "impossibly many streams": (
        "studies.deep.variants", [{"m": {"connection": "mhc", "streams": 10**9}}], "parameters"
    ),
    "1.2 million cells": ("studies.images.seeds", list(range(20_001)), "cells are more than 20000"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_mistake_is_refused_in_one_line(outcome_of, case):
    path, value, expected = REFUSED[case]
    lines = outcome_of(written(with_value(path, value)))
    assert lines, "accepted"
    assert expected in lines[0]
    assert lines[1:] == [] or len(lines) == 21


def test_neither_aliases_nor_a_file_without_end_exhaust_the_memory(outcome_of):
    levels = "".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]\n" for i in range(1, 30))
    (line,) = outcome_of(f"l0: &l0 [x]\n{levels}")
    assert "more than 50000 values" in line
    (line,) = outcome(lambda: load_config(["/dev/zero"]))
    assert "is longer than 5000000 bytes" in line


def test_a_study_cannot_have_the_name_of_a_rule(outcome_of):
    (line,) = outcome_of(written(CONFIG | {"studies": {"tables": CONFIG["studies"]["deep"]}}))
    assert "studies.tables: " in line
    assert "taken by the workflow" in line


ON_AND_OFF = "[{own: {kind: streams, pre: {kind: raw, start: {on: 3, off: 2}}}}, mhc]"


def test_a_word_that_yaml_reads_as_a_flag_is_the_word(outcome_of, tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text(written(with_value("compute.mlx_blas", Raw("off"))))
    assert load_config([file]).compute.mlx_blas == "off"
    file.write_text(written(CONFIG))
    assert read_config([file], ["compute.mlx_blas=off"]).compute.mlx_blas == "off"
    file.write_text(written(with_value("studies.deep.variants", Raw(ON_AND_OFF))))
    config = load_config([file])
    start = config.connection("deep", "own").pre.start
    assert (start.on, start.off) == (3, 2)


# --- what nobody has thought of ------------------------------------------------------------------

raw = st.sampled_from([
    "off", "on", "no", "yes", "~", "null", "true", "010", "0x1f", "1:30", "1e3", "1_0", ".inf",
    ".nan", "-.inf", "2024-13-45", "!!int x", "!!float x", "!!bool x", "!!null x", "!!str 5",
    "!!binary aGk=", "!!binary x", "!!set {a, b}", "!!omap [a: 1]", "!!pairs [a: 1]", "!!map {}",
    "!!timestamp x", "!!merge x", "&a [*a]", "&b 5", "*a", "<<", "=", "{<<: {a: 1}}", "{<<: 5}",
    "{<<: [{}, 5]}", "{=: 5}", "{a: 1, a: 2}", "{[a]: 1}", "[[[[[[]]]]]]", '"\\ud800"', '"\\0"',
    '"\\e"', "'", '"', "[", "}", "%", "@", "|", "- a", "? a", "a: b: c", "#", "9" * 400,
    "0x" + "f" * 400, "1" + "0" * 60, "-1", "-0", "0.0", "1e-400", "9007199254740993",
])  # fmt: skip
names = st.sampled_from([
    *SCHEMES, *KINDS, *CLOSINGS, *COEFFICIENTS, *CONSTRAINTS, *GATES, *EXPANSIONS, *WEIGHTS,
    *SCALES, *NORMS, *INITIALS, "read", "late", "scale", "rank", "norm", "initial", "fractions",
    "baseline", "resnet", "hc", "mhc", "own", "past", "tokens", "fashion", "torch", "mlx",
    "kind", "connection", "start", "stream", "cycle", "on", "off", "streams", "close", "map",
    "torch-defaults", "cosine", "all", "deep", "~", "~/x", "..", "/", "a//b/", "{", "'", "$(x)",
])  # fmt: skip
numbers = (
    st.integers(-3, 60)
    | st.integers()
    | st.floats()
    | st.sampled_from([5e-324, 1 - 2**-53, 1e308, 2**53, 2**53 + 1, 10**13, 59_999, 60_001])
)
scalars = st.none() | st.booleans() | numbers | st.text(max_size=20) | names | raw.map(Raw)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(names | st.text(max_size=5) | raw.map(Raw), inner, max_size=4)
    ),
    max_leaves=8,
)


ALIKE = {
    bool: st.booleans() | st.sampled_from(["on", "off"]).map(Raw),
    int: st.integers(1, 9),
    float: st.floats(1e-9, 0.99),
    str: names,
}
"""Values that may well be accepted, by the type of what they replace."""


def places_of(value, above=()):
    """Where something stands in it: every path but that of the whole."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in inside:
        yield (*above, key)
        if isinstance(part, dict | list):
            yield from places_of(part, (*above, key))


@st.composite
def configs(draw):
    """CONFIG with one to three changes: a value, a key that is gone, new or another."""
    data = copy.deepcopy(CONFIG)
    for _ in range(draw(st.integers(1, 3))):
        *parents, key = draw(st.sampled_from(list(places_of(data))))
        section = data
        for parent in parents:
            section = section[parent]
        change = draw(st.sampled_from(["alike", "alike", "value", "gone", "new"]))
        if change == "alike":
            section[key] = draw(ALIKE.get(type(section[key]), values))
        elif change == "value":
            section[key] = draw(values)
        elif change == "gone":
            del section[key]
        elif isinstance(section, dict):
            section[draw(names | raw.map(Raw))] = draw(values)
        else:
            section.append(draw(values))
    return written(data)


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(configs())
def test_any_config_is_planned_or_refused(outcome_of, text):
    outcome_of(text)


@settings(max_examples=60)
@given(st.sampled_from([".".join(map(str, p)) for p in places_of(CONFIG)]), values)
def test_any_override_is_planned_or_refused(base, path, value):
    outcome(lambda: read_config([base], [f"{path}={written(value)}"]))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A file with CONFIG."""
    file = tmp_path_factory.mktemp("base") / "my.yaml"
    file.write_text(written(CONFIG))
    return file


@settings(max_examples=100)
@given(st.binary(max_size=40) | st.text(max_size=40))
def test_any_text_is_refused(outcome_of, text):
    assert outcome_of(text)
