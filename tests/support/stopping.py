"""Stopping a process where it stands (SIGSTOP), so that the others can go on without it."""

import os
import signal
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path

STOPPED_WITHIN_S = 30
TRIES = 50


def stop(pid, coordination):
    """Stop a broker, but not while it holds the lock of the coordination file: nobody could decide anything.

    A signal takes a moment: until every thread stands still, one of them may yet take the lock.
    """
    for _ in range(TRIES):
        os.kill(pid, signal.SIGSTOP)
        _wait_until_stopped(pid)
        if _is_unlocked(coordination):
            return
        os.kill(pid, signal.SIGCONT)
        _is_unlocked(coordination)  # waits until it is: else it would stand where it stood
    raise AssertionError(f"process {pid} held the lock of {coordination} whenever it was stopped")


def _wait_until_stopped(pid):
    deadline = time.monotonic() + STOPPED_WITHIN_S
    while not all(_is_stopped(task) for task in Path(f"/proc/{pid}/task").iterdir()):
        assert time.monotonic() < deadline, f"process {pid} goes on"
        time.sleep(0.001)


def _is_stopped(task):
    """Does the thread stand still, or has it ended?"""
    with suppress(FileNotFoundError, ProcessLookupError):
        return (task / "stat").read_text().rpartition(")")[2].split()[0] == "T"
    return True


def _is_unlocked(coordination):
    kind, _, path = coordination.partition(":")
    if kind != "sqlite":
        return True
    with (
        closing(sqlite3.connect(path, timeout=1, isolation_level=None)) as file,
        suppress(sqlite3.OperationalError),
    ):
        file.execute("BEGIN IMMEDIATE")
        file.execute("ROLLBACK")
        return True
    return False
