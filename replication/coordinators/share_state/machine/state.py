"""The values of a share partition's state. All are frozen; nothing here decides.

The *state epoch* is of the group: it goes up when somebody sets the offset. The *leader epoch* is that of the
partition's leader, who alone writes. Times are wall times in milliseconds, since they are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from replication.coordinators.share_state.machine.batches import NO_OFFSET, Batches

NO_COUNT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareStateSettings:
    """Names and defaults as in BrokerConfig."""

    share_coordinator_snapshot_update_records_per_snapshot: int = 500
    share_coordinator_cold_partition_snapshot_interval_ms: int = 300_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that is stored of a share partition; the value of a ShareSnapshot record.

    Every record before `start_offset` is done with, and of those behind, `delivery_complete_count`; NO_OFFSET: it is to
    be found by `share.auto.offset.reset`, when a leader first loads it. `written_ms` differs from `created_ms` once the
    snapshot was repeated without a change.
    """

    snapshot_epoch: int = 0
    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = NO_OFFSET
    delivery_complete_count: int = NO_COUNT
    created_ms: int = 0
    written_ms: int = 0
    batches: Batches = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """A change since the snapshot; the value of a ShareUpdate record."""

    snapshot_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = NO_OFFSET
    delivery_complete_count: int = NO_COUNT
    batches: Batches = ()


Record: TypeAlias = Snapshot | Update | None  # None deletes the state


class SharePartitionKey(NamedTuple):
    """A partition of a topic, for one group. Its text is Kafka's, by which the internal topic's partition is found."""

    group_id: str
    topic_id: str
    partition: int

    def __str__(self) -> str:
        return f"{self.group_id}:{self.topic_id}:{self.partition}"
