"""Topics as Spark's readers and writers see them: `ReadableTopics` and `WritableTopics`, in a directory.

A Python worker of Spark serves many tasks, so stores stay open between them, in this module. Spark kills its workers,
so nobody closes them: the next process that opens the directory checks the last segments.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast

import logstore
from logstore import LogStore, NotAStoreError, OffsetRange, PylogError, TopicInfo
from logstore.env import SYSTEM
from logstore.log.isolation import Isolation
from logstore.store.log_dir import META
from logstore.store.reading import extent_of
from logstore.store.transactions.coordinator import Transactions
from logstore.store.transactions.state import TransactionOwner
from logstore.store.transactions.transaction import Prepared

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


NO_EPOCH = -1  # a directory, or a broker before Kafka 2.1


@dataclass(frozen=True, slots=True)
class LedRange(OffsetRange):
    """What a partition holds, as a leader of this epoch says: no record has a later one."""

    leader_epoch: int


@dataclass(frozen=True, slots=True, order=True)
class PartitionRange:
    """Offsets [start, end) of one partition of the topic that has this id."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str = ""
    leader_epoch: int = NO_EPOCH  # no record of the range has a later one

    @property
    def count(self) -> int:
        """How many offsets; compacted topics hold fewer records."""
        return max(0, self.end - self.start)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


OPEN_STORES_MAX = 8

# Larger than the engine's own: fewer switches between Spark's two processes.
BATCH_BYTES = 4 * 1024 * 1024

# How often a reader ends transactions of dead writers. Costs a file lock per open transaction.
TEND_EACH_MS = 2_000
_tended_ms: dict[str, int] = {}

Found = TypeVar("Found")


