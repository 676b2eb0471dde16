"""The events of a group, and its effects.

`request` is a number that the driver chose for a request; it is answered once, with Answer. The driver performs
Appends in order, and posts the outcome of each as Appended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from replication.coordinators.groups.machine.state import NO_GENERATION, Committed, Group, Member
from replication.errors import ErrorCode
from replication.model.cluster import TopicPartition

# -------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A client wants to be a member. `fresh_id` becomes its id if it has none, or a static member's new one.

    `needs_known_id`: a client without an id is only given one (JoinGroup 4 and later).
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
    """A member asks for its assignment; the leader brings all assignments."""

    request: int
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    request: int
    member_id: str
    generation: int
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """Members leave: (member id, instance id); an instance id alone comes from an administrator."""

    request: int
    leaving: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    request: int
    offsets: Mapping[TopicPartition, Committed]
    member_id: str = ""
    generation: int = NO_GENERATION
    instance_id: str | None = None
    producer: tuple[int, int] | None = None  # id and epoch: the offsets count once its transaction is committed


@dataclass(frozen=True, slots=True)
class TransactionEnded:
    """The partition of the group has the marker of this producer."""

    producer_id: int
    commits: bool


@dataclass(frozen=True, slots=True)
class DeleteOffsets:
    request: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    request: int


@dataclass(frozen=True, slots=True)
class ForgetTopics:
    """Topics are gone. `before`: only offsets before this place in the log belong to them."""

    topics: frozenset[str]
    before: int | None = None


@dataclass(frozen=True, slots=True)
class ForgetAgain:
    """These offsets of gone topics are not deleted yet; `positions`: where the last of each partition lies."""

    positions: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class ExpireOffsets: ...


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed; due at `deadline_ms` of the group."""


@dataclass(frozen=True, slots=True)
class Unloaded:
    """This broker is no longer the coordinator of the group."""


@dataclass(frozen=True, slots=True)
class Appended:
    """The outcome of an Append: the offset of its first record in the log, or an error."""

    write: Write
    error: ErrorCode = ErrorCode.NONE
    position: int = -1


Event: TypeAlias = (
    Join
    | Sync
    | Heartbeat
    | Leave
    | Commit
    | TransactionEnded
    | DeleteOffsets
    | DeleteGroup
    | ForgetTopics
    | ForgetAgain
    | ExpireOffsets
    | Ticked
    | Unloaded
    | Appended
)

# ------------------------------------------------------- what a write is for


@dataclass(frozen=True, slots=True)
class NewAssignment:
    generation: int
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class EmptyGroup:
    """The group has no members; if this is lost, the former members are loaded and time out."""


@dataclass(frozen=True, slots=True)
class NewStaticId:
    """A static member is back under a new id; `before` is restored if that cannot be stored."""

    request: int
    generation: int
    before: Member
    member_id: str
    leader: str | None  # in the answer: the former id, if this member is the leader


@dataclass(frozen=True, slots=True)
class NewOffsets:
    """Offsets of a commit; `refused` are not stored."""

    request: int
    offsets: Mapping[TopicPartition, Committed]
    refused: Mapping[TopicPartition, ErrorCode]
    producer: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class GoneOffsets:
    """Deleted offsets, and the group with them if its generation is the same; `request` asked for it, if any.

    `positions`: where the last offset of each partition lies, if their topics are gone.
    """

    partitions: tuple[TopicPartition, ...]
    group_generation: int | None = None
    request: int | None = None
    refused: Mapping[TopicPartition, ErrorCode] = field(default_factory=dict)
    is_whole_group: bool = False  # a DeleteGroup asked
    positions: Mapping[TopicPartition, int] = field(default_factory=dict)


Write: TypeAlias = NewAssignment | EmptyGroup | NewStaticId | NewOffsets | GoneOffsets

# ------------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class Append:
    """Store these records, all or none: the group (None: no record of it) and offsets (None: deleted).

    Of a group its generation and its members are stored. `deletes_group`: the group's record is deleted.
    """

    write: Write
    group: Group | None = None
    offsets: Mapping[TopicPartition, Committed | None] = field(default_factory=dict)
    deletes_group: bool = False


@dataclass(frozen=True, slots=True)
class ForgetLater:
    """Post ForgetAgain in a while."""

    positions: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Answer:
    request: int
    body: Body


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Answers Join; only the leader gets `members` (id, instance id, metadata)."""

    error: ErrorCode = ErrorCode.NONE
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    member_id: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Synced:
    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class Left:
    """Answers Leave: one error per member, in the order of the request."""

    errors: tuple[ErrorCode, ...]


@dataclass(frozen=True, slots=True)
class OffsetsDone:
    """Answers Commit and DeleteOffsets: `error` for all, or else `refused`; the rest is done."""

    error: ErrorCode = ErrorCode.NONE
    refused: Mapping[TopicPartition, ErrorCode] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Done:
    error: ErrorCode = ErrorCode.NONE


Body: TypeAlias = Joined | Synced | Left | OffsetsDone | Done
Effect: TypeAlias = Append | ForgetLater | Answer
