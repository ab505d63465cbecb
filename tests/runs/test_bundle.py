"""Bundles: runs come out as they were packed; a hostile bundle is refused and writes nothing."""

import hashlib
import json
import lzma
import os
import random
import shutil
import tarfile
import tracemalloc
from pathlib import Path

import pytest
from safetensors.numpy import load, save

from fathom_study.config import parse_spec
from fathom_study.runs import bundle
from fathom_study.runs.bundle import BundleError, create_bundle, import_bundle, incoming
from fathom_study.runs.columns import COLUMNS, from_columns
from fathom_study.runs.folder import METRICS, manifest_hash, run_folder
from fathom_study.runs.validate import find_runs
from tests.support.commands import contents
from tests.support.runs import CPU_PLATFORM, RUN_FILES, config_with, read_manifest, write_cell

WEIGHTS = "weights.safetensors"
LOSSES = [2.75, 2.5, 2.25, 2.0]


# --- tiny results to pack ------------------------------------------------------------------------


def config_in(folder, **changes):
    """A config of two cells whose results lie in `folder`."""
    axes = {"variants": ["baseline", "mhc"], "depths": [2], "backends": ["torch"], "seeds": [0]}
    return config_with(folder / "results", a={**axes, "steps": 4, **changes})


def results_of(config):
    return Path(config.results)


def write_all_cells(config):
    for cell in config.cells():
        write_cell(config, cell, LOSSES)


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Folder with the runs of two cells."""
    folder = tmp_path_factory.mktemp("made")
    write_all_cells(config_in(folder))
    return folder


@pytest.fixture(scope="session")
def packed(made):
    """Bundle of the two runs."""
    create_bundle(config_in(made), made / "good.tar.xz")
    return made / "good.tar.xz"


@pytest.fixture
def here(made, tmp_path):
    """Config of a copy of the results, which a test may change."""
    shutil.copytree(made / "results", tmp_path / "here/results")
    return config_in(tmp_path / "here")


@pytest.fixture
def elsewhere(tmp_path):
    """The config of another machine, which has no results yet."""
    return config_in(tmp_path / "elsewhere")


def platform_of(results):
    """Folder of the only imported platform."""
    (platform,) = (results / "imported").iterdir()
    return platform


# --- a bundle taken apart ------------------------------------------------------------------------


def as_rows(name, content):
    """An entry of a bundle, with metrics as the rows of a run folder."""
    if not name.endswith(COLUMNS):
        return name, content
    return name.replace(COLUMNS, METRICS), b"".join(from_columns(content))


class Parts:
    """A bundle's entries; `pack` writes them as they are, valid or not."""

    def __init__(self, file, rows=True):
        with tarfile.open(file) as archive:
            self.entries = [(entry.name, archive.extractfile(entry).read()) for entry in archive]
        """(name, content) in order; an entry whose name is None is raw bytes."""
        if rows:  # tests change rows, which a bundle may also hold
            self.entries = [as_rows(*entry) for entry in self.entries]
        self.cells = list(dict.fromkeys(name[5:].rpartition("/")[0] for name, _ in self.entries))
        self.cell = self.cells[-1]
        """The cell that most tests change: mhc, which has streams."""

    def name(self, file):
        return f"runs/{self.cell}/{file}"

    def read(self, file):
        return dict(self.entries)[self.name(file)]

    def replace(self, file, content):
        """Put another content into a file of the cell."""
        self.entries = [
            (name, content if name == self.name(file) else old) for name, old in self.entries
        ]

    def rename(self, file, name):
        self.entries = [(name if n == self.name(file) else n, c) for n, c in self.entries]

    def remove(self, file):
        self.entries = [entry for entry in self.entries if entry[0] != self.name(file)]

    def insert_raw(self, content):
        self.entries.insert(0, (None, content))

    def replace_raw(self, **fields):
        """Replace the spec of the cell by a header that `tarfile` would not write."""
        self.remove("spec.json")
        self.insert_raw(raw_entry(self.name("spec.json"), **fields))

    def edit_json(self, file, change):
        """Change the data in a file of the cell, but no hash."""
        data = json.loads(self.read(file))
        change(data)
        self.replace(file, json.dumps(data).encode())

    def edit_manifest(self, change):
        """Change the manifest of the cell and its own hash."""
        manifest = json.loads(self.read("manifest.json"))
        change(manifest)
        signed = {**manifest, "sha256": manifest_hash(manifest)}
        self.replace("manifest.json", json.dumps(signed, indent=2).encode())

    def seal(self):
        """Put the hashes of all files into the manifest, so that only the content is wrong."""

        def list_again(manifest):
            for name, listed in manifest["files"].items():
                content = self.read(name)
                listed |= {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}

        self.edit_manifest(list_again)

    def measured_on(self, kind, name, system):
        def change(manifest):
            manifest["device"] |= {"kind": kind, "name": name}
            manifest["os"] = system

        self.edit_manifest(change)

    def pack(self, file, end=bytes(1024)):
        raw = [c if n is None else raw_entry(n, content=c) for n, c in self.entries]
        file.write_bytes(lzma.compress(b"".join(raw) + end))
        return file


