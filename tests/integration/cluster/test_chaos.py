"""Brokers are killed, paused and restarted at random under load: nothing that was acknowledged is lost or doubled.

`CHAOS_S=600 CHAOS_SEED=7 python -m pytest -n0 tests/integration/cluster/test_chaos.py` is the long form.
"""

import contextlib
import os
import random
import threading
import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.integration.cluster.conftest import running
from tests.support.repeats import times

pytestmark = pytest.mark.slow

SECONDS = times(3, 18, "CHAOS_S")
SEED = int(os.environ.get("CHAOS_SEED", "1"))
PARTITIONS = 6
KEYS = 20


class Load:
    """An idempotent producer: numbers per key, each key in one partition. `acked`: what was acknowledged."""

    def __init__(self, bootstrap, topic, keys):
        self.acked = {key: [] for key in keys}
        self.failed = []
        self._is_over = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 5,
                "message.timeout.ms": 120_000,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, args=(topic,))
        self._thread.start()

    def _run(self, topic):
        number = 0
        while not self._is_over.is_set():
            for key in self.acked:
                self._producer.produce(
                    topic, b"%d" % number, b"%d" % key, key % PARTITIONS,
                    on_delivery=lambda error, message, key=key, number=number: (
                        self.failed.append(error) if error else self.acked[key].append(number)
                    ),
                )  # fmt: skip
            self._producer.poll(0.01)
            number += 1

    def end(self):
        self._is_over.set()
        self._thread.join()
        assert self._producer.flush(120) == 0


def disturb(cluster, chance, until):
    """At most one broker is away at a time, so that a majority of every ISR stays."""
    while time.monotonic() < until:
        broker = chance.choice((1, 2, 3))
        match chance.choice(("kill", "kill", "pause", "stop")):
            case "kill":
                cluster.running.kill(broker)
                time.sleep(chance.uniform(0.1, 5))
                cluster.running.restart(broker)
            case "stop":
                cluster.running.stop(broker)
                cluster.running.restart(broker)
            case "pause":
                cluster.running.pause(broker)
                time.sleep(chance.uniform(0.1, 5))
                cluster.running.resume(broker)
        # The next one only goes when nobody depends on it alone.
        cluster.until(lambda: all(len(isr) == 3 for _, isr, _ in cluster.states("load").values()), 60)


class Member:
    """A member of a consumer group. `found`: (key, number) by partition and offset, however often they came."""

    def __init__(self, bootstrap, topic, found):
        self._is_over = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        self._consumer.subscribe([topic])
        self._found = found
        self.changed = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._is_over.is_set():
            message = self._consumer.poll(0.2)
            if message is not None and message.error() is None:
                place = message.partition(), message.offset()
                record = int(message.key()), int(message.value())
                if self._found.setdefault(place, record) != record:
                    self.changed.append(place)

    def end(self):
        self._is_over.set()
        self._thread.join()
        self._consumer.close()


def stored(bootstrap, topic, partition):
    """(key, number) by offset, as the partition has them in the end."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "-", "log_level": 0})
    try:
        place = TopicPartition(topic, partition, 0)
        _, end = consumer.get_watermark_offsets(place, timeout=20)
        consumer.assign([place])
        found, last = {}, -1
        while last < end - 1:
            message = consumer.poll(20)
            assert message is not None, f"{last} of {end}"
            assert message.error() is None, message.error()
            last = message.offset()
            found[last] = int(message.key()), int(message.value())
        return found
    finally:
        consumer.close()


@pytest.mark.timeout(SECONDS + 280)
def test_what_was_acknowledged_is_there_once_and_in_order(tmp_path):
    """And a group that reads all the time gets it all; what it read is what stands there in the end."""
    settings = {"min.insync.replicas": 2, "controlled.shutdown.retry.backoff.ms": 200}
    with running(3, tmp_path, **settings) as cluster:
        cluster.create(*([1, 2, 3], [2, 3, 1], [3, 1, 2]) * (PARTITIONS // 3), name="load")
        bootstrap, found = cluster.running.bootstrap, {}
        loads = [Load(bootstrap, "load", range(first, KEYS, 2)) for first in (0, 1)]
        members = [Member(bootstrap, "load", found) for _ in range(2)]
        try:
            disturb(cluster, random.Random(SEED), time.monotonic() + SECONDS)
        finally:
            for load in loads:
                load.end()
            acked = {(key, number) for load in loads for key in load.acked for number in load.acked[key]}
            with contextlib.suppress(AssertionError):  # it is compared below
                cluster.until(lambda: len(found) >= len(acked) and acked <= set(found.copy().values()), 60)
            for member in members:
                member.end()

        assert [load.failed for load in loads] == [[], []]
        assert [member.changed for member in members] == [[], []]
        assert not acked - set(found.values()), "acknowledged and lost"
        for partition in range(PARTITIONS):
            records = stored(bootstrap, "load", partition)
            assert records.items() >= {at: one for (of, at), one in found.items() if of == partition}.items()
            for key in range(partition, KEYS, PARTITIONS):
                numbers = [number for of, number in records.values() if of == key]
                assert numbers == sorted(set(numbers)), f"key {key}: doubled, or out of order"
