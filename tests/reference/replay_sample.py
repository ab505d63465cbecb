"""Replay a sample of the imported runs, for three steps each.

    python replay_sample.py BACKEND CONFIG…

The sample has a run of each scheme on each task, and a run of each other combination of a task's
settings. If an edit of the code changes a run, it also changes the sampled run of the same scheme
or of the same settings. Sizes, seeds and learning rates are inputs of the same code, so the sample
has the smallest network with enough layers. CI calls this instead of `fathom replay`, which repeats
three steps of one run per group and step 0 of its other seeds, and takes ten times as long. The
replays are for whole groups, because the tables report those of `make reference`; they stay in the
folder in which CI renders.
"""

import sys
from pathlib import Path

from fathom_study.config import Config, Spec, load_config
from fathom_study.runs.replay import replay_group
from fathom_study.runs.run import Run, group_runs
from fathom_study.runs.validate import GroupReplay, imported_runs, write_replays

SIZES = {"length", "width", "heads", "hidden", "vocab", "nodes", "held_out", "validation_windows"}
NAMES = {"study": True, "depth": True, "variant": True, "seed": True, "steps": True}
SCHEME = {"task", "backend", "connection"}
SETTINGS = {
    **NAMES,
    "connection": True,
    "batch_size": True,
    "evaluate_every": True,
    "optimizer": {"lr"},
    "model": SIZES,
}
"""SCHEME: fields that name a run's scheme. SETTINGS: fields excluded from its other settings."""

ENOUGH = 4
"""Minimum depth at which a network has every connection between layers."""


def keys_of(spec: Spec, run: Run) -> tuple[tuple[str, ...], ...]:
    """Keys that a run shares with the sampled run of its scheme and of its settings."""
    device = run.manifest.device.kind
    return (
        ("scheme", device, spec.model_dump_json(include=SCHEME)),
        ("settings", device, spec.model_dump_json(exclude=SETTINGS)),
    )


def cost_of(spec: Spec) -> tuple[bool, int, str]:
    """Sort key of runs: enough layers first, then the smallest depth times batch size."""
    return spec.depth < ENOUGH, spec.depth * spec.batch_size, spec.json()


def sample_of(config: Config, runs: list[Run]) -> dict[tuple[str, ...], Run]:
    """The sampled run of every scheme and of all settings, by key."""
    sample: dict[tuple[str, ...], Run] = {}
    for run in sorted(runs, key=lambda run: cost_of(config.spec(run.cell))):
        missing = [key for key in keys_of(config.spec(run.cell), run) if key not in sample]
        sample.update(dict.fromkeys(missing, run))
    return sample


def main(backend: str, *files: str) -> None:
    """Write the replays of a backend's runs, each that of the sampled run like it."""
    config = load_config(list(map(Path, files)), {"train": False})
    runs = [run for run in imported_runs(config) if run.replay and run.cell.backend == backend]
    if not runs:
        sys.exit(f"{backend}: no imported run to replay")
    sample = sample_of(config, runs)
    outcomes = {}
    for folder, run in {run.folder: run for run in sample.values()}.items():
        outcomes[folder] = replay_group(config, config.compute, [run])
        if outcomes[folder].outcome != "agrees":
            print(f"{folder}: {outcomes[folder].explanation}")
    print(f"{backend}: {len(outcomes)} of {len(runs)} runs replayed")
    for group in group_runs(runs):
        keys = keys_of(config.spec(group[0].cell), group[0])
        found = [outcomes[sample[key].folder] for key in keys]
        shared = next((replay for replay in found if replay.outcome != "agrees"), found[0])
        write_replays(config, GroupReplay(group, shared.replays * len(group)))


if __name__ == "__main__":
    main(*sys.argv[1:])
