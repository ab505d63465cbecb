"""Replay: imported runs count if today's code repeats them."""

import copy
import json
import math
import shutil

import pytest

from fathom_study.analysis.run_tables import write_tables
from fathom_study.analysis.tables import read_table
from fathom_study.config import BACKENDS, Compute, check_config
from fathom_study.runs import folder, thinning
from fathom_study.runs.bundle import unpack, write_bundle
from fathom_study.runs.replay import COMPARED, compare_rows, difference
from fathom_study.runs.run import group_runs
from fathom_study.runs.training import run_cell
from fathom_study.runs.validate import STEPS, find_runs, imported_runs, replay_file
from tests.support.runs import STUDY, flipped, read_manifest, seal, shift, write_manifest

OLD_CODE = {"fathom_study.train:train": "0" * 16}
TINY = {"variants": ["mhc"], "depths": [4], "seeds": [0], "steps": 5}


def data_of(results, backend, **changes):
    """Content of config.yaml: one study on one backend."""
    study = copy.deepcopy({**STUDY, **TINY, "backends": [backend], **changes})
    return {"results": str(results), "studies": {"a": study}}


class Carried:
    """Trained runs in the folder of imported runs, and the commands on them."""

    def __init__(self, home, backend, fathom, trained, age=True, **changes):
        self.folder, self.backend, self.command = home, backend, fathom
        self.config = check_config(data_of(home / "results", backend, **changes))
        self.write_config(self.config)
        for cell in self.config.cells():
            made = trained(self.config.spec(cell))
            shutil.copytree(made, self.place_of(made, cell))
        if age:
            self.age()

    def write_config(self, config):
        self.config = config
        text = json.dumps({"results": config.results, "studies": config.resolved()["studies"]})
        (self.folder / "config.yaml").write_text(text, encoding="utf-8")

    def place_of(self, run, cell):
        """Where an import would put the run."""
        platform = folder.read_manifest(run).platform
        return self.folder / "results/imported" / platform / cell.path()

    @property
    def runs(self):
        return sorted(path.parent for path in self.folder.rglob("imported/**/manifest.json"))

    def edit(self, run, change):
        """Change a run's manifest, update its hash, and move the run to its place."""
        manifest = read_manifest(run)
        change(manifest)
        write_manifest(run, manifest)
        cell = next(c for c in self.config.cells() if c.path() == manifest["cell"])
        target = self.place_of(run, cell)
        if target != run:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(run, target)

    def age(self):
        """Record other code in the manifest of every run."""
        for run in self.runs:
            self.edit(run, lambda manifest: manifest["code"].update(OLD_CODE))

    def move_elsewhere(self):
        """Record another processor in the manifest of every run."""
        for run in self.runs:
            self.edit(run, lambda manifest: manifest["device"].update(name="Another CPU"))

    def shift(self, step, by, name="loss", run=0):
        """Multiply a number in a run's rows by 1 + `by`, and seal the run."""
        shift(self.runs[run], step, by, name)

    def fathom(self, *arguments):
        """(exit status, output, lines of errors)."""
        return self.command(*arguments, "-c", self.folder / "config.yaml")

    def replay(self):
        """Lines that `fathom replay` prints; it must succeed."""
        status, said, errors = self.fathom("replay")
        assert status == 0, errors
        return said.splitlines()

    def record(self, run=0, **changes):
        """The replay of a run that its file has, after these changes."""
        file = replay_file(self.config, "a", self.backend)
        content = json.loads(file.read_text())
        record = content["replays"][read_manifest(self.runs[run])["sha256"]]
        if changes:
            record |= changes
            file.write_text(json.dumps(content))
        return record

    @property
    def statuses(self):
        """Status and replay of every run."""
        return [(run.status, run.replay) for run in find_runs(self.config)]

    def table(self, name):
        folder = self.folder / "results/tables"
        write_tables(self.config, folder)
        return read_table(folder / f"{name}.csv")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Function that returns the folder of a spec's run, trained once."""
    home = tmp_path_factory.mktemp("trained")

    def run_of(spec):
        made = home / spec.hash()
        if not made.exists():
            run_cell(spec, made, Compute(device="cpu"))
        return made

    return run_of


@pytest.fixture
def carry(tmp_path, fathom, connect_cpu, trained):
    """Function that trains a study's cells and imports them, as made by other code."""

    def make(backend="torch", **changes):
        connect_cpu(backend)
        return Carried(tmp_path, backend, fathom, trained, **changes)

    return make


