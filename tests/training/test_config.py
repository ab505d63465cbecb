"""config.yaml: expansion into cells and specs, and refusal of mistakes."""

import copy
import json
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fathom.settings import deep_merge
from fathom_study import tasks
from fathom_study.config import (
    BACKENDS,
    Cell,
    ConfigError,
    check_config,
    load,
    load_config,
    parse_spec,
)
from tests.support import commands
from tests.support.specs import make_spec

CONFIG = {
    "studies": {
        "deep": {
            "task": "tokens", "recipe": "torch-defaults", "variants": ["baseline", "hc", "mhc"],
            "depths": [12, 24], "backends": ["torch", "mlx"], "seeds": [0, 1], "steps": 100,
            "batch_size": 8, "optimizer": {"lr": 0.002},
            "model": {"vocab": 64, "length": 16, "width": 32, "heads": 4, "hidden": 128},
        }
    }
}  # fmt: skip
STUDY = CONFIG["studies"]["deep"]
CELLS = [
    Cell("deep", depth, variant, backend, seed)
    for depth, variant, backend, seed in product(
        (12, 24), ("baseline", "hc", "mhc"), ("torch", "mlx"), (0, 1)
    )
]


def config_with(path="", value=None):
    """CONFIG with one key set, as in ("studies.deep.steps", 5)."""
    data = copy.deepcopy(CONFIG)
    if path:
        *parents, key = path.split(".")
        section = data
        for parent in parents:
            section = section[parent]
        section[key] = value
    return data


def refusal(data):
    """The message that refuses a config, which must be a single line."""
    message = commands.refusal(check_config, data, "my.yaml", error=ConfigError)
    assert message.startswith("my.yaml: ")
    return message.removeprefix("my.yaml: ")


def spec_of(variant, connections=None, **study):
    """The spec of a study's only variant."""
    data = config_with("studies.deep.variants", [variant])
    data["studies"]["deep"] |= study
    config = check_config({**data, "connections": connections or {}}, "my.yaml")
    return config.spec(config.cells()[0])


# --- cells ---------------------------------------------------------------------------------------

cells = st.builds(
    Cell,
    study=st.from_regex(r"[a-z][a-z0-9-]*", fullmatch=True),
    depth=st.integers(1, 10**6),
    variant=st.from_regex(r"[a-z0-9_]+", fullmatch=True),
    backend=st.sampled_from(BACKENDS),
    seed=st.integers(0, 2**32),
)


@given(cells)
def test_cell_is_read_back_from_its_path(cell):
    assert Cell.parse(cell.path()) == cell


@given(st.text() | st.from_regex(r"[a-z]+/\d+L/[a-z]+/[a-z]+/seed\d+"))
def test_parsed_path_is_the_path_of_its_cell(text):
    try:
        cell = Cell.parse(text)
    except ValueError:
        return
    assert cell.path() == text


# --- expansion -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, lambda cell: True),
        ({"variants": ["mhc"], "seeds": [1]}, lambda cell: (cell.variant, cell.seed) == ("mhc", 1)),
        (
            {"studies.deep.exclude": [{"variant": "hc", "depth": 24, "backend": "mlx"}]},
            lambda cell: (cell.variant, cell.depth, cell.backend) != ("hc", 24, "mlx"),
        ),
        (  # exclusions add up, and seed 0 is a seed
            {"studies.deep.exclude": [{"seed": 0}, {"variant": "hc"}]},
            lambda cell: cell.seed != 0 and cell.variant != "hc",
        ),
        (
            {"studies.deep.exclude": [{"variant": ["hc", "mhc"], "backend": "mlx"}]},
            lambda cell: cell.backend != "mlx" or cell.variant == "baseline",
        ),
    ],
)
def test_cells_are_the_product_of_the_axes_without_exclusions(changes, kept):
    data = config_with()
    for path, value in changes.items():
        data = deep_merge(data, {path: value}) if "." not in path else config_with(path, value)
    assert check_config(data).cells() == list(filter(kept, CELLS))


