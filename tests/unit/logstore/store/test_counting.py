"""Records are counted by the headers of their batches: as many as a read finds, and no value is decoded."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.env import Env
from logstore.errors import CorruptLogError, OffsetOutOfRangeError
from logstore.maintenance import compaction
from logstore.records import arrow
from logstore.records.batch import COUNT_AT
from logstore.records.compression import Codec
from logstore.store.reading import count_isolated, read_isolated
from tests.support.disk import Disk, StillClock
from tests.support.repeats import times
from tests.unit.logstore.maintenance.test_compaction_transactions import Writer

STEP = st.one_of(
    st.tuples(
        st.just("append"),
        st.sampled_from([None, 1, 2]),
        st.lists(st.sampled_from("abcd"), min_size=1, max_size=5),
        st.sampled_from([Codec.NONE, Codec.ZSTD]),
    ),
    st.tuples(st.just("end"), st.sampled_from([1, 2]), st.booleans()),
    st.tuples(st.just("compact")),
    st.tuples(st.just("cut"), st.integers(0, 8)),
)


@pytest.fixture
def writer(tmp_path):
    return Writer(tmp_path, Env(StillClock(), Disk()))


def counts(log, start, end):
    return [count_isolated(log, start, end, how) for how in ("read_committed", "read_uncommitted")]


def reads(log, start, end):
    return [
        sum(rows.num_rows for rows in read_isolated(log, start, end, ["offset"], how))
        for how in ("read_committed", "read_uncommitted")
    ]


@settings(max_examples=times(60, 400))
@given(st.lists(STEP, min_size=1, max_size=25), st.data())
def test_as_many_as_a_read_finds(steps, data):
    writer = Writer(Path("/log"), Env(StillClock(), Disk()), cleanup_policy=frozenset({"compact", "delete"}))
    log = writer.log
    for kind, *arguments in steps:
        match kind:
            case "append":
                producer, keys, codec = arguments
                writer.append(producer, *keys, codec=codec)
            case "end":
                writer.end(arguments[0], commit=arguments[1])
            case "compact":
                log.roll()
                compaction.compact(log)
            case _:
                log.advance_start(min(log.log_start_offset + arguments[0], log.producers.last_stable_offset))
    first, last = log.log_start_offset, log.log_end_offset
    assert counts(log, first, last) == reads(log, first, last)
    start = data.draw(st.integers(first, last))
    end = data.draw(st.integers(start, last))
    assert counts(log, start, end) == reads(log, start, end)


def test_no_record_is_decoded_unless_a_range_cuts_a_batch_with_gaps(writer, monkeypatch):
    for _ in range(5):
        writer.append(None, "a", "b", "c")
    log = writer.log
    monkeypatch.setattr(arrow, "decode_pieces", None)
    assert counts(log, 0, 15) == [15, 15]
    assert counts(log, 1, 14) == [13, 13]
    monkeypatch.undo()
    writer.append(None, "a", "c")
    writer.compact()  # leaves b of the first batches
    end = log.log_end_offset
    assert counts(log, 0, end) == reads(log, 0, end) == [4, 4]
    for start, stop in itertools.combinations(range(end + 1), 2):
        assert counts(log, start, stop) == reads(log, start, stop)


def test_offsets_that_are_not_there_are_refused(writer):
    writer.append(None, "a", "b", "c")
    with pytest.raises(OffsetOutOfRangeError, match="offset 4 "):
        count_isolated(writer.log, 4, 9, "read_uncommitted")


def test_a_header_that_no_batch_has_is_damage(writer):
    for _ in range(3):
        writer.append(None, "a", "b")
    log, files = writer.log, writer.env.files
    path = log.segments()[0].path
    second = len(files.read_all(path)) // 3
    files.write(path, second + COUNT_AT, (9).to_bytes(4, "big"))
    with pytest.raises(CorruptLogError, match="9 records in 2 offsets"):
        count_isolated(log, 0, 6, "read_uncommitted")
