"""A real Kafka 4.4 beside the tests: brokers, its tools, and Java programs that use its clients.

Maven fetches the jars once, into the cache directory of this user; PYLOG_KAFKA4_LIBS may name a folder that has them.
Tests are skipped, with the reason, where there is no Java 17, no Maven, or the jars cannot be had.
"""

import base64
import os
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from logstore.env import SYSTEM
from replication.tools.topics import described

FILES = Path(__file__).parent / "kafka4_files"
VERSION = "4.4.0"
FETCHED_WITHIN_S, READY_WITHIN_S, ENDED_WITHIN_S = 600, 240, 60
STARTS = 3
SAFE = {"min.insync.replicas": 2}  # of topics of three replicas: what is acknowledged outlives a broker
# A process of some seconds needs no second compiler, and no second thread that collects garbage.
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")


def jars():
    """Return the folder of the jars; skips the test where they cannot be had."""
    if named := os.environ.get("PYLOG_KAFKA4_LIBS"):
        assert _is_whole(Path(named)), f"PYLOG_KAFKA4_LIBS={named}: no kafka-clients-{VERSION}.jar in it"
        return Path(named)
    return fetched(f"kafka-{VERSION}", FILES / "pom.xml")


def spark_jars():
    """Return the folder of the jars of Spark's own Kafka source; skips the test where they cannot be had."""
    return fetched("spark-kafka", FILES / "spark.pom.xml")


def fetched(name, pom, goal="copy-dependencies"):
    """Return a folder of the cache with what the pom names, got by this goal of Maven; skips where it cannot be had."""
    _needs("java")
    home = _cache() / name
    if not home.exists():
        _needs("mvn")
        lock = SYSTEM.files.lock(_cache() / "maven.lock", wait=True)
        try:  # several workers of a run want it at once, and two Mavens would write the same files of their repository
            if not home.exists():
                fetch_jars(pom, home, goal)
        finally:
            lock.release()
    return home


def fetch_jars(pom, home, goal="copy-dependencies"):
    """Have Maven put all that the pom names into the folder, whole or not at all; skips where it cannot."""
    with tempfile.TemporaryDirectory(dir=home.parent) as room:
        shutil.copy(pom, Path(room) / "pom.xml")
        command = [
            "mvn",
            "-q",
            "-B",
            f"dependency:{goal}",
            "-DoutputDirectory=libs",
            "-DincludeScope=runtime",
        ]
        try:
            ran = subprocess.run(
                command, cwd=room, capture_output=True, text=True, timeout=FETCHED_WITHIN_S, check=False
            )
        except subprocess.TimeoutExpired:
            pytest.skip(f"no jars: Maven did not end within {FETCHED_WITHIN_S} s")
        if ran.returncode != 0:
            pytest.skip(f"no jars: Maven says {(ran.stdout + ran.stderr).strip().splitlines()[:1]}")
        (Path(room) / "libs").rename(home)


def _cache():
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pylog"
    cache.mkdir(parents=True, exist_ok=True)
    return cache


def _is_whole(home):
    return (home / f"kafka-clients-{VERSION}.jar").exists()


def _needs(program):
    if not shutil.which(program):
        pytest.skip(f"no Kafka {VERSION}: there is no {program}")


def free_ports(count):
    """Return ports that nobody listens at now."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def serde_jars():
    """Return the folder of the jars of a Java serializer of Avro; skips the test where they cannot be had."""
    return fetched("serde-2.6.13", FILES / "serde.pom.xml")


def older_client_jars():
    """Return the folder of the jars of Java's clients 3.9; skips the test where they cannot be had."""
    return fetched("clients-3.9", FILES / "clients39.pom.xml")


def connect_jars():
    """Return the folder of the jars of Kafka Connect; skips the test where they cannot be had."""
    return fetched("connect-4.4.0", FILES / "connect.pom.xml")


def java(*words, heap_mb=256, libs=None, classes=None, jvm=QUICK):
    """Return the command that runs a class with all jars, Kafka's or those of the folder `libs`.

    `words` begin with options of the JVM, or with the class, which may be in the folder `classes`.
    """
    config = f"-Dlog4j2.configurationFile={FILES / 'log4j2.yaml'}"
    path = f"{libs or jars()}/*" if classes is None else f"{classes}:{libs or jars()}/*"
    return ["java", f"-Xmx{heap_mb}m", *jvm, config, "-cp", path, *map(str, words)]


def run_tool(tool, *words, given="", timeout_s=60, check=True):
    """Run one of Kafka's tools, such as `org.apache.kafka.tools.TopicCommand`, to its end; return what it printed."""
    ran = subprocess.run(
        java(tool, *words), input=given, capture_output=True, text=True, timeout=timeout_s, check=False
    )  # fmt: skip
    assert not check or ran.returncode == 0, (tool, words, ran.stdout, ran.stderr)
    return ran


