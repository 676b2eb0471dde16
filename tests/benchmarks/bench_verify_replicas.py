"""`pylog verify-replicas` over three brokers: bytes of all replicas per second, and per CPU second of the command.

python tests/benchmarks/bench_verify_replicas.py [--rounds 5] [--megabytes 300] [--path DIR]

The goal is 300 MB per second of one core. The brokers share the machine; their CPU time is not in it.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from pathlib import Path

import pyarrow as pa
from harness import show

from replication.client.kafka_client import KafkaClient
from replication.local_cluster import LocalCluster
from replication.tools.replica_verification import ReplicaVerification

PARTITIONS, REPLICAS, VALUE_BYTES, ROWS = 6, 3, 1000, 50_000
GOAL_MB = 300


def cpu_s() -> float:
    """The CPU seconds of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print the medians of some rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=300, help="of one replica of all partitions")
    parser.add_argument("--path", type=Path)
    options = parser.parse_args()
    directory = options.path or Path(tempfile.mkdtemp(prefix="pylog-bench-"))
    rows = pa.table({"key": [b"%08d" % n for n in range(ROWS)], "value": [bytes(VALUE_BYTES)] * ROWS})
    walls, cores = [], []
    with LocalCluster(REPLICAS, directory) as cluster, KafkaClient(cluster.bootstrap) as client:
        client.create_topic("bench", partitions=PARTITIONS, replicas=REPLICAS)
        for _ in range(options.megabytes * 1_000_000 // (ROWS * VALUE_BYTES)):
            client.append("bench", rows)
        for number in range(options.rounds + 1):  # the first one warms up
            wall, core = time.perf_counter(), cpu_s()
            found = ReplicaVerification(client, "bench").run()
            wall, core = time.perf_counter() - wall, cpu_s() - core
            assert not any(row["findings"] or row["lag"] for row in found), found
            size = sum(row["bytes"] for row in found) / 1e6
            if number:
                walls.append(size / wall)
                cores.append(size / core)
    show(
        f"Replicas compared: {size:,.0f} MB in {PARTITIONS} partitions of {REPLICAS} replicas",
        ["what", "MB/s", "goal"],
        [["per second", statistics.median(walls), "-"], ["per CPU second", statistics.median(cores), str(GOAL_MB)]],
    )


if __name__ == "__main__":
    main()
