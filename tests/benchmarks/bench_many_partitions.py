"""How creating, stopping and starting grow with the number of partitions: three brokers, three replicas, SQLite.

python tests/benchmarks/bench_many_partitions.py [--partitions 500,5000] [--path DIR]

One topic per cluster. CPU is that of all brokers, per partition of the topic: it should not grow with their number.
Wall time says more of the disk and of who else uses the machine. The brokers are stopped one after the other, each in
good order; `stop 1` moves every third leadership to the two others, `stop 3` has nobody left to move anything to.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from bench_cluster import cpu_s
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from harness import show

from replication.local_cluster import LocalCluster, process

PATIENCE_S = 600
LOOK_S = 0.05


def cost(cluster: LocalCluster, work: Callable[[], object]) -> tuple[float, float]:
    """(wall seconds, CPU seconds of the brokers); of one that ends meanwhile, what was last seen."""
    pids = {cluster.pid(broker) for broker in cluster.live}
    before, began_s = {pid: cpu_s(pid) for pid in pids}, time.perf_counter()
    latest = dict(before)
    doing = threading.Thread(target=work)
    doing.start()
    while doing.is_alive():
        doing.join(LOOK_S)
        for pid in pids:
            try:
                latest[pid] = cpu_s(pid)
            except (FileNotFoundError, ProcessLookupError):
                continue
    wall_s = time.perf_counter() - began_s
    return wall_s, sum(latest.values()) - sum(before.values())


def create(cluster: LocalCluster, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    (asked,) = admin.create_topics([NewTopic("t", partitions, 3)], operation_timeout=60).values()
    with contextlib.suppress(KafkaException):  # it takes longer than the client waits
        asked.result(PATIENCE_S)
    until_in_sync(cluster, partitions)


def until_in_sync(cluster: LocalCluster, partitions: int) -> None:
    end_s = time.perf_counter() + PATIENCE_S
    while sum(len(state.isr) == 3 for state in cluster.describe().leadership.values()) < partitions:
        assert time.perf_counter() < end_s, "the replicas do not come in sync"
        time.sleep(0.3)


def rows(partitions: int, path: Path) -> list[list[object]]:
    found = []

    def note(what: str, measured: tuple[float, float]) -> None:
        wall_s, used_s = measured
        found.append([what, partitions, wall_s, used_s, 1000 * used_s / partitions])

    with LocalCluster(3, path) as cluster:
        note("create", cost(cluster, lambda: create(cluster, partitions)))
        for broker in (1, 2, 3):
            note(f"stop {broker}", cost(cluster, lambda broker=broker: cluster.stop(broker)))  # type: ignore[misc]
        began_s = time.perf_counter()
        cluster.start()
        until_in_sync(cluster, partitions)
        wall_s = time.perf_counter() - began_s
        note("start", (wall_s, sum(cpu_s(cluster.pid(broker)) for broker in cluster.live)))
        note("stop all", cost(cluster, cluster.stop))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", default="500,5000")
    parser.add_argument("--path", type=Path, default=None)
    chosen = parser.parse_args()
    process.STOP_TIMEOUT_S = process.READY_TIMEOUT_S = PATIENCE_S
    for partitions in map(int, chosen.partitions.split(",")):
        with tempfile.TemporaryDirectory(dir=chosen.path, prefix="pylog-bench-") as directory:
            found = rows(partitions, Path(directory))
        show("many partitions", ("what", "partitions", "wall s", "CPU s", "CPU ms / partition"), found)


if __name__ == "__main__":
    main()
