"""ControllerRequests: obeys LeaderAndIsr, StopReplica and UpdateMetadata, one after the other.

Per partition only a greater leader epoch counts. Every transition is a line of state-change.log. Belongs to the event
loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import TypeAlias

from kio.schema.errors import ErrorCode as WireCode

from logstore.errors import PylogError
from replication.coordination import cluster, topics
from replication.coordination.tree import CoordinationError
from replication.errors import ErrorCode, KafkaError, code_of, is_disk_dead
from replication.model.cluster import (
    NO_EPOCH,
    LeaderAndIsr,
    LeaderAndIsrPartitionState,
    Replica,
    TopicPartition,
    topic_id_of,
)
from replication.model.listeners import PLAINTEXT, Endpoint, Listener, SecurityProtocol
from replication.model.metadata import (
    UPDATE_PARTITIONS_MAX,
    BrokerAddress,
    Metadata,
    PartitionMetadata,
    PartitionUpdate,
)
from replication.model.state_changes import RequestLines, StateChange
from replication.network.steps import in_steps
from replication.protocol import interbroker as ib
from replication.replica.machine.leadership import is_replica_lost, judge_leadership, judge_request
from replication.replica.partition import Partition
from replication.replica.partitions import Partitions

logger = logging.getLogger(__name__)

ROLES_AT_ONCE = 20  # begun or ended in one step: each takes 0.4 ms, and the disk

LogChange: TypeAlias = Callable[[StateChange], None]
Request: TypeAlias = ib.LeaderAndIsrRequest | ib.StopReplicaRequest | ib.UpdateMetadataRequest
Response: TypeAlias = ib.LeaderAndIsrResponse | ib.StopReplicaResponse | ib.UpdateMetadataResponse
Codes: TypeAlias = dict[TopicPartition, ErrorCode]


class ControllerRequests:
    """`broker_epoch` is that of the registration, NO_EPOCH while it is unknown."""

    def __init__(self, replicas: Partitions, metadata: Metadata, log_change: LogChange, listener: str) -> None:
        """`listener`: where brokers meet."""
        self.controller_epoch = 0
        self.broker_epoch = NO_EPOCH
        self._replicas = replicas
        self._metadata = metadata
        self._log_change = log_change
        self._listener = listener
        # The leader epochs in which replicas were deleted, so that a late request does not recreate them.
        self._deleted: dict[tuple[TopicPartition, str], int] = {}
        # The broker epoch and controller epoch of the last complete description of the cluster.
        self._told_in = NO_EPOCH, 0
        self._ignored_in = NO_EPOCH  # the broker epoch in which requests for a former life were ignored last
        self.changing = asyncio.Lock()  # one request at a time

    async def obey(self, request: Request, correlation_id: int = 0) -> Response:
        broker = self._replicas.broker
        lines = RequestLines(broker, request.controller_id, request.controller_epoch, correlation_id)
        match request:
            case ib.LeaderAndIsrRequest():
                return await self._become(request, lines)
            case ib.StopReplicaRequest():
                return await self._stop_all(request, lines)
            case _:
                return await self._update_metadata(request, lines)

    async def _judge(self, request: Request, lines: RequestLines) -> ErrorCode:
        """Return NONE if the request must be obeyed: its controller is the one in the tree."""
        code = self._error(request, is_looked_up=False)
        if code is None:
            try:
                await self._look_up_controller()
            except CoordinationError as error:
                logger.warning("controller epoch %d cannot be looked up: %s", request.controller_epoch, error)
                return ErrorCode.STALE_BROKER_EPOCH
            code = self._error(request, is_looked_up=True)
            assert code is not None, "it was looked up"
        if code is ErrorCode.STALE_CONTROLLER_EPOCH:
            self._log_change(lines.ignored_controller(self.controller_epoch))
        elif code is ErrorCode.STALE_BROKER_EPOCH:
            self._ignore_for_life(lines)
        return code

    def _ignore_for_life(self, lines: RequestLines) -> None:
        """Log it, once in a life: controllers repeat such requests until they hear of it, and a guess costs no line."""
        if self._ignored_in != self.broker_epoch:
            self._log_change(lines.ignored_life())
        self._ignored_in = self.broker_epoch

    def _error(self, request: Request, *, is_looked_up: bool) -> ErrorCode | None:
        if self.broker_epoch == NO_EPOCH:
            return ErrorCode.STALE_BROKER_EPOCH
        return judge_request(
            known_controller_epoch=self.controller_epoch,
            controller_epoch=request.controller_epoch,
            own_broker_epoch=self.broker_epoch,
            broker_epoch=request.broker_epoch,
            is_looked_up=is_looked_up,
        )

    async def _look_up_controller(self) -> None:
        """Take the controller epoch from the tree, even if it is smaller than the known one."""
        tree = self._replicas.tree
        if tree is None:
            return  # the session has just ended, and with it the epoch of this broker
        found = await cluster.read_controller_epoch(tree)
        if found < self.controller_epoch:
            logger.warning("controller epoch %d goes back to that of the tree: %d", self.controller_epoch, found)
        self.controller_epoch = found

    # ------------------------------------------------------------ LeaderAndIsr

    async def _become(self, request: ib.LeaderAndIsrRequest, lines: RequestLines) -> ib.LeaderAndIsrResponse:
        response = await self._take_leadership(request, lines)
        tree = self._replicas.tree
        if self._replicas.has_lost_writes and tree is not None and not response.error_code:
            with suppress(CoordinationError):  # the next request tries again
                await self._replicas.maybe_forget_losses(tree)
        return response

    async def _take_leadership(self, request: ib.LeaderAndIsrRequest, lines: RequestLines) -> ib.LeaderAndIsrResponse:
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
            learned: set[str] = set()  # anew: once in a request, since it goes through all partitions
            async for rows in in_steps(_partitions_of(request), ROLES_AT_ONCE):
                new = {row.tp.topic for row in rows if not self._replicas.is_on_disk(row.tp, row.topic_id)}
                await self._replicas.learn_configs({row.tp.topic for row in rows}, anew=new - learned)
                learned |= new
                codes.update(await self._take_roles(rows, request.broker_epoch, lines))
        return await _leadership_response(request, codes)

    async def _take_roles(
        self, rows: Iterable[LeaderAndIsrPartitionState], broker_epoch: int, lines: RequestLines
    ) -> Codes:
        codes: Codes = {}
        wanted: list[LeaderAndIsrPartitionState] = []
        for row in rows:
            self._log_change(lines.received(row.tp, row.state, row.replicas))
            codes[row.tp] = self._judge_role(row)
            if not codes[row.tp]:
                wanted.append(row)
            elif codes[row.tp] is ErrorCode.STALE_CONTROLLER_EPOCH:
                partition = self._replicas.partitions.get(row.tp)
                known = partition.known_leader_epoch if partition is not None else None
                self._log_change(lines.ignored(row.tp, row.state.leader_epoch, known or 0))
            elif codes[row.tp] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._log_change(lines.not_mine(row.tp, row.replicas))
            elif codes[row.tp] is ErrorCode.INCONSISTENT_TOPIC_ID:
                self._log_change(lines.other_topic(row.tp, row.topic_id))
        partitions = await self._find(wanted)
        if self.broker_epoch != broker_epoch:  # the session ended meanwhile, and all roles with it
            self._ignore_for_life(lines)
            return {**codes, **{row.tp: ErrorCode.STALE_BROKER_EPOCH for row in wanted}}
        outcomes = await asyncio.gather(*(self._take(row, partitions[row.tp], lines) for row in wanted))
        codes.update((row.tp, code) for row, code in zip(wanted, outcomes, strict=True))
        return codes

    def _judge_role(self, row: LeaderAndIsrPartitionState) -> ErrorCode:
        known = self._replicas.partitions.get(row.tp)
        is_told = known is not None and known.known_leader_epoch is not None
        deleted_in = self._deleted.get((row.tp, row.topic_id))
        return judge_leadership(
            Replica(row.tp, self._replicas.broker),
            row.state,
            row.replicas,
            known_leader_epoch=known.known_leader_epoch if known is not None else deleted_in,
            # A replica of a former topic of this name is replaced, but only after its end if this life knows it.
            has_topic_id=known is None or not is_told or known.topic_id == row.topic_id,
        )

    async def _find(
        self, wanted: Iterable[LeaderAndIsrPartitionState]
    ) -> Mapping[TopicPartition, Partition | Exception]:
        rows = {row.tp: row for row in wanted}
        lost = {tp: _lost(row) for tp, row in rows.items() if self._is_lost(row)}
        topic_ids = {tp: row.topic_id for tp, row in rows.items() if tp not in lost}
        return {**await self._replicas.find_or_create(topic_ids), **lost}

    def _is_lost(self, row: LeaderAndIsrPartitionState) -> bool:
        """Return whether the ISR counts on a replica that is gone from the disk, and nobody knows of the loss.

        A replica is new, too, if the controller that created the partition died before it could tell anybody.
        """
        me = Replica(row.tp, self._replicas.broker)
        is_on_disk = self._replicas.is_on_disk(row.tp, row.topic_id)
        is_new = row.is_new or self._replicas.was_never_here(row.tp, row.topic_id)
        return not self._replicas.has_lost_writes and is_replica_lost(
            me, row.state, is_on_disk=is_on_disk, is_new=is_new
        )

    async def _take(
        self, row: LeaderAndIsrPartitionState, partition: Partition | Exception, lines: RequestLines
    ) -> ErrorCode:
        leads = row.state.leader == self._replicas.broker
        word = "leader" if leads else "follower"
        if isinstance(partition, Exception):
            logger.error("tp=%s takes no role: %s", row.tp, partition)
            self._log_change(lines.skipped(row.tp, word, str(partition)))
            return self._code(partition)
        self._log_change(lines.handling(row.tp, word))
        try:
            if leads:
                await partition.lead(row.state, row.replicas)
            else:
                await partition.follow(row.state)
        except (PylogError, OSError) as error:
            logger.exception("tp=%s takes no role", row.tp)
            self._log_change(lines.skipped(row.tp, word, str(error)))
            partition.replica.suspect(error)
            return self._code(error)
        finally:
            self._replicas.repairs.learn(row.tp, row.state, row.replicas)
        self._log_change(lines.completed(row.tp, word))
        return ErrorCode.NONE

    def _code(self, error: Exception) -> ErrorCode:
        if is_disk_dead(error):
            self._replicas.disk_failed.set()
        return code_of(error)

    # ------------------------------------------------------------- StopReplica

    async def _stop_all(self, request: ib.StopReplicaRequest, lines: RequestLines) -> ib.StopReplicaResponse:
        async with self.changing:
            error = await self._judge(request, lines)
            if error is not ErrorCode.NONE:
                return ib.StopReplicaResponse(error_code=WireCode(error), partition_errors=())
            errors = []
            states = ((topic.topic_name, state) for topic in request.topic_states for state in topic.partition_states)
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

    async def _update_metadata(
        self, request: ib.UpdateMetadataRequest, lines: RequestLines
    ) -> ib.UpdateMetadataResponse:
        """Update the metadata. The first request of a controller, and the first in a session, describes everything.

        A topic that such a request lacks is gone only if it is gone from the tree, too: a controller leaves out topics
        with malformed nodes.
        """
        async with self.changing:
            error = await self._judge(request, lines)
            if error is not ErrorCode.NONE:
                return ib.UpdateMetadataResponse(error_code=WireCode(error))
            known_epoch = request.broker_epoch, request.controller_epoch
            is_whole = known_epoch != self._told_in
            gone = await self._gone({topic.topic_name for topic in request.topic_states}) if is_whole else ()
            self._told_in = known_epoch
            brokers = tuple(map(self._address, request.live_brokers))
            self._metadata.update(request.controller_id, brokers, (), gone=gone)
            async for updates in in_steps(_updates_of(request)):
                taken = set(self._metadata.update(request.controller_id, brokers, updates))
                for update in updates:
                    if update.tp in taken:
                        self._log_change(lines.cached(update.tp, update.metadata.state, update.metadata.replicas))
            if sum(len(topic.partition_states) for topic in request.topic_states) < UPDATE_PARTITIONS_MAX:
                self._metadata.note_whole()
        return ib.UpdateMetadataResponse(error_code=WireCode(ErrorCode.NONE))

    def _address(self, broker: ib.UpdateMetadataBroker) -> BrokerAddress:
        """Return the addresses of a live broker, its own first: the one of the listener where brokers meet."""
        told = broker.endpoints
        own = next((each for each in told if each.listener == self._listener), told[0])
        if [(each.listener, each.security_protocol) for each in told] == [(PLAINTEXT, SecurityProtocol.PLAINTEXT)]:
            return BrokerAddress(broker.id, own.host, own.port, broker.rack)
        listeners = (
            Listener(each.listener, SecurityProtocol(each.security_protocol), Endpoint(each.host, each.port))
            for each in told
        )
        return BrokerAddress(broker.id, own.host, own.port, broker.rack, tuple(listeners))

    async def _gone(self, named: Collection[str]) -> Collection[str]:
        known = {name: topic.id for name, topic in self._metadata.topics().items() if name not in named}
        tree = self._replicas.tree
        return await topics.find_gone(tree, known) if known and tree is not None else ()


def _lost(row: LeaderAndIsrPartitionState) -> KafkaError:
    return KafkaError(
        ErrorCode.KAFKA_STORAGE_ERROR,
        f"its directory is gone, but it is in the ISR {row.state.isr}: restart the broker, which then reports the loss",
    )


async def _leadership_response(request: ib.LeaderAndIsrRequest, codes: Codes) -> ib.LeaderAndIsrResponse:
    rows: list[list[ib.LeaderAndIsrPartitionError]] = [[] for _ in request.topic_states]
    numbered = ((n, topic, state) for n, topic in enumerate(request.topic_states) for state in topic.partition_states)
    async for chunk in in_steps(numbered):
        for number, topic, state in chunk:
            code = codes[TopicPartition(topic.topic_name, state.partition_index)]
            rows[number].append(
                ib.LeaderAndIsrPartitionError(partition_index=state.partition_index, error_code=WireCode(code))
            )
    topics = (
        ib.LeaderAndIsrTopicError(topic_id=topic.topic_id, partition_errors=tuple(errors))
        for topic, errors in zip(request.topic_states, rows, strict=True)
    )
    return ib.LeaderAndIsrResponse(error_code=WireCode(ErrorCode.NONE), topics=tuple(topics))


def _partitions_of(request: ib.LeaderAndIsrRequest) -> Iterable[LeaderAndIsrPartitionState]:
    for topic in request.topic_states:
        for state in topic.partition_states:
            yield LeaderAndIsrPartitionState(
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
