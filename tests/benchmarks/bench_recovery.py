"""Opening a store after a kill: what is below the recovery point is not read, however large the log is.

python tests/benchmarks/bench_recovery.py [--path DIR] [--gigabytes 10]

A process appends to one partition until it has the wanted size, flushes, appends 64 MiB more, and is killed by
SIGKILL. Then another opens the store, which recovers it, asks for the end and appends a record. Measured in a
child of its own: seconds, and the bytes that it read, once with the log in the page cache and once without.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import show

MIB = 1024 * 1024
UNFLUSHED_BYTES = 64 * MIB

# One encoded piece is appended again and again: its offsets and epochs are stamped anew, its bytes are real.
WRITE = """
import os, signal, sys
import pyarrow as pa
import logstore

path, size_bytes, more_bytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
store = logstore.open(path)
store.create_topic("t")
value = pa.array([os.urandom(1000) for _ in range(1000)])
store.append("t", pa.table({"value": value.take(pa.array(list(range(1000)) * 16))}))
log = store.log("t", 0)
piece = bytes(log.read(0, max_bytes=1 << 24).data)

def append_until(target_bytes):
    while sum(s.size_bytes for s in log.segments()) < target_bytes:
        log.append_as_leader((bytearray(piece),))

append_until(size_bytes)
store.flush()
append_until(sum(s.size_bytes for s in log.segments()) + more_bytes)
os.kill(os.getpid(), signal.SIGKILL)
"""

OPEN = """
import json, os, sys, time
from pathlib import Path
import pyarrow as pa
import logstore
from logstore.records import arrow

def read_bytes():
    return int(Path("/proc/self/io").read_text().split()[1])

logs = sorted(Path(sys.argv[1]).glob("t-0/*"))
if sys.argv[2] == "cold":

    for path in logs:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
before, began, cpu = read_bytes(), time.perf_counter(), time.process_time()
store = logstore.open(sys.argv[1])
end = store.offsets("t")[0].end
assert store.append("t", pa.table({"value": ["next"]}))[0].start == end
seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
print(json.dumps([seconds, cpu, read_bytes() - before, sum(path.stat().st_size for path in logs)]))
os._exit(0)
"""


def killed(path: Path, size_bytes: int) -> Path:
    """A store of this size whose writer was killed."""
    command = [sys.executable, "-c", WRITE, str(path), str(size_bytes), str(UNFLUSHED_BYTES)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    return path


def reopened(path: Path, cache: str) -> list[object]:
    """Row of one opening; the child ends without closing, so that the next opening has to recover again."""
    command = [sys.executable, "-c", OPEN, str(path), cache]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, cpu, read_bytes, size_bytes = json.loads(ran.stdout)
    return [
        f"{size_bytes / 1e9:,.1f} GB",
        cache,
        f"{seconds:.2f} s",
        f"{cpu:.2f} s",
        f"{read_bytes / MIB:,.0f} MiB",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--path", help="directory on the disk to measure; default: a temporary one")
    parser.add_argument("--gigabytes", type=float, default=10.0, help="size of the large log")
    asked = parser.parse_args()
    rows = list[list[object]]()
    with tempfile.TemporaryDirectory(dir=asked.path, prefix="pylog-bench-") as root:
        for size_bytes in (100 * MIB, int(asked.gigabytes * 1e9)):
            path = killed(Path(root) / str(size_bytes), size_bytes)
            rows += [reopened(path, cache) for cache in ("warm", "cold", "cold")]
            shutil.rmtree(path)
    columns = ["log", "page cache", "open to first append", "CPU", "read"]
    show(f"Recovery after SIGKILL, {UNFLUSHED_BYTES // MIB} MiB above the recovery point", columns, rows)


if __name__ == "__main__":
    main()
