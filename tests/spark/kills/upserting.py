"""The driver of `datasource.upsert` or `replace` is killed inside a micro-batch, again and again: each is written once.

    python -m tests.spark.kills.upserting --kills 20 --seed 1 --way replace

A query counts the values of topic `in` in batches of BATCH records and writes the counts to the compacted topic `out`.
Its process kills itself, its JVM with it, at one of POINTS of a batch, and the next one goes on. At the end the records
of each key have to be those of a replay of the input, one after the other, and those that a compaction leaves the last
ones.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa

import logstore
from logstore.maintenance.compaction import compact
from tests.spark.kills import points
from tests.spark.kills.drivers import Drivers, end, run_until
from tests.spark.kills.proofs import run

BATCH, USERS = 20, 8
BATCHES = 4  # that a run begins with: `replace` reads the whole topic in the first two
# In foreachBatch: as it begins, around the write, at a line of the journal within it, and as it ends.
POINTS = ("begin", "before the write", *points.JOURNAL, "after the write", "end")
WAYS = ("upsert", "replace")
ENDS_WITHIN_S = 300

Found = dict[str, list[str | None]]  # the values of the records of each key, in order


class Counts:
    """The two topics, and queries that are killed."""

    def __init__(self, root: Path, way: str, dice: random.Random) -> None:
        self._log, self._way, self._dice = root / "log", way, dice
        self.drivers = Drivers(root, "local[2,3]", environment={points.VARIABLE: str(root)})
        self._values: list[str] = []
        compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.bytes": "500"}
        with logstore.open(self._log) as store:
            store.create_topic("in")
            store.create_topic("out", partitions=2, config=compacted)

    def run(self, ends: int, point: str = "", batch: int = 0) -> None:
        """Count more batches, up to this point. Raises: AssertionError: another exit status."""

        def once() -> int:
            new = [f"user-{self._dice.randrange(USERS)}" for _ in range(BATCHES * BATCH)]
            self._values += new
            with logstore.open(self._log) as store:
                store.append("in", pa.table({"value": new}))
            process = self.drivers.take("upsert", way=self._way, size=BATCH, point=point, batch=batch)
            try:
                return process.wait(ENDS_WITHIN_S)
            finally:
                end(process)

        run_until(ends, once, self.drivers.output)

    def check(self) -> int:
        """Return how many records there are. Raises: AssertionError: they are not those of a replay."""
        expected = self.expected()
        with logstore.open(self._log) as store:
            found = records(store)
            assert found == expected, f"{found} and not {expected}"
            store.transactions.complete_or_abort()
            for partition in range(store.topic("out").partitions):
                compact(store.log("out", partition))
            left = records(store)
        assert last(left) == last(expected)
        assert sum(map(len, left.values())) < sum(map(len, found.values())), "nothing was compacted"
        return sum(map(len, found.values()))

    def expected(self) -> Found:
        """The records of each key, if each batch of the input is written once. None deletes the key."""
        counts, written = Counter[str](), defaultdict[str, list[str | None]](list)
        for begin in range(0, len(self._values), BATCH):
            changed = Counter(self._values[begin : begin + BATCH])
            counts += changed
            for user in changed if self._way == "upsert" else counts:
                if counts[user] % 5:
                    written[user].append(str(counts[user]))
                elif self._way == "upsert" or (written[user] and written[user][-1] is not None):
                    written[user].append(None)
        return {user: values for user, values in written.items() if values}


def records(store: logstore.LogStore) -> Found:
    found = defaultdict(list)
    for partition in range(store.topic("out").partitions):
        for row in store.read("out", partition=partition).read_all().to_pylist():
            found[row["key"].decode()].append(row["value"] and row["value"].decode())
    return dict(found)


def last(found: Found) -> dict[str, str]:
    return {user: values[-1] for user, values in found.items() if values[-1] is not None}


def points_of(dice: random.Random) -> Iterator[str]:
    """At first those at which a batch is written and Spark does not know it; then each once; then at random."""
    yield from dice.sample(["after the write", "after decide"], 2)
    yield from dice.sample(POINTS, len(POINTS))
    while True:
        yield dice.choice(POINTS)


def prove(root: Path, way: str, *, kills: int, seed: int, say: Callable[[str], None] = print) -> str:
    """Return what was compared. Raises: AssertionError: a batch is not there once."""
    say(f"{way}, seed {seed}")
    dice = random.Random(seed)
    counts = Counts(root, way, dice)
    try:
        for number, point in enumerate(islice(points_of(dice), kills), 1):
            start, batch = time.monotonic(), dice.randrange(BATCHES)
            counts.run(-signal.SIGKILL, point, batch)
            say(f"{number} of {kills}: {point} of batch {batch}, {time.monotonic() - start:.1f} s")
        counts.run(0)
    finally:
        counts.drivers.close()
    return f"{kills} kills, {counts.check()} records, each once"


if __name__ == "__main__":
    run(__doc__, "way", WAYS, prove)
