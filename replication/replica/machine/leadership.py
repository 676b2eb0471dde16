"""What a broker makes of a controller's word: which request counts, and which role it gives per partition.

Laws: a broker obeys only who names its present life, which is a secret between it and the tree, and only in the
controller epoch that the tree has: what another one says is looked up there first. Per partition only a greater
leader epoch counts. (An equal one is a repetition: what it said is done.)
"""

from __future__ import annotations

import enum

from replication.model.cluster import BrokerId, LeaderAndIsr, Replica


class RequestVerdict(enum.StrEnum):
    """Does a request of a controller count? Everything but OK is the answer to the whole of it.

    STALE_BROKER_EPOCH is also what a broker says that has not heard yet which epoch its registration got, or that
    cannot look up a controller epoch: the controller repeats the request as long as it believes that incarnation to
    live. OTHER_CONTROLLER_EPOCH is no answer yet: look up what the tree has, and judge again.
    """

    OK = "OK"
    OTHER_CONTROLLER_EPOCH = "OTHER_CONTROLLER_EPOCH"
    STALE_CONTROLLER_EPOCH = "STALE_CONTROLLER_EPOCH"
    STALE_BROKER_EPOCH = "STALE_BROKER_EPOCH"


class Role(enum.StrEnum):
    """What a partition of a LeaderAndIsr request makes of this broker's replica."""

    LEAD = "LEAD"
    FOLLOW = "FOLLOW"
    WAIT = "WAIT"  # a follower of nobody: there is no leader
    STALE_LEADER_EPOCH = "STALE_LEADER_EPOCH"
    NOT_A_REPLICA = "NOT_A_REPLICA"
    INCONSISTENT_TOPIC_ID = "INCONSISTENT_TOPIC_ID"


def judge_request(
    *,
    known_controller_epoch: int,
    controller_epoch: int,
    own_broker_epoch: int,
    broker_epoch: int,
    is_looked_up: bool,
) -> RequestVerdict:
    """May this request of a controller be obeyed? `is_looked_up`: the known epoch is what the tree says now.

    An epoch that is ahead of the tree is nobody's, or the read was behind: it is not believed, and no controller is
    told by it that its term is over. A known one that is ahead of the tree is forgotten with the look-up.
    """
    if broker_epoch != own_broker_epoch:
        return RequestVerdict.STALE_BROKER_EPOCH
    if controller_epoch == known_controller_epoch:
        return RequestVerdict.OK
    if not is_looked_up:
        return RequestVerdict.OTHER_CONTROLLER_EPOCH
    if controller_epoch < known_controller_epoch:
        return RequestVerdict.STALE_CONTROLLER_EPOCH
    return RequestVerdict.STALE_BROKER_EPOCH


def judge_leadership(
    me: Replica,
    state: LeaderAndIsr,
    replicas: tuple[BrokerId, ...],
    *,
    known_leader_epoch: int | None,
    has_topic_id: bool = True,
) -> Role:
    """The role for one partition. `known_leader_epoch`: None if this life has heard nothing of it yet.

    `has_topic_id` is false if the replica on disk is of another topic of the same name.
    """
    if not has_topic_id:
        return Role.INCONSISTENT_TOPIC_ID
    if known_leader_epoch is not None and state.leader_epoch <= known_leader_epoch:
        return Role.STALE_LEADER_EPOCH
    if me.broker not in replicas:
        return Role.NOT_A_REPLICA
    if state.leader == me.broker:
        return Role.LEAD
    return Role.FOLLOW if state.leader >= 0 else Role.WAIT


def is_loss_decided(me: Replica, state: LeaderAndIsr) -> bool:
    """Has a controller that says this decided about what this replica may have lost?

    Not while nobody leads and the ISR counts on it: it is one of those that are waited for.
    """
    return state.leader >= 0 or me.broker not in state.isr


def is_replica_lost(me: Replica, state: LeaderAndIsr, *, is_on_disk: bool, is_new: bool) -> bool:
    """Does the ISR count on a replica that is not here (any more)? Then this broker must not lead it.

    So it is with a disk that was replaced: the broker then registers anew as one that lost writes.
    """
    return me.broker in state.isr and not is_on_disk and not is_new
