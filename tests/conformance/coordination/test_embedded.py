"""Properties that only the SQLite store has: its file, its lock, its disk."""

import asyncio
import sqlite3
import threading

import pytest

from logstore.env import Env, OsFiles
from logstore.errors import FailedStoreError
from replication.coordination import cluster
from replication.coordination.sqlite_file import CopyPolicy, facts_of, users_of
from replication.coordination.sqlite_table import connect
from replication.coordination.sqlite_tree import WRITES_PER_TRANSACTION, SqliteTree
from replication.coordination.tree import (
    ConnectionLossError,
    CoordinationError,
    Create,
    SessionEvent,
    SessionExpiredError,
)
from tests.support.trees import Told, on_loop


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
    slow, other = [await opened(sqlite_room, each, timeout_ms=6000) for each in (disk, None)]
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
async def test_a_batch_of_many_transactions_does_not_wait_for_the_disk_in_between(sqlite_room):
    disk = SlowDisk()
    slow, other = await opened(sqlite_room, disk), await opened(sqlite_room)
    count = 3 * WRITES_PER_TRANSACTION
    write = asyncio.create_task(slow.write_batch([[Create(f"/{number}", b"1")] for number in range(count)]))
    while await other.get(f"/{count - 1}") is None:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert not write.done(), "it said that it was done before it was on disk"
    disk.go_on.set()
    assert [done[0].path for done in await write] == [f"/{number}" for number in range(count)]
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
    before = len(disk.synced)
    for _ in range(20):  # the first may come before it is noted how far all is synced
        await reader.get("/a")
    assert len(disk.synced) <= before + 1, "nothing new was seen"
    before = len(disk.synced)
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


# --------------------------------------------------------------------- its file


async def until(condition):
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@on_loop
async def test_a_file_that_is_removed_is_said_and_nobody_makes_another(sqlite_room, caplog):
    """Processes that have it open go on; and it is copied when they close it, with all that they wrote since."""
    copies = CopyPolicy("", 3_600_000)
    tree = await SqliteTree.open(sqlite_room.path, on_session=lambda event: None, copies=copies)
    other = await SqliteTree.open(sqlite_room.path, on_session=lambda event: None)
    await cluster.read_cluster_id(tree, "id")
    for path in sqlite_room.path.parent.glob("coordination.db*"):
        path.unlink()
    await until(lambda: "was removed while brokers have it open" in caplog.text)
    assert "pylog cluster recover-coordination" in caplog.text
    await other.create("/since", b"1")
    assert (await tree.get("/since")).data == b"1"
    with pytest.raises(CoordinationError, match="it is gone"):
        await SqliteTree.open(sqlite_room.path, on_session=lambda event: None, create=False)
    await other.close()
    await tree.close()
    copy = sqlite_room.path.with_name("coordination.db.copy")
    assert facts_of(copy).cluster_id == "id"
    with pytest.raises(CoordinationError, match=r"coordination.db.copy is a copy of it"):
        await SqliteTree.open(sqlite_room.path, on_session=lambda event: None)
    copy.rename(sqlite_room.path)
    again = await SqliteTree.open(sqlite_room.path, on_session=lambda event: None)
    assert (await again.get("/since")).data == b"1"
    await again.close()


@on_loop
async def test_a_session_is_over_when_another_file_is_in_the_place(sqlite_room, caplog):
    session = await sqlite_room.open()
    await session.tree.create("/a")
    for path in sqlite_room.path.parent.glob("coordination.db*"):
        path.rename(path.with_name(f"former{path.name}"))
    connect(sqlite_room.path).close()
    await session.event(SessionEvent.EXPIRED)
    assert "was replaced by another file" in caplog.text
    with pytest.raises(SessionExpiredError):
        await session.tree.get("/a")


