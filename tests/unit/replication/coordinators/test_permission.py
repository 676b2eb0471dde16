"""The rules for heartbeats and commits, one by one."""

import itertools
from dataclasses import replace

import pytest

from replication.coordinators.groups.classic.permission import may_commit, may_stay
from replication.coordinators.groups.classic.state import Group, Member, Phase
from replication.errors import ErrorCode

NOW = 4  # the generation


def member(member_id, instance_id=None):
    times = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 60_000, "deadline_ms": 10_000}
    return Member(id=member_id, instance_id=instance_id, protocols=(("range", b""),), **times)


NEW = Group(id="g")
LEFT = Group(id="g", generation=NOW, protocol_type="consumer")
STABLE = Group(
    id="g",
    phase=Phase.STABLE,
    generation=NOW,
    members={m.id: m for m in (member("a"), member("s", "x"), member("t", "y"))},
)
PREPARING, COMPLETING = replace(STABLE, phase=Phase.PREPARING), replace(STABLE, phase=Phase.COMPLETING)
DEAD = Group(id="g", phase=Phase.DEAD)
NONE, UNKNOWN, FENCED = ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID
OLD, AGAIN, ELSEWHERE = ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.NOT_COORDINATOR

MEMBERS = [  # whatever the phase, where there are members
    ("a", NOW, None, NONE),
    ("a", NOW - 1, None, OLD),
    ("a", NOW + 1, None, OLD),
    ("z", NOW, None, UNKNOWN),
    ("z", NOW - 1, None, UNKNOWN),
    ("", NOW, None, UNKNOWN),
    ("s", NOW, "x", NONE),
    ("s", NOW, None, NONE),
    ("s", NOW - 1, "x", OLD),
    ("a", NOW, "x", FENCED),
    ("a", NOW - 1, "x", FENCED),
    ("z", NOW, "x", FENCED),
    ("s", NOW, "y", FENCED),
    ("a", NOW, "z", UNKNOWN),
]


def commit(group, member_id, generation, instance_id, *, in_transaction=False, has_offsets=False):
    return may_commit(group, member_id, generation, instance_id, in_transaction=in_transaction, has_offsets=has_offsets)


@pytest.mark.parametrize(("member_id", "generation", "instance_id", "error"), MEMBERS)
def test_a_member_of_this_generation_commits_and_stays(member_id, generation, instance_id, error):
    said = member_id, generation, instance_id
    for group in (STABLE, PREPARING, COMPLETING):
        assert may_stay(group, *said) is (error or (AGAIN if group is PREPARING else NONE))
        assert commit(group, *said) is (error or (AGAIN if group is COMPLETING else NONE))
        assert commit(group, *said, in_transaction=True) is error


def test_nobody_commits_to_a_group_with_members_unless_it_is_in_a_transaction():
    for group in (STABLE, PREPARING, COMPLETING):
        assert commit(group, "", -1, None) is UNKNOWN
        assert commit(group, "", -1, None, in_transaction=True) is NONE
        assert commit(group, "a", -1, None) is commit(group, "a", -1, None, in_transaction=True) is OLD
        assert commit(group, "", -1, "x") is commit(group, "", -1, "x", in_transaction=True) is FENCED
        assert may_stay(group, "a", -1, None) is OLD


@pytest.mark.parametrize("group", [NEW, LEFT])
@pytest.mark.parametrize("in_transaction", [False, True])
def test_without_a_generation_anybody_commits_to_an_empty_group(group, in_transaction):
    for member_id, instance_id in itertools.product(["", "a"], [None, "x"]):
        assert commit(group, member_id, -1, instance_id, in_transaction=in_transaction) is NONE
        assert may_stay(group, member_id, -1, instance_id) is UNKNOWN


def test_a_group_without_anything_has_no_generation():
    for generation in (0, 1):
        assert commit(NEW, "a", generation, None) is OLD
        assert commit(NEW, "a", generation, "x", in_transaction=True) is OLD
        others = (LEFT, replace(NEW, pending={"b": 5}), replace(NEW, phase=Phase.PREPARING))
        for group, has_offsets in ((NEW, True), *((other, False) for other in others)):
            assert commit(group, "a", generation, None, has_offsets=has_offsets) is UNKNOWN


def test_who_was_unloaded_answers_for_another_coordinator():
    for generation in (-1, 0, NOW):
        assert (
            commit(DEAD, "", generation, None) is commit(DEAD, "", generation, None, in_transaction=True) is ELSEWHERE
        )
        assert may_stay(DEAD, "a", generation, None) is ELSEWHERE


def test_offsets_only_choose_between_two_refusals():
    """So that the way of small commits need not count them."""
    groups = (NEW, LEFT, STABLE, PREPARING, COMPLETING, DEAD)
    said = itertools.product(groups, ["", "a", "s", "z"], [-1, 0, NOW], [None, "x", "z"], [False, True])
    for group, member_id, generation, instance_id, in_transaction in said:
        with_, without = (
            commit(group, member_id, generation, instance_id, in_transaction=in_transaction, has_offsets=has_offsets)
            for has_offsets in (True, False)
        )
        assert bool(with_) == bool(without)
