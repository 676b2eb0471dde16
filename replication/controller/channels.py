"""BrokerChannels: sends the controller's requests to each broker, in order and one at a time, until it has obeyed.

Laws: a request reaches the life of the broker that it was meant for, or none. No answer and STALE_BROKER_EPOCH (the
broker does not know its epoch yet) are reasons to repeat it. STALE_CONTROLLER_EPOCH ends the term. The end of the
term drops all other requests. Metadata that waits behind metadata for the same broker joins it in one request.

LeaderAndIsr and StopReplica wait for no other broker. UpdateMetadata goes beside them, once the leaders that it names
have obeyed their earlier requests: otherwise clients would write to a broker that does not know yet that it leads. It
does not wait for a leader that cannot be reached, nor for any longer than `LEADERS_WAIT_S`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from replication.controller.machine.events import ReplicasDeleted, SendLeaderAndIsr, SendStopReplica, SendUpdateMetadata
from replication.coordination.tree import CoordinationError
from replication.errors import ErrorCode, KafkaError, ProtocolError
from replication.model.cluster import (
    BrokerId,
    BrokerInfo,
    LeaderAndIsrPartitionState,
    TopicPartition,
    rows_by_topic,
    topic_uuid,
)
from replication.model.metadata import UPDATE_PARTITIONS_MAX
from replication.model.state_changes import ControllerLines, StateChange
from replication.protocol import interbroker as ib
from replication.protocol.apis import ApiKey

logger = logging.getLogger(__name__)

Send: TypeAlias = SendLeaderAndIsr | SendStopReplica | SendUpdateMetadata
# Sends a request to a broker. Raises OSError, TimeoutError, KafkaError or ProtocolError without an answer, and
# CoordinationError if this broker itself needs the tree to obey and cannot reach it.
Call: TypeAlias = Callable[[BrokerInfo, ApiKey, Any], Awaitable[Any]]
Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]

REPEAT_S = 0.1
# So that a stuck leader does not delay the metadata of all others until its session ends.
LEADERS_WAIT_S = 2.0


class _Queued:
    """A request on its way to its broker. Metadata waits for requests to the same broker (`own`) and to leaders."""

    __slots__ = ("due_s", "is_done", "is_settled", "leaders", "own", "request")

    def __init__(self, request: Send, own: _Queued | None = None, leaders: Iterable[_Queued] = ()) -> None:
        self.request = request
        self.own, self.leaders = own, tuple(leaders)
        self.is_done = asyncio.Event()  # obeyed, or its broker is gone
        self.is_settled = asyncio.Event()  # done, or its broker cannot be reached
        self.due_s = asyncio.get_running_loop().time() + LEADERS_WAIT_S

    async def ripe(self) -> None:
        if self.own is not None:
            await self.own.is_done.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self.due_s):
                for request in self.leaders:
                    await request.is_settled.wait()


_Queue: TypeAlias = tuple[BrokerId, bool]  # True: of metadata, which goes beside the other requests


class BrokerChannels:
    """The requests of one term. `find` returns live brokers."""

    def __init__(
        self,
        lines: ControllerLines,
        call: Call,
        find: Callable[[BrokerId], BrokerInfo | None],
        log: Callable[[StateChange], None],
        answered: Callable[[ReplicasDeleted | None], None],
        spawn: Spawn,
    ) -> None:
        self._lines = lines
        self._call = call
        self._find = find
        self._log = log
        self._answered = answered  # None: a broker knows a later controller
        self._spawn = spawn
        self._waiting: dict[_Queue, deque[_Queued]] = {}
        self._senders: dict[_Queue, asyncio.Task[None]] = {}

    def send(self, request: Send) -> None:
        """Queue a request; one with very many partitions becomes several."""
        for part in _parts_of(request):
            self._queue(part)

    def _queue(self, request: Send) -> None:
        for line in _lines_of(self._lines, request):
            self._log(line)
        queue = request.broker, isinstance(request, SendUpdateMetadata)
        waiting = self._waiting.setdefault(queue, deque())
        if isinstance(request, SendUpdateMetadata):
            last = waiting[-1].request if len(waiting) > 1 else None  # the first one is in flight
            if (
                isinstance(last, SendUpdateMetadata)
                and last.broker_epoch == request.broker_epoch
                and len(last.partitions) + len(request.partitions) < UPDATE_PARTITIONS_MAX
            ):
                latest = {row.tp: row for row in (*last.partitions, *request.partitions)}
                request = replace(request, partitions=tuple(latest.values()))
                waiting.pop()
            leaders = {row.state.leader for row in request.partitions}
            earlier = filter(None, map(self._last_order, leaders))
            queued = _Queued(request, self._last_order(request.broker), earlier)
        else:
            queued = _Queued(request)
        waiting.append(queued)
        if queue not in self._senders:
            self._senders[queue] = self._spawn(self._send_all(queue))

    def _last_order(self, broker: BrokerId) -> _Queued | None:
        """Return the last LeaderAndIsr or StopReplica to a broker that is still on its way."""
        requests = self._waiting.get((broker, False))
        return requests[-1] if requests else None

    def close(self) -> None:
        for task in self._senders.values():
            task.cancel()
        self._senders.clear()
        self._waiting.clear()

    async def _send_all(self, queue: _Queue) -> None:
        waiting = self._waiting[queue]
        is_again = False
        while waiting and queue in self._senders:  # an answer may have ended the term
            queued = waiting[0]
            await queued.ripe()
            info = self._find(queue[0])
            if (
                info is None
                or info.epoch != queued.request.broker_epoch
                or await self._is_done(info, queued, is_again=is_again)
            ):
                waiting.popleft()
                queued.is_done.set()
                queued.is_settled.set()
                is_again = False
            else:
                is_again = True
                await asyncio.sleep(REPEAT_S)
        self._senders.pop(queue, None)

    async def _is_done(self, info: BrokerInfo, queued: _Queued, *, is_again: bool) -> bool:
        """Send the request once; return whether the broker has obeyed."""
        request = queued.request
        key, body = _message(request, self._lines.broker, self._find)
        try:
            response = await self._call(info, key, body)
        except (OSError, TimeoutError, KafkaError, ProtocolError, CoordinationError) as error:
            if not is_again:
                logger.warning("broker=%d %s will be repeated: %s", info.id, key.name, error)
            if isinstance(error, OSError):
                queued.is_settled.set()
            return False
        code = int(response.error_code)
        if code == ErrorCode.STALE_CONTROLLER_EPOCH:
            self._answered(None)
            return True
        if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED and not is_again:
            logger.warning("broker=%d %s will be repeated: it grants this broker no ClusterAction", info.id, key.name)
        if code != ErrorCode.NONE:
            return False
        if isinstance(request, SendStopReplica) and request.delete:
            self._answered(_deleted(request, response))
        return True


def _parts_of(request: Send) -> Iterator[Send]:
    """Split a request with very many partitions. An UpdateMetadata that is full is followed by another one."""
    partitions: Sequence[Any] = request.partitions
    is_metadata = isinstance(request, SendUpdateMetadata)
    if len(partitions) + is_metadata <= UPDATE_PARTITIONS_MAX:
        yield request
        return
    for begin in range(0, len(partitions) + is_metadata, UPDATE_PARTITIONS_MAX):
        part: Any = tuple(partitions[begin : begin + UPDATE_PARTITIONS_MAX])
        yield replace(request, partitions=part)


def _lines_of(lines: ControllerLines, request: Send) -> Iterable[StateChange]:
    match request:
        case SendLeaderAndIsr():
            return [lines.telling_leadership(row.tp, row.state, request.broker) for row in request.partitions]
        case SendUpdateMetadata():
            return [lines.telling_metadata(row.tp, row.state, request.broker) for row in request.partitions]
        case _:
            return ()


def _deleted(request: SendStopReplica, response: ib.StopReplicaResponse) -> ReplicasDeleted:
    failed = {
        TopicPartition(error.topic_name, error.partition_index)
        for error in response.partition_errors
        if int(error.error_code) != ErrorCode.NONE
    }
    tps = [stop.tp for stop in request.partitions]
    deleted = tuple(tp for tp in tps if tp not in failed)
    return ReplicasDeleted(request.broker, deleted, tuple(tp for tp in tps if tp in failed))


def _message(request: Send, controller: BrokerId, find: Callable[[BrokerId], BrokerInfo | None]) -> tuple[ApiKey, Any]:
    head = {
        "controller_id": controller,
        "controller_epoch": request.controller_epoch,
        "broker_epoch": request.broker_epoch,
    }
    match request:
        case SendLeaderAndIsr():
            leaders = sorted({row.state.leader for row in request.partitions})
            told = find(request.broker)
            listener = "" if told is None else told.endpoints[0].name  # where it meets others
            known = ((info.id, info.at(listener)) for info in map(find, leaders) if info is not None)
            live = tuple(ib.LiveLeader(broker_id=leader, host_name=at.host, port=at.port) for leader, at in known)
            rows = ((row, ib.LeaderAndIsrPartition(**_state(row), is_new=row.is_new)) for row in request.partitions)
            topics = _topics(ib.LeaderAndIsrTopic, rows)
            return ApiKey.LEADER_AND_ISR, ib.LeaderAndIsrRequest(**head, topic_states=topics, live_leaders=live)
        case SendUpdateMetadata():
            # Dead brokers are not among them: a partition is not sent again when one is back, and every request names
            # the live brokers.
            described = (
                (row, ib.UpdateMetadataPartition(**_state(row), offline_replicas=row.offline))
                for row in request.partitions
            )
            topics = _topics(ib.UpdateMetadataTopic, described)
            return ApiKey.UPDATE_METADATA, ib.UpdateMetadataRequest(
                **head, topic_states=topics, live_brokers=tuple(map(_broker, request.brokers))
            )
        case SendStopReplica():
            return ApiKey.STOP_REPLICA, ib.StopReplicaRequest(**head, topic_states=_stops(request))


def _topics(topic: Callable[..., Any], described: Iterable[tuple[LeaderAndIsrPartitionState, Any]]) -> tuple[Any, ...]:
    found: dict[tuple[str, str], list[Any]] = {}
    for row, description in described:
        found.setdefault((row.tp.topic, row.topic_id), []).append(description)
    return tuple(
        topic(topic_name=name, topic_id=topic_uuid(topic_id), partition_states=tuple(states))
        for (name, topic_id), states in found.items()
    )


def _state(row: LeaderAndIsrPartitionState) -> dict[str, Any]:
    return {
        "partition_index": row.tp.partition,
        "controller_epoch": row.state.controller_epoch,
        "leader": row.state.leader,
        "leader_epoch": row.state.leader_epoch,
        "isr": row.state.isr,
        "zk_version": row.state.version,
        "replicas": row.replicas,
    }


def _broker(info: BrokerInfo) -> ib.UpdateMetadataBroker:
    endpoints = tuple(
        ib.UpdateMetadataEndpoint(
            port=each.endpoint.port, host=each.endpoint.host, listener=each.name, security_protocol=each.protocol
        )
        for each in info.endpoints
    )
    return ib.UpdateMetadataBroker(id=info.id, endpoints=endpoints, rack=info.rack)


def _stops(request: SendStopReplica) -> tuple[ib.StopReplicaTopic, ...]:
    rows = (
        (tp, ib.StopReplicaPartition(partition_index=tp.partition, leader_epoch=epoch, delete_partition=request.delete))
        for tp, _, epoch in request.partitions
    )
    return tuple(
        ib.StopReplicaTopic(topic_name=name, partition_states=tuple(states))
        for name, states in rows_by_topic(rows).items()
    )
