"""Many seeds of the simulated cluster, and bugs that it must find.

SIM_SEEDS sets how many seeds run (3, with --long 60), SIM_FIRST the first (1). `make sim SEED=7` runs one and shows
its story.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.circumstances import CIRCUMSTANCES
from tests.sim.mutants import Mutant
from tests.sim.simulation import simulate
from tests.support.repeats import soaked, times

ROOT = Path(__file__).parents[2]
FIRST = int(os.environ.get("SIM_FIRST", "1"))
COUNT = times(3, soaked(40, 60), "SIM_SEEDS")
CHUNK = 10
FOUND_BY_MAX = 30  # seeds: more than each third one finds its bug


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, CHUNK))
def test_no_seed_breaks_a_law(first):
    seeds = range(first, min(first + CHUNK, FIRST + COUNT))
    acked_later = sum(simulate(seed).acked_later for seed in seeds)
    assert acked_later or len(seeds) < CHUNK, "no append waited for a later epoch of its leader"


@pytest.mark.parametrize("mutant", list(Mutant)[:: times(6, 1)])
def test_the_laws_find_a_bug_that_is_put_in(mutant):
    for seed in range(1, FOUND_BY_MAX + 1):
        try:
            simulate(seed, mutant)
        except AssertionError:
            return
    raise AssertionError(f"not found: {mutant.value}")


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "mutant", [*{circumstances: mutant for mutant, circumstances in CIRCUMSTANCES.items()}.values()][:: times(5, 1)]
)
def test_circumstances_break_no_law_without_their_bug(mutant):
    for seed in range(1, soaked(times(1, 3), 30) + 1):
        simulate(seed, circumstances=CIRCUMSTANCES[mutant])


def test_a_seed_does_the_same_again_in_any_process():
    """Orders of sets differ there: with a partition, with members of a group (12), and with transactions (13)."""
    seeds = (12, 13, 5, 7)[: times(1, 4)]
    shown = f"from tests.sim.simulation import simulate; print(*map(simulate, {seeds}), sep='\\n')"
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
    assert one.count("seed=") == len(seeds)
