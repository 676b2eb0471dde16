"""Random schemas of Avro, readers that follow from them, and values; and how fastavro's values look as Arrow's."""

from __future__ import annotations

import copy
import io
import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import count
from uuid import UUID

import fastavro
import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PROMOTED = {
    "int": ["long", "float", "double"],
    "long": ["float", "double"],
    "float": ["double"],
    "string": ["bytes"],
    "bytes": ["string"],
}
LOGICAL = [
    {"type": "int", "logicalType": "date"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "long", "logicalType": "local-timestamp-millis"},
    {"type": "long", "logicalType": "local-timestamp-micros"},
    {"type": "string", "logicalType": "uuid"},
    {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3},
    {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0},
]
PRIMITIVES = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
UNION = ["string", "boolean", {"type": "array", "items": "long"}, {"type": "map", "values": "double"}, "long"]


def encoded(schema, value) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, parsed(schema), value)
    return out.getvalue()


def parsed(schema):
    return fastavro.parse_schema(json.loads(schema) if isinstance(schema, str) else copy.deepcopy(schema))


@st.composite
def records(draw, depth=3):
    """A schema of a record."""
    return draw(_types(count(), depth, only_record=True))


@st.composite
def _types(draw, names, depth, *, only_record=False, in_union=False):  # noqa: PLR0911
    kinds = ["record"] if only_record else ["plain", "plain", "logical", "enum", "fixed"]
    if depth and not only_record:
        kinds += ["record", "array", "map"] + ([] if in_union else ["nullable", "nullable", "union"])
    match draw(st.sampled_from(kinds)):
        case "plain":
            return draw(st.sampled_from(PRIMITIVES[1:] if in_union else PRIMITIVES))
        case "logical":
            return copy.deepcopy(draw(st.sampled_from(LOGICAL)))
        case "enum":
            symbols = draw(st.lists(st.sampled_from("ABCDEFGH"), min_size=1, unique=True))
            return {"type": "enum", "name": f"E{next(names)}", "symbols": symbols}
        case "fixed":
            if draw(st.booleans()):
                decimal = {"logicalType": "decimal", "precision": 9, "scale": 2}
                return {"type": "fixed", "name": f"F{next(names)}", "size": 6, **decimal}
            return {"type": "fixed", "name": f"F{next(names)}", "size": draw(st.integers(0, 20))}
        case "array":
            return {"type": "array", "items": draw(_types(names, depth - 1))}
        case "map":
            return {"type": "map", "values": draw(_types(names, depth - 1))}
        case "nullable":
            pair = ["null", draw(_types(names, depth - 1, in_union=True))]
            return pair if draw(st.booleans()) else pair[::-1]
        case "union":
            branches = copy.deepcopy(draw(st.lists(st.sampled_from(UNION), min_size=2, unique_by=json.dumps)))
            if draw(st.booleans()):
                branches.insert(draw(st.integers(0, len(branches))), "null")
            return branches
        case _:
            name = f"R{next(names)}"
            fields = [
                {"name": f"f{i}", "type": draw(_types(names, depth - 1))}
                for i in range(draw(st.integers(0 if depth < 3 else 1, 4)))
            ]
            return {"type": "record", "name": name, "fields": fields}


@st.composite
def readers(draw, writer):
    """A schema that can read what this one writes, unless a union makes it ambiguous."""
    return draw(_evolved_record(copy.deepcopy(writer), count(1000)))


@st.composite
def _evolved(draw, schema, names, *, in_union=False):
    if isinstance(schema, list):
        others = [s for s in schema if s != "null"]
        if len(others) != 1:
            return schema
        pair = ["null", draw(_evolved(others[0], names, in_union=True))]
        return pair if draw(st.booleans()) else pair[::-1]
    if schema == "null":
        return schema
    if isinstance(schema, str):
        found = draw(st.sampled_from([schema, *PROMOTED.get(schema, ())]))
        found = schema if found == "string" else found  # bytes may be no text
    elif schema["type"] == "record":
        found = draw(_evolved_record(schema, names))
    elif schema["type"] in ("array", "map"):
        member = "items" if schema["type"] == "array" else "values"
        found = {"type": schema["type"], member: draw(_evolved(schema[member], names))}
    elif schema["type"] == "enum":
        symbols = draw(st.lists(st.sampled_from("ABCDEFGH"), min_size=1, unique=True))
        found = {**schema, "symbols": symbols, "default": symbols[0]}
    else:
        found = schema
    return found if in_union or draw(st.integers(0, 4)) else ["null", found]


@st.composite
def _evolved_record(draw, schema, names):
    fields = []
    for f in schema["fields"]:
        if draw(st.integers(0, 4)) == 0:
            continue
        fields.append({"name": f["name"], "type": draw(_evolved(f["type"], names))})
        if draw(st.integers(0, 4)) == 0:
            fields[-1] |= {"name": f"n{next(names)}", "aliases": [f["name"]]}
    for _ in range(draw(st.integers(0, 2))):
        kind, default = copy.deepcopy(draw(st.sampled_from(DEFAULTS)))
        if isinstance(kind, dict) and "name" in kind:
            kind["name"] += str(next(names))
        fields.append({"name": f"d{next(names)}", "type": kind, "default": default})
    return {"type": "record", "name": schema["name"], "fields": draw(st.permutations(fields))}


