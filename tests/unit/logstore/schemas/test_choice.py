"""Columns and formats are those that a caller names, or those that the topic's schemas name."""

from __future__ import annotations

import pyarrow as pa
import pytest

import logstore
from logstore.errors import InvalidRequestError
from logstore.schemas.choice import chosen, encoded
from logstore.schemas.formats import JsonFormat, RawFormat
from logstore.schemas.layout import Mode
from logstore.schemas.registry import schema_of

SCHEMA = "user string, tenant int, amount double"


def nothing():
    pytest.fail("no registry is asked")


def choose(**typing):
    return chosen("orders", typing, nothing)


def names(fmt):
    return [field.name for field in fmt.fields]


def test_columns_are_those_of_the_schema_and_the_value_is_json():
    found = choose(schema=SCHEMA)
    assert found.schema.names == ["user", "tenant", "amount"]
    assert isinstance(found.value, JsonFormat)
    assert (found.key, found.mode) == (None, Mode.FAILFAST)
    assert choose(schema=pa.schema([("x", pa.int8())])).schema == pa.schema([("x", pa.int8())])


def test_columns_of_the_key_are_in_the_value_too_unless_they_are_excepted():
    both = choose(schema=SCHEMA, key_fields="user")
    assert isinstance(both.key, RawFormat)
    assert (names(both.key), names(both.value)) == (["user"], ["user", "tenant", "amount"])
    apart = choose(
        schema=SCHEMA, key_fields="user;tenant", key_format="json", value_fields_include="EXCEPT_KEY", mode="permissive"
    )
    assert (names(apart.key), names(apart.value)) == (["user", "tenant"], ["amount"])
    assert apart.mode is Mode.PERMISSIVE
    assert names(choose(schema=SCHEMA, key_fields=["user", "tenant"], key_format="json").key) == ["user", "tenant"]


def test_a_prefix_is_no_part_of_the_names_in_the_key():
    prefixed = choose(schema="k_id string, id string", key_fields="k_id", key_fields_prefix="k_")
    assert (names(prefixed.key), names(prefixed.value)) == (["id"], ["id"])


def test_metadata_comes_behind_with_the_keys_bytes_unless_the_key_has_columns():
    shown = ["_topic", "_partition", "_offset", "_timestamp", "_headers", "_key"]
    assert choose(schema="a int", metadata=True).schema.names == ["a", *shown]
    keyed = choose(schema="a int, _offset bigint", key_fields="a", metadata=True)
    assert keyed.schema.names == ["a", "_offset", "_topic", "_partition", "_timestamp", "_headers"]


