"""Markers: commit and abort markers, written by the leaders of partitions, wherever they are.

Law: a marker is asked for until its leader has it on all replicas in sync, through elections and dead brokers, or the
topic is gone. A broker gets one request at a time, with all that has come together for it. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from logstore.env import Env
from logstore.records.marker import Marker
from replication.coordinators.groups.coordinator import GroupCoordinator
from replication.coordinators.transactions.coordinator import Done
from replication.coordinators.transactions.machine.events import WriteMarkers
from replication.errors import ErrorCode, KafkaError, ProtocolError, code_in
from replication.model.cluster import OFFSETS_TOPIC, BrokerId, TopicPartition, by_partition, by_topic
from replication.network.client import Clients
from replication.network.steps import all_of
from replication.protocol.apis import ApiKey
from replication.replica.leader.purgatory import PendingProduce
from replication.replica.leader.results import AppendResult
from replication.replica.manager import ReplicaManager

logger = logging.getLogger(__name__)

RETRY_S = 0.1
GONE_MS = 5000  # a topic that is missing from the metadata for so long is deleted
WRITE_TIMEOUT_MS = 10_000

Written = Mapping[TopicPartition, ErrorCode]


class _Job:
    def __init__(self, markers: WriteMarkers, coordinator_epoch: int, done: Done, now_ms: int) -> None:
        self.markers = markers
        self.coordinator_epoch = coordinator_epoch
        self.done = done
        self.began_ms = now_ms
        self.is_over = False

    def give_up(self) -> None:
        self.is_over = True

    @property
    def marker(self) -> Marker:
        m = self.markers
        return Marker(m.producer_id, m.producer_epoch, m.commits, self.coordinator_epoch, m.version >= 2)


_Row: TypeAlias = tuple[_Job, Sequence[TopicPartition]]


class Markers:
    """`write_here` writes markers to partitions that this broker leads."""

    def __init__(
        self,
        broker: BrokerId,
        replicas: ReplicaManager,
        clients: Clients,
        groups: GroupCoordinator,
        env: Env,
    ) -> None:
        self._broker = broker
        self._replicas = replicas
        self._clients = clients
        self._groups = groups
        self._env = env
        self._queues: dict[BrokerId, list[_Row]] = {}
        self._tasks: dict[BrokerId, asyncio.Task[None]] = {}

    def write(self, markers: WriteMarkers, coordinator_epoch: int, done: Done) -> Callable[[], None]:
        """See `MarkerWriter`."""
        job = _Job(markers, coordinator_epoch, done, self._env.clock.monotonic_ms())
        self._spread(job, markers.partitions)
        return job.give_up

    def end(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    def _spread(self, job: _Job, partitions: Iterable[TopicPartition]) -> None:
        """Put the partitions into the queues of their leaders; those without one are looked at again later."""
        if job.is_over:
            return
        metadata, now_ms = self._replicas.metadata, self._env.clock.monotonic_ms()
        found: dict[BrokerId, list[TopicPartition]] = {}
        gone, later = set(), set()
        for tp in sorted(partitions):  # the same order in every process, so that a simulated run can be repeated
            leader = metadata.leader(*tp)
            if leader is not None and leader in metadata.brokers():
                found.setdefault(leader, []).append(tp)
            elif metadata.is_initialized and metadata.topic(tp.topic) is None and now_ms - job.began_ms > GONE_MS:
                gone.add(tp)
            else:
                later.add(tp)
        loop = asyncio.get_running_loop()
        if later:
            loop.call_later(RETRY_S, self._spread, job, later)
        for broker, tps in found.items():
            self._queues.setdefault(broker, []).append((job, tuple(tps)))
            if broker not in self._tasks:
                self._tasks[broker] = loop.create_task(self._run(broker))
        if gone:
            loop.call_soon(job.done, frozenset(gone))

    async def _run(self, broker: BrokerId) -> None:
        try:
            while rows := [(job, tps) for job, tps in self._queues.pop(broker, ()) if not job.is_over]:
                if broker == self._broker:
                    answers = await all_of(self._write_here, rows)
                else:
                    answers = await self._send(broker, rows)
                for (job, tps), codes in zip(rows, answers, strict=True):
                    self._answered(job, tps, codes)
        finally:
            del self._tasks[broker]
            if self._queues.get(broker):  # it came while the last was answered
                self._tasks[broker] = asyncio.get_running_loop().create_task(self._run(broker))

    async def _write_here(self, row: _Row) -> Written:
        return await write_here(self._replicas, self._groups, row[0].marker, row[1])

    def _answered(self, job: _Job, tps: Sequence[TopicPartition], codes: Written) -> None:
        if job.is_over:
            return
        # A newer marker than this one is there already, if the epoch of the producer is higher.
        is_done = (ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH)
        written = frozenset(tp for tp in tps if codes.get(tp) in is_done)
        if ErrorCode.TRANSACTION_COORDINATOR_FENCED in codes.values():
            logger.warning("producer=%d another coordinator has written markers", job.markers.producer_id)
            job.give_up()
            return
        if left := set(tps) - written:
            asyncio.get_running_loop().call_later(RETRY_S, self._spread, job, left)
        if written:
            job.done(written)

    async def _send(self, broker: BrokerId, rows: list[_Row]) -> list[Written]:
        address = self._replicas.metadata.brokers().get(broker)
        if address is None:
            return [{} for _ in rows]
        request = {"markers": [_row(job, tps) for job, tps in rows]}
        try:
            answer = await self._clients.call(address.host, address.port, ApiKey.WRITE_TXN_MARKERS, request)
        except (OSError, TimeoutError, ProtocolError) as error:
            logger.info("broker=%d does not answer WriteTxnMarkers: %s", broker, error)
            return [{} for _ in rows]
        found: dict[tuple[int, TopicPartition], ErrorCode] = {
            (marker.producer_id, tp): code_in(row)
            for marker in answer.markers
            for tp, row in by_partition(marker.topics)
        }
        return [
            {tp: code for tp in tps if (code := found.get((job.markers.producer_id, tp))) is not None}
            for job, tps in rows
        ]


def _row(job: _Job, tps: Sequence[TopicPartition]) -> Mapping[str, Any]:
    return {
        "producer_id": job.markers.producer_id,
        "producer_epoch": job.markers.producer_epoch,
        "transaction_result": job.markers.commits,
        "topics": by_topic({tp: tp.partition for tp in tps}, "partition_indexes"),
        "coordinator_epoch": job.coordinator_epoch,
        "transaction_version": job.markers.version,
    }


async def write_here(
    replicas: ReplicaManager, groups: GroupCoordinator, marker: Marker, tps: Iterable[TopicPartition]
) -> Written:
    """Write the marker to partitions that this broker leads; return what became of each once it is committed."""
    wanted = tuple(sorted(tps))
    pending = PendingProduce(wanted)
    failed: dict[TopicPartition, ErrorCode] = {}
    for tp in wanted:
        try:
            replicas.leader(tp).end_transaction(marker, pending)
        except KafkaError as error:
            failed[tp] = error.code
            pending.settle(tp, AppendResult(error.code))
    results = pending.results if pending.is_over else await pending.wait(dict, WRITE_TIMEOUT_MS)
    codes = {tp: result.error_code for tp, result in results.items()} | failed
    for tp, code in codes.items():
        if tp.topic == OFFSETS_TOPIC and code is ErrorCode.NONE:
            groups.transaction_ended(tp.partition, marker.producer_id, commits=marker.commits)
    return codes