@pytest.mark.parametrize("null", [None, "null"])  # the second is how Snakemake passes it
def test_overlay_drops_a_study_with_null(tmp_path, null):
    base, overlay = tmp_path / "config.yaml", tmp_path / "overlay.yaml"
    base.write_text(json.dumps(config_with("studies.other", STUDY)))
    overlay.write_text(json.dumps({"studies": {"deep": null}}))
    assert list(load_config([base, overlay]).studies) == ["other"]
    assert list(load_config([base], {"studies": {"deep": null}}).studies) == ["other"]
    assert list(load_config([base, overlay, overlay]).studies) == ["other"]
    overlay.write_text(json.dumps({"studies": {"depe": null}}))
    with pytest.raises(ConfigError, match=r"overlay.yaml: studies.depe: null .* mean 'deep'\?"):
        load_config([base, overlay])
    overlay.write_text(json.dumps({"studies": {"depe": {"steps": 5}}}))
    with pytest.raises(ConfigError, match=r"overlay.yaml: studies.depe: unknown .* mean 'deep'\?"):
        load_config([base, overlay])


def test_the_plain_network_is_one_without_changes_if_there_is_any():
    values = {"value_residual": {"connection": "baseline", "model": {"values": "residual"}}}
    for variants, plain in (
        ([values, "baseline", "mhc"], "baseline"),
        ([values], "value_residual"),
    ):
        assert check_config(config_with(f"{DEEP}.variants", variants)).plain("deep") == plain


def test_pattern_selects_cells():
    config = check_config(CONFIG)
    assert config.select_cells([]) == CELLS
    selected = config.select_cells(["*/mhc/*/seed0", "deep/12L/*"])
    assert selected == [c for c in CELLS if c.depth == 12 or (c.variant, c.seed) == ("mhc", 0)]
    with pytest.raises(ConfigError, match=r"no cell matches 'deep/13L/\*'"):
        config.select_cells(["deep/12L/*", "deep/13L/*"])


# --- specs ---------------------------------------------------------------------------------------


def test_hash_ignores_order_and_notation_of_a_spec():
    spec = make_spec()
    data = spec.model_dump()
    backwards = {
        key: dict(reversed(value.items())) if isinstance(value, dict) else value
        for key, value in reversed(data.items())
    }
    assert list(backwards) != list(data)
    assert parse_spec(backwards, "spec").hash() == spec.hash()
    assert make_spec(lr="1e-2", weight_decay=0).hash() == make_spec(lr=0.01).hash()
    assert parse_spec(json.loads(spec.json()), "spec") == spec


# --- settings of a variant -----------------------------------------------------------------------


def test_a_variant_may_have_its_own_size_steps_optimizer_and_recipe():
    variants = [
        "baseline",
        {"wide": {"connection": "baseline", "model": {"width": 48}}},
        {"long": {"connection": "baseline", "steps": 400, "optimizer": {"warmup_steps": 200},
                  "recipe": {"embedding": "inverse_sqrt_width"}}},
    ]  # fmt: skip
    data = config_with("studies.deep.variants", variants)
    data["studies"]["deep"]["accumulate"] = {"wide": 4}
    config = check_config(data)
    study = config.studies["deep"]
    plain, wide, long = (config.spec(Cell("deep", 12, v, "torch", 0)) for v in study.labels)
    # In a study of its own, the plain network has the same spec.
    assert plain.json() == spec_of("baseline").json()
    expected = json.loads(plain.json())
    expected |= {"variant": "wide", "accumulate": 4}
    expected["model"]["width"] = 48
    assert json.loads(wide.json()) == expected
    expected = json.loads(plain.json())
    expected |= {"variant": "long", "steps": 400}
    expected["optimizer"]["warmup_steps"] = 200
    expected["recipe"]["embedding"] = "inverse_sqrt_width"
    assert json.loads(long.json()) == expected
    shapes = [p.shape for p in tasks.Problem(wide).network.parameters().values()]
    assert (64, 48) in shapes
    assert (study.of("wide").model.width, study.of("long").model.width) == (48, 32)
    assert [study.of(v).steps for v in study.labels] == [100, 100, 400]


def test_check_names_data_that_training_would_not_find(tmp_path):
    model = {"length": 8, "width": 8, "heads": 2, "hidden": 8}
    model |= {"corpus": str(tmp_path / "mine"), "vocab": 7, "corpus_sha256": "0"}
    data = config_with()
    data["studies"]["own"] = data["studies"]["deep"] | {"task": "text", "model": model}
    config = check_config(data)
    config.check_trains(["deep"])
    with pytest.raises(ConfigError, match=r"^studies\.own\..*mine"):
        config.check_trains()
    (tmp_path / "mine").mkdir()  # empty: its content is not read
    config.check_trains()


