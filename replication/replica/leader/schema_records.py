"""SchemaRecords: the leader of `_schemas` judges each record, so that no id is handed out twice.

A writer proposes an id and a version in the record itself. The leader knows its log, and appends in one order: it
refuses what contradicts a record before it, and the writer reads on and proposes again. Committed or not, what is in
the leader's log counts; the leader of another term folds its own log anew. So a leader epoch fences these records as
any others.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from logstore.log.validation import AppendOutcome
from logstore.records.batch import batches, header_at
from logstore.records.batch import records as records_of
from logstore.schemas.subjects import TOPIC, Record, Subjects, UnknownKeyError, is_ours, refusal
from replication.errors import ErrorCode, InvalidRecordsError
from replication.protocol.wire import Buffer
from replication.replica.leader.guard import bound_of
from replication.replica.storage.replica_log import ReplicaLog

READ_BYTES = 1024 * 1024


def schema_records(replica: ReplicaLog) -> SchemaRecords | None:
    """Return the judge of a partition's records; None for all topics but one."""
    return SchemaRecords(replica) if replica.tp.topic == TOPIC else None


def fold(state: Subjects, data: Buffer, start: int) -> int:
    """Take the records from offset `start` on into the state; return what follows, `start` if there are none.

    Raises: InvalidBatchError.
    """
    position = start
    for at, header in batches(data):
        for record in () if header.is_control else records_of(data, at):
            if record.offset >= start:
                with suppress(UnknownKeyError):  # of another registry
                    state.apply(record.key, record.value, is_ours=is_ours(record.headers))
        position = max(position, header.next_offset)
    return position


class SchemaRecords:
    """See the module. Belongs to the queue of the log.

    Invariant: `_state` is the sum of the whole log and of the batches that are about to be appended, or None.
    """

    def __init__(self, replica: ReplicaLog) -> None:
        self._replica = replica
        self._state: Subjects | None = None

    def check(self, records: bytearray | memoryview) -> None:
        """Take one good batch into the state. Raises: InvalidRecordsError: a record contradicts those before it."""
        state = self._folded()
        is_transactional = header_at(records).is_transactional
        for row, (*_, key, value, headers) in enumerate(records_of(records, limit_bytes=bound_of(records))):
            ours = is_ours(headers)
            why = "it is of a transaction" if ours and is_transactional else None
            if (why := why or refusal(state, Record(key or b"", value), is_ours=ours)) is not None:
                if row:
                    self._state = None  # it has the records before this one
                raise InvalidRecordsError(ErrorCode.INVALID_RECORD, (row,), f"record {row} of the batch: {why}")

    def settle(self, outcomes: Sequence[AppendOutcome]) -> None:
        """Forget the state if one of the batches that were taken into it was not appended now.

        A duplicate was appended earlier: the records since then count, and not this one again.
        """
        if any(isinstance(outcome, Exception) or outcome.is_duplicate for outcome in outcomes):
            self._state = None

    def _folded(self) -> Subjects:
        if self._state is not None:
            return self._state
        log, state = self._replica.log, Subjects()
        offset, end = log.log_start_offset, log.log_end_offset
        while offset < end:
            found = log.read(offset, max_bytes=READ_BYTES, upper=end)
            fold(state, found.data, offset)
            if found.next_offset <= offset:
                break
            offset = found.next_offset
        self._state = state
        return state
