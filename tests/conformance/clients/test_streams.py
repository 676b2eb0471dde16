"""Kafka Streams with exactly_once_v2, while it and our brokers are killed: no thread dies, and counts are exact."""

import random
import subprocess
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from replication.client.kafka_client import Isolation, KafkaClient
from replication.local_cluster import LocalCluster
from tests.support.kafka4 import java_program
from tests.support.repeats import only_long, soaked

PROGRAM = Path(__file__).parent / "programs/CountWords.java"
WORDS = [f"word-{number}" for number in range(50)]
PARTITIONS, EACH_S = 4, 0.05
SECONDS = soaked(20, 600)  # in which lines come
SETTLED_WITHIN_S = 180

pytestmark = [
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.timeout(SECONDS + 400),
    only_long("JVMs of Kafka Streams"),
]


class Application:
    """Processes that count, by their numbers."""

    def __init__(self, command, room):
        self._command, self._room, self._running = command, room, {}

    def start(self, number):
        with self.said(number).open("ab") as log:
            words = [*self._command, str(self._room / f"state-{number}")]
            self._running[number] = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)

    def kill(self, number):
        self._running[number].kill()
        self._running[number].wait()

    def said(self, number):
        return self._room / f"application-{number}.log"

    def deaths(self):
        return [line for n in self._running for line in self.said(n).read_text().splitlines() if "died" in line]

    def close(self):
        for number in self._running:
            self.kill(number)


def write(bootstrap, is_over, written):
    """Send lines until it is over; note each that is acknowledged."""
    dice = random.Random(7)
    with KafkaClient(bootstrap, client_id="writer") as client:
        while not is_over.is_set():
            lines = [" ".join(dice.choices(WORDS, k=5)) for _ in range(20)]
            client.append("lines", pa.table({"value": lines}))
            written.extend(lines)
            time.sleep(EACH_S)


def counts(client):
    """The last count of each word."""
    found = {}
    for partition in range(PARTITIONS):
        extent = client.extents("counts", isolation=Isolation.READ_COMMITTED)[partition]
        for rows in client.read("counts", partition, extent.start, extent.end, isolation=Isolation.READ_COMMITTED):
            for row in rows.to_pylist():
                found[row["key"].decode()] = int(row["value"])
    return found


def strike(cluster, application, number):
    """Kill an instance with -9, or a broker, and start it again."""
    if number % 2 == 0:
        application.kill(1 + number // 2 % 2)
        application.start(1 + number // 2 % 2)
    else:
        broker = 1 + number // 2 % 3
        cluster.kill(broker)
        time.sleep(2)
        cluster.restart(broker)


def test_words_are_counted_exactly_while_instances_and_brokers_are_killed(tmp_path):
    settings = {"default.replication.factor": 3, "min.insync.replicas": 2, "zookeeper.session.timeout.ms": 3000}
    classes = tmp_path / "classes"
    with ExitStack() as ends:
        cluster = ends.enter_context(LocalCluster(3, settings=settings))
        client = ends.enter_context(KafkaClient(cluster.bootstrap))
        for topic in ("lines", "counts"):
            client.create_topic(topic, partitions=PARTITIONS, replicas=3)
        command = java_program(PROGRAM, classes, cluster.bootstrap, "lines", "counts")
        application = Application(command, tmp_path)
        ends.callback(application.close)
        for number in (1, 2):
            application.start(number)
        is_over, written = threading.Event(), []
        writing = threading.Thread(target=write, args=(cluster.bootstrap, is_over, written))
        writing.start()
        ends.callback(is_over.set)
        end_s, kills = time.monotonic() + SECONDS, 0
        while time.monotonic() < end_s or kills < 2:
            time.sleep(SECONDS / 3 if SECONDS < 60 else 10)
            strike(cluster, application, kills)
            kills += 1
        is_over.set()
        writing.join()
        wanted = Counter(word for line in written for word in line.split())
        end_s = time.monotonic() + SETTLED_WITHIN_S
        while (found := counts(client)) != wanted:
            assert time.monotonic() < end_s, (found, wanted, application.deaths())
            time.sleep(1)
        assert application.deaths() == []
        print(f"{kills} kills, {wanted.total()} words counted exactly")