# --- connections ---------------------------------------------------------------------------------


def test_a_connection_of_the_config_can_be_used_by_name():
    connections = {"mild": {"connection": "mhc", "H_res": {"start": {"diagonal": 0}}}}
    spec = spec_of("mild", connections)
    assert spec.connection.H_res.start.model_dump() == {
        "diagonal": 0.0, "off_diagonal": -1.0, "noise": 0.0,
    }  # fmt: skip
    own = {"mild_5": {"connection": "mild", "H_res": {"iterations": 5}}}
    changed = spec_of(own, connections).connection
    assert (changed.H_res.iterations, changed.H_res.start) == (5, spec.connection.H_res.start)


def test_variant_without_streams_has_those_of_its_study():
    assert spec_of("mhc", streams=8).connection.streams == 8
    assert spec_of({"m2": {"connection": "mhc", "streams": 2}}, streams=8).connection.streams == 2
    assert spec_of("baseline", streams=8).hash() == spec_of("baseline", streams=4).hash()


# --- refusals: one line that names the study, the key and the fix --------------------------------

DEEP = "studies.deep"
REFUSED = [
    # (path, value, place in the message, words in the message)
    (f"{DEEP}.stepz", 3, DEEP, "unknown key 'stepz'; did you mean 'steps'?"),
    (f"{DEEP}.exclude", [{"seed": 1}, {"varient": "hc"}], f"{DEEP}.exclude.1", "'variant'?"),
    (f"{DEEP}.variants", ["mhc", True], f"{DEEP}.variants.1", "YAML reads True; put it in quotes"),
    (f"{DEEP}.steps", True, f"{DEEP}.steps", "must be a number, not true or false"),
    (f"{DEEP}.optimizer.lr", float("nan"), f"{DEEP}.optimizer.lr", "finite"),
    (f"{DEEP}.seeds", [2**53 + 1], f"{DEEP}.seeds.0", "less than or equal to 9007199254740992"),
    (f"{DEEP}.model.width", 30, f"{DEEP}.model", "make width a multiple of 4"),
    (f"{DEEP}.evaluate_every", 101, DEEP, "evaluate_every is 101 of 100 steps"),
    (f"{DEEP}.batch_size", {12: 32}, DEEP, "batch_size has no entry for depth 24; add one"),
    (f"{DEEP}.variants", [], f"{DEEP}.variants", "must list at least one value"),
    (f"{DEEP}.seeds", [0, 1, 0], f"{DEEP}.seeds", "lists 0 more than once"),
    (f"{DEEP}.exclude", [{"depth": [12, 24]}], "no cells", "exclude fewer"),
    (f"{DEEP}.chosen_after_looking", {"optimizer.rate": {"why": "x"}}, DEEP, "'optimizer.rate'; n"),
    (f"{DEEP}.chosen_after_looking", {"seeds": {"why": "x", "verdicts_of": ["mch"]}}, DEEP,
     "chosen_after_looking.seeds.verdicts_of: unknown variant 'mch'; did you mean 'mhc'?"),
    (f"{DEEP}.recipe", "torch", f"{DEEP}.recipe", "did you mean 'torch-defaults'?"),
    (f"{DEEP}.variants", ["baseline", "mch"], f"{DEEP}.variants.mch",
     "unknown connection 'mch'; did you mean 'mhc'? (known: baseline, hc, mhc, plain, "),
    (f"{DEEP}.backends", ["numpy"], f"{DEEP}.backends.0", "unknown backend 'numpy'"),
    (f"{DEEP}.exclude", [{"variant": "mch"}], f"{DEEP}.exclude.0.variant", "unknown variant"),
    (f"{DEEP}.accumulate", {"mch": 2}, DEEP, "accumulate: unknown variant 'mch'"),
    (f"{DEEP}.extra_variants", ["mhc"], DEEP, "extra_variants: mhc already exists"),
    (f"{DEEP}.model.vocab", 1, DEEP, "model: has 1 class to predict, so chance is a perfect"),
    (f"{DEEP}.contrasts", [{"question": "?", "pairs": [["mhc", "mch"]]}], DEEP,
     "contrasts.0.pairs: unknown variant 'mch'"),
    (f"{DEEP}.rates", [1.5], f"{DEEP}.rates.0", "less than 1"),
    (f"{DEEP}.ladder", {"nothing": [2]}, DEEP, "ladder: unknown variant 'nothing'"),
    (f"{DEEP}.plain_at_size", ["mhd"], DEEP, "plain_at_size: unknown variant 'mhd'"),
    (f"{DEEP}.ladder", {"mhc": [2]}, f"{DEEP}.ladder", "mhc is not a plain network"),
    (f"{DEEP}.ladder", {"baseline": [0]}, f"{DEEP}.ladder.baseline.0", "or equal to 0.01"),
    (f"{DEEP}.ladder", {"baseline": [2, 2]}, f"{DEEP}.ladder.baseline", "2.0 more than once"),
    (f"{DEEP}.ladder", {"baseline": [2, 2.001]}, DEEP, "needs the label baseline_x200"),
    ("studies", {"one": {**STUDY, "plain_at_size": ["baseline"]},
                 "two": {**STUDY, "plain_at_size": ["baseline"], "task": "unrolled",
                         "model": {"kind": "copy", "width": 8, "hidden": 6}}},
     "studies.two.plain_at_size", "its task is unrolled, but one has tokens"),
    *(
        (DEEP, {**STUDY, "ladder": {"baseline": [2]}, **own}, DEEP, words)
        for own, words in (
            ({"rates": [0.004], "variants": ["baseline", {"baseline_004": "mhc"}]},
             "needs the label baseline_004"),
            ({"optimizer": {"lr": 0.1, "warmup_steps": 2}, "ladder": {"baseline": [0.01]}},
             "variants.baseline_x001.optimizer.warmup_steps is 2 of 1 steps"),
            ({"plain_at_size": ["mhc"]}, "plain_at_size: unknown variant with a ladder 'mhc'"),
            ({"extra_variants": [{"baseline_x200": "baseline"}]}, "the label baseline_x200"),
        )
    ),
    (f"{DEEP}.part", "../arms", f"{DEEP}.part", "pattern"),
    *(
        ("studies", {name: STUDY}, f"studies.{name}", "lower-case")
        for name in ("deep_1", "..", "dé")
    ),
    ("studies", {"figures": STUDY}, "studies.figures", "choose another"),
    ("results", "/etc/passwd", "results", "not a folder"),
    ("results", "a{b}", "results", "contain braces"),
    ("results", "./", "results", "must be the path of a folder"),
    ("studies", {"images": {**STUDY, "task": "fashion", "variants": ["resnet"],
                            "model": {"width": 8}, "batch_size": 60_001}},
     "studies.images.batch_size", "60000 examples of fashion"),
    # a variant and its connection
    *(
        (f"{DEEP}.variants", [{"v": {"connection": "mhc", **own}}], place, words)
        for own, place, words in (
            ({"optimizer": {"lr": -1}}, DEEP, "optimizer.lr: input should be greater than 0"),
            ({"model": {"width": 30}}, DEEP, "model: width 30 is not divisible by heads 4"),
            ({"steps": 50, "optimizer": {"warmup_steps": 50}}, DEEP, "is 50 of 50 steps"),
        )
    ),
    (f"{DEEP}.variants", [{"mhc": {"steps": 5}}], f"{DEEP}.variants.mhc", "names no connection"),
    (f"{DEEP}.contrasts", [{"question": "Q?", "pairs": [["hc", "hc"]]}], f"{DEEP}", "with itself"),
    (f"{DEEP}.variants", [{"v": {"kind": "causal", "constraint": "identity"}}],
     f"{DEEP}.variants.v", "has no logit for each pair of layers; use exp or sinkhorn"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "place", "words"), REFUSED)
