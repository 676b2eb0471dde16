"""20 writers and 5 readers on one directory, killed at random: every acknowledged record is there once, in order.

    python -m tests.crash.processes --seconds 600 --seed 1

A writer notes in a file of its own what it is about to write, and what was acknowledged; some write transactions
over several partitions and topics, some compact. A reader notes what it saw. Now and then all are killed at once,
so that the next one to come recovers the store. At the end, when all have left by themselves:

- every acknowledged record is there once, and no aborted one; of what was on its way when its writer was killed, a
  transaction is there as a whole or not at all, and each record at most once;
- the records of a writer are in their order in each partition;
- of every key of the compacted topic, the last acknowledged record or a later one is there;
- what a reader saw is still there, at the same offset; and nothing is damaged.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

import logstore
from logstore import LogStore
from logstore.tools.verify import verify_store

WRITERS, READERS, PARTITIONS = 20, 5, 3
PAUSE_MS = 25  # of a writer between two appends, at most: two cores are to be enough
ALL_AT_ONCE = 0.03  # of the kills
KILLS_MIN = 20  # a busy machine takes longer, and kills no fewer
SMALL = {"segment.bytes": 60_000, "index.interval.bytes": 1_000, "max.message.bytes": 50_000}
COMPACTED = SMALL | {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": 0.0,
    "file.delete.delay.ms": 2_000,
}
FORK = multiprocessing.get_context("fork")


class Notes:
    """Lines that survive their writer: each is one write."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, *words: object) -> None:
        os.write(self._fd, (" ".join(map(str, words)) + "\n").encode())


# ------------------------------------------------------------------ processes


class Writer:
    """Appends until it is stopped, or killed."""

    def __init__(self, store: LogStore, name: str, notes: Notes, dice: random.Random) -> None:
        self.store, self.name, self.notes, self.dice = store, name, notes, dice
        self.count = 0

    def once(self) -> None:
        kind = self.dice.random()
        if kind < 0.6:
            self.plain()
        elif kind < 0.9:
            self.transaction()
        elif kind < 0.97:
            self.keyed()
        else:
            self.store.compact("keys", self.dice.randrange(PARTITIONS))

    def rows(self, topic: str) -> tuple[pa.Table, list[str]]:
        texts = [f"{self.name}:{self.count + n}" for n in range(self.dice.randint(1, 12))]
        self.count += len(texts)
        partition = self.dice.randrange(PARTITIONS) if topic == "t" else 0
        partitions = pa.array([partition] * len(texts), pa.int32())
        value = [text + "." * self.dice.randint(1, 200) for text in texts]
        return pa.table({"value": value, "partition": partitions}), texts

    def plain(self) -> None:
        table, texts = self.rows("t")
        self.notes.add("plain", *texts)
        self.store.append("t", table, flush=self.dice.random() < 0.1)
        self.notes.add("done", *texts)

    def transaction(self) -> None:
        transaction, written = self.store.transaction(), list[str]()
        parts = [(topic, *self.rows(topic)) for topic in self.dice.choices("tu", k=3)]
        self.notes.add("transaction", *(text for _, _, texts in parts for text in texts))
        for topic, table, texts in parts:
            self.store.append(topic, table, transaction=transaction)
            written += texts
        if self.dice.random() < 0.2:
            self.notes.add("aborted", *written)
            transaction.abort()
        else:
            transaction.commit()
            self.notes.add("done", *written)

    def keyed(self) -> None:
        key, self.count = f"{self.name.partition('.')[0]}-{self.dice.randrange(5)}", self.count + 1
        stamp = time.monotonic_ns()
        self.notes.add("key", key, stamp)
        self.store.append("keys", pa.table({"key": [key], "value": [str(stamp)]}))
        self.notes.add("keyed", key, stamp)


