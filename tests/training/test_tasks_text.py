"""The text task: its windows, evaluations during training, and a user's own corpus."""

import json

import numpy as np
import pytest

from fathom_study import tasks
from fathom_study.config import Compute, ConfigError, parse_spec, parse_yaml
from fathom_study.datasets import DataError, shakespeare
from fathom_study.runs.training import run_cell
from fathom_study.runs.validate import validate_run
from fathom_study.tasks import text as module
from fathom_study.train import train
from tests.support import naive
from tests.support.commands import refusal
from tests.support.datasets import put_texts
from tests.support.runs import interrupt_at, numbers_of, read_manifest
from tests.support.specs import (
    arrays_of,
    assert_depends_on_seed_and_step,
    end_of,
    make_spec,
    parameters_off_symmetry,
    trainer_on,
)

text = tasks.load("text")

SENTENCE = "to be or not to be that is the question whether tis nobler in the mind to suffer"


def named(folder):
    """The settings that name a corpus, as `fathom corpus` prints them."""
    result = shakespeare.own(folder)
    return {
        "corpus": str(folder), "vocab": len(result.characters), "corpus_sha256": result.digest,
    }  # fmt: skip


@pytest.fixture
def corpus(tmp_path):
    """A folder of three texts; the first one, with an é in it, is held out."""
    rng = np.random.default_rng(0)
    a, b, c = (" ".join(rng.choice(SENTENCE.split(), size)) + ".\n" for size in (60, 200, 100))
    return put_texts(tmp_path / "mine", a=a + "é", b=b, c=c)


@pytest.fixture
def spec_on(corpus):
    """Function that makes a small spec on that corpus."""
    return lambda **changes: make_spec(
        task="text", **{**named(corpus), "wrap": "sublayer", "depth": 2, **changes}
    )


# --- batches -------------------------------------------------------------------------------------


def test_batch_is_windows_of_the_training_text_and_next_characters(spec_on):
    spec = spec_on(batch_size=50, length=7)
    batch = text.batch(spec, 3)
    inputs, targets = batch.inputs["tokens"], batch.targets
    assert inputs.shape == targets.shape == (50, 7)
    assert inputs.dtype == targets.dtype == np.int32
    mine = module.corpus_of(spec.model)
    characters = mine.characters
    whole = "".join(characters[c] for c in mine.training)
    places = set()
    for row, following in zip(inputs, targets, strict=True):
        assert (row[1:] == following[:-1]).all()
        window = "".join(characters[c] for c in [*row, following[-1]])
        assert window in whole
        places.add(whole.index(window))
    assert len(places) > 25  # all over the text


def test_every_place_can_be_a_window_and_the_last_character_a_target(tmp_path):
    folder = put_texts(tmp_path / "tiny", a="abc", b="abcab")
    spec = make_spec(task="text", **named(folder), length=2, batch_size=64)
    seen = {
        tuple(row) for step in range(5) for row in text.batch(spec, step).inputs["tokens"].tolist()
    }
    assert seen == {(0, 1), (1, 2), (2, 0)}
    last = {tuple(row) for step in range(5) for row in text.batch(spec, step).targets.tolist()}
    assert last == {(1, 2), (2, 0), (0, 1)}


def test_a_batch_depends_on_seed_and_step_alone(spec_on):
    others = {"backend": "mlx", "variant": "hc_paper", "depth": 4, "steps": 9, "lr": 0.5}
    assert_depends_on_seed_and_step(
        lambda step, **changes: arrays_of(text.batch(spec_on(**changes), step)), **others
    )


# --- held-out windows ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held_out", "length", "count", "starts"),
    [
        ("abcdefghijk", 3, 3, [0, 3, 7]),  # the last window begins at 7 and ends the text
        ("abcdefghijk", 3, 1, [0]),
        ("abcdefghijk", 3, 64, list(range(8))),  # no window twice
        ("abcd", 3, 5, [0]),
    ],
)
def test_held_out_windows_are_evenly_spread(tmp_path, held_out, length, count, starts):
    folder = put_texts(tmp_path / "own", a=held_out, b="abcdefghijkl")
    spec = make_spec(task="text", **named(folder), length=length, validation_windows=count)
    result = module.held_out_windows(spec)
    assert result.tolist() == [list(range(start, start + length + 1)) for start in starts]


def by_loops(spec, params, of=module.held_out_windows):
    """The mean loss over windows of the held-out text, in float64, one at a time."""
    logits = ((naive.transformer(spec, params, w[None, :-1]), w[None, 1:]) for w in of(spec))
    return np.mean([naive.cross_entropy(*each) for each in logits])


