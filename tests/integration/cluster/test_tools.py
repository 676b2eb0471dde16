"""The commands of operators on a running cluster: what they print, what they refuse, and what they change."""

import json
import re
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from logstore import InvalidRequestError
from replication.client.groups import Committed
from replication.client.kafka_client import KafkaClient
from replication.model.cluster import TopicPartition
from replication.tools.top import look_at
from tests.support.asker import until
from tests.support.commands import loaded_by_command, rows, rows_of, run_pylog

pytestmark = pytest.mark.slow

PAGE = re.sub(r"\\\n\s+", "", (Path(__file__).parents[3] / "docs" / "cli.md").read_text())


# ------------------------------------------------------------------------------------------------ topics


def changes(cluster, topic):
    """The lines of the three brokers about this topic: orders of the controller, and their own deeds."""
    logs = [(broker, cluster.running.log_dir(broker) / "broker" / "state-change.log") for broker in (1, 2, 3)]
    rows = [f"{broker} {line}" for broker, log in logs for line in log.read_text().splitlines() if topic in line]
    return "\n".join(["", *rows])


def test_a_topic_is_created_described_altered_and_deleted(pylog, cluster, name):
    made = pylog("topics", "create", name, "--replica-assignment", "1:2,2:3", "--config", "retention.ms=60000")
    assert made.err == f"created topic {name}\n"
    assert rows(made) == [[name, "2", "2", "retention.ms=60000"]]

    title, columns, *partitions = pylog("topics", "describe", name).ok().lines
    assert title.startswith(f"Topic: {name}  TopicId: ")
    assert title.endswith("Partitions: 2  Configs: retention.ms=60000")
    assert columns.split() == ["PARTITION", "LEADER", "LEADER", "EPOCH", "REPLICAS", "ISR", "OFFLINE"]
    assert [line.split() for line in partitions] == [
        ["0", "1", "0", "1,2", "1,2", "-"],
        ["1", "2", "0", "2,3", "2,3", "-"],
    ]

    words = ["--partitions", 3, "--replica-assignment", "3:1", "--config", "segment.bytes=1000000"]
    changed = pylog("topics", "alter", name, *words, "--delete-config", "retention.ms", "--output", "json").ok()
    assert "new records of a key may go to another one" in changed.err
    (found,) = changed.json
    assert (found["partitions"], found["config"]) == (3, {"segment.bytes": "1000000"})
    (found,) = pylog("topics", "describe", name, "--output", "json").ok().json
    assert found["partitions"][2] == {
        "partition": 2, "leader": 3, "leader_epoch": 0, "replicas": [3, 1], "isr": [3, 1], "offline": []
    }  # fmt: skip

    assert pylog("topics", "delete", name).ok().err == f"deleted topic {name}\n"
    # UpdateMetadata may reach that broker a moment later.
    until(lambda: name not in pylog("topics", "list").ok().out, story=lambda: changes(cluster, name))
    assert "no topic" in pylog("topics", "delete", name).failed().lower()
    assert pylog("topics", "delete", name, "--if-exists").ok().err == f"there is no topic {name}\n"


def test_what_brokers_refuse_of_a_topic_is_one_line_and_exit_code_1(pylog, cluster):
    name = cluster.create((1, 2))
    assert "exists already" in pylog("topics", "create", name).failed()
    assert (
        pylog("topics", "create", name, "--partitions", 9, "--if-not-exists").ok().err
        == f"topic {name} exists already\n"
    )
    assert "replication factor" in pylog("topics", "create", "t2", "--replication-factor", 4).failed()
    assert "replica assignment" in pylog("topics", "create", "t2", "--replica-assignment", "1:9").failed()
    assert "invalid config" in pylog("topics", "create", "t2", "--config", "retention.ms=soon").failed()
    assert "invalid topic" in pylog("topics", "create", "a b").failed()
    assert pylog("topics", "alter", name, "--partitions", 1).failed().count("invalid partitions") == 1
    assert "unknown topic" in pylog("topics", "alter", "nosuch", "--partitions", 5).failed()
    assert f"did you mean '{name}'" in pylog("topics", "describe", name + "X").failed()
    assert pylog("topics", "create", "t2", "--replica-assignment", "1:x").code == 2
    assert pylog("topics", "create", "t2", "--replica-assignment", "1:2,3").code == 2
    assert pylog("topics", "create", "t2", "--replica-assignment", "1", "--replication-factor", 1).code == 2
    assert pylog("topics", "alter", name, "--replica-assignment", "1").code == 2


