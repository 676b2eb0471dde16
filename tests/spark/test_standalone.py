"""Queries on a real Spark cluster, of a master and two workers, copy exactly once while executors and workers die.

One reads from a broker and writes to a directory, the other one back. tests/spark/test_workers.py shows that such
executors read and write at all; tests/spark/test_exactly_once_kills.py kills drivers and brokers. By hand:

    PYLOG_SEED=7 pytest -n0 --soak tests/spark/test_standalone.py
"""

import os
import random
from itertools import chain, islice

import pytest

from tests.spark.kills.killer import Run, catch_up, compare, end, stop, wait_for_batch, wait_for_moment
from tests.spark.kills.places import Chain
from tests.spark.kills.standalone import Standalone
from tests.support.repeats import only_long, soaked

SEED = int(os.environ.get("PYLOG_SEED", str(random.SystemRandom().randrange(10_000))))
KILLS = soaked(2, 20)
pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.timeout(400 + 60 * KILLS),
    only_long("six JVMs"),
]
# In a transaction of a task, and in a commit: of the directory, and of the broker.
MOMENTS = ("open", "prepared", "decide", "written", "deciding")
VICTIMS = ("executor", "executor", "worker")


@pytest.fixture
def spark_cluster(tmp_path):
    started = Standalone(tmp_path)
    yield started
    started.close()


def test_killed_executors_and_workers_copy_every_record_once_and_in_order(spark_cluster, tmp_path):
    place, dice = Chain(tmp_path), random.Random(SEED)
    print(f"PYLOG_SEED={SEED}")
    run = Run(tmp_path, place, dice, master=spark_cluster.url)
    try:
        run.start()
        wait_for_batch(run, -1)
        assert len(spark_cluster.executors()) == 2
        first = [("executor", dice.choice(MOMENTS[3:])), ("worker", dice.choice(MOMENTS[:3]))]
        others = iter(lambda: (dice.choice(VICTIMS), dice.choice(MOMENTS)), None)
        for victim, moment in islice(chain(first, others), KILLS):
            wait_for_moment(run, moment)
            (spark_cluster.kill_executor if victim == "executor" else spark_cluster.kill_worker)(dice)
            print(f"{victim} at {moment}, {run.batches()} batches")
            wait_for_batch(run)
        catch_up(run)
        stop(run)
        assert run.starts == 1 + run.slow  # the queries survived them all
        assert compare(run)["records"] > 5_000
    finally:
        end(run)
        place.close()
