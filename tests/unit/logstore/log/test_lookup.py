"""Where one segment may follow another, and what lies between two offsets."""

from itertools import pairwise

import pytest

from logstore.errors import CorruptLogError
from logstore.log.segments.lookup import WIDE_GAP, check_end, discontinuity
from tests.support.partition import batch, make

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
    log.append_as_leader(batch(b"one"))
    segment = log.files.segment(0)
    check_end(log.files, segment, WIDE_GAP + 2, is_last=False)
    for following, is_last in ((WIDE_GAP + 2, True), (WIDE_GAP + 1, False), (WIDE_GAP, False)):
        with pytest.raises(CorruptLogError, match="missing"):
            check_end(log.files, segment, following, is_last=is_last)


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
