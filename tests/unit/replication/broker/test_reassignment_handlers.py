"""AlterPartitionReassignments and ListPartitionReassignments: what is asked for stands in the tree, or is refused."""

import asyncio

import pytest

from logstore.env import SYSTEM
from replication.broker.handlers.reassignments import ReassignmentHandlers
from replication.broker.topic_admin import TopicAdmin
from replication.config.broker import BrokerConfig
from replication.controller.driver import ControllerLoop
from replication.controller.machine.state import ControllerSettings
from replication.coordination import cluster, registration, topics
from replication.coordination.placements import Placements
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import BrokerInfo, LeaderAndIsr, Reassignment, TopicPartition
from replication.model.metadata import BrokerAddress, Metadata, PartitionMetadata, PartitionUpdate
from replication.network.work import Work
from replication.protocol import apis
from replication.protocol.apis import ApiKey
from tests.support.peer import Answers
from tests.unit.replication.controller.test_driver import TP, site

GONE = TopicPartition("gone", 0)
TOPIC_ID = "i" * 21 + "A"


def metadata_of(*tps):
    metadata = Metadata()
    state = PartitionMetadata(LeaderAndIsr(1, 0, (1,), 1, 0), (1,), ())
    brokers = [BrokerAddress(broker, "h", broker) for broker in (1, 2, 3)]
    metadata.update(1, brokers, [PartitionUpdate(tp, TOPIC_ID, state) for tp in tps])
    return metadata


async def ask(handlers, key, version=0, **body):
    """Through the bytes of the protocol, there and back."""
    frame = b"".join(apis.encode_request(key, version, 1, "me", {"timeout": 1000, **body}))
    request = apis.decode_request(memoryview(frame[4:]))
    context = Work(Answers(), request, 0, 0.0)
    answer = await handlers.handlers()[key](context, request.body)
    back = b"".join(apis.encode_response(key, version, 1, answer))
    return apis.decode_response(key, version, memoryview(back[4:]))[1]


async def alter(handlers, wanted, **more):
    rows = [
        {"name": tp.topic, "partitions": [{"partition_index": tp.partition, "replicas": replicas}]}
        for tp, replicas in wanted.items()
    ]
    return await ask(handlers, ApiKey.ALTER_PARTITION_REASSIGNMENTS, topics=rows, **more)


async def codes(handlers, wanted, **more):
    answer = await alter(handlers, wanted, **more)
    assert answer.error_code == ErrorCode.NONE
    return {
        TopicPartition(topic.name, row.partition_index): row.error_code
        for topic in answer.responses
        for row in topic.partitions
    }


async def listed(handlers, tps):
    rows = None if tps is None else [{"name": tp.topic, "partition_indexes": [tp.partition]} for tp in tps]
    answer = await ask(handlers, ApiKey.LIST_PARTITION_REASSIGNMENTS, topics=rows)
    assert answer.error_code == ErrorCode.NONE
    return {
        TopicPartition(topic.name, row.partition_index): (
            row.replicas,
            row.adding_replicas,
            row.removing_replicas,
        )
        for topic in answer.topics
        for row in topic.partitions
    }


async def _true(value):
    return value


def test_only_the_controller_answers():
    async def check():
        idle = ControllerLoop(1, ControllerSettings(), None, lambda change: None, SYSTEM.clock)
        handlers = ReassignmentHandlers(idle, metadata_of(TP), Placements(100), lambda: None)
        answer = await alter(handlers, {TP: (2,)})
        assert (answer.error_code, answer.responses) == (ErrorCode.NOT_CONTROLLER, ())
        listed = await ask(handlers, ApiKey.LIST_PARTITION_REASSIGNMENTS, topics=None)
        assert (listed.error_code, listed.topics) == (ErrorCode.NOT_CONTROLLER, ())

    asyncio.run(check())


def test_another_number_of_replicas_is_refused_where_the_request_says_so(tmp_path):
    async def check():
        async with site(tmp_path) as here:
            handlers = ReassignmentHandlers(here.loop, metadata_of(TP, GONE), Placements(100), lambda: here.tree)
            await here.create()
            await here.until(here.state)
            same = {"version": 1, "allow_replication_factor_change": False}
            assert await codes(handlers, {TP: (1, 2)}, **same) == {TP: ErrorCode.INVALID_REPLICATION_FACTOR}
            assert await codes(handlers, {TP: (2,)}, **same) == {TP: ErrorCode.NONE}
            assert not (await alter(handlers, {}, **same)).allow_replication_factor_change
            assert (await alter(handlers, {}, version=1)).allow_replication_factor_change

    asyncio.run(check())


