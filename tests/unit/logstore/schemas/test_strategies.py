"""Which ids the keys and values of a topic may bear, by each strategy."""

import json

import pytest

from logstore.config import SUBJECT_NAME_STRATEGIES, LogConfig
from logstore.errors import InvalidConfigError
from logstore.records.framing import NO_ID, SHORT, id_of
from logstore.schemas.strategies import demand_of, nothing_known, subject_by
from logstore.schemas.subjects import Reference, Registered, Schema, Subjects, config_record, schema_record

ORDER = Schema("AVRO", json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": []}))
FULL = Schema("AVRO", json.dumps({"type": "record", "name": "shop.Order", "namespace": "x", "fields": [], "doc": "2"}))
REFERS = Schema("AVRO", json.dumps({"type": "record", "name": "shop.Order", "doc": "3"}), (Reference("a", "b", 1),))
TITLED = Schema("JSON", json.dumps({"title": "Order", "type": "object"}))
PROTOBUF = Schema("PROTOBUF", "message Order {}")
TEXT = Schema("AVRO", '"string"')

ENTRIES = [
    Registered("orders-value", 1, 1, TEXT),
    Registered("orders-value", 2, 9, ORDER),
    Registered("orders-value", 3, 4, PROTOBUF),
    Registered("orders-value", 4, 5, TITLED, is_deleted=True),
    Registered("orders-key", 1, 6, Schema("AVRO", '"int"')),
    Registered("shop.Order", 1, 9, ORDER),
    Registered("shop.Order", 2, 10, FULL),
    Registered("shop.Order", 3, 12, REFERS),
    Registered("Order", 1, 5, TITLED),
    Registered("orders-Order", 1, 5, TITLED),
    Registered("orders-shop.Order", 1, 11, Schema("AVRO", ORDER.text + " ")),
    Registered("payments-shop.Order", 1, 9, ORDER),
]


@pytest.fixture
def state():
    state = Subjects()
    for entry in ENTRIES:
        state.apply(*schema_record(entry), is_ours=True)
    return state


@pytest.mark.parametrize(
    ("part", "strategy", "ids"),
    [
        ("value", "TopicName", [1, 4, 9]),
        ("key", "TopicName", [6]),
        ("value", "RecordName", [5, 9, 10, 12]),
        ("key", "RecordName", [5, 9, 10, 12]),
        ("value", "TopicRecordName", [5, 11]),
    ],
)
def test_ids_of_versions_that_are_not_deleted_count_in_the_subject_of_the_strategy(state, part, strategy, ids):
    assert list(demand_of(state, "orders", part, strategy).ids) == ids


def test_a_subject_that_stands_for_another_has_its_ids(state):
    state.apply(*config_record("refunds-value", None, "shop.Order"), is_ours=True)
    demand = demand_of(state, "refunds", "value", "TopicName")
    assert (demand.subject, list(demand.ids)) == ("shop.Order", [9, 10, 12])


def test_a_reason_names_the_id_the_subject_and_the_way_out(state):
    value = demand_of(state, "orders", "value", "TopicName")
    assert value.reason(6) == "its value bears id 6, which is none of subject 'orders-value' (1, 4, 9)"
    assert "first byte is not 0; serializers with a registry write one" in value.reason(NO_ID)
    assert "shorter than 5 bytes" in value.reason(SHORT)
    none = demand_of(state, "refunds", "key", "TopicName")
    assert "register one with `pylog schemas register refunds-key`" in none.reason(1)
    assert list(none.ids) == list(nothing_known("refunds", "key").ids) == []
    for number in range(20):
        state.apply(*schema_record(Registered("many-value", number + 1, 100 + number, TEXT)), is_ours=True)
    assert demand_of(state, "many", "value", "TopicName").reason(1).endswith("(…, 115, 116, 117, 118, 119)")


@pytest.mark.parametrize(
    ("value", "schema_id"),
    [
        (b"\0\0\0\1\2rest", 258),
        (b"\0\0\0\0\7", 7),
        (b"\0\xff\xff\xff\xff", -1),
        (b"\0\0\0\7", SHORT),
        (b"", SHORT),
        (b"\1", NO_ID),
        (b"{}", NO_ID),
        (b"\1\0\0\0\7", NO_ID),
    ],
)
def test_an_id_is_in_four_bytes_behind_a_zero(value, schema_id):
    assert id_of(value) == schema_id


def test_settings_have_the_names_of_confluents_brokers_too():
    long = "io.confluent.kafka.serializers.subject.TopicRecordNameStrategy"
    given = {"confluent.value.schema.validation": "true", "confluent.key.subject.name.strategy": long}
    config = LogConfig.from_properties(given)
    assert config.validated_parts == (("value", "TopicName"),)
    assert config.key_subject_name_strategy == "TopicRecordName"
    both = LogConfig.from_properties(given | {"key.schema.validation": "true"})
    assert both.validated_parts == (("value", "TopicName"), ("key", "TopicRecordName"))
    for strategy in SUBJECT_NAME_STRATEGIES:
        subject_by(strategy, "orders", "value", ORDER)
    with pytest.raises(InvalidConfigError, match=r"'com\.acme.Mine': one of TopicName, RecordName, TopicRecordName"):
        LogConfig.from_properties({"value.subject.name.strategy": "com.acme.Mine"})
    with pytest.raises(InvalidConfigError, match="is given twice: "):
        LogConfig.from_properties({"value.schema.validation": "true", **given})
