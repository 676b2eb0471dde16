"""Record batches to Arrow: no Python object per record on any path that is long.

Every CRC and every length is checked, and hostile bytes are answered with CorruptLogError only. The kernels do it
(`decoding`), but for what comes before they are loaded, which takes half a second: as much as a command that prints
a few records may take is decoded in plain Python. The way back is `encoding`.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from logstore.config import INT64_MAX
from logstore.errors import CorruptLogError, InvalidRecordError, UnreadableBatchError
from logstore.records import batch as batches
from logstore.records.batch import Record
from logstore.records.columns import bits
from logstore.records.compression import Buffer
from logstore.records.schema import BINARY, RECORD_SCHEMA, schema_of

# Plain Python takes some 5 µs a record. More than this, or often, and the kernels are worth their loading.
PLAIN_BYTES_MAX = 64 * 1024
PLAIN_CALLS_MAX = 100
_plain_calls = itertools.count()
_KERNELS = "logstore.records.kernels"


def whole_bytes(buffer: Buffer, n: int, *, start: int = 0, upper: int | None = None) -> tuple[int, int]:
    """Do the work of `batch.whole_bytes` in a fiftieth of the time per batch, once the kernels are loaded."""
    if _KERNELS not in sys.modules and n - start <= PLAIN_BYTES_MAX:
        return batches.whole_bytes(buffer, n, start=start, upper=upper)
    from logstore.records import kernels

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
    at = 0
    if _KERNELS not in sys.modules and next(_plain_calls) < PLAIN_CALLS_MAX:
        try:
            at, rows = _plain(data, start, end)
        except batches.InvalidBatchError:  # the kernels say what it is
            pass
        else:
            if rows or at == len(data):
                yield _table(rows, names)
            else:
                at = 0
            if at == len(data) > 0:
                return
    from logstore.records.decoding import Piece

    source = pa.py_buffer(data)
    while True:
        try:
            piece = Piece(source, data, at, start, end)
            if at and piece.stop == at:
                return
            yield piece.record_batch(names)
        except batches.InvalidBatchError as exc:
            sound, place = memoryview(data).cast("B")[at : exc.position], (where[0], where[1] + at)
            yield from _before(sound, start=start, end=end, columns=columns, where=place)
            raise undecoded(data, exc, where) from None
        if piece.stop in (at, source.size):
            return
        at = piece.stop


def _before(
    sound: memoryview, *, start: int, end: int, columns: Sequence[str] | None, where: tuple[object, int]
) -> Iterator[pa.RecordBatch]:
    """The records of the batches before one that cannot be decoded."""
    pieces = decode_pieces(sound, start=start, end=end, columns=columns, where=where) if sound else ()
    yield from (rows for rows in pieces if rows.num_rows)


def undecoded(data: Buffer, error: batches.InvalidBatchError, where: tuple[object, int]) -> CorruptLogError:
    """The error of a batch that is damaged, or that was written so: its CRC tells. `where`: as for `decode_pieces`."""
    view, position = memoryview(data).cast("B"), error.position
    try:
        header = batches.header_at(view, position)
        batches.check(view, position, header)
    except batches.InvalidBatchError:
        return CorruptLogError(where[0], where[1] + position, error.reason)
    if batches.out_of_order(view, position + header.size_bytes) is not None:  # a base offset is outside the CRC
        return CorruptLogError(where[0], where[1] + position, error.reason)
    place = header.base_offset, header.next_offset
    return UnreadableBatchError(where[0], where[1] + position, error.reason, *place)


def _plain(data: Buffer, start: int, end: int) -> tuple[int, list[tuple[Record, int]]]:
    """The records and timestamp types in [start, end) of the first whole batches, in plain Python; where these end.

    Raises: InvalidBatchError: damage of any kind, or a batch that expands beyond `PLAIN_BYTES_MAX`.
    """
    view = memoryview(data).cast("B")  # Arrow gives signed bytes
    stop, _ = batches.whole_bytes(view, min(len(view), PLAIN_BYTES_MAX))
    rows: list[tuple[Record, int]] = []
    next_offset = 0
    for at, header in batches.batches(view[:stop]):
        if header.base_offset >= end:
            return len(view), rows
        batches.check(view, at, header)
        if header.base_offset < next_offset:
            raise batches.InvalidBatchError(at, "it overlaps the batch before it")
        next_offset = header.next_offset
        if not header.is_control and next_offset > start:
            found = batches.records(view, at, limit_bytes=PLAIN_BYTES_MAX)
            rows += [(row, header.timestamp_type) for row in found if start <= row.offset < end]
    if int.from_bytes(view[stop : stop + 8], "big") < next_offset and stop < len(view):
        raise batches.InvalidBatchError(stop, "it overlaps the batch before it")
    return stop, rows


def _table(rows: Sequence[tuple[Record, int]], names: Sequence[str]) -> pa.RecordBatch:
    schema = schema_of(tuple(names))
    return pa.RecordBatch.from_arrays([_column(rows, field) for field in schema], schema=schema)


def _column(rows: Sequence[tuple[Record, int]], field: pa.Field) -> pa.Array:
    """Made of buffers: `pa.array` would load pandas to see whether a list belongs to that."""
    match field.name:
        case "key":
            return _binary([row.key for row, _ in rows], field.type)
        case "value":
            return _binary([row.value for row, _ in rows], field.type)
        case "headers":
            pairs = [pair for row, _ in rows for pair in row.headers]
            cells = [_binary([key.encode() for key, _ in pairs], pa.string()), _binary([v for _, v in pairs], BINARY)]
            children = pa.StructArray.from_arrays(cells, fields=list(field.type.value_type))
            counts = [len(row.headers) for row, _ in rows]
            buffers = [bits([count > 0 for count in counts]), _ends(counts)]
            return pa.Array.from_buffers(field.type, len(rows), buffers, children=[children])
        case "offset":
            numbers = [row.offset for row, _ in rows]
        case "timestamp":
            numbers = [row.timestamp for row, _ in rows]
        case _:
            numbers = [timestamp_type for _, timestamp_type in rows]
    return pa.Array.from_buffers(field.type, len(rows), [None, _packed(numbers, f"i{field.type.bit_width // 8}")])


def _binary(cells: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    ends = _ends([len(cell or b"") for cell in cells])
    data = pa.py_buffer(b"".join(cell or b"" for cell in cells))
    return pa.Array.from_buffers(kind, len(cells), [bits([cell is not None for cell in cells]), ends, data])


def _packed(numbers: Sequence[int], kind: str) -> pa.Buffer:
    return pa.py_buffer(np.array(numbers, dtype=kind))


def _ends(sizes: Sequence[int]) -> pa.Buffer:
    """Where each cell ends, behind the 0 at which the first one begins."""
    return _packed([0, *itertools.accumulate(sizes)], "i4")
