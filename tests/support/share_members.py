"""Members of our own client in a share group, in processes that may be killed, and the life of such a group."""

import json
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from pathlib import Path

import pyarrow as pa

from replication.client.deliveries import Kind
from replication.client.kafka_client import KafkaClient
from replication.model.cluster import TopicPartition
from tests.conformance.clients.members import until
from tests.support.commands import run_pylog
from tests.support.fork_server import quick

WITHIN_S = 120
MEMBERS = 4  # of a process
PROGRAM = quick("from tests.support.share_members import main; main()")


def main():
    """Be members of a group until stdin ends; write what they were given before it is acknowledged, and outcomes."""
    bootstrap, topic, group, path = sys.argv[1:]
    stopping, lock = threading.Event(), threading.Lock()
    with Path(path).open("a", encoding="utf-8") as file, KafkaClient(bootstrap) as client:

        def write(*words):
            with lock:
                file.write(json.dumps(words) + "\n")
                file.flush()

        def told(outcomes):
            for due, error in outcomes:
                ranges = [(first, last) for first, last, kind in due.acknowledgements if kind is Kind.ACCEPT]
                write("told", due.tp.partition, ranges, None if error is None else str(error))

        def read():
            with client.share_consumer(topic, group, max_poll_records=20, on_acknowledged=told) as member:
                while not stopping.is_set():
                    if (rows := member.poll(200)) is not None:
                        given = zip(rows["offset"].to_pylist(), rows["delivery_count"].to_pylist(), strict=True)
                        write("given", rows["partition"][0].as_py(), list(given))
                        stopping.wait(0.02)

        threads = [threading.Thread(target=read) for _ in range(MEMBERS)]
        for thread in threads:
            thread.start()
        print("begun", flush=True)
        sys.stdin.read()
        stopping.set()
        for thread in threads:
            thread.join(WITHIN_S)
        assert not any(thread.is_alive() for thread in threads), "a member did not leave"
    print("left", flush=True)


class Members:
    """One process of them."""

    def __init__(self, bootstrap, topic, group, path):
        self.path, self.is_killed = path, False
        command = [sys.executable, "-c", PROGRAM, bootstrap, topic, group, str(path)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "begun\n"

    def kill(self):
        self.is_killed = True
        self.process.kill()
        self.process.communicate()

    def leave(self):
        said, _ = self.process.communicate(timeout=WITHIN_S)
        assert (said, self.process.returncode) == ("left\n", 0)

    def lines(self):
        text = self.path.read_text() if self.path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


class ShareGroup:
    """A topic, its group, and the processes of its members."""

    def __init__(self, client, topic, name, directory):
        self.client, self.topic, self.name, self.directory = client, topic, name, directory
        self.processes, self.sent = [], Counter()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for each in self.processes:
            each.process.kill()

    def join(self):
        path = self.directory / f"members-{len(self.processes)}.jsonl"
        self.processes.append(Members(self.client.where, self.topic, self.name, path))

    def append(self, count):
        values = [f"{number}" for number in range(count)]
        for partition, extent in self.client.append(self.topic, pa.table({"key": values, "value": values})).items():
            self.sent.update((partition, offset) for offset in range(extent.start, extent.end))

    def given(self):
        return Counter(
            (partition, offset)
            for each in self.processes
            for word, partition, rows, *_ in each.lines()
            if word == "given"
            for offset, _ in rows
        )

    def all_is_given(self):
        until(lambda: self.sent.keys() <= self.given().keys(), self.missing, within_s=WITHIN_S)

    def missing(self):
        return f"given all: {sorted(self.sent.keys() - self.given().keys())[:20]} are missing of {len(self.sent)}"

    def leader(self):
        return self.client.run(lambda cluster: cluster.leader(TopicPartition(self.topic, 0))).broker

    def elect(self):
        return run_pylog("elect-leaders", "--all-topic-partitions", "--bootstrap-server", self.client.where).code == 0

    def accepted(self):
        """The offsets that were accepted with a good answer, how often each, and those of which nobody knows."""
        good, unknown = Counter(), set()
        for each in self.processes:
            lines = each.lines()
            for word, partition, ranges, *error in lines:
                offsets = [(partition, offset) for first, last in ranges for offset in range(first, last + 1)]
                if word == "told" and error == [None]:
                    good.update(offsets)
                elif word == "told" and "they may be taken, or not" in error[0]:
                    unknown.update(offsets)
                elif word == "given" and each.is_killed:
                    unknown.update((partition, offset) for offset, _ in ranges)
        return good, unknown


def members_and_leaders_die(group, kill, start):
    """Processes of members and a leader are killed: each record is given to somebody, and accepted once."""
    for _ in range(5):
        group.join()
    group.append(1500)
    until(lambda: len(group.given()) > 300, "reading", within_s=WITHIN_S)
    group.processes[0].kill()
    group.append(500)
    until(lambda: len(group.given()) > 1000, "reading on", within_s=WITHIN_S)
    leader = group.leader()
    kill(leader)
    group.processes[1].kill()
    group.append(500)
    group.all_is_given()
    start(leader)
    until(group.elect, "the former leaders lead again", within_s=WITHIN_S)  # none dies: they are told where to go
    group.append(500)
    group.all_is_given()
    for each in group.processes[2:]:
        each.leave()
    is_accepted_once(group)


def is_accepted_once(group):
    good, unknown = group.accepted()
    rest = group.sent.keys() - good.keys()
    with group.client.share_consumer(group.topic, group.name) as last:  # what nobody is known to have accepted
        found = set()
        while (rows := last.poll(5000)) is not None:
            found |= set(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))
            assert min(rows["delivery_count"].to_pylist()) > 1
        last.commit()
    assert found <= rest
    assert rest - found <= unknown
    assert max(good.values()) == 1
    counts = defaultdict(list)
    for each in group.processes:
        for word, partition, rows, *_ in each.lines():
            if word == "given":
                for offset, count in rows:
                    counts[partition, offset].append(count)
    assert min(map(min, counts.values())) == 1
    return good, unknown, found
