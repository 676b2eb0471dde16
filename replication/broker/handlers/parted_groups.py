"""Answers that consumer and share groups have in common: to heartbeats and descriptions, and assignments in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any, TypeAlias, TypeVar

from replication.broker.handlers.operations import NOT_ASKED, granted
from replication.coordinators.groups.consumer.state import ConsumerGroup
from replication.coordinators.groups.coordinator import GroupCoordinator
from replication.coordinators.groups.parts.events import Heard
from replication.coordinators.groups.parts.state import JOINING
from replication.coordinators.groups.pieces import NO_PIECES, Pieces
from replication.coordinators.groups.share.state import ShareGroup
from replication.errors import NONE, ErrorCode, KafkaError
from replication.model.cluster import topic_uuid
from replication.model.metadata import Metadata
from replication.network.work import Response, Work
from replication.protocol import requests
from replication.protocol.kio_pieces import Rows
from replication.security.access import Operation, Resource

Group = TypeVar("Group", ConsumerGroup, ShareGroup)
Asked: TypeAlias = requests.ConsumerGroupDescribeRequest | requests.ShareGroupDescribeRequest
_BLANK = {"group_state": "", "group_epoch": 0, "assignment_epoch": 0, "assignor_name": "", "members": ()}


def check_rules(rules: Iterable[tuple[bool, str]]) -> None:
    """Raises: KafkaError: INVALID_REQUEST, in the words of the first rule that is broken."""
    for is_broken, message in rules:
        if is_broken:
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def told(heard: Heard, epoch: int, pause_ms: int) -> Response:
    """Return the answer to a heartbeat in this epoch; `pause_ms`: until the next one of a member that stays."""
    if heard.error:
        said = heard.message or None
        return {"error_code": heard.error, "error_message": said, "member_epoch": 0, "heartbeat_interval": 0}
    return {
        "error_code": NONE,
        "member_id": heard.member_id,
        "member_epoch": heard.epoch,
        "heartbeat_interval": 0 if epoch < JOINING else pause_ms,
        "assignment": None if heard.assigned is None else {"topic_partitions": by_id(heard.assigned)},
    }


def described(context: Work, body: Asked, describe: Callable[[Work, str], dict[str, Any]]) -> Response:
    """Return the rows of the groups that are asked for, each once."""

    def row(group_id: str) -> Response:
        allowed = granted(context, Resource.GROUP, group_id) if body.include_authorized_operations else NOT_ASKED
        try:
            found = describe(context, group_id)
        except KafkaError as error:
            found = {**_BLANK, "error_code": error.code, "error_message": error.message or None}
        return {"group_id": group_id, **found, "authorized_operations": allowed}

    asked = dict.fromkeys(body.group_ids)
    return {"groups": Rows(len(asked), map(row, asked))}


def group_of(groups: GroupCoordinator, group_id: str, kind: type[Group], name: str) -> Group:
    """Raises: KafkaError: GROUP_ID_NOT_FOUND: none, or one of another type; as `GroupCoordinator.group`."""
    group = groups.group(group_id)
    if not isinstance(group, kind):
        said = "not found" if group is None else f"is not a {name} group"
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {said}.")
    return group


def described_group(group: Group, assignor: str, member: Callable[[Group, str], Response]) -> dict[str, Any]:
    return {
        "error_code": NONE,
        "error_message": None,
        "group_state": group.phase,
        "group_epoch": group.epoch,
        "assignment_epoch": group.target_epoch,
        "assignor_name": assignor,
        "members": Rows(len(group.members), (member(group, name) for name in group.members)),
    }


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
