"""The cost of checking the CRCs of every fetch: CPU of a broker per MB served, and of the check per MB.

`python tests/benchmarks/bench_fetch_crc.py [MB]`. The broker is a process of its own, which a consumer reads from the
beginning to the end; all of it is in the page cache. Decision 41 rests on these numbers.
"""

import os
import sys
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

sys.path.insert(0, str(Path(__file__).parents[2]))

from logstore.config import LogConfig
from logstore.env import Env
from logstore.log.log import Log
from logstore.log.segments.directory import topic_id_of
from logstore.log.soundness import checked
from replication.local_cluster import LocalCluster
from tests.benchmarks.harness import show

ROUNDS = 5
SIZES = ((1, 100), (10, 100), (160, 100), (1000, 1000))  # records per batch, bytes per record


def cpu_s(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def fill(bootstrap, topic, records, size, total):
    producer = Producer(
        {"bootstrap.servers": bootstrap, "batch.num.messages": records, "linger.ms": 50, "batch.size": 10 << 20,
         "message.max.bytes": 10 << 20, "queue.buffering.max.messages": 1_000_000}
    )  # fmt: skip
    for _ in range(total // size):
        producer.produce(topic, os.urandom(size))
        producer.poll(0)
        while len(producer) > 500_000:
            producer.poll(0.1)
    producer.flush(300)


def drain(bootstrap, topic, end):
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "-", "fetch.message.max.bytes": 1 << 20,
         "queued.max.messages.kbytes": 1 << 18}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = 0
    while found < end:
        found += len(consumer.consume(10_000, 5))
    consumer.close()


def read_all(directory, check):
    log = Log.open(directory, topic_id=topic_id_of(directory, Env()), config=LogConfig(), env=Env())
    offset, end, seconds = 0, log.log_end_offset, 0.0
    while offset < end:
        found = log.read(offset, max_bytes=1 << 20)
        begin = time.thread_time()
        if check:
            checked(found)
        seconds += time.thread_time() - begin
        offset = found.next_offset
    return seconds


def main(total):
    rows = []
    with LocalCluster(1) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        for records, size in SIZES:
            topic = f"r{records}x{size}"
            for made in admin.create_topics([NewTopic(topic, 1, 1)]).values():
                made.result()
            fill(cluster.bootstrap, topic, records, size, total)
            directory = cluster.log_dir(1) / f"{topic}-0"
            megabytes = sum(path.stat().st_size for path in directory.glob("*.log")) / 1e6
            served, checks = [], []
            for _ in range(ROUNDS):
                before = cpu_s(cluster.pid(1))
                drain(cluster.bootstrap, topic, total // size)
                served.append(cpu_s(cluster.pid(1)) - before)
                checks.append(read_all(directory, check=True))
            serve, check = sorted(served)[ROUNDS // 2], sorted(checks)[ROUNDS // 2]
            rows.append(
                (
                    f"{records} × {size} B",
                    megabytes,
                    serve / megabytes * 1000,
                    check / megabytes * 1000,
                    check / serve,
                )
            )
    show("A fetch, and its CRCs", ("batch", "MB", "serve, ms CPU/MB", "check, ms CPU/MB", "more"), rows)


if __name__ == "__main__":
    main(int(sys.argv[1] if len(sys.argv) > 1 else 100) * 1_000_000)
