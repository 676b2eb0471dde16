"""FindCoordinator: who keeps a group, a transactional id or a share partition.

The first that is looked for creates the internal topic.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from logstore.errors import PylogError
from replication.broker.topic_admin import NewTopic, TopicAdmin
from replication.config.broker import BrokerConfig
from replication.coordinators.groups.coordinator import GroupCoordinator
from replication.coordinators.partitioning import no_metadata
from replication.coordinators.share_state.coordinator import ShareCoordinator
from replication.coordinators.share_state.machine.state import SharePartitionKey
from replication.coordinators.terms import Terms
from replication.coordinators.transactions.coordinator import TransactionCoordinator
from replication.errors import ErrorCode, KafkaError, message_of
from replication.model.cluster import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC
from replication.model.metadata import BrokerAddress, Metadata
from replication.network.work import Handler, Response, Work
from replication.protocol.apis import ApiKey
from replication.protocol.kio_pieces import Rows
from replication.protocol.requests import FindCoordinatorRequest

logger = logging.getLogger(__name__)

GROUP, TRANSACTION, SHARE = 0, 1, 2  # the types of keys
SHARES_FROM = 6  # the first version that asks for share partitions
CREATE_WAIT_S, LEARN_WAIT_S = 5.0, 1.0
_TOPIC_ID, _INT32 = re.compile(r"[\w-]{22}", re.ASCII), re.compile(r"-?[0-9]{1,10}")


class CoordinatorHandlers:
    def __init__(
        self,
        config: BrokerConfig,
        metadata: Metadata,
        admin: TopicAdmin,
        groups: GroupCoordinator,
        transactions: TransactionCoordinator,
        shares: ShareCoordinator,
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._admin = admin
        self._terms: Mapping[int, tuple[str, Terms[Any]]] = {
            GROUP: (OFFSETS_TOPIC, groups.terms),
            TRANSACTION: (TRANSACTIONS_TOPIC, transactions.terms),
            SHARE: (SHARE_STATE_TOPIC, shares.terms),
        }

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {ApiKey.FIND_COORDINATOR: self.find_coordinator}

    async def find_coordinator(self, context: Work, body: FindCoordinatorRequest) -> Response:
        keys = body.coordinator_keys if context.version >= 4 else (body.key,)
        failed: KafkaError | None = None
        try:
            _check(context.version, body.key_type, keys)
            await self.ready(body.key_type)
        except KafkaError as error:
            failed = error

        def row(key: str) -> Response:
            try:
                if failed is not None:
                    raise failed
                broker = self._find(body.key_type, key, context.listener)
            except KafkaError as error:
                return _nobody(key, error)
            found = {"key": key, "node_id": broker.id, "host": broker.host, "port": broker.port}
            return {"error_code": 0, "error_message": None, **found}

        if context.version >= 4:
            return {"coordinators": Rows(len(keys), map(row, keys))}
        return row(body.key)

    async def ready(self, kind: int) -> None:
        """Have the topic of this type of keys be there, and know its partitions. Raises: KafkaError."""
        if kind not in self._terms:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"no coordinator has keys of type {kind}")
        topic, terms = self._terms[kind]
        if not self._metadata.is_initialized:
            raise no_metadata()
        if self._metadata.topic(topic) is None:
            await self._make_topic(self._new_topic(topic))
        await terms.learned(LEARN_WAIT_S)

    def _find(self, kind: int, key: str, listener: str) -> BrokerAddress:
        topic, terms = self._terms[kind]
        try:
            partition = terms.partition_of(key)
        except KafkaError as error:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
        leader = self._metadata.leader(topic, partition)
        broker = self._metadata.brokers_at(listener).get(-1 if leader is None else leader)
        if broker is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "its partition has no leader now")
        return broker

    def _new_topic(self, name: str) -> NewTopic:
        config, brokers = self._config, max(len(self._metadata.brokers()), 1)
        settings = {"cleanup.policy": "compact", "compression.type": "producer"}
        if name == SHARE_STATE_TOPIC:
            replicas = min(config.share_coordinator_state_topic_replication_factor, brokers)
            return NewTopic(
                name=name,
                partitions=config.share_coordinator_state_topic_num_partitions,
                replication_factor=replicas,
                config={
                    "cleanup.policy": "delete",  # its coordinators delete what says nothing more
                    "retention.ms": "-1",
                    "compression.type": "producer",
                    "segment.bytes": str(config.share_coordinator_state_topic_segment_bytes),
                    "min.insync.replicas": str(min(config.share_coordinator_state_topic_min_isr, replicas)),
                    "unclean.leader.election.enable": "false",
                },
            )
        if name == OFFSETS_TOPIC:
            return NewTopic(
                name=name,
                partitions=config.offsets_topic_num_partitions,
                replication_factor=min(config.offsets_topic_replication_factor, brokers),
                config={**settings, "segment.bytes": str(config.offsets_topic_segment_bytes)},
            )
        replicas = min(config.transaction_state_log_replication_factor, brokers)
        return NewTopic(
            name=name,
            partitions=config.transaction_state_log_num_partitions,
            replication_factor=replicas,
            config={
                **settings,
                "segment.bytes": str(config.transaction_state_log_segment_bytes),
                "min.insync.replicas": str(min(config.transaction_state_log_min_isr, replicas)),
                "unclean.leader.election.enable": "false",
            },
        )

    async def _make_topic(self, topic: NewTopic) -> None:
        try:
            ready = await self._admin.ensure(topic, timeout_s=CREATE_WAIT_S)
        except PylogError as error:
            logger.warning("topic %s cannot be created: %s", topic.name, error)
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
        if ready is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{topic.name} is being created")


def _check(version: int, kind: int, keys: Sequence[str]) -> None:
    """Raises: KafkaError: INVALID_REQUEST: a version without share partitions, or keys that are none."""
    if kind == SHARE:
        if version < SHARES_FROM:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"share partitions are found from version {SHARES_FROM} on")
        for key in keys:
            read_share_key(key)


def read_share_key(text: str) -> SharePartitionKey:
    """Read group:topic id:partition; a group's id may have colons. Raises: KafkaError: INVALID_REQUEST."""
    group_id, *rest = text.rsplit(":", 2)
    if group_id.strip() and len(rest) == 2 and _TOPIC_ID.fullmatch(rest[0]) and _INT32.fullmatch(rest[1]):
        return SharePartitionKey(group_id, rest[0], int(rest[1]))
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"{text!r} is not GROUP:TOPIC_ID:PARTITION")


def _nobody(key: str, error: KafkaError) -> Response:
    # The client must ask again, even if this broker does not know of the topic yet.
    code = error.code if error.code is ErrorCode.INVALID_REQUEST else ErrorCode.COORDINATOR_NOT_AVAILABLE
    return {
        "key": key,
        "node_id": -1,
        "host": "",
        "port": -1,
        "error_code": code,
        "error_message": message_of(error),
    }
