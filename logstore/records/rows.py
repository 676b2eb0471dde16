"""What a topic takes: the columns of appended rows, and which rows are refused before anything is written."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from logstore.errors import InvalidRecordError, RecordTooLargeError, did_you_mean
from logstore.records.batch import HEADER_BYTES
from logstore.records.columns import cells, header_cells, stored_field_bytes, timestamps_ms, varint_bytes

INPUT_COLUMNS = ("key", "value", "headers", "timestamp", "partition")


def check_rows(data: pa.RecordBatch | pa.Table, *, batch_bytes_max: int, keys_required: bool) -> None:
    """Raise unless every row can be appended: names and types of the columns, keys where needed, sizes.

    Raises: InvalidRecordError, RecordTooLargeError: with the column or the row.
    """
    names = data.schema.names
    for name in names:
        if name not in INPUT_COLUMNS:
            raise InvalidRecordError(f"no column {name!r} can be stored{did_you_mean(name, INPUT_COLUMNS)}")
    if len(set(names)) < len(names):
        raise InvalidRecordError(f"a column appears twice: {', '.join(names)}")
    if "value" not in names:
        raise InvalidRecordError("column 'value' is missing (binary or string)")
    timestamps_ms(data, 0)
    key_sizes = cells(data.column("key"), "key").sizes if "key" in names else np.full(data.num_rows, -1)
    if keys_required and len(without := np.flatnonzero(key_sizes < 0)):
        raise InvalidRecordError(
            f"row {without[0]} has no key, and the topic needs keys (cleanup.policy=compact)",
            row=int(without[0]),
        )
    sizes = 3 + stored_field_bytes(key_sizes) + stored_field_bytes(cells(data.column("value"), "value").sizes)
    sizes += header_cells(data.column("headers")).stored_bytes() if "headers" in names else 1
    sizes += HEADER_BYTES + varint_bytes(sizes)
    if len(too_large := np.flatnonzero(sizes > batch_bytes_max)):
        row = int(too_large[0])
        raise RecordTooLargeError(int(sizes[row]), batch_bytes_max, f"row {row}: a record")
