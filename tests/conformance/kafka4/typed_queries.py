"""A program: Spark reads and writes columns over a Kafka whose schemas another registry has.

    python -m tests.conformance.kafka4.typed_queries BOOTSTRAP REGISTRY JARS DIRECTORY [killed]

It prints one line of JSON for each step: its name, and what was found. With `killed` it only starts the stream whose
dead letters are kept, and kills all of itself as soon as there are some.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from replication.client.kafka_client import KafkaClient
from tests.conformance.kafka4.spark_queries import session
from tests.conformance.kafka4.worlds import COLUMNS, STRATEGIES, plain

WAIT_S = 300
BATCH = 30  # records of a micro-batch that dies
FITTING = "user string, n int, amount decimal(10,2)"
KEYED = {"value.format": "json", "key.format": "raw", "key.fields": "user"}
TYPES = (
    "yes boolean, small tinyint, few int, many bigint, about double, price decimal(20,4), text string, raw binary, "
    "day date, at timestamp, local timestamp_ntz, list array<int>, named map<string,bigint>, "
    "part struct<x:int,y:string>"
)
ROWS = (
    "id % 2 = 0 yes",
    "cast(id % 100 - 50 as tinyint) small",
    "if(id % 7 = 0, null, cast(id as int)) few",
    "id * 4611686018427387 many",
    "id / 3 about",
    "cast(id * 12345678.0123 as decimal(20,4)) price",
    "if(id % 5 = 0, null, concat('\"\\\\ü€\\n', id)) text",
    "encode(string(id), 'utf-8') raw",
    "date_add(date'1999-12-31', cast(id as int)) day",
    "timestamp_micros(id * 1234567890123) at",
    "cast(timestamp_micros(id * 98765432101) as timestamp_ntz) local",
    "if(id % 3 = 0, null, array(cast(id as int), null)) list",
    "map(string(id), id) named",
    "if(id % 4 = 0, null, named_struct('x', cast(id as int), 'y', 'why')) part",
)


os.environ["TZ"] = "UTC"  # Spark collects times in that of the process


def main(bootstrap, registry, jars, directory, mode=""):
    spark = session(jars)
    queries = Queries(spark, bootstrap, registry, Path(directory))
    if mode == "killed":
        queries.die_with_letters()
    for step in (
        queries.kept,
        queries.modes,
        queries.latest,
        queries.json,
        queries.avro,
        queries.worlds,
        queries.evolved,
    ):
        print(json.dumps([step.__name__, step()]), flush=True)
    spark.stop()


class Queries:
    """Each step returns what it found."""

    def __init__(self, spark, bootstrap, registry, directory):
        self._spark = spark
        self._over = {"kafka.bootstrap.servers": bootstrap}
        self._registered = self._over | {"schema.registry.url": registry, "typed": "true"}
        self._bootstrap, self._registry = bootstrap, registry
        self._directory = directory

    def _fitting(self, size):
        stream = self._spark.readStream.format("pylog").schema(FITTING).options(**self._over, **KEYED)
        options = {
            "subscribe": "fit",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": size,
            "dlq.topic": "unfit",
        }
        sink = (
            stream.options(**options).load().writeStream.format("pylog").options(**self._over, **KEYED, topic="fitted")
        )
        return sink.option("checkpointLocation", str(self._directory / "checkpoint"))

    def die_with_letters(self):
        self._fitting(BATCH).start()
        deadline = time.monotonic() + WAIT_S
        with KafkaClient(self._bootstrap) as client:
            while "unfit" not in client.topics() or client.extents("unfit")[0].end < 1:
                assert time.monotonic() < deadline, "no dead letter came"
        os.killpg(0, signal.SIGKILL)

    def kept(self):
        """The stream goes on where it died, up to the end."""
        query = self._fitting(100_000).trigger(availableNow=True).start()
        assert query.awaitTermination(WAIT_S)
        return query.id

    def modes(self):
        """Each mode with the records that do not fit."""
        try:
            self._read("fit", FITTING).collect()
            told = ""
        except PySparkException as error:
            told = str(error)
        shown = self._read("fit", f"{FITTING}, _corrupt_record string", mode="PERMISSIVE")
        corrupt = sorted(
            row[0] for row in shown.where("_corrupt_record IS NOT NULL").select("_corrupt_record").collect()
        )
        kept = {"dlq.topic": "audited", "dlq.name": "audit"}
        counts = [self._read("fit", FITTING, **kept).count() for _ in range(2)]
        return [told, corrupt, shown.count(), self._read("fit", FITTING, mode="DROPMALFORMED").count(), *counts]

    def latest(self):
        """The last record of each key."""
        found = {}
        for topic in ("changed", "compacted"):
            rows = self._spark.read.format("pylog").options(**self._over, subscribe=topic, view="latest").load()
            columns = "string(key)", "string(value)", "partition", "offset", "unix_millis(timestamp)"
            found[topic] = sorted(map(list, rows.selectExpr(*columns).collect()))
        return found

    def json(self):
        """Columns that were written, as Spark's own source with `from_json` and ours read them, as text."""
        frame = self._spark.range(1, 500).selectExpr(*ROWS)
        sink = frame.write.format("pylog").options(**self._over, **{"value.format": "json"}, topic="json")
        sink.mode("append").save()
        theirs = self._spark.read.format("kafka").options(**self._over, subscribe="json").load()
        parsed = theirs.select(f.from_json(f.expr("cast(value as string)"), TYPES, {"mode": "FAILFAST"}).alias("c"))
        options = {"subscribe": "json", "value.format": "json"}
        ours = self._spark.read.format("pylog").schema(TYPES).options(**self._over, **options).load()
        return [sorted(str(row) for row in rows.collect()) for rows in (frame, parsed.select("c.*"), ours)]

    def avro(self):
        """Confluent's records, which are written again."""
        orders = self._spark.read.format("pylog").options(**self._registered, subscribe="avro-spark").load()
        orders.write.format("pylog").options(**self._registered, topic="avro-spark").mode("append").save()
        return orders.where("amount = 12.5 AND kind = 'TEA' AND size(tags) = 0").count()

    def worlds(self):
        """Records of every logical type, by the schemas of the topic, and two kinds of records by declared columns."""
        place = {name: value for name, value in self._registered.items() if name != "typed"}
        found = {}
        for topic in STRATEGIES:
            reader = self._spark.read.format("pylog").options(**place, subscribe=topic)
            typed = (
                reader.option("typed", True)
                if topic == "visits"
                else reader.schema(COLUMNS).option("value.format", "avro-confluent")
            )
            frame = typed.load()
            found[topic] = [list(map(list, frame.dtypes)), *(row.asDict(recursive=True) for row in frame.collect())]
        return plain(found)

    def evolved(self):
        """Two streams that meet a newer schema: one keeps its columns, one ends, and is started again."""
        self._evolve(1, "a")
        fixed, restart = self._evolving("fixed"), self._evolving("restart")
        fixed.processAllAvailable()
        restart.processAllAvailable()
        self._evolve(2, "b")
        deadline = time.monotonic() + WAIT_S
        while restart.isActive:
            assert time.monotonic() < deadline, "the query does not end"
            time.sleep(0.05)
        told = str(restart.exception())
        again = self._evolving("restart")
        self._evolve(2, "c")
        for query in (fixed, again):
            query.processAllAvailable()
            query.stop()
        rows = (
            self._spark.read.option("mergeSchema", True).parquet(str(self._directory / way))
            for way in ("fixed", "restart")
        )
        return [told, *(sorted(map(list, found.collect())) for found in rows)]

    def _evolving(self, way):
        options = {"subscribe": "evolved", "startingOffsets": "earliest", "schema.evolution": way}
        frame = self._spark.readStream.format("pylog").options(**self._registered, **options).load()
        sink = frame.writeStream.format("parquet").option("checkpointLocation", str(self._directory / f"of-{way}"))
        return sink.start(str(self._directory / way))

    def _evolve(self, version, letter):
        fields = [{"name": "user", "type": "string"}, {"name": "n", "type": "int"}]
        fields += [{"name": "more", "type": ["null", "string"], "default": None}] if version == 2 else []
        schema = json.dumps({"type": "record", "name": "Evolved", "fields": fields})
        producer = Producer({"bootstrap.servers": self._bootstrap})
        with SchemaRegistryClient({"url": self._registry}) as client:
            serialize = AvroSerializer(client, schema)
            for n in range(20):
                row = {"user": f"{letter}{n}", "n": n, "more": f"more {n}"}
                producer.produce("evolved", value=serialize(row, SerializationContext("evolved", MessageField.VALUE)))
        assert producer.flush(WAIT_S) == 0

    def _read(self, topic, schema, **options):
        given = self._over | KEYED | {"subscribe": topic} | options
        return self._spark.read.format("pylog").schema(schema).options(**given).load()


if __name__ == "__main__":
    main(*sys.argv[1:])
