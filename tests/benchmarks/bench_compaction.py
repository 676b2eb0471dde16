"""Compaction against a plain read of the same log: records of 1 KB, a million keys, each there several times.

python tests/benchmarks/bench_compaction.py [--path DIR] [--gigabytes 2] [--rounds 7]

Both take turns on the same bytes, read from the page cache. CPU seconds of the process and of the kernel are
compared: both run on one core, and others on this machine do not count. Most of compaction's are the kernel's, for
the pages of what is written; beside them stand the process's own ("user"), and wall time, with the disk in it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from harness import ratio, show

import logstore
from logstore.maintenance.compaction import CompactionReport

KEYS = 1_000_000
VALUE_BYTES = 1000
APPEND_ROWS = 50_000

Times = tuple[float, float, float]  # seconds: CPU, of that the process's own, wall


def make(path: Path, size_bytes: int, codec: str) -> None:
    """A store with a topic of this size: rounds over all keys, each in another order."""
    rows, order = size_bytes // VALUE_BYTES, np.random.default_rng(7)
    keys = np.concatenate([order.permutation(KEYS) for _ in range(-(-rows // KEYS))])[:rows]
    words = pa.array([b"%08x" % number for number in range(1 << 16)])
    with logstore.open(path) as store:
        store.create_topic("t", config={"cleanup.policy": "compact", "compression.type": codec})
        for at in range(0, rows, APPEND_ROWS):
            chosen = keys[at : at + APPEND_ROWS]
            text = pa.array([b"user-%012d" % key for key in chosen])
            picked = order.integers(0, len(words), len(chosen))
            value = pa.compute.binary_repeat(words.take(pa.array(picked)), VALUE_BYTES // 8)
            store.append("t", pa.table({"key": text, "value": value}))
        store.log("t", 0).roll()


def timed(work: Callable[[], object]) -> Times:
    """The seconds of one call."""
    before, began = os.times(), time.perf_counter()
    work()
    after, wall = os.times(), time.perf_counter() - began
    user = after.user - before.user
    return user + after.system - before.system, user, wall


def read(path: Path) -> Times:
    """Read every record, all columns."""

    def work() -> None:
        for _ in store.read("t", partition=0):
            pass

    with logstore.open(path, mode="r") as store:
        return timed(work)


def compact(path: Path) -> tuple[Times, CompactionReport]:
    """Compact a copy of the store: its files have second names, since compaction writes new ones."""
    copied = path.with_name("copied")
    shutil.copytree(path, copied, copy_function=os.link)
    reports = list[CompactionReport]()
    with logstore.open(copied) as store:
        times = timed(lambda: reports.append(store.compact("t", 0)))
    shutil.rmtree(copied)
    return times, reports[0]


def bench(root: Path, size_bytes: int, codec: str, rounds: int) -> list[object]:
    """A row: MB/s of compaction, and its ratio to a plain read."""
    path = root / "store"
    make(path, size_bytes, codec)
    compacted, plain = list[Times](), list[Times]()
    for _ in range(rounds + 1):  # the first is not counted: compiled code, page cache
        times, report = compact(path)
        compacted.append(times)
        plain.append(read(path))
    assert report.records_after == KEYS, report
    shutil.rmtree(path)
    ours, theirs = list(zip(*compacted[1:], strict=True)), list(zip(*plain[1:], strict=True))
    size_mb = report.records_before * VALUE_BYTES / 1e6  # type: ignore[operator]
    speeds = [f"{size_mb / statistics.median(seconds):,.0f} MB/s" for seconds in (*ours, theirs[0])]
    ratios = [ratio(own, peer) for own, peer in zip(ours, theirs, strict=True)]
    size = f"{report.bytes_before / 1e6:,.0f} MB → {report.bytes_after / 1e6:,.0f}"
    return [codec, size, speeds[0], speeds[3], ratios[0], ratios[1], speeds[2], ratios[2]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--path", help="directory on the disk to measure; default: a temporary one")
    parser.add_argument("--gigabytes", type=float, default=2.0, help="size of the log")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--codec", action="append", help="default: producer (none), then zstd")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.path, prefix="pylog-bench-") as root:
        rows = [
            bench(Path(root), int(asked.gigabytes * 1e9), codec, asked.rounds)
            for codec in asked.codec or ["producer", "zstd"]
        ]
    columns = ["codec", "log", "per core", "read", "ratio", "user", "wall", "wall ratio"]
    show(f"Compaction: records of 1 KB, {KEYS:,} keys", columns, rows)


if __name__ == "__main__":
    main()
