import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.records import batch as b
from logstore.records.batch import Record, build
from logstore.records.compression import Codec
from logstore.records.keyed import build_keyed
from logstore.records.marker import ControlMarker, control_marker
from tests.support.records import INT64, numbered, record_lists


@given(record_lists(INT64))
def test_what_is_built_is_read_back(records):
    assert list(b.records(build(records))) == records


@pytest.mark.parametrize("codec", Codec)
def test_a_header_says_what_is_in_the_batch(codec):
    header = b.header_at(build(numbered(50, start=7), codec=codec, leader_epoch=3, producer=(9, 2, 40)))
    assert (header.base_offset, header.last_offset, header.next_offset, header.count) == (7, 56, 57, 50)
    assert (header.codec, header.timestamp_type, header.leader_epoch) == (codec, 0, 3)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 40)
    assert (header.base_timestamp, header.max_timestamp) == (1_700_000_000_000, 1_700_000_000_049)
    assert not header.is_control
    assert not header.is_transactional


def test_offsets_of_a_compacted_batch_have_gaps():
    records = [r for r in numbered(10) if r.offset in (0, 4, 9)]
    assert [r.offset for r in b.records(build(records))] == [0, 4, 9]


@given(st.lists(st.tuples(st.binary(max_size=1100), st.none() | st.binary(max_size=70)), min_size=1, max_size=70))
def test_a_batch_of_keys_and_values_is_what_is_built_of_such_records(pairs):
    built = build_keyed(pairs, 1_700_000_000_123)
    assert built == build([Record(n, 1_700_000_000_123, *pair) for n, pair in enumerate(pairs)])


def test_stamping_moves_offsets_and_leaves_the_crc_right():
    data = build(numbered(3))
    crc = b.header_at(data).crc
    b.stamp(data, 0, 1000, 12)
    header = b.header_at(data)
    b.check(data, 0, header)
    assert (header.base_offset, header.leader_epoch, header.crc) == (1000, 12, crc)
    assert [r.offset for r in b.records(data)] == [1000, 1001, 1002]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_append_time_replaces_every_timestamp(codec):
    data = build(numbered(3), codec=codec)
    b.stamp_append_time(data, 0, 77)
    header = b.header_at(data)
    assert (header.timestamp_type, header.max_timestamp, header.codec) == (1, 77, codec)
    assert {r.timestamp for r in b.records(data)} == {77}


def test_timestamps_wrap_around_as_in_java():
    records = [Record(0, 2**63 - 1, None, b""), Record(1, -(2**63), None, b"")]
    assert [r.timestamp for r in b.records(build(records))] == [2**63 - 1, -(2**63)]


def test_markers_of_transactions_are_recognised():
    record = Record(5, 0, struct.pack(">hh", 0, 1), struct.pack(">hi", 0, 21))
    data = build([record], attributes=b.CONTROL | b.TRANSACTIONAL, producer=(4, 0, -1))
    header = b.header_at(data)
    assert header.is_control
    assert header.is_transactional
    assert [control_marker(r) for r in b.records(data)] == [ControlMarker("COMMIT", 21)]
    assert control_marker(record._replace(key=b"\0\0\0\0")).kind == "ABORT"
    assert control_marker(record._replace(key=b"\0", value=None)) == ControlMarker("UNKNOWN", -1)


def test_walking_stops_at_a_partial_tail():
    first, second = build(numbered(3)), build(numbered(2, start=3))
    data = first + second
    ends = [len(first), len(data)]
    assert [(p, h.base_offset) for p, h in b.batches(data)] == [(0, 0), (len(first), 3)]
    for cut in range(len(data)):
        whole = [end for end in ends if end <= cut]
        assert [p + h.size_bytes for p, h in b.batches(data[:cut])] == whole
        assert b.whole_bytes(data, cut)[0] == (whole[-1] if whole else 0)


def test_whole_bytes_stops_below_an_offset():
    parts = [build(numbered(2, start=2 * i)) for i in range(4)]
    data = b"".join(parts)
    size = len(parts[0])
    assert b.whole_bytes(data, len(data), upper=4) == (2 * size, size)
    assert b.whole_bytes(data, len(data), upper=5) == (3 * size, 2 * size)
    assert b.whole_bytes(data, len(data), upper=0) == (0, 0)
    assert b.whole_bytes(data, len(data), start=size) == (len(data), 3 * size)


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48])
def test_a_length_that_no_batch_has_ends_the_walk(length):
    data = build(numbered(2))
    struct.pack_into(">i", data, 8, length)
    assert b.whole_bytes(data, len(data)) == (0, 0)
    with pytest.raises(b.InvalidBatchError, match="length"):
        b.header_at(data)


@pytest.mark.parametrize(
    ("at", "form", "value", "reason"),
    [
        (0, ">q", -1, "offsets"),
        (0, ">q", 2**63 - 1, "offsets"),
        (16, ">b", 1, "magic 1"),
        (21, ">h", 5, "unknown codec 5"),
        (23, ">i", -1, "offsets"),
        (57, ">i", -1, "-1 records"),
        (57, ">i", 99, "99 records in 2 offsets"),
    ],
)
def test_a_header_that_no_batch_has_is_refused(at, form, value, reason):
    data = build(numbered(2))
    struct.pack_into(form, data, at, value)
    with pytest.raises(b.InvalidBatchError, match=reason):
        b.header_at(data)


def test_every_flipped_bit_under_the_crc_is_seen():
    data = build(numbered(2, size=3))
    header = b.header_at(data)
    for at in range(17, len(data)):
        for bit in range(8):
            data[at] ^= 1 << bit
            with pytest.raises(b.InvalidBatchError, match=r"."):
                b.check(data, 0, b.header_at(data))
            data[at] ^= 1 << bit
    b.check(data, 0, header)


def test_an_error_tells_where():
    data = build(numbered(2)) * 2
    second = len(data) // 2
    data[-1] ^= 1
    with pytest.raises(b.InvalidBatchError, match="CRC-32C") as caught:
        list(b.records(data, second))
    assert caught.value.position == second
    with pytest.raises(b.InvalidBatchError, match="where a header has 61"):
        b.header_at(data, len(data) - 60)
    with pytest.raises(b.InvalidBatchError, match="bytes of a batch of"):
        b.check(data[:-1], second, b.header_at(data, second))
