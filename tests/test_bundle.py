"""Bundles: what is packed comes out as it was; a hostile one is refused and nothing is written."""

import copy
import gzip
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import tarfile
import tracemalloc
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import load, save

from command_helpers import exit_status
from fathom import tasks
from fathom.config import Cell, ConfigError, Spec, check_config
from fathom.runs.bundle import BundleError, create_bundle, import_bundle
from fathom.runs.folder import run_folder
from fathom.runs.inspect import find_runs
from run_helpers import CPU_PLATFORM, RUN_FILES, metrics, write_run

INDEX = "bundle.json"
WEIGHTS = "weights.safetensors"
CONFIG = {
    "studies": {
        "small": {
            "task": "tokens",
            "recipe": "torch-defaults",
            "variants": ["baseline", "mhc"],
            "depths": [2],
            "backends": ["torch"],
            "seeds": [0],
            "steps": 4,
            "batch_size": 2,
            "model": {"vocab": 16, "length": 4, "width": 8, "heads": 2, "hidden": 16},
            "optimizer": {"lr": 0.01},
        }
    }
}
LOSSES = [2.75, 2.5, 2.25, 2.0]


# --- tiny results to pack ------------------------------------------------------------------------


def config_data(folder, **changes):
    """A config whose results lie in `folder`; `changes` are of its study."""
    data = copy.deepcopy(CONFIG)
    data["results"] = str(folder / "results")
    data["studies"]["small"] |= changes
    return data


def config_in(folder, **changes):
    return check_config(config_data(folder, **changes))


def results_of(config):
    return Path(config.results)


def write_all_cells(config):
    for cell in config.cells():
        write_run(run_folder(results_of(config), cell), config.spec(cell), metrics(LOSSES))


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """The folder of the runs of two cells."""
    folder = tmp_path_factory.mktemp("made")
    write_all_cells(config_in(folder))
    return folder


@pytest.fixture(scope="session")
def packed(made):
    """A bundle of both."""
    create_bundle(config_in(made), made / "good.tar.gz")
    return made / "good.tar.gz"


@pytest.fixture
def here(made, tmp_path):
    """The config of a copy of the results, for a test to change."""
    shutil.copytree(made / "results", tmp_path / "here/results")
    return config_in(tmp_path / "here")


@pytest.fixture
def elsewhere(tmp_path):
    """The config of another machine, which has no results yet."""
    return config_in(tmp_path / "elsewhere")


def folders(config):
    """The run folder of each cell, in the order of the config."""
    return [run_folder(results_of(config), cell) for cell in config.cells()]


def tree(folder):
    """Every file, folder and link below a folder, with its content."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def platform_of(folder):
    """The one platform that something was imported from."""
    (platform,) = (folder / "imported").iterdir()
    return platform


# --- a bundle taken apart, to be spoiled ---------------------------------------------------------


class Parts:
    """A bundle's index and entries; `pack` writes them as they are, whether they fit or not."""

    def __init__(self, file):
        self.before = []
        """Raw bytes of entries ahead of the index."""
        with tarfile.open(file) as archive:
            entries = [(entry, archive.extractfile(entry).read()) for entry in archive]
        self.index = json.loads(entries[0][1])
        self.index_text = None
        """What to write as the index, where that is not the index as JSON."""
        self.index_size = None
        """A size to announce for it that is not its own."""
        self.entries = [(entry.name, content) for entry, content in entries[1:]]
        """(name, content) in order; an entry whose name is None is raw bytes."""
        self.cell = next(iter(self.index["runs"]))
        """The cell that most tests spoil."""

    def each_cell(self):
        """Turn to one cell after the other."""
        for cell in self.index["runs"]:
            self.cell = cell
            yield cell

    def name(self, file):
        return f"runs/{self.cell}/{file}"

    def read(self, file):
        return dict(self.entries)[self.name(file)]

    def replace(self, file, content):
        """Another content for a file of the cell, in its place."""
        self.entries = [
            (name, content if name == self.name(file) else old) for name, old in self.entries
        ]

    def remove(self, file):
        self.entries = [entry for entry in self.entries if entry[0] != self.name(file)]

    def raw(self, **fields):
        """An entry that need not be a plain file, as `tarfile` would not write it by itself."""
        self.entries.append((None, raw_entry(**fields)))

    def edit_json(self, file, change):
        """Change the data in a file of the cell; the hashes do not follow."""
        data = json.loads(self.read(file))
        change(data)
        self.replace(file, json.dumps(data).encode())

    def list_again(self):
        """Let the index say of every file of the cell what is true."""
        names = self.index["runs"][self.cell]
        self.index["runs"][self.cell] = {name: recorded_of(self.read(name)) for name in names}

    def seal(self):
        """Let manifest and index say what is true: nothing but the content is wrong then."""
        manifest = json.loads(self.read("manifest.json"))
        manifest["files"] = {name: recorded_of(self.read(name)) for name in manifest["files"]}
        self.write_manifest(manifest)

    def write_manifest(self, manifest):
        """As fathom would, with the hash that it would have."""
        text = json.dumps(signed(manifest), indent=2) + "\n"
        self.replace("manifest.json", text.encode())
        self.list_again()

    def pack(self, file):
        text = self.index_text
        index = json.dumps(self.index).encode() if text is None else text
        size = len(index) if self.index_size is None else self.index_size
        raw = [*self.before, raw_entry(name=INDEX, content=index, size=size)]
        raw += [
            content if name is None else raw_entry(name=name, content=content)
            for name, content in self.entries
        ]
        file.write_bytes(gzip.compress(b"".join(raw) + bytes(1024), mtime=0))


def recorded_of(content):
    return {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}


