"""The sink is exactly once under SIGKILLs, and beside another driver: queries in processes of their own.

By default a worker and, in the middle of a commit, a driver are killed; with --long then each kind of kill; in the
long form also many more times, at random:

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
    KINDS,
    OF_WORKERS,
    Run,
    compare,
    descendants,
    kill,
    kinds,
    prove,
)
from tests.support.repeats import times

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

KILLS = times(2, 2 + len(KINDS), "PYLOG_KILLS")
SEED = int(os.environ.get("PYLOG_SEED", str(random.SystemRandom().randrange(10_000))))


def test_a_killed_query_copies_every_record_once_and_in_order(tmp_path):
    """(T6, T7, T8) Tasks that fail; workers and drivers that are killed before, in and after a commit."""
    print(f"PYLOG_SEED={SEED}")
    dice = random.Random(SEED)
    first = dice.choice(OF_WORKERS), dice.choice(IN_COMMIT)
    chosen = list(islice(chain(first, kinds(dice)), KILLS))
    found = prove(tmp_path, chosen, seed=SEED)
    assert found["records"] > 5_000
    assert all(found.get(kind) for kind in chosen)


def test_two_drivers_on_one_checkpoint_copy_every_record_once_and_in_order(tmp_path):
    """Spark and the sink refuse one of them, or both; who is started again goes on."""
    run = Run(tmp_path, random.Random(SEED))
    run.start()
    first = run.process
    try:
        while not run.decided():
            run.check()
        run.start()
        while first.poll() is None and run.process.poll() is None:
            run.write(300)
            time.sleep(0.2)
        (tmp_path / "stop").touch()
        assert first.wait(600) or run.process.wait(600), "both thought that the query was theirs"
        if first.poll() and run.process.wait(600):
            run.start()
            assert run.process.wait(600) == 0
    finally:
        for process in (first, run.process):
            if process.poll() is None:
                kill(descendants(process.pid))
    compare(run)
