"""Checkpoints: a killed training resumes from the last one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save

from fathom.metrics import Row
from fathom.runs.folder import PARTIAL, decode_row, encode_row
from fathom.system.files import write_bytes
from fathom.train import Resume


class Checkpoint:
    """The checkpoint of a training: the state of its trainer, and the rows up to it.

    Both are in one file, which is replaced atomically: they cannot disagree. `identity` stands for
    spec, code and device; a checkpoint with another identity is ignored.
    """

    def __init__(self, run: Path, identity: str) -> None:
        self.file = run / PARTIAL / "checkpoint.safetensors"
        self.identity = identity
        self.resumed_at: list[int] = []
        self.file.parent.mkdir(parents=True, exist_ok=True)

    def save(self, rows: Sequence[Row], state: dict[str, np.ndarray]) -> None:
        """Replace the checkpoint atomically."""
        metadata = {
            "identity": self.identity,
            "rows": "".join(encode_row(row) for row in rows),
            "resumed_at_steps": json.dumps(self.resumed_at),
        }
        metadata["sha256"] = _digest(metadata, state)
        write_bytes(self.file, save(state, metadata))

    def resume(self) -> Resume | None:
        """Where to resume; None if there is no valid checkpoint of this identity."""
        try:
            with safe_open(self.file, framework="numpy") as opened:
                metadata = opened.metadata() or {}
            state = load_file(self.file)
            recorded = metadata.pop("sha256")
            if recorded != _digest(metadata, state) or metadata["identity"] != self.identity:
                return None
            rows = [decode_row(line) for line in metadata["rows"].splitlines()]
            resumed_at = json.loads(metadata["resumed_at_steps"])
        except (FileNotFoundError, SafetensorError, ValueError, KeyError):
            return None
        self.resumed_at = [*resumed_at, len(rows)]
        return Resume(state, rows)


def _digest(metadata: dict[str, str], state: dict[str, np.ndarray]) -> str:
    """A hash over the checkpoint: safetensors has none, and would not notice a flipped bit."""
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, value in sorted(state.items()):
        digest.update(f"{name} {value.dtype} {value.shape}".encode())
        digest.update(np.ascontiguousarray(value).data)
    return digest.hexdigest()
