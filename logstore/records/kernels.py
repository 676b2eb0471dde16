"""The numba kernels: batches to columns, columns to batches, CRC-32C, key hashes. Import it where it is used.

Kernels take plain addresses and sizes (int64) and return plain numbers: no array is boxed, a call costs about a
microsecond, and the GIL is free while they run. Python callers keep the memory alive. What `decode` reads may be
anything: every length is checked against the end of its section before it is used, sums cannot overflow because
sections are shorter than 2 GiB, and errors come back as an index into `REASONS`.

Signatures are explicit, so importing compiles, or loads what an earlier import compiled. The compiled code is kept
beside this file, or in the user's cache directory, or, where neither may be written, in a private directory under
the system's temporary directory. Processes that compile at once do the work twice and keep one result.
"""

from __future__ import annotations

import os
import platform
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import llvmlite.binding
import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from logstore.records.batch import HEADER_BYTES, LENGTH_END, MAGIC, RECORD_BYTES_MIN

F = TypeVar("F", bound=Callable[..., Any])
_I64 = types.int64


def _private_directory() -> str | None:
    """A directory of this user alone under the temporary directory, or None: its files are executed."""
    path = Path(tempfile.gettempdir()) / f"pylog-numba-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError:
        return None
    mine = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
    return str(path) if mine and os.access(path, os.W_OK) else None


def _cache_options() -> dict[str, Any]:
    """What makes `njit` cache without raising here; points numba at a directory of ours if its own are closed."""
    try:
        numba.njit(cache=True)(_private_directory)  # looks for a place, compiles nothing
    except RuntimeError:
        if (directory := _private_directory()) is None:
            return {"cache": False}
        numba.config.CACHE_DIR = directory
    return {"cache": True}


_CACHE_DIR = numba.config.CACHE_DIR
_OPTIONS = {"nogil": True, "error_model": "numpy", "boundscheck": False, **_cache_options()}


def _kernel(signature: Any) -> Callable[[F], F]:
    """Compile (or load) now."""
    return numba.njit(signature, **_OPTIONS)  # type: ignore[no-any-return]


def _inner(function: F) -> F:
    """Compile as part of the kernels that call it."""
    return numba.njit(function, nogil=True, error_model="numpy", boundscheck=False)  # type: ignore[no-any-return]


def warm_up() -> None:
    """Return when all kernels are ready in this process and cached for others: importing did the work."""


# --- memory -------------------------------------------------------------------------------------------------------


def _pointer(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def _load(bits: int, *, swap: bool = False, signed: bool = False) -> Any:
    """An intrinsic: the integer of `bits` at an address, of any alignment, as int64."""

    @intrinsic
    def load(context: Any, address: Any) -> Any:
        def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            kind = ir.IntType(bits)
            number = builder.load(_pointer(builder, args[0], kind), align=1)
            if swap:
                number = builder.bswap(number)
            if bits == 64:
                return number
            return (builder.sext if signed else builder.zext)(number, ir.IntType(64))

        return _I64(_I64), code

    return load


def _store(bits: int) -> Any:
    """An intrinsic: write the low `bits` of an int64 at an address of any alignment."""

    @intrinsic
    def store(context: Any, address: Any, number: Any) -> Any:
        def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            kind = ir.IntType(bits)
            low = args[1] if bits == 64 else builder.trunc(args[1], kind)
            builder.store(low, _pointer(builder, args[0], kind), align=1)
            return context.get_dummy_value()

        return types.void(_I64, _I64), code

    return store


_u8 = _load(8)
_u32 = _load(32)
_i64 = _load(64)
_be16 = _load(16, swap=True, signed=True)
_be32 = _load(32, swap=True, signed=True)
_be64 = _load(64, swap=True)
_put8 = _store(8)
_put32 = _store(32)
_put64 = _store(64)


@intrinsic
def _memcpy(context: Any, to: Any, source: Any, size: Any) -> Any:
    def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        byte = ir.IntType(8)
        pointer = byte.as_pointer()
        function = builder.module.declare_intrinsic("llvm.memcpy", [pointer, pointer, ir.IntType(64)])
        to, source = (_pointer(builder, address, byte) for address in args[:2])
        builder.call(function, [to, source, args[2], ir.IntType(1)(0)])
        return context.get_dummy_value()

    return types.void(_I64, _I64, _I64), code


# --- CRC-32C ------------------------------------------------------------------------------------------------------

_POLYNOMIAL = 0x82F63B78  # reflected
# Three lanes hide the latency of the CPU's instruction; their results are joined by shifting through zeros.
_LONG, _SHORT = 2048, 128


def _byte_table() -> Any:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1).astype(np.uint32)
    return table


