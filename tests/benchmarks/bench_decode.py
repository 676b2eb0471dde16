"""Decoding and encoding of records against a copy of the same bytes in memory.

python tests/benchmarks/bench_decode.py

A log lies in a file in the page cache; it is read in pieces into one buffer, as `store.read` does, and
decoded with all CRCs checked. The peer is one np.copyto of the log's bytes, memory to memory.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from harness import AGAIN, interleave, ratio, show

from logstore.records import arrow, batch
from logstore.records.batch import Record
from logstore.records.rows import Rows

LOG_BYTES = 64 * 1024 * 1024
READ_BYTES = 4 * 1024 * 1024
FIVE = ["key", "value", "offset", "timestamp", "timestampType"]


def records_table(value_bytes: int, rows: int) -> pa.Table:
    """Random values of one size, keys of 12 bytes, timestamps."""
    noise = np.random.default_rng(7).integers(0, 256, rows * value_bytes, dtype=np.uint8)
    ends = np.arange(0, (rows + 1) * value_bytes, value_bytes, dtype=np.int32)
    values = pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(ends), pa.py_buffer(noise)])
    keys = pa.array([b"%012d" % i for i in range(rows)], pa.binary())
    return pa.table({"key": keys, "value": values, "timestamp": 1_700_000_000_000 + np.arange(rows)})


def encoded(table: pa.Table) -> bytes:
    """The table as a log."""
    return b"".join(arrow.encode(Rows(table, now_ms=0), batch_bytes_max=1 << 20))


def encode_all(table: pa.Table) -> None:
    """Encode, and let each buffer go as an append does."""
    for _ in arrow.encode(Rows(table, now_ms=0), batch_bytes_max=1 << 20):
        pass


def batches_of_one(rows: int, value_bytes: int) -> bytes:
    """A log with a batch for every record."""
    template = batch.build([Record(0, 1_700_000_000_000, b"%012d" % 0, bytes(value_bytes))])
    log = bytearray(template * rows)
    for i in range(rows):
        batch.stamp(log, i * len(template), i, 0)
    return bytes(log)


class Scan:
    """Reads a log file piece by piece into one buffer, and decodes."""

    def __init__(self, log: bytes) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the benchmark
        self._file.write(log)
        self._file.flush()
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._pieces, end = [], 0
        while end < len(log):
            start, end = end, batch.whole_bytes(log, min(len(log), end + READ_BYTES), start=end)[0]
            self._pieces.append((start, end - start))

    def __call__(self, columns: list[str] | None = None) -> None:
        for at, size in self._pieces:
            view = self._buffer[:size]
            os.preadv(self._file.fileno(), [view], at)
            arrow.decode(view, start=0, end=2**63 - 1, columns=columns)


def copying(log: bytes) -> Callable[[], object]:
    """The peer: one copy of the log's bytes in memory."""
    source = np.frombuffer(log, dtype=np.uint8)
    target = np.zeros_like(source)
    return lambda: np.copyto(target, source)


def rows_for(value_bytes: int, least: float) -> list[list[object]]:
    """Decode in three shapes and encode, for values of one size."""
    rows = LOG_BYTES // value_bytes
    table = records_table(value_bytes, rows)
    log = encoded(table)
    scan = Scan(log)
    works = {
        "decode, all columns": scan,
        "decode, 5 columns": lambda: scan(FIVE),
        "decode, value": lambda: scan(["value"]),
        "encode": lambda: encode_all(table),
    }
    return lines(works, log, f"{value_bytes} B", rows, {"decode, all columns": least})


def rows_of_one() -> list[list[object]]:
    """Decode batches of one record."""
    count = 200_000
    log = batches_of_one(count, 100)
    name = "decode, batches of one record"
    # 1 M records/s where a copy does 2 GB/s.
    return lines({name: Scan(log)}, log, "100 B", count, {name: 1e6 * len(log) / count / 2e9})


def lines(
    works: dict[str, Callable[[], object]], log: bytes, values: str, rows: int, least: dict[str, float]
) -> list[list[object]]:
    """The lines of the table for these works, against a copy of the log."""
    copy = copying(log)
    seconds = interleave(works | {"copy": copy, AGAIN: copy})
    noise = ratio(seconds[AGAIN], seconds["copy"])
    return [
        [
            name,
            values,
            f"{rows / statistics.median(seconds[name]) / 1e6:.1f} M records/s",
            f"{len(log) / statistics.median(seconds['copy']) / 1e9:.1f} GB/s",
            ratio(seconds[name], seconds["copy"]),
            least.get(name, ""),
            noise,
        ]
        for name in works
    ]


def main() -> None:
    # 4 M records/s of 100 B, with key and framing about 125 B each, where a copy does 2 GB/s.
    small = 4e6 * len(encoded(records_table(100, 10_000))) / 10_000 / 2e9
    rows = rows_for(1024, 0.40) + rows_for(100, small) + rows_of_one()
    columns = ["what", "values", "measured", "memory copy", "ratio", "at least", "noise"]
    show("Records to Arrow and back, on one core", columns, rows)


if __name__ == "__main__":
    main()
