"""The sink is exactly once under random SIGKILLs. Here the short form; the long one is

    python -m tests.spark.kills.killer --kills 200

(PYLOG_KILLS and PYLOG_SEED set how often it is killed here, and which dice are thrown.)
"""

import os
import random

import pytest

from tests.spark.kills.killer import prove

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

KILLS = int(os.environ.get("PYLOG_KILLS", "10"))
SEED = int(os.environ.get("PYLOG_SEED", str(random.SystemRandom().randrange(10_000))))


def test_a_killed_query_copies_every_record_once_and_in_order(tmp_path):
    """(T6, T7, T8) Tasks retried, workers and drivers killed, also in the middle of a commit."""
    print(f"PYLOG_SEED={SEED}")
    found = prove(tmp_path, kills=KILLS, seed=SEED)
    assert found["records"] > 5_000
