"""The store against the disk and the memory: append, plain and idempotent, random read, opening, starting.

python tests/benchmarks/bench_store.py [--path DIR]
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
from harness import AGAIN, ROUNDS, against, interleave, ratio, show

import logstore
from logstore.log.producers.state import ProducerStamp, Producing

MIB = 1024 * 1024


def table(rows: int, value_bytes: int) -> pa.Table:
    value = (b"0123456789abcdef" * (value_bytes // 16 + 1))[:value_bytes]
    return pa.table({"key": [b"key-%012d" % i for i in range(rows)], "value": pa.array([value] * rows, pa.binary())})


def append_next(store: logstore.LogStore, topics: Iterator[int], data: pa.Table) -> None:
    store.append(f"t{next(topics)}", data)


def write_next(root: Path, numbers: Iterator[int], stored: bytes) -> None:
    with (root / f"plain-{next(numbers)}").open("wb", buffering=0) as file:
        for at in range(0, len(stored), MIB):
            file.write(memoryview(stored)[at : at + MIB])


def bench_append(root: Path) -> list[list[object]]:
    """`store.append` of 1 KB and 100 B rows, not flushed, against write() of the same bytes to the same disk."""
    found: list[list[object]] = []
    for value_bytes, rows in ((1000, 100_000), (100, 500_000)):
        data = table(rows, value_bytes)
        with logstore.open(root / f"append-{value_bytes}") as store:
            numbers = iter(range(1_000_000))
            for number in range(ROUNDS + 2):
                store.create_topic(f"t{number}")
            store.append("t0", data)
            stored = Path(store.log("t0", 0).segments()[0].path).read_bytes()
            topics = iter(range(1, ROUNDS + 2))
            seconds, result, noise = against(
                partial(append_next, store, topics, data),
                partial(write_next, root, numbers, stored),
                rounds=ROUNDS,
            )
            mb_s = len(stored) / statistics.median(seconds["ours"]) / 1e6
            found.append(["append, 1 partition", f"{value_bytes} B", f"{mb_s:,.0f} MB/s", "write()", result, noise])
        shutil.rmtree(root / f"append-{value_bytes}")
        for path in root.glob("plain-*"):
            path.unlink()
    return found


class Idempotent:
    """A producer that numbers its rows: every batch is checked against the last ones, and may be sent again."""

    def __init__(self, producer_id: int) -> None:
        self.producer_id, self.sequence = producer_id, 0

    def stamp(self, topic: str, partition: int, rows: int) -> ProducerStamp:
        stamp = ProducerStamp(self.producer_id, 0, self.sequence)
        self.sequence += rows
        return stamp

    def guard(self) -> None:
        pass


def bench_idempotent(root: Path) -> list[list[object]]:
    """Idempotent appends against plain ones, of a thousand rows and of few; CPU time, since both do the same I/O."""
    found: list[list[object]] = []
    store = logstore.open(root / "idempotent")
    for rows, appends in ((1000, 8), (10, 200)):
        data = table(rows, 1000)
        topics = {name: f"{name}-{rows}" for name in ("plain", "stamped", AGAIN)}
        for topic in topics.values():
            store.create_topic(topic, config={"retention.bytes": "0"})
        producer = Idempotent(7)

        def append(topic: str, by: Producing | None, data: pa.Table = data, appends: int = appends) -> None:
            for _ in range(appends):
                store.append(topic, data, producer=by)

        works: dict[str, Callable[[], object]] = {
            "stamped": partial(append, topics["stamped"], producer),
            "plain": partial(append, topics["plain"], None),
            AGAIN: partial(append, topics[AGAIN], None),
        }
        seconds = interleave(works, rounds=ROUNDS, cpu=True)
        us = statistics.median(seconds["stamped"]) / appends * 1e6
        result, noise = (ratio(seconds[name], seconds["plain"]) for name in ("stamped", AGAIN))
        what = f"idempotent append, {rows} rows"
        found.append([what, "1000 B", f"{us:,.0f} µs CPU", "the same, plain", result, noise])
    store.close()
    return found


def grown(root: Path, size_bytes: int) -> logstore.LogStore:
    """A store whose topic "t" has one partition of this size, of 1 KB values."""
    store = logstore.open(root / f"log-{size_bytes}")
    if store.topics():
        return store
    store.create_topic("t")
    data = table(100_000, 1000)
    while sum(s.size_bytes for s in store.log("t", 0).segments()) < size_bytes:
        store.append("t", data)
    store.flush()
    return store


def bench_random_read(root: Path, large_bytes: int) -> list[list[object]]:
    """Read 100 records at random offsets of a warm log, large and small."""
    stores = {name: grown(root, size) for name, size in (("large", large_bytes), ("small", 100 * MIB))}
    places = random.Random(7)

    def read(store: logstore.LogStore) -> None:
        end = store.offsets("t")[0].end
        for _ in range(200):
            start = places.randrange(end - 100)
            found = store.read("t", partition=0, start=start, end=start + 100).read_all()
            assert found.num_rows == 100

    seconds, result, noise = against(lambda: read(stores["large"]), lambda: read(stores["small"]))
    for store in stores.values():
        store.close()
    us = statistics.median(seconds["ours"]) / 200 * 1e6
    name = f"100 records at random, {large_bytes / 1e9:.0f} GB log"
    return [[name, "1000 B", f"{us:,.0f} µs", "the same, 100 MiB log", result, noise]]


def bench_open(root: Path) -> list[list[object]]:
    """Open a cleanly closed store of 1,000 partitions with 10 segments each, and look at every partition's end."""
    path = root / "many"
    row = pa.table({"value": ["x" * 100]})
    with logstore.open(path) as store:
        store.create_topic("t", partitions=1000)
        for partition in range(1000):
            log = store.log("t", partition)
            numbered = row.append_column("partition", pa.array([partition], pa.int32()))
            for segment in range(10):
                store.append("t", numbered)
                if segment < 9:
                    log.roll()
    child = subprocess.run([sys.executable, "-c", OPEN, str(path)], capture_output=True, text=True, check=True)
    seconds, grown_mib = json.loads(child.stdout)
    return [["open 1,000 partitions × 10 segments", "", f"{seconds:.2f} s", "", f"{grown_mib:.0f} MiB more", ""]]


