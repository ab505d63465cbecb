"""config.yaml: what it expands to, and how it refuses what it cannot run."""

import copy
import hashlib
import json
import time
from collections import Counter

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fathom.config import BACKENDS, Cell, ConfigError, Spec, check_config, load, load_config, merge

CONFIG = {
    "studies": {
        "deep": {
            "task": "tokens",
            "recipe": "torch-defaults",
            "variants": ["baseline", "hc", "mhc"],
            "depths": [12, 24],
            "backends": ["torch", "mlx"],
            "seeds": [0, 1],
            "steps": 100,
            "batch_size": 8,
            "model": {"vocab": 64, "length": 16, "width": 32, "heads": 4, "hidden": 128},
            "optimizer": {"lr": 0.002},
        }
    }
}


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


def refusal(path, value):
    """The message that refuses CONFIG with one key set, which must be a single line."""
    with pytest.raises(ConfigError) as caught:
        check_config(config_with(path, value), "my.yaml")
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("my.yaml: ")
    return message


# --- a variant's own recipe and optimiser --------------------------------------------------------


def test_a_variant_may_have_settings_of_recipe_and_optimizer_of_its_own():
    own = {"embedding": "inverse_sqrt_width", "bias_correction": False}
    spec = spec_of({"fast": {"connection": "mhc", "optimizer": {"lr": 0.01}, "recipe": own}})
    study = spec_of({"alike": {"connection": "mhc"}})
    assert (spec.optimizer.lr, study.optimizer.lr) == (0.01, 0.002)
    assert (spec.recipe.embedding, spec.recipe.bias_correction) == ("inverse_sqrt_width", False)
    assert spec.recipe.attention == study.recipe.attention == "packed_xavier"
    assert spec.connection == study.connection
    assert spec.optimizer.model_copy(update={"lr": 0.002}) == study.optimizer


def test_a_variant_may_name_another_recipe():
    named = spec_of({"other": {"connection": "baseline", "recipe": "mlx-defaults"}})
    written = {"embedding": "inverse_sqrt_width", "attention": "linear", "bias_correction": False}
    assert named.recipe == spec_of({"o": {"connection": "baseline", "recipe": written}}).recipe


def test_a_variants_recipe_has_its_name_where_the_settings_are_those_of_one():
    parts = {"embedding": "inverse_sqrt_width", "attention": "linear", "bias_correction": False}
    variants = ["mhc", {"a": {"connection": "hc", "recipe": parts}}]
    study = check_config(config_with("studies.deep.variants", variants)).studies["deep"]
    assert [study.recipe_name_of(v) for v in ("mhc", "a")] == ["torch-defaults", "mlx-defaults"]
    assert [study.connection_name(v) for v in ("mhc", "a")] == ["mhc", "hc"]


def test_a_study_of_several_rates_has_figures_of_its_own():
    slow = {"slow": {"connection": "mhc", "optimizer": {"lr": 0.001}}}
    one, two = (
        check_config(config_with("studies.deep.variants", v)) for v in (["mhc"], ["mhc", slow])
    )
    assert (one.studies["deep"].figures, two.studies["deep"].figures) == ("sweep", "rates")


@pytest.mark.parametrize(
    ("own", "problem"),
    [
        ({"optimizer": {"lr": -1}}, "fast.optimizer: lr: input should be greater than 0"),
        ({"optimizer": {"rate": 1}}, "fast.optimizer: top level: unknown key 'rate'"),
        ({"optimizer": 3}, "fast: optimizer: input should be a valid dictionary"),
        ({"optimizer": {"warmup_steps": 100}}, "warmup_steps is 100 of 100 steps"),
        ({"recipe": "torch"}, "did you mean 'torch-defaults'?"),
        ({"recipe": {"embedding": "uni"}}, "fast.recipe: embedding: input should be 'unit'"),
    ],
)
def test_a_wrong_setting_of_a_variant_is_refused(own, problem):
    assert problem in refusal("studies.deep.variants", [{"fast": {"connection": "mhc", **own}}])


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
def test_a_cell_is_read_back_from_its_path(cell):
    assert Cell.parse(cell.path()) == cell


@given(st.text() | st.from_regex(r"[a-z]+/\d+L/[a-z]+/[a-z]+/seed\d+"))
def test_a_path_that_is_read_is_one_that_is_written(text):
    try:
        cell = Cell.parse(text)
    except ValueError:
        return
    assert cell.path() == text


