"""The first row of a stream with `includeTiered` against that of a plain Delta stream of the same table.

    python tests/benchmarks/bench_tiered_stream.py [--path DIR] [--rounds 7] [--records 1000000]

All records are in the table of the topic, and none in its log. A round starts a new query, which ends once
`foreachBatch` has the first row of its first batch. Delta's own stream needs a session with Delta's jars, so
PySpark 4.2.0 and delta-spark, or PYLOG_DELTA_JARS; in any other session the peer is a batch read of the table by
`deltalake`, without Spark, and the ratio says what Spark costs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench_spark import TASKS, fill
from deltalake import DeltaTable
from harness import AGAIN, interleave, ratio, show
from pyspark.sql import DataFrame, SparkSession

import datasource
import logstore
from datasource.jobs import tiering
from logstore.errors import PylogError

TOPIC, GOAL = "t", 1.5


def session() -> tuple[SparkSession, bool]:
    """A session, and whether it has Delta's jars."""
    conf: dict[str, Any] = {"spark.ui.showConsoleProgress": "false"}
    try:
        return datasource.spark_session(master=f"local[{TASKS}]", delta=True, **conf), True
    except PylogError:
        return datasource.spark_session(master=f"local[{TASKS}]", **conf), False


def first_row(stream: DataFrame, root: Path) -> None:
    seen = threading.Event()

    def take(batch: DataFrame, number: int) -> None:
        assert batch.first() is not None
        seen.set()

    writer = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(root / uuid.uuid4().hex))
    query = writer.start()
    while not seen.wait(0.01):
        assert query.isActive, query.exception()
    query.stop()


def works(spark: SparkSession, root: Path, store: Path, *, has_delta: bool) -> dict[str, Callable[[], object]]:
    table = str(store / "tiered" / TOPIC)

    def ours() -> None:
        options = {"path": str(store), "subscribe": TOPIC, "includeTiered": True, "startingOffsets": "earliest"}
        first_row(spark.readStream.format("pylog").options(**options).load(), root)

    def delta() -> None:
        first_row(spark.readStream.format("delta").load(table), root)

    def package() -> None:
        assert next(DeltaTable(table).to_pyarrow_dataset().to_batches()).num_rows

    peer = delta if has_delta else package
    return {"ours": ours, "peer": peer, AGAIN: peer}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--path", help="directory on the disk to measure; default: a temporary one")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--records", type=int, default=1_000_000)
    asked = parser.parse_args()
    spark, has_delta = session()
    with tempfile.TemporaryDirectory(dir=asked.path, prefix="pylog-bench-") as name:
        store = Path(name) / "store"
        fill(store, TOPIC, asked.records, 100)
        tiering.rows(None, path=str(store))
        with logstore.open(store) as opened:
            opened.delete_records(TOPIC, {p: extent.end for p, extent in opened.offsets(TOPIC).items()})
        seconds = interleave(works(spark, Path(name), store, has_delta=has_delta), rounds=asked.rounds, warmups=2)
    spark.stop()
    peer = "plain Delta stream" if has_delta else "deltalake's read, without Spark"
    row = [statistics.median(seconds["ours"]), peer, statistics.median(seconds["peer"])]
    row += [1 / ratio(seconds["ours"], seconds["peer"]), 1 / ratio(seconds[AGAIN], seconds["peer"]), GOAL]
    show("First row of history and tail", ["ours, s", "peer", "s", "times as long", "noise", "goal"], [row])


if __name__ == "__main__":
    sys.exit(main())
