"""Drivers of `datasource.sift` that kill themselves: each row and each dead letter is written once.

tests/spark/test_sifting.py repeats a batch in one session. Twenty kills, and over a cluster: `pytest --soak`.
"""

import os
import random

import pytest

from tests.spark.kills.sifting import prove
from tests.support.repeats import only_long, soaked

KILLS = soaked(1, 20)

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.timeout(300 + 100 * KILLS),
    only_long("JVMs that are killed"),
]


@pytest.mark.parametrize("place", ["directory", "cluster"])
def test_each_row_and_each_dead_letter_is_there_once_wherever_the_driver_dies(place, tmp_path):
    if place == "cluster" and KILLS == 1:
        pytest.skip("brokers beside JVMs that are killed: with --soak")
    seed = int(os.environ.get("PYLOG_SEED", str(random.SystemRandom().randrange(10_000))))
    print(prove(tmp_path, place, kills=KILLS, seed=seed))
