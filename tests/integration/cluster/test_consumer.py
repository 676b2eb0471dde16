"""Consumers in groups, ours and confluent-kafka's together: each record is read, once after commits."""

import threading
import time
from collections import Counter

import pyarrow as pa
import pytest

from replication.client.kafka_client import KafkaClient
from replication.errors import KafkaError
from replication.model.cluster import TopicPartition
from tests.conformance.clients.members import Confluent, KafkaPython, until
from tests.support.repeats import times

SESSION_MS = 6000
PLACES = [(1, 2, 3), (2, 3, 1), (3, 1, 2), (1, 2, 3), (2, 3, 1), (3, 1, 2)]


@pytest.fixture
def client(cluster):
    with KafkaClient(cluster.running.bootstrap, timeout_ms=40_000) as opened:
        yield opened


class Ours(threading.Thread):
    """A member that commits what it has read, batch by batch."""

    def __init__(self, client, topic, group, **settings):
        super().__init__()
        self.client = client
        self.values, self.revoked, self.changes, self.error = [], [], [], None
        self.stopping, self.is_killed = threading.Event(), False
        self.consumer = client.consumer(
            topic, group, auto_offset_reset="earliest", session_timeout_ms=SESSION_MS, heartbeat_interval_ms=200,
            enable_auto_commit=False, on_assign=self.changes.append, on_revoke=self.revoked.append, **settings,
        )  # fmt: skip
        self.start()

    def run(self):
        try:
            while not self.stopping.is_set():
                if (rows := self.consumer.poll(100)) is not None:
                    self.values += [value.decode() for value in rows["value"].to_pylist()]
                    self.consumer.commit()
            if not self.is_killed:
                self.consumer.close()
        except BaseException as error:  # noqa: BLE001  raised where the test looks
            self.error = error

    @property
    def partitions(self):
        return {tp.partition for tp in self.consumer.assignment}

    def stop(self):
        self.stopping.set()
        self.join(30)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error

    def kill(self):
        """It says no word any more."""
        self.is_killed = True
        self.stop()
        core = self.consumer._wrapped
        self.client.run(lambda _: core.member.stop())


def append(client, topic, begin, count):
    values = [f"{n}" for n in range(begin, begin + count)]
    client.append(topic, pa.table({"key": values, "value": values}))
    return values


def test_two_of_ours_and_another_client_share_a_topic_and_one_dies(cluster, client):
    topic = cluster.create(*PLACES)
    sent = append(client, topic, 0, 3000)
    one, two = Ours(client, topic, "shared"), Ours(client, topic, "shared")
    with Confluent(cluster.running.bootstrap, "shared", topic, cooperative=True) as other:

        def read():
            return Counter([*one.values, *two.values, *(value.decode() for _, _, value in other.records)])

        def is_shared():
            each = [one.partitions, two.partitions, other.partitions]
            return sorted(map(len, each)) == [2, 2, 2] and set.union(*each) == set(range(6))

        cluster.until(is_shared, 40)
        cluster.until(lambda: set(sent) <= set(read()), 30)
        two.kill()
        begin = time.monotonic()
        sent += append(client, topic, 3000, 3000)
        cluster.until(lambda: len(one.partitions) == len(other.partitions) == 3, 40)
        assert time.monotonic() - begin > 1  # its session had to end
        cluster.until(lambda: set(sent) <= set(read()), 30)
    one.stop()
    mine = Counter([*one.values, *two.values])
    assert max(mine.values()) == 1  # each batch was committed before the next poll
    assert set(read()) == set(sent)


@pytest.mark.parametrize("assignor", ["range", "roundrobin"][: times(1, 2)])
def test_kafka_python_shares_a_topic_with_ours(cluster, client, assignor):
    """Either of the two divides it: the first member does, and ours when that one is gone."""
    topic = cluster.create(*PLACES[:4])
    sent = append(client, topic, 0, 400)
    with KafkaPython(cluster.running.bootstrap, f"g-{topic}", topic) as other:
        until(lambda: len(other.partitions) == 4, "alone")
        one = Ours(client, topic, f"g-{topic}", assignor=assignor)
        until(lambda: len(one.partitions) == len(other.partitions) == 2, "shared")
        assert one.partitions | other.partitions == set(range(4))
        sent += append(client, topic, 400, 400)
        until(
            lambda: set(sent) == {*one.values, *(value.decode() for _, _, value in other.records)},
            "all is read",
        )
    until(lambda: len(one.partitions) == 4, "alone again")
    one.stop()