def test_the_path_of_a_cell_by_hand():
    assert Cell("deep", 12, "mhc", "torch", 0).path() == "deep/12L/mhc/torch/seed0"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "deep/12L/mhc/torch",
        "deep/12/mhc/torch/seed0",
        "deep/012L/mhc/torch/seed0",
        "deep/0L/mhc/torch/seed0",
        "deep/-1L/mhc/torch/seed0",
        "deep/12L/mhc/torch/seed",
        "deep/12L/mhc/torch/seed00",
        "deep/12L/mhc/torch/seed-1",
        "deep/12L/mhc/torch/seed0/",
        "deep/12L/mhc/torch/seed0\n",
        "deep/12L/mhc/torch/seed0/metrics.jsonl",
        "/deep/12L/mhc/torch/seed0",
        "../deep/12L/mhc/torch/seed0",
        "Deep/12L/mhc/torch/seed0",
        "deep/١٢L/mhc/torch/seed0",
    ],
)
def test_a_malformed_path_is_refused(path):
    with pytest.raises(ValueError, match="is not study/depthL/variant/backend/seedN"):
        Cell.parse(path)


# --- expansion -----------------------------------------------------------------------------------


def test_the_default_config_has_426_cells(default_config):
    expected = {
        "depth-mlx": 3 * 3 * 2 * 3,  # depths, variants, backends, seeds
        "depth-torch": 3 * 3 * 2 * 3,
        "depth-beyond": 3,  # 96 layers
        "demo-50": 2,
        "depth-limit": (5 + 3 + 4 + 3) * 3,  # depths of each variant, seeds
        "recipe-parts": 2**3 * 2 * 3,  # settings, connections, seeds
        "learning-rate": 5 * (2 * 3 + 1),  # rates, three seeds of two connections and one of hc
        "ingredients": (19 + 3) * 3,  # variants on one backend and on the other, seeds
        "text-depth": 3 * 5 * 3,  # depths, variants, seeds
        "text-arms": 4 * 3 + 2 * 5,  # variants with three seeds, and with five
        "text-arms-adamw": 3 * 3,
        "fashion": 5 * (3 + 1),  # variants, seeds on one backend and on the other
        "fashion-streams": 5,
    }
    cells = default_config.cells()
    assert Counter(cell.study for cell in cells) == expected
    assert len(cells) == len(set(cells)) == 408


def test_cells_are_the_product_of_the_axes():
    expected = {
        Cell("deep", depth, variant, backend, seed)
        for depth in (12, 24)
        for variant in ("baseline", "hc", "mhc")
        for backend in ("torch", "mlx")
        for seed in (0, 1)
    }
    cells = check_config(CONFIG).cells()
    assert set(cells) == expected
    assert len(cells) == 24


@pytest.mark.parametrize(
    ("axis", "values", "left"),
    [
        ("variants", ["mhc"], 8),
        ("depths", [24], 12),
        ("backends", ["mlx"], 12),
        ("seeds", [1], 12),
    ],
)
def test_a_cut_axis_keeps_only_its_values(axis, values, left):
    cells = check_config(config_with(axis, values)).cells()
    assert len(cells) == left
    assert {getattr(cell, axis.removesuffix("s")) for cell in cells} <= set(values)


def test_cuts_combine():
    data = {**config_with("variants", ["hc"]), "depths": [12], "backends": ["torch"], "seeds": [0]}
    assert check_config(data).cells() == [Cell("deep", 12, "hc", "torch", 0)]


def test_a_cut_of_null_keeps_everything():
    assert len(check_config(config_with("variants", None)).cells()) == 24


def test_an_exclusion_leaves_out_what_matches_all_that_it_names():
    exclude = [{"variant": "hc", "depth": 24, "backend": "mlx"}]
    cells = check_config(config_with("studies.deep.exclude", exclude)).cells()
    everything = check_config(CONFIG).cells()
    gone = {Cell("deep", 24, "hc", "mlx", seed) for seed in (0, 1)}
    assert set(everything) - set(cells) == gone


def test_exclusions_add_up_and_seed_0_counts():
    exclude = [{"seed": 0}, {"variant": "hc"}]
    cells = check_config(config_with("studies.deep.exclude", exclude)).cells()
    # Left: seed 1, two variants, two depths, two backends.
    assert len(cells) == 8
    assert {(cell.seed, cell.variant) for cell in cells} == {(1, "baseline"), (1, "mhc")}


# --- specs ---------------------------------------------------------------------------------------


