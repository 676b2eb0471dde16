"""Coordinators: the groups, transactions and share states of one broker, with the partitions and brokers they need."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from logstore.env import Env
from replication.broker.feature_level import FeatureLevel
from replication.broker.handlers.commits import CommitHandlers
from replication.broker.handlers.consumer_groups import ConsumerGroupHandlers
from replication.broker.handlers.coordinators import SHARE, CoordinatorHandlers
from replication.broker.handlers.groups import GroupHandlers
from replication.broker.handlers.offset_commits import OffsetCommitHandler
from replication.broker.handlers.share import ShareHandlers
from replication.broker.handlers.share_groups import ShareGroupHandlers
from replication.broker.handlers.share_offsets import ShareOffsetHandlers
from replication.broker.handlers.share_state import ShareStateHandlers
from replication.broker.handlers.transactions import TransactionHandlers
from replication.broker.internal_topics import InternalTopic
from replication.broker.leaders import Leaders
from replication.broker.markers import Markers
from replication.broker.share.letter_writer import LetterWriter
from replication.broker.share.partitions import SharePartitions
from replication.broker.share_states import ShareStateCalls
from replication.broker.topic_admin import TopicAdmin
from replication.broker.verification import Verification
from replication.config.broker import BrokerConfig
from replication.config.group import GroupConfigs
from replication.coordination.producer_ids import ProducerIds
from replication.coordination.tree import Tree
from replication.coordinators.groups.coordinator import GroupCoordinator
from replication.coordinators.groups.topic_patterns import ClusterTopics
from replication.coordinators.partitioning import PartitionMapping
from replication.coordinators.share_state.coordinator import ShareCoordinator
from replication.coordinators.transactions.coordinator import TransactionCoordinator
from replication.model.cluster import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC
from replication.network.client import Clients
from replication.network.pipeline import TurnHandler
from replication.network.work import Handler
from replication.protocol.apis import ApiKey
from replication.replica.manager import ReplicaManager


class Coordinators:
    """`tree` returns the session's tree; it raises KafkaError while there is none."""

    def __init__(
        self,
        config: BrokerConfig,
        group_configs: GroupConfigs,
        replicas: ReplicaManager,
        admin: TopicAdmin,
        tree: Callable[[], Tree],
        env: Env,
    ) -> None:
        self._config = config
        self._group_configs = group_configs
        self._replicas = replicas
        self._env = env
        number, metadata = config.broker_id, replicas.metadata

        def topic_of(name: str) -> tuple[PartitionMapping, InternalTopic]:
            return PartitionMapping(name, metadata, lambda: replicas.tree), InternalTopic(name, replicas)

        # Connections of their own: the answers to these requests may have to wait.
        name, timeout_ms = f"broker-{number}", config.replica_socket_timeout_ms
        marking, asking, sharing, sending = (
            Clients(name, timeout_ms=timeout_ms, security=replicas.security) for _ in range(4)
        )
        self._clients = marking, asking, sharing, sending
        self._leaders = Leaders(number, replicas, asking)
        mapping = PartitionMapping(SHARE_STATE_TOPIC, metadata, lambda: replicas.tree)
        topic = InternalTopic(SHARE_STATE_TOPIC, replicas, is_compacted=False)
        self.shares = ShareCoordinator(config, mapping, topic, env)
        self.share_states = ShareStateCalls(number, metadata, sharing, self.shares, self._has_share_topic)
        self.groups = GroupCoordinator(config, group_configs.of, *topic_of(OFFSETS_TOPIC), self.share_states, env)
        self._markers = Markers(number, replicas, marking, self.groups, env)
        next_id = ProducerIds(number, tree).next_id
        self.transactions = TransactionCoordinator(config, *topic_of(TRANSACTIONS_TOPIC), self._markers, next_id, env)
        self._finding = CoordinatorHandlers(config, metadata, admin, self.groups, self.transactions, self.shares)
        letters = LetterWriter(config, replicas, sending, admin, tree, env.clock)
        self.share_partitions = SharePartitions(replicas, self.share_states, letters, group_configs.of, env)
        self.verification = Verification(config, metadata, asking, self.transactions)
        self.commits = CommitHandlers(replicas, self.groups, self.verification, env.clock)

    async def _has_share_topic(self) -> None:
        await self._finding.ready(SHARE)

    def begin(self) -> None:
        self.groups.begin()
        self.transactions.begin()
        self.shares.begin()

    def end(self) -> None:
        self.share_partitions.end()
        self.shares.end()
        self.transactions.end()
        self._markers.end()
        self.verification.end()
        self.groups.end()

    def keep(self, addresses: set[tuple[str, int]]) -> None:
        """Close the connections to others than these."""
        for clients in self._clients:
            clients.keep(addresses)

    def turns(self) -> Mapping[ApiKey, TurnHandler]:
        return OffsetCommitHandler(self._replicas.metadata, self.groups, self.commits, self._env.clock).turns()

    def handlers(self, level: FeatureLevel) -> Mapping[ApiKey, Handler]:
        groups, transactions, clock = self.groups, self.transactions, self._env.clock
        metadata = self._replicas.metadata
        topics = ClusterTopics(metadata)
        families = (
            self._finding,
            GroupHandlers(groups, topics),
            ConsumerGroupHandlers(self._config, self._group_configs.of, groups, metadata, topics, level),
            ShareGroupHandlers(self._config, self._group_configs.of, groups, metadata, level),
            ShareOffsetHandlers(groups, self.share_states, metadata, level, self._leaders.all_ends),
            self.commits,
            ShareStateHandlers(self.shares, level),
            ShareHandlers(self._config, self.share_partitions, self._replicas.metadata, level),
            TransactionHandlers(self._finding, transactions, groups, self._replicas, clock),
        )
        return {key: handler for family in families for key, handler in family.handlers().items()}
