"""A few rows without the kernels: to load these takes longer than all the work of a command that appends one record.

A call with more rows loads the kernels. So does a process that has made many such calls, in another thread.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from logstore.records.addresses import Encoded, Rows
from logstore.records.batch import HEADER_BYTES
from logstore.records.varints import sized, varint

FEW = 4096  # rows of a call
MANY = 10_000  # rows of a process
KERNELS = "logstore.records.kernels"

_lock = threading.Lock()
_left = [MANY]


def kernels_for(rows: int) -> Any:
    """Return the kernels; None: they are not loaded, and so few rows are done without them."""
    found = sys.modules.get(KERNELS)
    if found is not None and hasattr(found, "__all__"):  # else another thread loads them
        return found
    if rows > FEW:
        return import_module(KERNELS)
    with _lock:
        before, _left[0] = _left[0], _left[0] - rows
        if before > 0 >= _left[0]:
            threading.Thread(target=import_module, args=(KERNELS,)).start()
    return None


def encode(rows: Rows, first: int, end: int, to: int, limit: int) -> Encoded:
    """Do what `kernels.encode` does."""
    size, i = 0, first
    base = newest = 0
    order = _numbers(rows.order, end)
    while i < end:
        row = order[i] if order else i
        (timestamp,) = _numbers(rows.timestamps + 8 * row, 1)
        if i == first:
            base = newest = timestamp
        body = b"".join((b"\x00", varint(_wrapped(timestamp - base)), varint(i - first), *_fields(rows, row)))
        record = varint(len(body)) + body
        needed = size + HEADER_BYTES + len(record)
        if needed > limit:
            if i == first:
                return Encoded(i, 0, 0, 0, needed)
            break
        ctypes.memmove(to + size, record, len(record))
        newest = max(newest, timestamp)
        size += len(record)
        i += 1
    return Encoded(i, size, base, newest, 0)


def _fields(rows: Rows, row: int) -> Iterator[bytes]:
    """Key, value and headers of a record."""
    yield sized(_cell(rows.key, rows.key_sizes, row))
    yield sized(_cell(rows.value, rows.value_sizes, row))
    if not rows.headers:
        yield varint(0)
        return
    (begin,), (count,) = _numbers(rows.headers + 8 * row, 1), _numbers(rows.header_counts + 8 * row, 1)
    yield varint(count)
    for i in range(begin, begin + count):
        yield sized(_cell(rows.header_key, rows.header_key_sizes, i))
        yield sized(_cell(rows.header_value, rows.header_value_sizes, i))


def cells(addresses: int, sizes: int, rows: int) -> Iterator[bytes | None]:
    """Yield the bytes of each row; None where it is null. The addresses are those of two int64 arrays, 0: no column."""
    for row in range(rows):
        yield _cell(addresses, sizes, row)


def _cell(addresses: int, sizes: int, row: int) -> bytes | None:
    if not sizes:
        return None
    (size,) = _numbers(sizes + 8 * row, 1)
    if size <= 0:
        return None if size < 0 else b""
    (address,) = _numbers(addresses + 8 * row, 1)
    return ctypes.string_at(address, size)


def _wrapped(number: int) -> int:
    """Return the number as compiled code has it after an overflow of 64 bits."""
    return (number + 2**63) % 2**64 - 2**63


def _numbers(address: int, count: int) -> Any:
    """Return so many int64 that lie there; nothing at address 0."""
    return (ctypes.c_int64 * count).from_address(address) if address else ()
