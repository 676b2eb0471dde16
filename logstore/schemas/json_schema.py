"""Columns as JSON Schema (draft 7), and back: the texts of schemaType "JSON" in registries.

A schema written here is valid for every registry; the keyword `x-spark-type` keeps what JSON Schema cannot say, as
decimal(10,2). A foreign one becomes columns by its types: what it says of values beyond that (`pattern`, `minimum`)
is passed over, and one that allows values of several types is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa

from logstore.errors import InvalidRequestError
from logstore.schemas import ddl
from logstore.schemas.conversion import is_supported

DRAFT = "http://json-schema.org/draft-07/schema#"
KEYWORD = "x-spark-type"
_NESTED_MAX = 100  # types in types; the text comes from anywhere
_Schema = Mapping[str, Any]

_INTEGERS = {pa.int8(): 7, pa.int16(): 15, pa.int32(): 31}
# Types whose JSON says all; each is what a foreign schema of these words becomes, too.
_WORDS: dict[pa.DataType, dict[str, Any]] = {
    pa.bool_(): {"type": "boolean"},
    pa.int64(): {"type": "integer"},
    pa.float64(): {"type": "number"},
    pa.string(): {"type": "string"},
    pa.date32(): {"type": "string", "format": "date"},
    pa.timestamp("us", tz="UTC"): {"type": "string", "format": "date-time"},
    pa.binary(): {"type": "string", "contentEncoding": "base64"},
}
# The words of Kafka Connect's converter: how wide a number is.
_CONNECT = {
    "int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64(),
    "float32": pa.float32(), "float64": pa.float64(),
}  # fmt: skip
_AMBIGUOUS = ("oneOf", "anyOf", "allOf")
_REFUSED = ("patternProperties", "not", "if", "dependencies", "$dynamicRef", "$recursiveRef")


def text_of(fields: Iterable[pa.Field]) -> str:
    """Return the schema of objects with these members. Raises: InvalidRequestError: a type that JSON has not."""
    return json.dumps({"$schema": DRAFT, **_object(tuple(fields))}, separators=(",", ":"), ensure_ascii=False)


def fields_of(text: str) -> tuple[pa.Field, ...]:
    """Return the columns of a schema of objects. Raises: InvalidRequestError: which part is no column, and why."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"no JSON Schema: {error}") from None
    try:
        kind = _Reader(whole).field("", whole).type
        if not pa.types.is_struct(kind):
            raise ValueError(f"it is of {ddl.type_text(kind)}, and columns need an object with properties")
    except (ValueError, RecursionError) as error:
        said = "nested too deeply" if isinstance(error, RecursionError) else error
        raise InvalidRequestError(f"a JSON Schema that cannot be columns: {said}") from None
    return tuple(kind.field(i) for i in range(kind.num_fields))


def _object(fields: tuple[pa.Field, ...]) -> dict[str, Any]:
    if not fields:
        raise InvalidRequestError("an object without columns")
    made: dict[str, Any] = {"type": "object", "properties": {f.name: _member(f) for f in fields}}
    if needed := [field.name for field in fields if not field.nullable]:
        made["required"] = needed
    return made


def _member(field: pa.Field) -> dict[str, Any]:
    made = _words(field.type)
    if field.nullable:
        kinds = made["type"] if isinstance(made["type"], list) else [made["type"]]
        made["type"] = [*kinds, "null"]
    return made


def _words(kind: pa.DataType) -> dict[str, Any]:
    if not is_supported(kind):
        raise InvalidRequestError(f"type {ddl.type_name(kind)}: a JSON value cannot be of it")
    if kind in _WORDS:
        return dict(_WORDS[kind])
    if pa.types.is_struct(kind):
        return _object(tuple(kind.field(i) for i in range(kind.num_fields)))
    if pa.types.is_list(kind):
        return {"type": "array", "items": _member(kind.value_field)}
    if pa.types.is_map(kind):
        return {"type": "object", "additionalProperties": _member(kind.item_field)}
    made: dict[str, Any] = {"type": "string"}
    if (bits := _INTEGERS.get(kind)) is not None:
        made = {"type": "integer", "minimum": -(2**bits), "maximum": 2**bits - 1}
    elif pa.types.is_floating(kind):
        made = {"type": "number"}
    elif pa.types.is_decimal(kind):
        made = {"type": ["string", "number"]}
    return {**made, KEYWORD: ddl.type_text(kind)}


