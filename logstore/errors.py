"""Everything that logstore raises on purpose.

InvalidRequestError: the caller is wrong. StoreError: the directory cannot be used as it is. CorruptLogError: bytes on
disk are not what was written. StorageError: the environment failed.

Facts are attributes; the message carries the remedy. Every class survives pickling, because Spark sends exceptions
between processes.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class PylogError(Exception):
    """Base of the package. `str(error)` is one line for a person; the facts are attributes."""

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.__dict__.update(facts)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), self.__dict__.copy())


def _rebuild(kind: type[PylogError], message: str, facts: dict[str, Any]) -> PylogError:
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    error.__dict__.update(facts)
    return error


class InvalidRequestError(PylogError, ValueError):
    """The caller is wrong; nothing was changed."""


class InvalidConfigError(InvalidRequestError):
    """A setting that does not exist, or a value out of its range."""


class InvalidTopicError(InvalidRequestError):
    """A topic name that cannot be used."""


class TopicExistsError(InvalidRequestError):
    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} exists already; delete it first, or choose another name", topic=topic)


class UnknownTopicError(InvalidRequestError):
    topic: str

    def __init__(self, topic: str, known: Iterable[str], where: str) -> None:
        super().__init__(f"no topic {topic!r} in {where}{did_you_mean(topic, known)}", topic=topic)


class UnknownPartitionError(InvalidRequestError):
    def __init__(self, topic: str, partition: int, partitions: int) -> None:
        super().__init__(
            f"topic {topic!r} has no partition {partition}: it has {partitions}, numbered 0 to {partitions - 1}",
            topic=topic,
            partition=partition,
            partitions=partitions,
        )


class InvalidRecordError(InvalidRequestError):
    """A record or column that cannot be stored."""


class DamagedBatchError(InvalidRecordError):
    """A batch whose bytes were changed on the way here: its checksum or its length is wrong."""


class InvalidTimestampError(InvalidRecordError):
    """A record's time is further from now than the topic allows."""


class RecordTooLargeError(InvalidRecordError):
    size_bytes: int
    limit_bytes: int

    def __init__(self, size_bytes: int, limit_bytes: int, what: str = "record") -> None:
        super().__init__(
            f"{what} of {size_bytes:,} bytes is larger than the topic allows ({limit_bytes:,}); "
            "raise max.message.bytes (and segment.bytes), or send smaller records",
            size_bytes=size_bytes,
            limit_bytes=limit_bytes,
        )


class OffsetOutOfRangeError(InvalidRequestError):
    offset: int
    start: int
    end: int

    def __init__(self, offset: int, start: int, end: int, where: str = "the log") -> None:
        super().__init__(
            f"offset {offset} is outside {where}, which holds offsets {start} to {end} (exclusive)",
            offset=offset,
            start=start,
            end=end,
        )


class OutOfOrderSequenceError(InvalidRequestError):
    def __init__(self, producer_id: int, producer_epoch: int, sequence: int, expected: int) -> None:
        super().__init__(
            f"producer {producer_id}, epoch {producer_epoch}: sequence number {sequence} instead of {expected}; an "
            "earlier batch was lost, or this batch was retried too late",
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            sequence=sequence,
            expected=expected,
        )


class UnknownProducerError(InvalidRequestError):
    def __init__(self, producer_id: int, producer_epoch: int, sequence: int) -> None:
        super().__init__(
            f"producer {producer_id}, epoch {producer_epoch} is not known here, and begins at sequence number "
            f"{sequence}: what came before was lost, or is a day old; begin at 0 in a new epoch",
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            sequence=sequence,
        )


class ProducerFencedError(InvalidRequestError):
    def __init__(self, producer_id: int, producer_epoch: int, current_epoch: int, what: str = "a batch") -> None:
        super().__init__(
            f"{what} of producer {producer_id} has epoch {producer_epoch}, below the current epoch {current_epoch}: a "
            "newer instance has taken over; stop this one",
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            current_epoch=current_epoch,
        )