def test_what_a_cluster_lacks_is_found(pylog, cluster):
    controller, stays, stopped = cluster.roles()
    whole, alone, group = cluster.create((stays,)), cluster.create((stopped,)), f"readers-{next(cluster.names)}"
    strict = cluster.create((stays, stopped), min_insync_replicas=2)
    assert cluster.produce(whole, range(70)) == []
    with KafkaClient(cluster.running.bootstrap) as client:
        client.commit(group, {TopicPartition(whole, 0): Committed(3)})
    cluster.until(lambda: pylog("cluster", "status").code == 0)
    told = pylog("cluster", "status", "--groups", 500, "--output", "json").ok().json
    assert {"group": group, "state": "Empty", "lag": 67} in told["groups"]
    assert [row["broker"] for row in told["brokers"] if row["controller"]] == [controller]
    assert sum(row["leaders"] for row in told["brokers"]) == told["partitions"]
    assert all(row["log_bytes"] > 0 and row["usable_bytes"] > 0 for row in told["brokers"])

    cluster.running.stop(stopped)
    cluster.until_states(alone, {0: (-1, [stopped], 1)})

    def found(*filters):
        told = pylog("topics", "describe", *filters, "--output", "json").ok().json
        return {row["topic"] for row in told} & {whole, alone, strict}

    cluster.until(lambda: found("--under-replicated-partitions") == {strict})
    assert found("--under-min-isr-partitions") == {strict}
    assert found("--unavailable-partitions") == {alone}
    assert found("--at-min-isr-partitions") == {whole, alone}
    assert found("--unavailable-partitions", "--under-min-isr-partitions") == {alone, strict}
    assert found("--topics-with-overrides") == {strict}

    told = pylog("cluster", "status")
    assert (told.code, told.lines[1]) == (1, f"Missing brokers: 1: {stopped}")
    assert told.lines[2].startswith("Offline partitions: ")
    assert told.err == "pylog: a controller, broker, leader or in-sync replica is missing\n"
    lacks = pylog("cluster", "status", "--groups", 0, "--output", "json").json
    assert f"{alone}-0" in lacks["offline_partitions"]
    assert f"{strict}-0" in lacks["under_replicated_partitions"]
    assert (lacks["is_sound"], lacks["groups"]) == (False, [])


def test_internal_topics_are_listed_unless_they_are_excluded(pylog, cluster):
    name = cluster.create((1,))
    cluster.values(name, count=0)  # by a group, whose topic is made
    pylog("configs", "describe", "--entity-type", "topics").ok()
    told = {row["topic"]: row for row in pylog("topics", "list", "--output", "json").ok().json}
    assert told[name]["replication_factor"] == 1
    shown = pylog("topics", "list", "--exclude-internal", "--output", "json").ok().json
    assert not [row for row in shown if row["topic"].startswith("__")]
    assert name in {row["topic"] for row in shown}


