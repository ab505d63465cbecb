"""Replay a sample of the imported runs: of each group one seed for three steps.

    python replay_sample.py BACKEND CONFIG…

CI calls it in the place of the workflow's replay, which also repeats step 0 of every other seed and
takes twice as long. The receipts are those of whole groups, since the tables say what `make
reference` has repeated; they stay in the folder that CI renders in.
"""

import json
import sys
import zlib
from collections import defaultdict
from pathlib import Path

from fathom.config import Config, load_config
from fathom.runs.receipts import Replay, receipt_file, write_receipt
from fathom.runs.replay import replay_groups
from fathom.runs.run import Run, group_of, group_runs, manifests_of
from fathom.runs.validate import imported_runs


def replay_one_of(config: Config, group: list[Run]) -> Replay:
    """The outcome of one seed of a group, another in other groups, as that of them all."""
    sampled = group[zlib.crc32(group_of(group[0].cell).encode()) % len(group)]
    (replay,) = replay_groups(config, [sampled], config.compute)
    if replay.outcome != "agrees":
        print(f"{sampled.folder}: {replay.explanation}")
    first = group[0].cell.path()
    return replay.model_copy(update={"runs": manifests_of(group), "repeated": first})


def main(backend: str, *files: str) -> None:
    """Write the receipts of a backend, and the resolved config that they must be newer than."""
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
        file = receipt_file(config, study, backend)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_receipt(file, of_study)


if __name__ == "__main__":
    main(*sys.argv[1:])
