"""The balance of each account: a query in update mode writes the accounts that changed into a compacted topic."""

import sys
import tempfile

from pyspark.sql import functions as f

import datasource
import logstore

place = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
log, checkpoint = f"{place}/log", f"{place}/checkpoint"
store = logstore.open(log)
store.create_topic("transfers", partitions=2)
store.create_topic("balances", config={"cleanup.policy": "compact"})

spark = datasource.spark_session(**{"spark.sql.shuffle.partitions": 2})  # little data
transfers = spark.readStream.format("pylog").options(path=log, subscribe="transfers", startingOffsets="earliest").load()
amounts = transfers.selectExpr("string(key) AS account", "cast(string(value) AS decimal(12, 2)) AS amount")
balances = amounts.groupBy("account").sum("amount").withColumnRenamed("sum(amount)", "balance")


def update():
    writer = datasource.upsert(balances, log, topic="balances", key="account", value="text", checkpoint=checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


balances = balances.selectExpr("account", "string(balance) AS text")
store.append("transfers", [{"key": "Ada", "value": "100.00"}, {"key": "Bob", "value": "20.50"}])
update()
store.append("transfers", [{"key": "Ada", "value": "-30.25"}])
update()  # writes Ada alone

rows = spark.read.format("pylog").options(path=log, subscribe="balances").load()
latest = rows.groupBy(rows.key.cast("string").alias("account"))  # its last record, as a compaction leaves it
latest = latest.agg(f.max_by(rows.value.cast("string"), "offset").alias("balance"), f.count("*").alias("writes"))
latest.sort("account").show()
store.close()
