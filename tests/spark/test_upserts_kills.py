"""Drivers of `datasource.upsert` and `replace` that kill themselves inside a micro-batch: each is written once.

tests/spark/test_upserts.py, which always runs, repeats a batch in one session. Twenty kills, and
those of `replace`: `pytest --soak`.
"""

import os
import random

import pytest

from tests.spark.kills.upserting import WAYS, prove
from tests.support.repeats import only_long, soaked

KILLS = soaked(1, 20)

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.timeout(300 + 100 * KILLS),
    only_long("JVMs that are killed"),
]


@pytest.mark.parametrize("way", WAYS)
def test_each_state_of_a_key_is_there_once_wherever_the_driver_dies(way, tmp_path):
    if way == "replace" and not soaked(0, 1):
        pytest.skip("JVMs that are killed once more: with --soak")
    seed = int(os.environ.get("PYLOG_SEED", str(random.SystemRandom().randrange(10_000))))
    print(prove(tmp_path, way, kills=KILLS, seed=seed))
