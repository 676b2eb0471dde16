"""Which writers a reader can read, with the reasons of those that it cannot."""

import json

import pytest

from logstore.schemas.avro.resolution import problems, resolve
from logstore.schemas.avro.schema import parse
from logstore.schemas.avro.types import schema_of
from logstore.schemas.ddl import parse as columns


def schema(kind, name="R", **more):
    return parse(json.dumps({"type": "record", "name": name, "fields": [{"name": "f", "type": kind, **more}]}))


def fixed(size, name="F"):
    return {"type": "fixed", "name": name, "size": size}


def enum(*symbols, **more):
    return {"type": "enum", "name": "E", "symbols": symbols, **more}


def decimal(precision, scale):
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def logical(kind, name):
    return {"type": kind, "logicalType": name}


MILLIS, MICROS = logical("long", "timestamp-millis"), logical("long", "timestamp-micros")
DATE, LOCAL = logical("int", "date"), logical("long", "local-timestamp-micros")


@pytest.mark.parametrize(
    ("writer", "reader", "reason"),
    [
        ("int", "long", None),
        ("int", "double", None),
        ("long", "float", None),
        ("float", "double", None),
        ("string", "bytes", None),
        ("bytes", "string", None),
        ("long", "int", "f: long is no int"),
        ("double", "float", "f: double is no float"),
        ("int", "string", "f: int is no string"),
        ("null", "int", "f: null is no int"),
        ("int", ["null", "int"], None),
        ("int", ["null", "string"], "f: int is none of [null, string]"),
        (["null", "int"], "int", "f: null is no int"),
        (["int", "long"], "long", None),
        (["null", "int", "string"], ["string", "long", "null"], None),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, None),
        ({"type": "map", "values": "long"}, {"type": "map", "values": "int"}, "f[]: long is no int"),
        (enum("A", "B"), enum("B", "A", "C"), None),
        (enum("A", "B"), enum("A"), "f: enum E lacks B, and has no default"),
        (enum("A", "B"), enum("A", default="A"), None),
        (enum("A"), "string", "f: enum E is no string"),
        (fixed(4), fixed(4), None),
        (fixed(4), fixed(5), "f: fixed of 4 bytes is no fixed of 5"),
        (fixed(4), fixed(4, "G"), "f: fixed F is not fixed G"),
        (fixed(4, "a.F"), fixed(4, "b.F"), None),
        (fixed(4), {**fixed(4, "G"), "aliases": ["F"]}, None),
        (decimal(5, 2), decimal(7, 2), None),
        (decimal(7, 2), decimal(5, 2), "f: decimal(7,2) is no decimal(5,2): digits would be lost"),
        (decimal(7, 2), decimal(7, 3), "f: decimal(7,2) is no decimal(7,3): the scale is another"),
        ("bytes", decimal(7, 3), None),
        (decimal(7, 3), "bytes", None),
        (MILLIS, MICROS, None),
        (MICROS, "long", None),
        ("long", MILLIS, None),
        (DATE, MICROS, "f: date (int) is no timestamp-micros (long)"),
        (LOCAL, MICROS, "f: local-timestamp-micros (long) is no timestamp-micros (long)"),
    ],
    ids=str,
)
def test_types_match_by_avros_rules(writer, reader, reason):
    found = [str(problem) for problem in problems(resolve(schema(writer), schema(reader)))]
    assert found == ([reason] if reason else [])


@pytest.mark.parametrize(
    ("writer", "column", "reason"),
    [
        ("long", "bigint", None),
        ("int", "double", None),
        (MILLIS, "timestamp", None),
        (MICROS, "bigint", None),
        (DATE, "int", None),
        ("bytes", "binary", None),
        (decimal(5, 2), "decimal(7,2)", None),
        (
            "long",
            "timestamp",
            "f: long is no timestamp-micros (long): its writer named no logical type; declare bigint",
        ),
        ("int", "timestamp_ntz", "declare int"),
        (["null", "long"], "timestamp", "declare bigint"),
        (logical("long", "timestamp-nanos"), "timestamp", "declare bigint"),
        ("int", "date", "f: int is no date (int): its writer named no logical type; declare int"),
        ("bytes", "decimal(7,2)", "f: bytes is no decimal(7,2): its writer named no logical type; declare binary"),
        (fixed(4), "decimal(7,2)", "declare binary"),
        ("string", "int", "f: string is no int"),
    ],
    ids=str,
)
def test_a_column_takes_no_plain_type_for_a_time_or_a_decimal(writer, column, reason):
    found = [str(problem) for problem in problems(resolve(schema(writer), schema_of(columns(f"f {column}"))))]
    if reason is None:
        assert found == []
    else:
        assert len(found) == 1
        assert found[0].endswith(reason)


def test_a_field_that_is_new_needs_a_default_that_fits():
    old, without = schema("int"), schema("int", "R").fields[0]
    assert without.name == "f"
    new = parse('{"type": "record", "name": "R", "fields": [{"name": "g", "type": "long"}]}')
    [problem] = problems(resolve(old, new))
    assert str(problem) == "g: the writer has no such field, and the reader no default for it"
    for default, reason in [(5, None), ("x", "'x' is no int"), (2**63, "does not fit long"), (None, "None is no int")]:
        text = {"type": "record", "name": "R", "fields": [{"name": "g", "type": "long", "default": default}]}
        found = [problem.reason for problem in problems(resolve(old, parse(json.dumps(text))))]
        assert (found == []) if reason is None else (reason in found[0])


def test_a_record_is_known_by_its_name_or_an_alias():
    [problem] = problems(resolve(schema("int", "Old"), schema("int", "New")))
    assert str(problem) == "record Old is not record New"
    renamed = parse('{"type": "record", "name": "New", "aliases": ["Old"], "fields": []}')
    assert list(problems(resolve(schema("int", "Old"), renamed))) == []


def test_an_alias_is_only_looked_for_where_the_name_is_not():
    writer = parse(
        '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "string"}]}'
    )
    reader = parse(
        '{"type": "record", "name": "R", "fields": [{"name": "b", "type": "string", "aliases": ["a"]},'
        ' {"name": "c", "type": "long", "aliases": ["b", "a"]}]}'
    )
    assert [(part.name, part.number) for part in resolve(writer, reader).parts] == [("a", 1), ("b", 0)]


def test_deep_unions_are_resolved_in_little_time():
    kind = "int"
    for i in range(28):
        kind = ["null", {"type": "record", "name": f"R{i}", "fields": [{"name": "f", "type": kind}]}]
    assert list(problems(resolve(schema(kind), schema(kind)))) == []


def test_a_union_takes_the_branch_of_the_same_type_before_one_that_would_do():
    [part] = resolve(schema("string"), schema(["bytes", "string"])).parts
    assert part.plan.branch.kind == "string"
    [part] = resolve(schema("int"), schema(["double", "string", "float"])).parts
    assert part.plan.branch.kind == "double"
