"""The events of a share group, and its effects. `request` is as in `groups.classic.events`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from replication.coordinators.groups.classic.events import DeleteGroup
from replication.coordinators.groups.messages import Body
from replication.coordinators.groups.offsets.events import ForgetTopics
from replication.coordinators.groups.pieces import Piece, Topics
from replication.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareHeartbeat:
    """A member joins (epoch 0), stays, or leaves (-1). None: as before. `known`: the topics of the cluster."""

    request: int
    member_id: str
    epoch: int
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] | None = None
    known: Topics = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AlterShareOffsets:
    """The group, which nobody is in, begins at these offsets; `names` has those of the topics, by their ids."""

    request: int
    offsets: Mapping[Piece, int]
    names: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DeleteShareOffsets:
    """The states of these topics (names by their ids) are deleted; nobody is in the group. `known`: as above."""

    request: int
    topics: Mapping[str, str]
    known: Topics = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StatesAnswered:
    """The outcome of a call to the share states."""

    number: int
    errors: Mapping[Piece, ErrorCode]


# They change what is stored, and wait while something is being stored.
Waiting: TypeAlias = (
    ShareHeartbeat | AlterShareOffsets | DeleteShareOffsets | StatesAnswered | DeleteGroup | ForgetTopics
)


@dataclass(frozen=True, slots=True)
class AskStates:
    """Have share states begin at these start offsets, in this state epoch, or be deleted; see `StatesAnswered`."""

    number: int
    starts: Mapping[Piece, int]
    epoch: int
    deletes: bool


@dataclass(frozen=True, slots=True)
class SharesDone(Body):
    """Answers AlterShareOffsets and DeleteShareOffsets: `error` for all, or else `errors` of partitions."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    errors: Mapping[Piece, ErrorCode] = field(default_factory=dict)
