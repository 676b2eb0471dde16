"""Bulk decoding against fastavro: random schemas, readers and values; and bytes that are no Avro."""

import io
import json
import math
import resource
import struct
from decimal import Decimal
from random import Random

import fastavro
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logstore.schemas.avro import layout
from logstore.schemas.avro.decoding import Decoder
from logstore.schemas.avro.schema import parse
from tests.support import avro
from tests.support.repeats import soaked, times

RELAXED = [
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
    HealthCheck.large_base_example,
]


def decoder(writer, reader=None):
    return Decoder(parse(json.dumps(writer)), parse(json.dumps(writer if reader is None else reader)))


def decoded(found, decoder):
    """The good rows as Python's values, after Arrow itself has checked them."""
    table = pa.Table.from_arrays(found.columns, schema=pa.schema(decoder.fields))
    table.validate(full=True)
    columns = {f.name: avro.plain(column) for f, column in zip(decoder.fields, found.columns, strict=True)}
    return [{name: column[row] for name, column in columns.items()} for row in range(len(found.good))]


@settings(suppress_health_check=RELAXED)
@given(st.data())
def test_rows_are_those_of_fastavro(data):
    schema = data.draw(avro.records())
    values = data.draw(st.lists(avro.values(schema), min_size=1, max_size=5))
    rows = [avro.encoded(schema, value) for value in values]
    ours = decoder(schema)
    found = ours.decode(pa.array(rows, pa.binary()))
    assert found.reasons == {}
    read = [fastavro.schemaless_reader(io.BytesIO(row), avro.parsed(schema)) for row in rows]
    assert decoded(found, ours) == [avro.shown(schema, value) for value in read]


@settings(suppress_health_check=RELAXED)
@given(st.data())
def test_rows_are_shown_in_the_readers_schema_as_fastavro_does(data):
    writer = data.draw(avro.records())
    reader = data.draw(avro.readers(writer))
    values = data.draw(st.lists(avro.values(writer), min_size=1, max_size=5))
    rows = [avro.encoded(writer, value) for value in values]
    ours = decoder(writer, reader)
    found = ours.decode(pa.array(rows, pa.binary()))
    assert found.reasons == {}
    read = [fastavro.schemaless_reader(io.BytesIO(row), avro.parsed(writer), avro.parsed(reader)) for row in rows]
    assert decoded(found, ours) == [avro.shown(reader, value) for value in read]


def varlong(number):
    rest, found = (number << 1) ^ (number >> 63), b""
    while rest & ~0x7F:
        found += bytes([rest & 0x7F | 0x80])
        rest >>= 7
    return found + bytes([rest])


def record(*types):
    return {"type": "record", "name": "R", "fields": [{"name": f"f{i}", "type": each} for i, each in enumerate(types)]}


FULL = record("string", ["null", "long"], {"type": "array", "items": "double"}, "boolean")
GOOD = avro.encoded(FULL, {"f0": "abc", "f1": 5, "f2": [1.0, 2.0], "f3": True})
EMPTIES = {"type": "array", "items": "null"}
LISTS = {"type": "array", "items": "int"}
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
FIXED = {"type": "fixed", "name": "F", "size": 20, "logicalType": "decimal", "precision": 38, "scale": 0}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}


