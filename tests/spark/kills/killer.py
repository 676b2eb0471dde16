"""The proof that the sink is exactly once: a streaming query under random SIGKILLs.

    python -m tests.spark.kills.killer --kills 200 --seed 1

The topic `in` gets records of 20 keys, numbered per key, as long as there are kills to come; a query copies them to
`out`. Killed are, each once and then at random: a Python worker that runs tasks; the driver (JVM and Python), whose
workers live on for a moment; everything at once; and each of these at the moment when the journal of transactions gets
a line of a chosen kind: before, in and after a commit. At the end both topics have to hold the same records, each key
in order.

A query that fails counts as a fault, too: a worker is killed only when the batch of the last kill is through. One
exception: where the machine is so busy that a new Python needs 10 s to say hello, Spark gives the query up; it is
started again, and counted as `slow`.

A kill of the driver costs some 20 s of a core's work, of a worker 5 s. Most of that is starting Spark: so the query
runs in a JVM that does not optimise.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import pyarrow as pa

import logstore
from logstore.errors import PylogError

ROOT = Path(__file__).parents[3]
KEYS = 20
# What is killed, and how often in proportion. A kind of journal line: at the moment when it is written.
KINDS = {
    "worker": 16,
    "worker at open": 8,
    "worker at prepared": 6,
    "driver": 2,
    "everything": 2,
    "driver at open": 1,
    "everything at prepared": 1,
    "everything at decide": 2,
    "driver at decide": 1,
    "everything at durable": 1,
    "everything at marked": 1,
}
OF_WORKERS = [kind for kind in KINDS if kind.startswith("worker")]
IN_COMMIT = [kind for kind in KINDS if kind.endswith((" decide", " durable", " marked"))]
WAIT_S = 300.0  # for a batch, while a query starts, on a machine that does other work, too
NUDGE_S = 15.0  # after so long without one there may be nothing to do
SLOW = "Python worker failed to connect back"


class FaultError(Exception):
    """The sink did not keep its promise."""


@dataclass
class Run:
    """One proof: its directory, what was written, the query that runs."""

    root: Path
    dice: random.Random
    written: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    process: subprocess.Popen[bytes] = field(init=False)
    kills: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    slow: int = 0

    def __post_init__(self) -> None:
        with logstore.open(self.log) as store:
            store.create_topic("in", partitions=3)
            store.create_topic("out", partitions=4)
        self.write(5_000)

    @property
    def log(self) -> Path:
        return self.root / "log"

    @property
    def journal(self) -> Path:
        return self.log / "transactions" / "journal"

    def start(self) -> None:
        """Start the query, and wait until it runs."""
        (self.root / "started").unlink(missing_ok=True)
        with (self.root / "output.txt").open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.kills.query", str(self.root)],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.starts += 1
        while not (self.root / "started").exists():
            self.check()
            time.sleep(0.05)

    def check(self, deadline: float = math.inf) -> None:
        """Raise FaultError if the query has ended by itself, or nothing came until the deadline."""
        if time.monotonic() > deadline:
            raise FaultError(f"the query did nothing for {WAIT_S:.0f} s")
        if (status := self.process.poll()) is not None:
            text = (self.root / "output.txt").read_text(errors="replace")
            if SLOW not in text:
                raise FaultError(f"the query failed (exit status {status}):\n{text[-6000:]}")
            self.slow += 1
            self.start()

    def write(self, rows: int) -> None:
        """Append records to `in`."""
        keys = [f"key-{self.dice.randrange(KEYS)}" for _ in range(rows)]
        values = []
        for key in keys:
            values.append(f"{key}:{self.written[key]}")
            self.written[key] += 1
        with logstore.open(self.log) as store:
            store.append("in", pa.table({"key": keys, "value": values}))

    def decided(self) -> int:
        with logstore.open(self.log, mode="r") as store:
            return store.transactions.state().decided


# --- processes


def descendants(pid: int) -> list[int]:
    """This process and all below it, as they are now."""
    children = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children[parent].append(int(entry.name))
    found = [pid]
    for one in found:
        found += children[one]
    return found


def command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def is_daemon(pid: int) -> bool:
    """Python workers of tasks are forked from this process; those that plan and commit from others."""
    return "daemon pyspark.worker" in command(pid)


def workers(pid: int) -> list[int]:
    """The Python workers that run tasks: forks of the daemon, with its command line."""
    daemons = [p for p in descendants(pid) if is_daemon(p)]
    return [p for p in daemons if parent_of(p) in daemons]


def parent_of(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


# --- the proof


def kinds(dice: random.Random) -> Iterator[str]:
    """Each kind once, in any order; then at random, for ever."""
    yield from dice.sample(list(KINDS), len(KINDS))
    while True:
        yield from dice.choices(list(KINDS), KINDS.values())


def kill_worker(run: Run) -> None:
    """Kill a worker as soon as there is one."""
    end = time.monotonic() + WAIT_S
    while not (found := workers(run.process.pid)):
        run.check(end)
        time.sleep(0.05)
    kill([run.dice.choice(found)])


def kill_driver(run: Run, *, everything: bool) -> list[int]:
    """Kill the driver; return the processes that are left of it."""
    found = descendants(run.process.pid)
    left = [p for p in found if "daemon pyspark." in command(p)]
    kill(found if everything else [p for p in found if p not in left])
    run.process.wait()
    return left


def wait_for_line(run: Run, kind: str) -> None:
    """Return when the journal gets a line with an event of this kind."""
    text, end = f'"{kind}"'.encode(), time.monotonic() + WAIT_S
    inode, size = identity(run.journal)
    run.write(run.dice.randrange(200, 3_000))  # so that there is a batch to come
    while True:
        now = identity(run.journal)
        if now != (inode, size):
            with run.journal.open("rb") as file:
                file.seek(size if now[0] == inode else 0)
                if text in file.read():
                    return
            inode, size = now
        time.sleep(0.001)
        run.check(end)


def identity(path: Path) -> tuple[int, int]:
    with contextlib.suppress(OSError):
        found = path.stat()
        return found.st_ino, found.st_size
    return 0, 0


def strike(run: Run, kind: str) -> None:
    what, _, moment = kind.partition(" at ")
    run.kills[kind] += 1
    if moment:
        wait_for_line(run, moment)
    else:
        run.write(run.dice.randrange(200, 3_000))
        time.sleep(run.dice.random() * 3)
        run.check()
    if what == "worker":
        kill_worker(run)
        wait_for_batch(run)
        return
    left = kill_driver(run, everything=what == "everything")
    run.start()
    kill(left)  # what is still there of the first life would only cost memory now


def wait_for_batch(run: Run) -> None:
    """The killed task is tried again: let it get through before the next kill of a worker."""
    decided, start = run.decided(), time.monotonic()
    nudge = start + NUDGE_S
    while run.decided() <= decided:
        if (now := time.monotonic()) > nudge:
            run.write(100)
            nudge = now + NUDGE_S
        run.check(start + WAIT_S)
        time.sleep(0.2)


def begin(run: Run) -> None:
    run.start()
    wait_for_batch(run)  # what is left of a batch 0 that was not planned to its end, Spark itself refuses


def catch_up(run: Run) -> None:
    """Wait until everything is copied."""
    wanted, end = sum(run.written.values()), time.monotonic() + WAIT_S
    while count(run.log, "out") < wanted:
        run.check(end)
        time.sleep(0.2)


def count(log: Path, topic: str) -> int:
    with logstore.open(log, mode="r") as store:
        return sum(1 for _ in records(store, topic))


def end(run: Run) -> None:
    if run.process.poll() is None:
        kill(descendants(run.process.pid))
        run.process.wait()


def prove(root: Path, *, kills: int, seed: int, say=print) -> dict[str, int]:
    """Raise FaultError unless `out` is what `in` is, after so many kills."""
    run = Run(root, random.Random(seed))
    try:
        begin(run)
        for kind in islice(kinds(run.dice), kills):
            strike(run, kind)
            say(
                f"{sum(run.kills.values())} of {kills} kills, {run.decided()} batches, last: {kind}",
                flush=True,
            )
        (root / "stop").touch()
        while run.process.wait(timeout=600):
            run.check()
    finally:
        end(run)
    return dict(run.kills) | {"starts": run.starts, "slow": run.slow, "batches": run.decided()} | compare(run)


def records(store: logstore.LogStore, topic: str, **how: str) -> Iterator[tuple[int, bytes, bytes]]:
    for partition in range(store.topic(topic).partitions):
        for batch in store.read(topic, partition=partition, **how):
            pairs = zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
            yield from ((partition, key, value) for key, value in pairs)


def compare(run: Run) -> dict[str, int]:
    """Raise FaultError unless `out` holds the records of `in`, each once, those of each key in their order."""
    with logstore.open(run.log) as store:
        store.transactions.tend()
        wrong = []
        sent, came = (Counter((k, v) for _, k, v in records(store, topic)) for topic in ("in", "out"))
        if sent != came:
            wrong.append(f"{(sent - came).total()} records missing, {(came - sent).total()} too many")
        order = defaultdict(list)
        for _, key, value in records(store, "out"):
            order[key].append(int(value.rpartition(b":")[2]))
        for key, numbers in order.items():
            if numbers != sorted(numbers):
                wrong.append(f"{key!r} is out of order")
        if open_ones := [
            transaction
            for partition in range(store.topic("out").partitions)
            for transaction in store.log("out", partition).producers.open_transactions()
        ]:
            wrong.append(f"transactions that nobody ended: {open_ones}")
        state = store.transactions.state()
        everything = sum(1 for _ in records(store, "out", isolation="read_uncommitted"))
        if len(state.attempts) > 20 or len(state.epochs) > 40:
            wrong.append(f"{len(state.attempts)} attempts and {len(state.epochs)} producer ids are left")
    if wrong:
        raise FaultError("; ".join(wrong))
    return {
        "records": sent.total(),
        "aborted records": everything - sent.total(),
        "producer ids": len(state.epochs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    parser.add_argument("--keep", action="store_true", help="leave the directory, also of a proof that succeeds")
    asked = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="pylog-kills-"))
    start = time.monotonic()
    print(f"seed {asked.seed}, {root}", flush=True)
    try:
        found = prove(root, kills=asked.kills, seed=asked.seed)
    except (FaultError, PylogError) as error:
        sys.exit(f"FAULT (seed {asked.seed}, {root}): {error}")
    print(f"exactly once: {found}, {time.monotonic() - start:.0f} s, seed {asked.seed}")
    if not asked.keep:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
