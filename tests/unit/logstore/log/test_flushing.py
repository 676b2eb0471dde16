"""Flushes: their durability, when a log flushes by itself, and changes of another one meanwhile."""

from pathlib import Path

import pytest

from logstore.env import Env
from logstore.errors import (
    StorageError,
)
from logstore.log.producers.tracker import ProducerTracker
from logstore.records.batch import Record, build
from tests.support.disk import Crash
from tests.support.partition import appended, batch, contents, make, reopen


def synced(disk) -> list[bytes]:
    return [inode.synced for path, inode in sorted(disk.names.items()) if path.endswith(".log")]


def test_flush_makes_everything_durable_and_moves_the_recovery_point(root, env, disk):
    log = make(root, env, segment_bytes=200)
    for _ in range(5):
        appended(log, batch(b"x" * 30))
    assert synced(disk) == [b""] * len(log.segments())
    assert (log.flush(), log.point.offset) == (5, 5)
    assert synced(disk) == [disk.read_all(segment.path) for segment in log.segments()]
    calls = disk.calls
    log.flush()
    assert disk.calls == calls  # nothing new: no fsync


def test_flush_takes_the_indexes_of_closed_segments_along(root, env, disk):
    log = make(root, env, index_interval_bytes=0)
    for number in range(4):
        appended(log, batch(b"a", timestamp=number))
        appended(log, batch(b"b", timestamp=number))
        log.flush()
        log.roll()
    appended(log, batch(b"c"))
    log.flush()
    for segment in log.segments()[:-1]:
        for suffix in (".index", ".timeindex"):
            inode = disk.names[str(Path(segment.path).with_suffix(suffix))]
            assert inode.synced == bytes(inode.data) != b""


def two_segments(root, env, disk):
    """A log whose names are on disk, with a record in each of two segments."""
    log = make(root, env, segment_bytes=100)
    for path in (*disk.names, str(log.directory), str(root)):
        disk.fsync(path)
    for value in (b"x", b"y"):
        appended(log, batch(value * 30))
    return log


def is_durable(log, disk):
    """A third segment begins where another one of its name was, and outlives a loss of power once it is flushed."""
    appended(log, batch(b"w" * 30))
    assert [segment.base_offset for segment in log.segments()] == [0, 1, 2]
    assert log.flush() == 3
    found = Env(files=disk.after_crash(Crash.LOST))
    values = [(0, b"x" * 30), (1, b"y" * 30), (2, b"w" * 30)]
    assert contents(reopen(log.directory, found, recovery_point=3)) == values


def test_a_segment_that_a_cut_removed_and_that_is_made_again_is_as_durable_as_before(root, env, disk):
    log = two_segments(root, env, disk)
    appended(log, batch(b"z" * 30))
    log.flush()
    log.truncate_to(1)
    appended(log, batch(b"y" * 30))
    is_durable(log, disk)


