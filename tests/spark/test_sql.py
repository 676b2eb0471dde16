"""Topics in SQL: views and tables that are read and written, and new tables that are refused before a row is."""

from __future__ import annotations

import pytest

import datasource
from logstore import InvalidConfigError, InvalidRequestError
from tests.spark.test_typed import declare
from tests.support.repeats import only_long

pytestmark = pytest.mark.spark


def place(topics):
    return topics.location.path or topics.location.bootstrap


def options(topics, **more: str) -> str:
    return ", ".join(f"'{name}' = '{value}'" for name, value in (topics.options | more).items())


@pytest.fixture
def session(spark):
    """The session of all tests, without the tables and views of this one afterwards."""
    yield spark
    for table in spark.catalog.listTables():
        if table.isTemporary:
            spark.catalog.dropTempView(f"`{table.name}`")
        else:
            spark.sql(f"DROP TABLE `{table.name}`")


def test_topics_are_views_that_sql_reads_and_writes(session, topics):
    topics.create("sql.in-1")
    topics.create("out", partitions=2)
    topics.append("sql.in-1", ["a", "b"], key=["k", "l"])
    assert datasource.register(session, place(topics), ["sql.*", "out"], includeHeaders="true") == ["out", "sql.in-1"]
    session.sql(
        "INSERT INTO out (key, value, headers) SELECT key, binary(upper(string(value))), headers FROM `sql.in-1`"
    )
    assert sorted(topics.values("out")) == ["A", "B"]
    topics.append("sql.in-1", ["c"])
    session.table("`sql.in-1`").where("offset = 2").write.insertInto("out")
    rows = session.sql("SELECT string(value) AS value FROM out ORDER BY 1").collect()
    assert [row.value for row in rows] == ["A", "B", "c"]
    session.sql("INSERT INTO out (value) VALUES (binary('d'))")
    assert session.sql("SELECT count(*) FROM out").first()[0] == 4


def test_topics_with_schemas_are_views_of_columns(session, topics):
    for topic, columns in (("paid", "user string, amount decimal(10,2)"), ("out", "user string, n int")):
        topics.create(topic)
        declare(topics, columns, topic)
    topics.append("paid", ['{"user": "Ada", "amount": "12.50"}', "nonsense"])
    kept = {"typed": True, "metadata": True, "dlq.topic": "misfits", "dlq.name": "views"}
    with pytest.raises(InvalidConfigError, match=r"batch read needs 'dlq\.name'"):
        datasource.register(session, place(topics), ["paid"], typed=True, **{"dlq.topic": "misfits"})
    datasource.register(session, place(topics), ["paid", "out"], **kept)
    session.sql("INSERT INTO out (user, n) SELECT user, int(amount) FROM paid")
    topics.append("paid", ['{"user": "Bob", "amount": 3}'])
    session.sql("INSERT INTO out (n, user) SELECT int(amount) + _offset, user FROM paid WHERE _offset > 0")
    assert topics.values("out") == ['{"user":"Ada","n":12}', '{"user":"Bob","n":5}']
    assert session.sql("SELECT count(*) FROM paid").first()[0] == 2
    assert set(topics.values("misfits")) == {"nonsense"}


@only_long("another session of commands")
def test_columns_of_a_format_are_those_that_register_names(session, topics):
    topics.create("in")
    topics.append("in", ['{"n": 1}', '{"n": 2, "s": "x"}', "{"])
    json = {"value.format": "json", "mode": "PERMISSIVE"}
    with pytest.raises(InvalidRequestError, match=r"name them by schema="):
        datasource.register(session, place(topics), "in", **json)
    with pytest.raises(InvalidRequestError, match=r"values are bytes: set 'value\.format'"):
        datasource.register(session, place(topics), "in", schema="n int")
    datasource.register(session, place(topics), "in", schema="n int, s string, _corrupt_record string", **json)
    rows = session.sql("SELECT n, s, _corrupt_record FROM in").collect()
    assert sorted(map(tuple, rows), key=str) == [(1, None, None), (2, "x", None), (None, None, "{")]
    session.sql("INSERT INTO in (n) VALUES (3)")
    assert topics.values("in")[-1] == '{"n":3}'


@only_long("a query of its own")
def test_a_table_is_read_and_written_by_with(session, topics):
    topics.create("in")
    topics.create("out")
    topics.append("in", ["a", "b"], key=["k", "l"])
    session.sql("CREATE TABLE log USING pylog")
    session.sql(
        f"INSERT INTO log WITH ({options(topics, topic='out')}) (key, value) "
        f"SELECT key, value FROM log WITH ({options(topics, subscribe='in')}) WHERE offset < 1"
    )
    assert topics.values("out") == ["a"]


@only_long("a dozen commands, each refused by a task")
def test_a_new_table_is_refused_before_a_row_is_written(session, topics, tmp_path):
    """Spark would not hand the options of the table to its reads."""
    topics.create("out")
    topics.create("in")
    topics.append("in", ["a"])
    frame = session.createDataFrame([("a",)], "value string")
    given = topics.options | {"topic": "out"}

    def to_table():
        stream = (
            session.readStream.format("pylog")
            .options(**topics.options, subscribe="in")
            .option("startingOffsets", "earliest")
        )
        writer = stream.load().select("value").writeStream.format("pylog").options(**given)
        writer.option("checkpointLocation", tmp_path / "c").trigger(availableNow=True).toTable("d").awaitTermination()

    refused = {
        "no row was written": (
            frame.write.format("pylog").options(**given).mode("append").saveAsTable,
            frame.write.format("pylog").options(**given).saveAsTable,
            lambda name: frame.writeTo(name).using("pylog").options(**given).create(),
        ),
        "does not hand its OPTIONS": (
            lambda name: session.sql(
                f"CREATE TABLE {name} USING pylog OPTIONS ({options(topics, topic='out')}) AS SELECT 'a' value"
            ),
        ),
    }
    for says, acts in refused.items():
        for act in acts:
            with pytest.raises(Exception, match=says) as caught:
                act("dead")
            assert "datasource.register(spark, place)" in str(caught.value)
            assert not session.catalog.tableExists("dead")
    with pytest.raises(Exception, match=r"no row was written.*\.start\(\).*datasource\.register"):
        to_table()
    assert topics.ends("out") == [0]
    assert topics.everything("out") == []


@only_long("many commands")
def test_commands_within_commands_that_make_no_table_write(session, topics, tmp_path):
    topics.create("out")
    topics.create("in")
    topics.append("in", ["batch"])
    datasource.register(session, place(topics), "*")
    session.sql("""EXECUTE IMMEDIATE "INSERT INTO out (value) VALUES (binary('immediate'))" """)
    session.table("in").select("key", "value").writeTo("out").append()

    def insert(frame, number):
        frame.createOrReplaceTempView("batch")
        frame.sparkSession.sql("INSERT INTO out (value) SELECT binary(upper(string(value))) FROM batch")

    stream = session.readStream.format("pylog").options(**topics.options, subscribe="in", startingOffsets="earliest")
    writer = stream.load().writeStream.foreachBatch(insert).option("checkpointLocation", tmp_path / "checkpoint")
    assert writer.trigger(availableNow=True).start().awaitTermination(120)
    assert topics.values("out") == ["immediate", "batch", "BATCH"]
