"""Offsets that no record has (S18): compaction, markers and aborted data are no loss, and are not read twice."""

import json

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

import logstore
from datasource.connector.source import PylogDataSource
from logstore.store.transactions.state import TransactionOwner
from tests.support.ddl import schema

SMALL = {
    "cleanup.policy": "compact",
    "segment.bytes": 700,
    "max.message.bytes": 600,
    "min.cleanable.dirty.ratio": 0.0,
}


def rows(*numbers: int, keys: int = 4) -> pa.Table:
    return pa.table({"key": [f"k{n % keys}" for n in numbers], "value": [str(n) for n in numbers]})


@pytest.fixture
def path(tmp_path) -> str:
    """Gaps in the middle by compaction, at the end by an abort; a marker behind every transaction."""
    with logstore.open(tmp_path / "log") as store:
        store.create_topic("t", config=SMALL)
        for n in range(0, 40, 4):
            store.append("t", rows(n, n + 1, n + 2, n + 3))
        with store.transaction() as transaction:
            store.append("t", rows(40, 41), transaction=transaction)
        store.log("t", 0).roll()
        assert store.compact("t", 0).rounds == 1
        store.append("t", rows(50))
        given_up = store.transactions.begin("q", 0, run="r", owner=TransactionOwner(timeout_ms=60_000))
        store.append("t", rows(60, 61), transaction=given_up)
        given_up.abort()
    return str(tmp_path / "log")


LEFT = ["38", "39", "40", "41", "50"]


def values(reader, tasks) -> list[str]:
    found = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    return [row["value"].decode() for row in found]


def test_s18_a_batch_reads_what_is_there_however_it_is_cut(path):
    for options in ({}, {"maxRecordsPerPartition": "3"}, {"startingOffsets": json.dumps({"t": {"0": 5}})}):
        reader = PylogDataSource({"path": path, "subscribe": "t", **options}).reader(schema("value binary"))
        assert values(reader, reader.partitions()) == LEFT


def test_s18_a_stream_with_a_limit_loses_nothing_and_ends(path):
    options = {"path": path, "subscribe": "t", "startingOffsets": "earliest", "failOnDataLoss": "true"}
    reader = PylogDataSource(options).streamReader(schema("value binary"))
    position, found, ends = reader.initialOffset(), [], []
    for _ in range(60):
        end = reader.latestOffset(position, ReadMaxRows(3))
        found += values(reader, reader.partitions(position, end))
        ends.append(end)
        if end == position:
            break
        position = end
    assert ends[-1] == ends[-2]
    assert found == LEFT
