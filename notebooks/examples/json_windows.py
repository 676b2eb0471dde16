"""JSON events to counts per window, and back into a topic as JSON."""

import sys
import tempfile

from pyspark.sql import functions as f

import datasource
import logstore

place = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
log, checkpoint = f"{place}/log", f"{place}/checkpoint"
with logstore.open(log) as store:
    store.create_topic("clicks", partitions=2)
    store.create_topic("clicks-per-minute")
    store.append(
        "clicks",
        [
            {"key": user, "value": f'{{"user": "{user}", "page": "{page}", "at": "2026-01-01T12:{time}Z"}}'}
            for user, page, time in [
                ("Ada", "/home", "00:05"),
                ("Bob", "/home", "00:40"),
                ("Ada", "/cart", "01:10"),
                ("Bob", "/cart", "05:00"),  # closes the windows before it
            ]
        ],
    )

spark = datasource.spark_session(**{"spark.sql.shuffle.partitions": 2})  # little data
events = spark.readStream.format("pylog").options(path=log, subscribe="clicks", startingOffsets="earliest").load()
clicks = events.select(f.from_json(f.col("value").cast("string"), "user string, page string, at timestamp").alias("c"))
minutes = (
    clicks.select("c.*")
    .withWatermark("at", "1 minute")
    .groupBy(f.window("at", "1 minute"), "page")
    .agg(f.count("*").alias("clicks"))
    .select(f.col("window.start").alias("minute"), "page", "clicks")
)
rows = minutes.select(f.col("page").alias("key"), f.to_json(f.struct("minute", "page", "clicks")).alias("value"))
query = (
    rows.writeStream.format("pylog")
    .options(path=log, topic="clicks-per-minute", checkpointLocation=checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()

found = spark.read.format("pylog").options(path=log, subscribe="clicks-per-minute").load()
columns = f.from_json(f.col("value").cast("string"), "minute timestamp, page string, clicks long")
found.select(columns.alias("c")).select("c.*").sort("minute", "page").show()
