"""Batches for `__consumer_offsets`: one of each Append, and one of the commits that come together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from logstore.records.batch import TRANSACTIONAL, Record, build
from logstore.records.keyed import build_keyed
from replication.coordinators.groups.messages import Append
from replication.coordinators.groups.offsets.events import NewOffsets
from replication.coordinators.groups.offsets.state import NewOffset
from replication.coordinators.groups.records import offset_key, offset_value, records_of
from replication.coordinators.groups.slot import Slot
from replication.coordinators.terms import Term
from replication.model.cluster import TopicPartition

BYTES_MAX = 16 * 1024  # of commits that come together: more are several batches
CHARACTER_BYTES_MAX = 4


class Commit(NamedTuple):
    """Offsets that a consumer wants stored, outside of a transaction."""

    group_id: str
    member_id: str
    generation: int
    instance_id: str | None
    offsets: Mapping[TopicPartition, NewOffset]


class CommitBatch:
    """Commits for groups of one partition, with their places among those that came, and the records of them all."""

    __slots__ = ("commits", "in_flight", "rows", "size_bytes", "term")

    def __init__(self, term: Term[Slot]) -> None:
        self.term = term
        self.commits: list[tuple[int, Commit]] = []
        self.in_flight: list[tuple[int, Slot]] = []  # the numbers of these commits
        self.rows: list[tuple[bytes, bytes]] = []
        self.size_bytes = 0

    def add(self, place: int, commit: Commit, text_bytes_max: int) -> None:
        """Add the commit, unless one of its texts may be too long."""
        group_id, _, _, _, offsets = commit
        for new in offsets.values():
            if len(new.metadata) * CHARACTER_BYTES_MAX > text_bytes_max:
                return
        self.commits.append((place, commit))
        for tp, new in offsets.items():
            key, value = offset_key(group_id, tp), offset_value(new)
            self.rows.append((key, value))
            self.size_bytes += len(key) + len(value)


def batch_of(group_id: str, append: Append, now_ms: int) -> tuple[bytearray, tuple[int, int] | None]:
    """Return the batch of an Append, and the producer (id and epoch) in whose transaction it is."""
    rows = records_of(group_id, append)
    producer = append.write.producer if isinstance(append.write, NewOffsets) else None
    if producer is None:
        return build_keyed(rows, now_ms), None
    items = [Record(n, now_ms, key, value) for n, (key, value) in enumerate(rows)]
    return build(items, attributes=TRANSACTIONAL, producer=(*producer, -1)), producer
