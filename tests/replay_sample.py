"""Replay a sample of the imported runs: of each group one seed for three steps.

    python replay_sample.py BACKEND CONFIG…

CI calls it in the place of the workflow's replay, which also repeats step 0 of every other seed and
takes twice as long. The verdicts are those of whole groups, since the tables say what `make
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


def replay_one_of(config: Config, group: list[Run]) -> GroupReplay:
    """The outcome of one seed of a group, another in other groups, as that of them all."""
    sampled = group[zlib.crc32(group_of(group[0].cell).encode()) % len(group)]
    (replay,) = replay_groups(config, [sampled], config.compute)
    if replay.outcome != "agrees":
        print(f"{sampled.folder}: {replay.explanation}")
    return GroupReplay(group, replay.replays * len(group))


def main(backend: str, *files: str) -> None:
    """Write a backend's verdicts, and the resolved config, which must be older than the list."""
    config = load_config(list(map(Path, files)), {"train": False})
    kept = Path(config.report_folder) / "config.json"
    if not kept.exists():  # the backend before this one has written it
        kept.write_text(json.dumps(config.resolved(), indent=2) + "\n", encoding="utf-8")
    studies = [name for name, study in config.studies.items() if backend in study.backends]
    runs = imported_runs(config, studies)
    replays = defaultdict(list)
    for group in group_runs(run for run in runs if run.replay and run.cell.backend == backend):
        replays[group[0].cell.study].append(replay_one_of(config, group))
    if not replays:
        sys.exit(f"{backend}: no imported run to replay")
    for study, of_study in replays.items():
        for group in of_study:
            group.write()
        file = replay_file(config, study, backend)
        write_text(file, "".join(f"{group}\n" for group in of_study))


if __name__ == "__main__":
    main(*sys.argv[1:])
