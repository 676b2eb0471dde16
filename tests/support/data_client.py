"""A client that produces to a broker of a Site, fetches from it, and asks it for offsets, over a socket."""

import contextlib

from replication.broker.feature_level import FeatureLevel
from replication.broker.handlers.broker_epochs import WrongEpochs
from replication.broker.handlers.fetch import FetchHandlers
from replication.broker.handlers.offsets import PositionHandlers
from replication.broker.handlers.produce import ProduceHandler
from replication.model.cluster import TopicPartition, topic_uuid
from replication.protocol import interbroker as ib
from replication.protocol.apis import SERVED, ApiKey
from replication.protocol.messages import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
)
from tests.support.peer import Peer, serving
from tests.support.site import T0, Site, coordinators_of

T1 = TopicPartition("orders", 1)
TRANSACTIONAL = 0x10


class Client(Peer):
    """One connection to a broker of the site, and requests with few words."""

    def keep(self, site):
        self.site = site
        return self

    async def inform(self):
        """Tell broker 1 what the controller knows."""
        topics = {}
        for tp, state in self.site.states.items():
            row = ib.UpdateMetadataPartition(
                partition_index=tp.partition, controller_epoch=1, leader=state.leader, zk_version=state.version,
                leader_epoch=state.leader_epoch, isr=state.isr, replicas=self.site.replicas[tp],
            )  # fmt: skip
            topics.setdefault(tp.topic, []).append(row)
        nodes = [
            ib.UpdateMetadataBroker(id=number, endpoints=(
                ib.UpdateMetadataEndpoint(port=1000 + number, host="127.0.0.1", listener="PLAINTEXT"),))
            for number in self.site.brokers
        ]  # fmt: skip
        one = self.site.brokers[1]
        await one.replicas.requests.obey(ib.UpdateMetadataRequest(
            controller_id=0, controller_epoch=1, broker_epoch=one.epoch, live_brokers=tuple(nodes),
            topic_states=tuple(
                ib.UpdateMetadataTopic(
                    topic_name=name, topic_id=topic_uuid(self.site.topic_ids[name]), partition_states=tuple(rows)
                ) for name, rows in topics.items()
            ),
        ))  # fmt: skip

    async def produce(self, records, *, tp=T0, acks=-1, version=9, **fields):
        (topic,) = (await self.produce_many({tp: records}, acks=acks, version=version, **fields)).topics
        return topic.partitions[0]

    async def produce_many(self, records, *, acks=-1, version=9, **fields):
        topics = tuple(
            ProduceTopic(topic, (ProducePartition(p, data),), topic_uuid(self.site.topic_ids.get(topic)))
            for (topic, p), data in records.items()
        )
        return await self.ask(ApiKey.PRODUCE, version, ProduceRequest(acks, 5000, topics, **fields))

    def fetch_request(self, offsets, version, *, max_wait_ms=0, min_bytes=1, each_bytes=1 << 20, **fields):
        topics = []
        for (topic, partition), offset in offsets.items():
            number = topic_uuid(self.site.topic_ids[topic]) if version >= 13 else None
            asked = FetchPartition(partition, offset, each_bytes)
            topics.append(FetchTopic(None if version >= 13 else topic, number, (asked,)))
        return FetchRequest(max_wait_ms, min_bytes, tuple(topics), **fields)

    async def fetch_many(self, offsets, *, version=12, **options):
        request = self.fetch_request(offsets, version, **options)
        return await self.ask(ApiKey.FETCH, version, request)

    async def fetch(self, offset=0, *, tp=T0, **options):
        (topic,) = (await self.fetch_many({tp: offset}, **options)).topics
        return topic.partitions[0]

    async def list_offset(self, timestamp, *, version=7, **fields):
        asked = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
        topics = [{"name": "orders", "partitions": [asked]}]
        body = {"replica_id": -1, "isolation_level": 0, "timeout": 0, "topics": topics}
        found = (await self.ask(ApiKey.LIST_OFFSETS, version, body | fields)).topics[0].partitions[0]
        return found.error_code.value, found.offset, found.timestamp


@contextlib.asynccontextmanager
async def client_of(tmp_path, *, brokers=(1,), **config):
    """A client of broker 1, which leads two partitions of `orders`."""
    async with Site(tmp_path) as site:
        one = (await site.start(*brokers, **config))[0]
        for tp in (T0, T1):
            await site.create(tp, replicas=(1,))
        coordinators = coordinators_of(one)
        handlers = {
            **FetchHandlers(one.config, one.replicas, WrongEpochs()).handlers(),
            **PositionHandlers(one.replicas).handlers(),
            **coordinators.handlers(FeatureLevel()),
        }
        produce = ProduceHandler(one.config, one.replicas, coordinators.verification)
        turns = {**produce.turns(), **coordinators.turns()}
        async with serving(handlers, turns=turns) as (server, port):
            client = (await Client.connect(port)).keep(site)
            client.server = server
            await client.inform()
            yield client


def served(key):
    return range(SERVED[key].first, SERVED[key].last + 1)
