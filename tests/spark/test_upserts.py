"""Streams in update and complete mode: each key's last state is in the topic once, whatever Spark repeats."""

from __future__ import annotations

from collections import Counter

import pytest
from pyspark.sql.functions import expr

import datasource
from logstore import InvalidConfigError, InvalidRequestError, UnknownTopicError
from tests.support.repeats import only_long, times

pytestmark = pytest.mark.spark
EXECUTIONS = 100  # more than a test has


def place(topics):
    return topics.location.path or topics.location.bootstrap


class Counts:
    """A query that counts the values of topic `in`, in batches of three records, by one of the two ways."""

    def __init__(self, spark, topics, checkpoint, way) -> None:
        self.spark, self.topics, self.checkpoint, self.way = spark, topics, checkpoint, way

    def stream(self):
        source = {"subscribe": "in", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "3"}
        return self.spark.readStream.format("pylog").options(**self.topics.options | source).load()

    def counted(self):
        return self.stream().groupBy(expr("string(value)").alias("user")).count().where("count < 3")

    def run(self, frame=None, **more: str):
        frame = self.counted() if frame is None else frame
        arguments = {"topic": "out", "key": "user", "checkpoint": self.checkpoint} | more
        query = self.way(frame, place(self.topics), **arguments).trigger(availableNow=True).start()
        assert query.awaitTermination(120)

    def records(self):
        options = self.topics.options | {"subscribe": "out", "columns": "key,value,partition,offset"}
        rows = self.spark.read.format("pylog").options(**options).load().orderBy("partition", "offset").collect()
        return [(row.key.decode(), row.value and row.value.decode()) for row in rows]

    def latest(self):
        return {key: value for key, value in dict(self.records()).items() if value is not None}

    def forget(self, number: int) -> None:
        """Pretend that the driver died between the commit of this batch and Spark's own."""
        for name in (str(number), f".{number}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)


@pytest.fixture
def counts(spark, topics, tmp_path):
    topics.create("in")
    topics.create("out", partitions=2, cleanup_policy="compact")
    return lambda way: Counts(spark, topics, tmp_path / "checkpoint", way)


def row(user: str, count: int) -> str:
    return f'{{"user":"{user}","count":{count}}}'


@pytest.mark.parametrize(
    ("way", "written", "latest"),
    [
        (datasource.upsert, ["a1", "b1", "b2", "c1"], {"a": 1, "b": 2, "c": 1}),
        (datasource.replace, ["a1", "b1", "a-", "b2", "c1"], {"b": 2, "c": 1}),
    ][: times(1, 2)],
)
def test_each_key_has_its_latest_value_and_a_batch_that_comes_again_is_there_once(way, written, latest, counts, topics):
    query = counts(way)
    topics.append("in", ["a", "b", "?", "b", "?", "?"])
    topics.append("in", ["a", "a", "c"])  # which takes a out of the result
    frame = query.counted().where("user <> '?'")
    query.run(frame)
    query.forget(2)
    before = query.records()
    query.run(frame)
    assert query.records() == before
    assert query.latest() == {user: row(user, count) for user, count in latest.items()}
    seen = {f"{key}{value[-2] if value else '-'}" for key, value in before}
    assert seen == set(written)
    topics.append("in", ["c", "d"])
    query.run(frame)
    assert query.latest() == {user: row(user, count) for user, count in (latest | {"c": 2, "d": 1}).items()}


def executions(spark) -> list[int]:
    """The ids of the last ones: Spark forgets the oldest of a thousand, so that their number tells nothing."""
    session = spark._jsparkSession
    session.sparkContext().listenerBus().waitUntilEmpty()
    store = session.sharedState().statusStore()
    found = store.executionsList(max(0, store.executionsCount() - EXECUTIONS), EXECUTIONS)
    return [found.apply(n).executionId() for n in range(found.size())]


def rows_read(spark, before: int) -> list[int]:
    """How many records each later execution took from pylog, those of the stream left out."""
    store = spark._jsparkSession.sharedState().statusStore()
    found = []
    for number in sorted(each for each in executions(spark) if each > before):
        values = store.executionMetrics(number)
        nodes = store.planGraph(number).allNodes()
        for node in (nodes.apply(n) for n in range(nodes.size())):
            if node.name().startswith("BatchScan pylog"):
                metrics = (node.metrics().apply(n) for n in range(node.metrics().size()))
                (output,) = (each for each in metrics if each.name() == "number of output rows")
                found.append(int(values.get(output.accumulatorId()).get().replace(",", "")))
    return found


@only_long("four batches")
def test_a_batch_of_replace_reads_what_the_one_before_it_wrote(counts, topics, spark):
    query = counts(datasource.replace)
    users = [f"user-{n}" for n in range(3)]
    for _ in range(5):
        topics.append("in", users)
    before = max(executions(spark), default=-1)
    query.run(query.stream().groupBy(expr("string(value)").alias("user")).count())
    assert [rows for rows in rows_read(spark, before) if rows] == [3, 3, 3, 3]  # and not 3, 6, 9, 12
    assert len(query.records()) == 5 * len(users)


@only_long("many batches")
def test_no_key_stays_that_is_gone_after_a_repeated_batch_or_with_more_partitions(counts, topics, spark):
    query = counts(datasource.replace)
    counted = Counter()

    def order(*users: str) -> None:
        topics.append("in", list(users))
        counted.update(users)

    def check() -> None:
        """In no partition another key has a value than those that were ordered less than three times."""
        options = topics.options | {"subscribe": "out", "columns": "key,value,partition,offset"}
        rows = spark.read.format("pylog").options(**options).load().orderBy("partition", "offset").collect()
        last = {(row.key.decode(), row.partition): row.value for row in rows}
        lives = {user for (user, _), value in last.items() if value is not None}
        assert lives == {user for user, count in counted.items() if count < 3}

    order("a", "b", "c")
    order("a", "b", "d")
    query.run()
    query.forget(1)
    arguments = {"topic": "out", "key": "user", "checkpoint": query.checkpoint}
    running = datasource.replace(query.counted(), place(topics), **arguments).start()
    try:
        for users in ("aef", "bgh", "cci"):
            order(*users)  # one of them for the third time
            running.processAllAvailable()
            check()
        topics.grow("out", 4)
        for users in ("ddj", "eek", "ffl", "ggm"):
            order(*users)
            running.processAllAvailable()
            check()
    finally:
        running.stop()


def test_a_row_without_a_key_or_a_second_one_of_a_key_is_refused(counts, topics):
    query = counts(datasource.upsert)
    topics.append("in", ["a", "a", "b"])
    with pytest.raises(Exception, match="batch 0 has 3 rows of 2 keys"):
        query.run(query.stream().selectExpr("string(value) user"))
    with pytest.raises(Exception, match="batch 0 has 1 rows without a key"):
        query.run(query.stream().selectExpr("nullif(string(value), 'b') user", "value"), value="value")
    assert topics.ends("out") == [0, 0]


def test_wrong_arguments_are_refused_at_once(counts, topics, spark):
    query = counts(datasource.replace)
    topics.create("plain")
    wrong = [
        ({"topic": "plain"}, InvalidRequestError, "not compacted.*cleanup.policy=compact"),
        ({"topic": "outt"}, UnknownTopicError, "out"),
        ({"topic": 3}, InvalidRequestError, "topic=3: give the name of a topic"),
        ({"key": "users"}, InvalidRequestError, "did you mean 'user'"),
        ({"value": "count"}, InvalidRequestError, "must be string or binary"),
        ({"txnVersion": "3"}, InvalidRequestError, "'txnVersion' is set here"),
        ({"partitionr": "sticky"}, InvalidConfigError, "did you mean 'partitioner'"),
        ({"checkpoint": "hdfs://host/checkpoint"}, InvalidRequestError, "local or mounted directory"),
        ({"frame": spark.createDataFrame([("a",)], "user string")}, InvalidRequestError, "no stream"),
    ]
    for arguments, kind, says in wrong:
        with pytest.raises(kind, match=says):
            query.run(**arguments)
