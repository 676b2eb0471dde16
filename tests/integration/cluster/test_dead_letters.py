"""`pylog dlq` on a cluster: what did not fit is sent again, each record once, also beside another replay."""

from contextlib import contextmanager, suppress

import pyarrow as pa
import pytest

from logstore.records.schema import RECORD_SCHEMA
from logstore.schemas.misfits import STORED, dead_letters
from logstore.tools.dead_letters import Wanted, replay, summary
from replication.client.kafka_client import KafkaClient
from replication.errors import KafkaError
from replication.tools.dead_letters import ClusterDeadLetters

pytestmark = pytest.mark.slow

BOUNDS = {"tries_max": 3, "count_max": 1000}


@pytest.fixture
def client(cluster):
    with KafkaClient(cluster.running.bootstrap) as client:
        yield client


@pytest.fixture
def misfits(client, name):
    """Dead letters of three records, one of them twice."""
    client.create_topic(name, partitions=2)
    topic = f"{name}-misfits"
    client.create_topic(topic, **{"cleanup.policy": "compact"})
    rows = [{"key": b"k", "value": b"v%d" % n, "offset": n, "timestamp": n, "headers": []} for n in (1, 2, 3, 3)]
    records = pa.RecordBatch.from_pylist(rows, RECORD_SCHEMA).select(list(STORED))
    facts = {"topic": name, "partition": 1, "name": "audit", "now_ms": 5}
    client.append(topic, dead_letters(records, {0: "cut off", 1: "cut off", 2: "late", 3: "late"}, **facts))
    return topic


def values(client, topic):
    extents = client.extents(topic)
    batches = [batch for p, found in extents.items() for batch in client.read(topic, p, found.start, found.end)]
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def test_they_are_listed_shown_and_sent_again_once(client, pylog, name, misfits):
    listed = pylog("dlq", "list", misfits, "--output", "json").ok().json
    assert [(row["topic"], row["reason"], row["records"]) for row in listed] == [
        (name, "cut off", 2),
        (name, "late", 1),
    ]
    shown = pylog("dlq", "show", misfits, "--reason", "late", "--output", "json").ok().json
    assert [(row["offset"], row["key"], row["value"], row["tries"]) for row in shown] == [(3, "k", "v3", 1)]
    assert pylog("dlq", "replay", misfits, "--dry-run").ok().err == "would send 3 records\n"
    assert values(client, name) == []
    assert pylog("dlq", "replay", misfits, "--max-messages", 2).ok().err.splitlines()[0] == "sent 2 records"
    assert pylog("dlq", "replay", misfits).ok().err == "sent 1 record\n"
    assert pylog("dlq", "replay", misfits).ok().err == "sent 0 records\n"
    assert values(client, name) == [b"v1", b"v2", b"v3"]
    assert pylog("dlq", "list", misfits).ok().lines == []


@pytest.mark.parametrize("is_early", [True, False])
def test_of_two_runs_at_once_one_sends_each_record(client, name, misfits, is_early):
    class Overtaken(ClusterDeadLetters):
        @contextmanager
        def replaying(self, topic):
            with super().replaying(topic) as append:
                if is_early:
                    overtake()
                yield append
                overtake()

    def overtake():
        replay(ClusterDeadLetters(client), misfits, Wanted(), **BOUNDS)

    # One that is overtaken early may find the markers of the other, and then nothing to send.
    with suppress(KafkaError) if is_early else pytest.raises(KafkaError):
        replay(Overtaken(client), misfits, Wanted(), **BOUNDS)
    assert values(client, name) == [b"v1", b"v2", b"v3"]


def test_what_is_not_decided_yet_is_not_waited_for(client, name, misfits):
    with client.transaction(f"{name}-open") as producer:
        producer.append(misfits, {"key": [b"k"], "value": [b"v"]})
        assert sum(row["records"] for row in summary(ClusterDeadLetters(client), misfits)) == 3
