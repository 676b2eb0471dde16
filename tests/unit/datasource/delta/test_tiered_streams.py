"""A stream of table and log: history first, then the tail, each offset once, whatever is tiered and deleted meanwhile.

The reader is driven as Spark drives it, without Spark.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import logstore
from datasource.connector.offsets import StreamOffset, behind
from datasource.connector.options import read_options
from datasource.connector.reader import StreamReader
from datasource.delta import tiered_topics
from datasource.errors import DataLossError
from datasource.jobs import tiering
from datasource.schema import spark_schema
from logstore.errors import StoreError
from tests.support.repeats import only_long

SCHEMA = spark_schema(("partition", "offset", "value"))


class Store:
    """A topic `t` of two partitions, with a number in each record's value: that of its offset."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with logstore.open(path) as store:
            store.create_topic("t", partitions=2, config={"segment.bytes": "4000"})

    def append(self, partition: int, count: int) -> None:
        with logstore.open(self.path) as store:
            end = store.offsets("t")[partition].end
            for start in range(end, end + count, 50):
                numbers = range(start, min(start + 50, end + count))
                places = pa.array([partition] * len(numbers), pa.int32())
                store.append("t", pa.table({"value": [str(i) for i in numbers], "partition": places}))

    def tier(self) -> None:
        assert {row["status"] for row in tiering.rows(None, path=str(self.path))} <= {"tiered", "nothing to do"}

    def cut(self, **offsets: int) -> None:
        with logstore.open(self.path) as store:
            store.delete_records("t", {int(p[1:]): offset for p, offset in offsets.items()})

    @property
    def table(self) -> str:
        return str(self.path / "tiered" / "t")


class Query:
    """A query as Spark drives it, with its checkpoint. One process plans a query, and others may read."""

    def __init__(self, path: Path, **options: object) -> None:
        self._options = {"path": str(path), "subscribe": "t", "includeTiered": "true", "startingOffsets": "earliest"}
        self._options |= {name: str(value) for name, value in options.items()}
        self.ends: list[dict] = []
        self.rows: list[tuple[int, int, bytes]] = []
        self.restart()

    def restart(self) -> None:
        self.reader = StreamReader(read_options(self._options, streaming=True), SCHEMA)
        self.reader.prepareForTriggerAvailableNow()

    def plan(self) -> list:
        """The tasks of the next batch."""
        start = self.ends[-1] if self.ends else self.reader.initialOffset()
        end = json.loads(json.dumps(self.reader.latestOffset(start, self.reader.getDefaultReadLimit())))
        if end == start:
            return []
        self.ends.append(end)
        return self.reader.partitions(start, end)

    def read(self, tasks: list) -> int:
        """Read them, each in a process of its own; return the number of rows."""
        before = len(self.rows)
        for task in tasks:
            worker = StreamReader(read_options(self._options, streaming=True), SCHEMA)
            for batch in worker.read(task):
                columns = (batch.column(name).to_pylist() for name in ("partition", "offset", "value"))
                self.rows += zip(*columns, strict=True)
        return len(self.rows) - before

    def step(self) -> int:
        return self.read(self.plan())

    def lag(self) -> int:
        latest = StreamOffset.from_json(self.reader.reportLatestOffset()).offsets
        found = behind(StreamOffset.from_json(self.ends[-1]).offsets, latest)
        return sum(sum(parts.values()) for parts in found.values())

    def check(self, *ends: int) -> None:
        wanted = [(p, offset, str(offset).encode()) for p, end in enumerate(ends) for offset in range(end)]
        assert sorted(self.rows) == wanted


@pytest.fixture
def store(tmp_path):
    """The table holds 400 records of partition 0 and 200 of partition 1; the log holds 300 to 600 of partition 0."""
    made = Store(tmp_path / "log")
    made.append(0, 400)
    made.append(1, 200)
    made.tier()
    made.append(0, 200)
    made.cut(p0=300, p1=200)
    return made