class Reader:
    """Reads what is new in every partition, in turn."""

    def __init__(self, store: LogStore, name: str, notes: Notes, dice: random.Random) -> None:
        self.store, self.notes, self.dice = store, notes, dice
        self.position: dict[int, int] = {}

    def once(self) -> None:
        for partition, extent in self.store.offsets("t").items():
            start = self.position.setdefault(partition, max(0, extent.end - 200))
            rows = self.store.read("t", partition=partition, start=start, end=extent.end).read_all()
            offsets = rows["offset"].to_pylist()
            assert offsets == sorted(set(offsets)), offsets
            for offset, value in zip(offsets, rows["value"].to_pylist(), strict=True):
                self.notes.add("saw", partition, offset, value.decode().partition(".")[0], len(value))
            self.position[partition] = extent.end


def live(root: Path, kind: type[Writer | Reader], name: str, seed: int) -> None:
    """One life of a process."""
    dice, status = random.Random(seed), 1
    try:
        with logstore.open(root / "store", mode="r" if kind is Reader else "auto") as store:
            worker = kind(store, name, Notes(root / f"{kind.__name__}-{name}"), dice)
            while not (root / "stop").exists():
                worker.once()
                time.sleep(dice.random() * PAUSE_MS / 1000 * (4 if kind is Reader else 1))
        status = 0
    except BaseException:  # noqa: BLE001  what it was is told by the parent
        (root / f"failed-{name}").write_text(traceback.format_exc())
    finally:
        os._exit(status)


# -------------------------------------------------------------------- killing


class Killer:
    """Starts the processes, kills them, starts them again."""

    def __init__(self, root: Path, dice: random.Random) -> None:
        self.root, self.dice, self.kills = root, dice, 0
        self.lives: dict[tuple[type, int], int] = defaultdict(int)
        self.running: dict[tuple[type, int], multiprocessing.process.BaseProcess] = {}

    def start(self, kind: type[Writer | Reader], number: int) -> None:
        life = self.lives[kind, number] = self.lives[kind, number] + 1
        name = f"{number}_{life}" if kind is Writer else f"r{number}_{life}"
        arguments = self.root, kind, name, self.dice.randrange(1 << 30)
        process = FORK.Process(target=live, args=arguments)
        process.start()
        self.running[kind, number] = process

    def run(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        for number in range(WRITERS + READERS):
            self.start(*((Writer, number) if number < WRITERS else (Reader, number - WRITERS)))
        while time.monotonic() < until or self.kills < KILLS_MIN:
            time.sleep(self.dice.random() * 0.1)
            every = self.dice.random() < ALL_AT_ONCE
            self.kill(list(self.running) if every else [self.dice.choice(list(self.running))])
        (self.root / "stop").touch()
        for process in self.running.values():
            process.join(120)
            assert process.exitcode == 0, self.failures() or f"still running: {process}"

    def kill(self, who: list[tuple[type, int]]) -> None:
        for each in who:
            os.kill(self.running[each].pid, signal.SIGKILL)
        for each in who:
            process = self.running[each]
            process.join()
            assert process.exitcode == -signal.SIGKILL, self.failures()
            self.kills += 1
        for each in who:
            self.start(*each)

    def failures(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.root.glob("failed-*")))


# ------------------------------------------------------------------- checking


@dataclass
class Told:
    """The notes of the writers, over all their runs."""

    acknowledged: set[str] = field(default_factory=set)
    aborted: set[str] = field(default_factory=set)
    under_way: list[tuple[str, list[str]]] = field(default_factory=list)
    keys: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    tried: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))

    def take(self, path: Path) -> None:
        pending: tuple[str, list[str]] | None = None
        for line in path.read_text().splitlines():
            kind, *words = line.split(" ")
            if kind in ("plain", "transaction"):
                pending = kind, words
            elif kind in ("done", "aborted"):
                (self.acknowledged if kind == "done" else self.aborted).update(words)
                pending = None
            elif kind == "key":
                self.tried[words[0]].add(int(words[1]))
            elif kind == "keyed":
                self.keys[words[0]] = max(self.keys[words[0]], int(words[1]))
        if pending:
            self.under_way.append(pending)


