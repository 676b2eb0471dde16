"""The storage faults S1 to S25, and T1, as far as one partition meets them, named after the rows of the table."""

import struct
from pathlib import Path

import pytest

from logstore.checkpoint import CheckpointError, read_checkpoint, write_checkpoint
from logstore.env import Env
from logstore.errors import (
    CorruptLogError,
    DiskFullError,
    FailedStoreError,
    InvalidRecordError,
    OutOfOrderSequenceError,
)
from logstore.log.leader_epochs import EpochStart
from logstore.records.batch import TRANSACTIONAL, Record, build, header_at
from logstore.store.reading import read_isolated
from tests.support.disk import StillClock
from tests.support.partition import batch, contents, make, reopen

SMALL = {"segment_bytes": 400, "index_interval_bytes": 100, "max_message_bytes": 400}


def filled(root, env, count=12, **settings):
    """A log of `count` one-record batches in several segments, flushed."""
    log = make(root, env, **(SMALL | settings))
    for number in range(count):
        log.append_as_leader(batch(b"value %d" % number, timestamp=1000 * number))
    log.flush()
    return log


def rows(count, start=0):
    return [(number, b"value %d" % number) for number in range(start, count)]


def recovered(log, env, recovery_point):
    return reopen(log.directory, env, recovery_point=recovery_point, **SMALL)


def flip(disk, path, position, bit=0x10):
    disk.names[str(path)].data[position] ^= bit


def append_bytes(disk, path, data):
    disk.write(path, len(disk.names[str(path)].data), data)


def test_t1_a_repeat_is_known_to_a_replica_that_became_leader_and_after_a_truncation(root, env):
    leader, follower = make(root, env, **SMALL), make(root, env, name="u-0", **SMALL)

    def produced(sequence):
        return build([Record(0, 1000, None, b"value %d" % sequence)], producer=(5, 1, sequence))

    for sequence in range(9):
        leader.append_as_leader(produced(sequence))
    follower.append_as_follower(leader.read(0, max_bytes=1 << 20).data)
    while follower.log_end_offset < 9:
        follower.append_as_follower(leader.read(follower.log_end_offset, max_bytes=1 << 20).data)
    again = follower.append_as_leader(produced(8), leader_epoch=1)
    assert (again.is_duplicate, again.first_offset) == (True, 8)
    assert follower.append_as_leader(produced(9), leader_epoch=1).first_offset == 9
    follower.truncate_to(7)
    again = follower.append_as_leader(produced(6), leader_epoch=2)
    assert (again.is_duplicate, again.first_offset) == (True, 6)
    with pytest.raises(OutOfOrderSequenceError):
        follower.append_as_leader(produced(9), leader_epoch=2)
    assert follower.append_as_leader(produced(7), leader_epoch=2).first_offset == 7


@pytest.mark.parametrize("length", [1, 12, 60, 61, 70])
def test_s1_half_a_batch_is_the_end_for_readers_and_cut_by_the_next_writer(root, env, disk, length):
    log = filled(root, env)
    append_bytes(disk, log.segments()[-1].path, batch(b"x" * 50, first=12)[:length])
    assert (log.log_end_offset, contents(log)) == (12, rows(12))
    other = reopen(log.directory, env, **SMALL)
    assert contents(other) == rows(12)
    other.append_as_leader(batch(b"value 12"))
    assert contents(log) == contents(other) == rows(13)


def test_s1_what_was_torn_is_cut_even_if_the_next_append_is_shorter(root, env, disk):
    log = filled(root, env)
    append_bytes(disk, log.segments()[-1].path, batch(b"x" * 250, first=12)[:200])
    for number in (12, 13):
        reopen(log.directory, env, **SMALL).append_as_leader(batch(b"value %d" % number))
        assert contents(log) == rows(number + 1)