def test_partitions_that_stay_are_not_revoked(cluster, client):
    topic = cluster.create(*PLACES[:4])
    append(client, topic, 0, 100)
    one = Ours(client, topic, f"g-{topic}")
    cluster.until(lambda: len(one.partitions) == 4, 30)
    two = Ours(client, topic, f"g-{topic}")
    cluster.until(lambda: len(two.partitions) == 2, 30)
    assert [len(each) for each in one.revoked] == [2]
    assert one.partitions | two.partitions == set(range(4))
    two.stop()
    cluster.until(lambda: len(one.partitions) == 4, 30)
    assert [len(each) for each in one.revoked] == [2]
    cluster.until(lambda: len(one.values) + len(two.values) >= 100, 30)
    one.stop()
    assert sorted(one.values + two.values, key=int) == [f"{n}" for n in range(100)]


def test_a_member_that_comes_back_by_its_name_gets_its_partitions_without_a_rebalance(cluster, client):
    topic = cluster.create(*PLACES[:2])
    group = f"g-{topic}"
    one = Ours(client, topic, group, group_instance_id="one", assignor="range")
    cluster.until(lambda: len(one.partitions) == 2, 30)
    two = Ours(client, topic, group, group_instance_id="two", assignor="range")
    cluster.until(lambda: len(two.partitions) == len(one.changes[-1]) == 1, 30)  # and it was told
    changes = len(one.changes)
    kept = two.partitions
    two.stop()
    two = Ours(client, topic, group, group_instance_id="two", assignor="range")
    cluster.until(lambda: two.partitions == kept, 30)
    assert len(one.changes) == changes
    one.stop()
    two.stop()


def test_seek_pause_and_commit(cluster, client):
    topic = cluster.create(PLACES[0])
    group, tp = f"g-{topic}", TopicPartition(topic, 0)
    append(client, topic, 0, 10)

    def offsets(consumer):
        while (rows := consumer.poll(200)) is None:
            pass
        return rows["offset"].to_pylist()

    with client.consumer(topic, group, auto_offset_reset="earliest", heartbeat_interval_ms=200) as consumer:
        assert offsets(consumer) == list(range(10))
        consumer.seek(tp, 4)
        assert consumer.position(tp) == 4
        consumer.pause([tp])
        assert consumer.poll(300) is None
        consumer.resume([tp])
        assert offsets(consumer) == [4, 5, 6, 7, 8, 9]
        consumer.commit({tp: 7})
        assert client.committed(group)[tp].offset == 7
        consumer.seek(tp, 9)
        assert offsets(consumer) == [9]
    assert client.committed(group)[tp].offset == 10  # closing commits what was handed out
    first = client.consumer(topic, group, assignor="range")
    cluster.until(lambda: first.poll(100) is None and first.assignment, 20)
    second = client.consumer(topic, group)
    with pytest.raises(KafkaError, match="inconsistent group protocol"):
        second.poll(10_000)


def test_a_program_that_polls_too_late_loses_its_partitions_and_gets_them_again(cluster, client):
    topic, revoked = cluster.create(PLACES[0]), []
    sent = append(client, topic, 0, 10)
    with client.consumer(
        topic, f"g-{topic}", auto_offset_reset="earliest", heartbeat_interval_ms=100, max_poll_interval_ms=700,
        enable_auto_commit=False, on_revoke=revoked.append,
    ) as consumer:  # fmt: skip

        def values():
            rows = consumer.poll(2000)
            return rows and [value.decode() for value in rows["value"].to_pylist()]

        assert cluster.until(values)[1] == sent
        time.sleep(1.5)
        with pytest.raises(KafkaError, match="partitions were lost"):
            consumer.commit()
        assert revoked == []  # within a poll only
        assert cluster.until(values)[1] == sent  # nothing was committed
        assert len(revoked) == 1
