"""Two streams joined: orders, and the payments that come for them within an hour."""

import sys
import tempfile
from datetime import UTC, datetime, timedelta

from pyspark.sql import functions as f

import datasource
import logstore

place = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
log, checkpoint = f"{place}/log", f"{place}/checkpoint"
noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
with logstore.open(log) as store:
    for topic in ("orders", "payments", "paid"):
        store.create_topic(topic)
    for key, minutes in [("A1", 0), ("A2", 5), ("A3", 10)]:
        store.append("orders", {"key": key, "value": "tea", "timestamp": noon + timedelta(minutes=minutes)})
    for key, minutes in [("A1", 20), ("A3", 90)]:  # A2 is never paid, A3 too late
        store.append("payments", {"key": key, "value": "7.50", "timestamp": noon + timedelta(minutes=minutes)})

spark = datasource.spark_session(**{"spark.sql.shuffle.partitions": 2})  # little data


def stream(topic, name):
    rows = spark.readStream.format("pylog").options(path=log, subscribe=topic, startingOffsets="earliest").load()
    columns = f"string(key) AS {name}", f"string(value) AS {name}_value", f"timestamp AS {name}_at"
    return rows.selectExpr(*columns).withWatermark(f"{name}_at", "1 hour")


in_time = f.expr("ordered = paid AND paid_at BETWEEN ordered_at AND ordered_at + INTERVAL 1 HOUR")
paid = stream("orders", "ordered").join(stream("payments", "paid"), in_time)
query = (
    paid.selectExpr("ordered AS key", "concat(ordered_value, ' for ', paid_value) AS value")
    .writeStream.format("pylog")
    .options(path=log, topic="paid", checkpointLocation=checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()

spark.read.format("pylog").options(path=log, subscribe="paid").load().selectExpr("string(key)", "string(value)").show()
