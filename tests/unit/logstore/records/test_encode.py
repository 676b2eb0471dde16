import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import InvalidRecordError, RecordTooLargeError
from logstore.records import arrow, batch, encoding
from logstore.records.batch import HEADER_BYTES, Record
from logstore.records.compression import Codec
from logstore.records.encoding import encode
from logstore.records.rows import Rows
from logstore.records.schema import HEADERS_TYPE
from tests.support.records import INT64, record_lists, table_of

NOW = 1_234


def encoded(data, rows=None, *, codec=Codec.NONE, batch_bytes_max=1 << 20, **options):
    buffers = encode(Rows(data, now_ms=NOW), rows, codec=codec, batch_bytes_max=batch_bytes_max, **options)
    return b"".join(buffers)


def records(data):
    return [record for position, _ in batch.batches(data) for record in batch.records(data, position)]


def values(data):
    return [record.value for record in records(data)]


@given(record_lists(INT64), st.sampled_from(Codec), st.integers(9500, 30_000))
def test_every_record_is_there_once_in_order(rows, codec, batch_bytes):
    data = encoded(table_of(rows), codec=codec, batch_bytes=batch_bytes)
    assert records(data) == rows
    assert batch.whole_bytes(data, len(data))[0] == len(data)


@given(record_lists(max_size=20), st.lists(st.integers(0, 10**6), max_size=40), st.integers(1, 5))
def test_rows_select_and_order_over_slices_and_chunks(rows, picks, chunk):
    table = table_of(rows)
    padded = pa.concat_tables([table.slice(0, 1), table, table.slice(0, 1)]).combine_chunks()
    sliced = padded.slice(1, len(rows))
    chunked = pa.concat_tables([sliced.slice(i, chunk) for i in range(0, len(rows), chunk)])
    picked = np.array([pick % len(rows) for pick in picks], dtype=np.int32)
    expected = [rows[i]._replace(offset=n) for n, i in enumerate(picked)]
    for data in (table, sliced, chunked, *sliced.to_batches()):
        assert records(encoded(data, picked)) == expected
        assert records(encoded(data)) == rows


@given(record_lists(), st.integers(300, 400), st.sampled_from(Codec))
def test_no_batch_exceeds_the_limit_or_the_target(rows, batch_bytes_max, codec):
    small = [r._replace(key=None, value=(r.value or b"")[:40]) for r in rows]
    data = encoded(table_of(small), codec=codec, batch_bytes_max=batch_bytes_max, batch_bytes=100)
    assert records(data) == small
    for _, header in batch.batches(data):
        assert header.size_bytes <= batch_bytes_max
        assert header.count == 1 or header.size_bytes <= 100


@pytest.mark.parametrize("headers", [(), (("h", b"w"),)])
@pytest.mark.parametrize("size", [0, 1, 50, 63, 64, 8100, 8191, 8192, 100_000, 1_100_000])
def test_a_record_of_exactly_the_limit_fits(size, headers):
    table = table_of([Record(0, 5, b"key", bytes(size), headers)])
    exact = len(encoded(table, batch_bytes_max=1 << 30))
    assert len(encoded(table, batch_bytes_max=exact)) == exact
    for codec in Codec:
        with pytest.raises(RecordTooLargeError, match="row 0") as caught:
            encoded(table, codec=codec, batch_bytes_max=exact - 1)
        assert (caught.value.size_bytes, caught.value.limit_bytes) == (exact, exact - 1)


def test_a_record_that_is_too_large_is_named_by_its_row_in_the_data():
    table = pa.table({"value": [b"a", b"b" * 500, b"c"]})
    with pytest.raises(RecordTooLargeError, match="row 1"):
        encoded(table, np.array([2, 1]), batch_bytes_max=300)


def test_large_and_small_records_may_follow_each_other():
    rows = [Record(i, 0, None, bytes([i]) * (700_000 if i % 3 == 1 else 10)) for i in range(9)]
    assert records(encoded(table_of(rows), batch_bytes=10_000)) == rows


