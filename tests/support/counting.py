"""Topics with gaps, a cut and transactions, and reads of each kind, to count what they give."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from datasource.connector.counts import PylogCounts
from datasource.connector.source import PylogDataSource
from tests.support.ddl import schema

FIRST_MS = 1_700_000_000_000
LOG = {"compression.type": "zstd"}
LATEST = {"cleanup.policy": "compact", "segment.bytes": "2000", "min.cleanable.dirty.ratio": "0"}


def batch(count: int, *, partition: int = 0, keys: int = 7) -> pa.Table:
    """A record a second."""
    moments = [FIRST_MS + 1000 * n for n in range(count)]
    return pa.table(
        {
            "value": [f"value {n}" for n in range(count)],
            "key": [f"k{n % keys}" for n in range(count)],
            "partition": pa.array([partition] * count, pa.int32()),
            "timestamp": pa.array(moments, pa.timestamp("ms", "UTC")),
        }
    )


def fill(append: Callable[[str, pa.Table], object], aborted: Callable[[str, pa.Table], object]) -> None:
    """Fill `log`, of two partitions, and `latest`, which compaction leaves gaps in the batches of."""
    for partition in (0, 1, 0):
        append("log", batch(40, partition=partition))
    aborted("log", batch(10))
    for partition in (0, 1):
        append("log", batch(5, partition=partition))
    for keys in (9, 9, 5):
        append("latest", batch(25, keys=keys))


def bounds(side: str, *offsets: int) -> dict[str, str]:
    return {f"{side}Offsets": f'{{"log": {{"0": {offsets[0]}, "1": {offsets[1]}}}}}'}


KINDS: list[dict[str, Any]] = [
    {},
    {"isolation": "read_uncommitted"},
    bounds("starting", 17, 3) | bounds("ending", 61, 41),
    bounds("starting", 85, 44),
    {"startingTimestamp": FIRST_MS + 20_500, "startingOffsetsByTimestampStrategy": "latest"},
    {"endingTimestamp": datetime.fromtimestamp(FIRST_MS / 1000 + 30, UTC)},
    {"minPartitions": 9},
    {"maxRecordsPerPartition": 11, "columns": "offset"},
    {"subscribe": "latest"},
    {"subscribe": "latest", "maxRecordsPerPartition": 1},
    {"subscribe": "empty"},
    {"subscribePattern": "log|latest"},
    {"assign": '{"log": [1]}'},
]


def counted(place: dict[str, str], kind: dict[str, Any]) -> tuple[int, int]:
    """How many records the headers have and how many a read gives, as Spark would get them for these options."""
    chosen = {} if {"subscribe", "subscribePattern", "assign"} & kind.keys() else {"subscribe": "log"}
    given = {name: str(value) for name, value in (place | chosen | kind).items()}
    counts, rows = PylogCounts(given), PylogDataSource(given)
    by_headers = counts.reader(schema(counts.schema()))
    reader = rows.reader(rows.schema())
    return (
        sum(row["count"] for task in by_headers.partitions() for b in by_headers.read(task) for row in b.to_pylist()),
        sum(b.num_rows for task in reader.partitions() for b in reader.read(task)),
    )
