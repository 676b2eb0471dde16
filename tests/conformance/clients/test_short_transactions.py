"""Clients of transaction version 2 begin a transaction at once after a commit, while markers are still written."""

import shutil
import subprocess
from pathlib import Path

import pytest

from replication.client.kafka_client import Isolation, KafkaClient
from tests.conformance.clients.members import until
from tests.support.kafka4 import java_program
from tests.support.repeats import only_long, soaked

PROGRAMS = Path(__file__).parent / "programs"
PARTITIONS, PRODUCERS = 6, 8
BUILT_WITHIN_S = 240

pytestmark = [
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.timeout(soaked(600, 1800)),
    only_long("builds programs in Java and Go"),
]


def java(room):
    return java_program(PROGRAMS / "ShortTransactions.java", room)


def franz(room):
    """franz-go, which is a module: skips where it cannot be built."""
    if not shutil.which("go"):
        pytest.skip("no franz-go: there is no go")
    source = shutil.copytree(PROGRAMS / "franz", room / "franz")
    for step in (["go", "mod", "tidy"], ["go", "build", "-o", str(room / "program"), "."]):
        built = subprocess.run(step, cwd=source, capture_output=True, text=True, timeout=BUILT_WITHIN_S, check=False)
        if built.returncode:
            pytest.skip(f"no franz-go: {' '.join(step)}: {built.stderr.strip().splitlines()[-1]}")
    return [str(room / "program")]


@pytest.mark.parametrize("program", [java, franz])
def test_no_transaction_that_begins_at_once_after_a_commit_fails(cluster, tmp_path, program):
    command, topic, seconds = program(tmp_path), f"short-{program.__name__}", soaked(20, 600)
    with KafkaClient(cluster.bootstrap) as client:
        client.create_topic(topic, partitions=PARTITIONS, replicas=3)
        words = (cluster.bootstrap, topic, PARTITIONS, PRODUCERS, seconds)
        ran = subprocess.run(
            [*command, *map(str, words)], capture_output=True, text=True, timeout=seconds + 120, check=False
        )
        *failed, last = ran.stdout.splitlines()
        assert (ran.returncode, failed) == (0, []), ran.stderr
        _, committed, records = last.split()
        assert int(committed) > PRODUCERS

        def found():
            ends = client.extents(topic, isolation=Isolation.READ_COMMITTED)
            parts = (
                client.read(topic, p, 0, ends[p].end, isolation=Isolation.READ_COMMITTED) for p in range(PARTITIONS)
            )
            return sum(batch.num_rows for part in parts for batch in part)

        # A commit is answered before its last marker is written, as by Kafka.
        until(lambda: found() == int(records), lambda: (found(), records), within_s=60)
