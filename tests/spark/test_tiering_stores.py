"""Tiering of stores that were copied or moved, or lost a table, and of topics beside others that cannot be tiered."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

import logstore
from datasource.delta import table as delta_table
from datasource.delta.owner import NOTES
from datasource.delta.tiered_topics import TieredTopics
from datasource.errors import DataLossError
from datasource.jobs import retention, schedule, tiering
from datasource.topics.locations import Location
from logstore import StoreError
from logstore.schemas import ddl
from tests.spark.test_tiering import places
from tests.support.repeats import only_long

TIERED = {
    "remote.storage.enable": "true",
    "retention.ms": "1",
    "segment.bytes": "600",
    "file.delete.delay.ms": "0",
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store whose topic `t` holds 20 records, which may go once they are tiered."""
    path = tmp_path / "a"
    with logstore.open(path) as opened:
        opened.create_topic("t", config=TIERED)
    append(path, "a", 20)
    return path


def append(path: Path, text: str, count: int, topic: str = "t") -> None:
    with logstore.open(path) as opened:
        for i in range(count):
            opened.append(topic, pa.table({"value": [f"{text}{i}"]}))


def tier(spark: SparkSession, path: Path, **options: object) -> dict[tuple[str, int], str]:
    """Run the job; return the status and the note of each partition."""
    rows = tiering.run(spark, path=str(path), **options).collect()
    return {(row["topic"], row["partition"]): f"{row['status']}: {row['note'] or ''}" for row in rows}


def union(spark: SparkSession, path: Path, **options: object) -> DataFrame:
    reader = spark.read.format("pylog").option("path", str(path)).option("subscribe", "t")
    return reader.option("includeTiered", True).options(**options).load().selectExpr("CAST(value AS STRING)")


def values(frame: DataFrame) -> list[str]:
    return sorted(row[0] for row in frame.collect())


def named(text: str, count: int) -> list[str]:
    return [f"{text}{i}" for i in range(count)]


# ------------------------------------------------------------------------------------------ copies and moves


@only_long("runs of tiering")
def test_a_copy_of_a_store_fills_its_own_copy_of_the_table(spark, store, tmp_path):
    """Else the original would let go of records on the word of a table that has those of the copy."""
    other = tmp_path / "b"
    tier(spark, store)
    shutil.copytree(store, other)
    append(other, "b", 20)
    append(store, "more", 20)
    assert tier(spark, other) == tier(spark, store) == {("t", 0): "tiered: "}
    retention.run(spark, path=str(store))
    assert values(union(spark, store)) == sorted([*named("a", 20), *named("more", 20)])
    assert values(union(spark, other)) == sorted([*named("a", 20), *named("b", 20)])


@only_long("runs of tiering")
def test_a_table_elsewhere_is_that_of_one_store_and_a_moved_store_is_told_how_to_keep_it(spark, store, tmp_path):
    table, early, late, moved = str(tmp_path / "lake" / "{topic}"), *(tmp_path / name for name in "bcd")
    shutil.copytree(store, early)
    tier(spark, store, table=table)
    shutil.copytree(store, late)
    for copy, options in ((early, {"table": table}), (late, {})):
        append(copy, "b", 5)
        why = tier(spark, copy, **options)["t", 0]
        assert why.startswith(f"failed: {tmp_path}/lake/t is a table of the store {store}, not of {copy}")
    with pytest.raises(StoreError, match="is a table of the store"):
        TieredTopics(Location(str(late)), fail_on_data_loss=True).offsets("t")
    assert places(tmp_path / "lake" / "t") == [(0, offset) for offset in range(20)]

    retention.run(spark, path=str(store))
    store.rename(moved)
    append(moved, "more", 5)
    why = tier(spark, moved)["t", 0]
    assert f"set the property {delta_table.STORE} of the table to {moved};" in why
    DeltaTable(str(tmp_path / "lake" / "t")).alter.set_table_properties(
        {delta_table.STORE: str(moved)}, raise_if_not_exists=False
    )
    assert tier(spark, moved)["t", 0] == "tiered: "
    assert values(union(spark, moved)) == sorted([*named("a", 20), *named("more", 5)])


@only_long("runs of tiering")
def test_a_store_that_was_moved_finds_its_table(spark, store, tmp_path):
    tier(spark, store)
    retention.run(spark, path=str(store))
    moved = store.rename(tmp_path / "moved")
    append(moved, "more", 5)
    wanted = sorted([*named("a", 20), *named("more", 5)])
    assert values(union(spark, moved)) == wanted
    assert tier(spark, moved)["t", 0] == "tiered: "
    assert values(union(spark, moved)) == wanted
    assert not store.exists()


# ------------------------------------------------------------------------------------------------- what is gone


@only_long("runs of tiering")
def test_a_table_that_is_gone_is_told_and_not_recreated(spark, store):
    tier(spark, store)
    shutil.rmtree(store / "tiered" / "t")
    append(store, "more", 5)
    for options in ({}, {"dry_run": True}, {"table": str(store / "tiered" / "{topic}")}):
        why = tier(spark, store, **options)["t", 0]
        assert why.startswith(f"failed: {store}/tiered/t cannot be read as a Delta table")
        assert not (store / "tiered" / "t").exists()
    with pytest.raises(StoreError, match="cannot be read as a Delta table"):
        TieredTopics(Location(str(store)), fail_on_data_loss=True).offsets("t")


