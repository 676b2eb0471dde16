"""Brokers and replicas, programs that try a cluster, tables, and jobs."""

import json

from deltalake import DeltaTable

from tests.conformance.kafka4.walks.place import JSON, walked
from tests.support.asker import Asker, until

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
