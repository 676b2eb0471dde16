"""Spark's API without Java: Sail reads a topic, counts, and writes the counts to another one."""

import sys
import tempfile

from pysail.spark import SparkConnectServer

import datasource
import logstore

place = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
log = f"{place}/log"
with logstore.open(log) as store:
    store.create_topic("orders", partitions=3)
    store.create_topic("counts")
    store.append("orders", [{"key": "Ada", "value": "tea"}, {"key": "Bob", "value": "milk"}])

server = SparkConnectServer("127.0.0.1", 0)  # in this process; `sail spark server` starts one of its own
server.start(background=True)
host, port = server.listening_address
spark = datasource.spark_session(**{"spark.remote": f"sc://{host}:{port}"})

cake = spark.sql("SELECT 'Ada' AS key, 'cake' AS value")
cake.write.format("pylog").options(path=log, topic="orders").mode("append").save()

datasource.register(spark, log)  # views of all topics
counts = spark.sql("SELECT key, string(count(*)) AS value FROM orders GROUP BY key")
counts.write.format("pylog").options(path=log, topic="counts").mode("append").save()

back = spark.read.format("pylog").options(path=log, subscribe="counts").load()
back.selectExpr("string(key) AS key", "string(value) AS orders").sort("key").show()
print(datasource.count(spark, path=log, subscribe="orders"), "orders")

spark.stop()
server.stop()
