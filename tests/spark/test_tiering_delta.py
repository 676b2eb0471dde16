"""Around Delta's own Spark writer: what it leaves to us, and what its tables hold that ours do not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction
from py4j.protocol import Py4JJavaError
from pyspark.sql.functions import expr

import logstore
from datasource.delta import table as delta_table
from datasource.delta.table import TableConflictError
from datasource.delta.tiering import clean
from datasource.jobs import delta_spark, tiering
from datasource.jobs.tasks import no_progress
from datasource.session import delta_settings
from logstore import StorageError
from logstore.log.tiering import tiered_offset
from tests.spark.test_tiering import (
    VALUES,
    logged,
    places,
    planned,
    prepared,
    refused,
    table,
    task_of,
    through_delta,
    tier,
)
from tests.support.repeats import only_long, times

__all__ = ["through_delta", "tier"]

# ------------------------------------------------------------------------------------------------- a loss of power


class Disk:
    """The state after a loss of power: of each file its bytes at its last fsync, of a directory its names then."""

    def __init__(self, committed: Path | None = None) -> None:
        self.files: dict[Path, bytes] = {}
        self.names: dict[Path, list[str]] = {}
        self.at_mark: Disk | None = None  # as it was when the first tiered offset was written
        self.at_commit: Disk | None = None  # as it was right after this file was there
        self._committed = committed
        self._fsync = os.fsync

    def fsync(self, fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if path.suffix == ".tmp" and path.parent.name == "t-0" and self.at_mark is None:
            self.at_mark = self._copy()
        if self._committed and self._committed.exists() and self.at_commit is None:
            self.at_commit = self._copy()
        if path.is_dir():
            self.names[path] = [found.name for found in path.iterdir()]
        else:
            self.files[path] = path.read_bytes()
        self._fsync(fd)

    def _copy(self) -> Disk:
        task = Disk()
        task.files, task.names = dict(self.files), dict(self.names)
        return task

    def restore(self, directory: Path, target: Path) -> None:
        """Make what is left of the directory."""
        target.mkdir(parents=True)
        for name in self.names.get(directory, []):
            if (directory / name).is_dir():
                self.restore(directory / name, target / name)
            else:
                (target / name).write_bytes(self.files.get(directory / name, b""))


@pytest.fixture
def disk(monkeypatch) -> Iterator[Callable[..., Disk]]:
    """Begin to watch what is made durable."""

    def watch(committed: Path | None = None) -> Disk:
        found = Disk(committed)
        monkeypatch.setattr(os, "fsync", found.fsync)
        return found

    yield watch
    monkeypatch.undo()


@pytest.mark.parametrize("way", ["deltalake", "Delta's writer"][: times(1, 2)])
def test_what_the_log_is_told_survives_a_loss_of_power(request, topics, tier, disk, tmp_path, way):
    """Retention lets go of the log on that word; neither Delta's writer nor deltalake calls fsync."""
    if way != "deltalake":
        request.getfixturevalue("through_delta")
    topics.create("t")
    topics.append("t", [*VALUES, "bad"], timestamp=[86_400_000 * (i % 3) for i in range(301)])
    root, watched = Path(topics.path), disk(table(topics) / "_delta_log" / f"{1:020d}.json")
    tier(schema="id bigint, who string")
    watched.at_mark.restore(root / "tiered", tmp_path / "left")
    left = sorted(places(tmp_path / "left" / "t") + places(tmp_path / "left" / "t__dlq"))
    assert left == logged(topics)
    assert "tiered" in watched.at_mark.names[root]
    if way != "deltalake":  # (there, the tasks do it)
        # The row that the other table counts as there, when that is committed.
        watched.at_commit.restore(table(topics, "t__dlq"), tmp_path / "bad")
        assert places(tmp_path / "bad") == [(0, 300)]


def test_what_a_killed_run_committed_is_on_disk_before_the_log_is_told(spark, topics, tier, tmp_path, disk):
    topics.create("t")
    topics.append("t", VALUES)
    task = task_of(topics)
    _, pieces = prepared(task)
    tiering.through_package(spark, task, pieces, no_progress)  # and here the driver dies
    watched = disk()
    assert tier()[0]["status"] == "nothing to do"
    watched.at_mark.restore(table(topics), tmp_path / "left")
    assert places(tmp_path / "left") == logged(topics)


