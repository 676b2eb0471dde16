"""ShareStates: the states of share groups in partitions, as the coordinators of the groups see them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from replication.errors import NONE, ErrorCode

BY_RESET = -1  # a start offset: where share.auto.offset.reset says, at the first fetch


class IdPartition(NamedTuple):
    topic_id: str
    partition: int


class Summary(NamedTuple):
    """How far a group has come in a partition.

    `delivery_complete_count`: records from the start on that it is done with; -1: not known.
    """

    error: ErrorCode = NONE
    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = BY_RESET
    delivery_complete_count: int = -1


class ShareStates(Protocol):
    """Reaches the coordinators of the states, wherever they are; answers for each partition, and raises nothing."""

    async def initialize(
        self, group_id: str, offsets: Mapping[IdPartition, tuple[int, int]]
    ) -> Mapping[IdPartition, ErrorCode]:
        """Begin at these state epochs and start offsets; an older state is forgotten."""

    async def summaries(self, group_id: str, partitions: Collection[IdPartition]) -> Mapping[IdPartition, Summary]: ...

    async def delete(self, group_id: str, partitions: Collection[IdPartition]) -> Mapping[IdPartition, ErrorCode]:
        """Forget the states; one that is not there is forgotten already."""
