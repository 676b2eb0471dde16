"""Whether replicas hold the same batches: decided from the bytes that each of them has from an offset on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import NamedTuple

import pyarrow as pa

from logstore.records.batch import (
    DELETE_HORIZON,
    HEADER_BYTES,
    BatchHeader,
    InvalidBatchError,
    batches,
    check,
    whole_bytes,
)
from logstore.records.compression import Buffer


class Finding(NamedTuple):
    """The first offset at which a replica is not as the others, and how."""

    broker: int
    offset: int
    reason: str


class Compared(NamedTuple):
    """All replicas without a finding hold the same up to `next_offset`, with right checksums."""

    next_offset: int
    findings: tuple[Finding, ...] = ()


def compare(offset: int, end: int, chunks: Mapping[int, Buffer], *, is_compacted: bool) -> Compared:
    """Compare what replicas, by their brokers, have from `offset` on: batches, of which the first may begin below.

    Batches that begin at `end` or later are left out. The first broker that is sound is the one with which others are
    compared. Replicas of a compacted topic may lack different records: there batches are compared that have all of
    theirs, and the others have their checksums verified.
    """
    size = min(map(len, chunks.values()))
    first, *others = (pa.py_buffer(chunk).slice(0, size) for chunk in chunks.values())
    if all(first.equals(other) for other in others):
        stop, last = whole_bytes(first, size, upper=end)
        try:
            for position, header in batches(first.slice(0, stop)):
                check(first, position, header)
            if stop:
                return Compared(next(batches(first, last))[1].next_offset)
        except InvalidBatchError:
            pass  # whose it is, and where, is said batch by batch
    return _compare_each(offset, end, chunks, is_compacted=is_compacted)


class _Batch(NamedTuple):
    header: BatchHeader
    data: memoryview

    @property
    def has_all(self) -> bool:
        """Has compaction left every record of it, and its header?"""
        return self.header.count == self.header.last_offset_delta + 1 and not self.header.attributes & DELETE_HORIZON


class _Stop(Enum):
    """Why a chunk has no more batches."""

    DATA = "what was fetched is over"
    END = "what is to be compared is over"


def _compare_each(offset: int, end: int, chunks: Mapping[int, Buffer], *, is_compacted: bool) -> Compared:
    """Compare batch by batch; a replica with a finding is compared no further."""
    walks = {broker: _sound(chunk, end) for broker, chunk in chunks.items()}
    heads: dict[int, _Batch | _Stop] = {}
    findings: list[Finding] = []
    while True:
        for broker in [each for each in walks if each not in heads]:
            if isinstance(head := next(walks[broker]), str):
                findings.append(Finding(broker, offset, head))
                del walks[broker]
            else:
                heads[broker] = head
        here = {broker: heads[broker] for broker in walks}  # in the order of the chunks
        if _Stop.DATA in here.values():
            return Compared(offset, tuple(findings))
        different = list(_differences(offset, _whole(here) if is_compacted else here))
        for finding in different:
            del walks[finding.broker], heads[finding.broker]
        findings += different
        left = [head.header for head in heads.values() if isinstance(head, _Batch)]
        if not left:
            return Compared(end, tuple(findings))
        offset = min(left).next_offset
        heads = {b: head for b, head in heads.items() if isinstance(head, _Stop) or head.header.next_offset > offset}


def _sound(chunk: Buffer, end: int) -> Iterator[_Batch | _Stop | str]:
    """The batches with right checksums; then why there are no more: what is wrong with the next one, or a stop."""
    try:
        for position, header in batches(chunk):
            if header.base_offset >= end:
                yield _Stop.END
            check(chunk, position, header)
            yield _Batch(header, memoryview(chunk)[position : position + header.size_bytes])
    except InvalidBatchError as error:
        yield error.reason
    yield _Stop.DATA if len(chunk) >= HEADER_BYTES and whole_bytes(chunk, len(chunk))[0] else "no whole batch"


def _whole(heads: Mapping[int, _Batch | _Stop]) -> dict[int, _Batch | _Stop]:
    """Return the batches at the smallest offset that compaction has not touched."""
    batches_here = {broker: head for broker, head in heads.items() if isinstance(head, _Batch)}
    base = min((head.header.base_offset for head in batches_here.values()), default=0)
    return {b: head for b, head in batches_here.items() if head.header.base_offset == base and head.has_all}


def _differences(offset: int, heads: Mapping[int, _Batch | _Stop]) -> Iterator[Finding]:
    """How batches at the same place differ from that of the first broker."""
    if heads:
        (first, ours), *others = heads.items()
        for broker, theirs in others:
            if reason := _difference(theirs, ours):
                yield Finding(broker, offset, f"{reason} on broker {first}")


def _difference(theirs: _Batch | _Stop, ours: _Batch | _Stop) -> str | None:
    """How the one batch differs from the other; None: not at all."""
    if isinstance(theirs, _Stop) or isinstance(ours, _Stop):
        return None if theirs is ours else f"{_named(theirs)} here, {_named(ours)}"
    if pa.py_buffer(theirs.data).equals(pa.py_buffer(ours.data)):
        return None
    mine, other = theirs.header, ours.header
    for name in BatchHeader._fields:
        if (here := getattr(mine, name)) != (there := getattr(other, name)) and name != "crc":
            return f"{_named(theirs)} has {name} {here}, {there}"
    return f"{_named(theirs)} has CRC {mine.crc:#010x}, {other.crc:#010x}"


def _named(head: _Batch | _Stop) -> str:
    return "no batch" if isinstance(head, _Stop) else f"the batch of offset {head.header.base_offset}"
