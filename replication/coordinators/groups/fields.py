"""Fields of the newer records of groups: compact strings and arrays, partitions by topic, and tagged fields.

Tagged fields that are not known here are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import TypeVar
from uuid import UUID

from replication.coordinators import binary
from replication.coordinators.groups.pieces import Piece, Pieces
from replication.model.cluster import topic_id_of, topic_uuid

Item = TypeVar("Item")
VERSION, NO_TAGS = binary.SHORT.pack(0), b"\x00"  # of a value: its only version, and its end


def text(value: str | None) -> bytes:
    if value is None:
        return b"\x00"
    data = value.encode()
    return binary.varint(len(data) + 1) + data


def array(items: Iterable[bytes], count: int) -> bytes:
    return binary.varint(count + 1) + b"".join(items)


def texts(values: tuple[str, ...]) -> bytes:
    return array(map(text, values), len(values))


def numbers(values: list[int]) -> bytes:
    return array(map(binary.INT.pack, values), len(values))


def pieces(values: Pieces, since: Mapping[Piece, int] | None = None) -> bytes:
    """Return the partitions by topic, with their assignment epochs if `since` has them."""
    by_topic = [(topic, list(found)) for topic, found in groupby(sorted(values), key=lambda piece: piece.topic_id)]
    rows = (
        id_bytes(topic)
        + numbers([piece.partition for piece in found])
        + (NO_TAGS if since is None else _epochs_tag([since[piece] for piece in found]))
        for topic, found in by_topic
    )
    return array(rows, len(by_topic))


def _epochs_tag(epochs: list[int]) -> bytes:
    """Return the tagged fields of a topic: number 0 is the assignment epochs, in the order of the partitions."""
    data = numbers(epochs)
    return b"\x01\x00" + binary.varint(len(data)) + data


def id_bytes(topic_id: str) -> bytes:
    number = topic_uuid(topic_id)
    assert number is not None, "assigned topics have ids"
    return number.bytes


def check_version(at: binary.Cursor, what: str) -> None:
    """Raises: UnknownRecordError: a value of another version."""
    if (version := at.take_short()) != 0:
        raise binary.UnknownRecordError(f"version {version} of {what}")


def read_array(at: binary.Cursor, read: Callable[[binary.Cursor], Item]) -> list[Item]:
    return [read(at) for _ in range(at.take_varint() - 1)]


def read_text(at: binary.Cursor) -> str | None:
    size = at.take_varint()
    return None if size == 0 else at.take_text(size - 1)


def read_texts(at: binary.Cursor) -> tuple[str, ...]:
    return tuple(found or "" for found in read_array(at, read_text))


def read_id(at: binary.Cursor) -> str:
    return topic_id_of(UUID(bytes=at.take(16)))


def read_pieces(at: binary.Cursor) -> Pieces:
    found: set[Piece] = set()
    for _ in range(at.take_varint() - 1):
        topic_id = read_id(at)
        found.update(Piece(topic_id, number) for number in read_array(at, binary.Cursor.take_int))
        skip_tags(at)
    return frozenset(found)


def read_pieces_since(at: binary.Cursor, default: int) -> dict[Piece, int]:
    """Return the assignment epochs of the pieces; `default` where the record does not say one for each."""
    found: dict[Piece, int] = {}
    for _ in range(at.take_varint() - 1):
        topic_id = read_id(at)
        partitions = read_array(at, binary.Cursor.take_int)
        epochs = read_array(binary.Cursor(at.take_tags().get(0, b"\x00")), binary.Cursor.take_int)
        if len(epochs) != len(partitions):
            epochs = [default] * len(partitions)
        found.update((Piece(topic_id, number), epoch) for number, epoch in zip(partitions, epochs, strict=True))
    return found


def tags(at: binary.Cursor) -> Iterator[tuple[int, int]]:
    """Yield the number of each tagged field, and its bytes as a number."""
    for _ in range(at.take_varint()):
        number = at.take_varint()
        yield number, int.from_bytes(at.take(at.take_varint()), "big", signed=True)


def skip_tags(at: binary.Cursor) -> None:
    for _ in tags(at):
        pass