def raw_entry(name, content=b"", size=None, kind=tarfile.REGTYPE, link=""):
    """Header and padded content of an entry; nothing is checked."""
    info = tarfile.TarInfo(name)
    info.size = len(content) if size is None else size
    info.type = kind
    info.linkname = link
    return info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


def pax_entry(**records):
    """An extended header, with records about the next entry."""
    content = b""
    for key, value in records.items():
        record = f" {key.replace('__', '.')}={value}\n"
        content += f"{len(record) + len(str(len(record) + 2))}{record}".encode()
    return raw_entry("pax", content=content, kind=tarfile.XHDTYPE)


# --- there and back ------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [False, True])
def test_import_restores_every_file(tmp_path, weights):
    here, elsewhere = (config_in(tmp_path / name, weights=weights) for name in ("a", "b"))
    write_all_cells(here)
    runs = create_bundle(here, tmp_path / "b.tar.xz")
    done = import_bundle(results_of(elsewhere), tmp_path / "b.tar.xz")
    cells = [cell.path() for cell in here.cells()]
    assert [run.cell.path() for run in runs] == cells
    assert done == {"imported": cells, "kept": [], "same": []}
    assert [path.name for path in results_of(elsewhere).iterdir()] == ["imported"]
    platform = platform_of(results_of(elsewhere))
    assert platform.name == CPU_PLATFORM
    assert meaning(platform) == meaning(results_of(here) / "runs")
    assert len(list(platform.rglob(WEIGHTS))) == 2 * weights
    statuses = [(run.status, run.platform) for run in find_runs(elsewhere)]
    assert statuses == [("imported", CPU_PLATFORM)] * 2


def test_large_matrices_stay_where_a_run_was_trained(here, elsewhere, tmp_path, monkeypatch):
    cell = here.cells()[-1]
    size = (run_folder(results_of(here), cell) / "mixing.safetensors").stat().st_size
    monkeypatch.setattr(bundle, "MAX_MIXING_BYTES", size - 1)
    create_bundle(here, tmp_path / "b.tar.xz", [cell.path()])
    import_bundle(results_of(elsewhere), tmp_path / "b.tar.xz")
    folder = platform_of(results_of(elsewhere)) / cell.path()
    assert "mixing.safetensors" not in {file.name for file in folder.iterdir()}
    assert read_manifest(folder)["files"].keys() == {"spec.json", "metrics.jsonl"}
    assert [r.status for r in find_runs(elsewhere) if r.cell == cell] == ["imported"]
    (folder / "mixing.safetensors").write_bytes(b"another")
    (said,) = (r.reason for r in find_runs(elsewhere) if r.cell == cell)
    assert said == "mixing.safetensors: exists, but manifest.json does not list it"


def test_platform_folder_is_named_after_device_and_system(elsewhere, packed, tmp_path):
    parts = Parts(packed)
    names = [("NVIDIA H200", "cuda-nvidia-h200-linux"), ("../../up/ ~ $HOME", "cuda-up-home-linux")]
    for parts.cell, (name, _) in zip(parts.cells, names, strict=True):  # noqa: B020
        parts.measured_on("cuda", name, "Linux 6.1 x")
    random.Random(1).shuffle(parts.entries)  # noqa: S311, nothing secret
    import_bundle(results_of(elsewhere), parts.pack(tmp_path / "b.tar.xz"))
    folders = {path.name for path in (results_of(elsewhere) / "imported").iterdir()}
    assert folders == {platform for _, platform in names}
    assert [run.status for run in find_runs(elsewhere)] == ["imported"] * 2


