"""Room: whether the disk of a broker is full, noticed by writes to it.

The first write that finds the disk full marks all replicas of the broker as offline (see `offline`): leadership moves
to brokers with room. A replica that is the last of its ISR is still read, and refuses records. From then on the disk is
checked every second; when more than the reserve is free, the marks are cleared. After a relapse it is checked less and
less often, so that leadership does not go to and fro. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from logstore.env import Env
from logstore.errors import DiskFullError, StorageError
from logstore.store.disk_reserve import DiskReserve
from replication.replica.storage.offline import OfflineReplicas

DISK_FULL = "disk full"
LOOK_S = 1.0
LOOK_MAX_S = 60.0
RELAPSE_MS = 30_000
# A hundredth of the disk, but at most this, must be free beside the reserve.
FREE_BYTES_MAX = 1024 * 1024 * 1024
_REPLICA = re.compile(r".+-\d+(\..+\.deleted)?")


class Usage(NamedTuple):
    """The bytes of each replica's log, by the name of its directory, and those of the disk."""

    replica_bytes: Mapping[str, int]
    free_bytes: int
    total_bytes: int

    @property
    def log_bytes(self) -> int:
        return sum(self.replica_bytes.values())


class Room:
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
        return self._watch is not None

    async def begin(self) -> None:
        """Check whether a starting broker has room at all."""
        try:
            await asyncio.to_thread(self._reserve.keep)
        except DiskFullError:
            self.is_missing()

    def is_missing(self) -> None:
        if self._watch is None:
            self._offline.mark_all(DISK_FULL)
            now_ms, cleared_ms = self._env.clock.monotonic_ms(), self._cleared_ms
            is_relapse = cleared_ms is not None and now_ms - cleared_ms < RELAPSE_MS
            self._look_s = min(2 * self._look_s, LOOK_MAX_S) if is_relapse else LOOK_S
            self._watch = asyncio.get_running_loop().create_task(self._until_there_is_room())

    def close(self) -> None:
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
        """Return whether the reserve exists or can be restored, with more free beside it."""
        try:
            self._reserve.keep()
            usage = shutil.disk_usage(self._path)
        except (StorageError, OSError):
            return False
        return usage.free >= min(usage.total // 100, FREE_BYTES_MAX)

    def usage(self) -> Usage:
        """Sum up every file of every replica: not for the event loop."""
        usage, found = shutil.disk_usage(self._path), self._env.files.list(self._path).names
        replicas = {name: self._bytes_of(name) for name in found if _REPLICA.fullmatch(name)}
        return Usage(replicas, usage.free, usage.total)

    def _bytes_of(self, directory: str) -> int:
        path, files = f"{self._path}/{directory}", self._env.files
        try:
            logs = [name for name in files.list(path).names if name.endswith(".log")]
        except FileNotFoundError:  # it was just deleted
            return 0
        return sum(stat.size for name in logs if (stat := files.stat(f"{path}/{name}")) is not None)
