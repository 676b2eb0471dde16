"""Bits that flip on a simulated disk, each the last one of a batch; and how they are put back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from logstore.records.batch import InvalidBatchError, batches, check
from replication.model.cluster import TopicPartition
from tests.support.disk import Inode


def has_soundly(broker: Any, tp: TopicPartition, batch: Any) -> bool:
    """Is this batch on the broker's disk as it was written? Whether the broker is up or not."""
    return (batch.base_offset, batch.crc) in sound_batches(broker, tp)


def sound_batches(broker: Any, tp: TopicPartition) -> set[tuple[int, int]]:
    """Return base offset and CRC of each batch that is on the broker's disk as it was written."""
    return {
        (header.base_offset, header.crc)
        for inode in _files(broker, tp)
        for position, header in _headers(inode)
        if _is_sound(inode, position, header)
    }


def flip(broker: Any, tp: TopicPartition, batch: Any) -> None:
    """In the cache, and on the disk."""
    for inode, last, is_sound in list(_places(broker, tp, batch)):
        if is_sound:
            _turn(inode, last)


def unflip(broker: Any, tp: TopicPartition, batch: Any) -> None:
    """Make the damaged copies sound again."""
    for inode, last, is_sound in list(_places(broker, tp, batch)):
        if not is_sound:
            _turn(inode, last)


def _places(broker: Any, tp: TopicPartition, batch: Any) -> Iterator[tuple[Inode, int, bool]]:
    """Files of the log that have this batch, where its last byte is, and whether all of it is as it was."""
    for inode in _files(broker, tp):
        for position, header in _headers(inode):
            if (header.base_offset, header.crc) == (batch.base_offset, batch.crc):
                yield inode, position + header.size_bytes - 1, _is_sound(inode, position, header)


def _files(broker: Any, tp: TopicPartition) -> list[Inode]:
    prefix = f"/broker/{tp.topic}-{tp.partition}/"
    return [inode for path, inode in broker.disk.names.items() if path.startswith(prefix) and path.endswith(".log")]


def _headers(inode: Inode) -> Iterator[tuple[int, Any]]:
    try:
        yield from batches(inode.data)
    except InvalidBatchError:  # room that is not used yet, or what a crash has left
        return


def _is_sound(inode: Inode, position: int, header: Any) -> bool:
    try:
        check(inode.data, position, header)
    except InvalidBatchError:
        return False
    return True


def _turn(inode: Inode, position: int) -> None:
    inode.data[position] ^= 1
    synced = bytearray(inode.synced)
    synced[position] ^= 1
    inode.synced = bytes(synced)
