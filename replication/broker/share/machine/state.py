"""The values of a share partition at its leader. All are frozen; nothing here decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from replication.broker.share.machine.runs import Runs


class ShareTerms(NamedTuple):
    """The settings of the group, as Kafka names them."""

    delivery_count_limit: int = 5
    record_lock_duration_ms: int = 30_000
    partition_max_record_locks: int = 2000
    renew_acknowledge_enable: bool = True
    has_dead_letters: bool = False  # errors.deadletterqueue.topic.name is set


class Asked(NamedTuple):
    """A request that is answered once this write is stored."""

    request: int
    write: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePartitionState:
    """Every record before `start` is done with; the runs are of those from there to the last one read for a member.

    Invariants: the first run begins at `start`, each other one behind its neighbour; the first is not done with, unless
    a write has it. One write is on its way at a time (`writing`, 0: none): acknowledgements that come meanwhile
    are gathered for the next one, `gathering`.
    """

    start: int = 0
    runs: Runs = ()
    writing: int = 0
    gathering: int = 1
    asked: tuple[Asked, ...] = ()

    @property
    def end(self) -> int:
        """The first offset that was read for nobody yet."""
        return self.runs[-1].last + 1 if self.runs else self.start
