"""Kill the driver of the tiering job again and again, and count: every record is in the table once (S27).

    python tests/spark/kill_tiering.py [--kills 40] [--seed 1]

A process tiers a topic of a cluster and one of a directory in turns, while records are appended to both. It is killed
(SIGKILL, with its Java and its Python workers) at a random moment of a turn, at one place after the other, and started
again.
At the end this process runs the jobs, and tables and logs are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import logstore
from datasource import spark_session
from datasource.jobs import tiering
from replication.client.kafka_client import KafkaClient
from replication.local_cluster import LocalCluster

ROOT = Path(__file__).parents[2]
PARTITIONS, ROWS = 3, 3_000
PLACES = ("cluster", "directory")
MASTER = "local[2,3]"
TURNS = f"""
import json, sys, warnings
warnings.simplefilter("ignore")
from datasource import spark_session
from tests.spark.kill_tiering import turn
spark = spark_session(master="{MASTER}", **{{"spark.ui.showConsoleProgress": False}})
while True:
    for name, options in json.loads(sys.argv[1]).items():
        print(name, flush=True)
        turn(spark, options)
"""


def turn(spark: SparkSession, options: Mapping[str, str]) -> None:
    rows = tiering.run(spark, **options).collect()
    assert {row["status"] for row in rows} <= {"tiered", "nothing to do"}, rows


def start(options: Mapping[str, Mapping[str, str]]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", TURNS, json.dumps(options)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


class Logs:
    """A topic of a directory, and one of a cluster, with the same records."""

    def __init__(self, path: Path, client: KafkaClient, schema: str) -> None:
        self.path, self.client, self._numbers = path, client, 0
        self.tables = {name: path / name for name in PLACES}
        places = {"cluster": {"bootstrap": client.where}, "directory": {"path": str(path / "store")}}
        more = {"schema": schema} if schema else {}
        self.options = {
            name: {**place, **more, "table": str(self.tables[name] / "{topic}")} for name, place in places.items()
        }
        client.create_topic("t", partitions=PARTITIONS)
        with logstore.open(path / "store") as store:
            store.create_topic("t", partitions=PARTITIONS)

    def append(self) -> None:
        self._numbers += 1
        values = [f'{{"n": {self._numbers}}}' if i % 5 else "bad" for i in range(ROWS)]
        rows = pa.table({"key": [str(i) for i in range(ROWS)], "value": values})
        self.client.append("t", rows)
        with logstore.open(self.path / "store") as store:
            store.append("t", rows)

    def ends(self) -> dict[str, dict[int, int]]:
        """The end of each partition; all begin at 0."""
        with logstore.open(self.path / "store", mode="r") as store:
            here = {p: extent.end for p, extent in store.offsets("t").items()}
        return {"directory": here, "cluster": {p: e.end for p, e in self.client.extents("t").items()}}


def run(path: Path, *, kills: int, seed: int, schema: str = "n bigint") -> str:
    """Return what was compared. Raises: AssertionError: a record is missing, or is there twice."""
    chance = random.Random(seed)
    with LocalCluster(1, path / "brokers") as brokers, KafkaClient(brokers.bootstrap) as client:
        logs = Logs(path, client, schema)
        for number in range(kills):
            process = start(logs.options)
            assert process.stdout is not None
            for _ in range(chance.randint(1, 4)):  # a JVM is slow to come: some turns of each are used
                logs.append()
                heard = [process.stdout.readline().strip() for _ in PLACES]
                assert heard == list(PLACES), f"seed {seed}: the job failed"
            logs.append()
            for name in PLACES[: number % len(PLACES) + 1]:
                assert process.stdout.readline().strip() == name, f"seed {seed}: the job failed"
            time.sleep(chance.random() * 1.5)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()
        logs.append()
        spark = spark_session(master=MASTER)
        for options in logs.options.values():
            turn(spark, options)
        what = f"seed {seed}, {kills} kills"
        ends = logs.ends()
        return "; ".join(compare(logs.tables[name], ends[name], f"{what}, {name}") for name in PLACES)


def compare(tables: Path, ends: Mapping[int, int], what: str) -> str:
    found = [place for name in ("t", "t__dlq") for place in places(tables / name)]
    wanted = [(p, offset) for p, end in sorted(ends.items()) for offset in range(end)]
    assert len(found) == len(set(found)), f"{what}: {len(found) - len(set(found))} records twice"
    assert sorted(found) == wanted, f"{what}: {len(set(wanted) - set(found))} records missing"
    return f"{what}: {len(found)} records, each once"


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
        print(run(Path(name), kills=asked.kills, seed=asked.seed))
