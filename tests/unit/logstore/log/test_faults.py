"""The storage faults that meet batches, writes and fsyncs (S1 to S5, S8, S9), and T1, named after their sections."""

import struct
from functools import partial

import pytest

from logstore.errors import (
    CorruptLogError,
    DiskFullError,
    FailedStoreError,
    InvalidRecordError,
    OutOfOrderSequenceError,
)
from logstore.records.batch import TRANSACTIONAL, Record, build, header_at
from logstore.store.reading import read_isolated
from tests.support.partition import (
    SMALL,
    append_bytes,
    appended,
    batch,
    contents,
    ended,
    filled,
    flip,
    make,
    recovered,
    reopen,
    rows,
)


def test_t1_a_repeat_is_known_to_a_replica_that_became_leader_and_after_a_truncation(root, env):
    leader, follower = make(root, env, **SMALL), make(root, env, name="u-0", **SMALL)

    def produced(sequence):
        return build([Record(0, 1000, None, b"value %d" % sequence)], producer=(5, 1, sequence))

    for sequence in range(9):
        appended(leader, produced(sequence))
    follower.append_as_follower(leader.read(0, max_bytes=1 << 20).data)
    while follower.log_end_offset < 9:
        follower.append_as_follower(leader.read(follower.log_end_offset, max_bytes=1 << 20).data)
    again = appended(follower, produced(8), leader_epoch=1)
    assert (again.is_duplicate, again.first_offset) == (True, 8)
    assert appended(follower, produced(9), leader_epoch=1).first_offset == 9
    follower.truncate_to(7)
    again = appended(follower, produced(6), leader_epoch=2)
    assert (again.is_duplicate, again.first_offset) == (True, 6)
    with pytest.raises(OutOfOrderSequenceError):
        appended(follower, produced(9), leader_epoch=2)
    assert appended(follower, produced(7), leader_epoch=2).first_offset == 7


@pytest.mark.parametrize("length", [1, 12, 60, 61, 70])
def test_s1_half_a_batch_is_the_end_for_readers_and_cut_by_the_next_writer(root, env, disk, length):
    log = filled(root, env)
    append_bytes(disk, log.segments()[-1].path, batch(b"x" * 50, first=12)[:length])
    assert (log.log_end_offset, contents(log)) == (12, rows(12))
    other = reopen(log.directory, env, **SMALL)
    assert contents(other) == rows(12)
    appended(other, batch(b"value 12"))
    assert contents(log) == contents(other) == rows(13)


def test_s1_what_was_torn_is_cut_even_if_the_next_append_is_shorter(root, env, disk):
    log = filled(root, env)
    append_bytes(disk, log.segments()[-1].path, batch(b"x" * 250, first=12)[:200])
    for number in (12, 13):
        appended(reopen(log.directory, env, **SMALL), batch(b"value %d" % number))
        assert contents(log) == rows(number + 1)


def test_s1_what_another_process_made_whole_within_one_time_stamp_is_not_cut(root, env, disk):
    log = filled(root, env)
    path, whole = log.segments()[-1].path, batch(b"value 12", first=12)
    append_bytes(disk, path, batch(b"x" * 50, first=12)[: len(whole)])
    assert log.log_end_offset == 12
    disk.names[path].data[-len(whole) :] = whole
    appended(log, batch(b"value 13"))
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


def test_s2_segments_behind_a_bad_batch_above_the_recovery_point_leave_the_log_and_stay_once(root, env, disk):
    log = filled(root, env)
    later = [disk.names[segment.path].data[:] for segment in log.segments()[2:]]
    assert all(later)
    for _ in range(3):  # one crash after the other: the disk does not fill with what they leave
        flip(disk, log.segments()[1].path, 65)
        first = log.segments()[1].base_offset
        log = recovered(log, env, 0)
        report = log.recover()
        assert len(report.removed) > 0
        assert contents(log) == rows(first)
        assert [disk.names[name].data for name in sorted(disk.names) if name.endswith(".damaged")] == later
        for number in range(first, 12):
            appended(log, batch(b"value %d" % number))
        assert contents(log) == rows(12)


