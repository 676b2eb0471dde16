"""The curves of Spark's exactly-once batches for `bench_scale.py`: the commit of one that many tasks wrote."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from bench_cluster import Pylog, cpu_s
from scale_brokers import until_in_sync
from scale_curve import Curve, say

import logstore
from datasource.topics.cluster import ClusterTopics
from datasource.topics.interface import Batch, PreparedPart, TransactionSettings
from replication.client.kafka_client import KafkaClient

PARTITIONS = 32
ROWS = pa.table({"value": ["x"] * PARTITIONS, "partition": pa.array(range(PARTITIONS), pa.int32())})
BATCHES = 4  # of which the first warms up
SETTINGS = {"transaction.two.phase.commit.enable": "true"}


def commits(sizes: Sequence[int], root: Path) -> list[Curve]:
    """The driver's commit of one exactly-once batch that so many tasks wrote, each to 32 partitions of a directory."""
    seconds, cpu = [], []
    for size in sizes:
        path, took, spent = root / f"commits-{size}", [], []
        with logstore.open(path) as store:
            store.create_topic("t", partitions=PARTITIONS)
            for batch in range(BATCHES):
                parts = []
                for task in range(size):
                    part = store.transactions.begin("q", batch, run="r", task=str(task))
                    store.append("t", ROWS, transaction=part)
                    parts.append(part.prepare())
                began, cpu_began = time.perf_counter(), time.process_time()
                with logstore.open(path) as driver:
                    driver.transactions.commit(parts)
                took.append(time.perf_counter() - began)
                spent.append(time.process_time() - cpu_began)
        seconds.append((size, statistics.median(took[1:])))
        cpu.append((size, statistics.median(spent[1:]) / size * 1e3))
    what = f"tasks of a batch, x {PARTITIONS} partitions"
    return [Curve(what, "its commit", "s", seconds, "< 3 s"), Curve(what, "CPU per task", "ms", cpu, "1")]


def cluster_commits(sizes: Sequence[int], root: Path) -> list[Curve]:
    """The same in a cluster of one broker, and of three with three replicas: until readers see all of the batch."""
    return [curve for brokers in (1, 3) for curve in _cluster_commits(sizes, root, brokers)]


def _cluster_commits(sizes: Sequence[int], root: Path, brokers: int) -> list[Curve]:
    seconds, cpu, cpu_brokers = [], [], []
    settings = TransactionSettings(driver="d", timeout_ms=900_000, decision_topic="__pylog_decisions")
    with Pylog(brokers, root / f"commits-of-{brokers}", SETTINGS) as cluster:
        for size in sizes:
            topic, took, spent, spent_brokers = f"t{size}", [], [], []
            cluster.create(topic, PARTITIONS, brokers)
            until_in_sync(cluster, topic, PARTITIONS, brokers)
            for batch in range(BATCHES):
                parts = _written(cluster, topic, Batch(name=f"q{size}", batch_id=batch, run="r"), size, settings)
                before, cpu_began, began = _cpu_s(cluster), time.process_time(), time.perf_counter()
                with KafkaClient(cluster.bootstrap) as client:  # the process that commits starts cold
                    ClusterTopics(client).transactions(settings).commit(parts, origin="")
                took.append(time.perf_counter() - began)
                spent.append(time.process_time() - cpu_began)
                spent_brokers.append(_cpu_s(cluster) - before)
                say(f"brokers={brokers} tasks={size} batch={batch}: {took[-1]:.3f} s")
            seconds.append((size, statistics.median(took[1:])))
            cpu.append((size, statistics.median(spent[1:]) / size * 1e3))
            cpu_brokers.append((size, statistics.median(spent_brokers[1:]) / size * 1e3))
    what = f"tasks of a batch, x {PARTITIONS} partitions of a cluster, {brokers} brokers"
    return [
        Curve(what, "its commit", "s", seconds, "< 3 s"),
        Curve(what, "CPU of the driver per task", "ms", cpu, "1"),
        Curve(what, "CPU of the brokers per task", "ms", cpu_brokers, "1"),
    ]


def _written(cluster: Pylog, topic: str, batch: Batch, tasks: int, settings: TransactionSettings) -> list[PreparedPart]:
    """Have each task write a row to every partition."""
    parts: list[PreparedPart] = []
    with KafkaClient(cluster.bootstrap) as client:
        topics = ClusterTopics(client)
        transactions = topics.transactions(settings)
        for task in range(tasks):
            with transactions.begun(batch, (task, 0)) as part:
                topics.append(topic, ROWS, partitioner="murmur2", compression=None, transaction=part)
                parts.append(part.prepare())
    return parts


def _cpu_s(cluster: Pylog) -> float:
    return sum(cpu_s(pid) for pid in cluster.pids())