def test_a_mistake_is_refused_with_its_place_and_fix(path, value, place, words):
    message = refusal(config_with(path, value))
    assert message.startswith(f"{place}: ")
    assert words in message


def test_more_than_20000_cells_are_refused():
    assert "240012 cells are more" in refusal(config_with(f"{DEEP}.seeds", list(range(20_001))))


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"studies:\n  deep:\n    steps: [1, 2\n    seeds: [0]\n", " line 4 malformed YAML ("),
        (b"a: 1\nb:\n  c: 2\n  c: 3\n", ' line 4 malformed YAML (found duplicate key "c"'),
        (b"a: 1\nb: !!python/name:os.system x\n", " line 2 malformed YAML (could not determine"),
        (b"a: 2026-01-01\n", " malformed YAML (2026-01-01 is a date; put it in quotes"),
        (b"results: \xff\n", " is not UTF-8 ("),
        (b"a: " + b"[" * 5000, " malformed YAML ("),
        (b"", " must be a mapping"),
        (None, " cannot be read (No such file or directory)"),
        (b'{"a": ' + b"[" * 100_000, " malformed JSON ("),
        (b'{"a": {"c": 2, "c": 3}}', " malformed JSON (duplicate key 'c')"),
    ],
    ids=lambda given: f"{given}"[:30],
)
def test_unreadable_file_is_named_with_the_line(tmp_path, content, expected):
    file = tmp_path / f"my.{'json' if 'JSON' in expected else 'yaml'}"
    if content is not None:
        file.write_bytes(content)
    said = commands.refusal(load_config, [file], error=ConfigError)
    assert said.startswith(f"{file}:{expected}")


