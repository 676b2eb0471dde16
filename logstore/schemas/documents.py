"""JSON documents to typed columns, many at once; a row with a field that does not fit its type is bad, with a reason.

`flat` reads what is written as most is, where no column is nested. The rest goes to Arrow's parser. It takes blocks of
documents, a line each, and gives up a block for one bad document. `conversion` has the rule, and the reasons: it takes
what the parser refuses, and what the parser reads otherwise. That is

* a value that is not one pair of braces: Arrow takes two documents on a line for two, and an empty line for none;
* NaN and Infinity, numbers that become infinite, and years that Python has not;
* brackets too deep and numbers too long for Python, where nobody declared them.

`nested` has the rest that Arrow does not take: maps, and binary and NOT NULL inside of something.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logstore.records.columns import bits, cells
from logstore.schemas import flat
from logstore.schemas.conversion import parse_each
from logstore.schemas.members import members
from logstore.schemas.nested import read_members
from logstore.schemas.parsed import Parsed, joined, taken

_NONE, _ANY = -1, -2  # in place of the number of a row
BLOCK_ROWS = 4096
BLOCK_BYTES = 16 * 1024 * 1024
_SPACES = frozenset(" \t\n\r")
FEW = 64  # documents that are sooner read one after the other
_LITTLE_BYTES = 1024 * 1024  # of theirs: an object of Python for each part takes 25 times as much, or more
_ROW = re.compile(r"in row (\d+)$")
_FIRST_DAY, _LAST_DAY = ((day - date(1970, 1, 1)).days for day in (date.min, date.max))
_PLAIN = 1  # as the kernels have it, without loading them


def parse(values: pa.Array, fields: Sequence[pa.Field]) -> Parsed:
    """Return the values (binary, JSON objects) as columns of these fields."""
    if _is_little(values) or not flat.is_flat(fields):
        return _parse(values, fields)
    columns, is_read = flat.read(values, fields)
    rows, others = np.flatnonzero(is_read), np.flatnonzero(~is_read)
    if not others.size:
        return Parsed(columns, rows, {})
    found = Parsed(columns, np.arange(len(rows)), {})
    return joined([(rows, found), (others, _parse(taken(values, others), fields))])


def _parse(values: pa.Array, fields: Sequence[pa.Field]) -> Parsed:
    """The same of documents that may be written in any way, and of columns of any type."""
    if _is_little(values):
        return parse_each(values, fields)
    is_plain = _looks(values, fields) & _PLAIN != 0
    lines = _Lines(values if is_plain.all() else values.filter(pa.array(is_plain)), fields)
    lines.read_all()
    rows = np.flatnonzero(is_plain)
    refused = np.sort(np.concatenate([np.flatnonzero(~is_plain), rows[lines.refused]]))
    read = np.delete(rows, lines.refused)
    found = Parsed(lines.columns(), np.arange(len(read)), {})
    if not refused.size:
        return found._replace(good=read)
    return joined([(read, found), (refused, parse_each(taken(values, refused), fields))])


def _is_little(values: pa.Array) -> bool:
    return len(values) <= FEW and values.nbytes <= _LITTLE_BYTES


def undeclared(values: pa.Array, fields: Sequence[pa.Field]) -> pa.Array:
    """Return the members of each object (JSON objects, with their texts as they came) that are not among these fields.

    Null where there are none, and where a value is no object.
    """
    found: list[str | None] = [None] * len(values)
    for row in _may_have_more(values, fields):
        found[row] = _more(values[row].as_py(), {f.name for f in fields})
    return pa.array(found, pa.string())


def _may_have_more(values: pa.Array, fields: Sequence[pa.Field]) -> Sequence[int]:
    if _is_little(values):
        return range(len(values))
    from logstore.records import kernels

    return np.flatnonzero(_looks(values, fields) != kernels.PLAIN).tolist()


def _more(value: bytes | None, names: Collection[str]) -> str | None:
    try:
        members = scan_members((value or b"").decode())
    except (ValueError, RecursionError):
        return None  # a misfit, which `parse` has a reason for
    more = [f"{_quoted(name)}:{member}" for name, member in members.items() if name not in names]
    return "{" + ",".join(more) + "}" if more else None


def _quoted(name: str) -> str:
    quoted = json.dumps(name, ensure_ascii=False)
    return quoted if quoted.isascii() or _is_utf8(quoted) else json.dumps(name)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False  # half of a pair, which JSON can escape
    return True


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

    found, texts, declared = np.zeros(len(values), np.uint8), cells(values, "value"), members(fields)
    kernels.plain_objects(*texts.pointers(), len(values), declared.numbers, found.ctypes.data)
    return found


class _Lines:
    """Plain values, and the columns of those that Arrow has read; the numbers of the others are `refused`."""

    def __init__(self, values: pa.Array, fields: Sequence[pa.Field]) -> None:
        self.refused: list[int] = []
        self._values, self._fields = values, fields
        self._cut = [f for f in fields if not (_is_parsed(f.type) or pa.types.is_binary(f.type))]
        self._found: list[list[pa.Array]] = []

    def columns(self) -> list[pa.Array]:
        """Return the columns, a row for each value that is not refused."""
        pieces = self._found or [[pa.array([], f.type) for f in self._fields]]
        return pieces[0] if len(pieces) == 1 else [pa.concat_arrays(parts) for parts in zip(*pieces, strict=True)]

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
            bad = self._block(start, stop, self._cut)
            if bad == _ANY:  # Arrow does not name the row of a value that does not fit: is it in a nested one?
                nested = [f for f in self._fields if pa.types.is_nested(f.type)]
                bad = self._block(start, stop, nested) if len(nested) > len(self._cut) else bad
            if bad == _NONE:
                return
            if stop - start == 1 or _is_little(self._values.slice(start, stop - start)):
                self.refused += range(start, stop)
                return
            middle = (start + stop) // 2 if bad == _ANY else start + bad
            self._read(start, middle)
            if bad != _ANY:
                self.refused.append(middle)
                middle += 1
            start = middle

    def _block(self, start: int, stop: int, cut: Sequence[pa.Field]) -> int:
        """Read the columns, these fields by cutting them out; return _NONE.

        Else nothing is kept: return the number of the row in this block that Arrow refused, or _ANY, if it says none.
        """
        rows = self._values.slice(start, stop - start)
        whole = [f for f in self._fields if f not in cut]
        try:
            rows.cast(pa.string())  # Arrow's parser takes any bytes in a string
            table = _table(rows, whole)
        except (pa.ArrowException, UnicodeError) as error:
            row = _ROW.search(str(error))
            return int(row[1]) if row else _ANY
        assert table.num_rows == stop - start, "plain values are one document each"
        found: dict[str, Any] = {f.name: _typed(column, f) for column, f in zip(table.columns, whole, strict=True)}
        if any(column is None for column in found.values()):
            return _ANY
        is_bad = np.zeros(len(rows), np.bool_)
        for f, (column, is_one_bad) in zip(cut, read_members(rows, cut, parse) if cut else (), strict=True):
            found[f.name] = column
            is_bad |= is_one_bad
        columns = [found[f.name] for f in self._fields]
        if is_bad.any():
            self.refused += (start + np.flatnonzero(is_bad)).tolist()
            columns = [column.filter(pa.array(~is_bad)) for column in columns]
        self._found.append(columns)
        return _NONE


def _table(rows: pa.Array, fields: Sequence[pa.Field]) -> pa.Table:
    """Return these columns of documents. Raises: pa.ArrowException: one of them is none, or does not fit."""
    import pyarrow.json as pj

    data = _joined(rows)
    return pj.read_json(
        pa.BufferReader(data),
        read_options=pj.ReadOptions(use_threads=False, block_size=data.size + 1),
        parse_options=pj.ParseOptions(
            explicit_schema=pa.schema([_line_field(f) for f in fields]), unexpected_field_behavior="ignore"
        ),
    ).combine_chunks()


def _joined(rows: pa.Array) -> pa.Buffer:
    everything = pa.ListArray.from_arrays(pa.array([0, len(rows)], pa.int32()), rows)
    return pc.binary_join(everything, b"\n")[0].as_buffer()


def _is_parsed(kind: pa.DataType) -> bool:
    """Whether Arrow's parser takes this type, or one that casts to it."""
    if pa.types.is_map(kind) or pa.types.is_binary(kind):
        return False
    parts = [kind.field(i) for i in range(kind.num_fields)]
    if pa.types.is_struct(kind) and not parts:
        return False
    return all(part.nullable and _is_parsed(part.type) for part in parts)


