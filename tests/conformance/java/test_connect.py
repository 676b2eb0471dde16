"""Kafka Connect 4.4, distributed and with an exactly-once source, over brokers of pylog: its workers are killed."""

import json
import subprocess
import urllib.request
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from replication.client.kafka_client import Isolation, KafkaClient
from tests.conformance.clients.members import until
from tests.support.kafka4 import compile_java, connect_jars, free_ports, java
from tests.support.repeats import only_long, soaked

PROGRAMS = Path(__file__).parent / "programs"
PARTITIONS, KILLS = 2, soaked(1, 20)
MOVED_WITHIN_S = 180

pytestmark = [
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.timeout(soaked(600, 2400)),
    only_long("JVMs of Kafka Connect"),
]


class Workers:
    """Workers of one Connect cluster, by their numbers; one that is killed is started again at its address."""

    def __init__(self, bootstrap, classes, room, count):
        self._room, self._running = room, {}
        self._ports = free_ports(count)
        self._classes = classes
        stores = {
            f"{each}.storage.{key}": value
            for each in ("config", "offset", "status")
            for key, value in {"topic": f"connect-{each}", "replication.factor": 3, "partitions": 1}.items()
            if (each, key) != ("config", "partitions")
        }
        self._settings = {
            "bootstrap.servers": bootstrap,
            "group.id": "connect",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "exactly.once.source.support": "enabled",
            "consumer.isolation.level": "read_committed",
            "plugin.discovery": "service_load",
            "scheduled.rebalance.max.delay.ms": 0,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 1000,
            "offset.flush.interval.ms": 1000,
            **stores,
        }

    def start(self, number):
        file = self._room / f"worker-{number}.properties"
        listens = {"listeners": f"http://127.0.0.1:{self._ports[number]}"}
        file.write_text("".join(f"{key}={value}\n" for key, value in {**self._settings, **listens}.items()))
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        command = java(
            quiet, "org.apache.kafka.connect.cli.ConnectDistributed", file, libs=connect_jars(), classes=self._classes
        )
        with self.said(number).open("ab") as log:
            self._running[number] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def kill(self, number):
        self._running[number].kill()
        self._running[number].wait()

    def close(self):
        for number in self._running:
            self.kill(number)

    def said(self, number):
        return self._room / f"worker-{number}.log"

    def ask(self, number, path, config=None):
        """Return what a worker answers to a question, or to new settings; None: it does not now."""
        data = None if config is None else json.dumps(config).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self._ports[number]}{path}", data)
        request.add_header("Content-Type", "application/json")
        request.method = "GET" if config is None else "PUT"
        with suppress(OSError), urllib.request.urlopen(request, timeout=90) as answer:
            return json.load(answer)
        return None

    def tasks(self, number):
        """Return the states of all connectors' tasks, as this worker knows them."""
        states = self.ask(number, "/connectors?expand=status") or {}
        return sorted(task["state"] for each in states.values() for task in each["status"]["tasks"])

    def running(self, number, connector):
        """Return the worker that runs most tasks of a connector, as this worker knows it; None: it does not answer."""
        tasks = (self.ask(number, f"/connectors/{connector}/status") or {}).get("tasks")
        if not tasks:
            return None
        at = Counter(int(task["worker_id"].rpartition(":")[2]) for task in tasks)
        return self._ports.index(at.most_common(1)[0][0])

    def tell(self):
        return "".join(self.said(number).read_text()[-3000:] for number in self._running)


def test_each_record_is_once_in_the_topic_and_once_in_the_file(cluster, tmp_path):
    classes, lines = tmp_path / "classes", tmp_path / "lines"
    compile_java(PROGRAMS / "Numbers.java", PROGRAMS / "Lines.java", classes=classes, libs=connect_jars())
    services = classes / "META-INF/services"
    services.mkdir(parents=True)
    for kind, name in (("source.SourceConnector", "Numbers"), ("sink.SinkConnector", "Lines")):
        (services / f"org.apache.kafka.connect.{kind}").write_text(name)
    lines.mkdir()
    with ExitStack() as ends, KafkaClient(cluster.bootstrap) as client:
        client.create_topic("numbers", partitions=PARTITIONS, replicas=3)
        workers = Workers(cluster.bootstrap, classes, tmp_path, 2)
        ends.callback(workers.close)
        source = {"connector.class": "Numbers", "tasks.max": 2, "topic": "numbers", "stop": str(tmp_path / "stop")}
        # A kill leaves records of a transaction behind that is aborted.
        source |= {"transaction.boundary": "interval", "transaction.boundary.interval.ms": 500}
        sink = {"connector.class": "Lines", "tasks.max": 1, "topics": "numbers", "directory": str(lines)}

        def until_it(holds):
            until(holds, workers.tell, within_s=MOVED_WITHIN_S)

        def go_on():
            """Every partition gets further lines in its file."""
            before = [len(rows) for rows in written(lines)]
            until_it(lambda: all(len(rows) > count + 50 for rows, count in zip(written(lines), before, strict=True)))

        for number in (0, 1):
            workers.start(number)
        for name, config in {"source": source, "sink": sink}.items():
            until_it(lambda name=name, config=config: workers.ask(0, f"/connectors/{name}/config", config))
        go_on()
        for kill in range(KILLS):
            until_it(lambda kill=kill: workers.tasks(kill % 2) == ["RUNNING"] * 3)
            until_it(lambda kill=kill: workers.running(kill % 2, "source") is not None)
            killed = workers.running(kill % 2, "source")  # its transaction is open
            workers.kill(killed)
            go_on()
            workers.start(killed)
            until_it(lambda killed=killed: workers.tasks(killed) == ["RUNNING"] * 3)
        go_on()
        (tmp_path / "stop").touch()
        until_it(lambda: written(lines) == stored(client))
        for rows in written(lines):
            assert [value for _, value in rows] == list(range(len(rows)))
            assert len(rows) > 100


def written(directory):
    """Return the (offset, value) of each line, by partition."""
    files = [directory / f"lines-{partition}" for partition in range(PARTITIONS)]
    texts = [file.read_text() if file.exists() else "" for file in files]
    return [[tuple(map(int, line.split())) for line in text.rpartition("\n")[0].splitlines()] for text in texts]


def stored(client):
    """Return the (offset, value) of each committed record, by partition."""
    rows = []
    for partition, extent in sorted(client.extents("numbers", isolation=Isolation.READ_COMMITTED).items()):
        tables = client.read("numbers", partition, extent.start, extent.end, isolation=Isolation.READ_COMMITTED)
        rows.append([(row["offset"], int(row["value"])) for table in tables for row in table.to_pylist()])
    return rows
