"""A program: Spark reads and writes a Kafka with our source, and reads what is there with its own, too.

    python -m tests.conformance.kafka4.spark_queries BOOTSTRAP JARS DIRECTORY

It prints one line of JSON for each step: its name, and what was found. The file `streaming` appears in the directory
when a stream has written its first batch.
"""

import hashlib
import json
import sys
import time
from collections import Counter
from pathlib import Path

from pyspark.sql import functions as f

from datasource import spark_session
from tests.spark.kills.query import QUICK

COUNT, STREAMED, TRIGGERS = 24_000, 100_000, 8
ROWS = "cast(id as string) key", "concat(lpad(cast(id as string), 10, '0'), repeat('x', 90)) value"
COLUMNS = (
    "if(id % 3 = 0, null, encode(string(id), 'utf-8')) key",
    "if(id % 5 = 0, null, encode(concat('v', id), 'utf-8')) value",
    "cast(id % 2 as int) partition",
    "timestamp_millis(id * 1000) timestamp",
    "if(id % 2 = 0, array(named_struct('key', 'h', 'value', encode(string(id), 'utf-8')), "
    "named_struct('key', 'h', 'value', cast(null as binary))), null) headers",
)


def session(jars):
    """A session with these jars."""
    spark = spark_session(
        master="local[2]",
        **{
            "spark.jars": ",".join(sorted(str(p) for p in Path(jars).glob("*.jar") if "slf4j" not in p.name)),
            **QUICK,
            "spark.ui.enabled": False,
            "spark.sql.session.timeZone": "UTC",
        },
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def main(bootstrap, jars, directory):
    spark = session(jars)
    queries = Queries(spark, bootstrap, Path(directory))
    for step in (queries.large, queries.once, queries.columns, queries.committed, queries.streamed, queries.bounded):
        print(json.dumps([step.__name__, step()]), flush=True)
    spark.stop()


class Queries:
    """Each step returns pairs that have to be equal: what there is, and what there should be."""

    def __init__(self, spark, bootstrap, directory):
        self._spark = spark
        self._over = {"kafka.bootstrap.servers": bootstrap}
        self._directory = directory

    def large(self):
        """Many batches into one partition, without a transaction, uncompressed and compressed."""
        found = []
        for codec in ("none", "zstd"):
            self._write(self._numbers(), "large-" + codec, exactlyOnce=False, compression=codec)
            found += [self._counted("kafka", "large-" + codec), self._counted("pylog", "large-" + codec)]
        return [[counted, [COUNT, COUNT, COUNT]] for counted in found]

    def once(self):
        """Many batches a partition in transactions; the same write again adds nothing."""
        for _ in range(2):
            self._write(self._numbers(), "once", txnId="write", txnVersion=1)
        committed = {"kafka.isolation.level": "read_committed"}
        found = [self._counted("kafka", "once", **committed), self._counted("pylog", "once")]
        return [[counted, [COUNT, COUNT, COUNT]] for counted in found]

    def columns(self):
        """Every column, by both sources, and the schema."""
        frame = self._spark.range(2000).selectExpr(*COLUMNS)
        self._write(frame, "columns", exactlyOnce=False)
        ours, theirs = (
            self._read(source, "columns", includeHeaders=True).orderBy("partition", "offset")
            for source in ("pylog", "kafka")
        )
        return [
            [_hashed(ours), _hashed(theirs)],
            [ours.schema.simpleString(), theirs.schema.simpleString()],
            [_hashed(ours.select(frame.columns)), _hashed(frame)],
        ]

    def committed(self):
        """The committed records, with the aborted ones, by each level."""
        found = []
        for ours, theirs in (("read_committed",) * 2, ("read_uncommitted",) * 2):
            mine = self._read("pylog", "aborted", isolation=ours)
            spark = self._read("kafka", "aborted", **{"kafka.isolation.level": theirs})
            found.append([_hashed(mine), _hashed(spark)])
            found.append([mine.count(), 500 if ours == "read_committed" else 1000])
        return found

    def streamed(self):
        """A stream that writes many batches a partition in each of its own, while a broker dies."""
        self._write(self._numbers(STREAMED), "source", exactlyOnce=False)
        source = self._spark.readStream.format("pylog").options(**self._over, subscribe="source")
        frame = source.options(startingOffsets="earliest", maxOffsetsPerTrigger=STREAMED // TRIGGERS).load()
        sink = frame.select("key", "value").writeStream.format("pylog").options(**self._over, topic="streamed")
        sink = sink.option("checkpointLocation", str(self._directory / "checkpoint")).trigger(availableNow=True)
        query = sink.start()
        while query.isActive and not query.recentProgress:
            time.sleep(0.05)
        (self._directory / "streaming").touch()
        query.awaitTermination()
        in_time = (self._directory / "killed").exists()
        found = [self._counted("kafka", "streamed", **{"kafka.isolation.level": "read_committed"})]
        found.append(self._counted("pylog", "streamed"))
        whole = [[counted, [STREAMED] * 3] for counted in found]
        return [*whole, [in_time, True], [len([p for p in query.recentProgress if p.numInputRows]), TRIGGERS]]

    def bounded(self):
        """Reads between offsets and times."""
        found = []
        for options in (
            {"startingOffsets": '{"columns":{"0":100,"1":-2}}', "endingOffsets": '{"columns":{"0":900,"1":-1}}'},
            {"startingTimestamp": "500000"},
            {"startingTimestamp": "500000", "endingTimestamp": "900000"},
            {"startingOffsetsByTimestamp": '{"columns":{"0":0,"1":1500000}}'},
        ):
            found.append([_hashed(self._read(source, "columns", **options)) for source in ("pylog", "kafka")])
        return found

    def _numbers(self, count=COUNT):
        return self._spark.range(0, count, 1, 2).selectExpr(*ROWS)

    def _write(self, frame, topic, **options):
        frame.write.format("pylog").options(**self._over, topic=topic, **options).mode("append").save()

    def _read(self, source, topic, **options):
        return self._spark.read.format(source).options(**self._over, subscribe=topic, **options).load()

    def _counted(self, source, topic, **options):
        """How many rows, how many different ones, and how many of them are as they were written."""
        frame = self._read(source, topic, **options)
        right = f.expr("cast(value as string) = concat(lpad(cast(key as string), 10, '0'), repeat('x', 90))")
        row = frame.agg(f.count("*"), f.countDistinct("key"), f.count(f.when(right, 1))).collect()[0]
        return list(row)


def _hashed(frame):
    """How many rows, and a hash of them in no order."""
    texts = Counter(str(row.asDict(recursive=True)) for row in frame.collect())
    return [sum(texts.values()), hashlib.sha256(repr(sorted(texts.items())).encode()).hexdigest()]


if __name__ == "__main__":
    main(*sys.argv[1:])
