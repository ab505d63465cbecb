"""Hashes of the specs of every cell of the shipped configs, kept in spec_hashes.csv.

    python tests/training/spec_hashes.py    writes that file, after an intended change of specs

A run whose manifest has another hash than the spec of its cell has to be trained again.
"""

from pathlib import Path

from fathom_study.config import load_config

PROJECT = Path(__file__).parents[2]
FILE = Path(__file__).with_suffix(".csv")
PRESETS = {"default": (), "reference": ("reference",), "paper": ("paper",)}
"""Presets that are laid over config.yaml, by the name of the config."""


def spec_hashes() -> dict[str, str]:
    """Today's hash by config and cell, such as 'default/depth-mlx/12L/mhc/torch/seed0'."""
    result = {}
    for name, presets in PRESETS.items():
        overlays = [PROJECT / f"workflow/presets/{preset}.yaml" for preset in presets]
        config = load_config([PROJECT / "config.yaml", *overlays])
        result |= {f"{name}/{cell}": config.spec(cell).hash() for cell in config.cells()}
    return result


def read_hashes() -> dict[str, str]:
    """The kept hashes, by config and cell."""
    rows = FILE.read_text(encoding="utf-8").splitlines()[1:]
    return dict(row.split(",") for row in rows)


if __name__ == "__main__":
    rows = (f"{cell},{digits}\n" for cell, digits in spec_hashes().items())
    FILE.write_text("".join(["cell,spec_hash\n", *rows]), encoding="utf-8")
