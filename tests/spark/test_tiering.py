"""Tiering to Delta Lake: every committed record is in the table once, whatever dies (S27)."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import logstore
from datasource.connector.places import MISFITS
from datasource.delta import table as delta_table
from datasource.delta.parquet import OffsetSlice, write_piece
from datasource.delta.storage import TableDirectory
from datasource.delta.table import TableConflictError, TopicTable
from datasource.delta.tiered_topics import TieredTopics
from datasource.delta.tiering import ORPHAN_AGE_HOURS, ReportRow, clean, commit, goal, plan
from datasource.delta.topic_tables import TieringTask
from datasource.jobs import delta_spark, retention, tiering
from datasource.jobs.tasks import no_progress
from datasource.session import DELTA_JARS
from datasource.topics.interface import PartitionRange
from logstore import InvalidRequestError
from logstore.schemas import ddl
from logstore.schemas.declared import schema_from
from logstore.schemas.subjects import TOPIC as SCHEMAS
from tests.spark import kill_tiering
from tests.spark.delta_writer import DeltaSource
from tests.support.repeats import only_long, soaked

VALUES = [f'{{"id": {i}, "who": "customer {i % 7}"}}' for i in range(300)]


def register(topics, columns: str) -> None:
    schema = schema_from(columns, "json")
    if topics.location.bootstrap:
        topics.client.schemas.register("t-value", schema)
        return
    with logstore.open(topics.path) as store:
        store.schemas.register("t-value", schema)


@pytest.fixture
def tier(spark, topics):
    """Run the job; return its report by partition."""

    def run(**options: object) -> dict[int, dict[str, object]]:
        frame = tiering.run(spark, **topics.place | topics.table | options)
        return {row["partition"]: row.asDict() for row in frame.collect()}

    return run


def table(topics, name: str = "t") -> Path:
    return Path(topics.path) / "tiered" / name


def rows(path: Path, columns: list[str] | None = None) -> list[dict[str, object]]:
    """The rows of a table, by partition and offset."""
    files = DeltaTable(str(path)).file_uris()
    found = [row for name in files for row in pq.ParquetFile(name).read(columns).to_pylist()]
    return sorted(found, key=lambda row: (row["partition"], row["offset"]))


def places(path: Path) -> list[tuple[int, int]]:
    return [(row["partition"], row["offset"]) for row in rows(path, ["partition", "offset"])]


def logged(topics, topic: str = "t") -> list[tuple[int, int]]:
    there = topics.location.read()
    return [
        (p, offset)
        for p, extent in there.offsets(topic).items()
        for found in there.read(PartitionRange(topic, p, extent.start, extent.end), ["offset"])
        for offset in found["offset"].to_pylist()
    ]


def task_of(topics, topic: str = "t", fields: tuple[pa.Field, ...] = ()) -> TieringTask:
    return TieringTask(
        location=topics.location, owner=topics.owner(topic), table=TableDirectory(table(topics, topic)), fields=fields
    )


def planned(task: TieringTask) -> tuple[dict[int, int], dict[int, ReportRow]]:
    """How far a run would go now, and the rows of its report."""
    count = task.location.read().topic(task.topic).partitions
    lines = {p: ReportRow(topic=task.topic, partition=p) for p in range(count)}
    return goal(task, lines), lines


def prepared(task: TieringTask) -> tuple[TopicTable, list[OffsetSlice]]:
    """The tables, made, and what a run would write into them now."""
    for path, schema in task.tables:
        delta_table.create(path, task.owner, schema)
    return task.open_table(), plan(task, *planned(task))


def refused(row: dict[str, object]) -> str:
    """Why nothing was done with the partition."""
    assert (row["status"], row["records"]) == ("failed", 0)
    return str(row["note"])


# ---------------------------------------------------------------------------------------------- what is there


@pytest.mark.directory  # writes nulls and bytes, by the library
def test_a_table_has_every_record_as_it_is_with_its_day(topics, tier):
    topics.create("t")
    header = pa.array([[("h", b"1")], None], pa.map_(pa.string(), pa.binary()))
    structs = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    with logstore.open(topics.path) as store:
        store.append(
            "t",
            pa.table(
                {
                    "key": pa.array([b"k", None], pa.binary()),
                    "value": pa.array([b"v\xff", None], pa.binary()),
                    "timestamp": pa.array([0, 1_700_000_000_123], pa.int64()),
                    "headers": header.cast(structs),
                }
            ),
        )
    report = tier()[0]
    assert (report["status"], report["start"], report["end"], report["records"]) == ("tiered", 0, 2, 2)
    first, second = rows(table(topics))
    assert first.pop("timestamp").isoformat() == "1970-01-01T00:00:00+00:00"
    assert second.pop("timestamp").isoformat() == "2023-11-14T22:13:20.123000+00:00"
    place = {"topic": "t", "partition": 0, "timestampType": 0}
    assert first == {
        **place,
        "offset": 0,
        "key": b"k",
        "value": b"v\xff",
        "headers": [{"key": "h", "value": b"1"}],
    }
    assert second == {**place, "offset": 1, "key": None, "value": None, "headers": None}
    days = pa.table(DeltaTable(str(table(topics))).get_add_actions(flatten=True))["partition.date"].to_pylist()
    assert sorted(map(str, days)) == ["1970-01-01", "2023-11-14"]


def test_a_run_takes_up_where_the_table_ends(topics, tier):
    topics.create("t", partitions=2)
    for _ in range(3):
        topics.append("t", VALUES, key=VALUES)
        tier()
    assert places(table(topics)) == logged(topics)
    assert {r["status"] for r in tier().values()} == {"nothing to do"}
    assert topics.tiered_offsets("t") == topics.ends("t")


def test_a_dry_run_says_what_would_be_done_and_does_nothing(topics, tier):
    topics.create("t")
    topics.append("t", VALUES)
    before = sorted(Path(topics.path).iterdir())
    report = tier(dry_run=True)[0]
    assert (report["status"], report["start"], report["end"]) == ("would be tiered", 0, 300)
    assert sorted(Path(topics.path).iterdir()) == before


@pytest.mark.directory
def test_internal_topics_are_tiered_only_if_they_are_named(topics):
    for topic in ("t", SCHEMAS, MISFITS):
        topics.create(topic)
        topics.append(topic, VALUES[:1])

    def names(**options):
        return {row["topic"] for row in tiering.rows(None, path=topics.path, dry_run=True, **options)}

    assert names() == {"t"}
    assert names(topics=[SCHEMAS, MISFITS]) == {SCHEMAS, MISFITS}


@pytest.mark.directory  # nothing else writes transactions here
def test_only_committed_records_are_tiered(topics, tier):
    topics.create("t")
    with logstore.open(topics.path) as store:

        def append(value: str, **options: object) -> None:
            store.append("t", pa.table({"value": [value]}), **options)

        append("plain")
        with store.transaction() as transaction:
            append("committed", transaction=transaction)
        with contextlib.suppress(KeyError), store.transaction() as transaction:
            append("aborted", transaction=transaction)
            raise KeyError
        with store.transaction() as transaction:
            append("open", transaction=transaction)
            append("behind it")
            report = tier()[0]
            assert [row["value"] for row in rows(table(topics))] == [b"plain", b"committed"]
            assert report["end"] == topics.ends("t")[0] < store.log("t", 0).log_end_offset
    tier()
    assert [row["value"] for row in rows(table(topics))] == [b"plain", b"committed", b"open", b"behind it"]


def test_records_of_many_days_and_sizes_are_cut_into_row_groups_by_day(topics, tier, monkeypatch):
    topics.create("t")
    days = [86_400_000 * (i % 40) for i in range(400)]
    topics.append("t", ["x"] * 400, timestamp=days)
    report = tier()[0]
    assert report["files"] == 40
    assert places(table(topics)) == logged(topics)


# --------------------------------------------------------------------------------------------- exactly once


def test_a_commit_whose_run_died_before_it_told_the_log_is_not_done_again(topics, tier, spark):
    """(S27)"""
    topics.create("t", partitions=2)
    topics.append("t", VALUES, key=VALUES)
    task = task_of(topics)
    _, pieces = prepared(task)
    tiering.through_package(spark, task, pieces, no_progress)  # and here the driver dies
    assert not any(topics.tiered_offsets("t"))
    report = tier()
    assert {r["status"] for r in report.values()} == {"nothing to do"}
    assert places(table(topics)) == logged(topics)
    assert topics.tiered_offsets("t") == topics.ends("t")


def test_files_of_a_run_that_died_before_its_commit_are_in_no_version_and_go_when_they_are_old(topics, tier):
    """(S27)"""
    topics.create("t")
    topics.append("t", VALUES)
    task = task_of(topics)
    _, pieces = prepared(task)
    lost = [table(topics) / f.name for f in write_piece(pieces[0]).files]
    tier()
    assert places(table(topics)) == logged(topics)
    assert lost[0].exists()  # another job may be about to commit it
    old = time.time() - (ORPHAN_AGE_HOURS + 1) * 3600
    for file in table(topics).rglob("*.parquet"):
        os.utime(file, (old, old))
    (lost[0].parent / "somebody-elses.parquet").write_bytes(b"")
    os.utime(lost[0].parent / "somebody-elses.parquet", (old, old))
    assert clean(task) == [str(file) for file in lost]
    assert places(table(topics)) == logged(topics)
    assert (lost[0].parent / "somebody-elses.parquet").exists()


def test_of_two_commits_of_the_same_records_the_second_is_refused(topics):
    topics.create("t", partitions=2)
    topics.append("t", VALUES, key=VALUES)
    task = task_of(topics)
    first, pieces = prepared(task)
    second = task.open_table()
    written = [write_piece(pieces[0]) for _ in range(2)]
    commit(first, written[0].files, {0: pieces[0].end})
    with pytest.raises(TableConflictError):
        commit(second, written[1].files, {0: pieces[0].end + 5})
    assert places(table(topics)) == [place for place in logged(topics) if place[0] == 0]
    assert not any((table(topics) / f.name).exists() for f in written[1].files)


def test_a_run_that_lost_the_race_goes_on_behind_the_winner(topics, spark, tier):
    topics.create("t")
    topics.append("t", VALUES)
    task = task_of(topics)
    _, pieces = prepared(task)
    tier()
    with pytest.raises(TableConflictError):
        tiering.through_package(spark, task, pieces, no_progress)
    topics.append("t", VALUES)
    tiering.tier_to(spark, task, *planned(task), no_progress)
    assert places(table(topics)) == logged(topics)


@only_long("runs of tiering")
def test_a_second_job_leaves_a_topic_to_the_first(topics, tier):
    topics.create("t")
    topics.append("t", VALUES)
    tier()
    topics.append("t", VALUES)
    owner = task_of(topics).owner
    with owner.base.alone(owner.note) as is_alone:
        assert is_alone
        assert tier()[0]["status"] == "skipped"
    assert tier()[0]["status"] == "tiered"
    assert places(table(topics)) == logged(topics)


def test_workers_killed_in_the_middle_leave_every_record_once(topics, tier):
    """(S27) Spark does their tasks again."""
    topics.create("t", partitions=2)
    topics.append("t", ["x" * 1000] * 60_000, key=[str(i) for i in range(60_000)])
    done, killed = threading.Event(), list[int]()
    killer = threading.Thread(target=kill_workers, args=(table(topics), done, killed))
    killer.start()
    try:
        report = tier()
    finally:
        done.set()
        killer.join()
    assert killed
    assert {r["status"] for r in report.values()} == {"tiered"}
    assert places(table(topics)) == logged(topics)


def kill_workers(directory: Path, done: threading.Event, killed: list[int]) -> None:
    """Kill two processes of Spark that have a file of the table open."""
    while not done.is_set() and len(killed) < 2:
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if b"pyspark.daemon" in (process / "cmdline").read_bytes():
                    files = [str(link.readlink()) for link in (process / "fd").iterdir()]
                    if any(file.startswith(f"{directory}/date=") for file in files):
                        os.kill(int(process.name), signal.SIGKILL)
                        killed.append(int(process.name))


@pytest.mark.directory  # over a cluster, in-sync replicas have it
def test_the_log_is_on_disk_before_the_table_has_its_records(topics, tier, monkeypatch):
    """A power cut could take them from the log, which would then give their offsets to others."""
    topics.create("t")
    commit = table(topics) / "_delta_log" / f"{1:020d}.json"
    synced: list[tuple[Path, bool]] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        synced.append((Path(f"/proc/self/fd/{fd}").readlink(), commit.exists()))
        fsync(fd)

    with logstore.open(topics.path) as store:
        store.append("t", pa.table({"value": VALUES}))
        monkeypatch.setattr(os, "fsync", note)
        tier()
        monkeypatch.undo()
    assert [is_committed for path, is_committed in synced if path.name == f"{0:020d}.log"] == [False]
    last_of_table = max(i for i, (path, _) in enumerate(synced) if path.parent == commit.parent)
    first_of_mark = min(i for i, (path, _) in enumerate(synced) if path.parent.name == "t-0" and path.suffix == ".tmp")
    assert last_of_table < first_of_mark


# ------------------------------------------------------------------------------------------------------ typed


def test_declared_fields_become_columns_and_the_rest_goes_to_the_dlq_with_its_reason(topics, tier):
    topics.create("t")
    good = '{"id": 1, "at": "2024-01-01T00:00:00Z", "key": "own", "more": 1}'
    topics.append("t", [good, "no json", '{"id": "x"}'], key=["a", "b", "c"])
    report = tier(schema="id bigint, at timestamp, key string")[0]
    assert (report["records"], report["bad"], report["end"]) == (1, 2, 3)
    (row,) = rows(table(topics))
    assert (row["offset"], row["key"], row["id"], row["value_key"]) == (0, b"a", 1, "own")
    assert "value" not in row
    bad = rows(table(topics, "t__dlq"))
    assert [(r["offset"], r["key"], r["value"]) for r in bad] == [
        (1, b"b", b"no json"),
        (2, b"c", b'{"id": "x"}'),
    ]
    assert bad[0]["reason"].startswith("not JSON")
    assert bad[1]["reason"] == 'id: "x" is no bigint'


@only_long("a job of Spark; without it in tests/unit/datasource/delta/test_registered.py")
def test_registered_columns_stand_beside_the_bytes(topics, tier, read):
    topics.create("t", partitions=2)
    topics.append("t", VALUES[:50], key=VALUES[:50])
    tier(topics="t")
    register(topics, "id bigint, who string")
    topics.append("t", [*VALUES[50:100], "bad"], key=VALUES[:51])
    done = tier(topics="t", schema="registered")
    assert sum(row["bad"] for row in done.values()) == 1, done
    found = rows(table(topics))
    assert sorted(row["value"].decode() for row in found) == sorted([*VALUES[:100], "bad"])
    assert sorted(row.get("id") for row in found if row.get("id") is not None) == list(range(50, 100))
    both = read(subscribe="t", includeTiered=True, typed=True, mode="DROPMALFORMED")
    assert sorted(row.id for row in both.collect()) == list(range(100))


def test_a_death_between_the_two_commits_doubles_no_bad_row(topics, tier):
    topics.create("t")
    topics.append("t", ["bad", VALUES[0], "bad"])
    fields = ddl.parse("id bigint")
    task = task_of(topics, fields=fields)
    _, pieces = prepared(task)
    written = write_piece(pieces[0])
    commit(task.open_bad_table(), written.bad_files, {0: pieces[0].end})
    topics.append("t", [VALUES[1], "bad"])
    report = tier(schema="id bigint")[0]
    assert (report["records"], report["bad"]) == (2, 1)
    assert [o for _, o in places(table(topics))] == [1, 3]
    assert [o for _, o in places(table(topics, "t__dlq"))] == [0, 2, 4]


@only_long("runs of tiering")
def test_another_schema_than_that_of_the_table_is_refused(topics, tier):
    topics.create("t")
    topics.append("t", VALUES)
    tier(schema="id bigint")
    assert "has other columns than declared (id): give" in refused(tier(schema="id string")[0])
    with pytest.raises(InvalidRequestError, match="write columns and types"):
        tier(schema="id bigin")
    with pytest.raises(InvalidRequestError, match="column 'id' appears twice"):
        tier(schema="id bigint, ID string")


# ------------------------------------------------------------------------------------------------ which table


@pytest.mark.directory  # over a cluster it always is
@only_long("runs of tiering")
def test_the_table_may_be_elsewhere_and_stays_where_it_is(topics, tier, tmp_path):
    topics.create("t")
    topics.create("u")
    topics.append("t", VALUES)
    where = str(tmp_path / "lake" / "{topic}")
    tier(table=where)
    topics.append("t", VALUES)
    tier()
    assert places(tmp_path / "lake" / "t") == logged(topics)
    assert "lake/t already: leave the table away" in refused(tier(topics="t", table=str(tmp_path / "other"))[0])
    with pytest.raises(InvalidRequestError, match="would hold 2 topics"):
        tier(table=str(tmp_path / "other"))


@only_long("runs of tiering")
def test_the_table_of_an_earlier_topic_of_the_same_name_is_not_written_to(topics, tier):
    topics.create("t")
    topics.append("t", VALUES)
    tier()
    topics.delete("t")
    topics.create("t")
    topics.append("t", VALUES[:1])
    assert "is a table of another (or an earlier) topic 't'; give another directory" in refused(tier()[0])
    tier(table=str(table(topics, "t2")))
    assert places(table(topics, "t2")) == [(0, 0)]


@pytest.mark.directory  # its files
@only_long("runs of tiering")
def test_a_log_that_was_restored_from_before_its_table_is_reported(topics, tier, tmp_path):
    topics.create("t")
    topics.append("t", VALUES[:100])
    tier(table=str(tmp_path / "t"))
    shutil.copytree(topics.path, tmp_path / "copy")
    topics.append("t", VALUES[100:])
    tier()
    shutil.rmtree(topics.path)
    (tmp_path / "copy").rename(topics.path)
    report = tier()[0]
    assert report["status"] == "failed"
    assert report["note"].startswith("the table holds offsets up to 300, and the log ends at 100")


# ------------------------------------------------------------------------------------- table and log as one


@pytest.fixture
def half_gone(topics, tier):
    """Records 0 to 399 are in the table, 300 to 599 in the log."""
    topics.create("t", segment_bytes="4000")
    for _ in range(4):
        topics.append("t", VALUES[:100])
    tier()
    for _ in range(2):
        topics.append("t", VALUES[:100])
    topics.cut("t", 300)


def test_table_and_log_together_hold_each_offset_once(half_gone, read):
    assert read(subscribe="t").count() == 300
    union = read(subscribe="t", includeTiered=True, includeHeaders=True)
    found = union.orderBy("offset").collect()
    assert [row.offset for row in found] == list(range(600))
    assert [row.value.decode() for row in found] == VALUES[:100] * 6
    assert union.schema == read(subscribe="t", includeHeaders=True).schema
    assert read(subscribe="t", includeTiered=True, minPartitions=7).selectExpr("sum(offset)").first()[0] == 179_700


def test_ranges_of_offsets_and_time_reach_into_the_table(half_gone, read, topics):
    part = read(
        subscribe="t",
        includeTiered=True,
        columns="offset",
        startingOffsets='{"t": {"0": 250}}',
        endingOffsets='{"t": {"0": 450}}',
    )
    assert sorted(row.offset for row in part.collect()) == list(range(250, 450))
    middle = read(subscribe="t", includeTiered=True).where("offset = 150").first().timestamp
    since = int(middle.timestamp() * 1000)
    expected = read(subscribe="t", includeTiered=True).where(f"unix_millis(timestamp) >= {since}").count()
    assert read(subscribe="t", includeTiered=True, startingTimestamp=since).count() == expected > 0


@pytest.mark.directory  # over a cluster the table has to be there
def test_a_reader_between_whose_batches_records_are_tiered_and_deleted_misses_none(topics, tier):
    topics.create("t", segment_bytes="400000")
    for _ in range(6):
        topics.append("t", ["x" * 1000] * 1000)
    target = TieredTopics(topics.location, topics.table.get("table", ""), fail_on_data_loss=True)
    batches = target.read(PartitionRange("t", 0, 0, 6000), ["value"])
    count = next(batches).num_rows
    assert count < 3000
    tier()
    topics.cut("t", 5500)
    assert count + sum(batch.num_rows for batch in batches) == 6000
    assert target.offsets("t")[0].count == 6000


@pytest.mark.directory  # over a cluster the table has to be there
@only_long("jobs of Spark")
def test_a_topic_that_was_never_tiered_is_just_its_log(topics, read):
    topics.create("t")
    topics.append("t", VALUES)
    assert read(subscribe="t", includeTiered=True).count() == 300


@only_long("runs of tiering")
def test_a_typed_table_cannot_stand_in_for_the_log(topics, tier, read):
    topics.create("t")
    topics.append("t", VALUES)
    tier(schema="id bigint")
    with pytest.raises(Exception, match="is tiered with a schema"):
        read(subscribe="t", includeTiered=True).count()


def test_a_hole_between_table_and_log_is_data_loss(half_gone, topics, read, tier):
    topics.cut("t", 500)
    with pytest.raises(Exception, match=r"t-0 \[400, 500\) is lost"):
        read(subscribe="t", includeTiered=True).count()
    assert read(subscribe="t", includeTiered=True, failOnDataLoss=False).count() == 500
    report = tier()[0]
    assert (report["status"], report["start"]) == ("tiered", 500)
    assert report["note"] == "offsets 400 to 500 were deleted before they were tiered"


@pytest.mark.directory  # brokers do not wait
def test_retention_waits_for_the_table(topics, tier, read, spark):
    topics.create("t", segment_bytes="4000", retention_bytes="4000", remote_storage_enable="true")
    for _ in range(10):
        topics.append("t", VALUES[:100])
    assert retention.run(spark, path=topics.path).first()["status"] == "nothing to do"
    tier()
    report = retention.run(spark, path=topics.path).first()
    assert (report["status"], report["start_before"]) == ("removed", 0)
    assert report["start_after"] > 500
    assert read(subscribe="t", includeTiered=True).count() == 1000


@only_long("jobs of Delta")
def test_an_optimized_table_is_read_the_same(half_gone, topics, tier, read):
    topics.append("t", VALUES[:100])
    tier()
    assert DeltaTable(str(table(topics))).optimize.compact()["numFilesRemoved"] > 0
    found = read(subscribe="t", includeTiered=True, columns="offset").collect()
    assert sorted(row.offset for row in found) == list(range(700))
    topics.append("t", VALUES[:100])
    assert tier()[0]["records"] == 100


# ------------------------------------------------------------------------------------- through Delta's own writer


@pytest.fixture
def through_delta(spark, monkeypatch):
    """A stand-in for a session with Delta's jar, as far as the job uses it; with the jar see below."""
    spark.dataSource.register(DeltaSource)
    monkeypatch.setattr(delta_spark, "has_delta", lambda session: True)  # a static setting: it cannot be set here


