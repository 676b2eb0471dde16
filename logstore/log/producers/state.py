"""Producers: what a log knows of those who write to it, and which batches it takes from them. Decides, touches nothing.

A producer stamps its batches with its id, an epoch and running sequence numbers. The rules are Kafka's (KIP-98, 360),
but for two:

- A batch follows the last one of its producer: sequence numbers without a gap, from 2^31 - 1 on to 0. A new epoch
  begins at 0, and then older epochs are refused for good.
- An unknown producer begins at 0, unless the batch is of a transaction. Here pylog is stricter than Kafka since 2.5,
  which lets it begin anywhere: a client whose first batch is on its way back from a former leader may send its second
  one to the new leader before, and takes the success of the second for that of the first, which is lost.
- A batch that is one of the last five of its producer and epoch is a duplicate: it is there, and is not written again.
- A batch of a transaction repeats none but one of the same transaction: a client that uses the sequence numbers of an
  aborted one again has other records in it. Here pylog is stricter than Kafka, which takes it for the aborted batch.
- A transactional batch without a sequence number is a coordinator's: it is taken, and never a duplicate.
- The first transactional batch opens a transaction; a marker (a control batch: COMMIT or ABORT) ends it. While it is
  open the producer writes nothing else here, and a new epoch has to wait until a marker ended it.
- The last stable offset is the first offset of the oldest open transaction: below it everything is decided.
- A producer without an open transaction that wrote nothing for a day (`producer.id.expiration.ms`) is forgotten.

`ProducerStates` follows from the batches below `end` and from nothing else, but for the times. A snapshot of it is laid
out as Kafka's, all big-endian::

    int16 version = 1, uint32 CRC-32C of everything behind it, int32 number of entries; each entry:
    int64 producer id, int16 epoch, int32 last sequence, int64 last offset, int32 offset delta, int64 time of the
    append, ms, int32 coordinator epoch, int64 first offset of the open transaction (-1: none)

A producer has an entry for each of its batches that are kept, the newest last: Kafka, which keeps one, takes that.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, Self

from crc32c import crc32c

from logstore import errors
from logstore.log.segments.index import AbortedTransaction
from logstore.records.batch import BatchHeader, ProducerStamp, sequence_after
from logstore.records.marker import ControlMarker

BATCHES_KEPT = 5
SEQUENCES = 2**31  # then they begin at 0 again
NO_EPOCH = NO_SEQUENCE = NO_OFFSET = -1

_SNAPSHOT_VERSION = 1
_SNAPSHOT = struct.Struct(">hIi")
_CRC_FROM = 6
_ENTRY = struct.Struct(">qhiqiqiq")


class Producing(Protocol):
    """An appending producer: stamps its rows, and refuses an append when it may not write any more."""

    def stamp(self, topic: str, partition: int, rows: int) -> ProducerStamp: ...

    def guard(self) -> None:
        """Raise to refuse an append; called under the partition's lock, before anything is written."""


class SnapshotError(ValueError):
    """The bytes are no snapshot; use an older one, or the log."""


class KeptBatch(NamedTuple):
    last_sequence: int
    last_offset: int
    offset_delta: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class OpenTransaction(NamedTuple):
    producer_id: int
    producer_epoch: int
    first_offset: int


