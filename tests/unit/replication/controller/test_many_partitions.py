"""The work of the controller's machine for one event grows as the partitions do, and no faster: calls are counted."""

import gc
import sys

import pytest

from tests.transcripts.cluster import Cluster

FEW = 150


def calls(command, partitions):
    """How many functions, Python's and C's, the machine calls for it, for what it writes, and for the outcomes."""
    cluster = Cluster()
    rows = [":".join(str(1 + (number + n) % 3) for n in range(3)) for number in range(partitions)]
    for line in ("brokers 1 2 3", "elect 3", "create t " + " ".join(rows), "prefer all"):
        cluster.run(line)
    made = 0

    def count(frame, event, argument):
        nonlocal made
        made += event in ("call", "c_call")

    gc.disable()  # what other tests left would be finalized here, and counted
    sys.setprofile(count)
    try:
        cluster.run(command)
    finally:
        sys.setprofile(None)
        gc.enable()
    return made


@pytest.mark.parametrize("command", ["shutdown 1", "kill 1", "bounce 1", "elect 2", "offline 1 all", "delete t"])
def test_twice_the_partitions_take_twice_the_calls(command):
    few, many = calls(command, FEW), calls(command, 2 * FEW)
    assert FEW < few < many < 2.1 * few
