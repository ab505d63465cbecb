"""The text task: predict the next character of a corpus (docs/definitions/tasks.md)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from fathom.settings import Folder, Nullable, Positive, Registry
from fathom_study.batch import Batch
from fathom_study.datasets import DATASETS, DataError, folder_of, shakespeare
from fathom_study.metrics.runs import RunMetric, in_bits, last, smallest
from fathom_study.metrics.scores import Oracle, Score, Spread
from fathom_study.metrics.steps import POSITIVE, StepMetric, held_out_loss
from fathom_study.models.ngrams import bits_per_character
from fathom_study.models.transformer import Transformer, TransformerModel, sizes
from fathom_study.spec import Spec
from fathom_study.tasks import Presentation, Table, Task, Trained, Untrained, mean_loss_on

# Keeps the batches' random numbers apart from those of the initial parameters.
STREAM = 0x74657874

SHAKESPEARE_CHARACTERS = 84
"""Number of distinct characters in the works."""

EVALUATION_BATCH = 64
"""Windows in one forward pass of an evaluation."""


class Model(TransformerModel):
    """Sizes and parts of the transformer, and its text."""

    vocab: Positive = Field(
        SHAKESPEARE_CHARACTERS, description="V, distinct characters of the corpus"
    )
    corpus: Annotated[Folder | None, Nullable] = Field(
        None,
        description="folder of .txt files of your own, UTF-8, with its vocab and corpus_sha256 as "
        "`fathom corpus FOLDER` prints them; null: Shakespeare's works",
    )
    corpus_sha256: str | None = Field(
        None, description="hash of your files, so that a run names its text; checked in training"
    )
    validation_windows: Positive = Field(
        1024, description="held-out windows of length T in every evaluation, or all there are"
    )

    @model_validator(mode="after")
    def _names_its_corpus(self) -> Model:
        if self.corpus is None and self.corpus_sha256 is not None:
            raise ValueError("corpus_sha256 needs a corpus; remove it, or set corpus")
        if self.corpus is None and self.vocab != SHAKESPEARE_CHARACTERS:
            raise ValueError(_another_vocab(self.vocab, SHAKESPEARE_CHARACTERS))
        if self.corpus is not None and not {"vocab", "corpus_sha256"} <= self.model_fields_set:
            raise ValueError(
                "a corpus needs vocab and corpus_sha256; to print both, run: "
                f"fathom corpus {self.corpus}"
            )
        return self


def _another_vocab(given: object, actual: int) -> str:
    return f"vocab is {given}, but the corpus has {actual} distinct characters; leave vocab out"


def corpus_of(model: Model) -> shakespeare.Corpus:
    """The corpus. Raises DataError if it is missing, too short, or differs from the config's."""
    if model.corpus is None:
        corpus = shakespeare.load(folder_of("shakespeare"))
    else:
        corpus = _planned(model.corpus, model.corpus_sha256 or "")
    if len(corpus.characters) != model.vocab:
        raise DataError(
            f"{model.corpus}: vocab is {model.vocab}, but its files have "
            f"{len(corpus.characters)} distinct characters; use that number"
        )
    shorter = min(len(corpus.training), len(corpus.validation))
    if shorter <= model.length:
        raise DataError(
            f"{model.corpus or 'the corpus'}: a part of {shorter} characters is too short for "
            f"length {model.length}; make length smaller, or the corpus longer"
        )
    return corpus


@lru_cache(maxsize=2)
def _planned(folder: str, digest: str) -> shakespeare.Corpus:
    name = Path(folder).name.replace("-", "_")
    fetch = f"run: fathom fetch {name}" if name in DATASETS else ""
    if fetch and not Path(folder).is_dir():
        raise DataError(f"{folder}: is missing; {fetch}")
    corpus = shakespeare.own(Path(folder))
    if corpus.digest != digest:
        fix = f"restore them, or use the lines printed by: fathom corpus {folder}"
        raise DataError(
            f"{folder}: its .txt files do not match the config's corpus_sha256; {fetch or fix}"
        )
    return corpus


def windows(text: np.ndarray, starts: np.ndarray, length: int) -> np.ndarray:
    """Windows [N, length + 1] from each start: `length` input characters and the one after them."""
    return text[starts[:, None] + np.arange(length + 1)].astype(np.int32)


def batch_of(chosen: np.ndarray) -> Batch:
    """Inputs and targets [B, T] of windows [B, T + 1]."""
    return Batch({"tokens": chosen[:, :-1]}, chosen[:, 1:])


def noise_batch(spec: Spec) -> Batch:
    """A batch of random characters."""
    shape = (spec.batch_size, spec.model.length + 1)
    rng = np.random.default_rng(7)
    return batch_of(rng.integers(0, spec.model.vocab, shape).astype(np.int32))


def held_out_starts(spec: Spec) -> np.ndarray:
    """Starts [N] of the windows of every evaluation, evenly spread over the held-out text."""
    last_start = len(corpus_of(spec.model).validation) - spec.model.length - 1
    count = min(spec.model.validation_windows, last_start + 1)
    return np.linspace(0, last_start, count).astype(int)