def test_a_spec_holds_every_number_of_its_cell():
    data = config_with("studies.deep.batch_size", {12: 32, 24: 16})
    cell = Cell("deep", 24, "mhc", "mlx", 1)
    assert check_config(data).spec(cell).model_dump() == {
        "study": "deep",
        "depth": 24,
        "variant": "mhc",
        "backend": "mlx",
        "seed": 1,
        "task": "tokens",
        "recipe": {
            "embedding": "unit",
            "attention": "packed_xavier",
            "bias_correction": True,
            "linear": "uniform",
            "outputs": "linear",
            "head": "linear",
        },
        "connection": {
            "kind": "streams",
            "streams": 4,
            "open": {"kind": "copies"},
            "coefficients": {"kind": "static"},
            "pre": {
                "kind": "row_softmax_mean",
                "start": {"diagonal": 1.0, "off_diagonal": -1.0, "noise": 0.0},
            },
            "post": {
                "kind": "row_softmax_sum",
                "start": {"diagonal": 1.0, "off_diagonal": -1.0, "noise": 0.0},
            },
            "H_res": {
                "kind": "sinkhorn",
                "start": {"diagonal": 1.0, "off_diagonal": -1.0, "noise": 0.0},
                "iterations": 20,
                "last": "columns",
                "tau": 1.0,
                "floor": 1e-12,
                "added": 0.0,
                "clip": None,
            },
            "gate": {"kind": "none"},
            "close": {"kind": "mean"},
        },
        "steps": 100,
        "batch_size": 16,
        "accumulate": 1,
        "evaluate_every": None,
        "weights": False,
        "model": {
            "vocab": 64,
            "length": 16,
            "width": 32,
            "heads": 4,
            "hidden": 128,
            "wrap": "block",
            "norm": "layer",
            "positions": "learned",
            "embedding_norm": False,
            "qk_norm": False,
            "biases": True,
            "activation": "gelu",
            "logit_cap": None,
        },
        "optimizer": {
            "lr": 0.002,
            "beta1": 0.9,
            "beta2": 0.999,
            "eps": 1e-8,
            "weight_decay": 0.0,
            "decay": "all",
            "clip": None,
            "schedule": "constant",
            "final_share": 0.2,
            "warmup_steps": 0,
            "muon": None,
        },
    }


def test_a_spec_knows_its_cell():
    cell = Cell("deep", 24, "mhc", "mlx", 1)
    assert check_config(CONFIG).spec(cell).cell == cell


def test_batch_sizes_by_depth_may_have_text_as_keys():
    data = config_with("studies.deep.batch_size", {"12": 32, "24": 16})
    study = check_config(data).studies["deep"]
    assert (study.batch_size_at(12), study.batch_size_at(24)) == (32, 16)


def test_the_hash_is_that_of_the_canonical_json(make_spec):
    spec = make_spec()
    canonical = json.dumps(json.loads(spec.json()), sort_keys=True, separators=(",", ":"))
    assert spec.hash() == hashlib.sha256(canonical.encode()).hexdigest()[:16]


OTHER_VALUES = {
    "study": "other",
    "depth": 4,
    "variant": "hc",
    "backend": "mlx",
    "seed": 1,
    "recipe": "mlx-defaults",
    "steps": 4,
    "batch_size": 5,
    "vocab": 33,
    "length": 9,
    "width": 20,
    "heads": 2,
    "hidden": 33,
    "wrap": "sublayer",
    "norm": "rms",
    "positions": "rotary",
    "embedding_norm": True,
    "qk_norm": True,
    "biases": False,
    "activation": "relu2",
    "logit_cap": 15.0,
    "accumulate": 2,
    "evaluate_every": 2,
    "streams": 5,
    "weights": True,
    "lr": 0.0100001,
    "beta1": 0.91,
    "beta2": 0.9991,
    "eps": 1.1e-8,
    "weight_decay": 1e-9,
    "decay": "matrices",
    "clip": 1.0,
    "schedule": "cosine",
    "final_share": 0.3,
    "warmup_steps": 1,
    "muon": {"lr": 0.02},
}


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_the_hash_changes_with_every_number(make_spec, name):
    assert make_spec(**{name: OTHER_VALUES[name]}).hash() != make_spec().hash()


def test_the_list_of_numbers_above_is_complete(make_spec):
    spec = make_spec().model_dump()
    names = {*spec, *spec["model"], *spec["optimizer"]} - {"model", "optimizer"}
    # Another task is another model: it cannot be changed alone. What a connection is made of
    # has tests of its own.
    assert names - {"task", "connection"} == set(OTHER_VALUES) - {"streams"}


def test_the_hash_does_not_change_with_the_order_of_keys(make_spec):
    spec = make_spec()
    data = spec.model_dump()
    backwards = {
        key: dict(reversed(value.items())) if isinstance(value, dict) else value
        for key, value in reversed(data.items())
    }
    assert list(backwards) != list(data)
    assert Spec.model_validate(backwards).hash() == spec.hash()


def test_the_hash_does_not_change_with_how_a_number_is_written(make_spec):
    assert make_spec(lr="1e-2").hash() == make_spec(lr=0.01).hash()
    assert make_spec(weight_decay=0).hash() == make_spec(weight_decay=0.0).hash()


def test_a_spec_survives_json(make_spec):
    spec = make_spec()
    assert Spec.model_validate_json(spec.json()) == spec


# --- numbers -------------------------------------------------------------------------------------


def test_yaml_reads_2e_3_as_text_and_we_as_a_number():
    text = yaml.safe_dump(CONFIG).replace("lr: 0.002", "lr: 2e-3")
    data = yaml.safe_load(text)
    assert data["studies"]["deep"]["optimizer"]["lr"] == "2e-3"
    assert check_config(data).studies["deep"].optimizer.lr == 0.002


