"""One partition: offsets, batches as stored, look-ups, refusals."""

from pathlib import Path

import pytest

from logstore.env import Env, FileStat, OsFiles
from logstore.errors import (
    InvalidRecordError,
    OffsetOutOfRangeError,
    ReadOnlyStoreError,
    RecordTooLargeError,
)
from logstore.log.segments.segment_reader import Space
from logstore.records.batch import Record, batches, build, check, header_at, records
from tests.support.interrupted import Interrupted
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
