"""Columns to batches, as the producer, the codec and the limits of a topic ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from logstore.errors import InvalidRecordError, RecordTooLargeError
from logstore.records import batch as batches
from logstore.records import few
from logstore.records.addresses import Encoded
from logstore.records.addresses import Rows as Addresses
from logstore.records.batch import DECOMPRESSED_BYTES_MAX, HEADER_BYTES, ProducerStamp
from logstore.records.compression import Codec, compress
from logstore.records.rows import Rows

# Large enough that the header (61 bytes) and the work per batch vanish and codecs find their repetitions;
# small enough to stay in a core's L2 cache between encoding, CRC and write, and to decode for one record.
BATCH_BYTES = 256 * 1024
_CHUNK_BYTES = 1024 * 1024  # what one append takes: a lock and a write call each
Write = Callable[[Addresses, int, int, int, int], Encoded]
_NOBODY = ProducerStamp(batches.NO_PRODUCER, -1, -1)


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
    kernels = few.kernels_for(count)
    write = kernels.encode if kernels else few.encode
    chunk = _Chunk(target, producer)
    done = 0
    while done < count:
        if chunk.room < target:
            yield chunk.take()
            chunk = _Chunk(target, producer)
        encoded = chunk.append(write, source, done, count, target)
        if not encoded.size:
            if encoded.needed > batch_bytes_max:
                row = done if order is None else int(order[done])
                raise RecordTooLargeError(encoded.needed, batch_bytes_max, f"record in row {row}")
            if chunk.used:
                yield chunk.take()
            chunk = _Chunk(encoded.needed, producer)
            encoded = chunk.append(write, source, done, count, encoded.needed)
        chunk.close(codec, done, encoded)
        done = encoded.end
    if chunk.used:
        yield chunk.take()


class _Chunk:
    def __init__(self, batch_bytes: int, producer: ProducerStamp | None) -> None:
        self._producer = producer or _NOBODY
        self._data = pa.allocate_buffer(max(_CHUNK_BYTES, batch_bytes), resizable=True)
        self._view = memoryview(self._data).cast("B")  # Arrow gives signed bytes
        self.used = 0

    @property
    def room(self) -> int:
        return len(self._view) - self.used

    def append(self, write: Write, source: Addresses, done: int, count: int, limit: int) -> Encoded:
        """Write the records of one batch, of `limit` bytes at most, behind where its header will be."""
        to = self._data.address + self.used + HEADER_BYTES
        return write(source, done, count, to, limit)

    def close(self, codec: Codec, first: int, encoded: Encoded) -> None:
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
            length=batches.EMPTY_LENGTH + size,
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
