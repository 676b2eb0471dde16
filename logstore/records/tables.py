"""Tables: the rows that a caller has, as Arrow, whichever library made them."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from logstore.errors import InvalidRecordError
from logstore.records.times import ZONE_MISSING, has_zone

if TYPE_CHECKING:
    import pyarrow as pa

_WAYS = (
    "give a pyarrow Table, a DataFrame of pandas or polars, a dict of columns {'value': [...]}, "
    "or a list of dicts [{'key': ..., 'value': ...}]"
)


class ArrowStream(Protocol):
    """An object with Arrow's PyCapsule interface, such as a polars DataFrame or a DuckDB relation."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


# Rows to append: their columns are those of `LogStore.append`.
Tabular: TypeAlias = "pa.Table | pa.RecordBatch | ArrowStream | Mapping[str, Any] | Sequence[Mapping[str, Any]]"


def as_arrow(data: Tabular) -> pa.Table | pa.RecordBatch:
    """Return the rows as Arrow; a Table or RecordBatch as it is, without a copy.

    A dict is one row if its `value` is one, else columns. Rows of a list may lack columns: those are null. The index of
    a pandas DataFrame is left out.

    Raises: InvalidRecordError: they are nothing of all this, a column has values of several types, or a datetime has no
    time zone.
    """
    import pyarrow as pa

    if isinstance(data, pa.Table | pa.RecordBatch):
        return data
    _check_zones(data)
    try:
        pandas: Any = sys.modules.get("pandas")
        if pandas is not None and isinstance(data, pandas.DataFrame):
            return pa.Table.from_pandas(data, preserve_index=False)
        if hasattr(data, "__arrow_c_stream__"):
            return pa.table(data)
        if isinstance(data, Mapping):
            value = data.get("value")
            is_row = value is None or isinstance(value, str | bytes | bytearray | memoryview)
            return _of_rows([data]) if is_row else pa.table(dict(data))
        if isinstance(data, list | tuple) and all(isinstance(row, Mapping) for row in data):
            return _of_rows(data)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidRecordError(f"the rows cannot be read as columns: {error}") from error
    raise InvalidRecordError(f"data is a {type(data).__name__}: {_WAYS}")


def _check_zones(data: object) -> None:
    """Raise InvalidRecordError if a row of Python has a datetime without a time zone: Arrow would take it as UTC."""
    if isinstance(data, Mapping):
        times = data.get("timestamp")
        found = times if isinstance(times, list | tuple) else [times]
    elif isinstance(data, list | tuple):
        found = [row.get("timestamp") for row in data if isinstance(row, Mapping)]
    else:
        return
    for row, time in enumerate(found):
        if isinstance(time, datetime) and not has_zone(time):
            raise InvalidRecordError(f"row {row}: timestamp={time.isoformat()}: {ZONE_MISSING}", row=row)


def _of_rows(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    import pyarrow as pa

    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: [row.get(name) for row in rows] for name in names} if rows else {"value": []})


def bytes_column(values: Sequence[bytes | None]) -> pa.Array:
    """Return the values as a column, as `pa.array` does, which would import pandas where that is installed."""
    import pyarrow as pa

    ends = array("q", accumulate((len(value or b"") for value in values), initial=0))
    data = b"".join(value or b"" for value in values)
    valid = None
    if None in values:
        import numpy as np

        valid = pa.py_buffer(np.packbits([value is not None for value in values], bitorder="little").tobytes())
    return pa.Array.from_buffers(pa.large_binary(), len(values), [valid, pa.py_buffer(ends), pa.py_buffer(data)])


def repeated(number: int, rows: int) -> pa.Array:
    """Return a column of int32 that is this number in all rows; see `bytes_column`."""
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(array("i", [number]) * rows)])
