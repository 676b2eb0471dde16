"""The storage faults of whole segments and of offsets (S12 to S14, S18 to S20, S25), named after their sections."""

from pathlib import Path

import pytest

from logstore.env import Env
from logstore.errors import (
    CorruptLogError,
    InvalidRecordError,
)
from tests.support.disk import StillClock
from tests.support.partition import (
    SMALL,
    append_bytes,
    appended,
    batch,
    contents,
    filled,
    make,
    recovered,
    reopen,
    rows,
)


def test_s12_an_empty_active_segment_is_accepted(root, env):
    log = filled(root, env)
    log.roll()
    log.roll()
    log = recovered(log, env, 12)
    assert log.recover().log_end_offset == 12
    assert log.segments()[-1].size_bytes == 0
    appended(log, batch(b"value 12"))
    assert contents(log) == rows(13)


def test_s12_an_empty_segment_behind_a_lost_tail_is_removed(root, env, disk):
    log = filled(root, env)
    appended(log, batch(b"value 12"))
    log.roll()
    last = log.segments()[-2]
    disk.truncate(last.path, last.size_bytes - 5)
    log = recovered(log, env, 12)
    assert log.recover().log_end_offset == 12
    appended(log, batch(b"value 12"))
    assert contents(log) == rows(13)


def test_s13_a_log_cut_without_its_indexes_and_epochs_is_made_whole(root, env, disk):
    log = filled(root, env, 3)
    appended(log, batch(b"value 3"), leader_epoch=5)
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


def test_s19_an_offset_too_far_for_its_segment_is_named_and_cut_and_the_log_takes_appends(root, env, disk):
    log = filled(root, env, 3)
    appended(log, batch(b"value 3"))
    place = log.read(3, max_bytes=1)
    disk.names[place.path].data[place.position + 2] = 1  # its base offset, which no CRC covers
    log = recovered(log, env, 3)
    assert [(found.position, "too far" in found.reason) for found in log.verify()] == [(place.position, True)]
    assert log.recover().log_end_offset == 3
    appended(log, batch(b"value 3"))
    assert contents(log) == rows(4)
    assert list(log.verify()) == []


def test_s20_a_reader_finds_its_place_again_when_files_are_replaced_under_it(root, env, disk):
    log = filled(root, env)
    reader = reopen(log.directory, env, **SMALL)
    result = reader.read(0, max_bytes=1)
    log.truncate_to(1)
    for number in range(1, 12):
        appended(log, batch(b"other length %d" % number))
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