@pytest.mark.parametrize(
    ("kind", "data", "reason"),
    [
        ("long", b"", "f0: the data ends too early"),
        ("long", b"\xff" * 11, "f0: the data ends too early"),
        ("int", varlong(2**31), "f0: the number does not fit int"),
        ("double", b"1234567", "f0: the data ends too early"),
        ("boolean", b"\x02", "f0: a boolean is neither 0 nor 1"),
        ("string", varlong(-1), "f0: a length is negative, or beyond the end of the data"),
        ("bytes", varlong(2**62) + b"abc", "f0: a length is negative, or beyond the end of the data"),
        ("string", varlong(3) + b"a\xffb", "f0: the text is not UTF-8"),
        ("string", varlong(3) + b"\xed\xa0\x80", "f0: the text is not UTF-8"),
        ("string", varlong(2) + b"\xc1\x81", "f0: the text is not UTF-8"),
        ("string", varlong(4) + b"\xf4\x90\x80\x80", "f0: the text is not UTF-8"),
        (["null", "int"], varlong(2), "f0: the union has no branch of this number"),
        (["null", "int"], varlong(-1), "f0: the union has no branch of this number"),
        (ENUM, varlong(2), "f0: the enum has no symbol of this number"),
        (DECIMAL, varlong(2) + (10_000).to_bytes(2, "big"), "f0: the decimal has too many digits"),
        (DECIMAL, varlong(3) + (-10_000).to_bytes(3, "big", signed=True), "f0: the decimal has too many digits"),
        (DECIMAL, varlong(17) + b"\x01" + bytes(16), "f0: the decimal has too many digits"),
        (FIXED, (10**38).to_bytes(20, "big"), "f0: the decimal has too many digits"),
        (FIXED, (2**127).to_bytes(20, "big"), "f0: the decimal has too many digits"),
        (FIXED, (-(2**127)).to_bytes(20, "big", signed=True), "f0: the decimal has too many digits"),
        (MILLIS, varlong(2**63 // 1000 + 1), "f0: the time is out of range"),
        (LISTS, varlong(2**40), "f0: a block has more items than the data has room for"),
        (LISTS, varlong(-(2**63)) + varlong(1) + b"\x00\x00", "f0: a block has more items than the data has room for"),
        (LISTS, varlong(-1) + varlong(-5) + b"\x02\x00", "f0: a block has more items than the data has room for"),
        (LISTS, varlong(-1) + varlong(2**50) + b"\x02\x00", "f0: a block has more items than the data has room for"),
        (LISTS, varlong(1) + varlong(1), "f0: the data ends too early"),
        (EMPTIES, varlong(2**40) + b"\x00", "f0: a block has more items than the data has room for"),
        (EMPTIES, varlong(1000) * 2 + b"\x00", "f0: a block has more items than the data has room for"),
        ({"type": "array", "items": EMPTIES}, (varlong(1) + (varlong(500) + b"\x00")) * 3 + b"\x00", "f0[]: a block "),
        ("int", b"\x00\x00", "bytes are left after the data"),
    ],
    ids=str,
)
def test_a_row_that_is_no_avro_has_a_reason_and_its_neighbours_stay(kind, data, reason):
    schema = record(kind)
    ours = decoder(schema)
    good = avro.encoded(schema, {"f0": good_of(kind)})
    found = ours.decode(pa.array([good, data, good, None], pa.binary()))
    assert list(found.reasons) == [1]
    assert found.reasons[1].startswith(reason)
    assert found.good.tolist() == [0, 2, 3]
    once = decoded(ours.decode(pa.array([good], pa.binary())), ours)
    assert decoded(found, ours) == [*once, *once, {"f0": None}]


def good_of(kind):
    values = {"long": 1, "int": 1, "double": 1.0, "boolean": True, "string": "né€😀", "bytes": b"\xff"}
    if isinstance(kind, list):
        return None
    if isinstance(kind, str):
        return values[kind]
    if kind.get("logicalType") == "decimal":
        return Decimal(-5)
    return {"array": [], "enum": "B", "long": 0}[kind["type"]]


def test_blocks_with_sizes_and_several_blocks_are_read():
    ours = decoder(record(LISTS))
    data = varlong(-2) + varlong(2) + varlong(1) + varlong(2) + varlong(1) + varlong(3) + b"\x00"
    assert decoded(ours.decode(pa.array([data])), ours) == [{"f0": [1, 2, 3]}]
    skipping = decoder(record(LISTS, "int"), {**record(), "fields": [{"name": "f1", "type": "int"}]})
    assert decoded(skipping.decode(pa.array([data + varlong(7)])), skipping) == [{"f1": 7}]


def test_a_key_that_a_map_has_twice_has_its_last_value():
    ours = decoder(record({"type": "map", "values": "int"}, "int"))
    entries = [varlong(1) + key + varlong(number) for key, number in ((b"b", 1), (b"a", 2), (b"b", 3))]
    twice = varlong(3) + b"".join(entries) + b"\x00" + varlong(7)
    rows = [twice, varlong(1) + entries[0] + b"\x00" + varlong(8), None, twice]
    found = ours.decode(pa.array(rows, pa.binary()))
    once = [("b", 3), ("a", 2)]
    assert [column.to_pylist() for column in found.columns] == [[once, [("b", 1)], None, once], [7, 8, None, 7]]


def test_nan_and_infinity_are_kept():
    ours = decoder(record("double", "float"))
    rows = [struct.pack("<df", number, number) for number in (math.nan, math.inf, -math.inf)]
    found = ours.decode(pa.array(rows, pa.binary()))
    for column in found.columns:
        assert [str(value) for value in column.to_pylist()] == ["nan", "inf", "-inf"]


def test_buffers_grow_as_rows_need_and_a_bad_row_takes_none():
    schema = record("string", {"type": "array", "items": {"type": "array", "items": "string"}})
    reader = {**schema, "fields": [*schema["fields"], {"name": "d", "type": "string", "default": "x" * 1000}]}
    ours = decoder(schema, reader)
    values = [{"f0": "a" * i, "f1": [["b" * i] * (i % 50)] * (i % 7)} for i in range(300)]
    rows = [avro.encoded(schema, value) for value in values]
    rows[100] = rows[100][:-1]
    found = ours.decode(pa.array(rows, pa.binary()))
    assert list(found.reasons) == [100]
    del values[100]
    assert decoded(found, ours) == [{**value, "d": "x" * 1000} for value in values]


def test_values_of_any_layout_are_read():
    rows = [GOOD, None, GOOD[:3], GOOD]
    ours = decoder(FULL)
    plain = ours.decode(pa.array(rows, pa.binary()))
    for array in (
        pa.array([b"x", *rows], pa.large_binary()).slice(1),
        pa.array(rows, pa.binary()).dictionary_encode(),
        pa.array(rows, pa.binary_view()),
    ):
        found = ours.decode(array)
        assert (found.columns, found.good.tolist(), found.reasons) == (
            plain.columns,
            plain.good.tolist(),
            plain.reasons,
        )
    assert ours.decode(pa.array([], pa.binary())).columns[0] == pa.array([], pa.string())


def test_an_absurd_length_takes_neither_memory_nor_time():
    ours = decoder(record(LISTS, EMPTIES, "string", "bytes"))
    rows = [varlong(2**59) * 4, varlong(-(2**62)) * 4, b"\x00" + varlong(2**40) * 3] * 1000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert len(ours.decode(pa.array(rows, pa.binary())).reasons) == len(rows)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_a_value_whose_columns_take_too_much_is_a_misfit_beside_its_neighbours(monkeypatch):
    items = {"type": "record", "name": "i", "fields": [{"name": "n", "type": "int"}]}
    longer = {**items, "fields": [*items["fields"], {"name": "d", "type": "string", "default": "x" * 1000}]}
    writer, reader = (record({"type": "array", "items": each}, "int") for each in (items, longer))
    ours = decoder(writer, reader)
    counts = [2, 9, 500, 30, 400]
    rows = [avro.encoded(writer, {"f0": [{"n": 1}] * count, "f1": count}) for count in counts]
    monkeypatch.setattr(layout, "VALUE_BYTES_MAX", 100_000)
    found = ours.decode(pa.array(rows, pa.binary()))
    assert {row: reason[:32] for row, reason in found.reasons.items()} == dict.fromkeys(
        (2, 4), "its columns would take more than"
    )
    assert [(len(row["f0"]), row["f1"]) for row in decoded(found, ours)] == [(2, 2), (9, 9), (30, 30)]
    union = ["null", *({**record("long", "long"), "name": f"r{i}"} for i in range(9))]
    wide = decoder(record({"type": "array", "items": union}))
    found = wide.decode(pa.array([varlong(900) + b"\x00" * 901, varlong(3) + b"\x00" * 4], pa.binary()))
    assert (list(found.reasons), found.good.tolist()) == ([0], [1])


@pytest.mark.soak
@pytest.mark.timeout(4000)
@settings(max_examples=soaked(times(25, 250), 20_000), suppress_health_check=RELAXED)
@given(st.data(), st.integers(0, 2**64))
def test_damaged_rows_are_refused_or_read_as_fastavro_reads_them(data, seed):
    """No bytes harm the process or the neighbours."""
    schema = data.draw(avro.records())
    values = data.draw(st.lists(avro.values(schema), min_size=3, max_size=8))
    good, chance = [avro.encoded(schema, value) for value in values], Random(seed)
    schema = json.loads(json.dumps(schema).replace("uuid", "text"))  # which fastavro writes in its own way
    ours, parsed = decoder(schema), avro.parsed(schema)
    for _ in range(30):
        rows = list(good)
        bad = chance.randrange(len(rows))
        rows[bad] = damaged(rows[bad], chance)
        found = ours.decode(pa.array(rows, pa.binary()))
        assert set(found.reasons) <= {bad}
        read = decoded(found, ours)
        assert len(read) == len(rows) - len(found.reasons)
        if bad not in found.reasons:
            stream = io.BytesIO(rows[bad])
            try:
                expected = avro.shown(schema, fastavro.schemaless_reader(stream, parsed))
            except (OverflowError, ValueError):  # a time that Python has not
                continue
            assert stream.read() == b""
            assert repr(read[bad]).replace("nan", "'nan'") == repr(expected).replace("''nan''", "'nan'")


def damaged(row, chance):
    row = bytearray(row or b"\x00")
    match chance.randrange(5):
        case 0:
            return bytes(row[: chance.randrange(len(row) + 1)])
        case 1:
            row[chance.randrange(len(row))] = chance.randrange(256)
        case 2:
            at = chance.randrange(len(row) + 1)
            row[at:at] = varlong(chance.choice([-1, 2**31, 2**40, 2**62, -(2**63), 1, 3]))
        case 3:
            at = chance.randrange(len(row))
            del row[at : at + chance.randrange(4)]
        case 4:
            return chance.randbytes(chance.randrange(40))
    return bytes(row)
