"""Any config can be planned, or is refused in a few lines: no traceback, no hang."""

import copy
import json
import math
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fathom.connections.components import COEFFICIENTS
from fathom.connections.schemes import KINDS, SCHEMES
from fathom_study import tasks
from fathom_study.config import Cell, ConfigError, check_config, load_config, parse_yaml

CONFIG = parse_yaml(
    """
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
""",
    "CONFIG",
)

SECONDS = 20
"""Time limit for any config, on a slow and busy machine."""


class Raw(str):
    """YAML to insert verbatim; other values are written as JSON."""

    __slots__ = ()


def written(value):
    """The value as one line of YAML."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{written(k)} : {written(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


# --- random configs ------------------------------------------------------------------------------

raw = st.sampled_from([
    "off", "no", "~", "null", "010", "0x1f", "1:30", "1e3", ".inf", ".nan", "2024-13-45", "!!int x",
    "!!bool x", "!!binary aGk=", "!!set {a, b}", "!!timestamp x", "&a [*a]", "*a", "<<", "=",
    "{<<: 5}", "{=: 5}", "{a: 1, a: 2}", "{[a]: 1}", '"\\ud800"', '"\\0"', "'", "[", "%", "- a",
    "a: b: c", "9" * 400, "1" + "0" * 60, "1e-400",
])  # fmt: skip
names = st.sampled_from([*SCHEMES, *KINDS, *COEFFICIENTS, "own", "tokens", "torch", "~", "..", "{"])
numbers = st.integers(-3, 60) | st.integers() | st.floats()
scalars = st.none() | st.booleans() | numbers | st.text(max_size=20) | names | raw.map(Raw)
values = scalars | st.lists(scalars, max_size=4) | st.dictionaries(names, scalars, max_size=4)


def places_of(value, above=()):
    """The paths of all parts of a value, without the whole."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in inside:
        yield (*above, key)
        if isinstance(part, dict | list):
            yield from places_of(part, (*above, key))


@st.composite
def configs(draw):
    """CONFIG with one or two values replaced or deleted."""
    data = copy.deepcopy(CONFIG)
    for _ in range(draw(st.integers(1, 2))):
        *parents, key = draw(st.sampled_from(list(places_of(data))))
        section = data
        for parent in parents:
            section = section[parent]
        section[key] = draw(values)
        if draw(st.integers(0, 4)) == 0:
            del section[key]
    return written(data)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """File for each config."""
    return tmp_path_factory.mktemp("fuzz") / "my.yaml"


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(configs() | st.text(max_size=40))
def test_any_config_is_planned_or_refused(file, text):
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    start = time.perf_counter()
    try:
        config = load_config([file])
    except ConfigError as error:
        lines = str(error).splitlines()
        assert lines[0].startswith(f"{file}: ")
        assert 1 <= len(lines) <= 21
        assert all(line.isprintable() and 10 < len(line) < 2500 for line in lines), lines
        return
    finally:
        assert time.perf_counter() - start < SECONDS
    cells = config.cells()
    assert 0 < len(cells) == len(set(cells))
    for cell in cells[:30]:
        spec = config.spec(cell)
        assert spec.cell == cell == Cell.parse(cell.path())
        network = tasks.Problem(spec).network
        assert sum(math.prod(p.shape) for p in network.parameters().values()) > 0
        spec.json().encode()
    # The copy that the workflow keeps is read as the same config.
    again = check_config(json.loads(config.model_dump_json(exclude={"compute"})))
    assert [again.spec(c).hash() for c in cells[:30]] == [config.spec(c).hash() for c in cells[:30]]
    assert again.report_folder == config.report_folder