# --- refusals: one line that names the study, the key and the fix --------------------------------


def test_an_unknown_key_is_answered_with_the_nearest_known_one():
    message = refusal("studies.deep.stepz", 3)
    assert message == "my.yaml: studies.deep: unknown key 'stepz'; did you mean 'steps'?"


def test_an_unknown_key_of_the_model_names_its_section():
    message = refusal("studies.deep.model.widht", 64)
    assert message == "my.yaml: studies.deep.model: unknown key 'widht'; did you mean 'width'?"


def test_an_unknown_key_of_the_optimizer_names_its_section():
    message = refusal("studies.deep.optimizer.beta_1", 0.9)
    assert "studies.deep.optimizer" in message
    assert "'beta_1'; did you mean 'beta1'?" in message


def test_an_unknown_key_of_an_exclusion_names_its_place():
    message = refusal("studies.deep.exclude", [{"seed": 1}, {"varient": "hc"}])
    assert "studies.deep.exclude.1: unknown key 'varient'; did you mean 'variant'?" in message


def test_a_key_unlike_any_other_is_still_named():
    assert "studies.deep: unknown key 'qqq'" in refusal("studies.deep.qqq", 3)


def test_a_misspelt_top_level_key():
    assert "unknown key 'studeis'; did you mean 'studies'?" in refusal("studeis", {})


def test_a_misspelt_compute_key():
    assert "compute: unknown key 'thread'; did you mean 'threads'?" in refusal(
        "compute", {"thread": 2}
    )


def test_a_wrong_type():
    message = refusal("studies.deep.steps", "many")
    assert "studies.deep.steps: " in message
    assert "integer" in message
    assert "but is 'many'" in message


def test_an_axis_that_is_no_list():
    message = refusal("studies.deep.variants", "mhc")
    assert "studies.deep.variants: " in message
    assert "list" in message


def test_a_fraction_where_an_integer_belongs():
    message = refusal("studies.deep.model.width", 32.5)
    assert "studies.deep.model.width: " in message
    assert "integer" in message
    assert "32.5" in message


def test_a_bool_where_a_count_belongs():
    message = refusal("studies.deep.steps", True)
    assert "studies.deep.steps: " in message
    assert "integer" in message
    assert "True" in message


def test_a_bool_where_a_number_belongs():
    message = refusal("studies.deep.optimizer.lr", True)
    assert message == ("my.yaml: studies.deep.optimizer.lr: must be a number, not true or false")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "nan"])
def test_a_number_that_is_not_finite(value):
    message = refusal("studies.deep.optimizer.lr", value)
    assert "studies.deep.optimizer.lr: " in message
    assert "finite" in message


@pytest.mark.parametrize("key", ["vocab", "length", "width", "heads", "hidden"])
def test_a_negative_size(key):
    message = refusal(f"studies.deep.model.{key}", -32)
    assert f"studies.deep.model.{key}: " in message
    assert "greater than 0, but is -32" in message


def test_a_negative_seed():
    message = refusal("studies.deep.seeds", [0, -1])
    assert "studies.deep.seeds.1: " in message
    assert "greater than or equal to 0, but is -1" in message


@pytest.mark.parametrize(("key", "value"), [("beta1", 1), ("beta2", 1.5), ("beta1", -0.1)])
def test_a_beta_outside_its_range(key, value):
    message = refusal(f"studies.deep.optimizer.{key}", value)
    assert f"studies.deep.optimizer.{key}: " in message
    assert f"but is {value}" in message


@pytest.mark.parametrize(("key", "value"), [("lr", 0), ("eps", 0), ("weight_decay", -0.1)])
def test_an_optimizer_number_outside_its_range(key, value):
    message = refusal(f"studies.deep.optimizer.{key}", value)
    assert f"studies.deep.optimizer.{key}: " in message
    assert "greater than" in message


def test_a_width_that_its_heads_do_not_divide():
    message = refusal("studies.deep.model.width", 30)
    assert "studies.deep.model: " in message
    assert "width 30 is not divisible by heads 4; make width a multiple of 4" in message


@pytest.mark.parametrize("axis", ["variants", "depths", "backends", "seeds"])
def test_an_empty_axis(axis):
    assert f"studies.deep.{axis}: must list at least one value" in refusal(
        f"studies.deep.{axis}", []
    )


def test_an_empty_cut():
    assert "depths: must list at least one value" in refusal("depths", [])


def test_duplicate_seeds():
    assert "studies.deep.seeds: lists 0 more than once" in refusal("studies.deep.seeds", [0, 1, 0])


