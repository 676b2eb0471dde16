"""Our client at a real Kafka 4.4 whose leaders, coordinators and KRaft controllers are killed -9, and come back.

One producer is idempotent, another writes transactions, of which a third is aborted; two members of a group read both
topics, and one of them leaves and comes back with every kill. The laws: what was acknowledged is there once and in its
order; a committed transaction is there whole, an aborted one not at all; the members are given every record, and none
below a committed offset. A stranger, confluent-kafka, reads the logs at the end. By hand:

    pytest -n0 --soak tests/conformance/kafka4/test_kills.py
"""

import random
import threading
import time
from collections import defaultdict
from functools import partial
from itertools import count
from queue import SimpleQueue

import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Position

from replication.client.admin import controller, elect_leaders
from replication.client.kafka_client import KafkaClient
from replication.coordinators.binary import partition_of
from replication.errors import KafkaError
from replication.model.cluster import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tests.support.asker import until
from tests.support.kafka4 import SAFE, is_whole
from tests.support.repeats import only_long, soaked

ROUNDS = soaked(1, 8)  # of a kill, or with --soak of three
pytestmark = [
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.timeout(600 + 300 * ROUNDS),
    only_long("a real Kafka 4.4 whose brokers are killed"),
]

NUMBERS, SOLD, PARTITIONS = "numbers", "sold", 3
ROWS, PARTS = 5, 4  # of a send; of a transaction in each of two partitions
AGAIN_WITHIN_S = 120
PAUSE_S = 0.02  # between sends: without it two threads and a broker are busy with nothing else


class AbortedError(Exception):
    """The reason of a third of the transactions."""


class Worker(threading.Thread):
    """Does `turn` again and again, with a client of its own, until it is told to end. `done`: how many turns."""

    def __init__(self, bootstrap):
        super().__init__(daemon=True)
        self.client = KafkaClient(bootstrap)
        self.is_over, self.failure, self.done = threading.Event(), None, 0

    def run(self):
        try:
            with self.client:
                self.work()
        except BaseException as error:  # noqa: BLE001  told by `check`
            self.failure = error

    def check(self):
        assert self.failure is None, f"{type(self).__name__}: {self.failure!r}"

    def end(self):
        self.is_over.set()
        self.join(AGAIN_WITHIN_S)
        self.check()
        assert not self.is_alive()


class Numbers(Worker):
    """Numbers the records of each partition. `sent`: how many; all are acknowledged when it has ended."""

    def work(self):
        self.sent, waiting = [0] * PARTITIONS, []
        with self.client.producer(linger_ms=2, delivery_timeout_ms=AGAIN_WITHIN_S * 1000) as producer:
            while not self.is_over.wait(PAUSE_S):
                partition = self.done % PARTITIONS
                first = self.sent[partition]
                waiting.append(producer.send(NUMBERS, rows(partition, range(first, first + ROWS))))
                self.sent[partition] += ROWS
                if len(waiting) > 20:
                    waiting.pop(0).result(AGAIN_WITHIN_S)
                self.done += 1
            for each in waiting:
                each.result(AGAIN_WITHIN_S)


class Sold(Worker):
    """Writes transactions of several sends into two partitions; `committed` has their values, by partition."""

    def __init__(self, bootstrap, name):
        super().__init__(bootstrap)
        self.id = name

    def work(self):
        self.committed = defaultdict(list)
        for number in count():
            if self.is_over.wait(PAUSE_S):
                return
            places = [(number % PARTITIONS), (number + 1) % PARTITIONS]
            values = [f"{number}-{part}" for part in range(PARTS)]
            try:
                with self.client.transaction(self.id) as transaction:
                    for value in values:
                        for place in places:
                            transaction.append(SOLD, rows(place, [value]))
                    if number % 3 == 2:
                        raise AbortedError
            except AbortedError:
                pass
            else:
                for place in places:
                    self.committed[place] += values
            self.done += 1


class Reader(Worker):
    """A member; what it is given goes to `given`, and commits to `positions`, which all members share."""

    def __init__(self, bootstrap, group, given, positions, wrong):
        super().__init__(bootstrap)
        self.group, self.given, self.positions, self.wrong = group, given, positions, wrong

    def work(self):
        settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "isolation_level": "read_committed"}
        last = {}

        def leave(partitions):
            for place in partitions:  # the next owner begins at the last commit
                last.pop(place, None)

        with self.client.consumer([NUMBERS, SOLD], self.group, on_revoke=leave, **settings) as consumer:
            while not self.is_over.is_set():
                found = consumer.poll(200)
                if found is None:
                    continue
                place = found["topic"][0].as_py(), found["partition"][0].as_py()
                offsets = found["offset"].to_pylist()
                if offsets[0] < max(self.positions[place], last.get(place, 0)) or offsets != sorted(offsets):
                    self.wrong.append((place, offsets[0], self.positions[place], last.get(place)))
                last[place] = offsets[-1] + 1
                self.given.put((place, offsets, found["value"].to_pylist()))
                try:
                    consumer.commit()
                except KafkaError:  # a rebalance
                    continue
                for (topic, partition), position in last.items():
                    self.positions[topic, partition] = max(self.positions[topic, partition], position)
                self.done += 1


