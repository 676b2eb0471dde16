"""The properties of a sound batch that may be appended, and the end of a segment."""

import pytest

from logstore.config import LogConfig
from logstore.errors import InvalidRecordError, InvalidTimestampError
from logstore.log.segments.end import SegmentEnd
from logstore.log.validation import (
    Limits,
    check_times,
    limits_of,
    must_roll,
    segment_room,
    valid_batches,
)
from logstore.records.batch import TRANSACTIONAL, Record, build, header_at
from logstore.records.marker import end_marker

ROWS = [Record(0, 1000, None, b"one"), Record(1, 1010, None, b"two")]
LIMITS = limits_of(LogConfig(), None)


@pytest.mark.parametrize("producer", [(0, 0, 0), (7, 3, 2**31 - 1), None])
def test_what_writers_send_is_valid(producer):
    data = build(ROWS, producer=producer) if producer else build(ROWS)
    (batch,) = valid_batches(data, LIMITS)
    assert batch.count == 2


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (end_marker((7, 0), commit=True, coordinator_epoch=0, now_ms=1), "control batch"),
        (build(ROWS, producer=(7, -1, 0)), "epoch -1"),
        (build(ROWS, producer=(7, 0, -1)), "sequence -1"),
        (build(ROWS, attributes=TRANSACTIONAL), "without a producer id"),
    ],
    ids=["a marker", "no epoch", "no sequence", "a transaction of nobody"],
)
def test_what_only_leaders_send_is_refused_from_writers(data, reason):
    with pytest.raises(InvalidRecordError, match=reason):
        valid_batches(data, LIMITS)
    assert len(valid_batches(data, None)) == 1


@pytest.mark.parametrize(
    ("allowed", "is_allowed"),
    [
        (range(1000, 1011), True),
        (range(1001, 1011), False),
        (range(1000, 1010), False),
        (range(2000, 3000), False),
        (range(0, 500), False),
    ],
)
def test_the_first_and_the_largest_time_must_be_allowed(allowed, is_allowed):
    batch, limits = header_at(build(ROWS)), Limits(1000, allowed.start, allowed.stop - 1)
    if is_allowed:
        check_times(batch, limits)
    else:
        with pytest.raises(InvalidTimestampError):
            check_times(batch, limits)


def test_a_batch_that_is_larger_than_a_segment_is_in_one_of_its_own():
    batch = header_at(build(ROWS))
    config = LogConfig(segment_bytes=14)
    empty = SegmentEnd(0, 0, first_timestamp_ms=1)
    room = segment_room(config, 0, "t-0", empty)
    assert not must_roll(room, 0, batch.size_bytes, 1, 1010, 0)
    assert must_roll(room, 1, batch.size_bytes, 1, 1010, 0)