def compile_java(*sources, classes, libs=None):
    """Compile Java files, and those beside the first that they use, into the folder `classes`.

    They are compiled against these jars, by default Kafka's. Skips where there is no compiler.
    """
    _needs("javac")
    beside = ["-sourcepath", str(Path(sources[0]).parent), "-proc:none"]
    command = ["javac", "-cp", f"{libs or jars()}/*", *beside, "-d", str(classes), *map(str, sources)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr


def java_program(source, classes, *arguments, heap_mb=256, libs=None):
    """Compile the Java file, whose public class has its name, and return the command that runs it."""
    compile_java(source, classes=classes, libs=libs)
    return java(Path(source).stem, *arguments, heap_mb=heap_mb, libs=libs, classes=classes)


def is_whole(client, topics=None):
    """Is every partition of these topics, or of all, led, with all of its replicas in sync?"""
    partitions = [each for topic in described(client, topics) for each in topic["partitions"]]
    return all(each["leader"] >= 0 and len(each["isr"]) == len(each["replicas"]) for each in partitions)


class Kafka4:
    """Brokers of a Kafka 4.4 (KRaft, each broker and controller) on loopback, numbered from 1. A context manager.

    `settings` go to every broker. `start`, `kill` (with -9), `stop` (clean), `is_running` and `pid` take a broker's
    number. `quick`: a JVM that starts soon, with the first compiler only; else it is as users have it.
    """

    def __init__(self, directory, brokers=1, *, settings=None, heap_mb=400, quick=True):
        self.directory = Path(directory) / "kafka"
        self.numbers = list(range(1, brokers + 1))
        self._settings = settings or {}
        self._heap_mb = heap_mb
        self._jvm = QUICK if quick else ()
        self._processes = {}
        self._ports = {}

    @property
    def bootstrap(self):
        return ",".join(f"127.0.0.1:{self._ports[number][0]}" for number in self.numbers)

    def address(self, number):
        return f"127.0.0.1:{self._ports[number][0]}"

    def pid(self, number):
        return self._processes[number].pid

    def is_running(self, number):
        return self._processes[number].poll() is None

    def data(self, number):
        """Return the broker's log directory."""
        return self.directory / f"data-{number}"

    def __enter__(self):
        jars()
        for tries_left in reversed(range(STARTS)):
            try:
                self._begin()
            except (AssertionError, subprocess.TimeoutExpired) as error:
                self.__exit__()
                if not tries_left:
                    raise
                print(f"once more: {error}")
            except BaseException:
                self.__exit__()
                raise
            else:
                return self

    def _begin(self):
        """Start all brokers, on ports that nobody had a moment ago: another process may take one first."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        ports = free_ports(2 * len(self.numbers))
        self._ports = {number: (ports[2 * at], ports[2 * at + 1]) for at, number in enumerate(self.numbers)}
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self._processes = {number: self._format(number, cluster) for number in self.numbers}
        said = {number: running.communicate(timeout=READY_WITHIN_S)[0] for number, running in self._processes.items()}
        for number, running in self._processes.items():
            assert running.returncode == 0, f"broker {number} was not formatted: {said[number]}"
        for number in self.numbers:
            self.start(number, wait=False)
        for number in self.numbers:
            self.wait(number)

    def __exit__(self, *error):
        for process in self._processes.values():
            with suppress(OSError):
                process.kill()
            process.wait(ENDED_WITHIN_S)

    def _format(self, number, cluster):
        file = self.directory / f"{number}.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in self._properties(number).items()))
        # One id in 64 begins with a dash, and would be taken for an option.
        command = java("kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", file)
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def _properties(self, number):
        copies, (port, quorum_port) = min(3, len(self.numbers)), self._ports[number]
        in_sync = 1 if copies < 3 else 2
        voters = ",".join(f"{each}@127.0.0.1:{self._ports[each][1]}" for each in self.numbers)
        return {
            "process.roles": "broker,controller",
            "node.id": number,
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{quorum_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": self.data(number),
            "offsets.topic.replication.factor": copies,
            "offsets.topic.num.partitions": 5,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.num.partitions": 5,
            "transaction.state.log.min.isr": in_sync,
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": in_sync,
            "share.coordinator.state.topic.num.partitions": 5,
            "default.replication.factor": copies,
            "group.initial.rebalance.delay.ms": 0,
            "log.retention.ms": -1,  # tests send records of 1970
            **self._settings,
        }

    def start(self, number, *, wait=True):
        file = self.directory / f"{number}.properties"
        command = java(f"-Xms{self._heap_mb}m", "kafka.Kafka", file, heap_mb=self._heap_mb, jvm=self._jvm)
        with (self.directory / f"broker-{number}.log").open("ab") as log:
            self._processes[number] = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        if wait:
            self.wait(number)

    def wait(self, number):
        """Return once the broker answers clients: it opens its port when it has caught up with the quorum."""
        deadline = time.monotonic() + READY_WITHIN_S
        while True:
            assert self._processes[number].poll() is None, f"broker {number} ended: {self.said(number)}"
            with suppress(OSError), socket.create_connection(("127.0.0.1", self._ports[number][0]), timeout=1):
                return
            assert time.monotonic() < deadline, f"broker {number} does not listen: {self.said(number)}"
            time.sleep(0.1)

    def said(self, number):
        """Return the last lines of the broker's log."""
        return (self.directory / f"broker-{number}.log").read_text()[-2000:]

    def kill(self, number):
        self._processes[number].kill()
        self._processes[number].wait(ENDED_WITHIN_S)

    def stop(self, number):
        self._processes[number].terminate()
        self._processes[number].wait(ENDED_WITHIN_S)