# --- a group that agrees -------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_repeated_runs_count_and_name_the_code_that_made_them(carry, backend):
    carried = carry(backend, seeds=[0, 1])
    assert carried.statuses == [("stale", "waits")] * 2
    assert carried.table("summary").empty

    (line, total) = carried.replay()
    maker = find_runs(carried.config)[0].manifest.made_by
    assert f": a/4L/mhc/{backend}, made by {maker}: " in line
    repeats = "today's code repeats 3 steps of seed 0, step 0 of all"
    assert line.endswith(f"{repeats}: to the last digit")
    assert total == "1 agrees"
    assert carried.replay() == ["no group to replay"]
    assert carried.statuses == [("imported", "agrees")] * 2

    (row,) = carried.table("summary").to_dict("records")
    assert row["n"] == 2
    assert row["platform"].startswith(f"{backend}-")  # of imported runs
    cells = carried.table("cells")
    assert set(cells["reason"]) == {f"made by {maker}; {repeats}"}
    assert carried.table("platforms")["made_by"].tolist() == [maker]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "changes",
    [{"variants": ["hc"], "accumulate": 2}, {"variants": ["mhc_dynamic"], "steps": 2}],
    ids=lambda changes: next(iter(changes)),
)
def test_replay_repeats_the_steps_of_training(carry, backend, changes):
    """With several kinds of steps; a training may be shorter than a replay."""
    carried = carry(backend, **changes)
    (line, _) = carried.replay()
    steps = min(STEPS, carried.config.studies["a"].steps)
    assert line.endswith(f"today's code repeats {steps} steps of seed 0: to the last digit")


@pytest.mark.parametrize("forged", [{}, "a part"])
def test_runs_with_missing_hashes_wait_for_a_replay(carry, forged):
    carried = carry(age=False)
    (run,) = imported_runs(carried.config)
    starts = "fathom_study.train", "fathom_study.tasks", "fathom_study.backends.torch"
    code = forged and {k: v for k, v in run.manifest.code.items() if k not in starts}
    carried.edit(carried.runs[0], lambda manifest: manifest.update(code=code))
    (run,) = imported_runs(carried.config)
    assert (run.status, run.replay) == ("stale", "waits")
    assert "; no hash of its code: fathom" in run.reason
    assert carried.table("summary").empty


def test_runs_of_todays_code_count_and_are_repeated_if_the_device_is_here(carry):
    carried = carry(age=False, seeds=[0, 1])
    said = "its manifest names today's code; not repeated here"
    assert carried.statuses == [("imported", "waits")] * 2
    assert set(carried.table("cells")["reason"]) == {said}
    carried.replay()
    assert carried.statuses == [("imported", "agrees")] * 2
    assert all("today's code repeats 3 steps" in text for text in carried.table("cells")["reason"])
    carried.shift(step=0, by=0.5, run=1)
    assert carried.statuses == [("imported", "waits")] * 2  # the replay is of another run
    carried.replay()
    assert carried.statuses == [("stale", "differs")] * 2
    assert carried.table("summary").empty
    carried.shift(step=0, by=-1 / 3, run=1)
    for run in carried.runs:
        carried.edit(run, lambda manifest: manifest["device"].update(kind="nowhere"))
    carried.replay()
    assert carried.statuses == [("imported", "unavailable")] * 2
    assert set(carried.table("cells")["reason"]) == {said}
    status, _, errors = carried.fathom("replay", "--all")
    why = "not repeated here: torch has no device 'nowhere'"
    assert (status, why in "\n".join(errors)) == (1, True)


def test_three_steps_of_one_run_and_step_0_of_the_others_are_repeated(carry):
    carried = carry(depths=[4, 5], seeds=[0, 1, 2])
    carried.shift(step=1, by=0.5, run=1)  # of a seed whose first step alone is repeated
    carried.edit(carried.runs[2], lambda manifest: manifest["code"].update({"b": "1" * 16}))
    groups = group_runs(imported_runs(carried.config))
    assert [[(r.cell.depth, r.cell.seed) for r in group] for group in groups] == [
        [(4, 0), (4, 1)], [(4, 2)], [(5, 0), (5, 1), (5, 2)],
    ]  # fmt: skip
    carried.replay()
    replays = [carried.record(run) for run in range(6)]
    assert [replay["steps"] for replay in replays] == [3, 1, 3, 3, 1, 1]
    assert {(r["outcome"], r["differences"]["loss"]) for r in replays} == {("agrees", 0.0)}
    assert carried.statuses == [("imported", "agrees")] * 6

    carried.shift(step=0, by=0.5, run=1)  # a number that no training gave
    carried.replay()
    assert carried.statuses == [
        *[("stale", "differs")] * 2, *[("imported", "agrees")] * 4,
    ]  # fmt: skip
    assert (
        "does not repeat it: seed 1, loss of step 0 was "
        in imported_runs(carried.config)[0].details
    )


