"""Room: whether the disk of a broker has room for records, found out by what is written there.

The first write that finds none marks all replicas of the broker as offline (see `offline`): leaderships go to brokers
that have room, and nobody waits for this one. What stays, where it is the last of an ISR, is read on, and refuses
records. From then on the disk is looked at every second, and when there is room for more than the reserve, replicas are
not offline any more. A disk that is full again soon after that (a quota that nobody tells of, say) is looked at less
and less often, so that leaderships do not go to and fro. One line of the log per change. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
from pathlib import Path
from typing import NamedTuple

from logstore.env import Env
from logstore.errors import DiskFullError, StorageError
from logstore.store.disk_reserve import DiskReserve
from replication.replica.storage.offline import OfflineReplicas

logger = logging.getLogger(__name__)

DISK_FULL = "disk full"
LOOK_S = 1.0
LOOK_MAX_S = 60.0
RELAPSE_MS = 30_000
# To be free beside the reserve: a hundredth of the disk, but no more than this.
FREE_BYTES_MAX = 1024 * 1024 * 1024
_REPLICA = re.compile(r".+-\d+(\..+\.deleted)?")


class Usage(NamedTuple):
    """What the files of the replicas take up, and what the disk has."""

    log_bytes: int
    free_bytes: int
    total_bytes: int


class Room:
    """See the module."""

    def __init__(self, path: Path, reserve: DiskReserve, offline: OfflineReplicas, env: Env) -> None:
        self._path = path
        self._reserve = reserve
        self._offline = offline
        self._env = env
        self._watch: asyncio.Task[None] | None = None
        self._look_s = LOOK_S
        self._cleared_ms: int | None = None

    @property
    def is_full(self) -> bool:
        """Is there no room, as far as is known?"""
        return self._watch is not None

    async def begin(self) -> None:
        """Look whether a broker that starts has room at all."""
        try:
            await asyncio.to_thread(self._reserve.keep)
        except DiskFullError:
            self.is_missing()

    def is_missing(self) -> None:
        """A write found the disk full."""
        if self._watch is None:
            self._offline.mark_all(DISK_FULL)
            now_ms, cleared_ms = self._env.clock.monotonic_ms(), self._cleared_ms
            is_relapse = cleared_ms is not None and now_ms - cleared_ms < RELAPSE_MS
            self._look_s = min(2 * self._look_s, LOOK_MAX_S) if is_relapse else LOOK_S
            self._watch = asyncio.get_running_loop().create_task(self._until_there_is_room())

    def close(self) -> None:
        """Look no more."""
        if self._watch is not None:
            self._watch.cancel()

    async def _until_there_is_room(self) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            if await asyncio.to_thread(self._has_room):
                break
        self._watch, self._cleared_ms = None, self._env.clock.monotonic_ms()
        if self._offline.everything == DISK_FULL:
            self._offline.clear_all()

    def _has_room(self) -> bool:
        """Is the reserve there, or can it be put back, and is something left beside it?"""
        try:
            self._reserve.keep()
            usage = shutil.disk_usage(self._path)
        except (StorageError, OSError):
            return False
        return usage.free >= min(usage.total // 100, FREE_BYTES_MAX)

    def usage(self) -> Usage:
        """Look at every file of every replica: not for the event loop."""
        usage, files = shutil.disk_usage(self._path), self._env.files
        logs = [
            f"{self._path}/{directory}/{name}"
            for directory in files.list(self._path).names
            if _REPLICA.fullmatch(directory)
            for name in self._names(directory)
            if name.endswith(".log")
        ]
        found = [files.stat(log) for log in logs]
        return Usage(sum(stat.size for stat in found if stat is not None), usage.free, usage.total)

    def _names(self, directory: str) -> tuple[str, ...]:
        try:
            return self._env.files.list(f"{self._path}/{directory}").names
        except FileNotFoundError:  # it was deleted meanwhile
            return ()
