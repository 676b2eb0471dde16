"""The driver of `datasource.upsert` or `replace` is killed inside a micro-batch, again and again: each is written once.

    python -m tests.spark.kills.upserting --kills 20 --seed 1 [--way replace]

A query counts the values of topic `in` in batches of BATCH records and writes the counts to the compacted topic `out`.
Its process kills itself, its JVM with it (SIGKILL), at one of POINTS of a batch, and the next one goes on. At the end
the records of each key have to be those of a replay of the input, one after the other, and those that a compaction
leaves the last ones.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import logstore
from logstore.maintenance.compaction import compact
from tests.spark.kills.drivers import Drivers, end
from tests.spark.kills.places import Directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH, USERS = 20, 8
# In foreachBatch: as it begins, before and after the write, and at a line of the journal of transactions in between.
JOURNAL = ("open", "prepared", "decide", "durable", "marked")
POINTS = ("begin", "before", *JOURNAL, "after", "end")
WAYS = ("upsert", "replace")
ENDS_WITHIN_S = 300


# --- the program that is killed: a job of tests/spark/kills/query.py


def upsert(spark: SparkSession, root: Path, *, way: str, point: str, batch: int) -> None:
    """Write all that is there; die at a point of the batch that is this process's so-and-so-many-th."""
    from pyspark.sql.readwriter import DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    import datasource

    seen, log = [0], str(root / "log")
    foreach, save = DataStreamWriter.foreachBatch, DataFrameWriter.save

    def at(name: str) -> None:
        if name == point and seen[0] == batch:
            die()

    def watched(writer: DataStreamWriter, function: Callable[[Any, int], None]) -> DataStreamWriter:
        def work(frame: Any, number: int) -> None:
            at("begin")
            function(frame, number)
            at("end")
            seen[0] += 1

        return foreach(writer, work)

    def saved(writer: DataFrameWriter, *given: Any, **options: Any) -> None:
        at("before")
        if point in JOURNAL and seen[0] == batch:
            threading.Thread(target=die_at, args=(Directory.watch(root / "log", point),), daemon=True).start()
        save(writer, *given, **options)
        at("after")

    DataStreamWriter.foreachBatch, DataFrameWriter.save = watched, saved  # type: ignore[method-assign, assignment]
    options = {"path": log, "subscribe": "in", "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(BATCH)}
    stream = spark.readStream.format("pylog").options(**options).load()
    counts = stream.selectExpr("string(value) AS user").groupBy("user").count()
    if way == "upsert":
        rows = counts.selectExpr("user", "if(count % 5 = 0, null, string(count)) AS value")
    else:
        rows = counts.where("count % 5 > 0").selectExpr("user", "string(count) AS value")
    write = getattr(datasource, way)
    writer = write(rows, log, topic="out", key="user", value="value", checkpoint=root / "checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()


def die() -> None:
    os.killpg(0, signal.SIGKILL)


def die_at(has_come: Callable[[], bool]) -> None:
    while not has_come():
        time.sleep(0.0005)
    die()


# --- the proof


def expected(values: list[str], way: str) -> dict[str, list[str | None]]:
    """What each key's records are, if each batch of the input is written once. A null deletes the key."""
    counts: Counter[str] = Counter()
    records: dict[str, list[str | None]] = defaultdict(list)
    for begin in range(0, len(values), BATCH):
        changed = Counter(values[begin : begin + BATCH])
        counts += changed
        for user in changed if way == "upsert" else counts:
            if counts[user] % 5:
                records[user].append(str(counts[user]))
            elif way == "upsert" or (records[user] and records[user][-1] is not None):
                records[user].append(None)
    return {user: found for user, found in records.items() if found}


def found(store: logstore.LogStore) -> dict[str, list[str | None]]:
    records: dict[str, list[str | None]] = defaultdict(list)
    for partition in range(store.topic("out").partitions):
        for row in store.read("out", partition=partition).read_all().select(["key", "value"]).to_pylist():
            records[row["key"].decode()].append(row["value"] and row["value"].decode())
    return dict(records)


def points(dice: random.Random) -> Iterator[str]:
    """Those at which a batch is written and Spark does not know it first; then each once; then at random."""
    first = ["after", "durable"]
    yield from dice.sample(first, len(first))
    yield from dice.sample(POINTS, len(POINTS))
    while True:
        yield dice.choice(POINTS)


def prove(root: Path, way: str, *, kills: int, seed: int, say: Callable[[str], None] = print) -> str:
    """Return what was compared. Raises: AssertionError: a batch is not there once."""
    dice, drivers, values = random.Random(seed), Drivers(root), list[str]()
    with logstore.open(root / "log") as store:
        store.create_topic("in")
        store.create_topic("out", partitions=2, config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})

        def run(**options: object) -> int:
            new = [f"user-{dice.randrange(USERS)}" for _ in range(2 * BATCH)]
            values.extend(new)
            store.append("in", pa.table({"value": new}))
            process = drivers.take("upsert", way=way, **options)
            try:
                return process.wait(ENDS_WITHIN_S)
            finally:
                end(process)

        try:
            for number, point in enumerate(islice(points(dice), kills), 1):
                begin, batch = time.monotonic(), dice.randrange(2)
                status = run(point=point, batch=batch)
                say(f"{number} of {kills}: {point} of batch {batch}, {time.monotonic() - begin:.1f} s")
                assert status == -signal.SIGKILL, f"seed {seed}, {point}: {drivers.output()[-6000:]}"
            assert run(point="", batch=0) == 0, f"seed {seed}: {drivers.output()[-6000:]}"
        finally:
            drivers.close()
        wanted, records = expected(values, way), found(store)
        assert records == wanted, f"seed {seed}: {records} and not {wanted}"
        compact(store, "out")
        latest = {user: [each[-1]] for user, each in wanted.items()}
        left = found(store)
        assert {user: each[-1:] for user, each in left.items() if each[-1] is not None} == {
            user: each for user, each in latest.items() if each[-1] is not None
        }
        assert sum(map(len, left.values())) < sum(map(len, records.values())), "nothing was compacted"
        return f"{way}, seed {seed}: {kills} kills, {sum(map(len, wanted.values()))} records of {len(wanted)} keys, each once"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    parser.add_argument("--way", choices=WAYS, action="append")
    asked = parser.parse_args()
    for way in asked.way or WAYS:
        with tempfile.TemporaryDirectory(prefix="pylog-upserts-") as root:
            print(prove(Path(root), way, kills=asked.kills, seed=asked.seed), flush=True)


if __name__ == "__main__":
    sys.exit(main())
