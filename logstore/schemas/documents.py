"""JSON documents to typed columns, many at once; a row with a field that does not fit its type is bad, with a reason.

Arrow's parser takes blocks of documents, a line each, and gives up a block for one bad document. `conversion` has the
rule, and the reasons: it takes what the parser refuses, and what the parser reads otherwise. That is

* a value that is not one pair of braces: Arrow takes two documents on a line for two, and an empty line for none;
* NaN and Infinity, numbers that become infinite, and years before 1, which Python has not;
* brackets too deep and numbers too long for Python, where nobody declared them;
* schemas with maps, with binary, which is base64 here, and with NOT NULL inside a struct.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logstore.records.columns import cells
from logstore.schemas.conversion import parse_each
from logstore.schemas.parsed import Parsed, joined

BLOCK_ROWS = 4096
BLOCK_BYTES = 16 * 1024 * 1024
_SPACES = frozenset(" \t\n\r")
FEW = 64  # documents that are sooner read one after the other
_DEPTH_MAX = 64
_DIGITS_MAX = 4000  # Python refuses an integer of 4,300
_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}  # of an integer, by its bits
_ROW = re.compile(r"in row (\d+)$")
_FIRST_DAY = (date.min - date(1970, 1, 1)).days


def parse(values: pa.Array, fields: Sequence[pa.Field]) -> Parsed:
    """Return the values (binary, JSON objects) as columns of these fields."""
    if len(values) <= FEW or not all(_is_parsed(f.type) for f in fields):
        return parse_each(values, fields)
    is_plain = plain(values, fields)
    lines = _Lines(values if is_plain.all() else values.filter(pa.array(is_plain)), fields)
    lines.read_all()
    rows = np.flatnonzero(is_plain)
    refused = np.sort(np.concatenate([np.flatnonzero(~is_plain), rows[lines.refused]]))
    read = np.delete(rows, lines.refused)
    found = Parsed(lines.columns(), np.arange(len(read)), {})
    if not refused.size:
        return found._replace(good=read)
    return joined([(read, found), (refused, parse_each(values.take(pa.array(refused)), fields))])


def plain(values: pa.Array, fields: Sequence[pa.Field]) -> np.ndarray:
    """Return whether each value looks like one JSON object that Arrow reads as Python does, if it reads it."""
    from logstore.records import kernels

    return np.asarray(_looks(values, fields) & kernels.PLAIN, np.bool_)


def undeclared(values: pa.Array, fields: Sequence[pa.Field]) -> pa.Array:
    """Return the members of each object (JSON objects, with their texts as they came) that are not among these fields.

    Null where there are none, and where a value is no object.
    """
    found: list[str | None] = [None] * len(values)
    for row in _may_have_more(values, fields):
        found[row] = _more(values[row].as_py(), {f.name for f in fields})
    return pa.array(found, pa.string())


def _may_have_more(values: pa.Array, fields: Sequence[pa.Field]) -> Sequence[int]:
    if len(values) <= FEW:
        return range(len(values))
    from logstore.records import kernels

    return np.flatnonzero(_looks(values, fields) != kernels.PLAIN).tolist()


def _more(value: bytes | None, names: Collection[str]) -> str | None:
    try:
        members = scan_members((value or b"").decode())
    except (ValueError, RecursionError):
        return None  # a misfit, which `parse` has a reason for
    more = [f"{json.dumps(name, ensure_ascii=False)}:{member}" for name, member in members.items() if name not in names]
    return "{" + ",".join(more) + "}" if more else None


def scan_members(text: str) -> dict[str, str]:
    """Return the texts of an object's members; of several of one name it is the last one. Raises: ValueError."""
    members: dict[str, str] = {}
    at = _space_end(text, 0)
    if text[at : at + 1] != "{":
        return members
    at = _space_end(text, at + 1)
    while text[at : at + 1] == '"':
        name, at = _scan(text, at)
        start = _space_end(text, _space_end(text, at) + 1)
        _, end = _scan(text, start)
        members[name] = text[start:end]
        at = _space_end(text, _space_end(text, end) + 1)
    return members


_scan = json.JSONDecoder().raw_decode


def _space_end(text: str, at: int) -> int:
    while text[at : at + 1] in _SPACES:
        at += 1
    return at


def _looks(values: pa.Array, fields: Sequence[pa.Field]) -> np.ndarray:
    from logstore.records import kernels

    names = cells(pa.array([f.name for f in fields], pa.string()), "name")
    kinds = np.array([_kinds(f.type) | (kernels.NULL if f.nullable else 0) for f in fields], np.int64)
    digits = np.array([_DIGITS[f.type.bit_width] if pa.types.is_integer(f.type) else 0 for f in fields], np.int64)
    required = np.array([not f.nullable for f in fields], np.int64)
    members = kernels.Members(  # the arrays must outlive it
        *names.pointers(),
        kinds.ctypes.data,
        digits.ctypes.data,
        len(fields),
        required.ctypes.data,
        int(required.sum()),
        _DEPTH_MAX,
        _DIGITS_MAX,
    )
    found, texts = np.zeros(len(values), np.uint8), cells(values, "value")
    kernels.plain_objects(*texts.pointers(), len(values), members, found.ctypes.data)
    return found


