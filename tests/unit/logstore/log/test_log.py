"""One partition: offsets, batches as stored, rolling, flushing, look-ups, refusals."""

import math
import struct
import threading
from pathlib import Path

import pytest

from logstore.config import LogConfig
from logstore.env import Env, FileStat, OsFiles
from logstore.errors import (
    InvalidRecordError,
    OffsetOutOfRangeError,
    ReadOnlyStoreError,
    RecordTooLargeError,
    StorageError,
)
from logstore.log.producers.tracker import ProducerTracker
from logstore.log.segments.segment_reader import Space
from logstore.log.tiering import advance_tiered_offset, tiered_offset
from logstore.records.batch import Record, batches, build, check, header_at, records
from tests.support.disk import Crash
from tests.support.partition import appended, batch, contents, make, reopen


def test_a_leader_gives_offsets_and_its_epoch_and_changes_nothing_else(root, env, disk):
    log = make(root, env)
    appended(log, batch(b"a", b"b"), leader_epoch=4)
    sent = batch(b"c", b"d", b"e")
    info = appended(log, bytearray(sent), leader_epoch=4)
    assert (info.first_offset, info.next_offset, info.append_time_ms, info.bytes) == (2, 5, -1, len(sent))
    stored = log.read(2, max_bytes=1 << 20)
    header = header_at(stored.data)
    assert (header.base_offset, header.leader_epoch) == (2, 4)
    assert bytes(stored.data[16:]) == sent[16:]
    assert disk.read_all(stored.path)[stored.position :] == bytes(stored.data)
    assert disk.list(log.directory).names.count("00000000000000000000.log") == 1


def test_a_follower_keeps_offsets_and_epochs(root, env):
    log = make(root, env)
    sent = batch(b"a", first=7, epoch=3) + batch(b"b", first=8, epoch=6)
    assert log.append_as_follower(bytes(sent))[:2] == (7, 9)
    assert bytes(log.read(7, max_bytes=1 << 20).data) == bytes(sent)
    assert log.epochs.starts == ((3, 7), (6, 8))


def test_log_append_time_stamps_the_batch_and_its_crc(root, env):
    log = make(root, env, message_timestamp_type="LogAppendTime")
    env.clock.time_ms = 777_000
    assert appended(log, batch(b"a", b"b", timestamp=5)).append_time_ms == 777_000
    data = log.read(0, max_bytes=1).data
    header = header_at(data)
    check(data, 0, header)
    assert header.timestamp_type == 1
    assert [record.timestamp for record in records(data)] == [777_000, 777_000]
    assert log.reader.offset_for_time(777_000) == (0, 777_000)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"half", "half a batch at byte 0"),
        (bytes(61), "shorter than a header"),
        (batch(b"a") + batch(b"b")[:-1], "half a batch at byte"),
        (build([Record(0, 0, None, b"a"), Record(5, 0, None, b"b")]), "2 records, 6 offsets"),
        (batch(b"a")[:16] + b"\x01" + batch(b"a")[17:], "magic 1"),
    ],
)
def test_what_is_no_row_of_whole_batches_is_refused_and_nothing_is_written(root, env, data, reason):
    log = make(root, env)
    with pytest.raises(InvalidRecordError, match=reason):
        appended(log, bytearray(data))
    assert (log.log_end_offset, log.segments()) == (0, ())


def test_a_batch_over_the_limit_is_refused_with_the_limit(root, env):
    limit = len(batch(b"x" * 100))
    log = make(root, env, max_message_bytes=limit)
    appended(log, batch(b"x" * 100))
    with pytest.raises(RecordTooLargeError, match=rf"{limit + 1} bytes.*\({limit}\)"):
        appended(log, batch(b"x" * 101))


def test_a_batch_must_fit_into_a_segment(root, env):
    with pytest.raises(RecordTooLargeError):
        appended(make(root, env, segment_bytes=150), batch(b"x" * 100))


def test_nothing_appended_is_nothing_done(root, env):
    log = make(root, env)
    assert appended(log, bytearray())[:2] == (0, 0)
    assert log.segments() == ()


