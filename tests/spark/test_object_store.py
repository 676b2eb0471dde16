"""Spark's jobs and reads over tables in an object store. How tables are filled: tests/unit/datasource/delta."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from datasource.connector.counts import count
from datasource.delta.owner import owner_of, read_note
from datasource.delta.storage_options import storage_options
from datasource.delta.topic_tables import table_of
from datasource.jobs import schedule, tiering
from datasource.topics.locations import Location
from tests.support.object_store import KEY, SECRET, Store, running
from tests.support.repeats import only_long


@pytest.fixture(scope="module")
def s3() -> Iterator[Store]:
    with running() as found:
        yield found


def numbers(start: int, end: int) -> list[str]:
    return [str(i) for i in range(start, end)]


def offsets(s3: Store, url: str) -> list[int]:
    found = DeltaTable(url, storage_options=s3.options).to_pyarrow_table(columns=["offset"])
    return sorted(pa.table(found)["offset"].to_pylist())


@only_long("jobs of Spark")
def test_spark_tiers_reads_counts_and_streams_and_shows_no_secret(spark, topics, s3, tmp_path, capfd):
    topics.create("t", segment_bytes="4000", remote_storage_enable="true")
    topics.append("t", numbers(0, 400))
    table = {"table": "s3://lake/spark/{topic}", "storage_options": s3.options}
    (row,) = tiering.run(spark, path=topics.path, **table).collect()
    assert (row.status, row.records, row.note) == ("tiered", 400, None)
    topics.append("t", numbers(400, 600))
    topics.cut("t", 300)
    options = topics.options | s3.spark_options | {"subscribe": "t", "includeTiered": "true"}
    frame = spark.read.format("pylog").options(**options).load()
    assert sorted(int(row.value) for row in frame.collect()) == list(range(600))
    assert count(spark, **options) == 600
    seen: list[int] = []
    for end in (600, 650):
        stream = spark.readStream.format("pylog").options(
            **options, startingOffsets="earliest", maxOffsetsPerTrigger=350
        )
        query = (
            stream.load()
            .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .foreachBatch(lambda rows, _: seen.extend(int(row.value) for row in rows.collect()))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert sorted(seen) == list(range(end))
        progress = json.dumps(query.lastProgress, default=str)
        topics.append("t", numbers(end, end + 50))
        list(schedule.turn(spark, ["tiering", "retention"], path=topics.path, storage_options=s3.options))
    assert offsets(s3, "s3://lake/spark/t") == list(range(700))
    frame.explain(extended=True)
    with pytest.raises(Exception, match="the credentials are wrong: check AWS_ACCESS_KEY_ID") as refused:
        spark.read.format("pylog").options(**options | {"storage.aws_access_key_id": f"{KEY}2"}).load().collect()
    shown = capfd.readouterr()
    files = [
        file.read_text() for file in (tmp_path / "checkpoint").rglob("*") if file.is_file() and ".crc" not in file.name
    ]
    for text in (shown.out, shown.err, progress, str(refused.value), *files):
        assert SECRET not in text
        assert KEY not in text


@only_long("brokers")
def test_a_cluster_is_tiered_to_a_bucket_and_read_from_it_after_its_brokers_deleted(spark, cluster, client, over, s3):
    """The note lies beside the table; the job of another host is told by it how far the first one came."""
    topic = cluster.create((1, 2, 3), segment_bytes=500)
    bootstrap = over["kafka.bootstrap.servers"]
    options = {"table": "s3://lake/cluster/{topic}", "storage_options": s3.options}
    client.append(topic, pa.table({"value": numbers(0, 300)}))
    for status in ("tiered", "nothing to do"):
        (row,) = tiering.rows(None, bootstrap=bootstrap, topics=topic, **options)
        assert (row["status"], row["note"]) == (status, None)
    location, storage = Location(bootstrap=bootstrap), storage_options(s3.options)
    place = table_of(topic, options["table"], storage)
    note = read_note(owner_of(location, location.read().topic(topic), place, storage))
    assert note.tiered[0][0] == 300
    assert note.tiered[0][1] >= 0  # the leader epoch, by which an unclean election is noticed
    assert sum(name.startswith("_pylog/") for name in s3.keys(f"cluster/{topic}")) == 1
    client.append(topic, pa.table({"value": numbers(300, 350)}))
    cluster.administer("delete_records", [_at(topic, 250)])
    read = spark.read.format("pylog").options(**over, subscribe=topic)
    assert read.load().count() == 100
    union = read.options(**s3.spark_options, includeTiered=True, tieredTable=options["table"])
    assert sorted(int(row.value) for row in union.load().collect()) == list(range(350))


def _at(topic: str, offset: int):
    from confluent_kafka import TopicPartition

    return TopicPartition(topic, 0, offset)
