"""Columns inside of JSON documents that Arrow's parser does not take: items become documents, and are read.

These are maps, and what is declared NOT NULL inside of something. In any nested column the same way finds the rows that
do not fit, which Arrow does not name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from logstore.records.columns import Cells, bits, cells
from logstore.schemas.members import members
from logstore.schemas.parsed import Parsed, as_map

Parse = Callable[[pa.Array, Sequence[pa.Field]], Parsed]

_ROOM_MAX = (1 << 31) - 1
_MAP = ("key", "value")
_LIST = ("element",)


class Read(NamedTuple):
    """A column with a row for each value, and whether a row is bad: there it has anything."""

    column: pa.Array
    is_bad: np.ndarray


def read_members(values: pa.Array, fields: Sequence[pa.Field], parse: Parse) -> list[Read]:
    """Return the members of these plain objects (binary) of the names of these nested fields, each as a column.

    `parse` reads the documents that are made of them.
    """
    from logstore.records.kernels import json_members as kernel

    rows, texts = len(values), cells(values, "value")
    declared = members(fields)
    addresses, sizes = np.zeros((rows, len(fields)), np.int64), np.empty((rows, len(fields)), np.int64)
    kernel.find_members(*texts.pointers(), rows, declared.numbers, addresses.ctypes.data, sizes.ctypes.data)
    is_hidden = sizes[:, 0] == kernel.HIDDEN
    sizes[is_hidden] = -1
    found = []
    for number, field in enumerate(fields):
        parts = Cells(np.ascontiguousarray(addresses[:, number]), np.ascontiguousarray(sizes[:, number]), values)
        column, is_bad = _read(parts, field.type, parse)
        found.append(Read(column, is_bad | is_hidden))
    return found


def _read(texts: Cells, kind: pa.DataType, parse: Parse) -> Read:
    return _struct(texts, kind, parse) if pa.types.is_struct(kind) else _items(texts, kind, parse)


def _struct(texts: Cells, kind: pa.DataType, parse: Parse) -> Read:
    is_there = texts.sizes >= 0
    parts = [kind.field(i) for i in range(kind.num_fields)]
    found = parse(_bytes(texts).filter(pa.array(is_there)), parts)
    at = np.full(len(is_there), -1)
    at[np.flatnonzero(is_there)[found.good]] = np.arange(len(found.good))
    is_bad = is_there & (at < 0)
    order = pa.array(at, mask=at < 0)
    columns = [column.take(order) for column in found.columns]
    return Read(pa.Array.from_buffers(kind, len(at), [bits(at >= 0)], children=columns), is_bad)


def _items(texts: Cells, kind: pa.DataType, parse: Parse) -> Read:
    """The same of a list or a map."""
    is_map, rows = pa.types.is_map(kind), len(texts.sizes)
    fields = [kind.key_field, kind.item_field] if is_map else [kind.value_field]
    names = _MAP if is_map else _LIST
    cut = _cut(texts, names)
    if cut is None:
        return Read(pa.nulls(rows, kind), np.ones(rows, np.bool_))
    documents, counts = cut
    found = parse(documents, [field.with_name(name) for field, name in zip(fields, names, strict=True)])
    row_of = np.repeat(np.arange(rows), counts)
    is_bad = np.zeros(rows, np.bool_)
    is_bad[row_of[list(found.reasons)]] = True
    columns = found.columns
    if is_bad.any():
        is_kept = pa.array(~is_bad[row_of[found.good]])
        columns = [column.filter(is_kept) for column in columns]
        counts = np.where(is_bad, 0, counts)
    valid = bits(texts.sizes >= 0)
    if is_map:
        return Read(as_map(kind, valid, counts, *columns), is_bad)
    offsets = pa.py_buffer(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))
    return Read(pa.Array.from_buffers(kind, rows, [valid, offsets], children=columns), is_bad)


def _cut(texts: Cells, names: Sequence[str]) -> tuple[pa.Array, np.ndarray] | None:
    """Return the items of all texts as documents with members of these names, and how many each has; None: too long."""
    from logstore.records.kernels import json_members as kernel

    begin, middle = (np.frombuffer(text.encode(), np.uint8) for text in (f'{{"{names[0]}":', f',"{names[-1]}":'))
    counts = np.empty(len(texts.sizes), np.int64)
    pieces = kernel.Pieces(
        *texts.pointers(),
        len(counts),
        int(len(names) > 1),
        begin.ctypes.data,
        len(begin),
        middle.ctypes.data,
        len(middle),
        counts.ctypes.data,
        0,
        0,
    )
    cut = kernel.cut_items(pieces)
    if cut.size > _ROOM_MAX:
        return None
    offsets, data = np.zeros(cut.items + 1, np.int32), np.empty(max(cut.size, 1), np.uint8)
    kernel.cut_items(pieces._replace(offsets=offsets.ctypes.data, data=data.ctypes.data))
    found = pa.Array.from_buffers(pa.binary(), cut.items, [None, pa.py_buffer(offsets), pa.py_buffer(data)], 0)
    return found, counts


def _bytes(texts: Cells) -> pa.Array:
    """Return the texts as an array, copied; one of size -1 is empty."""
    from logstore.records.kernels import json_members as kernel

    offsets = np.concatenate(([0], np.cumsum(np.maximum(texts.sizes, 0)))).astype(np.int32)
    data = np.empty(max(int(offsets[-1]), 1), np.uint8)
    kernel.join(*texts.pointers(), len(texts.sizes), data.ctypes.data)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(texts.sizes), buffers, 0)