def held_out_windows(spec: Spec) -> np.ndarray:
    """The windows [N, T + 1] of every evaluation."""
    return windows(corpus_of(spec.model).validation, held_out_starts(spec), spec.model.length)


def held_out(spec: Spec) -> Iterator[Batch]:
    """These windows, in the batches of an evaluation."""
    return batch_of(held_out_windows(spec)).parts(EVALUATION_BATCH)


def tuning_windows(spec: Spec) -> np.ndarray:
    """Windows [N, T + 1] halfway between the evaluation windows and apart from them; N may be 0."""
    starts, length = held_out_starts(spec), spec.model.length
    middles = (starts[:-1] + starts[1:]) // 2
    is_apart = (middles - starts[:-1] > length) & (starts[1:] - middles > length)
    return windows(corpus_of(spec.model).validation, middles[is_apart], length)


# --- metrics ------------------------------------------------------------------------------------


def tuning_loss(trained: Trained) -> float | None:
    """Mean cross-entropy over the tuning windows, in nats per character; None without any."""
    between = tuning_windows(trained.problem.spec)
    if not len(between):
        return None
    return trained.mean_loss(batch_of(between).parts(EVALUATION_BATCH))


def characters_per_byte(trained: Trained) -> float:
    """Characters per UTF-8 byte of the held-out text; bits per character times this: per byte."""
    corpus = corpus_of(trained.problem.spec.model)
    return len(corpus.validation) / corpus.validation_bytes


def counted(order: int) -> Callable[[Untrained], float]:
    """Bits per character of the held-out text for an n-gram model counted on the training text."""
    return lambda untrained: _counted(untrained.problem.spec.model)[order - 1]


@lru_cache(maxsize=1)
def _counted(model: Model) -> tuple[float, ...]:
    corpus = corpus_of(model)
    return bits_per_character(corpus.training, corpus.validation, len(corpus.characters), order=3)


COUNTING = ("unigram", "bigram", "trigram")

STEP_METRICS = Registry(
    {
        **{
            f"{name}_bpc": StepMetric(
                f"{name} (bits per character)",
                f"bits per character of the held-out text for a {name} model, counted on the "
                "training text",
                counted(order),
                when="first step",
                bounds=POSITIVE,
                finite=True,
            )
            for order, name in enumerate(COUNTING, start=1)
        },
        "validation_loss": held_out_loss(
            "validation loss (nats)",
            "mean cross-entropy on the held-out windows, in nats",
            mean_loss_on(held_out),
            shown="validation {:.4g}",
        ),
        "tuning_loss": StepMetric(
            "tuning loss (nats)",
            "mean cross-entropy on held-out windows between those of the validation loss, in nats; "
            "rates are chosen by it",
            tuning_loss,
            when="last step",
            bounds=POSITIVE,
        ),
        "characters_per_byte": StepMetric(
            "characters per byte",
            "characters per byte of the held-out text in UTF-8",
            characters_per_byte,
            when="last step",
            bounds=POSITIVE,
            finite=True,
        ),
    }
)

RUN_METRICS = Registry(
    {
        "validation_bpc": RunMetric(
            "validation_loss",
            in_bits(last),
            "bits per character of the last evaluation",
            label="validation\n(bits per character)",
        ),
        "validation_bpc_min": RunMetric(
            "validation_loss",
            in_bits(smallest),
            "bits per character of the best evaluation",
            label="best validation\n(bits per character)",
        ),
        "validation_bpb": RunMetric(
            "validation_loss",
            in_bits(last),
            "bits per byte of the last evaluation",
            times="characters_per_byte",
            label="validation\n(bits per byte)",
        ),
    }
)


class Text(Task):
    """Predict the next character."""

    Model = Model
    Network = Transformer
    step_metrics = STEP_METRICS
    run_metrics = RUN_METRICS

    def dataset(self, model: Model) -> str | None:
        return "shakespeare" if model.corpus is None else None

    def unavailable(self, model: Model) -> str:
        if model.corpus is None or Path(model.corpus).is_dir():
            return ""
        return f"model.corpus: {model.corpus} is no folder"

    def batch(self, spec: Spec, step: int) -> Batch:
        """Windows at random places of the training text."""
        text, length = corpus_of(spec.model).training, spec.model.length
        rng = np.random.default_rng([spec.seed, STREAM, step])
        starts = rng.integers(0, len(text) - length, size=spec.batch_size)
        return batch_of(windows(text, starts, length))

    def classes(self, model: Model) -> int:
        return model.vocab


SCORE = Score(
    metric="validation_bpc",
    label="held-out loss",
    unit="bits per character",
    chance=lambda spec: math.log2(spec.model.vocab),
    oracle=Oracle("a trigram model", "trigram_bpc"),
    # 0.54 % of the loss, from 36 pairs of other sizes (`benchmarks/verdicts.py`).
    spread=Spread(df=2.5, sd=math.log10(1.0054)),
)

PRESENTATION = Presentation(
    unit="character",
    sizes=sizes,
    tables=(Table("Streams", ("stream_similarity_final",)),),
    figures=("validation_loss", "score", "stream_similarity"),
    compared=("validation_bpc",),
    line="bigram_bpc",  # the embedding and the head alone can learn it
)