@only_long("Delta's own writer")
def test_delta_s_writer_gets_boundaries_and_rows(through_delta, topics, tier, read):
    topics.create("t", partitions=2)
    for timestamp in (0, 1_700_000_000_000_000):  # the year 55840
        topics.append("t", VALUES, key=VALUES, timestamp=[timestamp] * 300)
        report = tier()
    assert {r["status"] for r in report.values()} == {"tiered"}
    assert sum(r["records"] for r in report.values()) == 300
    assert {r["status"] for r in tier().values()} == {"nothing to do"}
    assert places(table(topics)) == logged(topics)
    assert read(subscribe="t", includeTiered=True).count() == 600


@only_long("Delta's own writer")
def test_delta_s_writer_gets_bad_rows_once(through_delta, topics, tier):
    topics.create("t")
    topics.append("t", ["bad", VALUES[0], None])
    fields = ddl.parse("id bigint")
    task = task_of(topics, fields=fields)
    _, pieces = prepared(task)
    commit(task.open_bad_table(), write_piece(pieces[0]).bad_files, {0: 3})
    report = tier(schema="id bigint")[0]
    assert (report["records"], report["bad"]) == (2, 0)
    assert [o for _, o in places(table(topics, "t__dlq"))] == [0]
    assert [(row["offset"], row["id"]) for row in rows(table(topics))] == [(1, 0), (2, None)]