def test_a_log_opened_for_reading_reads_and_refuses_changes(root, env):
    appended(make(root, env), batch(b"a"))
    log = reopen(root / "t-0", env, read_only=True)
    assert contents(log) == [(0, b"a")]
    for change in (
        lambda: appended(log, batch(b"b")),
        log.roll,
        log.recover,
        lambda: log.truncate_to(0),
    ):
        with pytest.raises(ReadOnlyStoreError, match="reading only"):
            change()


# -------------------------------------------------------------------- rolling


def bases(log) -> list[int]:
    return [segment.base_offset for segment in log.segments()]


def test_a_segment_is_closed_at_its_size(root, env):
    size = len(batch(b"x"))
    log = make(root, env, segment_bytes=3 * size)
    appended(log, bytearray().join(batch(b"x") for _ in range(7)))
    assert bases(log) == [0, 3, 6]
    assert [segment.size_bytes for segment in log.segments()] == [3 * size, 3 * size, size]


def test_a_segment_is_closed_at_its_age_in_record_time(root, env):
    log = make(root, env, segment_ms=1_000)
    for timestamp in (5_000, 6_000, 6_001, 2_000, 7_002):
        appended(log, batch(b"x", timestamp=timestamp))
    assert bases(log) == [0, 2, 4]


def test_jitter_closes_segments_earlier_by_different_times_in_every_process_alike(root, env):
    settings = {"segment_ms": 10_000, "segment_jitter_ms": 9_000}
    found = []
    for name in ("a-0", "a-1", "a-2"):
        log = make(root, env, name=name, **settings)
        twin = reopen(log.directory, env, **settings)
        for number in range(40):
            appended((log, twin)[number % 2], batch(b"x", timestamp=500 * number))
        found.append(tuple(bases(log)))
        assert max(b - a for a, b in zip(bases(log), bases(log)[1:], strict=False)) <= 21
    assert len(set(found)) == 3


@pytest.mark.parametrize(
    "settings",
    [
        {"segment_ms": 10_000, "segment_jitter_ms": 10**9},
        {
            "segment_ms": 10**9,
            "segment_jitter_ms": 10**8,
            "max_compaction_lag_ms": 10_000,
            "cleanup_policy": frozenset({"compact"}),
        },
    ],
)
def test_jitter_above_the_age_of_a_segment_takes_at_most_that_age(root, env, settings):
    """Else an append would begin a segment each."""
    for name in ("a-0", "a-1", "a-2"):
        log = make(root, env, name=name, **settings)
        for _ in range(20):
            appended(log, batch(b"x", timestamp=5_000))
        assert bases(log) == [0]


def test_a_segment_is_closed_when_an_index_is_full(root, env):
    log = make(root, env, segment_index_bytes=36, index_interval_bytes=0)
    for number in range(12):
        appended(log, batch(b"x", timestamp=number))
    assert bases(log) == [0, 4, 8]
    assert all(env.files.stat(Path(s.path).with_suffix(".timeindex")).size <= 36 for s in log.segments())


def test_index_entries_are_an_interval_apart(root, env):
    log = make(root, env, index_interval_bytes=1_000)
    for _ in range(100):
        appended(log, batch(b"x" * 40, timestamp=1))
    size = len(batch(b"x" * 40))
    index = env.files.read_all(Path(log.segments()[0].path).with_suffix(".index"))
    step = math.floor(1_000 / size) + 1
    assert list(struct.iter_unpack(">ii", index)) == [(n, n * size) for n in range(step, 100, step)]


def test_a_roll_on_demand_begins_an_empty_segment_and_only_one(root, env):
    log = make(root, env)
    log.roll()
    assert log.segments() == ()
    appended(log, batch(b"a"))
    log.roll()
    log.roll()
    assert bases(log) == [0, 1]


# ------------------------------------------------------------------- flushing


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


