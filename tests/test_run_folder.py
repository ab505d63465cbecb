"""The format of run folders, and their validation: made by hand, and then damaged."""

import json
import math
import re
import shutil
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save

from fathom.metrics import runs, steps
from fathom.metrics.steps import SHARE, StepMetric
from fathom.runs.folder import ALWAYS, decode_row, encode_row, read_rows
from fathom.runs.training_code import training_code
from fathom.runs.validate import compare_specs, validate_run
from fathom.tasks import Problem
from fathom.tasks.tokens import Tokens
from run_helpers import (
    CPU_PLATFORM,
    RUN_FILES,
    initial_mixing,
    metric_rows,
    read_manifest,
    seal,
    write_manifest,
    write_run,
)

LOSSES = [4.0, 2.0, 1.0]

# --- rows as text --------------------------------------------------------------------------------

names = st.sampled_from(["step", "loss", "grad_norm", "amax_forward_log10", "grad_norm_H_res"])
numbers = st.integers() | st.floats()  # floats include NaN, both infinities and −0.0


def strictly(text):
    """Parse JSON as its standard has it: without NaN and Infinity."""

    def refuse(token):
        raise AssertionError(f"{token} is not JSON")

    return json.loads(text, parse_constant=refuse)


@given(st.dictionaries(names, numbers))
def test_a_row_is_read_back_as_it_was(row):
    line = encode_row(row)
    assert line.endswith("\n")
    assert line.count("\n") == 1
    strictly(line)
    # repr tells NaN, −0.0 and the last digit of a float apart, and a float from an integer.
    assert repr(sorted(decode_row(line).items())) == repr(sorted(row.items()))


# --- a whole run ---------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def made(tmp_path_factory, make_spec):
    """Two runs that nothing is wrong with: (spec, folder) by what they keep."""
    found = {}
    for name, changes in {"plain": {}, "kept": {"weights": True}}.items():
        spec = make_spec(**changes)
        folder = tmp_path_factory.mktemp(name)
        write_run(
            folder, spec, metric_rows(LOSSES), threads=2, git={"commit": "abc", "dirty": False}
        )
        found[name] = spec, folder
    return found


@pytest.fixture
def spec(made):
    """The spec of `run`."""
    return made["plain"][0]


@pytest.fixture
def run(made, tmp_path):
    """A copy of a whole run, for a test to spoil."""
    return shutil.copytree(made["plain"][1], tmp_path / "run")


@pytest.fixture
def kept(made, tmp_path):
    """(spec, folder) of a copy of a run with weights."""
    spec, folder = made["kept"]
    return spec, shutil.copytree(folder, tmp_path / "kept")


def validated(folder, spec):
    """Status and reason."""
    found = validate_run(folder, spec)
    assert found.reason.isprintable()
    assert len(found.reason) < 600
    return found.status, found.reason


def corrupt(folder, spec):
    """Why a run that must be corrupt is: a single line that names a file of it."""
    status, reason = validated(folder, spec)
    assert status == "corrupt"
    assert reason.startswith((*RUN_FILES, "weights.safetensors"))
    return reason


def test_a_whole_run_is_measured(run, spec):
    found = validate_run(run, spec)
    assert (found.status, found.reason) == ("measured", "")
    assert (found.cell, found.folder, found.platform) == (spec.cell, run, CPU_PLATFORM)
    assert {file.name for file in run.iterdir()} == set(RUN_FILES)
    assert read_rows(run) == metric_rows(LOSSES)
    assert validate_run(run, spec, imported=True).status == "imported"


def test_a_run_with_weights_is_measured_until_one_without_replaces_it(kept, spec):
    keeping, folder = kept
    assert validated(folder, keeping) == ("measured", "")
    assert {file.name for file in folder.iterdir()} == {*RUN_FILES, "weights.safetensors"}
    write_run(folder, spec, metric_rows(LOSSES))
    assert {file.name for file in folder.iterdir()} == set(RUN_FILES)


