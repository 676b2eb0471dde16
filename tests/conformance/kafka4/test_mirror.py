"""`pylog mirror` from our brokers to a real Kafka 4.4 and back at once, while a leader of each side is killed -9.

Order, keys, values, headers, times and tombstones are those of the source, partition by partition, and nothing is there
twice; records of aborted transactions are not copied, so that offsets may differ (docs/cli.md).
"""

import threading
from contextlib import suppress

import pyarrow as pa
import pytest

from logstore.records.schema import RECORD_SCHEMA
from replication.client.kafka_client import Isolation, KafkaClient
from replication.local_cluster import LocalCluster
from replication.tools.mirror import mirror
from tests.support.asker import until
from tests.support.kafka4 import SAFE, is_whole
from tests.support.repeats import only_long, soaked

KILLS = soaked(1, 6)  # of each side
pytestmark = [
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.timeout(600 + 240 * KILLS),
    only_long("a real Kafka 4.4, and brokers of ours, that are killed"),
]

PARTITIONS = 3
COPIED = ["key", "value", "headers", "timestamp"]
WITHIN_S = 120
SETTINGS = {"zookeeper.session.timeout.ms": 3000, "default.replication.factor": 3}


class Direction:
    """From one cluster to another: a topic that grows, its copy, and the mirror between them. A context manager."""

    def __init__(self, source, target, topic):
        self.source, self.target, self.topic = KafkaClient(source), KafkaClient(target), topic
        self.source.create_topic(topic, partitions=PARTITIONS, replicas=3, **SAFE, retention_ms=-1)  # times of 1970
        self.is_over, self.failure, self.sent = threading.Event(), None, 0
        self._mirror = threading.Thread(target=self._copy, args=(source, target), daemon=True)

    def _copy(self, source, target):
        try:
            mirror(source, target, topics=[self.topic], follow=True, stop=self.is_over)
        except BaseException as error:  # noqa: BLE001  told by `check`
            self.failure = error

    def __enter__(self):
        self.write()
        self._mirror.start()
        return self

    def __exit__(self, *error):
        self.is_over.set()
        self._mirror.join(WITHIN_S)
        self.source.close()
        self.target.close()

    def check(self):
        assert self.failure is None, repr(self.failure)

    def write(self, count=60):
        """Committed records of every shape, and behind them some that are aborted."""
        self.source.append(self.topic, records(range(self.sent, self.sent + count)))
        self.sent += count
        with suppress(ZeroDivisionError), self.source.transaction(f"{self.topic}-writer") as transaction:
            transaction.append(self.topic, records(range(5)))
            raise ZeroDivisionError

    def is_copied(self):
        self.check()
        with suppress(LookupError):
            return sum(map(len, rows_of(self.target, self.topic))) >= self.sent
        return False

    def end(self):
        until(self.is_copied, WITHIN_S)
        self.is_over.set()
        self._mirror.join(WITHIN_S)
        self.check()
        there, wanted = rows_of(self.target, self.topic), rows_of(self.source, self.topic)
        assert sum(map(len, wanted)) == self.sent
        assert there == wanted
        assert self.target.overrides([self.topic])[self.topic]["min.insync.replicas"] == "2"
        again = mirror(self.source.where, self.target.where, topics=[self.topic])
        assert [each.records for each in again] == [0]


def records(numbers):
    """Keys and values that are null or not, headers twice or none, times of today and of 1970, in every partition."""
    made = [
        {
            "key": None if n % 5 == 0 else b"k%d" % (n % 7),
            "value": None if n % 4 == 0 else b"v%d" % n,
            "headers": [{"key": "h", "value": b"%d" % n}, {"key": "h", "value": None}] if n % 3 else [],
            "timestamp": (n if n % 2 else 1_700_000_000_000 + n),
            "partition": n % PARTITIONS,
        }
        for n in numbers
    ]
    fields = [RECORD_SCHEMA.field(name) for name in COPIED]
    return pa.Table.from_pylist(made, pa.schema([*fields, pa.field("partition", pa.int32())]))


def rows_of(client, topic):
    """Each partition's committed records, in their order."""
    extents = client.extents(topic, isolation=Isolation.READ_COMMITTED)
    return [
        [row for batch in client.read(topic, p, *found[:2], columns=COPIED) for row in batch.to_pylist()]
        for p, found in sorted(extents.items())
    ]


def test_mirrors_in_both_directions_survive_the_death_of_leaders_of_both_sides(three_brokers):
    with (
        LocalCluster(brokers=3, settings=SETTINGS) as ours,
        Direction(ours.bootstrap, three_brokers.bootstrap, "mirrored-there") as there,
        Direction(three_brokers.bootstrap, ours.bootstrap, "mirrored-back") as back,
    ):
        both = (there, back)
        until(lambda: there.is_copied() and back.is_copied(), WITHIN_S)
        for turn in range(KILLS):
            # Each side is the source of one mirror, and the target of the other.
            for client, kill, start in (
                (there.source, ours.kill, ours.restart),
                (there.target, three_brokers.kill, three_brokers.start),
            ):
                until(lambda client=client: is_whole(client, [each.topic for each in both]), WITHIN_S)
                victim = client.topic((there, back)[turn % 2].topic).leaders[turn % PARTITIONS].broker
                kill(victim)
                for each in both:
                    each.write()
                until(lambda: there.is_copied() and back.is_copied(), WITHIN_S)
                start(victim)
        for each in both:
            each.end()
