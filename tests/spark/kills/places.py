"""Where the query of the proof reads and writes: a directory, or a cluster whose brokers are killed, too."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pyarrow as pa

import logstore
from datasource.connector.options import DECISION_TOPIC
from datasource.delta.tiered_topics import TieredTopics
from datasource.jobs import retention, tiering
from datasource.topics.interface import PartitionRange
from datasource.topics.locations import Location
from replication.client.fetching import LATEST
from replication.client.kafka_client import Isolation, KafkaClient
from replication.model.cluster import TopicPartition
from tests.support.tried_cluster import TriedCluster

WRITTEN = ("even", "odd")  # by batch writes
TOPICS = {"in": 3, "out": 4} | dict.fromkeys(WRITTEN, 2)  # partitions
OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort")
PORTION = 100_000  # records
TIERED = {
    "remote.storage.enable": "true",
    "retention.bytes": "20000",
    "segment.bytes": "10000",
    "file.delete.delay.ms": "0",
}
QUIET_S = 60.0  # for markers, and for replicas that have to catch up
BROKER_SETTINGS = {"zookeeper.session.timeout.ms": 3000}

Found = Iterator[tuple[int, bytes, bytes]]
Hop = dict[str, dict[str, str]]  # the options of a query's source and sink


def hop(source: dict[str, str], topic: str, sink: dict[str, str]) -> Hop:
    """From this topic to `out`."""
    return {"source": source | {"subscribe": topic}, "sink": sink | {"topic": "out"}}


class Directory:
    """A store; the moments of a commit are the events in its journal of transactions."""

    # The victims, and how often in proportion. A kind of journal line: at the moment when it is written.
    kinds = {  # noqa: RUF012
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
        "batch write at open": 1,
        "batch write at prepared": 1,
        "batch write at decide": 1,
    }
    often = ("worker",)
    in_commit = ("decide", "durable", "marked")

    def __init__(self, root: Path) -> None:
        self.log = root / "log"
        self.options = {"path": str(self.log)}
        self._journal = self.log / "transactions" / "journal"
        with logstore.open(self.log) as store:
            for topic, partitions in TOPICS.items():
                store.create_topic(topic, partitions=partitions)

    def hops(self, sink: dict[str, str]) -> list[Hop]:
        return [hop(self.options, "in", self.options | sink)]

    def append(self, topic: str, rows: pa.Table) -> None:
        with logstore.open(self.log) as store:
            store.append(topic, rows)

    def moment(self, kind: str) -> Callable[[], bool]:
        """Tell, whenever asked, whether the journal has got a line with an event of this kind."""
        text, seen = f'"{kind}"'.encode(), [_identity(self._journal)]

        def has_come() -> bool:
            now = _identity(self._journal)
            if now == seen[0]:
                return False
            with self._journal.open("rb") as file:
                file.seek(seen[0][1] if now[0] == seen[0][0] else 0)
                seen[0] = now
                return text in file.read()

        return has_come

    def records(self, topic: str) -> Found:
        with logstore.open(self.log, mode="r") as store:
            yield from self._records(store, topic)

    def _records(self, store: logstore.LogStore, topic: str, **how: str) -> Found:
        for partition in range(store.topic(topic).partitions):
            yield from _triples(partition, store.read(topic, partition=partition, **how))

    def left_over(self) -> tuple[list[str], dict[str, int]]:
        """The transactions and files that nobody ended or cleaned up, once the query is over; and their cost."""
        wrong = []
        with logstore.open(self.log) as store:
            store.transactions.complete_or_abort()
            if open_ones := [
                transaction
                for partition in range(store.topic("out").partitions)
                for transaction in store.log("out", partition).producers.open_transactions()
            ]:
                wrong.append(f"transactions that nobody ended: {open_ones}")
            state = store.transactions.state()
            everything = sum(1 for _ in self._records(store, "out", isolation="read_uncommitted"))
            committed = sum(1 for _ in self._records(store, "out"))
            if len(state.attempts) > 20 or len(state.epochs) > 40:
                wrong.append(f"{len(state.attempts)} attempts and {len(state.epochs)} producer ids are left")
        return wrong, {"aborted records": everything - committed, "producer ids": len(state.epochs)}

    def close(self) -> None:
        pass


class TieredDirectory(Directory):
    """A store whose topic `in` has records of long ago, nearly all of them in its table alone.

    Whatever is appended is tiered, and most of it deleted from the log, while the query reads.
    """

    kinds = {  # noqa: RUF012
        "worker": 4,
        "everything": 4,
        "driver": 3,
        "worker at open": 2,
        "everything at decide": 2,
        "driver at prepared": 1,
    }

    def __init__(self, root: Path, *, records: int, per_trigger: int) -> None:
        super().__init__(root)
        self._source = {"includeTiered": "true", "maxOffsetsPerTrigger": str(per_trigger)}
        with logstore.open(self.log) as store:
            store.alter_topic("in", config=TIERED)
        for start in range(0, records, PORTION):
            numbers = range(start, min(start + PORTION, records))
            keys = [f"old-{i % 20}" for i in numbers]
            self.append("in", pa.table({"key": keys, "value": [f"old-{i % 20}:{i}" for i in numbers]}))

    def hops(self, sink: dict[str, str]) -> list[Hop]:
        return [hop(self.options | self._source, "in", self.options | sink)]

    def append(self, topic: str, rows: pa.Table) -> None:
        super().append(topic, rows)
        (tiered, *_), _ = tiering.rows(None, path=str(self.log), topics="in"), retention.rows(None, path=str(self.log))
        assert tiered["status"] in ("tiered", "nothing to do"), tiered

    def first_in_log(self) -> dict[int, int]:
        with logstore.open(self.log, mode="r") as store:
            return {p: extent.start for p, extent in store.offsets("in").items()}

    def _records(self, store: logstore.LogStore, topic: str, **how: str) -> Found:
        if topic != "in":
            yield from super()._records(store, topic, **how)
            return
        together = TieredTopics(Location(str(self.log)), fail_on_data_loss=True)
        for partition, extent in together.offsets(topic).items():
            wanted = PartitionRange(topic, partition, extent.start, extent.end)
            yield from _triples(partition, together.read(wanted, ["key", "value"]))


class Cluster:
    """Three brokers, or another number, each a process.

    A moment of a commit is when the end of a topic moves, committed or not.
    """

    kinds = {  # noqa: RUF012
        "worker": 4,
        "worker at written": 4,
        "driver": 1,
        "everything": 1,
        "driver at written": 1,
        "driver at deciding": 1,
        "driver at decided": 2,
        "everything at deciding": 1,
        "everything at decided": 2,
        "broker": 3,
        "broker at written": 3,
        "broker at decided": 3,
        "pause": 2,
        "pause at written": 2,
        "pause at decided": 2,
        "second driver": 1,
        "batch write at rows": 1,
        "batch write at decided": 1,
        "batch write at shown": 1,
    }
    often = ("worker", "broker", "pause")
    in_commit = ("deciding", "decided")
    moments = {  # noqa: RUF012
        "written": ("out", Isolation.READ_UNCOMMITTED),
        "deciding": (DECISION_TOPIC, Isolation.READ_UNCOMMITTED),
        "decided": (DECISION_TOPIC, Isolation.READ_COMMITTED),
        "rows": (WRITTEN[0], Isolation.READ_UNCOMMITTED),
        "shown": (WRITTEN[0], Isolation.READ_COMMITTED),
    }

    def __init__(self, root: Path, *, is_two_phase: bool = True, brokers: int = 3) -> None:
        replicas = {"default.replication.factor": brokers, "min.insync.replicas": min(2, brokers)}
        settings = BROKER_SETTINGS | replicas | {"transaction.two.phase.commit.enable": is_two_phase}
        self._brokers = TriedCluster(brokers, root / "brokers", settings).start()
        self._client = KafkaClient(self._brokers.bootstrap)
        self.options = {"kafka.bootstrap.servers": self._brokers.bootstrap}
        for topic, partitions in TOPICS.items():
            self._client.create_topic(topic, partitions=partitions)
        self._mender, self._mending = ThreadPoolExecutor(1), cast("Future[None] | None", None)

    def hops(self, sink: dict[str, str]) -> list[Hop]:
        return [hop(self.options, "in", self.options | sink)]

    def append(self, topic: str, rows: pa.Table) -> None:
        self._client.append(topic, rows)

    def moment(self, kind: str) -> Callable[[], bool]:
        topic, isolation = self.moments[kind]
        topic = topic if topic in self._client.topics() else "out"  # of a sink that decides nothing
        wanted = {TopicPartition(topic, p): LATEST for p in self._client.topic(topic).leaders}

        def ends() -> list[int]:
            return [found.offset for found in self._client.offsets(wanted, isolation=isolation).values()]

        before = ends()
        return lambda: ends() != before

    def records(self, topic: str) -> Found:
        for partition, extent in self._client.extents(topic, isolation=Isolation.READ_COMMITTED).items():
            yield from _triples(partition, self._client.read(topic, partition, extent.start, extent.end))

    def strike(self, what: str, dice: random.Random) -> None:
        """Kill or pause a broker for a while, once all replicas are in sync. Other kills may go on meanwhile."""
        self._mend()
        victim = dice.choice((1, 2, 3))
        (self._brokers.kill if what == "broker" else self._brokers.pause)(victim)
        away_s = dice.random() * (3 if what == "broker" else 6)
        self._mending = self._mender.submit(self._bring_back, what, victim, away_s)

    def _bring_back(self, what: str, victim: int, away_s: float) -> None:
        time.sleep(away_s)
        if what == "broker":
            self._brokers.restart(victim)
        else:
            self._brokers.resume(victim)
            self._brokers.wait_until_known()
        _until(self._is_whole, "all replicas are in sync")

    def _mend(self) -> None:
        """Wait for the broker that was killed or paused last."""
        if self._mending is not None:
            self._mending.result()
            self._mending = None

    def _is_whole(self) -> bool:
        found = self._brokers.describe().leadership.values()
        return all(len(state.isr) == 3 and state.leader > 0 for state in found)

    def left_over(self) -> tuple[list[str], dict[str, int]]:
        self._mend()
        ids: list[str] = []

        def are_all_ended() -> bool:
            ids[:] = [each.transactional_id for each in self._client.list_transactions(states=OPEN) or ()]
            return not ids

        wrong = []
        with contextlib.suppress(TimeoutError):
            _until(are_all_ended, "no transaction is open", within_s=20.0)
        if ids:
            wrong.append(f"transactions that nobody ended: {sorted(ids)}")
        else:
            ends = [self._client.extents("out", isolation=isolation) for isolation in Isolation]
            if ends[0] != ends[1]:
                wrong.append(f"readers of committed data wait: {ends}")
        return wrong, {"transactional ids": len(self._client.list_transactions() or ())}

    def close(self) -> None:
        self._mender.shutdown()
        self._client.close()
        self._brokers.kill(*self._brokers.live)
        self._brokers.close()


class Chain:
    """A broker and a directory: one query copies from the broker to the directory, another one back."""

    def __init__(self, root: Path) -> None:
        self.directory, self.cluster = Directory(root), Cluster(root, brokers=1)
        self.append, self.records = self.cluster.append, self.cluster.records
        self.close = self.cluster.close

    def hops(self, sink: dict[str, str]) -> list[Hop]:
        first, second = self.cluster.options, self.directory.options
        return [hop(first, "in", second | sink), hop(second, "out", first | sink)]

    def moment(self, kind: str) -> Callable[[], bool]:
        return (self.cluster if kind in self.cluster.moments else self.directory).moment(kind)

    def left_over(self) -> tuple[list[str], dict[str, int]]:
        found = self.directory.left_over(), self.cluster.left_over()
        return found[0][0] + found[1][0], found[0][1] | found[1][1]


def _triples(partition: int, batches: Iterator[pa.RecordBatch]) -> Found:
    for batch in batches:
        pairs = zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
        yield from ((partition, key, value) for key, value in pairs)


def _identity(path: Path) -> tuple[int, int]:
    with contextlib.suppress(OSError):
        found = path.stat()
        return found.st_ino, found.st_size
    return 0, 0


def _until(holds: Callable[[], bool], what: str, within_s: float = QUIET_S) -> None:
    end = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {within_s:.0f} s: {what}")
        time.sleep(0.1)