def test_no_folder_is_missing_and_a_begun_one_has_failed(tmp_path, spec):
    assert validated(tmp_path / "none", spec) == ("missing", "")
    (tmp_path / ".partial").mkdir()
    status, reason = validated(tmp_path, spec)
    assert status == "failed"
    assert reason == "began and has not finished; run it again to go on"


@pytest.mark.parametrize("name", RUN_FILES)
def test_a_file_that_is_gone_or_a_folder_is_named(run, spec, name):
    (run / name).unlink()
    assert corrupt(run, spec).startswith(name)
    (run / name).mkdir()
    assert corrupt(run, spec).startswith(name)


# --- the manifest --------------------------------------------------------------------------------


def edit_manifest(folder, change):
    manifest = read_manifest(folder)
    change(manifest)
    write_manifest(folder, manifest)


REQUIRED = ("cell", "spec_hash", "code", "device", "os", "cpu", "files")


def without(key):
    return lambda manifest: manifest.pop(key)


def with_list(key):
    return lambda manifest: manifest.update({key: [1]})


MANIFESTS = {
    **{f"manifest.json: {key}: field required": without(key) for key in REQUIRED},
    **{f"json: {key}: ": with_list(key) for key in (*REQUIRED, "seconds", "threads", "git")},
    "unknown key 'secs'; did you mean 'seconds'?": lambda m: m.update(secs=1),
    "device.name: input should be a valid string": lambda m: m["device"].update(name=None),
    "files.metrics.jsonl.bytes: ": lambda m: m["files"]["metrics.jsonl"].update(bytes=1.5),
    "threads: input should be less than or equal to 9007199254740992": lambda m: m.update(
        threads=2**53 + 1
    ),
    "format 1, but 2 is read here": lambda m: m.update(format=1),
    "lists 'spec.json, mixing.safetensors', which is": lambda m: m["files"].pop("metrics.jsonl"),
    "../../spec.json', which is not what a run holds": lambda m: m["files"].update(
        {"../../spec.json": m["files"]["spec.json"]}
    ),
    "is of another cell, 'small/4L": lambda m: m.update(cell=m["cell"].replace("3L", "4L")),
    "device.name: must not hold control characters, marks of direction": lambda m: m[
        "device"
    ].update(name="a\x1b[2Jb"),
    "json: code.fathom:x\\x07: must not hold": lambda m: m["code"].update({"fathom:x\x07": "0"}),
    "seconds: input should be greater than or equal to 0": lambda m: m.update(seconds=-1.0),
    "seconds: input should be a finite number": lambda m: m.update(seconds=math.nan),
    "device.name: string should have at most 500 characters": lambda m: m["device"].update(
        name="x" * 501
    ),
    "not valid JSON ('utf-8' codec can't encode character '\\ud800'": lambda m: m["device"].update(
        name="\ud800"
    ),
}


@pytest.mark.parametrize("said", MANIFESTS)
def test_a_wrong_manifest_is_refused_in_a_line_that_names_the_key(run, spec, said):
    edit_manifest(run, MANIFESTS[said])
    reason = corrupt(run, spec)
    assert reason.startswith("manifest.json: ")
    assert said in reason


def test_a_manifest_that_was_edited_does_not_have_its_own_hash(run, spec):
    manifest = read_manifest(run)
    (run / "manifest.json").write_text(json.dumps({**manifest, "threads": 3}))
    reason = corrupt(run, spec)
    assert reason == "manifest.json: its content does not have the SHA-256 that it names"
    del manifest["sha256"]
    (run / "manifest.json").write_text(json.dumps(manifest))
    assert corrupt(run, spec) == "manifest.json: sha256: field required"


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"a":' * 100_000, "\udc80", '"\\ud800"'])
def test_a_manifest_that_is_no_json_object_is_refused(run, spec, text):
    (run / "manifest.json").write_text(text, encoding="utf-8", errors="surrogateescape")
    assert corrupt(run, spec).startswith("manifest.json: not ")


# --- the rows ------------------------------------------------------------------------------------


