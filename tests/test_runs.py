"""Run folders: rows as text, summaries, the four files, and going on after an interruption."""

import hashlib
import json
import math
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fathom.backends import BackendError
from fathom.runs import decode_row, encode_row, outcome, read_rows, run_cell, summarise
from fathom.study import Compute

CPU = Compute(device="cpu")
CHECKPOINTS = Compute(device="cpu", checkpoint_steps=5)
RUN_FILES = {"spec.json", "metrics.jsonl", "summary.json", "manifest.json"}


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
    # repr tells NaN, −0.0 and the last digit of a float apart, and a float from an integer.
    assert repr(sorted(decode_row(encode_row(row)).items())) == repr(sorted(row.items()))


@given(st.dictionaries(names, numbers))
def test_a_row_is_one_line_of_strict_json(row):
    line = encode_row(row)
    assert line.endswith("\n")
    assert line.count("\n") == 1
    strictly(line)


def test_a_row_by_hand():
    row = {"step": 3, "loss": math.nan, "grad_norm": -math.inf, "gain": 0.5}
    assert strictly(encode_row(row)) == {
        "step": 3,
        "loss": None,
        "grad_norm": None,
        "gain": 0.5,
        "nonfinite": {"loss": "nan", "grad_norm": "-inf"},
    }


@pytest.mark.parametrize("line", ["", "{", "[1]", "3", "null", '{"step": 1'])
def test_a_line_that_is_no_row_is_refused(line):
    with pytest.raises(ValueError, match=r"Expecting|not a JSON object"):
        decode_row(line)


# --- summaries -----------------------------------------------------------------------------------


def row_of(step, loss, grad_norm, **changes):
    return {
        "step": step,
        "loss": loss,
        "grad_norm": grad_norm,
        "nonfinite_event": 0,
        "gain_proxy_log10_max_entry": 6.0 + step,
        "amax_forward_log10": 7.0 + step,
        "amax_backward_log10": 8.0 + step,
        "nonfinite_total": 0,
        "step_seconds": 1.0,
        "elapsed_seconds": 1.0 + step,
        **changes,
    }


def test_a_summary_by_hand(make_spec):
    rows = [
        row_of(0, 3.5, 1.0, step_seconds=9.0, elapsed_seconds=9.0),
        row_of(1, 0.5, 100.0, step_seconds=1.0, elapsed_seconds=10.0),
        row_of(2, 2.0, 10.0, step_seconds=2.0, elapsed_seconds=12.0),
        row_of(3, 1.0, 10.0, step_seconds=6.0, elapsed_seconds=18.0),
    ]
    assert summarise(make_spec(vocab=32), rows) == {
        "steps": 4,
        "outcome": "learned",
        "chance_loss": pytest.approx(math.log(32)),
        "loss_first": 3.5,
        "loss_final": 1.0,
        "loss_min": 0.5,
        "grad_norm_first": 1.0,
        "grad_norm_final": 10.0,
        "grad_norm_max": 100.0,
        # log10 ratios 2, −1, 0: mean 1/3, variance (25/9 + 16/9 + 1/9) / 2 = 7/3
        "grad_norm_log10_sd": pytest.approx(math.sqrt(7 / 3)),
        # What belongs to streams, to the first step and to images: these rows have none of it.
        **dict.fromkeys(
            [
                "grad_norm_stem_max",
                "stream_difference_max",
                "stream_cosine_min",
                "grad_norm_H_pre_max",
                "grad_norm_H_post_max",
                "grad_norm_H_res_max",
                "activation_max_log10",
                "overflow_layer",
                "overflow_activation_log10",
                "overflow_depth",
                "test_accuracy",
                "mixing_row_error",
                "mixing_column_error",
            ]
        ),
        "gain_first": 6.0,
        "gain_final": 9.0,
        "amax_forward_log10_final": 10.0,
        "amax_backward_log10_final": 11.0,
        "nonfinite_total": 0,
        "first_nonfinite_step": None,
        "seconds_per_step": 2.0,  # the median of 1, 2, 6: the first step has the start-up in it
        "seconds": 18.0,
    }


