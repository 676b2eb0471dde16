"""A replica that its broker cannot serve or write: real brokers with a controller, in one process."""

import asyncio
from contextlib import asynccontextmanager

from logstore.env import Env, OsFiles
from replication.broker.broker import Broker
from replication.config.broker import BrokerConfig
from replication.coordination import topics
from replication.coordination.offline import read_offline
from replication.errors import ErrorCode
from replication.model.cluster import TopicPartition
from replication.replica.leader.leader import Leader
from replication.replica.storage.offline import OfflineReplicas
from tests.integration.broker.test_disks import BadDisk
from tests.support.inside import tree_of
from tests.support.site import QUICK, T0, batch, on_loop, until

T1 = TopicPartition("others", 0)
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "controlled.shutdown.enable": "false",
    **QUICK,
    "replica.lag.time.max.ms": 40_000,
}
TOPIC_ID = "i" * 21 + "A"


def made(path, number, files=None, **settings):
    own = {"broker.id": number, "log.dirs": str(path / f"broker-{number}")}
    config = {**SETTINGS, **settings, **own, "coordination": f"sqlite:{path}/tree.db"}
    return Broker(BrokerConfig.from_properties(config), Env(files=files or OsFiles()))


@asynccontextmanager
async def brokers(path, count, files=None, **settings):
    """These, and a topic with a replica on each, the first one preferred; `files` are those of broker 1."""
    running = {n: made(path, n, files if n == 1 else None, **settings) for n in range(1, count + 1)}
    try:
        for broker in running.values():
            await broker.start()
        tree = running[1].lifecycle.tree
        await topics.create_topic(tree, T0.topic, TOPIC_ID, {0: tuple(running)}, {})
        await until(lambda: is_led(running, 1))
        yield running
    finally:
        for broker in running.values():
            await broker.stop()


def is_led(running, leader, isr=None):
    """Does the leader know that it is, with this ISR, and have all heard?"""
    partition = running[leader].replicas.partitions().get(T0)
    role = partition.role if partition is not None else None
    heard = all(broker.replicas.metadata.leader(*T0) == leader for broker in running.values())
    return heard and isinstance(role, Leader) and (isr is None or set(role.state.isr) == isr)


def in_sync(broker, tp):
    role = broker.replicas.partitions()[tp].role
    return set(role.state.isr) if isinstance(role, Leader) else None


async def produce(broker, value, timeout_ms=30_000):
    found = await broker.replicas.append({T0: batch(value)}, acks=-1, timeout_ms=timeout_ms)
    return found[T0].error_code


@on_loop
async def test_a_leader_that_is_offline_hands_over_does_not_fetch_and_leads_again_when_it_is_not(tmp_path):
    async with brokers(tmp_path, 3) as running:
        one = running[1].replicas
        assert await produce(running[1], b"a") == ErrorCode.NONE
        one.offline.mark(T0, "damaged")
        await until(lambda: is_led(running, 2, {2, 3}))
        assert await produce(running[2], b"b", timeout_ms=900) == ErrorCode.NONE, "nobody waits for it"
        assert running[3].replicas.metadata.topic(T0.topic).partitions[0].offline_replicas == (1,)
        assert one.partitions()[T0].replica.end == 1
        one.offline.clear(T0)
        await until(lambda: is_led(running, 1, {1, 2, 3}))
        assert one.partitions()[T0].replica.end == 2
        assert running[3].replicas.metadata.topic(T0.topic).partitions[0].offline_replicas == ()


@on_loop
async def test_a_follower_that_is_offline_leaves_the_isr_at_once(tmp_path):
    async with brokers(tmp_path, 2) as running:
        running[2].replicas.offline.mark_all("disk full")
        await until(lambda: is_led(running, 1, {1}))
        assert await produce(running[1], b"a") == ErrorCode.NONE
        running[2].replicas.offline.clear_all()
        await until(lambda: is_led(running, 1, {1, 2}))


