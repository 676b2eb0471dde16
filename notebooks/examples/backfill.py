"""History by one batch, then a stream that begins where the batch ended: each record once."""

import json
import sys
import tempfile

from pyspark.sql import functions as f

import datasource
import logstore

place = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
log, table, checkpoint = f"{place}/log", f"{place}/table", f"{place}/checkpoint"
store = logstore.open(log)
store.create_topic("events", partitions=2)
store.append("events", [{"key": f"k{n}", "value": f"old {n}"} for n in range(1000)])

ends = {str(partition): found.end for partition, found in store.offsets("events").items()}
border = json.dumps({"events": ends})  # the batch reads up to here, and the stream from here on
store.append("events", [{"key": "k1", "value": "while the batch runs"}])

spark = datasource.spark_session()
source = {"path": log, "subscribe": "events"}
history = spark.read.format("pylog").options(**source, endingOffsets=border).load()
history.select("partition", "offset", "value").write.parquet(table)

tail = spark.readStream.format("pylog").options(**source, startingOffsets=border).load()
writer = tail.select("partition", "offset", "value").writeStream.format("parquet")
query = writer.options(path=table, checkpointLocation=checkpoint).trigger(availableNow=True).start()
query.awaitTermination()

# Spark reads only what the stream wrote unless it is told that the directory has more.
found = spark.read.parquet(f"{table}/*.parquet")
found.select(f.count("*").alias("records"), f.countDistinct("partition", "offset").alias("distinct")).show()
store.close()
