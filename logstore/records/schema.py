"""The columns of records in Arrow."""

from __future__ import annotations

from functools import cache

import pyarrow as pa

BINARY = pa.binary()
HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", BINARY)]))
RECORD_SCHEMA = pa.schema(
    [
        ("key", BINARY),
        ("value", BINARY),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", HEADERS_TYPE),
    ]
)


@cache
def schema_of(names: tuple[str, ...]) -> pa.Schema:
    """The columns of RECORD_SCHEMA with these names, in this order."""
    return pa.schema([RECORD_SCHEMA.field(name) for name in names])
