"""Spark over Kafka topics: pylog's source and sink beside Spark's own, and Spark's real-time mode over pylog's brokers.

    python tests/benchmarks/bench_spark_kafka.py [--only tables,live] [--records 1000000] [--bytes 100] [--rounds 5]

*tables*: one real Kafka 4.4, one session, the same query through both sources in turns, and Spark's a second time, for
the noise: a count, a sum over all values, documents as JSON that are aggregated, a stream of all that is there, a
batch write. *live*: the real-time mode, which only Spark's own source has, from topic to topic, at 50 records a second:
the time from the call that sends a record to the one that gets its copy; on three brokers of pylog and on three of a
Kafka 4.4 in turns, the Kafka a second time. It needs Maven, and Java 17.
"""

import argparse
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import functions as f

from replication.local_cluster import LocalCluster
from tests.benchmarks.harness import AGAIN, interleave, ratio, show
from tests.benchmarks.real_kafka import Kafka44, create
from tests.conformance.kafka4.spark_queries import session
from tests.support.kafka4 import spark_jars

PARTITIONS, PER_SECOND, ENDED_WITHIN_S = 6, 50, 120
SOURCES = {"ours": "pylog", "peer": "kafka", AGAIN: "kafka"}
DOCUMENT = "id long, kind string, n int"


def fill(bootstrap, topic, count, value_bytes):
    client = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "batch.size": 262144})
    for number in range(count):
        head = b'{"id": %d, "kind": "tea", "n": %d, "rest": "' % (number, number % 10)
        value = head.ljust(value_bytes - 2, b"x") + b'"}'
        while True:
            try:
                client.produce(topic, value, key=b"k%d" % (number % 1000), partition=number % PARTITIONS)
                break
            except BufferError:
                client.poll(0.01)
    assert client.flush(300) == 0


class Tables:
    """The same queries of one topic through a source by its name."""

    def __init__(self, spark, bootstrap):
        self._spark = spark
        self._over = {"kafka.bootstrap.servers": bootstrap}

    def _read(self, source):
        return self._spark.read.format(source).options(**self._over, subscribe="in").load()

    def count(self, source):
        self._read(source).count()

    def sum_of_lengths(self, source):
        self._read(source).select(f.sum(f.length("value"))).collect()

    def json(self, source):
        documents = self._read(source).select(f.from_json(f.col("value").cast("string"), DOCUMENT).alias("v"))
        documents.groupBy("v.n").agg(f.sum("v.id")).collect()

    def stream(self, source):
        frame = self._spark.readStream.format(source).options(**self._over, subscribe="in", startingOffsets="earliest")
        with tempfile.TemporaryDirectory() as place:
            written = frame.load().selectExpr("length(value) n").writeStream.format("noop")
            written.option("checkpointLocation", place).trigger(availableNow=True).start().awaitTermination()

    def write(self, source):
        rows = self._spark.read.format("kafka").options(**self._over, subscribe="in").load().select("key", "value")
        rows.write.format(source).options(**self._over, topic=f"out-{source}").mode("append").save()


def tables(spark, room, given):
    """Return a row for each query, with the seconds of both sources."""
    rows = []
    with Kafka44(1, room / "tables", {}) as kafka:
        for topic in ("in", "out-pylog", "out-kafka"):
            create(kafka.bootstrap, topic, PARTITIONS, 1)
        fill(kafka.bootstrap, "in", given.records, given.bytes)
        queries = Tables(spark, kafka.bootstrap)
        for query in (queries.count, queries.sum_of_lengths, queries.json, queries.stream, queries.write):
            works = {name: partial(query, source) for name, source in SOURCES.items()}
            took = interleave(works, rounds=given.rounds)
            medians = [statistics.median(took[name]) for name in ("ours", "peer")]
            judged = ratio(took["ours"], took["peer"]), ratio(took[AGAIN], took["peer"])
            rows.append([query.__name__, *medians, *judged])
            print(*rows[-1], file=sys.stderr, flush=True)
    return rows


def copying(spark, bootstrap, place):
    """Return a query of the real-time mode that copies one topic to another."""
    over = {"kafka.bootstrap.servers": bootstrap}
    frame = spark.readStream.format("kafka").options(**over, subscribe="live", startingOffsets="latest").load()
    written = frame.select("key", "value").writeStream.format("kafka").outputMode("update")
    written = written.options(**over, topic="live-out", checkpointLocation=str(place))
    return written.trigger(realTime="5 minutes").start()


