"""A real Kafka on loopback, to measure against: 4.4, which Maven fetches, or 0.9 with its ZooKeeper.

For the latter, PYLOG_KAFKA_HOME is the directory of an unpacked distribution (with `bin/kafka-server-start.sh`); Java
17 will do.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.kafka4 import Kafka4, jars

NEWEST = "4.4"
READY_S = 60
STOP_S = 20
# The scripts' own choices are of a time before Java 17.
JAVA = {"KAFKA_HEAP_OPTS": "-Xmx512M", "KAFKA_JVM_PERFORMANCE_OPTS": "-server", "KAFKA_GC_LOG_OPTS": " "}


def home() -> Path | None:
    """Where the distribution is, if there is one."""
    path = os.environ.get("PYLOG_KAFKA_HOME")
    return Path(path) if path and (Path(path) / "bin/kafka-server-start.sh").exists() else None


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def create(bootstrap: str, topic: str, partitions: int, replicas: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    asked = admin.create_topics([NewTopic(topic, partitions, replicas)], operation_timeout=60, request_timeout=90)
    asked[topic].result(90)


class Kafka44(Kafka4):
    """Brokers 1 to N of a Kafka 4.4, whose JVM is as its users have it. A context manager."""

    name = "Kafka"
    is_old = False
    client: Mapping[str, object] = {}

    def __init__(self, brokers: int, directory: Path, settings: Mapping[str, object]) -> None:
        named = dict(settings)
        session_ms = named.pop("zookeeper.session.timeout.ms", None)
        if isinstance(session_ms, int):
            named |= {"broker.session.timeout.ms": session_ms, "broker.heartbeat.interval.ms": session_ms // 3}
        super().__init__(directory, brokers, settings=named, heap_mb=1024, quick=False)

    def pids(self) -> list[int]:
        """The brokers that are up."""
        return [process.pid for process in self._processes.values() if process.poll() is None]

    def create(self, topic: str, partitions: int, replicas: int) -> None:
        create(self.bootstrap, topic, partitions, replicas)

    def restart(self, broker: int) -> None:
        self.start(broker)

    def log_dir(self, broker: int) -> Path:
        return Path(self.data(broker))


def peer(version: str, brokers: int, directory: Path, settings: Mapping[str, object]) -> Kafka44 | Kafka09 | None:
    """Return the brokers of this version, not yet started; None where there are none."""
    if version == "0.9":
        return Kafka09(brokers, directory, settings) if home() is not None else None
    return Kafka44(brokers, directory, settings) if version == NEWEST and _are_jars_there() else None


def _are_jars_there() -> bool:
    try:
        jars()
    except pytest.skip.Exception as missing:
        print(missing, file=sys.stderr)
        return False
    return True


class Kafka09:
    """Brokers 1 to N. A context manager."""

    name = "Kafka"
    is_old = True
    client: Mapping[str, object] = {"api.version.request": False, "broker.version.fallback": "0.9.0"}

    def __init__(self, brokers: int, directory: Path, settings: Mapping[str, object]) -> None:
        found = home()
        assert found is not None, "PYLOG_KAFKA_HOME says where a Kafka is"
        self._home = found
        self.directory = directory
        self._settings = settings
        self._zookeeper = free_port()
        self._ports = {broker: free_port() for broker in range(1, brokers + 1)}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    @property
    def coordination(self) -> str:
        return f"zookeeper:127.0.0.1:{self._zookeeper}"

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True)
        try:
            file = self._properties(
                "zookeeper",
                {"dataDir": self.directory / "zk", "clientPort": self._zookeeper,
                 "clientPortAddress": "127.0.0.1", "maxClientCnxns": 0, "tickTime": 500},
            )  # fmt: skip
            self._processes[0] = self._start("zookeeper-server-start.sh", file)
            _wait_for(self._zookeeper)
            for broker in self._ports:
                self._start_broker(broker)
            for port in self._ports.values():
                _wait_for(port)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        for broker in sorted(self._processes, reverse=True):  # ZooKeeper last
            process = self._processes.pop(broker)
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start_broker(self, broker: int) -> None:
        file = self._properties(
            f"broker-{broker}",
            {"broker.id": broker, "listeners": f"PLAINTEXT://127.0.0.1:{self._ports[broker]}",
             "log.dirs": self.log_dir(broker), "zookeeper.connect": f"127.0.0.1:{self._zookeeper}",
             "log.cleaner.dedupe.buffer.size": 33554432, **self._settings},
        )  # fmt: skip
        self._processes[broker] = self._start("kafka-server-start.sh", file)

    def _properties(self, name: str, values: Mapping[str, object]) -> Path:
        file = self.directory / f"{name}.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        return file

    def _start(self, script: str, file: Path) -> subprocess.Popen[bytes]:
        with file.with_suffix(".out").open("wb") as out:
            return subprocess.Popen(
                [str(self._home / "bin" / script), str(file)],  # the script becomes the JVM
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **JAVA, "LOG_DIR": str(file.with_suffix(".logs"))},
            )

    # Measurements.

    def pids(self) -> list[int]:
        """The brokers that are up."""
        return [process.pid for broker, process in self._processes.items() if broker]

    def create(self, topic: str, partitions: int, replicas: int) -> None:
        command = [str(self._home / "bin/kafka-topics.sh"), "--create", "--topic", topic, "--zookeeper",
                   f"127.0.0.1:{self._zookeeper}", "--partitions", str(partitions),
                   "--replication-factor", str(replicas)]  # fmt: skip
        environment = {**os.environ, **JAVA, "LOG_DIR": str(self.directory / "tools")}
        until = time.monotonic() + READY_S
        while True:
            ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
            if not ran.returncode:
                return
            assert time.monotonic() < until, ran.stdout + ran.stderr  # brokers listen before they register
            time.sleep(0.5)

    def kill(self, broker: int) -> None:
        self._processes[broker].send_signal(signal.SIGKILL)
        self._processes.pop(broker).wait()

    def restart(self, broker: int) -> None:
        self._start_broker(broker)
        _wait_for(self._ports[broker])

    def log_dir(self, broker: int) -> Path:
        return self.directory / f"logs-{broker}"


def _wait_for(port: int) -> None:
    until = time.monotonic() + READY_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return