def test_numbers_and_words_are_those_of_yaml_1_2(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text("{a: 2e-3, b: 010, c: 1:30, on: off}\n")
    assert load.read_yaml(file) == {"a": 0.002, "b": 10, "c": "1:30", "on": "off"}


def test_later_files_and_then_overrides_win(tmp_path):
    texts = {
        "base.yaml": json.dumps(CONFIG),
        "one.yaml": "studies: {deep: {steps: 1, model: {width: 64}}}\n",
        "two.yaml": "studies: {deep: {steps: 2}}\n",
        "bad.yaml": "studies: {deep: {steps: -1}}\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    base, one, two, bad = (tmp_path / name for name in texts)
    overrides = {"studies": {"deep": {"optimizer": {"eps": 0.5}}}}
    study = load_config([base, one, two], overrides).studies["deep"]
    assert study.steps == 2
    assert (study.model.width, study.model.vocab) == (64, 64)
    assert (study.optimizer.lr, study.optimizer.eps) == (0.002, 0.5)
    said = commands.refusal(load_config, [base, bad], error=ConfigError)
    assert said.startswith(f"{base} + {bad}: studies.deep.steps: ")
    negative = {"studies": {"deep": {"steps": -1}}}
    said = commands.refusal(load_config, [base], negative, error=ConfigError)
    assert said.startswith(f"{base} + options: studies.deep.steps: ")


def test_overlay_of_one_study_does_not_change_its_yaml_alias(pytestconfig, tmp_path):
    # depth-torch takes its model from depth-mlx by an alias: in YAML they are one mapping.
    overlay = tmp_path / "o.yaml"
    overlay.write_text("studies: {depth-mlx: {model: {width: 64}}}\n")
    config = load_config([pytestconfig.rootpath / "config.yaml", overlay])
    assert config.studies["depth-mlx"].model.width == 64
    assert config.studies["depth-torch"].model.width == 32


# --- folders -------------------------------------------------------------------------------------


def test_folder_paths_are_normalised(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    config = check_config({**CONFIG, "results": "~/mine", "compute": {"data": "~"}})
    assert (config.results, config.compute.data) == (f"{tmp_path}/mine", str(tmp_path))
    config = check_config({**CONFIG, "results": "./a//b/./c/"})
    assert config.results == config.report_folder == "a/b/c"


def test_subset_reports_into_its_own_folder():
    assert check_config(CONFIG).subset == {}
    subset = {"seeds": [0], "backends": ["torch", "mlx"]}
    config = check_config({**CONFIG, "results": "out", **subset})
    assert (config.subset, config.results) == (subset, "out")
    assert config.report_folder == "out/cuts/backends-torch-mlx+seeds-0"


def test_long_subsets_have_short_names_that_differ():
    names = []
    for last in (100, 101):
        seeds = [*range(100), last]
        data = config_with("studies.deep.seeds", seeds)
        config = check_config({**data, "seeds": seeds})
        names.append(config.report_folder.rpartition("/")[2])
    assert names[0] != names[1]
    assert all(len(name) < 128 for name in names)