class _Reader:
    """One text, whose parts refer to each other."""

    def __init__(self, whole: Any) -> None:
        self._whole = whole
        self._within: list[str] = []  # references on the way to where we are

    def field(self, name: str, schema: Any, *, is_required: bool = False, depth: int = 0) -> pa.Field:
        """Return type and nullability of a part; `name` is the path that a message shows. Not required: may be null."""
        if depth > _NESTED_MAX:
            raise ValueError(f"{name[:40]}…: nested more than {_NESTED_MAX} times")
        if not isinstance(schema, dict):
            raise ValueError(f"{name or 'the whole'}: anything is allowed; say its type")
        if (reference := schema.get("$ref")) is not None:
            return self._referred(name, reference, is_required=is_required, depth=depth)
        for word in _REFUSED:
            if word in schema:
                raise ValueError(f"{name or 'the whole'}: {word!r} makes its columns depend on its values")
        if found := [word for word in _AMBIGUOUS if word in schema]:
            return self._chosen(name, schema[found[0]], found[0], is_required=is_required, depth=depth)
        kinds, nullable = _kinds(name, schema)
        return pa.field(name, self._type(name, kinds, schema, depth), nullable or not is_required)

    def _referred(self, name: str, reference: Any, *, is_required: bool, depth: int) -> pa.Field:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise ValueError(f"{name or 'the whole'}: $ref {reference!r} is in another document")
        if reference in self._within:
            raise ValueError(f"{name or 'the whole'}: $ref {reference!r} holds itself")
        target = self._whole
        for part in reference[1:].split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, dict) or key not in target:
                raise ValueError(f"{name or 'the whole'}: $ref {reference!r} is not there")
            target = target[key]
        self._within.append(reference)
        found = self.field(name, target, is_required=is_required, depth=depth + 1)
        self._within.pop()
        return found

    def _chosen(self, name: str, options: Any, word: str, *, is_required: bool, depth: int) -> pa.Field:
        """Return the column of one schema, or of one and null, as generators write what is optional."""
        options = options if isinstance(options, list) else []
        real = [option for option in options if not (isinstance(option, dict) and option.get("type") == "null")]
        if len(real) != 1:
            raise ValueError(f"{name or 'the whole'}: {word} of {len(real)} schemas is no one type")
        nullable = word != "allOf" and len(real) < len(options)
        found = self.field(name, real[0], is_required=is_required, depth=depth + 1)
        return found.with_nullable(found.nullable or nullable)

    def _type(self, name: str, kinds: frozenset[str], schema: _Schema, depth: int) -> pa.DataType:
        if (exact := schema.get(KEYWORD)) is not None:
            return _exact(name, exact)
        if (connect := _CONNECT.get(str(schema.get("connect.type")))) is not None:
            return connect
        if kinds == {"integer", "number"}:
            return pa.float64()
        if len(kinds) != 1:
            raise ValueError(f"{name or 'the whole'}: {' or '.join(sorted(kinds)) or 'only null'} is no one type")
        (kind,) = kinds
        if (nested := _NESTED.get(kind)) is not None:
            return nested(self, name, schema, depth)
        if kind == "string":
            if schema.get("contentEncoding") not in (None, "base64"):
                raise ValueError(f"{name}: contentEncoding {schema['contentEncoding']!r}; only base64 is read")
            words = {key: schema[key] for key in ("format", "contentEncoding") if key in schema}
            found = [t for t, said in _WORDS.items() if said == {"type": "string", **words}]
            return found[0] if found else pa.string()
        return next(t for t, said in _WORDS.items() if said == {"type": kind})

    def object(self, name: str, schema: _Schema, depth: int) -> pa.DataType:
        properties, more = schema.get("properties"), schema.get("additionalProperties")
        if isinstance(properties, dict) and properties:
            needed = schema.get("required")
            needed = needed if isinstance(needed, list) else []
            paths = {member: f"{name}.{member}" if name else member for member in properties}
            return pa.struct(
                self.field(path, properties[member], is_required=member in needed, depth=depth + 1).with_name(member)
                for member, path in paths.items()
            )
        if isinstance(more, dict) and more:
            return pa.map_(pa.string(), self.field(f"{name}.*", more, depth=depth + 1).with_name("value"))
        raise ValueError(f"{name or 'the whole'}: an object without properties has no columns")

    def array(self, name: str, schema: _Schema, depth: int) -> pa.DataType:
        items = schema.get("items")
        if not isinstance(items, dict):
            raise ValueError(f"{name}: an array needs one schema of its items")
        return pa.list_(self.field(f"{name}[]", items, depth=depth + 1).with_name("element"))


_NESTED: dict[str, Callable[[_Reader, str, _Schema, int], pa.DataType]] = {
    "object": _Reader.object,
    "array": _Reader.array,
}


def _kinds(name: str, schema: _Schema) -> tuple[frozenset[str], bool]:
    """Return the types that it names but null, and whether null is one of them."""
    said = schema.get("type", _kind_of_values(schema))
    kinds = frozenset(map(str, said if isinstance(said, list) else [said]))
    known = {"object", "array", "null", *(words["type"] for words in _WORDS.values())}
    if strange := kinds - known:
        raise ValueError(f"{name or 'the whole'}: type {sorted(strange)[0]!r} is none of JSON Schema")
    return kinds - {"null"}, "null" in kinds


def _kind_of_values(schema: _Schema) -> Any:
    """Return the type of an enum without one, or of an object or array that only says what it holds."""
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list):
        return ["null" if value is None else _JSON_TYPES.get(type(value), "object") for value in values]
    if "properties" in schema or isinstance(schema.get("additionalProperties"), dict):
        return "object"
    return "array" if "items" in schema else "no type"


_JSON_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array"}


def _exact(name: str, text: Any) -> pa.DataType:
    try:
        kind = ddl.parse_type(str(text))
    except InvalidRequestError:
        raise ValueError(f"{name}: {KEYWORD} {text!r} is no type") from None
    if not is_supported(kind):
        raise ValueError(f"{name}: {KEYWORD} {text!r} is none of JSON")
    return kind
