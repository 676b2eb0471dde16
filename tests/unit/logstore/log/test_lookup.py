"""Where one segment may follow another, and what lies between two offsets."""

from itertools import pairwise

import pytest

from logstore.config import LogConfig
from logstore.errors import CorruptLogError
from logstore.log.segments.lookup import WIDE_GAP, check_ends, discontinuity
from tests.support.partition import batch, make

DENSE, COMPACTED = LogConfig(), LogConfig(cleanup_policy=frozenset({"compact"}))


def test_a_segment_begins_where_the_one_before_it_ends_or_behind_a_gap_too_wide_for_one():
    for config in (DENSE, COMPACTED):
        assert discontinuity(5, 5, config) is None
        assert "missing" in discontinuity(5, 6, config)
        assert "missing" in discontinuity(5, 5 + WIDE_GAP, config)
        assert "inside" in discontinuity(5, 4, config)
    assert "missing" in discontinuity(5, 6 + WIDE_GAP, DENSE)
    assert discontinuity(5, 6 + WIDE_GAP, COMPACTED) is None


def test_a_segment_where_nothing_is_found_ends_in_a_wide_gap_or_is_damaged(root, env):
    log = make(root, env)
    log.append_as_leader(batch(b"one"))
    segment = log.files.segment(0)
    check_ends(segment, WIDE_GAP + 2, may_have_gaps=True)
    for following, may_have_gaps in ((WIDE_GAP + 2, False), (WIDE_GAP + 1, True), (WIDE_GAP, True)):
        with pytest.raises(CorruptLogError, match="missing"):
            check_ends(segment, following, may_have_gaps=may_have_gaps)


def test_bytes_between_offsets_add_up_and_there_are_none_at_the_end(root, env):
    log = make(root, env, segment_bytes=200, max_message_bytes=200)
    for number in range(7):
        log.append_as_leader(batch(b"value %d" % number))
    sizes = [log.reader.bytes_between(one, two) for one, two in pairwise(range(8))]
    assert sum(sizes) == log.reader.bytes_between(0, 7) == sum(segment.size_bytes for segment in log.segments())
    assert len(set(sizes)) == 1
    assert (
        log.reader.bytes_between(7, 7),
        log.reader.bytes_between(7, 9),
        log.reader.bytes_between(3, 3),
    ) == (0, 0, 0)
