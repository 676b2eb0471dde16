"""Reads and writes by the schemas of topics: columns that nobody has to name, and newer ones while a stream runs."""

import json
import pickle
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

import logstore
from datasource.connector.options import read_options, write_options
from datasource.connector.reader import BatchReader
from datasource.connector.registered import LOOK_EACH_MS, Evolution
from datasource.connector.source import PylogDataSource
from datasource.connector.typed import TypedRows, prepared
from logstore import InvalidConfigError, InvalidRecordError, InvalidRequestError, UnknownTopicError
from logstore.env import SYSTEM
from logstore.errors import PylogError
from logstore.schemas import ddl
from logstore.schemas.declared import schema_from
from logstore.schemas.registry import UnknownSchemaError
from tests.support.inside import close_stores

TYPED = {"typed": "true"}
VALUE = "user string NOT NULL, amount decimal(10,2), at timestamp"


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "data"
    with logstore.open(path) as store:
        store.create_topic("orders", schema=VALUE, key_schema="id bigint")
        store.create_topic("plain")
        values = ['{"user":"ada","amount":"1.50"}', "nonsense", None]
        store.append("orders", pa.table({"key": [b'{"id":1}', b'{"id":2}', b'{"id":3}'], "value": values}))
    return path


def given(path, **options):
    return {"path": str(path), "subscribe": "orders", **TYPED, **{n.replace("__", "."): o for n, o in options.items()}}


def shown(path, **options):
    return PylogDataSource(given(path, **options)).schema()


def rows(path, schema=None, **options):
    schema = schema or shown(path, **options)
    reader = PylogDataSource(given(path, **options)).reader(schema)
    assert isinstance(reader, BatchReader)
    reader = pickle.loads(pickle.dumps(reader))
    found = pa.Table.from_batches(batch for task in reader.partitions() for batch in reader.read(task))
    assert found.schema.equals(to_arrow_schema(schema, timezone="UTC"))
    return found.to_pylist()


def register(path, columns, subject="orders-value", kind="json"):
    with logstore.open(path) as store:
        store.schemas.set_level("NONE", subject)
        store.schemas.register(subject, schema_from(columns, kind))


def test_the_columns_are_those_of_the_key_and_of_the_value(path):
    assert shown(path).simpleString() == "struct<id:bigint,user:string,amount:decimal(10,2),at:timestamp>"
    found = rows(path, mode="DROPMALFORMED")
    assert [(row["id"], row["user"]) for row in found] == [(1, "ada"), (3, None)]
    found = rows(path, mode="PERMISSIVE")
    assert [(row["id"], row["_corrupt_record"]) for row in found] == [(1, None), (2, "nonsense"), (3, None)]


def test_metadata_and_fewer_columns_are_shown_on_request(path):
    everything = shown(path, metadata="true").names
    assert everything[4:] == ["_topic", "_partition", "_offset", "_timestamp", "_headers"]  # the key has a column
    assert rows(path, columns="user,_offset", mode="DROPMALFORMED") == [
        {"user": "ada", "_offset": 0},
        {"user": None, "_offset": 2},
    ]
    assert rows(path, from_arrow_schema(pa.schema(ddl.parse("user string"))), mode="DROPMALFORMED")[0] == {
        "user": "ada"
    }
    with pytest.raises(InvalidConfigError, match="no column 'usr'; did you mean 'user'"):
        shown(path, columns="usr")
    with pytest.raises(InvalidConfigError, match="the topic has no column 'usr'"):
        rows(path, from_arrow_schema(pa.schema(ddl.parse("usr string"))))


def test_a_column_that_only_an_older_schema_has_stays_in_a_query_that_knows_it(path):
    before = shown(path, mode="DROPMALFORMED")
    register(path, "amount decimal(10,2), more int")
    assert shown(path).names == ["id", "amount", "more"]
    assert rows(path, before, mode="DROPMALFORMED")[0]["user"] == "ada"


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        (
            {"subscribe": "plain"},
            InvalidRequestError,
            r"has no columns .* by value\.subject, .* 'value.format' and \.schema",
        ),
        ({"subscribe": "ordres"}, UnknownTopicError, "did you mean 'orders'"),
        ({"value__format": "json"}, InvalidConfigError, "leave one away"),
        ({"key__fields": "id"}, InvalidConfigError, "^key.fields: keys of 'orders' have a schema"),
        ({"includeHeaders": "true"}, InvalidConfigError, "set metadata=true"),
        ({"typed": "false", "metadata": "true"}, InvalidConfigError, "needs typed=true"),
        ({"typed": "false", "value__format": "json", "metadata": "true"}, InvalidConfigError, r"\.schema\("),
        ({"typed": "yes"}, InvalidConfigError, "one of true, false"),
    ],
)
def test_what_gives_no_columns_is_refused(path, options, kind, says):
    with pytest.raises(kind, match=says):
        shown(path, **options)