def test_bundle_holds_its_runs_and_nothing_about_its_author(here, packed):
    with tarfile.open(packed) as archive:
        entries = archive.getmembers()
    assert [entry.name for entry in entries] == [
        f"runs/{cell}/{COLUMNS if name == METRICS else name}"
        for cell in here.cells()
        for name in RUN_FILES
    ]
    for entry in entries:
        assert entry.isreg()
        assert (entry.uid, entry.gid, entry.uname, entry.gname) == (0, 0, "", "")
        assert (entry.mtime, entry.mode, entry.pax_headers) == (0, 0o644, {})
    content = lzma.decompress(packed.read_bytes())
    assert str(Path.home()).encode() not in content
    assert here.results.encode() not in content


# --- runs that must not be packed ----------------------------------------------------------------


def refusal_to_pack(config, file, patterns=()):
    """The error message; no complete or partial bundle may be left."""
    with pytest.raises(BundleError) as caught:
        create_bundle(config, file, patterns)
    assert not file.exists()
    assert list(file.parent.glob(".*.tmp")) == []
    return str(caught.value)


def test_only_chosen_runs_must_be_current(here, tmp_path):
    baseline = run_folder(results_of(here), here.cells()[0])
    (baseline / "metrics.jsonl").write_text("", encoding="utf-8")
    corrupt = refusal_to_pack(here, tmp_path / "b.tar.xz")
    assert corrupt.startswith(f"{here.cells()[0]}: corrupt, metrics.jsonl: its SHA-256 differs")

    write_all_cells(here)
    changed = config_in(tmp_path / "here", optimizer={"lr": 0.02})
    assert refusal_to_pack(changed, tmp_path / "b.tar.xz").splitlines() == [
        f"{cell}: stale, spec differs: optimizer.lr 0.002 → 0.02" for cell in here.cells()
    ]
    (baseline / "metrics.jsonl").unlink()
    assert len(create_bundle(here, tmp_path / "b.tar.xz", ["*/mhc/*"])) == 1


def test_unfinished_training_is_left_out_of_a_bundle(here, tmp_path, capsys):
    cell = here.cells()[0]
    shutil.rmtree(run_folder(results_of(here), cell))
    (run_folder(results_of(here), cell) / ".partial").mkdir(parents=True)
    assert [run.cell for run in create_bundle(here, tmp_path / "b.tar.xz")] == here.cells()[1:]
    assert capsys.readouterr().err == "fathom: left out: 1 unfinished trainings\n"


def test_imported_runs_are_left_out_of_a_bundle(here, elsewhere, packed, tmp_path):
    import_bundle(results_of(elsewhere), packed)
    assert "no run to pack" in refusal_to_pack(elsewhere, tmp_path / "b.tar.xz")
    import_bundle(results_of(here), packed)
    platform = platform_of(results_of(here))
    (platform / here.cells()[0].path() / "metrics.jsonl").write_text("", encoding="utf-8")
    assert len(create_bundle(here, tmp_path / "b.tar.xz")) == 2


def test_only_a_bundle_is_replaced(made, tmp_path):
    config, file = config_in(made), tmp_path / "b.tar.xz"
    content = lzma.compress(b"another archive" * 99)
    file.write_bytes(content)
    with pytest.raises(BundleError, match=r"b\.tar\.xz: exists and is not a bundle; name another"):
        create_bundle(config, file)
    assert file.read_bytes() == content
    file.unlink()
    for _ in range(2):
        assert len(create_bundle(config, file)) == 2


# --- existing runs -------------------------------------------------------------------------------


@pytest.fixture
def already(elsewhere, packed):
    """Results that hold the imported runs of `packed`."""
    import_bundle(results_of(elsewhere), packed)
    return results_of(elsewhere)