def test_s1_what_another_process_made_whole_within_one_time_stamp_is_not_cut(root, env, disk):
    log = filled(root, env)
    path, whole = log.segments()[-1].path, batch(b"value 12", first=12)
    append_bytes(disk, path, batch(b"x" * 50, first=12)[: len(whole)])
    assert log.log_end_offset == 12
    disk.names[path].data[-len(whole) :] = whole
    log.append_as_leader(batch(b"value 13"))
    assert contents(log) == rows(14)


@pytest.mark.parametrize("length", [1, 61, 70])
def test_s1_recovery_cuts_half_a_batch_and_says_so(root, env, disk, length):
    log = filled(root, env)
    append_bytes(disk, log.segments()[-1].path, batch(b"x" * 50, first=12)[:length])
    report = recovered(log, env, 12).recover()
    assert (report.cut_bytes, report.log_end_offset) == (length, 12)


def test_s2_a_bad_batch_above_the_recovery_point_takes_the_good_ones_behind_it_along(root, env, disk):
    log = filled(root, env, 3)
    place = log.read(1, max_bytes=1)
    flip(disk, place.path, place.position + 65)
    log = recovered(log, env, 1)
    assert log.recover().log_end_offset == 1
    assert contents(log) == rows(1)


def test_s2_a_later_segment_is_checked_from_the_recovery_point_on(root, env, disk):
    log = filled(root, env)
    point = log.segments()[1].base_offset + 1
    place = log.read(point + 1, max_bytes=1)
    assert place.path == log.segments()[1].path
    flip(disk, place.path, place.position + 65)
    log = recovered(log, env, point)
    assert log.recover().log_end_offset == point + 1
    assert contents(log) == rows(point + 1)


def test_s2_segments_behind_a_bad_batch_above_the_recovery_point_go_too(root, env, disk):
    log = filled(root, env)
    assert len(log.segments()) > 2
    flip(disk, log.segments()[1].path, 65)
    first = log.segments()[1].base_offset
    log = recovered(log, env, 0)
    report = log.recover()
    assert len(report.removed) > 0
    assert contents(log) == rows(first)
    log.append_as_leader(batch(b"value %d" % first))
    assert contents(log) == rows(first + 1)


def test_s2_in_a_compacted_topic_too_nothing_stays_behind_a_bad_batch(root, env, disk):
    log = filled(root, env)
    first = log.segments()[1].base_offset
    flip(disk, log.segments()[1].path, 65)
    log = reopen(log.directory, env, cleanup_policy=frozenset({"compact"}), **SMALL)
    log.recover()
    assert contents(log) == rows(first)


@pytest.mark.parametrize("segment", [0, 1, 2])
def test_s3_damage_below_the_recovery_point_is_reported_and_nothing_is_dropped(root, env, disk, segment):
    log = filled(root, env)
    flip(disk, log.segments()[segment].path, 16)  # the magic byte of a flushed batch
    before = {path: data for path, data in disk.state().items() if path.endswith(".log")}
    assert [found.position for found in log.verify()] == [0]
    with pytest.raises(CorruptLogError, match="damaged at byte 0"):
        recovered(log, env, 12).recover()
    with pytest.raises(CorruptLogError, match="damaged at byte 0"):
        contents(log)
    assert {path: data for path, data in disk.state().items() if path.endswith(".log")} == before


def test_s3_damage_that_may_be_passed_over_ends_where_its_header_says(root, env, disk):
    large = {"segment_bytes": 4096, "index_interval_bytes": 4096}
    log = filled(root, env, 3, **large)
    place = log.read(1, max_bytes=1)
    flip(disk, place.path, place.position + 65)
    told = []
    report = reopen(log.directory, env, recovery_point=3, **large).recover(told.append)
    assert (report.log_end_offset, report.cut_bytes) == (3, 0)
    assert [(error.path, error.position) for error in told] == [(place.path, place.position)]


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_s3_an_offset_that_is_too_large_by_damage_is_no_end_for_readers(root, env, disk, policy):
    settings = {"segment_bytes": 4096, "cleanup_policy": frozenset({policy})}
    log = filled(root, env, 3, **settings)
    place = log.read(1, max_bytes=1)
    disk.names[place.path].data[place.position + 3] = 1
    with pytest.raises(CorruptLogError):
        reopen(log.directory, env, **settings).read(1, max_bytes=1, upper=2)