@pytest.mark.parametrize("is_undone", [False, True])
def test_a_segment_that_was_removed_and_is_made_again_is_as_durable_as_before(root, env, disk, monkeypatch, is_undone):
    """Its name was on disk, went, and comes again: a flush makes that durable, too."""
    log = make(root, env, segment_bytes=100)
    for path in (*disk.names, str(log.directory), str(root)):
        disk.fsync(path)
    for value in (b"x", b"y"):  # each in a segment of its own
        appended(log, batch(value * 30))
    if is_undone:

        def fails(path, position, data, write=disk.write):
            if not path.endswith("2.log"):
                return write(path, position, data)
            log.flush()  # by another thread
            raise StorageError("Input/output error")

        with monkeypatch.context() as patched:
            patched.setattr(disk, "write", fails)
            with pytest.raises(StorageError):
                appended(log, batch(b"z" * 30))
    else:
        appended(log, batch(b"z" * 30))
        log.flush()
        log.truncate_to(1)
        appended(log, batch(b"y" * 30))
    appended(log, batch(b"w" * 30))
    assert [segment.base_offset for segment in log.segments()] == [0, 1, 2]
    assert log.flush() == 3
    found = Env(files=disk.after_crash(Crash.LOST))
    values = [(0, b"x" * 30), (1, b"y" * 30), (2, b"w" * 30)]
    assert contents(reopen(log.directory, found, recovery_point=3)) == values


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


def test_settings_may_change_while_a_log_is_open(root, env):
    log = make(root, env)
    appended(log, batch(b"a"))
    log.reconfigure(LogConfig(segment_bytes=len(batch(b"a"))))
    appended(log, batch(b"a"))
    assert bases(log) == [0, 1]


# -------------------------------------------------------------------- reading


def test_a_read_is_whole_batches_into_the_callers_buffer(root, env):
    log = make(root, env)
    appended(log, bytearray().join(batch(b"%d" % n * 100) for n in range(400)))
    buffer = bytearray(1 << 16)
    result = log.read(7, max_bytes=5_000, space=Space(buffer))
    assert result.data.obj is buffer
    assert 4_800 < len(result.data) <= 5_000
    found = [header.base_offset for _, header in batches(result.data)]
    assert found == list(range(7, result.next_offset))
    assert result.position == 7 * len(batch(b"0" * 100))


def test_a_batch_larger_than_asked_for_comes_alone_and_whole(root, env):
    log = make(root, env)
    for size in (50_000, 10, 50_000):
        appended(log, batch(b"x" * size))
    buffer = bytearray(1 << 14)
    for offset, length in ((0, len(batch(b"x" * 50_000))), (1, len(batch(b"x" * 10)))):
        result = log.read(offset, max_bytes=80, space=Space(buffer))
        assert (len(result.data), result.next_offset) == (length, offset + 1)


def test_a_read_below_upper_stops_at_the_batch_that_begins_there(root, env):
    log = make(root, env)
    for _ in range(4):
        appended(log, batch(b"a", b"b", b"c"))
    assert [offset for offset, _ in contents(log, 4, upper=9)] == [4, 5, 6, 7, 8]
    assert log.read(9, max_bytes=100, upper=9).data == b""
    assert log.read(4, max_bytes=1, upper=5).next_offset == 6


def test_reading_the_end_is_empty_and_beyond_it_an_error(root, env):
    log = make(root, env)
    appended(log, batch(b"a"))
    assert len(log.read(1, max_bytes=10).data) == 0
    for offset in (-1, 2):
        with pytest.raises(OffsetOutOfRangeError, match="offsets 0 to 1"):
            log.read(offset, max_bytes=10)


def test_a_scan_looks_into_no_index(root, env, disk, monkeypatch):
    log = make(root, env, index_interval_bytes=0)
    for number in range(200):
        appended(log, batch(b"x" * 500, timestamp=number))
    touched = set()
    read = disk.read
    monkeypatch.setattr(disk, "read", lambda path, *rest: touched.add(Path(path).suffix) or read(path, *rest))
    end, offset = log.log_end_offset, 0
    offset = log.read(offset, max_bytes=5_000, upper=end).next_offset
    touched.clear()
    while offset < end:
        offset = log.read(offset, max_bytes=5_000, upper=end).next_offset
    assert touched == {".log"}


def test_opening_many_logs_reads_no_index_and_no_log(root, env, disk, monkeypatch):
    for number in range(5):
        appended(
            make(root, env, name=f"t-{number}", segment_bytes=150), bytearray().join(batch(b"x") for _ in range(10))
        )
    monkeypatch.setattr(disk, "read", None)
    monkeypatch.setattr(disk, "read_into", None)
    for number in range(5):
        reopen(root / f"t-{number}", env)


