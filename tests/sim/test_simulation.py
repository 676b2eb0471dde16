"""Many seeds of the simulated cluster, and bugs that it must find.

SIM_SEEDS sets how many seeds run (30, with --long 120), SIM_FIRST the first (1). `make sim SEED=7` runs one and shows
its story.
"""

import os

import pytest

from tests.sim.simulation import Mutant, simulate
from tests.support.repeats import times

FIRST = int(os.environ.get("SIM_FIRST", "1"))
COUNT = times(20, 120, "SIM_SEEDS")
CHUNK = 15
# Those that found a bug when they were last searched: they are tried first.
FOUND_BY = {
    Mutant.CUT_IN_THE_DARK: (18, 94),
    Mutant.CUT_UNASKED: (62, 65),
    Mutant.NOT_FILLED: (36, 56),
    Mutant.POWER_CUT_UNNOTICED: (27, 33),
    Mutant.WAITS_OUTLIVE_ROLES: (58,),
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, CHUNK))
def test_no_seed_breaks_a_law(first):
    seeds = range(first, min(first + CHUNK, FIRST + COUNT))
    acked_later = sum(simulate(seed).acked_later for seed in seeds)
    assert acked_later or len(seeds) < CHUNK, "no append waited for a later epoch of its leader"


@pytest.mark.parametrize("mutant", Mutant)
def test_the_laws_find_a_bug_that_is_put_in(mutant):
    for seed in (*FOUND_BY.get(mutant, ()), *range(1, 100)):
        try:
            simulate(seed, mutant)
        except AssertionError:
            return
    raise AssertionError(f"not found: {mutant.value}")


def test_a_seed_does_the_same_again():
    assert simulate(17) == simulate(17)
