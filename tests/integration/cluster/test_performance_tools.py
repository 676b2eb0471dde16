"""`pylog perf`, `verifiable-producer`, `verifiable-consumer` on a running cluster."""

import re
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from replication.client.kafka_client import KafkaClient
from replication.tools.performance import latency

pytestmark = pytest.mark.slow


def test_percentiles_count_each_record_of_a_send():
    found = latency(np.array([30.0, 10.0, 20.0]), np.array([1, 900, 99]))
    assert found == {
        "avg_ms": 11.01, "p50_ms": 10.0, "p95_ms": 20.0, "p99_ms": 20.0, "p999_ms": 20.0, "max_ms": 30.0
    }  # fmt: skip


def test_what_perf_produces_it_consumes_and_the_rate_is_kept(pylog, cluster):
    topic = cluster.create((1, 2), (2, 3))
    words = ("perf", "produce", "--topic", topic, "--record-size", 50)
    (made,) = pylog(*words, "--num-records", 2500, "--output", "json").ok().json
    assert (made["records"], made["bytes"]) == (2500, 125_000)
    assert 0 < made["p50_ms"] <= made["p99_ms"] <= made["max_ms"]
    ends = pylog("get-offsets", topic, "--output", "json").ok().json
    assert sum(row["offset"] for row in ends) == 2500

    paced = ("--num-records", 100, "--throughput", 200, "--acks", 1, "--reporting-interval", 100)
    ran = pylog(*words, *paced, "--output", "json").ok()
    assert ran.json[0]["seconds"] >= 0.45
    told = re.findall(r"^(\d+) records acknowledged, \d+ records/s", ran.err, re.MULTILINE)
    assert len(told) >= 2
    assert 0 < sum(map(int, told)) <= 100, "each is told of once"
    (read,) = pylog("perf", "consume", "--topic", topic, "--messages", 2600, "--output", "json").ok().json
    assert (read["records"], read["bytes"]) == (2600, 130_000)
    (part,) = pylog("perf", "consume", "--topic", topic, "--messages", 100, "--output", "json").ok().json
    assert (part["records"], part["bytes"]) == (100, 5_000), "of a fetch that brings all of them"
    assert part["seconds"] > 0, "the first fetch takes time"
    assert part["records_per_s"] <= 2 * 100 / part["seconds"]
    few = pylog("perf", "consume", "--topic", topic, "--messages", 9999, "--timeout", 2000)
    assert (few.code, few.lines[1].split()[0]) == (1, "2600")
    assert "2600 records of 9999" in few.err


def test_verifiable_tools_tell_each_record_once(pylog, cluster):
    topic = cluster.create((1, 2), (2, 3))
    sent = pylog("verifiable-producer", "--topic", topic, "--max-messages", 20, "--value-prefix", 7).ok().json_lines
    names = Counter(event["name"] for event in sent)
    assert names == {"startup_complete": 1, "producer_send_success": 20, "shutdown_complete": 1, "tool_data": 1}
    assert (sent[-1]["sent"], sent[-1]["acked"]) == (20, 20)
    told = {(event["partition"], event["offset"]): event["value"] for event in sent if "offset" in event}
    assert sorted(told.values()) == sorted(f"7.{n}" for n in range(20))

    words = ("verifiable-consumer", "--topic", topic, "--group-id", f"g-{topic}", "--verbose")
    read = pylog(*words, "--max-messages", 15).ok().json_lines
    more = pylog(*words, "--max-messages", 5).ok().json_lines
    records = [event for event in read + more if event["name"] == "record_data"]
    assert {(event["partition"], event["offset"]): event["value"] for event in records} == told
    assert len(records) == 20, "what was committed is not read again"
    (assigned,) = (event for event in read if event["name"] == "partitions_assigned")
    assert [row["partition"] for row in assigned["partitions"]] == [0, 1]
    assert sum(event["count"] for event in read if event["name"] == "records_consumed") == 15
    assert read[0]["name"] == "startup_complete"
    assert read[-1]["name"] == "shutdown_complete"


def test_bytes_that_are_no_text_are_told_too(pylog, cluster):
    topic = cluster.create((1,))
    with KafkaClient(cluster.running.bootstrap) as client:
        client.append(topic, pa.table({"value": [b"\xff", None]}))
    words = ("--topic", topic, "--group-id", f"g-{topic}", "--verbose", "--max-messages", 2)
    found = pylog("verifiable-consumer", *words).ok().json_lines
    assert [event["value"] for event in found if event["name"] == "record_data"] == ["\ufffd", None]


def test_what_fails_is_told(pylog, cluster):
    topic = cluster.create((1,), max_message_bytes=60)
    failed = pylog("verifiable-producer", "--topic", topic, "--max-messages", 1)
    assert (failed.code, failed.json_lines[1]["name"]) == (1, "producer_send_error")
    assert failed.json_lines[-1]["acked"] == 0
    assert "no topic 'nosuch'" in pylog("perf", "produce", "--topic", "nosuch", "--num-records", 1).failed()
    assert "no topic 'nosuch'" in pylog("verifiable-consumer", "--topic", "nosuch", "--group-id", "g").err
    assert "came within 300 ms" in pylog("perf", "consume", "--topic", topic, "--messages", 1, "--timeout", 300).err
    assert pylog("perf", "produce", "--topic", topic).code == 2
    assert pylog("verifiable-producer", "--topic", topic, "--acks", "2").code == 2
