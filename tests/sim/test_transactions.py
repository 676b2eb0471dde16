"""Many seeds of transactions, and bugs that the law must find."""

import pytest

from tests.sim.transactions import Flaw, simulate
from tests.support.repeats import times

COUNT = times(15, 400, "SIM_SEEDS")


def test_no_seed_breaks_the_law_of_transactions():
    outcomes = [simulate(seed) for seed in range(1, COUNT + 1)]
    committed, aborted = map(sum, zip(*outcomes, strict=True))
    assert committed > COUNT
    assert aborted > COUNT


@pytest.mark.parametrize("flaw", Flaw)
def test_the_law_finds_a_flaw_that_is_put_in(flaw):
    for seed in range(1, 200):
        try:
            simulate(seed, flaw)
        except AssertionError:
            return
    raise AssertionError(f"not found: {flaw.value}")
