"""An idle stream: the share of a core that it takes while no record comes, and how soon a record is in a batch.

    python tests/benchmarks/bench_idle.py [--rounds 3] [--seconds 30] [--appends 30] [--brokers 3] [--against DIR]

Queries into foreachBatch, with Spark's default trigger: of pylog over a directory and over a cluster, and of Spark's
own sources of text files and of a socket. The share is the CPU time of all processes of Spark (JVM, Python workers and
driver) over the time, after a warm-up; brokers do not count. "found" is the time from an append until the source tells
Spark of it, "batch" until foreachBatch is called. With `--against`, another checkout takes turns with this one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WARM_UP_S = 25  # the JVM compiles
POLLING_DELAY_S = 0.010  # spark.sql.streaming.pollingDelay
TICKS = os.sysconf("SC_CLK_TCK")
HERE = Path(__file__).resolve()

Append = Callable[[str], object]
Place = tuple[dict[str, str], Append, set[int]]


@contextmanager
def directory(root: Path, _brokers: int) -> Iterator[Place]:
    import pyarrow as pa

    import logstore

    with logstore.open(root / "store") as store:
        store.create_topic("t", partitions=3)
        yield {"path": str(root / "store")}, lambda text: store.append("t", pa.table({"value": [text]})), set()


@contextmanager
def cluster(root: Path, brokers: int) -> Iterator[Place]:
    import pyarrow as pa

    from replication.client.kafka_client import KafkaClient
    from replication.local_cluster import LocalCluster

    before = set(tree(os.getpid()))
    with LocalCluster(brokers, directory=root / "cluster") as running, KafkaClient(running.bootstrap) as client:
        client.create_topic("t", partitions=3)
        pids = set(tree(os.getpid())) - before
        yield (
            {"kafka.bootstrap.servers": running.bootstrap},
            lambda text: client.append("t", pa.table({"value": [text]})),
            pids,
        )


def tree(root: int) -> dict[int, tuple[str, int]]:
    """Return the name and the CPU ticks of a process and of all that it started."""
    rows = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                text = (path / "stat").read_text()
            except OSError:
                continue
            name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
            rows[int(path.name)] = int(rest[1]), name, int(rest[11]) + int(rest[12])
    found, waiting = {}, [root]
    while waiting:
        pid = waiting.pop()
        if pid in rows:
            found[pid] = rows[pid][1:]
            waiting += [child for child, row in rows.items() if row[0] == pid]
    return found


def idle(query: Any, brokers: set[int], seconds: float) -> dict[str, float]:
    time.sleep(WARM_UP_S)
    before, start = tree(os.getpid()), time.perf_counter()
    time.sleep(seconds)
    after, took_s = tree(os.getpid()), time.perf_counter() - start
    assert query.isActive, query.exception()
    share = {"JVM": 0.0, "Python": 0.0}
    for pid, (name, ticks) in after.items():  # those that ended had been idle
        if pid not in brokers:
            since = ticks - before[pid][1] if pid in before else ticks
            share["JVM" if name == "java" else "Python"] += since / TICKS / took_s
    return share


def latencies_ms(append: Append, comes: Callable[[], float], count: int) -> list[float]:
    """Append one record after the other to a query that idles; `comes` waits, and returns the time it came."""
    found = []
    for number in range(count):
        time.sleep(random.uniform(1.0, 2.5))
        start = time.perf_counter()
        append(f"record {number}")
        found.append((comes() - start) * 1000)
    return found


def found_ms(options: dict[str, str], append: Append, count: int) -> list[float]:
    """The time until the source has found a record, if it is asked as Spark asks it."""
    from datasource import PylogDataSource

    source = PylogDataSource({**options, "subscribe": "t", "startingoffsets": "latest"})
    reader = source.streamReader(source.schema())
    limit, position, times, is_over = reader.getDefaultReadLimit(), reader.initialOffset(), [], threading.Event()
    came = threading.Semaphore(0)

    def ask() -> None:
        nonlocal position
        while not is_over.is_set():
            end = reader.latestOffset(position, limit)
            reader.reportLatestOffset()
            if end != position:
                times.append(time.perf_counter())
                position = end
                came.release()
                time.sleep(0.3)  # as long as a batch takes
            else:
                time.sleep(POLLING_DELAY_S)

    def comes() -> float:
        came.acquire()
        return times[-1]

    asking = threading.Thread(target=ask)
    asking.start()
    came.acquire()  # the first answer says where the query begins
    try:
        return latencies_ms(append, comes, count)
    finally:
        is_over.set()
        asking.join()


def measured(spark: Any, asked: argparse.Namespace) -> dict[str, Any]:
    """The shares of a core by place, and by place the latencies."""
    found: dict[str, Any] = {}
    came, times = threading.Semaphore(0), []

    def keep(_batch: Any, _number: int) -> None:
        times.append(time.perf_counter())
        came.release()

    def comes() -> float:
        came.acquire()
        return times[-1]

    for place in (directory, cluster):
        with tempfile.TemporaryDirectory() as root, place(Path(root), asked.brokers) as (options, append, brokers):
            append("first")
            stream = spark.readStream.format("pylog").options(**options, subscribe="t", startingOffsets="earliest")
            query = stream.load().writeStream.foreachBatch(keep).start()
            comes()
            share = idle(query, brokers, asked.seconds)
            batch_ms = latencies_ms(append, comes, asked.appends)
            query.stop()
            found[place.__name__] = {**share, "batch": batch_ms, "found": found_ms(options, append, asked.appends)}
    if asked.peers:
        with tempfile.TemporaryDirectory() as root, socket.create_server(("127.0.0.1", 0)) as server:
            (Path(root) / "text").write_text("first\n")
            own = spark.readStream.format("socket").option("host", "127.0.0.1").option("port", server.getsockname()[1])
            for name, stream in {"Spark's files": spark.readStream.text(root), "Spark's socket": own.load()}.items():
                query = stream.writeStream.foreachBatch(keep).start()
                found[name] = idle(query, set(), asked.seconds)
                query.stop()
    return found


def one_round(asked: argparse.Namespace) -> None:
    import datasource

    spark = datasource.spark_session(master="local[2]", **{"spark.ui.showConsoleProgress": False})
    spark.sparkContext.setLogLevel("OFF")
    json.dump(measured(spark, asked), sys.stdout)
    spark.stop()


def run(checkout: Path, *, peers: bool) -> dict[str, Any]:
    """One round in a process of its own, with the code of this checkout."""
    paths = os.pathsep.join([str(checkout), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, str(HERE), *sys.argv[1:], "--one-round", *(["--peers"] if peers else [])]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--appends", type=int, default=30)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--one-round", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--peers", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one_round:
        one_round(asked)
        return

    from harness import show

    checkouts = {"this": HERE.parents[2]} | ({"other": asked.against.resolve()} if asked.against else {})
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in checkouts}
    for _ in range(asked.rounds):
        for name, checkout in checkouts.items():
            rounds[name].append(run(checkout, peers=name == "this"))
    rows = []
    for name, results in rounds.items():
        for place in results[0]:
            shares = {part: statistics.median(r[place][part] for r in results) for part in ("JVM", "Python")}
            total = statistics.median(r[place]["JVM"] + r[place]["Python"] for r in results)
            times = []
            for kind in ("found", "batch"):
                ms = sorted(ms for r in results for ms in r[place].get(kind, ()))
                times += [f"{ms[len(ms) * part // 10]:.0f} ms" if ms else "" for part in (5, 9)]
            rows.append([name, place, *(f"{share:.1%}" for share in (total, *shares.values())), *times])
    columns = ["checkout", "source", "of a core", "JVM", "Python", "found p50", "p90", "batch p50", "p90"]
    show(f"an idle stream, {asked.rounds} rounds", columns, rows)


if __name__ == "__main__":
    main()
