"""The requests of a controller to its brokers, and their order: over a network that the test holds up."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode as WireCode

from replication.controller import channels
from replication.controller.channels import BrokerChannels
from replication.controller.machine.events import (
    LeaderAndIsrPartitionState,
    SendLeaderAndIsr,
    SendUpdateMetadata,
)
from replication.model.cluster import BrokerInfo, LeaderAndIsr, TopicPartition
from replication.model.listeners import Endpoint, Listener, SecurityProtocol
from replication.model.state_changes import ControllerLines
from replication.protocol import interbroker as ib
from replication.protocol.apis import ApiKey

LEADERSHIP, METADATA = ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA
EMPTY = {
    LEADERSHIP: ib.LeaderAndIsrResponse(error_code=WireCode.none, topics=()),
    METADATA: ib.UpdateMetadataResponse(error_code=WireCode.none),
}


class Network:
    """Three brokers. `held`: those that do not answer before their event is set; `errors`: what calls to them raise."""

    def __init__(self):
        self.brokers = {number: BrokerInfo(number, 10 + number, "h", number) for number in (1, 2, 3)}
        self.held, self.errors, self.sent, self.requests, self.tasks = {}, {}, [], [], []
        self.code, self.hear = WireCode.none, lambda event: None
        self.channels = BrokerChannels(
            ControllerLines(1, 1),
            self.call,
            self.brokers.get,
            lambda line: None,
            lambda event: self.hear(event),  # noqa: PLW0108  a test sets it later
            self.spawn,
        )

    def spawn(self, work):
        self.tasks.append(asyncio.get_running_loop().create_task(work))
        return self.tasks[-1]

    async def call(self, broker, key, request):
        self.sent.append((broker.id, key))
        self.requests.append(request)
        if broker.id in self.errors:
            raise self.errors[broker.id]
        if (broker.id, key) in self.held:
            await self.held[broker.id, key].wait()
        return replace(EMPTY[key], error_code=self.code)

    def hold(self, broker, key=LEADERSHIP):
        self.held[broker, key] = asyncio.Event()

    def order(self, broker, leader, epoch=0):
        self.channels.send(SendLeaderAndIsr(broker, 10 + broker, 1, (news(leader, epoch),)))

    def tell(self, broker, *leaders):
        rows = tuple(news(leader, 0, number) for number, leader in enumerate(leaders))
        self.channels.send(SendUpdateMetadata(broker, 10 + broker, 1, tuple(self.brokers.values()), rows))

    async def until(self, *wanted):
        async with asyncio.timeout(10):
            while not set(wanted) <= set(self.sent):  # noqa: ASYNC110  nobody tells
                await asyncio.sleep(0.005)

    async def rest(self):
        """Let everything happen that can."""
        for _ in range(20):
            await asyncio.sleep(0)


def news(leader, epoch, number=0):
    state = LeaderAndIsr(leader, epoch, (leader,), 1, 0)
    return LeaderAndIsrPartitionState(TopicPartition("t", number), "i" * 22, state, (1, 2, 3), False)


@asynccontextmanager
async def network():
    made = Network()
    try:
        yield made
    finally:
        made.channels.close()
        await asyncio.gather(*made.tasks, return_exceptions=True)


def test_only_replicas_that_live_brokers_cannot_serve_are_told_as_offline():
    """A dead broker is missing among the live ones; once it is back, nobody is told of a partition that is the same."""

    async def check():
        async with network() as net:
            del net.brokers[2]
            row = replace(news(3, 0), offline=(1,))
            net.channels.send(SendUpdateMetadata(1, 11, 1, tuple(net.brokers.values()), (row,)))
            await net.until((1, METADATA))
            (request,) = net.requests
            assert [broker.id for broker in request.live_brokers] == [1, 3]
            (topic,) = request.topic_states
            assert [state.offline_replicas for state in topic.partition_states] == [(1,)]

    asyncio.run(check())


@pytest.mark.parametrize(("partitions", "parts"), [(1, [1]), (2, [2, 0]), (3, [2, 1]), (4, [2, 2, 0])])
def test_metadata_of_many_partitions_end_with_a_request_that_is_not_full(monkeypatch, partitions, parts):
    """That is how a broker knows that it has heard of all; what changes meanwhile is not put into a full one."""
    monkeypatch.setattr(channels, "UPDATE_PARTITIONS_MAX", 2)

    async def check():
        async with network() as net:
            net.hold(1, METADATA)
            net.tell(1, *[3] * partitions)
            await net.rest()
            net.tell(1, 3)
            net.held[1, METADATA].set()
            await net.rest()
            sent = [sum(len(topic.partition_states) for topic in request.topic_states) for request in net.requests]
            assert (sent[: len(parts) - 1], sum(sent)) == (parts[:-1], partitions + 1)
            assert max(sent[len(parts) - 1 :]) < 2

    asyncio.run(check())


def test_nobody_hears_of_a_leader_that_has_not_obeyed():
    async def check():
        async with network() as net:
            net.hold(2)
            net.order(2, leader=2)
            net.order(3, leader=2)
            for broker in (1, 2, 3):
                net.tell(broker, 1, 2)
            await net.rest()
            assert set(net.sent) == {(2, LEADERSHIP), (3, LEADERSHIP)}
            net.held[2, LEADERSHIP].set()
            await net.until((1, METADATA), (2, METADATA), (3, METADATA))

    asyncio.run(check())


def test_a_follower_that_has_not_obeyed_is_waited_for_by_nobody_else():
    async def check():
        async with network() as net:
            net.hold(3)
            net.order(2, leader=2)
            net.order(3, leader=2)
            for broker in (1, 2, 3):
                net.tell(broker, 2)
            await net.until((1, METADATA), (2, METADATA))
            await net.rest()
            assert (3, METADATA) not in net.sent  # its own orders come first

    asyncio.run(check())


def test_orders_do_not_wait_behind_metadata_that_waits():
    async def check():
        async with network() as net:
            net.hold(2)
            net.order(2, leader=2)
            net.tell(1, 2)
            net.order(1, leader=1, epoch=1)
            await net.until((1, LEADERSHIP))
            assert (1, METADATA) not in net.sent

    asyncio.run(check())


@pytest.mark.parametrize("how", ["it cannot be reached", "it is gone", "it takes too long"])
def test_a_leader_is_not_waited_for_in_vain(how, monkeypatch):
    monkeypatch.setattr(channels, "LEADERS_WAIT_S", 0.05 if how == "it takes too long" else 60)

    async def check():
        async with network() as net:
            net.hold(2)
            match how:
                case "it cannot be reached":
                    net.errors[2] = ConnectionRefusedError("nobody listens")
                case "it is gone":
                    del net.brokers[2]
            net.order(2, leader=2)
            net.tell(1, 2)
            await net.until((1, METADATA))

    asyncio.run(check())


def test_metadata_that_waits_for_a_leader_takes_the_next_along():
    async def check():
        async with network() as net:
            net.hold(2)
            net.order(2, leader=2)
            for _ in range(5):
                net.tell(1, 2)
            net.held[2, LEADERSHIP].set()
            await net.until((1, METADATA))
            await asyncio.gather(*net.tasks)
            assert net.sent.count((1, METADATA)) == 2

    asyncio.run(check())


def test_a_broker_that_cannot_be_reached_is_a_warning_once_per_request(monkeypatch, caplog):
    monkeypatch.setattr(channels, "REPEAT_S", 0)

    async def check():
        async with network() as net:
            net.errors[2] = ConnectionRefusedError("nobody listens")
            net.order(2, leader=2)
            net.order(2, leader=2, epoch=1)
            while len(net.sent) < 10:  # noqa: ASYNC110  nobody tells
                await asyncio.sleep(0)
            del net.errors[2]
            await asyncio.gather(*net.tasks)

    asyncio.run(check())
    assert [record.getMessage() for record in caplog.records] == [
        "broker=2 LEADER_AND_ISR will be repeated: nobody listens"
    ]


def test_a_broker_that_grants_nothing_is_a_warning_once_per_request(monkeypatch, caplog):
    monkeypatch.setattr(channels, "REPEAT_S", 0)

    async def check():
        async with network() as net:
            net.code = WireCode.cluster_authorization_failed
            net.order(2, leader=2)
            while len(net.sent) < 5:  # noqa: ASYNC110  nobody tells
                await asyncio.sleep(0)
            net.code = WireCode.none
            await asyncio.gather(*net.tasks)

    asyncio.run(check())
    assert [record.getMessage() for record in caplog.records] == [
        "broker=2 LEADER_AND_ISR will be repeated: it grants this broker no ClusterAction"
    ]


@pytest.mark.parametrize("waiting", [0, 1])
def test_an_answer_that_ends_the_term_ends_all_that_waits_without_an_error(waiting):
    async def check():
        async with network() as net:
            net.code, net.hear = WireCode.stale_controller_epoch, lambda event: net.channels.close()
            for epoch in range(1 + waiting):
                net.order(2, 1, epoch)
            await net.rest()
            assert net.sent == [(2, LEADERSHIP)]
            assert [task.exception() for task in net.tasks if not task.cancelled()] in ([], [None])

    asyncio.run(check())


def test_a_broker_is_told_where_leaders_are_at_the_listener_where_it_meets_others():
    def both(number, *names):
        plain = SecurityProtocol.PLAINTEXT
        made = tuple(Listener(name, plain, Endpoint(f"{name}-{number}", number)) for name in names)
        return BrokerInfo(number, 10 + number, *made[0].endpoint, listeners=made)

    async def check():
        async with network() as net:
            net.brokers |= {1: both(1, "NEW", "OLD"), 2: both(2, "OLD", "NEW"), 3: both(3, "NEW", "OLD")}
            for told in (2, 3):
                net.order(told, 1)
                await net.until((told, LEADERSHIP))
            found = [each.host_name for request in net.requests for each in request.live_leaders]
            assert found == ["OLD-1", "NEW-1"]

    asyncio.run(check())