def _slicing_tables(table: Any) -> Any:
    """Eight tables: the CRC of a byte followed by 0 to 7 zero bytes."""
    tables = [table]
    for _ in range(7):
        tables.append((tables[-1] >> 8) ^ table[tables[-1] & 0xFF])
    return np.concatenate(tables)


def _shift_tables(table: Any, zeros: int) -> Any:
    """Four tables: each byte of a CRC carried through `zeros` zero bytes."""
    shifted = np.concatenate([np.arange(256, dtype=np.uint32) << np.uint32(8 * i) for i in range(4)])
    for _ in range(zeros):
        shifted = (shifted >> 8) ^ table[shifted & 0xFF]
    return shifted


_TABLE = _byte_table()
_SLICES = _slicing_tables(_TABLE)
_LONG_SHIFT = _shift_tables(_TABLE, _LONG)
_SHORT_SHIFT = _shift_tables(_TABLE, _SHORT)


def _crc_instruction() -> tuple[str, int] | None:
    """The LLVM name of this CPU's CRC-32C step and the width of its state, unless numba was told another CPU."""
    if numba.config.CPU_NAME or numba.config.CPU_FEATURES:
        return None
    features = llvmlite.binding.get_host_cpu_features()
    if features.get("sse4.2"):
        return "llvm.x86.sse42.crc32.64.64", 64
    if features.get("crc") and platform.machine() in ("aarch64", "arm64"):
        return "llvm.aarch64.crc32cx", 32
    return None


_INSTRUCTION = _crc_instruction()


@intrinsic
def _hardware_step(context: Any, crc: Any, word: Any) -> Any:
    """Eight bytes further by the CPU's instruction."""

    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        assert _INSTRUCTION is not None
        name, bits = _INSTRUCTION
        state = ir.IntType(bits)
        kind = ir.FunctionType(state, [state, ir.IntType(64)])
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        crc = args[0] if bits == 64 else builder.trunc(args[0], state)
        result = builder.call(function, [crc, args[1]])
        return result if bits == 64 else builder.zext(result, ir.IntType(64))

    return _I64(_I64, _I64), code


@_inner
def _table_step(crc: int, word: int) -> int:
    """Eight bytes further by table look-ups."""
    word ^= crc
    crc = 0
    for i in range(8):
        crc ^= np.int64(_SLICES[(7 - i) * 256 + ((word >> (8 * i)) & 0xFF)])
    return crc


_step = _hardware_step if _INSTRUCTION else _table_step


@_inner
def _shift(tables: Any, crc: int) -> int:
    return (
        np.int64(tables[crc & 0xFF])
        ^ np.int64(tables[256 + ((crc >> 8) & 0xFF)])
        ^ np.int64(tables[512 + ((crc >> 16) & 0xFF)])
        ^ np.int64(tables[768 + ((crc >> 24) & 0xFF)])
    )


@_inner
def _lanes(tables: Any, lane: int, crc: int, at: int) -> int:
    """The CRC after the 3 * `lane` bytes at `at`."""
    second = third = np.int64(0)
    for word in range(at, at + lane, 8):
        crc = _step(crc, _i64(word))
        second = _step(second, _i64(word + lane))
        third = _step(third, _i64(word + 2 * lane))
    return _shift(tables, _shift(tables, crc) ^ second) ^ third