AVRO = """{"type": "record", "name": "Payment", "fields": [
    {"name": "user", "type": "string"}, {"name": "amount", "type": %s}%s]}"""


def payment(amount, more=""):
    return AVRO % (json.dumps(amount), more)


@pytest.fixture
def payments(path):
    """A topic of Avro whose first record has an older schema than the second."""
    with logstore.open(path) as store:
        store.create_topic("payments", schema=payment("int"), format="avro")
        old = written(path, {"user": ["ada"], "amount": [1]}, "user string, amount int", "payments")
        store.append("payments", old.append_column("key", pa.array([b"a"])))
        store.schemas.register(
            "payments-value",
            schema_from(payment("long", ', {"name": "note", "type": "string", "default": "-"}'), "avro"),
        )
    close_stores()
    return path


def test_each_record_of_avro_is_read_with_its_schema_and_shown_in_the_latest(payments):
    new = written(
        payments,
        {"user": ["bob"], "amount": [2**40], "note": ["hi"]},
        "user string, amount bigint, note string",
        "payments",
    )
    assert new["value"][0].as_py()[:1] == b"\0"
    with logstore.open(payments) as store:
        store.append("payments", new)
        store.append("payments", {"value": [b"{}", b"\0\0\0\1\0"]})
    close_stores()
    options = {"subscribe": "payments", "mode": "PERMISSIVE", "columns": "note,user,amount,_offset"}
    found = rows(payments, **options)
    assert [tuple(row.values())[:4] for row in found[:2]] == [("-", "ada", 1, 0), ("hi", "bob", 2**40, 1)]
    assert [row["_corrupt_record"] is None for row in found] == [True, True, False, False]
    wider = from_arrow_schema(pa.schema(ddl.parse("user string, amount double")))
    assert rows(payments, wider, subscribe="payments", mode="DROPMALFORMED")[0] == {"user": "ada", "amount": 1.0}
    before = from_arrow_schema(pa.schema(ddl.parse("user string, note string")))
    register(payments, payment("long"), "payments-value", "avro")
    found = rows(payments, before, subscribe="payments", mode="DROPMALFORMED")
    assert found == [{"user": "ada", "note": None}, {"user": "bob", "note": "hi"}]


def test_values_of_avro_are_read_and_written_without_a_schema_of_the_topic_where_that_can_be(payments):
    given = {"path": str(payments), "subscribe": "payments", "value.format": "avro-confluent"}
    schema = from_arrow_schema(pa.schema(ddl.parse("user string")))
    reader = PylogDataSource(given).reader(schema)
    found = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
    assert found == [{"user": "ada"}]
    options = write_options({"path": str(payments), "topic": "payments", "value.format": "avro-confluent"})
    with pytest.raises(InvalidConfigError, match="set typed=true"):
        TypedRows(options.typed, schema, options.location, "payments", with_headers=True)
    with logstore.open(payments) as store:
        store.create_topic("bare")
        asked = write_options({"path": str(payments), "topic": "bare", "value.format": "avro"})
        as_rows = TypedRows(asked.typed, schema, asked.location, "bare", with_headers=True)
        store.append("bare", as_rows([pa.record_batch({"user": ["ada", None]})]))
    close_stores()
    reader = PylogDataSource(given | {"subscribe": "bare", "value.format": "avro"}).reader(schema)
    found = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
    assert found == [{"user": "ada"}, {"user": None}]


def test_columns_are_those_of_another_subject_if_the_topic_or_an_option_says_so(payments):
    with logstore.open(payments) as store:
        store.create_topic("events", schema=payment("int"), subject_name_strategy="RecordName")
        store.create_topic("copy")
        subject = store.schemas.alias("events-value")
        store.schemas.register("shop.Refund", schema_from(payment("int").replace('"Payment"', '"Refund"'), "avro"))
        for number, options in enumerate(({}, {"value.subject": "shop.Refund"})):
            row = {"user": ["ada"], "amount": [number]}
            store.append("events", written(payments, row, "user string, amount int", "events", **options))
        store.append("copy", {"value": store.read("events").read_all()["value"]})
    close_stores()
    wanted = {"mode": "DROPMALFORMED", "columns": "user,amount"}
    assert rows(payments, subscribe="events", **wanted) == [{"user": "ada", "amount": 0}]
    for topic in ("events", "copy"):
        found = rows(payments, subscribe=topic, value__subject="shop.Refund", **wanted)
        assert found == [{"user": "ada", "amount": 1}]
    with pytest.raises(UnknownSchemaError, match=r"'copy-value' is not in .* name the subject .* by value\.subject"):
        shown(payments, subscribe="copy")
    options = read_options(given(payments, subscribe="events"), streaming=True)
    stream = prepared(options, shown(payments, subscribe="events"))
    evolution = Evolution(replace(stream.typed, ends_at_new_schema=True), stream.location)
    register(payments, payment("long"), "events-value", "avro")
    with pytest.raises(InvalidRequestError, match="events-value has version 2"):
        evolution.look()
    assert subject == "Payment"


