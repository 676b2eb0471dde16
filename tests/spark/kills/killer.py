"""The proof that the sink is exactly once: a streaming query under random SIGKILLs.

    python -m tests.spark.kills.killer --kills 200 --seed 1
    python -m tests.spark.kills.killer --kills 200 --seed 1 --cluster
    python -m tests.spark.kills.killer --kills 200 --seed 1 --one-phase

The topic `in` gets records of 20 keys, numbered per key, as long as there are kills to come; a query copies them to
`out`. Killed are, each once and then at random: a Python worker that runs tasks; the driver (JVM and Python), whose
workers live on for a moment; everything at once; and each of these at a moment before, in and after a commit. Over a
cluster brokers are killed and paused, too, and a second driver is started beside the first. Between these, batch writes
of rows to two topics, under a name, are killed and done again. At the end both topics have to hold the same records,
each key in order, and those of the batch writes each of their rows once.

A query that fails counts as a fault, too: a worker is killed only when the batch of the last kill is through. One
exception: where the machine is so busy that a new Python needs 10 s to say hello, Spark gives the query up; it is
started again, and counted as `slow`.

Spark is what costs. So the next driver has its session while the one before is not killed yet; its JVM does not
optimise, and loads its classes from a file that the first one leaves; and while a broker is away or comes back, the
other kills go on. At the end stands how long each kind took.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
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

from logstore.errors import PylogError
from tests.spark.kills.drivers import SLOW, Drivers, descendants, kill, kill_driver, wait_for, workers
from tests.spark.kills.drivers import end as end_process
from tests.spark.kills.places import WRITTEN, Chain, Cluster, Directory

KEYS, WRITE_ROWS = 20, 1000
WAIT_S = 300.0  # for a batch, while a query starts, on a machine that does other work, too
NUDGE_S = 15.0  # after so long without one there may be nothing to do


class FaultError(Exception):
    """The sink did not keep its promise."""


@dataclass
class Run:
    """One proof: its directory, what was written, the query that runs."""

    root: Path
    place: Directory | Cluster | Chain
    dice: random.Random
    written: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    drivers: Drivers = field(init=False)
    process: subprocess.Popen[bytes] = field(init=False)
    hurt: int = -1  # a worker was killed when so many batches were through
    kills: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    slow: int = 0
    writes: int = 0
    took_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    sink: dict[str, str] = field(default_factory=dict)  # options
    master: str = "local[2,3]"

    def __post_init__(self) -> None:
        self.drivers = Drivers(self.root, self.master)
        self.write(5_000)

    def start(self) -> None:
        """Start the query, and wait until it runs."""
        (self.root / "started").unlink(missing_ok=True)
        self.process = self.drivers.take("copy", hops=self.place.hops(self.sink))
        self.starts, self.hurt = self.starts + 1, -1
        while not (self.root / "started").exists():
            self.check()
            time.sleep(0.02)

    def check(self, deadline: float = math.inf) -> None:
        """Raise FaultError if the query has ended by itself, or nothing came until the deadline."""
        if time.monotonic() > deadline:
            raise FaultError(f"the query did nothing for {WAIT_S:.0f} s")
        if (status := self.process.poll()) is not None:
            if SLOW not in (text := self.drivers.output()):
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
        self.place.append("in", pa.table({"key": keys, "value": values}))

    def batches(self) -> int:
        """How many Spark has noted as committed."""
        noted = (self.root / "checkpoint" / "commits").glob("[0-9]*")
        return max((int(path.name) + 1 for path in noted if path.name.isdecimal()), default=0)


# --- the proof


def kinds(run: Run) -> Iterator[str]:
    """Each kind once, in any order; then at random, for ever."""
    known = run.place.kinds
    yield from run.dice.sample(list(known), len(known))
    while True:
        yield from run.dice.choices(list(known), list(known.values()))


def kill_worker(run: Run) -> None:
    """Kill a worker, once the batch of the one before is through: a task is tried three times."""
    if run.batches() <= run.hurt:
        wait_for_batch(run, run.hurt)
    end = time.monotonic() + WAIT_S
    while not (found := workers(run.process.pid)):
        run.check(end)
        time.sleep(0.01)
    kill([run.dice.choice(found)])
    run.hurt = run.batches()


def wait_for_moment(run: Run, kind: str) -> None:
    """Return when a batch is at this point."""
    has_come, end = run.place.moment(kind), time.monotonic() + WAIT_S
    run.write(run.dice.randrange(200, 3_000))  # so that there is a batch to come
    while not has_come():
        time.sleep(0.001)
        run.check(end)


def strike(run: Run, kind: str) -> None:
    what, _, moment = kind.partition(" at ")
    run.kills[kind] += 1
    if what == "batch write":
        kill_write(run, moment)
        return
    if moment:
        wait_for_moment(run, moment)
    else:
        run.write(run.dice.randrange(200, 3_000))
        time.sleep(run.dice.random() * 2)
        run.check()
    if what == "worker":
        kill_worker(run)
        return
    if what == "second driver":
        rival(run)
        return
    if isinstance(run.place, Cluster) and what in ("broker", "pause"):
        run.place.strike(what, run.dice)
        return
    left = kill_driver(run.process, everything=what == "everything")
    run.start()
    kill(left)  # what is still there of the first life would only cost memory now


def kill_write(run: Run, moment: str) -> None:
    """Kill a batch write, or a worker of it, at a moment, and do it again: its rows have to be there once."""
    number, run.writes = run.writes, run.writes + 1
    victim = run.dice.choice(["worker", "driver", "everything"])
    has_come = run.place.moment(moment)
    process, left = _write(run, number), list[int]()
    while process.poll() is None and not has_come():
        time.sleep(0.001)
        run.check()
    if process.poll() is None and victim != "worker":
        left = kill_driver(process, everything=victim == "everything")
    else:
        kill(workers(process.pid)[:1])
        _wait_for_write(run, process)
    _wait_for_write(run, _write(run, number))
    kill(left)


def _write(run: Run, number: int) -> subprocess.Popen[bytes]:
    sink = run.place.options | run.sink
    return run.drivers.take("write", number=number, rows=WRITE_ROWS, topics=WRITTEN, sink=sink)


def _wait_for_write(run: Run, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + WAIT_S
    while (status := process.poll()) is None:
        run.check(end)
        time.sleep(0.02)
    if status:
        raise FaultError(f"a batch write failed (exit status {status}):\n{run.drivers.output()[-6000:]}")


def wait_for_batch(run: Run, done: int | None = None) -> None:
    """Return when more batches are through than these, or than now."""
    done, start = run.batches() if done is None else done, time.monotonic()
    nudge = start + NUDGE_S
    while run.batches() <= done:
        if (now := time.monotonic()) > nudge:
            run.write(100)
            nudge = now + NUDGE_S
        run.check(start + WAIT_S)
        time.sleep(0.05)


def rival(run: Run) -> None:
    """Start a second query on the same checkpoint: Spark and the sink refuse one of them, or both; another goes on."""
    first, end = run.process, time.monotonic() + WAIT_S
    run.start()
    second = run.process
    while first.poll() is None and second.poll() is None:
        if time.monotonic() > end:
            raise FaultError("two drivers go on beside each other")
        run.write(300)
        time.sleep(1)
    run.process = first if first.poll() is None else second
    try:
        wait_for_batch(run)
    except FaultError:
        if run.process.poll() is None:
            raise
        run.start()  # none of them went on
        wait_for_batch(run)
    finally:
        for process in {first, second} - {run.process}:
            end_process(process)


def begin(run: Run) -> None:
    """Start the query; one life of it ends in good order first, for the classes of its JVM."""
    run.start()
    wait_for_batch(run)  # what is left of a batch 0 that was not planned to its end, Spark itself refuses
    if not run.drivers.has_classes:
        found = descendants(run.process.pid)
        stop(run)
        (run.root / "stop").unlink()
        wait_for(found)
        run.start()


def stop(run: Run) -> None:
    """Let the query copy what is there, and end."""
    (run.root / "stop").touch()
    while run.process.wait(timeout=600):
        run.check()


def catch_up(run: Run) -> None:
    """Wait until everything is copied."""
    wanted, end = sum(run.written.values()), time.monotonic() + WAIT_S
    while sum(1 for _ in run.place.records("out")) < wanted:
        run.check(end)
        time.sleep(0.2)


def end(run: Run) -> None:
    end_process(run.process)
    run.drivers.close()


def prove(run: Run, *, kills: int, say=print) -> dict[str, int]:
    """Raise FaultError unless `out` is what `in` is, after so many kills."""
    try:
        begin(run)
        for kind in islice(kinds(run), kills):
            start = time.monotonic()
            strike(run, kind)
            run.took_s[kind] += (took_s := time.monotonic() - start)
            done = f"{run.kills.total()} of {kills} kills, {run.batches()} batches"
            say(f"{done}, last: {kind}, {took_s:.1f} s", flush=True)
        stop(run)
    finally:
        end(run)
    return dict(run.kills) | {"starts": run.starts, "slow": run.slow, "batches": run.batches()} | compare(run)


def compare(run: Run) -> dict[str, int]:
    """Raise FaultError unless `out` holds the records of `in`, each once, those of each key in their order."""
    wrong, costs = run.place.left_over()
    sent, came = (Counter((k, v) for _, k, v in run.place.records(topic)) for topic in ("in", "out"))
    if sent != came:
        wrong.append(f"{(sent - came).total()} records missing, {(came - sent).total()} too many")
    order = defaultdict(list)
    for _, key, value in run.place.records("out"):
        order[key].append(int(value.rpartition(b":")[2]))
    for number, topic in enumerate(WRITTEN):
        wanted = Counter(f"{n}-{k}".encode() for n in range(run.writes) for k in range(number, WRITE_ROWS, 2))
        if wanted != (came := Counter(value for _, _, value in run.place.records(topic))):
            wrong.append(
                f"of batch writes {(wanted - came).total()} records missing, {(came - wanted).total()} too many"
            )
    wrong += [f"{key!r} is out of order" for key, numbers in order.items() if numbers != sorted(numbers)]
    if wrong:
        raise FaultError("; ".join(wrong))
    return {"records": sent.total()} | costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    parser.add_argument("--cluster", action="store_true", help="over three brokers, and not in a directory")
    parser.add_argument("--one-phase", action="store_true", help="over brokers without two-phase commits")
    parser.add_argument("--at-least-once", action="store_true", help="with exactlyOnce=false: the proof must fail")
    parser.add_argument("--keep", action="store_true", help="leave the directory, also of a proof that succeeds")
    asked = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="pylog-kills-"))
    start = time.monotonic()
    print(f"seed {asked.seed}, {root}", flush=True)
    place = Cluster(root, is_two_phase=not asked.one_phase) if asked.cluster or asked.one_phase else Directory(root)
    try:
        sink = {"exactlyOnce": "false"} if asked.at_least_once else {}
        run = Run(root, place, random.Random(asked.seed), sink=sink)
        found = prove(run, kills=asked.kills)
    except (FaultError, PylogError) as error:
        sys.exit(f"FAULT (seed {asked.seed}, {root}): {error}")
    finally:
        place.close()
    print("seconds a kill:", {kind: round(run.took_s[kind] / count, 1) for kind, count in run.kills.most_common()})
    print(f"exactly once: {found}, {time.monotonic() - start:.0f} s, seed {asked.seed}")
    if not asked.keep:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
