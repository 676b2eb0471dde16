"""The formats of Avro: one schema, or an id of one before each value."""

import json
import pickle

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from logstore.errors import InvalidConfigError, InvalidRequestError
from logstore.schemas.avro import wire
from logstore.schemas.avro.format import AvroFormat, ConfluentAvroFormat
from logstore.schemas.avro.schema import parse
from logstore.schemas.avro.types import schema_of
from logstore.schemas.avro.wire import header
from tests.support import avro


def record(*fields, name="Order"):
    return {
        "type": "record",
        "name": name,
        "fields": [dict(zip(("name", "type", "default"), f, strict=False)) for f in fields],
    }


FIRST = record(("user", "string"), ("amount", "int"))
SECOND = record(("amount", "long"), ("user", "string"), ("note", ["null", "string"], None))
SCHEMAS = {1: parse(json.dumps(FIRST)), 2: parse(json.dumps(SECOND)), 3: parse('"string"')}


def find(schema_id):
    if schema_id not in SCHEMAS:
        raise InvalidRequestError("not registered")
    return SCHEMAS[schema_id]


def test_each_value_is_read_with_its_own_schema_and_shown_in_the_readers():
    found = pickle.loads(pickle.dumps(ConfluentAvroFormat(SCHEMAS[2], find)))
    values = [
        header(1) + avro.encoded(FIRST, {"user": "a", "amount": 1}),
        header(2) + avro.encoded(SECOND, {"user": "b", "amount": 2**40, "note": "n"}),
        header(7) + b"x",
        b"abc",
        header(1) + avro.encoded(FIRST, {"user": "c", "amount": 3})[:-1],
        header(3) + avro.encoded('"string"', "text"),
        header(1) + avro.encoded(FIRST, {"user": "d", "amount": 4}),
    ]
    parsed = found.decode(pa.array(values))
    assert parsed.good.tolist() == [0, 1, 6]
    assert [column.to_pylist() for column in parsed.columns] == [[1, 2**40, 4], ["a", "b", "d"], [None, "n", None]]
    assert parsed.reasons == {
        2: "schema id 7: not registered",
        3: "no schema id: the first byte is not 0",
        4: "amount: the data ends too early",
        5: "string is no record Order",
    }
    again = found.decode(pa.array(values[:1]))
    assert (again.good.tolist(), again.reasons) == ([0], {})
    nothing = found.decode(pa.array([], pa.binary()))
    assert [len(column) for column in nothing.columns] == [0, 0, 0]


def test_rows_are_written_with_the_id():
    found = ConfluentAvroFormat(SCHEMAS[2], find, 2)
    batch = pa.RecordBatch.from_pylist([{"amount": 5, "user": "a", "note": None}], pa.schema(found.fields))
    values = found.encode(batch)
    assert values.to_pylist() == [header(2) + avro.encoded(SECOND, {"amount": 5, "user": "a", "note": None})]
    assert found.decode(values).columns == batch.columns
    with pytest.raises(InvalidConfigError, match="needs the id of a registered schema to write"):
        ConfluentAvroFormat(SCHEMAS[2], find).encode(batch)


def test_data_without_an_id_is_read_as_another_schema_and_written_as_its_own():
    plain = AvroFormat(SCHEMAS[1])
    batch = pa.RecordBatch.from_pylist([{"user": "a", "amount": 5}], pa.schema(plain.fields))
    values = plain.encode(batch)
    assert values.to_pylist() == [avro.encoded(FIRST, {"user": "a", "amount": 5})]
    shown = AvroFormat(SCHEMAS[1], SCHEMAS[2])
    assert [column.to_pylist() for column in shown.decode(values).columns] == [[5], ["a"], [None]]
    with pytest.raises(InvalidConfigError, match="columns are written in their own schema of Avro"):
        shown.encode(batch)


def test_a_schema_that_is_no_record_is_one_column():
    found = AvroFormat(SCHEMAS[3], column="key")
    assert found.fields == (pa.field("key", pa.string(), False),)
    values = found.encode(pa.RecordBatch.from_pydict({"key": ["a", "b"]}))
    assert values.to_pylist() == [b"\x02a", b"\x02b"]
    assert found.decode(values).columns == [pa.array(["a", "b"])]


def test_columns_that_a_reader_declares_take_any_names_of_types():
    inner = record(("kind", {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}), name="Inner")
    writer = record(
        ("inner", inner),
        ("raw", {"type": "fixed", "name": "Raw", "size": 2}),
        ("either", ["int", "null", "string"]),
        ("at", {"type": "long", "logicalType": "timestamp-millis"}),
        name="shop.Order",
    )
    columns = [
        pa.field("inner", pa.struct([pa.field("kind", pa.string())])),
        pa.field("raw", pa.binary()),
        pa.field("either", pa.struct([pa.field("member0", pa.int32()), pa.field("member1", pa.string())])),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("missing", pa.int64()),
    ]
    found = AvroFormat(parse(json.dumps(writer)), schema_of(columns))
    assert list(found.fields) == columns
    value = {"inner": {"kind": "B"}, "raw": b"xy", "either": "text", "at": 5}
    parsed = found.decode(pa.array([avro.encoded(writer, value)]))
    assert parsed.reasons == {}
    assert [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in parsed.columns] == [
        pa.array([{"kind": "B"}], columns[0].type),
        pa.array([b"xy"]),
        pa.array([{"member0": None, "member1": "text"}], columns[2].type),
        pa.array([5000]),
        pa.array([None], pa.int64()),
    ]
    with pytest.raises(InvalidRequestError, match="column 'x': Avro has no type tinyint: declare int"):
        schema_of([pa.field("x", pa.int8())])


def test_values_of_confluents_serializer_are_read_and_its_deserializer_reads_ours():
    registry = SchemaRegistryClient.new_client({"url": "mock://"})
    context = SerializationContext("orders", MessageField.VALUE)
    old, new = (AvroSerializer(registry, json.dumps(schema)) for schema in (FIRST, SECOND))
    values = [
        old({"user": "é", "amount": -1}, context),
        new({"user": "b", "amount": 2**40, "note": "n"}, context),
    ]
    ids = {wire.split(pa.array(values)).ids[i]: schema for i, schema in enumerate((SCHEMAS[1], SCHEMAS[2]))}
    found = ConfluentAvroFormat(SCHEMAS[2], ids.__getitem__, max(ids))
    parsed = found.decode(pa.array(values))
    assert [column.to_pylist() for column in parsed.columns] == [[-1, 2**40], ["é", "b"], [None, "n"]]
    batch = pa.RecordBatch.from_arrays(parsed.columns, schema=pa.schema(found.fields))
    written = found.encode(batch)
    assert written[1].as_py() == values[1]
    read = AvroDeserializer(registry)
    assert [read(value, context) for value in written.to_pylist()] == batch.to_pylist()
