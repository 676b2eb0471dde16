"""Spark's API without Java: Sail runs it. Count, group by, write and read back.

pip install pyspark-pylog "pyspark[connect]" pysail
python no_jvm.py data
"""

import json
import sys
from pathlib import Path

from pysail.spark import SparkConnectServer
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, functions

import datasource
import logstore
from datasource.jobs import verify

path = str(Path(sys.argv[1]).absolute())
with logstore.open(path) as store:
    store.create_topic("orders", partitions=3, if_not_exists=True)
    store.create_topic("counts", if_not_exists=True)

server = SparkConnectServer("127.0.0.1", 0)
server.start(background=True)
host, port = server.listening_address
spark = SparkSession.builder.remote(f"sc://{host}:{port}").getOrCreate()
datasource.register(spark, path)

orders = spark.createDataFrame([("Ada", "tea"), ("Bob", "milk"), ("Ada", "cake")], "key string, value string")
orders.write.format("pylog").options(path=path, topic="orders").mode("append").save()
counts = spark.sql("SELECT string(key) AS key, string(count(*)) AS value FROM orders GROUP BY key")
counts.repartition(1).write.format("pylog").options(path=path, topic="counts").mode("append").save()
back = spark.read.format("pylog").options(path=path, subscribe="counts", columns="key,value").load()
texts = back.select(functions.col("key").cast("string"), functions.col("value").cast("string"))

found = {
    "counts": {row["key"]: int(row["value"]) for row in counts.collect()},
    "read back": {row["key"]: row["value"] for row in texts.collect()},
    "view": spark.sql("SELECT count(*) FROM orders").collect()[0][0],
    "verify": sorted({row["status"] for row in verify.run(spark, path=path).collect()}),
}

try:  # a mistake is the first line of its error
    spark.read.format("pylog").options(path=path, subscribe="ordrs").load().collect()
except PySparkException as error:
    found["mistake"] = str(error)
try:  # batch only
    stream = spark.readStream.format("pylog").options(path=path, subscribe="orders").load()
    query = stream.writeStream.format("pylog").options(
        path=path, topic="counts", checkpointLocation=f"{path}/checkpoint"
    )
    query.trigger(availableNow=True).start().awaitTermination(10)
    found["stream"] = "no error"
except PySparkException as error:
    found["stream"] = str(error)
print(json.dumps(found))
spark.stop()
server.stop()
