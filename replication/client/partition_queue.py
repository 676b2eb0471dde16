"""PartitionQueue: the batches of one partition on their way to its leader, without a clock or a socket.

Laws: batches are sent in the order in which they came, and numbered so. At most `IN_FLIGHT` are sent and unanswered;
one, until one is acknowledged by the present leader, and while a batch is sent again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from logstore.errors import PylogError, RecordTooLargeError
from logstore.records import batch as batches
from replication.client.metadata import NO_LEADER
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import TopicPartition

IN_FLIGHT = 5  # brokers know the last five batches of a producer again
EPOCH_MAX = 2**15 - 1
TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
# The leader has not what came before, or nothing at all of the producer.
_HAS_GAP = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID)
_NOT_APPENDED = {*_HAS_GAP, *TOO_LARGE, ErrorCode.NOT_ENOUGH_REPLICAS}  # after other errors it may be
_RECORD_BYTES_MAX = 64  # what a record takes at most in a batch beside what it takes in Arrow

# Records [first, first + count) are appended from this offset on (or NO_OFFSET), or never will be.
Answered = Callable[[int, int, int | PylogError], None]


@dataclass(slots=True, eq=False)
class Batch:
    """One batch; its records are `count` from number `first` on, as `answered` counts them."""

    data: memoryview
    first: int
    count: int
    deadline: float
    answered: Answered
    sequence: int | None = None  # the one that it bears; None: it has not been sent in this epoch
    error: KafkaError | None = None  # why the last attempt failed
    is_refused: bool = False  # by the present attempt
    is_in_doubt: bool = False  # an earlier attempt may have appended it
    may_be_deleted: bool = False  # where that is so: the log begins behind what was acknowledged before it

    @property
    def can_be_halved(self) -> bool:
        """True if the last attempt failed because of the batch's size, and it has several records."""
        return self.error is not None and self.error.code in TOO_LARGE and self.count > 1

    @property
    def has_gap(self) -> bool:
        """True if the leader misses what came before the batch, or forgot the producer."""
        return self.error is not None and self.error.code in _HAS_GAP

    @property
    def is_lost(self) -> bool:
        """True if the batch was refused, and is not to be sent again."""
        assert self.error is not None, "it is refused"
        if self.has_gap:
            return self.error.code is ErrorCode.UNKNOWN_PRODUCER_ID and self.is_in_doubt and self.may_be_deleted
        return not self.error.code.is_retriable and not self.can_be_halved

    def failure(self, tp: TopicPartition) -> PylogError:
        """The error for its records, after the last attempt."""
        assert self.error is not None, "it is refused"
        if self.error.code in TOO_LARGE:
            return RecordTooLargeError(len(self.data), len(self.data) - 1, f"record for {tp}")
        return self.error

    def prepare_again(self) -> None:
        """Make it ready to be sent again after a refusal."""
        assert self.error is not None, "it is refused"
        self.is_refused = False
        self.is_in_doubt = self.is_in_doubt or self.error.code not in _NOT_APPENDED

    def halves(self) -> Iterator[Batch]:
        """Two batches in its place, each with its number if it has one."""
        for at, data in halves(self.data):
            header = batches.header_at(data)
            sequence = None if self.sequence is None else header.base_sequence
            yield Batch(
                data, self.first + at, header.count, self.deadline, self.answered, sequence, self.error,
                is_in_doubt=self.is_in_doubt,
            )  # fmt: skip


@dataclass(slots=True, eq=False)
class PartitionQueue:
    """See the module. Invariant: `sent` are the oldest batches, in order; while `is_rewinding`, nothing is sent."""

    tp: TopicPartition
    epoch: int
    waiting: deque[Batch] = field(default_factory=deque)
    sent: deque[Batch] = field(default_factory=deque)
    is_rewinding: bool = False
    leader: int = NO_LEADER  # to which `sent` went
    is_known: bool = False  # to that leader, which lets a producer that it does not know begin with any number
    backoff_s: float = 0.0
    not_before: float = 0.0
    failing_since_s: float | None = None
    next_sequence: int = 0
    acknowledged_end: int = 0  # the offset behind the last batch that was

    @property
    def may_send(self) -> bool:
        """True if the next batch may leave before those that are sent are answered."""
        if self.is_rewinding or not self.waiting:
            return False
        # One that is sent again goes alone: brokers know the last five batches again, and no older ones.
        is_again = any(batch.error is not None for batch in (*self.sent, self.waiting[0]))
        return len(self.sent) < (IN_FLIGHT if self.is_known and not is_again else 1)

    def turn_to(self, leader: int) -> bool:
        """Send to this leader from now on? Not while another one has something to answer."""
        if leader != self.leader:
            if self.sent:
                return False
            self.leader, self.is_known = leader, False
        return True

    def take(self, producer_id: int | None, *, is_transactional: bool) -> Batch:
        """The next batch, numbered if there is a producer; it begins at offset 0, as Kafka demands of clients."""
        batch = self.waiting.popleft()
        self.sent.append(batch)
        batches.stamp(batch.data, 0, 0, batches.NO_LEADER_EPOCH)
        if producer_id is None or batch.sequence is not None:
            return batch
        batch.sequence = self.next_sequence
        self.next_sequence = batches.sequence_after(batch.sequence, batch.count)
        header = batches.header_at(batch.data)._replace(
            producer_id=producer_id, producer_epoch=self.epoch, base_sequence=batch.sequence
        )
        if is_transactional:
            header = header._replace(attributes=header.attributes | batches.TRANSACTIONAL)
        batches.write_header(batch.data, 0, header)
        return batch

    def begin_epoch(self) -> None:
        """Number what waits anew: brokers take a new epoch from 0 on, and nothing of the old one any more."""
        self.epoch, self.next_sequence = self.epoch + 1, 0
        for batch in self.waiting:
            batch.sequence = None


def split(data: memoryview) -> list[tuple[memoryview, int]]:
    """The batches of a buffer with the count of their records: a request takes one batch for a partition."""
    return [(data[at : at + header.size_bytes], header.count) for at, header in batches.batches(data)]


def halves(data: memoryview) -> Iterable[tuple[int, memoryview]]:
    """Two batches with the same records as this one of at least two, each with the index of its first record.

    Codec, producer, transaction and sequence numbers are those of the batch.
    """
    import numpy as np

    from logstore.records.arrow import decode
    from logstore.records.encoding import encode
    from logstore.records.rows import Rows

    header = batches.header_at(data)
    decoded = decode(data, start=header.base_offset, end=header.next_offset)
    rows = Rows(decoded.select(["key", "value", "headers", "timestamp"]), now_ms=batches.NO_TIMESTAMP)
    limit = batches.HEADER_BYTES + decoded.nbytes + _RECORD_BYTES_MAX * header.count
    middle = header.count // 2
    for first, end in ((0, middle), (middle, header.count)):
        stamp = batches.ProducerStamp(
            header.producer_id,
            header.producer_epoch,
            batches.sequence_after(header.base_sequence, first),
            header.is_transactional,
        )
        (half,) = encode(
            rows,
            np.arange(first, end),
            codec=header.codec,
            batch_bytes=limit,
            batch_bytes_max=limit,
            producer=stamp,
        )
        yield first, half
