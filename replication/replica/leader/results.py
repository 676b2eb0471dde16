"""Values that pass between handlers and leaders about records, beside the `messages` of Produce and Fetch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from replication.errors import ErrorCode
from replication.protocol.messages import EXAMINER, Isolation

LEADER_ONLY, ALL_IN_SYNC = 1, -1  # acks; 0: nobody waits for an answer


def unlimited() -> int:
    return 2**31 - 1


class AppendResult(NamedTuple):
    """The outcome of an append to one partition. With an error `base_offset` is -1, unless they are in the log."""

    error_code: ErrorCode = ErrorCode.NONE
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    wrong_rows: tuple[int, ...] = ()  # the records for which the batch was refused


class FetchTerms(NamedTuple):
    """The reader (`replica_id` >= 0: that broker, in the life of this epoch; or EXAMINER), and when to answer."""

    replica_id: int = -1
    replica_epoch: int = -1
    max_wait_ms: int = 0
    min_bytes: int = 1
    max_bytes: int = 2**31 - 1
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    room_bytes: Callable[[], int] = unlimited  # how much more memory answers may take now

    @property
    def is_follower(self) -> bool:
        """A follower's fetch shows the end of its log."""
        return self.replica_id >= 0

    @property
    def reads_all(self) -> bool:
        """The reader gets records up to the log's end, and nothing that is damaged."""
        return self.is_follower or self.replica_id == EXAMINER


class FoundOffset(NamedTuple):
    """The answer to ListOffsets for one partition; offset -1: no record is that new."""

    error_code: ErrorCode
    timestamp_ms: int = -1
    offset: int = -1
    leader_epoch: int = -1


class EpochEnd(NamedTuple):
    """The largest epoch that is not above the one asked for, and where it ends; both -1 if all are newer."""

    error_code: ErrorCode
    leader_epoch: int = -1
    end_offset: int = -1


class DeletedRecords(NamedTuple):
    """The answer to DeleteRecords for one partition: the smallest log start of the replicas in sync."""

    error_code: ErrorCode
    low_watermark: int = -1
