"""Real processes, really killed: the short form of `python -m tests.crash.processes` (S20, S21).

PYLOG_PROCESSES_SECONDS says how long they run here at least, PYLOG_SEED which dice are thrown.
"""

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repeats import times

SECONDS = times(1, 12, "PYLOG_PROCESSES_SECONDS")
SEED = int(os.environ.get("PYLOG_SEED", str(random.SystemRandom().randrange(10_000))))


@pytest.mark.slow
def test_killed_writers_and_readers_leave_every_acknowledged_record_once_and_in_order():
    command = [sys.executable, "-m", "tests.crash.processes", f"--seconds={SECONDS}", f"--seed={SEED}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"([\d,]+) acknowledged, ([\d,]+) seen.* (\d+) kills", done.stdout)
    assert found, done.stdout
    assert int(found[3]) >= 20
