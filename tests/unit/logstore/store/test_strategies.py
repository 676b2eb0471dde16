"""Topics whose schemas are in other subjects than those of their names: columns by what the topic says, or a caller."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, record_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from logstore import InvalidConfigError
from logstore.schemas.declared import declared, register
from logstore.schemas.misfits import MisfitError
from logstore.schemas.registry import NoAliasError, UnknownSchemaError, schema_of

RECORD = '{"type": "record", "name": "%s", "namespace": "shop", "fields": [{"name": "user", "type": "string"}, %s]}'
ORDER = RECORD % ("Order", '{"name": "n", "type": "int"}')
WIDER = RECORD % ("Order", '{"name": "n", "type": "long"}, {"name": "note", "type": "string", "default": "-"}')
REFUND = RECORD % ("Refund", '{"name": "n", "type": "int"}')
ADA = {"user": "ada", "n": 1}


def of_confluent(*written):
    """Return rows as Confluent's serializer writes them, by the strategy of records; ids count from 1."""
    client = SchemaRegistryClient.new_client({"url": "mock://"})
    by = {"subject.name.strategy": record_subject_name_strategy}
    place = SerializationContext("events", MessageField.VALUE)
    return [AvroSerializer(client, text, conf=by)(row, place) for text, row in written]


@pytest.fixture
def events(store):
    """A topic with records of two subjects, one of which has two versions."""
    store.create_topic("events", schema=ORDER, subject_name_strategy="RecordName")
    for subject, text in (("shop.Refund", REFUND), ("shop.Order", WIDER)):
        store.schemas.register(subject, schema_of("AVRO", text))
    refund, wide = {"user": "bob", "n": 2}, {"user": "cyd", "n": 2**40, "note": "x"}
    store.append("events", {"value": of_confluent((ORDER, ADA), (REFUND, refund), (WIDER, wide))})
    return store


def rows(store, topic="events", **typing):
    return store.read(topic, typed=True, **typing).read_all().to_pylist()


def test_a_topic_that_says_its_subject_is_read_and_written_there(events):
    shown = [{**ADA, "note": "-"}, {"user": "cyd", "n": 2**40, "note": "x"}]
    assert rows(events, mode="DROPMALFORMED") == shown
    with pytest.raises(MisfitError, match=r"0 at offset 1: value: record shop\.Refund is not record shop\.Order;"):
        rows(events)
    bad = rows(events, mode="PERMISSIVE")[1]
    assert (bad["user"], bad["_corrupt_record"]) == (None, "\0\0\0\0\x02\x06bob\x04")
    assert rows(events, mode="DROPMALFORMED", value_subject="shop.Refund") == [{"user": "bob", "n": 2}]
    events.append("events", [{"user": "dan", "n": 4}], typed=True, value_subject="shop.Refund")
    assert rows(events, mode="DROPMALFORMED", value_subject="shop.Refund")[1] == {"user": "dan", "n": 4}
    assert rows(events, mode="DROPMALFORMED") == shown


def test_a_topic_that_does_not_say_it_has_columns_by_the_name_of_the_subject(events):
    events.create_topic("copy")
    events.append("copy", {"value": events.read("events", columns=["value"]).read_all().column("value")})
    with pytest.raises(
        UnknownSchemaError, match=r"'copy-value' is not in _schemas of \S+; register .* by value_subject, .* by schema$"
    ):
        rows(events, "copy")
    found = rows(events, "copy", value_subject="shop.Order", key_fields="user", mode="DROPMALFORMED")
    assert [row["user"] for row in found] == ["ada", "cyd"]
    with pytest.raises(UnknownSchemaError, match=r"subject 'shop\.User' is not in"):
        rows(events, "copy", value_subject="shop.Order", key_subject="shop.User")


def test_a_topic_may_say_another_subject_later(store):
    store.create_topic(
        "orders", schema=ORDER, key_schema='{"type": "fixed", "name": "Id", "size": 1}', key_format="avro"
    )
    first = store.schemas.latest("orders-value")
    store.append("orders", [{"key": b"k", **ADA}], typed=True)
    store.alter_topic("orders", schema=ORDER, subject_name_strategy="TopicRecordName")
    assert store.schemas.latest("orders-value") == first._replace(subject="orders-shop.Order")
    assert rows(store, "orders") == [{"key": b"k", **ADA}]
    store.alter_topic("orders", schema=WIDER)
    assert [entry.version for entry in store.schemas.versions("orders-value")] == [1, 2]
    assert store.schemas.alias("orders-value") is None


def test_keys_without_a_schema_are_a_column_of_the_value(store):
    store.create_topic("orders", schema="user string, n int")
    store.append("orders", [ADA], typed=True, key_fields="user")
    assert store.read("orders", columns=["key"]).read_all().column("key").to_pylist() == [b"ada"]
    assert rows(store, "orders", key_fields="user", metadata=True, columns=["user", "n"]) == [ADA]
    store.alter_topic("orders", key_schema="id int")
    with pytest.raises(InvalidConfigError, match="keys of 'orders' have a schema, 'orders-key': leave it away"):
        rows(store, "orders", key_fields="user")


def test_a_registry_without_aliases_is_told_in_one_line_and_the_schema_stays(store, caplog):
    class Bare:
        def __getattr__(self, name):
            return getattr(store.schemas, name)

        def set_alias(self, subject, other):
            raise NoAliasError("the registry at http://r has no aliases")

    with caplog.at_level(logging.WARNING):
        register(Bare(), declared("events", schema=ORDER, subject_name_strategy="RecordName"))
    assert store.schemas.subjects() == ["shop.Order"]
    assert [record.getMessage() for record in caplog.records] == [
        "the registry at http://r has no aliases: each read and write of the topic names the subject shop.Order of its "
        "values"
    ]
