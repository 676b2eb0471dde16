"""A program: Spark's own Kafka source and sink over brokers of pylog, beside our source.

    python -m tests.conformance.java.spark_jar_queries BOOTSTRAP JARS DIRECTORY

It prints one line of JSON for each step: its name, and pairs that have to be equal.
"""

import json
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
from pyspark.sql import functions as f

from replication.client.kafka_client import KafkaClient
from tests.conformance.kafka4.spark_queries import COLUMNS, session

COUNT, STREAMED, TRIGGERS, LIVE = 2000, 5000, 5, 40
THROUGH_WITHIN_S = 120
FIELDS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


def main(bootstrap, jars, directory):
    spark = session(jars)
    queries = Queries(spark, bootstrap, Path(directory))
    for step in (queries.batch, queries.committed, queries.bounded, queries.streamed, queries.real_time):
        begin = time.monotonic()
        print(json.dumps([step.__name__, step()]), flush=True)
        print(f"{step.__name__}: {time.monotonic() - begin:.1f} s", file=sys.stderr)
    spark.stop()


class Queries:
    """Each step returns pairs: what there is, and what there should be."""

    def __init__(self, spark, bootstrap, directory):
        self._spark, self._bootstrap, self._directory = spark, bootstrap, directory
        self._over = {"kafka.bootstrap.servers": bootstrap}

    def batch(self):
        """Every column, written by Spark's sink, read by both sources."""
        frame = self._spark.range(COUNT).selectExpr(*COLUMNS).drop("timestamp")
        frame.write.format("kafka").options(**self._over, topic="columns", includeHeaders=True).save()
        theirs, ours = self._rows("kafka", "columns"), self._rows("pylog", "columns")
        written = Counter(str(row.asDict(recursive=True)) for row in frame.collect())
        found = self._read("kafka", "columns").select(frame.columns).collect()
        return [
            [theirs, ours],
            [theirs.total(), COUNT],
            [Counter(str(row.asDict(recursive=True)) for row in found) == written, True],
        ]

    def committed(self):
        """The committed records without the aborted ones, and with them."""
        counts = {"read_committed": 500, "read_uncommitted": 1000}
        return [
            [self._rows("kafka", "aborted", **{"kafka.isolation.level": level}).total(), count]
            for level, count in counts.items()
        ]

    def bounded(self):
        """Offsets, times, more tasks than partitions, and topics by a pattern."""
        places = {"startingOffsets": '{"columns":{"0":100,"1":-2}}', "endingOffsets": '{"columns":{"0":300,"1":-1}}'}
        found = [[self._rows(source, "columns", **places) for source in ("kafka", "pylog")]]
        median = f.expr("unix_millis(percentile_approx(timestamp, 0.5))")
        middle = self._read("kafka", "columns").agg(median).collect()[0][0]
        times = {"startingOffsetsByTimestamp": json.dumps({"columns": {"0": middle, "1": middle}})}
        found.append([self._rows(source, "columns", **times) for source in ("kafka", "pylog")])
        split = self._read("kafka", "columns", minPartitions=7)
        found += [[split.count(), COUNT], [split.rdd.getNumPartitions() >= 7, True]]
        pattern = self._spark.read.format("kafka").options(**self._over, subscribePattern="colum.*").load()
        return [*found, [pattern.count(), COUNT]]

    def streamed(self):
        """A stream in micro-batches of a bounded size, from Spark's source to its sink; a second run adds nothing."""
        rows = self._spark.range(STREAMED).selectExpr("cast(id % 10 as string) key", "cast(id as string) value")
        rows.write.format("kafka").options(**self._over, topic="source").save()
        ran = [self._copy("source", "streamed") for _ in range(2)]
        values = Counter(row["value"].decode() for row in self._read("kafka", "streamed").collect())
        return [[ran, [TRIGGERS, 0]], [values == Counter(map(str, range(STREAMED))), True]]

    def _copy(self, source, sink):
        """Copy all there is; return how many micro-batches had records."""
        query = self._stream(source, sink, maxOffsetsPerTrigger=STREAMED // TRIGGERS).trigger(availableNow=True).start()
        query.awaitTermination()
        return len([each for each in query.recentProgress if each.numInputRows])

    def real_time(self):
        """Records come through one by one, while the first batch, of minutes, has not ended."""
        query = self._stream("live", "live-out").outputMode("update").trigger(realTime="5 minutes").start()
        with KafkaClient(self._bootstrap) as client:
            for number in range(LIVE):
                client.append("live", pa.table({"value": [str(number)], "partition": [number % 2]}))
                if number in (0, LIVE - 1):
                    self._wait_for(query, client, number + 1)
            found = Counter(row["value"].decode() for row in self._values(client, "live-out"))
        batches = [each.batchId for each in query.recentProgress]
        query.stop()
        return [[found == Counter(map(str, range(LIVE))), True], [batches, []]]

    def _wait_for(self, query, client, count):
        end_s = time.monotonic() + THROUGH_WITHIN_S
        while sum(extent.end for extent in client.extents("live-out").values()) < count:
            assert query.exception() is None, query.exception()
            assert time.monotonic() < end_s, f"{count} records did not come through"
            time.sleep(0.1)

    def _values(self, client, topic):
        for partition, extent in client.extents(topic).items():
            for batch in client.read(topic, partition, extent.start, extent.end):
                yield from batch.to_pylist()

    def _stream(self, source, sink, **options):
        options |= {**self._over, "subscribe": source, "startingOffsets": "earliest"}
        frame = self._spark.readStream.format("kafka").options(**options).load()
        written = frame.select("key", "value").writeStream.format("kafka")
        place = str(self._directory / f"checkpoint-{sink}")
        return written.options(**self._over, topic=sink, checkpointLocation=place)

    def _read(self, source, topic, **options):
        wanted = {**self._over, "subscribe": topic, "includeHeaders": True, **options}
        return self._spark.read.format(source).options(**wanted).load()

    def _rows(self, source, topic, **options):
        """The rows, in no order."""
        frame = self._read(source, topic, **options).select(*FIELDS)
        return Counter(str(row.asDict(recursive=True)) for row in frame.collect())


if __name__ == "__main__":
    main(*sys.argv[1:])