def test_keys_without_a_schema_are_columns_of_the_value(path):
    with logstore.open(path) as store:
        store.create_topic("keyed", schema="user string, n int")
        store.append(
            "keyed", written(path, {"user": ["ada"], "n": [1]}, "user string, n int", "keyed", key__fields="user")
        )
        store.append("keyed", {"key": ["bob"], "value": pa.nulls(1, pa.string())})
    close_stores()
    assert store_keys(path, "keyed") == [b"ada", b"bob"]
    found = rows(path, subscribe="keyed", key__fields="user")
    assert found == [{"user": "ada", "n": 1}, {"user": "bob", "n": None}]
    assert rows(path, subscribe="keyed", key__fields="user", columns="n") == [{"n": 1}, {"n": None}]


def store_keys(path, topic):
    with logstore.open(path, mode="r") as store:
        return store.read(topic, columns=["key"]).read_all()["key"].to_pylist()


def test_members_that_nobody_declared_are_shown_on_request(path):
    with logstore.open(path) as store:
        store.append("orders", {"value": ['{"user":"eve","more":1}']})
    found = rows(path, rescued="true", mode="DROPMALFORMED", columns="user,_rescued")
    assert found[-1] == {"user": "eve", "_rescued": '{"more":1}'}
    schema = from_arrow_schema(pa.schema(ddl.parse("user string, _rescued string")))
    declared = {"typed": "false", "value__format": "json", "mode": "DROPMALFORMED"}
    assert rows(path, schema, **declared)[-1] == {"user": "eve", "_rescued": '{"more":1}'}
    with pytest.raises(InvalidConfigError, match="name the column '_rescued string'"):
        rows(path, schema, **declared, rescued="true")


def test_topics_of_one_read_have_the_same_columns(path):
    with logstore.open(path) as store:
        store.create_topic("more", schema=VALUE, key_schema="id bigint")
        store.create_topic("other", schema="user string")
    assert shown(path, subscribe="orders,more") == shown(path)
    with pytest.raises(InvalidRequestError, match="'orders' and 'other' have different columns"):
        shown(path, subscribe="orders,other")
    pattern = {"path": str(path), "subscribePattern": "or.*|mor.", **TYPED}
    assert PylogDataSource(pattern).schema() == shown(path)
    with pytest.raises(InvalidRequestError, match="no topic matches"):
        PylogDataSource(pattern | {"subscribePattern": "x"}).schema()


def written(path, frame, schema, topic="orders", **options):
    arrow = pa.schema(ddl.parse(schema))
    given = {name.replace("__", "."): option for name, option in options.items()}
    asked = write_options({"path": str(path), **TYPED, **({"topic": topic} if topic else {}), **given})
    as_rows = TypedRows(asked.typed, from_arrow_schema(arrow), asked.location, asked.topic, with_headers=True)
    return pickle.loads(pickle.dumps(as_rows))(pa.table(frame, schema=arrow).to_batches())


def test_a_write_has_the_types_of_the_topic_or_is_refused(path):
    found = written(path, {"user": ["bob"], "id": [7], "amount": [2]}, "user string, id int, amount int")
    assert found["key"].to_pylist() == [b'{"id":7}']
    assert json.loads(found["value"][0].as_py(), parse_float=str) == {"user": "bob", "amount": "2.00"}
    refused = [
        ({}, "usr string", "no column 'usr'; did you mean 'user'"),
        ({}, "user int", "column 'user' is int, and the topic has string"),
        ({"id": [1], "amount": [1]}, "id int, amount int", "user: missing, and declared NOT NULL"),
    ]
    for frame, schema, says in refused:
        with pytest.raises(InvalidRecordError, match=says):
            written(path, frame or pa.schema(ddl.parse(schema)).empty_table().to_pydict(), schema)
    with pytest.raises(PylogError, match="needs option 'topic'"):
        written(path, {"user": ["bob"]}, "user string", topic="")


@pytest.mark.parametrize("way", ["fixed", "restart"])
def test_a_newer_schema_is_said_once_or_ends_the_query(path, way, monkeypatch, caplog):
    options = read_options(given(path, schema__evolution=way), streaming=True)
    evolution = Evolution(prepared(options, shown(path)).typed, options.location)
    now = iter(range(0, 100 * LOOK_EACH_MS, LOOK_EACH_MS))
    monkeypatch.setattr(type(SYSTEM.clock), "monotonic_ms", lambda clock: next(now))
    evolution.look()
    register(path, f"{VALUE}, more int")
    if way == "restart":
        with pytest.raises(InvalidRequestError, match=r"^orders-value has version 2, which is newer.*: start it again"):
            evolution.look()
        return
    for _ in range(3):
        evolution.look()
    assert [r.getMessage() for r in caplog.records if "orders-value" in r.getMessage()] == [
        "orders-value has version 2: the query keeps its columns until it is started again"
    ]
