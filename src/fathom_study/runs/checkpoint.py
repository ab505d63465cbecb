"""Checkpoints: a killed training resumes from the last one."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save

from fathom.system.errors import say
from fathom.system.text import one_line
from fathom_study.config import Compute
from fathom_study.metrics.steps import Row
from fathom_study.runs.folder import PARTIAL, decode_row, encode_row
from fathom_study.runs.validate import compare_specs
from fathom_study.system.files import write_bytes
from fathom_study.train import Resume

ROWS = ".rows"
"""The name of the rows so far, as UTF-8, among the arrays of the state."""


class Checkpoint:
    """The checkpoint of a training: the state of its trainer, and the rows up to it.

    Both are in one file, which is replaced atomically: they cannot disagree. `identity`: spec, code
    and everything else that affects digits; a checkpoint with another identity is ignored.
    """

    def __init__(self, run: Path, identity: Mapping[str, Any]) -> None:
        self.file = run / PARTIAL / "checkpoint.safetensors"
        self.identity = json.dumps(identity, sort_keys=True)
        self.resumed_at: list[int] = []
        self.saved_at, self.saved_rows = time.monotonic(), 0
        self.file.parent.mkdir(parents=True, exist_ok=True)

    def is_due(self, rows: int, compute: Compute) -> bool:
        """Whether `checkpoint_seconds` or `checkpoint_steps` have passed since the last one."""
        return time.monotonic() - self.saved_at >= compute.checkpoint_seconds or bool(
            compute.checkpoint_steps and rows - self.saved_rows >= compute.checkpoint_steps
        )

    def save(self, rows: Sequence[Row], state: dict[str, np.ndarray]) -> None:
        """Replace the checkpoint atomically."""
        metadata = {"identity": self.identity, "resumed_at_steps": json.dumps(self.resumed_at)}
        # As an array: metadata is limited to a hundred megabytes, which long trainings exceed.
        text = "".join(encode_row(row) for row in rows).encode()
        state = {**state, ROWS: np.frombuffer(text, np.uint8)}
        metadata["sha256"] = _digest(metadata, state)
        write_bytes(self.file, save(state, metadata))
        self.saved_at, self.saved_rows = time.monotonic(), len(rows)

    def resume(self) -> Resume | None:
        """The state to resume from; None, with a line that says why, if there is none to use."""
        try:
            with safe_open(self.file, framework="numpy") as opened:
                metadata = opened.metadata() or {}
            state = load_file(self.file)
            recorded = metadata.pop("sha256")
            if recorded != _digest(metadata, state):
                raise ValueError
            if metadata["identity"] != self.identity:
                before, now = json.loads(metadata["identity"]), json.loads(self.identity)
                return self._start_anew(compare_specs(before, now))
            text = state.pop(ROWS).tobytes().decode()
            rows = [decode_row(line) for line in text.splitlines()]
            resumed_at = json.loads(metadata["resumed_at_steps"])
        except FileNotFoundError:
            return None
        except (SafetensorError, ValueError, KeyError, AttributeError):
            return self._start_anew("it is damaged, or from another version of fathom")
        self.resumed_at = [*resumed_at, len(rows)]
        self.saved_rows = len(rows)
        return Resume(state, rows)

    def _start_anew(self, why: str) -> None:
        say(one_line(f"{self.file}: is not used, so the training starts again: {why}"))


def _digest(metadata: dict[str, str], state: dict[str, np.ndarray]) -> str:
    """A hash over the checkpoint: safetensors has none, and would not notice a flipped bit."""
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, value in sorted(state.items()):
        digest.update(f"{name} {value.dtype} {value.shape}".encode())
        digest.update(np.ascontiguousarray(value).data)
    return digest.hexdigest()