class ProducerState(NamedTuple):
    """One producer in one log; `batches` are the last ones of its epoch, oldest first."""

    producer_id: int
    epoch: int
    batches: tuple[KeptBatch, ...] = ()
    last_append_ms: int = -1
    coordinator_epoch: int = -1
    open_from: int = NO_OFFSET  # first offset of the open transaction

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record; -1 if this epoch wrote none."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        """The offset of the last record; -1 if this epoch wrote none."""
        return self.batches[-1].last_offset if self.batches else NO_OFFSET

    @property
    def is_open(self) -> bool:
        """True if it has a transaction without a marker here."""
        return self.open_from != NO_OFFSET

    def kept(self, batch: BatchHeader) -> KeptBatch | None:
        """The kept batch that `batch` is a duplicate of."""
        if batch.producer_epoch != self.epoch or batch.base_sequence == NO_SEQUENCE:
            return None
        last_sequence, offset_delta = batch.last_sequence, batch.last_offset_delta
        for known in self.batches:
            if known.last_sequence == last_sequence and known.offset_delta == offset_delta:
                return known
        return None

    def with_batch(self, batch: BatchHeader, now_ms: int) -> ProducerState:
        """The state behind this data batch. It is in the log, so no rule is checked."""
        kept = KeptBatch(batch.last_sequence, batch.last_offset, batch.last_offset_delta)
        batches = self.batches if batch.producer_epoch == self.epoch else ()
        if batch.base_sequence != NO_SEQUENCE:
            batches = (*batches, kept)[-BATCHES_KEPT:]
        opens = batch.is_transactional and not self.is_open
        return ProducerState(
            self.producer_id,
            batch.producer_epoch,
            batches,
            max(self.last_append_ms, now_ms),
            self.coordinator_epoch,
            batch.base_offset if opens else self.open_from,
        )

    def with_marker(self, batch: BatchHeader, coordinator_epoch: int, now_ms: int) -> ProducerState:
        return ProducerState(
            self.producer_id,
            batch.producer_epoch,
            self.batches if batch.producer_epoch == self.epoch else (),
            max(self.last_append_ms, now_ms),
            coordinator_epoch,
        )


class Admission(NamedTuple):
    """How many of the first batches of a request are there already, and at which offsets."""

    duplicates: int
    first_offset: int
    next_offset: int


NOTHING_KNOWN = Admission(0, NO_OFFSET, NO_OFFSET)

# Are these batches in the log, one behind the other, the first at this offset?
IsStored = Callable[[int, Sequence[BatchHeader]], bool]


class ProducerStates:
    """Every producer of one log, by its batches below `end`. Not thread-safe."""

    def __init__(self, end: int) -> None:
        self.end = end
        self._states: dict[int, ProducerState] = {}
        self._open: dict[int, int] = {}  # producer id -> first offset

    def __len__(self) -> int:
        return len(self._states)

    def copy(self) -> ProducerStates:
        copied = ProducerStates(self.end)
        copied._states, copied._open = self._states.copy(), self._open.copy()
        return copied

    def states(self) -> tuple[ProducerState, ...]:
        return tuple(state for _, state in sorted(self._states.items()))

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest open transaction, or `end`."""
        return min(self._open.values(), default=self.end)

    def open_transactions(self) -> tuple[OpenTransaction, ...]:
        """Every transaction without a marker, the oldest first."""
        found = (self._states[producer_id] for producer_id in self._open)
        opened = [OpenTransaction(s.producer_id, s.epoch, s.open_from) for s in found]
        return tuple(sorted(opened, key=lambda transaction: transaction.first_offset))

    def apply(self, batch: BatchHeader, marker: ControlMarker | None, now_ms: int) -> AbortedTransaction | None:
        """Apply the next batch of the log, with the `marker` in a control batch (None: it is empty).

        Returns the transaction that it aborts, if any.
        """
        self.end = batch.next_offset
        if batch.producer_id < 0:
            return None
        state = self._states.get(batch.producer_id) or ProducerState(batch.producer_id, NO_EPOCH)
        if not batch.is_control:
            state = state.with_batch(batch, now_ms)
            if state.is_open:
                self._open.setdefault(batch.producer_id, state.open_from)
            self._states[batch.producer_id] = state
            return None
        if marker is None or marker.kind not in ("COMMIT", "ABORT"):
            return None
        self._states[batch.producer_id] = state.with_marker(batch, marker.coordinator_epoch, now_ms)
        opened = self._open.pop(batch.producer_id, None)
        if opened is None or marker.kind == "COMMIT":
            return None
        return AbortedTransaction(batch.producer_id, opened, batch.last_offset, self.last_stable_offset)

    def forget_expired(self, before_ms: int) -> None:
        """Forget producers without an open transaction that have written nothing since this time."""
        for state in self.states():
            if not state.is_open and state.last_append_ms < before_ms:
                del self._states[state.producer_id]

    def check(self, batches: Sequence[BatchHeader], is_stored: IsStored, *, expired_ms: int) -> Admission:
        """Return which of a request's batches are duplicates: the first ones; the others may be appended.

        Producers that wrote last before `expired_ms` are unknown. A request of more batches than are kept asks
        `is_stored` for what came before those.

        Raises: OutOfOrderSequenceError, UnknownProducerError, ProducerFencedError, TransactionStateError,
            TransactionRepeatError.
        """
        if len(batches) == 1:  # as most have: none is before it
            (batch,) = batches
            if kept := self._kept(batch, expired_ms):
                return Admission(1, kept.first_offset, kept.last_offset + 1)
            if batch.producer_id >= 0:
                _check(self._live(batch.producer_id, expired_ms), batch)
            return NOTHING_KNOWN
        admission = self._duplicates(batches, is_stored, expired_ms)
        changed: dict[int, ProducerState] = {}
        for number in range(admission.duplicates, len(batches)):
            batch = batches[number]
            if batch.producer_id >= 0:
                state = changed.get(batch.producer_id) or self._live(batch.producer_id, expired_ms)
                _check(state, batch)
                if number + 1 < len(batches):
                    changed[batch.producer_id] = state.with_batch(batch, 0)
        return admission

    def may_end(self, producer_id: int, producer_epoch: int, coordinator_epoch: int, *, is_above: bool = False) -> bool:
        """True if there is an open transaction that a marker of this epoch ends.

        `is_above`: the marker has a higher epoch than the batches that it ends. One of the same epoch is late: it ends
        the transaction before.

        Raises: ProducerFencedError: the producer has a newer epoch; CoordinatorFencedError: the coordinator has one.
        """
        state = self._states.get(producer_id)
        if state is None:
            return False
        if producer_epoch < state.epoch:
            raise errors.ProducerFencedError(producer_id, producer_epoch, state.epoch, "a marker")
        if not state.is_open:
            return False
        if coordinator_epoch < state.coordinator_epoch:
            raise errors.CoordinatorFencedError(
                producer_id, coordinator_epoch, state.coordinator_epoch, "a coordinator's marker"
            )
        if is_above and producer_epoch == state.epoch:
            raise errors.ProducerFencedError(producer_id, producer_epoch, state.epoch + 1, "a marker")
        return True

    def _live(self, producer_id: int, expired_ms: int) -> ProducerState:
        state = self._states.get(producer_id)
        if state is None or (not state.is_open and state.last_append_ms < expired_ms):
            return ProducerState(producer_id, NO_EPOCH)
        return state

    def _duplicates(self, batches: Sequence[BatchHeader], is_stored: IsStored, expired_ms: int) -> Admission:
        """How many of the first batches are in the log, and at which offsets."""
        found = [self._kept(batch, expired_ms) for batch in batches]
        first = next((number for number, kept in enumerate(found) if kept), None)
        if first is None:
            return NOTHING_KNOWN
        count = first
        while count < len(found) and found[count]:
            count += 1
        oldest, newest = found[first], found[count - 1]
        assert oldest is not None
        assert newest is not None
        offset = oldest.first_offset - sum(batch.last_offset_delta + 1 for batch in batches[:first])
        if first and not is_stored(offset, batches[:first]):
            return NOTHING_KNOWN  # then they do not follow, and are refused
        return Admission(count, offset, newest.last_offset + 1)

    def _kept(self, batch: BatchHeader, expired_ms: int) -> KeptBatch | None:
        if batch.producer_id < 0:
            return None
        state = self._live(batch.producer_id, expired_ms)
        kept = state.kept(batch)
        if kept and batch.is_transactional and not (state.is_open and kept.first_offset >= state.open_from):
            raise errors.TransactionRepeatError(batch.producer_id, batch.producer_epoch, batch.base_sequence)
        return kept

    def to_snapshot(self) -> bytes:
        entries = [entry for state in self.states() for entry in _entries(state)]
        body = b"".join(entries)
        header = _SNAPSHOT.pack(_SNAPSHOT_VERSION, 0, len(entries))
        crc = crc32c(header[_CRC_FROM:] + body)
        return _SNAPSHOT.pack(_SNAPSHOT_VERSION, crc, len(entries)) + body

    @classmethod
    def from_snapshot(cls, data: bytes, end: int) -> Self:
        """The states that were written when the log ended at `end`.

        Raises: SnapshotError.
        """
        loaded = cls(end)
        for state in entries_of(data):
            known = loaded._states.get(state.producer_id)
            if known and known.epoch == state.epoch:
                state = state._replace(batches=(*known.batches, *state.batches)[-BATCHES_KEPT:])  # noqa: PLW2901
            loaded._states[state.producer_id] = state
        for state in loaded._states.values():
            if state.is_open:
                loaded._open[state.producer_id] = state.open_from
        return loaded