DEFAULTS = [
    ("int", 7),
    ("double", 1.5),
    ("string", "né"),
    ("bytes", "\u00ff\u0000"),
    (["null", "long"], None),
    (["long", "null"], 5),
    ({"type": "array", "items": "string"}, ["a", "b"]),
    ({"type": "map", "values": "int"}, {"k": 3}),
    ({"type": "enum", "name": "DE", "symbols": ["X", "Y"]}, "Y"),
    (
        {
            "type": "record",
            "name": "DR",
            "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": ["null", "string"], "default": None}],
        },
        {"a": 4, "b": None},
    ),
]

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_FLOAT = st.floats(width=32, allow_nan=False)
_VALUES = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": _FLOAT,
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=20),
    "string": _TEXT,
}
_LOGICAL_VALUES = {
    "date": st.dates(),
    "timestamp-millis": st.datetimes(timezones=st.just(UTC)).map(
        lambda d: d.replace(microsecond=d.microsecond // 1000 * 1000)
    ),
    "timestamp-micros": st.datetimes(timezones=st.just(UTC)),
    "local-timestamp-millis": st.datetimes().map(lambda d: d.replace(microsecond=d.microsecond // 1000 * 1000)),
    "local-timestamp-micros": st.datetimes(),
    "uuid": st.uuids(),
}


# fastavro writes these with a byte more than they need; test_encoding has one of them.
_PADDED = {-(2 ** (8 * size - 1)) for size in range(1, 17)}


def values(schema):  # noqa: PLR0911
    """Values of a schema, as fastavro writes them."""
    if isinstance(schema, list):
        return st.one_of([values(branch) for branch in schema])
    if isinstance(schema, str):
        return _VALUES[schema]
    if schema.get("logicalType") == "decimal":
        precision, scale = schema["precision"], schema["scale"]
        limit = 10**precision - 1
        numbers = st.integers(-limit, limit).filter(lambda n: n not in _PADDED)
        return numbers.map(lambda n: Decimal(n).scaleb(-scale) if precision < 28 else Decimal(n))
    if "logicalType" in schema:
        return _LOGICAL_VALUES[schema["logicalType"]]
    match schema["type"]:
        case "enum":
            return st.sampled_from(schema["symbols"])
        case "fixed":
            return st.binary(min_size=schema["size"], max_size=schema["size"])
        case "array":
            return st.lists(values(schema["items"]), max_size=4)
        case "map":
            return st.dictionaries(_TEXT, values(schema["values"]), max_size=4)
        case "record":
            return st.fixed_dictionaries({f["name"]: values(f["type"]) for f in schema["fields"]})
        case kind:
            return _VALUES[kind]


def shown(schema, value):  # noqa: PLR0911
    """A value of fastavro as Arrow's columns show it: unions as structs, times as microseconds."""
    if isinstance(schema, list):
        others = [branch for branch in schema if branch != "null"]
        if value is None:
            return None
        if len(others) == 1:
            return shown(others[0], value)
        chosen = next(i for i, branch in enumerate(others) if _is_of(branch, value))
        return {f"member{i}": shown(b, value) if i == chosen else None for i, b in enumerate(others)}
    kind = schema if isinstance(schema, str) else schema["type"]
    match kind:
        case "record":
            return {f["name"]: shown(f["type"], value[f["name"]]) for f in schema["fields"]}
        case "array":
            return [shown(schema["items"], item) for item in value]
        case "map":
            return [(key, shown(schema["values"], item)) for key, item in value.items()]
    if kind == "bytes" and isinstance(value, str):  # fastavro gives a default as JSON has it
        return value.encode("latin-1")
    if kind == "float" and isinstance(value, int | float):  # fastavro has no numbers of 32 bits
        return _plain(float(np.float32(value)))
    return _plain(value)


def _is_of(branch, value) -> bool:
    kind = branch if isinstance(branch, str) else branch["type"]
    types = {"string": str, "boolean": bool, "bytes": bytes, "array": list, "map": dict, "long": int}
    return type(value) is types[kind]


def _plain(value):
    if isinstance(value, datetime):
        return (value.replace(tzinfo=value.tzinfo or UTC) - EPOCH) // (datetime.resolution)
    if isinstance(value, date):
        return (value - EPOCH.date()).days
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value
    return str(value) if isinstance(value, UUID) else value


def plain(array: pa.Array) -> list:
    """The values of a column, times as numbers."""
    return _renumbered(array).to_pylist()


def _renumbered(array: pa.Array) -> pa.Array:
    """The array with numbers for times. Arrow's cast of a struct with a list of nulls makes an array that is none."""
    kind = array.type
    if not _has_times(kind):
        return array
    if pa.types.is_temporal(kind):
        return array.cast(_numbered(kind))
    if pa.types.is_struct(kind):
        children = [_renumbered(array.field(i)) for i in range(kind.num_fields)]
    elif pa.types.is_map(kind):
        pairs = [array.keys, _renumbered(array.items)]
        fields = [kind.key_field, kind.item_field.with_type(pairs[1].type)]
        children = [pa.StructArray.from_arrays(pairs, fields=fields)]
    else:
        children = [_renumbered(array.values)]
    count = 1 if pa.types.is_struct(kind) else 2
    buffers = array.buffers()[:count]
    return pa.Array.from_buffers(_numbered(kind), len(array), buffers, array.null_count, 0, children)


def _has_times(kind) -> bool:
    return pa.types.is_temporal(kind) or any(_has_times(kind.field(i).type) for i in range(kind.num_fields))


def _numbered(kind):
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date(kind):
        return pa.int32()
    if pa.types.is_struct(kind):
        return pa.struct([f.with_type(_numbered(f.type)) for f in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, kind.item_field.with_type(_numbered(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_numbered(kind.value_type)))
    return kind
