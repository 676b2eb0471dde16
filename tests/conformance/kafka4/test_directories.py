"""The directory of a stopped Kafka 4.4, with a topic that it compacted: we read from files what its clients read."""

import shutil
import time
from itertools import pairwise

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, LongType, StructType

import logstore
from datasource.connector.source import PylogDataSource
from logstore.tools.dump import dump
from replication.client.kafka_client import KafkaClient
from tests.support.commands import run_pylog
from tests.support.inside import close_stores
from tests.support.repeats import only_long

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), only_long("starts a Kafka")]

COMPACTED = {"cleanup_policy": "compact", "segment_ms": "1000", "min_cleanable_dirty_ratio": "0.01"}
COMPACTED_WITHIN_S = 90


def rows_of(client):
    extent = client.extents("t")[0]
    found = [row for batch in client.read("t", 0, extent.start, extent.end) for row in batch.to_pylist()]
    return [(row["offset"], row["value"]) for row in found]


def compacted(client):
    """Append to few keys until the cleaner has left gaps; return all rows."""
    deadline, number = time.monotonic() + COMPACTED_WITHIN_S, 0
    while time.monotonic() < deadline:
        for _ in range(5):
            keys, values = ([text % n for n in range(number, number + 4)] for text in (b"k%d", b"v%d"))
            keys = [b"k%d" % (n % 3) if n % 10 else key for n, key in zip(range(number, number + 4), keys, strict=True)]
            client.append("t", pa.table({"key": keys, "value": values}))
            number += 4
        rows = rows_of(client)
        if any(b - a > 1 for (a, _), (b, _) in pairwise(rows)):
            return rows
        time.sleep(0.5)
    raise AssertionError(f"no gap after {number} records")


@pytest.fixture
def stopped(one_broker, tmp_path):
    """The rows of topic t as clients read them, and a copy of the directory of the broker, taken when it had ended."""
    with KafkaClient(one_broker.bootstrap) as client:
        client.create_topic("t", partitions=1, **COMPACTED)
        compacted(client)
    one_broker.kill(1)
    one_broker.start(1)  # what it had not cleaned then, it may clean now
    with KafkaClient(one_broker.bootstrap) as client:
        seen = rows_of(client)
    one_broker.stop(1)
    try:
        return seen, shutil.copytree(one_broker.data(1), tmp_path / "kafka")
    finally:
        one_broker.start(1)


def test_a_compacted_topic_of_a_stopped_kafka_is_read_from_its_files(stopped, tmp_path):
    seen, root = stopped
    with logstore.open(root, read_only=True) as store:
        read = store.read("t", partition=0).read_all().to_pylist()
        found = [(row["offset"], row["value"]) for row in read]
    last = dict(seen)
    assert found
    assert set(found) <= set(seen)  # a pass may have run meanwhile
    assert found[-1] == seen[-1]
    assert any(b - a > 1 for (a, _), (b, _) in pairwise(found))

    schema = StructType().add("offset", LongType()).add("value", BinaryType())
    reader = PylogDataSource({"path": str(root), "subscribe": "t"}).reader(schema)
    spark = [row for task in reader.partitions() for b in reader.read(task) for row in b.to_pylist()]
    close_stores()
    assert [(row["offset"], bytes(row["value"])) for row in spark] == found

    logs = sorted((root / "t-0").glob("*.log"))
    lines = [line for log in logs for line in dump(log, with_records=True)]
    assert [line.facts["offset"] for line in lines if line.kind == "record"] == [offset for offset, _ in found]
    assert not [line for line in lines if line.kind == "damage"]
    assert all(last[offset] == value for offset, value in found)

    ran = run_pylog("verify", "--path", root, "--topic", "t")
    assert (ran.code, ran.err) == (0, "")

    # The same files in an uncompacted topic of ours: nothing of them is cut.
    with logstore.open(tmp_path / "ours") as store:
        store.create_topic("t")
    log = max(logs, key=lambda path: path.stat().st_size)
    (tmp_path / "ours" / "t-0" / log.name).write_bytes(log.read_bytes())
    (tmp_path / "ours" / ".kafka_cleanshutdown").unlink()
    with logstore.open(tmp_path / "ours") as store:
        kept = [row["offset"] for row in store.read("t", partition=0).read_all().to_pylist()]
    assert kept == [line.facts["offset"] for line in dump(log, with_records=True) if line.kind == "record"]
