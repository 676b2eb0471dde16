"""A broker obeys the newest controller, for this life of it, and only greater leader epochs."""

import pytest

from replication.errors import ErrorCode
from replication.model.cluster import LeaderAndIsr, Replica, TopicPartition
from replication.model.metadata import is_newer
from replication.replica.machine.leadership import (
    is_loss_decided,
    is_replica_lost,
    judge_leadership,
    judge_request,
)

ME = Replica(TopicPartition("t", 0), 2)


def state(leader, epoch=5, version=3, isr=(2, 3)):
    return LeaderAndIsr(leader, epoch, isr, 1, version)


@pytest.mark.parametrize(
    ("controller_epoch", "broker_epoch", "is_looked_up", "error"),
    [
        (7, 9, False, ErrorCode.NONE),
        (7, 9, True, ErrorCode.NONE),
        (6, 9, False, None),
        (8, 9, False, None),
        (6, 9, True, ErrorCode.STALE_CONTROLLER_EPOCH),
        (8, 9, True, ErrorCode.STALE_BROKER_EPOCH),  # ahead of the tree: nobody's term ends over it
        (7, 8, False, ErrorCode.STALE_BROKER_EPOCH),
        (7, 10, False, ErrorCode.STALE_BROKER_EPOCH),
        (2**31 - 1, 10, False, ErrorCode.STALE_BROKER_EPOCH),  # whoever guesses makes nobody look it up
    ],
)
def test_a_request_counts_if_it_is_of_the_controller_that_the_tree_has_and_for_this_life(
    controller_epoch, broker_epoch, is_looked_up, error
):
    """(R10, R23)"""
    assert (
        judge_request(
            known_controller_epoch=7,
            controller_epoch=controller_epoch,
            own_broker_epoch=9,
            broker_epoch=broker_epoch,
            is_looked_up=is_looked_up,
        )
        is error
    )


@pytest.mark.parametrize(
    ("known", "leader", "error"),
    [
        (None, 2, ErrorCode.NONE),
        (4, 2, ErrorCode.NONE),
        (4, 3, ErrorCode.NONE),
        (4, 0, ErrorCode.NONE),
        (4, -1, ErrorCode.NONE),
        (5, 2, ErrorCode.STALE_CONTROLLER_EPOCH),
        (6, 3, ErrorCode.STALE_CONTROLLER_EPOCH),
    ],
)
def test_only_a_greater_leader_epoch_changes_the_role(known, leader, error):
    """(R32)"""
    assert judge_leadership(ME, state(leader), (1, 2, 3), known_leader_epoch=known) is error


def test_a_broker_without_a_replica_has_no_role():
    error = judge_leadership(ME, state(1), (1, 3), known_leader_epoch=None)
    assert error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_replica_of_another_topic_of_the_same_name_is_not_touched():
    """(R29)"""
    error = judge_leadership(ME, state(2), (2,), known_leader_epoch=None, has_topic_id=False)
    assert error is ErrorCode.INCONSISTENT_TOPIC_ID


def test_metadata_is_applied_in_order_of_epoch_and_version():
    """(R32)"""
    assert is_newer(None, state(1))
    assert is_newer(state(1, 5, 3), state(1, 5, 4))
    assert is_newer(state(1, 5, 9), state(1, 6, 10))
    assert not is_newer(state(1, 5, 3), state(1, 5, 3))
    assert not is_newer(state(1, 5, 3), state(1, 4, 9))


def test_an_isr_member_without_its_replica_has_lost_it():
    """(R19)"""
    assert is_replica_lost(ME, state(2), is_on_disk=False, is_new=False)
    assert not is_replica_lost(ME, state(2), is_on_disk=False, is_new=True)
    assert not is_replica_lost(ME, state(2), is_on_disk=True, is_new=False)
    assert not is_replica_lost(ME, state(3, isr=(3,)), is_on_disk=False, is_new=False)


@pytest.mark.parametrize(
    ("leader", "isr", "is_decided"),
    [
        (3, (3,), True),
        (3, (2, 3), True),
        (2, (2,), True),
        (-1, (3,), True),
        (-1, (2, 3), False),
        (-1, (2,), False),
    ],
)
def test_a_loss_is_not_decided_while_a_partition_waits_for_the_one_that_lost(leader, isr, is_decided):
    """(R10) Or else it would be forgotten, and the replica could lead as one that has everything."""
    assert is_loss_decided(ME, state(leader, isr=isr)) is is_decided


def test_broker_0_is_a_leader_like_others():
    assert is_loss_decided(ME, state(0))
    assert not is_loss_decided(ME, state(-1))