def test_s3_a_writer_does_not_cut_what_no_killed_process_leaves(root, env, disk):
    log = filled(root, env)
    append_bytes(disk, log.segments()[-1].path, bytes(200))
    assert contents(log) == rows(12)
    with pytest.raises(CorruptLogError, match="pylog recover"):
        reopen(log.directory, env, **SMALL).append_as_leader(batch(b"x"))
    log = recovered(log, env, 12)
    assert log.recover().cut_bytes == 200
    log.append_as_leader(batch(b"value 12"))
    assert contents(log) == rows(13)


def test_s3_a_flushed_end_that_is_gone_is_reported(root, env, disk):
    log = filled(root, env)
    disk.truncate(log.segments()[-1].path, 10)
    with pytest.raises(CorruptLogError, match="were flushed"):
        recovered(log, env, 12).recover()
    with pytest.raises(CorruptLogError, match="were flushed"):
        recovered(log, env, 12).append_as_leader(batch(b"x"))


def test_s4_a_flipped_bit_is_refused_by_an_append_and_found_by_verify(root, env, disk):
    log = filled(root, env)
    damaged = batch(b"value 12", first=12)
    damaged[-3] ^= 1
    for append in (log.append_as_leader, log.append_as_follower):
        with pytest.raises(InvalidRecordError, match="CRC"):
            append(damaged)
    assert log.log_end_offset == 12
    assert list(log.verify()) == []
    place = log.read(5, max_bytes=1)
    flip(disk, place.path, place.position + 66)
    [found] = log.verify()
    assert (found.path, found.position) == (place.path, place.position)
    assert "CRC" in found.reason


def test_s4_a_segment_that_begins_below_its_name_is_found_by_verify(root, env, disk):
    """The offset of a batch has no CRC."""
    log = filled(root, env)
    path = log.segments()[1].path
    disk.names[path].data[7] -= 1
    assert [(found.path, found.position) for found in log.verify()] == [(path, 0)]


@pytest.mark.parametrize("field", [*range(8, 12), *range(16, 61)])  # 12 to 15, the leader epoch, has no CRC
def test_s4_a_damaged_header_among_aborted_batches_is_reported(root, env, disk, field):
    """Or, where the batch looks like that of an open transaction now, holds readers up: `pylog verify` tells."""
    log = make(root, env)
    for sequence in range(2):
        row = Record(0, 1000, None, b"aborted")
        log.append_as_leader(build([row], attributes=TRANSACTIONAL, producer=(5, 0, sequence)))
    log.append_as_leader(batch(b"kept"))
    log.append_marker(5, 0, commit=False)
    log.flush()
    data = disk.names[log.segments()[0].path].data
    position = header_at(data).size_bytes
    data[position + field] ^= 0x90
    other = reopen(log.directory, env, recovery_point=4)
    try:
        found = list(read_isolated(other, 0, 4, ["value"], "read_committed"))
    except CorruptLogError:
        return
    assert (found, other.producers.last_stable_offset < 4) == ([], True)
    assert next(damage.path for damage in other.verify()) == log.segments()[0].path


@pytest.mark.parametrize("length", [-1, 0, 48, 2**31 - 1])
def test_s5_a_length_that_cannot_be_is_damage_and_not_an_allocation(root, env, disk, length):
    log = filled(root, env)
    place = log.read(5, max_bytes=1)
    disk.write(place.path, place.position + 8, struct.pack(">i", length))
    with pytest.raises(CorruptLogError) as caught:
        contents(log)
    assert (caught.value.path, caught.value.position) == (place.path, place.position)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("content", [None, b"", bytes(80), b"\xff" * 80, b"\x00\x00\x00\x05" * 20, b"abc"])
