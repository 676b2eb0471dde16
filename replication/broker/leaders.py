"""Leaders: asks the leaders of partitions, on whichever brokers, about their logs. Belongs to the event loop."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from replication.errors import KafkaError, ProtocolError
from replication.model.cluster import NO_LEADER, BrokerId, TopicPartition, by_partition, by_topic
from replication.model.metadata import BrokerAddress
from replication.model.times import SpecialTime, to_wire
from replication.network.client import Clients
from replication.protocol.apis import ApiKey
from replication.replica.manager import ReplicaManager

logger = logging.getLogger(__name__)

CONSUMER = -1  # the replica id of ListOffsets


class Leaders:
    """The metadata says whom to ask; a leader that does not answer is left out."""

    def __init__(self, broker: BrokerId, replicas: ReplicaManager, clients: Clients) -> None:
        self._broker = broker
        self._replicas = replicas
        self._clients = clients

    async def ends(self, tps: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the high watermarks of partitions that other brokers lead."""
        found: dict[TopicPartition, int] = {}
        for broker, led in self._by_leader(tps).items():
            if broker != self._broker:
                rows = await self._ask(broker, led, SpecialTime.LATEST)
                found.update((tp, row.offset) for tp, row in rows.items() if row.offset >= 0)
        return found

    async def all_ends(self, tps: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the high watermarks of partitions, whoever leads them."""
        mine: dict[TopicPartition, int] = {}
        for tp in tps:
            with suppress(KafkaError):
                mine[tp] = self._replicas.leader(tp).high_watermark
        return {**mine, **await self.ends([tp for tp in tps if tp not in mine])}

    async def all_lead(self, tps: Sequence[TopicPartition]) -> bool:
        """Return whether the leader of each of them, as in the metadata, really leads it."""
        for broker, led in self._by_leader(tps).items():
            if broker == self._broker:
                if not all(map(self._is_led_here, led)):
                    return False
            else:
                rows = await self._ask(broker, led, SpecialTime.EARLIEST)
                if len(rows) < len(led) or any(row.error_code for row in rows.values()):
                    return False
        return True

    def _by_leader(self, tps: Sequence[TopicPartition]) -> Mapping[BrokerId, list[TopicPartition]]:
        found: dict[BrokerId, list[TopicPartition]] = {}
        for tp in tps:
            leader = self._replicas.metadata.leader(*tp)
            found.setdefault(NO_LEADER if leader is None else leader, []).append(tp)
        return found

    def _is_led_here(self, tp: TopicPartition) -> bool:
        try:
            self._replicas.leader(tp)
        except KafkaError:
            return False
        return True

    async def _ask(
        self, broker: BrokerId, tps: Sequence[TopicPartition], time: SpecialTime
    ) -> Mapping[TopicPartition, Any]:
        address: BrokerAddress | None = self._replicas.metadata.brokers().get(broker)
        if address is None:
            return {}
        rows = {tp: {"partition_index": tp.partition, "timestamp": to_wire(time)} for tp in tps}
        request = {"replica_id": CONSUMER, "isolation_level": 0, "topics": by_topic(rows, "partitions")}
        try:
            answer = await self._clients.call(address.host, address.port, ApiKey.LIST_OFFSETS, request)
        except (OSError, TimeoutError, ProtocolError) as error:
            logger.info("broker=%d does not answer ListOffsets: %s", broker, error)
            return {}
        return dict(by_partition(answer.topics))