def test_s2_a_recovery_that_goes_on_with_another_keeps_what_that_has_not(root, env, disk):
    log = filled(root, env)
    segments = log.segments()
    disk.rename(segments[-1].path, segments[-1].path + ".1.damaged")
    flip(disk, segments[1].path, 65)
    recovered(log, env, 0).recover()
    kept = [name[: len(segment.path)] for segment in segments for name in disk.names if name.endswith(".damaged")]
    assert {*kept} == {segment.path for segment in segments[2:]}


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
        appended(reopen(log.directory, env, **SMALL), batch(b"x"))
    log = recovered(log, env, 12)
    assert log.recover().cut_bytes == 200
    appended(log, batch(b"value 12"))
    assert contents(log) == rows(13)


def test_s3_a_flushed_end_that_is_gone_is_reported(root, env, disk):
    log = filled(root, env)
    disk.truncate(log.segments()[-1].path, 10)
    with pytest.raises(CorruptLogError, match="were flushed"):
        recovered(log, env, 12).recover()
    with pytest.raises(CorruptLogError, match="were flushed"):
        appended(recovered(log, env, 12), batch(b"x"))


def test_s4_a_flipped_bit_is_refused_by_an_append_and_found_by_verify(root, env, disk):
    log = filled(root, env)
    damaged = batch(b"value 12", first=12)
    damaged[-3] ^= 1
    for append in (partial(appended, log), log.append_as_follower):
        with pytest.raises(InvalidRecordError, match="CRC"):
            append(damaged)
    assert log.log_end_offset == 12
    assert list(log.verify()) == []
    place = log.read(5, max_bytes=1)
    flip(disk, place.path, place.position + 66)
    [found] = log.verify()
    assert (found.path, found.position) == (place.path, place.position)
    assert "CRC" in found.reason


def test_s4_a_flipped_bit_of_a_marker_is_found_by_verify(root, env, disk):
    """The transactions are unknown then: nothing is said of their index."""
    log = make(root, env)
    appended(log, build([Record(0, 1000, None, b"x")], attributes=TRANSACTIONAL, producer=(5, 0, 0)))
    ended(log, 5, 0, commit=False)
    assert list(log.verify()) == []
    place = log.read(1, max_bytes=1)
    flip(disk, place.path, place.position + 66)
    [found] = log.verify()
    assert (found.path, found.position) == (place.path, place.position)


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
        appended(log, build([row], attributes=TRANSACTIONAL, producer=(5, 0, sequence)))
    appended(log, batch(b"kept"))
    ended(log, 5, 0, commit=False)
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


def test_s8_after_a_failed_fsync_nobody_appends_until_the_store_was_checked(root, env, disk):
    log = filled(root, env)
    other = reopen(log.directory, env, **SMALL)
    appended(log, batch(b"value 12"))
    disk.fsync_fails = ".log"
    with pytest.raises(FailedStoreError):
        log.flush()
    assert log.point.offset == 12
    disk.fsync_fails = None  # the kernel would say that all is well now
    for anyone in (log, other, make(root, env, name="t-1")):
        with pytest.raises(FailedStoreError, match="pylog recover"):
            appended(anyone, batch(b"x"))
    assert contents(other) == rows(13)
    other.recover()


@pytest.mark.parametrize("room", range(0, 400, 7))
def test_s9_a_full_disk_undoes_the_append_and_reads_go_on(root, env, disk, room):
    log = filled(root, env)
    before = disk.state()
    disk.free_bytes = room
    records = bytearray().join(batch(b"x" * 30, first=i) for i in range(8))
    with pytest.raises(DiskFullError):
        appended(log, bytearray(records))
    assert contents(log) == rows(12)
    kept = {path: data for path, data in disk.state().items() if path.endswith(".log")}
    assert kept == {path: data for path, data in before.items() if path.endswith(".log")}
    disk.free_bytes = None
    assert appended(log, records).first_offset == 12
    assert len(contents(log)) == 20
    assert list(log.verify()) == []
