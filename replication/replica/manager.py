"""ReplicaManager: the partitions of a broker, for those who serve clients and other brokers.

`open` first, then `connect` with each session of the coordination store, `close` at the end. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from logstore.env import SYSTEM, Env
from logstore.store.description import TopicDescription, new_topic_id
from logstore.store.meta_properties import DirectoryOwner
from replication.config.broker import BrokerConfig
from replication.coordination import cluster
from replication.coordination.tree import Tree
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import NO_EPOCH, BrokerId, TopicPartition
from replication.model.metadata import Metadata
from replication.network.security import PLAINTEXT, Security
from replication.network.steps import in_steps
from replication.protocol.messages import EXAMINER, ONE_REQUEST, FetchPartition, Isolation, PartitionFetched
from replication.protocol.wire import Buffer
from replication.replica import nearest
from replication.replica.follower.fetcher import Fetchers
from replication.replica.follower.follower import Follower
from replication.replica.leader import offsets
from replication.replica.leader.appends import PROMPT_BYTES_MAX
from replication.replica.leader.broker_epochs import BrokerEpochs
from replication.replica.leader.isr_writer import IsrWriter
from replication.replica.leader.leader import Leader, append_one
from replication.replica.leader.purgatory import PendingProduce
from replication.replica.leader.readable import Readable
from replication.replica.leader.repair_source import RepairSource
from replication.replica.leader.results import ALL_IN_SYNC, AppendResult, FetchTerms
from replication.replica.leader.schema_ids import SchemaIds
from replication.replica.leader.sessions import FetchSession, FetchSessions, Found
from replication.replica.machine import isr
from replication.replica.maintenance import Maintenance
from replication.replica.partition import Partition
from replication.replica.partitions import Partitions
from replication.replica.requests import ControllerRequests, LogChange
from replication.replica.schema_topic import SchemaTopic
from replication.replica.storage.replica_log import ReplicaCounters
from replication.replica.storage.room import Room
from replication.replica.storage.store_check import check_epochs, check_owner


class ReplicaManager:
    def __init__(
        self,
        config: BrokerConfig,
        env: Env = SYSTEM,
        *,
        log_change: LogChange = lambda path: None,
        security: Security | Callable[[], Security] = PLAINTEXT,
    ) -> None:
        self.config = config
        self.security = security  # by which other brokers are met
        self.metadata = Metadata()
        self.counters = ReplicaCounters()
        self._isr = IsrWriter(config.broker_id, lambda: self.requests.controller_epoch)
        self._fetchers = Fetchers(config, self.metadata, lambda: self.requests.broker_epoch, security)
        self._schema_topic = SchemaTopic(self.metadata, lambda: self.tree, self._fetchers.connect)
        self._schema_ids = SchemaIds(env.clock, self._schema_topic.read_on)
        self._set = Partitions(config, env, self._isr, self._fetchers, self.counters, self._schema_ids)
        # Set when an fsync failed: what is on disk is unknown, and this broker must not go on (S8).
        self.disk_failed = self._set.disk_failed
        self.offline = self._set.offline  # the replicas that cannot be served or written now
        self.broken = self._set.broken  # those that could not be recovered, and why
        self.configure = self._set.configure
        self.offset_for_time = partial(offsets.for_time, self.leader)
        self.end_offset_for_epoch = partial(offsets.end_of_epoch, self.leader)
        self.delete_records = partial(offsets.delete_records, self.leader)
        self.requests = ControllerRequests(self._set, self.metadata, log_change, config.listening.inter_broker)
        self._clock = env.clock
        self.broker_epochs = BrokerEpochs()
        self.fetch_sessions = FetchSessions(env.clock)
        self._maintenance = Maintenance(config, env, self._set)
        self._ticker: asyncio.Task[None] | None = None

    async def open(self, tree: Tree) -> Sequence[TopicDescription]:
        """Take the directory, and mend what a crash left; the settings of topics come from the tree.

        Returns the topics that came with a directory that no broker had before. Raises: StoreLockedError,
        NotAStoreError.
        """
        adopted = await self._set.open(tree)
        self._maintenance.begin()
        self._ticker = asyncio.get_running_loop().create_task(self._tick())
        return adopted

    async def check_store(self, tree: Tree) -> None:
        """Raises: NotAStoreError, OldStoreError: this is not the coordination store that these logs belong to."""
        log_dir = self._set.dir.log_dir
        assert log_dir.owner is not None, "a broker owns its directory"
        found = DirectoryOwner(self._set.broker, await cluster.read_cluster_id(tree, new_topic_id()))
        check_owner(log_dir.path, log_dir.owner, found)
        logs = {tp: partition.replica.log for tp, partition in self._set.partitions.items()}
        await check_epochs(tree, {tp: (log.topic_id, log.epochs.latest) for tp, log in logs.items()})

    @property
    def has_lost_writes(self) -> bool:
        return self._set.has_lost_writes

    @property
    def tree(self) -> Tree | None:
        return self._set.tree

    @property
    def room(self) -> Room:
        return self._set.room

    def is_writing(self) -> bool:
        """Does the event loop stand in a write, and not for too long? From any thread."""
        return self._set.disk.is_writing()

    def look_with(self, look: Callable[[], None]) -> None:
        self._set.look = look

    def connect(self, tree: Tree, broker_epoch: int) -> None:
        self._set.tree = tree
        self.requests.broker_epoch = broker_epoch
        self._isr.connect(tree)
        self._set.offline.connect(tree)
        self.broker_epochs.connect(tree)

    def suspend(self, *, is_suspended: bool = True) -> None:
        """Note whether the coordination store cannot be reached: leaders propose no ISR then."""
        for leader in self._set.leaders():
            leader.step(isr.Suspended(is_suspended))

    def disconnect(self) -> None:
        """The session is over: this broker leads and follows nothing until the next LeaderAndIsr."""
        self._set.tree, self.requests.broker_epoch = None, NO_EPOCH
        self._isr.disconnect()
        self._set.offline.disconnect()
        self.broker_epochs.disconnect()
        self._set.disconnect()
        self.fetch_sessions.close()
        self._fetchers.close()

    async def close(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        self._schema_ids.close()
        self._schema_topic.close()
        self.disconnect()
        await self._maintenance.end()
        async with self.requests.changing:
            await self._set.close()

    async def _tick(self) -> None:
        while True:
            async for leaders in in_steps(list(self._set.leaders())):
                now_ms = self._clock.monotonic_ms()
                for leader in leaders:
                    leader.tick(now_ms)
            self.fetch_sessions.sweep()
            await asyncio.sleep(self.config.replica_lag_time_max_ms / 4000)

    def partitions(self) -> Mapping[TopicPartition, Partition]:
        return self._set.partitions

    def damaged(self) -> int:
        return len(self._set.repairs.states) + len(self._set.broken)

    def not_shown(self) -> int:
        """How many damaged replicas are not mended, since their leaders have not shown what is damaged there."""
        return len(self._set.repairs.unshown)

    def partition(self, topic: str, partition: int) -> Partition:
        """The replica of this broker.

        Raises: KafkaError: there is no such partition (UNKNOWN_TOPIC_OR_PARTITION), others have it
        (NOT_LEADER_OR_FOLLOWER), or it is damaged (KAFKA_STORAGE_ERROR).
        """
        tp = TopicPartition(topic, partition)
        found = self._set.partitions.get(tp)
        if found is not None:
            return found
        if tp in self._set.broken:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(self._set.broken[tp]))
        if self.metadata.leader(topic, partition) is not None or not self.metadata.is_initialized:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{tp} is not on this broker")
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {tp}")

    def leader(self, tp: TopicPartition) -> Leader:
        """The leader's role of this partition. Raises: KafkaError: as `partition`, or this broker does not lead it."""
        found = self._set.partitions.get(tp)
        role = found.role if found is not None else None
        return role if isinstance(role, Leader) else self.partition(*tp).leader

    def known_leader(self, tp: tuple[str, int]) -> Leader | None:
        """The same; None: `leader` says why there is none."""
        found = self._set.partitions.get(tp)  # type: ignore[call-overload]  # (a TopicPartition is a tuple)
        role = found.role if found is not None else None
        return role if type(role) is Leader else None

    def _shown(self, tp: TopicPartition) -> Leader | RepairSource:
        """The replica that an examiner reads: the leader, or any that knows a leader epoch. Raises: KafkaError."""
        found = self.partition(*tp)
        if isinstance(found.role, Leader) or found.known_leader_epoch is None:
            return found.leader
        return RepairSource(found.replica, found.known_leader_epoch)

    def _nearest(self, racks: nearest.Racks, rack: str, tp: TopicPartition) -> Readable:
        """Return the replica for a consumer with a rack: the leader, or the follower here. Raises: as `leader`."""
        found = self._set.partitions.get(tp)
        role = found.role if found is not None else None
        if isinstance(role, Follower):
            return nearest.ShownFollower(role)
        return nearest.ShownLeader(self.leader(tp), racks, rack)

    def fetch_session(self, number: int, epoch: int, replica: tuple[BrokerId, int], rack: str) -> FetchSession:
        """Return the session of a fetch, see `FetchSessions.of`, of a reader whose epoch is known.

        A consumer that names its rack may be sent to a follower, and reads one: see `replication.replica.nearest`.
        """
        readable: Callable[[TopicPartition], Readable] = self.leader
        if replica[0] == EXAMINER:
            readable = self._shown
        elif rack and replica[0] == -1 and self.config.has_nearest_reads:
            racks = {broker.id: broker.rack for broker in self.metadata.brokers().values()}
            readable = partial(self._nearest, racks, rack)
        return self.fetch_sessions.of(number, epoch, replica, readable)

    def produce(
        self,
        records: Mapping[TopicPartition, Buffer],
        request: PendingProduce,
        *,
        acks: int,
        is_own: bool = False,
    ) -> None:
        """Append batches, per partition all or none, in the order of the calls; they are stamped in place.

        `request` gets the result of each: with acks 0 or 1 when this broker's log has it, with -1 when it is committed.
        A failure is an error code, never an exception. `is_own`: this broker made them.
        """
        may_write = sum(map(len, records.values())) <= PROMPT_BYTES_MAX
        for tp, batches in records.items():
            try:
                leader = self.leader(tp)
            except KafkaError as error:
                request.settle(tp, AppendResult(error.code, error_message=str(error)))
            else:
                data = bytearray(batches) if isinstance(batches, bytes) else batches
                append_one(leader, data, acks, request, is_own=is_own, may_write=may_write)

    def append(
        self, records: Mapping[TopicPartition, Buffer], *, acks: int, timeout_ms: int, is_own: bool = False
    ) -> asyncio.Future[dict[TopicPartition, AppendResult]]:
        """`produce` for this broker itself: the results, after `timeout_ms` at the latest if acks is -1."""
        request = PendingProduce(records)
        self.produce(records, request, acks=acks, is_own=is_own)
        if not request.is_over:
            return request.wait(dict, timeout_ms if acks == ALL_IN_SYNC else -1)
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(dict(request.results))
        return answer

    async def fetch(  # noqa: PLR0913  who reads, what, and when it is enough
        self,
        wanted: Mapping[TopicPartition, FetchPartition],
        *,
        replica_id: int = -1,
        replica_epoch: int = -1,
        max_wait_ms: int,
        min_bytes: int,
        max_bytes: int,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        rack: str = "",
    ) -> dict[TopicPartition, PartitionFetched]:
        """Read partitions: see `replication.replica.leader.sessions`. Consumers see what is committed; followers, all.

        STALE_BROKER_EPOCH for who asks as a follower, and names no life that is registered.
        """
        who = replica_id, replica_epoch
        if replica_id >= 0 and not await self.broker_epochs.is_current(*who):
            return {tp: PartitionFetched(tp.partition, ErrorCode.STALE_BROKER_EPOCH) for tp in wanted}
        terms = FetchTerms(replica_id, replica_epoch, max_wait_ms, min_bytes, max_bytes, isolation)
        found = self.fetch_session(0, ONE_REQUEST, who, rack).fetch(wanted, (), terms, _as_found)
        return await found if isinstance(found, asyncio.Future) else found


async def _as_found(found: Found) -> Found:
    return found
