"""Spark's columns over a real Kafka 4.4 with a real registry: what they are, what does not fit, the latest of a key."""

import json
import signal
import subprocess
import sys
import time
from collections import Counter

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from deltalake import DeltaTable

from datasource.connector.places import MISFITS as COUNTS
from replication.client.kafka_client import KafkaClient
from replication.client.settings import TOPIC_RESOURCE
from tests.conformance.kafka4 import worlds
from tests.conformance.kafka4.test_typed import SEEN, read_by_confluent, rows_of, write
from tests.support.commands import run_pylog
from tests.support.kafka4 import spark_jars
from tests.support.queries import Query
from tests.support.repeats import only_long

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), only_long("a Kafka, a registry, and two JVMs for Spark")]

ENDED_WITHIN_S, COMPACTED_WITHIN_S = 800, 120
RECORDS = 600
BAD = ("nonsense", '{"n": "x"}', '{"amount": 123456789012}')
COMPACTED = {"segment.ms": "1000", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "100"}
ROUNDS = 6  # of changes, each a transaction


def values():
    """Records of which one in ten does not fit."""
    fitting = (json.dumps({"user": f"u{n}", "n": n, "amount": f"{n}.50"}) for n in range(RECORDS))
    return [BAD[n // 10 % 3] if n % 10 == 0 else value for n, value in enumerate(fitting)]


MISFITS = {f"u{n}": value for n, value in enumerate(values()) if value in BAD}


def change(bootstrap, topic, *, has_keyless=True):
    """Transactions that change few keys and delete some, and have records without a key, which a compacted topic
    refuses; every other one is aborted.
    """
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"changes-{topic}"})
    producer.init_transactions(60)
    for number in range(ROUNDS):
        producer.begin_transaction()
        for n in range(12 if has_keyless else 11):
            value = None if (number + n) % 5 == 0 else f"{number}-{n}"
            producer.produce(topic, key=None if n == 11 else f"k{number % 3 * 4 + n}", value=value, timestamp=n + 1000)
        producer.flush(60)
        producer.commit_transaction(60) if number % 2 == 0 else producer.abort_transaction(60)


def compact(client, bootstrap, topic):
    """Make the topic a compacted one, and change it until Kafka has compacted it."""
    client.alter_settings((TOPIC_RESOURCE, topic), {"cleanup.policy": "compact", **COMPACTED})
    deadline, number = time.monotonic() + COMPACTED_WITHIN_S, 0
    while next(offset for _, _, offset, _ in consumed(bootstrap, topic)) == 0:
        assert time.monotonic() < deadline, "Kafka compacts nothing"
        client.append(topic, {"key": [f"more {number % 3}", f"gone {number}"], "value": [str(number), None]})
        number += 1
        time.sleep(0.2)


