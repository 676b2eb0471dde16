"""Many seeds of batches written exactly once to a cluster, and bugs that the law must find."""

import pytest

from tests.sim.exactly_once import CIRCUMSTANCES, FLAWS, Flaw, simulate
from tests.support.repeats import soaked, times

COUNT = times(20, soaked(400, 700), "SIM_SEEDS")
FOUND_BY_MAX = 30  # seeds: more than each fourth one finds its bug


@pytest.mark.soak
def test_no_seed_breaks_the_law_of_batches():
    lives = [simulate(seed) for seed in range(1, COUNT + 1)]
    assert sum(lives) > 2 * COUNT


@pytest.mark.parametrize("flaw", Flaw)
def test_the_law_finds_a_flaw_that_is_put_in(flaw, monkeypatch):
    if flaw in FLAWS:
        monkeypatch.setattr(*FLAWS[flaw])
    for seed in range(1, FOUND_BY_MAX + 1):
        try:
            simulate(seed, flaw)
        except AssertionError:
            return
    raise AssertionError(f"not found: {flaw.value}")


@pytest.mark.parametrize("flaw", Flaw)
def test_circumstances_break_no_law_without_their_flaw(flaw):
    for seed in range(1, times(5, FOUND_BY_MAX) + 1):
        simulate(seed, circumstances=CIRCUMSTANCES[flaw])
