"""Records, dead letters and transactions."""

import json

import pyarrow as pa

from datasource.topics.interface import Batch, TransactionSettings
from datasource.topics.transactions.batches import ClusterTransactions
from logstore.records.schema import RECORD_SCHEMA
from logstore.schemas.misfits import STORED, dead_letters
from tests.conformance.kafka4.walks.place import JSON, walked

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
