"""Compaction keeps the last record of every key, as it was stored, and the log remains a log."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.env import Env
from logstore.errors import CorruptLogError, DiskFullError, InvalidRequestError
from logstore.log.tiering import advance_tiered_offset, tiered_offset
from logstore.maintenance import compaction
from logstore.records import batch as batches
from logstore.records.batch import DELETE_HORIZON, LOG_APPEND_TIME, Record, build, header_at
from logstore.records.compaction import OffsetMap
from logstore.records.compression import Codec
from tests.support.disk import Disk, StillClock
from tests.support.partition import appended, make, reopen
from tests.support.repeats import times

SMALL = {
    "cleanup_policy": frozenset({"compact"}),
    "segment_bytes": 700,
    "max_message_bytes": 700,
    "index_interval_bytes": 150,
    "min_cleanable_dirty_ratio": 0.0,
}


def append(log, *items, codec=Codec.NONE, timestamp=1000, **fields):
    """One batch of (key, value) or (key, value, headers); keys and values as text, None: null."""
    rows = [
        Record(
            number,
            timestamp + number,
            None if key is None else key.encode(),
            None if value is None else value.encode(),
            *headers,
        )
        for number, (key, value, *headers) in enumerate(items)
    ]
    return appended(log, build(rows, codec=codec, **fields))


def stored(log):
    """Every batch as (header, records)."""
    found, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        result = log.read(offset, max_bytes=1 << 20)
        if not result.data:
            break
        found += [(b, list(batches.records(result.data, at))) for at, b in batches.batches(result.data)]
        offset = result.next_offset
    return found


def records(log):
    return [record for header, rows in stored(log) if not header.is_control for record in rows]


def view(log):
    """The view of a reader: the last value of each key."""
    return {record.key: record.value for record in records(log)}


def compact(log, **how):
    return compaction.compact(log, **how)


def check_is_a_log(log, env):
    """Segments follow each other without a gap, nothing is damaged, recovery finds nothing to do."""
    for segment, following in pairwise(log.segments()):
        assert segment.next_offset == following.base_offset
        tail = log.files.segment(segment.base_offset).tail(segment.size_bytes)
        assert (tail.next_offset, tail.position) == (following.base_offset, segment.size_bytes)
    assert list(log.verify()) == []
    again = reopen(log.directory, env, recovery_point=log.point.offset, **SMALL)
    report = again.recover()
    assert (report.cut_bytes, report.rebuilt, report.ignored) == (0, (), ())
    assert all(".deleted" in name for name in report.removed)
    assert records(again) == records(log)


def last_records(rows, upper):
    last = {record.key: record.offset for record in rows if record.offset < upper}
    return [r for r in rows if r.offset >= upper or (r.key is not None and last[r.key] == r.offset)]


item = st.tuples(
    st.sampled_from(["", "a", "b", "key c", "d" * 90, "e" * 9, "f" * 8]),
    st.one_of(st.none(), st.sampled_from(["", "v", "w" * 60])),
    st.sampled_from([(), (("h", b"1"), ("", None)), (("ä" * 10, b"x" * 20),)]),
)
one_batch = st.tuples(
    st.lists(item, min_size=1, max_size=6),
    st.sampled_from([Codec.NONE, Codec.NONE, Codec.NONE, *Codec]),
    st.integers(0, 10**13),
)
history = st.lists(st.one_of(one_batch, st.just("compact"), st.just("roll")), min_size=3, max_size=40)


@settings(max_examples=times(25, 200), deadline=None)
@given(history)
def test_the_last_record_of_every_key_stays_and_only_that(steps):
    disk = Disk()
    disk.mkdir("/store")
    env = Env(StillClock(), disk)
    log = make(Path("/store"), env, **{**SMALL, "segment_bytes": 1500, "max_message_bytes": 1500})
    for step in [*steps, "compact", "compact"]:
        if step == "roll":
            log.roll()
        elif step == "compact":
            before = records(log)
            bases = [segment.base_offset for segment in log.segments()]
            report = compact(log)
            upper = bases[-1] if bases else 0
            assert records(log) == (before if report.skipped else last_records(before, upper))
            check_is_a_log(log, env)
        else:
            items, codec, timestamp = step
            append(log, *items, codec=codec, timestamp=timestamp)
    assert compact(log).skipped == "nothing is dirty"


def test_every_offset_can_be_read_from_after_compaction(root, env):
    log = make(root, env, **SMALL)
    for number in range(30):
        append(log, ("k", "v"), (f"k{number % 3}", "v" * 50), (f"once {number}", "v"))
    assert compact(log).rounds == 1
    left = records(log)
    for offset in range(log.log_end_offset):
        result = log.read(offset, max_bytes=1)
        found = [r for at, _ in batches.batches(result.data) for r in batches.records(result.data, at)]
        assert [r for r in found if r.offset >= offset] == [r for r in left if offset <= r.offset < result.next_offset]


def test_what_is_not_tiered_is_not_compacted_where_it_is_to_be(root, env):
    log = make(root, env, **SMALL, remote_storage_enable=True)
    for number in range(60):
        append(log, (f"k{number % 3}", "v" * 50))
    before, bases = records(log), [segment.base_offset for segment in log.segments()]
    assert compact(log, dry_run=True).skipped == compact(log).skipped == "nothing is dirty"
    assert records(log) == before
    advance_tiered_offset(log, bases[3] - 1)
    assert compact(log).rounds == 1
    assert records(log) == last_records(before, bases[2])
    check_is_a_log(log, env)


def test_keys_that_do_not_fit_take_rounds_and_the_result_is_the_same(root, env):
    results = []
    for name, key_map_bytes in (("a-0", 16 * 1024), ("b-0", 1 << 20)):
        log = make(root, env, name=name, **(SMALL | {"segment_bytes": 9000, "max_message_bytes": 9000}))
        for number in range(120):
            append(log, (f"{number % 40}" * 300, f"v{number}"))
        report = compact(log, key_map_bytes=key_map_bytes)
        results.append((report.rounds, report.records_after, records(log)))
        check_is_a_log(log, env)
    assert results[0][1:] == results[1][1:]
    assert results[0][0] > 2 > results[1][0]


def test_a_key_that_is_larger_than_the_map_is_an_error_and_changes_nothing(root, env, disk):
    log = make(root, env, **(SMALL | {"segment_bytes": 60_000, "max_message_bytes": 60_000}))
    append(log, ("k" * 20_000, "v"))
    log.roll()
    append(log, ("k", "v"))
    before = records(log)
    with pytest.raises(InvalidRequestError, match="key_map_bytes"):
        compact(log, key_map_bytes=16 * 1024)
    assert records(log) == before
    assert compact(log).rounds == 1


def signed(number):
    return (number + 2**63) % 2**64 - 2**63


def test_keys_of_one_hash_are_told_apart():
    """The hash says where to look and nothing else: two keys of 16 bytes whose hashes are the same."""
    k1, k2 = 0x2545F4914F6CDD1D, -0x61C8864680B583EB

    def after(word):
        h = signed(signed(16 * k1) ^ word)
        h = signed(h * k2)
        return h ^ ((h >> 32) & 0xFFFFFFFF)

    words = 0x1122334455667788, 0x0102030405060708
    second = 0x7A7A7A7A7A7A7A7A
    keys = [
        words[0].to_bytes(8, "little") + second.to_bytes(8, "little"),
        words[1].to_bytes(8, "little")
        + signed(second ^ after(words[0]) ^ after(words[1])).to_bytes(8, "little", signed=True),
    ]
    data = bytes(build([Record(n, 0, keys[n % 2], b"v") for n in range(4)]))
    key_map = OffsetMap(1 << 16)
    assert key_map.collect(data, start=0, skipped=lambda _: False, where=("x", 0)) is None
    assert key_map.keys == 2

    from logstore.records.kernels import offset_map

    space = [np.frombuffer(key, dtype=np.uint8) for key in keys]
    assert len({offset_map.hash_of(s.ctypes.data, 16) for s in space}) == 1


def test_offsets_times_producers_and_headers_are_kept_as_they_were(root, env):
    log = make(root, env, **SMALL)
    headers = (("trace", b"\x00\xff"), ("trace", None))
    append(log, ("a", "1"), ("b", "2", headers), ("c", "3"), timestamp=5000, codec=Codec.ZSTD)
    append(log, ("c", "4"), ("a", "5"), timestamp=9000)
    log.roll()
    kept = [r for r in records(log) if r.value in (b"2", b"4", b"5")]
    headers_before = [header for header, _ in stored(log)]
    compact(log)
    assert records(log) == kept
    for before, (after, rows) in zip(headers_before, stored(log), strict=True):
        assert after[11:12] == (rows[-1].timestamp,) or after.max_timestamp == max(r.timestamp for r in rows)
        for field in ("base_offset", "last_offset_delta", "leader_epoch", "base_timestamp", "producer_id"):
            assert getattr(after, field) == getattr(before, field)
    assert [after.count for after, _ in stored(log)] == [1, 2]
    assert stored(log)[0][0].max_timestamp == 5001


def test_t2_the_last_batch_of_a_producer_stays_empty_if_need_be_so_that_a_repeat_is_known(root, env):
    log = make(root, env, **SMALL)

    def produced(sequence: int) -> bytearray:
        row = Record(0, 1000, b"k", b"v%d" % sequence)
        return build([row], producer=(7, 0, sequence))

    for sequence in range(3):
        appended(log, produced(sequence))
    append(log, ("k", "last"))
    log.roll()
    compact(log)
    assert [record.value for record in records(log)] == [b"last"]
    for name in [name for name in env.files.names if name.endswith(".snapshot")]:
        env.files.unlink(name)
    log = reopen(log.directory, env, **SMALL)
    log.recover()
    again = appended(log, produced(2))
    assert (again.is_duplicate, again.first_offset) == (True, 2)
    assert appended(log, produced(3)).first_offset == 4


def test_batches_that_lose_nothing_are_copied_as_they_are(root, env):
    log = make(root, env, **SMALL)
    append(log, ("a", "x" * 200), ("b", "y"), codec=Codec.GZIP)
    append(log, ("c", "1"), ("c", "2"))
    log.roll()
    before = bytes(log.read(0, max_bytes=1 << 20).data)
    compact(log)
    after = bytes(log.read(0, max_bytes=1 << 20).data)
    assert after != before
    size = header_at(before).size_bytes
    assert after[:size] == before[:size]


def test_the_time_of_the_append_is_kept(root, env):
    log = make(root, env, message_timestamp_type="LogAppendTime", **SMALL)
    append(log, ("a", "1"), ("b", None), ("a", "3"))
    log.roll()
    before = records(log)
    env.clock.time_ms += 5000
    compact(log)
    assert records(log) == before[1:]
    assert all(header.attributes & LOG_APPEND_TIME for header, _ in stored(log))


def test_a_tombstone_gets_a_horizon_and_its_time_stays(root, env):
    log = make(root, env, delete_retention_ms=1000, **SMALL)
    append(log, ("a", "1"), ("b", None), ("c", "3"), timestamp=7_000_000_000)
    log.roll()
    before = records(log)
    compact(log)
    ((header, rows),) = stored(log)
    assert rows == before
    assert header.attributes & DELETE_HORIZON
    assert header.base_timestamp == env.clock.time_ms + 1000

    env.clock.time_ms += 1000
    append(log, ("d", "4"))
    log.roll()
    compact(log)
    assert [record.key for record in records(log)] == [b"a", b"c", b"d"]
    assert records(log)[:2] == [before[0], before[2]]


@pytest.mark.parametrize("codec", Codec)
def test_tombstones_wait_in_compressed_batches_too(root, env, codec):
    log = make(root, env, delete_retention_ms=1000, **SMALL)
    for _ in range(2):
        append(log, ("a", "x" * 100), ("b", None), ("c", "x" * 100), codec=codec)
    log.roll()
    last = records(log)[3:]
    compact(log)
    assert records(log) == last
    assert stored(log)[0][0].codec is codec


def test_records_without_a_key_go(root, env):
    log = make(root, env, **SMALL)
    append(log, (None, "1"), ("a", "2"), (None, "3"))
    log.roll()
    compact(log)
    assert [record.value for record in records(log)] == [b"2"]


def test_small_segments_become_one_and_files_go_after_their_delay(root, env, disk):
    log = make(root, env, file_delete_delay_ms=1000, **SMALL)
    for number in range(60):
        append(log, ("k" * 50, "v" * 50), (f"once {number // 6}", "v"))
    many = len(log.segments())
    compact(log)
    append(log, ("k" * 50, "v"))
    log.roll()
    compact(log)
    assert len(log.segments()) < many / 2
    assert sum(name.endswith(".deleted") for name in disk.names) > 3
    from logstore.maintenance.retention import expire

    env.clock.time_ms += 999
    expire(log)
    assert sum(name.endswith(".deleted") for name in disk.names) > 3
    env.clock.time_ms += 1
    expire(log)
    assert sum(name.endswith(".deleted") for name in disk.names) == 0
    check_is_a_log(log, env)


def test_damage_stops_the_pass_and_nothing_is_changed(root, env, disk):
    log = make(root, env, **SMALL)
    for number in range(30):
        append(log, ("k", "v" * 50), (f"once {number}", "v"))
    compact(log)
    for number in range(30):
        append(log, ("k", "v" * 50), (f"once {number}", "v"))
    path = log.segments()[-2].path
    disk.names[path].data[80] ^= 1
    before = {path: data for path, data in disk.state().items() if path.endswith(".log")}
    with pytest.raises(CorruptLogError, match="CRC"):
        compact(log)
    assert {path: data for path, data in disk.state().items() if path.endswith(".log")} == before


def test_without_room_the_pass_ends_and_what_is_read_is_as_it_was_s9(root, env, disk):
    failed = 0
    for free_bytes in range(0, 1200, 150):
        log = make(root, env, name=f"t-{free_bytes}", **SMALL)
        for number in range(30):
            append(log, ("k", "v" * 50), (f"once {number}", "v"))
        before, disk.free_bytes = view(log), free_bytes
        try:
            compact(log)
        except DiskFullError:
            failed += 1
        assert view(log) == before
        assert not [name for name in disk.names if ".cleaned" in name]
        disk.free_bytes = None
        compact(log)
        assert view(log) == before
        check_is_a_log(log, env)
    assert 2 < failed < 8


def test_gaps_are_no_damage_when_the_topic_is_not_compacted_any_more(root, env):
    log = make(root, env, **SMALL)
    for number in range(30):
        append(log, ("k", "v" * 50), (f"once {number}", "v"))
    compact(log)
    left = records(log)
    later = reopen(
        log.directory,
        env,
        recovery_point=log.point.offset,
        **(SMALL | {"cleanup_policy": frozenset({"delete"})}),
    )
    assert records(later) == left
    assert list(later.verify()) == []
    assert later.recover().cut_bytes == 0


def test_a_pass_gives_up_when_the_log_lost_its_segments_meanwhile(root, env):
    log = make(root, env, **(SMALL | {"cleanup_policy": frozenset({"compact", "delete"})}))
    for number in range(40):
        append(log, ("k", "v" * 50), (f"once {number}", "v"))
    other = reopen(log.directory, env, recovery_point=log.flush(), **SMALL)

    def meanwhile(done, total):
        other.advance_start(log.log_end_offset - 3)

    told = []
    compact(log, progress=lambda *place: (told.append(place), meanwhile(*place)))
    assert told[0] == (0, told[0][1])
    assert log.log_start_offset == 77
    assert [r.offset for r in records(log) if r.offset >= 77] == [77, 78, 79]
    assert list(log.verify()) == []


def test_a_dry_run_says_what_is_due_and_changes_nothing(root, env, disk):
    log = make(root, env, **SMALL)
    for number in range(30):
        append(log, ("k", "v" * 50), (f"once {number}", "v"))
    before = disk.state()
    report = compact(log, dry_run=True)
    assert (report.skipped, report.dirty_ratio_before, report.rounds) == (None, 1.0, 0)
    assert disk.state() == before


def test_as_in_the_transcript_of_a_real_broker(root, env):
    """The steps of a recorded Kafka: 8 rounds of 6 keys, 2 tombstones, fillers; segments of 18 records."""
    log = make(root, env, delete_retention_ms=6000, **(SMALL | {"segment_bytes": 1 << 20, "max_message_bytes": 700}))
    for number in range(48):
        append(log, (f"key{number % 6}", f"round{number // 6}-value{number % 6}"))
        if number in (17, 35):
            log.roll()
    append(log, ("key1", None))
    append(log, ("key3", None))
    for _ in range(3):
        append(log, ("fill", "filler-0"))
    log.roll()
    for _ in range(9):
        append(log, ("fill", "filler"))
    compact(log)
    # Kafka keeps them so; its empty segments are one here, with a batch that says where it ends.
    assert [record.offset for record in records(log)] == [42, 44, 46, 47, 48, 49, 52, *range(53, 62)]
    for _ in range(2):
        env.clock.time_ms += 6000
        for _ in range(9):
            append(log, ("fill", "more"))
        log.roll()
        compact(log)
    assert [record.offset for record in records(log)] == [42, 44, 46, 47, 79]


def test_a_batch_left_without_records_is_read_by_all(root, env):
    log = make(root, env, **SMALL)
    for _ in range(40):
        append(log, ("k", "v" * 50))
    compact(log)
    empty = [header for header, rows in stored(log) if not rows]
    assert empty
    assert all(header.count == 0 and header.size_bytes == 61 for header in empty)
    from logstore.records.arrow import decode

    for segment in log.segments():
        data = env.files.read_all(segment.path)
        assert decode(data, start=0, end=1 << 40).num_rows == sum(h.count for _, h in batches.batches(data))
    assert log.reader.offset_for_time(0).offset == records(log)[0].offset


def test_what_is_written_after_a_truncation_is_dirty_and_not_tiered(root, env):
    log = make(root, env, **SMALL)
    for _ in range(40):
        append(log, ("k", "v" * 50))
    compact(log)
    advance_tiered_offset(log, 30)
    log.truncate_to(20)
    assert tiered_offset(log) == 20
    for _ in range(20):
        append(log, ("k", "w" * 50))
    log.roll()
    compact(log)
    assert [record.offset for record in records(log)] == [log.log_end_offset - 1]
    log.start_anew(7)
    assert tiered_offset(log) == 7


def test_a_follower_takes_a_compacted_log_as_it_is(root, env):
    log, follower = make(root, env, **SMALL), make(root, env, name="f-0", **SMALL)
    for number in range(30):
        append(log, ("k", "v"), (f"k{number % 3}", "v" * 50), codec=Codec.LZ4 if number % 2 else Codec.NONE)
    compact(log)
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        result = log.read(offset, max_bytes=1)
        follower.append_as_follower(bytes(result.data))
        offset = result.next_offset
    assert follower.log_end_offset == log.log_end_offset
    assert stored(follower) == stored(log)
    check_is_a_log(follower, env)
