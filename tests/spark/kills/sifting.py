"""The driver of `datasource.sift` is killed, again and again: each row and each dead letter is written once.

    python -m tests.spark.kills.sifting --kills 20 --seed 1 --place cluster

A query reads topic `in` in batches of BATCH records, writes those that fit to `out`, and dead letters of the others to
`misfits`. Its process kills itself, its JVM with it, at one of the points of a batch, or some time after one began, and
the next one goes on. At the end `out` has each record that fits, and `misfits` one dead letter of each of the others.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa

from tests.spark.kills import points
from tests.spark.kills.drivers import Drivers, end, run_until
from tests.spark.kills.places import Cluster, Directory
from tests.spark.kills.proofs import run

BATCH, BATCHES = 20, 4  # of a run
PLACES: dict[str, Callable[[Path], Directory | Cluster]] = {
    "directory": Directory,
    "cluster": lambda root: Cluster(root, brokers=1),
}
AROUND = ("begin", "before the write", "after the write", "end")
LATER_S = 3.0
ENDS_WITHIN_S = 300


class Sifted:
    """The topics, and queries that are killed."""

    def __init__(self, root: Path, place: str, dice: random.Random) -> None:
        self._place, self._dice = PLACES[place](root), dice
        self._drivers = Drivers(root, "local[2,3]", environment={points.VARIABLE: str(root)})
        self._points = (*AROUND, *points.JOURNAL) if place == "directory" else AROUND
        self._values: list[str] = []

    def run(self, ends: int, point: str = "", batch: int = 0) -> None:
        """Write more records and sift them, up to this point. Raises: AssertionError: another exit status."""

        def once() -> int:
            numbers = range(len(self._values), len(self._values) + BATCHES * BATCH)
            new = [json.dumps({"n": n}) if self._dice.random() < 0.8 else f"bad-{n}" for n in numbers]
            self._values += new
            self._place.append("in", pa.table({"value": new}))
            process = self._drivers.take("sift", place=self._place.options, size=BATCH, point=point, batch=batch)
            try:
                return process.wait(ENDS_WITHIN_S)
            finally:
                end(process)

        run_until(ends, once, self._drivers.output)

    def points(self) -> Iterator[str]:
        """At first where a batch is written and Spark does not know it; then each once; then at random."""
        yield "after the write"
        yield from self._dice.sample(self._points, len(self._points))
        while True:
            yield (
                f"later {self._dice.random() * LATER_S:.2f}"
                if self._dice.random() < 0.5
                else self._dice.choice(self._points)
            )

    def check(self) -> tuple[int, int]:
        """Return how many rows and dead letters there are. Raises: AssertionError: one is missing, or there twice."""
        fitting = Counter(value.replace(" ", "").encode() for value in self._values if value.startswith("{"))
        misfits = Counter(value.encode() for value in self._values if value.startswith("bad"))
        rows = Counter(value for _, _, value in self._place.records("out"))
        letters = list(self._place.records("misfits"))
        assert rows == fitting, f"rows: {rows - fitting} too many, {fitting - rows} missing"
        found = Counter(value for _, _, value in letters)
        assert found == misfits, f"dead letters: {found - misfits} too many, {misfits - found} missing"
        assert len({key for _, key, _ in letters}) == len(letters)
        return len(fitting), len(letters)

    def close(self) -> None:
        self._drivers.close()
        self._place.close()


def prove(root: Path, place: str, *, kills: int, seed: int, say: Callable[[str], None] = print) -> str:
    """Return what was compared. Raises: AssertionError: a row or a dead letter is not there once."""
    say(f"{place}, seed {seed}")
    dice = random.Random(seed)
    sifted = Sifted(root, place, dice)
    try:
        for number, point in enumerate(islice(sifted.points(), kills), 1):
            start, batch = time.monotonic(), dice.randrange(BATCHES)
            sifted.run(-signal.SIGKILL, point, batch)
            say(f"{number} of {kills}: {point} of batch {batch}, {time.monotonic() - start:.1f} s")
        sifted.run(0)
        rows, letters = sifted.check()
    finally:
        sifted.close()
    return f"{kills} kills, {rows} rows and {letters} dead letters, each once"


if __name__ == "__main__":
    run(__doc__, "place", PLACES, prove)
