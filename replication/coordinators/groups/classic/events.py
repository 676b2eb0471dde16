"""The events of a group, and its effects; those of its offsets are in `offsets.events`.

`request` is a number that the driver chose for a request; it is answered once, with Answer. The driver performs
Appends in order, and posts the outcome of each as Appended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from replication.coordinators.groups.classic.state import NO_GENERATION, Group, Member
from replication.coordinators.groups.messages import Answer, Append, Appended, Body, Write
from replication.coordinators.groups.offsets import events as offset_events
from replication.coordinators.groups.pieces import Topics
from replication.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A client wants to be a member. `fresh_id` becomes its id if it has none, or a static member's new one.

    `needs_known_id`: a client without an id is only given one (JoinGroup 4 and later). `may_skip`: a static member that
    is back as the leader can be told to assign nothing (JoinGroup 9 and later). `known` and `known_at` are as in a
    ConsumerHeartbeat.
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
    may_skip: bool = False
    known: Topics = field(default_factory=dict)
    known_at: int | None = None


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
    known: Topics = field(default_factory=dict)


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


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """`known`: the topics of the cluster."""

    request: int
    known: Topics = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed; due at `deadline_ms` of the group."""


@dataclass(frozen=True, slots=True)
class Unloaded:
    """This broker is no longer the coordinator of the group."""


Event: TypeAlias = (
    Join
    | Sync
    | Heartbeat
    | Leave
    | offset_events.Commit
    | offset_events.TransactionEnded
    | offset_events.DeleteOffsets
    | DeleteGroup
    | offset_events.ForgetTopics
    | offset_events.ForgetAgain
    | offset_events.ExpireOffsets
    | Ticked
    | Unloaded
    | Appended
)

# ------------------------------------------------------- what a write is for


@dataclass(frozen=True, slots=True)
class NewAssignment(Write):
    generation: int
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class EmptyGroup(Write):
    """The group has no members; if this is lost, the former members are loaded and time out."""


@dataclass(frozen=True, slots=True)
class NewStaticId(Write):
    """A static member is back under a new id; `before` is restored if that cannot be stored."""

    request: int
    generation: int
    before: Member
    member_id: str
    leader: str | None  # in the answer; None: that of the group


# ------------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class AppendGroup(Append):
    """Store the generation and the members of the group."""

    group: Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined(Body):
    """Answers Join; only the leader gets `members` (id, instance id, metadata). `skips`: it is to assign nothing."""

    error: ErrorCode = ErrorCode.NONE
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    member_id: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    skips: bool = False


@dataclass(frozen=True, slots=True)
class Synced(Body):
    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class Left(Body):
    """Answers Leave: one error per member, in the order of the request."""

    errors: tuple[ErrorCode, ...]


Effect: TypeAlias = AppendGroup | offset_events.AppendOffsets | offset_events.ForgetLater | Answer