# --- a group that differs ------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMPARED)
def test_changed_number_is_named_and_excludes_the_group(carry, name):
    carried = carry(recipe="torch-defaults", seeds=[0, 1])
    carried.shift(step=2, by=1e-3, name=name)
    (line, total) = carried.replay()
    assert f"today's code does not repeat it: seed 0, {name} of step 2 was " in line
    assert total == "1 differs"
    assert carried.statuses == [("stale", "differs")] * 2
    assert carried.table("summary").empty
    cells = carried.table("cells")
    assert cells["status"].tolist() == ["stale"] * 2
    assert set(cells["reason"]) == {
        "today's code does not repeat it; code differs: fathom_study.train:train"
    }


@pytest.mark.parametrize(
    ("step", "by", "expected"),
    [(0, 1e-7, ("stale", "differs")), (STEPS, 0.5, ("imported", "agrees"))],
)
def test_first_steps_are_compared_exactly_on_the_same_platform(carry, step, by, expected):
    carried = carry()
    carried.shift(step=step, by=by)
    carried.replay()
    assert carried.statuses == [expected]


def test_steps_are_compared_within_a_tolerance_on_another_platform(carry):
    carried = carry()
    carried.move_elsewhere()
    carried.shift(step=0, by=5e-5)
    carried.shift(step=1, by=5e-4)
    carried.shift(step=1, by=-5e-3, name="grad_norm")
    carried.shift(step=1, by=5e-3, name="gain_proxy_log10_max_entry")  # its value is about −0.6
    (line, _) = carried.replay()
    repeats = "today's code repeats 3 steps of seed 0"
    assert line.endswith(
        f"{repeats}: within the tolerance of another platform or order of operations"
    )
    assert carried.statuses == [("imported", "agrees")]

    carried.shift(step=1, by=1e-3)
    assert carried.statuses == [("stale", "waits")]  # the run has changed
    (line, _) = carried.replay()
    assert "of step 1 was" in line
    assert line.endswith("not equal to 0.001")
    assert carried.statuses == [("stale", "differs")]


def test_a_gain_may_differ_by_one_logit_that_moved_the_other_way():
    """By hand: at a rate of 0.5 a logit is 0.5 higher or lower, and e is a factor of the gain."""
    rows = [{"gain_proxy_log10_max_entry": 3.0, "loss": 1.0, "grad_norm": 1.0}] * 2

    def compared(by, rate, name="gain_proxy_log10_max_entry"):
        again = [rows[0], {**rows[1], name: rows[1][name] + by}]
        return compare_rows(rows, again, rate).outcome

    factor = math.log10(math.e)
    assert compared(factor + 0.009, 0.5) == "agrees"
    assert compared(factor + 0.011, 0.5) == "differs"
    assert compared(0.012, 0.0005) == "differs"
    assert compared(0.02, 0.5, "grad_norm") == "differs"
    assert compared(1e-9, None) == "differs"


# --- check of every run ---------------------------------------------------------------------------


def test_check_of_all_runs_writes_nothing_and_fails_if_one_differs(carry):
    carried = carry(depths=[4, 5])
    status, said, errors = carried.fathom("replay", "--all")
    assert (status, said.splitlines()[-1], errors) == (0, "2 agrees", [])
    carried.shift(step=2, by=1e-3)
    status, said, (line,) = carried.fathom("replay", "--all")
    assert (status, said.splitlines()[-1]) == (1, "1 differs, 1 agrees")
    assert ": today's code does not repeat it: seed 0, loss of step 2 was " in line
    assert not replay_file(carried.config, "a", "torch").exists()
    assert carried.statuses == [("stale", "waits")] * 2

    (carried.runs[0] / "metrics.jsonl").write_text("")
    status, said, (line,) = carried.fathom("replay", "--all")
    assert (status, said.splitlines()[-1]) == (1, "1 agrees")
    assert line.startswith(f"fathom: {carried.runs[0]}: corrupt: metrics.jsonl: its SHA-256 ")


# --- a whole run ---------------------------------------------------------------------------------


def test_a_whole_run_is_repeated_to_its_last_step(carry):
    carried = carry(seeds=[0, 1])
    run, other = carried.runs
    status, said, _ = carried.fathom("replay", "--whole", run)
    assert (status, said) == (0, f"{run}: today's code repeats all 5 steps: to the last digit\n")
    carried.shift(step=4, by=1e-6)
    assert carried.replay()[-1] == "1 agrees"
    status, _, errors = carried.fathom("replay", "--whole", run)
    why = f"fathom: {run}: today's code does not repeat it: loss of step 4 was "
    assert (status, errors[-1].startswith(why)) == (1, True)
    mixing = other / "mixing.safetensors"
    mixing.write_bytes(flipped(mixing.read_bytes()))
    seal(other)
    status, _, errors = carried.fathom("replay", "--whole", other)
    assert status == 1
    assert errors[-1].endswith("repeat it: mixing.safetensors has other numbers")


