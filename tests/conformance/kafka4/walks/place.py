"""The Kafka that commands are run on, and the walks by the words of their commands."""

from contextlib import contextmanager, suppress

import pyarrow as pa

from replication.errors import KafkaError
from tests.support.asker import Asker
from tests.support.commands import run_pylog
from tests.support.kafka_answers.topics import metadata

WALKS = {}
JSON = ("--output", "json")
READ_ONLY = "does not check what is written to _schemas, which is only read there"


def walked(name):
    def keep(walk):
        WALKS[name] = walk
        return walk

    return keep


class Place:
    """The Kafka, a client of it, and its commands. A topic of `made` is there with records of key k and value v."""

    def __init__(self, kafka, client, directory):
        self.kafka, self.client, self.directory = kafka, client, directory

    def run(self, *words, **given):
        return run_pylog(*words, "--bootstrap-server", self.kafka.bootstrap, **given)

    def json(self, *words, **given):
        return self.run(*words, *JSON, **given).ok().json

    def made(self, topic, records=6, partitions=1, **settings):
        self.client.create_topic(topic, partitions=partitions, replicas=3, **settings)
        if records:
            rows = {"key": [b"k%d" % (n % 2) for n in range(records)], "value": [b"v%d" % n for n in range(records)]}
            self.client.append(topic, pa.table(rows))
        return topic

    def read_by(self, group, topic):
        """The topic is read whole by the group, and its offsets are committed."""
        values = self.run("consume", topic, "--group", group, "--from-beginning", "--max-messages", 6).ok()
        assert len(values.lines) == 6
        return group

    @contextmanager
    def open_transaction(self, id, topic):
        pair = self.client.init_producer(id, timeout_ms=60_000).pair
        with self.client.transactional_producer(id, pair) as producer:
            producer.append(topic, pa.table({"value": [b"open"]}))
            producer.flush()
            yield pair
        with suppress(KafkaError):  # the command has ended it
            self.client.end_transaction(id, pair, commits=False)

    def brokers_that_know(self, topic):
        found = set()
        for number in self.kafka.numbers:
            with Asker(self.kafka.address(number)) as asker:
                if metadata(asker, 12, (topic, None))[0].error_code == 0:
                    found.add(number)
        return found
