"""A leader that stands still beyond its session, a disk that takes its time, a controller that never lets go."""

import asyncio
import itertools
import threading
import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from logstore.env import Env, OsFiles
from logstore.records.batch import Record, build
from replication.errors import ErrorCode
from replication.model.cluster import NO_LEADER, TopicPartition
from replication.network.client import Client
from replication.protocol.apis import ApiKey
from replication.protocol.messages import ProducePartition, ProduceRequest, ProduceTopic
from tests.integration.cluster import conftest
from tests.support.in_process import brokers_in_process
from tests.support.repeats import only_long, times

SLOW_S, WRITES = 1.0, 2
FROM_ANOTHER_TIME = "from another time"


async def send_to_who_stands_still(address, topic, go_on):
    """Send records with acks=all to a process that is stopped; have it go on; return what it answers."""
    host, _, port = address.rpartition(":")
    client = Client(host, int(port), "test", timeout_ms=30_000)
    try:
        records = bytes(build([Record(0, 1, None, FROM_ANOTHER_TIME.encode())]))
        request = ProduceRequest(-1, 20_000, (ProduceTopic(topic, (ProducePartition(0, records),)),))
        asked = asyncio.ensure_future(client.call(ApiKey.PRODUCE, request))
        await asyncio.sleep(0.1)  # it is in the socket now: the first that the process finds
        await asyncio.to_thread(go_on)
        return (await asked).topics[0].partitions[0].error_code
    finally:
        client.close()


@only_long("brokers that stand still")
def test_a_leader_that_stood_still_beyond_its_session_acknowledges_nothing_that_is_not_kept(cluster):
    """R24: with a real process, stopped by SIGSTOP while another one is elected and writes."""
    running = cluster.running
    _, one, two = cluster.roles()
    topic = cluster.create((one, two))
    assert cluster.produce(topic, ["before"]) == []
    running.pause(one)
    try:
        cluster.until(lambda: cluster.state(topic).leader == two)
        assert cluster.produce(topic, ["meanwhile"]) == []
        code = asyncio.run(send_to_who_stands_still(running.address(one), topic, lambda: running.resume(one)))
    finally:
        running.resume(one)
    assert code != ErrorCode.NONE
    cluster.until(lambda: set(cluster.state(topic).isr) == {one, two})
    assert cluster.produce(topic, ["after"]) == []
    assert cluster.values(topic, count=3) == ["before", "meanwhile", "after"]


class Load:
    """Records with acks=all, one after the other, as fast as they are acknowledged."""

    def __init__(self, bootstrap, topic):
        self.topic, self.acknowledged, self.is_over = topic, [], threading.Event()
        patience = {"request.timeout.ms": 1000, "socket.timeout.ms": 1000, "message.timeout.ms": 60_000}
        settings = {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0}
        self.producer = Producer(settings | patience)
        self.thread = threading.Thread(target=self.run)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.is_over.set()
        self.thread.join()
        assert self.producer.flush(30) == 0

    def run(self):
        for number in itertools.count():
            if self.is_over.is_set():
                return
            self.producer.produce(self.topic, str(number).encode(), partition=0, on_delivery=self.note)
            self.producer.poll(0.02)

    def note(self, error, message):
        if error is None:
            self.acknowledged.append(message.value().decode())

    def goes_on(self, cluster):
        """Wait until more is acknowledged."""
        known = len(self.acknowledged)
        cluster.until(lambda: len(self.acknowledged) >= known + 20)


@pytest.mark.parametrize(
    "is_alone", [True, False][: times(1, 2)], ids=["in sync with another", "alone in the ISR"].__getitem__
)
def test_nothing_that_a_leader_acknowledged_before_or_after_it_stood_still_is_lost(cluster, is_alone):
    """R24: a real process, stopped by SIGSTOP beyond its session under load, and let go again."""
    running = cluster.running
    _, one, two = cluster.roles()
    topic = cluster.create((one, two))
    with Load(running.bootstrap, topic) as load:
        load.goes_on(cluster)
        try:
            if is_alone:
                running.pause(two)
                cluster.until(lambda: cluster.state(topic).isr == (one,))
                load.goes_on(cluster)
            running.pause(one)
            cluster.until(lambda: cluster.state(topic).leader == (NO_LEADER if is_alone else two))
            if is_alone:
                running.resume(two)  # it lacks records, and may not lead
                cluster.until(lambda: two in running.describe().brokers)
            else:
                load.goes_on(cluster)
            code = asyncio.run(send_to_who_stands_still(running.address(one), topic, lambda: running.resume(one)))
        finally:
            running.resume(one)
            running.resume(two)
        load.goes_on(cluster)
    cluster.until(lambda: set(cluster.state(topic).isr) == {one, two})
    found = cluster.values(topic, count=len(load.acknowledged))
    assert set(load.acknowledged) <= set(found)
    assert code != ErrorCode.NONE or FROM_ANOTHER_TIME in found
    if is_alone:
        assert cluster.state(topic).leader == one, "who lacks records has led"


