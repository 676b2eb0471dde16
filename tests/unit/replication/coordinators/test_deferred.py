"""Commits that are collected beside a group, and applied later, make the group that a step for each would have made."""

import itertools
from dataclasses import replace

import pytest

from replication.coordinators.groups.classic import events
from replication.coordinators.groups.classic.deferred import with_deferred
from replication.coordinators.groups.classic.permission import may_commit, may_stay
from replication.coordinators.groups.classic.state import Group, Member, Phase
from replication.coordinators.groups.classic.step import step
from replication.coordinators.groups.messages import Append, Appended, Done, Now
from replication.coordinators.groups.offsets.events import Commit, OffsetsDone
from replication.coordinators.groups.offsets.state import Committed, Offsets
from replication.coordinators.groups.settings import GroupSettings
from replication.errors import ErrorCode
from replication.model.cluster import TopicPartition

LIMITS, NOW, LATER = GroupSettings(), Now(50_000, 1_000_000), Now(55_000, 1_005_000)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ROLLED = 3  # the generation


SESSION_MS = 10_000


def member(member_id, instance_id=None, session_ms=SESSION_MS):
    return Member(
        id=member_id,
        instance_id=instance_id,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=60_000,
        protocols=(("range", b""),),
        deadline_ms=51_000,
    )


MEMBERS = {one.id: one for one in (member("a"), member("c", "x", 20_000), member("d", "y"))}
STORED = {T0: Committed(7, -1, "", 1, -1, 100)}
KEPT = Offsets(committed=STORED)
JOINED = {"generation": ROLLED, "protocol_type": "consumer", "protocol": "range", "leader": "a", "members": MEMBERS}
GROUPS = [
    Group(id="g"),
    Group(id="g", offsets=KEPT),
    Group(id="g", generation=ROLLED, protocol_type="consumer", offsets=KEPT),
    Group(id="g", phase=Phase.PREPARING, join_until_ms=60_000, offsets=KEPT, **JOINED),
    Group(
        id="g",
        phase=Phase.COMPLETING,
        sync_until_ms=60_000,
        unsynced=frozenset("ac"),
        offsets=KEPT,
        **JOINED,
    ),
    Group(id="g", phase=Phase.STABLE, offsets=KEPT, **JOINED),
    Group(id="g", phase=Phase.DEAD, offsets=KEPT),
]


def end_of(group, member_id, now):
    return now.ms + group.members[member_id].session_timeout_ms


def name_of(group):
    return f"{group.phase}-{group.generation}-{len(group.offsets.committed)}"


SAID = list(itertools.product(["", "a", "c", "d", "z"], [-1, 0, ROLLED - 1, ROLLED], [None, "x", "y", "z"]))


@pytest.mark.parametrize("group", GROUPS, ids=name_of)
def test_a_heartbeat_is_noted_exactly_if_it_has_no_error(group):
    for member_id, generation, instance_id in SAID:
        event = events.Heartbeat(request=1, member_id=member_id, generation=generation, instance_id=instance_id)
        after, (answer,) = step(group, event, NOW, LIMITS)
        error = may_stay(group, member_id, generation, instance_id)
        assert answer.body == Done(error)
        if not error:
            assert after == with_deferred(group, {member_id: end_of(group, member_id, NOW)}, {})


@pytest.mark.parametrize("group", GROUPS, ids=name_of)
def test_a_commit_is_noted_only_if_the_group_takes_it(group):
    for member_id, generation, instance_id in SAID:
        offsets = {tp: Committed(9, 4, "m", 1_000_000) for tp in (T0, T1)}
        event = Commit(request=1, offsets=offsets, member_id=member_id, generation=generation, instance_id=instance_id)
        between, (effect,) = step(group, event, NOW, LIMITS)
        error = may_commit(group, member_id, generation, instance_id, in_transaction=False, has_offsets=True)
        assert bool(error) == (not isinstance(effect, Append))
        if not error:
            outcome = Appended(effect.write, ErrorCode.NONE, 200)
            after, (answer,) = step(between, outcome, NOW, LIMITS)
            assert answer.body == OffsetsDone()
            heard = {member_id: end_of(group, member_id, NOW)} if member_id in group.members else {}
            assert after == with_deferred(group, heard, {tp: replace(new, position=200) for tp, new in offsets.items()})


def test_many_that_were_noted_are_as_many_steps():
    group = after = GROUPS[-2]
    heard, stored = {}, {}
    for now, name, tp, position in ((NOW, "a", T0, 200), (NOW, "c", T1, 201), (LATER, "a", T0, 202)):
        new = Committed(position, -1, "", now.wall_ms)
        commit = Commit(request=position, offsets={tp: new}, member_id=name, generation=ROLLED)
        after, (effect,) = step(after, commit, now, LIMITS)
        after, _ = step(after, Appended(effect.write, ErrorCode.NONE, position), now, LIMITS)
        heard[name], stored[tp] = end_of(group, name, now), replace(new, position=position)
    assert after == with_deferred(group, heard, stored)
    assert after.members["a"].deadline_ms == LATER.ms + SESSION_MS


def test_of_two_offsets_the_later_one_in_the_log_is_taken():
    assert with_deferred(GROUPS[1], {}, {T0: Committed(1, position=99)}).offsets.committed == STORED
    newer = {T0: Committed(1, position=100)}
    assert with_deferred(GROUPS[1], {}, newer).offsets.committed == newer
