"""Pools of trainings and replays: no process works for two backends."""

import os
import signal

from fathom_study.runs.pools import by_backend


def process_of(item):
    return os.getpid()


def killed_at_two(item):
    if item == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def test_each_backend_has_processes_of_its_own():
    done = dict(by_backend(process_of, [("torch", 1), ("mlx", 2), ("torch", 3)], jobs=1))
    assert done[1] == done[3]
    assert len({done[1], done[2], os.getpid()}) == 3


def test_one_job_of_one_backend_needs_no_process():
    assert dict(by_backend(process_of, [("mlx", 1), ("mlx", 2)], jobs=1)) == {
        1: os.getpid(),
        2: os.getpid(),
    }


def test_the_items_of_a_killed_process_have_no_result():
    items = [("torch", 1), ("mlx", 2)]
    assert dict(by_backend(killed_at_two, items, jobs=1)) == {1: 1, 2: None}
