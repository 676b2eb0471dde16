"""Records for the tests: a strategy for any of them, and the ways between records and Arrow."""

import pyarrow as pa
from hypothesis import strategies as st

from logstore.records.batch import Record
from logstore.records.schema import HEADERS_TYPE

INT64 = st.integers(-(2**63), 2**63 - 1)
DATES_MS = st.integers(0, 2**42)

_bytes = st.none() | st.binary(max_size=40) | st.binary(min_size=60, max_size=70) | st.just(bytes(9000))
_names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_headers = st.lists(st.tuples(_names, st.none() | st.binary(max_size=12)), max_size=3).map(tuple)


def record_lists(timestamps=DATES_MS, *, max_size=30):
    """Lists of records with offsets from 0."""
    rows = st.lists(st.tuples(timestamps, _bytes, _bytes, _headers), min_size=1, max_size=max_size)
    return rows.map(lambda rows: [Record(i, *row) for i, row in enumerate(rows)])


def numbered(n, start=0, size=20):
    """`n` plain records, keys on every third, a header on every fourth."""
    return [
        Record(
            start + i,
            1_700_000_000_000 + i,
            b"key-%d" % i if i % 3 == 0 else None,
            bytes([i % 251]) * size,
            (("trace", b"%d" % i), ("none", None)) if i % 4 == 0 else (),
        )
        for i in range(n)
    ]


def table_of(records):
    """The records as a table to append."""
    return pa.table(
        {
            "key": pa.array([r.key for r in records], pa.binary()),
            "value": pa.array([r.value for r in records], pa.binary()),
            "timestamp": pa.array([r.timestamp for r in records], pa.int64()),
            "headers": pa.array([list(r.headers) or None for r in records], HEADERS_TYPE),
        }
    )


def records_of(batch):
    """The records of a decoded RecordBatch with all columns, after Arrow's own full check."""
    batch.validate(full=True)
    timestamps = batch.column("timestamp").cast(pa.int64()).to_pylist()
    headers = [
        tuple((h["key"], h["value"]) for h in row) if row is not None else ()
        for row in batch.column("headers").to_pylist()
    ]
    columns = (batch.column(name).to_pylist() for name in ("key", "value"))
    return [Record(*row) for row in zip(batch.column("offset").to_pylist(), timestamps, *columns, headers, strict=True)]
