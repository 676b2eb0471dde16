"""Orders are kept and counted in tables, and thanked for in another topic, each exactly once."""

from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()
LOG = {"path": str(Path(__file__).parents[1] / "data")}  # for a cluster: {"kafka.bootstrap.servers": "HOST:PORT"}


@dp.temporary_view
def orders() -> DataFrame:
    source = spark.readStream.format("pylog").options(**LOG, subscribe="orders")
    return source.option("startingOffsets", "earliest").load()


@dp.table
def order_history() -> DataFrame:
    columns = "partition", "offset", "timestamp", "string(key) AS who", "string(value) AS what"
    return spark.readStream.table("orders").selectExpr(*columns)


@dp.materialized_view
def orders_by_customer() -> DataFrame:
    return spark.read.table("order_history").groupBy("who").count()


dp.create_sink(name="thanks", format="pylog", options={**LOG, "topic": "thanks"})


@dp.append_flow(target="thanks")
def thank() -> DataFrame:
    # From the view, not from the table: after a full refresh of the table its rows would come a second time.
    thanks = f.concat(f.lit("thank you for "), f.col("value").cast("string"))
    return spark.readStream.table("orders").select("key", thanks.alias("value"))