def write_rows(folder, lines):
    """Replace the rows, and let the manifest agree."""
    (folder / "metrics.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    seal(folder)


def lines_of(folder):
    return (folder / "metrics.jsonl").read_bytes().splitlines()


def change_row(folder, number, **changes):
    lines = lines_of(folder)
    row = {**json.loads(lines[number]), **changes}
    lines[number] = json.dumps({k: v for k, v in row.items() if v is not ...}).encode()
    write_rows(folder, lines)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, ...) for name in ALWAYS),  # which every row has
        ("study", 1.0),
        ("a\nfathom: fine\x1b[2J", 1.0),
        ("loss", None),
        ("loss", "2.5"),
        ("step", True),
        ("grad_norm", [2.5]),
        ("stream_difference", 10**400),
        ("grad_norm", 1.1e40),
        ("test_accuracy", 0.5),  # of the image task
        ("grad_norm_stem", 1.0),
    ],
)
def test_a_value_that_no_metric_of_the_task_has_is_refused(run, spec, name, value):
    change_row(run, 1, **{name: value})
    said = repr(name)[:40]
    reason = corrupt(run, spec).replace("\\\\", "\\")
    assert reason.startswith(f"metrics.jsonl: line 2 has no valid {said}")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("loss", -5.0, "-5.0 is not a number from 0 to inf"),
        ("loss", -math.inf, "-inf is not a number from 0 to inf"),
        ("grad_norm", -1.0, "-1.0 is not a number from 0 to inf"),
        ("grad_norm_H_res", -1e-9, "-1e-09 is not a number from 0 to inf"),
        ("stream_similarity", 99.0, "99.0 is not a number from -1 to 1"),
        ("stream_similarity", math.inf, "inf is not a number from -1 to 1"),
        ("stream_similarity", 1.0001, "1.0001 is not a number from -1 to 1"),
        ("gate_mean", 7.0, "7.0 is not a number from 0 to 1"),
        ("exact_loss", -0.5, "-0.5 is not a number from 0 to inf"),
        ("step_seconds", -0.1, "-0.1 is not a finite number from 0 to inf"),
        ("step_seconds", math.nan, "nan is not a finite number from 0 to inf"),
        ("elapsed_seconds", math.inf, "inf is not a finite number from 0 to inf"),
        ("nonfinite_event", 5, "5 is not a whole number from 0 to 1"),
        ("nonfinite_event", -1, "-1 is not a whole number from 0 to 1"),
        (
            "nonfinite_total",
            3,
            "3, but there are 0 events so far",
        ),
        ("overflow_layer", -1, "-1 is not a whole number from 0 to inf"),
    ],
)
def test_a_number_that_no_run_can_have_is_refused_by_its_metrics_name(run, spec, name, value, said):
    row = {**decode_row(lines_of(run)[1].decode()), name: value}
    write_rows(run, [*lines_of(run)[:1], encode_row(row).encode().strip(), *lines_of(run)[2:]])
    assert corrupt(run, spec).startswith(f"metrics.jsonl: line 2 has no valid '{name}': {said}")


PROFILE = StepMetric("accuracy", "by position", when="last step", along="position", bounds=SHARE)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("right[1]", 0.5, ""),
        ("right[2.5]", 1.0, ""),
        ("right[1]", 7.0, "'right[1]': 7.0 is not a number from 0 to 1"),
        ("right", 0.5, "'right'"),
        ("right[x]", 0.5, "'right[x]'"),
        ("loss[1]", 0.5, "'loss[1]'"),
        ("wrong[1]", 0.5, "'wrong[1]'"),
    ],
)
def test_numbers_of_a_profile_have_its_name_a_place_and_its_range(
    make_spec, tmp_path, monkeypatch, name, value, said
):
    monkeypatch.setitem(Tokens.step_metrics, "right", PROFILE)
    rows = [{n: v for n, v in row.items() if n in ALWAYS} for row in metric_rows(LOSSES)]
    rows[-1][name] = value
    write_run(tmp_path, spec := make_spec(), rows)
    status, reason = validated(tmp_path, spec)
    assert said in reason
    assert (status == "corrupt") == bool(said)


