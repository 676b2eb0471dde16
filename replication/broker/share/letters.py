"""The bytes of dead letters of share groups (KIP-1191), as a Kafka 4.4 writes them. No disk, clock or socket."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from logstore.records.batch import HEADER_BYTES, Record, build

PREFIX = "__dlq.errors."
_SIZES_BYTES = 5  # of a number of 32 bits, at most


class Letter(NamedTuple):
    """One record that is given up; `found`: with this key and value, if they are to be copied and are in the log."""

    group_id: str
    topic: str
    partition: int
    offset: int
    delivery_count: int
    cause: str
    found: Record | None = None

    @property
    def headers(self) -> tuple[tuple[str, bytes], ...]:
        said = {
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "group": self.group_id,
            "delivery.count": self.delivery_count,
            "message": self.cause,
        }
        return tuple((PREFIX + name, str(value).encode()) for name, value in said.items())

    @property
    def size_bytes(self) -> int:
        """The bytes of its record, or a few more."""
        parts = [part for header in self.headers for part in header]
        if self.found is not None:
            parts += (self.found.key or b"", self.found.value or b"")
        return sum(map(len, parts)) + _SIZES_BYTES * (len(parts) + 6)


def fitting(letters: Sequence[Letter], bytes_max: int) -> int:
    """Return how many of these letters one batch may have: one at the least, which is perhaps too large."""
    left_bytes = bytes_max - HEADER_BYTES
    for count, letter in enumerate(letters):
        left_bytes -= letter.size_bytes
        if left_bytes < 0:
            return max(count, 1)
    return len(letters)


def batch_of(letters: Sequence[Letter], now_ms: int) -> bytearray:
    """Return one batch of these letters."""
    return build(
        Record(number, now_ms, *((None, None) if found is None else (found.key, found.value)), letter.headers)
        for number, letter in enumerate(letters)
        for found in (letter.found,)
    )


def place(partition: int, count: int) -> int:
    """Return the partition for letters about records of `partition`, of a topic that has `count`."""
    return partition % count
