"""The room of a disk: full is said once; there is room again when there is more than the reserve."""

import asyncio
from collections import namedtuple

import pytest

from logstore.env import Env, OsFiles
from logstore.errors import DiskFullError
from logstore.store.disk_reserve import DiskReserve
from replication.replica.storage import room as rooms
from replication.replica.storage.offline import OfflineReplicas
from replication.replica.storage.room import DISK_FULL, Room
from tests.support.waits import stays

Usage = namedtuple("Usage", "total used free")
MiB = 1024 * 1024


class FullFiles(OsFiles):
    """Nothing can be given room, while it is full."""

    is_full = False

    def allocate(self, path, size):
        if self.is_full:
            raise DiskFullError(f"{path}: full", path=str(path), reason="full")
        super().allocate(path, size)


class Site:
    def __init__(self, path, monkeypatch):
        monkeypatch.setattr(rooms, "LOOK_S", 0.01)
        monkeypatch.setattr(rooms.shutil, "disk_usage", lambda where: Usage(100 * MiB, 0, self.free_bytes))
        self.path, self.files, self.free_bytes = path, FullFiles(), 50 * MiB
        self.env = Env(files=self.files)
        self.offline = OfflineReplicas(1)
        self.room = Room(path, DiskReserve(self.env, path), self.offline, self.env)

    async def until_room(self):
        async with asyncio.timeout(10):
            while self.room.is_full:  # noqa: ASYNC110  nobody tells
                await asyncio.sleep(0.002)


@pytest.fixture
def site(tmp_path, monkeypatch):
    return Site(tmp_path, monkeypatch)


def test_it_is_said_once_and_over_when_there_is_more_than_the_reserve(site, caplog):
    async def check():
        site.free_bytes = MiB - 1  # a hundredth of the disk is to be free
        for _ in range(3):
            site.room.is_missing()
        await stays(lambda: (site.offline.everything, site.room.is_full) == (DISK_FULL, True), 0.1)
        site.free_bytes = MiB
        await site.until_room()
        assert site.offline.everything is None

    asyncio.run(check())
    assert caplog.text.count("are offline: disk full") == 1


def test_without_the_reserve_there_is_no_room(site):
    async def check():
        site.files.is_full = True
        site.room.is_missing()
        await stays(lambda: site.room.is_full, 0.1)
        site.files.is_full = False
        await site.until_room()

    asyncio.run(check())


def test_a_broker_that_starts_on_a_full_disk_says_so_before_it_registers(site):
    async def check():
        await site.room.begin()
        assert site.offline.said() is None
        site.files.is_full = True
        (site.path / ".reserve").unlink()
        await site.room.begin()
        assert site.offline.said().everything == DISK_FULL
        site.room.close()

    asyncio.run(check())


def test_after_a_relapse_it_looks_less_and_less_often(site):
    async def check():
        pauses = []
        for _ in range(5):
            site.room.is_missing()
            pauses.append(site.room._look_s)
            await site.until_room()
        assert pauses == [0.01, 0.02, 0.04, 0.08, 0.16]

    asyncio.run(check())


def test_replicas_that_are_offline_for_another_reason_stay_so(site):
    async def check():
        site.room.is_missing()
        site.offline.mark_all("the disk is damaged")
        await site.until_room()
        assert site.offline.everything == "the disk is damaged"

    asyncio.run(check())


def test_the_logs_on_it_are_counted(site):
    directory = site.path / "orders-0"
    directory.mkdir()
    (directory / "00000000000000000000.log").write_bytes(b"x" * 100)
    (directory / "00000000000000000000.index").write_bytes(b"x" * 7)
    (site.path / "broker").mkdir()
    (site.path / "broker" / "server.log").write_bytes(b"x" * 9)
    assert site.room.usage() == ({"orders-0": 100}, 50 * MiB, 100 * MiB)
