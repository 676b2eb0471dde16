"""The states of partitions and replicas as a controller sees them, and from which each may be entered.

::

    NonExistentPartition -> NewPartition -> OnlinePartition <-> OfflinePartition -> NonExistentPartition

    NonExistentReplica -> NewReplica -> OnlineReplica <-> OfflineReplica -> ReplicaDeletionStarted
    ReplicaDeletionStarted -> ReplicaDeletionSuccessful -> NonExistentReplica
    ReplicaDeletionStarted -> ReplicaDeletionIneligible -> OfflineReplica, OnlineReplica, NonExistentReplica
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class PartitionState(enum.StrEnum):
    NON_EXISTENT = "NonExistentPartition"
    NEW = "NewPartition"
    ONLINE = "OnlinePartition"
    OFFLINE = "OfflinePartition"


class ReplicaState(enum.StrEnum):
    NON_EXISTENT = "NonExistentReplica"
    NEW = "NewReplica"
    ONLINE = "OnlineReplica"
    OFFLINE = "OfflineReplica"
    DELETION_STARTED = "ReplicaDeletionStarted"
    DELETION_SUCCESSFUL = "ReplicaDeletionSuccessful"
    DELETION_INELIGIBLE = "ReplicaDeletionIneligible"  # its broker is down or could not delete it: later


_P, _R = PartitionState, ReplicaState

PARTITION_ENTERED_FROM: Mapping[PartitionState, frozenset[PartitionState]] = {
    _P.NON_EXISTENT: frozenset({_P.OFFLINE}),
    _P.NEW: frozenset({_P.NON_EXISTENT}),
    _P.ONLINE: frozenset({_P.NEW, _P.ONLINE, _P.OFFLINE}),
    _P.OFFLINE: frozenset({_P.NEW, _P.ONLINE, _P.OFFLINE}),
}

REPLICA_ENTERED_FROM: Mapping[ReplicaState, frozenset[ReplicaState]] = {
    _R.NON_EXISTENT: frozenset({_R.DELETION_SUCCESSFUL, _R.DELETION_INELIGIBLE}),
    _R.NEW: frozenset({_R.NON_EXISTENT}),
    _R.ONLINE: frozenset({_R.NEW, _R.ONLINE, _R.OFFLINE, _R.DELETION_INELIGIBLE}),
    _R.OFFLINE: frozenset({_R.NEW, _R.ONLINE, _R.OFFLINE, _R.DELETION_INELIGIBLE}),
    _R.DELETION_STARTED: frozenset({_R.OFFLINE}),
    _R.DELETION_SUCCESSFUL: frozenset({_R.DELETION_STARTED}),
    _R.DELETION_INELIGIBLE: frozenset({_R.DELETION_STARTED, _R.OFFLINE}),
}
