"""The sink is exactly once under SIGKILLs, and beside another driver: queries in processes of their own.

By default a worker and, in the middle of a commit, a driver are killed; with --long four others,
too; each kind and many more by hand:

    python -m tests.spark.kills.killer --kills 200

(PYLOG_KILLS and PYLOG_SEED set how often it is killed here, and which dice are thrown.)
"""

import os
import random
import time
from itertools import chain, islice

import pytest

from tests.spark.kills.killer import (
    IN_COMMIT,
    OF_WORKERS,
    FaultError,
    Run,
    begin,
    catch_up,
    compare,
    descendants,
    end,
    kill,
    kinds,
    strike,
)
from tests.support.repeats import times

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

KILLS = times(2, 6, "PYLOG_KILLS")
SEED = int(os.environ.get("PYLOG_SEED", str(random.SystemRandom().randrange(10_000))))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A query that copies. Both tests leave it running: its JVM is most of what they cost."""
    print(f"PYLOG_SEED={SEED}")
    made = Run(tmp_path_factory.mktemp("kills"), random.Random(SEED))
    try:
        begin(made)
        yield made
    finally:
        end(made)


def test_a_killed_query_copies_every_record_once_and_in_order(run):
    """(T6, T7, T8) Tasks that fail; workers and drivers that are killed before, in and after a commit."""
    first = run.dice.choice(OF_WORKERS), run.dice.choice(IN_COMMIT)
    for kind in islice(chain(first, kinds(run.dice)), KILLS):
        strike(run, kind)
        print(f"{kind}, {run.decided()} batches")
    catch_up(run)
    assert compare(run)["records"] > 5_000


def test_two_drivers_on_one_checkpoint_copy_every_record_once_and_in_order(run):
    """Spark and the sink refuse one of them, or both; who is started again goes on."""
    first = run.process
    run.start()
    second = run.process
    try:
        while first.poll() is None and second.poll() is None:
            run.write(300)
            time.sleep(0.2)
        assert first.poll() or second.poll(), "who is refused says so"
        run.process = first if first.poll() is None else second
        try:
            catch_up(run)
        except FaultError:
            assert run.process.poll(), "one of them goes on, or none"
            run.start()
            catch_up(run)
    finally:
        for process in {first, second} - {run.process}:
            if process.poll() is None:
                kill(descendants(process.pid))
    compare(run)
