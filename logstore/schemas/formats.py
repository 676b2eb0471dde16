"""How columns are the bytes of a key or a value: `raw` and `json`; those of Avro are in `avro`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logstore.errors import InvalidConfigError
from logstore.schemas import documents
from logstore.schemas.conversion import is_supported
from logstore.schemas.ddl import type_name
from logstore.schemas.misfits import UnwritableError
from logstore.schemas.parsed import Parsed, are_utf8
from logstore.schemas.rendering import render

RESCUED = "_rescued"
WIRE_HEADER_BYTES = 5  # of values that name their schema: a byte 0, and the id in four bytes


class Format(Protocol):
    """A format, for these columns."""

    @property
    def name(self) -> str:
        """The word of the options."""

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        """The columns, in order."""

    def decode(self, values: pa.Array) -> Parsed:
        """Return the values (binary, none of them null) as these columns; what does not fit has a reason."""

    def encode(self, columns: pa.RecordBatch) -> pa.Array:
        """Return a value (binary) for each row of these columns, which have the types of `fields`.

        Raises: UnwritableError: a row that the format cannot carry.
        """


@dataclass(frozen=True, slots=True)
class RawFormat:
    """One column, in the bytes of Kafka's own serializers: text is UTF-8, numbers are big-endian.

    Raises: InvalidConfigError: it is not one column, or of another type.
    """

    name: ClassVar[str] = "raw"
    fields: tuple[pa.Field, ...]

    def __post_init__(self) -> None:
        if len(self.fields) != 1 or not _is_raw(self.fields[0].type):
            raise InvalidConfigError(
                "format raw is one column of type string, binary, boolean or a number, not "
                f"{', '.join(f'{f.name} {type_name(f.type)}' for f in self.fields) or 'none'}"
            )

    def decode(self, values: pa.Array) -> Parsed:
        """Return the column. A value has the size of its type; text is UTF-8."""
        kind = self.fields[0].type
        if pa.types.is_binary(kind):
            return _all_good(values)
        is_fitting = are_utf8(values) if pa.types.is_string(kind) else _sizes(values) == max(kind.bit_width // 8, 1)
        good = np.flatnonzero(is_fitting)
        fitting = values if len(good) == len(values) else values.filter(pa.array(is_fitting))
        reason = (
            "not UTF-8" if pa.types.is_string(kind) else f"no {type_name(kind)} of {max(kind.bit_width // 8, 1)} bytes"
        )
        reasons = dict.fromkeys(map(int, np.flatnonzero(~is_fitting)), f"{self.fields[0].name}: {reason}")
        return Parsed(
            [fitting.cast(pa.string()) if pa.types.is_string(kind) else _numbers(fitting, kind)], good, reasons
        )

    def encode(self, columns: pa.RecordBatch) -> pa.Array:
        """Return the bytes of the column; null is null. Raises: UnwritableError: a null that is declared NOT NULL."""
        [column], [field] = columns.columns, self.fields
        if column.null_count and not field.nullable:
            row = pc.index(column.is_null(), True).as_py()
            raise UnwritableError(row, f"{field.name}: missing, and declared NOT NULL")
        return column.cast(pa.binary()) if _is_bytes(field.type) else _big_endian(column)


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """The members of one JSON object, as `documents` reads them; an id of a schema before it is passed over.

    A column RESCUED (string) is a JSON object of the members that are not declared, null if there are none.

    Raises: InvalidConfigError: a type that JSON has not.
    """

    name: ClassVar[str] = "json"
    fields: tuple[pa.Field, ...]

    def __post_init__(self) -> None:
        for field in self.fields:
            if not is_supported(field.type):
                raise InvalidConfigError(f"format json has no type {type_name(field.type)}, of column {field.name!r}")
            if field.name == RESCUED and not pa.types.is_string(field.type):
                raise InvalidConfigError(f"column {RESCUED!r} has the members that are not declared: string")

    def decode(self, values: pa.Array) -> Parsed:
        """Return the columns. A missing member is null, an undeclared one is dropped if it is not rescued."""
        values, declared = _without_wire_headers(values), self._declared
        found = documents.parse(values, declared)
        if len(declared) < len(self.fields):
            more = documents.undeclared(values, declared)
            at = [field.name for field in self.fields].index(RESCUED)
            found.columns.insert(at, more.take(pa.array(found.good)) if found.reasons else more)
        return found

    def encode(self, columns: pa.RecordBatch) -> pa.Array:
        """Return an object for each row, without members for nulls, and with those that were rescued."""
        declared = self._declared
        objects = render(columns.select([field.name for field in declared]))
        return (
            objects if len(declared) == len(self.fields) else _with_rescued(objects, columns.column(RESCUED), declared)
        )

    @property
    def _declared(self) -> tuple[pa.Field, ...]:
        return tuple(field for field in self.fields if field.name != RESCUED)


def _with_rescued(objects: pa.Array, rescued: pa.Array, declared: tuple[pa.Field, ...]) -> pa.Array:
    rows = np.flatnonzero(rescued.is_valid().to_numpy(zero_copy_only=False))
    if not rows.size:
        return objects
    texts = rescued.take(pa.array(rows)).cast(pa.binary())
    wrong = documents.parse(texts, ()).reasons
    if wrong:
        row, reason = next(iter(wrong.items()))
        raise UnwritableError(int(rows[row]), f"{RESCUED}: {reason}")
    more = documents.undeclared(texts, declared)
    found = [_merged(*pair) for pair in zip(objects.take(pa.array(rows)).to_pylist(), more.to_pylist(), strict=True)]
    return pc.replace_with_mask(objects, rescued.is_valid(), pa.array(found, pa.binary()))


def _merged(value: bytes, more: str | None) -> bytes:
    if more is None:
        return value
    return value[:-1] + (b"," if len(value) > len("{}") else b"") + more[1:].encode()


def _is_raw(kind: pa.DataType) -> bool:
    types = pa.types
    return any(
        matches(kind) for matches in (types.is_string, types.is_binary, types.is_boolean, types.is_signed_integer)
    ) or (types.is_floating(kind) and kind.bit_width >= 32)


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _all_good(column: pa.Array) -> Parsed:
    return Parsed([column], np.arange(len(column)), {})


def _sizes(values: pa.Array) -> np.ndarray:
    return np.asarray(pc.binary_length(values))


def _numbers(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return big-endian bytes, of the size of this type, as numbers."""
    size = max(kind.bit_width // 8, 1)
    joined = b"".join(values.to_pylist()) if not len(values) else _joined(values)
    letter = "f" if pa.types.is_floating(kind) else "i"
    numbers = np.frombuffer(joined, f">{letter}{size}")
    return pa.array(numbers != 0 if pa.types.is_boolean(kind) else numbers.astype(f"{letter}{size}"), kind)


def _big_endian(column: pa.Array) -> pa.Array:
    size = max(column.type.bit_width // 8, 1)
    letter = "f" if pa.types.is_floating(column.type) else "i"
    numbers = column.fill_null(False if pa.types.is_boolean(column.type) else 0).to_numpy(zero_copy_only=False)
    data = pa.py_buffer(np.ascontiguousarray(numbers.astype(f">{letter}{size}")))
    ends = pa.py_buffer(np.arange(len(column) + 1, dtype=np.int32) * np.int32(size))
    found = pa.Array.from_buffers(pa.binary(), len(column), [None, ends, data])
    return pc.if_else(column.is_valid(), found, None) if column.null_count else found


def _joined(values: pa.Array) -> pa.Buffer:
    everything = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    return pc.binary_join(everything, b"")[0].as_buffer()


def _without_wire_headers(values: pa.Array) -> pa.Array:
    has_header = pc.and_(pc.starts_with(values, b"\0"), pc.greater_equal(pc.binary_length(values), WIRE_HEADER_BYTES))
    if not pc.any(has_header).as_py():
        return values
    return pc.if_else(has_header, pc.binary_replace_slice(values, 0, WIRE_HEADER_BYTES, b""), values)