def _line_field(f: pa.Field) -> pa.Field:
    """Return the field as Arrow's parser takes it, to which dates are numbers, and which forgives zones."""
    kind = f.type
    if pa.types.is_binary(kind) or pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is None):
        return f.with_type(pa.string())
    if pa.types.is_list(kind):
        return f.with_type(pa.list_(_line_field(kind.value_field)))
    if pa.types.is_struct(kind):
        return f.with_type(pa.struct([_line_field(kind.field(i)) for i in range(kind.num_fields)]))
    return f


def _typed(column: pa.ChunkedArray, f: pa.Field) -> pa.Array | None:
    """Return what was parsed in its declared type; None: something does not fit, or Python would read it otherwise."""
    [array] = column.chunks or [pa.array([], column.type)]
    if pa.types.is_binary(f.type):
        return _from_base64(array)
    try:
        found = array.cast(f.type)
    except pa.ArrowException:
        return None
    if not pa.types.is_nested(f.type):
        return found  # the kernel has looked at the values
    return found if all(map(_is_pythons, _leaves(found))) else None


def _from_base64(texts: pa.Array) -> pa.Array | None:
    from logstore.records.kernels import json_members as kernel

    found = cells(texts, "value")
    offsets = np.zeros(len(texts) + 1, np.int32)
    data = np.empty(int(np.maximum(found.sizes, 0).sum()) // 4 * 3 + 3, np.uint8)
    if kernel.decode_base64(*found.pointers(), len(texts), offsets.ctypes.data, data.ctypes.data):
        return None
    validity = bits(found.sizes >= 0) if texts.null_count else None
    return pa.Array.from_buffers(pa.binary(), len(texts), [validity, pa.py_buffer(offsets), pa.py_buffer(data)])


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
        days = pc.min_max(leaf.cast(pa.date32()).cast(pa.int32()))
        return days["min"].as_py() is None or _FIRST_DAY <= days["min"].as_py() <= days["max"].as_py() <= _LAST_DAY
    return True