@_inner
def _crc(at: int, size: int) -> int:
    end = at + size
    crc = np.int64(0xFFFFFFFF)
    while end - at >= 3 * _LONG:
        crc = _lanes(_LONG_SHIFT, _LONG, crc, at)
        at += 3 * _LONG
    while end - at >= 3 * _SHORT:
        crc = _lanes(_SHORT_SHIFT, _SHORT, crc, at)
        at += 3 * _SHORT
    while end - at >= 8:
        crc = _step(crc, _i64(at))
        at += 8
    while at < end:
        crc = (crc >> 8) ^ np.int64(_TABLE[(crc ^ _u8(at)) & 0xFF])
        at += 1
    return crc ^ 0xFFFFFFFF


@_kernel(_I64(_I64, _I64))
def crc32c(address: int, size: int) -> int:
    """Return the CRC-32C of `size` bytes."""
    return _crc(address, size)


# --- decode -------------------------------------------------------------------------------------------------------

REASONS = (
    "",
    "a partial batch",
    "a length shorter than a header",
    "a magic other than 2",
    "offsets out of range",
    "more records than offsets or bytes",
    "an unknown codec",
    "the CRC-32C is wrong",
    "an offset below the one before it",
    "a record longer than what is left of its batch",
    "an offset delta that does not grow, or is above the batch's last",
    "a key or value longer than its record",
    "a number of headers that do not fit the record",
    "a header without a key",
    "a record that does not end where it says",
    "bytes after the last record",
)
(
    _OK,
    _PARTIAL,
    _SHORT_LENGTH,
    _BAD_MAGIC,
    _BAD_OFFSETS,
    _BAD_COUNT,
    _BAD_CODEC,
    _BAD_CRC,
    _BACKWARDS,
    _LONG_RECORD,
    _BAD_DELTA,
    _LONG_FIELD,
    _BAD_HEADERS,
    _NO_HEADER_KEY,
    _BAD_END,
    _LEFT_OVER,
) = range(len(REASONS))

_BAD = -(2**40)  # what a length is when its varint is cut off or too long: no length of a record


class Source(NamedTuple):
    """Batches at `address`, `size` bytes; records in [start, end) are wanted.

    `sections` holds (address, size) of the uncompressed records of every compressed batch, in order.
    """

    address: int
    size: int
    sections: int
    start: int
    end: int


class Columns(NamedTuple):
    """Where the columns go; 0: not wanted. Validity starts with every bit set. `header_spots` is int64 per row."""

    key_ends: int
    key_bytes: int
    key_validity: int
    value_ends: int
    value_bytes: int
    value_validity: int
    offsets: int
    timestamps: int
    timestamp_types: int
    header_spots: int


class Decoded(NamedTuple):
    """What `decode` did, or `error` (an index into REASONS) and the `position` of the batch."""

    error: int
    position: int
    rows: int
    key_bytes: int
    value_bytes: int
    key_nulls: int
    value_nulls: int
    headers: int
    header_key_bytes: int
    header_value_bytes: int


class Scanned(NamedTuple):
    """What `scan` found in [0, end): `rows` and `bytes` of uncompressed batches are upper bounds for `decode`."""

    error: int
    end: int
    batches: int
    compressed: int
    rows: int
    bytes: int


class HeaderColumns(NamedTuple):
    """Where headers go; offsets are int32, the two validities start with every bit set."""

    list_ends: int
    list_validity: int
    key_ends: int
    key_bytes: int
    value_ends: int
    value_bytes: int
    value_validity: int


@_inner
def _header_error(at: int, left: int) -> int:
    """Whether a batch header is at `at`, with `left` bytes to the end of the data; the CRC is not looked at."""
    if left < HEADER_BYTES:
        return _PARTIAL
    size = _be32(at + 8) + LENGTH_END
    if size < HEADER_BYTES:
        return _SHORT_LENGTH
    if size > left:
        return _PARTIAL
    if _u8(at + 16) != MAGIC:
        return _BAD_MAGIC
    base, delta, count = _be64(at), _be32(at + 23), _be32(at + 57)
    if base < 0 or delta < 0 or base > 0x7FFFFFFFFFFFFFFF - delta - 1:
        return _BAD_OFFSETS
    codec = _be16(at + 21) & 7
    if codec > 4:
        return _BAD_CODEC
    if count < 0 or count > delta + 1:
        return _BAD_COUNT
    if codec == 0 and count * RECORD_BYTES_MIN > size - HEADER_BYTES:
        return _BAD_COUNT
    return _OK


