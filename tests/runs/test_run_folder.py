"""The format of run folders, and their validation: made by hand, and then damaged."""

import json
import math
import shutil
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save

from fathom_study.metrics import runs, steps
from fathom_study.runs.folder import ALWAYS, decode_row, encode_row, read_rows
from fathom_study.runs.training_code import training_code
from fathom_study.runs.validate import validate_run
from fathom_study.tasks import Problem
from tests.support.runs import (
    CPU_PLATFORM,
    RUN_FILES,
    initial_mixing,
    metric_rows,
    read_manifest,
    seal,
    write_manifest,
    write_run,
)
from tests.support.specs import make_spec

LOSSES = [4.0, 2.0, 1.0]

# --- rows as text --------------------------------------------------------------------------------

names = st.sampled_from(["step", "loss", "grad_norm", "amax_forward_log10", "grad_norm_H_res"])
numbers = st.integers() | st.floats()  # floats include NaN, both infinities and −0.0


@given(st.dictionaries(names, numbers))
def test_a_row_is_read_back_as_it_was(row):
    line = encode_row(row)
    assert line.endswith("\n")
    assert line.count("\n") == 1
    json.loads(line, parse_constant=pytest.fail)  # as in the standard, without NaN
    # repr distinguishes NaN, −0.0, the last digit of a float, and floats from integers.
    assert repr(sorted(decode_row(line).items())) == repr(sorted(row.items()))


# --- a whole run ---------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Two valid runs, (spec, folder) by name; `kept` has weights."""
    result = {}
    for name, changes in {"plain": {}, "kept": {"weights": True}}.items():
        spec = make_spec(**changes)
        folder = tmp_path_factory.mktemp(name)
        write_run(
            folder, spec, metric_rows(LOSSES), threads=2, git={"commit": "abc", "dirty": False}
        )
        result[name] = spec, folder
    return result


@pytest.fixture
def spec(made):
    """The spec of `run`."""
    return made["plain"][0]


@pytest.fixture
def run(made, tmp_path):
    """A copy of a whole run, for a test to damage."""
    return shutil.copytree(made["plain"][1], tmp_path / "run")


@pytest.fixture
def kept(made, tmp_path):
    """(spec, folder) of a copy of a run with weights."""
    spec, folder = made["kept"]
    return spec, shutil.copytree(folder, tmp_path / "kept")


def validated(folder, spec):
    """(status, reason) of a run."""
    result = validate_run(folder, spec)
    assert result.reason.isprintable()
    assert len(result.reason) < 600
    return result.status, result.reason


def corrupt(folder, spec):
    """Reason why a run is corrupt: a single line that names one of its files."""
    status, reason = validated(folder, spec)
    assert status == "corrupt"
    assert reason.startswith((*RUN_FILES, "weights.safetensors"))
    return reason


def test_a_whole_run_is_measured(run, spec):
    result = validate_run(run, spec)
    assert (result.status, result.reason) == ("measured", "")
    assert (result.cell, result.folder, result.platform) == (spec.cell, run, CPU_PLATFORM)
    assert {file.name for file in run.iterdir()} == set(RUN_FILES)
    assert read_rows(run) == metric_rows(LOSSES)
    assert validate_run(run, spec, imported=True).status == "imported"


def test_a_run_with_weights_is_measured_until_one_without_replaces_it(kept, spec):
    keeping, folder = kept
    assert validated(folder, keeping) == ("measured", "")
    assert {file.name for file in folder.iterdir()} == {*RUN_FILES, "weights.safetensors"}
    write_run(folder, spec, metric_rows(LOSSES))
    assert {file.name for file in folder.iterdir()} == set(RUN_FILES)


def test_absent_run_is_missing_and_unfinished_run_has_failed(tmp_path, spec):
    assert validated(tmp_path / "none", spec) == ("missing", "")
    (tmp_path / ".partial").mkdir()
    status, reason = validated(tmp_path, spec)
    assert status == "failed"
    assert reason == "began and has not finished; run it again to go on"


# --- the manifest --------------------------------------------------------------------------------


def edit_manifest(folder, change):
    manifest = read_manifest(folder)
    change(manifest)
    write_manifest(folder, manifest)


