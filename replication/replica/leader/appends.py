"""Appends: batches on their way to a leader's log: looked into, and written by the event loop or a thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from logstore.errors import DiskFullError
from logstore.log.validation import AppendOutcome
from logstore.records.marker import Marker
from logstore.schemas.strategies import Demand
from logstore.schemas.subjects import TOPIC
from replication.errors import ErrorCode, InvalidRecordsError, KafkaError, code_of, is_disk_dead
from replication.protocol.wire import Buffer
from replication.replica.leader import guard
from replication.replica.leader.purgatory import Waiter
from replication.replica.leader.results import AppendResult
from replication.replica.leader.schema_records import SchemaRecords
from replication.replica.leader.strange_ids import StrangeIdsError
from replication.replica.machine.looks import Verdict
from replication.replica.storage.replica_log import ReplicaLog

logger = logging.getLogger(__name__)

# Bytes that the event loop writes itself for one call, if nothing stands in the way: more belongs to a thread.
PROMPT_BYTES_MAX = 256 * 1024


class Append(NamedTuple):
    """A batch of a client for one partition, or a marker, on its way to the log.

    `wait` is called with the `context`, once, if the result is not known at once: it returns the waiter for that.
    `is_own`: this broker made the batch, and nobody needs to look into it.
    """

    records: bytearray | memoryview | Marker
    acks: int
    wait: Callable[[Any], Waiter]
    context: Any
    is_own: bool = False


NOTHING: Sequence[AppendOutcome] = ()
NO_DEMANDS: Sequence[Demand] = ()


def write_now(
    replica: ReplicaLog, appends: Sequence[Append], leader_epoch: int, demands: Sequence[Demand] = NO_DEMANDS
) -> Sequence[AppendOutcome]:
    """Append the first ones in the event loop. The others may take longer, or it is not their turn."""
    host = replica.host
    if not host.is_sound():
        return NOTHING
    prompt = _prompt(replica, appends, demands)
    if not prompt or not host.disk.begin_write(replica.queue):
        return NOTHING
    outcomes: Sequence[AppendOutcome]
    try:
        outcomes = replica.log.append_as_leader(prompt, leader_epoch=leader_epoch, is_owner=True, may_wait=False)
    except Exception as error:  # noqa: BLE001  it becomes a code, or is logged
        outcomes = [error] * len(prompt)
    host.disk.end_write()
    return outcomes


def _prompt(replica: ReplicaLog, appends: Sequence[Append], demands: Sequence[Demand]) -> Sequence[Buffer]:
    """Return the batches of the first ones that are small, and that the guard passes at once."""
    found: list[bytearray | memoryview] = []
    left_bytes, own = PROMPT_BYTES_MAX, not appends or appends[0].is_own
    for records, _, _, _, is_own in appends:
        if isinstance(records, Marker) or is_own is not own:
            break
        left_bytes -= len(records)
        if left_bytes < 0:
            break
        found.append(records)
    if found and not own:
        terms = guard.terms_of(replica.config, replica.host.clock.now_ms())
        del found[guard.passing(found, terms) :]
        if demands:
            del found[guard.bearing(found, demands) :]
    return found


def write_in_thread(
    replica: ReplicaLog,
    appends: Sequence[Append],
    leader_epoch: int,
    schemas: SchemaRecords | None = None,
    held: Sequence[int | None] = (),
) -> list[AppendOutcome]:
    """Append what may be; return what became of each. Nobody but this broker changes its files while they are sound.

    Less outcomes than appends: the next one, and so those behind it, wait for a look at `_schemas`. `held` says of each
    how many looks had begun when it was held first.
    """
    checked = _all_checked(replica, appends, schemas, held)
    good = [append for append in checked if not isinstance(append, Exception)]
    try:
        outcomes = replica.log.append_as_leader(good, leader_epoch=leader_epoch, is_owner=replica.host.is_sound())
        done = iter(outcomes)
    except Exception as error:  # noqa: BLE001  it becomes a code, or is logged, in the event loop
        outcomes = [error] * len(good)
        done = iter(outcomes)
    if schemas is not None:
        schemas.settle(outcomes)
    return [append if isinstance(append, Exception) else next(done) for append in checked]


def _all_checked(
    replica: ReplicaLog, appends: Sequence[Append], schemas: SchemaRecords | None, held: Sequence[int | None]
) -> list[Buffer | Marker | Exception]:
    if not replica.config.validates_schemas:
        return [_checked(replica, append, schemas) for append in appends]
    looks = replica.host.schema_ids.looks  # before the demands, which are of these or later ones
    demands = replica.host.schema_ids.demands(replica.tp.topic, replica.config)
    done: list[Buffer | Marker | Exception] = []
    for append, begun in zip(appends, held or [None] * len(appends), strict=True):
        found = _checked(replica, append, schemas, demands)
        if isinstance(found, StrangeIdsError) and found.may_be_news:
            verdict = looks.judge(begun)
            if verdict is Verdict.HELD:
                break
            if verdict is Verdict.NOT_KNOWN:
                said = f"{found}; {TOPIC} cannot be read now, where it may be registered"
                found = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, said)
        done.append(found)
    return done


def _checked(
    replica: ReplicaLog, append: Append, schemas: SchemaRecords | None, demands: Sequence[Demand] = NO_DEMANDS
) -> Buffer | Marker | Exception:
    """Return what is to be appended, or why it is not, by a look into the records of a client."""
    records = append.records
    if append.is_own or isinstance(records, Marker):
        return records
    try:
        guard.check(records, replica.config, replica.host.clock.now_ms(), demands)
        if schemas is not None:
            schemas.check(records)
    except Exception as error:  # noqa: BLE001  as above
        return error
    return records


def failed(replica: ReplicaLog, error: Exception) -> AppendResult:
    """Return the result of an append that failed so; have the broker look after its disk where that is to blame."""
    if is_disk_dead(error):
        replica.host.disk_failed()
    replica.suspect(error)
    code = code_of(error)
    if isinstance(error, DiskFullError):
        replica.host.disk_full()  # says so once
    elif code in (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.KAFKA_STORAGE_ERROR):
        logger.error("tp=%s append failed: %s", replica.tp, error, exc_info=error)
    rows = error.rows if isinstance(error, InvalidRecordsError) else ()
    # Java's producer sends an unknown one's batch again until it hears where the log starts.
    start = replica.start if code is ErrorCode.UNKNOWN_PRODUCER_ID else -1
    return AppendResult(code, log_start_offset=start, error_message=str(error), wrong_rows=rows)
