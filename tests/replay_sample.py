"""Replay a sample of the imported runs: one of those that are alike, for three steps.

    python replay_sample.py BACKEND CONFIG…

Runs are alike if they differ in depth, seed, steps and learning rate alone: what an edit of the
code changes in one of them, it changes in the others. CI calls this in the place of the workflow's
replay, which repeats three steps of a run of every group and step 0 of its other seeds, and takes
five times as long. The verdicts are those of whole groups, since the tables say what `make
reference` has repeated; they stay in the folder that CI renders in.
"""

import json
import sys
import zlib
from collections import defaultdict
from pathlib import Path

from fathom.config import Config, load_config
from fathom.runs.replay import replay_groups
from fathom.runs.run import Run, group_of, group_runs
from fathom.runs.validate import imported_runs
from fathom.runs.verdict import GroupReplay, replay_file
from fathom.system.files import write_text

NOT_COMPARED = {"depth": True, "seed": True, "variant": True, "steps": True, "optimizer": {"lr"}}
"""Fields of a spec in which runs that are alike may differ; `variant` names the others."""


def replay_one_of(config: Config, groups: list[list[Run]]) -> list[GroupReplay]:
    """The outcome of one run of these groups, another in other studies, as that of them all."""
    runs = [run for group in groups for run in group]
    sampled = runs[zlib.crc32(group_of(runs[0].cell).encode()) % len(runs)]
    (replay,) = replay_groups(config, [sampled], config.compute)
    if replay.outcome != "agrees":
        print(f"{sampled.folder}: {replay.explanation}")
    return [GroupReplay(group, replay.replays * len(group)) for group in groups]


def main(backend: str, *files: str) -> None:
    """Write a backend's verdicts, and the resolved config, which must be older than the list."""
    config = load_config(list(map(Path, files)), {"train": False})
    kept = Path(config.report_folder) / "config.json"
    if not kept.exists():  # the backend before this one has written it
        kept.write_text(json.dumps(config.resolved(), indent=2) + "\n", encoding="utf-8")
    studies = [name for name, study in config.studies.items() if backend in study.backends]
    runs = imported_runs(config, studies)
    alike = defaultdict(list)
    for group in group_runs(run for run in runs if run.replay and run.cell.backend == backend):
        spec = config.spec(group[0].cell).model_dump_json(exclude=NOT_COMPARED)
        alike[spec].append(group)
    replays = defaultdict(list)
    for groups in alike.values():
        replays[groups[0][0].cell.study] += replay_one_of(config, groups)
    if not replays:
        sys.exit(f"{backend}: no imported run to replay")
    for study, of_study in replays.items():
        for group in of_study:
            group.write()
        file = replay_file(config, study, backend)
        write_text(file, "".join(f"{group}\n" for group in of_study))


if __name__ == "__main__":
    main(*sys.argv[1:])