@pytest.mark.parametrize("codec", Codec)
def test_what_does_not_compress_is_stored_as_it_is(codec):
    noise = np.random.default_rng(1).bytes(50_000)
    header = batch.header_at(encoded(pa.table({"value": [noise]}), codec=codec))
    assert header.codec is Codec.NONE
    assert header.size_bytes < 50_100


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_what_compresses_is_compressed(codec):
    data = encoded(pa.table({"value": [b"again and " * 1000] * 10}), codec=codec)
    assert len(data) < 20_000
    assert {header.codec for _, header in batch.batches(data)} == {codec}


def test_what_no_reader_would_expand_is_not_compressed(monkeypatch):
    monkeypatch.setattr(encoding, "DECOMPRESSED_BYTES_MAX", 10_000)
    data = encoded(pa.table({"value": [bytes(9_000), bytes(11_000)]}), codec=Codec.ZSTD, batch_bytes=9_500)
    assert [header.codec for _, header in batch.batches(data)] == [Codec.ZSTD, Codec.NONE]
    decoded = arrow.decode(data, start=0, end=2)
    assert decoded.column("value").to_pylist() == [bytes(9_000), bytes(11_000)]


def test_buffers_are_writable_and_hold_whole_batches():
    table = pa.table({"value": [bytes(1000)] * 5000})
    buffers = list(encode(Rows(table, now_ms=NOW), codec=Codec.NONE, batch_bytes_max=1 << 20))
    assert 1 < len(buffers) < 10
    offset = 0
    for buffer in buffers:
        assert len(buffer) <= encoding.BATCH_BYTES + (1 << 20)
        assert batch.header_at(buffer).base_offset == offset
        for position, header in batch.batches(buffer):
            batch.stamp(buffer, position, 100 + header.base_offset, 7)
            offset = header.next_offset
        assert batch.whole_bytes(buffer, len(buffer))[0] == len(buffer)
    assert offset == 5000
    assert batch.header_at(buffers[1]).leader_epoch == 7


def test_a_fresh_batch_has_no_epoch_and_no_producer():
    header = batch.header_at(encoded(pa.table({"value": [b""]})))
    assert (header.leader_epoch, header.producer_id, header.producer_epoch, header.base_sequence) == (-1,) * 4


def test_no_rows_give_no_batches():
    table = pa.table({"key": pa.array([], pa.string()), "value": pa.array([], pa.binary())})
    assert encoded(table) == b""
    assert encoded(pa.table({"value": [b"a"]}), np.array([], dtype=np.int64)) == b""
    assert encoded(table.schema.empty_table()) == b""


TEXTS = ["", "a", None, "é" * 40, "long enough for a view to point elsewhere"]


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.binary(),
        pa.large_string(),
        pa.large_binary(),
        pa.string_view(),
        pa.binary_view(),
        pa.dictionary(pa.int32(), pa.string()),
    ],
    ids=str,
)
def test_every_kind_of_string_column_will_do(kind):
    texts = [text and text.encode() for text in TEXTS]
    column = pa.array(TEXTS, pa.string()).cast(kind)
    for data in (
        pa.table({"key": column, "value": column}),
        pa.record_batch({"key": column, "value": column}),
    ):
        found = records(encoded(data.slice(1)))
        assert [r.key for r in found] == [r.value for r in found] == texts[1:]


