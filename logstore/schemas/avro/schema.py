"""Avro schemas from their text: names resolved, logical types checked, every use of a named type in its place.

Refused with one line: a type that contains itself, a name that is unknown or defined twice, a union in a union, and a
text that is too deep or too wide for columns. A logical type that Avro does not know, or that does not fit its type, is
passed over, as Avro demands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from logstore.errors import InvalidRequestError

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED = frozenset({"record", "enum", "fixed"})
DEPTH_MAX = 64
NODES_MAX = 10_000  # named types that are used several times count each time
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LOGICAL = {
    "date": "int",
    "timestamp-millis": "long",
    "timestamp-micros": "long",
    "local-timestamp-millis": "long",
    "local-timestamp-micros": "long",
    "uuid": "string",
}
DECIMAL_DIGITS_MAX = 38


class Missing:
    """The default of a field that has none."""


MISSING = Missing()


@dataclass(frozen=True)
class Schema:
    """A type: `kind` is Avro's word; `name` is full, of a named type. `logical`: a logical type that is heeded."""

    kind: str
    name: str = ""
    aliases: tuple[str, ...] = ()
    logical: str = ""
    precision: int = 0
    scale: int = 0
    size: int = 0
    symbols: tuple[str, ...] = ()
    default: str | None = None  # of an enum
    fields: tuple[Field, ...] = ()
    items: tuple[Schema, ...] = ()  # of an array or map: one; of a union: its branches
    is_column: bool = False  # made of a column: its string takes enums, and its bytes what has a fixed size

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]

    @cached_property
    def nodes(self) -> int:
        return 1 + sum(f.schema.nodes for f in self.fields) + sum(item.nodes for item in self.items)

    @cached_property
    def least_bytes(self) -> int:
        """The fewest bytes that a value takes."""
        if self.kind == "record":
            return sum(f.schema.least_bytes for f in self.fields)
        if self.kind == "union":
            return 1 + min((branch.least_bytes for branch in self.items), default=0)
        return {"null": 0, "float": 4, "double": 8, "fixed": self.size}.get(self.kind, 1)

    def __str__(self) -> str:
        """The type in a message."""
        if self.kind == "union":
            return f"[{', '.join(map(str, self.items))}]"
        if self.kind in ("array", "map"):
            return f"{self.kind} of {self.items[0]}"
        if self.logical == "decimal":
            return f"decimal({self.precision},{self.scale})"
        if self.name:
            return f"{self.kind} {self.name}"
        return f"{self.logical} ({self.kind})" if self.logical else self.kind


@dataclass(frozen=True)
class Field:
    """A field of a record; its default is as JSON has it."""

    name: str
    schema: Schema
    default: Any = field(default=MISSING, compare=False)
    aliases: tuple[str, ...] = ()


class Reference(Protocol):
    """A schema that another one uses, as registries keep it: `name` is the full name of its type."""

    @property
    def name(self) -> str: ...
    @property
    def subject(self) -> str: ...
    @property
    def version(self) -> int: ...


class Written(Protocol):
    """A schema as its registry has it."""

    @property
    def text(self) -> str: ...
    @property
    def references(self) -> Sequence[Reference]: ...


Referred = Callable[[Any], Written]  # of a Reference, as it was given


def parse(text: str, references: Sequence[Reference] = (), referred: Referred | None = None) -> Schema:
    """Return the schema of this text; `referred` gives what a reference stands for.

    Raises: InvalidRequestError: it is no Avro schema, or one that cannot be columns.
    """
    try:
        names: dict[str, Schema] = {}
        _refer(names, references, referred, frozenset())
        return _parsed(text, names)
    except _RefusedError as error:
        raise InvalidRequestError(f"Avro schema: {error}") from None


class _RefusedError(ValueError):
    pass


