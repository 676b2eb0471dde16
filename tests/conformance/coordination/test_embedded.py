"""What only the SQLite store has: its file, its lock, its disk."""

import asyncio
import sqlite3
import threading

import pytest

from logstore.env import Env, OsFiles
from logstore.errors import FailedStoreError
from replication.coordination.embedded import SqliteTree
from replication.coordination.table import connect
from replication.coordination.tree import ConnectionLossError, SessionEvent

from .room import Told, on_loop


class SlowDisk(OsFiles):
    """Its fsync of the log of changes takes as long as the test says, or fails."""

    def __init__(self):
        super().__init__()
        self.synced, self.go_on, self.fails = [], threading.Event(), False

    def fsync(self, path):
        if str(path).endswith("-wal"):
            self.synced.append(str(path))
            assert self.go_on.wait(30)
            if self.fails:
                raise FailedStoreError("fsync failed", path=str(path), reason="a test")
        super().fsync(path)


async def opened(room, disk=None, *, timeout_ms=1500):
    told = Told()
    env = Env() if disk is None else Env(files=disk)
    tree = await SqliteTree.open(room.path, on_session=told, session_timeout_ms=timeout_ms, env=env)
    tree.told = told
    return tree


@on_loop
async def test_who_waits_for_the_disk_keeps_nobody_else_waiting(sqlite_room):
    disk = SlowDisk()
    slow, other = await opened(sqlite_room, disk), await opened(sqlite_room)
    write = asyncio.create_task(slow.create("/slow", b"1"))
    while not disk.synced:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    for number in range(50):
        await other.create(f"/{number}")
    assert (await other.get("/slow")).data == b"1"
    begun_ms = slow.lease_end_ms
    while slow.lease_end_ms < begun_ms + 1500:  # noqa: ASYNC110  its own session neither
        await asyncio.sleep(0.01)
    assert not write.done(), "it said that it was done before it was on disk"
    disk.go_on.set()
    await write
    assert slow.told.all == other.told.all == []
    await slow.close()
    await other.close()


@on_loop
async def test_what_a_call_has_seen_is_on_disk_when_it_returns(sqlite_room):
    disk = SlowDisk()
    writer, reader = await opened(sqlite_room), await opened(sqlite_room, disk)
    disk.go_on.set()
    await writer.create("/a", b"1")
    before = len(disk.synced)
    assert (await reader.get("/a")).data == b"1"
    assert len(disk.synced) == before + 1
    await reader.get("/a")
    assert len(disk.synced) == before + 1, "nothing new was seen"
    await asyncio.gather(*(reader.create(f"/{number}") for number in range(100)))
    assert len(disk.synced) < before + 100, "one fsync is for all that wait"
    await writer.close()
    await reader.close()


@on_loop
async def test_a_write_whose_fsync_failed_is_not_said_to_be_done(sqlite_room):
    disk = SlowDisk()
    disk.fails = True
    tree = await opened(sqlite_room, disk)
    disk.go_on.set()
    with pytest.raises(ConnectionLossError, match="fsync failed"):
        await tree.create("/a")
    disk.fails = False
    await tree.told.until(lambda events: events == [SessionEvent.SUSPENDED, SessionEvent.CONNECTED])
    await tree.close()


def test_sqlite_syncs_no_commit_itself(tmp_path):
    """It would with the lock held, and a busy disk takes seconds: sessions ended by that."""
    db = connect(tmp_path / "c.db")
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert db.execute("PRAGMA synchronous").fetchone() == (1,)  # NORMAL
    db.close()
    assert sqlite3.connect(tmp_path / "c.db").execute("PRAGMA quick_check").fetchone() == ("ok",)
