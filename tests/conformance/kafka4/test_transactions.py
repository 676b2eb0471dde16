"""Transactions of three clients, with kill -9 of brokers and clients: the same laws on ours and on a Kafka 4.4."""

import itertools
import random
import time
from collections import Counter
from contextlib import ExitStack

import pytest

from replication.client.kafka_client import KafkaClient
from replication.coordinators.binary import partition_of
from replication.local_cluster import LocalCluster
from replication.model.cluster import TRANSACTIONS_TOPIC
from tests.conformance.clients.members import until
from tests.conformance.clients.transacting import Program, franz, java, librdkafka, values, violations
from tests.support.kafka4 import SAFE, is_whole
from tests.support.repeats import only_long, soaked

PARTITIONS, PRODUCERS, PAUSE_MS = 4, 3, 40
SECONDS = soaked(0, 1800)  # at least each kind of death once
SETTINGS = {
    "transaction.state.log.num.partitions": 5,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    "zookeeper.session.timeout.ms": 2000,
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.timeout(soaked(600, 3600)),
    only_long("a real Kafka 4.4, and programs in Java and Go"),
]


class Brokers:
    """Three brokers of either kind, and the way to kill them."""

    def __init__(self, client, running, start, topic):
        self.bootstrap, self._running, self._start, self.topic = running.bootstrap, running, start, topic
        self._client = client

    def is_whole(self):
        return is_whole(self._client, [self.topic, TRANSACTIONS_TOPIC])

    def leader(self):
        return random.choice(list(self._leaders(self.topic).values())).broker

    def coordinator(self, name):
        leaders = self._leaders(TRANSACTIONS_TOPIC)
        return leaders[partition_of(name, len(leaders))].broker

    def _leaders(self, topic):
        return self._client.run(lambda cluster: cluster.topic(topic, is_fresh=True)).leaders

    def kill(self, find, *words, program):
        """Kill the broker that is found. It comes back once the program gets on without it, or at once."""
        until(self.is_whole, "not all replicas are in sync", within_s=120)
        victim = find(*words)
        self._running.kill(victim)
        if random.random() < 0.5:
            program.until_moved()
        self._start(victim)


@pytest.fixture(params=["pylog", "kafka"])
def brokers(request):
    topic = f"ledger-{time.time_ns()}"
    with ExitStack() as stack:
        if request.param == "pylog":
            running = stack.enter_context(LocalCluster(3, settings=SETTINGS))
            start = running.restart
        else:
            running = request.getfixturevalue("three_brokers")
            start = running.start
        client = stack.enter_context(KafkaClient(running.bootstrap))
        client.create_topic(topic, partitions=PARTITIONS, replicas=3, **SAFE)
        yield Brokers(client, running, start, topic)
        if request.param == "kafka":  # others look at its topics
            client.delete_topic(topic)


def deaths(brokers, programs):
    """Yield names of deaths that have been survived, one after the other."""
    for number in itertools.count():
        program = programs[number % len(programs)]
        if number % 2:
            brokers.kill(brokers.leader, program=program)
            yield "leader"
        else:
            brokers.kill(brokers.coordinator, random.choice(program.producers), program=program)
            yield "coordinator"
        if number % 4 == 1:
            program.outlive()
            yield "zombie"
        else:
            program.kill()
            yield "client"
        program.until_moved()


def test_committed_transactions_are_whole_aborted_ones_void_whoever_is_killed(brokers, tmp_path):
    topic, end_s = brokers.topic, time.monotonic() + SECONDS
    sizes = {"partitions": PARTITIONS, "producers": PRODUCERS, "pause_ms": PAUSE_MS}
    with ExitStack() as stack:
        programs = [
            stack.enter_context(Program(build, brokers.bootstrap, topic, tmp_path / build.__name__, **sizes))
            for build in (java, franz, librdkafka)
        ]
        for program in programs:
            program.until_moved()
        died = []
        for death in deaths(brokers, programs):
            died.append(death)
            if "zombie" in died and time.monotonic() > end_s:
                break
        for program in programs:
            program.until_moved()
            program.end()
    outcomes = {key: value for program in programs for key, value in program.outcomes().items()}
    with KafkaClient(brokers.bootstrap) as client:
        found = violations(values(client, topic), outcomes)
    counts = Counter(outcome for outcome, _ in outcomes.values())
    print(f"\ntransactions: {dict(counts)}, deaths: {dict(Counter(died))}, violations: {len(found)}")
    assert found == []
    assert not [line for program in programs for line in program.failures() if line.startswith("broken")]