# --- the rows ------------------------------------------------------------------------------------


def write_rows(folder, lines):
    """Replace the rows and update the manifest."""
    (folder / "metrics.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    seal(folder)


def lines_of(folder):
    return (folder / "metrics.jsonl").read_bytes().splitlines()


def row(number=1, /, **changes):
    """Function that changes a row, with NaN encoded as in rows; `...` removes a field."""

    def spoil(folder):
        lines = lines_of(folder)
        changed = {**decode_row(lines[number].decode()), **changes}
        lines[number] = encode_row({k: v for k, v in changed.items() if v is not ...}).encode()[:-1]
        write_rows(folder, lines)

    return spoil


@pytest.mark.parametrize(
    "change",
    [
        row(0, overflow_layer=None, overflow_activation_log10=None),
        row(grad_norm=3.4028235e38 * 10),  # the norm of a hundred of float32's largest
        row(2, loss=math.nan, grad_norm=math.inf, stream_similarity=math.nan,
            nonfinite_event=1, nonfinite_total=1),
    ],
)  # fmt: skip
def test_allowed_nulls_large_and_non_finite_numbers_are_valid(run, spec, change):
    change(run)
    assert validated(run, spec) == ("measured", "")


def test_endless_rows_do_not_fill_the_memory(run, spec):
    first, *_ = lines_of(run)
    write_rows(run, [first] * 20_000)
    tracemalloc.start()
    try:
        assert "in order" in corrupt(run, spec)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


# --- damaged runs that are refused ---------------------------------------------------------------


def edit_spec(change):
    """Function that changes the spec and updates the file hashes of the manifest."""

    def spoil(folder):
        data = json.loads((folder / "spec.json").read_text())
        change(data)
        (folder / "spec.json").write_text(json.dumps(data))
        seal(folder)

    return spoil


def manifest(change):
    return lambda folder: edit_manifest(folder, change)


def text_of_manifest(text):
    return lambda folder: (folder / "manifest.json").write_text(text)


def line(text):
    """Function that replaces the second row by a text."""
    return lambda folder: write_rows(folder, [lines_of(folder)[0], text, *lines_of(folder)[2:]])


def rows(change):
    return lambda folder: write_rows(folder, change(lines_of(folder)))


def matrices(content):
    def spoil(folder):
        (folder / "mixing.safetensors").write_bytes(content)
        seal(folder)

    return spoil


F32 = np.float32
SHAPES = {"H_pre": (3, 4), "H_post": (3, 4), "H_res": (3, 4, 4)}
ZEROS = {name: np.zeros(shape, F32) for name, shape in SHAPES.items()}
TURNED = {**ZEROS, "H_pre": np.zeros((4, 3), F32)}
DOUBLES = {**ZEROS, "H_res": np.zeros((3, 4, 2), np.float64)}
PLACE = b'{"H_res":{"dtype":"F32","shape":[3,4,4],"data_offsets":[0,2000]}}'
AFTER_THE_DATA = len(PLACE).to_bytes(8, "little") + PLACE + bytes(4 * 72)
REQUIRED = ("cell", "spec_hash", "code", "device", "os", "cpu", "files", "sha256")
OUT = "../../spec.json"
NO_ROW = "line 2 is not a row of metrics"

REFUSED = [
    # (damage to a run, file that the reason names, part of the reason)
    *((manifest(lambda m, k=k: m.update({k: [1]})), "manifest", f"{k}: ") for k in ("code", "git")),
    (manifest(lambda m: m.update(secs=1)), "manifest", "unknown key 'secs'; did you mean"),
    (manifest(lambda m: m["files"].pop("metrics.jsonl")), "manifest", "lists 'spec.json, mixing"),
    (manifest(lambda m: m["files"].update({OUT: m["files"]["spec.json"]})), "manifest",
     f"{OUT}', not the files of a run"),
    (manifest(lambda m: m.update(cell=m["cell"].replace("3L", "4L"))), "manifest", "another cell"),
    (manifest(lambda m: m["device"].update(name="a\x1b[2Jb")), "manifest", "not contain control"),
    (manifest(lambda m: m["device"].update(name="=1+1")), "manifest", "should match pattern"),
    (manifest(lambda m: m["device"].update(name="\ud800")), "manifest", "not valid JSON ("),
    (manifest(lambda m: m.update(seconds=math.nan)), "manifest", "seconds: input should be"),
    *((text_of_manifest(text), "manifest", "not ") for text in ("", "[]", '{"a":' * 100_000)),
    *((row(**{name: ...}), "metrics", f"line 2 has no valid '{name}'") for name in ALWAYS),
    (row(loss=-5.0), "metrics", "'loss': -5.0 is not a number from 0 to inf"),
    (row(loss=None), "metrics", "'loss'"),
    (row(loss=math.nan), "metrics", "line 2 has no valid 'nonfinite_event': 0"),
    (row(step=True), "metrics", "'step'"),
    (row(grad_norm=1.1e40), "metrics", "'grad_norm'"),
    (row(test_accuracy=0.5), "metrics", "'test_accuracy'"),  # of the image task
    (row(**{"a\nfathom: fine\x1b[2J": 1.0}), "metrics", "line 2 has no valid 'a"),
    (row(stream_similarity=1.0001), "metrics", "1.0001 is not a number from -1 to 1"),
    (row(step_seconds=math.nan), "metrics", "nan is not a finite number from 0 to inf"),
    (row(nonfinite_event=5), "metrics", "5 is not a whole number from 0 to 1"),
    (row(nonfinite_total=3), "metrics", "3, but there are 0 events so far"),
    (line(b'{"step":1,"loss":NaN}'), "metrics", NO_ROW),
    (line(b'{"step":1,"loss":1e400}'), "metrics", NO_ROW),
    (line(b'{"step":1,"nonfinite":{"loss":"much"}}'), "metrics", NO_ROW),
    (line(b'{"step":' * 100_000), "metrics", NO_ROW),
    (line(b"loss = 3"), "metrics", NO_ROW),
    (line(bytes(range(128, 256))), "metrics", "is not a row of metrics"),
    (rows(lambda lines: lines[:-1]), "metrics", "does not contain steps 0 to 2 in order"),
    (rows(lambda lines: [*lines, lines[-1]]), "metrics", "does not contain steps 0 to 2 in order"),
    (rows(lambda lines: lines[::-1]), "metrics", "does not contain steps 0 to 2 in order"),
    (edit_spec(lambda s: s.update(seed=9)), "spec", "is not the spec that the manifest names"),
    (edit_spec(lambda s: s.pop("steps")), "spec", "steps: field required"),
    (edit_spec(lambda s: s["model"].update(vocab=10**4000)), "spec", "less than or equal to 900"),
    (edit_spec(lambda s: s.update(task="chess")), "spec", "unknown task 'chess'"),
    (matrices(save({n: ZEROS[n] for n in ("H_pre", "H_post")})), "mixing", "'H_res' is absent"),
    (matrices(save(TURNED)), "mixing", "'H_pre' is F32 [4, 3], but must"),
    (matrices(save(DOUBLES)), "mixing", "'H_res' is F64 [3, 4, 2], but must be F32 [3, 4, 4]"),
    (matrices(save(ZEROS)[:100]), "mixing", "cannot be read ("),
    (matrices(AFTER_THE_DATA), "mixing", "cannot be read ("),
]  # fmt: skip


@pytest.mark.parametrize(
    ("spoil", "file", "said"), REFUSED, ids=lambda x: x[:40] if isinstance(x, str) else ""
)
def test_a_wrong_run_is_refused_in_a_line_that_names_the_file(run, spec, spoil, file, said):
    spoil(run)
    reason = corrupt(run, spec)
    assert reason.startswith(f"{file}.")
    assert said in reason


def test_a_file_that_cannot_be_read_makes_its_run_corrupt(run, spec, monkeypatch):
    def fail(file):
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr("fathom_study.runs.folder.sha256", fail)
    result = validate_run(run, spec)
    assert (result.status, "cannot be read (Permission denied)" in result.reason) == (
        "corrupt",
        True,
    )


@pytest.mark.parametrize("key", REQUIRED)
def test_manifest_without_a_key_or_with_a_wrong_hash_is_corrupt(run, spec, key):
    manifest = read_manifest(run)
    (run / "manifest.json").write_text(json.dumps({**manifest, "threads": 3}))
    assert corrupt(run, spec).endswith("its content does not match its own SHA-256")
    del manifest[key]
    (run / "manifest.json").write_text(json.dumps(manifest))
    assert corrupt(run, spec) == f"manifest.json: {key}: field required"


# --- mixing and weights --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "variant"),
    [
        ("tokens", "baseline"),
        ("tokens", "mhc_causal"),
        ("tokens", "mhc_dynamic"),
        ("fashion", "mhc"),
    ],
)
def test_the_shapes_of_the_matrices_are_known_without_computing_them(tmp_path, task, variant):
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


