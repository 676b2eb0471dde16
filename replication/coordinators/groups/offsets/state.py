"""The values of committed offsets. All are frozen; nothing here decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from replication.model.cluster import TopicPartition

NO_TIME = -1


class NewOffset(NamedTuple):
    """An offset that is to be committed: what `Committed` has, but for its place in the log."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed offset. `expire_ms`: given by old clients. `position`: the offset of its record in the log."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int = NO_TIME
    expire_ms: int = NO_TIME
    position: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Offsets:
    """The offsets of one group: those that count, those in flight, and those in transactions."""

    committed: Mapping[TopicPartition, Committed] = field(default_factory=dict)
    in_flight: Mapping[int, tuple[TopicPartition, ...]] = field(default_factory=dict)  # by request
    # Offsets in transactions that have no marker yet, by producer id; and of the commits in flight, those in one:
    # the producer id, and whether it was committed meanwhile (None: it is open).
    uncommitted: Mapping[int, Mapping[TopicPartition, Committed]] = field(default_factory=dict)
    in_transactions: Mapping[int, tuple[int, bool | None]] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not (self.committed or self.in_flight or self.uncommitted)

    @property
    def unstable(self) -> frozenset[TopicPartition]:
        """The partitions with an offset in a transaction that may still be aborted."""
        stored = (tp for offsets in self.uncommitted.values() for tp in offsets)
        coming = (tp for request in self.in_transactions for tp in self.in_flight.get(request, ()))
        return frozenset((*stored, *coming))