def test_a_thinned_run_is_repeated_to_its_last_step(carry, tmp_path, monkeypatch):
    monkeypatch.setattr(thinning, "FIRST", 2)
    monkeypatch.setattr(thinning, "LATER", 2)
    thinning.whole_steps.cache_clear()
    carried = carry()
    (cell,) = carried.config.cells()
    write_bundle(tmp_path / "thin.tar.xz", {cell: carried.runs[0]})
    unpack(tmp_path / "thin.tar.xz", tmp_path)
    thin = tmp_path / cell.path()
    assert [row["step"] for row in folder.read_rows(thin)] == [0, 1, 2, 4]
    status, said, _ = carried.fathom("replay", "--whole", thin)
    assert (status, said) == (0, f"{thin}: today's code repeats all 5 steps: to the last digit\n")
    manifest = folder.read_json(thin / folder.MANIFEST)
    manifest["summary"]["metrics"]["loss_min"] = 0.125
    (thin / folder.MANIFEST).write_text(json.dumps(manifest))
    seal(thin)
    status, _, errors = carried.fathom("replay", "--whole", thin)
    thinning.whole_steps.cache_clear()
    why = f"{thin}: today's code does not repeat it: loss_min of all steps was 0.125 and is "
    assert (status, errors[-1].startswith(f"fathom: {why}")) == (1, True)


# --- records -------------------------------------------------------------------------------------


def test_a_replay_is_void_for_other_code_another_run_and_fewer_steps(carry, monkeypatch):
    carried = carry(seeds=[0, 1])
    carried.replay()
    with monkeypatch.context() as patch:
        patch.setattr("fathom_study.runs.validate.training_code_hash", lambda spec: "another")
        assert carried.statuses == [("stale", "waits")] * 2
        assert carried.table("summary").empty
    assert carried.statuses == [("imported", "agrees")] * 2
    for run, change in ((0, {"code": "another"}), (0, {"steps": 2}), (1, {"steps": 0})):
        carried.record(run, **change)
        assert carried.statuses == [("stale", "waits")] * 2
        carried.replay()
        assert carried.statuses == [("imported", "agrees")] * 2
    replay_file(carried.config, "a", "torch").write_text('{"format": 1, "replays": {')  # cut off
    assert carried.statuses == [("stale", "waits")] * 2
    carried.replay()
    carried.record(1, outcome="unavailable", why="torch has no device")
    assert carried.statuses == [("imported", "unavailable")] * 2
    assert all(
        reason.startswith("made by ") and reason.endswith("; not repeated here")
        for reason in carried.table("cells")["reason"]
    )
    carried.replay()
    # The replays of others rest on another run, then on one that is gone.
    carried.edit(carried.runs[0], lambda manifest: manifest.update(seconds=1.0))
    assert carried.statuses == [("stale", "waits")] * 2
    carried.replay()
    shutil.rmtree(carried.runs[0])
    assert carried.statuses == [("missing", ""), ("stale", "waits")]


def test_a_subset_of_the_seeds_has_its_own_first_run_and_undoes_no_replay(carry):
    carried = carry(seeds=[0, 1])
    whole = carried.config
    subset = check_config({**data_of(whole.results, "torch", seeds=[0, 1]), "seeds": [1]})
    carried.replay()
    assert [run.replay for run in imported_runs(subset)] == ["waits"]
    status, _, errors = carried.fathom("replay", "--set", "seeds=[1]")
    assert status == 0, errors
    carried.replay()
    for config in (whole, subset):
        assert {run.replay for run in imported_runs(config)} == {"agrees"}


def test_replay_of_invalid_content_differs(carry):
    carried = carry()
    carried.shift(step=STEPS, by=math.inf)  # not a number in JSON
    (line, _) = carried.replay()
    assert f"seed 0, cannot be read, metrics.jsonl: line {STEPS + 1} " in line
    assert carried.statuses == [("stale", "differs")]


# --- comparing, by hand --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        ("loss", 4.0, 5.0, 0.25),
        ("grad_norm", 2.0, 1.0, 0.5),
        ("grad_norm", 0.0, 1e-9, math.inf),
        ("gain_proxy_log10_max_entry", -0.5, -0.25, 0.25),
        ("loss", math.nan, math.inf, 0.0),
        ("loss", 4.0, math.nan, math.inf),
        ("loss", 4.0, None, math.inf),
    ],
)
def test_difference_of_two_values(name, old, new, expected):
    assert difference(name, old, new) == pytest.approx(expected, abs=1e-15)
