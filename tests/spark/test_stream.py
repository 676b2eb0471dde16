"""Streams of topics through real queries: each record once, over restarts, replays and growth."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from datasource import lag
from datasource.connector.idle import WAIT_MS_MAX
from tests.support.repeats import only_long
from tests.support.waits import remains

pytestmark = pytest.mark.spark


class Query:
    """A query that keeps the values of each batch, by batch id; a batch seen again replaces the first."""

    def __init__(self, spark, topics, checkpoint: Path) -> None:
        self.spark, self.topics, self.checkpoint = spark, topics, checkpoint
        self.batches: dict[int, list[str]] = {}

    def frame(self, **options):
        options = {**self.topics.options, "startingOffsets": "earliest"} | options
        return self.spark.readStream.format("pylog").options(**options).load()

    def start(self, trigger=None, **options):
        def keep(batch, number):
            self.batches[number] = [r.value.decode() for r in batch.sort("partition", "offset").collect()]

        writer = self.frame(**options).writeStream.foreachBatch(keep)
        return writer.trigger(**trigger or {"availableNow": True}).option("checkpointLocation", self.checkpoint).start()

    def run(self, trigger=None, **options):
        """Run to the end; return the last progress."""
        query = self.start(trigger, **options)
        assert query.awaitTermination(60)
        return query.lastProgress

    def values(self):
        return sorted(value for batch in self.batches.values() for value in batch)

    def forget(self, number: int) -> None:
        """Pretend that Spark was killed before it recorded the end of this batch."""
        for name in (str(number), f".{number}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)
        del self.batches[number]


@pytest.fixture
def query(spark, topics, tmp_path):
    return Query(spark, topics, tmp_path / "checkpoint")


def until(condition, seconds=40.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def numbers(start, end):
    return [f"{i:03}" for i in range(start, end)]


def test_available_now_reads_in_portions_and_goes_on_after_a_restart(topics, query):
    topics.create("t", partitions=2)
    topics.append("t", numbers(0, 30), partition=pa.array([0] * 20 + [1] * 10, pa.int32()))
    query.run(subscribe="t", maxOffsetsPerTrigger=12)
    assert [len(batch) for batch in query.batches.values()] == [12, 12, 6]
    assert query.values() == numbers(0, 30)

    progress = query.run(subscribe="t", maxOffsetsPerTrigger=12)
    assert progress["numInputRows"] == 0
    topics.append("t", numbers(30, 35))
    progress = query.run(subscribe="t", maxOffsetsPerTrigger=12)
    assert query.values() == numbers(0, 35)
    assert lag(progress) == {
        "minOffsetsBehindLatest": 0,
        "maxOffsetsBehindLatest": 0,
        "avgOffsetsBehindLatest": 0.0,
        "offsetsBehindLatest": 0,
    }


@only_long("queries of its own")
def test_a_batch_that_was_not_noted_is_read_again_as_it_was(topics, query):
    topics.create("t")
    topics.append("t", numbers(0, 10))
    query.run(subscribe="t", maxOffsetsPerTrigger=6)
    first = dict(query.batches)
    topics.append("t", numbers(10, 20))
    query.forget(1)
    query.run(subscribe="t", maxOffsetsPerTrigger=6)
    assert query.batches[1] == first[1]
    assert query.values() == numbers(0, 20)


@only_long("queries of its own")
def test_a_start_at_the_end_is_the_same_when_batch_0_is_read_again(topics, query):
    topics.create("t")
    topics.append("t", numbers(0, 5))
    running = query.start(subscribe="t", startingOffsets="latest", trigger={"processingTime": "0 seconds"})
    until(lambda: query.batches)  # the head moves while batch 0 is planned, and after
    topics.append("t", numbers(5, 9))
    until(lambda: query.values() == numbers(5, 9))
    running.stop()
    seen = dict(query.batches)

    for number in sorted(seen, reverse=True):
        query.forget(number)
    for later in [name for name in (query.checkpoint / "offsets").iterdir() if name.name.lstrip(".")[0] not in "0m"]:
        later.unlink()
    topics.append("t", numbers(9, 12))
    query.run(subscribe="t", startingOffsets="latest")
    assert query.batches[0] == seen[0]
    assert query.values() == numbers(5, 12)


@only_long("queries of its own")
def test_once_takes_all_in_one_batch(topics, query):
    topics.create("t")
    topics.append("t", numbers(0, 10))
    query.run({"once": True}, subscribe="t", maxOffsetsPerTrigger=3)
    assert [len(batch) for batch in query.batches.values()] == [10]


@only_long("two seconds of idling, at least")
def test_a_query_that_idles_leaves_the_waiting_to_the_source_and_follows_and_stops_all_the_same(spark, topics, query):
    topics.create("t", partitions=3)
    name = "spark.sql.streaming.noDataProgressEventInterval"
    spark.conf.set(name, 0)
    try:
        running = query.start({"processingTime": "0 seconds"}, subscribe="t")
    finally:
        spark.conf.unset(name)
    waits = lambda: (running.lastProgress or {}).get("durationMs", {}).get("latestOffset", 0)  # noqa: E731
    until(lambda: waits() >= WAIT_MS_MAX)
    topics.append("t", ["a"])
    until(lambda: query.values() == ["a"])
    running.stop()
    assert running.exception() is None


def test_a_running_query_follows_new_records_partitions_and_topics(topics, query):
    topics.create("t-a")
    running = query.start({"processingTime": "100 milliseconds"}, subscribePattern="t-.*", startingOffsets="latest")
    until(lambda: query.batches)
    topics.append("t-a", ["x1"])
    until(lambda: query.values() == ["x1"])
    topics.grow("t-a", 2)
    topics.append("t-a", ["x2"], partition=pa.array([1], pa.int32()))
    until(lambda: query.values() == ["x1", "x2"])
    topics.create("t-b")
    topics.append("t-b", ["x3"])
    topics.create("other")
    topics.append("other", ["x4"])
    until(lambda: query.values() == ["x1", "x2", "x3"])
    assert running.exception() is None
    running.stop()


@only_long("queries of its own")
def test_limits_in_bytes_and_rows_act(topics, query):
    topics.create("t")
    for i in range(6):
        topics.append("t", [f"{i}" * 1000])
    query.run(subscribe="t", maxBytesPerTrigger=2500)
    assert [len(batch) for batch in query.batches.values()] == [2, 2, 2]


@only_long("a query that waits")
def test_few_rows_wait_for_more(topics, query):
    topics.create("t")
    topics.append("t", numbers(0, 3))
    running = query.start({"processingTime": "0 seconds"}, subscribe="t", minOffsetsPerTrigger=3, maxTriggerDelay="1h")
    until(lambda: query.values() == numbers(0, 3))
    topics.append("t", numbers(3, 5))
    remains(lambda: query.values() == numbers(0, 3), 1)
    topics.append("t", numbers(5, 6))
    until(lambda: query.values() == numbers(0, 6))
    running.stop()


@only_long("queries of its own")
def test_lost_records_end_the_query_and_are_named(topics, query):
    topics.create("t")
    topics.append("t", numbers(0, 3))
    query.run(subscribe="t")
    topics.delete("t")
    topics.create("t")
    topics.append("t", numbers(3, 5))
    with pytest.raises(StreamingQueryException, match=r"deleted and created again.*failOnDataLoss=false"):
        query.run(subscribe="t")
    query.run(subscribe="t", failOnDataLoss="false")
    assert query.values() == numbers(0, 5)


@only_long("queries of its own")
def test_offsets_in_the_checkpoint_read_like_those_of_kafka(topics, query):
    topics.create("t", partitions=2)
    topics.append("t", numbers(0, 4), partition=pa.array([0, 0, 0, 1], pa.int32()))
    query.run(subscribe="t")
    offset = json.loads((query.checkpoint / "offsets" / "0").read_text().splitlines()[2])
    assert (offset["v"], offset["offsets"], offset["init"]) == (
        1,
        {"t": {"0": 3, "1": 1}},
        {"t": {"0": 0, "1": 0}},
    )


@only_long("a query of its own")
def test_the_lag_is_in_the_progress(topics, query):
    topics.create("t", partitions=2)
    topics.append("t", numbers(0, 10), partition=pa.array([0] * 8 + [1] * 2, pa.int32()))
    running = query.start({"processingTime": "1 hour"}, subscribe="t", maxOffsetsPerTrigger=5)
    until(lambda: running.lastProgress is not None)
    assert lag(running.lastProgress) == {
        "minOffsetsBehindLatest": 1,
        "maxOffsetsBehindLatest": 4,
        "avgOffsetsBehindLatest": 2.5,
        "offsetsBehindLatest": 5,
    }
    running.stop()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"subscribe": "tt"}, "no topic 'tt'.*did you mean 't'"),
        ({"subscribe": "t", "endingOffsets": "latest"}, "availableNow"),
    ],
)
def test_a_wrong_stream_says_what_to_do(topics, query, options, line):
    topics.create("t")
    with pytest.raises(StreamingQueryException, match=line):
        query.run(**options)


@pytest.mark.directory  # each is refused before the place matters
@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"subscribe": "t", "pth": "x"}, "unknown option 'pth'; did you mean 'path'"),
        ({"subscribe": "t", "maxOffsetsPerTrigger": "0"}, "a whole number, 1 or more"),
        ({"path": "", "subscribe": "t"}, "option 'path'"),
        ({}, "exactly one of 'subscribe'"),
    ],
)
def test_wrong_options_are_refused_before_the_query_starts(query, options, line):
    with pytest.raises(AnalysisException, match=line) as caught:
        query.frame(**options)
    assert "Traceback" not in str(caught.value)


@only_long("queries that fail")
def test_what_is_wrong_with_a_stream_is_the_last_word(spark, topics):
    topics.create("t")
    reader = spark.readStream.format("pylog").options(**topics.options, subscribe="t", endingOffsets="latest")
    query = reader.load().writeStream.format("noop").start()
    with pytest.raises(StreamingQueryException, match="a stream has no end") as caught:
        query.awaitTermination(60)
    assert "UnboundLocalError" not in str(caught.value)


# --- writing ---


def to_topic(frame, topics, checkpoint, **options):
    writer = frame.writeStream.format("pylog").options(**topics.options, checkpointLocation=checkpoint, **options)
    return writer.trigger(availableNow=True)


@only_long("queries that fail")
def test_a_wrong_stream_write_says_what_to_do(topics, query, tmp_path):
    topics.create("t")
    topics.append("t", ["x"])
    frame = query.frame(subscribe="t").selectExpr("offset value")
    with pytest.raises(StreamingQueryException, match="column 'value' must be string or binary, not bigint"):
        to_topic(frame, topics, tmp_path / "c", topic="t").start().awaitTermination(60)


def test_complete_mode_is_refused(topics, query, tmp_path):
    topics.create("t")
    topics.append("t", ["x"])
    frame = query.frame(subscribe="t").groupBy().count().selectExpr("string(count) value")
    with pytest.raises(StreamingQueryException, match="append-only"):
        to_topic(frame, topics, tmp_path / "c", topic="t").outputMode("complete").start().awaitTermination(60)