def test_topics_are_listed_described_and_deleted_by_a_regular_expression(pylog, cluster):
    with KafkaClient(cluster.running.bootstrap) as client:
        client.create_topic("regex-a", retention_ms=timedelta(days=1))
        client.create_topic("regex-b")
    for command in ("list", "describe"):
        shown = pylog("topics", command, "--topic", "regex-.*", "--output", "json").ok().json
        assert [(row["topic"], row["config"]) for row in shown] == [
            ("regex-a", {"retention.ms": "86400000"}), ("regex-b", {})
        ]  # fmt: skip
    assert "no topic's name matches" in pylog("topics", "describe", "nothing-.*").failed()
    refused = pylog("topics", "delete", "regex-.*").failed()
    assert "would delete 2 topics with all records: regex-a, regex-b; add --yes" in refused
    pylog("topics", "delete", "regex-.*", "--yes").ok()
    until(lambda: not pylog("topics", "list", "regex-.*", "--output", "json").ok().json)


def test_a_command_says_where_it_acts(cluster, tmp_path):
    where = ("--bootstrap-server", cluster.running.bootstrap)
    assert "say where" in run_pylog("topics", "list").err
    assert "not both" in run_pylog("topics", "list", *where, "--path", tmp_path).err
    assert "--replication-factor needs a cluster" in run_pylog(
        "topics", "create", "t", "--replication-factor", 1, "--path", tmp_path / "new"
    ).err  # fmt: skip
    places = {"PYLOG_PATH": str(tmp_path / "none"), "PYLOG_BOOTSTRAP": cluster.running.bootstrap}
    assert "not both" in run_pylog("topics", "list", env=places).err
    run_pylog("topics", "list", *where, env=places).ok()
    assert "no such directory" in run_pylog("topics", "list", "--path", tmp_path / "none", env=places).failed()
    run_pylog("topics", "list", env={"PYLOG_BOOTSTRAP": cluster.running.bootstrap}).ok()
    assert run_pylog("configs", "describe", "--entity-type", "topics").code == 2


def test_a_cluster_that_cannot_be_reached_is_one_line_after_the_time_that_was_set(tmp_path):
    settings = tmp_path / "client.properties"
    settings.write_text("default.api.timeout.ms=300\n")
    where = ("--bootstrap-server", "127.0.0.1:1", "--command-config", settings)
    assert "no Kafka broker answered within 0.3 s" in run_pylog("topics", "list", *where).failed()
    assert run_pylog("topics", "list", "--bootstrap-server", "nonsense").code == 2
    settings.write_text("no.such=1\n")
    assert "no.such" in run_pylog("topics", "list", *where).err