def test_unexpected_matrices_are_refused_and_diverged_ones_are_valid(tmp_path):
    spec = make_spec(variant="baseline")
    write_run(tmp_path, spec, metric_rows(LOSSES), mixing={"H_res": np.zeros((3, 4, 4), F32)})
    assert "'H_res' is F32 [3, 4, 4], but must be absent" in corrupt(tmp_path, spec)
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
    said = "weights.safetensors: 'norm.weight' is absent, but must be F32 [16] by spec.json"
    assert corrupt(folder, spec) == said


def test_weights_are_there_if_and_only_if_the_study_keeps_them(kept, run, spec):
    keeping, folder = kept
    shutil.copy(folder / "weights.safetensors", run)
    said = "weights.safetensors: exists, but manifest.json does not list it"
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
        "manifest.json: does not list weights.safetensors, but spec.json has weights: true"
    )


# --- stale runs ----------------------------------------------------------------------------------


def with_code(monkeypatch, change):
    """Change the hashes of today's code."""
    monkeypatch.setattr(
        "fathom_study.runs.validate.training_code", lambda spec: change(training_code(spec))
    )


NAME = "fathom_study.train"


CODES = {
    "changed": (lambda code: {**code, NAME: "0" * 16}, ("stale", f"code differs: {NAME}")),
    "new": (lambda code: {**code, "fathom_study.metrics.new": "0" * 16}, ("measured", "")),
}