@pytest.mark.parametrize(
    ("typing", "message"),
    [
        ({}, "which columns.* by schema, as .* by typed$"),
        ({"schemas": "a int"}, "no argument 'schemas'; did you mean 'schema'"),
        ({"schema": "a int", "value_format": "jsn"}, "value_format='jsn': one of json, raw"),
        ({"schema": "a int", "mode": "FAIL"}, "mode='FAIL': one of FAILFAST"),
        ({"schema": "a int", "key_format": "json"}, "key_format='json': needs key_fields"),
        ({"schema": "a int", "key_fields": "b"}, "key_fields: there is no column 'b'"),
        ({"schema": "a int, b int", "value_format": "raw"}, "format raw is one column"),
        (
            {"schema": "a int, b int", "value_format": "raw", "key_fields": "a"},
            "value_format=raw: .* set value_fields_include=EXCEPT_KEY",
        ),
        (
            {"schema": "a int", "key_fields": "a", "key_fields_prefix": "k_"},
            "'a' does not begin with key_fields_prefix, 'k_'",
        ),
        (
            {"schema": "k_a int", "key_fields": "k_a", "key_fields_prefix": "k_", "value_fields_include": "all"},
            "EXCEPT_KEY: no column of a value has the key's prefix",
        ),
        ({"schema": "a int", "key_fields": "a;;b"}, "key_fields='a;;b': columns, each once"),
        ({"schema": "a int", "key_fields": ["a", "a"]}, "columns, each once"),
        ({"schema": "a int", "key_fields": []}, "columns, each once"),
        ({"schema": "a int", "key_fields_prefix": "k_"}, "key_fields_prefix='k_': needs key_fields"),
        ({"schema": "k_a int", "key_fields": "k_", "key_fields_prefix": "k_"}, "nothing would be left"),
        ({"typed": True, "schema": "a int"}, "schema does not go with typed"),
        ({"typed": True, "value_format": "json"}, "typed takes this from the topic's schemas"),
        ({"typed": True, "value_fields_include": "ALL"}, "typed takes this from the topic's schemas"),
        ({"typed": True, "key_fields": "k_a", "key_fields_prefix": "k_"}, "only of a key with a schema"),
        ({"typed": True, "key_fields": "a", "key_subject": "k"}, "key_subject='k': only of a key with a schema"),
        ({"typed": True, "value_subject": " "}, "value_subject=' ': the name of a subject"),
        ({"schema": "a int", "value_subject": "s"}, "value_subject='s': needs typed"),
        ({"schema": "a interval"}, "is no type of a column"),
        ({"schema": "a int", "rescued": True}, "name the column '_rescued string'"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused(typing, message):
    with pytest.raises(InvalidRequestError, match=message):
        choose(**typing)


def test_what_says_how_to_read_is_refused_in_a_write():
    for reading in ({"mode": "FAILFAST"}, {"metadata": True}):
        with pytest.raises(InvalidRequestError, match="says how records are read"):
            encoded("orders", {"a": 1}, {"schema": "a int", **reading}, nothing)


NOTE = '{"name": "note", "type": "string", "default": "-"}, '
FIELDS = '{"name": "user", "type": "string"}, {"name": "n", "type": "long"}'
ORDER = '{"type": "record", "name": "Order", "fields": [%s' + FIELDS + "]}"


def test_avro_is_written_and_read_in_the_columns_of_a_schema():
    found = choose(schema="user string, n bigint", value_format="avro")
    rows = pa.table({"user": ["a"], "n": [7]})
    assert found.encode(rows).column("value").to_pylist() == [b"\x02\x02a\x02\x0e"]


def test_a_topic_of_avro_is_written_with_its_latest_schema_and_read_with_that_of_each_record(tmp_path):
    with logstore.open(tmp_path) as store:
        store.create_topic("orders", partitions=1)
        first = store.schemas.register("orders-value", schema_of("AVRO", ORDER % ""))
        store.append("orders", [{"user": "a", "n": 7}], typed=True)
        store.schemas.register("orders-value", schema_of("AVRO", ORDER % NOTE))
        store.schemas.register("orders-key", schema_of("AVRO", '"string"'))
        store.append("orders", {"key": "k", "user": "b", "n": 2**40, "note": "x"}, typed=True)
        [before, after] = store.read("orders", typed=True, mode="PERMISSIVE").read_all().to_pylist()
        assert before == {"key": None, "note": "-", "user": "a", "n": 7, "_corrupt_record": None}
        assert after == {"key": "k", "note": "x", "user": "b", "n": 2**40, "_corrupt_record": None}
        value = store.read("orders", columns=["value"]).read_all().column("value")[0].as_py()
        assert value == b"\0" + first.id.to_bytes(4, "big") + b"\x02a\x0e"
        confluent = {"schema": "n bigint", "value_format": "avro-confluent"}
        assert store.read("orders", **confluent).read_all().to_pylist() == [{"n": 7}, {"n": 2**40}]
        with pytest.raises(InvalidRequestError, match="rescued goes with JSON"):
            store.read("orders", typed=True, rescued=True)


def test_members_that_are_not_declared_are_rescued_on_request(tmp_path):
    with logstore.open(tmp_path) as store:
        store.create_topic("orders", partitions=1, schema="n int")
        store.append("orders", {"value": [b'{"n":1}', b'{"n":2,"more":[1.10]}']})
        found = store.read("orders", typed=True, rescued=True).read_all()
        assert found.to_pylist() == [{"n": 1, "_rescued": None}, {"n": 2, "_rescued": '{"more":[1.10]}'}]
        assert store.read("orders", schema="n int, _rescued string").read_all().equals(found)
        store.append("orders", found, typed=True, rescued=True)
        assert store.read("orders", partition=0, start=2, columns=["value"]).read_all().column("value").to_pylist() == [
            b'{"n":1}',
            b'{"n":2,"more":[1.10]}',
        ]


def test_a_registered_schema_that_is_no_columns_is_named(tmp_path):
    with logstore.open(tmp_path) as store:
        store.schemas.register("t-value", schema_of("JSON", '{"type": "object", "patternProperties": {"a": {}}}'))
        with pytest.raises(InvalidRequestError, match=r"^version 1 of subject 't-value' has no columns: .*pattern"):
            chosen("t", {"typed": True}, lambda: store.schemas)