def test_an_fsync_that_fails_leaves_the_log_as_it_is(topics, tier, monkeypatch):
    topics.create("t")
    topics.append("t", VALUES)
    fsync = os.fsync

    def fail(fd: int) -> None:
        if Path(f"/proc/self/fd/{fd}").readlink().suffix == ".parquet":
            raise OSError(5, "Input/output error")
        fsync(fd)

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fail)
        assert "fsync failed (Input/output error)" in tier()[0]["note"]
    with logstore.open(topics.path, mode="r") as store:
        assert tiered_offset(store.log("t", 0)) == 0
    tier()
    with logstore.open(topics.path, mode="r") as store:
        assert tiered_offset(store.log("t", 0)) == 300


# ------------------------------------------------------------------------------------------------------ INT96

FAR = [-1, 0, 10_413_792_000_000, 253_402_300_799_000, 1_700_000_000_000_000]  # 2300, 9999, 55840
EARLY = "TIMESTAMP'0001-01-01 00:00:00'"


@only_long("a session of its own settings")
def test_times_that_spark_wrote_as_int96_are_read_as_they_are(spark, topics, tier, read, tmp_path):
    """Nanoseconds of 64 bits, Arrow's way to read them, would give those of 1677 to 2262."""
    topics.create("t")
    with logstore.open(topics.path) as store:
        store.append("t", pa.table({"value": ["x"] * len(FAR), "timestamp": pa.array(FAR, pa.int64())}))
    tier()
    rewritten(spark, topics, tmp_path / "int96")
    topics.append("t", ["in the log"])
    union = read(subscribe="t", includeTiered=True).orderBy("offset").selectExpr("unix_millis(timestamp) AS ms")
    assert [row.ms for row in union.collect()][:5] == [-62_135_596_800_000, *FAR[1:]]
    since = read(subscribe="t", includeTiered=True, startingTimestamp=FAR[3])
    assert sorted(row.offset for row in since.select("offset").collect()) == [3, 4, 5]


def rewritten(spark, topics, directory: Path) -> None:
    """Put files that Spark wrote, with INT96, in the place of those of the table, as OPTIMIZE does.

    The time of the first record becomes an early one.
    """
    there = DeltaTable(str(table(topics)))
    actions: list[AddAction] = []
    with delta_spark.settings(spark, {"spark.sql.parquet.outputTimestampType": "INT96"}):
        for action in pa.table(there.get_add_actions()).to_pylist():
            old = table(topics) / action["path"]
            time = f"CASE WHEN offset = 0 THEN {EARLY} ELSE timestamp END"  # the log takes none before 1970
            rows = spark.read.parquet(str(old)).withColumn("timestamp", expr(time))
            rows.coalesce(1).write.mode("overwrite").parquet(str(directory))
            (written,) = directory.glob("part-*.parquet")
            assert pq.ParquetFile(written).schema.column(3).physical_type == "INT96"
            name = f"{Path(action['path']).parent}/{written.name}"
            written.rename(table(topics) / name)
            day = {"date": str(action["partition"]["date"])}
            size_bytes = (table(topics) / name).stat().st_size
            actions.append(AddAction(name, size_bytes, day, 0, False, "{}"))
            old.unlink()
    there.create_write_transaction(actions, "overwrite", there.schema(), partition_by=["date"])


@only_long("Delta's own writer")
def test_our_sessions_and_jobs_write_times_as_microseconds(spark, topics, through_delta, tier, tmp_path, monkeypatch):
    name, partitions = "spark.sql.parquet.outputTimestampType", "spark.databricks.delta.snapshotPartitions"
    with delta_spark.settings(spark, delta_settings("local[2]")):
        spark.sql("SELECT timestamp'2024-01-01' AS at").write.parquet(str(tmp_path / "p"))
    (file,) = (tmp_path / "p").glob("part-*.parquet")
    assert pq.ParquetFile(file).schema.column(0).physical_type == "INT64"
    assert name not in spark.conf.getAll

    seen, append = [], delta_spark._append

    def spy(*args):
        seen.append([spark.conf.get(name), spark.conf.get(partitions)])
        return append(*args)

    monkeypatch.setattr(delta_spark, append.__name__, spy)
    topics.create("t")
    for own in ("TIMESTAMP_MILLIS", None):
        topics.append("t", VALUES)
        if own:
            spark.conf.set(name, own)
        tier()
        spark.conf.unset(name)
    assert seen == [["TIMESTAMP_MILLIS", "2"], ["TIMESTAMP_MICROS", "2"]]
    assert "spark.databricks.delta.snapshotPartitions" not in delta_settings("yarn")


