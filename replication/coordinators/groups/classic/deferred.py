"""Deferred events, which change nothing else of a group: the heartbeat of a member, and a commit that is stored.

Nearly all events are of these two kinds. They need no working state: the times of heartbeats, the commits that have
begun and ended, and the stored offsets are enough until another event comes. Law: `with_deferred` returns the group
that a `step` for each would have made.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

from replication.coordinators.groups.classic.state import Group
from replication.coordinators.groups.offsets.state import Committed, Offsets
from replication.coordinators.groups.offsets.step import take_in
from replication.model.cluster import TopicPartition


def with_deferred(
    group: Group,
    sessions: Mapping[str, int],
    stored: Mapping[TopicPartition, Committed],
    begun: Mapping[int, tuple[TopicPartition, ...]] = MappingProxyType({}),
    ended: Collection[int] = (),
) -> Group:
    """Return the group after heartbeats (member: the monotonic end of its session), and with these offsets stored.

    `begun`: the commits that are in flight since; `ended`: of those that were before, which are not any more.
    """
    members = {**group.members}
    for member_id, end_ms in sessions.items():
        members[member_id] = replace(members[member_id], deadline_ms=end_ms)
    return replace(group, members=members, offsets=with_commits(group.offsets, stored, begun, ended))


def with_commits(
    before: Offsets,
    stored: Mapping[TopicPartition, Committed],
    begun: Mapping[int, tuple[TopicPartition, ...]],
    ended: Collection[int],
) -> Offsets:
    in_flight = {number: tps for number, tps in before.in_flight.items() if number not in ended}
    in_flight.update(begun)
    return replace(before, committed=take_in(before.committed, stored), in_flight=in_flight)
