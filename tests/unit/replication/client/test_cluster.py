"""The brokers of a cluster, asked one by one: those that are late, silent, new, or none at all."""

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack

from kio.schema.describe_quorum.v0.response import DescribeQuorumResponse

from replication.client.admin import controller
from replication.client.cluster import Cluster, metadata_request
from replication.client.metadata import ClusterMetadata
from replication.errors import ErrorCode
from replication.protocol.apis import ApiKey
from replication.protocol.kio_entities import build
from tests.support.peer import run, serving

LATE, SILENT, NEW, NO_KAFKA = 2, 3, 4, 5


class Brokers:
    """Metadata names those of `ports`; `asked` counts who was asked. The late one knows `topic` at the third time."""

    def __init__(self):
        self.ports, self.asked = {}, Counter()

    def handler(self, id):
        async def metadata(context, body):
            if body.topics:
                self.asked[id] += 1
                if id == SILENT:
                    context.park()
                    await asyncio.sleep(60)
            knows = body.topics and (id != LATE or self.asked[id] > 2)
            topic = {"error_code": 0, "topic_id": None, "name": "t", "is_internal": False, "partitions": []}
            rows = [{"node_id": n, "host": "127.0.0.1", "port": port, "rack": None} for n, port in self.ports.items()]
            return {"cluster_id": "c", "controller_id": 1, "brokers": rows, "topics": [topic] if knows else []}

        return metadata


async def no_kafka(reader, writer):
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    while await reader.read(1000):
        pass
    writer.close()


def test_a_change_is_waited_for_at_each_broker_that_answers_and_each_is_asked_only_until_it_knows():
    async def main():
        brokers = Brokers()
        async with AsyncExitStack() as stack:
            ids = (1, LATE, SILENT, NEW)
            ports = {
                id: (await stack.enter_async_context(serving({ApiKey.METADATA: brokers.handler(id)})))[1] for id in ids
            }
            server = await asyncio.start_server(no_kafka, "127.0.0.1", 0)
            await stack.enter_async_context(server)
            brokers.ports = {1: ports[1]}
            cluster = await stack.enter_async_context(Cluster(f"127.0.0.1:{ports[1]}", timeout_ms=20_000))
            await cluster.describe()
            brokers.ports |= {**ports, NO_KAFKA: server.sockets[0].getsockname()[1]}
            begun_s = time.monotonic()
            await cluster.until_all(ApiKey.METADATA, metadata_request(["t"]), lambda answer: bool(answer.topics))
            return brokers.asked, time.monotonic() - begun_s

    asked, took_s = run(main())
    assert asked == {1: 1, LATE: 3, SILENT: 1, NEW: 1}
    assert took_s < 4


def test_the_controller_is_that_of_the_metadata_where_brokers_do_not_tell_of_their_quorum(monkeypatch):
    """To a user who may not describe the cluster, for example."""
    partition = {"partition_index": 0, "error_code": 0, "leader_id": 9, "leader_epoch": 1, "high_watermark": 0}
    topic = {"topic_name": "__cluster_metadata", "partitions": [partition | {"current_voters": [], "observers": []}]}
    told = {"error_code": 0, "topics": [topic]}
    refused = {"error_code": ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "topics": []}
    known = ClusterMetadata("c", 1, {1: None}, {})

    async def main(answer):
        async def call_any(cluster, key, request, **bounds):
            return build(DescribeQuorumResponse, answer)

        monkeypatch.setattr(Cluster, "call_any", call_any)
        async with Cluster("127.0.0.1:1") as cluster:
            return await controller(cluster, known)

    assert [run(main(answer)) for answer in (told, refused)] == [9, 1]
