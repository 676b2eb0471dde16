"""ControllerRequests: LeaderAndIsr, StopReplica and UpdateMetadata, obeyed in the order of the controllers.

Laws: requests are obeyed one after the other; none that does not name the present life of this broker, and none of
another controller epoch than the tree has. Per partition only a greater leader epoch counts. Every transition is a line
of state-change.log. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode as WireCode

from logstore.errors import PylogError
from replication.coordination import cluster, topics
from replication.coordination.tree import CoordinationError
from replication.errors import ErrorCode, KafkaError, code_of, is_disk_dead
from replication.model.cluster import NO_EPOCH, Assignment, LeaderAndIsr, Replica, TopicPartition, topic_id_of
from replication.model.metadata import BrokerAddress, Metadata, PartitionMetadata, PartitionUpdate
from replication.model.state_changes import RequestLines, StateChange
from replication.network.steps import in_steps
from replication.protocol import interbroker as ib
from replication.replica.machine.leadership import (
    RequestVerdict,
    Role,
    is_replica_lost,
    judge_leadership,
    judge_request,
)
from replication.replica.partition import Partition
from replication.replica.partitions import Partitions

logger = logging.getLogger(__name__)

# Replicas that begin or end a role in one step: each takes a tenth of a millisecond, and its disk.
ROLES_AT_ONCE = 50

LogChange: TypeAlias = Callable[[StateChange], None]
Request: TypeAlias = ib.LeaderAndIsrRequest | ib.StopReplicaRequest | ib.UpdateMetadataRequest
Codes: TypeAlias = dict[TopicPartition, ErrorCode]

_VERDICTS = {
    RequestVerdict.OK: ErrorCode.NONE,
    RequestVerdict.STALE_CONTROLLER_EPOCH: ErrorCode.STALE_CONTROLLER_EPOCH,
    RequestVerdict.STALE_BROKER_EPOCH: ErrorCode.STALE_BROKER_EPOCH,
}
_NO_ROLE = {
    Role.STALE_LEADER_EPOCH: ErrorCode.STALE_CONTROLLER_EPOCH,
    Role.NOT_A_REPLICA: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    Role.INCONSISTENT_TOPIC_ID: ErrorCode.INCONSISTENT_TOPIC_ID,
}


class _PartitionState(NamedTuple):
    """One partition of a LeaderAndIsr request."""

    tp: TopicPartition
    topic_id: str
    state: LeaderAndIsr
    replicas: Assignment
    is_new: bool


class ControllerRequests:
    """See the module. `broker_epoch` is that of the registration, NO_EPOCH while it is not known."""

    def __init__(self, replicas: Partitions, metadata: Metadata, log_change: LogChange) -> None:
        self.controller_epoch = 0
        self.broker_epoch = NO_EPOCH
        self._replicas = replicas
        self._metadata = metadata
        self._log_change = log_change
        # Of replicas that are deleted: the leader epoch of that. What was said before, and comes late, makes none anew.
        self._deleted: dict[tuple[TopicPartition, str], int] = {}
        # Of the whole cluster: in which life of this broker, and by which controller.
        self._told_in = NO_EPOCH, 0
        self.changing = asyncio.Lock()  # one request at a time

    async def _judge(self, request: Request, lines: RequestLines) -> ErrorCode:
        """May it be obeyed? Then its controller is the one that the tree has."""
        verdict = self._verdict(request, is_looked_up=False)
        if verdict is RequestVerdict.OTHER_CONTROLLER_EPOCH:
            try:
                await self._look_up_controller()
            except CoordinationError as error:
                logger.warning("controller epoch %d cannot be looked up: %s", request.controller_epoch, error)
                return ErrorCode.STALE_BROKER_EPOCH
            verdict = self._verdict(request, is_looked_up=True)
        if verdict is RequestVerdict.STALE_CONTROLLER_EPOCH:
            self._log_change(lines.ignored_controller(self.controller_epoch))
        return _VERDICTS[verdict]

    def _verdict(self, request: Request, *, is_looked_up: bool) -> RequestVerdict:
        if self.broker_epoch == NO_EPOCH:
            return RequestVerdict.STALE_BROKER_EPOCH
        return judge_request(
            known_controller_epoch=self.controller_epoch,
            controller_epoch=request.controller_epoch,
            own_broker_epoch=self.broker_epoch,
            broker_epoch=request.broker_epoch,
            is_looked_up=is_looked_up,
        )

    async def _look_up_controller(self) -> None:
        """Know the controller epoch that the tree has, be it smaller than the one that was known."""
        tree = self._replicas.tree
        if tree is None:
            return  # the session has just ended, and with it the epoch of this broker
        found = await cluster.read_controller_epoch(tree)
        if found < self.controller_epoch:
            logger.warning(
                "controller epoch %d was known, and the tree has %d: that counts",
                self.controller_epoch,
                found,
            )
        self.controller_epoch = found

    def _lines(self, request: Request, correlation_id: int) -> RequestLines:
        broker = self._replicas.broker
        return RequestLines(broker, request.controller_id, request.controller_epoch, correlation_id)

    # ------------------------------------------------------------ LeaderAndIsr

    async def become(
        self, request: ib.LeaderAndIsrRequest, correlation_id: int = 0
    ) -> ib.LeaderAndIsrResponse:
        """Lead and follow as it says."""
        lines = self._lines(request, correlation_id)
        async with self.changing:
            error = await self._judge(request, lines)
            if error is not ErrorCode.NONE:
                return ib.LeaderAndIsrResponse(error_code=WireCode(error), topics=())
            async for brokers in in_steps(request.live_leaders):
                leaders = (BrokerAddress(b.broker_id, b.host_name, b.port) for b in brokers)
                self._metadata.note_leaders(leaders, ())
            async for states in in_steps(request.topic_states):
                self._metadata.note_leaders((), ((topic_id_of(t.topic_id), t.topic_name) for t in states))
            codes: Codes = {}
            async for news in in_steps(_news_of(request), ROLES_AT_ONCE):
                new = {
                    item.tp.topic for item in news if not self._replicas.is_on_disk(item.tp, item.topic_id)
                }
                await self._replicas.learn_configs({item.tp.topic for item in news}, anew=new)
                codes.update(await self._take_roles(news, request.broker_epoch, lines))
        rows: list[list[ib.LeaderAndIsrPartitionError]] = [[] for _ in request.topic_states]
        numbered = (
            (n, topic, state)
            for n, topic in enumerate(request.topic_states)
            for state in topic.partition_states
        )
        async for chunk in in_steps(numbered):
            for number, topic, state in chunk:
                code = codes[TopicPartition(topic.topic_name, state.partition_index)]
                rows[number].append(
                    ib.LeaderAndIsrPartitionError(
                        partition_index=state.partition_index, error_code=WireCode(code)
                    )
                )
        topics = (
            ib.LeaderAndIsrTopicError(topic_id=topic.topic_id, partition_errors=tuple(errors))
            for topic, errors in zip(request.topic_states, rows, strict=True)
        )
        return ib.LeaderAndIsrResponse(error_code=WireCode(ErrorCode.NONE), topics=tuple(topics))

    async def _take_roles(
        self, news: Iterable[_PartitionState], broker_epoch: int, lines: RequestLines
    ) -> Codes:
        codes: Codes = {}
        wanted: list[tuple[_PartitionState, Role]] = []
        for item in news:
            self._log_change(lines.received(item.tp, item.state, item.replicas))
            role = self._judge_role(item)
            codes[item.tp] = _NO_ROLE.get(role, ErrorCode.NONE)
            if role is Role.STALE_LEADER_EPOCH:
                partition = self._replicas.partitions.get(item.tp)
                known = partition.known_leader_epoch if partition is not None else None
                self._log_change(lines.ignored(item.tp, item.state.leader_epoch, known or 0))
            if role is Role.NOT_A_REPLICA:
                self._log_change(lines.not_mine(item.tp, item.replicas))
            if role in (Role.LEAD, Role.FOLLOW, Role.WAIT):
                wanted.append((item, role))
        partitions = await self._find(item for item, _ in wanted)
        if self.broker_epoch != broker_epoch:  # the session has ended meanwhile, and with it all roles
            return {**codes, **{item.tp: ErrorCode.STALE_BROKER_EPOCH for item, _ in wanted}}
        outcomes = await asyncio.gather(
            *(self._take(item, role, partitions[item.tp], lines) for item, role in wanted)
        )
        codes.update((item.tp, code) for (item, _), code in zip(wanted, outcomes, strict=True) if code)
        return codes

    def _judge_role(self, news: _PartitionState) -> Role:
        known = self._replicas.partitions.get(news.tp)
        is_told = known is not None and known.known_leader_epoch is not None
        deleted_in = self._deleted.get((news.tp, news.topic_id))
        return judge_leadership(
            Replica(news.tp, self._replicas.broker),
            news.state,
            news.replicas,
            known_leader_epoch=known.known_leader_epoch if known is not None else deleted_in,
            # What an earlier life left of another topic of this name goes; in this life its end is told first.
            has_topic_id=known is None or not is_told or known.topic_id == news.topic_id,
        )

    async def _find(
        self, wanted: Iterable[_PartitionState]
    ) -> Mapping[TopicPartition, Partition | Exception]:
        """The replicas, made where they are missing."""
        news = {item.tp: item for item in wanted}
        lost = {tp: _lost(item) for tp, item in news.items() if self._is_lost(item)}
        topic_ids = {tp: item.topic_id for tp, item in news.items() if tp not in lost}
        return {**await self._replicas.find_or_create(topic_ids), **lost}

    def _is_lost(self, news: _PartitionState) -> bool:
        """Does the ISR count on a replica that is not here any more, though nobody was told that it is lost?"""
        me = Replica(news.tp, self._replicas.broker)
        is_on_disk = self._replicas.is_on_disk(news.tp, news.topic_id)
        return not self._replicas.has_lost_writes and is_replica_lost(
            me, news.state, is_on_disk=is_on_disk, is_new=news.is_new
        )

    async def _take(
        self, news: _PartitionState, role: Role, partition: Partition | Exception, lines: RequestLines
    ) -> ErrorCode:
        if isinstance(partition, Exception):
            logger.error("tp=%s takes no role: %s", news.tp, partition)
            return self._code(partition)
        word = "leader" if role is Role.LEAD else "follower"
        self._log_change(lines.handling(news.tp, word))
        try:
            if role is Role.LEAD:
                await partition.lead(news.state, news.replicas)
            else:
                await partition.follow(news.state)
        except (PylogError, OSError) as error:
            logger.exception("tp=%s takes no role", news.tp)
            partition.replica.suspect(error)
            return self._code(error)
        finally:
            self._replicas.repairs.told(news.tp, news.state)
        self._log_change(lines.completed(news.tp, word))
        return ErrorCode.NONE

    def _code(self, error: Exception) -> ErrorCode:
        if is_disk_dead(error):
            self._replicas.disk_failed.set()
        return code_of(error)

    # ------------------------------------------------------------- StopReplica

    async def stop(self, request: ib.StopReplicaRequest, correlation_id: int = 0) -> ib.StopReplicaResponse:
        """Let go of replicas; delete those that it says."""
        lines = self._lines(request, correlation_id)
        async with self.changing:
            error = await self._judge(request, lines)
            if error is not ErrorCode.NONE:
                return ib.StopReplicaResponse(error_code=WireCode(error), partition_errors=())
            errors = []
            states = (
                (topic.topic_name, state)
                for topic in request.topic_states
                for state in topic.partition_states
            )
            async for chunk in in_steps(states, ROLES_AT_ONCE):
                for name, state in chunk:
                    code = WireCode(await self._stop(name, state, lines))
                    errors.append(
                        ib.StopReplicaPartitionError(
                            topic_name=name, partition_index=state.partition_index, error_code=code
                        )
                    )
        return ib.StopReplicaResponse(error_code=WireCode(ErrorCode.NONE), partition_errors=tuple(errors))

    async def _stop(self, topic: str, state: ib.StopReplicaPartition, lines: RequestLines) -> ErrorCode:
        tp = TopicPartition(topic, state.partition_index)
        partition = self._replicas.partitions.get(tp)
        known = partition.known_leader_epoch if partition is not None else None
        if known is not None and 0 <= state.leader_epoch < known:
            return ErrorCode.FENCED_LEADER_EPOCH
        self._log_change(lines.stopping(tp, delete=state.delete_partition, done=False))
        if partition is not None:
            partition.leave_role()
        try:
            if state.delete_partition:
                await self._replicas.delete(tp)
                if partition is not None and state.leader_epoch >= 0:
                    self._deleted[tp, partition.topic_id] = state.leader_epoch
        except (PylogError, OSError) as error:
            logger.exception("tp=%s is not deleted", tp)
            return self._code(error)
        self._log_change(lines.stopping(tp, delete=state.delete_partition, done=True))
        return ErrorCode.NONE

    # ---------------------------------------------------------- UpdateMetadata

    async def update_metadata(
        self, request: ib.UpdateMetadataRequest, correlation_id: int = 0
    ) -> ib.UpdateMetadataResponse:
        """Take what the cluster is like. The first word of a controller, and the first in a session, says all of it.

        What it does not name is gone, if the tree does not have it either: a controller may not understand its nodes.
        """
        lines = self._lines(request, correlation_id)
        async with self.changing:
            error = await self._judge(request, lines)
            if error is not ErrorCode.NONE:
                return ib.UpdateMetadataResponse(error_code=WireCode(error))
            told_in = request.broker_epoch, request.controller_epoch
            is_whole = told_in != self._told_in
            gone = await self._gone({topic.topic_name for topic in request.topic_states}) if is_whole else ()
            self._told_in = told_in
            brokers = tuple(_brokers_of(request))
            self._metadata.update(request.controller_id, brokers, (), gone=gone)
            async for updates in in_steps(_updates_of(request)):
                taken = set(self._metadata.update(request.controller_id, brokers, updates))
                for update in updates:
                    if update.tp in taken:
                        self._log_change(
                            lines.cached(update.tp, update.metadata.state, update.metadata.replicas)
                        )
        return ib.UpdateMetadataResponse(error_code=WireCode(ErrorCode.NONE))

    async def _gone(self, named: Collection[str]) -> Collection[str]:
        """The topics that are known here, and neither named nor in the tree."""
        known = {name: topic.id for name, topic in self._metadata.topics().items() if name not in named}
        tree = self._replicas.tree
        return await topics.find_gone(tree, known) if known and tree is not None else ()


def _lost(news: _PartitionState) -> KafkaError:
    return KafkaError(
        ErrorCode.KAFKA_STORAGE_ERROR,
        f"its directory is gone, and it is in the ISR {news.state.isr}: restart the broker, which then says that it "
        "lost it",
    )


def _news_of(request: ib.LeaderAndIsrRequest) -> Iterable[_PartitionState]:
    for topic in request.topic_states:
        for state in topic.partition_states:
            yield _PartitionState(
                TopicPartition(topic.topic_name, state.partition_index),
                topic_id_of(topic.topic_id),
                _state_of(state),
                state.replicas,
                state.is_new,
            )


def _state_of(state: ib.LeaderAndIsrPartition | ib.UpdateMetadataPartition) -> LeaderAndIsr:
    return LeaderAndIsr(state.leader, state.leader_epoch, state.isr, state.controller_epoch, state.zk_version)


def _updates_of(request: ib.UpdateMetadataRequest) -> Iterable[PartitionUpdate]:
    for topic in request.topic_states:
        for state in topic.partition_states:
            yield PartitionUpdate(
                TopicPartition(topic.topic_name, state.partition_index),
                topic_id_of(topic.topic_id),
                PartitionMetadata(_state_of(state), state.replicas, state.offline_replicas),
            )


def _brokers_of(request: ib.UpdateMetadataRequest) -> Iterable[BrokerAddress]:
    for broker in request.live_brokers:
        endpoint = broker.endpoints[0]
        yield BrokerAddress(broker.id, endpoint.host, endpoint.port, broker.rack)
