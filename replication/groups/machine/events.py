"""What a group's machine is told, and what it asks for.

`request` is a number that the driver chose for a request; it is answered once, with Answer. The driver performs
Append in the order in which it was asked for, and tells the outcome with Appended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from replication.errors import ErrorCode
from replication.groups.machine.state import NO_GENERATION, Committed, Member
from replication.model.cluster import TopicPartition

# -------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A client wants to be a member. `fresh_id` becomes its id if it has none, or a static member's new one.

    `needs_known_id`: one without an id is only given one (JoinGroup 4 and later).
    """

    request: int
    member_id: str
    fresh_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    needs_known_id: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """A member wants its assignment; the leader brings everybody's."""

    request: int
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A member is there."""

    request: int
    member_id: str
    generation: int
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """Members leave: (member id, instance id); an instance id alone is an administrator's word."""

    request: int
    leaving: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Offsets are to be stored."""

    request: int
    offsets: Mapping[TopicPartition, Committed]
    member_id: str = ""
    generation: int = NO_GENERATION
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteOffsets:
    """Committed offsets are to go."""

    request: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """The group is to go, with its offsets."""

    request: int


@dataclass(frozen=True, slots=True)
class ForgetTopics:
    """These topics are gone: so are the offsets in them."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class ExpireOffsets:
    """Offsets that nobody wanted for too long may go."""


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed; due at `deadline_ms` of the group."""


@dataclass(frozen=True, slots=True)
class Unloaded:
    """This broker is not the group's coordinator any more."""


@dataclass(frozen=True, slots=True)
class Appended:
    """How an Append came out: its first record's offset in the log, or the error of the log."""

    write: Write
    error: ErrorCode = ErrorCode.NONE
    position: int = -1


Event: TypeAlias = (
    Join
    | Sync
    | Heartbeat
    | Leave
    | Commit
    | DeleteOffsets
    | DeleteGroup
    | ForgetTopics
    | ExpireOffsets
    | Ticked
    | Unloaded
    | Appended
)

# ------------------------------------------------------- what a write is for


@dataclass(frozen=True, slots=True)
class NewAssignment:
    """What the leader of this generation decided."""

    generation: int
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class EmptyGroup:
    """Nobody is left; if this gets lost, the members before are loaded, and time out."""


@dataclass(frozen=True, slots=True)
class NewStaticId:
    """A static member is back under a new id, in this generation; `before` is put back if that cannot be stored."""

    request: int
    generation: int
    before: Member
    member_id: str
    leader: str | None  # as the client is told: the id from before, if this is the leader


@dataclass(frozen=True, slots=True)
class NewOffsets:
    """Offsets committed by a request; `refused` are those that are not stored."""

    request: int
    offsets: Mapping[TopicPartition, Committed]
    refused: Mapping[TopicPartition, ErrorCode]


@dataclass(frozen=True, slots=True)
class GoneOffsets:
    """Offsets that go; and the group with them, if it is the same still. `answers` if a request asked for it."""

    partitions: tuple[TopicPartition, ...]
    group_generation: int | None = None
    request: int | None = None
    refused: Mapping[TopicPartition, ErrorCode] = field(default_factory=dict)
    is_whole_group: bool = False  # a DeleteGroup asked


Write: TypeAlias = NewAssignment | EmptyGroup | NewStaticId | NewOffsets | GoneOffsets

# -------------------------------------------------------------------- stored


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGroup:
    """What is stored of a group besides its offsets."""

    id: str
    protocol_type: str = ""
    generation: int = 0
    protocol: str | None = None
    leader: str | None = None
    since_ms: int = -1
    members: tuple[StoredMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMember:
    """What is stored of a member."""

    id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes = b""
    assignment: bytes = b""


# ------------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class Append:
    """Store these records of the group, all or none: the group (None: no word of it), offsets (None: it is gone).

    `deletes_group`: the group's record is to be wiped.
    """

    write: Write
    group: StoredGroup | None = None
    offsets: Mapping[TopicPartition, Committed | None] = field(default_factory=dict)
    deletes_group: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request."""

    request: int
    body: Body


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Answers Join; `members` (id, instance id, metadata) are told to the leader only."""

    error: ErrorCode = ErrorCode.NONE
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    member_id: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Synced:
    """Answers Sync."""

    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class Left:
    """Answers Leave: how it came out for each, in the order of the request."""

    errors: tuple[ErrorCode, ...]


@dataclass(frozen=True, slots=True)
class OffsetsDone:
    """Answers Commit and DeleteOffsets: `error` for all, or else what was refused; the rest is done."""

    error: ErrorCode = ErrorCode.NONE
    refused: Mapping[TopicPartition, ErrorCode] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Done:
    """Answers Heartbeat and DeleteGroup."""

    error: ErrorCode = ErrorCode.NONE


Body: TypeAlias = Joined | Synced | Left | OffsetsDone | Done
Effect: TypeAlias = Append | Answer
