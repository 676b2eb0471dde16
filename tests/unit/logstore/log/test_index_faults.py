"""The storage faults of indexes, checkpoints and leader epochs (S6, S7, S10, S11, S15, S16)."""

import struct
from pathlib import Path

import pytest

from logstore.checkpoint import CheckpointError, read_checkpoint, write_checkpoint
from logstore.errors import (
    DiskFullError,
)
from logstore.log.leader_epochs import EpochStart
from logstore.records.batch import header_at
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
    appended(log, batch(b"value 20", timestamp=20_000))
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
    appended(log, batch(b"value 3"))
    assert list(log.verify()) == []
    assert contents(log) == rows(4)


def test_s7_indexes_that_speak_of_batches_behind_a_hole_do_not_stop_recovery(root, env, disk):
    """Power went: both indexes are on the disk, and of the log some blocks only."""
    log = make(root, env, index_interval_bytes=100)
    for number in range(20):
        appended(log, batch(b"value %d" % number, timestamp=1000 * number))
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
        appended(log, batch(b"value %d" % log.log_end_offset), leader_epoch=epoch)
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
    appended(log, batch(b"value 4"), leader_epoch=3)
    path = log.directory / "leader-epoch-checkpoint"
    disk.unlink(path)
    if content is not None:
        disk.create(path)
        disk.write(path, 0, content)
    log = reopen(log.directory, env, **SMALL)
    appended(log, batch(b"value 5"), leader_epoch=3)
    appended(log, batch(b"value 6"), leader_epoch=4)
    assert log.epochs.starts == ((0, 0), (3, 4), (4, 6))