def with_other_losses(columns):
    arrays = load(columns)
    return save({**arrays, "loss": arrays["loss"] + 1})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda p: p.entries.append((p.name(METRICS), b"{}\n")), "is present twice"),
        (lambda p: p.replace(COLUMNS, p.read(COLUMNS)[:-1]), "is damaged"),
        (lambda p: p.replace(COLUMNS, with_other_losses(p.read(COLUMNS))), "SHA-256"),
    ],
)
def test_damaged_columns_are_refused_in_one_line(change, said, packed, tmp_path):
    parts = Parts(packed, rows=False)
    change(parts)
    assert said in refusal(tmp_path / "results", parts.pack(tmp_path / "b.tar.xz"))


def test_the_same_bundle_again_changes_nothing(already, packed):
    before = contents(already)
    done = import_bundle(already, packed)
    assert (done["imported"], done["kept"], len(done["same"])) == ([], [], 2)
    assert contents(already) == before


def test_different_run_is_kept_or_replaced_only_on_request(already, packed, tmp_path):
    parts = Parts(packed)
    for parts.cell in parts.cells:  # noqa: B020
        parts.edit_manifest(lambda manifest: manifest.update(threads=7))
    other, before = parts.pack(tmp_path / "other.tar.xz"), contents(already)
    assert "already exists; add --keep or --replace" in refusal(already, other)
    done = import_bundle(already, other, "keep")
    assert (done["imported"], len(done["kept"]), done["same"]) == ([], 2, [])
    assert contents(already) == before
    done = import_bundle(already, other, "replace")
    assert (len(done["imported"]), done["kept"], done["same"]) == (2, [], [])
    files = already.rglob("manifest.json")
    assert [read_manifest(file.parent)["threads"] for file in files] == [7, 7]


# --- imports that were killed --------------------------------------------------------------------


def test_folder_of_a_killed_import_is_ignored_and_later_deleted(already, elsewhere):
    """SIGKILL leaves the folder into which a bundle is unpacked; its runs are unchecked."""
    runs, whole = find_runs(elsewhere), contents(already)
    shutil.copytree(platform_of(already), already / "imported/.incoming-x")
    left = contents(already)
    assert find_runs(elsewhere) == runs  # no seed counts twice
    assert contents(already) == left  # reading changes nothing
    with incoming(already / "imported"):
        pass
    assert contents(already) == whole


def test_folder_of_a_running_import_is_not_deleted(already, elsewhere):
    with incoming(already / "imported") as folder:
        find_runs(elsewhere)
        assert folder.is_dir()
    assert not folder.exists()


def test_copied_platform_folder_does_not_count_twice(already, elsewhere):
    platform = platform_of(already)
    shutil.copytree(platform, platform.with_name("cpu-of-somebody-linux"))
    assert [run.status for run in find_runs(elsewhere)].count("imported") == 2


# --- hostile bundles -----------------------------------------------------------------------------


def refusal(results, file, existing="refuse"):
    """One-line message that refuses a bundle; the import must not have written anything."""
    (results / "imported").mkdir(parents=True, exist_ok=True)
    before = contents(file.parent)
    with pytest.raises(BundleError) as caught:
        import_bundle(results, file, existing)
    line = str(caught.value)
    assert line.isprintable()  # without a line break
    assert len(line) < 1000
    assert contents(file.parent) == before
    return line


PLAIN_ONLY = "is not a plain file"
NO_FILE = "is not a file of a run"
NO_CELL = "is not study/depthL/variant/backend/seedN"
KINDS = {
    "symbolic link": ({"kind": tarfile.SYMTYPE, "link": "../../../../etc/passwd"}, PLAIN_ONLY),
    **{
        repr(kind): ({"kind": kind, "link": "runs/x"}, PLAIN_ONLY)
        for kind in (tarfile.LNKTYPE, tarfile.DIRTYPE, b"?")
    },
    "huge size": ({"size": 2**40}, "a size of 1099511627776, but the limit is 4194304"),
}
NAMES = {
    "absolute": ("/fathom-was-here.json", NO_FILE),
    "leads out as a cell": ("runs/../../../spec.json", NO_CELL),
    "breaks the line": ("runs/a\nfathom: all is well\x1b[2J/spec.json", NO_CELL),
    "extra file": ("runs/a/2L/mhc/torch/seed0/notes.txt", NO_FILE),
}
HEADERS = {
    "a size that is no number": pax_entry(GNU__sparse__size="many"),
    "no end": pax_entry(comment="again") * 5000,
    "long names without end": raw_entry("l", b"name\0", kind=tarfile.GNUTYPE_LONGNAME) * 5000,
}


