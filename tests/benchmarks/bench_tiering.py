"""The tiering job against Spark writing the same rows to Parquet.

    python tests/benchmarks/bench_tiering.py [--path DIR] [--rounds 7]

A topic of two partitions, two tasks on two cores, in one session; every candidate once a round, each into an empty
directory. `memory` is Spark's Parquet writer on a cached DataFrame of the rows, so without reading anything; `log` is
the same writer behind `format("pylog")`, which is what one would do without the job. The job also fsyncs what it writes
and commits it; its report is part of the time.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench_spark import SHAPES, TASKS, fill
from harness import AGAIN, interleave, ratio, show
from pyspark.sql import DataFrame, SparkSession

import datasource
from datasource.jobs import tiering

TOPIC = "t"
# The partition column, as the table of the job has it.
DAY = "date_from_unix_date(CAST(floor(unix_micros(timestamp) / 86400000000) AS INT)) AS date"


def rows_of(spark: SparkSession, store: Path) -> DataFrame:
    frame = spark.read.format("pylog").option("path", str(store)).option("subscribe", TOPIC)
    return frame.option("includeHeaders", True).load().selectExpr("*", DAY)


def parquet(frame: DataFrame, target: Path) -> None:
    frame.write.partitionBy("date").parquet(str(target))
    shutil.rmtree(target)


def tier(spark: SparkSession, store: Path) -> None:
    tiering.run(spark, path=str(store), topics=TOPIC).collect()
    shutil.rmtree(store / "tiered")
    shutil.rmtree(store / "tiering")


def bench(spark: SparkSession, root: Path, rounds: int) -> Iterator[list[object]]:
    target = root / "parquet"
    for value_bytes, rows in SHAPES:
        store = root / f"store-{value_bytes}"
        fill(store, TOPIC, rows, value_bytes)
        cached = rows_of(spark, store).cache()
        cached.count()
        seconds = interleave(
            {
                "ours": lambda store=store: tier(spark, store),
                "memory": lambda cached=cached, target=target: parquet(cached, target),
                AGAIN: lambda cached=cached, target=target: parquet(cached, target),
                "log": lambda store=store, target=target: parquet(rows_of(spark, store), target),
            },
            rounds=rounds,
            warmups=2,
        )
        cached.unpersist()
        noise = ratio(seconds[AGAIN], seconds["memory"])
        speed = f"{rows / statistics.median(seconds['ours']) / 1e6:.2f} M rows/s"
        for peer in ("memory", "log"):
            yield [f"{value_bytes} B", speed, peer, ratio(seconds["ours"], seconds[peer]), noise]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--path", help="directory on the disk to measure; default: a temporary one")
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    # All of `memory` has to fit in.
    conf: dict[str, Any] = {"spark.ui.showConsoleProgress": "false", "spark.driver.memory": "6g"}
    spark = datasource.spark_session(master=f"local[{TASKS}]", **conf)
    with tempfile.TemporaryDirectory(dir=asked.path, prefix="pylog-bench-") as name:
        rows = list(bench(spark, Path(name), asked.rounds))
    spark.stop()
    show("Tiering to Delta Lake", ["values", "measured", "Spark's Parquet writer from", "ratio", "noise"], rows)


if __name__ == "__main__":
    sys.exit(main())
