"""A segment whose bytes and indexes are not in files is read as files are: readers ask its source for all."""

import bisect
from typing import NamedTuple

import pytest

from logstore.config import INT64_MAX
from logstore.env import Env, FileStat
from logstore.errors import CorruptLogError
from logstore.log.segments.closed import ClosedSegments
from logstore.log.segments.segment_reader import Request, SegmentReader
from logstore.log.segments.source import Index, SegmentSource
from logstore.records.batch import TRANSACTIONAL, Record, build
from tests.support.partition import appended, batch, ended, make

SPACE_BYTES = 64 * 1024


class MemoryIndex(NamedTuple):
    stored: list[tuple[int, ...]]

    def count(self):
        return len(self.stored)

    def last(self):
        return self.stored[-1] if self.stored else None

    def floor(self, key, *, by=0):
        number = bisect.bisect_right([entry[by] for entry in self.stored], key)
        return self.stored[number - 1] if number else None

    def entries(self):
        return list(self.stored)


class MemorySource:
    """A segment that was copied out of its directory."""

    def __init__(self, source: SegmentSource) -> None:
        self.base_offset, self.path = source.base_offset, f"memory:{source.base_offset}"
        self.index: Index = MemoryIndex(source.index.entries())
        self.time_index: Index = MemoryIndex(source.time_index.entries())
        self.bytes = source.read(0, source.extent().size)
        self._aborted = source.aborted()

    def extent(self):
        return FileStat(7, len(self.bytes), 0)

    def read(self, position, size):
        return self.bytes[position : position + size]

    def read_into(self, position, space):
        found = self.read(position, len(space))
        space[: len(found)] = found
        return len(found)

    def read_cached(self, position, size):
        return bytearray(self.read(position, size))

    def aborted(self):
        return self._aborted


@pytest.fixture
def log(tmp_path):
    made = make(tmp_path, Env(), segment_bytes=30_000, index_interval_bytes=600)
    for number in range(500):
        appended(made, batch(b"%d" % number, b"x" * (number % 7 * 60), timestamp=1000 + 5 * number))
    return made


@pytest.fixture
def pairs(log):
    """(segment in files, the same in memory, where the next one begins) of each segment."""
    view = log.files.refresh()
    ends = [*view.bases[1:], view.end]
    sources = [log.files.segment(base) for base in view.bases]
    assert len(sources) > 3
    return [(local, SegmentReader(MemorySource(local.source)), end) for local, end in zip(sources, ends, strict=True)]


def test_every_read_gives_the_same(pairs):
    for local, remote, end in pairs:
        for offset in range(local.base_offset, end, 3):
            position = local.floor_position(offset)
            assert remote.floor_position(offset) == position
            for space in (None, memoryview(bytearray(SPACE_BYTES))):
                for max_bytes, upper in ((1, INT64_MAX), (1000, INT64_MAX), (20_000, end - 2)):
                    request = Request(offset, max_bytes, upper, space)
                    found = local.read(request, position, end)
                    expected = found._replace(data=bytes(found.data))
                    again = remote.read(request, position, end)
                    assert again._replace(data=bytes(again.data)) == expected


def test_every_look_up_finds_the_same(pairs):
    for local, remote, end in pairs:
        size_bytes = local.size_bytes()
        assert remote.size_bytes() == size_bytes
        assert remote.tail(size_bytes) == local.tail(size_bytes)
        assert list(remote.headers(0, size_bytes)) == list(local.headers(0, size_bytes))
        for offset in range(local.base_offset, end, 11):
            assert remote.batch_at(offset) == local.batch_at(offset)
            assert remote.indexed_batch_before(offset) == local.indexed_batch_before(offset)
        for position in range(0, size_bytes, 997):
            assert remote.offset_at(position) == local.offset_at(position)
        for time_ms in range(900, 3700, 50):
            assert remote.first_since(time_ms, size_bytes, end) == local.first_since(time_ms, size_bytes, end)


def test_the_active_segment_is_read_without_waiting_in_the_same_way(log, pairs):
    view = log.files.refresh()
    local, remote, _ = pairs[-1]
    for position, found in local.headers(0, view.tail.position):
        asked = (found.base_offset, view.end, 1000, position, view.tail)
        assert (remote.read_cached(*asked) is None) == (local.read_cached(*asked) is None)
        if (expected := local.read_cached(*asked)) is not None:
            assert remote.read_cached(*asked) == expected


def test_what_is_known_of_closed_segments_is_the_same(log, pairs):
    bases = log.files.refresh().bases
    remote = {reader.base_offset: reader for _, reader, _ in pairs}
    ours, theirs = (ClosedSegments().table(bases, find) for find in (log.files.segment, remote.__getitem__))
    assert len(ours) == len(theirs) == len(bases) - 1
    assert [theirs[n][1:2] + theirs[n][3:] for n in range(len(theirs))] == [
        ours[n][1:2] + ours[n][3:] for n in range(len(ours))
    ]


def test_damage_is_found_and_named_by_the_source(pairs):
    local, remote, end = pairs[0]
    second = list(local.headers(0, local.size_bytes()))[1][0]
    stored = bytearray(remote.source.bytes)
    stored[second + 16] ^= 0xFF  # the magic byte
    remote.source.bytes = bytes(stored)
    with pytest.raises(CorruptLogError, match=f"memory:0.*{second}"):
        remote.read(Request(2, 1000, INT64_MAX, None), 0, end)


def test_aborted_transactions_come_from_the_source(tmp_path):
    log = make(tmp_path, Env())
    appended(log, build([Record(0, 1000, None, b"a")], attributes=TRANSACTIONAL, producer=(5, 0, 0)))
    ended(log, 5, 0, commit=False)
    source = log.files.segment(0).source
    assert [entry.producer_id for entry in source.aborted()] == [5]
    assert MemorySource(source).aborted() == list(log.producers.aborted(0, log.log_end_offset))
