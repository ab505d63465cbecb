"""Pools of processes for trainings and replays.

No process loads two frameworks: MLX takes the BLAS that was loaded first, and so other last digits.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def by_backend(
    work: Callable[[Item], Result], items: Iterable[tuple[str, Item]], jobs: int
) -> Iterator[tuple[Item, Result | None]]:
    """Call `work` with each item, `jobs` at a time; yields the item and the result.

    `items`: (backend, item). One backend follows the other. With one job and one backend nothing
    leaves this process. The result is None if the process was killed.
    """
    backends: dict[str, list[Item]] = {}
    for backend, item in items:
        backends.setdefault(backend, []).append(item)
    for of_backend in backends.values():
        if jobs == len(backends) == 1:
            yield from ((item, work(item)) for item in of_backend)
        else:
            yield from _in_pool(work, of_backend, jobs)


def _in_pool(
    work: Callable[[Item], Result], items: Sequence[Item], jobs: int
) -> Iterator[tuple[Item, Result | None]]:
    # Spawned: a forked child would inherit the threads and locks of a framework.
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_end_with_parent)
    try:
        pending = {pool.submit(work, item): item for item in items}
        for future in as_completed(pending):
            try:
                yield pending[future], future.result()
            except BrokenProcessPool:
                # Killed by the system, perhaps out of memory. The pool also drops its other items.
                yield pending[future], None
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C, items that wait do not start


def _end_with_parent() -> None:
    """End this worker with its parent: otherwise it would write beside the next one.

    Ctrl-C ends it too: otherwise the pool's own loop would take the next item.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    def watch() -> None:
        wait([parent_process().sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