def test_s6_a_damaged_index_costs_no_record_and_is_rebuilt(root, env, disk, suffix, content):
    log = filled(root, env, 20)
    for segment in log.segments():
        path = Path(segment.path).with_suffix(suffix)
        disk.unlink(path)
        if content is not None:
            disk.create(path)
            disk.write(path, 0, content)
    log = reopen(log.directory, env, **SMALL)
    for number in range(20):
        assert contents(log, number, max_bytes=1)[0] == (number, b"value %d" % number)
        assert log.reader.offset_for_time(1000 * number - 500).offset == number
    log.append_as_leader(batch(b"value 20", timestamp=20_000))
    log = recovered(log, env, 0)
    log.recover()
    assert contents(log) == rows(21)
    assert list(log.verify()) == []


def test_s6_rebuilt_indexes_are_those_that_were_written(root, env, disk):
    log = filled(root, env)
    indexes = [path for path in disk.names if path.endswith("index")]
    before = {path: bytes(disk.names[path].data) for path in indexes}
    for path in indexes:
        disk.names[path].data[:] = b"abc"
    recovered(log, env, 12).recover()
    closed = [path for path in indexes if Path(path).stem != Path(log.segments()[-1].path).stem]
    assert {path: bytes(disk.names[path].data) for path in closed} == {p: before[p] for p in closed}
    assert len(closed) > 2


def test_s7_index_entries_behind_the_end_of_the_log_are_dropped(root, env, disk):
    log = filled(root, env, 3)
    segment = Path(log.segments()[-1].path)
    append_bytes(disk, segment.with_suffix(".index"), struct.pack(">ii", 77, 100_000))
    log = reopen(log.directory, env, **SMALL)
    assert contents(log) == rows(3)
    log.append_as_leader(batch(b"value 3"))
    assert list(log.verify()) == []
    assert contents(log) == rows(4)


def test_s7_indexes_that_speak_of_batches_behind_a_hole_do_not_stop_recovery(root, env, disk):
    """Power went: both indexes are on the disk, and of the log some blocks only."""
    log = make(root, env, index_interval_bytes=100)
    for number in range(20):
        log.append_as_leader(batch(b"value %d" % number, timestamp=1000 * number))
    segment = log.directory / "00000000000000000000"
    entries = bytes(disk.names[f"{segment}.index"].data)
    _, position = struct.unpack_from(">ii", entries, 8)
    # The last entry that is left is right, that of the times is behind the hole.
    disk.names[f"{segment}.index"].data[16:] = b""
    hole = disk.names[f"{segment}.log"].data
    kept = header_at(hole, position).next_offset
    after = position + header_at(hole, position).size_bytes
    hole[after : after + 50] = bytes(50)

    mended = reopen(log.directory, env, index_interval_bytes=100)
    report = mended.recover()

    assert report.log_end_offset == kept
    assert contents(mended) == rows(kept)


def test_s8_after_a_failed_fsync_nobody_appends_until_the_store_was_checked(root, env, disk):
    log = filled(root, env)
    other = reopen(log.directory, env, **SMALL)
    log.append_as_leader(batch(b"value 12"))
    disk.fsync_fails = ".log"
    with pytest.raises(FailedStoreError):
        log.flush()
    assert log.recovery_point == 12
    disk.fsync_fails = None  # the kernel would say that all is well now
    for anyone in (log, other, make(root, env, name="t-1")):
        with pytest.raises(FailedStoreError, match="pylog recover"):
            anyone.append_as_leader(batch(b"x"))
    assert contents(other) == rows(13)
    other.recover()


@pytest.mark.parametrize("room", range(0, 400, 7))
def test_s9_a_full_disk_undoes_the_append_and_reads_go_on(root, env, disk, room):
    log = filled(root, env)
    before = disk.state()
    disk.free_bytes = room
    records = bytearray().join(batch(b"x" * 30, first=i) for i in range(8))
    with pytest.raises(DiskFullError):
        log.append_as_leader(bytearray(records))
    assert contents(log) == rows(12)
    kept = {path: data for path, data in disk.state().items() if path.endswith(".log")}
    assert kept == {path: data for path, data in before.items() if path.endswith(".log")}
    disk.free_bytes = None
    assert log.append_as_leader(records).first_offset == 12
    assert len(contents(log)) == 20
    assert list(log.verify()) == []


