"""`pylog mirror`: what is copied, how it ends, and that it goes on after `kill -9` without a gap or a double."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition

import logstore
from logstore.cli import cli as pylog
from logstore.errors import PylogError
from logstore.records.batch import batches
from logstore.records.compression import Codec
from logstore.store.reading import schema_of
from replication.client.cluster import UnreachableError
from replication.client.kafka_client import KafkaClient
from replication.model.cluster import TopicPartition as Tp
from replication.tools.mirror import MirrorError, mirror
from replication.tools.mirror_targets import COPIED_COLUMNS, ClusterTarget, DirectoryTarget, SourceTopic, Unit
from tests.support.fork_server import quick
from tests.support.repeats import only_long, times

from .conftest import running

pytestmark = pytest.mark.slow

PARTITIONS = 3
BASE_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def source():
    with running(1) as tested:
        yield tested


@pytest.fixture
def topic(source):
    """A topic that no other test has, in the target either."""
    return source.create(*[[1]] * PARTITIONS, name=f"copied-{next(source.names)}", retention_ms=-1)


def send(tested, topic, count, start=0):
    """Records with everything that a record may have, and without, ten in a batch at most."""
    producer = Producer({"bootstrap.servers": tested.running.bootstrap, "log_level": 0})
    for i in range(start, start + count):
        producer.produce(
            topic, None if i % 5 == 4 else b"value-%d" % i, None if i % 3 == 2 else b"key-%d" % i,
            partition=i % PARTITIONS, timestamp=BASE_MS + i,
            headers=[("trace", b"%d" % i), ("none", None), ("trace", b"again")] if i % 2 else None,
        )  # fmt: skip
        if i % (10 * PARTITIONS) == 0:
            producer.flush(30)
    assert producer.flush(30) == 0


def expected(count):
    """{partition: what `send` sent there}."""
    rows = [
        (
            None if i % 3 == 2 else b"key-%d" % i,
            None if i % 5 == 4 else b"value-%d" % i,
            BASE_MS + i,
            [("trace", b"%d" % i), ("none", None), ("trace", b"again")] if i % 2 else [],
        )
        for i in range(count)
    ]
    return {p: rows[p::PARTITIONS] for p in range(PARTITIONS)}


def in_directory(path, topic):
    with logstore.open(path, mode="r") as store:
        found = {}
        for partition in range(store.topic(topic).partitions):
            table = store.read(topic, partition=partition).read_all()
            times = table.column("timestamp").cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
            found[partition] = [
                (row["key"], row["value"], time, [(h["key"], h["value"]) for h in row["headers"] or ()])
                for row, time in zip(table.to_pylist(), times.to_pylist(), strict=True)
            ]
        return found


def copied_so_far(path, topic):
    try:
        return sum(map(len, in_directory(path, topic).values()))
    except PylogError:  # nothing is there yet
        return 0


def in_cluster(tested, topic):
    consumer = Consumer(
        {"bootstrap.servers": tested.running.bootstrap, "group.id": "-", "log_level": 0,
         "enable.partition.eof": True}
    )  # fmt: skip
    try:
        found = {}
        for partition in range(PARTITIONS):
            consumer.assign([TopicPartition(topic, partition, 0)])
            found[partition] = []
            while (message := consumer.poll(20)) is not None and message.error() is None:
                found[partition].append(
                    (message.key(), message.value(), message.timestamp()[1], list(message.headers() or ()))
                )
        return found
    finally:
        consumer.close()


def end_of(tested, topic):
    """The sum of the ends of its partitions; 0 if there is none."""
    with closing(Consumer({"bootstrap.servers": tested.running.bootstrap, "group.id": "-", "log_level": 0})) as looking:
        if topic not in looking.list_topics(timeout=10).topics:
            return 0
        numbers = range(PARTITIONS)
        return sum(looking.get_watermark_offsets(TopicPartition(topic, p), timeout=20)[1] for p in numbers)


def copy(tested, target, **options):
    return mirror(tested.running.bootstrap, str(target), **options)


# The copies.


def test_a_copy_in_a_directory_has_everything_of_a_record_and_the_settings_of_the_topic(source, topic, tmp_path):
    source.administer("incremental_alter_configs", [altered(topic, "max.message.bytes", "70000")])
    send(source, topic, 200)

    (copied,) = copy(source, tmp_path, topics=[topic])

    assert (copied.topic, copied.partitions, copied.created, copied.records) == (topic, PARTITIONS, True, 200)
    assert in_directory(tmp_path, topic) == expected(200)
    with logstore.open(tmp_path, mode="r") as store:
        assert store.topic(topic).overrides == {"max.message.bytes": "70000", "retention.ms": "-1"}


def altered(topic, key, value):
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    return ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])


def test_a_copy_in_another_cluster_has_everything_of_a_record(source, cluster, topic):
    send(source, topic, 200)

    smaller = {"compression.type": "lz4"}
    (copied,) = copy(source, cluster.running.bootstrap, topics=[topic], producer_properties=smaller)

    assert copied.created
    assert copied.records == 200
    assert in_cluster(cluster, topic) == expected(200)
    (log,) = cluster.running.directory.glob(f"broker-*/{topic}-0/*.log")
    assert {header.codec for _, header in batches(log.read_bytes())} == {Codec.LZ4}


def test_a_second_run_copies_what_came_since_and_partitions_that_were_added(source, topic, tmp_path):
    with logstore.open(tmp_path) as store:
        store.create_topic(topic, partitions=1)
    send(source, topic, 30)
    assert [c.created for c in copy(source, tmp_path, topics=[topic])] == [False]
    assert [c.records for c in copy(source, tmp_path, topics=[topic])] == [0]
    send(source, topic, 30, start=30)
    assert [c.records for c in copy(source, tmp_path, topics=[topic])] == [30]
    assert in_directory(tmp_path, topic) == expected(60)


def test_a_pattern_takes_whole_names_and_none_of_the_cluster_s_own(source, topic, tmp_path):
    consumer = Consumer({"bootstrap.servers": source.running.bootstrap, "group.id": "g", "log_level": 0})
    consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)  # makes __consumer_offsets
    consumer.close()
    assert [c.topic for c in copy(source, tmp_path, pattern=f"{topic}|.*offsets|{topic[:3]}")] == [topic]
    with pytest.raises(MirrorError, match="no topic of the source fits"):
        copy(source, tmp_path, pattern="nothing-like-it")


def test_a_topic_that_ends_in_a_marker_of_a_transaction_is_copied_to_its_end(tmp_path):
    with logstore.open(tmp_path / "source" / "broker-1") as store:
        store.create_topic("sold")
        with store.transaction() as transaction:
            store.append("sold", pa.table({"value": [b"a", b"b"]}), transaction=transaction)
        lost = store.transactions.begin()
        store.append("sold", pa.table({"value": [b"lost"]}), transaction=lost)
        lost.abort()
    with running(1, tmp_path / "source") as tested:
        (copied,) = copy(tested, tmp_path / "copy", topics=["sold"])
        assert copied.records == 2
        (again,) = copy(tested, tmp_path / "copy", topics=["sold"])
        assert again.records == 0
    assert [value for _, value, *_ in in_directory(tmp_path / "copy", "sold")[0]] == [b"a", b"b"]


# How it goes on.


SMALL = quick(
    "from replication.cli import mirror as cli; from replication.tools import mirror; "
    "mirror.BATCH_BYTES = 1000; cli.mirror()"
)


def start(source, target, *options):
    return subprocess.Popen(
        [sys.executable, "-c", SMALL, "--from", source.running.bootstrap, "--to", str(target), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def kill_again_and_again(source, target, topic, ends):
    """Each run is killed at some moment after it has copied something."""
    seed = random.randrange(1000)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(times(1, 3)):
        before, process = ends(), start(source, target, "--topics", topic)
        while process.poll() is None and ends() == before:
            time.sleep(0.02)
        time.sleep(chance.random() * 0.2)
        process.kill()
        process.communicate()
    process = start(source, target, "--topics", topic, "--output", "json")
    said, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return json.loads(said)[0]["records"]


@only_long("processes that are killed")
def test_a_copy_in_a_directory_that_is_killed_goes_on_without_a_gap_or_a_double(source, topic, tmp_path):
    send(source, topic, 600)

    assert kill_again_and_again(source, tmp_path, topic, lambda: copied_so_far(tmp_path, topic)) < 600
    assert in_directory(tmp_path, topic) == expected(600)


def test_a_copy_in_a_cluster_that_is_killed_goes_on_without_a_gap_or_a_double(source, cluster, topic):
    send(source, topic, 600)
    ends = partial(end_of, cluster, topic)
    assert kill_again_and_again(source, cluster.running.bootstrap, topic, ends) < 600
    assert in_cluster(cluster, topic) == expected(600)


def test_what_was_appended_after_the_last_checkpoint_is_not_appended_again(source, cluster, topic, monkeypatch):
    send(source, topic, 200)
    keep, kept = ClusterTarget._checkpoint, []

    def checkpoint(target, copied):
        kept.append(copied)
        if len(kept) == 4:
            raise MirrorError("killed here")
        keep(target, copied)

    with monkeypatch.context() as small:
        small.setattr("replication.tools.mirror.BATCH_BYTES", 1000)
        small.setattr(ClusterTarget, keep.__name__, checkpoint)
        with pytest.raises(MirrorError, match="killed here"):
            copy(source, cluster.running.bootstrap, topics=[topic])
    (copied,) = copy(source, cluster.running.bootstrap, topics=[topic])
    assert 0 < copied.records < 200
    assert in_cluster(cluster, topic) == expected(200)


@only_long("several copies")
def test_what_others_wrote_behind_a_copy_is_noticed_and_nothing_is_skipped_for_it(source, cluster, topic):
    send(source, topic, 30)
    cluster.create([1], name=topic)  # with one partition: it gets the others
    assert [c.records for c in copy(source, cluster.running.bootstrap, topics=[topic])] == [30]
    assert in_cluster(cluster, topic) == expected(30)
    cluster.produce(topic, ["foreign"], partition=1)
    send(source, topic, 30, start=30)
    with pytest.raises(MirrorError, match=f"{topic}-1: the target has records that were not copied"):
        copy(source, cluster.running.bootstrap, topics=[topic])


def test_two_runs_at_once_do_not_copy_twice(tmp_path):
    topic = SourceTopic(name="orders", partitions=1, replicas=1)
    rows = pa.table(
        [[None] * 20, [b"%d" % n for n in range(20)], [None] * 20, [BASE_MS] * 20],
        schema=schema_of(COPIED_COLUMNS),
    )
    first, second = DirectoryTarget(tmp_path, "one"), DirectoryTarget(tmp_path, "one")
    for target in (first, second):
        target.prepare(topic)
        assert target.positions({Tp("orders", 0): 0}) == {("orders", 0): 0}
    first.append({Tp("orders", 0): Unit(rows[:10], 10)})
    with pytest.raises(MirrorError, match="by another run"):
        second.append({Tp("orders", 0): Unit(rows, 20)})
    first.close()
    second.close()
    assert len(in_directory(tmp_path, "orders")[0]) == 10


def recreate(source, topic):
    source.administer("delete_topics", [topic], operation_timeout=20)
    source.until(lambda: not source.states(topic))
    source.create(*[[1]] * PARTITIONS, name=topic)


@pytest.mark.parametrize("is_longer", [False, True])
@pytest.mark.parametrize("to", ["a directory", "a cluster"])
def test_a_source_that_was_recreated_is_not_taken_for_the_old_one(source, cluster, topic, tmp_path, to, is_longer):
    target = tmp_path if to == "a directory" else cluster.running.bootstrap
    send(source, topic, 30)
    copy(source, target, topics=[topic])
    recreate(source, topic)
    if is_longer:
        send(source, topic, 60)
    with pytest.raises(MirrorError, match="was recreated in the source"):
        copy(source, target, topics=[topic])


@only_long("several copies")
def test_a_source_that_is_recreated_while_it_is_copied_is_noticed(source, topic, tmp_path):
    send(source, topic, 30)
    process = start(source, tmp_path, "--topics", topic, "--follow")
    try:
        source.until(lambda: copied_so_far(tmp_path, topic) == 30)
        recreate(source, topic)
        send(source, topic, 60)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 1
    # The topic was away for a moment: whichever is seen first.
    assert re.search(f"{topic} was recreated in the source|no topic '{topic}'", errors), errors
    assert copied_so_far(tmp_path, topic) == 30


# How it is asked for.


def test_with_follow_it_copies_what_comes_until_it_is_told_to_end_also_from_a_source_that_was_away(
    source, topic, tmp_path
):
    send(source, topic, 30)
    impatient = ["--consumer-property", "default.api.timeout.ms=1000"]
    process = start(source, tmp_path, "--topics", topic, "--follow", "--output", "json", *impatient)
    try:
        until = time.monotonic() + 60
        for count in (30, 60):
            while copied_so_far(tmp_path, topic) < count:
                assert process.poll() is None
                assert time.monotonic() < until
                time.sleep(0.1)
            if count == 30:
                source.running.kill(1)
                warning = process.stderr.readline()
                source.running.restart(1)
                send(source, topic, 30, start=30)
        process.send_signal(signal.SIGTERM)
        said, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    (row,) = json.loads(said)
    assert row.pop("bytes") > 60 * len("value-1")
    assert row == {"topic": topic, "partitions": PARTITIONS, "created": True, "records": 60}
    assert "no Kafka broker answered within 1 s" in warning
    assert errors.splitlines()[-1] == "copied 60 records"


class SecondTurn(threading.Event):
    """Ends a mirror after its second turn."""

    turns = 0

    def wait(self, timeout=None):
        self.turns += 1
        return self.turns == 2


def test_what_was_read_is_not_lost_when_the_source_is_away_before_it_is_appended(source, topic, tmp_path, monkeypatch):
    send(source, topic, 30)
    ask, asked = KafkaClient.topic, []

    def away(client, name):
        asked.append(name)
        if len(asked) == 1:
            raise UnreachableError("away", addresses=[])
        return ask(client, name)

    monkeypatch.setattr(KafkaClient, "topic", away)
    (copied,) = copy(source, tmp_path, topics=[topic], follow=True, stop=SecondTurn())
    assert copied.records == 30
    assert in_directory(tmp_path, topic) == expected(30)


def test_a_cluster_is_not_copied_onto_itself(source, topic):
    send(source, topic, 12)
    with pytest.raises(MirrorError, match="is the cluster that is copied"):
        mirror(source.running.bootstrap, source.running.bootstrap, topics=[topic])
    assert end_of(source, topic) == 12
    with pytest.raises(PylogError):  # whose directory a broker has
        mirror(source.running.bootstrap, str(source.running.log_dir(1)), topics=[topic])


@pytest.mark.parametrize("place", ["nowhere", "kafka:port", "a:1,b", "PLAINTEXT://a:1"])
def test_a_source_that_is_no_address_is_refused_at_once(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    Path("directory").mkdir()
    with pytest.raises(MirrorError, match=f"^{place} is not HOST:PORT.,HOST:PORT….; a source has to be$"):
        mirror(place, "copy", topics=["t"])
    with pytest.raises(MirrorError) as refused:
        mirror("directory", "copy", topics=["t"])
    assert str(refused.value) == (
        "directory is not HOST:PORT; only the target can be a directory "
        "(to serve it: pylog broker start --set log.dirs=directory)"
    )
    assert not Path("copy").exists()


def test_wrong_words_are_answered_in_one_line(source, tmp_path, monkeypatch):
    def says(*arguments):
        result = CliRunner().invoke(pylog, ["mirror", "--to", str(tmp_path), "--from", *arguments])
        assert result.exit_code != 0
        return str(result.exception) if not result.output else result.output.strip().splitlines()[-1]

    here = source.running.bootstrap
    assert "give --topics or --topics-regex" in says(here)
    assert "no topic 'ordres' in the source" in says(here, "--topics", "ordres")
    assert "'(' is not a regular expression: missing )" in says(here, "--topics-regex", "(")
    assert "no topic of the source fits 'none.*'" in says(here, "--topics-regex", "none.*")
    quick = ["--topics", "orders", "--consumer-property"]
    away = says("127.0.0.1:1", *quick, "default.api.timeout.ms=500")
    assert "127.0.0.1:1" in away
    assert "kafka.bootstrap.servers" not in away  # the command has an option of another name
    assert "default.api.timeout.ms=soon is not a number of" in says(here, *quick, "default.api.timeout.ms=soon")
    assert "speaks no TLS: set security.protocol=PLAINTEXT" in says(here, *quick, "security.protocol=SSL")
    assert "ssl.ca.location: it needs security.protocol" in says(here, *quick, "ssl.ca.location=ca.pem")
    assert "did you mean 'ssl.ca.location'" in says(here, *quick, "ssl.ca.loction=ca.pem")
    known = "compression.type: default.api.timeout.ms, those of TLS, SASL and a schema registry can be set"
    assert known in says(here, *quick, "compression.type=lz4")
    assert "--from='a:99999': 'a:99999' is no HOST:PORT" in says("a:99999", "--topics", "orders")
    monkeypatch.setitem(sys.modules, "replication.tools", None)
    assert 'pip install "pyspark-pylog[cluster]"' in says(here, "--topics", "orders")