_SCANNED = types.NamedUniTuple(_I64, len(Scanned._fields), Scanned)


@_kernel(_SCANNED(_I64, _I64, _I64, _I64, _I64))
def scan(address: int, size: int, limit: int, end_offset: int, compressed: int) -> Scanned:
    """Walk the headers of about `limit` bytes, up to `end_offset`, and list the positions of compressed batches.

    `compressed` has room for one int64 per 61 bytes.
    """
    at, stop = address, address + size
    n = packed = rows = total = 0
    while at < stop and at - address < limit:
        error = _header_error(at, stop - at)
        if error:
            return Scanned(error, at - address, n, packed, rows, total)
        if _be64(at) >= end_offset:
            break
        length = _be32(at + 8) + LENGTH_END
        if _be16(at + 21) & 7:
            _put64(compressed + 8 * packed, at - address)
            packed += 1
        else:
            rows += _be32(at + 57)
            total += length - HEADER_BYTES
        n += 1
        at += length
    return Scanned(_OK, at - address, n, packed, rows, total)


@_inner
def _varint(at: int, end: int) -> tuple[int, int]:
    """(zigzag number of at most 5 bytes, what follows), or (_BAD, at)."""
    if at < end:
        first = _u8(at)
        if first < 0x80:
            return (first >> 1) ^ -(first & 1), at + 1
    number = np.int64(0)
    for i in range(5):
        if at + i >= end:
            break
        byte = _u8(at + i)
        number |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            number &= 0xFFFFFFFF
            return (number >> 1) ^ -(number & 1), at + i + 1
    return _BAD, at


