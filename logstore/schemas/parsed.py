"""Many values as columns: the rows that fit, and the reasons of those that do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa


class Parsed(NamedTuple):
    """The columns of the good rows, the rising numbers of these rows, and the reasons of the bad ones by row."""

    columns: list[pa.Array]
    good: np.ndarray
    reasons: dict[int, str]


def taken(column: pa.Array, rows: np.ndarray) -> pa.Array:
    """Return these rows of a column, which are rising; all of them are not copied."""
    return column if len(rows) == len(column) else column.take(pa.array(rows))


def joined(parts: Sequence[tuple[np.ndarray, Parsed]]) -> Parsed:
    """Return the parts of some values as one: each has the numbers of its rows among all, and what they became."""
    reasons = {int(rows[row]): reason for rows, part in parts for row, reason in part.reasons.items()}
    good = np.concatenate([rows[part.good] for rows, part in parts])
    with_rows = [part for _, part in parts if len(part.good)]
    if len(with_rows) == 1:  # mostly: a few misfits beside many rows
        return Parsed(with_rows[0].columns, good, reasons)
    order = pa.array(np.argsort(good, kind="stable"))
    columns = [
        pa.concat_arrays(pieces).take(order) for pieces in zip(*(part.columns for _, part in parts), strict=True)
    ]
    return Parsed(columns, np.sort(good), reasons)


def as_map(kind: pa.DataType, valid: pa.Buffer | None, counts: np.ndarray, keys: pa.Array, items: pa.Array) -> pa.Array:
    """Return the entries, so many a row, as an array of maps; a key that a map has twice stays, with its last value."""
    codes, row_of = keys.dictionary_encode(), np.repeat(np.arange(len(counts)), counts)
    entries = row_of * max(len(codes.dictionary), 1) + codes.indices.to_numpy()
    order = np.sort(entries)
    if (order[1:] == order[:-1]).any():
        _, first = np.unique(entries, return_index=True)
        _, from_end = np.unique(entries[::-1], return_index=True)
        kept = np.argsort(first)
        keys, items = keys.take(pa.array(first[kept])), items.take(pa.array(len(entries) - 1 - from_end[kept]))
        counts = np.bincount(row_of[first], minlength=len(counts))
    offsets = pa.py_buffer(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))
    pairs = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
    return pa.Array.from_buffers(kind, len(counts), [valid, offsets], children=[pairs])


def are_utf8(values: pa.Array) -> np.ndarray:
    """Return whether each of these values (binary) is text; null is."""
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return np.array([_is_utf8(value) for value in values.to_pylist()], np.bool_)  # only where one of them is not
    return np.ones(len(values), np.bool_)


def _is_utf8(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True
