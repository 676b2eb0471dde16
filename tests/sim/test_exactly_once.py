"""Many seeds of batches written exactly once to a cluster, and bugs that the law must find."""

import pytest

from tests.sim.exactly_once import FLAWS, Flaw, simulate
from tests.support.repeats import times

COUNT = times(20, 700, "SIM_SEEDS")
FOUND_AT = {Flaw.NO_RUN_SLOT: 167, Flaw.EARLY_LEFTOVERS: 219}  # seeds: these are rare


def test_no_seed_breaks_the_law_of_batches():
    lives = [simulate(seed) for seed in range(1, COUNT + 1)]
    assert sum(lives) > 2 * COUNT


@pytest.mark.parametrize("flaw", Flaw)
def test_the_law_finds_a_flaw_that_is_put_in(flaw, monkeypatch):
    if flaw in FLAWS:
        monkeypatch.setattr(*FLAWS[flaw])
    for seed in (FOUND_AT.get(flaw, 1), *range(1, 2000)):
        try:
            simulate(seed, flaw)
        except AssertionError:
            return
    raise AssertionError(f"not found: {flaw.value}")
