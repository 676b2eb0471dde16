"""The columns of the tables of topics: of records, of bad ones, and of parsed values."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from datasource.delta.table import DATE
from logstore.errors import InvalidRequestError
from logstore.schemas.conversion import is_supported
from logstore.schemas.ddl import type_name

_HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
_TIMESTAMP = pa.timestamp("us", tz="UTC")
PLACE = [
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", _TIMESTAMP),
    pa.field("timestampType", pa.int32()),
]
KEY, VALUE = pa.field("key", pa.binary()), pa.field("value", pa.binary())
HEADERS, DAY = pa.field("headers", _HEADERS), pa.field(DATE, pa.date32())
REASON = pa.field("reason", pa.string())

RAW = pa.schema([*PLACE, KEY, VALUE, HEADERS, DAY])  # a record, its value as bytes
BAD = pa.schema([*PLACE, KEY, VALUE, HEADERS, REASON, DAY])  # of `<topic>__dlq`


def typed_schema(fields: Sequence[pa.Field]) -> pa.Schema:
    """Return the columns of a table whose values are parsed; a field with the name of one of ours gets `value_` before.

    Raises: InvalidRequestError: a type that JSON cannot be parsed to, or a name twice.
    """
    ours = {f.name.lower() for f in (*PLACE, KEY, HEADERS, DAY)}
    columns = []
    for f in fields:
        if not is_supported(f.type):
            raise InvalidRequestError(f"schema: column {f.name!r} cannot be {type_name(f.type)}")
        columns.append(f.with_name(f"value_{f.name}") if f.name.lower() in ours else f)
    names = [f.name.lower() for f in columns]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InvalidRequestError(f"schema: column {twice[0]!r} appears twice")
    return pa.schema([*PLACE, KEY, HEADERS, *columns, DAY])