@only_long("brokers that stand still")
def test_what_only_a_leader_has_that_stood_still_is_not_acknowledged(cluster):
    """R24: its follower stands still first, so that acks=all has to wait; then the leader, until the follower leads."""
    running = cluster.running
    _, one, two = cluster.roles()
    topic = cluster.create((one, two))
    assert cluster.produce(topic, ["before"]) == []

    async def take_over():
        host, _, port = running.address(one).rpartition(":")
        clients = [Client(host, int(port), "test", timeout_ms=60_000) for _ in range(2)]

        def ask(client, value, acks):
            data = bytes(build([Record(0, 1, None, value.encode())]))
            partition = ProduceTopic(topic, (ProducePartition(0, data),))
            return asyncio.ensure_future(client.call(ApiKey.PRODUCE, ProduceRequest(acks, 60_000, (partition,))))

        try:
            running.pause(two)
            await ask(clients[0], "what its last fetch is answered with", 1)
            asked = ask(clients[0], FROM_ANOTHER_TIME, -1)
            await asyncio.sleep(0)  # it is sent
            await ask(clients[1], "so that is in the log of its leader, and nowhere else", 1)
            assert not asked.done()
            running.pause(one)
            running.resume(two)
            await asyncio.to_thread(cluster.until, lambda: cluster.state(topic).leader == two)
            assert await asyncio.to_thread(cluster.produce, topic, ["meanwhile"]) == []
            running.resume(one)
            return (await asked).topics[0].partitions[0].error_code
        finally:
            running.resume(two)
            running.resume(one)
            for client in clients:
                client.close()

    code = asyncio.run(take_over())
    assert code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    cluster.until(lambda: set(cluster.state(topic).isr) == {one, two})
    assert cluster.produce(topic, ["after"]) == []
    found = cluster.values(topic, count=4)
    assert FROM_ANOTHER_TIME not in found
    assert (found[0], found[-2:]) == ("before", ["meanwhile", "after"])


class SlowDisk(OsFiles):
    """A disk that takes a second for every write to the logs of one topic."""

    writes = 0

    def write(self, path, position, data):
        if "slow-0/" in str(path) and str(path).endswith(".log"):
            self.writes += 1
            time.sleep(SLOW_S)
        super().write(path, position, data)


@only_long("a disk that waits")
def test_while_the_disk_takes_its_time_for_one_partition_others_are_served(tmp_path):
    """S24: records in and out of another partition of the same broker, many times per slow write."""
    disk = SlowDisk()
    with brokers_in_process(tmp_path, (1,), env=Env(files=disk), num_io_threads=8) as brokers:
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap, "log_level": 0})
        for made in admin.create_topics([NewTopic("slow", 1, 1), NewTopic("quick", 1, 1)]).values():
            made.result(20)
        tested = conftest.Tested(brokers)
        failed = []

        def write_slowly():
            for number in range(WRITES):
                failed.extend(tested.produce("slow", [number]))

        writing = threading.Thread(target=write_slowly)
        writing.start()
        producer = Producer({"bootstrap.servers": brokers.bootstrap, "acks": "all", "log_level": 0})
        rounds = []
        for number in itertools.count():
            producer.produce("quick", str(number).encode(), partition=0)
            assert producer.flush(20) == 0
            if not writing.is_alive():
                break
            rounds.append(disk.writes)
        writing.join()
        assert failed == []
        assert disk.writes == WRITES
        assert max(map(rounds.count, rounds)) > 5, "a broker that waits for the disk does one round per write"
        assert tested.values("quick", count=len(rounds) + 1) == [str(n) for n in range(len(rounds) + 1)]


@pytest.mark.parametrize("retries", [1, 3])
def test_a_broker_asks_so_often_to_be_let_go_and_then_stops_all_the_same(tmp_path, retries):
    settings = {"controlled_shutdown_max_retries": retries, "controlled_shutdown_retry_backoff_ms": 1}
    with brokers_in_process(tmp_path, (1, 2), controlled_shutdown_enable="true", **settings) as brokers:
        controller, asked = brokers.brokers[1].controller, []

        async def shut_down(broker, broker_epoch):
            asked.append(broker)
            return (TopicPartition("kept", 0),)

        controller.shut_down = shut_down
        brokers.do(brokers.brokers.pop(2).stop())
        assert asked == [2] * retries
        asked.clear()
        brokers.do(brokers.brokers.pop(1).stop())
        assert asked == [1] * retries