def _refer(
    names: dict[str, Schema],
    references: Sequence[Reference],
    referred: Referred | None,
    around: frozenset[tuple[str, int]],
) -> None:
    for reference in references:
        place = (reference.subject, reference.version)
        shown = f"{reference.subject} version {reference.version}"
        if place in around:
            raise _RefusedError(f"{shown} refers to itself")
        if reference.name in names:
            continue
        if referred is None or len(around) >= DEPTH_MAX:
            raise _RefusedError(f"{shown}, which it refers to, is not known")
        found = referred(reference)
        _refer(names, found.references, referred, around | {place})
        _parsed(found.text, names)
        if reference.name not in names:
            raise _RefusedError(f"{shown} does not define {reference.name!r}, for which it is referred to")


def _parsed(text: str, names: dict[str, Schema]) -> Schema:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        shown = "nested too deeply" if isinstance(error, RecursionError) else error
        raise _RefusedError(f"no JSON: {shown}") from None
    return _Parser(names).schema(document, "", 0)


class _Parser:
    """Schemas of one text; `names` holds the types that are complete, `_open` those around."""

    def __init__(self, names: dict[str, Schema]) -> None:
        self._names = names
        self._open: list[str] = []

    def schema(self, document: Any, namespace: str, depth: int) -> Schema:
        if depth > DEPTH_MAX:
            raise _RefusedError(f"types are nested deeper than {DEPTH_MAX}")
        if isinstance(document, str):
            found = self._by_name(document, namespace)
        elif isinstance(document, list):
            found = self._union(document, namespace, depth)
        elif isinstance(document, dict):
            found = self._object(document, namespace, depth)
        else:
            raise _RefusedError(f"{_shown(document)} is no type")
        if found.nodes > NODES_MAX:
            raise _RefusedError(f"more than {NODES_MAX:,} types in one")
        return found

    def _by_name(self, word: str, namespace: str) -> Schema:
        if word in PRIMITIVES:
            return Schema(word)
        for name in (f"{namespace}.{word}" if namespace and "." not in word else word, word):
            if name in self._open:
                raise _RefusedError(f"{name} contains itself: columns cannot hold such a type")
            if name in self._names:
                return self._names[name]
        raise _RefusedError(f"{word!r} is no type of Avro, and none that is defined before")

    def _union(self, branches: list[Any], namespace: str, depth: int) -> Schema:
        found = tuple(self.schema(branch, namespace, depth + 1) for branch in branches)
        names = [branch.name or branch.kind for branch in found]
        if "union" in names:
            raise _RefusedError("a union within a union")
        if len(set(names)) < len(names) or not names:
            raise _RefusedError(f"a union of {', '.join(names) or 'nothing'}: each type once, and one at least")
        return Schema("union", items=found)

    def _object(self, document: dict[str, Any], namespace: str, depth: int) -> Schema:
        kind = document.get("type")
        if isinstance(kind, dict | list):
            return self.schema(kind, namespace, depth + 1)
        if kind == "error":
            kind = "record"
        if kind in NAMED:
            return self._named(kind, document, namespace, depth)
        if kind == "array" or kind == "map":  # noqa: PLR1714 - `kind` may be anything
            member = "items" if kind == "array" else "values"
            if member not in document:
                raise _RefusedError(f"{kind} without {member!r}")
            return Schema(kind, items=(self.schema(document[member], namespace, depth + 1),))
        if not isinstance(kind, str):
            raise _RefusedError(f"{_shown(document)} has no 'type'")
        if kind not in PRIMITIVES:
            return self._by_name(kind, namespace)
        return _with_logical(Schema(kind), document)

    def _named(self, kind: str, document: Mapping[str, Any], namespace: str, depth: int) -> Schema:
        name = _full_name(document.get("name"), document.get("namespace", namespace))
        if name in self._names or name in self._open or name in PRIMITIVES:
            raise _RefusedError(f"{name} is defined twice")
        namespace = name.rpartition(".")[0]
        aliases = tuple(_full_name(alias, namespace) for alias in _list(document.get("aliases", []), "aliases"))
        if kind == "fixed":
            size = document.get("size")
            if type(size) is not int or not 0 <= size < 1 << 31:
                raise _RefusedError(f"fixed {name}: 'size' is {_shown(size)}")
            found = _with_logical(Schema(kind, name, aliases, size=size), document)
        elif kind == "enum":
            found = _enum(name, aliases, document)
        else:
            self._open.append(name)
            fields = tuple(
                self._field(each, name, namespace, depth) for each in _list(document.get("fields"), f"{name}: 'fields'")
            )
            self._open.pop()
            if twice := _twice([f.name for f in fields]):
                raise _RefusedError(f"record {name}: field {twice!r} is defined twice")
            found = Schema(kind, name, aliases, fields=fields)
        self._names[name] = found
        return found

    def _field(self, document: Any, record: str, namespace: str, depth: int) -> Field:
        if not isinstance(document, dict) or "type" not in document:
            raise _RefusedError(f"record {record}: {_shown(document)} is no field")
        name = _simple_name(document.get("name"))
        try:
            found = self.schema(document["type"], namespace, depth + 1)
        except _RefusedError as error:
            raise _RefusedError(f"{name}: {error}") from None
        aliases = tuple(map(_simple_name, _list(document.get("aliases", []), f"{name}: aliases")))
        return Field(name, found, document.get("default", MISSING), aliases)


