"""Record batches to Arrow and back: no Python object per record on any path.

Decoding checks every CRC and every length and answers hostile bytes with CorruptLogError only; encoding yields batches
that any Kafka client can read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from logstore.config import INT64_MAX
from logstore.errors import CorruptLogError, InvalidRecordError, RecordTooLargeError
from logstore.records import batch as batches
from logstore.records import kernels
from logstore.records.batch import DECOMPRESSED_BYTES_MAX, HEADER_BYTES, RECORD_BYTES_MIN, ProducerStamp
from logstore.records.compression import Buffer, Codec, CompressionError, compress, decompress
from logstore.records.rows import Rows

_BINARY, _INT64, _INT32, _TIMESTAMP = pa.binary(), pa.int64(), pa.int32(), pa.timestamp("ms", tz="UTC")
HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", _BINARY)]))
RECORD_SCHEMA = pa.schema(
    [
        ("key", _BINARY),
        ("value", _BINARY),
        ("offset", _INT64),
        ("timestamp", _TIMESTAMP),
        ("timestampType", _INT32),
        ("headers", HEADERS_TYPE),
    ]
)
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
_PIECE_BYTES = 64 * 1024 * 1024

# Large enough that the header (61 bytes) and the work per batch vanish and codecs find their repetitions;
# small enough to stay in a core's L2 cache between encoding, CRC and write, and to decode for one record.
BATCH_BYTES = 256 * 1024
_CHUNK_BYTES = 1024 * 1024  # what one append takes: a lock and a write call each
_NOBODY = ProducerStamp(batches.NO_PRODUCER, -1, -1)


def whole_bytes(buffer: Buffer, n: int, *, start: int = 0, upper: int | None = None) -> tuple[int, int]:
    """As `batch.whole_bytes`, in a fiftieth of the time per batch."""
    return kernels.walk(pa.py_buffer(buffer).address, n, start, INT64_MAX if upper is None else upper)


def decode(
    data: Buffer,
    *,
    start: int,
    end: int,
    columns: Sequence[str] | None = None,
    where: tuple[object, int] = ("records", 0),
) -> pa.RecordBatch:
    """Return the records with start <= offset < end of the whole batches in `data`.

    The columns are those of RECORD_SCHEMA, or the given ones in their order. Every batch up to `end` has its CRC
    checked; control batches are left out. `where` is the path and the position of `data`, for errors. Readers of logs
    of any size take `decode_pieces`: compressed data may expand a lot.

    Raises: CorruptLogError: damage of any kind, also a partial batch at the end.
        InvalidRecordError: the records expand to more than one RecordBatch can hold (2 GiB a column).
    """
    pieces = list(decode_pieces(data, start=start, end=end, columns=columns, where=where))
    if len(pieces) == 1:
        return pieces[0]
    if sum(piece.nbytes for piece in pieces) >= 2**31:
        raise InvalidRecordError("these records expand to more than 2 GiB: read fewer batches at a time")
    return pa.concat_batches(pieces)


def decode_pieces(
    data: Buffer,
    *,
    start: int,
    end: int,
    columns: Sequence[str] | None = None,
    where: tuple[object, int] = ("records", 0),
) -> Iterator[pa.RecordBatch]:
    """Yield what `decode` returns, at least one batch, each of about 64 MiB of records at most.

    So memory stays bounded however well the data was compressed.
    """
    names = RECORD_SCHEMA.names if columns is None else list(columns)
    end = min(end, INT64_MAX)
    source = pa.py_buffer(data)
    at = 0
    while True:
        try:
            piece = _Piece(source, data, at, start, end)
            if at and piece.stop == at:
                return
            yield piece.record_batch(names)
        except batches.InvalidBatchError as exc:
            raise CorruptLogError(where[0], where[1] + exc.position, exc.reason) from None
        if piece.stop in (at, source.size):
            return
        at = piece.stop


@cache
def _schema(names: tuple[str, ...]) -> pa.Schema:
    return pa.schema([RECORD_SCHEMA.field(name) for name in names])


class _Piece:
    """Some whole batches of the data, from `at` to `stop`, compressed ones expanded."""

    def __init__(self, source: pa.Buffer, data: Buffer, at: int, start: int, end: int) -> None:
        self._source, self._at, self._start, self._end = source, at, start, end
        compressed = _allocate(8 * ((source.size - at) // HEADER_BYTES + 1))
        scanned = kernels.scan(source.address + at, source.size - at, _PIECE_BYTES, end, compressed.address)
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
            if expanded > _PIECE_BYTES:
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

    What takes the same space in every row lies in one allocation, in parts.
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
        return pa.RecordBatch.from_arrays(arrays, schema=_schema(tuple(names)))

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
        return pa.Array.from_buffers(_BINARY, rows, [validity, self.offsets, self.data], nulls)


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


def encode(
    rows: Rows,
    order: Any = None,
    *,
    codec: Codec = Codec.NONE,
    batch_bytes_max: int,
    batch_bytes: int = BATCH_BYTES,
    producer: ProducerStamp | None = None,
) -> Iterator[memoryview]:
    """Yield writable buffers of whole batches for these rows, about 1 MiB or one batch each, in order.

    Base offsets count from 0 across the whole iteration; the append stamps the real ones, and the epoch. `order`
    (int64, by default all) selects and orders the rows. No batch is larger than `batch_bytes_max`, before compression
    as after it: a batch that a codec makes larger is stored as it is. Batches bear the stamp of `producer`, with the
    sequence numbers that follow from its first.

    Raises: InvalidRecordError: `order` names rows that are not there. RecordTooLargeError: names the row.
    """
    if order is not None:
        order = np.ascontiguousarray(order, dtype=np.int64)
        if len(order) and not 0 <= order.min() <= order.max() < rows.count:
            raise InvalidRecordError(f"rows outside the {rows.count} rows of the data")
    count, source = rows.count if order is None else len(order), rows.addresses(order)
    target = min(batch_bytes, batch_bytes_max)
    chunk = _Chunk(target, producer)
    done = 0
    while done < count:
        if chunk.room < target:
            yield chunk.take()
            chunk = _Chunk(target, producer)
        encoded = chunk.append(source, done, count, target)
        if not encoded.size:
            if encoded.needed > batch_bytes_max:
                row = done if order is None else int(order[done])
                raise RecordTooLargeError(encoded.needed, batch_bytes_max, f"record in row {row}")
            if chunk.used:
                yield chunk.take()
            chunk = _Chunk(encoded.needed, producer)
            encoded = chunk.append(source, done, count, encoded.needed)
        chunk.close(codec, done, encoded)
        done = encoded.end
    if chunk.used:
        yield chunk.take()


class _Chunk:
    def __init__(self, batch_bytes: int, producer: ProducerStamp | None) -> None:
        self._producer = producer or _NOBODY
        self._data = _allocate(max(_CHUNK_BYTES, batch_bytes))
        self._view = memoryview(self._data).cast("B")  # Arrow gives signed bytes
        self.used = 0

    @property
    def room(self) -> int:
        return len(self._view) - self.used

    def append(self, source: kernels.Rows, done: int, count: int, limit: int) -> kernels.Encoded:
        """Write the records of one batch, of `limit` bytes at most, behind where its header will be."""
        to = self._data.address + self.used + HEADER_BYTES
        return kernels.encode(source, done, count, to, limit)

    def close(self, codec: Codec, first: int, encoded: kernels.Encoded) -> None:
        """Compress the records that `append` wrote, if that helps, and write their header."""
        at, size, stored_as = self.used + HEADER_BYTES, encoded.size, Codec.NONE
        if codec is not Codec.NONE and size <= DECOMPRESSED_BYTES_MAX:
            packed = compress(codec, self._view[at : at + size])
            if len(packed) < size:
                size, stored_as = len(packed), codec
                self._view[at : at + size] = packed
        count, producer = encoded.end - first, self._producer
        has_sequence = producer.producer_id >= 0
        header = batches.BatchHeader(
            base_offset=first,
            size_bytes=HEADER_BYTES + size,
            leader_epoch=batches.NO_LEADER_EPOCH,
            magic=batches.MAGIC,
            crc=0,
            attributes=int(stored_as) | (batches.TRANSACTIONAL if producer.is_transactional else 0),
            last_offset_delta=count - 1,
            base_timestamp=encoded.base_timestamp,
            max_timestamp=encoded.max_timestamp,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=batches.sequence_after(producer.first_sequence, first) if has_sequence else -1,
            count=count,
        )
        batches.write_header(self._view, self.used, header)
        self.used += header.size_bytes

    def take(self) -> memoryview:
        return self._view[: self.used]