JARS = os.environ.get(DELTA_JARS)
WITH_JARS = """
import sys
from datasource import spark_session
from datasource.jobs import tiering
spark = spark_session(master="local[2]", delta=True)
frame = tiering.run(spark, path=sys.argv[1])
print("STATUS", *[row["status"] for row in frame.collect()])
print("ROWS", spark.read.format("delta").load(sys.argv[2]).count())
spark.stop()
"""


@pytest.mark.skipif(not JARS, reason=f"no Delta jars: name them in {DELTA_JARS}")
def test_with_delta_s_jar_every_record_is_there_once(topics):
    topics.create("t", partitions=2)
    command = [sys.executable, "-c", WITH_JARS, topics.path, str(table(topics))]
    for turn in (1, 2):
        topics.append("t", VALUES, key=VALUES)
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        assert "STATUS tiered tiered" in done.stdout, done.stderr
        assert f"ROWS {300 * turn}" in done.stdout
    assert places(table(topics)) == logged(topics)


@pytest.mark.slow
@pytest.mark.soak
@only_long("JVMs that are killed")
def test_a_driver_killed_at_any_moment_leaves_every_record_once(spark, tmp_path):
    """(S27) Over a cluster and over a directory. More: python tests/spark/kill_tiering.py."""
    found = kill_tiering.run(tmp_path, kills=soaked(2, 10), seed=31)
    assert found.count("each once") == len(kill_tiering.PLACES)
