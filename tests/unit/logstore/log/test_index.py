"""Indexes: a look-up in the file equals a search of the list, whatever its length."""

import bisect

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from logstore.log.segments.index import BLOCK_ENTRIES, offset_index, time_index
from tests.support.partition import appended, batch, make
from tests.support.repeats import times

any_index = pytest.mark.parametrize("kind", [offset_index, time_index])
entries = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=0, max_size=3 * BLOCK_ENTRIES).map(
    lambda steps: [(sum(a for a, _ in steps[: i + 1]), sum(b for _, b in steps[: i + 1])) for i in range(len(steps))]
)


@any_index
@settings(max_examples=times(25, 200), deadline=None, suppress_health_check=list(HealthCheck))
@given(entries=entries, key=st.integers(-1, 3_000), by=st.integers(0, 1))
def test_floor_and_truncation_equal_a_search_of_the_list(env, disk, kind, entries, key, by):
    disk.names.clear()
    index = kind(env, "/store/i")
    half = len(entries) // 2
    index.append(entries[:half])
    index.append(entries[half:])
    assert index.entries() == entries
    assert index.last() == (entries[-1] if entries else None)
    below = bisect.bisect_right([entry[by] for entry in entries], key)
    assert index.floor(key, by=by) == (entries[below - 1] if below else None)
    index.truncate_below(key, by=by)
    assert index.entries() == [entry for entry in entries if entry[by] < key]


def test_entries_are_kafkas_bytes(env, disk):
    offset_index(env, "/store/o").append([(5, 4097)])
    time_index(env, "/store/t").append([(1_700_000_000_000, 5)])
    assert disk.read_all("/store/o").hex() == "0000000500001001"
    assert disk.read_all("/store/t").hex() == "0000018bcfe5680000000005"


@any_index
def test_a_partial_entry_does_not_count_and_is_overwritten(env, disk, kind):
    index = kind(env, "/store/i")
    index.append([(1, 10), (2, 20)])
    disk.write("/store/i", len(disk.read_all("/store/i")), b"\x07\x07\x07")
    assert (index.count(), index.last()) == (2, (2, 20))
    index.append([(3, 30)])
    assert index.entries() == [(1, 10), (2, 20), (3, 30)]


@any_index
def test_a_look_up_reads_little_of_a_large_index(env, disk, kind, monkeypatch):
    index = kind(env, "/store/i")
    index.append([(number, number) for number in range(1, 200_000)])
    read, sizes = disk.read, []
    monkeypatch.setattr(disk, "read", lambda p, at, size: sizes.append(size) or read(p, at, size))
    assert index.floor(123_456) == (123_456, 123_456)
    assert len(sizes) < 20
    assert sum(sizes) < 8192


@any_index
def test_an_index_that_is_not_there_is_empty(env, kind):
    index = kind(env, "/store/i")
    assert (index.count(), index.last(), index.floor(3), index.entries()) == (0, None, None, [])
    index.truncate_below(5)


def test_indexes_that_are_rebuilt_are_those_that_were_written(root, env, disk):
    log = make(root, env, index_interval_bytes=100)
    for number in range(10):
        appended(log, batch(b"value %d" % number, timestamp=1000 * number))
    segment = log.files.segment(0)
    paths = segment.index.path, segment.time_index.path
    written = [bytes(disk.names[path].data) for path in paths]

    segment.rebuild_indexes(segment.size_bytes(), 100)

    assert [bytes(disk.names[path].data) for path in paths] == written
    assert all(written)
