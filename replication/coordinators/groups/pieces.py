"""Piece: a partition of a topic's id, which members of newer groups are assigned; and topics as assignors see them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias


class Piece(NamedTuple):
    topic_id: str
    partition: int


Pieces: TypeAlias = frozenset[Piece]
NO_PIECES: Pieces = frozenset()


class Topic(NamedTuple):
    """A topic of the cluster, as an assignor sees it."""

    id: str
    partitions: int


Topics: TypeAlias = Mapping[str, Topic]  # by name


def hash_of(topics: Topics) -> int:
    """Return a number that changes with the topics, a topic's id or its partitions; 0 for none."""
    if not topics:
        return 0
    digest = hashlib.sha256()
    for name, topic in sorted(topics.items()):
        digest.update(f"{name}\0{topic.id}\0{topic.partitions}\0".encode())
    return int.from_bytes(digest.digest()[:8], "big", signed=True)