def test_an_unknown_recipe():
    message = refusal("studies.deep.recipe", "torch")
    assert "studies.deep.recipe: unknown recipe 'torch'; did you mean 'torch-defaults'?" in message
    assert "(known: mlx-defaults, torch-defaults, unit-variance, nanochat)" in message


def test_an_unknown_variant():
    message = refusal("studies.deep.variants", ["baseline", "mch"])
    assert "studies.deep.variants.mch: unknown connection 'mch'; did you mean 'mhc'?" in message
    assert "(known: baseline, hc, mhc, plain, " in message


def test_an_unknown_task():
    message = refusal("studies.deep.task", "token")
    assert "studies.deep.task: unknown task 'token'; did you mean 'tokens'?" in message


def test_an_unknown_backend():
    message = refusal("studies.deep.backends", ["pytorch"])
    assert "studies.deep.backends.0: unknown backend 'pytorch'; did you mean 'torch'?" in message


def test_the_oracle_is_no_backend_to_train_on():
    assert "unknown backend 'numpy'" in refusal("studies.deep.backends", ["numpy"])


def test_an_unknown_device():
    message = refusal("compute", {"device": "tpu"})
    assert "compute.device: " in message
    assert "'auto', 'cpu', 'cuda', 'mps' or 'gpu', but is 'tpu'" in message


def test_a_depth_without_a_batch_size():
    message = refusal("studies.deep.batch_size", {12: 32})
    assert "studies.deep: batch_size has no entry for depth 24; add one" in message


def test_a_batch_size_of_zero_at_one_depth():
    message = refusal("studies.deep.batch_size", {12: 32, 24: 0})
    assert "studies.deep.batch_size.24: " in message
    assert "greater than 0, but is 0" in message


def test_a_missing_key():
    data = config_with()
    del data["studies"]["deep"]["steps"]
    with pytest.raises(ConfigError) as caught:
        check_config(data, "my.yaml")
    assert str(caught.value) == "my.yaml: studies.deep.steps: field required"


def test_a_missing_section():
    with pytest.raises(ConfigError, match=r"^my\.yaml: studies: field required$"):
        check_config({}, "my.yaml")


def test_no_study_at_all():
    assert "studies: " in refusal("studies", {})


def test_an_empty_study():
    assert "studies.deep: " in refusal("studies.deep", None)


@pytest.mark.parametrize("name", ["Deep", "deep_1", "1deep", "deep/er", "..", "", "dé", "deep "])
def test_a_study_name_that_makes_no_folder(name):
    data = {"studies": {name: CONFIG["studies"]["deep"]}}
    with pytest.raises(ConfigError) as caught:
        check_config(data, "my.yaml")
    assert str(caught.value) == (
        f"my.yaml: top level: study name '{name}' must be lower-case letters, digits and hyphens"
    )


def test_two_problems_are_two_lines():
    data = config_with("studies.deep.seeds", [])
    data["studies"]["deep"]["steps"] = 0
    with pytest.raises(ConfigError) as caught:
        check_config(data, "my.yaml")
    first, second = sorted(str(caught.value).splitlines())
    assert first.startswith("my.yaml: studies.deep.seeds: ")
    assert second.startswith("my.yaml: studies.deep.steps: ")


def test_a_value_with_a_line_break_is_still_refused_in_one_line():
    assert "studies.deep.variants.0" in refusal("studies.deep.variants", ["a\nb"])


# --- connections ---------------------------------------------------------------------------------


def spec_of(variant, connections=None, **study):
    """The spec of a study's only variant."""
    data = config_with("studies.deep.variants", [variant])
    data["studies"]["deep"] |= study
    config = check_config({**data, "connections": connections or {}}, "my.yaml")
    return config.spec(config.cells()[0])


def connection_refusal(variant, connections=None, **study):
    with pytest.raises(ConfigError) as caught:
        spec_of(variant, connections, **study)
    assert "\n" not in str(caught.value)
    return str(caught.value)


IMAGES = {"task": "fashion", "model": {"width": 8}}


def test_settings_are_laid_over_those_of_a_named_connection():
    spec = spec_of({"mhc_5": {"connection": "mhc", "H_res": {"iterations": 5}, "close": "sum"}})
    plain = spec_of("mhc")
    assert spec.variant == "mhc_5"
    assert spec.connection.H_res.iterations == 5
    assert spec.connection.close.kind == "sum"
    changed = {"H_res", "close"}
    assert spec.connection.model_dump(exclude=changed) == plain.connection.model_dump(
        exclude=changed
    )


def test_another_kind_of_an_ingredient_brings_its_own_settings():
    spec = spec_of({"other": {"connection": "mhc", "H_res": {"kind": "exp"}}})
    assert spec.connection.H_res.model_dump() == {
        "kind": "exp", "start": {"diagonal": 0.0, "off_diagonal": 0.0, "noise": 0.0},
    }  # fmt: skip