@pytest.mark.parametrize("count", [5, 65])  # 64 go through the network at once
def test_the_validation_loss_is_the_mean_over_all_windows(spec_on, backends_here, count):
    spec = spec_on(variant="plain", validation_windows=count, length=4, width=8, depth=1)
    params = parameters_off_symmetry(spec)
    expected = by_loops(spec, params)
    assert end_of(spec, params).value("validation_loss") == pytest.approx(expected, rel=1e-11)
    if count == 5:  # with 65 no tuning window is left
        tuning = by_loops(spec, params, module.tuning_windows)
        assert module.tuning_loss(end_of(spec, params)) == pytest.approx(tuning, rel=1e-11)
    for backend in backends_here.values():
        infer = trainer_on(backend, spec, params).infer
        end = tasks.Trained(tasks.Problem(spec), backend.ops, infer)
        assert end.value("validation_loss") == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("held_out", "count", "starts"),
    [
        ("abcdefghijklmnopqrs", 2, [7]),  # between 0 and 15
        # The window overlaps no held-out window, and no other one fits.
        ("abcdefghijklm", 2, [4]),
        ("abcdefghijk", 2, []),
        ("abcdefghijklm", 1, []),
    ],
)
def test_tuning_windows_do_not_overlap_held_out_windows(tmp_path, held_out, count, starts):
    folder = put_texts(tmp_path / "own", a=held_out, b="srqponmlkjihgfedcba")
    spec = make_spec(task="text", **named(folder), length=3, validation_windows=count)
    result = module.tuning_windows(spec)
    assert result.tolist() == [list(range(start, start + 4)) for start in starts]
    assert not set(result.ravel()) & set(module.held_out_windows(spec).ravel())


# --- evaluations during training -----------------------------------------------------------------


def rows_of(spec, backend):
    return [row for chunk in train(tasks.Problem(spec), backend) for row in chunk.rows]


def test_evaluations_are_in_the_rows_of_their_steps(spec_on, connect_cpu):
    """They follow every `evaluate_every` steps and the last, and change nothing else."""
    backend = connect_cpu("torch")
    undisturbed = None
    for every, evaluated in (
        (None, [25]),
        (1, list(range(26))),
        (3, [2, 5, 8, 11, 14, 17, 20, 23, 25]),
        (13, [12, 25]),
    ):
        rows = rows_of(spec_on(steps=26, evaluate_every=every, **TINY), backend)
        assert [row["step"] for row in rows] == list(range(26))
        assert [row["step"] for row in rows if "validation_loss" in row] == evaluated
        assert [row["step"] for row in rows if "characters_per_byte" in row] == [25]
        assert [row["step"] for row in rows if "trigram_bpc" in row] == [0]
        undisturbed = undisturbed or [row["loss"] for row in rows]
        assert [row["loss"] for row in rows] == undisturbed  # bit for bit


def test_evaluation_uses_the_parameters_after_its_step(backend, spec_on):
    """A training that ends there has the same parameters, since the rate is constant."""
    settings = {**TINY, "variant": "mhc_paper"}
    spec = spec_on(steps=7, evaluate_every=3, **settings)
    rows = rows_of(spec, backend)
    for steps in (3, 6, 7):
        *_, chunk = train(tasks.Problem(spec_on(steps=steps, **settings)), backend)
        expected = by_loops(spec, chunk.trainer.parameters())
        assert rows[steps - 1]["validation_loss"] == pytest.approx(expected, rel=1e-6)


def test_characters_per_byte_and_ngram_baselines(spec_on, connect_cpu):
    """é in the held-out text has two bytes; the unigram model is computed by hand."""
    spec = spec_on(steps=1)
    (row,) = rows_of(spec, connect_cpu("torch"))
    corpus = module.corpus_of(spec.model)
    n = len(corpus.validation)
    assert row["characters_per_byte"] == pytest.approx(n / (n + 1))
    # Witten–Bell: with t distinct characters of n in training, all V share t/(n + t) equally.
    counts = np.bincount(corpus.training, minlength=spec.model.vocab)
    total, kinds = counts.sum(), (counts > 0).sum()
    share = (counts + kinds / spec.model.vocab) / (total + kinds)
    expected = -np.log2(share[corpus.validation]).mean()
    assert row["unigram_bpc"] == pytest.approx(expected, rel=1e-9)
    assert row["trigram_bpc"] < row["bigram_bpc"] < row["unigram_bpc"]


TINY = {"width": 4, "hidden": 4, "heads": 1, "length": 4, "depth": 1, "batch_size": 2}