@pytest.mark.parametrize(("change", "expected"), CODES.values(), ids=CODES)
def test_a_changed_module_makes_a_run_stale(run, spec, monkeypatch, change, expected):
    with_code(monkeypatch, change)
    assert validated(run, spec) == expected
    result = validate_run(run, spec, imported=True)
    assert (result.platform, result.counts) == (CPU_PLATFORM, expected[0] == "measured")


def test_a_spec_of_an_older_form_makes_a_run_stale_and_not_corrupt(run, spec):
    """A setting may have been added or renamed since; the files are unchanged."""
    edit_spec(lambda s: s["optimizer"].update(momentum=s["optimizer"].pop("beta1")))(run)
    edit_manifest(run, lambda manifest: manifest.update(spec_hash="0" * 16))
    said = "spec differs: optimizer.beta1 None → 0.9, optimizer.momentum 0.9 → None"
    assert validated(run, spec) == ("stale", said)


def test_a_metric_of_an_older_code_makes_a_run_stale_and_not_corrupt(run, spec, monkeypatch):
    row(a_metric_that_was_dropped=1.0)(run)
    assert validated(run, spec)[0] == "corrupt"
    with_code(monkeypatch, lambda code: {**code, NAME: "0" * 16})
    assert validated(run, spec)[0] == "stale"


def test_new_metric_keeps_an_old_run_valid(run, spec, monkeypatch):
    of_runs = runs.RunMetric("loss", runs.largest, "largest finite loss")
    monkeypatch.setitem(runs.RUN_METRICS, "loss_max", of_runs)
    of_steps = steps.StepMetric("loss again", "the loss", steps.STEP_METRICS["loss"].compute)
    monkeypatch.setitem(steps.STEP_METRICS, "loss_again", of_steps)
    assert validated(run, spec) == ("measured", "")
    assert runs.summarise(read_rows(run), runs.RUN_METRICS)["loss_max"] == 4.0


# --- no traceback for any JSON ------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in RUN_FILES if n.endswith(".json")])
@given(st.data())
def test_no_json_causes_a_traceback(made, tmp_path_factory, name, data):
    """Any value at any place of a file whose hashes agree is refused in a line, or valid."""
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
