"""Many seeds of the simulated cluster, and bugs that it must find.

SIM_SEEDS sets how many seeds run (3, with --long 60), SIM_FIRST the first (1). `make sim SEED=7` runs one and shows
its story.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.mutants import Mutant
from tests.sim.simulation import simulate
from tests.support.repeats import times

ROOT = Path(__file__).parents[2]
FIRST = int(os.environ.get("SIM_FIRST", "1"))
COUNT = times(3, 60, "SIM_SEEDS")
CHUNK = 10
# Those that found a bug when they were last searched: they are tried first.
FOUND_BY = {
    Mutant.TRUNCATE_TO_HW: (15,),
    Mutant.COMMITTED_ISR_ONLY: (11,),
    Mutant.CUT_IN_THE_DARK: (191,),
    Mutant.CUT_UNASKED: (11,),
    Mutant.NOT_FILLED: (11,),
    Mutant.NO_RECOVERY: (3,),
    Mutant.WAITS_OUTLIVE_ROLES: (743,),
    Mutant.POWER_CUT_UNNOTICED: (77,),
    Mutant.ACKED_TWICE: (3,),
    Mutant.APPENDED_TWICE: (2,),
    Mutant.SESSION_FORGETS: (29,),
    Mutant.TOLD_BEFORE_STORED: (403,),
    Mutant.FENCED_ENDS: (10,),
    Mutant.ANY_GENERATION: (99,),
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, CHUNK))
def test_no_seed_breaks_a_law(first):
    seeds = range(first, min(first + CHUNK, FIRST + COUNT))
    acked_later = sum(simulate(seed).acked_later for seed in seeds)
    assert acked_later or len(seeds) < CHUNK, "no append waited for a later epoch of its leader"


@pytest.mark.parametrize("mutant", Mutant)
def test_the_laws_find_a_bug_that_is_put_in(mutant):
    for seed in (*FOUND_BY.get(mutant, ()), *range(1, 200)):
        try:
            simulate(seed, mutant)
        except AssertionError:
            return
    raise AssertionError(f"not found: {mutant.value}")


def test_a_seed_does_the_same_again_in_any_process():
    """Whatever the order of sets of texts there: with a partition, with transactions, and with members of a group."""
    shown = "from tests.sim.simulation import simulate; print(*map(simulate, (5, 7, 12, 13)), sep='\\n')"
    one, other = (
        subprocess.run(
            [sys.executable, "-c", shown],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": order, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for order in ("1", "3")
    )
    assert one == other
    assert one.count("seed=") == 4