def test_a_loss_that_is_not_finite_is_an_event(run, spec):
    change_row(run, 1, loss=None, nonfinite={"loss": "nan"})
    assert corrupt(run, spec).startswith("metrics.jsonl: line 2 has no valid 'nonfinite_event': 0")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400"])
@pytest.mark.parametrize("name", ["loss", "step_seconds"])
def test_numbers_that_json_has_not_are_refused(run, spec, name, number):
    line = re.sub(rb'"%s":[^,}]*' % name.encode(), f'"{name}":{number}'.encode(), lines_of(run)[1])
    write_rows(run, [lines_of(run)[0], line, *lines_of(run)[2:]])
    assert f"line 2 is not a row of metrics ('{name}' is " in corrupt(run, spec)


@pytest.mark.parametrize("kind", ["5", "1e5", "NAN", ["nan"], 2])
def test_only_what_is_not_finite_is_written_by_name(run, spec, kind):
    change_row(run, 1, loss=None, nonfinite={"loss": kind})
    assert "line 2 is not a row of metrics ('loss' is " in corrupt(run, spec)


@pytest.mark.parametrize(
    ("name", "value"),
    [("test_accuracy", 7.0), ("test_accuracy", math.nan), ("grad_norm_stem", -1.0)],
)
def test_what_a_task_declares_has_its_range_too(make_spec, tmp_path, name, value):
    rows = [{n: v for n, v in row.items() if n in ALWAYS} for row in metric_rows(LOSSES)]
    rows[-1][name] = value
    write_run(tmp_path, spec := make_spec(task="fashion", variant="mhc_causal"), rows)
    assert f"has no valid '{name}': {value} is not a " in validated(tmp_path, spec)[1]


def test_every_task_and_connection_may_have_its_own_metrics(make_spec, tmp_path):
    spec = make_spec(task="fashion", variant="mhc_causal")
    rows = [
        {name: value for name, value in row.items() if name in ALWAYS}
        for row in metric_rows(LOSSES)
    ]
    for row in rows:
        row |= {"grad_norm_stem": 1.0, "grad_norm_mixing": 2.0}
    rows[0]["overflow_depth"] = None
    rows[-1] |= {"test_accuracy": 0.5, "mixing_row_error": 0.0, "mixing_column_error": 0.0}
    write_run(tmp_path, spec, rows)
    assert validated(tmp_path, spec) == ("measured", "")


@pytest.mark.parametrize(
    ("number", "changes"),
    [
        (0, {"overflow_layer": None, "overflow_activation_log10": None}),
        (1, {"grad_norm": 3.4028235e38 * 10}),  # the norm of a hundred of float32's largest
        (
            2,
            {
                "loss": None,
                "nonfinite_event": 1,
                "nonfinite_total": 1,
                "nonfinite": {"loss": "nan", "grad_norm": "inf", "stream_similarity": "nan"},
            },
        ),
        (1, {"stream_similarity": 1.0000002}),  # by rounding
    ],
)
def test_nulls_large_and_non_finite_numbers_are_valid_where_they_may_be(run, spec, number, changes):
    change_row(run, number, **changes)
    assert validated(run, spec) == ("measured", "")


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines[:-1],
        lambda lines: [*lines, lines[-1]],
        lambda lines: lines[::-1],
        lambda lines: [],
    ],
)
def test_rows_that_are_not_those_of_every_step_in_order_are_refused(run, spec, change):
    write_rows(run, change(lines_of(run)))
    assert corrupt(run, spec) == "metrics.jsonl: does not hold steps 0 to 2 in order"