def test_a_summary_of_a_diverged_run_by_hand(make_spec):
    broken = {"gain_proxy_log10_max_entry": math.nan, "amax_forward_log10": math.inf}
    rows = [
        row_of(0, 3.0, 1.0),
        row_of(1, 2.5, math.inf, nonfinite_event=0),
        row_of(2, math.nan, math.nan, nonfinite_event=1, nonfinite_total=1),
        row_of(3, math.nan, math.nan, nonfinite_event=1, nonfinite_total=2, **broken),
    ]
    summary = summarise(make_spec(), rows)
    assert summary["outcome"] == "diverged"
    assert summary["loss_final"] is None
    assert summary["loss_min"] == 2.5
    assert summary["grad_norm_final"] is None
    assert summary["grad_norm_max"] == 1.0
    assert summary["grad_norm_log10_sd"] is None
    assert summary["gain_final"] is None
    assert summary["amax_forward_log10_final"] is None
    assert summary["nonfinite_total"] == 2
    assert summary["first_nonfinite_step"] == 2
    json.dumps(summary, allow_nan=False)


def test_a_summary_without_any_number(make_spec):
    summary = summarise(make_spec(), [row_of(0, math.nan, math.nan, nonfinite_event=1)])
    assert summary["loss_first"] is None
    assert summary["loss_min"] is None
    assert summary["grad_norm_max"] is None
    assert summary["first_nonfinite_step"] == 0
    assert summary["seconds_per_step"] == 1.0  # there is none but the first


def test_a_smooth_decay_is_not_erratic(make_spec):
    rows = [row_of(step, 1.0, 10.0**-step) for step in range(6)]
    assert summarise(make_spec(), rows)["grad_norm_log10_sd"] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("norms", [[1.0, 2.0], [1.0, 0.0, 2.0], [1.0, math.inf, 2.0]])
def test_no_spread_of_too_few_or_of_broken_norms(make_spec, norms):
    rows = [row_of(step, 1.0, norm) for step, norm in enumerate(norms)]
    assert summarise(make_spec(), rows)["grad_norm_log10_sd"] is None


@pytest.mark.parametrize(
    ("final_loss", "expected"),
    [
        (math.nan, "diverged"),
        (math.inf, "diverged"),
        (-math.inf, "diverged"),
        (4.0, "at chance"),
        (100.0, "at chance"),
        (3.81, "at chance"),  # above 95 % of a guesser's 4.0
        (3.79, "learned"),
        (0.0, "learned"),
    ],
)
def test_outcome(final_loss, expected):
    assert outcome(final_loss, chance_loss=4.0) == expected


# --- a run ---------------------------------------------------------------------------------------


@pytest.fixture
def spec_on(make_spec):
    """A function from a backend to a spec of 30 steps on it."""

    def make(backend, **changes):
        return make_spec(backend=backend.device.framework, **{"steps": 30, **changes})

    return make


def without_times(rows):
    """Rows as text, but for the columns that no two runs share."""
    return [
        repr({name: value for name, value in row.items() if not name.endswith("_seconds")})
        for row in rows
    ]


def manifest_of(folder):
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))


def test_a_run_leaves_four_files_and_nothing_else(backend, spec_on, tmp_path):
    run_cell(spec_on(backend), tmp_path / "run", CHECKPOINTS)
    assert {file.name for file in (tmp_path / "run").iterdir()} == RUN_FILES
    assert [file.name for file in tmp_path.iterdir()] == ["run"]


def test_the_manifest_has_the_hash_and_the_size_of_every_file(backend, spec_on, tmp_path):
    run_cell(spec_on(backend), tmp_path, CPU)
    files = manifest_of(tmp_path)["files"]
    assert set(files) == RUN_FILES - {"manifest.json"}
    for name, recorded in files.items():
        content = (tmp_path / name).read_bytes()
        assert recorded["sha256"] == hashlib.sha256(content).hexdigest()
        assert recorded["bytes"] == len(content)


def test_the_manifest_names_the_cell_the_spec_and_the_framework(backend, spec_on, tmp_path):
    spec = spec_on(backend)
    run_cell(spec, tmp_path, CPU)
    manifest = manifest_of(tmp_path)
    assert manifest["cell"] == spec.cell.path()
    assert manifest["spec_hash"] == spec.hash()
    assert manifest["device"]["framework"] == spec.backend
    assert manifest["device"]["kind"] == "cpu"
    assert manifest["resumed_at_steps"] == []


def test_the_spec_is_kept_whole(backend, spec_on, tmp_path):
    spec = spec_on(backend)
    run_cell(spec, tmp_path, CPU)
    kept = json.loads((tmp_path / "spec.json").read_text(encoding="utf-8"))
    assert kept == json.loads(spec.json())


