"""The events of a group of the consumer protocol, and its effects. `request` is as in `groups.classic.events`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from replication.coordinators.groups.classic.events import Heartbeat, Join, Leave, Sync
from replication.coordinators.groups.consumer.state import ClassicMember
from replication.coordinators.groups.keys import Key
from replication.coordinators.groups.messages import Append, Body, Write
from replication.coordinators.groups.pieces import Pieces, Topics
from replication.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """A member joins (epoch 0), stays, or leaves (-1; -2: it comes back under its instance id).

    None, or -1 for the timeout: as before. `matched`: the topics that the member's regular expression matches, sorted;
    None: it has none. `classic`: of a member of that protocol, whose JoinGroup this is. `known`: the topics of the
    cluster; `known_at`: another number once they change, None: not known.
    """

    request: int
    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Pieces | None = None
    matched: tuple[str, ...] | None = None
    known: Topics = field(default_factory=dict)
    known_at: int | None = None
    classic: ClassicMember | None = None


# They change what is stored, or tell of it, and wait while something is being stored.
Waiting: TypeAlias = ConsumerHeartbeat | Leave | Join | Sync | Heartbeat


@dataclass(frozen=True, slots=True)
class ConsumerChange(Write):
    """The state of a group; `number` counts these writes."""

    number: int


@dataclass(frozen=True, slots=True)
class AppendConsumer(Append):
    """Store these values by their keys; None: the record is deleted."""

    values: Mapping[Key, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard(Body):
    """Answers ConsumerHeartbeat. `assigned`: what the member may read now; None: as before."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    assigned: Pieces | None = None
