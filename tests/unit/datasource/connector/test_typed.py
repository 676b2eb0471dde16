"""Reads of typed topics, task by task: columns as Spark wants them, and what becomes of records that do not fit."""

import json
import pickle
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual

import logstore
from datasource.connector import typed
from datasource.connector.counts import PylogCounts
from datasource.connector.options import read_options, write_options
from datasource.connector.reader import BatchReader, PushingBatchReader, StreamReader
from datasource.connector.source import PylogDataSource
from datasource.connector.typed import TypedRows, typed_records
from datasource.jobs import tiering
from datasource.schema import spark_schema
from logstore import InvalidConfigError, InvalidRecordError, InvalidRequestError
from logstore.config import INT64_MAX
from logstore.env import SYSTEM
from logstore.errors import PylogError, StorageError
from logstore.schemas import ddl
from logstore.schemas.misfits import MisfitError
from tests.support.memory_target import planned

ORDERS = "user string, amount decimal(10,2), at timestamp"
AT = datetime(2026, 1, 2, 3, 4, 5, 600_000, UTC)
JSON = {"value.format": "json"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data"


def order(user, amount="1.50"):
    return json.dumps({"user": user, "amount": amount, "at": AT.isoformat(), "more": 1})


def fill(path, values, topic="orders", **columns):
    with logstore.open(path) as store:
        store.create_topic(topic, if_not_exists=True)
        store.append(topic, pa.table({"value": pa.array(values, pa.string()), **columns}))


def columns(text):
    return pa.schema(ddl.parse(text))


def reader(path, schema=ORDERS, kind=BatchReader, **options):
    given = {"path": str(path), "subscribe": "orders", **{name.replace("__", "."): o for name, o in options.items()}}
    return kind(read_options(given, streaming=kind is StreamReader), columns(schema))


def batches(reader):
    reader = pickle.loads(pickle.dumps(reader))
    found = [batch for task in reader.partitions() for batch in pickle.loads(pickle.dumps(reader)).read(task)]
    return pa.Table.from_batches(found)


def dead_letters(path, topic="dlq"):
    with logstore.open(path, mode="r") as store:
        return store.read(topic).read_all()


def test_values_are_columns_beside_those_of_the_key_and_of_the_record(path):
    headers = pa.array(
        [[{"key": "h", "value": b"1"}], None], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    )
    moments = pa.array([AT, AT], pa.timestamp("ms", "UTC"))
    fill(path, [order("ada"), None], key=["k0", "k1"], headers=headers, timestamp=moments)
    schema = (
        f"_offset bigint, {ORDERS}, k_id string, _topic string, _partition int, _timestamp timestamp, "
        "_headers array<struct<key: string, value: binary>>, _key binary"
    )
    key = {"key.format": "raw", "key.fields": "k_id", "key.fields-prefix": "k_"}
    found = batches(reader(path, schema, **JSON, **key))
    assert found.schema.equals(columns(schema))
    place = {"_topic": "orders", "_partition": 0, "_timestamp": AT}
    of_first = {"user": "ada", "amount": Decimal("1.50"), "at": AT}
    assert found.to_pylist() == [
        {"_offset": 0, **of_first, "k_id": "k0", **place, "_headers": [{"key": "h", "value": b"1"}], "_key": b"k0"},
        {"_offset": 1, **dict.fromkeys(of_first), "k_id": "k1", **place, "_headers": None, "_key": b"k1"},
    ]


def test_a_time_that_spark_cannot_hold_is_its_last_beside_typed_columns_too(path, caplog):
    fill(path, [order("ada")], timestamp=pa.array([INT64_MAX], pa.timestamp("ms", "UTC")))
    found = batches(reader(path, "_timestamp timestamp, user string", **JSON))
    assert found["_timestamp"].cast(pa.int64()).to_pylist() == [INT64_MAX // 1000 * 1000]
    assert found.column_names == ["_timestamp", "user"]
    assert "orders-0: Spark cannot hold the time of 1 records, the first at offset 0" in caplog.text


def test_the_first_misfit_ends_a_read_unless_a_mode_says_otherwise(path, caplog):
    fill(path, [order("ada"), order("bob", "much"), "nonsense", order("cyd")])
    with pytest.raises(MisfitError, match=r"^orders-0 at offset 1: value: amount: .*much.*DROPMALFORMED.*dlq.topic$"):
        batches(reader(path, **JSON))
    assert batches(reader(path, **JSON, mode="DropMalformed"))["user"].to_pylist() == ["ada", "cyd"]
    assert "orders-0: 2 records do not fit the columns: dropped" in caplog.text
    found = batches(reader(path, f"{ORDERS}, _corrupt_record string", **JSON, mode="PERMISSIVE"))
    assert found["user"].to_pylist() == ["ada", None, None, "cyd"]
    assert found["_corrupt_record"].to_pylist() == [None, order("bob", "much"), "nonsense", None]
    named = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "bad"}
    assert batches(reader(path, f"bad binary, {ORDERS}", **JSON, **named))["bad"].to_pylist()[2] == b"nonsense"
    assert batches(reader(path, ORDERS, **JSON, mode="PERMISSIVE")).num_rows == 4


def test_a_misfit_is_a_dead_letter_before_its_task_ends(path):
    fill(path, [order("ada"), "nonsense", order("cyd"), "{"], key=["a", "b", "c", None])
    dead = {"dlq.topic": "dlq", "dlq.name": "report"}
    read = reader(path, **JSON, **dead)
    (task,) = read.partitions()
    with logstore.open(path, mode="r") as store:
        assert store.topic("dlq").config.is_compacted
    rows = read.read(task)
    assert next(rows)["user"].to_pylist() == ["ada", "cyd"]
    rows.close()
    letters = dead_letters(path)
    assert letters["key"].to_pylist() == [b"report|orders|0|1", b"report|orders|0|3"]
    assert letters["value"].to_pylist() == [b"nonsense", b"{"]
    first = {pair["key"]: pair["value"] for pair in letters["headers"][0].as_py()}
    assert first["dlq.topic"] == b"orders"
    assert first["dlq.key"] == b"b"
    batches(reader(path, ORDERS, **JSON, **dead))  # a second run of the task
    assert dead_letters(path)["key"].to_pylist() == letters["key"].to_pylist() * 2
    permissive = batches(reader(path, ORDERS, **JSON, **dead, mode="PERMISSIVE"))
    assert permissive.num_rows == 4
    assert dead_letters(path).num_rows == 6


def test_dead_letters_that_are_large_are_appended_while_the_task_reads(path, monkeypatch):
    monkeypatch.setattr(typed, "HELD_BYTES_MAX", 10)
    fill(path, [order("ada"), "nonsense"])
    read = reader(path, **JSON, dlq__topic="dlq", dlq__name="report")
    (task,) = read.partitions()
    rows = read.read(task)
    next(rows)
    assert dead_letters(path)["value"].to_pylist() == [b"nonsense"]
    rows.close()
    assert dead_letters(path).num_rows == 1


def test_a_task_does_not_end_while_its_dead_letters_may_be_lost(path, monkeypatch):
    """(S8) The fsync of the dead letters fails: the task does, and the records are read again."""
    fill(path, [order("ada"), "nonsense"])
    read = reader(path, **JSON, dlq__topic="dlq", dlq__name="report")
    (task,) = read.partitions()
    fsync = type(SYSTEM.files).fsync

    def failing(files, at):
        if "/dlq-0/" in str(at) and str(at).endswith(".log"):
            raise StorageError(f"{at}: fsync failed")
        fsync(files, at)

    monkeypatch.setattr(type(SYSTEM.files), "fsync", failing)
    for end in (list, lambda rows: (next(rows), rows.close())):  # Spark takes all, or no more than it needs
        with pytest.raises(StorageError, match="fsync failed"):
            end(read.read(task))


def test_records_that_only_a_table_has_are_columns_or_dead_letters_too(path):
    fill(path, [order("ada"), "nonsense", order("bob")])
    tiering.rows(None, path=str(path))
    with logstore.open(path) as store:
        store.delete_records("orders", {0: 2})
    fill(path, [order("cyd"), "{"])
    found = batches(
        reader(path, "user string, _offset bigint", **JSON, includeTiered="true", dlq__topic="dlq", dlq__name="n")
    )
    assert [tuple(row.values()) for row in found.to_pylist()] == [("ada", 0), ("bob", 2), ("cyd", 3)]
    assert dead_letters(path)["key"].to_pylist() == [b"n|orders|0|1", b"n|orders|0|4"]


def test_dead_letters_need_a_compacted_topic_and_a_name(path):
    fill(path, ["nonsense"])
    fill(path, ["else"], "plain")
    with pytest.raises(InvalidRequestError, match=r"'plain'.*not compacted.*pylog topics alter plain --config"):
        batches(reader(path, **JSON, dlq__topic="plain", dlq__name="n"))
    stream = reader(path, kind=StreamReader, startingOffsets="earliest", **JSON, dlq__topic="dlq")
    start = stream.initialOffset()
    (task,) = stream.partitions(start, stream.latestOffset(start, stream.getDefaultReadLimit()))
    with pytest.raises(InvalidRequestError, match=r"no name: set option 'dlq.name'"):  # no task of a stream
        list(stream.read(task))


def test_filters_narrow_by_what_the_log_knows_and_not_by_a_users_column_of_that_name(path):
    fill(path, [json.dumps({"offset": 9 - n}) for n in range(10)])
    filters = [GreaterThanOrEqual(("offset",), 8), EqualTo(("partition",), 7)]
    read = reader(path, "offset bigint, _offset bigint", kind=PushingBatchReader, **JSON)
    assert read.pushFilters(filters) == filters
    assert planned(read.partitions()) == [("orders", 0, 0, 10)]
    read.pushFilters([GreaterThanOrEqual(("_offset",), 8)])
    assert planned(read.partitions()) == [("orders", 0, 8, 10)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mode": "PERMISSIVE"}, "mode='PERMISSIVE': needs typed=true, or 'value.format'"),
        ({"dlq.topic": "d"}, "needs typed=true"),
        ({"value.format": "xml"}, "value.format='xml': one of json, raw"),
        (JSON | {"mode": "strict"}, "one of FAILFAST, PERMISSIVE, DROPMALFORMED"),
        (JSON | {"key.format": "json"}, "option key.format='json': needs key.fields"),
        (JSON | {"value.fields-include": "ALL"}, "needs key.fields"),
        (JSON | {"key.fields": "a;;b"}, "columns, each once"),
        (JSON | {"key.fields": "a", "key.fields-prefix": "k_"}, "'a' does not begin with"),
        (JSON | {"key.fields": "k_", "key.fields-prefix": "k_"}, "nothing would be left"),
        (JSON | {"key.fields": "k_a", "key.fields-prefix": "k_", "value.fields-include": "ALL"}, "EXCEPT_KEY"),
        (JSON | {"columnNameOfCorruptRecord": "bad"}, "with mode=PERMISSIVE"),
        (JSON | {"columns": "value"}, r"name the columns in .schema\(...\)"),
        (JSON | {"includeHeaders": "true"}, "_headers array"),
        (JSON | {"dlq.name": "n"}, "needs 'dlq.topic'"),
        (JSON | {"dlq.topic": "d"}, "a batch read needs 'dlq.name'"),
        (JSON | {"dlq.topic": "d", "dlq.name": "a|b"}, "a name without |"),
        (JSON | {"dlq.topic": "d", "dlq.name": "n", "mode": "FAILFAST"}, "DROPMALFORMED, PERMISSIVE"),
        (JSON | {"dlq.topic": "t", "dlq.name": "n"}, "the query reads this topic"),
        ({"valu.format": "json"}, "did you mean 'value.format'"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, says):
    with pytest.raises(InvalidConfigError, match=says):
        read_options({"path": "/p", "subscribe": "t", **options}, streaming=False)


def test_a_pattern_that_takes_the_dead_letters_is_refused():
    given = {"path": "/p", "subscribePattern": "t.*", **JSON, "dlq.name": "n"}
    read_options(given | {"dlq.topic": "d"}, streaming=False)
    with pytest.raises(InvalidConfigError, match="the query reads this topic"):
        read_options(given | {"dlq.topic": "t-dlq"}, streaming=False)


KEYED = {"key.fields": "id"}


@pytest.mark.parametrize(
    ("schema", "options", "says"),
    [
        ("user string, _offset int", JSON, "column '_offset' is bigint, not int"),
        ("user string NOT NULL", JSON, "leave NOT NULL away"),
        ("user string, User string", JSON, "appears twice"),
        ("user string", JSON | KEYED, "no column 'id'"),
        ("id string, v string", {"value.format": "raw"} | KEYED, "EXCEPT_KEY"),
        ("a string, b string", {"value.format": "raw"}, "format raw is one column"),
        ("user string", JSON | {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "bad"}, "add 'bad string'"),
        ("user string, _corrupt_record int", JSON, "string or binary"),
        ("_offset bigint, _corrupt_record string", JSON, "name a column of the value"),
    ],
)
def test_columns_that_cannot_be_read_are_refused_before_a_task_runs(schema, options, says):
    given = read_options({"path": "/p", "subscribe": "t", **options}, streaming=False)
    with pytest.raises(InvalidConfigError, match=says):
        typed_records(given.typed, columns(schema), given.location)


def test_the_source_asks_for_columns_and_a_count_for_a_mode_that_drops_nothing(path):
    fill(path, [order("ada")])
    given = {"path": str(path), "subscribe": "orders", **JSON}
    with pytest.raises(InvalidRequestError, match=r"\.schema\("):
        PylogDataSource(given).schema()
    with pytest.raises(InvalidRequestError, match=r"load\(\)\.count\(\)"):
        PylogCounts(given | {"mode": "DROPMALFORMED"}).reader(spark_schema(["key"]))
    with pytest.raises(PylogError, match=r"for columns of the values set option value.format"):
        PylogDataSource({"path": str(path), "subscribe": "orders"}).reader(as_spark("user string"))


def as_spark(text):
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(columns(text))


def rows_of(frame, schema, *, topic="t", path="/p", **options):
    """The rows of the log that a write makes of an Arrow table with this schema of Spark."""
    given = write_options({"path": str(path), **({"topic": topic} if topic else {}), **options})
    as_rows = TypedRows(given.typed, as_spark(schema), given.location, given.topic, with_headers=given.include_headers)
    return as_rows(pa.table(frame).cast(columns(schema)).to_batches())


def test_columns_are_written_as_values_and_keys_and_those_of_the_record_as_what_they_are():
    schema = f"_offset bigint, _key string, _timestamp timestamp, _partition int, _topic string, {ORDERS}"
    place = {"_offset": [7], "_key": ["k"], "_timestamp": [AT], "_partition": [3], "_topic": ["from"]}
    frame = place | {"user": ["ada"], "amount": [Decimal("1.50")], "at": [AT]}
    rows = rows_of(frame, schema, **JSON)
    assert rows["value"].to_pylist() == [b'{"user":"ada","amount":1.50,"at":"2026-01-02T03:04:05.600000Z"}']
    assert [rows[name][0].as_py() for name in ("key", "timestamp", "partition", "topic")] == ["k", AT, 3, "from"]
    assert "offset" not in rows.column_names
    keyed = {"key.format": "json", "key.fields": "user", "value.fields-include": "EXCEPT_KEY"}
    rows = rows_of({"user": ["ada", "bob"], "n": [1, None]}, "user string, n int", **JSON, **keyed)
    assert rows["key"].to_pylist() == [b'{"user":"ada"}', b'{"user":"bob"}']
    assert rows["value"].to_pylist() == [b'{"n":1}', None]  # a tombstone
    headers = {"user": ["ada"], "_headers": [[{"key": "h", "value": b"1"}]]}
    text = "user string, _headers array<struct<key: string, value: binary>>"
    assert "headers" in rows_of(headers, text, **JSON).column_names
    assert "headers" not in rows_of(headers, text, **JSON, includeHeaders="false").column_names


@pytest.mark.parametrize(
    ("schema", "options", "says"),
    [
        ("user string", {"topic": ""}, "no topic: set option 'topic', or add a string column '_topic'"),
        ("_partition string, user string", {}, "'_partition' must be int, not string"),
        ("_headers string, user string", {}, "'_headers' must be array"),
        ("user string, USER string", {}, "appears twice"),
        ("user string", {"key.fields": "usr"}, "no column 'usr'; did you mean 'user'"),
        (
            "user string",
            {"key.fields": "user", "value.fields-include": "EXCEPT_KEY"},
            "no column is left for the value",
        ),
        ("user string, n int", {"value.format": "raw"}, "format raw is one column"),
    ],
)
def test_columns_that_cannot_be_written_are_refused_before_a_row_is(schema, options, says):
    with pytest.raises(PylogError, match=says):
        rows_of(columns(schema).empty_table(), schema, **(JSON | options))


def test_a_value_that_json_has_not_is_refused_with_its_column():
    with pytest.raises(InvalidRecordError, match="a row cannot be written: x: "):
        rows_of({"x": [1.0, float("nan")]}, "x double", **JSON)
    with pytest.raises(InvalidRecordError, match="_corrupt_record: this was a misfit"):
        rows_of({"x": [1.0], "_corrupt_record": ["{"]}, "x double, _corrupt_record string", **JSON)
