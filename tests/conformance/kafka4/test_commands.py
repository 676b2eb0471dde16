"""Every command with --bootstrap-server on a real Kafka 4.4 of three brokers: what it answers, or why it refuses.

The commands are those of the command line itself: one that is new and is not walked here fails a test.
"""

import json
from contextlib import contextmanager, suppress

import click
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from datasource import spark_session
from datasource.topics.interface import Batch, TransactionSettings
from datasource.topics.transactions.batches import ClusterTransactions
from logstore.cli import cli
from logstore.records.schema import RECORD_SCHEMA
from logstore.schemas.misfits import STORED, dead_letters
from replication.client.kafka_client import KafkaClient
from replication.errors import KafkaError
from tests.spark.kills.query import QUICK
from tests.support.asker import Asker, until
from tests.support.commands import run_pylog
from tests.support.kafka_answers.topics import metadata
from tests.support.repeats import only_long

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), only_long("starts a Kafka")]

WALKS = {}
JSON = ("--output", "json")
MAINTAINED = "is for a directory: the brokers of a cluster apply"
READ_ONLY = "does not check what is written to _schemas, which is only read there"
NO_SUBJECT = "subject 'none-value' is not in _schemas of the cluster at"
# A command that has nothing to do there: its exit code, and what its one line says.
REFUSED = {
    "compact": (("--topic", "t"), 2, MAINTAINED),
    "features upgrade": (("--level", "1"), 1, "does not support this feature"),
    "jobs compaction": (("--topic", "t"), 2, MAINTAINED),
    "jobs retention": (("--topic", "t"), 2, MAINTAINED),
    "retention": (("--topic", "t"), 2, MAINTAINED),
    "schemas delete": (("none-value", "--yes"), 1, NO_SUBJECT),
    "schemas get": (("none-value",), 1, NO_SUBJECT),
    "schemas register": (("none-value", "user string"), 1, READ_ONLY),
}