@_inner
def _varlong(at: int, end: int) -> tuple[int, int]:
    """(zigzag number of at most 10 bytes, what follows); what follows is beyond the end if it is cut off or too long."""
    number = np.int64(0)
    for i in range(10):
        if at + i >= end:
            break
        byte = _u8(at + i)
        number |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return ((number >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(number & 1), at + i + 1
    return 0, end + 1


@_inner
def _field(at: int, end: int) -> tuple[int, int]:
    """(size of a field, or -1 for null; where its bytes are), or (_BAD, at) if it does not end by `end`."""
    size, at = _varint(at, end)
    if size < -1 or size > end - at:
        return _BAD, at
    return size, at


@_inner
def _headers_at(at: int, end: int) -> tuple[int, int, int, int, int]:
    """(error, what follows, count, bytes of keys, bytes of values) of the headers at `at`."""
    count, at = _varint(at, end)
    keys = values = np.int64(0)
    if count < 0 or count > (end - at) >> 1:
        return _BAD_HEADERS, at, 0, keys, values
    for _ in range(count):
        size, at = _field(at, end)
        if size < 0:
            return (_NO_HEADER_KEY if size == -1 else _BAD_HEADERS), at, 0, keys, values
        at += size
        keys += size
        size, at = _field(at, end)
        if size == _BAD:
            return _BAD_HEADERS, at, 0, keys, values
        if size > 0:
            at += size
            values += size
    return _OK, at, count, keys, values


@_inner
def _copy(to: int, source: int, size: int) -> None:
    """Copy `size` bytes; small fields without a call."""
    if size > 32:
        _memcpy(to, source, size)
    elif size >= 8:
        last = size - 8
        for i in range(0, last, 8):
            _put64(to + i, _i64(source + i))
        _put64(to + last, _i64(source + last))
    else:
        for i in range(size):
            _put8(to + i, _u8(source + i))


@_inner
def _clear_bit(bitmap: int, row: int) -> None:
    at = bitmap + (row >> 3)
    _put8(at, _u8(at) & ~(1 << (row & 7)))


@_inner
def _failed(error: int, position: int) -> Decoded:
    return Decoded(error, position, 0, 0, 0, 0, 0, 0, 0, 0)


_SOURCE = types.NamedUniTuple(_I64, len(Source._fields), Source)
_COLUMNS = types.NamedUniTuple(_I64, len(Columns._fields), Columns)
_DECODED = types.NamedUniTuple(_I64, len(Decoded._fields), Decoded)


@_kernel(_DECODED(_SOURCE, _COLUMNS))
def decode(source: Source, into: Columns) -> Decoded:  # noqa: C901, PLR0912, PLR0915 - one loop, no call per record
    """Write every wanted record of the batches into the columns; control batches are passed over.

    The CRC of every uncompressed batch is checked here; those of compressed ones by whoever made `sections`.
    """
    batch, stop = source.address, source.address + source.size
    sections, next_offset = source.sections, np.int64(0)
    rows = key_total = value_total = key_nulls = value_nulls = np.int64(0)
    headers = header_keys = header_values = np.int64(0)
    while batch < stop:
        position = batch - source.address
        error = _header_error(batch, stop - batch)
        if error:
            return _failed(error, position)
        length, base = _be32(batch + 8) + LENGTH_END, _be64(batch)
        attributes, count, last_delta = _be16(batch + 21), _be32(batch + 57), _be32(batch + 23)
        if base < next_offset:
            return _failed(_BACKWARDS, position)
        next_offset = base + last_delta + 1
        if attributes & 7:
            at = _i64(sections)
            section_end = at + _i64(sections + 8)
            sections += 16
        else:
            at, section_end = batch + HEADER_BYTES, batch + length
            if _crc(batch + 21, length - 21) != _be32(batch + 17) & 0xFFFFFFFF:
                return _failed(_BAD_CRC, position)
        base_timestamp, append_time = _be64(batch + 27), _be64(batch + 35)
        timestamp_type = (attributes >> 3) & 1
        batch += length
        if attributes & 0x20 or next_offset <= source.start:
            continue
        before = np.int64(-1)
        for _ in range(count):
            size, at = _varint(at, section_end)
            if size < RECORD_BYTES_MIN - 1 or size > section_end - at:
                return _failed(_LONG_RECORD, position)
            end = at + size
            timestamp, at = _varlong(at + 1, end)
            delta, at = _varint(at, end)
            if delta <= before or delta > last_delta:
                return _failed(_BAD_DELTA, position)
            before = delta
            key_size, key = _field(at, end)
            value_size, value = _field(key + max(key_size, 0), end)
            if key_size == _BAD or value_size == _BAD:
                return _failed(_LONG_FIELD, position)
            spot = value + max(value_size, 0)
            error, at, n_headers, key_sum, value_sum = _headers_at(spot, end)
            if error:
                return _failed(error, position)
            if at != end:
                return _failed(_BAD_END, position)
            offset = base + delta
            if offset < source.start or offset >= source.end:
                continue
            if into.offsets:
                _put64(into.offsets + 8 * rows, offset)
            if into.timestamps:
                _put64(
                    into.timestamps + 8 * rows, append_time if timestamp_type else base_timestamp + timestamp
                )
            if into.timestamp_types:
                _put32(into.timestamp_types + 4 * rows, timestamp_type)
            if into.key_ends:
                if key_size > 0:
                    _copy(into.key_bytes + key_total, key, key_size)
                    key_total += key_size
                elif key_size < 0:
                    _clear_bit(into.key_validity, rows)
                    key_nulls += 1
                _put32(into.key_ends + 4 * rows, key_total)
            if into.value_ends:
                if value_size > 0:
                    _copy(into.value_bytes + value_total, value, value_size)
                    value_total += value_size
                elif value_size < 0:
                    _clear_bit(into.value_validity, rows)
                    value_nulls += 1
                _put32(into.value_ends + 4 * rows, value_total)
            if into.header_spots:
                _put64(into.header_spots + 8 * rows, spot)
                headers += n_headers
                header_keys += key_sum
                header_values += value_sum
            rows += 1
        if at != section_end:
            return _failed(_LEFT_OVER, position)
    return Decoded(
        _OK, 0, rows, key_total, value_total, key_nulls, value_nulls, headers, header_keys, header_values
    )


_HEADER_COLUMNS = types.NamedUniTuple(_I64, len(HeaderColumns._fields), HeaderColumns)


@_kernel(types.UniTuple(_I64, 2)(_I64, _I64, _HEADER_COLUMNS))
def decode_headers(spots: int, rows: int, into: HeaderColumns) -> tuple[int, int]:
    """Write the headers at `spots`, which `decode` checked, and return (rows without any, null values)."""
    total = keys = values = without = nulls = np.int64(0)
    unbounded = np.int64(0x7FFFFFFFFFFFFFFF)
    for row in range(rows):
        count, at = _varint(_i64(spots + 8 * row), unbounded)
        if count == 0:
            _clear_bit(into.list_validity, row)
            without += 1
        for _ in range(count):
            size, at = _varint(at, unbounded)
            _copy(into.key_bytes + keys, at, size)
            keys += size
            _put32(into.key_ends + 4 * total, keys)
            size, at = _varint(at + size, unbounded)
            if size < 0:
                _clear_bit(into.value_validity, total)
                nulls += 1
            else:
                _copy(into.value_bytes + values, at, size)
                values += size
                at += size
            _put32(into.value_ends + 4 * total, values)
            total += 1
        _put32(into.list_ends + 4 * row, total)
    return without, nulls


# --- encode -------------------------------------------------------------------------------------------------------


class Rows(NamedTuple):
    """The columns to encode: int64 per row each. A size of -1 is null; an address of 0 is a missing column.

    `order` lists the rows to take (0: all in order). `headers` is the first header of a row, `header_counts` how
    many; the last four are per header.
    """

    order: int
    key: int
    key_sizes: int
    value: int
    value_sizes: int
    timestamps: int
    headers: int
    header_counts: int
    header_key: int
    header_key_sizes: int
    header_value: int
    header_value_sizes: int


class Encoded(NamedTuple):
    """One batch: the rows that follow, bytes written, and its timestamps; `size` is 0 if a record is too large.

    Then `needed` is the size of the batch that would hold that record alone.
    """

    next_row: int
    size: int
    base_timestamp: int
    max_timestamp: int
    needed: int


@_inner
def _zigzag_bytes(number: int) -> int:
    """How long a varint is."""
    rest = (number << 1) ^ (number >> 63)
    size = np.int64(1)
    while rest & ~0x7F:
        rest = (rest >> 7) & 0x01FFFFFFFFFFFFFF
        size += 1
    return size


@_inner
def _put_varint(at: int, number: int) -> int:
    """Write a zigzag varint and return what follows."""
    rest = (number << 1) ^ (number >> 63)
    while rest & ~0x7F:
        _put8(at, (rest & 0x7F) | 0x80)
        rest = (rest >> 7) & 0x01FFFFFFFFFFFFFF
        at += 1
    _put8(at, rest)
    return at + 1


@_inner
def _field_bytes(size: int) -> int:
    return _zigzag_bytes(size) + max(size, 0)


@_inner
def _put_field(at: int, source: int, size: int) -> int:
    at = _put_varint(at, size)
    if size > 0:
        _copy(at, source, size)
        at += size
    return at


@_inner
def _size_at(sizes: int, row: int) -> int:
    return _i64(sizes + 8 * row) if sizes else np.int64(-1)


@_inner
def _header_bytes(rows: Rows, first: int, count: int) -> int:
    total = _zigzag_bytes(count)
    for i in range(first, first + count):
        total += _field_bytes(_i64(rows.header_key_sizes + 8 * i))
        total += _field_bytes(_i64(rows.header_value_sizes + 8 * i))
    return total


_ROWS = types.NamedUniTuple(_I64, len(Rows._fields), Rows)
_ENCODED = types.NamedUniTuple(_I64, len(Encoded._fields), Encoded)


@_kernel(_ENCODED(_ROWS, _I64, _I64, _I64, _I64, _I64))
def encode(rows: Rows, first_row: int, end_row: int, to: int, target: int, largest: int) -> Encoded:
    """Write the records of one batch, without its header, at `to`: as many as fit `target`, or one up to `largest`.

    Both limits count the batch header.
    """
    at = to
    base = newest = np.int64(0)
    i = first_row
    while i < end_row:
        row = _i64(rows.order + 8 * i) if rows.order else i
        timestamp, delta = _i64(rows.timestamps + 8 * row), i - first_row
        if delta == 0:
            base = newest = timestamp
        key_size, value_size = _size_at(rows.key_sizes, row), _size_at(rows.value_sizes, row)
        header, headers = np.int64(0), np.int64(0)
        if rows.headers:
            header, headers = _i64(rows.headers + 8 * row), _i64(rows.header_counts + 8 * row)
        body = 1 + _zigzag_bytes(timestamp - base) + _zigzag_bytes(delta)
        body += _field_bytes(key_size) + _field_bytes(value_size) + _header_bytes(rows, header, headers)
        needed = at - to + HEADER_BYTES + _zigzag_bytes(body) + body
        if needed > (target if delta else largest):
            if delta == 0:
                return Encoded(row, 0, 0, 0, needed)
            break
        newest = max(newest, timestamp)
        at = _put_varint(at, body)
        _put8(at, 0)
        at = _put_varint(_put_varint(at + 1, timestamp - base), delta)
        at = _put_field(at, _i64(rows.key + 8 * row) if key_size > 0 else 0, key_size)
        at = _put_field(at, _i64(rows.value + 8 * row) if value_size > 0 else 0, value_size)
        at = _put_varint(at, headers)
        for j in range(header, header + headers):
            at = _put_field(at, _i64(rows.header_key + 8 * j), _i64(rows.header_key_sizes + 8 * j))
            at = _put_field(at, _i64(rows.header_value + 8 * j), _i64(rows.header_value_sizes + 8 * j))
        i += 1
    return Encoded(i, at - to, base, newest, 0)


# --- key hashes ---------------------------------------------------------------------------------------------------


@_inner
def _rotated(number: int, by: int) -> int:
    return ((number << by) | (number >> (32 - by))) & 0xFFFFFFFF


@_inner
def _times(number: int, factor: int) -> int:
    return (number * factor) & 0xFFFFFFFF


@_inner
def _murmur3(at: int, size: int) -> int:
    """MurmurHash3_x86_32, seed 0."""
    h = np.int64(0)
    words_end = at + (size & ~3)
    for word in range(at, words_end, 4):
        h ^= _times(_rotated(_times(_u32(word), 0xCC9E2D51), 15), 0x1B873593)
        h = (_rotated(h, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
    tail = np.int64(0)
    for i in range(size & 3):
        tail |= _u8(words_end + i) << (8 * i)
    h ^= _times(_rotated(_times(tail, 0xCC9E2D51), 15), 0x1B873593)
    h ^= size
    h = _times(h ^ (h >> 16), 0x85EBCA6B)
    h = _times(h ^ (h >> 13), 0xC2B2AE35)
    return h ^ (h >> 16)


@_inner
def _murmur2(at: int, size: int) -> int:
    """MurmurHash2 with the seed and byte order of Kafka's Java clients."""
    m = 0x5BD1E995
    h = 0x9747B28C ^ size
    words_end = at + (size & ~3)
    for word in range(at, words_end, 4):
        k = _times(_u32(word), m)
        h = _times(h, m) ^ _times(k ^ (k >> 24), m)
    if size & 3:
        for i in range(size & 3):
            h ^= _u8(words_end + i) << (8 * i)
        h = _times(h, m)
    h = _times(h ^ (h >> 13), m)
    return h ^ (h >> 15)


@_kernel(types.void(_I64, _I64, _I64, _I64, _I64, _I64))
def partitions_of(keys: int, sizes: int, rows: int, partitions: int, java: int, to: int) -> None:
    """Write the int32 partition of every key that is not null (size -1): murmur2 if `java`, else murmur3."""
    for row in range(rows):
        size = _i64(sizes + 8 * row)
        if size >= 0:
            at = _i64(keys + 8 * row)
            hashed = _murmur2(at, size) if java else _murmur3(at, size)
            _put32(to + 4 * row, (hashed & 0x7FFFFFFF) % partitions)


numba.config.CACHE_DIR = _CACHE_DIR
