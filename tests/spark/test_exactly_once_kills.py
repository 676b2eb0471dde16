"""The sink is exactly once under SIGKILLs, and beside another driver: queries in processes of their own.

Over a cluster brokers are killed and paused, too. With --long, since their JVMs are dear:
tests/spark/test_exactly_once.py has each of these faults in one session. Many more kills by hand:

    python -m tests.spark.kills.killer --kills 200 --cluster

(PYLOG_KILLS and PYLOG_SEED set how often it is killed here, and which dice are thrown.)
"""

import os
import random
from itertools import chain, islice

import pytest

from tests.spark.kills.killer import Run, begin, catch_up, compare, end, kinds, rival, strike
from tests.spark.kills.places import Cluster, Directory
from tests.support.repeats import only_long, soaked

KILLS = int(os.environ.get("PYLOG_KILLS", soaked(2, 20)))

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.timeout(300 + 100 * KILLS),
    only_long("JVMs that are killed"),
]
OF_DRIVER = ("driver", "everything")
SEED = int(os.environ.get("PYLOG_SEED", str(random.SystemRandom().randrange(10_000))))
PLACES = {"directory": Directory, "cluster": Cluster}


@pytest.fixture(scope="module", params=PLACES)
def run(request, tmp_path_factory):
    """A query that copies. Both tests leave it running: its JVM is most of what they cost."""
    print(f"PYLOG_SEED={SEED}")
    root = tmp_path_factory.mktemp("kills")
    place = PLACES[request.param](root)
    made = Run(root, place, random.Random(SEED))
    try:
        begin(made)
        yield made
    finally:
        end(made)
        place.close()


def test_a_killed_query_copies_every_record_once_and_in_order(run):
    """(T6, T7, T8) Tasks that fail; workers, drivers and brokers that are killed before, in and after a commit."""
    known = run.place.kinds
    first = [
        run.dice.choice([kind for kind in known if kind.startswith(run.place.often)]),
        run.dice.choice([kind for kind in known if kind.startswith(OF_DRIVER) and kind.endswith(run.place.in_commit)]),
    ]
    for kind in islice(chain(first, kinds(run)), KILLS):
        strike(run, kind)
        print(f"{kind}, {run.batches()} batches")
    catch_up(run)
    assert compare(run)["records"] > 5_000


def test_two_drivers_on_one_checkpoint_copy_every_record_once_and_in_order(run):
    """Spark and the sink refuse one of them, or both; who is started again goes on."""
    if isinstance(run.place, Cluster) and not soaked(0, 1):
        pytest.skip("brokers beside two JVMs: with --soak")
    rival(run)
    catch_up(run)
    compare(run)
