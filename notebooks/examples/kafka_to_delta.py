"""A topic of a Kafka into a pylog directory, exactly once, and from there into a Delta table.

Give the address of your Kafka as the second argument; without one a broker of pylog stands in for it.
"""

import sys
import tempfile
from contextlib import ExitStack

import datasource
import logstore
from datasource.jobs import tiering
from replication.client.kafka_client import KafkaClient
from replication.local_cluster import LocalCluster

place = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
log, checkpoint = f"{place}/log", f"{place}/checkpoint"
with ExitStack() as stack:
    kafka = sys.argv[2] if len(sys.argv) > 2 else stack.enter_context(LocalCluster(1)).bootstrap
    with KafkaClient(kafka) as client:
        client.create_topic("sales", partitions=2)
        client.append("sales", [{"key": f"shop {n % 3}", "value": f"{n}.00"} for n in range(100)])

    with logstore.open(log) as store:
        store.create_topic("sales", partitions=2, config={"segment.bytes": 4096})

    spark = datasource.spark_session()
    source = {"kafka.bootstrap.servers": kafka, "subscribe": "sales", "startingOffsets": "earliest"}
    rows = spark.readStream.format("pylog").options(**source).load().select("key", "value", "partition", "timestamp")
    writer = rows.writeStream.format("pylog").options(path=log, topic="sales", checkpointLocation=checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()

# Tiering takes segments that are full; retention may delete them afterwards, with `remote.storage.enable` only then.
tiering.run(spark, path=log, topics="sales").select("topic", "partition", "status").show()
both = spark.read.format("pylog").options(path=log, subscribe="sales", includeTiered="true").load()
print(both.count(), "records in the Delta table and the log behind it, each once")
