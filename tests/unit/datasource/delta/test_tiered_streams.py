"""A stream of table and log: history first, then the tail, each offset once, whatever is tiered and deleted meanwhile.

The reader is driven as Spark drives it, without Spark.
"""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import logstore
from datasource.connector.offsets import StreamOffset, behind
from datasource.connector.options import read_options
from datasource.connector.reader import StreamReader
from datasource.delta import parquet, snapshots
from datasource.delta.tiered_topics import TieredTopics
from datasource.errors import DataLossError
from datasource.jobs import tiering
from datasource.schema import spark_schema
from datasource.topics.interface import LedRange, PartitionRange
from datasource.topics.locations import Location
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


class Topics:
    """A directory's topics; what a test changes in them it overrides."""

    def __init__(self, path: str) -> None:
        self._inner = Location(path).read()

    def __getattr__(self, name):
        return getattr(self._inner, name)


class ElectedTopics(Topics):
    """Their leader has changed, and has no record of earlier epochs below the log's start."""

    epoch = 3

    def offsets(self, topic):
        return {p: LedRange(e.start, e.end, self.epoch) for p, e in self._inner.offsets(topic).items()}

    def epoch_ends(self, topic, epochs):
        return dict.fromkeys(epochs, -1)


@dataclass(frozen=True, slots=True)
class OtherLocation(Location):
    """A directory whose topics are of another kind."""

    kind: type[Topics] = Topics

    def read(self, *args, **named):
        return self.kind(self.path)


def union(store: Store, kind: type[Topics] = Topics) -> TieredTopics:
    return TieredTopics(OtherLocation(str(store.path), kind=kind), fail_on_data_loss=True)


def offsets(batches) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


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


@pytest.mark.parametrize("limit", [1, 97, 100, 101])
def test_no_offset_is_twice_or_missing_where_the_table_ends_and_the_log_begins(tmp_path, limit):
    store = Store(tmp_path / "log")
    store.append(0, 100)
    store.tier()
    store.append(0, 10)
    ends = (100 - limit, 100, 101) if limit == 1 else (0, limit)
    reader = TieredTopics(Location(str(store.path)), fail_on_data_loss=True)
    for start, end in zip(ends, (*ends[1:], 110), strict=True):
        found = [
            o for batch in reader.read(PartitionRange("t", 0, start, end), ["offset"]) for o in batch[0].to_pylist()
        ]
        assert found == list(range(start, end))


def test_every_range_of_a_file_of_several_row_groups_is_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "ROW_GROUP_BYTES", 1)
    store = Store(tmp_path / "log")
    with logstore.open(store.path) as log:
        log.alter_topic("t", config={"segment.bytes": "100000000"})
        for _ in range(10):
            log.append("t", pa.table({"value": [bytes(1_000_000)], "partition": pa.array([0], pa.int32())}))
    store.tier()
    (file,) = Path(store.table).rglob("*.parquet")
    assert pq.ParquetFile(file).num_row_groups > 2
    reader = union(store)
    for end in range(11):
        for start in range(end):
            assert offsets(reader.read(PartitionRange("t", 0, start, end), ["offset"])) == list(range(start, end))


def test_files_that_optimize_has_merged_and_mixed_are_read_by_partition(store):
    DeltaTable(store.table).optimize.z_order(["offset"])
    assert len(DeltaTable(store.table).file_uris()) == 1
    query = Query(store.path, maxOffsetsPerTrigger=150)
    while query.step():
        pass
    query.check(600, 200)


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


def test_what_the_log_loses_while_the_table_is_read_comes_from_a_newer_table(store):
    reading = union(store).read(PartitionRange("t", 0, 0, 600), ["offset"])
    first = next(reading)
    store.tier()
    store.cut(p0=600)
    assert offsets([first, *reading]) == list(range(600))


def test_what_the_log_loses_while_it_is_read_comes_from_the_table_without_what_was_read(tmp_path):
    store = Store(tmp_path / "log")
    with logstore.open(store.path) as log:
        log.alter_topic("t", config={"segment.bytes": "1100000", "file.delete.delay.ms": "0"})
        for _ in range(12):
            log.append("t", pa.table({"value": [bytes(1_000_000)], "partition": pa.array([0], pa.int32())}))
    reading = union(store).read(PartitionRange("t", 0, 0, 12), ["offset"])
    first = next(reading)
    assert 0 < first.num_rows < 12
    store.tier()
    store.cut(p0=12)
    assert offsets([first, *reading]) == list(range(12))


def test_a_table_that_is_ahead_because_a_job_ran_just_now_is_no_loss(store):
    class Late(Topics):
        """Records are appended and tiered once somebody has looked at the log."""

        def offsets(self, topic):
            found = self._inner.offsets(topic)
            if found[0].end == 600:
                store.append(0, 50)
                store.tier()
            return found

    assert union(store, Late).offsets("t")[0].end == 650


def test_records_that_were_deleted_before_they_were_tiered_are_lost_to_a_stream(store):
    store.cut(p0=500)
    with pytest.raises(DataLossError, match=r"t-0 \[400, 500\) is lost"):
        Query(store.path).step()
    query = Query(store.path, failOnDataLoss=False)
    assert query.step() == 400 + 100 + 200


def test_a_stream_that_waits_loads_the_table_again_only_after_commits(store, monkeypatch):
    loads = []

    class Counting(snapshots.TopicTable):
        def __init__(self, *args) -> None:
            loads.append(args)
            super().__init__(*args)

    monkeypatch.setattr(snapshots, "TopicTable", Counting)
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
    for _ in range(2):
        with pytest.raises(DataLossError, match="was taken back to version 1 by RESTORE"):
            query.step()
        DeltaTable(store.table).alter.set_table_properties({"some.property": "a newer version"}, False)


def test_what_a_restore_took_is_a_warning_once_to_a_stream_that_goes_on(store, caplog):
    store.append(1, 1)
    store.tier()
    DeltaTable(store.table).restore(1)
    query = Query(store.path, failOnDataLoss=False)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            query.step()
    assert sum("was taken back to version 1 by RESTORE" in line for line in caplog.messages) == 1


def test_an_election_sets_no_stream_back_that_is_within_history(store, monkeypatch):
    query = Query(store.path, maxOffsetsPerTrigger=200)
    options = query.reader.options
    query.reader.options = replace(options, location=OtherLocation(str(store.path), kind=ElectedTopics))
    query.reader.prepareForTriggerAvailableNow()
    tasks = query.plan()
    assert all(r.leader_epoch == 3 for task in tasks for r in task.ranges)
    assert query.read(tasks) == 200
    monkeypatch.setattr(ElectedTopics, "epoch", 4)
    assert query.step() == 200


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