def consumed(bootstrap, topic, partition=0, isolation="read_committed"):
    """Key, value, offset and time of each record that librdkafka reads."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "model", "isolation.level": isolation}
    consumer = Consumer(settings | {"enable.partition.eof": True, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0)])
    found = []
    while True:
        message = consumer.poll(60)
        assert message is not None, f"the end of {topic} did not come"
        if message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF
            consumer.close()
            return found
        found.append((message.key(), message.value(), message.offset(), message.timestamp()[1]))


@pytest.fixture(scope="module")
def found(one_broker, registry, visits, tmp_path_factory):
    """The results of each step of the program, whose stream was killed once."""
    kafka, directory = one_broker, tmp_path_factory.mktemp("typed")
    with KafkaClient(kafka.bootstrap) as client:
        for topic in ("fit", "fitted", "changed", "compacted", "json", "avro-spark", "evolved"):
            client.create_topic(topic, partitions=2 if topic.startswith("fit") else 1)
        client.append("fit", {"key": [f"u{n}" for n in range(RECORDS)], "value": values()})
        for topic in ("changed", "compacted"):
            change(kafka.bootstrap, topic)
        with SchemaRegistryClient({"url": registry.url}) as schemas:
            write(kafka.bootstrap, "avro-spark", schemas)
        place = kafka.bootstrap, registry.url, spark_jars(), directory
        assert run(directory, *place, "killed")[0] == -signal.SIGKILL
        compact(client, kafka.bootstrap, "compacted")
        change(kafka.bootstrap, "compacted", has_keyless=False)
    code, said, errors = run(directory, *place)
    assert code == 0, errors
    return dict(map(json.loads, said.splitlines()))


def run(directory, *words):
    command = [sys.executable, "-m", "tests.conformance.kafka4.typed_queries", *map(str, words)]
    with (directory / "said").open("w+") as said, (directory / "errors").open("w+") as errors:
        process = subprocess.Popen(command, stdout=said, stderr=errors, start_new_session=True)
        try:
            process.wait(ENDED_WITHIN_S)
        finally:
            process.kill()
            process.wait()
        return process.returncode, (directory / "said").read_text(), (directory / "errors").read_text()[-5000:]


@pytest.mark.parametrize("topic", ["changed", "compacted"])
def test_the_latest_of_each_key_is_what_a_consumer_sees_last(one_broker, found, topic):
    records = consumed(one_broker.bootstrap, topic)
    last = {key: (value, offset, time) for key, value, offset, time in records if key is not None}
    wanted = [[k.decode(), v.decode(), 0, offset, at] for k, (v, offset, at) in last.items() if v is not None]
    assert 3 < len(wanted) < len(last) <= len(records)
    assert found["latest"][topic] == sorted(wanted)
    with KafkaClient(one_broker.bootstrap) as client:
        extent = client.extents(topic)[0]
        rows = pa.Table.from_batches(client.read(topic, 0, extent.start, extent.end, view="latest")).to_pylist()
    assert sorted([row["key"].decode(), row["value"].decode(), row["offset"]] for row in rows) == [
        [key, value, offset] for key, value, _, offset, _ in sorted(wanted)
    ]


def test_a_mode_decides_about_records_that_do_not_fit(found):
    told, corrupt, shown, *counts = found["modes"]
    assert "MisfitError: fit-" in told
    assert "at offset" in told
    assert corrupt == sorted(MISFITS.values())
    assert shown == RECORDS
    assert counts == [RECORDS - len(MISFITS)] * 3


def test_streams_make_no_topic_that_nobody_named_and_count_misfits_where_somebody_made_it(one_broker, found, caplog):
    place = {"kafka.bootstrap.servers": one_broker.bootstrap}
    with KafkaClient(one_broker.bootstrap) as client:
        assert COUNTS not in client.topics()
        client.create_topic("orders")
        client.append("orders", {"value": ['{"n":1}', "bad"]})
        query = Query(place, mode="DROPMALFORMED")
        assert query.trigger() == [1]
        assert query.trigger() is None
        assert "misfits" not in query.ends[-1]
        assert f"there is no topic {COUNTS} at {one_broker.bootstrap}" in caplog.text
        client.create_topic(COUNTS)
        client.append("orders", {"value": ["bad", '{"n":2}']})
        query.restart()
        assert query.trigger() == [2]
        assert query.trigger() == []
        assert query.count == 1
        for topic in (COUNTS, "orders"):
            client.delete_topic(topic)


def test_dead_letters_of_a_killed_stream_are_counted_once_and_sent_again_once(one_broker, found):
    def dlq(*words):
        return run_pylog("dlq", *words, "--bootstrap-server", one_broker.bootstrap, "--output", "json").ok().json

    def keys(topic):
        records = (record for partition in (0, 1) for record in consumed(one_broker.bootstrap, topic, partition))
        return Counter(key.decode() for key, *_ in records)

    assert keys("fitted") == Counter(f"u{n}" for n in range(RECORDS) if n % 10)
    for topic, name in (("unfit", found["kept"]), ("audited", "audit")):
        assert sum(row["records"] for row in dlq("list", topic)) == len(MISFITS)
        assert {row["key"]: row["value"] for row in dlq("show", topic)} == MISFITS
        assert {key.decode().split("|")[0] for key, *_ in consumed(one_broker.bootstrap, topic)} == {name}
    command = [sys.executable, "-c", "from logstore.cli import main; main()"]
    words = ["dlq", "replay", "unfit", "--bootstrap-server", one_broker.bootstrap]
    beside = subprocess.Popen([*command, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    run_pylog(*words)  # one of the two may be told that the other one was faster
    said = beside.communicate(timeout=60)[1]
    assert beside.returncode == 0 or "fenced" in said, said
    assert dlq("replay", "unfit") == dlq("list", "unfit") == []
    assert keys("fit") == Counter([*(f"u{n}" for n in range(RECORDS)), *MISFITS])


def test_sparks_own_source_reads_the_columns_of_json_that_were_written(found):
    written, theirs, ours = found["json"]
    assert theirs == written
    assert ours == written


def test_spark_reads_and_writes_a_kafka_with_a_registry(one_broker, registry, found):
    with SchemaRegistryClient({"url": registry.url}) as client:
        records = read_by_confluent(one_broker.bootstrap, "avro-spark", client, 400)
    assert found["avro"] == 1
    assert rows_of(records[200:]) == SEEN


def test_spark_shows_each_logical_type_and_records_of_two_kinds(found):
    wanted = {"visits": [worlds.TYPES, *map(worlds.shown, worlds.VISITS)]}
    both = [
        [column.split(" ") for column in worlds.COLUMNS.split(", ")],
        *map(worlds.named, worlds.VISITS + worlds.NOTES),
    ]
    wanted |= dict.fromkeys(("visits-by-record", "visits-by-both"), both)
    assert found["worlds"] == worlds.plain(wanted)


def test_a_stream_that_meets_a_newer_schema_keeps_its_columns_or_ends_as_told(found):
    told, fixed, restarted = found["evolved"]
    assert "evolved-value has version 2, which is newer than this query: start it again" in told
    users = {letter: [(f"{letter}{n}", n) for n in range(20)] for letter in "abc"}
    assert fixed == sorted([user, n] for rows in users.values() for user, n in rows)
    assert [row[:2] for row in restarted] == fixed
    more = dict(row[::2] for row in restarted)
    assert {more[user] for user, _ in users["a"]} == {None}
    assert all(more[user] == f"more {n}" for user, n in users["c"])


def test_columns_of_a_registry_stand_in_the_table_of_a_tiered_topic(one_broker, registry, found, tmp_path):
    (tmp_path / "registry").write_text(f"schema.registry.url={registry.url}\n")
    place = ("--bootstrap-server", one_broker.bootstrap, "--command-config", tmp_path / "registry")
    words = ("--topic", "avro-spark", "--schema", "registered", "--table", tmp_path / "{topic}")
    for count in (400, 0):
        (row,) = run_pylog("tier", *place, *words, "--output", "json").ok().json
        assert (row["records"], row["bad"]) == (count, 0)
    table = DeltaTable(tmp_path / "avro-spark").to_pyarrow_table().sort_by("offset").to_pylist()
    assert rows_of(table) == [*SEEN, *SEEN]
    assert [row["value"] for row in table] == [value for _, value, _, _ in consumed(one_broker.bootstrap, "avro-spark")]