def _kinds(kind: pa.DataType) -> int:
    """Return the kinds of JSON that may fit a type."""
    from logstore.records import kernels

    if pa.types.is_temporal(kind):
        return kernels.DAY
    if pa.types.is_decimal(kind):
        return kernels.NUMBER | kernels.TEXT
    if pa.types.is_string(kind):
        return kernels.TEXT
    if pa.types.is_boolean(kind):
        return kernels.BOOLEAN
    if pa.types.is_list(kind):
        return kernels.ARRAY
    return kernels.OBJECT if pa.types.is_struct(kind) else kernels.NUMBER


class _Lines:
    """Plain values, and the columns of those that Arrow has read; the numbers of the others are `refused`."""

    def __init__(self, values: pa.Array, fields: Sequence[pa.Field]) -> None:
        self.refused: list[int] = []
        self._values, self._fields = values, fields
        self._line = pa.schema([_line_field(f) for f in fields])
        self._found: list[list[pa.Array]] = []

    def columns(self) -> list[pa.Array]:
        """Return the columns, a row for each value that is not refused."""
        pieces = self._found or [[pa.array([], f.type) for f in self._fields]]
        return [pa.concat_arrays(parts) for parts in zip(*pieces, strict=True)]

    def read_all(self) -> None:
        start, count = 0, len(self._values)
        while start < count:
            stop = min(count, start + BLOCK_ROWS)
            while stop - start > 1 and self._values.slice(start, stop - start).nbytes > BLOCK_BYTES:
                stop = (start + stop + 1) // 2
            self._read(start, stop)
            start = stop

    def _read(self, start: int, stop: int) -> None:
        while start < stop:
            found, bad = self._block(start, stop)
            if found is not None:
                self._found.append(found)
                return
            if stop - start <= FEW:
                self.refused += range(start, stop)
                return
            # Arrow names the row of a document that it cannot parse, and not that of a value that does not fit.
            middle = (start + stop) // 2 if bad is None else start + bad
            self._read(start, middle)
            if bad is not None:
                self.refused.append(middle)
                middle += 1
            start = middle

    def _block(self, start: int, stop: int) -> tuple[list[pa.Array] | None, int | None]:
        """Return the columns; else None, and the number of the row in this block that Arrow refused, if it says so."""
        import pyarrow.json as pj

        rows = self._values.slice(start, stop - start)
        try:
            rows.cast(pa.string())  # Arrow's parser takes any bytes in a string
            data = _joined(rows)
            table = pj.read_json(
                pa.BufferReader(data),
                read_options=pj.ReadOptions(use_threads=False, block_size=data.size + 1),
                parse_options=pj.ParseOptions(explicit_schema=self._line, unexpected_field_behavior="ignore"),
            ).combine_chunks()
        except (pa.ArrowException, UnicodeError) as error:
            row = _ROW.search(str(error))
            return None, int(row[1]) if row else None
        assert table.num_rows == stop - start, "plain values are one document each"
        columns = [_typed(column, f) for column, f in zip(table.columns, self._fields, strict=True)]
        return (None if any(column is None for column in columns) else columns), None


def _joined(rows: pa.Array) -> pa.Buffer:
    everything = pa.ListArray.from_arrays(pa.array([0, len(rows)], pa.int32()), rows)
    return pc.binary_join(everything, b"\n")[0].as_buffer()


def _is_parsed(kind: pa.DataType) -> bool:
    """Whether Arrow's parser takes this type, or one that casts to it."""
    parts = [kind.field(i) for i in range(kind.num_fields)]
    if pa.types.is_struct(kind):  # one that is missing has no parts, even if these are declared NOT NULL
        return bool(parts) and all(part.nullable and _is_parsed(part.type) for part in parts)
    return not pa.types.is_map(kind) and not pa.types.is_binary(kind) and all(_is_parsed(part.type) for part in parts)


def _line_field(f: pa.Field) -> pa.Field:
    """Return the field as Arrow's parser takes it, to which dates are numbers, and which forgives zones."""
    kind = f.type
    if pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is None):
        return f.with_type(pa.string())
    if pa.types.is_list(kind):
        return f.with_type(pa.list_(_line_field(kind.value_field)))
    if pa.types.is_struct(kind):
        return f.with_type(pa.struct([_line_field(kind.field(i)) for i in range(kind.num_fields)]))
    return f


def _typed(column: pa.ChunkedArray, f: pa.Field) -> pa.Array | None:
    """Return what was parsed in its declared type; None: something does not fit, or Python would read it otherwise."""
    [array] = column.chunks or [pa.array([], column.type)]
    try:
        found = array.cast(f.type)
    except pa.ArrowException:
        return None
    return found if all(map(_is_pythons, _leaves(found))) else None


def _leaves(array: pa.Array) -> Iterator[pa.Array]:
    if pa.types.is_list(array.type):
        yield from _leaves(array.flatten())
    elif pa.types.is_struct(array.type):
        for part in array.flatten():
            yield from _leaves(part)
    else:
        yield array


def _is_pythons(leaf: pa.Array) -> bool:
    if pa.types.is_floating(leaf.type):
        return not pc.any(pc.is_inf(leaf)).as_py()
    if pa.types.is_temporal(leaf.type):
        least = pc.min(leaf.cast(pa.date32()).cast(pa.int32())).as_py()
        return least is None or least >= _FIRST_DAY
    return True
