"""LeaderEpochs: which leader epoch began at which offset (`leader-epoch-checkpoint`).

Invariant: epochs and start offsets both increase strictly. The batches are the truth: a missing or damaged file is
rebuilt from them. Not thread-safe: the lock of the log guards it.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from logstore.checkpoint import CheckpointError, marking_failure, read_checkpoint, write_checkpoint
from logstore.env import Env
from logstore.log.segments.directory import PartitionDirectory
from logstore.records.batch import NO_LEADER_EPOCH, BatchHeader

logger = logging.getLogger(__name__)

FILE_NAME = "leader-epoch-checkpoint"


class EpochStart(NamedTuple):
    epoch: int
    start_offset: int


def end_offset(starts: Sequence[tuple[int, int]], epoch: int, log_end_offset: int) -> EpochStart | None:
    """Return the largest of these epochs <= `epoch`, with the offset where it ends; None if all are newer."""
    after = bisect.bisect_right(starts, epoch, key=lambda start: start[0])
    if after == 0:
        return None
    return EpochStart(starts[after - 1][0], starts[after][1] if after < len(starts) else log_end_offset)


class LeaderEpochs:
    def __init__(self, env: Env, directory: str) -> None:
        self._env = env
        self._directory = directory
        self._known: list[EpochStart] | None = None  # the file is read at first use
        self._is_damaged = False

    @property
    def path(self) -> str:
        return f"{self._directory}/{FILE_NAME}"

    @property
    def _starts(self) -> list[EpochStart]:
        return self.load() if self._known is None else self._known

    def load(self) -> list[EpochStart]:
        """Read the file again. If it is garbage it `is_damaged`: then rebuild it from the batches."""
        try:
            starts = [EpochStart(int(epoch), int(start)) for epoch, start in read_checkpoint(self._env, self.path)]
            self._is_damaged = not _increases(starts)
        except FileNotFoundError:
            starts, self._is_damaged = [], False
        except (CheckpointError, ValueError) as error:
            logger.warning("path=%s damaged (%s): it is rebuilt when the log is recovered", self.path, error)
            starts, self._is_damaged = [], True
        self._known = [] if self._is_damaged else starts
        return self._known

    def adopt(self, starts: Iterable[EpochStart]) -> None:
        """Take what the file says as known."""
        self._known, self._is_damaged = list(starts), False

    @property
    def is_damaged(self) -> bool:
        return not self._starts and self._is_damaged

    @property
    def starts(self) -> tuple[EpochStart, ...]:
        return tuple(self._starts)

    @property
    def latest(self) -> int:
        """The newest epoch; -1 if there is none."""
        known = self._known
        if known is None:
            known = self.load()
        return known[-1].epoch if known else -1

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that `epoch` begins at `start_offset`, if it is newer than all others."""
        if epoch > self.latest:
            self.replace([*(s for s in self._starts if s.start_offset < start_offset), EpochStart(epoch, start_offset)])

    def end_offset(self, epoch: int, log_end_offset: int) -> EpochStart | None:
        """Return the largest known epoch <= `epoch`, with the offset where it ends; None if all are newer.

        Source: Kafka's OffsetsForLeaderEpoch (KIP-101, KIP-279).
        """
        return end_offset(self._starts, epoch, log_end_offset)

    def trim(self, log_end_offset: int) -> None:
        """Forget the epochs that begin at or after the end of the log."""
        kept = [s for s in self._starts if s.start_offset < log_end_offset]
        if len(kept) < len(self._starts):
            self.replace(kept)

    def replace(self, starts: Iterable[EpochStart]) -> None:
        new = list(starts)
        self._known = None  # a write that fails may have changed the file
        with marking_failure(self._env, Path(self.path).parent.parent):
            write_checkpoint(self._env, self.path, new)
        self._known = new
        self._is_damaged = False


def _increases(starts: list[EpochStart]) -> bool:
    return all(a.epoch < b.epoch and a.start_offset < b.start_offset for a, b in pairwise(starts))


def epoch_starts(files: PartitionDirectory, bases: Iterable[int]) -> list[EpochStart]:
    """The leader epochs by the headers of these segments: about 2 µs per batch."""
    starts = list[EpochStart]()
    for base in bases:
        segment = files.segment(base)
        for _, batch in segment.headers(0, segment.size_bytes()):
            see_epoch(starts, batch)
    return starts


def see_epoch(starts: list[EpochStart], batch: BatchHeader) -> None:
    if batch.leader_epoch > (starts[-1].epoch if starts else -1):
        starts.append(EpochStart(batch.leader_epoch, batch.base_offset))


class EpochCheck:
    """Compares every batch with `leader-epoch-checkpoint`, and keeps the first contradiction.

    Compaction and retention remove batches and no epochs: an epoch may begin where nothing is left.
    """

    def __init__(self, files: PartitionDirectory) -> None:
        epochs = LeaderEpochs(files.env, files.path)
        self.path = epochs.path
        self._coming = list(reversed(epochs.starts))
        self._known = self._newest = NO_LEADER_EPOCH
        self._reason = "is no list of epochs that begin one after the other" if epochs.is_damaged else None

    def apply(self, batch: BatchHeader) -> None:
        if self._reason:
            return
        while self._coming and self._coming[-1].start_offset <= batch.base_offset:
            self._known = self._coming.pop().epoch
        self._newest = max(self._newest, batch.leader_epoch)
        if self._known != self._newest:
            self._reason = f"says epoch {self._known} at offset {batch.base_offset}, the batch there {self._newest}"
        elif self._coming and self._coming[-1].start_offset < batch.next_offset:
            self._reason = f"says that an epoch begins within the batch at offset {batch.base_offset}"

    def wrong(self, log_end: Callable[[], int]) -> str | None:
        """The first contradiction; an epoch may begin at the end of the log, before its first batch."""
        if self._reason is None and self._coming and self._coming[0].start_offset > log_end():
            return f"says that epoch {self._coming[0].epoch} begins behind the end of the log"
        return self._reason
