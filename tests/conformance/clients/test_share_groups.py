"""Share consumers of librdkafka and Java on our brokers: workers are killed, and so is a leader."""

import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from replication.protocol.apis import ApiKey
from tests.conformance.clients.members import until
from tests.support.asker import Asker
from tests.support.in_process import brokers_in_process
from tests.support.kafka4 import run_tool
from tests.support.repeats import only_long, soaked
from tests.support.tried_cluster import TriedCluster
from tests.support.waits import remains

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PROGRAM = Path(__file__).parent / "programs" / "share_workers.py"
LOCK_MS = 5000
SETTINGS = {
    "offsets.topic.num.partitions": 3,
    "share.coordinator.state.topic.num.partitions": 3,
    "group.share.min.record.lock.duration.ms": LOCK_MS,
    "group.share.record.lock.duration.ms": LOCK_MS,
    "group.initial.rebalance.delay.ms": 0,
}


class Workers:
    """Processes of workers, and all that they wrote down."""

    def __init__(self, bootstrap, directory, processes, workers):
        self.path = directory / "workers.log"
        self.path.touch()
        self.running = [
            subprocess.Popen(
                [sys.executable, str(PROGRAM), bootstrap, "workers", "jobs", str(self.path), str(workers)],
                stdin=subprocess.PIPE,
            )
            for _ in range(processes)
        ]
        self.killed = set()

    def kill(self):
        """Kill one process, and all of its workers."""
        victim = self.running.pop()
        victim.kill()
        victim.wait()
        victim.stdin.close()
        self.killed.add(str(victim.pid))

    def stop(self):
        for process in self.running:
            process.stdin.write(b"\n")
            process.stdin.close()
        for process in self.running:
            process.wait(60)

    def lines(self):
        return [line.split() for line in self.path.read_text().splitlines()]

    def accepted(self):
        return Counter(
            (int(partition), int(offset)) for word, _, partition, offset, _ in self.lines() if word == "accepted"
        )


def produce(bootstrap, count):
    """Return the places of the records, which are all committed."""
    places = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 1})
    for number in range(count):
        producer.produce("jobs", str(number), on_delivery=lambda error, m: places.append((m.partition(), m.offset())))
        if number % 20 == 19:
            producer.flush(60)  # many batches, so that many workers get some
    assert producer.flush(60) == 0
    return set(places)


@only_long("processes of workers, some of which are killed")
@pytest.mark.soak
def test_workers_and_a_leader_are_killed_and_each_record_is_done_once(tmp_path):
    """With --soak, a hundred workers, of which ten are killed."""
    tried(tmp_path, processes=soaked(3, 10), workers=soaked(4, 10), records=soaked(1500, 20_000))


@only_long("a JVM for each run of a tool")
def test_javas_share_consumer_accepts_rejects_and_releases(tmp_path):
    with brokers_in_process(tmp_path, (1,), offsets_topic_num_partitions=1) as site:
        admin = AdminClient({"bootstrap.servers": site.bootstrap})
        begin_at_the_start(admin, "jobs", 1)
        places = produce(site.bootstrap, 40)

        def consumed(*options):
            limits = ("--max-messages", "20", "--timeout-ms", "20000")
            where = ("--bootstrap-server", site.bootstrap, "--topic", "jobs", "--group", "workers")
            return run_tool(
                "org.apache.kafka.tools.consumer.ConsoleShareConsumer", *where, *limits, *options
            ).stdout.split()

        first, second = list(map(str, range(20))), list(map(str, range(20, 40)))
        assert consumed("--release") == first
        assert consumed() == first, "what was released is given again"
        assert consumed("--reject") == second
        until(lambda: starts({1: site.bootstrap}) == {0: len(places)}, "all is done with")


def begin_at_the_start(admin, topic, replicas):
    (made,) = admin.create_topics([NewTopic(topic, 3 if replicas > 1 else 1, replicas)]).values()
    made.result(30)
    setting = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    group = ConfigResource(ResourceType.GROUP, "workers", incremental_configs=[setting])
    for changed in admin.incremental_alter_configs([group]).values():
        changed.result(30)


def tried(directory, *, processes, workers, records):
    with TriedCluster(3, settings=SETTINGS, directory=directory / "cluster") as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        begin_at_the_start(admin, "jobs", 3)
        team = Workers(cluster.bootstrap, directory, processes, workers)
        try:
            places = produce(cluster.bootstrap, records // 2)
            until(lambda: len(team.accepted()) >= records // 10, "a tenth is accepted", within_s=60)
            team.kill()
            victim = cluster.kill_leader("jobs", 0)
            places |= produce(cluster.bootstrap, records - records // 2)
            cluster.restart(victim)
            until(lambda: not left(team, places), lambda: f"all is done with: {left(team, places)}", within_s=120)
            addresses = {broker: cluster.address(broker) for broker in (1, 2, 3)}
            ends = {p: 1 + max(offset for at, offset in places if at == p) for p, _ in places}
            until(
                lambda: starts(addresses) == ends, lambda: f"all is stored: {starts(addresses)} of {ends}", within_s=60
            )
            # Nothing comes again after the locks of the killed workers are over.
            settled = len(team.lines())
            remains(lambda: len(team.lines()) == settled, for_s=2 * LOCK_MS / 1000)
        finally:
            team.stop()
    print(check(team, places))


def left(team, places):
    """Records that nobody has done with, as far as workers know.

    A killed worker may have accepted one, and not have written that down; another one may not have got the answer.
    """
    last = {}
    for word, who, partition, offset, _ in team.lines():
        last[int(partition), int(offset)] = word, who.partition("-")[0]
    done = {at for at, (word, who) in last.items() if word in ("accepted", "unsure") or who in team.killed}
    return places - done


def check(team, places):
    """The laws; return what was counted."""
    given, accepted = defaultdict(list), {}
    for word, who, partition, offset, count in team.lines():
        at = int(partition), int(offset)
        assert at not in accepted, f"{at} was accepted by {accepted.get(at)}, and is {word} by {who}"
        if word == "given":
            given[at].append(int(count))
        elif word == "accepted":
            accepted[at] = who
    assert set(given) == places, "every record was given to somebody"
    return {
        "records": len(places),
        "accepted": len(accepted),
        "not known to be accepted by whoever had it last": len(places - set(accepted)),
        "given again": sum(len(counts) > 1 for counts in given.values()),
        "highest delivery count": max(max(counts) for counts in given.values()),
    }


def starts(addresses):
    """Where the group goes on in each partition, as its coordinator says."""
    for address in addresses.values():
        with Asker(address) as asker:
            groups = [{"group_id": "workers", "topics": None}]
            (row,) = asker.ask(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0, {"groups": groups}).groups
            if row.error_code == 0:
                return {each.partition_index: each.start_offset for topic in row.topics for each in topic.partitions}
    return {}
