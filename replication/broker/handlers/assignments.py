"""Assignments of members of newer groups, as answers name them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from replication.coordinators.groups.pieces import NO_PIECES, Pieces
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import topic_uuid
from replication.model.metadata import Metadata
from replication.network.work import Response, Work
from replication.security.access import Operation, Resource


def numbers_of(pieces: Pieces) -> Iterable[tuple[str, list[int]]]:
    """Yield each topic's id with the numbers of its partitions."""
    for topic_id, found in groupby(sorted(pieces), key=lambda piece: piece.topic_id):
        yield topic_id, [piece.partition for piece in found]


def by_id(pieces: Pieces) -> list[Response]:
    return [{"topic_id": topic_uuid(topic_id), "partitions": numbers} for topic_id, numbers in numbers_of(pieces)]


def named(pieces: Pieces, metadata: Metadata) -> list[Response]:
    """Return the rows of these pieces; those of a topic that is gone have no name any more, and are left out."""
    return [
        {"topic_id": topic_uuid(topic_id), "topic_name": name, "partitions": numbers}
        for topic_id, numbers in numbers_of(pieces)
        if (name := metadata.name_of(topic_id)) is not None
    ]


def check_shown(context: Work, assigned: Iterable[Pieces], metadata: Metadata) -> None:
    """Raises: KafkaError: TOPIC_AUTHORIZATION_FAILED: some of it is of a topic that the client may not describe."""
    topics = {piece.topic_id for piece in NO_PIECES.union(*assigned)}
    names = [name for name in map(metadata.name_of, topics) if name is not None]
    if context.hidden(Operation.DESCRIBE, Resource.TOPIC, names):
        said = "The group has described topic(s) that the client is not authorized to describe."
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, said)
