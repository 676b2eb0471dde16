"""Spark's own cluster: two workers, whose executors are other processes, and share no directory with the driver."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest

from replication.client.kafka_client import KafkaClient
from replication.local_cluster import LocalCluster
from replication.model.cluster import TopicPartition
from tests.support.repeats import only_long

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    only_long("three JVMs"),
    pytest.mark.timeout(600),
]
ROOT = Path(__file__).parents[2]

DRIVER = """
import json, os, sys, time
from datasource import spark_session
from tests.spark.kills.query import QUICK

bootstrap = sys.argv[1]
spark = spark_session(
    master="local-cluster[2,1,1024]",
    **QUICK | {"spark.scheduler.maxRegisteredResourcesWaitingTime": "300s"},
)
over = {"kafka.bootstrap.servers": bootstrap}

def where(rows):
    time.sleep(1)  # long enough for the other worker to take a task, too
    yield os.getppid()  # the executor's daemon

found = spark.read.format("pylog").options(**over, subscribe="in", minPartitions=4).load()
executors = set(found.rdd.mapPartitions(where).collect())
found.select("key", "value").write.format("pylog").options(**over, topic="out", exactlyOnce=False).mode("append").save()
stream = spark.readStream.format("pylog").options(**over, subscribe="out", groupId="g", startingOffsets="earliest")
query = stream.load().writeStream.format("memory").queryName("seen").option("checkpointLocation", "checkpoint")
query.trigger(availableNow=True).start().awaitTermination()
values = [row.value for row in spark.sql("SELECT cast(value AS string) value FROM seen").collect()]
print(json.dumps({"executors": len(executors), "is_apart": os.getpid() not in executors, "values": values}))
spark.stop()
"""


def test_executors_of_other_processes_read_and_write_a_cluster(tmp_path):
    home = tmp_path / "spark"  # where workers keep their directories
    home.mkdir()
    for each in Path(pyspark.__file__).parent.iterdir():
        (home / each.name).symlink_to(each)
    (tmp_path / "driver.py").write_text(DRIVER)
    python_path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    values = [f"v{n}" for n in range(400)]
    with LocalCluster(1, tmp_path / "brokers") as cluster, KafkaClient(cluster.bootstrap) as client:
        for topic in ("in", "out"):
            client.create_topic(topic, partitions=4)
        client.append("in", pa.table({"key": values, "value": values}))
        done = subprocess.run(
            [sys.executable, "driver.py", cluster.bootstrap],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": python_path, "SPARK_HOME": str(home)},
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        told = json.loads(done.stdout.strip().splitlines()[-1])
        ends = {TopicPartition("out", p): extent.end for p, extent in client.extents("out").items()}
        committed = client.committed("g")
    assert (told["executors"], told["is_apart"]) == (2, True)
    assert sorted(told["values"]) == sorted(values)
    assert {tp: each.offset for tp, each in committed.items()} == ends
    assert len(list((home / "work").iterdir())) == 1  # the application, on both workers
