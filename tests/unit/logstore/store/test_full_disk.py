"""A full disk (S9, S10, R20's lesson): appends are refused, all else goes on, and space brings the store back."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import logstore
from logstore import DiskFullError, LogStore
from logstore.env import Env, OsFiles
from logstore.store.disk_reserve import RESERVE, RESERVE_BYTES
from tests.support.disk import Crash, Disk, StillClock
from tests.unit.logstore.store.conftest import rows

CLEAN = ".kafka_cleanshutdown"
POINTS = "recovery-point-offset-checkpoint"
ROOT = Path("/store")


def values(store: LogStore, topic: str = "t") -> list[bytes]:
    return store.read(topic, partition=0).read_all()["value"].to_pylist()


def simulated(disk: Disk) -> LogStore:
    return logstore.open(ROOT, env=Env(StillClock(), disk))


@pytest.fixture
def disk() -> Disk:
    disk = Disk()
    disk.mkdir(ROOT)
    return disk


@contextmanager
def small_file_system(path: Path, size: str) -> Iterator[None]:
    """A file system of this size at `path`: a real one, which needs the right to mount."""
    path.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    if subprocess.run(mount, stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("no right to mount a small file system here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(path: Path) -> None:
    """Write to `path` until there is not a byte of room."""
    with path.open("wb", buffering=0) as file:
        for block in (65536, 4096, 1):
            try:
                while file.write(b"x" * block) == block:
                    pass
            except OSError:
                continue


def test_s9_on_a_real_full_file_system_all_but_appends_goes_on(tmp_path: Path) -> None:
    root, other = tmp_path / "disk" / "store", tmp_path / "disk" / "other"
    with small_file_system(tmp_path / "disk", "12m"):
        with logstore.open(root, env=Env(files=OsFiles())) as store:
            store.create_topic("t")
            store.create_topic("u", config={"file.delete.delay.ms": 0})
            store.append("t", rows([b"a"]), flush=True)
            store.append("u", rows([b"u" * 500_000]))
            store.append("t", rows([b"b"]))
            fill(other)
            with pytest.raises(DiskFullError):
                store.append("t", rows([b"c" * 9_000]))
            assert values(store) == [b"a", b"b"]
            store.flush()
            assert (root / POINTS).read_text().startswith("0\n3\nt 0 2\nu 0 1\n")
            with pytest.raises(DiskFullError, match="free some space"):
                store.create_topic("v")
            store.delete_topic("u")
            assert not (root / "u-0").exists()
            fill(other.with_name("more"))
        assert (root / CLEAN).exists()
        (root / CLEAN).unlink()
        assert [report.log_end_offset for report in logstore.recover(root)] == [2]
        with logstore.open(root, env=Env(files=OsFiles())) as store:
            with pytest.raises(DiskFullError):
                store.append("t", rows([b"c"]))
            other.unlink()
            assert store.append("t", rows([b"c"]))[0].start == 2
            assert values(store) == [b"a", b"b", b"c"]
        assert (root / RESERVE).stat().st_blocks * 512 >= RESERVE_BYTES


@pytest.mark.parametrize("room", [*range(0, 400, 23), 2_000])
def test_s9_whatever_room_is_left_what_was_acknowledged_stays_and_the_end_is_clean(disk: Disk, room: int) -> None:
    acknowledged = []
    store = simulated(disk)
    store.create_topic("t")
    disk.free_bytes = room
    for number in range(50):
        try:
            store.append("t", rows([b"%d" % number]), flush=True)
        except DiskFullError:
            break
        acknowledged.append(b"%d" % number)
    assert len(acknowledged) < 50
    disk.free_bytes = 0
    assert values(store) == acknowledged
    store.close()
    assert disk.stat(ROOT / CLEAN) is not None
    with simulated(disk) as again:
        assert values(again) == acknowledged
        disk.free_bytes = None
        again.append("t", rows([b"more"]))
        assert values(again) == [*acknowledged, b"more"]


def test_while_the_reserve_is_given_back_nobody_appends_and_the_first_append_with_room_restores_it(
    disk: Disk,
) -> None:
    with simulated(disk) as store, simulated(disk) as other:
        store.create_topic("t")
        store.append("t", rows([b"a"]))
        disk.free_bytes = 0
        store.flush()
        assert disk.stat(ROOT / RESERVE) is None
        assert disk.free_bytes > RESERVE_BYTES - 1_000
        for each in (store, other):
            with pytest.raises(DiskFullError, match="reserve"):
                each.append("t", rows([b"b"]))
            with pytest.raises(DiskFullError, match="reserve"):
                each.alter_topic("t", partitions=2)
        disk.free_bytes += 10_000
        other.append("t", rows([b"b"]))
        assert disk.stat(ROOT / RESERVE).size == RESERVE_BYTES
        assert disk.free_bytes < 10_000


def test_s9_recovery_after_a_crash_on_a_full_disk_mends_with_what_the_reserve_gives(disk: Disk) -> None:
    store = simulated(disk)
    store.create_topic("t", config={"index.interval.bytes": 10, "max.message.bytes": 100})
    for number in range(20):
        store.append("t", rows([b"%d" % number]))
    disk = disk.after_crash(Crash.KILLED)
    for name in list(disk.names):
        if name.endswith("index"):
            disk.unlink(name)
    log = next(name for name in disk.names if name.endswith(".log"))
    disk.truncate(log, len(disk.names[log].data) - 5)
    disk.free_bytes = 0
    [report] = logstore.recover(ROOT, env=Env(StillClock(), disk))
    assert (report.log_end_offset, len(report.rebuilt)) == (19, 1)
    assert disk.stat(ROOT / RESERVE) is None
    assert disk.stat(ROOT / CLEAN) is not None


def test_a_reserve_that_is_too_short_is_made_whole(disk: Disk) -> None:
    with simulated(disk) as store:
        store.create_topic("t")
        disk.truncate(ROOT / RESERVE, 10)
        store.append("t", rows([b"a"]))
    assert disk.stat(ROOT / RESERVE).size == RESERVE_BYTES


def test_s9_retention_deleted_records_and_aborts_go_on_on_a_full_disk(disk: Disk) -> None:
    env = Env(StillClock(), disk)
    store = logstore.open(ROOT, env=env)
    store.create_topic("t", config={"retention.ms": 10_000_000, "segment.bytes": 300, "file.delete.delay.ms": 0})
    for number in range(12):
        store.append("t", rows([b"%d" % number * 20]), flush=True)
    transaction = store.transaction()
    store.append("t", rows([b"open"]), transaction=transaction)
    disk.free_bytes = 0
    with pytest.raises(DiskFullError):
        store.append("t", rows([b"more"]))
    transaction.abort()
    assert store.transactions.state().attempts == {}
    assert store.offsets("t")[0].end == 14
    left = store.delete_records("t", {0: 3})
    assert (left[0].start, left[0].end) == (3, 14)
    env.clock.time_ms += 20_000_000
    gone = store.expire("t", 0)
    assert gone.removed_bytes > 0
    assert store.offsets("t")[0].start == gone.log_start_after > 3
    store.close()
    assert disk.stat(ROOT / CLEAN) is not None
    disk.free_bytes = None
    with logstore.open(ROOT, env=env) as again:
        again.append("t", rows([b"back"]))
        assert values(again)[-1] == b"back"