def test_every_step_has_its_row(backend, spec_on, tmp_path):
    run_cell(spec_on(backend, steps=23), tmp_path, CPU)
    rows = read_rows(tmp_path)
    assert [row["step"] for row in rows] == list(range(23))
    elapsed = np.cumsum([row["step_seconds"] for row in rows])
    assert [row["elapsed_seconds"] for row in rows] == pytest.approx(elapsed)


def test_the_summary_is_the_one_of_the_rows(backend, spec_on, tmp_path):
    spec = spec_on(backend)
    returned = run_cell(spec, tmp_path, CPU)
    kept = strictly((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert kept == returned == summarise(spec, read_rows(tmp_path))


def test_a_run_can_be_repeated_bit_for_bit(backend, spec_on, tmp_path):
    for name in ("one", "two"):
        run_cell(spec_on(backend), tmp_path / name, CPU)
    assert without_times(read_rows(tmp_path / "one")) == without_times(read_rows(tmp_path / "two"))


def test_on_chunk_sees_every_row_once(backend, spec_on, tmp_path):
    seen = []
    run_cell(spec_on(backend), tmp_path, CPU, lambda chunk: seen.extend(chunk.rows))
    assert repr(seen) == repr(read_rows(tmp_path))


def test_a_training_that_diverges_is_kept_as_strict_json(connect_cpu, spec_on, tmp_path):
    spec = spec_on(connect_cpu("torch"), variant="hc", depth=48, steps=3)
    summary = run_cell(spec, tmp_path, CPU)
    assert summary["outcome"] == "diverged"
    assert summary["nonfinite_total"] == 3
    for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        assert strictly(line)["nonfinite"]["loss"] == "nan"
    assert all(math.isnan(row["loss"]) for row in read_rows(tmp_path))


@pytest.mark.parametrize(("name", "device"), [("torch", "gpu"), ("mlx", "cuda")])
def test_a_device_that_cannot_be_there_is_refused_before_anything_is_written(
    connect_cpu, spec_on, tmp_path, name, device
):
    spec = spec_on(connect_cpu(name))
    with pytest.raises(BackendError, match=f"{name} has no device '{device}' here"):
        run_cell(spec, tmp_path / "run", Compute(device=device))
    assert list(tmp_path.iterdir()) == []


# --- interruptions -------------------------------------------------------------------------------


class InterruptionError(Exception):
    """What the tests throw into a training."""


def interrupt_at(steps):
    """An on_chunk that throws once so many steps are done."""

    def on_chunk(chunk):
        if chunk.rows[-1]["step"] + 1 >= steps:
            raise InterruptionError

    return on_chunk


def interrupted(spec, folder, steps=20):
    """Leave in `folder` what a training leaves that dies after so many of its steps."""
    with pytest.raises(InterruptionError):
        run_cell(spec, folder, CHECKPOINTS, interrupt_at(steps))


def checkpoint_in(folder):
    (file,) = (folder / ".partial").iterdir()
    return file


def test_an_interrupted_training_leaves_no_finished_file(backend, spec_on, tmp_path):
    interrupted(spec_on(backend), tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [".partial"]


@pytest.mark.parametrize("variant", ["baseline", "mhc"])
@pytest.mark.parametrize("recipe", ["mlx", "torch"])
def test_an_interrupted_training_goes_on_as_if_nothing_had_happened(
    backend, spec_on, tmp_path, variant, recipe
):
    spec = spec_on(backend, variant=variant, recipe=recipe, weight_decay=0.1)
    run_cell(spec, tmp_path / "whole", CPU)
    interrupted(spec, tmp_path / "broken")
    run_cell(spec, tmp_path / "broken", CHECKPOINTS)

    whole, broken = (read_rows(tmp_path / name) for name in ("whole", "broken"))
    assert without_times(broken) == without_times(whole)  # bit for bit
    # Rows come after 1, 11 and 21 steps: the interruption at 21 fell back to the save at 11.
    assert manifest_of(tmp_path / "broken")["resumed_at_steps"] == [11]
    assert {file.name for file in (tmp_path / "broken").iterdir()} == RUN_FILES


def test_a_training_that_is_interrupted_twice_goes_on_twice(backend, spec_on, tmp_path):
    spec = spec_on(backend, steps=40)
    run_cell(spec, tmp_path / "whole", CPU)
    interrupted(spec, tmp_path / "broken", steps=20)
    interrupted(spec, tmp_path / "broken", steps=30)
    run_cell(spec, tmp_path / "broken", CPU)
    whole, broken = (read_rows(tmp_path / name) for name in ("whole", "broken"))
    assert without_times(broken) == without_times(whole)
    assert manifest_of(tmp_path / "broken")["resumed_at_steps"] == [11, 22]


def test_elapsed_time_goes_on_from_the_checkpoint(backend, spec_on, tmp_path):
    spec = spec_on(backend)
    interrupted(spec, tmp_path)
    run_cell(spec, tmp_path, CPU)
    rows = read_rows(tmp_path)
    elapsed = np.cumsum([row["step_seconds"] for row in rows])
    assert [row["elapsed_seconds"] for row in rows] == pytest.approx(elapsed)


def test_a_diverged_training_goes_on_as_well(connect_cpu, spec_on, tmp_path):
    spec = spec_on(connect_cpu("torch"), variant="hc", depth=48)
    run_cell(spec, tmp_path / "whole", CPU)
    interrupted(spec, tmp_path / "broken")
    summary = run_cell(spec, tmp_path / "broken", CPU)
    whole, broken = (read_rows(tmp_path / name) for name in ("whole", "broken"))
    assert without_times(broken) == without_times(whole)
    assert summary["nonfinite_total"] == 30


def empty(file):
    file.write_bytes(b"")


def cut_off(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def cut_within_header(file):
    file.write_bytes(file.read_bytes()[:100])


def overwrite(file):
    file.write_bytes(b"this is no checkpoint" * 100)


def flip_a_bit(file):
    content = bytearray(file.read_bytes())
    content[-1] ^= 1  # inside the last array, where the file stays well-formed
    file.write_bytes(content)


def remove(file):
    file.unlink()


@pytest.mark.parametrize(
    "damage", [empty, cut_off, cut_within_header, overwrite, flip_a_bit, remove]
)
def test_a_damaged_checkpoint_is_left_unused(connect_cpu, spec_on, tmp_path, damage):
    spec = spec_on(connect_cpu("torch"))
    run_cell(spec, tmp_path / "whole", CPU)
    interrupted(spec, tmp_path / "broken")
    damage(checkpoint_in(tmp_path / "broken"))
    run_cell(spec, tmp_path / "broken", CPU)
    whole, broken = (read_rows(tmp_path / name) for name in ("whole", "broken"))
    assert without_times(broken) == without_times(whole)
    assert manifest_of(tmp_path / "broken")["resumed_at_steps"] == []


@pytest.mark.parametrize("change", [{"lr": 0.02}, {"seed": 1}, {"steps": 31}, {"recipe": "mlx"}])
def test_a_checkpoint_of_another_spec_is_left_unused(connect_cpu, spec_on, tmp_path, change):
    backend = connect_cpu("torch")
    spec, other = spec_on(backend), spec_on(backend, **change)
    run_cell(spec, tmp_path / "whole", CPU)
    interrupted(other, tmp_path / "other")
    shutil.copytree(tmp_path / "other", tmp_path / "mixed")
    run_cell(spec, tmp_path / "mixed", CPU)
    whole, mixed = (read_rows(tmp_path / name) for name in ("whole", "mixed"))
    assert without_times(mixed) == without_times(whole)
    assert manifest_of(tmp_path / "mixed")["resumed_at_steps"] == []


def test_a_checkpoint_of_other_code_is_left_unused(connect_cpu, spec_on, tmp_path, monkeypatch):
    from fathom import provenance

    spec = spec_on(connect_cpu("torch"))
    interrupted(spec, tmp_path)
    monkeypatch.setattr(provenance, "code_hashes", lambda *modules: {"fathom.train": "changed"})
    run_cell(spec, tmp_path, CPU)
    assert manifest_of(tmp_path)["resumed_at_steps"] == []


def test_a_new_training_replaces_an_older_run(connect_cpu, spec_on, tmp_path):
    backend = connect_cpu("torch")
    run_cell(spec_on(backend, seed=1), tmp_path, CPU)
    run_cell(spec_on(backend, seed=2), tmp_path, CPU)
    assert {file.name for file in tmp_path.iterdir()} == RUN_FILES
    assert manifest_of(tmp_path)["spec_hash"] == spec_on(backend, seed=2).hash()
