"""The run of a declarative pipeline is killed between its steps, again and again: each order is thanked for once.

    python -m tests.spark.kills.pipelining --kills 20 --seed 1

The pipeline is that of `pylog pipelines init`. Before each run its topic of orders gets new ones. A run kills itself at
an event of the run or at a line of the sink's journal, before it is written, in its middle or after it. A full refresh
of all is refused in between. At the end the sink has a record for each order, in order, and the tables have each once.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pyarrow.parquet as pq

import logstore
from datasource.demo.project import write_project
from tests.spark.kills import points
from tests.spark.kills.drivers import Drivers, end, run_until, wait_with_jvm

TABLES = "spark_catalog.default."
# Lines of the run. The flows of table and sink run at the same time.
STEPS = (
    "Flow thank is STARTING",
    "Flow thank is RUNNING",
    "Flow thank has COMPLETED",
    f"Flow {TABLES}order_history has COMPLETED",
    f"Flow {TABLES}orders_by_customer is RUNNING",
    "Run is COMPLETED",
)
POINTS = (*STEPS, *points.JOURNAL)
NAMES = ("Ada", "Bob", "Cyd", "Dan", "Eve")
ORDERS = 40  # before each run
ENDS_WITHIN_S = 300


class Pipeline:
    """The project, its orders, and its runs."""

    def __init__(self, root: Path, dice: random.Random) -> None:
        self.root, self.shop, self._dice = root, root / "shop", dice
        write_project(self.shop)
        self.orders = read(self.shop, "orders")
        # The port of Spark Connect is a free one, and not always the same.
        session = {
            "SPARK_TESTING": "1",
            "PYSPARK_SUBMIT_ARGS": f"--properties-file {self.shop}/spark.conf pyspark-shell",
        }
        self.drivers = Drivers(
            root, "local[2,3]", program="pipeline", environment=session | {points.VARIABLE: str(root)}
        )

    def order(self) -> None:
        new = [(self._dice.choice(NAMES), f"order {len(self.orders) + n}") for n in range(ORDERS)]
        with logstore.open(self.shop / "data") as store:
            store.append("orders", [{"key": who, "value": what} for who, what in new])
        self.orders = read(self.shop, "orders")

    def run(self, ends: int, point: str = "", *more: str) -> str:
        """Run it up to this point; return the output. Raises: AssertionError: another exit status."""

        def once() -> int:
            process = self.drivers.take("run", spec=str(self.shop / "spark-pipeline.yml"), point=point, more=more)
            try:
                return wait_with_jvm(process, ENDS_WITHIN_S)
            finally:
                end(process)

        return run_until(ends, once, self.drivers.output)

    def refresh_all(self) -> None:
        """Refresh all: the sink is refused, and goes on when the checkpoint that the error names first is removed."""
        before = read(self.shop, "thanks")
        said = self.run(1, "", "--full-refresh-all")
        found = re.search("nothing was written: a full refresh .* go on from there remove (.*?),", said)
        assert found, said[-6000:]
        assert read(self.shop, "thanks") == before
        shutil.rmtree(found[1])

    def check(self) -> None:
        """Raise AssertionError unless sink and tables have each order once, and the sink those of a name in order."""
        assert by_name(read(self.shop, "thanks")) == {
            who: [f"thank you for {what}" for what in ordered] for who, ordered in by_name(self.orders).items()
        }
        counts = pq.read_table(self.shop / "warehouse" / "orders_by_customer").to_pylist()  # of the other table's rows
        assert {row["who"]: row["count"] for row in counts} == Counter(who for who, _ in self.orders)


def by_name(records: list[tuple[str, str]]) -> dict[str, list[str]]:
    found = defaultdict(list)
    for who, what in records:
        found[who].append(what)
    return dict(found)


def read(shop: Path, topic: str) -> list[tuple[str, str]]:
    """Key and value of each record, in the order of the log, partition by partition."""
    with logstore.open(shop / "data", mode="r") as store:
        parts = [store.read(topic, partition=p).read_all() for p in range(store.topic(topic).partitions)]
    return [(row["key"].decode(), row["value"].decode()) for part in parts for row in part.to_pylist()]


def points_of(dice: random.Random) -> Iterator[str]:
    """At first two at which the sink has written and Spark does not know it; then each once; then at random."""
    yield from dice.sample(["after decide", "Flow thank has COMPLETED"], 2)
    yield from dice.sample(POINTS, len(POINTS))
    while True:
        yield dice.choice(POINTS)


def prove(root: Path, *, kills: int, seed: int, say: Callable[[str], None] = print) -> str:
    """Return what was compared. Raises: AssertionError: an order is not there once."""
    say(f"seed {seed}")
    dice = random.Random(seed)
    pipeline = Pipeline(root, dice)
    try:
        for number, point in enumerate(islice(points_of(dice), kills), 1):
            begin = time.monotonic()
            pipeline.order()
            pipeline.run(-signal.SIGKILL, point)
            say(f"{number} of {kills}: {point}, {time.monotonic() - begin:.1f} s")
            if number == 1:
                pipeline.refresh_all()
        pipeline.order()
        pipeline.run(0)
    finally:
        pipeline.drivers.close()
    pipeline.check()
    return f"{kills} kills, {len(pipeline.orders)} orders, each thanked for once"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pylog-pipelines-") as root:
        print(prove(Path(root), kills=asked.kills, seed=asked.seed), flush=True)


if __name__ == "__main__":
    sys.exit(main())
