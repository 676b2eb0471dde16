"""Topics as columns through real queries: read, kept where they do not fit, and written."""

from __future__ import annotations

import json
from contextlib import ExitStack
from decimal import Decimal

import pytest
from pyspark.errors import PySparkException

import datasource
import logstore
from logstore.schemas.declared import schema_from
from tests.spark.test_stream import until
from tests.support.repeats import only_long

pytestmark = pytest.mark.spark

ORDERS = "user string, amount decimal(10,2)"
JSON = {"value.format": "json"}
ALL = {"availableNow": True}
KEYED = {"key.format": "raw", "key.fields": "user"}


def order(user: str, amount: str = "1.50") -> str:
    return json.dumps({"user": user, "amount": amount})


@pytest.fixture
def orders(topics):
    topics.create("orders", partitions=2)
    topics.append("orders", [order("ada"), order("bob", "2.25")])
    return topics


def letters(read, topic="dlq"):
    """The keys of the dead letters, and their reasons."""
    found = read(subscribe=topic, includeHeaders="true").collect()
    return {row.key.decode(): {each.key: each.value for each in row.headers}["dlq.reason"].decode() for row in found}


def test_values_are_columns_and_the_first_misfit_is_one_line(orders, read):
    frame = read(f"{ORDERS}, _offset bigint", subscribe="orders", **JSON)
    assert frame.schema.simpleString() == "struct<user:string,amount:decimal(10,2),_offset:bigint>"
    assert sorted(map(tuple, frame.select("user", "amount").collect())) == [
        ("ada", Decimal("1.50")),
        ("bob", Decimal("2.25")),
    ]
    assert frame.where("amount > 2").select("user").collect() == [("bob",)]
    orders.append("orders", ["nonsense"])
    with pytest.raises(PySparkException) as caught:
        read(ORDERS, subscribe="orders", **JSON).collect()
    assert "at offset" in str(caught.value)
    assert "value: not JSON" in str(caught.value)
    assert "Traceback" not in str(caught.value)


def declare(topics, columns: str, topic: str = "orders") -> None:
    """Register these columns as those of the topic's values."""
    subject = f"{topic}-value"
    with ExitStack() as stack:
        place = stack.enter_context(logstore.open(topics.path)) if topics.location.path else topics.client
        place.schemas.set_level("NONE", subject)
        place.schemas.register(subject, schema_from(columns, "json"))


