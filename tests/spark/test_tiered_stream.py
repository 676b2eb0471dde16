"""Streams of history and tail through real queries. How the reader plans: tests/unit/datasource/delta."""

from __future__ import annotations

import os
import random
from itertools import islice

import pytest

import logstore
from datasource import lag
from datasource.jobs import tiering
from tests.spark.kills.killer import Run, compare, end, kinds, stop, strike, wait_for_batch
from tests.spark.kills.places import TieredDirectory
from tests.spark.test_stream import Query, numbers
from tests.support.repeats import only_long, soaked

pytestmark = pytest.mark.spark

SEED = int(os.environ.get("PYLOG_SEED", str(random.SystemRandom().randrange(10_000))))


def test_a_stream_reads_the_table_then_the_log_and_goes_on_after_a_restart(spark, topics, tmp_path):
    """Records go from the log to the table alone while the query is down."""

    def tier() -> None:
        rows = tiering.rows(None, **topics.place | topics.table)
        assert {row["status"] for row in rows} <= {"tiered", "nothing to do"}

    topics.create("t", segment_bytes="4000")
    topics.append("t", numbers(0, 400))
    tier()
    topics.append("t", numbers(400, 600))
    topics.cut("t", 300)
    tables = {"tieredTable": topics.table["table"]} if topics.table else {}
    query = Query(spark, topics, tmp_path / "checkpoint")
    options = {"subscribe": "t", "includeTiered": True, "maxOffsetsPerTrigger": 350} | tables
    query.run(**options)
    assert query.batches == {0: numbers(0, 350), 1: numbers(350, 600)}
    topics.append("t", numbers(600, 650))
    tier()
    topics.cut("t", 650)
    progress = query.run(**options)
    assert query.values() == numbers(0, 650)
    assert lag(progress)["offsetsBehindLatest"] == 0


def unread(run: Run) -> int:
    """How many records of `in` are not in `out`, about."""
    with logstore.open(run.place.log, mode="r") as store:
        copied, there = (sum(e.end for e in store.offsets(topic).values()) for topic in ("out", "in"))
    return max(0, there - copied)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(soaked(600, 5400))
@only_long("JVMs that are killed")
def test_a_killed_query_reads_history_and_tail_once(tmp_path):
    """Tasks, drivers and both at once are killed, while records are appended, tiered and deleted."""
    records, kills = soaked(20_000, 1_000_000), soaked(2, 50)
    print(f"PYLOG_SEED={SEED}")
    place = TieredDirectory(tmp_path, records=records, per_trigger=soaked(2_000, 10_000))
    assert all(start > records // 10 for start in place.first_in_log().values())
    run, left = Run(tmp_path, place, random.Random(SEED)), []
    try:
        run.start()  # no life ends in good order: it would read all of history first
        wait_for_batch(run)
        for kind in islice(kinds(run), kills):
            strike(run, kind)
            left.append(unread(run))
            print(f"{kind}, {run.batches()} batches, {left[-1]} unread", flush=True)
        stop(run)
    finally:
        end(run)
    found = dict(run.kills) | {"batches": run.batches()} | compare(run)
    print(found, f"{sum(count > records // 20 for count in left)} kills within history")
    assert left[0] > 0
    assert found["records"] > records
