"""Records of the log as the columns that Spark asked for, and the columns that a DataFrame may write.

Spark compares Arrow schemas exactly: names, order, types, nullability.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema

from datasource.topics.timestamps import Clamped, microseconds
from logstore import InvalidRecordError, InvalidRequestError
from logstore.errors import did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS = "headers"


_HEADER = types.StructType(
    [types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())]
)

TYPES: dict[str, types.DataType] = {
    "key": types.BinaryType(),
    "value": types.BinaryType(),
    "topic": types.StringType(),
    "partition": types.IntegerType(),
    "offset": types.LongType(),
    "timestamp": types.TimestampType(),
    "timestampType": types.IntegerType(),
    HEADERS: types.ArrayType(_HEADER),
}
_CONSTANT = ("topic", "partition")  # the same in every row of a partition: not stored with the records


def spark_schema(columns: Sequence[str]) -> types.StructType:
    return types.StructType([types.StructField(name, TYPES[name]) for name in columns])


def check_read_schema(schema: types.StructType) -> None:
    """Raise InvalidRequestError unless every field of a user's schema is a column of ours, with its type."""
    ours = {name.lower(): kind for name, kind in TYPES.items()}
    for field in schema.fields:
        if field.name.lower() not in ours:
            raise InvalidRequestError(f"schema: no column {field.name!r}{_meant(field.name, TYPES)}")
        if field.dataType.simpleString() != ours[field.name.lower()].simpleString():  # nullability aside
            raise InvalidRequestError(
                f"schema: column {field.name!r} is {ours[field.name.lower()].simpleString()}, "
                f"not {field.dataType.simpleString()}; read it so, and cast afterwards"
            )


def _meant(name: str, columns: Iterable[str]) -> str:
    hint = did_you_mean(name, columns)
    return hint if "did you mean" in hint else f"{hint}; for columns of the values set option value.format"


class Shape:
    """The wanted columns: which to read from the log, and how to make Spark's batches of them.

    `clamped` counts the times that Spark cannot hold: one instance makes the batches of one range.
    """

    misfits = 0  # bytes fit always

    def __init__(self, schema: types.StructType | pa.Schema) -> None:
        ours = {name.lower(): name for name in TYPES}
        self._schema = to_arrow_schema(schema, timezone="UTC") if isinstance(schema, types.StructType) else schema
        self._names = [ours[name.lower()] for name in self._schema.names]
        # Without a stored column nothing says how many rows there are.
        self.stored = [name for name in self._names if name not in _CONSTANT] or ["offset"]
        if "timestamp" in self.stored and "offset" not in self.stored:
            self.stored.append("offset")  # so that a time which Spark cannot hold has a place
        self.clamped = Clamped()

    @property
    def notes(self) -> list[str]:
        """Lines for the log, when a range is read."""
        return [str(self.clamped)] if self.clamped.count else []

    def flush(self) -> None:
        """Nothing is written."""

    def batch(self, records: pa.RecordBatch, topic: str, partition: int) -> pa.RecordBatch:
        """Return the batch for Spark; only timestamps (milliseconds to microseconds) are computed."""
        import pyarrow as pa

        rows = records.num_rows
        columns = []
        for name in self._names:
            if name == "topic":
                columns.append(_repeated(topic, rows))
            elif name == "partition":
                columns.append(_repeated(partition, rows))
            elif name == "timestamp":
                columns.append(microseconds(records, self.clamped))
            else:
                columns.append(records.column(name))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)  # the zone of times may be another in Sail


def _repeated(value: str | int, rows: int) -> pa.Array:
    """`rows` times the value; built once for the next power of two and sliced."""
    return _long_repeated(value, 1 << max(10, (rows - 1).bit_length())).slice(0, rows)


@lru_cache(maxsize=16)
def _long_repeated(value: str | int, rows: int) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    # Not `pa.repeat`: scalars import pandas, which takes a new worker a quarter of a second.
    if isinstance(value, int):
        return pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(np.full(rows, value, np.int32))])
    text = value.encode()
    ends = np.arange(rows + 1, dtype=np.int32) * len(text)
    return pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(ends), pa.py_buffer(text * rows)])


_TEXT = (types.StringType, types.VarcharType, types.CharType)
_WRITABLE: dict[str, tuple[type[types.DataType], ...]] = {
    "key": (*_TEXT, types.BinaryType),
    "value": (*_TEXT, types.BinaryType),
    "topic": _TEXT,
    "partition": (types.IntegerType, types.ShortType, types.ByteType),
    "timestamp": (types.TimestampType,),
    HEADERS: (types.ArrayType,),
}
# A table that was read from one topic can be written to another, unchanged: the new log assigns these.
_GIVEN_BY_THE_LOG = ("offset", "timestamptype")


def check_write_schema(schema: types.StructType, *, has_topic: bool) -> None:
    """Raise InvalidRecordError unless rows of this schema can be records."""
    seen = set()
    for field in schema.fields:
        name = field.name.lower()
        if name in seen:
            raise InvalidRecordError(f"column {field.name!r} appears twice")
        seen.add(name)
        if name not in _GIVEN_BY_THE_LOG:
            check_kind(field, name)
    if "value" not in seen:
        raise InvalidRecordError(
            "column 'value' (string or binary) is missing; for whole rows as JSON set option value.format=json"
        )
    if not has_topic and "topic" not in seen:
        raise InvalidRecordError("no topic: set option 'topic', or add a string column 'topic'")


def check_kind(field: types.StructField, column: str) -> None:
    """Raise InvalidRecordError unless the field can be this column of records."""
    kinds = _WRITABLE.get(column)
    if kinds is None:
        raise InvalidRecordError(f"column {field.name!r} cannot be written{_meant(field.name, _WRITABLE)}")
    kind = field.dataType
    if isinstance(kind, kinds) and (
        kind.simpleString() == TYPES[HEADERS].simpleString() or not isinstance(kind, types.ArrayType)
    ):
        return
    wanted = {
        "partition": "int",
        "timestamp": "timestamp",
        "topic": "string",
        HEADERS: TYPES[HEADERS].simpleString(),
    }.get(column, "string or binary")
    raise InvalidRecordError(
        f"column {field.name!r} must be {wanted}, not {kind.simpleString()}: cast it before the write"
    )


def rows_to_append(batches: Sequence[pa.RecordBatch], *, with_headers: bool) -> pa.Table:
    """Return the batches as one table of the columns that the log knows, under their names."""
    import pyarrow as pa

    table = pa.Table.from_batches(batches)
    table = table.rename_columns([name.lower() for name in table.column_names])
    dropped = [*_GIVEN_BY_THE_LOG, *(() if with_headers else (HEADERS,))]
    return table.select([name for name in table.column_names if name not in dropped])
