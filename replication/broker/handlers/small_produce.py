"""Produces of one batch, as most are: those of one turn of the event loop are checked, appended and answered together.

What a look at a request and at the header of its batch does not take goes to `data`, which can say why, in the order of
the requests. A test holds both to the same answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeAlias

from logstore.log.validation import AppendInfo
from logstore.log.writer import Plain
from logstore.records.batch import CODEC_MASK
from logstore.records.compression import Codec
from logstore.records.plain import PlainHeader, plain_header
from replication.broker.handlers.data import DataHandlers
from replication.errors import ErrorCode
from replication.model.cluster import INTERNAL_TOPICS
from replication.network.turn import Gathered, TurnHandler
from replication.network.work import Encoded, Work
from replication.protocol import apis
from replication.protocol.apis import ApiKey
from replication.protocol.encoding import produced_one
from replication.protocol.framing import Frame
from replication.replica.leader.guard import PRODUCE_ZSTD
from replication.replica.leader.leader import NOT_LEADER, Append, Leader
from replication.replica.leader.purgatory import PendingAppend
from replication.replica.leader.results import ALL_IN_SYNC, LEADER_ONLY, AppendResult
from replication.replica.manager import ReplicaManager

# Larger ones belong to a thread: the copy into the page cache would keep the loop.
FRAME_BYTES_MAX = 256 * 1024


# A request of one plain batch, for a partition that is led here: version, correlation id, acks, timeout in ms, topic,
# partition, the batch, its header, and the leader. (A named tuple costs three times as much.)
_Asked: TypeAlias = tuple[int, int, int, int, str, int, memoryview, PlainHeader, Leader]


class SmallProduceHandler:
    def __init__(self, replicas: ReplicaManager, data: DataHandlers) -> None:
        self._replicas = replicas
        self._data = data

    def turns(self) -> Mapping[ApiKey, TurnHandler]:
        return {ApiKey.PRODUCE: self.produce}

    def produce(self, requests: Sequence[Gathered]) -> None:
        """Append and answer all of them. Records of one connection are in the log in the order of its requests."""
        asked = list[tuple[Gathered, _Asked]]()
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
        header = plain_header(records)
        if header is None or header[0] or (version < PRODUCE_ZSTD and header[5] & CODEC_MASK == Codec.ZSTD):
            return None
        if acks == ALL_IN_SYNC and not leader.has_enough_replicas():
            return None
        return (*found, header, leader)

    def _append(self, asked: Sequence[tuple[Gathered, _Asked]]) -> None:
        batches: dict[Leader, list[Plain]] = {}
        for _, (*_, records, header, leader) in asked:
            batch = records, header
            if leader in batches:
                batches[leader].append(batch)
            else:
                batches[leader] = [batch]
        outcomes = {leader: iter(leader.append_each(each)) for leader, each in batches.items()}
        self._replicas.look()
        for request, one in asked:
            self._answer(request, one, next(outcomes[one[-1]], None))

    def _answer(self, request: Gathered, one: _Asked, outcome: AppendInfo | AppendResult | None) -> None:
        version, correlation_id, acks, timeout_ms, topic, partition, records, _, leader = one
        needs_leader_only = acks == LEADER_ONLY
        if outcome is not None and (leader.is_over or type(outcome) is not AppendInfo):
            result = outcome if isinstance(outcome, AppendResult) else NOT_LEADER
            self._settled(request, one, request.asker.keep(request, version, correlation_id), result)
        elif outcome is not None and (needs_leader_only or outcome[1] <= leader.high_watermark):
            fields = outcome[0], outcome[2], leader.replica.start
            request.asker.answer(request, produced_one(version, correlation_id, topic, partition, fields))
        else:
            work = request.asker.keep(request, version, correlation_id, is_queued=needs_leader_only)
            limit_ms = -1 if needs_leader_only else max(0, timeout_ms)
            waiting = PendingAppend(partial(self._settled, request, one, work), limit_ms)
            if outcome is None:  # it may take longer
                leader.append_later(Append(records, acks, waiting))
            else:
                leader.wait_for_commit(outcome, waiting)

    def _settled(self, request: Gathered, one: _Asked, work: Work, result: AppendResult) -> None:
        version, correlation_id, _, _, topic, partition, *_, leader = one
        if result.error_code is ErrorCode.NONE:
            data = produced_one(version, correlation_id, topic, partition, result[1:4])
            request.asker.answer_kept(work, Encoded((data,)))
        else:
            request.asker.answer_kept(work, self._data.failed_one(version, leader.replica.tp, result))