@pytest.mark.parametrize(
    "options",
    [
        {"maxOffsetsPerTrigger": 150},
        {"maxBytesPerTrigger": 4000},
        pytest.param({"minPartitions": 7}, marks=only_long("other limits")),
        pytest.param({"maxRecordsPerPartition": 90}, marks=only_long("other limits")),
        pytest.param({"minOffsetsPerTrigger": 100}, marks=only_long("other limits")),
    ],
)
def test_history_and_tail_are_one_stream_over_restarts(store, options):
    query = Query(store.path, **options)
    counts = [query.step()]
    lags = [query.lag()]
    store.append(1, 50)
    store.tier()
    store.cut(p0=600, p1=250)
    while query.reader:
        query.restart()
        if not (count := query.step()):
            break
        counts.append(count)
        lags.append(query.lag())
    query.check(600, 250)
    assert lags[-1] == 0
    if limit := options.get("maxOffsetsPerTrigger"):
        assert counts == [limit] * 5 + [100]
        assert lags == [800 - 150, 550, 400, 250, 100, 0]
    if "maxBytesPerTrigger" in options:
        assert len(counts) > 3


def test_the_first_tiered_offset_is_the_earliest(tmp_path):
    store = Store(tmp_path / "log")
    store.append(0, 300)
    store.cut(p0=100)
    store.tier()
    store.cut(p0=300)
    reader = Query(store.path).reader
    assert StreamOffset.from_json(reader.initialOffset()).offsets == {"t": {0: 100, 1: 0}}


def test_a_planned_range_stays_readable_when_the_log_loses_it(store):
    store.append(1, 100)
    query = Query(store.path)
    tasks = query.plan()
    store.append(0, 100)
    store.tier()
    store.cut(p0=700, p1=300)
    assert query.read(tasks) == 900
    query.check(600, 300)
    query.restart()
    assert query.step() == 100
    query.check(700, 300)


def test_records_that_were_deleted_before_they_were_tiered_are_lost_to_a_stream(store):
    store.cut(p0=500)
    with pytest.raises(DataLossError, match=r"t-0 \[400, 500\) is lost"):
        Query(store.path).step()
    query = Query(store.path, failOnDataLoss=False)
    assert query.step() == 400 + 100 + 200


def test_a_stream_that_waits_loads_the_table_again_only_after_commits(store, monkeypatch):
    loads = []

    class Counting(tiered_topics.TopicTable):
        def __init__(self, *args) -> None:
            loads.append(args)
            super().__init__(*args)

    monkeypatch.setattr(tiered_topics, "TopicTable", Counting)
    query = Query(store.path)
    query.step()
    for _ in range(5):
        assert query.step() == 0
    assert len(loads) == 1
    store.append(0, 10)
    store.tier()
    query.restart()
    assert query.step() == 10
    assert len(loads) == 2


def test_a_restore_stops_a_stream_that_has_read_the_table(store):
    store.tier()
    query = Query(store.path, maxOffsetsPerTrigger=100)
    query.step()
    DeltaTable(store.table).restore(1)
    with pytest.raises(DataLossError, match="was taken back to version 1 by RESTORE"):
        query.step()


def test_a_table_that_was_replaced_by_an_older_copy_is_looked_at_anew(store, tmp_path):
    shutil.copytree(store.table, tmp_path / "copy")
    store.tier()
    query = Query(store.path, maxOffsetsPerTrigger=100)
    query.step()
    shutil.rmtree(store.table)
    with pytest.raises(StoreError, match="cannot be read as a Delta table"):
        query.step()
    (tmp_path / "copy").rename(store.table)
    while query.step():
        pass
    query.check(600, 200)


def test_a_log_that_was_restored_from_before_its_table_stops_a_stream(tmp_path):
    store = Store(tmp_path / "log")
    store.append(0, 100)
    store.tier()
    shutil.copytree(store.path, tmp_path / "copy", ignore=shutil.ignore_patterns("tiered"))
    store.append(0, 100)
    store.tier()
    (store.path / "tiered").rename(tmp_path / "copy" / "tiered")
    with pytest.raises(
        DataLossError, match=r"t-0: the table holds offsets up to 200, and the log ends at 100: restored"
    ):
        Query(tmp_path / "copy").step()
