"""The interface to topics for Spark's readers and writers: `ReadableTopics` and `WritableTopics`.

`directory` and `cluster` implement them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from logstore import OffsetRange, PylogError, TopicInfo
from logstore.schemas.subjects import TOPIC as SCHEMAS

if TYPE_CHECKING:
    import pyarrow as pa

    from logstore.schemas.registry import Schemas

logger = logging.getLogger(__name__)

# Larger than the engine's own: fewer switches between Spark's two processes.
BATCH_BYTES = 4 * 1024 * 1024
NO_EPOCH = -1  # a directory, or a broker before Kafka 2.1


@dataclass(frozen=True, slots=True)
class LedRange(OffsetRange):
    """The extent of a partition, as a leader of this epoch says: no record has a later epoch."""

    leader_epoch: int


def is_internal(topic: str) -> bool:
    """Whether brokers or pylog made this topic for themselves, by its name."""
    return topic.startswith("__") or topic == SCHEMAS


def epoch_of(extent: OffsetRange) -> int:
    """Return the epoch of the leader that named this extent; NO_EPOCH: none did."""
    return extent.leader_epoch if isinstance(extent, LedRange) else NO_EPOCH


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


Found = TypeVar("Found")


class ReadableTopics(Protocol):
    """Topics to read. Methods raise the errors of `logstore.errors`."""

    @property
    def identity(self) -> str:
        """The identity of the directory or cluster: its real path, or `kafka:` and the cluster's id."""

    @property
    def schemas(self) -> Schemas:
        """The schemas of topics."""

    def is_pylog(self) -> bool:
        """Whether pylog keeps them, and may make topics there that nobody named: in a directory, or its brokers do."""

    def topics(self) -> list[TopicInfo]:
        """Every topic, by name."""

    def topic(self, name: str) -> TopicInfo:
        """One topic. Raises: UnknownTopicError."""

    def offsets(self, topic: str) -> Mapping[int, OffsetRange]:
        """First and next offset of every partition; a `LedRange` where the leader's epoch is known."""

    def extent(self, topic: str, partition: int) -> OffsetRange:
        """The extent of one partition, whatever is wrong with the others."""

    def wait_for_more(self, ends: Mapping[str, Mapping[int, int]], wait_ms: int) -> bool:
        """Return True as soon as a partition may have another end than this one; False if none has within `wait_ms`.

        `ends` are of `offsets`, by topic and partition. For what went wrong it is True: `offsets` says that.
        """

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

    def offset_before_bytes(self, r: PartitionRange, max_bytes: int) -> int:
        """Start of the last batches of `r` that have about `max_bytes`, or that are read at once; below its end."""

    def read(self, r: PartitionRange, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The records of `r`, a few MiB at a time."""

    def count(self, r: PartitionRange) -> int:
        """How many records `read` yields, by the headers of their batches where those are at hand."""

    def settled(self, look: Callable[[], Found]) -> Found:
        """Return what `look` finds while no transaction is decided: it sees all of a transaction, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A unit that becomes visible as a whole: a batch of a name, written by a run.

    `is_claimed`: the run has claimed the name before its tasks began. `is_once`: nobody writes this batch again.
    """

    name: str
    batch_id: int
    run: str
    is_claimed: bool = False
    is_once: bool = False


class PreparedPart(Protocol):
    """The message of a task to the process that commits; can be pickled."""

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

    def make(self, name: str, settings: Mapping[str, str]) -> None:
        """Make a topic with these settings, of one partition, unless there is one of this name."""

    def is_compacted(self, name: str) -> bool:
        """Whether the topic has cleanup.policy=compact; False, too, where its settings may not be seen."""

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


@contextmanager
def quietly() -> Iterator[None]:
    """Log that a transaction was not aborted: the error would hide why it is aborted."""
    try:
        yield
    except PylogError as error:
        logger.warning("a transaction is not aborted yet: %s", error)