OPEN = """
import json, sys, time
from pathlib import Path
import logstore

def resident_kib():
    return next(int(l.split()[1]) for l in Path("/proc/self/status").read_text().splitlines() if l.startswith("VmRSS"))

before, began = resident_kib(), time.perf_counter()
store = logstore.open(sys.argv[1])
assert all(r.count == 10 for r in store.offsets("t").values())
seconds = time.perf_counter() - began
print(json.dumps([seconds, (resident_kib() - before) / 1024]))
store.close()
"""


def first_output_s(command: list[str]) -> float:
    """How long the command takes until it says something."""
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None, "it is piped"
        assert process.stdout.read(1), command
        took = time.perf_counter() - began
        process.communicate()
    return took


def bench_start(root: Path) -> list[list[object]]:
    """A new process until its first output, which says that it has done something; against one that does nothing."""
    path = str(root / "start")
    with logstore.open(path) as store:
        store.create_topic("t")
        store.append("t", table(100, 100))
        store.create_topic("large")
        store.append("large", table(10_000, 100))
    read = "import logstore; print(logstore.open({!r}).read({!r}, partition=0).read_all().num_rows, flush=True)"
    pylog = str(Path(sys.executable).with_name("pylog"))
    commands = {
        "import logstore": [sys.executable, "-c", "import logstore; print(1, flush=True)"],
        "first `store.read`, 10 KB": [sys.executable, "-c", read.format(path, "t")],
        "the same, 1 MB, kernels kept": [sys.executable, "-c", read.format(path, "large")],
        "`pylog --help`": [pylog, "--help"],
        "`pylog topics list`": [pylog, "topics", "list", "--path", path],
        "nothing": [sys.executable, "-c", "print(1, flush=True)"],
    }
    turns = [{name: first_output_s(each) for name, each in commands.items()} for _ in range(ROUNDS + 1)]
    seconds = {name: [turn[name] for turn in turns[1:]] for name in commands}  # the first warms up
    return [
        [name, "100 B", f"{statistics.median(each):.2f} s", "python -c ''", ratio(each, seconds["nothing"]), ""]
        for name, each in seconds.items()
        if name != "nothing"
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--path", help="directory on the disk to measure; default: a temporary one")
    parser.add_argument("--gigabytes", type=float, default=10.0, help="size of the large log")
    parser.add_argument("--only", choices=BENCHES)
    asked = parser.parse_args()
    rows = list[list[object]]()
    with tempfile.TemporaryDirectory(dir=asked.path, prefix="pylog-bench-") as root:
        for name, bench in BENCHES.items():
            if asked.only in (None, name):
                rows += bench(Path(root), asked.gigabytes)
    show("The store", ["what", "values", "measured", "against", "ratio", "noise"], rows)


BENCHES: dict[str, Callable[[Path, float], list[list[object]]]] = {
    "start": lambda root, _: bench_start(root),
    "append": lambda root, _: bench_append(root),
    "idempotent": lambda root, _: bench_idempotent(root),
    "open": lambda root, _: bench_open(root),
    "random": lambda root, gigabytes: bench_random_read(root, int(gigabytes * 1e9)),
}


if __name__ == "__main__":
    main()