def test_s10_a_full_disk_leaves_the_old_checkpoint(root, env, disk):
    write_checkpoint(env, root / "points", [("t", 0, 1)])
    disk.free_bytes = 3
    with pytest.raises(DiskFullError):
        write_checkpoint(env, root / "points", [("t", 0, 2)])
    assert read_checkpoint(env, root / "points") == [["t", "0", "1"]]
    assert disk.list(root).names == ("points",)


def test_s11_files_of_an_unfinished_compaction_are_swept_up(root, env, disk):
    log = filled(root, env)
    disk.create(log.directory / "00000000000000000000.log.cleaned")
    report = recovered(log, env, 12).recover()
    assert report.removed == (f"{log.directory}/00000000000000000000.log.cleaned",)
    assert contents(log) == rows(12)


def test_s12_an_empty_active_segment_is_accepted(root, env):
    log = filled(root, env)
    log.roll()
    log.roll()
    log = recovered(log, env, 12)
    assert log.recover().log_end_offset == 12
    assert log.segments()[-1].size_bytes == 0
    log.append_as_leader(batch(b"value 12"))
    assert contents(log) == rows(13)


def test_s12_an_empty_segment_behind_a_lost_tail_is_removed(root, env, disk):
    log = filled(root, env)
    log.append_as_leader(batch(b"value 12"))
    log.roll()
    last = log.segments()[-2]
    disk.truncate(last.path, last.size_bytes - 5)
    log = recovered(log, env, 12)
    assert log.recover().log_end_offset == 12
    log.append_as_leader(batch(b"value 12"))
    assert contents(log) == rows(13)


def test_s13_a_log_cut_without_its_indexes_and_epochs_is_made_whole(root, env, disk):
    log = filled(root, env, 3)
    log.append_as_leader(batch(b"value 3"), leader_epoch=5)
    place = log.read(3, max_bytes=1)
    disk.truncate(place.path, place.position)
    log = recovered(log, env, 3)
    log.recover()
    assert [start.epoch for start in log.epochs.starts] == [0]
    assert list(log.verify()) == []
    assert contents(log) == rows(3)


def test_s14_a_missing_segment_below_the_recovery_point_is_damage(root, env, disk):
    log = filled(root, env)
    missing = log.segments()[1]
    disk.unlink(missing.path)
    with pytest.raises(CorruptLogError, match="missing behind this segment"):
        recovered(log, env, 12).recover()
    assert any("missing" in found.reason for found in reopen(log.directory, env, **SMALL).verify())


def test_s14_a_missing_last_segment_is_called_missing(root, env, disk):
    log = filled(root, env)
    last = log.segments()[-1]
    disk.unlink(last.path)
    for ask in (lambda log: log.log_end_offset, lambda log: log.recover(), lambda log: log.recover()):
        with pytest.raises(CorruptLogError, match="the file is missing; records") as caught:
            ask(recovered(log, env, 12))
        assert caught.value.path == last.path


def test_s14_a_partition_without_any_log_file_says_so(root, env, disk):
    log = filled(root, env)
    for segment in log.segments():
        for suffix in (".log", ".index", ".timeindex"):
            disk.unlink(segment.path.replace(".log", suffix))
    with pytest.raises(CorruptLogError, match=r"t-0: .*there is no \.log file; records 0 to 12"):
        _ = recovered(log, env, 12).log_end_offset


def test_s14_a_missing_segment_above_the_recovery_point_ends_the_log(root, env, disk):
    log = filled(root, env)
    missing = log.segments()[1].base_offset
    disk.unlink(log.segments()[1].path)
    log = recovered(log, env, missing)
    assert log.recover().log_end_offset == missing
    assert contents(log) == rows(missing)


