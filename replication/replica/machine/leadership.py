"""The checks of a controller's request: whether it counts, and the role that it gives per partition.

Laws: a broker obeys only requests that name its present life, a secret between it and the tree, and only in the
controller epoch of the tree: any other epoch is looked up there first. Per partition only a greater leader epoch
counts; an equal one repeats a request that was obeyed.
"""

from __future__ import annotations

from replication.errors import ErrorCode
from replication.model.cluster import BrokerId, LeaderAndIsr, Replica


def judge_request(
    *,
    known_controller_epoch: int,
    controller_epoch: int,
    own_broker_epoch: int,
    broker_epoch: int,
    is_looked_up: bool,
) -> ErrorCode | None:
    """Return NONE if the request must be obeyed; None: look up the controller epoch in the tree, and judge again.

    `is_looked_up`: the known epoch was just read there. STALE_BROKER_EPOCH is also the answer of a broker that does
    not know the epoch of its registration yet, or cannot look up a controller epoch: the controller repeats the request
    as long as it believes that life to last.

    An epoch ahead of the tree belongs to nobody, or the read was late: it is not believed, and no controller's term
    is ended for it. A known epoch ahead of the tree is replaced by the look-up.
    """
    if broker_epoch != own_broker_epoch:
        return ErrorCode.STALE_BROKER_EPOCH
    if controller_epoch == known_controller_epoch:
        return ErrorCode.NONE
    if not is_looked_up:
        return None
    if controller_epoch < known_controller_epoch:
        return ErrorCode.STALE_CONTROLLER_EPOCH
    return ErrorCode.STALE_BROKER_EPOCH


def judge_leadership(
    me: Replica,
    state: LeaderAndIsr,
    replicas: tuple[BrokerId, ...],
    *,
    known_leader_epoch: int | None,
    has_topic_id: bool = True,
) -> ErrorCode:
    """Return NONE if the state gives this replica a role. `known_leader_epoch`: None if none is known yet.

    `has_topic_id` is false if the replica on disk belongs to another topic of the same name.
    """
    if not has_topic_id:
        return ErrorCode.INCONSISTENT_TOPIC_ID
    if known_leader_epoch is not None and state.leader_epoch <= known_leader_epoch:
        return ErrorCode.STALE_CONTROLLER_EPOCH
    return ErrorCode.NONE if me.broker in replicas else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def is_loss_decided(me: Replica, state: LeaderAndIsr) -> bool:
    """Return whether the controller has decided about what this replica may have lost.

    It has not while nobody leads and the ISR counts on the replica: it is one of those that are waited for.
    """
    return state.leader >= 0 or me.broker not in state.isr


def is_replica_lost(me: Replica, state: LeaderAndIsr, *, is_on_disk: bool, is_new: bool) -> bool:
    """Return whether the ISR counts on a replica that is not here, so that this broker must not lead it.

    That happens when a disk was replaced: the broker then registers again as one that lost writes.
    """
    return me.broker in state.isr and not is_on_disk and not is_new
