"""The bytes of dead letters of share groups (KIP-1191), as a Kafka 4.4 writes them. No disk, clock or socket."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from logstore.records import batch
from logstore.records.batch import HEADER_BYTES, InvalidBatchError, Record, build
from replication.broker.share.machine.events import Range, SendLetters
from replication.protocol.wire import Buffer

PREFIX = "__dlq.errors."
COPIED_BYTES = 8 * 1024 * 1024  # of records that wait for their letters, and those of one batch
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


def cut(given_up: Sequence[SendLetters], count: int, end: int) -> tuple[list[SendLetters], list[SendLetters]]:
    """Return the first `count` records, as far as they are before the offset `end`, and the others."""
    now: list[SendLetters] = []
    for place, each in enumerate(given_up):
        last = min(each.last, each.first + count - 1, end - 1)
        if last >= each.first:
            now.append(each._replace(last=last))
            count -= last - each.first + 1
        if last < each.last:
            first = max(each.first, last + 1)
            return now, [each._replace(first=first), *given_up[place + 1 :]]
    return now, []


def ranges_of(letters: Sequence[Letter]) -> list[Range]:
    found: list[Range] = []
    for letter in letters:
        if found and found[-1].last + 1 == letter.offset:
            found[-1] = found[-1]._replace(last=letter.offset)
        else:
            found.append(Range(letter.offset, letter.offset))
    return found


def copied(
    data: Buffer, given_up: Sequence[SendLetters], damaged: Callable[[InvalidBatchError], object]
) -> tuple[int, Mapping[int, Record]]:
    """Return the offset before which was looked, and those of the records; up to about COPIED_BYTES.

    `data` are whole batches, from that of the first record on; `damaged` is told of those that are skipped.
    Raises: InvalidBatchError: there is no telling where a batch ends.
    """
    found: dict[int, Record] = {}
    size, end, place = 0, given_up[0].first, 0
    for at, header in batch.batches(data):
        end = max(end, header.base_offset)
        while place < len(given_up) and given_up[place].last < header.base_offset:
            place += 1
        if place == len(given_up) or size >= COPIED_BYTES:
            break
        is_wanted = given_up[place].first < header.next_offset and not header.is_control
        try:
            for row in batch.records(data, at) if is_wanted else ():
                while place < len(given_up) and given_up[place].last < row.offset:
                    place += 1
                if place == len(given_up):
                    break
                if given_up[place].first <= row.offset:
                    found[row.offset] = row._replace(headers=())  # which letters do not have, however large they are
                    size += len(row.key or b"") + len(row.value or b"")
        except InvalidBatchError as error:
            damaged(error)
        end = max(end, header.next_offset)
    return max(end, given_up[0].first + 1), found