def test_what_is_asked_for_is_begun_listed_and_taken_back(tmp_path):
    async def check():
        async with site(tmp_path) as here:
            handlers = ReassignmentHandlers(here.loop, metadata_of(TP), Placements(100), lambda: here.tree)
            await here.create()
            await here.until(here.state)
            # The tree does not know broker 2 yet: the machine refuses what the metadata allows.
            assert await codes(handlers, {TP: (2,)}) == {TP: ErrorCode.NONE}
            await here.until(lambda: is_idle(here.tree))
            assert await codes(handlers, {TP: None}) == {TP: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS}

            await registration.register_broker(here.tree, BrokerInfo(2, -1, "h", 2), now_ms=0, wait_ms=1000)
            await here.until(lambda: _true(2 in here.loop.state.brokers))
            assert await codes(handlers, {TP: (2,)}) == {TP: ErrorCode.NONE}
            await here.until(lambda: _true(TP in here.loop.state.moves and replicas(here) == (1, 2)))
            assert await listed(handlers, None) == await listed(handlers, [TP]) == {TP: ((1, 2), (2,), (1,))}
            assert await listed(handlers, [TopicPartition("t", 7)]) == {}
            plans = await cluster.read_reassignments(here.tree)
            assert plans == {TP: Reassignment((2,), (1,))}
            assert await codes(handlers, {TP: None}) == {TP: ErrorCode.NONE}
            await here.until(lambda: is_idle(here.tree))
            assert (await cluster.read_topics(here.tree))["t"].replicas == {0: (1,)}

    def replicas(here):
        return here.loop.state.topics["t"].replicas[0]

    async def is_idle(tree):
        return not await cluster.read_reassignments(tree)

    asyncio.run(check())


def test_what_cannot_be_is_refused_and_nothing_of_it_is_written(tmp_path):
    async def check():
        async with site(tmp_path) as here:
            handlers = ReassignmentHandlers(here.loop, metadata_of(TP, GONE), Placements(100), lambda: here.tree)
            await here.create()
            await topics.create_topic(here.tree, GONE.topic, TOPIC_ID, {0: (9,)}, {})  # and 9 is down
            for wrong in ((), (2, 2), (1, 9), (-1,)):
                assert await codes(handlers, {TP: wrong}) == {TP: ErrorCode.INVALID_REPLICA_ASSIGNMENT}
            await topics.mark_deleted(here.tree, GONE.topic)
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            absent = TopicPartition("t", 7)
            assert await codes(handlers, {GONE: (1,), absent: None}) == {GONE: unknown, absent: unknown}
            assert await cluster.read_reassignments(here.tree) == {}

    asyncio.run(check())


def test_a_topic_that_waits_for_its_reassignment_is_said_not_to_be_deleted_and_can_be_freed(tmp_path):
    """Copying to a broker that died: the deletion waits for the reassignment, so that must be taken back."""

    async def check():
        async with site(tmp_path) as here:
            metadata = metadata_of(TP)
            handlers = ReassignmentHandlers(here.loop, metadata, Placements(100), lambda: here.tree)
            await here.create()
            await here.until(here.state)
            await registration.register_broker(here.tree, BrokerInfo(2, -1, "h", 2), now_ms=0, wait_ms=1000)
            await here.until(lambda: _true(2 in here.loop.state.brokers))
            assert await codes(handlers, {TP: (2,)}) == {TP: ErrorCode.NONE}
            await here.until(lambda: _true(TP in here.loop.state.moves))
            admin = TopicAdmin(BrokerConfig(), metadata, lambda: here.tree, None, Placements(100), SYSTEM)
            with pytest.raises(KafkaError, match="not deleted yet") as raised:
                await admin.delete("t", timeout_s=0.3)
            assert raised.value.code is ErrorCode.REQUEST_TIMED_OUT
            assert await codes(handlers, {TP: None}) == {TP: ErrorCode.NONE}
            await here.until(lambda: _is_gone(here.tree, "t"))

    async def _is_gone(tree, topic):
        return topic not in await cluster.read_topics(tree)

    asyncio.run(check())
