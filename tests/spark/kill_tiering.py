"""Kill the driver of the tiering job again and again, and count: every record is in the table once (S27).

    python tests/spark/kill_tiering.py [--kills 40] [--seed 1]

A process runs the job in turns while records are appended. It is killed (SIGKILL, with its Java and its Python workers)
at a random moment of a turn and started again. At the end this process runs the job, and table and log are compared.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import logstore
from datasource import spark_session
from datasource.jobs import tiering

ROOT = Path(__file__).parents[2]
PARTITIONS = 3
MASTER = "local[2,3]"
TURNS = f"""
import sys, warnings
warnings.simplefilter("ignore")
from datasource import spark_session
from tests.spark.kill_tiering import turn
spark = spark_session(master="{MASTER}", **{{"spark.ui.showConsoleProgress": False}})
while True:
    print("turn", flush=True)
    turn(spark, *sys.argv[1:])
"""


def turn(spark: SparkSession, path: str, schema: str) -> None:
    rows = tiering.run(spark, path=path, schema=schema or None).collect()
    assert {row["status"] for row in rows} <= {"tiered", "nothing to do"}, rows


def start(path: Path, schema: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", TURNS, str(path), schema],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def append(path: Path, number: int) -> None:
    values = [f'{{"n": {number}}}' if i % 5 else "bad" for i in range(3_000)]
    with logstore.open(path) as store:
        store.append("t", pa.table({"key": [str(i) for i in range(3_000)], "value": values}))


def run(path: Path, *, kills: int, seed: int, schema: str = "n bigint") -> str:
    """Return what was compared. Raises: AssertionError: a record is missing, or is there twice."""
    chance = random.Random(seed)
    with logstore.open(path) as store:
        store.create_topic("t", partitions=PARTITIONS)
    number = killed = 0
    while killed < kills:
        process = start(path, schema)
        assert process.stdout is not None
        for _ in range(chance.randint(1, 4)):  # a JVM is slow to come: some turns of each are used
            append(path, number := number + 1)
            assert process.stdout.readline() == "turn\n", f"seed {seed}: the job failed"
        time.sleep(chance.random() * 1.5)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        killed += 1
    append(path, number + 1)
    spark = spark_session(master=MASTER)
    for _ in range(2):
        turn(spark, str(path), schema)
    return compare(path, f"seed {seed}, {kills} kills")


def compare(path: Path, what: str) -> str:
    found = [place for name in ("t", "t__dlq") for place in places(path / "tiered" / name)]
    with logstore.open(path, mode="r") as store:
        wanted = [(p, offset) for p, extent in store.offsets("t").items() for offset in range(*_ends(extent))]
    assert len(found) == len(set(found)), f"{what}: {len(found) - len(set(found))} records twice"
    assert sorted(found) == wanted, f"{what}: {len(set(wanted) - set(found))} records missing"
    return f"{what}: {len(found)} records, each once"


def _ends(extent: logstore.OffsetRange) -> tuple[int, int]:
    return extent.start, extent.end


def places(table: Path) -> list[tuple[int, int]]:
    files = DeltaTable(str(table)).file_uris()
    rows = [row for name in files for row in pq.ParquetFile(name).read(["partition", "offset"]).to_pylist()]
    return [(row["partition"], row["offset"]) for row in rows]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pylog-kill-") as name:
        print(run(Path(name) / "store", kills=asked.kills, seed=asked.seed))
