"""Schemas of a directory: one text has one id, whoever registers it, and whoever is killed meanwhile."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time

import pyarrow as pa
import pytest

import logstore
from logstore import InvalidRequestError, ReadOnlyStoreError, TopicExistsError
from logstore.schemas.declared import fields_of
from logstore.schemas.registry import UnknownSchemaError, schema_of
from logstore.schemas.subjects import TOPIC, Reference, Schema


def fixed(name):
    """A type of this name."""
    return schema_of("AVRO", json.dumps({"type": "fixed", "name": name, "size": 1}))


STRING, INT = schema_of("AVRO", '"string"'), schema_of("avro", "int")


def test_one_text_has_one_id_and_every_reader_follows(store):
    first = store.schemas.register("orders-value", STRING)
    with logstore.open(store.path) as other:
        assert other.schemas.register("payments-value", schema_of("AVRO", ' "string" ')).id == first.id
        assert other.schemas.register("orders-key", INT).id == first.id + 1
    assert store.schemas.subjects() == ["orders-key", "orders-value", "payments-value"]
    assert store.schemas.register("orders-value", STRING) == first == store.schemas.latest("orders-value")
    assert store.schemas.by_id(first.id + 1) == INT
    assert store.topic(TOPIC).config.is_compacted


def test_a_directory_without_schemas_answers_and_makes_nothing(store):
    assert store.schemas.subjects() == []
    assert store.schemas.level("orders-value") == "BACKWARD"
    with pytest.raises(UnknownSchemaError, match=r"'orders-value' is not in _schemas of .*; it has none yet"):
        store.schemas.latest("orders-value")
    with pytest.raises(
        UnknownSchemaError, match=r"no schema has id 7 in _schemas of .*; copy that topic together with"
    ):
        store.schemas.by_id(7)
    assert store.topics() == []


def test_deleted_versions_are_hidden_and_their_data_is_read_until_they_are_deleted_for_good(store):
    schemas = store.schemas
    schemas.set_level("none")
    first, second = (schemas.register("s", schema) for schema in (STRING, INT))
    assert schemas.delete("s", 2) == [2]
    assert schemas.versions("s") == [first]
    assert schemas.by_id(second.id) == INT
    with pytest.raises(InvalidRequestError, match="version 1 of 's' is not deleted: delete it first"):
        schemas.delete("s", 1, permanently=True)
    assert schemas.delete("s", 2, permanently=True) == [2]
    with pytest.raises(UnknownSchemaError):
        logstore.open(store.path, mode="r").schemas.by_id(second.id)
    assert schemas.register("t", schema_of("JSON", "{}")).id == second.id + 1, "an id that old data may bear"
    assert schemas.delete("s") == [1]
    assert schemas.subjects() == ["t"]
    with pytest.raises(UnknownSchemaError, match="subject 's' is deleted in _schemas of "):
        schemas.delete("s")


def test_levels_are_of_all_subjects_or_of_one(store):
    schemas = store.schemas
    schemas.set_level("full")
    schemas.set_level("FORWARD_TRANSITIVE", "s")
    assert (schemas.level(), schemas.level("s"), schemas.level("t")) == ("FULL", "FORWARD_TRANSITIVE", "FULL")
    schemas.set_level(None, "s")
    assert schemas.level("s") == "FULL"
    with pytest.raises(InvalidRequestError, match="level 'BACKWARDS'; did you mean 'BACKWARD'"):
        schemas.set_level("BACKWARDS")


def test_a_subject_stands_for_another_one(store):
    schemas = store.schemas
    first = schemas.register("shop.Order", STRING)
    schemas.set_level("NONE", "orders-value")
    schemas.set_alias("orders-value", "shop.Order")
    assert schemas.latest("orders-value") == first
    assert schemas.subjects() == ["shop.Order"]
    schemas.set_level("FULL", "orders-value")
    with pytest.raises(InvalidRequestError, match=r"subject 'shop\.Order', level BACKWARD: "):
        schemas.register("orders-value", INT)
    assert schemas.check("orders-value", INT) != []
    schemas.set_level("NONE", "shop.Order")
    assert schemas.register("orders-value", INT).subject == "shop.Order"
    with logstore.open(store.path, mode="r") as other:
        assert (other.schemas.alias("orders-value"), other.schemas.alias("shop.Order")) == ("shop.Order", None)
        assert len(other.schemas.versions("orders-value")) == 2
        assert other.schemas.level("orders-value") == "FULL"
    end = store.offsets(TOPIC)[0].end
    schemas.set_alias("orders-value", "shop.Order")
    assert store.offsets(TOPIC)[0].end == end, "it stands for that already"
    schemas.set_alias("orders-value", None)
    assert (schemas.alias("orders-value"), schemas.level("orders-value")) == (None, "FULL")
    with pytest.raises(UnknownSchemaError):
        schemas.latest("orders-value")


def test_a_subject_stands_for_none_that_is_missing_or_an_alias_and_is_not_deleted_by_its_other_name(store):
    store.schemas.register("shop.Order", STRING)
    store.schemas.set_alias("orders-value", "shop.Order")
    with pytest.raises(UnknownSchemaError, match=r"'shop\.Ordr' is not in"):
        store.schemas.set_alias("more-value", "shop.Ordr")
    for name, other in (("more-value", "orders-value"), ("shop.Order", "shop.Order")):
        with pytest.raises(InvalidRequestError, match="cannot stand for"):
            store.schemas.set_alias(name, other)
    with pytest.raises(InvalidRequestError, match=r"'orders-value' stands for 'shop\.Order': delete that"):
        store.schemas.delete("orders-value")


def test_a_second_schema_that_does_not_fit_the_first_is_refused(store):
    store.schemas.register("s", STRING)
    with pytest.raises(
        InvalidRequestError, match="level BACKWARD: it cannot read version 1: string is no int; set the level to NONE"
    ):
        store.schemas.register("s", INT)
    store.schemas.set_level("NONE", "s")
    assert store.schemas.register("s", INT).version == 2


def test_a_schema_that_another_one_refers_to_stays(store):
    part = store.schemas.register("parts", fixed("Part"))
    whole = Schema("AVRO", '"Part"', (Reference("Part", "parts", 1),))
    store.schemas.register("whole", whole)
    with pytest.raises(InvalidRequestError, match="version 1 of 'parts' is referred to by version 1 of 'whole'"):
        store.schemas.delete("parts")
    assert logstore.open(store.path, mode="r").schemas.latest("whole").schema == whole
    with pytest.raises(UnknownSchemaError, match="refers to version 2 of 'parts': not there"):
        store.schemas.register("more", Schema("AVRO", '"Part"', (Reference("Part", "parts", 2),)))
    assert store.schemas.latest("parts") == part


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [("XML", "<a/>", "'XML': AVRO or JSON"), ("JSON", "{", "no JSON schema"), ("AVRO", "5", "no AVRO schema: 5")],
)
def test_what_is_no_schema_is_refused(kind, text, why):
    with pytest.raises(InvalidRequestError, match=why):
        schema_of(kind, text)


def test_a_topic_that_another_registry_writes_is_only_read(store):
    store.create_topic(TOPIC, config={"cleanup.policy": "compact"})
    key = b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}'
    value = b'{"subject":"s","version":1,"id":3,"schema":"\\"string\\"","deleted":false}'
    store.append(TOPIC, [{"key": b'{"keytype":"NOOP","magic":0}', "value": None}, {"key": key, "value": value}])
    assert store.schemas.latest("s").id == 3
    for act in (
        lambda: store.schemas.register("s", INT),
        lambda: store.schemas.delete("s"),
        lambda: store.schemas.set_level("NONE"),
    ):
        with pytest.raises(ReadOnlyStoreError, match=r"is written by another registry.*schema\.registry\.url"):
            act()


def test_a_record_of_another_form_is_passed_over(store, caplog):
    store.schemas.register("s", STRING)
    headers = [[{"key": "pylog", "value": b""}]]
    store.append(TOPIC, {"key": ["x"], "value": ["y"], "headers": headers})
    assert store.schemas.register("t", INT).id == 2
    assert [record.message for record in caplog.records] == [
        "topic=_schemas offset=1 is passed over: its key is no JSON object"
    ]


def test_a_topic_that_is_made_again_is_read_from_its_beginning(store):
    store.schemas.register("s", STRING)
    store.delete_topic(TOPIC)
    assert store.schemas.subjects() == []
    assert store.schemas.register("t", INT).id == 1


def test_a_directory_that_may_only_be_read_has_schemas_to_read(store):
    store.schemas.register("s", STRING)
    with logstore.open(store.path, mode="r") as reader:
        assert reader.schemas.latest("s").schema == STRING
        with pytest.raises(ReadOnlyStoreError):
            reader.schemas.register("s2", STRING)


# ------------------------------------------------------------- with topics


def test_a_topic_is_made_with_columns(store):
    store.create_topic(
        "orders", schema="user string, amount decimal(10,2), at timestamp", format="json", key_schema="id bigint"
    )
    value, key = (store.schemas.latest(f"orders-{part}").schema for part in ("value", "key"))
    assert [(f.name, f.type) for f in fields_of(value)] == [
        ("user", pa.string()),
        ("amount", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us", tz="UTC")),
    ]
    assert [f.name for f in fields_of(key)] == ["id"]
    store.create_topic("more")
    store.alter_topic("more", schema=pa.schema([("n", pa.int64())]))
    assert fields_of(store.schemas.latest("more-value").schema) == (pa.field("n", pa.int64()),)


def test_the_columns_of_a_topic_are_avro_by_format_or_by_their_text(store):
    store.create_topic("orders", schema="user string NOT NULL, amount decimal(10,2)", format="avro")
    entry = store.schemas.latest("orders-value")
    assert entry.schema.type == "AVRO"
    assert [(f.name, f.type) for f in fields_of(entry.schema)] == [
        ("user", pa.string()),
        ("amount", pa.decimal128(10, 2)),
    ]
    store.create_topic("more", schema=entry.schema.text)
    assert store.schemas.latest("more-value").id == entry.id


def test_a_text_that_is_no_avro_schema_is_not_registered(store):
    with pytest.raises(InvalidRequestError, match="Avro schema: "):
        store.schemas.register("s", schema_of("AVRO", '"nope"'))
    assert store.topics() == []


def test_a_schemas_text_is_taken_as_it_is(store):
    text = '{"type": "object", "properties": {"n": {"type": "integer"}}}'
    store.create_topic("orders", schema=text)
    assert json.loads(store.schemas.latest("orders-value").schema.text) == json.loads(text)


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"schema": "n bigin"}, "schema 'n bigin': write columns and types"),
        (
            {"schema": "n bigint", "format": "xml"},
            "no schema has the format 'xml'; there are 'avro', 'avro-confluent', ",
        ),
        ({"schema": '{"type": "record"}'}, "Avro schema: "),
        ({"schema": "`a b` bigint", "format": "avro"}, "a b"),
        ({"format": "json"}, "the format 'json' of the value needs its schema"),
        ({"schema": '{"type": "string"}'}, "columns need an object with properties"),
        ({"schema": "m map<int, int>"}, "a JSON value cannot be of it"),
    ],
)
def test_columns_that_are_none_make_no_topic(store, columns, why):
    with pytest.raises(InvalidRequestError, match=why):
        store.create_topic("orders", **columns)
    assert store.topics() == []


def test_a_topic_that_is_there_keeps_its_columns(store):
    store.create_topic("orders", schema="n bigint")
    with pytest.raises(TopicExistsError):
        store.create_topic("orders", schema="m bigint")
    assert store.create_topic("orders", schema="n bigint", if_not_exists=True).name == "orders"
    assert len(store.schemas.versions("orders-value")) == 1


# ------------------------------------------------------- several at a time


def register_many(path, name, count, acknowledged):
    """Register schemas of one's own, and such as everybody has; write a line for each that is acknowledged."""
    fd = os.open(acknowledged, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with logstore.open(path) as store:
        for number in range(count):
            for subject, kind in ((f"{name}-{number}", f"{name}{number}"), (f"common-{number}", f"common{number}")):
                entry = store.schemas.register(subject, fixed(kind))
                os.write(fd, json.dumps([subject, entry.schema.text, entry.version, entry.id]).encode() + b"\n")


def assert_one_id_each(path, acknowledged):
    """Assert that each id is of one text, and that each acknowledged version is there."""
    with logstore.open(path) as store:
        texts: dict[int, str] = {}
        for row in store.read(TOPIC).read_all().to_pylist():
            value = json.loads(row["value"])
            assert texts.setdefault(value["id"], value["schema"]) == value["schema"]
        assert len(set(texts.values())) == len(texts), "a text with two ids"
        assert sorted(texts) == list(range(1, len(texts) + 1))
        for subject, text, version, number in acknowledged:
            (entry,) = store.schemas.versions(subject)
            assert (entry.schema.text, entry.version, entry.id) == (text, version, number)


def test_processes_register_at_once_while_one_is_killed(store, tmp_path):
    store.schemas.register("first", STRING)
    files = {name: tmp_path / name for name in "abc"}
    fork = multiprocessing.get_context("fork")
    children = {n: fork.Process(target=register_many, args=(store.path, n, 15, f)) for n, f in files.items()}
    for child in children.values():
        child.start()
    end_s = time.monotonic() + 60
    while not (files["a"].exists() and len(files["a"].read_bytes().splitlines()) > 5):
        assert time.monotonic() < end_s
        time.sleep(0.001)
    os.kill(children["a"].pid, signal.SIGKILL)
    for child in children.values():
        child.join(60)
    assert [child.exitcode for child in children.values()] == [-signal.SIGKILL, 0, 0]
    lines = [line for file in files.values() for line in file.read_text().splitlines()]
    assert_one_id_each(store.path, [json.loads(line) for line in lines])


def test_threads_of_one_store_register_at_once(store, tmp_path):
    found: list[tuple[str, str, int, int]] = []

    def act(name):
        for number in range(10):
            entry = store.schemas.register(f"{name}-{number}", fixed(f"{name if number % 2 else 'common'}{number}"))
            found.append((entry.subject, entry.schema.text, entry.version, entry.id))

    threads = [threading.Thread(target=act, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 20
    assert_one_id_each(store.path, found)


def test_a_topic_with_validation_takes_rows_that_bear_ids_of_its_subject(tmp_path):
    """Typed rows of avro-confluent bear them; JSON bears none, and a null value needs none."""
    rows = pa.table({"n": pa.array([1, 2], pa.int32())})
    with logstore.open(tmp_path) as store:
        config = {"confluent.value.schema.validation": "true"}
        store.create_topic("orders", schema="n int", format="avro", config=config)
        assert store.topic("orders").overrides == {"value.schema.validation": "true"}
        store.append("orders", rows, typed=True)
        with pytest.raises(logstore.InvalidRecordError, match=r"row 0: .* \(value\.format=avro-confluent\)"):
            store.append("orders", rows, schema="n int", value_format="json")
        framed = store.read("orders").read_all()["value"].to_pylist()
        with pytest.raises(logstore.InvalidRecordError, match=r"row 3: .* shorter than 5 bytes"):
            store.append("orders", {"value": [*framed, None, b"\0\0", b"text"]})
        with store.transaction() as transaction:
            store.append("orders", {"value": [*framed, None]}, transaction=transaction)
        store.schemas.delete("orders-value")
        with pytest.raises(logstore.InvalidRecordError, match="subject 'orders-value' has no schema: register one"):
            store.append("orders", {"value": framed})
        store.alter_topic("orders", config={"confluent.value.schema.validation": None})
        store.append("orders", {"value": ["text"]})
        assert store.read("orders").read_all().num_rows == 6