# ------------------------------------------------------------------------------------------- what goes wrong


def test_delta_s_own_words_are_told_and_only_a_conflict_is_tried_again(spark):
    java = spark._jvm.java

    def caught(exception: object) -> Py4JJavaError:
        return Py4JJavaError("An error occurred while calling o116.save.\n", exception)

    conflict = caught(java.util.ConcurrentModificationException("another came first"))  # as all of Delta's are
    nested = caught(java.lang.RuntimeException("Job aborted", java.lang.RuntimeException("disk full\nmore", None)))
    where = Path("/t")
    assert type(delta_spark.failure(where, conflict)) is TableConflictError
    assert type(delta_spark.failure(where, nested)) is StorageError
    assert str(delta_spark.failure(where, nested)) == "/t: java.lang.RuntimeException: disk full"


@only_long("runs of tiering")
def test_a_table_that_moved_on_right_before_the_write_is_not_written_to(spark, topics, tier, through_delta):
    topics.create("t", partitions=2)
    topics.append("t", VALUES, key=VALUES)
    task = task_of(topics)
    _, pieces = prepared(task)
    tier()
    topics.append("t", VALUES, key=VALUES)
    more = [replace(p, end=p.end + 20) for p in pieces]
    version = task.open_table().version
    with pytest.raises(TableConflictError, match="moved on since the job was planned"):
        tiering.through_spark(spark, task, more, no_progress)
    assert task.open_table().version == version
    assert tiering.tier_to(spark, task, *planned(task), no_progress)
    assert places(table(topics)) == logged(topics)


@only_long("runs of tiering")
def test_a_table_that_cannot_be_written_is_not_tried_again(topics, tier, monkeypatch):
    topics.create("t")
    topics.append("t", VALUES)
    tier()
    topics.append("t", VALUES)
    protocol = '{"protocol":{"minReaderVersion":1,"minWriterVersion":7,"writerFeatures":["checkpointProtection"]}}'
    (table(topics) / "_delta_log" / f"{2:020d}.json").write_text(protocol)
    tries, run_tasks = [], tiering.run_tasks

    def spy(*args):
        tries.append(args)
        return run_tasks(*args)

    monkeypatch.setattr(tiering, "run_tasks", spy)
    assert "checkpointProtection" in refused(tier()[0])
    assert len(tries) == 1
    assert sorted(table(topics).rglob("*.pylog.parquet")) == sorted(
        table(topics) / f.name for f in task_of(topics).open_table().files()
    )


@only_long("runs of tiering")
def test_a_table_of_an_earlier_pylog_gets_the_name_of_its_feature(topics, tier, monkeypatch):
    topics.create("t")
    with monkeypatch.context() as earlier:
        earlier.setattr(delta_table, "name_features", lambda path: None)
        tier(schema="id bigint not null, at timestamp_ntz")
    assert "invariants" not in DeltaTable(str(table(topics))).protocol().writer_features
    for _ in range(2):
        tier()
        assert "invariants" in DeltaTable(str(table(topics))).protocol().writer_features
    assert DeltaTable(str(table(topics))).version() == 1


def test_a_run_that_was_killed_by_delta_leaves_its_files_to_vacuum(topics, tier):
    """`part-*` are Delta's own: they may be of another writer's commit that is to come."""
    topics.create("t")
    topics.append("t", VALUES)
    tier()
    left = table(topics) / "date=1970-01-01" / "part-00000-0b-c000.snappy.parquet"
    left.parent.mkdir(exist_ok=True)
    left.write_bytes(b"")
    os.utime(left, (0, 0))
    assert clean(task_of(topics)) == []
    assert left.exists()
