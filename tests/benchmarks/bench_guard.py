"""The cost of checking the records of clients' batches, of a broker's CPU time; that of `value.schema.validation`; and
compressed batches beside a real Kafka 4.4.

`python tests/benchmarks/bench_guard.py [MB] [ROUNDS]`; `ids` instead: only the second, in seconds. The broker is a
process of its own. The look is timed alone, on the same batches; decision 123 rests on these numbers. Without Maven and
Java 17 there is no Kafka to compare with.
"""

import os
import statistics
import sys
import tempfile
import time
from array import array
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench_cluster import cpu_s

from logstore.config import LogConfig
from logstore.env import SYSTEM
from logstore.log.log import Log
from logstore.log.segments.directory import topic_id_of
from logstore.records.batch import Record, batches, build
from logstore.records.compression import Codec
from logstore.schemas.strategies import Demand
from replication.local_cluster import LocalCluster
from replication.replica.leader import guard
from tests.benchmarks.harness import show
from tests.support.kafka4 import Kafka4

SIZES = ((1, 100), (10, 100), (160, 100), (640, 100), (64, 1000))  # records per batch, bytes per record
CODECS = ("lz4", "zstd", "gzip", "snappy")
PARTITIONS, WARM = 6, 2
GOAL, GOAL_LZ4 = 0.05, 2.0


def create(bootstrap, topic, partitions):
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (made,) = admin.create_topics([NewTopic(topic, partitions, 1)]).values()
    made.result()


def send(bootstrap, topic, count, size, partitions, **settings):
    given = {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5, "queue.buffering.max.messages": 300_000}
    producer, value = Producer({**given, **settings}), os.urandom(size // 2).hex().encode()
    for number in range(count):
        while True:
            try:
                producer.produce(topic, value, partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.01)
    assert producer.flush(300) == 0


def look_s(directory):
    """The CPU seconds of the look at all batches of a partition, and how many there are."""
    log = Log.open(directory, topic_id=topic_id_of(directory, SYSTEM), config=LogConfig(), env=SYSTEM, read_only=True)
    terms, offset, found = guard.terms_of(LogConfig(), time.time_ns() // 1_000_000), 0, []
    while offset < log.log_end_offset:
        read = log.read(offset, max_bytes=1 << 20)
        found += [bytearray(memoryview(read.data)[at : at + each.size_bytes]) for at, each in batches(read.data)]
        offset = read.next_offset
    log.close()
    begin = time.thread_time()
    for batch in found:
        assert guard.passing([batch], terms) == 1
    return time.thread_time() - begin, len(found)


def of_plain_batches(total, rounds):
    rows = []
    with LocalCluster(1) as cluster:
        for records, size in SIZES:
            topic, shares = f"r{records}x{size}", []
            create(cluster.bootstrap, topic, 1)
            count = min(total // size, 20_000 * records)
            for round_ in range(WARM + rounds):
                before = cpu_s(cluster.pid(1))
                batch = {"batch.num.messages": records, "batch.size": 1 << 20}
                send(cluster.bootstrap, topic, count, size, 1, **batch)
                if round_ >= WARM:
                    shares.append(cpu_s(cluster.pid(1)) - before)
            looked, number = look_s(cluster.log_dir(1) / f"{topic}-0")
            each = looked / number
            used = statistics.median(shares) / (count / records)
            rows.append((f"{records} × {size} B", used * 1e6, each * 1e6, each / used, GOAL))
    show("The look into a batch", ("batch", "broker, µs CPU", "look, µs CPU", "share", "goal"), rows)


def least_us(call, times):
    """The least CPU time of a call."""
    found = []
    for _ in range(15):
        begin = time.thread_time()
        for _ in range(times):
            call()
        found.append(time.thread_time() - begin)
    return min(found) / times * 1e6


def of_ids():
    """Every batch is looked into; `ids` is what the look at schema ids adds to that."""
    demands = (Demand("value", "ids-value", array("q", range(1, 100))),)
    config, terms, rows = LogConfig(max_message_bytes=1 << 30), guard.terms_of(LogConfig(), 0), []
    for records, size in SIZES:
        for codec in Codec:
            values = (b"\0\0\0\0\7" + os.urandom(size // 2).hex().encode()[5:] for _ in range(records))
            data = build([Record(n, 1000, None, value) for n, value in enumerate(values)], codec=codec)
            times = max(20, 20_000 // records)
            if codec is Codec.NONE:
                without = least_us(partial(guard.passing, [data], terms), times)
                ids = least_us(partial(guard.bearing, [data], demands), times)
            else:
                without = least_us(partial(guard.check, data, config, 0), times // 10)
                ids = least_us(partial(guard.check, data, config, 0, demands), times // 10) - without
            rows.append((f"{records} × {size} B, {codec.name.lower()}", without, ids, ids / records * 1000, ""))
    show("The look at schema ids", ("batch", "look, µs CPU", "ids, µs CPU", "ids, ns a record", ""), rows)


def of_compressed(total, rounds, kafka):
    rows, size = [], 1000
    with LocalCluster(1) as cluster:
        sides = {"pylog": (cluster.bootstrap, cluster.pid(1)), "Kafka": (kafka.bootstrap, kafka.pid(1))}
        for bootstrap, _ in sides.values():  # a broker loads its kernels once that pays; a JVM compiles
            create(bootstrap, "warm", PARTITIONS)
            send(bootstrap, "warm", 2 * guard.LOOKS_BEFORE, size, PARTITIONS, **{"compression.type": "lz4"})
        time.sleep(5)
        for codec in CODECS:
            for bootstrap, _ in sides.values():
                create(bootstrap, codec, PARTITIONS)
            rates = {name: [] for name in sides}
            for round_ in range(WARM + rounds):
                for name, (bootstrap, pid) in sides.items():
                    before = cpu_s(pid)
                    send(bootstrap, codec, total // size, size, PARTITIONS, **{"compression.type": codec})
                    if round_ >= WARM:
                        rates[name].append(total / size / (cpu_s(pid) - before))
            ours, theirs = (statistics.median(rates[name]) for name in sides)
            rows.append((f"produce 1 KB, {codec}", ours, theirs, ours / theirs, GOAL_LZ4 if codec == "lz4" else ""))
    show(
        "Compressed batches, looked into by both",
        ("row", "pylog, records per CPU s", "Kafka 4.4", "ratio", "goal"),
        rows,
    )


def main(total, rounds):
    guard.load()
    of_ids()
    of_plain_batches(total, rounds)
    with tempfile.TemporaryDirectory() as room:
        try:
            with Kafka4(room) as kafka:
                of_compressed(total, rounds, kafka)
        except pytest.skip.Exception as reason:
            print(f"no Kafka to compare with: {reason}")


if __name__ == "__main__":
    if sys.argv[1:] == ["ids"]:
        guard.load()
        of_ids()
        sys.exit()
    asked = [int(each) for each in sys.argv[1:3]] or [100]
    main(asked[0] * 1_000_000, asked[1] if len(asked) > 1 else 5)