def _check(state: ProducerState, batch: BatchHeader) -> None:
    """Return if this batch may be the next of its producer."""
    producer_id, epoch = batch.producer_id, batch.producer_epoch
    if epoch < state.epoch:
        raise errors.ProducerFencedError(producer_id, epoch, state.epoch, "a batch")
    if state.is_open and epoch > state.epoch:
        raise errors.TransactionStateError(
            f"producer {producer_id} has an open transaction of epoch {state.epoch} from offset {state.open_from} on: "
            f"end it with a marker before epoch {epoch} writes here",
            producer_id=producer_id,
        )
    if state.is_open and not batch.is_transactional:
        raise errors.TransactionStateError(
            f"producer {producer_id} has an open transaction from offset {state.open_from} on: until it has ended, "
            "its batches must be transactional",
            producer_id=producer_id,
        )
    if batch.base_sequence == NO_SEQUENCE:
        return
    if state.epoch == NO_EPOCH:
        if batch.base_sequence and not batch.is_transactional:
            raise errors.UnknownProducerError(producer_id, epoch, batch.base_sequence)
        return
    expected = sequence_after(state.last_sequence) if epoch == state.epoch else 0
    if batch.base_sequence == expected:
        return
    is_behind = (expected - batch.base_sequence) % SEQUENCES <= SEQUENCES // 2
    if batch.is_transactional and not state.is_open and epoch == state.epoch and is_behind:
        raise errors.TransactionRepeatError(producer_id, epoch, batch.base_sequence)
    raise errors.OutOfOrderSequenceError(producer_id, epoch, batch.base_sequence, expected)