def test_a_connection_of_the_config_can_be_used_by_name():
    connections = {"mild": {"connection": "mhc", "H_res": {"start": {"diagonal": 0}}}}
    spec = spec_of("mild", connections)
    assert spec.connection.H_res.start.model_dump() == {
        "diagonal": 0.0, "off_diagonal": -1.0, "noise": 0.0,
    }  # fmt: skip


def test_a_connection_can_be_written_out_as_a_row():
    row = {"kind": "streams", "open": "first_only", "pre": "raw", "post": "raw", "H_res": "raw"}
    found = spec_of({"mine": row}).connection
    assert (found.open.kind, found.pre.kind, found.streams) == ("first_only", "raw", 4)


def test_the_streams_of_a_study_hold_where_a_variant_says_nothing():
    assert spec_of("mhc", streams=8).connection.streams == 8
    assert spec_of({"m2": {"connection": "mhc", "streams": 2}}, streams=8).connection.streams == 2


def test_streams_change_no_variant_that_has_one():
    assert spec_of("baseline", streams=8).hash() == spec_of("baseline", streams=4).hash()


def test_a_published_name_means_what_its_source_means():
    on_tokens, on_images = spec_of("mhc"), spec_of("mhc", **IMAGES)
    assert on_tokens.connection == spec_of("mhc_demo").connection
    assert on_images.connection == spec_of("mhc_dynamic", **IMAGES).connection
    assert on_images.connection != on_tokens.connection


@pytest.mark.parametrize(
    ("variant", "study"), [("resnet", {}), ("baseline", IMAGES)], ids=["tokens", "images"]
)
def test_a_name_that_its_network_gives_no_meaning(variant, study):
    message = connection_refusal(variant, **study)
    assert f"my.yaml: studies.deep.variants.{variant}: unknown connection '{variant}'" in message


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"connection": "mch"}, "v: unknown connection 'mch'; did you mean 'mhc'?"),
        ({"connection": "mhc", "H_rse": "exp"}, "v: unknown key 'H_rse'; did you mean 'H_res'?"),
        ({"connection": "mhc", "H_res": "sinkhron"}, "H_res: unknown constraint 'sinkhron'; did"),
        ({"connection": "mhc", "H_res": {"iterations": 0}}, "H_res.iterations: input should be"),
        ({"connection": "mhc", "H_res": {"iterations": "many"}}, "H_res.iterations: input should"),
        ({"connection": "mhc", "H_res": {"kind": "exp", "tau": 1}}, "H_res: unknown key 'tau'"),
        ({"connection": "mhc", "H_res": {"tau": 0}}, "H_res.tau: input should be greater than 0"),
        ({"connection": "mhc", "H_res_start": {"diagonal": 1}}, "v: unknown key 'H_res_start'"),
        (
            {"connection": "mhc", "streams": 2000, "H_res": "permutations"},
            "H_res: permutations: 2000 streams have 2000! permutations; take at most 5",
        ),
        (
            {"connection": "mhc_lite", "H_res": {"start": {"stream": 24}}},
            "v: H_res.start.stream is 24, but the last of 24 logits is 23",
        ),
        (
            {"kind": "causal", "constraint": "identity"},
            "v: constraint: identity has no logit for each pair of layers; take exp or sinkhorn",
        ),
        ({"connection": "mhc", "H_res": 5}, "H_res: must be the name of a constraint"),
        ({"connection": "mhc", "streams": 0}, "streams: input should be greater than 0"),
        ({"connection": "mhc", "gate": {"kind": "learned", "start": 1}}, "gate.start: input"),
        ({"kind": "strems"}, "v: unknown kind of connection 'strems'; did you mean 'streams'?"),
        ({"connection": "baseline", "H_res": "exp"}, "v: unknown key 'H_res'"),
        ({"connection": ["mhc"]}, "v: connection must be a name, or settings, but is"),
    ],
)
def test_a_mistake_in_a_connection_names_variant_key_and_fix(settings, expected):
    message = connection_refusal({"v": settings})
    assert message.startswith("my.yaml: studies.deep.variants.v")
    assert expected in message


def test_a_connection_defined_by_itself():
    message = connection_refusal("a", {"a": "b", "b": "a"})
    assert "connection 'a' is defined by itself" in message


def test_two_variants_of_one_label():
    message = refusal("studies.deep.variants", ["mhc", {"mhc": {"connection": "hc"}}])
    assert message == "my.yaml: studies.deep.variants: lists mhc more than once"


def test_a_cut_variant_that_no_study_has():
    message = refusal("variants", ["mch"])
    assert message.startswith("my.yaml: variants: unknown variant 'mch'; did you mean 'mhc'?")


def test_an_exclusion_may_list_several_values_of_an_axis():
    exclude = [{"variant": ["hc", "mhc"], "backend": "mlx"}]
    cells = check_config(config_with("studies.deep.exclude", exclude)).cells()
    assert {c.variant for c in cells if c.backend == "mlx"} == {"baseline"}
    assert {c.variant for c in cells if c.backend == "torch"} == {"baseline", "hc", "mhc"}


