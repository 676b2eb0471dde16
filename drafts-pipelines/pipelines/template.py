"""The files of a new pipeline: a topic, a view of it, a table, and a sink."""

from __future__ import annotations

from pathlib import Path

import logstore
from logstore.errors import InvalidRequestError

SPEC = """\
name: {name}
storage: {root}/storage
libraries:
  - glob:
      include: transformations/**
"""

# Settings of the whole session, which a pipeline's file may not hold: spark-pipelines run --properties-file spark.conf
SETTINGS = """\
# Tables outlive a run only in a catalog that does. This one is a directory beside this file, for one run at a time.
spark.sql.catalogImplementation  hive
spark.sql.warehouse.dir  {root}/warehouse
spark.hadoop.javax.jdo.option.ConnectionURL  jdbc:derby:;databaseName={directory}/catalog;create=true
"""

FLOWS = '''\
"""Orders are counted in a table, and thanked for in another topic, each exactly once."""

from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()
LOG = str(Path(__file__).resolve().parents[1] / "data")  # for a cluster: {"kafka.bootstrap.servers": "HOST:PORT"}


@dp.temporary_view
def orders() -> DataFrame:
    stream = spark.readStream.format("pylog").option("path", LOG).option("subscribe", "orders")
    return stream.option("startingOffsets", "earliest").load()


@dp.table
def order_history() -> DataFrame:
    rows = spark.readStream.table("orders")
    return rows.select("partition", "offset", "timestamp", f.expr("string(key) AS who"), f.expr("string(value) AS what"))


@dp.materialized_view
def orders_by_customer() -> DataFrame:
    return spark.read.table("order_history").groupBy("who").count()


dp.create_sink(name="thanks", format="pylog", options={"path": LOG, "topic": "thanks"})


# A sink reads the view, not the table: a full refresh of the table would bring its rows a second time.
@dp.append_flow(target="thanks")
def thank() -> DataFrame:
    return spark.readStream.table("orders").select("key", f.expr("concat('thank you for ', string(value)) AS value"))
'''

ORDERS = [("Ada", "tea"), ("Bob", "milk"), ("Ada", "cake")]


def write_project(directory: Path) -> None:
    """Write a pipeline into a new directory, with a log that holds the topics `orders`, with records, and `thanks`.

    Raises: InvalidRequestError: the directory is there already, and stays as it is, or its name means something in YAML
    or in an address.
    """
    root = directory.absolute()
    if odd := sorted(set(str(root)) & set(" #%:;?\"'\\")):
        raise InvalidRequestError(f"{root}: choose a path without {' '.join(map(repr, odd))}, which Spark takes amiss")
    if directory.exists():
        raise InvalidRequestError(f"{directory} exists; choose another name, or remove it")
    (root / "transformations").mkdir(parents=True)
    files = {
        "spark-pipeline.yml": SPEC.format(name=root.name, root=root.as_uri()),
        "spark.conf": SETTINGS.format(root=root.as_uri(), directory=root),
        "transformations/orders.py": FLOWS,
    }
    for name, text in files.items():
        (root / name).write_text(text)
    with logstore.open(root / "data") as store:
        store.create_topic("orders", partitions=3)
        store.create_topic("thanks", partitions=3)
        store.append("orders", [{"key": who, "value": what} for who, what in ORDERS])