def test_columns_of_one_width_and_of_nulls_will_do():
    fixed = pa.array([b"1234", None, b"5678"], pa.binary(4))
    assert values(encoded(pa.table({"value": fixed}))) == [b"1234", None, b"5678"]
    assert values(encoded(pa.table({"value": pa.nulls(2)}))) == [None, None]
    assert values(encoded(pa.table({"key": [b"a"]}))) == [None]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([5, None, -1, 2**63 - 1]), [5, NOW, -1, 2**63 - 1]),
        (pa.array([1, None, -1], pa.timestamp("s")), [1000, NOW, -1000]),
        (pa.array([1, None, -1], pa.timestamp("ms", tz="Europe/Berlin")), [1, NOW, -1]),
        (pa.array([1999, None, -1], pa.timestamp("us", tz="UTC")), [1, NOW, -1]),
        (pa.array([1_999_999, None, -1], pa.timestamp("ns")), [1, NOW, -1]),
        (pa.nulls(2), [NOW, NOW]),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_timestamps_of_any_unit_become_milliseconds_rounded_down(column, expected):
    table = pa.table({"value": pa.nulls(len(column)), "timestamp": column})
    assert [r.timestamp for r in records(encoded(table))] == expected
    assert [r.timestamp for r in records(encoded(table.slice(1)))] == expected[1:]
    header = batch.header_at(encoded(table))
    assert (header.base_timestamp, header.max_timestamp) == (expected[0], max(expected))


@pytest.mark.parametrize("seconds", [2**63 // 1000 + 1, -(2**60)])
def test_seconds_that_overflow_milliseconds_are_refused(seconds):
    column = pa.array([1, seconds, None], pa.timestamp("s"))
    with pytest.raises(InvalidRecordError, match=rf"'timestamp': {seconds} s do not fit"):
        encoded(pa.table({"value": pa.nulls(3), "timestamp": column}))


def test_without_a_timestamp_it_is_now():
    assert records(encoded(pa.table({"value": [b""]})))[0].timestamp == NOW


def test_headers_may_be_any_list_of_key_and_value():
    large = pa.large_list(pa.struct([("value", pa.large_binary()), ("key", pa.large_string())]))
    rows = [None, [], [{"key": "a", "value": b"1"}, {"key": "", "value": None}], [{"key": "b", "value": b""}]]
    expected = [(), (), (("a", b"1"), ("", None)), (("b", b""),)]
    for kind in (HEADERS_TYPE, large):
        table = pa.table({"value": pa.nulls(4), "headers": pa.array(rows, kind)})
        chunked = pa.concat_tables([table, table])
        assert [r.headers for r in records(encoded(table.slice(1)))] == expected[1:]
        assert [r.headers for r in records(encoded(chunked, np.arange(7, -1, -1)))] == (expected * 2)[::-1]
    assert records(encoded(pa.table({"value": [b""], "headers": pa.nulls(1)})))[0].headers == ()


@pytest.mark.parametrize(
    ("name", "column", "message"),
    [
        ("value", pa.array([1]), "column 'value' is int64: it must be string or binary"),
        ("key", pa.array([Decimal(1)]), "column 'key' is decimal"),
        ("timestamp", pa.array([dt.date(2020, 1, 1)]), "column 'timestamp' is date32"),
        ("timestamp", pa.array(["now"]), "column 'timestamp' is string"),
        ("headers", pa.array([b"a"]), "column 'headers' is binary: it must be list<struct"),
        ("headers", pa.array([[b"a"]]), "column 'headers' is list"),
        ("headers", pa.array([[None]], HEADERS_TYPE), "a header that is null"),
        ("headers", pa.array([[{"key": None, "value": b""}]], HEADERS_TYPE), "a header whose key is null"),
    ],
)
def test_a_column_of_a_wrong_kind_is_refused(name, column, message):
    with pytest.raises(InvalidRecordError, match=message):
        encoded(pa.table({name: column}))


@pytest.mark.parametrize("row", [-1, 2, 2**40])
def test_rows_outside_the_data_are_refused(row):
    with pytest.raises(InvalidRecordError, match="rows outside the 2 rows"):
        encoded(pa.table({"value": [b"a", b"b"]}), np.array([0, row]))


def test_the_smallest_record_takes_what_the_format_says():
    data = encoded(pa.table({"value": [b""]}))
    assert len(data) == HEADER_BYTES + batch.RECORD_BYTES_MIN
