"""Partitions: the replicas on this broker, and the settings of their topics. Belongs to the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from logstore.config import LogConfig
from logstore.env import Env
from logstore.errors import DiskFullError, InvalidConfigError, PylogError
from logstore.log.log import Log
from logstore.store.description import TopicDescription
from replication.config.broker import BrokerConfig
from replication.coordination import cluster, registration
from replication.coordination.tree import Tree
from replication.model.cluster import Replica, TopicPartition
from replication.replica.follower.follower import Asking
from replication.replica.leader.leader import Leader
from replication.replica.machine.leadership import is_replica_lost
from replication.replica.partition import Partition
from replication.replica.quota import ReplicationQuota
from replication.replica.repairs import Repairs
from replication.replica.storage import adoption
from replication.replica.storage.executor import DiskExecutor
from replication.replica.storage.log_dir import ReplicaLogDir
from replication.replica.storage.offline import OfflineReplicas
from replication.replica.storage.replica_log import Host, IsrUpdates, ReplicaCounters, SchemaIds
from replication.replica.storage.room import Room

logger = logging.getLogger(__name__)

# For topics with malformed settings: nothing is deleted.
NO_EFFECT = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}


class Partitions:
    """`broken` are replicas that could not be recovered, each with the error."""

    def __init__(
        self,
        config: BrokerConfig,
        env: Env,
        isr: IsrUpdates,
        asking: Asking,
        counters: ReplicaCounters,
        schema_ids: SchemaIds,
    ) -> None:
        self.offline = OfflineReplicas(config.broker_id)
        self.broker = config.broker_id
        self.partitions: dict[TopicPartition, Partition] = {}
        self.broken: dict[TopicPartition, PylogError] = {}
        self.tree: Tree | None = None
        self.look: Callable[[], None] = lambda: None  # see `Host`; the broker sets it
        self.disk_failed = asyncio.Event()
        self._config = config
        self._env = env
        self._isr = isr
        self._asking = asking
        self.counters = counters
        self._schema_ids = schema_ids
        self._topic_configs: dict[str, LogConfig] = {}
        self._unread: set[str] = set()  # topics of which a node was malformed at the start

    async def open(self, tree: Tree) -> Sequence[TopicDescription]:
        """Take the directory, and recover its logs; return the topics that were adopted with it (see `adoption`).

        Raises: StoreLockedError; NotAStoreError: it belongs to another broker; TopicExistsError: see `adoption`.
        """
        self.tree = tree
        self.dir = await asyncio.to_thread(ReplicaLogDir.open, Path(self._config.log_dirs), self._env)
        try:
            adopted = await adoption.take(tree, self.dir.log_dir, self.broker, self._env)
            await asyncio.to_thread(self.dir.look)
        except BaseException:
            self.dir.log_dir.close()
            raise
        self.room = Room(self.dir.path, self.dir.log_dir.reserve, self.offline, self._env)
        self.disk = DiskExecutor(self._config.num_io_threads, self._env)
        self.repairs = Repairs(self.dir, self.partitions, self._asking)
        config, clock = self._config, self._env.clock
        self._host = Host(
            broker=self.broker,
            config=self._config,
            disk=self.disk,
            clock=self._env.clock,
            isr=self._isr,
            offline=self.offline,
            disk_full=self.room.is_missing,
            is_sound=lambda: self.dir.log_dir.reserve.was_there and not self.disk_failed.is_set(),
            keep_reserve=self.dir.log_dir.reserve.keep,
            cutting=self.dir.checkpoints.cutting,
            suspect=self.repairs.suspect,
            disk_failed=self.disk_failed.set,
            leader_quota=ReplicationQuota(lambda: config.leader_replication_throttled_rate, clock),
            follower_quota=ReplicationQuota(lambda: config.follower_replication_throttled_rate, clock),
            look=self.look,
            schema_ids=self._schema_ids,
            counters=self.counters,
        )
        await self.learn_configs({tp.topic for tp in self.dir.topic_ids})
        threads = self._config.num_recovery_threads_per_data_dir
        recovered = await asyncio.to_thread(self.dir.recover, self.config_of, threads=threads)
        for tp, log in recovered.items():
            if isinstance(log, Log):
                self._add(tp, log)
            else:
                self.broken[tp] = log
        self.repairs.begin(self._host)
        await self._find_losses(tree)
        await self.room.begin()
        return adopted

    @property
    def has_lost_writes(self) -> bool:
        return self.dir.has_lost_writes

    async def _find_losses(self, tree: Tree) -> None:
        """Note if an ISR counts on a replica that is missing here, after a change of the disk for example."""
        topics = await cluster.read_topics(tree)
        states, malformed = await cluster.find_states(tree, self._assigned(topics))
        self._unread = {name for name, topic in topics.items() if not topic.replicas} | {tp.topic for tp in malformed}
        for tp in states:
            topic_id = topics[tp.topic].topic_id
            me, state, is_on_disk = Replica(tp, self.broker), states[tp], self.is_on_disk(tp, topic_id)
            if state is not None and is_replica_lost(me, state, is_on_disk=is_on_disk, is_new=False):
                logger.error("tp=%s is lost: it is in the ISR %s, and missing here", tp, state.isr)
                self.dir.has_lost_writes = True

    async def maybe_forget_losses(self, tree: Tree) -> None:
        """Forget the loss once the controller has decided about every replica of this life."""
        topics = await cluster.read_topics(tree)
        decided = {tp for tp, partition in self.partitions.items() if partition.is_loss_decided}
        is_all_known = all(topics[tp.topic].replicas for tp in self.partitions if tp.topic in topics)
        is_decided = is_all_known and decided.issuperset(self._assigned(topics)) and self.has_lost_writes
        if is_decided and await registration.forget_losses(tree, self.broker):
            await asyncio.to_thread(self.dir.note_boot)

    def _assigned(self, topics: Mapping[str, TopicDescription]) -> list[TopicPartition]:
        return [
            TopicPartition(name, number)
            for name, topic in topics.items()
            for number, replicas in topic.replicas.items()
            if self.broker in replicas
        ]

    def disconnect(self) -> None:
        """End all roles after the session ended, until controllers of the next one assign them again."""
        for partition in self.partitions.values():
            partition.forget()
        if self.partitions:
            self.repairs.unlearn()

    async def close(self) -> None:
        await self.repairs.close()
        self.room.close()
        await self.disk.close()
        offsets = self.high_watermarks()
        logs = {tp: partition.replica.log for tp, partition in self.partitions.items()}
        try:
            await asyncio.to_thread(self.dir.checkpoints.note, offsets, self.dir.checkpoints.cuts())
        except (PylogError, OSError) as error:
            logger.error("high watermarks cannot be stored: %s", error)
        await asyncio.to_thread(self.dir.close, logs)

    def high_watermarks(self) -> dict[TopicPartition, int]:
        return {tp: p.high_watermark for tp, p in self.partitions.items() if not p.replica.ends_early}

    def leaders(self) -> list[Leader]:
        return [p.role for p in self.partitions.values() if isinstance(p.role, Leader)]

    def _add(self, tp: TopicPartition, log: Log) -> None:
        high_watermark = self.dir.checkpoints.high_watermarks.get(tp, 0)
        self.partitions[tp] = Partition(self._host, self._asking, tp, log, high_watermark)

    def config_of(self, topic: str) -> LogConfig:
        return self._topic_configs.get(topic) or self._config.log_config({})

    def configure(self, topic: str, overrides: Mapping[str, str]) -> None:
        config = self._topic_configs[topic] = self._config.log_config(overrides)
        for tp, partition in self.partitions.items():
            if tp.topic == topic:
                partition.replica.log.reconfigure(config)

    async def learn_configs(self, topics: Iterable[str], *, anew: Collection[str] = ()) -> None:
        """Read the settings of topics that are unknown, or in `anew`: those were recreated under their name.

        Malformed settings of a topic are replaced by the broker's, except that nothing of it is deleted.
        """
        unknown = sorted(set(topics) - (self._topic_configs.keys() - set(anew)))
        if unknown and self.tree is not None:
            for topic, overrides in (await cluster.read_topic_configs(self.tree, unknown)).items():
                try:
                    self.configure(topic, NO_EFFECT if overrides is None else overrides)
                except InvalidConfigError:
                    self.configure(topic, NO_EFFECT)

    def is_on_disk(self, tp: TopicPartition, topic_id: str) -> bool:
        """Return whether there is a whole replica of this topic, and not of another topic of its name."""
        is_known = tp in self.partitions or tp in self.broken
        return is_known and self.dir.topic_ids.get(tp) == topic_id

    def was_never_here(self, tp: TopicPartition, topic_id: str) -> bool:
        """Return whether a replica that is not on disk is a new one.

        The start has found all others on which an ISR counted, unless their topic could not be read then.
        """
        is_known = (tp in self.partitions or tp in self.broken) and self.dir.topic_ids.get(tp) in (None, topic_id)
        return not is_known and tp.topic not in self._unread

    async def find_or_create(self, wanted: Mapping[TopicPartition, str]) -> dict[TopicPartition, Partition | Exception]:
        """Return the replicas of these topic ids, created where they are missing, or the errors in their places."""
        new = {tp: topic_id for tp, topic_id in wanted.items() if not self.is_on_disk(tp, topic_id)}
        found: dict[TopicPartition, Partition | Exception] = dict(self.broken)
        if new:
            for tp in new:
                self._release(tp)
            try:
                logs = await asyncio.to_thread(self._create, new)
            except (PylogError, OSError) as error:
                if isinstance(error, DiskFullError):
                    self.room.is_missing()
                found.update(dict.fromkeys(new, error))
                new = {}
            else:
                for tp, log in logs.items():
                    self._add(tp, log)
        found.update((tp, self.partitions[tp]) for tp in wanted if tp in self.partitions)
        return found

    def _create(self, new: Mapping[TopicPartition, str]) -> dict[TopicPartition, Log]:
        self.dir.create_logs(new)
        return {tp: self.dir.open_log(tp, topic_id, self.config_of(tp.topic)) for tp, topic_id in new.items()}

    def _release(self, tp: TopicPartition) -> None:
        self.broken.pop(tp, None)
        self.repairs.forget(tp)
        partition = self.partitions.pop(tp, None)
        if partition is not None:
            partition.leave_role()

    async def delete(self, tp: TopicPartition) -> None:
        """Delete the replica: it is gone at once, its files after `file.delete.delay.ms`."""
        partition = self.partitions.get(tp)
        if partition is not None:
            await partition.replica.call(partition.replica.log.close)  # after all queued writes
        self._release(tp)
        await asyncio.to_thread(self.dir.delete, tp, self.config_of(tp.topic).file_delete_delay_ms)
        if not any(other.topic == tp.topic for other in self.partitions):
            self._topic_configs.pop(tp.topic, None)
