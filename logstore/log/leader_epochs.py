"""LeaderEpochs: which leader epoch began at which offset (`leader-epoch-checkpoint`).

Invariant: epochs and start offsets both increase strictly. The file is a cache of what the batches say: when
it is missing or garbage, it is rebuilt from the log. Not thread-safe: its log's lock guards it.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from logstore.checkpoint import CheckpointError, marking_failure, read_checkpoint, write_checkpoint
from logstore.env import Env

logger = logging.getLogger(__name__)

FILE_NAME = "leader-epoch-checkpoint"


class EpochStart(NamedTuple):
    """A leader epoch and the offset of its first record."""

    epoch: int
    start_offset: int


def end_offset(starts: Sequence[tuple[int, int]], epoch: int, log_end_offset: int) -> EpochStart | None:
    """Return the largest of these epochs <= `epoch`, with the offset where it ends; None if all are newer."""
    after = bisect.bisect_right(starts, epoch, key=lambda start: start[0])
    if after == 0:
        return None
    return EpochStart(starts[after - 1][0], starts[after][1] if after < len(starts) else log_end_offset)


class LeaderEpochs:
    """The leader epochs of one partition, kept in step with their file."""

    def __init__(self, env: Env, directory: str) -> None:
        self._env = env
        self.path = f"{directory}/{FILE_NAME}"
        self._starts: list[EpochStart]
        self.is_damaged: bool
        self.load()

    def load(self) -> None:
        """Take what the file says now. `is_damaged` if it is garbage: then rebuild it from the batches."""
        try:
            starts = [
                EpochStart(int(epoch), int(start)) for epoch, start in read_checkpoint(self._env, self.path)
            ]
            self.is_damaged = not _increases(starts)
        except FileNotFoundError:
            starts, self.is_damaged = [], False
        except (CheckpointError, ValueError) as error:
            logger.warning("path=%s damaged (%s): it is rebuilt when the log is recovered", self.path, error)
            starts, self.is_damaged = [], True
        self._starts = [] if self.is_damaged else starts

    @property
    def starts(self) -> tuple[EpochStart, ...]:
        """Every epoch, oldest first."""
        return tuple(self._starts)

    @property
    def latest(self) -> int:
        """The newest epoch; -1 if there is none."""
        return self._starts[-1].epoch if self._starts else -1

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that `epoch` begins at `start_offset`, if it is newer than all known."""
        if epoch > self.latest:
            self.replace(
                [*(s for s in self._starts if s.start_offset < start_offset), EpochStart(epoch, start_offset)]
            )

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
        """Put these epochs in the place of all, in the file too."""
        new = list(starts)
        with marking_failure(self._env, Path(self.path).parent.parent):
            write_checkpoint(self._env, self.path, new)
        self._starts = new
        self.is_damaged = False


def _increases(starts: list[EpochStart]) -> bool:
    return all(a.epoch < b.epoch and a.start_offset < b.start_offset for a, b in pairwise(starts))
