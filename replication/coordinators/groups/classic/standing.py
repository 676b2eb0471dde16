"""Events that leave a group as it stands: the heartbeat of a member, and a commit that is stored as it comes.

Nearly all events are of these two kinds. They need no working state: it is enough to note when a member was heard,
which commits have begun and ended, and what is stored, until anything else happens. Law: a group that has `caught_up`
is as if each had been a `step`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

from replication.coordinators.groups.classic.state import Group
from replication.coordinators.groups.offsets.state import Committed
from replication.coordinators.groups.offsets.step import take_in
from replication.model.cluster import TopicPartition


def caught_up(
    group: Group,
    heard: Mapping[str, int],
    stored: Mapping[TopicPartition, Committed],
    begun: Mapping[int, tuple[TopicPartition, ...]] = MappingProxyType({}),
    ended: Collection[int] = (),
) -> Group:
    """Return the group after its members were heard at these times (monotonic), and these offsets were stored.

    `begun`: the commits that are in flight since; `ended`: of those that were before, which are not any more.
    """
    members = {**group.members}
    for member_id, at_ms in heard.items():
        member = members[member_id]
        members[member_id] = replace(member, deadline_ms=at_ms + member.session_timeout_ms)
    before = group.offsets
    in_flight = {number: tps for number, tps in before.in_flight.items() if number not in ended}
    in_flight.update(begun)
    offsets = replace(before, committed=take_in(before.committed, stored), in_flight=in_flight)
    return replace(group, members=members, offsets=offsets)
