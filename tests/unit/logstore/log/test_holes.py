"""Damaged ranges are filled with what was there, from wherever it is, and with nothing else."""

from itertools import pairwise

import pytest

from logstore.errors import CorruptLogError, InvalidRecordError, OffsetOutOfRangeError
from logstore.log import holes
from logstore.log.holes import SegmentCopy
from tests.support.partition import appended, batch, contents, make, reopen

SMALL = {"segment_bytes": 400, "index_interval_bytes": 100, "max_message_bytes": 400}
COUNT = 14
ALL = [(number, b"value %d" % number) for number in range(COUNT)]


def filled(root, env, name="t-0"):
    """One batch per record, an epoch for each three of them."""
    log = make(root, env, name=name, **SMALL)
    for number in range(COUNT):
        appended(log, batch(b"value %d" % number, timestamp=1000 * number), leader_epoch=number // 3)
    log.flush()
    return log


def damage(disk, log, offset, at=65):
    """Another bit of the batch of this offset, `at` bytes from where it begins."""
    found = log.read(offset, max_bytes=1)
    disk.names[found.path].data[found.position + at] ^= 0x10


def all_holes(log):
    return [hole for base in log.files.reread().bases for hole in holes.find(log, base)]


def fill(log, other, *, put=True):
    """From what the other has, batch by batch; what it has not is left."""
    for base in log.files.view.bases:
        copy = SegmentCopy(log, base)
        for found in holes.find(log, base):
            hole = found
            while hole.start != hole.end:
                try:
                    hole = copy.fill(hole, other.read(hole.start, max_bytes=1).data)
                except (CorruptLogError, InvalidRecordError, OffsetOutOfRangeError):
                    break
        if put:
            copy.put()


def bytes_of(disk, log):
    return {
        path.rpartition("/")[2]: bytes(inode.data)
        for path, inode in disk.names.items()
        if path.startswith(f"{log.directory}/") and path.endswith((".log", ".index", ".timeindex"))
    }


@pytest.mark.parametrize("at", [2, 7, 8, 11, 16, 17, 20, 23, 26, 57, 65])
@pytest.mark.parametrize("offset", range(COUNT))
def test_whatever_byte_is_damaged_it_is_as_it_was_afterwards_or_its_end_cannot_be_told(root, env, disk, offset, at):
    if (offset, at) == (COUNT - 1, 7):
        return  # a higher base offset of the last batch, which has no neighbour to tell, is a gap
    log, other = filled(root, env), filled(root, env, "u-0")
    before = bytes_of(disk, log)
    damage(disk, log, offset, at)
    assert all_holes(log) != []

    fill(log, other)

    if bytes_of(disk, log) == before:
        assert (all_holes(log), list(log.verify()), contents(log)) == ([], [], ALL)
        assert any(path.endswith(".damaged") for path in disk.names)
    else:
        hole = all_holes(log)[-1]  # behind the last index entry of the active segment
        assert hole.end is None or hole.end > COUNT
        assert offset >= hole.base == log.files.view.bases[-1]


def test_two_that_are_damaged_in_turns_make_each_other_whole(root, env, disk):
    one, other = filled(root, env), filled(root, env, "u-0")
    before = bytes_of(disk, one)
    for number in range(COUNT):
        damage(disk, (one, other)[number % 2], number)

    fill(one, other)
    fill(other, one)

    assert bytes_of(disk, one) == bytes_of(disk, other) == before
    assert appended(one, batch(b"next"), leader_epoch=9).first_offset == COUNT
    recovered = reopen(one.directory, env, recovery_point=COUNT, **SMALL).recover()
    assert (recovered.cut_bytes, recovered.rebuilt) == (0, ())


def test_what_is_damaged_on_both_stays_damaged_and_what_is_around_it_is_filled(root, env, disk):
    one, other = filled(root, env), filled(root, env, "u-0")
    for number in (4, 5, 6):
        damage(disk, one, number)
    damage(disk, other, 5)

    fill(one, other)

    assert [(hole.start, hole.end) for hole in all_holes(one)] == [(5, 6)]
    assert contents(one, 6) == ALL[6:]
    assert contents(one, 0, upper=5) == ALL[:5]


def test_a_segment_that_lost_its_end_has_it_again(root, env, disk):
    one, other = filled(root, env), filled(root, env, "u-0")
    before, first = bytes_of(disk, one), one.segments()[0]
    del disk.names[first.path].data[-100:]

    fill(one, other)

    assert bytes_of(disk, one) == before
    assert all_holes(one) == []


@pytest.mark.parametrize(
    "wrong",
    [
        batch(b"value 4", first=4, timestamp=4000, epoch=2),
        batch(b"value 4", first=5, timestamp=4000, epoch=1),
        batch(b"value four", first=4, timestamp=4000, epoch=1),
        batch(b"value 4", b"value 5", first=4, timestamp=4000, epoch=1),
        b"",
    ],
    ids=["another epoch", "another offset", "another size", "two where one was", "nothing"],
)
def test_nothing_is_filled_with_what_was_not_there(root, env, disk, wrong):
    log = filled(root, env)
    damage(disk, log, 4)
    before = bytes_of(disk, log)
    (hole,) = all_holes(log)
    copy = SegmentCopy(log, hole.base)

    with pytest.raises(InvalidRecordError):
        copy.fill(hole, bytes(wrong))

    copy.drop()
    assert bytes_of(disk, log) == before
    assert not any(path.endswith(".tmp") for path in disk.names)


def test_damage_in_what_would_fill_is_seen(root, env, disk):
    log, other = filled(root, env), filled(root, env, "u-0")
    damage(disk, log, 4)
    damage(disk, other, 4)
    (hole,) = all_holes(log)
    with pytest.raises(InvalidRecordError, match="CRC"):
        SegmentCopy(log, hole.base).fill(hole, other.read(4, max_bytes=1).data)


def test_writers_go_on_while_a_hole_of_the_active_segment_is_filled(root, env, disk):
    log, other = filled(root, env), filled(root, env, "u-0")
    active = log.segments()[-1]
    damage(disk, log, active.base_offset)
    (hole,) = all_holes(log)
    copy = SegmentCopy(log, hole.base)
    copy.fill(hole, other.read(hole.start, max_bytes=1).data)
    for number in range(COUNT, COUNT + 10):  # beyond the end of the segment
        appended(log, batch(b"value %d" % number), leader_epoch=9)

    assert copy.put() is not None

    appended(log, batch(b"last"), leader_epoch=9)
    assert list(log.verify()) == []
    assert contents(log) == [
        *ALL,
        *((n, b"value %d" % n) for n in range(COUNT, COUNT + 10)),
        (COUNT + 10, b"last"),
    ]


def test_a_segment_that_was_cut_meanwhile_is_not_put_back(root, env, disk):
    log, other = filled(root, env), filled(root, env, "u-0")
    damage(disk, log, 1)
    (hole,) = all_holes(log)
    copy = SegmentCopy(log, hole.base)
    copy.fill(hole, other.read(hole.start, max_bytes=1).data)
    log.truncate_to(0)

    assert copy.put() is None
    assert (log.log_end_offset, contents(log)) == (0, [])
    assert not any(path.endswith(".tmp") for path in disk.names)


def test_segments_follow_each_other_as_before(root, env, disk):
    log, other = filled(root, env), filled(root, env, "u-0")
    for number in (0, 3, 8):
        damage(disk, log, number)
    before = [(s.base_offset, s.size_bytes, s.appended_ms) for s in log.segments()]
    fill(log, other)
    assert [(s.base_offset, s.size_bytes, s.appended_ms) for s in log.segments()] == before
    assert all(one.next_offset == two.base_offset for one, two in pairwise(log.segments()))
