"""Records that do not fit the columns of their topic: how readers go on, and how such a record is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from logstore.errors import InvalidRecordError
from logstore.records.schema import RECORD_SCHEMA

PREFIX = "dlq."  # of the headers of a dead letter
KEY, TRIES, VALUE = PREFIX + "key", PREFIX + "tries", PREFIX + "value"
NULL = b"null"  # in VALUE: the record has no value; a dead letter has one, or compaction would take it as a tombstone
STORED = ("key", "value", "headers", "timestamp", "offset")  # the columns of records that a dead letter is made of
_TRIES_DIGITS_MAX = 9


class MisfitError(InvalidRecordError):
    """A record that does not fit the columns of its topic."""

    topic: str
    partition: int
    offset: int
    reason: str

    def __init__(self, topic: str, partition: int, offset: int, reason: str) -> None:
        super().__init__(
            f"{topic}-{partition} at offset {offset}: {reason}; to go on without such records, use mode "
            "DROPMALFORMED or PERMISSIVE, in Spark also dlq.topic",
            topic=topic,
            partition=partition,
            offset=offset,
            reason=reason,
        )


class UnwritableError(InvalidRecordError):
    """A row that the format of a topic cannot carry."""

    row: int
    reason: str

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(f"row {row}: {reason}", row=row, reason=reason)


def dead_letters(  # noqa: PLR0913  each of them is a fact of its own
    records: pa.RecordBatch,
    reasons: Mapping[int, str],
    *,
    topic: str,
    partition: int,
    name: str,
    query: str = "",
    now_ms: int,
) -> pa.RecordBatch:
    """Return the records of these rows as rows to append to a topic of dead letters.

    `records` have the columns STORED. The value and the headers stay as they came. Added are the headers `dlq.reason`,
    `dlq.topic`, `dlq.partition`, `dlq.offset`, `dlq.timestamp` (of the record, ms since 1970), `dlq.query` and
    `dlq.tries` (1, or one more than the record that was sent again has), as text, and `dlq.key` (the key, unless it was
    null). A record without a value has an empty one here, and the header `dlq.value` says `null`. The key is
    `name|topic|partition|offset`, so that a record that is read again has one dead letter once its topic is compacted.
    """
    rows = sorted(reasons)
    misfits = records.select(list(STORED)).take(pa.array(rows, pa.int64()))
    offsets, times = misfits.column("offset").to_pylist(), misfits.column("timestamp").cast(pa.int64()).to_pylist()
    values, headers = misfits.column("value"), []
    for i, pairs in enumerate(misfits.column("headers").to_pylist()):
        came = [(pair["key"], pair["value"]) for pair in pairs or ()]
        facts: dict[str, object] = {"reason": reasons[rows[i]], "topic": topic, "partition": partition}
        facts |= {"offset": offsets[i], "timestamp": times[i], "query": query, "tries": tries_of(came) + 1}
        added = [(PREFIX + fact, str(value).encode()) for fact, value in facts.items()]
        if (key := misfits.column("key")[i].as_py()) is not None:
            added.append((KEY, key))
        if not values[i].is_valid:
            added.append((VALUE, NULL))
        headers.append([pair for pair in came if not pair[0].startswith(PREFIX)] + added)
    kinds = [RECORD_SCHEMA.field(column) for column in ("key", "value", "headers", "timestamp")]
    keys = [f"{name}|{topic}|{partition}|{offset}".encode() for offset in offsets]
    pairs = [[{"key": header, "value": value} for header, value in row] for row in headers]
    columns = [keys, values.fill_null(b""), pairs, [now_ms] * len(rows)]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(kinds))


def tries_of(headers: Sequence[tuple[str, bytes | None]]) -> int:
    """Return how often a record became a dead letter before, as its headers say; 0: never, or it is no number."""
    for header, value in reversed(headers):
        if header == TRIES and value and value.isdigit() and len(value) <= _TRIES_DIGITS_MAX:
            return int(value)
    return 0