class Stream:
    """A query that writes what it reads typed to a topic, as JSON."""

    def __init__(self, spark, topics, checkpoint) -> None:
        self.spark, self.topics, self.checkpoint = spark, topics, checkpoint

    def frame(self, schema=ORDERS, **options):
        given = self.topics.options | {"subscribe": "orders", "startingOffsets": "earliest", **JSON, **options}
        return self.spark.readStream.format("pylog").schema(schema).options(**given).load()

    def run(self, frame, **trigger) -> str:
        """Run to the end; return the id of the query. `misfits` has what an observer sees of them."""
        given = self.topics.options | {"topic": "out", "checkpointLocation": str(self.checkpoint), **JSON, **KEYED}
        with datasource.observe(self.spark) as seen:
            query = frame.writeStream.format("pylog").options(**given).trigger(**trigger or ALL).start()
            assert query.awaitTermination(120)
            self.misfits = datasource.lag(seen.last_progress(query, timeout_s=60))["misfits"]
            looks = {each["id"]: each for each in seen.queries()}  # other tests have queries in this session, too
            assert looks[query.id]["sources"][0]["misfits"] == self.misfits
        return query.id

    def forget(self, number: int) -> None:
        """Pretend that Spark was killed before it recorded the end of this batch."""
        for name in (str(number), f".{number}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)


@pytest.fixture
def stream(spark, orders, tmp_path):
    orders.create("out")
    return Stream(spark, orders, tmp_path / "checkpoint")


def test_a_stream_goes_on_beside_its_dead_letters_which_have_its_name(orders, read, stream):
    orders.append("orders", [order("cyd", "much"), "nonsense", order("dan")], partition=[0, 0, 0])
    frame = stream.frame(**{"dlq.topic": "dlq"})
    query = stream.run(frame, once=True)  # without the empty batch that tells the count
    before = letters(read)
    assert len(before) == 2
    assert all(key.startswith(f"{query}|orders|0|") for key in before)
    assert sorted(before.values())[0].startswith('value: amount: "much" is no decimal')
    stream.forget(0)
    orders.append("orders", ["{}", "{"], partition=[1, 1])
    assert stream.run(frame) == query
    assert stream.misfits == 3
    after = letters(read)
    assert before.items() < after.items()
    assert len(after) == 3
    users = [row.user for row in read(ORDERS, subscribe="out", **JSON, **KEYED).collect()]
    assert sorted(map(str, users)) == ["None", "ada", "bob", "dan"]


def test_what_was_read_is_written_and_read_as_it_was_or_refused_as_a_whole(spark, orders, read, write):
    orders.create("copy", partitions=2)
    schema = f"{ORDERS}, _key binary, _timestamp timestamp, _partition int, _offset bigint"
    frame = read(schema, subscribe="orders", **JSON)
    write(frame, topic="copy", **JSON)
    assert sorted(read(schema, subscribe="copy", **JSON).collect()) == sorted(frame.collect())
    wrong = spark.createDataFrame([(1.0,)] * 5 + [(float("nan"),)], "x double").repartition(2)
    with pytest.raises(PySparkException, match="a row cannot be written: x: ") as caught:
        write(wrong, topic="copy", **JSON)
    assert "Traceback" not in str(caught.value)
    with pytest.raises(PySparkException, match="no column 'usr'; did you mean 'user'"):
        write(frame, topic="copy", **JSON, **KEYED | {"key.fields": "usr"})
    assert len(orders.values("copy")) == 2


def test_columns_are_those_of_the_topics_schemas(spark, orders, read, write):
    declare(orders, ORDERS)
    declare(orders, f"{ORDERS}, n int", "copy")
    orders.create("copy", partitions=2)
    frame = read(subscribe="orders", typed="true", columns="user,_offset", metadata="true")
    assert frame.columns == ["user", "_offset", "_topic", "_partition", "_timestamp", "_headers", "_key"]
    write(frame.selectExpr("*", "int(7) AS n"), topic="copy", typed="true")
    found = read(subscribe="copy", typed="true")
    assert found.schema.simpleString() == "struct<user:string,amount:decimal(10,2),n:int>"
    assert sorted(map(tuple, found.collect())) == [("ada", None, 7), ("bob", None, 7)]
    with pytest.raises(PySparkException, match="column 'n' is string, and the topic has int"):
        write(frame.selectExpr("*", "'7' AS n"), topic="copy", typed="true")


@only_long("a query that waits")
def test_a_newer_schema_ends_a_query_that_asks_for_it_after_a_batch(spark, orders, read, tmp_path):
    declare(orders, ORDERS)
    given = orders.options | {"subscribe": "orders", "startingOffsets": "earliest", "typed": "true"}

    def started():
        frame = spark.readStream.format("pylog").options(**given, **{"schema.evolution": "restart"}).load()
        writer = frame.writeStream.format("memory").queryName("evolved")
        return writer.start()

    query = started()
    try:
        query.processAllAvailable()
        assert spark.table("evolved").columns == ["user", "amount"]
        declare(orders, f"{ORDERS}, more int")
        until(lambda: not query.isActive, 60)
    finally:
        query.stop()
    assert "orders-value has version" in str(query.exception())
    assert "start it again, with the new columns" in str(query.exception())
    assert spark.table("evolved").count() == 2
    query = started()
    try:
        query.processAllAvailable()
        assert spark.table("evolved").columns == ["user", "amount", "more"]
    finally:
        query.stop()


@only_long("two runs of a query")
def test_a_permissive_stream_has_a_row_for_each_record(orders, read, stream):
    orders.append("orders", ["nonsense"])
    frame = stream.frame(f"{ORDERS}, _corrupt_record string, _key binary", mode="PERMISSIVE")
    stream.run(frame.selectExpr("coalesce(user, 'nobody') AS user", "_corrupt_record AS bad"))
    assert stream.misfits == 1
    rows = read("user string, bad string", subscribe="out", **JSON, **KEYED).collect()
    assert sorted(map(tuple, rows)) == [("ada", None), ("bob", None), ("nobody", "nonsense")]
