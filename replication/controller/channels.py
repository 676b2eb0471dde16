"""What a controller tells its brokers: to each in order, one request at a time, until it has obeyed or is gone.

Laws: a request goes to the incarnation that it was meant for, or to nobody. No answer, and STALE_BROKER_EPOCH (it does
not know its epoch yet), are reasons to repeat it. STALE_CONTROLLER_EPOCH ends the term. What is left when the term
ends is dropped. Metadata that waits behind metadata for the same broker goes with it, in one request.

Orders (LeaderAndIsr, StopReplica) wait for nobody else. Metadata goes beside them, once the leaders that it names have
obeyed what they were ordered before: or clients would write to a broker that does not know yet that it leads. A
leader that cannot be reached is not waited for, nor any for longer than `LEADERS_WAIT_S`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import replace
from typing import Any, TypeAlias

from replication.controller.machine.events import (
    LeaderAndIsrPartitionState,
    ReplicasDeleted,
    SendLeaderAndIsr,
    SendStopReplica,
    SendUpdateMetadata,
    Stop,
)
from replication.coordination.tree import CoordinationError
from replication.errors import ErrorCode, KafkaError, ProtocolError
from replication.model.cluster import BrokerId, BrokerInfo, TopicPartition, topic_uuid
from replication.model.state_changes import ControllerLines, StateChange
from replication.protocol import interbroker as ib
from replication.protocol.apis import ApiKey

logger = logging.getLogger(__name__)

Send: TypeAlias = SendLeaderAndIsr | SendStopReplica | SendUpdateMetadata
# Sends a request to a broker; raises OSError, TimeoutError, KafkaError or ProtocolError if there is no answer, and
# CoordinationError if the broker of this process cannot obey without the tree, which is silent.
Call: TypeAlias = Callable[[BrokerInfo, ApiKey, Any], Awaitable[Any]]
Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]

REPEAT_S = 0.1
PARTITIONS_AT_ONCE = 10_000  # in one request: what a broker takes is bounded (`protocol.bounds`)
# A leader that stands still holds up what all others hear; until its session ends, that shall not be for long.
LEADERS_WAIT_S = 2.0


class _Queued:
    """A request on its way to its broker; metadata goes behind orders: to the same broker, and to leaders."""

    __slots__ = ("due_s", "is_done", "is_settled", "leaders", "own", "request")

    def __init__(self, request: Send, own: _Queued | None = None, leaders: Iterable[_Queued] = ()) -> None:
        self.request = request
        self.own, self.leaders = own, tuple(leaders)
        self.is_done = asyncio.Event()  # it was obeyed, or its broker is gone
        self.is_settled = asyncio.Event()  # that, or its broker cannot be reached
        self.due_s = asyncio.get_running_loop().time() + LEADERS_WAIT_S

    async def ripe(self) -> None:
        """Wait for those that have to obey first."""
        if self.own is not None:
            await self.own.is_done.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self.due_s):
                for order in self.leaders:
                    await order.is_settled.wait()


# Orders and metadata for one broker go side by side.
_Queue: TypeAlias = tuple[BrokerId, bool]


class BrokerChannels:
    """The requests of one term. `find` names the live brokers."""

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
        self._answered = answered  # with None: a broker knows a later controller
        self._spawn = spawn
        self._waiting: dict[_Queue, deque[_Queued]] = {}
        self._senders: dict[_Queue, asyncio.Task[None]] = {}

    def send(self, request: Send) -> None:
        """Have it sent, behind all that goes the same way; what names very many partitions, in several requests."""
        if len(request.partitions) > PARTITIONS_AT_ONCE:
            for begin in range(0, len(request.partitions), PARTITIONS_AT_ONCE):
                part: Any = request.partitions[begin : begin + PARTITIONS_AT_ONCE]
                self.send(replace(request, partitions=part))
            return
        for line in _lines_of(self._lines, request):
            self._log(line)
        queue = request.broker, isinstance(request, SendUpdateMetadata)
        waiting = self._waiting.setdefault(queue, deque())
        if isinstance(request, SendUpdateMetadata):
            last = waiting[-1].request if len(waiting) > 1 else None  # the first one is under way
            if (
                isinstance(last, SendUpdateMetadata)
                and last.broker_epoch == request.broker_epoch
                and len(last.partitions) + len(request.partitions) <= PARTITIONS_AT_ONCE
            ):
                news = {item.tp: item for item in (*last.partitions, *request.partitions)}
                request = replace(request, partitions=tuple(news.values()))
                waiting.pop()
            leaders = {item.state.leader for item in request.partitions}
            orders = filter(None, map(self._last_order, leaders))
            queued = _Queued(request, self._last_order(request.broker), orders)
        else:
            queued = _Queued(request)
        waiting.append(queued)
        if queue not in self._senders:
            self._senders[queue] = self._spawn(self._send_all(queue))

    def _last_order(self, broker: BrokerId) -> _Queued | None:
        """The last order to a broker that is still on its way, behind all others."""
        orders = self._waiting.get((broker, False))
        return orders[-1] if orders else None

    def close(self) -> None:
        """The term is over."""
        for task in self._senders.values():
            task.cancel()
        self._senders.clear()
        self._waiting.clear()

    async def _send_all(self, queue: _Queue) -> None:
        waiting = self._waiting[queue]
        is_again = False
        while waiting:
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
        del self._senders[queue]

    async def _is_done(self, info: BrokerInfo, queued: _Queued, *, is_again: bool) -> bool:
        """Send it once; has the broker obeyed?"""
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
        if code != ErrorCode.NONE:
            return False
        if isinstance(request, SendStopReplica) and request.delete:
            self._answered(_deleted(request, response))
        return True


def _lines_of(lines: ControllerLines, request: Send) -> Iterable[StateChange]:
    match request:
        case SendLeaderAndIsr():
            return [lines.telling_leadership(n.tp, n.state, request.broker) for n in request.partitions]
        case SendUpdateMetadata():
            return [lines.telling_metadata(n.tp, n.state, request.broker) for n in request.partitions]
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


# ------------------------------------------------------------------ messages


def _message(
    request: Send, controller: BrokerId, find: Callable[[BrokerId], BrokerInfo | None]
) -> tuple[ApiKey, Any]:
    head = {
        "controller_id": controller,
        "controller_epoch": request.controller_epoch,
        "broker_epoch": request.broker_epoch,
    }
    match request:
        case SendLeaderAndIsr():
            leaders = {news.state.leader for news in request.partitions}
            live = tuple(
                ib.LiveLeader(broker_id=info.id, host_name=info.host, port=info.port)
                for info in map(find, sorted(leaders))
                if info is not None
            )
            topics = tuple(
                ib.LeaderAndIsrTopic(
                    topic_name=name,
                    topic_id=topic_uuid(topic_id),
                    partition_states=tuple(map(_leadership, news)),
                )
                for (name, topic_id), news in _by_topic(request.partitions).items()
            )
            return ApiKey.LEADER_AND_ISR, ib.LeaderAndIsrRequest(
                **head, topic_states=topics, live_leaders=live
            )
        case SendUpdateMetadata():
            return ApiKey.UPDATE_METADATA, ib.UpdateMetadataRequest(
                **head,
                topic_states=tuple(
                    ib.UpdateMetadataTopic(
                        topic_name=name,
                        topic_id=topic_uuid(topic_id),
                        partition_states=tuple(_metadata(item, find) for item in news),
                    )
                    for (name, topic_id), news in _by_topic(request.partitions).items()
                ),
                live_brokers=tuple(map(_broker, request.brokers)),
            )
        case SendStopReplica():
            return ApiKey.STOP_REPLICA, ib.StopReplicaRequest(**head, topic_states=_stops(request))


def _by_topic(
    partitions: Iterable[LeaderAndIsrPartitionState],
) -> dict[tuple[str, str], list[LeaderAndIsrPartitionState]]:
    found: dict[tuple[str, str], list[LeaderAndIsrPartitionState]] = {}
    for news in partitions:
        found.setdefault((news.tp.topic, news.topic_id), []).append(news)
    return found


def _leadership(news: LeaderAndIsrPartitionState) -> ib.LeaderAndIsrPartition:
    return ib.LeaderAndIsrPartition(
        partition_index=news.tp.partition,
        controller_epoch=news.state.controller_epoch,
        leader=news.state.leader,
        leader_epoch=news.state.leader_epoch,
        isr=news.state.isr,
        zk_version=news.state.version,
        replicas=news.replicas,
        is_new=news.is_new,
    )


def _metadata(
    news: LeaderAndIsrPartitionState, find: Callable[[BrokerId], BrokerInfo | None]
) -> ib.UpdateMetadataPartition:
    return ib.UpdateMetadataPartition(
        partition_index=news.tp.partition,
        controller_epoch=news.state.controller_epoch,
        leader=news.state.leader,
        leader_epoch=news.state.leader_epoch,
        isr=news.state.isr,
        zk_version=news.state.version,
        replicas=news.replicas,
        offline_replicas=tuple(b for b in news.replicas if b in news.offline or find(b) is None),
    )


def _broker(info: BrokerInfo) -> ib.UpdateMetadataBroker:
    endpoint = ib.UpdateMetadataEndpoint(port=info.port, host=info.host, listener="PLAINTEXT")
    return ib.UpdateMetadataBroker(id=info.id, endpoints=(endpoint,), rack=info.rack)


def _stops(request: SendStopReplica) -> tuple[ib.StopReplicaTopic, ...]:
    topics: dict[str, list[Stop]] = {}
    for stop in request.partitions:
        topics.setdefault(stop.tp.topic, []).append(stop)
    return tuple(
        ib.StopReplicaTopic(
            topic_name=name,
            partition_states=tuple(
                ib.StopReplicaPartition(
                    partition_index=stop.tp.partition,
                    leader_epoch=stop.leader_epoch,
                    delete_partition=request.delete,
                )
                for stop in stops
            ),
        )
        for name, stops in topics.items()
    )
