"""Preferred replicas lead again, when a broker misses too much of its leadership."""

from __future__ import annotations

from replication.controller.machine.draft import WorkingState
from replication.controller.machine.elections import drive
from replication.model.cluster import BrokerId, TopicPartition

FIRST_CHECK_MS = 5_000  # after a controller was elected


def start(draft: WorkingState, now_ms: int) -> None:
    draft.next_rebalance_ms = now_ms + FIRST_CHECK_MS if draft.limits.auto_leader_rebalance_enable else None


def maybe_rebalance(draft: WorkingState, now_ms: int) -> None:
    if draft.next_rebalance_ms is None or now_ms < draft.next_rebalance_ms:
        return
    draft.next_rebalance_ms = now_ms + draft.limits.leader_imbalance_check_interval_seconds * 1000
    if draft.preferred:
        return  # a requested election is under way
    for missed in _missed_by_broker(draft):
        for tp in missed:
            draft.preferred.add(tp)
            drive(draft, tp)


def _missed_by_broker(draft: WorkingState) -> list[list[TopicPartition]]:
    """Return, per broker that misses too many, the partitions that it should lead, does not, and could."""
    owned: dict[BrokerId, list[TopicPartition]] = {}
    for tp, replicas in draft.partitions():
        if tp in draft.leadership and tp.topic not in draft.deletions:
            owned.setdefault(replicas[0], []).append(tp)
    found = []
    for broker, tps in sorted(owned.items()):
        missed = [tp for tp in tps if draft.leadership[tp].leader != broker]
        is_too_much = len(missed) * 100 > draft.limits.leader_imbalance_per_broker_percentage * len(tps)
        if is_too_much:
            found.append([tp for tp in missed if broker in draft.available(tp).intersection(draft.leadership[tp].isr)])
    return found