def _entries(state: ProducerState) -> Iterator[bytes]:
    for kept in state.batches or (KeptBatch(NO_SEQUENCE, NO_OFFSET, 0),):
        yield _ENTRY.pack(
            state.producer_id,
            state.epoch,
            kept.last_sequence,
            kept.last_offset,
            kept.offset_delta,
            state.last_append_ms,
            state.coordinator_epoch,
            state.open_from,
        )


def entries_of(data: bytes) -> Iterator[ProducerState]:
    """Yield the entries of a snapshot, a state with one batch each.

    Raises: SnapshotError.
    """
    if len(data) < _SNAPSHOT.size:
        raise SnapshotError(f"{len(data)} bytes")
    version, crc, count = _SNAPSHOT.unpack_from(data)
    if version != _SNAPSHOT_VERSION:
        raise SnapshotError(f"version {version} where 1 is known")
    if crc32c(data[_CRC_FROM:]) != crc:
        raise SnapshotError("the CRC-32C is wrong")
    if len(data) != _SNAPSHOT.size + count * _ENTRY.size:
        raise SnapshotError(f"{count} entries in {len(data)} bytes")
    for entry in _ENTRY.iter_unpack(memoryview(data)[_SNAPSHOT.size :]):
        producer_id, epoch, sequence, offset, delta, append_ms, coordinator_epoch, open_from = entry
        kept = (KeptBatch(sequence, offset, delta),) if offset >= 0 else ()
        yield ProducerState(producer_id, epoch, kept, append_ms, coordinator_epoch, open_from)