def check(root: Path) -> dict[str, int]:
    told = Told()
    for path in root.glob("Writer-*"):
        told.take(path)
    with logstore.open(root / "store") as store:
        reports = [report for report in verify_store(store) if report.damage]
        assert not reports, reports
        places = check_records(store, told)
        check_keys(store, told)
        state = store.transactions.state()
        assert not any(state.is_open(attempt) for attempt in state.attempts)
    saw = 0
    for path in root.glob("Reader-*"):
        for line in path.read_text().splitlines():
            _, partition, offset, text, size = line.split(" ")
            assert places[text] == ("t", int(partition), int(offset), int(size)), line
            saw += 1
    return {"acknowledged": len(told.acknowledged), "seen": saw, "cut short": len(told.under_way)}


def check_records(store: LogStore, told: Told) -> dict[str, tuple[str, int, int, int]]:
    """Return where each record is."""
    places: dict[str, tuple[str, int, int, int]] = {}
    last: dict[tuple[str, int, str], int] = {}
    for topic in "tu":
        for partition in range(store.topic(topic).partitions):
            rows = store.read(topic, partition=partition).read_all()
            for offset, value in zip(rows["offset"].to_pylist(), rows["value"].to_pylist(), strict=True):
                text = value.decode().partition(".")[0]
                assert text not in places, f"{text} is there twice: {places[text]}, {offset}"
                places[text] = topic, partition, offset, len(value)
                writer, _, number = text.partition(":")
                assert last.get((topic, partition, writer), -1) < int(number), f"{text} is out of order"
                last[topic, partition, writer] = int(number)
    lost = told.acknowledged - places.keys()
    assert not lost, f"{len(lost)} acknowledged records are lost: {sorted(lost)[:5]}"
    assert not told.aborted & places.keys()
    on_their_way = {text for _, texts in told.under_way for text in texts}
    assert places.keys() <= told.acknowledged | on_their_way
    for kind, texts in told.under_way:
        there = [text for text in texts if text in places]
        assert kind == "plain" or there in ([], texts), f"half a transaction: {there} of {texts}"
    return places


def check_keys(store: LogStore, told: Told) -> None:
    found: dict[str, int] = {}
    for partition in range(PARTITIONS):
        rows = store.read("keys", partition=partition).read_all()
        for key, value in zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True):
            found[key.decode()] = int(value)
    for key, stamp in told.keys.items():
        assert found[key] >= stamp, f"{key}: {stamp} was acknowledged, {found[key]} is there"
    assert all(stamp in told.tried[key] for key, stamp in found.items())


def prove(root: Path, *, seconds: float, seed: int, say: Callable[[str], object] = print) -> dict[str, int]:
    """Run, and check. Raises: AssertionError."""
    with logstore.open(root / "warm") as store:  # compiled once, before there are children
        store.create_topic("t")
        store.append("t", pa.table({"value": ["x"]}))
        store.read("t", partition=0).read_all()
    with logstore.open(root / "store") as store:
        store.create_topic("t", partitions=PARTITIONS, config=SMALL)
        store.create_topic("u", config=SMALL)
        store.create_topic("keys", partitions=PARTITIONS, config=COMPACTED)
    killer = Killer(root, random.Random(seed))
    try:
        killer.run(seconds)
    finally:
        for process in killer.running.values():
            process.kill()
            process.join()
    found = check(root) | {"kills": killer.kills}
    say(f"seed {seed}, {seconds:g} s: {', '.join(f'{count:,} {what}' for what, count in found.items())}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    given = parser.parse_args()
    print(f"--seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="pylog-processes-") as root:
        prove(Path(root), seconds=given.seconds, seed=given.seed)


if __name__ == "__main__":
    sys.exit(main())
