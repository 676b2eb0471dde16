"""A job for cron: each run copies what came since the last one, exactly once, and ends."""

import sys
import tempfile

import datasource
import logstore

place = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
log, checkpoint = f"{place}/log", f"{place}/checkpoint"


def job():
    """Run this from cron: it returns when all that was there at its start is copied."""
    spark = datasource.spark_session()
    rows = spark.readStream.format("pylog").options(path=log, subscribe="raw", startingOffsets="earliest").load()
    upper = rows.selectExpr("key", "upper(string(value)) AS value")
    writer = upper.writeStream.format("pylog").options(path=log, topic="clean", checkpointLocation=checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return sum(progress["numInputRows"] for progress in query.recentProgress)


with logstore.open(log) as store:
    store.create_topic("raw")
    store.create_topic("clean")
    store.append("raw", [{"value": "tea"}, {"value": "milk"}])
    print("first run:", job(), "records")
    print("second run:", job(), "records")
    store.append("raw", [{"value": "sugar"}])
    print("third run:", job(), "record")
    print([bytes(value).decode() for value in store.read("clean").read_all()["value"].to_pylist()])
