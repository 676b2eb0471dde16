"""A broker reads into memory that it has used before."""

import sys
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.integration.cluster.conftest import running
from tests.support.repeats import only_long

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="counts page faults in /proc"),
]
# 6 MB in each partition: an answer has 1 MiB of each.
PARTITIONS, RECORDS, VALUE = 6, 300, "x" * 20_000


def page_faults(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])


def read(cluster, topic):
    settings = {"bootstrap.servers": cluster.running.bootstrap, "group.id": "-", "enable.auto.commit": False}
    with closing(Consumer(settings)) as consumer:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        found = 0
        while found < RECORDS * PARTITIONS:
            messages = consumer.consume(RECORDS * PARTITIONS - found, 30)
            assert messages
            assert all(message.error() is None for message in messages)
            found += len(messages)


@only_long("36 MB, read twice")
def test_a_consumer_costs_no_new_memory_for_what_it_reads(tmp_path):
    with running([1], tmp_path) as cluster:
        topic = cluster.create(*[(1,)] * PARTITIONS)
        for partition in range(PARTITIONS):
            assert cluster.produce(topic, [VALUE] * RECORDS, partition=partition) == []
        read(cluster, topic)
        before = page_faults(cluster.running.pid(1))
        read(cluster, topic)
        faults = page_faults(cluster.running.pid(1)) - before
    # Memory that is given back after every answer costs one fault for each 4 KiB of the 36 MB: some 8,000.
    assert faults < 2000, faults