def test_an_idle_log_knows_its_end_after_two_stats(root, env, disk, monkeypatch):
    log = make(root, env)
    appended(log, batch(b"a"))
    log.log_end_offset  # noqa: B018
    stats, stat = [], disk.stat
    monkeypatch.setattr(disk, "stat", lambda path: stats.append(path) or stat(path))
    monkeypatch.setattr(disk, "list", None)
    monkeypatch.setattr(disk, "read", None)
    assert log.log_end_offset == 1
    assert len(stats) == 2


# ------------------------------------------------------------------- look-ups


def test_a_time_is_looked_up_in_the_first_segment_that_reaches_it(root, env):
    log = make(root, env, segment_bytes=200)
    for timestamp in (10, 50, 30, 90, 20, 100):
        appended(log, batch(b"a" * 20, b"b" * 20, timestamp=timestamp))
    expected = {0: 0, 10: 0, 11: 1, 12: 2, 50: 2, 51: 3, 52: 6, 91: 7, 92: 10, 101: 11}
    assert {t: log.reader.offset_for_time(t).offset for t in expected} == expected
    assert log.reader.offset_for_time(102) is None


def test_a_time_is_looked_up_in_what_took_the_place_of_other_segments(root, env):
    """The newest times of segments are kept, and segments of the same names may come again."""
    log = make(root, env, segment_bytes=150)
    for timestamp in (10, 20, 30, 40):
        appended(log, batch(b"a" * 40, timestamp=timestamp))
        env.clock.time_ms += 60_000
    before = log.segments()
    assert log.reader.offset_for_time(15) == (1, 20)
    log.truncate_to(1)
    for timestamp in (500, 30, 40):
        appended(log, batch(b"b" * 40, timestamp=timestamp))
        assert log.reader.offset_for_time(25) == (1, 500)
        env.clock.time_ms += 60_000
    assert [s.base_offset for s in log.segments()] == [s.base_offset for s in before]
    assert log.reader.offset_for_time(450) == (1, 500)


def test_a_time_is_looked_up_without_a_look_at_each_segment(root, env, disk, monkeypatch):
    log = make(root, env, segment_bytes=150)
    for timestamp in range(100):
        appended(log, batch(b"a" * 40, timestamp=timestamp))
    env.clock.time_ms += 60_000
    log.log_end_offset  # noqa: B018  the directory was not changed just now
    assert log.reader.offset_for_time(70) == (70, 70)
    stats, stat = [], disk.stat
    monkeypatch.setattr(disk, "stat", lambda path: stats.append(path) or stat(path))
    assert log.reader.offset_for_time(80) == (80, 80)
    assert len(stats) < 10


def test_segments_tell_their_range_size_and_newest_time(root, env):
    log = make(root, env, segment_bytes=200)
    for timestamp in (10, 50, 30):
        appended(log, batch(b"a" * 40, timestamp=timestamp))
    size = len(batch(b"a" * 40))
    found = [(s.base_offset, s.next_offset, s.size_bytes, s.max_timestamp_ms) for s in log.segments()]
    assert found == [(0, 1, size, 10), (1, 2, size, 50), (2, 3, size, 30)] or found == [
        (0, 2, 2 * size, 50),
        (2, 3, size, 30),
    ]