def signed(manifest):
    """The manifest with its own hash: over all of its other fields."""
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    text = json.dumps(rest, sort_keys=True)
    return {**rest, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def raw_entry(name, content=b"", size=None, kind=tarfile.REGTYPE, link=""):
    """Header and padded content of an entry; nothing is checked."""
    info = tarfile.TarInfo(name)
    info.size = len(content) if size is None else size
    info.type = kind
    info.linkname = link
    header = info.tobuf(tarfile.GNU_FORMAT)
    return header + content + bytes(-len(content) % 512)


def pax_entry(**records):
    """An extended header, which says more of the entry after it."""
    content = b""
    for key, value in records.items():
        record = f" {key.replace('__', '.')}={value}\n"
        length = len(record) + len(str(len(record) + 2))
        content += f"{length}{record}".encode()
    return raw_entry(name="pax", content=content, kind=tarfile.XHDTYPE)


# --- there and back ------------------------------------------------------------------------------


def test_a_bundle_brings_every_file_over_as_it_was(here, elsewhere, tmp_path):
    packed_runs = create_bundle(here, tmp_path / "b.tar.gz")
    done = import_bundle(results_of(elsewhere), tmp_path / "b.tar.gz")

    cells = [cell.path() for cell in here.cells()]
    assert [run.cell.path() for run in packed_runs] == cells
    assert done == {"imported": cells, "kept": [], "same": []}
    platform = platform_of(results_of(elsewhere))
    assert tree(platform) == tree(results_of(here) / "runs")


def test_an_import_leaves_nothing_but_the_runs(elsewhere, packed):
    import_bundle(results_of(elsewhere), packed)
    assert [path.name for path in results_of(elsewhere).iterdir()] == ["imported"]
    assert platform_of(results_of(elsewhere)).name == CPU_PLATFORM


def test_imported_runs_count_and_say_where_they_are_from(elsewhere, packed):
    import_bundle(results_of(elsewhere), packed)
    runs = find_runs(elsewhere)
    assert [(run.status, run.origin) for run in runs] == [("imported", "imported")] * 2
    assert {run.platform for run in runs} == {platform_of(results_of(elsewhere)).name}


def test_the_platform_is_the_device_and_the_system_as_a_folder(elsewhere, packed, tmp_path):
    parts = Parts(packed)
    for _ in parts.each_cell():
        parts.edit_json("manifest.json", as_if_measured_on("cuda", "NVIDIA H200", "Linux 6.1 x"))
        parts.seal()
    parts.pack(tmp_path / "b.tar.gz")
    import_bundle(results_of(elsewhere), tmp_path / "b.tar.gz")
    assert platform_of(results_of(elsewhere)).name == "cuda-nvidia-h200-linux"
    assert [run.status for run in find_runs(elsewhere)] == ["imported"] * 2


def as_if_measured_on(kind, name, system):
    def change(manifest):
        manifest["device"] |= {"kind": kind, "name": name}
        manifest["os"] = system

    return change


def test_a_bundle_is_laid_out_the_same_every_time(here, tmp_path):
    for name in ("one", "two"):
        create_bundle(here, tmp_path / f"{name}.tar.gz")
    with tarfile.open(tmp_path / "one.tar.gz") as archive:
        entries = archive.getmembers()
    cells = [cell.path() for cell in here.cells()]
    assert [entry.name for entry in entries] == [
        INDEX,
        *(f"runs/{cell}/{name}" for cell in cells for name in RUN_FILES),
    ]
    one, two = (Parts(tmp_path / f"{name}.tar.gz") for name in ("one", "two"))
    assert one.entries == two.entries
    assert {**one.index, "created": ""} == {**two.index, "created": ""}


def test_a_bundle_says_nothing_of_who_made_it_and_where(here, packed):
    with tarfile.open(packed) as archive:
        for entry in archive:
            assert entry.isreg()
            assert (entry.uid, entry.gid, entry.uname, entry.gname) == (0, 0, "", "")
            assert (entry.mtime, entry.mode) == (0, 0o644)
            assert not entry.pax_headers
    content = gzip.decompress(packed.read_bytes())
    assert str(Path.home()).encode() not in content
    assert here.results.encode() not in content


def test_the_index_has_the_hash_and_the_size_of_every_file(packed):
    parts = Parts(packed)
    assert parts.index["format"] == 2
    for cell in parts.each_cell():
        assert parts.index["runs"][cell] == {
            name: recorded_of(parts.read(name)) for name in RUN_FILES
        }


@pytest.mark.parametrize(
    ("patterns", "variants"),
    [
        ([], ["baseline", "mhc"]),
        (["*"], ["baseline", "mhc"]),
        (["*/mhc/*"], ["mhc"]),
        (["small/2L/baseline/*", "*/mhc/*"], ["baseline", "mhc"]),
        (["small/2L/baseline/*"], ["baseline"]),
        (["*/seed0"], ["baseline", "mhc"]),
    ],
)
def test_patterns_choose_what_is_packed(here, tmp_path, patterns, variants):
    create_bundle(here, tmp_path / "b.tar.gz", patterns)
    cells = [cell.path() for cell in here.cells() if cell.variant in variants]
    assert list(Parts(tmp_path / "b.tar.gz").index["runs"]) == cells


def test_patterns_that_fit_nothing_make_no_bundle(here, tmp_path):
    form = "a pattern is like 'depth-mlx/48L/*'"
    with pytest.raises(ConfigError) as error:
        create_bundle(here, tmp_path / "b.tar.gz", ["*/48L/*", "*", "smal/*"])
    assert str(error.value).splitlines() == [
        f"no cell matches '*/48L/*'; {form}",
        f"no cell matches 'smal/*'; {form}",
    ]
    assert not (tmp_path / "b.tar.gz").exists()


def test_patterns_of_cells_that_are_not_trained_make_no_bundle(tmp_path):
    with pytest.raises(BundleError, match="no run to pack"):
        create_bundle(config_in(tmp_path / "bare"), tmp_path / "b.tar.gz", ["*/mhc/*"])
    assert not (tmp_path / "b.tar.gz").exists()


@pytest.fixture
def keeping(tmp_path):
    """The config of results whose runs keep their weights."""
    config = config_in(tmp_path / "keeping", weights=True)
    write_all_cells(config)
    return config


def test_weights_that_runs_keep_are_brought_over(keeping, tmp_path):
    create_bundle(keeping, tmp_path / "b.tar.gz")
    results = tmp_path / "elsewhere/results"
    import_bundle(results, tmp_path / "b.tar.gz")
    assert tree(platform_of(results)) == tree(results_of(keeping) / "runs")
    assert len(list(results.rglob(WEIGHTS))) == 2
    elsewhere = config_in(tmp_path / "elsewhere", weights=True)
    assert [run.status for run in find_runs(elsewhere)] == ["imported"] * 2


@pytest.mark.parametrize("manifest_too", [False, True])
def test_weights_that_the_spec_does_not_announce_are_refused(here, packed, tmp_path, manifest_too):
    """Or `fathom evaluate` would read what nobody has checked."""
    parts = Parts(packed)
    cell = Cell.parse(parts.cell)
    content = save(tasks.initial_parameters(here.spec(cell)))
    parts.entries.append((parts.name(WEIGHTS), content))
    parts.index["runs"][parts.cell][WEIGHTS] = recorded_of(content)
    if manifest_too:
        parts.edit_json("manifest.json", lambda m: m["files"].update({WEIGHTS: {}}))
        parts.seal()
    parts.pack(tmp_path / "b.tar.gz")
    said = refusal(results_of(config_in(tmp_path / "elsewhere")), tmp_path / "b.tar.gz")
    if manifest_too:
        assert "manifest.json: lists weights.safetensors, but spec.json has weights: false" in said
    else:
        assert "weights.safetensors: is there, but manifest.json does not list it" in said


def test_weights_of_another_network_are_refused(keeping, tmp_path):
    create_bundle(keeping, tmp_path / "good.tar.gz")
    parts = Parts(tmp_path / "good.tar.gz")
    parts.replace(WEIGHTS, save({"norm.weight": np.ones(8, np.float32)}))
    parts.seal()
    parts.pack(tmp_path / "b.tar.gz")
    assert WEIGHTS in refusal(tmp_path / "elsewhere/results", tmp_path / "b.tar.gz")


# --- runs that must not be packed ----------------------------------------------------------------


def refusal_to_pack(config, file, patterns=()):
    """The message; no bundle, and no piece of one, may be left."""
    with pytest.raises(BundleError) as caught:
        create_bundle(config, file, patterns)
    assert list(file.parent.glob("*.tar.gz*")) == []
    assert list(file.parent.glob(".*.tmp")) == []
    return str(caught.value)


def test_a_corrupt_run_is_not_packed_and_is_named(here, tmp_path):
    baseline, _ = folders(here)
    (baseline / "metrics.jsonl").write_text("", encoding="utf-8")
    said = refusal_to_pack(here, tmp_path / "b.tar.gz")
    assert said.startswith(f"{here.cells()[0]}: corrupt, metrics.jsonl: 0 bytes, but the manifest")
    assert "\n" not in said


def test_a_stale_run_is_not_packed_and_is_named(here, tmp_path):
    changed = config_in(tmp_path / "here", optimizer={"lr": 0.02})
    said = refusal_to_pack(changed, tmp_path / "b.tar.gz")
    assert said.splitlines() == [
        f"{cell}: stale, spec differs: optimizer.lr 0.01 → 0.02" for cell in here.cells()
    ]


def test_a_run_that_did_not_finish_is_not_packed_and_is_named(here, tmp_path):
    _, mhc = folders(here)
    shutil.rmtree(mhc)
    (mhc / ".partial").mkdir(parents=True)
    said = refusal_to_pack(here, tmp_path / "b.tar.gz")
    assert said.startswith(f"{here.cells()[1]}: failed, began and has not finished")


def test_an_unfit_run_that_was_not_chosen_does_not_matter(here, tmp_path):
    baseline, _ = folders(here)
    (baseline / "metrics.jsonl").unlink()
    create_bundle(here, tmp_path / "b.tar.gz", ["*/mhc/*"])
    assert (tmp_path / "b.tar.gz").exists()


def test_imported_runs_are_not_packed_again(here, elsewhere, packed, tmp_path):
    import_bundle(results_of(elsewhere), packed)
    with pytest.raises(BundleError, match="no run to pack"):
        create_bundle(elsewhere, tmp_path / "b.tar.gz")


def test_an_unfit_imported_run_does_not_keep_others_from_being_packed(here, packed, tmp_path):
    import_bundle(results_of(here), packed)
    platform = platform_of(results_of(here))
    (platform / here.cells()[0].path() / "metrics.jsonl").write_text("", encoding="utf-8")
    create_bundle(here, tmp_path / "b.tar.gz")
    assert len(Parts(tmp_path / "b.tar.gz").index["runs"]) == 2


# --- what is there already -----------------------------------------------------------------------


@pytest.fixture
def other(packed, tmp_path):
    """A bundle of the same cells from the same platform, measured another time."""
    parts = Parts(packed)
    for _ in parts.each_cell():
        parts.edit_json("manifest.json", lambda manifest: manifest.update(threads=7))
        parts.seal()
    parts.pack(tmp_path / "other.tar.gz")
    return tmp_path / "other.tar.gz"


@pytest.fixture
def already(elsewhere, packed):
    """Results that hold the imported runs of `packed`."""
    import_bundle(results_of(elsewhere), packed)
    return results_of(elsewhere)


def threads_of(results):
    return {
        json.loads(file.read_text(encoding="utf-8")).get("threads", 1)
        for file in results.rglob("manifest.json")
    }


@pytest.mark.parametrize("existing", ["refuse", "keep", "replace"])
def test_the_same_bundle_again_changes_nothing(already, packed, existing):
    before = tree(already)
    done = import_bundle(already, packed, existing)
    assert (done["imported"], done["kept"], len(done["same"])) == ([], [], 2)
    assert tree(already) == before


def test_a_different_run_there_is_not_touched_unless_that_is_said(already, other):
    before = tree(already)
    with pytest.raises(BundleError, match="is there already; choose --keep or --replace"):
        import_bundle(already, other)
    assert tree(already) == before


def test_keep_keeps_what_is_there(already, other):
    before = tree(already)
    done = import_bundle(already, other, "keep")
    assert (done["imported"], len(done["kept"]), done["same"]) == ([], 2, [])
    assert tree(already) == before


def test_replace_replaces_it(already, other):
    done = import_bundle(already, other, "replace")
    assert (len(done["imported"]), done["kept"], done["same"]) == (2, [], [])
    assert threads_of(already) == {7}


def test_one_run_that_is_there_holds_up_all_the_others(elsewhere, packed, other, tmp_path):
    parts = Parts(packed)
    keep_one_cell(parts)
    parts.pack(tmp_path / "one.tar.gz")
    import_bundle(results_of(elsewhere), tmp_path / "one.tar.gz")
    before = tree(results_of(elsewhere))
    with pytest.raises(BundleError):
        import_bundle(results_of(elsewhere), other)
    assert tree(results_of(elsewhere)) == before

    done = import_bundle(results_of(elsewhere), other, "keep")
    assert (len(done["imported"]), len(done["kept"])) == (1, 1)
    assert threads_of(results_of(elsewhere)) == {1, 7}


def keep_one_cell(parts):
    parts.index["runs"] = {parts.cell: parts.index["runs"][parts.cell]}
    parts.entries = [e for e in parts.entries if e[0].startswith(f"runs/{parts.cell}/")]


def test_a_bundle_mends_an_imported_run_that_was_damaged(already, elsewhere, packed):
    whole = tree(already)
    damaged = next(already.rglob("metrics.jsonl"))
    damaged.write_text("", encoding="utf-8")
    import_bundle(already, packed, "replace")
    assert tree(already) == whole


@pytest.fixture
def nobody():
    """The number of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_what_a_killed_import_leaves_counts_for_nothing(already, elsewhere, nobody):
    """A SIGKILL leaves the folder in which a bundle is unpacked: nothing there was checked yet."""
    runs = find_runs(elsewhere)
    shutil.copytree(platform_of(already), already / f"imported/.incoming-{nobody}")
    assert find_runs(elsewhere) == runs  # and not every seed twice
    with pytest.raises(BundleError, match="no run to pack"):
        create_bundle(elsewhere, already / "b.tar.gz")


@pytest.mark.parametrize("whose", ["nobody's", "its own"])  # numbers are given out again
def test_the_next_import_removes_what_a_killed_one_has_left(already, packed, nobody, whose):
    before = tree(already)
    process = nobody if whose == "nobody's" else os.getpid()
    shutil.copytree(platform_of(already), already / f"imported/.incoming-{process}")
    import_bundle(already, packed)
    assert tree(already) == before


def test_a_refused_import_removes_it_as_well(already, tmp_path, nobody):
    before = tree(already)
    (already / f"imported/.incoming-{nobody}").mkdir()
    (tmp_path / "b.tar.gz").write_bytes(b"")
    with pytest.raises(BundleError):
        import_bundle(already, tmp_path / "b.tar.gz")
    assert tree(already) == before


def test_an_import_leaves_alone_what_another_is_unpacking(already, packed):
    other = already / f"imported/.incoming-{os.getppid()}"
    other.mkdir()
    (other / "spec.json").write_text("{}")
    before = tree(already)
    import_bundle(already, packed)
    assert tree(already) == before


def test_a_platform_copied_under_another_name_does_not_count_twice(already, elsewhere):
    platform = platform_of(already)
    shutil.copytree(platform, platform.with_name("cpu-of-somebody-linux"))
    assert [run.status for run in find_runs(elsewhere)].count("imported") == 2


# --- hostile bundles -----------------------------------------------------------------------------

HOSTILE = []


def hostile(said):
    """Register a function that spoils the parts of a bundle, with what the refusal must say."""

    def register(spoil):
        HOSTILE.append(pytest.param(spoil, said, id=spoil.__name__))
        return spoil

    return register


@contextmanager
def at_most(seconds):
    """A parser that is led in circles must fail the test and not stop all of them."""

    def give_up(*_):
        raise AssertionError(f"still busy after {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def refusal(results, file, existing="refuse"):
    """The one line with which a bundle is refused; the import may not have written anything."""
    before = tree(file.parent)
    with pytest.raises(BundleError) as caught, at_most(seconds=20):
        import_bundle(results, file, existing)
    line = str(caught.value)
    assert line.isprintable()  # and so without a line break
    assert len(line) < 1000
    assert tree(file.parent) == before
    return line


# Names and kinds of entries.


@hostile("'/fathom-was-here.json': not listed")
def absolute_path(parts):
    parts.entries.append(("/fathom-was-here.json", b"{}"))


@hostile("'runs/../../../fathom-was-here.json': not listed")
def path_that_leads_out(parts):
    parts.entries.append(("runs/../../../fathom-was-here.json", b"{}"))


@hostile("is not study/depthL/variant/backend/seedN")
def listed_path_that_leads_out(parts):
    rename_cell(parts, "../../../fathom-was-here")


@hostile("is not study/depthL/variant/backend/seedN")
def listed_absolute_path(parts):
    rename_cell(parts, "/fathom-was-here")


@hostile("does not list the files of a run")
def listed_file_that_leads_out(parts):
    files = parts.index["runs"][parts.cell]
    files["../../../fathom-was-here.json"] = files.pop("spec.json")


def rename_cell(parts, path):
    parts.index["runs"][path] = parts.index["runs"].pop(parts.cell)
    parts.entries = [
        (name.replace(f"runs/{parts.cell}/", f"runs/{path}/"), content)
        for name, content in parts.entries
    ]


@hostile("link")
def symbolic_link(parts):
    parts.remove("spec.json")
    parts.raw(name=parts.name("spec.json"), kind=tarfile.SYMTYPE, link="../../../../../etc/passwd")


@hostile("link")
def symbolic_link_of_an_unlisted_name(parts):
    parts.raw(name="runs", kind=tarfile.SYMTYPE, link="/")


@hostile("link")
def hard_link(parts):
    parts.remove("spec.json")
    parts.raw(name=parts.name("spec.json"), kind=tarfile.LNKTYPE, link=parts.name("metrics.jsonl"))


@hostile("where only plain files belong")
def character_device(parts):
    parts.raw(name=parts.name("spec.json"), kind=tarfile.CHRTYPE)


@hostile("where only plain files belong")
def block_device(parts):
    parts.raw(name=parts.name("spec.json"), kind=tarfile.BLKTYPE)


@hostile("where only plain files belong")
def fifo(parts):
    parts.raw(name=parts.name("spec.json"), kind=tarfile.FIFOTYPE)


@hostile("a folder")
def folder_entry(parts):
    parts.raw(name="runs/small", kind=tarfile.DIRTYPE)


@hostile("where only plain files belong")
def entry_of_an_unknown_kind(parts):
    parts.raw(name=parts.name("spec.json"), kind=b"?")


@hostile("not listed, or there twice")
def duplicate_name(parts):
    parts.entries.append(parts.entries[0])


@hostile("not listed, or there twice")
def extra_file(parts):
    parts.entries.append((parts.name("notes.txt"), b"hello"))


@hostile("listed, but not inside")
def listed_file_that_is_absent(parts):
    parts.remove("metrics.jsonl")


@hostile("listed, but not inside")
def listed_run_that_is_absent(parts):
    parts.index["runs"]["small/9L/mhc/torch/seed0"] = parts.index["runs"][parts.cell]


# What tar itself can say of an entry beyond its name and size.


@hostile("")
def extended_header_with_a_size_that_is_no_number(parts):
    insert_raw(parts, pax_entry(GNU__sparse__size="many"))


@hostile("")
def extended_header_with_a_map_that_is_no_map(parts):
    insert_raw(parts, pax_entry(GNU__sparse__map="1,x"))


@hostile("")
def extended_header_that_renames_an_entry(parts):
    insert_raw(parts, pax_entry(path="/fathom-was-here.json"))


@hostile("")
def extended_headers_without_end(parts):
    insert_raw(parts, pax_entry(comment="again") * 5000)


@hostile("")
def long_names_without_end(parts):
    insert_raw(parts, raw_entry("long", b"name\0", kind=tarfile.GNUTYPE_LONGNAME) * 5000)


@hostile("")
def sparse_entry_that_is_cut_off(parts):
    header = bytearray(raw_entry("sparse", kind=tarfile.GNUTYPE_SPARSE))
    header[482] = 1  # more of the map follows: it does not
    parts.entries = [(None, with_checksum(header))]


@hostile("")
def negative_size_of_an_entry(parts):
    insert_raw(parts, raw_entry(parts.name("spec.json"), size=-512))


@hostile("")
def negative_size_of_an_extended_header(parts):
    insert_raw(parts, raw_entry("pax", size=-512, kind=tarfile.XHDTYPE))


def insert_raw(parts, raw):
    """Raw bytes just after the index."""
    parts.entries.insert(0, (None, raw))


def with_checksum(header):
    """A header that was changed by hand, made valid again."""
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:512])
    return bytes(header)


# Sizes and hashes.


@hostile("has a size of 1099511627776")
def huge_size_in_the_index(parts):
    parts.index["runs"][parts.cell]["metrics.jsonl"]["bytes"] = 2**40


@hostile("bytes in all is more than")
def huge_total_in_the_index(parts):
    files = parts.index["runs"][parts.cell]
    for name in ("metrics.jsonl", "mixing.safetensors"):
        files[name]["bytes"] = 60 * 2**20
    for seed in range(1, 101):
        parts.index["runs"][f"{parts.cell.removesuffix('seed0')}seed{seed}"] = files


@hostile("1099511627776 bytes, but listed as")
def huge_size_in_a_header(parts):
    content = parts.read("spec.json")
    parts.remove("spec.json")
    parts.raw(name=parts.name("spec.json"), content=content, size=2**40)


@hostile("bundle.json: 1099511627776 bytes is more than")
def huge_size_of_the_index(parts):
    parts.index_size = 2**40


@hostile("has a size of -1")
def negative_size_in_the_index(parts):
    parts.index["runs"][parts.cell]["metrics.jsonl"]["bytes"] = -1


@hostile("")
def negative_size_of_the_index(parts):
    parts.index_size = -512


@hostile("bytes, but listed as")
def wrong_size(parts):
    parts.index["runs"][parts.cell]["spec.json"]["bytes"] += 1


@hostile("spec.json: its SHA-256 is not the listed one")
def wrong_hash(parts):
    parts.index["runs"][parts.cell]["spec.json"]["sha256"] = "0" * 64


@hostile("has no valid SHA-256")
def hash_that_is_none(parts):
    parts.index["runs"][parts.cell]["spec.json"]["sha256"] = "0" * 63


@hostile("metrics.jsonl: its SHA-256 is not the listed one")
def another_content_of_the_same_size(parts):
    parts.replace("metrics.jsonl", parts.read("metrics.jsonl").replace(b'"loss":2', b'"loss":1'))


@hostile("runs is more than")
def too_many_runs(parts):
    files = parts.index["runs"][parts.cell]
    stem = parts.cell.removesuffix("seed0")
    parts.index["runs"] = {f"{stem}seed{seed}": files for seed in range(20_001)}


# The index.


@hostile("bundle.json is missing")
def index_missing(parts):
    parts.before = [raw_entry(*parts.entries.pop(0))]


@hostile("bundle.json is missing")
def index_not_first(parts):
    parts.before = [raw_entry(*parts.entries[0])]


@hostile("bundle.json")
def index_that_is_a_link(parts):
    parts.before = [raw_entry(INDEX, kind=tarfile.SYMTYPE, link="/etc/passwd")]


@hostile("not listed, or there twice")
def index_twice(parts):
    parts.entries.append((INDEX, json.dumps(parts.index).encode()))


@hostile("does not list the files of a run")
def manifest_not_listed(parts):
    del parts.index["runs"][parts.cell]["manifest.json"]
    parts.remove("manifest.json")


@hostile("format 1, but 2 is read here")
def older_format(parts):
    parts.index["format"] = 1


@hostile("format 3, but 2 is read here")
def unknown_format(parts):
    parts.index["format"] = 3


@hostile("is not study/depthL/variant/backend/seedN")
def cell_that_does_not_parse(parts):
    rename_cell(parts, "small/deep/mhc/torch/seed0")


@hostile("not the index of a bundle")
def cell_that_breaks_the_line(parts):
    parts.index["runs"]["small\nfathom: all is well\x1b[2J"] = {}


@hostile("")
def cell_with_a_name_too_long_for_a_file(parts):
    rename_cell(parts, "s" * 300 + parts.cell.removeprefix("small"))


INDEX_TEXTS = {
    "nested a thousand deep": b"[" * 1000 + b"]" * 1000,
    "nested a hundred thousand deep": b'{"runs":' * 100_000 + b"1" + b"}" * 100_000,
    "nested and never closed": b"[" * 100_000,
    "empty": b"",
    "half": b'{"format": 2, "runs": {',
    "not text": bytes(range(256)),
    "a list": b"[]",
    "a number": b"1",
    "null": b"null",
    "without a format": b'{"runs": {}}',
    "without runs": b'{"format": 2}',
    "NaN as format": b'{"format": NaN, "runs": {}}',
    "text as format": b'{"format": "2", "runs": {}}',
    "a list as runs": b'{"format": 2, "runs": []}',
    "text as runs": b'{"format": 2, "runs": "all"}',
    "a number as runs": b'{"format": 2, "runs": 3}',
    "null as runs": b'{"format": 2, "runs": null}',
}


def spoiled_index(text):
    def spoil(parts):
        parts.index_text = text

    return spoil


HOSTILE += [
    pytest.param(spoiled_index(text), INDEX, id=f"index: {name}")
    for name, text in INDEX_TEXTS.items()
]


RECORDS = {
    "a list as files": lambda files: list(files),
    "text as files": lambda files: "all of them",
    "null as files": lambda files: None,
    "a list as a file": lambda files: {**files, "spec.json": []},
    "null as a file": lambda files: {**files, "spec.json": None},
    "text as a size": lambda files: with_record(files, bytes="436"),
    "a fraction as a size": lambda files: with_record(files, bytes=436.0),
    "true as a size": lambda files: with_record(files, bytes=True),
    "NaN as a size": lambda files: with_record(files, bytes=float("nan")),
    "no size": lambda files: {**files, "spec.json": {"sha256": files["spec.json"]["sha256"]}},
    "a number as a hash": lambda files: with_record(files, sha256=7),
    "a hash in capitals": lambda files: with_record(files, sha256="A" * 64),
    "a hash and a line break": lambda files: with_record(files, sha256="0" * 64 + "\n"),
    "a list as a hash": lambda files: with_record(files, sha256=["0"] * 64),
}


def with_record(files, **changes):
    return {**files, "spec.json": {**files["spec.json"], **changes}}


def spoiled_record(change):
    def spoil(parts):
        parts.index["runs"][parts.cell] = change(parts.index["runs"][parts.cell])

    return spoil


HOSTILE += [
    pytest.param(spoiled_record(change), INDEX, id=f"index: {name}")
    for name, change in RECORDS.items()
]


# Runs that every hash agrees with, and that are wrong all the same.


@hostile("spec.json: is not the spec that the manifest names")
def spec_of_another_cell(parts):
    parts.edit_json("spec.json", lambda spec: spec.update(seed=9))
    parts.seal()


@hostile("spec.json: is not the spec that the manifest names")
def spec_with_other_numbers(parts):
    parts.edit_json("spec.json", lambda spec: spec["optimizer"].update(lr=0.5))
    parts.seal()


@hostile(r"spec.json: top level: unknown key 'a\nb'")
def spec_with_an_unknown_key(parts):
    parts.edit_json("spec.json", lambda spec: spec.update({"a\nb": 1}))
    parts.seal()


@hostile("spec.json: steps: field required")
def spec_that_lacks_a_number(parts):
    parts.edit_json("spec.json", lambda spec: spec.pop("steps"))
    parts.seal()


@hostile("spec.json: not valid JSON")
def spec_nested_deep(parts):
    parts.replace("spec.json", b'{"model":' * 100_000)
    parts.seal()


@hostile("metrics.jsonl: does not hold steps 0 to 999999999999999 in order")
def spec_with_more_steps_than_memory_could_count(parts):
    forge_spec(parts, steps=10**15)


@hostile("spec.json: model.vocab: must not be beyond 2^53")
def spec_with_a_number_beyond_every_float(parts):
    parts.edit_json("spec.json", lambda spec: spec["model"].update(vocab=10**4000))
    parts.seal()


@hostile("mixing.safetensors: ")
def spec_of_a_network_larger_than_any_memory(parts):
    last_cell_of_variant(parts, "mhc")
    connection = json.loads(parts.read("spec.json"))["connection"]
    forge_spec(parts, connection={**connection, "streams": 10**15})


def forge_spec(parts, **changes):
    """Other numbers in the spec, and its right hash in the manifest."""
    parts.edit_json("spec.json", lambda spec: spec.update(changes))
    forged = Spec.model_validate(json.loads(parts.read("spec.json")))
    parts.edit_json("manifest.json", lambda manifest: manifest.update(spec_hash=forged.hash()))
    parts.seal()


@hostile("manifest.json: is of another cell")
def manifest_of_another_cell(parts):
    parts.edit_json("manifest.json", lambda manifest: manifest.update(cell="small/9L/x/y/seed0"))
    parts.seal()


@hostile("manifest.json: is of another cell")
def run_in_the_place_of_another(parts):
    first, second = parts.index["runs"]
    parts.cell = second
    stolen = {name: parts.read(name) for name in RUN_FILES}
    parts.cell = first
    for name, content in stolen.items():
        parts.replace(name, content)
    parts.list_again()


@hostile("manifest.json: format 99")
def manifest_of_an_unknown_format(parts):
    parts.edit_json("manifest.json", lambda manifest: manifest.update(format=99))
    parts.seal()


@hostile("metrics.jsonl: its SHA-256 is not the manifest's")
def manifest_with_a_wrong_hash(parts):
    edit_manifest(
        parts, lambda manifest: manifest["files"]["metrics.jsonl"].update(sha256="0" * 64)
    )


@hostile("manifest.json: does not list metrics.jsonl")
def manifest_that_does_not_list_a_file(parts):
    edit_manifest(parts, lambda manifest: manifest["files"].pop("metrics.jsonl"))


@hostile("manifest.json: names no platform")
def manifest_without_a_platform(parts):
    name_platform(parts, "", "", "")


@hostile("manifest.json: names no platform")
def manifest_with_a_platform_of_dots(parts):
    name_platform(parts, "..", "../../..", "/")


@hostile("manifest.json: names no platform")
def manifest_with_a_platform_beyond_ascii(parts):
    name_platform(parts, "显卡", "ö", "系统")


@hostile("manifest.json: names a platform of over 100 letters")
def manifest_with_a_platform_too_long_for_a_folder(parts):
    name_platform(parts, "cpu", "x" * 400, "Linux")


@hostile("manifest.json: device.framework_version: field required")
def manifest_without_the_version_of_its_framework(parts):
    edit_manifest(parts, lambda manifest: manifest["device"].pop("framework_version"))


@hostile("manifest.json: device.name: input should be a valid string")
def manifest_whose_device_is_no_text(parts):
    name_platform(parts, "cpu", None, "Linux")


@hostile("manifest.json: not valid JSON")
def manifest_whose_device_is_text_that_cannot_be_written(parts):
    name_platform(parts, "cpu", "half a pair: \ud800", "Linux")


@hostile("manifest.json: device.name: must not hold control characters")
def manifest_whose_device_is_obeyed_by_terminals(parts):
    name_platform(parts, "cpu", "\x1b]0;fine\x07\x1b[2J", "Linux")


@hostile("manifest.json: code.'fathom.train:\\u202eniart'.[key]: must not hold control")
def manifest_whose_code_reads_backwards(parts):
    edit_manifest(parts, lambda m: m["code"].update({"fathom.train:\u202eniart": "0"}))


@hostile("manifest.json: lists '../spec.json', which is no file of a run")
def manifest_that_lists_a_file_elsewhere(parts):
    edit_manifest(parts, lambda m: m["files"].update({"../spec.json": m["files"]["spec.json"]}))


@hostile("manifest.json: its content does not have the SHA-256 that it names")
def manifest_with_the_hash_of_another(parts):
    parts.edit_json("manifest.json", lambda manifest: manifest.update(threads=64))
    parts.list_again()


@hostile("manifest.json: sha256: field required")
def manifest_without_any_hash_of_its_own(parts):
    parts.edit_json("manifest.json", lambda manifest: manifest.pop("sha256"))
    parts.list_again()


def name_platform(parts, kind, name, system):
    parts.edit_json("manifest.json", as_if_measured_on(kind, name, system))
    parts.seal()


MANIFEST_FIELDS = ("format", "cell", "spec_hash", "code", "device", "os", "cpu", "files")


def manifest_without(field):
    return lambda parts: edit_manifest(parts, lambda manifest: manifest.pop(field))


def manifest_with_a_list_as(field):
    return lambda parts: edit_manifest(parts, lambda manifest: manifest.update({field: [1]}))


def edit_manifest(parts, change):
    manifest = json.loads(parts.read("manifest.json"))
    change(manifest)
    parts.write_manifest(manifest)


for field in MANIFEST_FIELDS:
    HOSTILE += [
        pytest.param(manifest_without(field), "manifest.json", id=f"manifest without {field}"),
        pytest.param(
            manifest_with_a_list_as(field), "manifest.json", id=f"manifest with a list as {field}"
        ),
    ]


# Rows of metrics.


@hostile("metrics.jsonl: does not hold steps 0 to 3 in order")
def a_row_too_few(parts):
    edit_lines(parts, lambda lines: lines[:-1])


@hostile("metrics.jsonl: does not hold steps 0 to 3 in order")
def a_row_too_many(parts):
    edit_lines(parts, lambda lines: [*lines, lines[-1]])


@hostile("metrics.jsonl: does not hold steps 0 to 3 in order")
def rows_in_another_order(parts):
    edit_lines(parts, lambda lines: lines[::-1])


@hostile("metrics.jsonl: does not hold steps 0 to 3 in order")
def no_rows_at_all(parts):
    edit_lines(parts, lambda lines: [])


LINES = {
    "not JSON": b"loss = 3",
    "empty": b"",
    "cut off": b'{"step":2,"loss":2.',
    "a list": b"[2]",
    "a number": b"2",
    "null": b"null",
    "binary": bytes(range(128, 256)),
    "nested deep": b'{"step":' * 100_000,
    "a list of non-finite numbers": b'{"step":2,"nonfinite":["loss"]}',
    "a word as a non-finite number": b'{"step":2,"nonfinite":{"loss":"much"}}',
    "a list as a non-finite number": b'{"step":2,"nonfinite":{"loss":[]}}',
    "a non-finite number beyond every float": b'{"step":2,"nonfinite":{"loss":1%s}}' % (b"0" * 400),
    "a number of too many digits": b'{"step":2,"loss":%s}' % (b"9" * 5000),
    "without a loss": b'{"step":2}',
}


def spoiled_line(line):
    return lambda parts: edit_lines(parts, lambda lines: [*lines[:2], line, *lines[3:]])


HOSTILE += [
    pytest.param(spoiled_line(line), "metrics.jsonl", id=f"row: {name}")
    for name, line in LINES.items()
]


VALUES = {
    "text": "2.5",
    "null": None,
    "a list": [2.5],
    "a list of lists": [[2.5], [2.5, 1]],
    "an object": {"a": 1},
    "a number beyond every float": 10**400,
}
FIELDS = ("loss", "grad_norm", "gain_proxy_log10_max_entry", "step_seconds", "stream_difference")


def spoiled_value(field, value):
    """One kind of measurement is something else in every row."""

    def spoil(parts):
        last_cell_of_variant(parts, "mhc")  # the one that has streams
        edit_rows(parts, lambda row: row.update({field: value}))

    return spoil


def last_cell_of_variant(parts, variant):
    parts.cell = [cell for cell in parts.index["runs"] if f"/{variant}/" in cell][-1]


HOSTILE += [
    pytest.param(spoiled_value(field, value), f"no valid {field!r}", id=f"{field}: {name}")
    for field in FIELDS
    for name, value in VALUES.items()
]


@hostile("metrics.jsonl: line 1 has no valid 'test_accuracy'")
def rows_of_another_task(parts):
    edit_rows(parts, lambda row: row.update(test_accuracy=0.5, grad_norm_stem=1.0))


@hostile("metrics.jsonl: line 1 has no valid 'study'")
def row_with_a_name_that_tables_use(parts):
    edit_rows(parts, lambda row: row.update(study=1, depth=2, platform=3))


@hostile(r"metrics.jsonl: line 1 has no valid 'a\nfathom: fine\x1b[2J'")
def row_with_a_name_that_breaks_the_line(parts):
    edit_rows(parts, lambda row: row.update({"a\nfathom: fine\x1b[2J": 1.0}))


# Matrices.


@hostile("mixing.safetensors: cannot be read")
def matrices_that_are_damaged(parts):
    last_cell_of_variant(parts, "mhc")
    content = bytearray(parts.read("mixing.safetensors"))
    content[:8] = bytes(8)
    parts.replace("mixing.safetensors", bytes(content))
    parts.seal()


@hostile("mixing.safetensors: 'H_res' is F32 [2, 16], but F32 [2, 4, 4] by spec.json")
def matrices_of_another_shape(parts):
    last_cell_of_variant(parts, "mhc")
    matrices = load(parts.read("mixing.safetensors"))
    matrices["H_res"] = matrices["H_res"].reshape(2, 16)
    parts.replace("mixing.safetensors", save(matrices))
    parts.seal()


@hostile("mixing.safetensors: ")
def matrices_where_nothing_is_mixed(parts):
    last_cell_of_variant(parts, "mhc")
    matrices = parts.read("mixing.safetensors")
    last_cell_of_variant(parts, "baseline")
    parts.replace("mixing.safetensors", matrices)
    parts.seal()


@hostile("listed, but not inside")
def no_matrices(parts):
    parts.remove("mixing.safetensors")


# How a test spoils rows.


def edit_lines(parts, change):
    lines = change(parts.read("metrics.jsonl").splitlines())
    parts.replace("metrics.jsonl", b"".join(line + b"\n" for line in lines))
    parts.seal()


def edit_rows(parts, change):
    rows = [json.loads(line) for line in parts.read("metrics.jsonl").splitlines()]
    for row in rows:
        change(row)
    parts.replace("metrics.jsonl", b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    parts.seal()


@pytest.mark.parametrize(("spoil", "said"), HOSTILE)
def test_a_hostile_bundle_is_refused_in_one_line_and_nothing_is_written(
    spoil, said, packed, tmp_path
):
    parts = Parts(packed)
    spoil(parts)
    parts.pack(tmp_path / "hostile.tar.gz")
    assert said in refusal(tmp_path / "results", tmp_path / "hostile.tar.gz")


def test_a_bundle_that_is_only_taken_apart_and_packed_again_is_taken(elsewhere, packed, tmp_path):
    """Or the bundles above might be refused for the way in which they are written."""
    parts = Parts(packed)
    for _ in parts.each_cell():
        parts.edit_json("manifest.json", lambda manifest: None)
        parts.seal()
    parts.pack(tmp_path / "good.tar.gz")
    done = import_bundle(results_of(elsewhere), tmp_path / "good.tar.gz")
    assert len(done["imported"]) == 2
    assert [run.status for run in find_runs(elsewhere)] == ["imported"] * 2


@pytest.mark.parametrize("existing", ["keep", "replace"])
def test_no_option_lets_a_hostile_bundle_in(existing, already, packed, tmp_path):
    parts = Parts(packed)
    a_row_too_few(parts)
    parts.pack(tmp_path / "hostile.tar.gz")
    said = refusal(already, tmp_path / "hostile.tar.gz", existing)
    assert "does not hold steps 0 to 3 in order" in said


def test_a_name_that_leads_out_of_its_folder_stays_inside(elsewhere, packed, tmp_path):
    parts = Parts(packed)
    keep_one_cell(parts)
    name_platform(parts, "cpu", "../../../up/and/away ~ $HOME", "Linux")
    parts.pack(tmp_path / "b.tar.gz")
    import_bundle(results_of(elsewhere), tmp_path / "b.tar.gz")
    assert platform_of(results_of(elsewhere)).name == "cpu-up-and-away-home-linux"


# --- files that are no bundle --------------------------------------------------------------------


FILES = {
    "empty": lambda content: b"",
    "text": lambda content: b"this is no bundle\n" * 100,
    "not compressed": gzip.decompress,
    "half": lambda content: content[: len(content) // 2],
    "without its last byte": lambda content: content[:-1],
    "without its checksum": lambda content: content[:-8],
    "a checksum of something else": lambda content: content[:-8] + bytes(4) + content[-4:],
    "cut within the index": lambda content: content[:60],
    "cut within the header": lambda content: content[:12],
    "cut within a header that promises more": lambda content: b"\x1f\x8b\x08\x04\0\0\0\0\0\xff",
    "an unknown method of compression": lambda content: content[:2] + b"\x07" + content[3:],
    "compressed text": lambda content: gzip.compress(b"this is no bundle\n" * 100),
    "compressed nothing": lambda content: gzip.compress(b""),
    "an archive of nothing": lambda content: gzip.compress(bytes(10240)),
    "zeros after the header": lambda content: content[:100] + bytes(len(content) - 100),
}


@pytest.mark.parametrize("make", FILES.values(), ids=FILES.keys())
def test_a_file_that_is_no_whole_bundle_is_refused(make, packed, tmp_path):
    (tmp_path / "b.tar.gz").write_bytes(make(packed.read_bytes()))
    said = refusal(tmp_path / "results", tmp_path / "b.tar.gz")
    assert said.startswith(str(tmp_path / "b.tar.gz"))


def test_a_bundle_that_is_not_there_is_refused(tmp_path):
    assert refusal(tmp_path / "results", tmp_path / "none.tar.gz").endswith(": no such file")


def test_what_the_system_says_is_not_blamed_on_the_bundle(packed, tmp_path, monkeypatch):
    def is_full(file, content):
        raise OSError(28, "No space left on device", str(file))

    monkeypatch.setattr(Path, "write_bytes", is_full)
    with pytest.raises(OSError, match="No space left on device"):
        import_bundle(tmp_path / "results", packed)
    assert not (tmp_path / "results").exists()


def bomb_in_a_long_name(size):
    return raw_entry("long", bytes(size), kind=tarfile.GNUTYPE_LONGNAME)


def bomb_in_an_extended_header(size):
    return raw_entry("pax", bytes(size), kind=tarfile.XHDTYPE)


def bomb_in_the_index(size):
    return raw_entry(INDEX, b"[" + b"[]," * (size // 3) + b"1]")


def bomb_before_the_index(size):
    return raw_entry("zeros", bytes(size))


@pytest.mark.parametrize(
    "bomb",
    [bomb_in_a_long_name, bomb_in_an_extended_header, bomb_in_the_index, bomb_before_the_index],
)
def test_a_small_file_cannot_fill_the_memory(bomb, tmp_path):
    size = 2**25
    file = tmp_path / "bomb.tar.gz"
    file.write_bytes(gzip.compress(bomb(size), 1))
    assert file.stat().st_size < size / 100
    tracemalloc.start()
    try:
        refusal(tmp_path / "results", file)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < size / 2


@pytest.mark.parametrize("name", ["spec.json", "manifest.json"])
def test_a_small_file_of_much_json_cannot_fill_the_memory(name, packed, tmp_path):
    parts = Parts(packed)
    parts.replace(name, b"[" + b"[]," * 2**21 + b"1]")
    parts.list_again()
    parts.pack(tmp_path / "bomb.tar.gz")
    said = refusal(tmp_path / "results", tmp_path / "bomb.tar.gz")
    assert f"{name} has a size of 62" in said


# --- damage at random ----------------------------------------------------------------------------


def flipped(content, rng):
    """The content with one byte changed to any other."""
    changed = bytearray(content)
    changed[rng.randrange(len(changed))] ^= rng.randrange(1, 256)
    return bytes(changed)


def flipped_when_compressed(content, rng):
    return flipped(content, rng)


def flipped_before_compression(content, rng):
    """A transfer does no such thing, a tamperer might."""
    return gzip.compress(flipped(gzip.decompress(content), rng), 1, mtime=0)


@pytest.mark.parametrize("damage", [flipped_when_compressed, flipped_before_compression])
def test_a_flipped_byte_is_refused_or_changes_no_run(damage, made, packed, tmp_path):
    """Some bytes say nothing: padding, or the time at which the bundle was made."""
    rng = random.Random(20260517)  # noqa: S311, nothing secret
    file, results, refused = tmp_path / "b.tar.gz", tmp_path / "results", 0
    for _ in range(60):
        file.write_bytes(damage(packed.read_bytes(), rng))
        try:
            with at_most(seconds=20):
                import_bundle(results, file)
        except BundleError:
            assert not results.exists()
            refused += 1
        else:
            assert tree(platform_of(results)) == tree(made / "results/runs")
            shutil.rmtree(results)
    assert refused > 30


# --- the command line ----------------------------------------------------------------------------


@pytest.fixture
def fathom(capsys):
    """A function that runs `fathom bundle` with a config in a folder.

    It returns (exit status, standard output, standard error).
    """

    def run(folder, *arguments):
        status = exit_status(["bundle", *map(str, arguments), "-c", str(folder / "config.yaml")])
        return (status, *capsys.readouterr())

    return run


def write_config(folder):
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config_data(folder)), encoding="utf-8")
    return folder


def test_the_commands_carry_runs_from_one_machine_to_another(fathom, here, elsewhere, tmp_path):
    bundle = tmp_path / "b.tar.gz"
    there, other = write_config(tmp_path / "here"), write_config(tmp_path / "elsewhere")
    status, said, errors = fathom(there, "create", "*/mhc/*", "-o", bundle)
    assert (status, errors) == (0, "")
    first, second = said.splitlines()
    assert first.startswith(f"{bundle}: 1 runs, ")
    assert second == f"  1 from {CPU_PLATFORM}"

    status, said, errors = fathom(other, "import", bundle)
    assert (status, errors) == (0, "")
    first, last = said.splitlines()
    assert first == f"{bundle}: 1 imported, under {other / 'results/imported'}"
    assert last.startswith("`snakemake all ")
    assert "also trains here every cell that was not trained here; with `--config train=" in last
    assert [run.status for run in find_runs(elsewhere)] == ["missing", "imported"]


def test_a_refusal_is_one_line_and_exit_status_1(fathom, packed, tmp_path):
    other = write_config(tmp_path / "elsewhere")
    parts = Parts(packed)
    row_with_a_name_that_breaks_the_line(parts)
    parts.pack(tmp_path / "b.tar.gz")
    status, said, errors = fathom(other, "import", "--replace", tmp_path / "b.tar.gz")
    assert (status, said) == (1, "")
    (line,) = errors.splitlines()  # which also splits at what a terminal obeys
    assert line.startswith("fathom: ")
    assert "metrics.jsonl: line 1 has no valid" in line
    assert line.isprintable()
    assert not (other / "results").exists()


def test_a_folder_is_no_bundle(fathom, tmp_path):
    other = write_config(tmp_path / "elsewhere")
    status, _, errors = fathom(other, "import", tmp_path)
    assert (status, errors) == (1, f"fathom: {tmp_path}: Is a directory\n")
