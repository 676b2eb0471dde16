"""Batch tables of topics: what is written is read, and what is wrong is said before a task runs."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Row
from pyspark.sql.functions import lit, unix_millis

import logstore
from tests.support.repeats import only_long, times

pytestmark = pytest.mark.spark

SCHEMA = "key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int"


def refusal(action):
    with pytest.raises(PySparkException) as caught:
        action()
    return str(caught.value)


@pytest.fixture
def orders(topics):
    topics.create("orders", partitions=2)
    topics.append(
        "orders",
        ["a", "b", "c", "d"],
        key=["k", None, "k", ""],
        partition=pa.array([0, 0, 0, 1], pa.int32()),
        timestamp=pa.array([1000, 2000, 3000, 1500], pa.timestamp("ms", "UTC")),
    )
    return topics


def test_a_frame_comes_back_as_it_was_written(spark, topics, read, write):
    topics.create("t", partitions=3)
    rows = [
        Row(key="k1", value="v1", partition=2, headers=[Row(key="h", value=b"1"), Row(key="h", value=None)]),
        Row(key=None, value=None, partition=2, headers=None),
        Row(key="", value="", partition=0, headers=[]),
    ]
    moment = datetime(2024, 2, 3, 4, 5, 6, 789_000, tzinfo=UTC)
    schema = "key string, value string, partition int, headers array<struct<key:string,value:binary>>"
    frame = spark.createDataFrame(rows, schema).coalesce(1).withColumn("timestamp", lit(moment))
    write(frame, topic="t")

    found = read(subscribe="t", includeHeaders="true").orderBy("partition", "offset")
    assert found.schema.simpleString() == f"struct<{SCHEMA},headers:array<struct<key:string,value:binary>>>"
    assert [(r.key, r.value, r.topic, r.partition, r.offset, r.timestampType) for r in found.collect()] == [
        (b"", b"", "t", 0, 0, 0),
        (b"k1", b"v1", "t", 2, 0, 0),
        (None, None, "t", 2, 1, 0),
    ]
    assert [r.headers for r in found.collect()][1] == rows[0].headers
    assert not any(r.headers for r in found.collect()[::2])
    assert {r.t for r in found.select(unix_millis("timestamp").alias("t")).collect()} == {
        int(moment.timestamp() * 1000)
    }


def test_binary_and_string_are_the_same_and_a_copy_of_a_topic_is_one_line(spark, orders, read, write):
    orders.create("copy", partitions=2)
    write(read(subscribe="orders"), topic="copy")
    assert orders.values("copy") == orders.values("orders")
    assert read(subscribe="copy").select("key", unix_millis("timestamp")).collect() == [
        (b"k", 1000), (None, 2000), (b"k", 3000), (b"", 1500),
    ]  # fmt: skip


def test_rows_name_their_topic_unless_the_option_does(spark, topics, write):
    topics.create("a")
    topics.create("b")
    frame = spark.range(6).selectExpr("if(id % 2 = 0, 'a', 'b') TOPIC", "string(id) Value").coalesce(1)
    write(frame)
    assert (topics.values("a"), topics.values("b")) == (["0", "2", "4"], ["1", "3", "5"])
    write(frame.limit(1), topic="b")
    assert topics.values("b") == ["1", "3", "5", "0"]


def test_keys_decide_the_partition_as_in_the_library(spark, topics, write):
    for topic in ("spark", "library", "java"):
        topics.create(topic, partitions=4)
    keys = [f"k{i}" for i in range(40)]
    frame = spark.createDataFrame([(k, k) for k in keys], "key string, value string").coalesce(1)
    write(frame, topic="spark")
    topics.append("library", keys, key=keys)
    assert topics.values("spark") == topics.values("library")
    write(frame, topic="java", partitioner="murmur2")
    assert topics.values("java") != topics.values("spark")
    assert sorted(topics.values("java")) == sorted(keys)


def test_headers_can_be_left_out(spark, topics, read, write):
    topics.create("t")
    frame = spark.sql("SELECT 'v' value, array(named_struct('key', 'h', 'value', binary('x'))) headers")
    write(frame, topic="t", includeHeaders="false")
    assert read(subscribe="t", includeHeaders="true").first().headers is None
    assert "headers" not in read(subscribe="t").columns


@pytest.mark.directory  # its files
@only_long("jobs of Spark")
def test_compression_is_an_option(spark, topics, read, write):
    for codec in ("none", "zstd"):
        topics.create(codec)
        write(spark.range(3000).selectExpr("string(id) value").coalesce(1), topic=codec, compression=codec)
    with logstore.open(topics.path, mode="r") as store:
        plain, packed = (sum(s.size_bytes for s in store.log(codec, 0).segments()) for codec in ("none", "zstd"))
    assert packed < plain / 2
    assert read(subscribe="zstd").count() == 3000


# --- reading a part ---


def test_offsets_times_and_partitions_bound_a_read(orders, read):
    def values(**options):
        return sorted(r.value.decode() for r in read(**options).collect())

    bounds = {"startingOffsets": '{"orders":{"0":1,"1":-2}}', "endingOffsets": '{"orders":{"0":2,"1":-1}}'}
    assert values(subscribe="orders", **bounds) == ["b", "d"]
    assert values(subscribe="orders", startingTimestamp="1200", endingTimestamp="2500") == ["b", "d"]
    assert values(assign='{"orders":[1]}') == ["d"]
    assert values(subscribePattern="ord.*") == ["a", "b", "c", "d"]


def test_only_wanted_columns_are_read(orders, read):
    assert read(subscribe="orders", columns="offset, value").columns == ["offset", "value"]
    assert read("topic string, offset bigint", assign='{"orders":[0]}').collect() == [
        ("orders", 0), ("orders", 1), ("orders", 2),
    ]  # fmt: skip
    assert read("partition int", subscribe="orders").count() == 4
    assert "'offset' is bigint, not int" in refusal(read("offset int", subscribe="orders").count)
    assert "did you mean 'offset'" in refusal(read("ofset bigint", subscribe="orders").count)


@pytest.fixture
def pushdown(spark):
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, True)
    yield
    spark.conf.unset(name)


CONDITIONS = {
    "offset >= 1 and offset < 2": 1,
    "partition = 1": 1,
    "partition in (0, 5)": 3,
    "topic = 'orders' and offset = 0": 2,
    "topic like 'x%'": 0,
    "timestamp >= timestamp'1970-01-01 00:00:02'": 2,
    "timestamp = timestamp'1970-01-01 00:00:01.5'": 1,
    "timestamp < timestamp'1970-01-01 00:00:02' and value = X'61'": 1,
    "offset = 1 or partition = 1": 2,
    "not (partition = 0)": 1,
}


def test_pushed_filters_give_the_same_rows(orders, read, pushdown):
    for condition, count in [*CONDITIONS.items()][:: times(3, 1)]:
        found = {
            tuple(
                sorted((r.partition, r.offset) for r in read(subscribe="orders", **options).where(condition).collect())
            )
            for options in ({"pushdown": "true", "minPartitions": 4}, {})
        }
        assert len(found) == 1, condition
        assert len(found.pop()) == count, condition


@pytest.mark.directory  # its files
@only_long("jobs of Spark")
def test_pushed_filters_leave_partitions_unread(orders, read, pushdown):
    """A damaged partition is harmless to a query that does not read it, and to no other."""
    path = Path(orders.path, "orders-1", "00000000000000000000.log")
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    assert read(subscribe="orders", pushdown="true").where("partition = 0").count() == 3
    assert "damaged at byte" in refusal(read(subscribe="orders", pushdown="true").count)
    assert "damaged at byte" in refusal(read(subscribe="orders").where("partition = 0").count)


def test_the_option_pushdown_is_harmless_where_spark_does_not_push(orders, read):
    assert read(subscribe="orders", pushdown="true").where("partition = 0").count() == 3


@only_long("jobs of Spark")
def test_a_frame_that_is_used_twice_is_whole_each_time(orders, read, pushdown):
    frame = read(subscribe="orders")
    assert frame.where("partition = 0").count() == 3
    assert frame.count() == 4
    assert frame.where("partition = 0").join(frame.where("partition = 1"), "topic").count() == 3


def test_tasks_are_cut_as_asked(orders, read):
    assert read(subscribe="orders").rdd.getNumPartitions() == 1
    assert read(subscribe="orders", minPartitions=4).rdd.getNumPartitions() == 4
    assert read(subscribe="orders", maxRecordsPerPartition=1).rdd.getNumPartitions() == 4
    assert read(subscribe="orders", minPartitions=4).count() == 4


def test_an_empty_topic_is_an_empty_table(topics, read):
    topics.create("empty")
    assert read(subscribe="empty").collect() == []


# --- SQL ---


def test_a_temporary_view_is_the_table_of_sql(spark, orders):
    ((name, place),) = orders.options.items()
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW o USING pylog OPTIONS ({name} '{place}', subscribe 'orders')")
    assert spark.sql("SELECT max(offset) m, partition p FROM o GROUP BY partition ORDER BY p").collect() == [
        (2, 0),
        (0, 1),
    ]
    spark.catalog.dropTempView("o")


@only_long("a catalog of Spark")
def test_a_created_table_says_that_spark_drops_its_options(spark, orders):
    ((name, place),) = orders.options.items()
    spark.sql(f"CREATE TABLE lost USING pylog OPTIONS ({name} '{place}', subscribe 'orders')")
    try:
        text = refusal(spark.table("lost").count)
        assert "CREATE TABLE" in text
        assert "datasource.register(spark, place)" in text
        found = spark.sql(f"SELECT count(*) FROM lost WITH ('{name}'='{place}', subscribe='orders')")
        assert found.collect() == [(4,)]
        spark.sql(f"INSERT INTO lost WITH ('{name}'='{place}', topic='orders') (value) VALUES (binary('e'))")
        assert len(orders.values("orders")) == 5
    finally:
        spark.sql("DROP TABLE lost")


# --- what is wrong is said while planning ---


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"subscribe": "order"}, "no topic 'order' in .*did you mean 'orders'"),
        ({"subscribe": "orders", "startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        (
            {"subscribe": "orders", "path": "/", "kafka.bootstrap.servers": "h:1"},
            "are both given: leave one away",
        ),
        ({"subscribe": "orders", "startingOffsets": '{"orders":{"0":1}}'}, "does not mention orders-1"),
        (
            {"subscribe": "orders", "startingOffsets": '{"orders":{"0":9,"1":0}}'},
            "offset 9 is outside orders-0",
        ),
        ({"assign": '{"orders":[7]}'}, "no partition 7"),
        ({}, "exactly one of 'subscribe'"),
    ],
)
def test_a_wrong_read_is_refused_in_one_line(orders, read, options, line):
    with pytest.raises(AnalysisException, match=line) as caught:
        read(**options).count()
    assert "Traceback" not in str(caught.value)


def test_a_directory_without_a_log_is_refused(spark, tmp_path):
    frame = spark.read.format("pylog").option("path", str(tmp_path / "no")).option("subscribe", "x").load()
    assert "holds no log" in refusal(frame.count)
    assert "option 'path'" in refusal(spark.read.format("pylog").option("subscribe", "x").load)


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        ("string(id) key", "column 'value' .* is missing"),
        ("id value", "column 'value' must be string or binary, not bigint"),
        ("'v' value, 1.5 key", "column 'key' must be string or binary"),
        ("'v' value, 'x' partition", "column 'partition' must be int, not string"),
        ("'v' value, 5 timestamp", "column 'timestamp' must be timestamp, not int"),
        ("'v' value, array('a') headers", "column 'headers' must be array<struct<key:string,value:binary>>"),
        ("'v' value, 1 ky", "column 'ky' cannot be written; did you mean 'key'"),
        ("'v' value, 'w' VALUE", "twice"),
    ],
)
def test_wrong_columns_are_refused_before_any_task(spark, topics, write, columns, line):
    topics.create("t")
    with pytest.raises(AnalysisException, match=f"(?i){line}"):
        write(spark.sql(f"SELECT {columns} FROM range(1)"), topic="t")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, "set option 'topic'"),
        ({"topic": "tt"}, "no topic 'tt'.*did you mean 't'"),
        ({"topic": "t", "partitioner": "hash"}, "one of murmur3"),
        ({"topic": "t", "acks": "all"}, "unknown option 'acks'"),
    ],
)
def test_a_wrong_write_is_refused_before_any_task(spark, topics, write, options, line):
    topics.create("t")
    frame = spark.range(1).selectExpr("string(raise_error('a task ran')) value")
    with pytest.raises(AnalysisException, match=line):
        write(frame, **options)


def test_a_log_is_not_overwritten(spark, topics, write):
    topics.create("t")
    frame = spark.sql("SELECT 'v' value")
    assert "append-only" in refusal(lambda: write(frame, mode="overwrite", topic="t"))
    for mode in (None, "ignore"):
        assert '"Append"' in refusal(lambda mode=mode: write(frame, mode=mode, topic="t"))


# --- what is wrong with a row is said by its task ---


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ("'v' value, 3 partition", "partition 3"),
        ("'v' value, -1 partition", "partition -1"),
        ("repeat('x', 2000000) value", "max.message.bytes"),
    ],
)
def test_a_row_that_cannot_be_stored_fails_the_write(spark, topics, write, row, line):
    topics.create("t", partitions=3)
    assert line in refusal(lambda: write(spark.sql(f"SELECT {row}"), topic="t"))
    assert topics.ends("t") == [0, 0, 0]


def test_a_row_with_no_topic_or_an_unknown_one_fails_the_write(spark, topics, write):
    topics.create("t")
    assert "'topic' is null in 1 rows" in refusal(lambda: write(spark.sql("SELECT 'v' value, string(null) topic")))
    assert "no topic 'tx'" in refusal(lambda: write(spark.sql("SELECT 'v' value, 'tx' topic")))


def test_a_null_key_does_not_go_into_a_compacted_topic(spark, topics, write):
    topics.create("t", cleanup_policy="compact")
    assert "key" in refusal(lambda: write(spark.sql("SELECT 'v' value"), topic="t"))
    assert topics.ends("t") == [0]


@only_long("tasks that are tried again")
def test_a_plain_write_that_fails_says_what_it_left(spark, topics, write):
    topics.create("t", partitions=2)
    topics.append("t", ["before"], partition=pa.array([1], pa.int32()))
    good = spark.range(5).selectExpr("string(id) value", "1 partition").coalesce(1)
    bad = (
        spark.range(1)
        .selectExpr("java_method('java.lang.Thread', 'sleep', 1000L) is null x")
        .selectExpr("string(x) value", "9 partition")
    )
    text = refusal(lambda: write(good.union(bad), topic="t", exactlyOnce="false"))
    assert "partition 9" in text
    assert "left in the log since the write began: t-1 [1, 6)" in text


@only_long("tasks that are tried again")
def test_a_task_that_is_tried_again_gets_through(spark, topics, write, tmp_path):
    topics.create("t")
    marker = tmp_path / "failed-once"

    def fail_once(batches):
        yield from batches
        if not marker.exists():
            marker.touch()
            raise RuntimeError("the first attempt fails")

    frame = spark.range(3).selectExpr("string(id) value").coalesce(1).mapInArrow(fail_once, "value string")
    write(frame, topic="t")
    assert set(topics.values("t")) == {"0", "1", "2"}