@only_long("runs of tiering")
def test_records_that_neither_the_table_nor_the_log_has_are_missed(spark, store):
    tier(spark, store)
    with logstore.open(store) as opened:
        opened.alter_topic("t", partitions=2)
        opened.append("t", pa.table({"value": named("b", 9), "partition": pa.array([1] * 9, pa.int32())}))
        opened.delete_records("t", {1: 4})
    target = TieredTopics(Location(str(store)), fail_on_data_loss=True)
    assert target.offsets("t")[1] == logstore.OffsetRange(0, 9)
    with pytest.raises(DataLossError, match=r"t-1 \[0, 4\) is lost"):
        list(target.read(tiering_range(1, 0, 9), ["value"]))
    assert union(spark, store, failOnDataLoss=False).count() == 25
    assert tier(spark, store)["t", 1] == "tiered: offsets 0 to 4 were deleted before they were tiered"
    assert union(spark, store).count() == 25


def tiering_range(partition: int, start: int, end: int):
    from datasource.topics.interface import PartitionRange

    return PartitionRange("t", partition, start, end)


# --------------------------------------------------------------------------------------- one beside the other


@only_long("runs of tiering")
def test_what_is_wrong_with_one_topic_or_partition_keeps_no_other_from_being_tiered(spark, store):
    with logstore.open(store) as opened:
        for name in ("anew", "gone", "kept", "typed", "typed__dlq", "unforeseen"):
            opened.create_topic(name, partitions=2)
            opened.append(name, pa.table({"value": ['{"id": 1}'] * 4, "key": ["a", "b", "c", "d"]}))
        note = store / NOTES / f"{opened.topic('unforeseen').topic_id}.json"
    note.parent.mkdir()
    note.write_text('{"table": "no path: \\u0000"}')
    assert tier(spark, store, topics=["typed"], schema="id bigint") == {
        ("typed", 0): "tiered: ",
        ("typed", 1): "tiered: ",
    }
    tier(spark, store, topics=["anew"])
    with logstore.open(store) as opened:
        opened.delete_topic("anew")
        opened.create_topic("anew")
    append(store, "b", 1, "anew")
    shutil.rmtree(store / "gone-0")
    for dry_run in (True, False):
        done = tier(spark, store, dry_run=dry_run)
        good = "would be tiered: " if dry_run else "tiered: "
        assert "is a table of another (or an earlier) topic 'anew'" in done.pop(("anew", 0))
        assert "the directory of gone-0 is missing" in done.pop(("gone", 0))
        for partition in (0, 1):
            assert "topic 'typed'; give another directory" in done.pop(("typed__dlq", partition))
            assert done.pop(("unforeseen", partition)).startswith("failed: ")
            assert done.pop(("typed", partition)) == "nothing to do: "
        assert done == {("t", 0): good, ("gone", 1): good, ("kept", 0): good, ("kept", 1): good}


@only_long("runs of tiering")
def test_a_timestamp_of_another_unit_stops_nobody(spark, store):
    with logstore.open(store) as opened:
        opened.create_topic("far")
        microseconds = pa.array([1_700_000_000_000_000, -1, 0], pa.int64())
        opened.append("far", pa.table({"value": ["x"] * 3, "timestamp": microseconds}))
    assert tier(spark, store) == {("far", 0): "tiered: ", ("t", 0): "tiered: "}
    assert places(store / "tiered" / "far") == [(0, 0), (0, 1), (0, 2)]


def test_the_schema_that_was_declared_is_that_of_later_runs(spark, store):
    tier(spark, store, schema="key string, id bigint")
    append(store, '{"id": 1, "key": "k"}', 1)
    reports = list(schedule.turn(spark, ["tiering", "retention"], path=str(store)))
    assert [(job, rows[0]["status"]) for job, rows in reports] == [
        ("tiering", "tiered"),
        ("retention", "removed"),
    ]
    assert places(store / "tiered" / "t__dlq")[-1] == (0, 20)
    append(store, "", 1)
    shutil.copytree(store, store.with_name("b"))
    assert tier(spark, store.with_name("b"))["t", 0] == "tiered: "


def test_a_declared_schema_has_the_types_that_spark_gives_it(spark):
    text = (
        "a tinyint, B SMALLINT not null, c int COMMENT 'see, b', d bigint, e float, f double, g boolean, h string, "
        "i binary, j date, k timestamp, l timestamp_ntz, m decimal(5,2), n decimal, `o p` array<map<string, int>>, "
        "q struct<r: int not null, s string>, 2t long, u numeric(7), v real, w map<string, struct<x: array<date>>>"
    )
    found = StructType.fromDDL(text)
    assert isinstance(found, StructType)
    assert pa.schema(ddl.parse(text)).equals(to_arrow_schema(found, timezone="UTC"))
