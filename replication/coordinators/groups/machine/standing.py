"""Events that leave a group as it stands: the heartbeat of a member, and a commit that is stored as it comes.

Nearly all events are of these two kinds. They need no working state: it is enough to note when a member was heard,
which commits have begun and ended, and what is stored, until anything else happens. Law: a group that has `caught_up`
is as if each had been a `step`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

from replication.coordinators.groups.machine.state import Committed, Group
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
    commits = {number: tps for number, tps in group.commits.items() if number not in ended}
    commits.update(begun)
    return replace(group, members=members, offsets=take_in(group.offsets, stored), commits=commits)


def take_in(
    offsets: Mapping[TopicPartition, Committed], stored: Mapping[TopicPartition, Committed]
) -> Mapping[TopicPartition, Committed]:
    """Return the offsets with those that are new; of two for a partition, the later one in the log wins."""
    taken = dict(offsets)
    for tp, new in stored.items():
        old = taken.get(tp)
        if old is None or old.position <= new.position:
            taken[tp] = new
    return taken
