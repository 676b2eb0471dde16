"""Where one segment may follow another, what lies between two offsets, and which record is the newest."""

from itertools import pairwise

import pytest

from logstore.errors import CorruptLogError
from logstore.log.segments import lookup
from logstore.log.segments.lookup import WIDE_GAP, check_end, discontinuity
from logstore.records.batch import stamp_max_timestamp
from tests.support.partition import appended, batch, make
from tests.support.poison import POISON

COMPACT = frozenset({"compact"})


def test_a_segment_begins_where_the_one_before_it_ends_or_behind_a_gap_too_wide_for_one(root, env):
    dense = make(root, env).files
    compacted = make(root, env, name="c-0", cleanup_policy=COMPACT).files
    was_compacted = make(root, env, name="w-0")
    was_compacted.files.view = was_compacted.files.view._replace(was_compacted=True)
    for files in (dense, compacted, was_compacted.files):
        assert discontinuity(files, 5, 5) is None
        assert "missing" in discontinuity(files, 5, 6)
        assert "missing" in discontinuity(files, 5, 5 + WIDE_GAP)
        assert "inside" in discontinuity(files, 5, 4)
    assert "missing" in discontinuity(dense, 5, 6 + WIDE_GAP)
    assert discontinuity(compacted, 5, 6 + WIDE_GAP) is None
    assert discontinuity(was_compacted.files, 5, 6 + WIDE_GAP) is None


def test_a_segment_where_nothing_is_found_ends_in_a_wide_gap_or_is_damaged(root, env):
    log = make(root, env, cleanup_policy=COMPACT)
    appended(log, batch(b"one"))
    segment = log.files.segment(0)
    check_end(log.files, segment, WIDE_GAP + 2, is_last=False)
    for following, is_last in ((WIDE_GAP + 2, True), (WIDE_GAP + 1, False), (WIDE_GAP, False)):
        with pytest.raises(CorruptLogError, match="missing"):
            check_end(log.files, segment, following, is_last=is_last)


def test_bytes_between_offsets_add_up_and_there_are_none_at_the_end(root, env):
    log = make(root, env, segment_bytes=200, max_message_bytes=200)
    for number in range(7):
        appended(log, batch(b"value %d" % number))
    sizes = [log.reader.bytes_between(one, two) for one, two in pairwise(range(8))]
    assert sum(sizes) == log.reader.bytes_between(0, 7) == sum(segment.size_bytes for segment in log.segments())
    assert len(set(sizes)) == 1
    assert (
        log.reader.bytes_between(7, 7),
        log.reader.bytes_between(7, 9),
        log.reader.bytes_between(3, 3),
    ) == (0, 0, 0)


def at(data, max_ms):
    """The batch with this largest time in its header."""
    stamp_max_timestamp(data, 0, max_ms)
    return data


@pytest.mark.parametrize("segment_bytes", [700, 1 << 20])
@pytest.mark.parametrize("kept", [1, lookup.HEADERS_KEPT])
def test_the_newest_record_is_one_that_is_there_and_can_be_read_whatever_headers_say(
    root, env, monkeypatch, segment_bytes, kept
):
    monkeypatch.setattr(lookup, "HEADERS_KEPT", kept)
    log = make(root, env, segment_bytes=segment_bytes)
    assert log.reader.newest() is None
    appended(log, batch(b"gone", timestamp=9000))
    appended(log, batch(b"a" * 300, timestamp=3000))
    appended(log, batch(b"b" * 300, timestamp=5000))  # at 2
    appended(log, at(batch(b"c" * 300, timestamp=4000), 8000))
    appended(log, batch(b"d" * 300, timestamp=5000))
    assert log.reader.newest() == (0, 9000)
    log.advance_start(1)
    assert log.reader.newest() == (2, 5000)
    for number, poison in enumerate(POISON.values()):
        appended(log, at(bytearray(poison), 9000 + number))
        assert log.reader.newest() == (2, 5000)
    appended(log, batch(b"e" * 300, timestamp=6000))
    end = log.log_end_offset
    assert log.reader.newest() == (end - 1, 6000)
    log.advance_start(end)
    assert log.reader.newest() is None


def test_a_time_is_not_that_of_a_record_in_a_batch_that_cannot_be_decoded_to_its_end(root, env):
    log = make(root, env)
    for poison in POISON.values():  # their first records can be decoded, and are of 1000
        appended(log, bytearray(poison))
    end = log.log_end_offset
    assert log.reader.offset_for_time(1000) is None
    appended(log, batch(b"a", timestamp=1000))
    assert log.reader.offset_for_time(1000) == (end, 1000)
