"""A query on a real Spark cluster, of a master and two workers, copies exactly once while executors and workers die.

tests/spark/test_workers.py shows that such executors read and write at all; tests/spark/test_exactly_once_kills.py
kills drivers and brokers. By hand, with another seed: PYLOG_SEED=7 pytest --soak tests/spark/test_standalone.py
"""

import os
import random
from itertools import chain, islice

import pytest

from tests.spark.kills.killer import Run, catch_up, compare, end, stop, wait_for_batch, wait_for_moment
from tests.spark.kills.places import Cluster, Directory
from tests.spark.kills.standalone import Standalone
from tests.support.repeats import only_long, soaked

SEED = int(os.environ.get("PYLOG_SEED", str(random.SystemRandom().randrange(10_000))))
KILLS = soaked(1, 20)
pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.timeout(400 + 60 * KILLS),
    only_long("six JVMs"),
]
# Where it reads and writes; the moments in a transaction of a task, and in a commit; and who is killed first.
PLACES = {
    "directory": (Directory, ("open", "prepared", "decide"), "worker"),
    "cluster": (lambda root: Cluster(root, brokers=1), ("written", "deciding"), "executor"),
}


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory):
    started = Standalone(tmp_path_factory.mktemp("standalone"))
    yield started
    started.close()


@pytest.mark.parametrize("where", PLACES)
def test_killed_executors_and_workers_copy_every_record_once_and_in_order(where, spark_cluster, tmp_path):
    make, moments, first = PLACES[where]
    place, dice = make(tmp_path), random.Random(SEED)
    print(f"PYLOG_SEED={SEED}")
    run = Run(tmp_path, place, dice, master=spark_cluster.url)
    try:
        run.start()
        wait_for_batch(run, -1)
        assert len(spark_cluster.executors()) == 2
        victims = chain((first,), iter(lambda: dice.choice(("executor", "executor", "worker")), None))
        for victim in islice(victims, KILLS):
            moment = dice.choice(moments)
            wait_for_moment(run, moment)
            kill = spark_cluster.kill_executor if victim == "executor" else spark_cluster.kill_worker
            kill(dice)
            print(f"{victim} at {moment}, {run.batches()} batches")
            wait_for_batch(run)
        catch_up(run)
        stop(run)
        assert run.starts == 1 + run.slow  # the query survived them all
        assert compare(run)["records"] > 5_000
    finally:
        end(run)
        place.close()
