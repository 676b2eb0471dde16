"""The topics of a directory, for Spark's readers and writers.

A Python worker of Spark serves many tasks, so stores stay open between them, in this module. Spark kills its workers,
so nobody closes them: the next process that opens the directory checks the last segments.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast
from weakref import WeakKeyDictionary, WeakSet

import logstore
from datasource.topics.interface import (
    BATCH_BYTES,
    Batch,
    BatchTransactions,
    Found,
    Part,
    PartitionRange,
    PreparedPart,
    TransactionSettings,
    quietly,
)
from logstore import LogStore, NotAStoreError, OffsetRange, PylogError, TopicInfo
from logstore.config import Isolation
from logstore.env import SYSTEM
from logstore.store.meta_properties import META
from logstore.store.reading import count_isolated, extent_of
from logstore.store.transactions.coordinator import Transactions
from logstore.store.transactions.state import TransactionOwner
from logstore.store.transactions.transaction import Prepared

if TYPE_CHECKING:
    import pyarrow as pa

    from logstore.schemas.registry import Schemas
    from replication.client.registry_settings import RegistrySettings

logger = logging.getLogger(__name__)


OPEN_STORES_MAX = 8

# How often a reader ends transactions of dead writers. Costs a file lock per open transaction.
ABORT_EACH_MS = 2_000
_looked_ms: dict[str, int] = {}

# A wait for records looks for them every few ms, less often the more partitions there are.
PAUSE_MS_MIN, PAUSE_MS_MAX, PARTITIONS_PER_MS = 7, 50, 4


@functools.cache
def _rest_schemas(registry: RegistrySettings) -> Schemas:
    from replication.client.schema_registry import RestSchemas

    return RestSchemas(registry)


class DirectoryTopics:
    """The topics of one directory on this machine (or on a file system that all executors share).

    `ReadableTopics` says what the methods do.
    """

    def __init__(
        self, path: str, isolation: Isolation = "read_committed", registry: RegistrySettings | None = None
    ) -> None:
        """Raises: NotAStoreError: there is no store, or it cannot be seen from this machine."""
        self._store = _open(path, "r", self)
        self._isolation: Isolation = isolation
        self._registry = registry

    @property
    def identity(self) -> str:
        return str(self._store.path.resolve())

    @property
    def schemas(self) -> Schemas:
        return self._store.schemas if self._registry is None else _rest_schemas(self._registry)

    def is_pylog(self) -> bool:
        return True

    def topics(self) -> list[TopicInfo]:
        return self._store.topics()

    def topic(self, name: str) -> TopicInfo:
        return self._store.topic(name)

    def offsets(self, topic: str) -> dict[int, OffsetRange]:
        return self._store.offsets(topic, isolation=self._isolation)

    def extent(self, topic: str, partition: int) -> OffsetRange:
        outcomes = self._store.transactions.outcomes()
        return extent_of(self._store.log(topic, partition), self._isolation, outcomes)

    def wait_for_more(self, ends: Mapping[str, Mapping[int, int]], wait_ms: int) -> bool:
        """See the interface. Files are looked at: nothing tells of their changes on every system and shared disk."""
        by_ms = SYSTEM.clock.monotonic_ms() + wait_ms
        try:
            logs = {(topic, p): self._store.log(topic, p) for topic, parts in ends.items() for p in parts}
            before = [log.log_end_offset for log in logs.values()]
            if any(end != ends[topic][p] for (topic, p), end in zip(logs, before, strict=True)):
                now = {topic: self.offsets(topic) for topic in ends}
                if any(now[topic][p].end != ends[topic][p] for topic, p in logs):
                    return True  # else they wait for a decision, which ends with a marker in the log
            while (left_ms := by_ms - SYSTEM.clock.monotonic_ms()) > 0:
                SYSTEM.clock.sleep_ms(min(left_ms, pause_ms(len(logs))))
                if [log.log_end_offset for log in logs.values()] != before:
                    return True
        except PylogError:
            return True
        return False

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

    def offset_before_bytes(self, r: PartitionRange, max_bytes: int) -> int:
        reader = self._store.log(r.topic, r.partition).reader
        return max(r.start, reader.offset_before_bytes(r.end, max_bytes))

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

    def count(self, r: PartitionRange) -> int:
        outcomes = self._store.transactions.outcomes()
        return count_isolated(self._store.log(r.topic, r.partition), r.start, r.end, self._isolation, outcomes)

    def settled(self, look: Callable[[], Found]) -> Found:
        self._end_dead()
        return self._store.transactions.settled(look)

    def _end_dead(self) -> None:
        """End transactions of dead writers, if this process may write: readers would wait for them for ever."""
        path, now_ms = str(self._store.path), SYSTEM.clock.monotonic_ms()
        if now_ms - _looked_ms.get(path, -ABORT_EACH_MS) < ABORT_EACH_MS:
            return
        _looked_ms[path] = now_ms
        try:
            transactions = self._store.transactions
            if transactions.dead(transactions.state()) and SYSTEM.files.is_writable(path):
                _open(path, "auto", self).transactions.complete_or_abort()
        except PylogError as error:
            logger.warning("path=%s transactions of dead writers are not ended: %s", path, error)


def pause_ms(partitions: int) -> int:
    """Return how long a wait pauses between two looks at so many partitions."""
    return min(PAUSE_MS_MIN + partitions // PARTITIONS_PER_MS, PAUSE_MS_MAX)


class WritableDirectory:
    def __init__(self, path: str) -> None:
        """Raises: NotAStoreError, StoreLockedError: a broker has it."""
        self._store = store = _open(path, "auto", self)
        self.append = store.append
        self.flush = store.flush

    def transactions(self, settings: TransactionSettings) -> BatchTransactions:
        return _Transactions(self, self._store.transactions, settings)

    def make(self, name: str, settings: Mapping[str, str]) -> None:
        self._store.create_topic(name, config=settings, if_not_exists=True)

    def is_compacted(self, name: str) -> bool:
        return self._store.topic(name).config.is_compacted


class _Transactions:
    def __init__(self, user: object, transactions: Transactions, settings: TransactionSettings) -> None:
        self._user, self._transactions, self._settings = user, transactions, settings

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
        self._transactions.complete_or_abort()


_stores: dict[tuple[str, str], tuple[tuple[int, int], LogStore]] = {}
_users: WeakKeyDictionary[LogStore, WeakSet[object]] = WeakKeyDictionary()
_mutex = threading.Lock()


def _open(path: str, mode: Literal["auto", "r"], user: object) -> LogStore:
    """Return the store, which stays open as long as there is this `user`: other threads may want others."""
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
        _users.setdefault(known[1], WeakSet()).add(user)
        idle = (key for key, (_, store) in _stores.items() if not _users.get(store))
        if len(_stores) > OPEN_STORES_MAX and (first := next(idle, None)):
            _close(_stores.pop(first)[1])
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
