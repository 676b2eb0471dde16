"""The client against confluent-kafka: a topic of one broker, read to Arrow and appended from Arrow, CPU of the client.

python tests/benchmarks/bench_client.py [--rounds 5] [--megabytes 200] [--path DIR]

confluent-kafka takes and hands over one Python object a record; what is compared is the CPU time of the process that
holds the client, its threads and system calls included, and not of the broker. Both sides take turns. `mirror` copies
the topic to a directory, fsynced; a copy through confluent-kafka would at least consume it and produce it.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from harness import show

from replication.client.kafka_client import KafkaClient
from replication.local_cluster import LocalCluster
from replication.tools.mirror import mirror

PARTITIONS = 3
CHUNK_ROWS = 100_000
SEND_ROWS = 1_000


def cpu_s(work: Callable[[], int]) -> tuple[int, float]:
    """(what the work returns, the CPU seconds of this process that it took)."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    done = work()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return done, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def read_arrow(client: KafkaClient, topic: str) -> int:
    """Every record as Arrow columns: key, value, offset, timestamp."""
    columns = ["key", "value", "offset", "timestamp"]
    return sum(
        rows.num_rows
        for partition, extent in client.extents(topic).items()
        for rows in client.read(topic, partition, extent.start, extent.end, columns=columns)
    )


def read_messages(bootstrap: str, topic: str, count: int) -> int:
    """Every record as a message of confluent-kafka."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "-", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found = 0
    while found < count:
        found += len(consumer.consume(10_000, 5.0))
    consumer.close()
    return found


def append_arrow(client: KafkaClient, topic: str, chunks: Iterable[pa.Table]) -> int:
    """All chunks, acknowledged."""
    return sum(extent.end - extent.start for rows in chunks for extent in client.append(topic, rows).values())


def produce_arrow(client: KafkaClient, topic: str, chunks: Iterable[pa.Table]) -> int:
    """All chunks in sends of SEND_ROWS rows, as programs do that do not wait for each."""
    with client.producer() as producer:
        sent = [
            producer.send(topic, chunk.slice(at, SEND_ROWS))
            for chunk in chunks
            for at in range(0, chunk.num_rows, SEND_ROWS)
        ]
    return sum(extent.end - extent.start for each in sent for extent in each.result().values())


def consume_arrow(client: KafkaClient, topic: str, count: int) -> int:
    """Every record as Arrow columns, by a member of a group that commits."""
    found = 0
    with client.consumer(topic, f"of-{topic}", auto_offset_reset="earliest") as consumer:
        while found < count:
            rows = consumer.poll()
            found += rows.num_rows if rows is not None else 0
    return found


def produce_messages(bootstrap: str, topic: str, keys: list[bytes], value: bytes, count: int) -> int:
    """The same records one by one, idempotent and acks=all as well, in large batches."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
        }
    )  # fmt: skip
    for number in range(count):
        while True:
            try:
                producer.produce(topic, value, keys[number % len(keys)])
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0
    return count


def copy(bootstrap: str, topic: str) -> int:
    """Every record in a directory."""
    with tempfile.TemporaryDirectory(prefix="pylog-bench-") as directory:
        return sum(copied.records for copied in mirror(bootstrap, directory, topics=[topic]))


def measure(bootstrap: str, value_bytes: int, megabytes: int, rounds: int) -> list[list[str]]:
    """The rows of one size of values."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    count = megabytes * 1_000_000 // value_bytes
    value = bytes(value_bytes)
    keys = [b"%08d" % n for n in range(CHUNK_ROWS)]
    chunks = [
        pa.table(
            {
                "key": pa.array(keys[: min(CHUNK_ROWS, count - at)]),
                "value": pa.array([value] * min(CHUNK_ROWS, count - at)),
            }
        )
        for at in range(0, count, CHUNK_ROWS)
    ]
    sides: dict[str, list[float]] = {
        name: [] for name in ("append", "send", "produce", "read", "poll", "consume", "mirror")
    }
    with KafkaClient(bootstrap) as client:
        for number in range(rounds + 1):  # the first one warms up
            topics = [f"v{value_bytes}-{number}-{side}" for side in ("ours", "sent", "theirs")]
            for future in admin.create_topics([NewTopic(t, PARTITIONS, 1) for t in topics]).values():
                future.result()
            ours, sends, theirs = topics
            found = {
                "append": cpu_s(lambda ours=ours: append_arrow(client, ours, chunks)),
                "produce": cpu_s(lambda theirs=theirs: produce_messages(bootstrap, theirs, keys, value, count)),
                "send": cpu_s(lambda sends=sends: produce_arrow(client, sends, chunks)),
                "poll": cpu_s(lambda ours=ours: consume_arrow(client, ours, count)),
                "read": cpu_s(lambda ours=ours: read_arrow(client, ours)),
                "consume": cpu_s(lambda ours=ours: read_messages(bootstrap, ours, count)),
                "mirror": cpu_s(lambda ours=ours: copy(bootstrap, ours)),
            }
            assert all(done == count for done, _ in found.values()), found
            if number:
                for side, (_, seconds) in found.items():
                    sides[side].append(seconds)
            for future in admin.delete_topics(topics).values():
                future.result()
    rows = []
    for ours, theirs, goal in (
        ("read", ("consume",), (8, 2.5)),
        ("poll", ("consume",), (8, 2.5)),
        ("append", ("produce",), (8, 2.5)),
        ("send", ("produce",), (8, 2.5)),
        ("mirror", ("consume", "produce"), (4, 2)),
    ):
        taken = [sum(seconds) for seconds in zip(*(sides[name] for name in theirs), strict=True)]
        own, peer = statistics.median(sides[ours]), statistics.median(taken)
        spread = max(taken) / min(taken)
        rows.append(
            [
                f"{ours} ({' + '.join(theirs)}), {value_bytes} B",
                f"{count / own / 1e6:.2f} M/CPU s",
                f"{count / peer / 1e6:.2f} M/CPU s",
                f"{peer / own:.1f}",
                f"{goal[0] if value_bytes < 1000 else goal[1]}",
                f"{spread:.2f}",
            ]
        )
    return rows


def main() -> None:
    """Print one row for each way and size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--path", type=Path)
    options = parser.parse_args()
    directory = options.path or Path(tempfile.mkdtemp(prefix="pylog-bench-"))
    with LocalCluster(1, directory) as cluster:
        rows = [
            row for size in (100, 1000) for row in measure(cluster.bootstrap, size, options.megabytes, options.rounds)
        ]
    show("A client of one broker", ["what", "pylog", "confluent-kafka", "ratio", "goal", "noise"], rows)


if __name__ == "__main__":
    main()
