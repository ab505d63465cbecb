"""Sample text from a trained network, one character at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fathom.config import Compute
from fathom.runs.folder import RunError
from fathom.runs.training import load_trained
from fathom.settings import ConfigError


def sample_text(
    folder: Path, compute: Compute, count: int, prompt: str, temperature: float, seed: int
) -> Iterator[str]:
    """Draw `count` characters that follow `prompt` from softmax(logits / temperature).

    Raises RunError for a run that cannot write text, ConfigError for a prompt with characters that
    the corpus lacks.
    """
    trained = load_trained(folder, compute)
    spec = trained.problem.spec
    alphabet = trained.problem.task.alphabet(spec.model)
    if alphabet is None:
        raise RunError(f"{folder}: task {spec.task} generates no text; use a run of a text task")
    strange = sorted(set(prompt) - set(alphabet))
    if strange:
        raise ConfigError(f"--prompt: the corpus has no {strange[0]!r}; use only its characters")
    rng = np.random.default_rng(seed)
    written = [alphabet.index(c) for c in prompt] or [int(rng.integers(len(alphabet)))]
    for _ in range(count):
        window = np.array([written[-spec.model.length :]], np.int32)
        logits = trained.logits({"tokens": window})
        scaled = logits[0, -1].astype(np.float64) / temperature
        if not np.isfinite(scaled).all():
            raise RunError(f"{folder}: its logits are not finite: the run diverged; use another")
        chances = np.exp(scaled - scaled.max())
        written.append(int(rng.choice(len(alphabet), p=chances / chances.sum())))
        yield alphabet[written[-1]]
