"""Keys and the last offset of each, in bounded memory: what compaction and a table of latest values go by."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from logstore.records.kernels import newest, offset_map

SLOTS_MIN = 1024
SHARES_MAX = 256  # the kernels look at eight bits of the hash
# At most this part of the slots is taken, so that a key is found within a few looks.
_LOAD = 0.6


class Share(NamedTuple):
    """The keys whose hash has these bits under the mask 2ⁿ - 1: all of them, or a half of those that did not fit."""

    mask: int = 0
    bits: int = 0

    def halves(self) -> tuple[Share, Share]:
        mask = 2 * self.mask + 1
        return Share(mask, self.bits), Share(mask, self.bits + self.mask + 1)


class KeyMap:
    """Keys and the last offset of each, in at most `memory_bytes`; keys are compared byte by byte."""

    def __init__(self, memory_bytes: int) -> None:
        # Memory that is never touched costs nothing: the whole arena is set aside, and filled as keys come.
        self._arena = np.empty(memory_bytes, dtype=np.uint8)
        self._memory_bytes = memory_bytes
        self._numbers = np.zeros(offset_map.NUMBERS, dtype=np.int64)
        self._waiting = np.empty(offset_map.WAITING_BYTES, dtype=np.uint8)
        self.table, self.waiting = self._numbers.ctypes.data, self._waiting.ctypes.data
        self.clear(0, 0)

    def clear(self, start: int, end: int, *, expected: int = 0) -> None:
        """Forget all keys, before the records in [start, end) are collected; so many keys are `expected`, at most.

        A bitmap marks those with a later record, if it takes an eighth of the memory at most: they need no look-up.
        """
        self._numbers[:] = 0
        self._numbers[offset_map.ARENA] = self._arena.ctypes.data
        self._room_bytes = self._memory_bytes - self.watch(start, end)
        count = SLOTS_MIN
        while count * _LOAD < expected and 8 * count * offset_map.SLOT_BYTES <= self._room_bytes:
            count *= 2
        self._take_slots(count)

    def watch(self, start: int, end: int) -> int:
        """Keep the keys, and begin another bitmap, for the records in [start, end); return the bytes of the bitmap."""
        bitmap_bytes = (end - start + 7) // 8
        if bitmap_bytes > self._memory_bytes // 8:
            bitmap_bytes = 0
        self._gone = np.zeros(bitmap_bytes + 1, dtype=np.uint8)
        self._numbers[offset_map.GONE] = self._gone.ctypes.data
        self._numbers[offset_map.GONE_FROM] = start
        self._numbers[offset_map.GONE_COUNT] = 8 * bitmap_bytes
        return bitmap_bytes

    def _take_slots(self, count: int) -> None:
        self._slots = np.zeros(count, dtype=np.int64)
        numbers = self._numbers
        numbers[offset_map.SLOTS], numbers[offset_map.SLOT_COUNT] = self._slots.ctypes.data, count
        numbers[offset_map.KEYS_MAX] = int(count * _LOAD)
        numbers[offset_map.ARENA_BYTES] = max(0, self._room_bytes - count * offset_map.SLOT_BYTES)

    @property
    def keys(self) -> int:
        return int(self._numbers[offset_map.KEYS])

    def grow(self) -> bool:
        """Take twice the slots, if entries and both tables fit into the memory together."""
        count, used = len(self._slots), int(self._numbers[offset_map.USED])
        if used + 3 * count * offset_map.SLOT_BYTES > self._room_bytes:
            return False
        self._take_slots(2 * count)
        offset_map.refill(self.table)
        return True

    def collect_rows(self, rows: pa.RecordBatch, share: Share) -> bool:
        """Collect the keys of rows with the columns key and offset; False: not all have room.

        A null key counts for nothing.
        """
        found, keys = newest.Collected(0, 0), _key_rows(rows, share)
        while found.row < rows.num_rows:
            found = newest.collect_rows(self.table, self.waiting, keys, found.row)
            if found.said == offset_map.NO_ROOM or (found.said == offset_map.NO_SLOT and not self.grow()):
                return False
        return True

    def newest(self, rows: pa.RecordBatch, share: Share) -> pa.RecordBatch:
        """Return the rows, all of them collected, that are the newest of a key of this share and have a value."""
        bits = np.zeros((rows.num_rows + 7) // 8, dtype=np.uint8)
        count = newest.newest_rows(self.table, self.waiting, _key_rows(rows, share), bits.ctypes.data)
        if count == rows.num_rows:
            return rows
        return rows.filter(pa.Array.from_buffers(pa.bool_(), rows.num_rows, [None, pa.py_buffer(bits)]))


def _key_rows(rows: pa.RecordBatch, share: Share) -> newest.KeyRows:
    """The addresses of the columns key, offset and, if it is there, value."""
    key, offset = rows.column("key"), rows.column("offset")
    valid, ends, data = key.buffers()
    value = rows.column("value") if "value" in rows.schema.names else None
    value_bits = value.buffers()[0] if value is not None else None
    return newest.KeyRows(
        ends=ends.address if ends else 0,
        data=data.address if data else 0,
        valid=valid.address if valid else 0,
        first=key.offset,
        offsets=offset.buffers()[1].address + 8 * offset.offset,
        values=value_bits.address if value_bits else 0,
        first_value=value.offset if value is not None else 0,
        rows=rows.num_rows,
        mask=share.mask,
        share=share.bits,
    )