def test_an_excluded_variant_that_no_study_has():
    message = refusal("studies.deep.exclude", [{"variant": "mch"}])
    assert "studies.deep.exclude.0.variant: unknown variant 'mch'" in message


def test_a_recipe_can_be_written_as_its_settings():
    settings = {"embedding": "unit", "attention": "packed_xavier", "bias_correction": True}
    spec = spec_of("mhc", recipe=settings)
    assert spec.hash() == spec_of("mhc", recipe="torch-defaults").hash()
    assert check_config(config_with("studies.deep.recipe", settings)).studies[
        "deep"
    ].recipe_name == (
        "embedding unit, attention packed_xavier, bias_correction True, "
        "linear uniform, outputs linear, head linear"
    )


def test_a_mistake_in_a_recipe_names_its_key():
    settings = {"embedding": "one", "attention": "linear", "bias_correction": True}
    assert "studies.deep.recipe.embedding: " in refusal("studies.deep.recipe", settings)


def test_a_model_of_another_task():
    message = refusal("studies.deep.task", "fashion")
    assert message == "my.yaml: studies.deep.model: unknown key 'vocab'"


# --- files ---------------------------------------------------------------------------------------


def written(folder, name, text):
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def load_refusal(file):
    with pytest.raises(ConfigError) as caught:
        load_config([file])
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_malformed_yaml_names_file_and_line(tmp_path):
    file = written(tmp_path, "my.yaml", "studies:\n  deep:\n    steps: [1, 2\n    seeds: [0]\n")
    message = load_refusal(file)
    assert message.startswith(f"{file}: line 4 malformed YAML (")


def test_a_tab_names_file_and_line(tmp_path):
    file = written(tmp_path, "my.yaml", "studies:\n\tdeep: 1\n")
    assert load_refusal(file).startswith(f"{file}: line 2 malformed YAML (")


def test_a_control_character_is_refused_in_one_line(tmp_path):
    file = written(tmp_path, "my.yaml", "results: a\x00b\n")
    assert load_refusal(file).startswith(f"{file}: ")


def test_bytes_that_are_no_text(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_bytes(b"results: \xff\n")
    message = load_refusal(file)
    assert message.startswith(f"{file}: ")
    assert "malformed" in message


def test_a_missing_file(tmp_path):
    file = tmp_path / "none.yaml"
    assert load_refusal(file) == f"{file}: cannot be read (No such file or directory)"


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "just text\n"])
def test_a_file_that_is_no_mapping(tmp_path, text):
    file = written(tmp_path, "my.yaml", text)
    assert load_refusal(file) == f"{file}: must be a mapping with keys such as 'studies'"


def test_every_file_is_named_in_a_refusal(tmp_path):
    base = written(tmp_path, "base.yaml", yaml.safe_dump(CONFIG))
    overlay = written(tmp_path, "overlay.yaml", "studies: {deep: {steps: -1}}\n")
    with pytest.raises(ConfigError) as caught:
        load_config([base, overlay])
    assert str(caught.value).startswith(f"{base} + {overlay}: studies.deep.steps: ")


# --- overlays ------------------------------------------------------------------------------------


def test_mappings_merge_key_by_key_and_lists_are_replaced():
    base = {"a": {"b": {"c": 1, "d": 2}, "e": [1, 2, 3]}, "f": 4}
    merge(base, {"a": {"b": {"c": 10}, "e": [9]}, "g": 5})
    assert base == {"a": {"b": {"c": 10, "d": 2}, "e": [9]}, "f": 4, "g": 5}


def test_a_mapping_replaces_a_number_and_a_number_a_mapping():
    base = {"batch_size": 8, "other": {"x": 1}}
    merge(base, {"batch_size": {12: 4}, "other": 3})
    assert base == {"batch_size": {12: 4}, "other": 3}


def test_a_merge_leaves_its_overlay_alone():
    base, overlay = {}, {"a": {"b": 1}}
    merge(base, overlay)
    merge(base, {"a": {"b": 2}})
    assert overlay == {"a": {"b": 1}}


def test_later_files_and_then_overrides_win(tmp_path):
    base = written(tmp_path, "base.yaml", yaml.safe_dump(CONFIG))
    one = written(tmp_path, "one.yaml", "studies: {deep: {steps: 1, model: {width: 64}}}\n")
    two = written(tmp_path, "two.yaml", "studies: {deep: {steps: 2}}\n")
    overrides = {"studies": {"deep": {"optimizer": {"lr": 0.5}}}}
    study = load_config([base, one, two], overrides).studies["deep"]
    assert study.steps == 2
    assert (study.model.width, study.model.vocab) == (64, 64)
    assert study.optimizer.lr == 0.5


