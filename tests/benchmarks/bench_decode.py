"""Records to Arrow and back on one core, against a copy of the same bytes in memory.

python tests/benchmarks/bench_decode.py

"store.read" reads a store on disk whose log is in the page cache: pread, all CRCs, all columns. "decode" is the
part of it that is in memory. The peer is one np.copyto of the log's bytes. Everything is CPU time: neither the disk
nor what else runs on the machine counts.

The target of 1 KB records is a ratio to the copy. The others are records/s on a machine that copies 2 GB/s, and
have two readings: those records/s here ("at least", absolute), and as many more as this machine copies faster
("at least", scaled), which is the same as a ratio.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from harness import AGAIN, interleave, ratio, show

import logstore
from logstore.records import arrow, batch, encoding
from logstore.records.batch import Record
from logstore.records.rows import Rows
from logstore.store.reading import READ_BYTES
from tests.support.partition import appended

LOG_BYTES = 64 * 1024 * 1024
FIVE = ["key", "value", "offset", "timestamp", "timestampType"]
COPY_BYTES_S = 2e9  # what targets in records/s are about
ROUNDS = 15
COLUMNS = ["what", "values", "M records/s", "at least", "scaled", "copy GB/s", "ratio", "at least", "noise"]


@dataclass(frozen=True, slots=True)
class Shape:
    """A log, and the target for all of its columns: a ratio to the copy, or records/s where that does 2 GB/s."""

    values: str
    log: bytes
    rows: int
    least_ratio: float | None = None
    least_records_s: float | None = None

    def least(self) -> float:
        """The target as a ratio."""
        if self.least_ratio is not None:
            return self.least_ratio
        assert self.least_records_s is not None
        return self.least_records_s * len(self.log) / self.rows / COPY_BYTES_S


def records_table(value_bytes: int, rows: int) -> pa.Table:
    """Random values of one size, keys of 12 bytes, timestamps."""
    noise = np.random.default_rng(7).integers(0, 256, rows * value_bytes, dtype=np.uint8)
    ends = np.arange(0, (rows + 1) * value_bytes, value_bytes, dtype=np.int32)
    values = pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(ends), pa.py_buffer(noise)])
    keys = pa.array([b"%012d" % i for i in range(rows)], pa.binary())
    return pa.table({"key": keys, "value": values, "timestamp": 1_700_000_000_000 + np.arange(rows)})


def encode_all(table: pa.Table) -> None:
    """Encode, and let each buffer go as an append does."""
    for _ in encoding.encode(Rows(table, now_ms=0), batch_bytes_max=1 << 20):
        pass


def batches_of_one(rows: int, value_bytes: int) -> bytes:
    """A log with a batch for every record."""
    template = batch.build([Record(0, 1_700_000_000_000, b"%012d" % 0, bytes(value_bytes))])
    log = bytearray(template * rows)
    for i in range(rows):
        batch.stamp(log, i * len(template), i, 0)
    return bytes(log)


def decoding(log: bytes, columns: list[str] | None = None) -> Callable[[], None]:
    """Decode the log piece by piece, each as large as one read of a store."""
    pieces, end = [], 0
    while end < len(log):
        start, end = end, batch.whole_bytes(log, min(len(log), end + READ_BYTES), start=end)[0]
        pieces.append(memoryview(log)[start:end])

    def work() -> None:
        for piece in pieces:
            arrow.decode(piece, start=0, end=2**63 - 1, columns=columns)

    return work


def reading(store: logstore.LogStore, topic: str, shape: Shape) -> Callable[[], None]:
    """Read the topic, which gets this log first."""
    store.create_topic(topic)
    log = store.log(topic, 0)
    at = 0
    while at < len(shape.log):
        end = batch.whole_bytes(shape.log, min(len(shape.log), at + (1 << 20)), start=at)[0]
        appended(log, bytearray(shape.log[at:end]))
        at = end

    def work() -> None:
        rows = sum(found.num_rows for found in store.read(topic, partition=0))
        assert rows == shape.rows

    return work


def copying(log: bytes) -> Callable[[], object]:
    """The peer: one copy of the log's bytes in memory."""
    source = np.frombuffer(log, dtype=np.uint8)
    target = np.zeros_like(source)
    return lambda: np.copyto(target, source)


def shapes() -> list[tuple[Shape, pa.Table | None]]:
    """The logs to measure, with the table that they were made of."""
    found: list[tuple[Shape, pa.Table | None]] = []
    targets: Sequence[tuple[int, float | None, float | None]] = [(1024, 0.40, None), (100, None, 4e6)]
    for value_bytes, least_ratio, least_records_s in targets:
        rows = LOG_BYTES // value_bytes
        table = records_table(value_bytes, rows)
        log = b"".join(encoding.encode(Rows(table, now_ms=0), batch_bytes_max=1 << 20))
        found.append((Shape(f"{value_bytes} B", log, rows, least_ratio, least_records_s), table))
    one = Shape("100 B, 1 a batch", batches_of_one(200_000, 100), 200_000, least_records_s=1e6)
    return [*found, (one, None)]


def lines(store: logstore.LogStore, shape: Shape, table: pa.Table | None) -> list[list[object]]:
    """The lines of the table for this shape."""
    topic = f"t{shape.rows}"
    works: dict[str, Callable[[], object]] = {
        "store.read": reading(store, topic, shape),
        "decode": decoding(shape.log),
    }
    if table is not None:
        works |= {
            "decode, 5 columns": decoding(shape.log, FIVE),
            "decode, value": decoding(shape.log, ["value"]),
            "encode": lambda: encode_all(table),
        }
    copy = copying(shape.log)
    seconds = interleave(works | {"copy": copy, AGAIN: copy}, rounds=ROUNDS, cpu=True)
    store.delete_topic(topic)
    copied_s = len(shape.log) / statistics.median(seconds["copy"])
    noise = ratio(seconds[AGAIN], seconds["copy"])
    found: list[list[object]] = []
    for name in works:
        targets: list[object] = ["", "", ""]
        if name == "store.read":
            absolute = (shape.least_records_s or 0) / 1e6
            scaled = shape.least() * copied_s * shape.rows / len(shape.log) / 1e6
            targets = [absolute or "", scaled, shape.least()]
        speed = shape.rows / statistics.median(seconds[name]) / 1e6
        of_copy = ratio(seconds[name], seconds["copy"])
        found.append(
            [name, shape.values, speed, *targets[:2], copied_s / 1e9, of_copy, targets[2], noise],
        )
    return found


def main() -> None:
    rows: list[list[object]] = []
    with tempfile.TemporaryDirectory(prefix="pylog-bench-") as path, logstore.open(Path(path)) as store:
        for shape, table in shapes():
            rows += lines(store, shape, table)
    show("Records to Arrow and back, on one core", COLUMNS, rows)


if __name__ == "__main__":
    main()