def rows(partition, values):
    values = [str(value) for value in values]
    return pa.table({"value": values, "partition": pa.array([partition] * len(values), pa.int32())})


def logs_of(bootstrap, topic):
    """The values of each partition, as confluent-kafka reads what is committed."""
    settings = {"group.id": "-", "isolation.level": "read_committed", "enable.partition.eof": True, "log_level": 0}
    consumer, found = Consumer({"bootstrap.servers": bootstrap, **settings}), []
    try:
        for partition in range(PARTITIONS):
            consumer.assign([Position(topic, partition, 0)])
            values = []
            while True:
                message = consumer.poll(60)
                assert message is not None, f"{topic}-{partition} is not read to its end"
                if message.error() is not None:
                    break
                values.append(message.value().decode())
            found.append(values)
        return found
    finally:
        consumer.close()


def leader_of(client, topic, name):
    leaders = client.topic(topic).leaders
    return leaders[partition_of(name, len(leaders))].broker


def coordinated(client, topic, stem, broker):
    """Return a name whose coordinator is this broker, which leads a share of the topic."""
    leaders = client.topic(topic).leaders
    names = [f"{stem}-{number}" for number in range(100)]
    return next(name for name in names if leaders[partition_of(name, len(leaders))].broker == broker)


def victims(client, group, writer):
    """Roles, each with what tells its broker: in a short run the controller, which has the others, too."""
    roles = [("the controller", partial(client.run, controller))]
    roles += [
        ("the coordinator of the group", partial(leader_of, client, OFFSETS_TOPIC, group)),
        ("the coordinator of transactions", partial(leader_of, client, TRANSACTIONS_TOPIC, writer)),
    ][: soaked(0, 2)]
    return random.sample(roles, len(roles))


def test_nothing_is_lost_doubled_or_out_of_order_while_brokers_are_killed(three_brokers):
    bootstrap = three_brokers.bootstrap
    given, positions, wrong = SimpleQueue(), defaultdict(int), []
    with KafkaClient(bootstrap) as client:
        for topic in (NUMBERS, SOLD):
            client.create_topic(topic, partitions=PARTITIONS, replicas=3, **SAFE)
        client.committed("none")  # both topics of coordinators are made for the first who asks
        client.init_producer("none", timeout_ms=60_000)
        until(lambda: is_whole(client), AGAIN_WITHIN_S)
        client.run(elect_leaders, None)
        first = client.run(controller)
        group, writer = (
            coordinated(client, OFFSETS_TOPIC, "g", first),
            coordinated(client, TRANSACTIONS_TOPIC, "w", first),
        )
        numbers, sold = Numbers(bootstrap), Sold(bootstrap, writer)
        readers = [Reader(bootstrap, group, given, positions, wrong) for _ in range(2)]
        for each in (numbers, sold, *readers):
            each.start()

        def go_on(turns=5):
            """Both writers, and some reader, do more than what they had done."""
            before = numbers.done + 20 + turns, sold.done + turns, given.qsize() + turns

            def have_gone_on():
                for each in (numbers, sold, *readers):
                    each.check()
                return numbers.done > before[0] and sold.done > before[1] and given.qsize() > before[2]

            until(have_gone_on, AGAIN_WITHIN_S)

        go_on()
        killed = []
        for _ in range(ROUNDS):
            for role, where in victims(client, group, writer):
                until(lambda: is_whole(client), AGAIN_WITHIN_S)
                readers.pop(0).end()
                victim, begun_s = where(), time.monotonic()
                three_brokers.kill(victim)
                readers.append(Reader(bootstrap, group, given, positions, wrong))
                readers[-1].start()
                go_on()
                three_brokers.start(victim)
                killed.append(f"{role}, {victim}: {time.monotonic() - begun_s:.0f} s")
                print(killed[-1], flush=True)
        go_on()
        for each in (numbers, sold):
            each.end()
        values = {NUMBERS: logs_of(bootstrap, NUMBERS), SOLD: logs_of(bootstrap, SOLD)}
        read = defaultdict(dict)

        def have_read():
            while not given.empty():
                place, offsets, found = given.get()
                read[place].update(zip(offsets, (value.decode() for value in found), strict=True))
            return all(len(read[t, p]) == len(values[t][p]) for t in values for p in range(PARTITIONS))

        until(have_read, AGAIN_WITHIN_S, story=lambda: f"{ {place: len(found) for place, found in read.items()} }")
        for each in readers:
            each.end()
    assert wrong == []
    assert values[NUMBERS] == [[str(n) for n in range(sent)] for sent in numbers.sent]
    assert values[SOLD] == [sold.committed[partition] for partition in range(PARTITIONS)]
    for (topic, partition), found in read.items():
        assert [value for _, value in sorted(found.items())] == values[topic][partition]
    print(sum(numbers.sent), "numbers,", sold.done, "transactions,", len(killed), "kills")