def test_killed_training_resumes_bit_for_bit(backend, spec_on, tmp_path):
    """One checkpoint lies before the first evaluation, one at it."""
    spec = spec_on(
        backend=backend.device.framework, steps=24, evaluate_every=18, **TINY,
        connection={"connection": "mhc_gated_static", "gate": {"noise": True}},
        recipe="nanochat", norm="rms", positions="rotary", biases=False, accumulate=2,
        schedule="linear_end", muon={"lr": 0.02}, clip=1.0,
    )  # fmt: skip
    compute = Compute(device="cpu", checkpoint_steps=1)
    run_cell(spec, tmp_path / "whole", compute)
    # Rows come after 1, 11, 18 and 24 steps, and a checkpoint is written once they were seen: the
    # training resumes at 11, before an evaluation, and at 18, at an evaluation.
    for steps in (12, 19):
        with pytest.raises(KeyboardInterrupt):
            run_cell(spec, tmp_path / "broken", compute, interrupt_at(steps))
    run_cell(spec, tmp_path / "broken", compute)
    assert read_manifest(tmp_path / "broken")["resumed_at_steps"] == [11, 18]
    (whole, mixing), (broken, other) = (numbers_of(tmp_path / f) for f in ("whole", "broken"))
    assert repr(broken) == repr(whole)  # by repr, since NaN != NaN
    assert [row["step"] for row in broken if "validation_loss" in row] == [17, 23]
    assert mixing == other
    assert validate_run(tmp_path / "broken", spec).status == "measured"


# --- a user's own corpus -------------------------------------------------------------------------


def test_the_corpus_is_part_of_the_spec(spec_on, corpus):
    spec = spec_on()
    assert spec.model.corpus_sha256 == shakespeare.own(corpus).digest
    assert json.loads(spec.json())["model"]["corpus_sha256"] == spec.model.corpus_sha256
    put_texts(corpus, c="another ending")
    changed = spec_on()
    assert changed.hash() != spec.hash()
    assert changed.model.vocab == len(shakespeare.own(corpus).characters)


def test_default_corpus_is_shakespeare_and_needs_the_data_set(corpus, spec_on):
    ours = make_spec(task="text")
    assert (ours.model.vocab, ours.model.corpus, ours.model.corpus_sha256) == (84, None, None)
    assert text.dataset(ours.model) == "shakespeare"
    assert text.dataset(spec_on().model) is None


def test_a_spec_is_read_again_without_its_corpus(spec_on, corpus, tmp_path):
    """Tables and `fathom verify` do so wherever the run was copied."""
    spec = spec_on()
    written = spec.json()
    corpus.rename(tmp_path / "gone")
    assert parse_spec(json.loads(written), "spec.json") == spec


CHANGED = (
    "{0}: its .txt files do not match the config's corpus_sha256; restore them, "
    "or use the lines printed by: fathom corpus {0}"
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda corpus: put_texts(corpus, c="something else"), CHANGED),
        (lambda corpus: corpus.rename(corpus.with_name("gone")), "{0}: cannot be read (No such"),
    ],
    ids=["changed", "gone"],
)
def test_changed_corpus_is_refused(spec_on, corpus, connect_cpu, tmp_path, change, message):
    connect_cpu("torch")
    spec = spec_on()
    change(corpus)
    said = refusal(run_cell, spec, tmp_path / "run", Compute(device="cpu"), error=DataError)
    assert said.startswith(message.format(corpus))
    assert not (tmp_path / "run" / "manifest.json").exists()


def test_a_corpus_that_can_be_fetched_names_the_command(tmp_path):
    folder = tmp_path / "python-sources"
    sizes = {"length": 8, "width": 8, "heads": 1, "hidden": 8}
    model = text.Model(corpus=str(folder), vocab=5, corpus_sha256="0", **sizes)
    said = refusal(module.corpus_of, model, error=DataError)
    assert said == f"{folder}: is missing; run: fathom fetch python_sources"
    put_texts(folder, a="something else")
    assert refusal(module.corpus_of, model, error=DataError).endswith(
        "do not match the config's corpus_sha256; run: fathom fetch python_sources"
    )


def test_corpus_command_prints_the_settings_for_a_study(corpus, fathom):
    assert parse_yaml(fathom("corpus", corpus)[1], "printed") == named(corpus)


def test_planning_reads_no_text(corpus, monkeypatch):
    """A corpus needs all of its settings, and its files are not read."""
    monkeypatch.setattr(shakespeare, "own", None)
    monkeypatch.setattr(shakespeare, "load", None)
    settings = {"corpus": str(corpus), "vocab": 20, "corpus_sha256": "ab"}
    for missing in ("vocab", "corpus_sha256"):
        part = {name: value for name, value in settings.items() if name != missing}
        with pytest.raises(ConfigError, match=f"to print both, run: fathom corpus {corpus}"):
            make_spec(task="text", **part)
    model = make_spec(task="text", **settings).model
    assert (model.vocab, text.unavailable(model)) == (20, "")
    gone = model.model_copy(update={"corpus": f"{corpus}/nowhere"})
    assert text.unavailable(gone).endswith("nowhere is no folder")


# --- gates ---------------------------------------------------------------------------------------


def test_gates_have_no_noise_in_evaluations(spec_on, backend):
    noise = {"connection": "mhc_gated_static", "gate": {"noise": True, "start": 0.5}}
    spec = spec_on(steps=2, variant="mhc_gated_static", connection=noise, **TINY)
    *_, chunk = train(tasks.Problem(spec), backend)
    expected = by_loops(spec, chunk.trainer.parameters())
    assert chunk.rows[-1]["validation_loss"] == pytest.approx(expected, rel=1e-6)