EXAMPLES = re.findall(r"^ +\$ pylog (.*) --bootstrap-server 127.0.0.1:9092$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_of_the_help_pages_is_no_wrong_usage(pylog, example):
    bounded = ("--timeout-ms", 300) if example.startswith("consume") else ()  # another example makes the topic, empty
    assert pylog(*shlex.split(example), *bounded).code != 2


# ----------------------------------------------------------------------------------------------- configs


def test_settings_of_a_topic_are_changed_live_and_told(pylog, cluster):
    name = cluster.create((1, 2), retention_ms=60000)
    entity = ("--entity-type", "topics", "--entity-name", name)
    assert rows(pylog("configs", "describe", *entity)) == [[name, "retention.ms", "60000", "DYNAMIC_TOPIC_CONFIG"]]
    told = pylog("configs", "describe", *entity, "--all", "--output", "json").ok().json
    assert {row["name"]: row["source"] for row in told}["segment.bytes"] == "DEFAULT_CONFIG"

    wanted = "max.message.bytes=200,cleanup.policy=[compact,delete]"
    tried = pylog("configs", "alter", *entity, "--add-config", wanted, "--dry-run").ok()
    assert len(rows(tried)) == 1
    changed = pylog("configs", "alter", *entity, "--add-config", wanted, "--delete-config", "retention.ms").ok()
    assert rows(changed) == [
        [name, "cleanup.policy", "compact,delete", "DYNAMIC_TOPIC_CONFIG"],
        [name, "max.message.bytes", "200", "DYNAMIC_TOPIC_CONFIG"],
    ]
    cluster.until(
        lambda: "MSG_SIZE_TOO_LARGE" in str(cluster.produce(name, ["x" * 300], **{"message.max.bytes": 9000}))
    )


def test_settings_of_a_broker_are_told_with_where_they_are_from(pylog):
    told = rows(pylog("configs", "describe", "--entity-type", "brokers", "--entity-name", 2))
    assert ["2", "broker.id", "2", "STATIC_BROKER_CONFIG"] in told
    every = pylog("configs", "describe", "--entity-type", "brokers", "--output", "json").ok().json
    assert {row["entity"] for row in every} == {"1", "2", "3"}


def test_what_is_wrong_with_settings_is_refused(pylog, cluster):
    name = cluster.create((1,))
    entity = ("--entity-name", name)
    assert "no.such" in pylog("configs", "alter", *entity, "--add-config", "no.such=1").failed()
    assert "retention.ms" in pylog("configs", "alter", *entity, "--add-config", "retention.ms=soon").failed()
    assert (
        "unknown topic"
        in pylog("configs", "alter", "--entity-name", "nosuch", "--add-config", "retention.ms=1").failed()
    )
    assert (
        "unknown topic" in pylog("configs", "describe", "--entity-type", "topics", "--entity-name", "nosuch").failed()
    )
    assert (
        "broker 9 is not known" in pylog("configs", "describe", "--entity-type", "brokers", "--entity-name", 9).failed()
    )
    assert pylog("configs", "describe", "--entity-type", "brokers", "--entity-name", "x").code == 2
    assert pylog("configs", "alter", *entity).code == 2
    assert pylog("configs", "alter", *entity, "--add-config", "retention.ms").code == 2
    assert pylog("configs", "alter", *entity, "--add-config", "a=[1,2").code == 2
    broker = ("--entity-type", "brokers", "--entity-name", 1)
    assert "'a'" in pylog("configs", "alter", *broker, "--add-config", "a=1").failed()
    assert "dynamically" in pylog("configs", "alter", *broker, "--add-config", "num.io.threads=9").failed()
    assert pylog("configs", "alter", *broker, "--entity-default", "--add-config", "a=1").code == 2
    assert pylog("configs", "alter", "--entity-default", "--add-config", "a=1").code == 2
    for kind, has_default in (("topics", False), ("groups", False), ("brokers", True)):
        unnamed = pylog("configs", "alter", "--entity-type", kind, "--add-config", "a=1")
        assert unnamed.code == 2
        assert "give --entity-name" in unnamed.err
        assert ("--entity-default" in unnamed.err) == has_default


# ------------------------------------------------------------------------------------- offsets, machines


def test_offsets_are_told_and_records_below_one_are_deleted(pylog, cluster):
    topic = cluster.create((1, 2), (2, 3))
    assert cluster.produce(topic, range(5), partition=1) == []
    assert rows(pylog("get-offsets", topic)) == [[topic, "0", "0"], [topic, "1", "5"]]
    assert rows(pylog("get-offsets", topic, "--partitions", 1, "--time", 0)) == [[topic, "1", "0"]]
    assert rows(pylog("get-offsets", topic, "--time", 2**50)) == [[topic, "0", "-"], [topic, "1", "-"]]
    past, future = datetime(2001, 2, 3, tzinfo=UTC), datetime(2201, 2, 3, tzinfo=UTC)
    assert rows(pylog("get-offsets", topic, "--partitions", 1, "--time", past)) == [[topic, "1", "0"]]
    assert rows(pylog("get-offsets", topic, "--partitions", 1, "--time", future.isoformat())) == [[topic, "1", "-"]]
    assert pylog("get-offsets", topic, "--time", "2001-02-03T00:00:00").code == 2, "it has no zone"
    with KafkaClient(cluster.running.bootstrap) as client:
        tp = TopicPartition(topic, 1)
        assert client.offsets({tp: past})[tp].offset == 0
        with pytest.raises(InvalidRequestError, match="needs a time zone"):
            client.offsets({tp: past.replace(tzinfo=None)})
        assert repr(client) == f"KafkaClient({cluster.running.bootstrap!r})"
        with client.consumer(topic, "nobody") as consumer:
            assert repr(consumer) == "Consumer(group_id='nobody', assignment=[])"
    assert repr(client).endswith(", closed)")
    made = cluster.running
    assert repr(made).startswith(f"{type(made).__name__}({made.bootstrap!r}, live=[")

    deleted = pylog("delete-records", topic, "--partition", 1, "--offset", 3)
    assert rows(deleted) == [[topic, "1", "3", "5"]]
    assert rows(pylog("get-offsets", topic, "--time", "earliest")) == [[topic, "0", "0"], [topic, "1", "3"]]
    plan = {"partitions": [{"topic": topic, "partition": 1, "offset": -1}], "version": 1}
    deleted = pylog("delete-records", "--offset-json-file", "-", input=json.dumps(plan))
    assert rows(deleted) == [[topic, "1", "5", "5"]]

    assert "offset out of range" in pylog("delete-records", topic, "--partition", 1, "--offset", 9).failed()
    assert "no topic 'nosuch'" in pylog("delete-records", "nosuch", "--partition", 1, "--offset", 0).failed()
    assert "7" in pylog("delete-records", topic, "--partition", 7, "--offset", 0).failed()
    assert "7" in pylog("get-offsets", topic, "--partitions", 7).failed()
    assert pylog("get-offsets", topic, "--time", "soon").code == 2
    assert pylog("get-offsets", topic, "--partitions", "a").code == 2
    assert pylog("delete-records", topic, "--partition", 1).code == 2


def test_brokers_tell_what_is_in_their_directories_and_which_apis_they_have(pylog, cluster):
    topic = cluster.create((1, 2))
    assert cluster.produce(topic, ["x" * 1000]) == []
    told = pylog("log-dirs", "--topic-list", topic, "--output", "json").ok().json
    (size,) = {file.stat().st_size for file in cluster.running.log_dir(1).glob(f"{topic}-0/*.log")}
    replica = {"topic": topic, "partition": 0, "bytes": size, "offset_lag": 0}
    assert {row["broker"]: row["partitions"] for row in told} == {1: [replica], 2: [replica], 3: []}
    assert all(0 < row["usable_bytes"] < row["total_bytes"] for row in told)
    title, _, line = pylog("log-dirs", "--topic-list", topic, "--broker-list", 1).ok().lines
    assert title.startswith(f"Broker: 1  LogDir: {cluster.running.log_dir(1)}  Usable: ")
    assert line.split() == [topic, "0", str(size), "0"]

    (produce,) = (row for row in rows(pylog("broker-api-versions", "--broker-list", 2)) if row[1] == "PRODUCE")
    assert produce == ["2", "PRODUCE", "0", "0", "13", "12"]
    assert pylog("log-dirs", "--broker-list", "1,9").code == 2
    assert pylog("broker-api-versions", "--broker-list", "one").code == 2


# ----------------------------------------------------------------------------------------------- records


def test_lines_become_records_of_a_cluster_and_lines_again(pylog, cluster):
    topic = cluster.create((1, 2), (2, 3))
    sent = pylog("produce", topic, "--key-separator", ":", input="a:1\nb:2\na:3\n")
    assert sum(int(row[3]) for row in rows(sent)) == 3
    assert sent.err == f"3 records to {topic}\n"
    assert rows(pylog("produce", topic, "--partition", 1, "--compression-codec", "lz4", input="4\n"))[0][0] == "1"
    ends = {int(row[1]): int(row[2]) for row in rows(pylog("get-offsets", topic))}
    assert sum(ends.values()) == 4

    place = ("--bootstrap-server", cluster.running.bootstrap)
    assert not loaded_by_command("6\n", "produce", cluster.create((1, 2)), *place) & {"numba", "pandas", "hypothesis"}

    read = pylog("consume", topic, "--property", "print.key=true").ok()
    assert sorted(read.lines) == ["a\t1", "a\t3", "b\t2", "null\t4"]
    assert read.err == "4 records\n"
    last = pylog("consume", topic, "--partition", 1, "--offset", ends[1] - 1, "--output", "json").ok()
    assert [(row["value"], row["offset"]) for row in last.json_lines] == [("4", ends[1] - 1)]
    assert len(pylog("consume", topic, "--from-beginning", "--timeout-ms", 300, "--max-messages", 3).ok().lines) == 3
    assert pylog("consume", topic, "--timeout-ms", 0).ok().lines == []

    group = ("--group", f"readers-{topic}", "--timeout-ms", 8000)
    assert len(pylog("consume", topic, *group, "--from-beginning", "--max-messages", 4).ok().lines) == 4
    pylog("produce", topic, input="5\n").ok()
    assert pylog("consume", topic, *group, "--max-messages", 1).ok().lines == ["5"]


def test_readers_of_committed_records_do_not_see_what_is_open(pylog, cluster):
    topic, id = cluster.create((1, 2)), f"id-{next(cluster.names)}"
    with KafkaClient(cluster.running.bootstrap) as client, client.transaction(id) as producer:
        producer.append(topic, pa.table({"value": ["open"]}))
        producer.flush()
        assert pylog("consume", topic).ok().lines == []
        assert pylog("consume", topic, "--isolation-level", "read_uncommitted").ok().lines == ["open"]
    cluster.until(lambda: pylog("consume", topic).ok().lines == ["open"])


def test_what_is_wrong_with_records_is_refused(pylog, cluster):
    topic = cluster.create((1,), max_message_bytes=1000)
    refused = pylog("produce", topic, input="small\n" + "x" * 3000 + "\nnever\n")
    assert (refused.code, rows_of(refused)) == (1, [["0", "0", "1", "1"]])
    assert "line 2" in refused.err
    assert "no topic 'nosuch'" in pylog("produce", "nosuch", input="x\n").failed()
    assert "no topic 'nosuch'" in pylog("consume", "nosuch").failed()
    assert "7" in pylog("produce", topic, "--partition", 7, input="x\n").failed()
    assert "9" in pylog("consume", topic, "--partition", 0, "--offset", 9).failed()
    assert pylog("consume", topic, "--group", "g", "--partition", 0).code == 2
    assert pylog("consume", topic, "--offset", 3).code == 2
    assert run_pylog("consume", topic, "--group", "g", "--path", "data").code == 2


def test_top_shows_rates_the_lag_of_groups_and_what_it_cannot_reach(pylog, cluster):
    topic = cluster.create((1, 2), (2, 3), (3, 1))
    for partition in range(3):
        assert cluster.produce(topic, range(10), partition=partition) == []
    with KafkaClient(cluster.running.bootstrap) as client:
        client.commit("behind", {TopicPartition(topic, p): Committed(p) for p in range(3)})
    lines = pylog("top", "--once", "--every", "100ms", "--output", "json").ok().json_lines
    (shown,) = (line for line in lines if line["kind"] == "topic" and line["topic"] == topic)
    assert (shown["partitions"], shown["records"], shown["in_per_s"], shown["out_per_s"]) == (3, 30, 0, 0)
    assert shown["bytes"] > 3 * 61
    (lag,) = (line["lag"] for line in lines if line.get("reader") == "behind")
    assert lag == 30 - 3
    alone = cluster.create((2,))
    with KafkaClient(cluster.running.bootstrap) as client:
        cluster.running.pause(2)
        try:
            look = client.run(look_at)
        finally:
            cluster.running.resume(2)
    assert any(line.startswith("broker 2 does not answer") or "no leader" in line for line in look.problems)
    assert (look.topics[alone].partitions, look.topics[alone].extents) == (1, {})
    assert look.topics[topic].extents[0].count == 10