def test_a_segment_that_a_failed_append_removed_and_that_is_made_again_is_as_durable_as_before(
    root, env, disk, monkeypatch
):
    log = two_segments(root, env, disk)

    def fails(path, position, data, write=disk.write):
        if not path.endswith("2.log"):
            return write(path, position, data)
        log.flush()  # by another thread
        raise StorageError("Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(disk, "write", fails)
        with pytest.raises(StorageError):
            appended(log, batch(b"z" * 30))
    is_durable(log, disk)


def test_what_could_be_taken_back_of_a_failed_append_is_not_durable_under_its_old_name(root, env, disk, monkeypatch):
    """It made two segments, of which one went; then the disk failed again."""
    log = make(root, env, segment_bytes=100)
    for path in (*disk.names, str(log.directory), str(root)):
        disk.fsync(path)
    appended(log, batch(b"x" * 30))
    with monkeypatch.context() as patched:

        def fails(path, position, data, write=disk.write):
            if not path.endswith("2.log"):
                return write(path, position, data)
            log.flush()  # by another thread
            raise StorageError("Input/output error")

        def stays(path, unlink=disk.unlink):
            if path.endswith("1.log"):
                raise StorageError("Input/output error")
            unlink(path)

        patched.setattr(disk, "write", fails)
        patched.setattr(disk, "unlink", stays)
        with pytest.raises(StorageError):
            appended(log, batch(b"y" * 30) + batch(b"z" * 30))
    for value in (b"y", b"w"):
        appended(log, batch(value * 30))
    end = log.flush()
    found = Env(files=disk.after_crash(Crash.LOST))
    assert contents(reopen(log.directory, found, recovery_point=end)) == contents(log)
    assert f"{2:020d}.log" in found.files.list(log.directory).names


def test_a_flush_that_began_before_a_cut_does_not_know_the_names_behind_it(root, env, disk, monkeypatch):
    """A snapshot of producers went with the cut, and is made again: its name is not on disk yet."""
    log = make(root, env)
    for path in (*disk.names, str(log.directory), str(root)):
        disk.fsync(path)

    def append_with_snapshot():
        appended(log, build([Record(0, 1000, None, b"x")], producer=(7, 0, log.log_end_offset)))
        with log.lock():
            ProducerTracker(log.files).write_snapshot(log.files.view)

    def cuts(view, refresh=log.files.refresh_names):
        found = refresh(view)
        monkeypatch.undo()
        log.truncate_to(1)
        return found

    appended(log, build([Record(0, 1000, None, b"x")], producer=(7, 0, 0)))
    append_with_snapshot()
    monkeypatch.setattr(log.files, "refresh_names", cuts)
    log.flush()
    append_with_snapshot()
    assert log.flush() == 2
    assert f"{log.directory}/{2:020d}.snapshot" in disk.names
    assert disk.after_crash(Crash.LOST).names.keys() == disk.names.keys()


def test_a_flush_while_a_log_is_mended_does_not_know_the_names_behind_it(root, env, disk, monkeypatch):
    log = make(root, env, segment_bytes=100)
    for path in (*disk.names, str(log.directory), str(root)):
        disk.fsync(path)
    for value in (b"x", b"y", b"z"):
        appended(log, batch(value * 30))
    path = f"{log.directory}/{1:020d}.log"
    disk.write(path, 70, b"damage")

    def refresh(refresh=log.files.refresh):
        monkeypatch.undo()
        log.flush()  # by another thread
        return refresh()

    monkeypatch.setattr(log.files, "refresh", refresh)
    assert log.recover().log_end_offset == 1
    for value in (b"y", b"z"):
        appended(log, batch(value * 30))
    assert log.flush() == 3
    found = Env(files=disk.after_crash(Crash.LOST))
    assert contents(reopen(log.directory, found, recovery_point=3)) == contents(log)


def test_flush_messages_flushes_within_the_append(root, env, disk):
    log = make(root, env, flush_messages=3)
    appended(log, batch(b"a", b"b"))
    assert log.point.offset == 0
    appended(log, batch(b"c"))
    assert log.point.offset == 3
    assert synced(disk) == [disk.read_all(log.segments()[0].path)]


def test_flush_ms_flushes_at_the_append_after_that_time(root, env):
    log = make(root, env, flush_ms=1_000)
    appended(log, batch(b"a"))
    env.clock.time_ms += 999
    appended(log, batch(b"b"))
    assert log.point.offset == 0
    env.clock.time_ms += 1
    appended(log, batch(b"c"))
    assert log.point.offset == 3


def test_what_another_thread_flushes_after_a_look_is_not_missing_in_it(root, env, monkeypatch):
    log = make(root, env)
    appended(log, batch(b"a"))
    look = log.files.refresh

    def look_and_wait():
        view = look()
        monkeypatch.undo()
        appended(log, batch(b"b"))
        log.flush()
        return view

    monkeypatch.setattr(log.files, "refresh", look_and_wait)
    assert log.log_end_offset == 1
    assert log.log_end_offset == log.point.offset == 2
