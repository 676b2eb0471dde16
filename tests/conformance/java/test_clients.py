"""Java's published clients of two lines on three brokers: producer, consumer, Admin; and brokers that are killed."""

import re
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from replication.client.kafka_client import KafkaClient
from replication.coordinators.binary import partition_of
from replication.model.cluster import TRANSACTIONS_TOPIC
from tests.conformance.clients.members import until
from tests.support.kafka4 import compile_java, jars, java, older_client_jars
from tests.support.repeats import only_long, soaked

LINES = {"3.9": older_client_jars, "4.4": jars}
CALLS = {"3.9": "Clients", "4.4": "NewerClients"}
KILLS = soaked(2, 40)
SAID_WITHIN_S = 180

pytestmark = [
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.timeout(soaked(600, 2400)),
    only_long("JVMs of Java's clients"),
]
PROGRAMS = Path(__file__).parent / "programs"
OTHER_CALLS = Path(__file__).parents[1] / "kafka4/java"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """A function that gives the command of a program with the clients of a line: compiled once, with the newer."""
    classes = tmp_path_factory.mktemp("classes")
    compile_java(*(PROGRAMS / f"{name}.java" for name in ("NewerClients", "UnderKills")), classes=classes)
    return lambda line, *words: java(*words, classes=classes, libs=LINES[line]())


@pytest.fixture(scope="module", params=LINES)
def called(request, cluster, program):
    """All that the calls of one line of clients said."""
    command = program(request.param, CALLS[request.param], cluster.bootstrap, f"calls-{request.param}")
    ran = subprocess.run(command, capture_output=True, text=True, timeout=SAID_WITHIN_S, check=False)
    assert ran.returncode == 0, (ran.stdout, ran.stderr)
    return ran.stdout.splitlines()


def test_each_call_of_producer_consumer_and_admin_does_what_kafka_does(called):
    checked = [line for line in called if not line.startswith("methods ")]
    assert [line for line in checked if not line.startswith("ok ")] == []
    assert len(checked) > 100


def test_each_method_of_admin_is_called(called):
    """Here, or where those are called that brokers do not serve."""
    (methods,) = (line.split()[1:] for line in called if line.startswith("methods "))
    sources = [*PROGRAMS.glob("*.java"), *OTHER_CALLS.glob("*.java")]
    calls = set(re.findall(r"admin\.(\w+)\(", "".join(source.read_text() for source in sources)))
    assert set(methods) - calls == {"create", "close"} | (set(methods) & {"alterConfigs"})  # deprecated, and gone in 4


class Copying:
    """A program that writes and copies, and what it said."""

    def __init__(self, command, said):
        self._said = said
        with said.open("wb") as output:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output)

    def copied(self):
        """How many records it copied; it still runs."""
        assert self._process.poll() is None, self.said()
        return int(([0, *re.findall(r"^copied (\d+)", self.said(), re.MULTILINE)])[-1])

    def said(self):
        return self._said.read_text()

    def stop_writing(self):
        self._process.stdin.close()

    def found(self):
        """Return what it found in the end."""
        self._process.wait(SAID_WITHIN_S)
        return [line for line in self.said().splitlines() if re.match("ok |bad |done ", line)]

    def kill(self):
        self._process.kill()
        self._process.wait()


def test_no_record_is_lost_doubled_or_moved_while_brokers_are_killed(cluster, program, tmp_path):
    with ExitStack() as ends, KafkaClient(cluster.bootstrap) as client:
        running = []
        for line in LINES:
            for topic in (f"in-{line}", f"out-{line}"):
                client.create_topic(topic, partitions=3, replicas=3)
            command = program(line, "UnderKills", cluster.bootstrap, f"in-{line}", f"out-{line}")
            running.append(Copying(command, tmp_path / line))
            ends.callback(running[-1].kill)

        def go_on():
            """Each program copies more than it had."""
            before = [each.copied() for each in running]
            until(
                lambda: all(each.copied() > count + 100 for each, count in zip(running, before, strict=True)),
                lambda: [each.said()[-2000:] for each in running],
                within_s=SAID_WITHIN_S,
            )

        go_on()
        for number in range(KILLS):
            coordinator = (TRANSACTIONS_TOPIC, partition_of("out-4.4", 3))
            killed = cluster.kill_leader(*(coordinator if number % 2 else ("in-3.9", 0)))
            go_on()
            cluster.restart(killed)
            until(cluster.is_whole, "all replicas are in sync", within_s=SAID_WITHIN_S)
        for each in running:
            each.stop_writing()
        for each in running:
            *found, done = each.found()
            assert [line for line in found if not line.startswith("ok ")] == []
            assert len(found) == 6
            assert int(done.removeprefix("done ")) > 0
            print(KILLS, "kills,", done, "records, again:", each.said().count("again"))
