"""Brokers are killed, paused and restarted at random under load: nothing that was acknowledged is lost or doubled.

`CHAOS_S=600 CHAOS_SEED=7 python -m pytest -n0 tests/integration/cluster/test_chaos.py` is the long form.
"""

import os
import random
import threading
import time

import pytest
from confluent_kafka import Consumer, Producer

from tests.integration.cluster.conftest import running

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("CHAOS_S", "20"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))
PARTITIONS = 6
KEYS = 20


class Load:
    """An idempotent producer: numbers per key, each key in one partition. `acked`: what was acknowledged."""

    def __init__(self, bootstrap, topic):
        self.acked = {key: [] for key in range(KEYS)}
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
            for key in range(KEYS):
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


def read_all(cluster, count):
    """Per key what a group gets, in its order: so many records, and whatever comes after."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.running.bootstrap,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    found = {key: [] for key in range(KEYS)}
    consumer.subscribe(["load"])
    seen = 0
    try:
        while (message := consumer.poll(30 if seen < count else 2)) is not None:
            if message.error() is None:
                found[int(message.key())].append(int(message.value()))
                seen += 1
    finally:
        consumer.close()
    return found


@pytest.mark.timeout(SECONDS + 280)
def test_what_was_acknowledged_is_there_once_and_in_order(tmp_path):
    settings = {"min.insync.replicas": 2, "controlled.shutdown.retry.backoff.ms": 200}
    with running(3, tmp_path, **settings) as cluster:
        cluster.create(*([1, 2, 3], [2, 3, 1], [3, 1, 2]) * (PARTITIONS // 3), name="load")
        load = Load(cluster.running.bootstrap, "load")
        try:
            disturb(cluster, random.Random(SEED), time.monotonic() + SECONDS)
        finally:
            load.end()

        assert load.failed == []
        found = read_all(cluster, sum(map(len, load.acked.values())))
        for key, numbers in found.items():
            assert numbers == sorted(set(numbers)), f"key {key}: doubled, or out of order"
            assert set(load.acked[key]) <= set(numbers), f"key {key}: acknowledged and lost"