def steal(parts):
    """Put the second cell's files in place of the first's."""
    first, second = parts.cells
    parts.entries = [(n.replace(second, first), c) for n, c in parts.entries if second in n]


def forge_spec(**changes):
    """Function that changes the spec and puts its new hash into the manifest."""

    def change(parts):
        def forge(spec):
            for key, value in changes.items():
                is_part = isinstance(value, dict) and "kind" not in value
                spec[key] = {**spec[key], **value} if is_part else value

        parts.edit_json("spec.json", forge)
        forged = parse_spec(json.loads(parts.read("spec.json")), "spec.json")
        parts.edit_manifest(lambda manifest: manifest.update(spec_hash=forged.hash()))
        parts.seal()

    return change


CONTENT = {
    "no file": (lambda p: setattr(p, "entries", []), "contains no run"),
    "a file that is missing": (lambda p: p.remove("metrics.jsonl"), "metrics.jsonl: missing"),
    "another content of the same size": (
        lambda p: p.replace("metrics.jsonl", p.read("metrics.jsonl").replace(b":2.5", b":1.5")),
        "metrics.jsonl: its SHA-256 differs"),
    "a run in the place of another": (steal, "manifest.json: belongs to another cell"),
    "no platform": (lambda p: p.measured_on("", "", ""), "make a platform of 0 letters"),
    "more steps than memory could count": (
        forge_spec(steps=10**15), "not contain steps 0 to 999999999999999 in order"),
    "a network larger than any memory": (
        forge_spec(connection={"streams": 10**15}), "mixing.safetensors: "),
    "settings that no network of it can have": (
        forge_spec(connection={"kind": "dense", "weights": "dynamic", "apart": True}),
        "spec.json: "),
    "too much JSON": (
        lambda p: p.replace("spec.json", b"[" + b"[]," * 2**21 + b"1]"),
        "a size of 6291459, but the limit is 4194304"),
}  # fmt: skip
HOSTILE = {
    **{f"kind: {k}": (lambda p, f=f: p.replace_raw(**f), x) for k, (f, x) in KINDS.items()},
    **{f"name: {k}": (lambda p, n=n: p.rename("spec.json", n), x) for k, (n, x) in NAMES.items()},
    **{f"header: {k}": (lambda p, h=h: p.insert_raw(h), PLAIN_ONLY) for k, h in HEADERS.items()},
    **CONTENT,
}