def _enum(name: str, aliases: tuple[str, ...], document: Mapping[str, Any]) -> Schema:
    symbols = tuple(map(_simple_name, _list(document.get("symbols"), f"enum {name}: 'symbols'")))
    default = document.get("default")
    if twice := _twice(symbols):
        raise _RefusedError(f"enum {name}: symbol {twice!r} is there twice")
    if default is not None and default not in symbols:
        raise _RefusedError(f"enum {name}: the default {_shown(default)} is none of its symbols")
    return Schema("enum", name, aliases, symbols=symbols, default=default)


def _with_logical(schema: Schema, document: Mapping[str, Any]) -> Schema:
    """Return the schema with its logical type, if that is known and right."""
    logical = document.get("logicalType")
    if logical == "decimal":
        return _decimal(schema, document.get("precision"), document.get("scale", 0))
    if isinstance(logical, str) and _LOGICAL.get(logical) == schema.kind:
        return Schema(schema.kind, logical=logical)
    return schema


def _decimal(schema: Schema, precision: Any, scale: Any) -> Schema:
    if schema.kind not in ("bytes", "fixed") or type(precision) is not int or type(scale) is not int:
        return schema
    if not 0 <= scale <= precision or precision < 1:
        return schema
    if schema.kind == "fixed" and 10**precision - 1 >= 1 << max(0, 8 * schema.size - 1):
        return schema
    if precision > DECIMAL_DIGITS_MAX:
        raise _RefusedError(f"decimal({precision},{scale}) has more than {DECIMAL_DIGITS_MAX} digits")
    return Schema(
        schema.kind, schema.name, schema.aliases, "decimal", precision=precision, scale=scale, size=schema.size
    )


def _full_name(name: Any, namespace: Any) -> str:
    if not isinstance(name, str) or not all(map(_NAME.fullmatch, name.split("."))):
        raise _RefusedError(f"{_shown(name)} is no name: letters, digits and _, and no digit first")
    if "." in name or not namespace:
        return name
    if not isinstance(namespace, str) or not all(map(_NAME.fullmatch, namespace.split("."))):
        raise _RefusedError(f"{_shown(namespace)} is no namespace")
    return f"{namespace}.{name}"


def _simple_name(name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _RefusedError(f"{_shown(name)} is no name: letters, digits and _, and no digit first")
    return name


def is_name(text: str) -> bool:
    """Whether Avro allows this name of a field."""
    return _NAME.fullmatch(text) is not None


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise _RefusedError(f"{what} is no list")
    return value


def _twice(names: Sequence[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "..."
