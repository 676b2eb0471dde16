"""Which schemas may follow which, by every level; and that a compatible reader of JSON reads all that is written."""

import json
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from logstore.errors import InvalidRequestError
from logstore.schemas import ddl, json_schema
from logstore.schemas.compatibility import Version, reading_reasons, reasons
from logstore.schemas.formats import JsonFormat
from logstore.schemas.subjects import LEVELS, Reference, Schema


def avro(*fields):
    members = [dict(zip(("name", "type", "default"), field, strict=False)) for field in fields]
    return Schema("AVRO", json.dumps({"type": "record", "name": "R", "fields": members}))


def columns(text):
    return Schema("JSON", json_schema.text_of(ddl.parse(text)))


def nothing(reference):
    raise AssertionError(reference)


ONE = avro(("a", "int"))
WITH_DEFAULT = avro(("a", "int"), ("b", "int", 0))
WITHOUT = avro(("a", "int"), ("b", "int"))
WIDER = avro(("a", "long"))


@pytest.mark.parametrize(
    ("new", "earlier", "allowed"),
    [
        (WITH_DEFAULT, [ONE], LEVELS),
        (WITHOUT, [ONE], ("FORWARD", "FORWARD_TRANSITIVE", "NONE")),
        (WIDER, [ONE], ("BACKWARD", "BACKWARD_TRANSITIVE", "NONE")),
        (ONE, [WIDER], ("FORWARD", "FORWARD_TRANSITIVE", "NONE")),
        (WITHOUT, [ONE, WITH_DEFAULT], ("BACKWARD", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "NONE")),
        (ONE, [], LEVELS),
        (columns("a int, b string"), [columns("a int")], LEVELS),
        (columns("a bigint"), [columns("a int")], ("BACKWARD", "BACKWARD_TRANSITIVE", "NONE")),
        (columns("a int, b int NOT NULL"), [columns("a int")], ("FORWARD", "FORWARD_TRANSITIVE", "NONE")),
        (columns("a int"), [ONE], ("NONE",)),
    ],
)
def test_levels_judge_their_direction_and_their_versions(new, earlier, allowed):
    versions = [Version(number, schema) for number, schema in enumerate(earlier, 1)]
    assert tuple(level for level in LEVELS if not reasons(level, new, versions, nothing)) == tuple(
        level for level in LEVELS if level in allowed
    )


def test_reasons_name_the_version_the_direction_and_the_field():
    assert reasons("FULL", WIDER, [Version(4, ONE)], nothing) == ["version 4 cannot read it: a: long is no int"]
    assert reasons("BACKWARD", WITHOUT, [Version(4, ONE)], nothing) == [
        "it cannot read version 4: b: the writer has no such field, and the reader no default for it"
    ]


@pytest.mark.parametrize(
    ("reader", "writer", "reason"),
    [
        ("a int", "a bigint", "a: bigint is no int"),
        ("a decimal(12,2)", "a decimal(10,2)", None),
        ("a decimal(12,3)", "a decimal(12,2)", "a: decimal(12,2) is no decimal(12,3)"),
        ("a decimal(12,1)", "a decimal(10,2)", "a: decimal(10,2) is no decimal(12,1)"),
        ("a decimal(10,0)", "a int", None),
        ("a decimal(10,1)", "a int", "a: int is no decimal(10,1)"),
        ("a double", "a bigint", None),
        ("a float", "a double", "a: double is no float"),
        ("a string", "a date", None),
        ("a string", "a int", "a: int is no string"),
        ("a timestamp", "a timestamp_ntz", "a: timestamp_ntz is no timestamp"),
        ("a int NOT NULL", "a int", "a: may be null, and is declared NOT NULL"),
        ("s struct<x: int, y: int NOT NULL>", "s struct<x: int>", "s.y: new, and declared NOT NULL"),
        ("l array<bigint>", "l array<int>", None),
        ("l array<int>", "l array<bigint>", "l[]: bigint is no int"),
        ("m map<string, int>", "m map<string, string>", "m[]: string is no int"),
        ("m map<string, int>", "m struct<x: int>", "m: struct<x int> is no map<string, int>"),
        ("a int", "b int", None),
    ],
)
def test_json_is_judged_by_columns_and_types(reader, writer, reason):
    assert reading_reasons(columns(reader), columns(writer), nothing) == ([reason] if reason else [])


def test_what_cannot_be_judged_is_refused_with_the_reason():
    itself = Schema("AVRO", '{"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]}')
    [reason] = reasons("BACKWARD", ONE, [Version(1, itself)], nothing)
    assert reason.startswith("it cannot read version 1: it cannot be judged: Avro schema: r: R contains itself")
    [reason] = reading_reasons(Schema("JSON", '{"oneOf": []}'), columns("a int"), nothing)
    assert reason.startswith("it cannot be judged: a JSON Schema that cannot be columns: ")
    other = Schema("PROTOBUF", "message M {}")
    assert reading_reasons(other, other, nothing) == ["schemas of type PROTOBUF cannot be judged"]


def test_references_are_followed():
    money = Schema("AVRO", '{"type": "record", "name": "Money", "fields": [{"name": "cents", "type": "long"}]}')
    text = '{"type": "record", "name": "R", "fields": [{"name": "price", "type": "Money"}]}'
    schema = Schema("AVRO", text, (Reference("Money", "money", 1),))
    assert reading_reasons(schema, schema, lambda reference: {"money": money}[reference.subject]) == []

    def missing(reference):
        raise InvalidRequestError(f"no {reference.subject}")

    assert reading_reasons(schema, schema, missing) == ["it cannot be judged: no money"]


WORDS = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}
NOON = datetime(2024, 1, 31, 12, 0, 0, 123456, UTC)
EXTREMES = {
    **{word: [-(1 << bits), (1 << bits) - 1] for word, bits in WORDS.items()},
    "float": [1.5, -3.0],
    "double": [1e300, -0.1],
    "string": ["", "né"],
    "date": [NOON.date()],
    "timestamp": [NOON],
    "timestamp_ntz": [NOON.replace(tzinfo=None)],
    "decimal(3,0)": [Decimal(999), Decimal(-999)],
    "decimal(10,2)": [Decimal("99999999.99")],
    "decimal(12,2)": [Decimal("9999999999.99")],
    "decimal(22,2)": [Decimal("99999999999999999999.99")],
    "boolean": [True],
    "binary": [b"", b"\xff"],
    "array<int>": [[], [1, 2**31 - 1]],
    "array<bigint>": [[2**62]],
    "struct<x: int>": [{"x": 5}],
    "struct<x: bigint, y: string>": [{"x": 2**62, "y": "a"}],
    "map<string, int>": [[("k", 1)]],
    "map<string, bigint>": [[("k", 2**62)]],
}


@pytest.mark.parametrize("writer", EXTREMES)
def test_a_compatible_reader_reads_all_json_that_is_written(writer):
    written = ddl.parse(f"a {writer}")
    batch = pa.RecordBatch.from_arrays(
        [pa.array([*EXTREMES[writer], None], written[0].type)], schema=pa.schema(written)
    )
    data = JsonFormat(written).encode(batch)
    allowed = [
        reader for reader in EXTREMES if not reading_reasons(columns(f"a {reader}"), columns(f"a {writer}"), nothing)
    ]
    assert writer in allowed
    for reader in allowed:
        assert JsonFormat(ddl.parse(f"a {reader}")).decode(data).reasons == {}, reader
