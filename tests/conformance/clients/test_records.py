"""Records through four clients and a cluster of three brokers: every codec, every acks; by offset and by time."""

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from logstore.records.batch import batches
from logstore.records.compression import Codec
from tests.support.repeats import only_long, times

from .tools import Confluent

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated. Use files:DeprecationWarning")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ACKS = ("all", "1", "0")  # in this order: who wants no answer is not told that a new topic has no leader yet


def stored(cluster, topic, partition=0):
    """The bytes of the replicas of one partition, as they are on disk."""
    logs = sorted(cluster.directory.glob(f"broker-*/{topic}-{partition}/*.log"))
    assert logs, topic
    return [log.read_bytes() for log in logs]


def topic_of(*words):
    return "-".join(words).replace("_", "-")


@pytest.mark.parametrize("codec", CODECS[:: times(2, 1)])
def test_what_one_client_writes_all_clients_read(tool, codec, all_tools, cluster):
    topic, count = topic_of("written", type(tool).__name__, codec), 30
    written = []
    for acks in ACKS:
        values = [f"{codec} {acks} {number} {'x' * 100}" for number in range(count)]
        tool.produce(topic, values, codec=codec, acks=acks)
        written += values
    seen = [each.consume(topic, len(written)) for each in all_tools]
    for found in seen:
        assert [offset for offset, *_ in found] == list(range(len(written)))
        assert [value for *_, value in found] == written
    assert all(found == seen[0] for found in seen)
    for data in stored(cluster, topic):
        assert {batch.codec for _, batch in batches(data)} == {Codec[codec.upper()]}


def test_the_replicas_of_a_partition_are_the_same_bytes(tool, cluster):
    topic = topic_of("replicas", type(tool).__name__)
    tool.produce(topic, [f"{number}" for number in range(1000)], codec="lz4")
    tool.consume(topic, 1000)  # all of it is committed, so that all replicas in sync have it
    copies = stored(cluster, topic)
    assert len(copies) == 3
    assert copies[0] == copies[1] == copies[2]


def test_records_are_read_from_an_offset_in_the_middle_of_a_batch(tool):
    topic = topic_of("middle", type(tool).__name__)
    tool.produce(topic, [f"{number}" for number in range(100)], codec="gzip", partition=2)
    found = tool.consume(topic, 37, partition=2, offset=63)
    assert [(offset, value) for offset, _, value in found] == [(n, f"{n}") for n in range(63, 100)]
    assert (tool.offset_at(topic, 2, -2), tool.offset_at(topic, 2, -1)) == (0, 100)
    assert tool.offset_at(topic, 1, -1) == 0


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_time_is_found_exactly_also_inside_a_compressed_batch(tool, codec, cluster):
    topic, times = topic_of("times", type(tool).__name__, codec), [1_000_000 + 1000 * n for n in range(50)]
    with Confluent(cluster.bootstrap) as writer:
        writer.produce(topic, [f"{n}" for n in range(50)], codec=codec, times=times)
    assert tool.offset_at(topic, 0, 1_000_000) == 0
    assert tool.offset_at(topic, 0, 1_033_000) == 33
    assert tool.offset_at(topic, 0, 1_033_001) == 34
    at, ms, value = tool.consume(topic, 1, offset=34)[0]
    assert (at, ms, value) == (34, 1_034_000, "34")


def test_an_idempotent_producer_writes_every_record_once(tool, all_tools):
    topic = topic_of("idempotent", type(tool).__name__)
    values = [f"{number}" for number in range(2000)]
    tool.produce(topic, values, idempotent=True)
    found = all_tools[-1].consume(topic, 2000)
    assert [value for *_, value in found] == values
    assert tool.offset_at(topic, 0, -1) == 2000


@only_long("12 MB of each client")
def test_records_of_a_megabyte(tool, all_tools):
    topic = topic_of("large", type(tool).__name__)
    values = [f"{number}" + "x" * 900_000 for number in range(12)]
    tool.produce(topic, values)
    for each in all_tools:
        assert [value for *_, value in each.consume(topic, 12)] == values


def test_a_client_learns_that_a_compacted_topic_needs_keys(cluster):
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic("keyed", 1, 3, config={"cleanup.policy": "compact"})])["keyed"].result(30)
    with Confluent(cluster.bootstrap) as client, pytest.raises(AssertionError, match="INVALID_RECORD"):
        client.produce("keyed", ["no key"])
