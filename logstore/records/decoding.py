"""Batches to columns by the kernels: a piece at a time, each of its columns filled in one allocation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from logstore.records import batch as batches
from logstore.records import kernels
from logstore.records.batch import DECOMPRESSED_BYTES_MAX, HEADER_BYTES, RECORD_BYTES_MIN
from logstore.records.compression import Buffer, CompressionError, decompress
from logstore.records.schema import BINARY, HEADERS_TYPE, schema_of

_INT64, _INT32, _TIMESTAMP = pa.int64(), pa.int32(), pa.timestamp("ms", tz="UTC")
# At most what a row of a column takes beside its bytes; a binary one: its offset and validity.
_BINARY_ROW_BYTES = 5
_ROW_BYTES = {
    "key": _BINARY_ROW_BYTES,
    "value": _BINARY_ROW_BYTES,
    "offset": 8,
    "timestamp": 8,
    "timestampType": 4,
    "headers": 0,
}
_ALIGNMENT, _PARTS_MAX = 64, 8

# One piece of the input at a time becomes one RecordBatch. It is below the 2 GiB of Arrow's int32 offsets: no
# more than this, or one batch; what expands adds this and a last batch of DECOMPRESSED_BYTES_MAX at most.
PIECE_BYTES = 64 * 1024 * 1024


class Piece:
    """Some whole batches of the data, from `at` to `stop`, compressed ones expanded."""

    def __init__(self, source: pa.Buffer, data: Buffer, at: int, start: int, end: int) -> None:
        self._source, self._at, self._start, self._end = source, at, start, end
        compressed = _allocate(8 * ((source.size - at) // HEADER_BYTES + 1))
        scanned = kernels.scan(source.address + at, source.size - at, PIECE_BYTES, end, compressed.address)
        if scanned.error:
            raise batches.InvalidBatchError(at + scanned.end, kernels.REASONS[scanned.error])
        self.stop = at + scanned.end
        self._rows, self._bytes = scanned.rows, scanned.bytes
        self._sections: list[pa.Buffer] = []
        if scanned.compressed:
            self._expand(data, np.frombuffer(compressed, dtype=np.int64, count=scanned.compressed))

    def _expand(self, data: Buffer, compressed: Any) -> None:
        """Check and decompress, and stop the piece early once that gives more than its size."""
        expanded = 0
        for relative in compressed.tolist():
            position = self._at + relative
            if expanded > PIECE_BYTES:
                self.stop = position
                break
            header = batches.header_at(data, position)
            batches.check(data, position, header)
            stored = memoryview(data)[position + HEADER_BYTES : position + header.size_bytes]
            try:
                section = pa.py_buffer(decompress(header.codec, stored, limit_bytes=DECOMPRESSED_BYTES_MAX))
            except CompressionError as exc:
                raise batches.InvalidBatchError(position, str(exc)) from None
            if header.count * RECORD_BYTES_MIN > section.size:
                raise batches.InvalidBatchError(position, f"{header.count} records in {section.size} bytes")
            self._sections.append(section)
            self._rows += header.count
            expanded += section.size
        self._bytes += expanded

    def record_batch(self, names: list[str]) -> pa.RecordBatch:
        table = np.array([(s.address, s.size) for s in self._sections], dtype=np.int64)
        source = kernels.Source(
            self._source.address + self._at, self.stop - self._at, table.ctypes.data, self._start, self._end
        )
        out = _Columns(names, max(0, min(self._rows, self._end - self._start)), self._bytes)
        decoded = kernels.decode(source, out.addresses())
        if decoded.error:
            raise batches.InvalidBatchError(self._at + decoded.position, kernels.REASONS[decoded.error])
        return out.record_batch(names, decoded)


class _Columns:
    """Buffers that `kernels.decode` fills: as large as they could need to be, cut to size afterwards.

    Columns that take the same space in every row share one allocation.
    """

    def __init__(self, names: list[str], rows: int, size: int) -> None:
        parts = _Parts(sum(_ROW_BYTES[name] for name in names) * (rows + 1))
        self.keys = _Binary(parts, rows, size) if "key" in names else None
        self.values = _Binary(parts, rows, size) if "value" in names else None
        self.offsets = parts.take(8 * rows) if "offset" in names else None
        self.timestamps = parts.take(8 * rows) if "timestamp" in names else None
        self.types = parts.take(4 * rows) if "timestampType" in names else None
        self.spots = _allocate(8 * rows) if "headers" in names else None

    def addresses(self) -> kernels.Columns:
        return kernels.Columns(
            *_addresses(self.keys),
            *_addresses(self.values),
            _address(self.offsets),
            _address(self.timestamps),
            _address(self.types),
            _address(self.spots),
        )

    def record_batch(self, names: list[str], decoded: kernels.Decoded) -> pa.RecordBatch:
        arrays = [self._array(name, decoded) for name in names]
        return pa.RecordBatch.from_arrays(arrays, schema=schema_of(tuple(names)))

    def _array(self, name: str, decoded: kernels.Decoded) -> pa.Array:
        rows = decoded.rows
        match name:
            case "key":
                assert self.keys is not None
                return self.keys.array(rows, decoded.key_bytes, decoded.key_nulls)
            case "value":
                assert self.values is not None
                return self.values.array(rows, decoded.value_bytes, decoded.value_nulls)
            case "offset":
                return pa.Array.from_buffers(_INT64, rows, [None, self.offsets], 0)
            case "timestamp":
                return pa.Array.from_buffers(_TIMESTAMP, rows, [None, self.timestamps], 0)
            case "timestampType":
                return pa.Array.from_buffers(_INT32, rows, [None, self.types], 0)
            case _:
                return self._headers(decoded)

    def _headers(self, decoded: kernels.Decoded) -> pa.Array:
        rows, n = decoded.rows, decoded.headers
        if not n:
            return pa.nulls(rows, HEADERS_TYPE)
        assert self.spots is not None
        parts = _Parts(_BINARY_ROW_BYTES * (rows + 2 * n + 3))
        keys = _Binary(parts, n, decoded.header_key_bytes)
        values = _Binary(parts, n, decoded.header_value_bytes)
        lists = _Binary(parts, rows, 0)
        into = kernels.HeaderColumns(
            lists.offsets.address,
            lists.validity.address,
            keys.offsets.address,
            keys.data.address,
            *_addresses(values),
        )
        without, nulls = kernels.decode_headers(self.spots.address, rows, into)
        pairs = pa.StructArray.from_arrays(
            [
                _text(keys.array(n, decoded.header_key_bytes, 0)),
                values.array(n, decoded.header_value_bytes, nulls),
            ],
            fields=list(HEADERS_TYPE.value_type),
        )
        validity = lists.validity if without else None
        return pa.Array.from_buffers(HEADERS_TYPE, rows, [validity, lists.offsets], without, children=[pairs])


class _Parts:
    """One allocation, handed out in parts that begin where Arrow wants them to."""

    def __init__(self, size: int) -> None:
        self._whole = _allocate(size + _PARTS_MAX * _ALIGNMENT)
        self._used = 0

    def take(self, size: int) -> pa.Buffer:
        part = self._whole.slice(self._used, size)
        self._used += (size + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
        return part


class _Binary:
    """The buffers of a binary column of at most `rows` rows and `size` bytes."""

    def __init__(self, parts: _Parts, rows: int, size: int) -> None:
        self.offsets = parts.take(4 * (rows + 1))
        self.validity = parts.take((rows + 7) // 8)
        self.data = _allocate(size)

    def array(self, rows: int, size: int, nulls: int) -> pa.Array:
        """The column, cut to `rows` rows with `size` bytes in all."""
        self.data.resize(size, shrink_to_fit=True)
        validity = self.validity if nulls else None
        return pa.Array.from_buffers(BINARY, rows, [validity, self.offsets, self.data], nulls)


def _address(part: pa.Buffer | None) -> int:
    return 0 if part is None else part.address


def _addresses(column: _Binary | None) -> tuple[int, int, int]:
    return (column.offsets.address, column.data.address, column.validity.address) if column else (0, 0, 0)


def _allocate(size: int) -> pa.Buffer:
    """A buffer of at least one byte, so that it has an address."""
    return pa.allocate_buffer(max(size, 1), resizable=True)


def _text(keys: pa.Array) -> pa.Array:
    """`keys` as strings; bytes that are not UTF-8 are replaced, as Java's clients do."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())