class Live:
    """Both ends of such a query on one cluster."""

    def __init__(self, bootstrap):
        over = {"bootstrap.servers": bootstrap, "log_level": 0}
        self._sender = Producer({**over, "acks": "all", "linger.ms": 0})
        self._receiver = Consumer({**over, "group.id": "-", "enable.auto.commit": False})
        self._receiver.assign([TopicPartition("live-out", number, 0) for number in range(2)])

    def close(self):
        self._sender.flush(10)
        self._receiver.close()

    def wait(self):
        """Return once records come through; those before the query began do not."""
        first, until_s = time.time_ns(), time.monotonic() + ENDED_WITHIN_S
        while not self._received(first):
            assert time.monotonic() < until_s, "no record came through"
            for partition in range(2):
                self._send(partition)
            time.sleep(0.1)

    def times_ms(self, count):
        """Send so many records, and return the time until each came back, sorted; records of before are dropped."""
        first, sent, found = time.time_ns(), 0, list[float]()
        begin, until_s = time.perf_counter(), time.monotonic() + count / PER_SECOND + ENDED_WITHIN_S
        while len(found) < count:
            assert time.monotonic() < until_s, f"{len(found)} of {count} records came"
            while sent < count and time.perf_counter() >= begin + sent / PER_SECOND:
                self._send(sent % 2)
                sent += 1
            if at_ns := self._received(first):
                found.append((time.time_ns() - at_ns) / 1e6)
        return sorted(found)

    def _send(self, partition):
        self._sender.produce("live", str(time.time_ns()).encode(), partition=partition)
        self._sender.poll(0)

    def _received(self, first_ns):
        """Return when the record that comes was sent, if one comes, and it is not older; else 0."""
        message = self._receiver.poll(0.001)
        sent_ns = int(message.value()) if message is not None and message.error() is None else 0
        return sent_ns if sent_ns >= first_ns else 0


def live(spark, room, given):
    """Return a row for each mark, with the milliseconds of both clusters."""
    found = {name: [] for name in SOURCES}
    with ExitStack() as ends:
        ours = ends.enter_context(LocalCluster(3)).bootstrap
        kafka = ends.enter_context(Kafka44(3, room / "live", {})).bootstrap
        for bootstrap in (ours, kafka):
            for topic in ("live", "live-out"):
                create(bootstrap, topic, 2, 3)
        clusters = {"ours": ours, "peer": kafka}
        reached = {name: ends.enter_context(closing(Live(place))) for name, place in clusters.items()}
        for number in range(1 + given.rounds):
            for name, marks in found.items():
                side = "ours" if name == "ours" else "peer"
                query = copying(spark, clusters[side], room / f"checkpoint-{name}-{number}")
                reached[side].wait()
                times = reached[side].times_ms(given.seconds * PER_SECOND)
                query.stop()
                if number:  # the first round warms up
                    marks.append([times[len(times) // 2], times[int(len(times) * 0.99)]])
    rows = []
    for at, mark in enumerate(("p50", "p99")):
        took = {name: [marks[at] for marks in rounds] for name, rounds in found.items()}
        medians = [statistics.median(took[name]) for name in ("ours", "peer")]
        rows.append([mark, *medians, ratio(took["ours"], took["peer"]), ratio(took[AGAIN], took["peer"])])
    return rows


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", default="tables,live")
    options.add_argument("--records", type=int, default=1_000_000)
    options.add_argument("--bytes", type=int, default=100)
    options.add_argument("--seconds", type=int, default=20, help="of live records in a round")
    options.add_argument("--rounds", type=int, default=5)
    given = options.parse_args()
    spark = session(spark_jars())
    with tempfile.TemporaryDirectory() as name:
        if "tables" in given.only:
            title = f"{given.records:,} records of {given.bytes} B in a Kafka 4.4, read and written by Spark"
            columns = ("query", "pylog's source, s", "Spark's own, s", "ratio", "noise")
            show(title, columns, tables(spark, Path(name), given))
        if "live" in given.only:
            title = f"Spark's real-time mode, topic to topic, {PER_SECOND} records a second, three brokers"
            show(title, ("", "pylog, ms", "Kafka 4.4, ms", "ratio", "noise"), live(spark, Path(name), given))
    spark.stop()


if __name__ == "__main__":
    main()