def test_s14_a_missing_segment_of_a_compacted_topic_is_missed_too(root, env, disk):
    log = filled(root, env)
    disk.unlink(log.segments()[1].path)
    compacted = reopen(log.directory, env, recovery_point=12, cleanup_policy=frozenset({"compact"}), **SMALL)
    with pytest.raises(CorruptLogError, match="missing behind this segment"):
        compacted.recover()


@pytest.mark.parametrize("text", [b"", b"\x00" * 40, b"0\n2\nt 0 1\n", b"7\n0\n", b"0\nx\n", b"\xff\xfe"])
def test_s15_a_garbage_checkpoint_is_known_as_one(root, env, disk, text):
    disk.create(root / "points")
    disk.write(root / "points", 0, text)
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        read_checkpoint(env, root / "points")


@pytest.mark.parametrize(
    "damage",
    [
        None,
        [(0, 0), (3, 4), (7, 5), (9, 60)],
        [(3, 4), (0, 0)],
        [(0, 0), (3, 2), (7, 5)],
        [(0, 0), (7, 5)],
        [(0, 0), (3, 4)],
    ],
    ids=["gone", "ahead", "decreasing", "too early", "one missing", "the last missing"],
)
def test_s16_epochs_are_trimmed_to_the_log_and_rebuilt_from_its_batches(root, env, disk, damage):
    log = filled(root, env, 4)
    for epoch in (3, 7):
        log.append_as_leader(batch(b"value %d" % log.log_end_offset), leader_epoch=epoch)
    expected = [(0, 0), (3, 4), (7, 5)]
    assert list(log.epochs.starts) == expected
    log.roll()
    log.flush()
    path = str(log.directory / "leader-epoch-checkpoint")
    for content in (b"\x00\x00\x00", damage):  # the second time by who knows what was there before
        disk.unlink(path)
        if content is damage and damage is not None:
            write_checkpoint(env, path, damage)
        elif content is not None:
            disk.create(path)
            disk.write(path, 0, content)
        log.recover()
        assert list(log.epochs.starts) == list(reopen(log.directory, env).epochs.starts) == expected
    written = disk.names[path]
    log.recover()
    assert disk.names[path] is written
    assert list(recovered(log, env, 6).epochs.starts) == expected


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ([(0, 0), (1, 1), (3, 9)], [(0, 0), (1, 1), (3, 9)]),  # epoch 1 has no batch any more, and ended at 9
        ([(0, 0), (5, 12)], [(0, 0), (3, 9), (5, 12)]),  # nothing is at 10 and 11, before what it knows
        ([(0, 0), (3, 9)], [(0, 0), (3, 9), (5, 12)]),
    ],
)
def test_s16_what_fits_the_batches_that_compaction_left_is_kept_and_nothing_else(root, env, known, expected):
    log = make(root, env, cleanup_policy=frozenset({"compact"}))
    for first, epoch in ((0, 0), (9, 3), *([(12, 5)] if expected[-1][0] == 5 else [])):
        log.append_as_follower(batch(b"a", first=first, epoch=epoch))
    log.epochs.replace(EpochStart(*start) for start in known)
    log.recover()
    assert list(log.epochs.starts) == expected


@pytest.mark.parametrize(("start", "is_wrong"), [(4, False), (5, True)])
def test_s16_an_epoch_may_begin_at_the_end_of_the_log_and_not_behind_it(root, env, disk, start, is_wrong):
    log = filled(root, env, 4)
    write_checkpoint(env, log.directory / "leader-epoch-checkpoint", [(0, 0), (3, start)])
    reasons = [found.reason for found in log.verify()]
    assert ["behind the end" in reason for reason in reasons] == [True] * is_wrong