@on_loop
async def test_who_is_not_offline_any_more_fetches_when_the_tree_knows_it(tmp_path):
    """Else its leader would take it into the ISR, and the controller out of it again."""
    async with brokers(tmp_path, 2) as running:
        one, two = (broker.replicas for broker in running.values())
        two.offline.mark(T0, "damaged")
        await until(lambda: is_led(running, 1, {1}))
        before = one.counters.isr_expands, one.partitions()[T0].role.state.leader_epoch
        two.offline.clear(T0)
        assert two.offline.reason(T0) is None
        assert two.offline.is_said(T0), "nobody has written it yet"
        await until(lambda: is_led(running, 1, {1, 2}))
        assert not two.offline.is_said(T0)
        after = one.counters.isr_expands, one.partitions()[T0].role.state.leader_epoch
        assert after == (before[0] + 1, before[1])


@on_loop
async def test_a_broker_that_starts_with_an_offline_replica_is_not_elected_for_it(tmp_path):
    """Though it is alive, in the ISR, and the first replica: the controller knows it no moment without that."""
    async with brokers(tmp_path, 2) as running:
        await until(lambda: is_led(running, 1, {1, 2}))
        elected = []
        running[2].controller._log = lambda change: elected.append(change.message)
        await running[1].stop()
        await until(lambda: any("elected leader 2" in line for line in elected))
        running[1] = again = made(tmp_path, 1)
        again.replicas.offline.mark(T0, "damaged")
        await again.start()
        await until(lambda: is_led(running, 2, {2}))
        assert not [line for line in elected if "elected leader 1" in line]


@on_loop
async def test_it_is_said_again_in_each_session(tmp_path):
    async with brokers(tmp_path, 2) as running:
        running[1].replicas.offline.mark(T0, "damaged")
        await until(lambda: is_led(running, 2))
        former = tree_of(running[1])
        await tree_of(running[2]).end_session(former.token)
        await until(lambda: tree_of(running[1]) not in (None, former))
        tree = tree_of(running[2])
        async with asyncio.timeout(15):
            while 1 not in await read_offline(tree):  # noqa: ASYNC110  nobody tells
                await asyncio.sleep(0.02)


@on_loop
async def test_a_leader_whose_append_finds_no_room_hands_over(tmp_path, caplog):
    """S9."""
    disk = BadDisk()
    async with brokers(tmp_path, 3, disk) as running:
        disk.is_full = True
        assert await produce(running[1], b"a") == ErrorCode.KAFKA_STORAGE_ERROR
        await until(lambda: is_led(running, 2, {2, 3}))
        assert await produce(running[2], b"b") == ErrorCode.NONE
        disk.is_full = False
        await until(lambda: is_led(running, 1, {1, 2, 3}))
    assert "Traceback" not in caplog.text
    assert caplog.text.count("broker=1 all replicas are offline: disk full") <= 2, "a line per change"


@on_loop
async def test_a_follower_whose_append_finds_no_room_leaves_the_isr_at_once(tmp_path, caplog):
    """S9."""
    disk = BadDisk()
    async with brokers(tmp_path, 2, disk) as running:
        await topics.create_topic(tree_of(running[1]), T1.topic, "j" * 21 + "A", {0: (2, 1)}, {})
        await until(lambda: T1 in running[2].replicas.partitions() and in_sync(running[2], T1) == {1, 2})
        disk.is_full = True
        found = await running[2].replicas.append({T1: batch(b"a")}, acks=-1, timeout_ms=30_000)
        assert found[T1].error_code in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER), "a new epoch begins"
        await until(lambda: in_sync(running[2], T1) == {2})
        disk.is_full = False
        await until(lambda: in_sync(running[2], T1) == {1, 2})
    assert "cannot be written" not in caplog.text


def test_more_than_a_node_may_name_are_said_as_all():
    offline = OfflineReplicas(1)
    for number in range(1001):
        offline.mark((T0.topic, number), "x" * 1000)
    assert offline.said().everything == "1001 replicas are offline"
    offline.clear((T0.topic, 7))
    assert offline.said().everything is None
    assert {len(reason) for reason in offline.said().partitions.values()} == {200}
