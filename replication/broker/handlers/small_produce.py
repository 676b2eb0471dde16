"""Produces of one batch, as most are: those of one turn of the event loop are checked, appended and answered together.

What a look at a request and at the header of its batch does not take goes to `data`, which can say why, in the order of
the requests. A test holds both to the same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from replication.broker.handlers.data import ACCEPTS, DataHandlers
from replication.errors import ErrorCode
from replication.model.cluster import INTERNAL_TOPICS
from replication.network.turn import Gathered, TurnHandler
from replication.network.work import Encoded, Work
from replication.protocol import apis
from replication.protocol.apis import ApiKey
from replication.protocol.encoding import produced_one
from replication.protocol.framing import Frame
from replication.replica.leader.guard import base_offset_of, refuse_header
from replication.replica.leader.leader import Append, Leader
from replication.replica.leader.purgatory import PendingAppend
from replication.replica.leader.results import ALL_IN_SYNC, LEADER_ONLY, AppendResult
from replication.replica.manager import ReplicaManager

# Larger ones belong to a thread: the copy into the page cache would keep the loop.
FRAME_BYTES_MAX = 256 * 1024


class _Asked(NamedTuple):
    """A request of one batch, for a partition that is led here."""

    version: int
    correlation_id: int
    acks: int
    timeout_ms: int
    topic: str
    partition: int
    records: memoryview
    leader: Leader


class SmallProduceHandler:
    def __init__(self, replicas: ReplicaManager, data: DataHandlers) -> None:
        self._replicas = replicas
        self._data = data

    def turns(self) -> Mapping[ApiKey, TurnHandler]:
        return {ApiKey.PRODUCE: self.produce}

    def produce(self, requests: Sequence[Gathered]) -> None:
        """Append and answer all of them. Records of one connection are in the log in the order of its requests."""
        asked: list[tuple[Gathered, _Asked]] = []
        for request in requests:
            one = self._read(request.frame) if len(request.frame) <= FRAME_BYTES_MAX else None
            if one is not None:
                asked.append((request, one))
                continue
            self._append(asked)
            asked = []
            request.asker.dispatch(request)
        self._append(asked)

    def _read(self, frame: Frame) -> _Asked | None:
        """What is asked, if it is that simple."""
        found = apis.decode_produce_one(memoryview(frame))
        if found is None:
            return None
        version, _, acks, _, topic, partition, records = found
        leader = self._replicas.known_leader((topic, partition))
        if leader is None or acks not in (ALL_IN_SYNC, LEADER_ONLY) or topic in INTERNAL_TOPICS:
            return None
        if refuse_header(ACCEPTS[version], records) is not None or base_offset_of(records):
            return None
        return _Asked(*found, leader)

    def _append(self, asked: Sequence[tuple[Gathered, _Asked]]) -> None:
        appends: dict[Leader, list[Append]] = {}
        kept: dict[int, Work] = {}

        def settled(place: int, result: AppendResult) -> None:
            self._settled(*asked[place], kept[place], result)

        for place, (_, one) in enumerate(asked):
            append = Append(one.records, one.acks, partial(_waiter, settled, place, one))
            if one.leader in appends:
                appends[one.leader].append(append)
            else:
                appends[one.leader] = [append]
        results = {leader: iter(leader.append(each)) for leader, each in appends.items()}
        for place, (request, one) in enumerate(asked):
            result = next(results[one.leader])
            if result is not None and result.error_code is ErrorCode.NONE:
                request.asker.answer(request, _answer(one, result))
                continue
            is_queued = result is None and one.acks == LEADER_ONLY
            work = request.asker.keep(request, one.version, one.correlation_id, is_queued=is_queued)
            if result is None:
                kept[place] = work
            else:
                self._settled(request, one, work, result)

    def _settled(self, request: Gathered, one: _Asked, work: Work, result: AppendResult) -> None:
        if result.error_code is ErrorCode.NONE:
            request.asker.answer_kept(work, Encoded((_answer(one, result),)))
        else:
            request.asker.answer_kept(work, self._data.failed_one(one.version, one.leader.replica.tp, result))


def _waiter(settled: Callable[[int, AppendResult], None], place: int, one: _Asked) -> PendingAppend:
    limit_ms = -1 if one.acks == LEADER_ONLY else max(0, one.timeout_ms)
    return PendingAppend(partial(settled, place), limit_ms)


def _answer(one: _Asked, result: AppendResult) -> bytes:
    fields = result.base_offset, result.log_append_time_ms, result.log_start_offset
    return produced_one(one.version, one.correlation_id, one.topic, one.partition, fields)