@pytest.mark.parametrize(("change", "said"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_bundle_is_refused_and_nothing_is_written(change, said, packed, tmp_path):
    parts = Parts(packed)
    change(parts)
    file = parts.pack(tmp_path / "hostile.tar.xz")
    line = refusal(tmp_path / "results", file, "replace")
    assert line.startswith(f"{file}: ")
    assert said in line


def test_the_number_of_files_is_limited(packed, tmp_path, monkeypatch):
    monkeypatch.setattr(bundle, "MAX_FILES", 7)
    assert "contains more than 7 files" in refusal(tmp_path / "results", copied(packed, tmp_path))


def copied(file, folder):
    return Path(shutil.copy(file, folder / "b.tar.xz"))


# --- files that are not bundles ------------------------------------------------------------------


def zipped(change):
    """Function that changes the compressed content."""
    return lambda content: lzma.compress(change(lzma.decompress(content)))


NO_TAR = "not an intact .tar.xz file"
FILES = {
    "empty": (lambda content: b"", NO_TAR),
    "half": (lambda content: content[: len(content) // 2], NO_TAR),
    "a wrong checksum": (lambda content: content[:-8] + bytes(4) + content[-4:], NO_TAR),
    "compressed text": (zipped(lambda tar: b"this is no bundle\n" * 100), NO_TAR),
    "tar cut within a file": (zipped(lambda tar: tar[:1500]), NO_TAR),
    "an archive of nothing": (zipped(lambda tar: bytes(10240)), "contains no run"),
    "an archive after the end": (zipped(lambda tar: tar + tar), "data after its end"),
}


@pytest.mark.parametrize(("make", "said"), FILES.values(), ids=FILES.keys())
def test_file_that_is_not_a_whole_bundle_is_refused(make, said, packed, tmp_path):
    file = tmp_path / "b.tar.xz"
    file.write_bytes(make(packed.read_bytes()))
    line = refusal(tmp_path / "results", file)
    assert line.startswith(f"{file}: ")
    assert said in line


def test_pipe_or_missing_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert refusal(tmp_path / "results", tmp_path / "pipe").endswith("pipe: is not a file")
    assert refusal(tmp_path / "results", tmp_path / "none").endswith("none: no such file")


SIZE = 2**25
BOMBS = {
    "a long name": raw_entry("long", bytes(SIZE), kind=tarfile.GNUTYPE_LONGNAME),
    "an extended header": raw_entry("pax", bytes(SIZE), kind=tarfile.XHDTYPE),
    "arrays": raw_entry("runs/a/2L/mhc/torch/seed0/weights.safetensors", bytes(SIZE)),
    "zeros after the end": bytes(SIZE),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_cannot_fill_the_memory(name, tmp_path):
    file = tmp_path / "bomb.tar.xz"
    file.write_bytes(lzma.compress(BOMBS[name] + bytes(1024)))
    assert file.stat().st_size < SIZE / 100
    tracemalloc.start()
    try:
        refusal(tmp_path / "results", file)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < SIZE / 2


def test_a_small_file_cannot_fill_the_disk(packed, tmp_path, monkeypatch):
    """Ratio and total size are limited, even if each file has an allowed size."""
    file = copied(packed, tmp_path)
    size = file.stat().st_size
    unpacked = sum(len(content) for _, content in Parts(file, rows=False).entries)
    monkeypatch.setattr(bundle, "FREE_BYTES", 0)
    monkeypatch.setattr(bundle, "MAX_RATIO", unpacked // size)
    said = f"unpacks to more than {unpacked // size * size} bytes"
    assert said in refusal(tmp_path / "results", file)
    monkeypatch.setattr(bundle, "MAX_RATIO", 100)
    monkeypatch.setattr(bundle, "MAX_TOTAL_BYTES", unpacked - 1)
    assert f"more than {unpacked - 1} bytes" in refusal(tmp_path / "results", file)
    monkeypatch.setattr(bundle, "MAX_TOTAL_BYTES", unpacked)
    assert len(import_bundle(tmp_path / "results", file)["imported"]) == 2


# --- damage at random ----------------------------------------------------------------------------


def flip(content, rng):
    """Change one byte to any other."""
    changed = bytearray(content)
    changed[rng.randrange(len(changed))] ^= rng.randrange(1, 256)
    return bytes(changed)


@pytest.mark.parametrize("where", ["in the file", "before compression"])
def test_a_flipped_byte_is_refused_or_changes_no_run(where, made, packed, tmp_path):
    """Some bytes hold no data: padding, owner, time of compression, whitespace in a manifest."""
    rng = random.Random(20260517)  # noqa: S311, nothing secret
    file, results, refused = tmp_path / "b.tar.xz", tmp_path / "results", 0
    whole = meaning(made / "results/runs")
    for _ in range(80):
        content = packed.read_bytes()
        if where == "in the file":
            file.write_bytes(flip(content, rng))
        else:  # by tampering, not in a transfer
            file.write_bytes(lzma.compress(flip(lzma.decompress(content), rng)))
        try:
            import_bundle(results, file)
        except BundleError:
            assert not list(results.glob("imported/*"))
            refused += 1
        else:
            assert meaning(platform_of(results)) == whole
            shutil.rmtree(results)
    assert refused > 40


def meaning(folder):
    """{file: content} without verdicts, which are of this machine; manifests are parsed."""
    return {
        name: json.loads(content) if content and name.endswith("manifest.json") else content
        for name, content in contents(folder).items()
        if not name.endswith("verdict.json")
    }
