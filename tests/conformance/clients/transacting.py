"""Programs that make transactions, one after the other, with a client each; and the laws of all that they leave.

A program writes some records per transaction, and commits three of four. It prints a line per transaction: `committed`,
`aborted` (a commit was never asked for) or `unknown`, the producer's name, its instance, the number of the transaction,
and how many records it has; and `failed` with an error, where a client gave one. A record says the same of itself, with
its place in the transaction, and whether that is to be committed.
"""

import shutil
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import pytest

from replication.client.kafka_client import Isolation
from tests.conformance.clients.members import until
from tests.support.kafka4 import java_program

PROGRAMS = Path(__file__).parent / "programs"
BUILT_WITHIN_S, ENDED_WITHIN_S, MOVED_WITHIN_S = 240, 90, 120


def java(room):
    return java_program(PROGRAMS / "Transactions.java", room)


def franz(room):
    """franz-go, which is a module: skips where it cannot be built."""
    if not shutil.which("go"):
        pytest.skip("no franz-go: there is no go")
    source = shutil.copytree(PROGRAMS / "franz", room / "franz")
    for step in (["go", "mod", "tidy"], ["go", "build", "-o", str(room / "program"), "."]):
        built = subprocess.run(step, cwd=source, capture_output=True, text=True, timeout=BUILT_WITHIN_S, check=False)
        if built.returncode:
            pytest.skip(f"no franz-go: {' '.join(step)}: {built.stderr.strip().splitlines()[-1]}")
    return [str(room / "program")]


def librdkafka(room):
    return [sys.executable, str(PROGRAMS / "transactions.py")]


class Transaction(NamedTuple):
    producer: str
    instance: int
    number: int


class Program:
    """One program, whose instances follow each other; a context manager. `room`: a directory of its own."""

    def __init__(self, build, bootstrap, topic, room, *, partitions, producers, pause_ms=0):
        self.name, self._room = build.__name__, room
        room.mkdir(parents=True)
        self._command = build(room)
        self._words = (bootstrap, topic, partitions, producers, pause_ms, f"{topic}-{self.name}")
        self.producers = [f"{topic}-{self.name}-{number}" for number in range(producers)]
        self._instance, self._processes = 0, []

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *error):
        for process in self._processes:
            process.kill()
            process.wait()
            process.stdin.close()

    def start(self):
        """Start another instance. Earlier ones that still live begin no producer again."""
        self._instance += 1
        (self._room / "made").write_text(str(self._instance))
        (self._room / "made").rename(self._room / "living")
        words = map(str, (*self._words, self._instance, self._room / "living"))
        with (self._room / f"said-{self._instance}").open("w") as said, (self._room / "errors").open("a") as errors:
            self._processes.append(
                subprocess.Popen([*self._command, *words], stdin=subprocess.PIPE, stdout=said, stderr=errors)
            )

    def kill(self):
        """Kill the last instance; it is followed by another."""
        self._processes[-1].kill()
        self._processes[-1].wait()
        self.start()

    def has_aborted(self, code):
        """Is it the end of librdkafka? Where 2.16 is fenced, it aborts now and then: an assertion of its own."""
        return self.name == librdkafka.__name__ and code == -signal.SIGABRT

    def outlive(self):
        """Stop the last instance where it stands. It goes on once another one commits in its place."""
        zombie = self._processes[-1]
        zombie.send_signal(signal.SIGSTOP)
        self.start()
        self.until_moved()
        zombie.stdin.close()
        zombie.send_signal(signal.SIGCONT)
        code = zombie.wait(ENDED_WITHIN_S)
        assert code == 0 or self.has_aborted(code), self.told()

    def end(self):
        """Have the last instance end what it is at, and end."""
        self._processes[-1].stdin.close()
        assert self._processes[-1].wait(ENDED_WITHIN_S) == 0, self.told()

    def said(self):
        """Return the lines of all instances; the last one of a killed one may be a part."""
        files = [self._room / f"said-{number + 1}" for number in range(self._instance)]
        return [line for file in files for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def outcomes(self):
        """Return what each transaction that has ended was said to be, and the number of its records."""
        rows = (line.split() for line in self.said())
        return {
            Transaction(row[1], int(row[2]), int(row[3])): (row[0], int(row[4]))
            for row in rows
            if row[0] in ("committed", "aborted", "unknown")
        }

    def failures(self):
        return [line.strip() for line in self.said() if line.split()[0] not in ("committed", "aborted", "unknown")]

    def committed(self):
        """Return how many transactions of each producer are committed."""
        return Counter(each.producer for each, (outcome, _) in self.outcomes().items() if outcome == "committed")

    def until_moved(self):
        """Wait until each producer commits once more."""
        before = self.committed()

        def standing():
            code = self._processes[-1].poll()
            if self.has_aborted(code):
                self.start()
            else:
                assert code is None, (code, self.told())
            now = self.committed()
            return [each for each in self.producers if now[each] <= before[each]]

        until(lambda: not standing(), lambda: (standing(), self.told()), within_s=MOVED_WITHIN_S)

    def told(self):
        """Return the last failures, and the end of what went to stderr."""
        return self.failures()[-5:], (self._room / "errors").read_text()[-2000:]


def values(client, topic):
    """Return the committed values of each partition, once no transaction is open."""
    numbers = range(len(client.topic(topic).leaders))

    def is_decided():
        ends = [
            client.extents(topic, isolation=each) for each in (Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED)
        ]
        return all(ends[0][number].end == ends[1][number].end for number in numbers)

    # A commit is answered before its last marker is written, as by Kafka.
    until(is_decided, "a transaction is open", within_s=60)
    ends = client.extents(topic)
    return [
        [
            value.decode()
            for batch in client.read(topic, number, 0, ends[number].end, isolation=Isolation.READ_COMMITTED)
            for value in batch["value"].to_pylist()
        ]
        for number in numbers
    ]


def violations(partitions, outcomes):
    """Return what breaks the laws: all records of a committed transaction, none of an aborted one, in order, once."""
    found, places, sizes = [], defaultdict(list), {}
    for rows in partitions:
        last = {}
        for value in rows:
            name, instance, number, place, size, fate = value.split()
            transaction = Transaction(name, int(instance), int(number))
            now = *transaction, int(place)
            if now <= last.get(name, ()):
                found.append(f"{now} behind {last[name]}")
            if fate == "abort":
                found.append(f"{now} was never committed")
            last[name] = now
            places[transaction].append(int(place))
            sizes[transaction] = int(size)
    for transaction, there in places.items():
        if sorted(there) != list(range(sizes[transaction])):
            found.append(f"{transaction} has {sorted(there)} of {sizes[transaction]}")
        if outcomes.get(transaction, ("unknown",))[0] == "aborted":
            found.append(f"{transaction} was aborted, and is there")
    found += [
        f"{transaction} was committed, and is not there"
        for transaction, (outcome, _) in outcomes.items()
        if outcome == "committed" and transaction not in places
    ]
    return found