def test_an_overlay_of_one_study_leaves_its_yaml_alias_alone(pytestconfig, tmp_path):
    # depth-torch takes its model from depth-mlx by an alias: in YAML they are one mapping.
    overlay = written(tmp_path, "o.yaml", "studies: {depth-mlx: {model: {width: 64}}}\n")
    config = load_config([pytestconfig.rootpath / "config.yaml", overlay])
    assert config.studies["depth-mlx"].model.width == 64
    assert config.studies["depth-torch"].model.width == 32


# --- which backends are here ---------------------------------------------------------------------


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder that is searched for modules before all others, for a framework `newframework`."""
    monkeypatch.setattr(load, "BACKENDS", ("newframework",))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def distribution_in(folder, name, files):
    """What pip leaves beside the files of a distribution."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))


def test_a_framework_with_its_distribution_is_installed(elsewhere):
    (elsewhere / "newframework").mkdir()  # without an __init__.py, as MLX is
    (elsewhere / "newframework/core.so").touch()
    distribution_in(elsewhere, "newframework", ["newframework/core.so"])
    assert load.installed_backends() == ("newframework",)


def test_an_empty_folder_is_no_framework(elsewhere):
    (elsewhere / "newframework").mkdir()
    assert load.installed_backends() == ()


def test_what_another_distribution_keeps_in_its_folder_is_no_framework(elsewhere):
    """After `pip uninstall mlx`: mlx-cpu still has its libraries there."""
    (elsewhere / "newframework/lib").mkdir(parents=True)
    (elsewhere / "newframework/lib/libnew.so").touch()
    distribution_in(elsewhere, "newframework-cpu", ["newframework/lib/libnew.so"])
    assert load.installed_backends() == ()


def test_a_module_that_no_distribution_brings_is_no_framework(elsewhere):
    (elsewhere / "newframework.py").touch()
    assert load.installed_backends() == ()


def test_a_framework_under_another_name_is_installed(elsewhere):
    (elsewhere / "newframework").mkdir()
    (elsewhere / "newframework/__init__.py").touch()
    distribution_in(elsewhere, "newframework-nightly", ["newframework/__init__.py"])
    assert load.installed_backends() == ("newframework",)


def test_an_editable_framework_is_installed(elsewhere, tmp_path, monkeypatch):
    source = tmp_path / "source"
    (source / "newframework").mkdir(parents=True)
    (source / "newframework/__init__.py").touch()
    monkeypatch.syspath_prepend(str(source))
    distribution_in(elsewhere, "newframework", ["__editable__.newframework.pth"])
    assert load.installed_backends() == ("newframework",)


# --- folders -------------------------------------------------------------------------------------


def test_a_home_folder_is_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    config = check_config({**CONFIG, "results": "~/mine", "compute": {"data": "~"}})
    assert (config.results, config.compute.data) == (f"{tmp_path}/mine", str(tmp_path))


def test_a_folder_has_one_name():
    config = check_config({**CONFIG, "results": "./a//b/./c/"})
    assert config.results == config.report_folder == "a/b/c"


def test_a_link_that_leads_nowhere_is_no_folder(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    message = refusal("results", str(tmp_path / "link"))
    assert message.endswith("is there already, and is no folder")


# --- large grids ---------------------------------------------------------------------------------


def test_time_grows_with_the_cells_and_not_with_their_square():
    """19 000 cells take 0.2 s; comparing every two of them would take minutes."""
    seeds = list(range(19_000))
    study = CONFIG["studies"]["deep"] | {
        "variants": ["mhc"], "depths": [12], "backends": ["torch"], "seeds": seeds,
        "exclude": [{"seed": seed, "depth": 12} for seed in seeds[:5000]],
    }  # fmt: skip
    start = time.process_time()
    config = check_config({"studies": {"deep": study}, "seeds": seeds[2000:]})
    assert len(config.cells()) == 14_000
    assert time.process_time() - start < 3


# --- cuts ----------------------------------------------------------------------------------------


def test_the_whole_grid_is_no_cut_and_reports_into_the_results():
    config = check_config({**CONFIG, "results": "out"})
    assert config.cut == {}
    assert config.report_folder == "out"


def test_a_cut_reports_into_a_folder_of_its_own():
    cut = {"seeds": [0], "backends": ["torch", "mlx"]}
    config = check_config({**CONFIG, "results": "out", **cut})
    assert config.cut == cut
    assert config.results == "out"
    assert config.report_folder == "out/cuts/backends-torch-mlx+seeds-0"


def test_long_cuts_have_short_names_that_differ():
    seeds = list(range(100))
    names = []
    for last in (100, 101):
        data = config_with("studies.deep.seeds", [*seeds, last])
        data["seeds"] = [*seeds, last]
        names.append(check_config(data).report_folder.rpartition("/")[2])
    assert names[0] != names[1]
    assert all(len(name) < 128 for name in names)
