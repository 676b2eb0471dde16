"""RecoveryPoints: per partition the offset below which everything was fsynced (`recovery-point-offset-checkpoint`).

A missing or unreadable file is no harm: the logs are then checked from their start. Points only move up, but for a cut;
several processes may change the file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping
from pathlib import Path

from logstore.checkpoint import CHECKSUM, CheckpointError, marking_failure, read_checkpoint, write_checkpoint
from logstore.env import SETTLED_NS, Env, FileStat, locked
from logstore.errors import DiskFullError
from logstore.log.segments.directory import topic_id_of
from logstore.store.disk_reserve import DiskReserve

logger = logging.getLogger(__name__)

FILE_NAME = "recovery-point-offset-checkpoint"
LOCK = ".recovery-points.lock"  # beside the catalog
# An entry for the journal of transactions: so many of its lines are on disk.
JOURNAL = ("#journal", 0)

Points = dict[tuple[str, int], int]


class RecoveryPoints:
    def __init__(self, env: Env, root: Path, reserve: DiskReserve) -> None:
        self._env = env
        self._root = root
        self._reserve = reserve
        self._known: tuple[FileStat, Points] | None = None

    def read(self) -> Points:
        path = self._root / FILE_NAME
        stat = self._env.files.stat(path)
        if stat is None:
            return {}
        if self._known is not None and self._known[0] == stat:
            return self._known[1]
        try:
            entries = read_checkpoint(self._env, path)
            points = {(topic, int(partition)): int(offset) for topic, partition, offset in entries}
        except FileNotFoundError:
            return {}
        except (CheckpointError, ValueError) as error:
            logger.warning("path=%s unreadable (%s): logs are checked from their start", path, error)
            return {}
        if self._env.clock.now_ms() * 1_000_000 - stat.mtime_ns >= SETTLED_NS:
            self._known = stat, points
        return points

    def journal_lines(self) -> int:
        """How many lines of the journal of transactions are on disk for sure."""
        return self.read().get(JOURNAL, 0)

    def advance(
        self,
        points: Mapping[tuple[str, int], tuple[str, int]],
        *,
        journal_lines: int = 0,
        was_cut: Callable[[tuple[str, int]], bool] = lambda tp: False,
    ) -> None:
        """Note how far these partitions (topic id, offset), and the journal of transactions, are on disk.

        Partitions are left out that were deleted since, or cut: `was_cut` is asked under the lock. On a full disk
        nothing is stored, which only makes a recovery slower.
        """

        def advanced(known: Points) -> Points:
            journal = {JOURNAL: journal_lines} if journal_lines > known.get(JOURNAL, 0) else {}
            higher = {
                tp: offset
                for tp, (topic_id, offset) in points.items()
                if offset > known.get(tp, 0)
                and not was_cut(tp)
                and topic_id_of(self._root / f"{tp[0]}-{tp[1]}", self._env) == topic_id
            }
            return known | journal | higher

        if points or journal_lines:
            try:
                self._reserve.despite_full_disk(lambda: self._change(advanced))
            except DiskFullError as error:
                logger.warning("recovery points are not stored: %s", error)

    def lower(self, topic: str, partition: int, offset: int) -> None:
        """Move the point of this partition back to `offset`: its log is about to be cut there."""

        def lowered(known: Points) -> Points:
            tp = (topic, partition)
            return known | {tp: offset} if known.get(tp, 0) > offset else known

        self._reserve.despite_full_disk(lambda: self._change(lowered))

    def forget(self, partitions: Container[tuple[str, int]]) -> None:
        """Remove the points of these partitions: what they speak of is gone."""
        self._change(lambda known: {tp: o for tp, o in known.items() if tp not in partitions})

    def _change(self, change: Callable[[Points], Points]) -> None:
        with locked(self._env.files, self._root / "topics" / LOCK):
            known = self.read()
            merged = change(known)
            if merged != known:
                entries = [(topic, p, offset) for (topic, p), offset in sorted(merged.items())]
                with marking_failure(self._env, self._root):
                    write_checkpoint(self._env, self._root / FILE_NAME, entries, checksum=(CHECKSUM, 0))
