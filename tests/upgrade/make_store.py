"""Makes `store.tar.xz`: two small stores, one closed, one whose process was killed, and what is to be read in them.

    python tests/upgrade/make_store.py TARGET

The archive beside this file was made by the code of commit 29fb3c2 (PYTHONPATH: a checkout of it); the script uses
only what that code has. Each store holds a topic of several segments (some expired), a compacted one, transactions
that were committed and aborted, and what a deleted topic leaves. In the killed store a transaction is open, nothing
was flushed after half of the appends, and one log ends within a batch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import pyarrow as pa

import logstore

NOW_MS = int(os.environ.get("MADE_MS") or time.time_ns() // 1_000_000)


def rows(first: int, count: int, *, key_of: int = 0, age_ms: int = 0, now_ms: int = NOW_MS) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table(
        {
            "key": [b"k%d" % (n % key_of) if key_of else None for n in numbers],
            "value": [(b"value-%05d " % n) * 8 for n in numbers],
            "timestamp": pa.array([now_ms - age_ms + n for n in numbers], pa.int64()),
            "headers": pa.array(
                [[{"key": "n", "value": b"%d" % n}] for n in numbers],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )


def fill(store: logstore.LogStore) -> None:
    """Everything that both stores have."""
    hour = 3_600_000
    small = {"segment.bytes": 4096, "file.delete.delay.ms": 30 * 24 * hour, "index.interval.bytes": 500}
    store.create_topic("plain", partitions=2, config=small | {"retention.ms": 24 * hour})
    for number in range(24):
        age_ms = 48 * hour if number < 12 else 12 * hour
        store.append("plain", rows(20 * number, 20, age_ms=age_ms), compression=("none", "zstd", "lz4")[number % 3])
    for partition in range(2):
        store.expire("plain", partition)

    compacted = small | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01}
    store.create_topic("compacted", config=compacted)
    for number in range(10):
        store.append("compacted", rows(20 * number, 20, key_of=7))
    store.compact("compacted", 0)
    store.append("compacted", rows(200, 20, key_of=7))

    store.create_topic("ledger", partitions=2, config=small)
    for number in range(6):
        store.append("ledger", rows(1000 + number, 5))
        transaction = store.transaction("batches", batch_id=number) if number % 2 else store.transaction()
        store.append("ledger", rows(100 * number, 10), transaction=transaction)
        if number == 2:
            transaction.abort()
        else:
            transaction.commit()
    store.delete_records("ledger", {0: 12})

    store.create_topic("gone", config=small)
    store.append("gone", rows(0, 50))
    store.delete_topic("gone")


def contents(store: logstore.LogStore) -> dict[str, list[list[object]]]:
    """Every record of every partition: offset, time, key, value, by topic, partition and isolation."""
    found = {}
    for info in store.topics():
        for partition in range(info.partitions):
            for isolation in ("read_committed", "read_uncommitted"):
                read = store.read(info.name, partition=partition, isolation=isolation).read_all()
                found[f"{info.name}/{partition}/{isolation}"] = [
                    [r["offset"], r["timestamp"].timestamp(), (r["key"] or b"").decode(), r["value"].decode()]
                    for r in read.to_pylist()
                ]
    return found


def killed(path: Path) -> None:
    """In a process of its own, which ends without closing anything."""
    store = logstore.open(path)
    fill(store)
    store.flush()
    store.append("plain", rows(480, 40))
    transaction = store.transaction()
    store.append("ledger", rows(9000, 10), transaction=transaction)
    store.append("ledger", rows(9100, 10))  # behind the open transaction
    Path(path.parent / "killed.json").write_text(json.dumps(contents(store)))
    active = Path(store.log("plain", 0).segments()[-1].path)
    with active.open("ab") as file:
        file.write(active.read_bytes()[:90])
    os._exit(0)


def main() -> None:
    """See the module."""
    if len(sys.argv) == 3:
        killed(Path(sys.argv[1]))
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        with logstore.open(root / "closed") as store:
            fill(store)
            (root / "closed.json").write_text(json.dumps(contents(store)))
        command = [sys.executable, __file__, str(root / "killed"), "killed"]
        subprocess.run(command, check=True, env={**os.environ, "MADE_MS": str(NOW_MS)})
        (root / "made_ms").write_text(str(NOW_MS))
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        for path in root.glob("*/house-clock"):  # as if the machine had been started anew since
            path.write_text(path.read_text().replace(boot, "another-boot"))
        with tarfile.open(sys.argv[1], "w:xz") as archive:
            for path in sorted(root.iterdir()):
                archive.add(path, path.name)


if __name__ == "__main__":
    main()