class ReadableTopics(Protocol):
    """Topics to read. Methods raise the errors of `logstore.errors`."""

    @property
    def identity(self) -> str:
        """What no other directory, or cluster, has: its real path, or `kafka:` and the cluster's id."""

    def topics(self) -> list[TopicInfo]:
        """Every topic, by name."""

    def topic(self, name: str) -> TopicInfo:
        """One topic. Raises: UnknownTopicError."""

    def offsets(self, topic: str) -> Mapping[int, OffsetRange]:
        """First and next offset of every partition; a `LedRange` where the leader's epoch is known."""

    def extent(self, topic: str, partition: int) -> OffsetRange:
        """As `offsets`, of one partition, whatever is wrong with the others."""

    def epoch_ends(self, topic: str, epochs: Mapping[int, int]) -> Mapping[int, int]:
        """Where the records of these leader epochs, and of earlier ones, end now, by partition; -1: nowhere."""

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """Offset of the first record at or after this time."""

    def floor_batch(self, r: PartitionRange, offset: int) -> int:
        """Base offset of the batch that holds `offset`."""

    def size_bytes(self, r: PartitionRange) -> int:
        """Return the size as stored, about."""

    def offset_after_bytes(self, r: PartitionRange, max_bytes: int) -> int:
        """End of the whole batches from the start of `r` that fit into `max_bytes`; at least one batch."""

    def read(self, r: PartitionRange, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The records of `r`, a few MiB at a time."""

    def settled(self, look: Callable[[], Found]) -> Found:
        """Return what `look` finds while no transaction is decided: it sees all of a transaction, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What becomes visible as a whole: a batch of a name, written by a run.

    `is_claimed`: the run has claimed the name before its tasks began. `is_once`: nobody writes this batch again.
    """

    name: str
    batch_id: int
    run: str
    is_claimed: bool = False
    is_once: bool = False


class PreparedPart(Protocol):
    """What a task sends to whoever commits; can be pickled."""

    @property
    def name(self) -> str: ...
    @property
    def run(self) -> str: ...


class Part(Protocol):
    """One task's part of a batch, which `WritableTopics.append` takes."""

    def prepare(self) -> PreparedPart:
        """Make durable what was appended; return what commits it, in another process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """`driver`: the process that decides. `timeout_ms`: when a batch that nobody works on is given up.

    `decision_topic`: where a cluster keeps what was decided.
    """

    driver: str
    timeout_ms: int
    decision_topic: str


class BatchTransactions(Protocol):
    """The transactions of a writer of batches. Errors are those of `logstore.errors`, and KafkaError."""

    def claim(self, name: str | None, run: str) -> str:
        """Before the tasks of a batch write: the name under which this run writes; None: any that nobody has."""

    def begun(self, batch: Batch, task: tuple[int, int]) -> AbstractContextManager[Part]:
        """The part of a task (its partition, and the number of its attempt), aborted if the block raises.

        Raises: BatchConflictError: a later batch is committed under this name; TransactionAbortedError.
        """

    def commit(self, prepared: Sequence[PreparedPart], *, origin: str) -> None:
        """Commit a batch: these parts of it, at least one, and no others. One that is committed already stays.

        Raises: BatchConflictError: it is, with another content, and of another origin; TransactionAbortedError.
        """

    def abort(self, batch: Batch, *, reason: str) -> None:
        """Give a batch up, also what killed tasks left of it; finish one that is decided.

        Without a run it is that of the same driver.
        """


class WritableTopics(Protocol):
    """Topics to write."""

    def transactions(self, settings: TransactionSettings) -> BatchTransactions:
        """The transactions of one writer."""

    def append(
        self,
        topic: str,
        data: pa.Table,
        /,
        *,
        partitioner: str,
        compression: str | None,
        transaction: Any,
    ) -> dict[int, OffsetRange]:
        """Append rows, in a transaction that `begun` gave or in none; return the offsets that they got."""

    def flush(self) -> None:
        """Make durable what was appended through this target."""


class DirectoryTopics:
    """The topics of one directory on this machine (or on a file system that all executors share).

    `ReadableTopics` says what the methods do.
    """

    def __init__(self, store: LogStore, isolation: Isolation = "read_committed") -> None:
        self._store = store
        self._isolation: Isolation = isolation

    @property
    def identity(self) -> str:
        return str(self._store.path.resolve())

    def topics(self) -> list[TopicInfo]:
        return self._store.topics()

    def topic(self, name: str) -> TopicInfo:
        return self._store.topic(name)

    def offsets(self, topic: str) -> dict[int, OffsetRange]:
        return self._store.offsets(topic, isolation=self._isolation)

    def extent(self, topic: str, partition: int) -> OffsetRange:
        outcomes = self._store.transactions.outcomes()
        return extent_of(self._store.log(topic, partition), self._isolation, outcomes)

    def epoch_ends(self, topic: str, epochs: Mapping[int, int]) -> Mapping[int, int]:
        return {}  # nobody is elected

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        found = self._store.offsets_for_times(topic, {partition: timestamp_ms})[partition]
        return None if found is None else found.offset

    def floor_batch(self, r: PartitionRange, offset: int) -> int:
        return self._store.log(r.topic, r.partition).reader.floor_batch(offset)

    def size_bytes(self, r: PartitionRange) -> int:
        return self._store.log(r.topic, r.partition).reader.bytes_between(r.start, r.end)

    def offset_after_bytes(self, r: PartitionRange, max_bytes: int) -> int:
        return self._store.log(r.topic, r.partition).reader.offset_after_bytes(r.start, max_bytes)

    def read(self, r: PartitionRange, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from self._store.read(
            r.topic,
            partition=r.partition,
            start=r.start,
            end=r.end,
            columns=columns,
            isolation=self._isolation,
            batch_bytes=BATCH_BYTES,
        )

    def settled(self, look: Callable[[], Found]) -> Found:
        self._end_dead()
        return self._store.transactions.settled(look)

    def _end_dead(self) -> None:
        """End transactions of dead writers, if this process may write: readers would wait for them for ever."""
        path, now_ms = str(self._store.path), SYSTEM.clock.monotonic_ms()
        if now_ms - _tended_ms.get(path, -TEND_EACH_MS) < TEND_EACH_MS:
            return
        _tended_ms[path] = now_ms
        try:
            transactions = self._store.transactions
            if transactions.dead(transactions.state()) and SYSTEM.files.is_writable(path):
                _open(path, "auto").transactions.tend()
        except PylogError as error:
            logger.warning("path=%s transactions of dead writers are not ended: %s", path, error)


class WritableDirectory:
    """See `WritableTopics`."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self.append = store.append
        self.flush = store.flush

    def transactions(self, settings: TransactionSettings) -> BatchTransactions:
        return _Transactions(self._store.transactions, settings)


class _Transactions:
    """See `BatchTransactions`."""

    def __init__(self, transactions: Transactions, settings: TransactionSettings) -> None:
        self._transactions, self._settings = transactions, settings

    def claim(self, name: str | None, run: str) -> str:
        return name or f"write {run}"

    @contextmanager
    def begun(self, batch: Batch, task: tuple[int, int]) -> Iterator[Part]:
        transaction = self._transactions.begin(
            batch.name,
            batch.batch_id,
            run=batch.run,
            task=f"task {task[0]} attempt {task[1]}",
            owner=TransactionOwner(driver=self._settings.driver, timeout_ms=self._settings.timeout_ms),
            once=batch.is_once,
        )
        with self._transactions.at_work(transaction):
            try:
                yield transaction
            except BaseException as error:
                with quietly():
                    transaction.abort(f"its task failed: {type(error).__name__}")
                raise

    def commit(self, prepared: Sequence[PreparedPart], *, origin: str) -> None:
        self._transactions.commit(cast("Sequence[Prepared]", prepared), origin=origin)

    def abort(self, batch: Batch, *, reason: str) -> None:
        driver = "" if batch.run else self._settings.driver
        self._transactions.abort(batch.name, batch.batch_id, run=batch.run, driver=driver, reason=reason)
        self._transactions.tend()


@contextmanager
def quietly() -> Iterator[None]:
    """Log that a transaction was not aborted: the error would hide why it is aborted."""
    try:
        yield
    except PylogError as error:
        logger.warning("a transaction is not aborted yet: %s", error)


_stores: dict[tuple[str, str], tuple[tuple[int, int], LogStore]] = {}
_mutex = threading.Lock()


def reading(path: str, *, isolation: Isolation = "read_committed") -> ReadableTopics:
    """Return the topics of a directory for reading.

    Raises: NotAStoreError: there is none, or it cannot be seen from this machine.
    """
    return DirectoryTopics(_open(path, "r"), isolation)


def writing(path: str) -> WritableTopics:
    """Return the topics of a directory for writing.

    Raises: NotAStoreError, StoreLockedError: a broker has it.
    """
    return WritableDirectory(_open(path, "auto"))


def _open(path: str, mode: Literal["auto", "r"]) -> LogStore:
    key = os.path.abspath(path), mode  # noqa: PTH100 - links stay: the path is shown as it was given
    identity = _identity(Path(key[0]))
    with _mutex:
        known = _stores.pop(key, None)
        if known and known[0] != identity:  # the directory was replaced by another
            _close(known[1])
            known = None
        if known is None:
            known = identity, logstore.open(key[0], mode=mode, create=False)
        _stores[key] = known
        if len(_stores) > OPEN_STORES_MAX:
            _close(_stores.pop(next(iter(_stores)))[1])
        return known[1]


def _close(store: LogStore) -> None:
    """Close a store that another task used; an error is logged, since this task can do nothing about it."""
    try:
        store.close()
    except (PylogError, OSError) as error:
        logger.warning("path=%s not closed cleanly: %s", store.path, error)


def _identity(path: Path) -> tuple[int, int]:
    """Return what tells this store from a later one at the same path."""
    try:
        found = (path / META).stat()
    except NotADirectoryError:
        raise NotAStoreError(f"{path} is a file; option 'path' takes the directory that holds the topics") from None
    except FileNotFoundError:
        raise NotAStoreError(
            f"{path} holds no log; create a topic there first: logstore.open(path).create_topic(name), or "
            "`pylog topics create` (executors on other machines need the directory on shared storage)"
        ) from None
    return found.st_ino, found.st_mtime_ns
