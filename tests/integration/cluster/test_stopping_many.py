"""The disk and tree operations of stopping brokers, counted: they grow as the partitions do, and no faster.

No time is measured. There are three brokers and a topic with three replicas. The first stops in good order and hands a
third of the leaderships over; the second moves the rest; the third has nobody left to hand over to.
"""

import asyncio
import math
from collections import Counter

import pytest

from logstore.env import SETTLED_NS, Env, OsFiles
from replication.broker.topic_admin import NewTopic
from replication.coordination.sqlite_tree import SqliteTree
from replication.model.cluster import TopicPartition
from tests.support.in_process import brokers_in_process
from tests.support.repeats import only_long
from tests.support.site import batch

FEW = 30
PATIENCE_S = 120
# Calls, and the bytes of them, that have nothing to do with the partitions, and may come in one run only.
SPARES = {"files": 40, "bytes": 2048, "fsyncs": 40, "tree": 40}
SELDOM = {
    "controlled_shutdown_enable": "true",
    "replica_high_watermark_checkpoint_interval_ms": 600_000,
    "replica_lag_time_max_ms": 600_000,
    "zookeeper_session_timeout_ms": 60_000,
}


class CountingFiles(OsFiles):
    """Counts what is done by its name; bytes that are written, too."""

    def __init__(self, counts):
        super().__init__()
        self.counts = counts

    def write(self, path, position, data):
        self.counts["bytes"] += len(data)
        super().write(path, position, data)


def counted(name):
    def call(self, *args, **kwargs):
        self.counts["fsyncs" if name == "fsync" else "files"] += 1
        return getattr(super(CountingFiles, self), name)(*args, **kwargs)

    return call


for name in ("create", "fsync", "link", "list", "read", "read_all", "rename", "stat", "truncate", "unlink"):
    setattr(CountingFiles, name, counted(name))


async def make(brokers, partitions):
    """A topic with a record in each partition, that all replicas have."""
    await brokers[1].admin.create(NewTopic(name="t", partitions=partitions, replication_factor=3), timeout_s=PATIENCE_S)
    left = {TopicPartition("t", number) for number in range(partitions)}
    while left:
        for broker in brokers.values():
            found = await broker.replicas.append(
                {tp: batch(b"a") for tp in left}, acks=-1, timeout_ms=PATIENCE_S * 1000
            )
            left -= {tp for tp, result in found.items() if not result.error_code}
    await asyncio.sleep(2 * SETTLED_NS / 1e9)  # a log that was just written is not noted at a stop


def stops(directory, partitions):
    """The cost of stopping the three, one after the other: an operation may move from one stop to the next."""
    counts = Counter()
    do = SqliteTree._do

    def count(self, work, *, writes=False):
        counts["tree"] += 1
        return do(self, work, writes=writes)

    with (
        pytest.MonkeyPatch.context() as patch,
        brokers_in_process(directory, env=Env(files=CountingFiles(counts)), **SELDOM) as running,
    ):
        patch.setattr(SqliteTree, do.__name__, count)
        running.do(make(running.brokers, partitions), PATIENCE_S)
        counts.clear()
        for number in (1, 2, 3):
            running.do(running.brokers.pop(number).stop(), PATIENCE_S)
    return counts


@only_long("two clusters")
def test_twice_the_partitions_take_at_most_twice_the_work_to_stop(tmp_path):
    few = stops(tmp_path / "few", FEW)
    many = stops(tmp_path / "many", 2 * FEW)
    for kind, spare in SPARES.items():
        # The tree is asked in one round or two, however many the partitions are.
        assert 0 < few[kind] < (many[kind] if kind != "tree" else math.inf), (kind, few, many)
        assert many[kind] <= 2 * few[kind] + spare, (kind, few, many)