@pytest.mark.parametrize(
    "line",
    [
        b"loss = 3",
        b'{"step":2,"loss":2.',
        b"null",
        bytes(range(128, 256)),
        b'{"step":' * 100_000,
        b'{"step":1,"nonfinite":["loss"]}',
        b'{"step":1,"nonfinite":{"loss":"much"}}',
        b'{"step":1,"loss":%s}' % (b"9" * 5000),
        b"[" + b"[]," * 50_000 + b"1]",
    ],
    ids=lambda line: f"{line[:40]}",
)
def test_a_line_that_is_no_row_is_named(run, spec, line):
    first, _, last = lines_of(run)
    write_rows(run, [first, line, last])
    where = "line 2" if line.isascii() else "line 1"  # text is decoded ahead of its lines
    assert f"metrics.jsonl: {where} is not a row of metrics" in corrupt(run, spec)


def test_endless_rows_do_not_fill_the_memory(run, spec):
    first, *_ = lines_of(run)
    write_rows(run, [first] * 20_000)
    tracemalloc.start()
    try:
        assert "in order" in corrupt(run, spec)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


# --- the spec ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s.update(seed=9), "is not the spec that the manifest names"),
        (lambda s: s["optimizer"].update(lr=0.5), "is not the spec that the manifest names"),
        (lambda s: s.update({"a\nb": 1}), "unknown key 'a"),
        (lambda s: s.pop("steps"), "steps: field required"),
        (
            lambda s: s["model"].update(vocab=10**4000),
            "model.vocab: input should be less than or equal to 9007199254740992",
        ),
        (lambda s: s.update(task="chess"), "task: unknown task 'chess'"),
        (lambda s: s["connection"].update(kind="magic"), "unknown kind of connection 'magic'"),
        (lambda s: s.update(connection=[]), "must be the name of a kind of connection"),
        (lambda s: s.update(study="\ud800"), "not valid JSON ('utf-8' codec can't encode"),
    ],
)
def test_a_wrong_spec_is_refused_although_its_hash_is_right(run, spec, change, said):
    data = json.loads((run / "spec.json").read_text())
    change(data)
    (run / "spec.json").write_text(json.dumps(data))
    seal(run)
    assert said in corrupt(run, spec)


# --- mixing and weights --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "variant"),
    [("tokens", v) for v in ("baseline", "hc", "mhc_causal", "mhc_dynamic", "hc_paper_static")]
    + [("fashion", v) for v in ("resnet", "mhc_causal", "mhc_static")],
)
def test_the_shapes_of_the_matrices_are_known_without_computing_them(
    make_spec, tmp_path, task, variant
):
    spec = make_spec(task=task, variant=variant, depth=5, streams=3)
    mixing = initial_mixing(spec)
    shapes = Problem(spec).network.connection.matrix_shapes()
    assert shapes == {name: matrix.shape for name, matrix in mixing.items()}
    write_run(tmp_path, spec, metric_rows(LOSSES))
    read = load_file(tmp_path / "mixing.safetensors")
    assert read.keys() == mixing.keys()
    for name, matrix in mixing.items():
        np.testing.assert_array_equal(read[name], matrix)
    if task == "tokens":  # the rows are of that task
        assert validated(tmp_path, spec) == ("measured", "")


def with_header(header, size):
    """A file of arrays with that header, in all `size` bytes of them."""
    return len(header).to_bytes(8, "little") + header + bytes(size)