def test_truncating_takes_epochs_and_index_entries_along(root, env):
    log = make(root, env, index_interval_bytes=0)
    for number in range(10):
        appended(log, batch(b"x", timestamp=100 * number), leader_epoch=number // 3)
    log.truncate_to(5)
    assert log.epochs.starts == ((0, 0), (1, 3))
    assert reopen(log.directory, env).epochs.starts == log.epochs.starts
    log.truncate_to(3)
    assert log.epochs.starts == ((0, 0),)
    assert list(log.verify()) == []
    appended(log, batch(b"y", timestamp=250), leader_epoch=1)
    assert log.reader.offset_for_time(240) == (3, 250)
    assert list(log.verify()) == []


@pytest.mark.parametrize("size", [1, 40, 90, 400])
def test_a_reader_finds_the_end_of_a_file_that_was_cut_and_has_grown_again(root, env, size):
    log = make(root, env)
    for _ in range(5):
        appended(log, batch(b"x" * 50))
    reader = reopen(log.directory, env)
    assert reader.log_end_offset == 5
    log.truncate_to(1)
    for _ in range(20):
        appended(log, batch(b"y" * size))
    assert reader.log_end_offset == 21
    assert contents(reader) == contents(log)


def test_a_change_within_the_same_time_stamp_as_the_listing_is_seen(root, env, disk, monkeypatch):
    stat, listing = disk.stat, disk.list
    coarse = FileStat(0, 0, 0)
    directory = str(root / "t-0")
    monkeypatch.setattr(disk, "stat", lambda path: coarse if str(path) == directory else stat(path))
    monkeypatch.setattr(disk, "list", lambda path: listing(path)._replace(stat=coarse, settled=False))
    log = make(root, env)
    other = reopen(log.directory, env)
    for number in range(3):
        appended(log, batch(b"a"))
        assert other.log_end_offset == number + 1
        log.roll()


def test_truncating_below_the_start_begins_the_log_anew_there(root, env):
    log = make(root, env)
    log.append_as_follower(batch(b"a", first=10))
    log.truncate_to(4)
    assert (log.log_start_offset, log.log_end_offset, contents(log)) == (4, 4, [])
    assert appended(log, batch(b"b")).first_offset == 4


def test_everything_is_there_after_it_was_closed_and_opened(tmp_path):
    env = Env(files=OsFiles())
    log = make(tmp_path, env, segment_bytes=2_000, index_interval_bytes=300)
    for number in range(100):
        appended(log, batch(b"%d" % number, timestamp=number))
    log.close()
    again = reopen(log.directory, Env(files=OsFiles()), segment_bytes=2_000)
    assert contents(again) == [(number, b"%d" % number) for number in range(100)]
    assert again.segments() == log.segments()
    assert appended(again, batch(b"x")).first_offset == 100


@pytest.mark.parametrize("offset", [2, 10, 500])
def test_a_log_begins_anew_wherever_it_was_with_its_epochs_and_recovery_point(root, env, offset):
    # (R15) a follower that has nothing in common with its leader any more
    log = make(root, env)
    for number in range(3):
        log.append_as_follower(batch(b"a", first=10 + number, epoch=number))
    log.advance_start(11)
    log.flush()
    log.start_anew(offset)
    assert (log.log_start_offset, log.log_end_offset, contents(log)) == (offset, offset, [])
    assert (log.epochs.starts, log.point.offset) == ((), min(offset, 13))
    again = reopen(log.directory, env)
    assert (again.log_start_offset, again.log_end_offset, again.epochs.starts) == (offset, offset, ())
    log.append_as_follower(batch(b"b", first=offset, epoch=7))
    assert (log.epochs.starts, list(log.verify())) == (((7, offset),), [])


def test_a_follower_takes_batches_that_were_allowed_to_be_larger_once(root, env):
    log = make(root, env, max_message_bytes=100)
    large = batch(b"x" * 200)
    with pytest.raises(RecordTooLargeError):
        appended(log, bytearray(large))
    assert log.append_as_follower(large).next_offset == 1


def test_who_looks_for_the_end_while_the_last_segment_goes_looks_again(tmp_path):
    class Overtaken(OsFiles):
        meanwhile = None

        def read(self, path, position, size):
            act, self.meanwhile = self.meanwhile, None
            if act is not None:
                act()
            return super().read(path, position, size)

    files = Overtaken()
    writer = make(tmp_path, Env())
    appended(writer, batch(b"a", b"b"))
    reader = reopen(writer.directory, Env(files=files))

    def go_on():
        writer.roll()
        appended(writer, batch(b"c"))
        writer.advance_start(2)

    files.meanwhile = go_on
    assert (reader.log_end_offset, reader.log_start_offset) == (3, 2)
    assert files.meanwhile is None


def test_what_another_process_indexed_is_kept_when_the_first_one_indexes_more(tmp_path):
    logs = [make(tmp_path, Env(), index_interval_bytes=1)]
    logs.append(reopen(logs[0].directory, Env(), index_interval_bytes=1))
    for number in range(40):
        appended(logs[number % 3 // 2], batch(b"%d" % number, timestamp=1000 + number))
    segment = logs[0].files.segment(0)
    assert [offset for offset, _ in segment.index.entries()] == list(range(1, 40))
    assert [offset for _, offset in segment.time_index.entries()] == list(range(1, 40))
    assert list(logs[0].verify()) == list(logs[1].verify()) == []


class Interrupted(OsFiles):
    """Files that have something happen, once, in the middle of a change."""

    def __init__(self, after):
        super().__init__()
        self._is_due, self.act = after, None

    def _maybe(self, kind, path):
        act = self.act
        if act is not None and self._is_due(kind, str(path)):
            self.act = None
            other = threading.Thread(target=act)  # another one than who holds the lock
            other.start()
            other.join()

    def fsync(self, path):
        super().fsync(path)
        self._maybe("fsync", path)

    def write(self, path, position, data):
        self._maybe("write", path)
        super().write(path, position, data)

    def truncate(self, path, size):
        self._maybe("truncate", path)
        super().truncate(path, size)


def test_a_cut_while_it_is_flushed_leaves_no_recovery_point_beyond_it(tmp_path):
    files = Interrupted(lambda kind, path: kind == "fsync" and path.endswith(".log"))
    log = make(tmp_path, Env(files=files))
    for value in (b"a", b"b", b"c", b"d"):
        appended(log, batch(value))
    files.act = lambda: log.truncate_to(2)
    assert log.flush() == log.point.offset == 0
    log.append_as_follower(batch(b"x", first=2))
    assert log.flush() == log.point.offset == 3
    assert contents(log) == [(0, b"a"), (1, b"b"), (2, b"x")]


def test_a_flush_that_ends_in_the_middle_of_a_cut_makes_no_damage_of_it(tmp_path):
    due = ["truncate", "fsync"]
    files = Interrupted(lambda kind, path: kind == due[0] and path.endswith(".log"))
    log = make(tmp_path, Env(files=files))
    for value in (b"a", b"b", b"c", b"d"):
        appended(log, batch(value))
    ends = []

    def flush():
        log.flush()
        del due[0]
        files.act = lambda: ends.append(log.log_end_offset)

    files.act = flush
    log.truncate_to(2)
    assert ends == [2]
    assert log.point.offset == log.flush() == 2


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


def test_who_opens_a_log_between_records_and_index_keeps_the_entries_that_come(tmp_path):
    """Or else times are not found, and retention goes by a newest time that is too old."""
    files = Interrupted(lambda kind, path: kind == "write" and path.endswith("index"))
    ours = make(tmp_path, Env(files=files), index_interval_bytes=1)
    for n in range(5):
        appended(ours, batch(b"early", timestamp=1000 + n))
    others = []

    def open_another():
        others.append(reopen(tmp_path / "t-0", Env(), index_interval_bytes=1))
        assert others[0].log_end_offset == 9

    files.act = open_another
    appended(ours, bytearray(b"".join(bytes(batch(b"more", timestamp=1010 + n)) for n in range(4))))
    (other,) = others
    late = [batch(b"newest", timestamp=5000), *(batch(b"old", timestamp=900) for _ in range(4))]
    appended(other, bytearray(b"".join(bytes(each) for each in late)))
    fresh = reopen(tmp_path / "t-0", Env(), read_only=True)
    assert fresh.reader.offset_for_time(4000).offset == 9
    assert fresh.segments()[0].max_timestamp_ms == 5000
    entries = other.files.segment(0).time_index.entries()
    assert entries == sorted(set(entries))


def test_a_cut_behind_a_gap_leaves_no_recovery_point_in_the_gap(root, env):
    log = make(root, env)
    log.append_as_follower(batch(b"a"))
    log.append_as_follower(batch(b"c", first=2))
    log.flush()
    log.truncate_to(2)
    assert log.point.offset == log.log_end_offset == 1


def test_a_cut_within_a_batch_takes_all_marks_to_where_that_began(root, env):
    log = make(root, env)
    appended(log, batch(b"a"))
    appended(log, batch(b"b", b"c", b"d"))
    log.flush()
    advance_tiered_offset(log, 4)
    log.truncate_to(3)
    assert (log.log_end_offset, tiered_offset(log), log.point.offset) == (1, 1, 1)
