"""The values of a consumer group. All are frozen; nothing here decides.

A *member* is a client that joined; its id comes from the coordinator. A *static* member also has an instance id of
its own, and may return under a new member id without a rebalance. The *leader* is the member that assigns partitions.
A *generation* is one agreement about the members; it only grows.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from replication.coordinators.groups.keys import NO_KEYS, Key, Kind
from replication.coordinators.groups.offsets.state import NO_TIME, Offsets
from replication.coordinators.groups.pieces import NO_PIECES, Pieces

NO_GENERATION = -1
CONSUMER_PROTOCOL_TYPE = "consumer"  # the metadata of its members names the subscribed topics


class Phase(enum.StrEnum):
    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"  # members must join (again)
    COMPLETING = "CompletingRebalance"  # the leader must assign partitions
    STABLE = "Stable"
    DEAD = "Dead"  # unloaded


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One member. `joining` and `syncing` are its parked requests, None without one.

    It is expelled at `deadline_ms` (monotonic) unless it has a parked request; a new one, whose join was never
    answered, even then.
    """

    id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]  # the preferred one first
    deadline_ms: int
    assignment: bytes = b""
    held: Pieces = NO_PIECES  # while it was in a consumer group: it may read that until it joins again
    is_new: bool = False
    joining: int | None = None
    syncing: int | None = None

    def metadata(self, protocol: str) -> bytes:
        return next((data for name, data in self.protocols if name == protocol), b"")

    @property
    def is_excused(self) -> bool:
        """Return whether a request is parked, so that it need not send heartbeats."""
        return not self.is_new and (self.joining is not None or self.syncing is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One group.

    Invariants: a group with members is PREPARING, COMPLETING or STABLE, one without is EMPTY or PREPARING; the leader
    is a member; no join is parked in COMPLETING; `unsynced` are members.
    """

    id: str
    phase: Phase = Phase.EMPTY
    since_ms: int = NO_TIME  # wall time of the phase
    protocol_type: str | None = None  # None: nobody ever joined
    generation: int = 0
    protocol: str | None = None
    leader: str | None = None
    members: Mapping[str, Member] = field(default_factory=dict)  # in the order of their joins
    # Given ids -> until when they may join (monotonic).
    pending: Mapping[str, int] = field(default_factory=dict)
    join_until_ms: int | None = None  # PREPARING: members that have not joined by then are left out
    initial_left_ms: int | None = None  # by how much a first rebalance may still be delayed
    has_newcomer: bool = False  # a member joined since the last delay
    sync_until_ms: int | None = None  # members that have not synced by then are expelled
    unsynced: frozenset[str] = frozenset()
    unstored: frozenset[Key] = NO_KEYS  # of the other protocol, that the log may have: they go with the next write
    offsets: Offsets = field(default_factory=Offsets)

    @property
    def is_blank(self) -> bool:
        has_members = self.members or self.pending or self.generation or self.phase not in (Phase.EMPTY, Phase.DEAD)
        return self.offsets.is_empty and not (has_members or self.unstored)

    @property
    def keys(self) -> frozenset[Key]:
        """The records that the log may have of the group."""
        return self.unstored | {Key(Kind.CLASSIC)} if self.generation else self.unstored

    @property
    def topics(self) -> frozenset[str] | None:
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE or self.protocol is None or not self.members:
            return None
        found: set[str] = set()
        for member in self.members.values():
            names = subscribed_topics(member.metadata(self.protocol))
            if names is None:
                return None
            found |= names
        return frozenset(found)


def deadline_ms(group: Group) -> int | None:
    """Return the (monotonic) time of the next Ticked that the group needs; None for none."""
    times = [m.deadline_ms for m in group.members.values() if not m.is_excused]
    times += group.pending.values()
    times += [time for time in (group.join_until_ms, group.sync_until_ms) if time is not None]
    return min(times, default=None)


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topics in a consumer's metadata (version, array of names, more); None if it is malformed."""
    try:
        _, count = _HEAD.unpack_from(metadata)
        at, names = _HEAD.size, set()
        if count < -1:
            return None
        for _ in range(count):
            (size,) = _SIZE.unpack_from(metadata, at)
            at += _SIZE.size
            if size < 0 or at + size > len(metadata):
                return None
            names.add(metadata[at : at + size].decode())
            at += size
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(names)


_HEAD = struct.Struct(">hi")
_SIZE = struct.Struct(">h")