F32 = np.float32
MATRICES = {"H_pre": (3, 4), "H_post": (3, 4), "H_res": (3, 4, 4)}
SIZE = 4 * (12 + 12 + 48)
PLACE = b'{"H_res":{"dtype":"F32","shape":[3,4,4],"data_offsets":[%s,%s]}}'
ZEROS = {name: np.zeros(shape, F32) for name, shape in MATRICES.items()}
ARRAYS = {
    "one missing": (
        save({"H_pre": ZEROS["H_pre"], "H_post": ZEROS["H_post"], "H": ZEROS["H_res"]}),
        "'H_res' is absent, but F32 [3, 4, 4] by spec.json",
    ),
    "one more": (save({**ZEROS, "more": np.zeros(1, F32)}), "'more' is F32 [1], but absent by"),
    "flat": (save({**ZEROS, "H_res": np.zeros((3, 16), F32)}), "'H_res' is F32 [3, 16], but F32"),
    "turned": (save({**ZEROS, "H_pre": np.zeros((4, 3), F32)}), "'H_pre' is F32 [4, 3], but F32"),
    "of doubles": (
        save({**ZEROS, "H_res": np.zeros((3, 4, 2), np.float64)}),
        "'H_res' is F64 [3, 4, 2], but F32 [3, 4, 4] by spec.json",
    ),
    "cut off": (save(ZEROS)[:100], "cannot be read ("),
    "longer": (save(ZEROS) + bytes(4), "cannot be read ("),
    "an endless header": (b"\xff" * 400, "cannot be read ("),
    "a header that is no JSON": (with_header(b'{"H_pre":' * 20, SIZE), "cannot be read ("),
    "a place after the data": (with_header(PLACE % (b"0", b"2000"), SIZE), "cannot be read ("),
    "a place too small": (with_header(PLACE % (b"0", b"4"), SIZE), "cannot be read ("),
}


@pytest.mark.parametrize(("content", "said"), ARRAYS.values(), ids=ARRAYS)
def test_matrices_that_the_connection_does_not_have_are_refused(run, spec, content, said):
    (run / "mixing.safetensors").write_bytes(content)
    seal(run)
    reason = corrupt(run, spec)
    assert reason.startswith("mixing.safetensors: ")
    assert said in reason


def test_matrices_where_nothing_is_mixed_are_refused_and_diverged_ones_are_valid(
    make_spec, tmp_path
):
    spec = make_spec(variant="baseline")
    write_run(tmp_path, spec, metric_rows(LOSSES), mixing={"H_res": np.zeros((3, 4, 4), F32)})
    assert "'H_res' is F32 [3, 4, 4], but absent by spec.json" in corrupt(tmp_path, spec)
    spec = make_spec()
    broken = {name: np.full_like(matrix, np.nan) for name, matrix in initial_mixing(spec).items()}
    write_run(tmp_path, spec, metric_rows(LOSSES), mixing=broken)
    assert validated(tmp_path, spec) == ("measured", "")


def test_weights_of_another_network_are_refused(kept):
    spec, folder = kept
    weights = Problem(spec).initial_parameters()
    weights["norm.scale"] = weights.pop("norm.weight")
    (folder / "weights.safetensors").write_bytes(save(weights))
    seal(folder)
    said = "weights.safetensors: 'norm.weight' is absent, but F32 [16] by spec.json"
    assert corrupt(folder, spec) == said


def test_weights_are_there_if_and_only_if_the_study_keeps_them(kept, run, spec):
    keeping, folder = kept
    shutil.copy(folder / "weights.safetensors", run)
    said = "weights.safetensors: is there, but manifest.json does not list it"
    assert corrupt(run, spec) == said
    edit_manifest(run, lambda m: m["files"].update(read_manifest(folder)["files"]))  # lists them
    seal(run)
    assert corrupt(run, spec) == (
        "manifest.json: lists weights.safetensors, but spec.json has weights: false"
    )
    (folder / "weights.safetensors").unlink()
    assert corrupt(folder, keeping) == "weights.safetensors: missing"
    edit_manifest(folder, lambda m: m["files"].pop("weights.safetensors"))
    assert corrupt(folder, keeping) == (
        "manifest.json: lists no weights.safetensors, but spec.json has weights: true"
    )


# --- what makes a run stale ----------------------------------------------------------------------


def with_code(monkeypatch, change):
    """Let the code of today be another."""
    monkeypatch.setattr(
        "fathom.runs.validate.training_code", lambda spec: change(training_code(spec))
    )


NAME = "fathom.train:train"


CODES = {
    "changed": (lambda code: {**code, NAME: "0" * 16}, ("stale", f"code differs: {NAME}")),
    "gone": (
        lambda code: {k: v for k, v in code.items() if k != NAME},
        ("stale", f"code differs: {NAME}"),
    ),
    "new": (lambda code: {**code, "fathom.metrics.steps:new": "0" * 16}, ("measured", "")),
}


