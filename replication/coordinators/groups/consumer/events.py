"""The events of a group of the consumer protocol. `request` is as in `groups.classic.events`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from replication.coordinators.groups.classic.events import Heartbeat, Join, Leave, Sync
from replication.coordinators.groups.consumer.state import ClassicMember
from replication.coordinators.groups.pieces import Pieces, Topics


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
