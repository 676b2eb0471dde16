"""Env: the clock and the files of a store, as arguments, so that tests can move time and break disks.

Only this package touches `time`, file descriptors, fsync and flock. From the ground up: `failures`, the system's errors
as ours; `machine`, the calls that not every Unix has; `locks`, on files, and what a fork does to locks; `descriptors`,
a pool of open files; `files`, which reads, writes and renames. It promises:

- `OsFiles.write` writes everything or raises; what was written of it then is for the caller to cut.
- Errors of the system become StorageError here, once: DiskFullError when there is no room, FailedStoreError when an
  fsync fails. A missing file is an answer and no failure: FileNotFoundError passes.
- `OsFiles` keeps a bounded number of descriptors open, whatever the number of partitions. A descriptor that leaves the
  pool is closed when its last user lets go, so that no other thread reads from a closed or reused one.
- After a fork the child shares no lock with its parent: see `reset_after_fork`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random, SystemRandom

from logstore.env import machine
from logstore.env.failures import StrPath
from logstore.env.files import (
    OPEN_FILES_MAX,
    SETTLED_NS,
    FileStat,
    Listing,
    OsFiles,
    locked,
    network_file_system,
    wait_lock,
)
from logstore.env.locks import Lock, reset_after_fork
from logstore.env.machine import boot_id
from logstore.worker import Worker

__all__ = [
    "OPEN_FILES_MAX",
    "SETTLED_NS",
    "SYSTEM",
    "Clock",
    "Env",
    "FileStat",
    "Listing",
    "Lock",
    "OsFiles",
    "StrPath",
    "boot_id",
    "locked",
    "machine",
    "network_file_system",
    "reset_after_fork",
    "wait_lock",
]


class Clock:
    """Wall time for records, monotonic time for waits."""

    def now_ms(self) -> int:
        """Milliseconds since 1970; may jump."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Milliseconds since some time; never goes back."""
        return time.monotonic_ns() // 1_000_000

    def monotonic_ns(self) -> int:
        """Nanoseconds since some time; never goes back. For short times of work."""
        return time.monotonic_ns()

    def sleep_ms(self, duration_ms: float) -> None:
        time.sleep(duration_ms / 1000)


@dataclass(frozen=True, slots=True)
class Env:
    clock: Clock = field(default_factory=Clock)
    files: OsFiles = field(default_factory=OsFiles)
    random: Random = field(default_factory=SystemRandom)  # forked children draw different numbers
    worker: Callable[[Callable[[], None], str, float | None], Worker] = Worker


SYSTEM = Env()