def commands(command=cli, words=()):
    """Every command with the option, by its words."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), (*words, name))
    elif any("--bootstrap-server" in each.opts for each in command.params):
        yield " ".join(words)


def walked(name):
    def keep(walk):
        WALKS[name] = walk
        return walk

    return keep


def test_every_command_with_a_cluster_is_walked_or_refused():
    assert sorted([*WALKS, *REFUSED]) == sorted(commands())


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


@pytest.fixture(scope="module")
def place(three_brokers, tmp_path_factory):
    with KafkaClient(three_brokers.bootstrap) as client:
        yield Place(three_brokers, client, tmp_path_factory.mktemp("walked"))


@pytest.fixture(scope="module")
def spark():
    """The session that the jobs find."""
    session = spark_session(master="local[2]", **QUICK, **{"spark.ui.enabled": False})
    yield session
    session.stop()


@pytest.mark.parametrize("name", sorted(commands()))
def test_a_command_answers_on_a_real_kafka(place, name, request):
    if name in REFUSED:
        words, code, said = REFUSED[name]
        ran = place.run(*name.split(), *words)
        assert (ran.code, ran.out) == (code, "")
        assert said in ran.err.splitlines()[-1]
    else:
        if name.startswith("jobs "):
            request.getfixturevalue("spark")
        WALKS[name](place)


# Topics.


@walked("topics create")
def topics_create(place):
    (row,) = place.json("topics", "create", "made-1", "--partitions", 2, "--config", "retention.ms=5000")
    assert (row["partitions"], row["replication_factor"], row["config"]) == (2, 3, {"retention.ms": "5000"})
    assert place.brokers_that_know("made-1") == {1, 2, 3}  # KRaft tells them one after the other
    assert "exists already" in place.run("topics", "create", "made-1", "--if-not-exists").ok().err
    assert "'made-1' exists already" in place.run("topics", "create", "made-1").failed()
    place.run("topics", "create", "made-2", "--replica-assignment", "1:2,2:3").ok()
    assert place.client.topic("made-2").replicas == 2
    assert READ_ONLY in place.run("topics", "create", "made-3", "--value-schema", "user string").failed()
    assert "made-3" not in place.client.topics()


@walked("topics list")
def topics_list(place):
    place.made("listed", 0, 2, **{"segment.bytes": "1048576"})
    rows = {row["topic"]: row for row in place.json("topics", "list")}
    assert (rows["listed"]["partitions"], rows["listed"]["config"]) == (2, {"segment.bytes": "1048576"})
    assert rows.keys() == place.client.topics().keys()
    assert [row["topic"] for row in place.json("topics", "list", "--topic", "list.*")] == ["listed"]
    shown = {row["topic"] for row in place.json("topics", "list", "--exclude-internal")}
    assert rows.keys() - shown == rows.keys() & {"__consumer_offsets", "__transaction_state", "__share_group_state"}


@walked("topics describe")
def topics_describe(place):
    place.made("described", 0, 3, **{"min.insync.replicas": "3"})
    (row,) = place.json("topics", "describe", "described")
    assert [sorted(each["isr"]) for each in row["partitions"]] == [[1, 2, 3]] * 3
    assert sorted(each["leader"] for each in row["partitions"]) == [1, 2, 3]
    (lacking,) = place.json("topics", "describe", "described", "--at-min-isr-partitions")
    assert len(lacking["partitions"]) == 3
    assert place.json("topics", "describe", "described", "--under-replicated-partitions") == []


@walked("topics alter")
def topics_alter(place):
    place.made("altered", 0, 1)
    (row,) = place.json("topics", "alter", "altered", "--partitions", 3, "--config", "retention.ms=7000")
    assert (row["partitions"], row["config"]) == (3, {"retention.ms": "7000"})
    for number in place.kafka.numbers:  # each shows what was altered, whichever is asked next
        with KafkaClient(place.kafka.address(number)) as one:
            assert len(one.topic("altered").leaders) == 3
    assert place.json("topics", "alter", "altered", "--delete-config", "retention.ms")[0]["config"] == {}


@walked("topics delete")
def topics_delete(place):
    place.made("deleted", 0)
    place.run("topics", "delete", "deleted", "--yes").ok()
    assert place.brokers_that_know("deleted") == set()
    assert "no topic 'deleted'" in place.run("topics", "delete", "deleted", "--yes").failed()


# Schemas: those of a Kafka that is not pylog's are read there, and not written.


@walked("schemas list")
def schemas_list(place):
    assert place.json("schemas", "list") == []


@walked("schemas level")
def schemas_level(place):
    assert [row["level"] for row in place.json("schemas", "level", "none-value")] == ["BACKWARD"]
    assert READ_ONLY in place.run("schemas", "level", "none-value", "--set", "NONE").failed()


@walked("schemas check")
def schemas_check(place):
    assert "none-value can get the schema" in place.run("schemas", "check", "none-value", "user string").ok().err


@walked("schemas infer")
def schemas_infer(place):
    place.made("inferred", 0)
    place.run("produce", "inferred", input='{"user": "Ada", "n": 1}\n{"user": "Bob", "n": 2}\n').ok()
    assert place.run("schemas", "infer", "inferred").ok().lines == ["user string, n bigint"]


# Settings.


@walked("configs describe")
def configs_describe(place):
    place.made("set", 0, **{"retention.ms": "9000"})
    of = ("configs", "describe", "--entity-type", "topics", "--entity-name", "set")
    (row,) = place.json(*of)
    assert (row["name"], row["value"], row["source"]) == ("retention.ms", "9000", "DYNAMIC_TOPIC_CONFIG")
    names = {row["name"] for row in place.json(*of, "--all")}
    assert names >= {"retention.ms", "compression.zstd.level", "min.insync.replicas"}
    (node,) = [
        row["value"]
        for row in place.json("configs", "describe", "--entity-type", "brokers", "--entity-name", 2)
        if row["name"] == "node.id"
    ]
    assert node == "2"


@walked("configs alter")
def configs_alter(place):
    place.made("set-2", 0)
    key = "log.cleaner.threads"
    for entity in (("--entity-default",), ("--entity-name", 2)):
        alter = ("configs", "alter", "--entity-type", "brokers", *entity)
        for value in "2121":  # what it prints is never what was there before
            assert value in [
                row["value"] for row in place.json(*alter, "--add-config", f"{key}={value}") if row["name"] == key
            ]
        assert key not in [row["name"] for row in place.json(*alter, "--delete-config", key)]
    assert place.json("configs", "alter", "--entity-name", "set-2", "--add-config", "retention.ms=1", "--dry-run") == []
    refused = place.run("configs", "alter", "--entity-name", "set-2", "--add-config", "retention.ms=x").failed()
    assert "retention.ms" in refused


# Groups.


@walked("groups list")
def groups_list(place):
    group = place.read_by("listed-group", place.made("read-1"))
    rows = {row["group"]: row for row in place.json("groups", "list")}
    assert (rows[group]["state"], rows[group]["type"]) == ("Empty", "classic")
    assert place.json("groups", "list", "--state", "Dead") == []


@walked("groups describe")
def groups_describe(place):
    group = place.read_by("described-group", place.made("read-2", 8))
    (row,) = place.json("groups", "describe", group)
    assert (row["topic"], row["current_offset"], row["log_end_offset"], row["lag"]) == ("read-2", 6, 8, 2)
    (state,) = place.json("groups", "describe", group, "--state")
    assert (state["state"], state["members"]) == ("Empty", 0)


@walked("groups members")
def groups_members(place):
    topic = place.made("read-3", 6, 2)
    with place.client.consumer(topic, "members-group", auto_offset_reset="earliest") as consumer:
        until(lambda: consumer.poll(100) is not None)
        (row,) = place.json("groups", "members", "--group", "members-group")
        assert (row["partitions"], row["assignment"]) == (2, [f"{topic}-0", f"{topic}-1"])
    assert place.json("groups", "members", "--group", "members-group") == []


@walked("groups reset-offsets")
def groups_reset_offsets(place):
    group = place.read_by("reset-group", place.made("read-4"))
    reset = ("groups", "reset-offsets", "--group", group, "--all-topics")
    for to, offset in (
        (("--to-earliest",), 0),
        (("--to-latest",), 6),
        (("--shift-by", -2), 4),
        (("--to-offset", 3), 3),
        (("--to-current",), 3),
        (("--by-duration", "PT1H"), 0),
        (("--to-datetime", "2020-01-01T00:00:00.000"), 0),
    ):
        assert [row["new_offset"] for row in place.json(*reset, *to, "--execute")] == [offset], to
        assert [row["current_offset"] for row in place.json("groups", "describe", group)] == [offset]
    assert place.run(*reset, "--to-latest", "--export").ok().lines == ["read-4,0,6"]


@walked("groups delete-offsets")
def groups_delete_offsets(place):
    group = place.read_by("offsets-group", place.made("read-5"))
    assert len(place.json("groups", "delete-offsets", "--group", group, "--topic", "read-5")) == 1
    assert place.client.committed(group) == {}


@walked("groups delete")
def groups_delete(place):
    group = place.read_by("deleted-group", place.made("read-6"))
    assert place.run("groups", "delete", group).ok().err == "deleted 1 group\n"
    assert group not in {row["group"] for row in place.json("groups", "list")}
    assert "not found" in place.run("groups", "delete", group).failed()


# Records.


@walked("produce")
def produce(place):
    place.made("produced", 0)
    lines = "trace:7\tk:v1\ntrace:8\tk:v2\n"
    words = ("produce", "produced", "--headers", "--key-separator", ":", "--compression-codec", "zstd")
    assert place.json(*words, input=lines) == [
        {"topic": "produced", "partition": 0, "start": 0, "end": 2, "records": 2}
    ]
    (rows,) = place.client.read("produced", 0, 0, 2)
    assert [(row["key"], row["value"], row["headers"]) for row in rows.to_pylist()] == [
        (b"k", b"v%d" % n, [{"key": "trace", "value": b"%d" % (n + 6)}]) for n in (1, 2)
    ]
    place.run("produce", "produced", "--schema", "user string", input='{"user": "Ada"}\n').ok()
    assert "has no columns of its own" in place.run("produce", "produced", "--typed", input="{}\n").failed()


@walked("consume")
def consume(place):
    topic = place.made("consumed")
    values = [f"v{n}" for n in range(6)]
    assert place.run("consume", topic, "--from-beginning").ok().lines == values
    assert place.run("consume", topic, "--partition", 0, "--offset", 4).ok().lines == values[4:]
    assert place.run("consume", topic, "--view", "latest").ok().lines == values[4:]
    assert place.run("consume", topic, "--group", "g", "--from-beginning", "--max-messages", 6).ok().lines == values
    with place.open_transaction("consumed-id", topic):
        assert place.run("consume", topic, "--from-beginning").ok().lines == values
        uncommitted = place.run("consume", topic, "--from-beginning", "--isolation-level", "read_uncommitted")
        assert uncommitted.ok().lines == [*values, "open"]
    assert "has no columns of its own" in place.run("consume", topic, "--typed").failed()


@walked("delete-records")
def delete_records(place):
    topic = place.made("cut")
    assert place.json("delete-records", topic, "--partition", 0, "--offset", 4) == [
        {"topic": topic, "partition": 0, "start": 4, "end": 6}
    ]
    assert place.client.extents(topic)[0][:2] == (4, 6)


@walked("get-offsets")
def get_offsets(place):
    topic = place.made("ends")
    for time, offset in (("latest", 6), ("earliest", 0), ("2020-01-01T00:00:00Z", 0)):
        assert [row["offset"] for row in place.json("get-offsets", topic, "--time", time)] == [offset], time
    (row,) = place.json("get-offsets", topic, "--time", "max-timestamp")
    assert row["offset"] in range(6)


@walked("top")
def top(place):
    place.read_by("top-group", place.made("shown", 9))
    rows = place.run("top", "--once", *JSON).ok().json_lines
    (topic,) = [row for row in rows if row["kind"] == "topic" and row["topic"] == "shown"]
    assert (topic["partitions"], topic["records"]) == (1, 9)
    (group,) = [row for row in rows if row.get("reader") == "top-group"]
    assert group["lag"] == 3


# Dead letters.


def misfits(place, name):
    topic = place.made(name, 0)
    place.client.create_topic(f"{name}-misfits", **{"cleanup.policy": "compact"})
    rows = [{"key": b"k", "value": b"v%d" % n, "offset": n, "timestamp": n, "headers": []} for n in (1, 2, 3)]
    records = pa.RecordBatch.from_pylist(rows, RECORD_SCHEMA).select(list(STORED))
    facts = {"topic": topic, "partition": 0, "name": "audit", "now_ms": 5}
    place.client.append(f"{name}-misfits", dead_letters(records, dict.fromkeys(range(3), "cut off"), **facts))
    return f"{name}-misfits"


@walked("dlq list")
def dlq_list(place):
    (row,) = place.json("dlq", "list", misfits(place, "misfits-1"))
    assert (row["topic"], row["reason"], row["records"]) == ("misfits-1", "cut off", 3)


@walked("dlq show")
def dlq_show(place):
    rows = place.json("dlq", "show", misfits(place, "misfits-2"))
    assert [(row["offset"], row["value"]) for row in rows] == [(n, f"v{n}") for n in (1, 2, 3)]


@walked("dlq replay")
def dlq_replay(place):
    topic = misfits(place, "misfits-3")
    assert place.run("dlq", "replay", topic, "--dry-run").ok().err == "would send 3 records\n"
    assert place.run("dlq", "replay", topic).ok().err == "sent 3 records\n"
    assert place.run("dlq", "replay", topic).ok().err == "sent 0 records\n"
    assert place.run("consume", "misfits-3", "--from-beginning").ok().lines == ["v1", "v2", "v3"]


# Transactions.


@walked("transactions list")
def transactions_list(place):
    with place.open_transaction("listed-id", place.made("in-1", 0)) as pair:
        (row,) = [row for row in place.json("transactions", "list") if row["transactional_id"] == "listed-id"]
        assert (row["producer_id"], row["state"]) == (pair.producer_id, "Ongoing")


@walked("transactions describe")
def transactions_describe(place):
    with place.open_transaction("described-id", place.made("in-2", 0)) as pair:
        (row,) = place.json("transactions", "describe", "described-id")
        assert (row["producer_id"], row["state"]) == (pair.producer_id, "Ongoing")
        assert "in-2-0" in json.dumps(row)
    assert "no transactional id 'never'" in place.run("transactions", "describe", "never").failed()


@walked("transactions abort")
def transactions_abort(place):
    topic = place.made("in-3", 0)
    with place.open_transaction("aborted-id", topic):
        place.run("transactions", "abort", "aborted-id").ok()
        assert place.client.describe_transactions(["aborted-id"])["aborted-id"].state != "Ongoing"
    where = ("--topic", topic, "--partition", 0, "--start-offset", 0)
    assert "no open transaction begins at offset 0" in place.run("transactions", "abort", *where).failed()


@walked("transactions find-hanging")
def transactions_find_hanging(place):
    topic = place.made("in-4", 0)
    with place.open_transaction("alive-id", topic):  # its coordinator knows it
        assert place.json("transactions", "find-hanging", "--topic", topic, "--max-transaction-timeout", 0) == []


@walked("transactions release")
def transactions_release(place):
    topic, decisions = place.made("in-5", 0), place.made("decisions", 0)
    settings = TransactionSettings(driver="gone", timeout_ms=60_000, decision_topic=decisions)
    transactions = ClusterTransactions(place.client, settings)
    transactions.claim("released-query", "run")
    with transactions.begun(Batch(name="released-query", batch_id=0, run="run"), (0, 0)) as part:
        part.append(topic, pa.table({"value": [b"a"]}), partitioner="murmur3", compression=None)
        part.prepare()

    def are_open():
        found = place.client.list_transactions(states=["Ongoing"])
        return [each for each in found if "released-query" in each.transactional_id]

    assert are_open()
    words = ("transactions", "release", "released-query", "--decision-topic", decisions)
    assert place.run(*words).ok().err == "released released-query\n"
    assert not are_open()
    assert "no topic 'never'" in place.run(*words[:-1], "never").failed()


# Brokers and replicas.


@walked("elect-leaders")
def elect_leaders(place):
    topic = place.made("elected", 0, 3)
    ran = place.run("elect-leaders", "--election-type", "preferred", "--topic", topic, "--partition", 0, "--yes")
    assert ran.ok().err == "elected 0 leaders; 1 led before\n"


@walked("reassign-partitions")
def reassign_partitions(place):
    topic = place.made("reassigned", 0)
    assert topic not in place.run("reassign-partitions", "--list", *JSON).ok().out
    new = [3, 1]
    plan = {"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": new}]}
    file = ("--reassignment-json-file", "-")
    place.run("reassign-partitions", "--execute", *file, input=json.dumps(plan)).ok()
    place.run("reassign-partitions", "--verify", "--wait", *file, input=json.dumps(plan)).ok()
    (row,) = place.json("topics", "describe", topic)
    assert row["partitions"][0]["replicas"] == new
    asked = json.dumps({"version": 1, "topics": [{"topic": topic}]})
    words = ("--generate", "--topics-to-move-json-file", "-", "--broker-list", "2,3")
    assert '"replicas"' in place.run("reassign-partitions", *words, input=asked).ok().out


@walked("verify-replicas")
def verify_replicas(place):
    topic = place.made("compared", 6, 3)
    until(lambda: all(row["lag"] == 0 for row in place.json("verify-replicas", "--topics-include", topic)))
    rows = place.json("verify-replicas", "--topics-include", topic)
    assert [(len(row["replicas"]), row["findings"]) for row in rows] == [(3, [])] * 3
    assert sum(row["end"] for row in rows) == 6


@walked("log-dirs")
def log_dirs(place):
    topic = place.made("stored")
    found = place.json("log-dirs", "--topic-list", topic)
    assert [each["log_dir"] for each in found] == [str(place.kafka.data(n)) for n in (1, 2, 3)]
    until(lambda: all(d["partitions"][0]["bytes"] > 0 for d in place.json("log-dirs", "--topic-list", topic)))
    assert {row["partition"] for each in found for row in each["partitions"]} == {0}
    assert min(each["usable_bytes"] for each in found) > 0


@walked("broker-api-versions")
def broker_api_versions(place):
    used = {row["api"]: row["used"] for row in place.json("broker-api-versions", "--broker-list", 1)}
    assert used["PRODUCE"] > 7
    assert used["STREAMS_GROUP_HEARTBEAT"] is None


@walked("features describe")
def features_describe(place):
    rows = {(row["broker"], row["feature"]): row for row in place.json("features", "describe")}
    assert {broker for broker, _ in rows} == {1, 2, 3}
    assert rows[1, "transaction.version"]["finalized"] == 2
    assert rows[1, "metadata.version"]["finalized"] > 0
    assert (1, "pylog.version") not in rows


@walked("cluster status")
def cluster_status(place):
    place.read_by("status-group", place.made("status", 8))
    found = place.json("cluster", "status", "--groups", 100)
    assert found["controller"] == quorum_leader(place)
    assert [row["broker"] for row in found["brokers"]] == [1, 2, 3]
    assert found["is_sound"]
    assert found["topics"] == len(place.client.topics())
    assert {row["group"]: row["lag"] for row in found["groups"]}["status-group"] == 2


def quorum_leader(place):
    """The controller, as a broker says by a request of its own."""
    with Asker(place.kafka.address(2)) as asker:
        topics = {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}
        return asker.ask(55, 0, topics).topics[0].partitions[0].leader_id


# Programs that try a cluster.


@walked("perf produce")
def perf_produce(place):
    topic = place.made("measured-1", 0)
    words = ("--topic", topic, "--num-records", 2000, "--record-size", 100, "--compression-codec", "lz4")
    (row,) = place.json("perf", "produce", *words)
    assert (row["records"], place.client.extents(topic)[0].end) == (2000, 2000)


@walked("perf consume")
def perf_consume(place):
    (row,) = place.json("perf", "consume", "--topic", place.made("measured-2"), "--messages", 6, "--timeout", 60_000)
    assert row["records"] == 6


@walked("verifiable-producer")
def verifiable_producer(place):
    topic = place.made("verified-1", 0)
    said = place.run("verifiable-producer", "--topic", topic, "--max-messages", 5).ok().json_lines
    assert [row["offset"] for row in said if row["name"] == "producer_send_success"] == list(range(5))
    assert (said[-1]["sent"], said[-1]["acked"]) == (5, 5)


@walked("verifiable-consumer")
def verifiable_consumer(place):
    topic = place.made("verified-2")
    words = ("--topic", topic, "--group-id", "verified", "--max-messages", 6)
    said = place.run("verifiable-consumer", *words).ok().json_lines
    assert sum(row["count"] for row in said if row["name"] == "records_consumed") == 6
    assert place.client.committed("verified")[topic, 0].offset == 6


# Tables, and jobs.


def values_in(table):
    return sorted(bytes(value) for value in DeltaTable(table).to_pyarrow_table(columns=["value"])["value"].to_pylist())


@walked("tier")
def tier(place):
    topic, table = place.made("tiered-1"), place.directory / "table-1"
    (row,) = place.json("tier", "--topic", topic, "--table", table)
    assert (row["status"], row["records"]) == ("tiered", 6)
    assert values_in(table) == [b"v%d" % n for n in range(6)]
    place.json("tier", "--topic", topic, "--table", table)  # nothing is copied twice
    assert len(values_in(table)) == 6


@walked("jobs tiering")
def jobs_tiering(place):
    topic, table = place.made("tiered-2"), place.directory / "table-2"
    (row,) = place.json("jobs", "tiering", "--topic", topic, "--table", table)
    assert (row["status"], row["records"]) == ("tiered", 6)
    assert values_in(table) == [b"v%d" % n for n in range(6)]


@walked("jobs verify")
def jobs_verify(place):
    rows = place.json("jobs", "verify", "--topic", place.made("read-7", 6, 3))
    assert [(row["partition"], row["status"]) for row in rows] == [(number, "sound") for number in range(3)]
    assert sum(row["bytes"] for row in rows) > 0


@walked("jobs run")
def jobs_run(place):
    topic, table = place.made("tiered-3"), place.directory / "table-3"
    (line,) = place.run("jobs", "run", "--topic", topic, "--table", table, *JSON).ok().json_lines
    assert (line["job"], line["rows"][0]["status"]) == ("tiering", "tiered")
    assert values_in(table) == [b"v%d" % n for n in range(6)]
