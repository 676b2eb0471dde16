"""Bulk encoding against fastavro: the same bytes; and rows that a schema cannot carry."""

import io
import json
import pickle
from decimal import Decimal

import pyarrow as pa
import pytest
from fastavro import schemaless_reader
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logstore.errors import InvalidRecordError
from logstore.schemas.avro.decoding import Decoder
from logstore.schemas.avro.encoding import Encoder
from logstore.schemas.avro.schema import parse
from logstore.schemas.misfits import UnwritableError
from tests.support import avro

RELAXED = [
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
    HealthCheck.large_base_example,
]


def record(*types):
    return {"type": "record", "name": "R", "fields": [{"name": f"f{i}", "type": each} for i, each in enumerate(types)]}


@settings(suppress_health_check=RELAXED)
@given(st.data())
def test_the_bytes_are_those_of_fastavro(data):
    written = data.draw(avro.records())
    rows = [avro.encoded(written, value) for value in data.draw(st.lists(avro.values(written), min_size=1, max_size=5))]
    schema = parse(json.dumps(written))
    decoder = Decoder(schema, schema)
    columns = decoder.decode(pa.array(rows, pa.binary())).columns
    batch = pa.RecordBatch.from_arrays(columns, schema=pa.schema(decoder.fields))
    encoder = pickle.loads(pickle.dumps(Encoder(schema)))
    if columns:
        assert encoder.encode(batch).to_pylist() == rows
        assert encoder.encode(batch.slice(1), b"\x00id").to_pylist() == [b"\x00id" + row for row in rows[1:]]


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
FIXED = {"type": "fixed", "name": "F", "size": 3}


@pytest.mark.parametrize(
    ("kind", "column", "reason"),
    [
        ("int", pa.array([1, None], pa.int32()), "f0: null, and the schema has no null there"),
        ("string", pa.array(["a", None]), "f0: null, and the schema has no null there"),
        (ENUM, pa.array(["A", "C"]), "f0: no symbol of the enum"),
        (["null", ENUM], pa.array([None, "C"]), "f0: no symbol of the enum"),
        (FIXED, pa.array([b"abc", b"ab"]), "f0: not as many bytes as the fixed type has"),
        (DECIMAL, None, "f0: the decimal has too many digits"),
        (
            {"type": "array", "items": "long"},
            pa.array([[1], [2, None]]),
            "f0[]: null, and the schema has no null there",
        ),
        (
            {"type": "array", "items": "long"},
            pa.array([[], None], pa.list_(pa.int64())),
            "f0: null, and the schema has",
        ),
        (
            {"type": "record", "name": "S", "fields": [{"name": "a", "type": "int"}]},
            pa.array([{"a": 1}, {"a": None}], pa.struct([("a", pa.int32())])),
            "f0.a: null, and the schema has no null there",
        ),
        (
            ["int", "string"],
            pa.array(
                [{"member0": 1}, {"member0": None}], pa.struct([("member0", pa.int32()), ("member1", pa.string())])
            ),
            "f0: no member of the union is there",
        ),
    ],
    ids=str,
)
def test_a_row_that_the_schema_cannot_carry_is_named(kind, column, reason):
    if column is None:
        column = too_large()
    batch = pa.RecordBatch.from_arrays([column], names=["f0"])
    with pytest.raises(UnwritableError) as caught:
        Encoder(parse(json.dumps(record(kind)))).encode(batch)
    assert caught.value.row == 1
    assert str(caught.value).startswith(f"row 1: {reason}")


def too_large():
    """Decimals of which the second has a digit more than its type says, as Arrow itself never checks."""
    numbers = [9999, -10_000]
    data = b"".join(number.to_bytes(16, "little", signed=True) for number in numbers)
    return pa.Array.from_buffers(pa.decimal128(4, 2), 2, [None, pa.py_buffer(data)])


def test_a_decimal_has_as_few_bytes_as_it_needs():
    """Java writes as few; fastavro writes one more for -1.28, and reads both."""
    schema = record(DECIMAL)
    encoder, numbers = Encoder(parse(json.dumps(schema))), [Decimal("-1.28"), Decimal("1.27"), Decimal("1.28")]
    found = encoder.encode(pa.RecordBatch.from_arrays([pa.array(numbers, pa.decimal128(4, 2))], names=["f0"]))
    assert found.to_pylist() == [b"\x02\x80", b"\x02\x7f", b"\x04\x00\x80"]
    assert [schemaless_reader(io.BytesIO(each), schema)["f0"] for each in found.to_pylist()] == numbers


def test_times_are_rounded_down_to_milliseconds():
    schema = parse(json.dumps(record({"type": "long", "logicalType": "timestamp-millis"})))
    times = pa.array([1999, -1, 0], pa.timestamp("us", tz="UTC"))
    found = Encoder(schema).encode(pa.RecordBatch.from_arrays([times], names=["f0"]))
    assert Decoder(schema, schema).decode(found).columns[0].cast(pa.int64()).to_pylist() == [1000, -1000, 0]


def test_a_column_of_another_type_is_refused():
    encoder = Encoder(parse(json.dumps(record({"type": "array", "items": "long"}))))
    with pytest.raises(InvalidRecordError, match=r"column 'f0' is bigint: it must be array<bigint>"):
        encoder.encode(pa.RecordBatch.from_arrays([pa.array([1])], names=["f0"]))
    with pytest.raises(InvalidRecordError, match=r"column 'f0\[\]' is string: it must be bigint"):
        encoder.encode(pa.RecordBatch.from_arrays([pa.array([["x"]])], names=["f0"]))


def test_slices_and_large_values_are_written():
    schema = parse(json.dumps(record(["null", "string"], {"type": "array", "items": "boolean"}, "boolean")))
    texts = [None, "a" * 5000, "b", None, "c"]
    lists = [[True], [], [False, True, True], [True] * 9, [False]]
    flags = [True, False, True, True, False]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(texts, pa.large_string()), pa.array(lists), pa.array(flags)], names=["f0", "f1", "f2"]
    )
    found = Decoder(schema, schema).decode(Encoder(schema).encode(batch.slice(1, 3))).columns
    assert [column.to_pylist() for column in found] == [texts[1:4], lists[1:4], flags[1:4]]