@pytest.mark.parametrize("content", [None, b"garbage"])
def test_s16_an_append_does_not_date_an_epoch_too_late(root, env, disk, content):
    log = filled(root, env, 4)
    log.append_as_leader(batch(b"value 4"), leader_epoch=3)
    path = log.directory / "leader-epoch-checkpoint"
    disk.unlink(path)
    if content is not None:
        disk.create(path)
        disk.write(path, 0, content)
    log = reopen(log.directory, env, **SMALL)
    log.append_as_leader(batch(b"value 5"), leader_epoch=3)
    log.append_as_leader(batch(b"value 6"), leader_epoch=4)
    assert log.epochs.starts == ((0, 0), (3, 4), (4, 6))


def test_s18_offset_gaps_are_read_over(root, env):
    log = make(root, env, cleanup_policy=frozenset({"compact"}), **SMALL)
    log.append_as_follower(batch(b"a", b"b", first=3) + batch(b"c", first=10))
    log.roll()
    log.append_as_follower(batch(b"d", first=100))
    assert (log.log_start_offset, log.log_end_offset) == (3, 101)
    assert contents(log) == [(3, b"a"), (4, b"b"), (10, b"c"), (100, b"d")]
    assert contents(log, 5) == [(10, b"c"), (100, b"d")]
    assert contents(log, 50) == [(100, b"d")]
    assert contents(log, 5, upper=8) == []
    assert log.read(5, max_bytes=100, upper=8).next_offset == 8
    assert (log.reader.floor_batch(7), log.reader.floor_batch(4), log.reader.floor_batch(50)) == (10, 3, 100)


def test_s18_a_gap_wider_than_a_relative_offset_begins_a_segment(root, env):
    log = make(root, env, cleanup_policy=frozenset({"compact"}))
    for first in (0, 2**31 - 1, 2**31, 2**40):
        log.append_as_follower(batch(b"x", first=first))
    assert [offset for offset, _ in contents(log)] == [0, 2**31 - 1, 2**31, 2**40]
    assert [segment.base_offset for segment in log.segments()] == [0, 2**31, 2**40]


def test_s19_offsets_that_go_back_are_refused(root, env):
    log = filled(root, env, 4)
    for records in (batch(b"x", first=3), batch(b"x", first=9) + batch(b"y", first=4)):
        with pytest.raises(InvalidRecordError, match="offset"):
            log.append_as_follower(records)
    assert contents(log) == rows(4)


def test_s19_offsets_that_go_back_in_a_file_end_the_log_above_the_recovery_point(root, env, disk):
    log = filled(root, env, 3)
    append_bytes(disk, log.segments()[-1].path, batch(b"again", first=1))
    assert log.log_end_offset == 3
    log = recovered(log, env, 3)
    assert log.recover().log_end_offset == 3
    assert contents(log) == rows(3)


def test_s20_a_reader_finds_its_place_again_when_files_are_replaced_under_it(root, env, disk):
    log = filled(root, env)
    reader = reopen(log.directory, env, **SMALL)
    result = reader.read(0, max_bytes=1)
    log.truncate_to(1)
    for number in range(1, 12):
        log.append_as_leader(batch(b"other length %d" % number))
    assert contents(reader, result.next_offset)[0] == (1, b"other length 1")
    assert [offset for offset, _ in contents(reader)] == list(range(12))


def test_s25_leftovers_are_removed_and_foreign_files_are_left_alone(root, env, disk):
    log = filled(root, env)
    names = ["leader-epoch-checkpoint.7-1.tmp", f"{99:020d}.index", f"{0:020d}.log.deleted"]
    foreign = ["notes.txt", "000.log", ".nfs0001"]
    for name in names + foreign:
        disk.create(log.directory / name)
    log = recovered(log, env, 12)
    assert contents(log) == rows(12)
    report = log.recover()
    assert sorted(Path(path).name for path in report.removed) == sorted(names)
    assert report.ignored == tuple(sorted(foreign))
    assert set(foreign) <= set(disk.list(log.directory).names)


def test_a_log_that_was_never_written_recovers_empty(root, env):
    log = make(root, Env(StillClock(), env.files))
    assert log.recover().log_end_offset == 0
    assert (log.log_start_offset, log.log_end_offset, contents(log)) == (0, 0, [])