@pytest.mark.parametrize(("change", "expected"), CODES.values(), ids=CODES)
def test_a_recorded_definition_that_has_changed_or_is_gone_makes_a_run_stale(
    run, spec, monkeypatch, change, expected
):
    with_code(monkeypatch, change)
    assert validated(run, spec) == expected
    found = validate_run(run, spec, imported=True)
    assert (found.platform, found.counts) == (CPU_PLATFORM, expected[0] == "measured")


def test_a_spec_of_an_older_form_makes_a_run_stale_and_not_corrupt(run, spec):
    """A setting may have been added since, or renamed: nothing has happened to the files."""
    data = json.loads((run / "spec.json").read_text())
    data["optimizer"]["momentum"] = data["optimizer"].pop("beta1")
    (run / "spec.json").write_text(json.dumps(data))
    edit_manifest(run, lambda manifest: manifest.update(spec_hash="0" * 16))
    seal(run)
    said = "spec differs: optimizer.beta1 None → 0.9, optimizer.momentum 0.9 → None"
    assert validated(run, spec) == ("stale", said)


def test_a_metric_of_an_older_code_makes_a_run_stale_and_not_corrupt(run, spec, monkeypatch):
    change_row(run, 1, a_metric_that_was_dropped=1.0)
    assert validated(run, spec)[0] == "corrupt"
    with_code(monkeypatch, lambda code: {**code, NAME: "0" * 16})
    assert validated(run, spec)[0] == "stale"


def test_a_new_metric_leaves_an_old_run_good(run, spec, monkeypatch):
    of_runs = runs.RunMetric("loss", runs.largest, "largest finite loss")
    monkeypatch.setitem(runs.RUN_METRICS, "loss_max", of_runs)
    of_steps = steps.StepMetric("loss again", "the loss", steps.loss)
    monkeypatch.setitem(steps.STEP_METRICS, "loss_again", of_steps)
    assert validated(run, spec) == ("measured", "")
    assert runs.summarise(read_rows(run), runs.RUN_METRICS)["loss_max"] == 4.0


def test_what_differs_between_specs_by_hand(run, make_spec):
    old = {"a": 1, "b": {"c": 2, "d": 3}, "gone": 5}
    new = {"a": 1, "b": {"c": 4, "d": 3}, "new": [6]}
    assert compare_specs(old, new) == "b.c 2 → 4, gone 5 → None, new None → [6]"
    assert compare_specs(old, old) == ""
    said = "spec differs: model.vocab 32 → 64, optimizer.lr 0.01 → 0.5"
    assert validated(run, make_spec(lr=0.5, vocab=64)) == ("stale", said)


# --- no traceback, whatever is there ------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in RUN_FILES if n.endswith(".json")])
@given(st.data())
def test_no_json_leads_to_a_traceback(made, tmp_path_factory, name, data):
    """Any value, at any place of a file whose hashes agree: refused in a line, or without harm."""
    spec, whole = made["plain"]
    folder = tmp_path_factory.mktemp("odd") / "run"
    shutil.copytree(whole, folder)
    content = json.loads((folder / name).read_text())
    place = content
    while True:
        key = data.draw(st.sampled_from(sorted(place)))
        if not (isinstance(place[key], dict) and place[key] and data.draw(st.booleans())):
            break
        place = place[key]
    place[key] = data.draw(ODD)
    if name == "manifest.json":
        write_manifest(folder, content)
    else:
        (folder / name).write_text(json.dumps(content))
        seal(folder)
    status, _ = validated(folder, spec)
    assert status in ("measured", "stale", "corrupt")
    shutil.rmtree(folder)


ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**4000)
    | st.floats()
    | st.text()
    | st.sampled_from(["\ud800", "\x1b[2J\nfathom: fine", "x" * 10_000]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=3,
)