class CoordinatorFencedError(ProducerFencedError):
    """A marker of a coordinator that a newer one has replaced."""


class TransactionStateError(InvalidRequestError):
    """A batch that does not fit the open transaction of its producer."""


class TransactionRepeatError(TransactionStateError):
    """A transactional batch with sequence numbers of an earlier transaction: taken for a repeat, it would be lost."""

    def __init__(self, producer_id: int, producer_epoch: int, sequence: int) -> None:
        super().__init__(
            f"producer {producer_id}, epoch {producer_epoch}: sequence number {sequence} was used in a transaction "
            "that has ended; abort the open transaction, and continue with a higher epoch",
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            sequence=sequence,
        )


class ReadOnlyStoreError(InvalidRequestError):
    """A write to a store that is open for reading only."""


class BatchConflictError(InvalidRequestError):
    """The batch of this number, or a later one, is committed with other content."""

    name: str
    batch_id: int


class TransactionAbortedError(PylogError):
    reason: str

    def __init__(self, producer_id: int, producer_epoch: int, reason: str) -> None:
        super().__init__(
            f"the transaction was aborted: {reason}; its records are not visible, write them again",
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            reason=reason,
        )


class StoreError(PylogError):
    """The directory cannot be used as it is."""


class NotAStoreError(StoreError):
    """Not a pylog directory, or of a format that this version does not know."""


class StoreLockedError(StoreError):
    """Another process holds the directory for itself."""


class StaleLogError(StoreError):
    """The partition was deleted, and perhaps recreated, since this log was opened: look the topic up again."""


class CorruptLogError(PylogError):
    """Bytes on disk are not what was written. Nothing was dropped: the damage is reported, not repaired."""

    path: str
    position: int
    reason: str

    def __init__(self, path: object, position: int, reason: str, remedy: str = "run `pylog verify`") -> None:
        super().__init__(
            f"{path}: damaged at byte {position}: {reason}; {remedy}",
            path=str(path),
            position=position,
            reason=reason,
        )


class UnsupportedFormatError(CorruptLogError):
    """Whole messages of a format that pylog does not read, or a batch of one that it does not know. Never cut."""

    def __init__(self, path: object, position: int, reason: str) -> None:
        PylogError.__init__(
            self,
            f"{path}: at byte {position}: {reason}; the file was not changed: serve this directory with the Kafka that "
            "wrote it, and copy its topics with `pylog mirror`",
            path=str(path),
            position=position,
            reason=f"{reason}; copy the topic from a Kafka with `pylog mirror`",
        )


class UnreadableBatchError(CorruptLogError):
    """A batch with a right CRC whose records cannot be decoded: a producer sent it so. Read on at `next_offset`."""

    base_offset: int
    next_offset: int

    def __init__(self, path: object, position: int, reason: str, base_offset: int, next_offset: int) -> None:
        PylogError.__init__(
            self,
            f"{path}: offsets {base_offset} to {next_offset - 1}, the batch at byte {position}, cannot be decoded: "
            f"{reason}; the CRC is right, so a producer sent these bytes, and no other copy is better: read on from "
            f"offset {next_offset}",
            path=str(path),
            position=position,
            reason=f"offsets {base_offset} to {next_offset - 1} cannot be decoded ({reason}), and the CRC is right",
            base_offset=base_offset,
            next_offset=next_offset,
        )


class StorageError(PylogError, OSError):
    """The environment failed: disk, permissions, or the like."""


class DiskFullError(StorageError):
    """No space left: a write that could not be finished was undone, and reads go on."""


class FailedStoreError(StorageError):
    """An fsync failed earlier, so the content of the disk is unknown: check the store before any other write."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return '; did you mean a, b?' with the nearest known words, else all known words, or ''."""
    names = sorted(set(known))
    if near := difflib.get_close_matches(word, names):
        return f"; did you mean {', '.join(map(repr, near))}?"
    if not names:
        return "; there are none yet"
    shown = ", ".join(map(repr, names[:10]))
    return f"; there are {shown}{', …' if len(names) > 10 else ''}"
