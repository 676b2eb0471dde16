"""Compaction against a plain read of the same log: records of 1 KB, a million keys, each there several times.

python tests/benchmarks/bench_compaction.py [--path DIR] [--gigabytes 2] [--rounds 3]

Both take turns on the same bytes, read from the page cache. CPU seconds are compared: both run on one core, and
others on this machine do not count; wall time is shown beside, with the disk in it.
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
from logstore.compaction import CompactionReport

KEYS = 1_000_000
VALUE_BYTES = 1000
APPEND_ROWS = 50_000

Times = tuple[float, float]  # CPU seconds, wall seconds


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
    """CPU and wall seconds of one call."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


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
    cpu, wall = (statistics.median(times[kind] for times in compacted[1:]) for kind in (0, 1))
    stored, unpacked = report.bytes_before / 1e6, report.records_before * VALUE_BYTES / 1e6  # type: ignore[operator]
    ratios = [ratio([t[kind] for t in compacted[1:]], [t[kind] for t in plain[1:]]) for kind in (0, 1)]
    return [
        codec,
        f"{stored:,.0f} MB → {report.bytes_after / 1e6:,.0f}",
        f"{unpacked / cpu:,.0f} MB/s",
        f"{unpacked / statistics.median(t[0] for t in plain[1:]):,.0f} MB/s",
        ratios[0],
        f"{unpacked / wall:,.0f} MB/s",
        ratios[1],
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--path", help="directory on the disk to measure; default: a temporary one")
    parser.add_argument("--gigabytes", type=float, default=2.0, help="size of the log")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--codec", action="append", help="default: producer (none), then zstd")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.path, prefix="pylog-bench-") as root:
        rows = [
            bench(Path(root), int(asked.gigabytes * 1e9), codec, asked.rounds)
            for codec in asked.codec or ["producer", "zstd"]
        ]
    columns = ["codec", "log", "per core", "read, per core", "ratio", "wall", "wall ratio"]
    show(f"Compaction: records of 1 KB, {KEYS:,} keys", columns, rows)


if __name__ == "__main__":
    main()