@on_loop
async def test_copies_are_made_on_change_by_one_for_all_and_two_are_kept(sqlite_room, tmp_path):
    elsewhere = tmp_path / "another disk"
    copies = CopyPolicy(str(elsewhere), 100)
    trees = [
        await SqliteTree.open(sqlite_room.path, on_session=lambda event: None, session_timeout_ms=800, copies=copies)
        for _ in range(3)
    ]
    await cluster.read_cluster_id(trees[0], "id")
    places = [sqlite_room.path.parent, elsewhere]
    newest = [place / "coordination.db.copy" for place in places]

    def number_is(number):
        return all(copy.exists() and facts_of(copy) == ("id", number) for copy in newest)

    number = 5  # /cluster and /cluster/id, /pylog, the features and the registrations in it
    await until(lambda: number_is(number))
    made = [copy.stat().st_ino for copy in newest]
    beat = trees[0].lease_end_ms
    await until(lambda: trees[0].lease_end_ms > beat + 1000)  # nothing has changed meanwhile
    assert [copy.stat().st_ino for copy in newest] == made
    await trees[1].create("/a")
    await until(lambda: number_is(number + 1))
    formers = [copy.with_name("coordination.db.copy.1") for copy in newest]
    assert [facts_of(former).number for former in formers] == [number, number]
    assert not list(tmp_path.rglob("*.copying"))
    for tree in trees:
        await tree.close()


@on_loop
async def test_a_store_is_copied_once_a_cluster_uses_it_however_long_that_took(sqlite_room):
    copies = CopyPolicy("", 0)
    tree = await SqliteTree.open(sqlite_room.path, on_session=lambda event: None, copies=copies)
    await tree.create("/a")
    beat = tree.lease_end_ms
    await until(lambda: tree.lease_end_ms > beat)  # a copy was due, and there is nothing to name it by
    await cluster.read_cluster_id(tree, "id")
    await until(sqlite_room.path.with_name("coordination.db.copy").exists)
    await tree.close()


@on_loop
async def test_a_copy_of_another_cluster_is_not_written_over(sqlite_room, tmp_path, caplog):
    for name, place in (("one", sqlite_room.path), ("two", tmp_path / "two" / "coordination.db")):
        copies = CopyPolicy(str(tmp_path / "shared"), 100)
        policy = copies if name == "one" else CopyPolicy("", 100)
        tree = await SqliteTree.open(place, on_session=lambda event: None, session_timeout_ms=800, copies=policy)
        await cluster.read_cluster_id(tree, name)
        await until(place.with_name("coordination.db.copy").exists)
        await tree.close()
    copy = tmp_path / "shared" / "coordination.db.copy"
    tree = await SqliteTree.open(place, on_session=lambda event: None, session_timeout_ms=800, copies=copies)
    await tree.create("/a")
    await until(lambda: "give each cluster a directory of its own" in caplog.text)
    assert facts_of(copy).cluster_id == "one"
    await tree.close()


@on_loop
async def test_a_damaged_file_is_said_with_what_to_do(sqlite_room):
    sqlite_room.path.write_bytes(b"not a database" * 1000)
    with pytest.raises(CoordinationError, match=r"is damaged .*recover-coordination"):
        await SqliteTree.open(sqlite_room.path, on_session=lambda event: None)


@on_loop
async def test_who_holds_everybody_up_is_told_by_name(sqlite_room, caplog):
    """A process that was stopped with the lock: bounded for all others, and they say who it is."""
    session = await sqlite_room.open()
    process = sqlite_room.spawn("sit")
    await process.line()
    process.pause()
    pid = process._process.pid
    # (A process that was itself paused, on a busy machine, says that first.)
    await until(lambda: f"process {pid} (" in caplog.text)
    await session.event(SessionEvent.SUSPENDED)
    assert f"kill -CONT {pid} resumes it, kill -KILL {pid} ends it; has its lock" in caplog.text
    assert users_of(sqlite_room.path, Env())
    process.go_on()
    process.kill()
    await session.event(SessionEvent.CONNECTED)
