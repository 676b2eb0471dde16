"""Schemas in Spark's DDL, as 'id bigint, at timestamp', to Arrow's fields, without a JVM.

Columns are named as in Spark: bare words, or anything in backticks. NOT NULL is heeded, a COMMENT is passed over.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable

import pyarrow as pa

from logstore.errors import InvalidRequestError

_TOKEN = re.compile(r"\s*(`(?:[^`]|``)*`|'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|\w+|[<>(),:])|\s*(\S)")
_DECIMAL_DEFAULT = (10, 0)
_DECIMAL_DIGITS_MAX = 38

_PLAIN: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ltz": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "string": pa.string(),
    "binary": pa.binary(),
}


_NAMES = {kind: name for name, kind in reversed(_PLAIN.items())}  # of several names the first


def parse(ddl: str) -> tuple[pa.Field, ...]:
    """Return the fields of a schema. Raises: InvalidRequestError: it is not one, or has a type that JSON has not."""
    try:
        reader = _Reader(ddl)
        fields = reader.fields()
        if reader.next:
            raise ValueError(f"{reader.next!r} is not expected")
        counts = Counter(field.name for field in fields)
        if twice := [name for name, count in counts.items() if count > 1]:
            raise ValueError(f"column {twice[0]!r} is there twice")
    except ValueError as error:
        raise InvalidRequestError(
            f"schema {ddl!r}: write columns and types, as 'id bigint, who string' ({error})"
        ) from None
    return fields


def parse_type(ddl: str) -> pa.DataType:
    """Return a type, as `decimal(10,2)`. Raises: InvalidRequestError."""
    (field,) = parse(f"type {ddl}")
    return field.type


def text_of(fields: Iterable[pa.Field]) -> str:
    """Return the text that `parse` makes these fields of. Raises: InvalidRequestError: a type that it has not."""
    return ", ".join(f"{_quoted(f.name)} {type_text(f.type)}{'' if f.nullable else ' NOT NULL'}" for f in fields)


def type_text(kind: pa.DataType) -> str:
    """Return the text that `parse_type` makes this type of. Raises: InvalidRequestError."""
    if (name := _NAMES.get(kind)) is not None:
        return name
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"array<{type_text(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{type_text(kind.key_type)}, {type_text(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{text_of(kind.field(i) for i in range(kind.num_fields))}>"
    raise InvalidRequestError(f"type {kind} is no type of a column: cast it first")


def type_name(kind: pa.DataType) -> str:
    """Return what a message calls this type: its text in DDL, or Arrow's name of a type that DDL has not."""
    try:
        return type_text(kind)
    except InvalidRequestError:
        return str(kind)


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) else f"`{name.replace('`', '``')}`"


def as_fields(columns: object) -> tuple[pa.Field, ...]:
    """Return columns, which are DDL or Arrow's, as fields. Raises: InvalidRequestError: they are none."""
    if isinstance(columns, str):
        return parse(columns)
    found = tuple(columns) if isinstance(columns, Iterable) else (columns,)
    if strange := [each for each in found if not isinstance(each, pa.Field)]:
        raise InvalidRequestError(
            f"schema: write columns as 'id bigint, who string', or give Arrow's, not {strange[0]!r}"
        )
    return found


class _Reader:
    """The text word by word; `next` is the word that comes, "" at the end."""

    def __init__(self, ddl: str) -> None:
        found = list(_TOKEN.finditer(ddl.rstrip()))
        if strange := [match[2] for match in found if match[2]]:
            raise ValueError(f"{strange[0]!r} is not expected")
        self._words = [match[1] for match in found]

    @property
    def next(self) -> str:
        return self._words[0] if self._words else ""

    def fields(self) -> tuple[pa.Field, ...]:
        found = [self._field()]
        while self._skip(","):
            found.append(self._field())
        return tuple(found)

    def _field(self) -> pa.Field:
        name = self._name()
        self._skip(":")
        kind, nullable = self._type(), True
        while self.next.lower() in ("not", "comment"):
            if self._take().lower() == "not":
                self._expect("null")
                nullable = False
            elif self._take()[:1] not in ("'", '"'):
                raise ValueError("COMMENT needs a text in quotes")
        return pa.field(name, kind, nullable)

    def _name(self) -> str:
        word = self._take()
        if word.startswith("`"):
            word = word[1:-1].replace("``", "`")
        elif not word.isidentifier() and not word.replace("_", "a").isalnum():
            raise ValueError(f"{word!r} is no name of a column")
        if not word:
            raise ValueError("a column has no name")
        return word

    def _type(self) -> pa.DataType:
        word = self._take()
        name = word.lower()
        if name in _PLAIN:
            return _PLAIN[name]
        if (read := _NESTED.get(name)) is None:
            raise ValueError(f"{word!r} is no type of a column")
        return read(self)

    def decimal(self) -> pa.DataType:
        digits = [*_DECIMAL_DEFAULT]
        if self._skip("("):
            digits = [self._number(), 0]
            if self._skip(","):
                digits[1] = self._number()
            self._expect(")")
        if not 0 < digits[0] <= _DECIMAL_DIGITS_MAX or not 0 <= digits[1] <= digits[0]:
            raise ValueError(f"decimal({digits[0]},{digits[1]}) is not possible")
        return pa.decimal128(*digits)

    def array(self) -> pa.DataType:
        self._expect("<")
        found = pa.list_(pa.field("element", self._type()))
        self._expect(">")
        return found

    def map(self) -> pa.DataType:
        self._expect("<")
        key = pa.field("key", self._type(), nullable=False)
        self._expect(",")
        found = pa.map_(key, pa.field("value", self._type()))
        self._expect(">")
        return found

    def struct(self) -> pa.DataType:
        self._expect("<")
        found = pa.struct([] if self.next == ">" else self.fields())
        self._expect(">")
        return found

    def _take(self) -> str:
        if not self._words:
            raise ValueError("the text ends too early")
        return self._words.pop(0)

    def _number(self) -> int:
        if not (word := self._take()).isdecimal():
            raise ValueError(f"{word!r} is no number of digits")
        return int(word)

    def _skip(self, word: str) -> bool:
        if self.next != word:
            return False
        self._words.pop(0)
        return True

    def _expect(self, word: str) -> None:
        if (found := self._take()).lower() != word:
            raise ValueError(f"{word!r} is missing before {found!r}")


_NESTED: dict[str, Callable[[_Reader], pa.DataType]] = {
    "decimal": _Reader.decimal,
    "dec": _Reader.decimal,
    "numeric": _Reader.decimal,
    "array": _Reader.array,
    "map": _Reader.map,
    "struct": _Reader.struct,
}
