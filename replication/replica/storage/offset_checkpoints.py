"""OffsetCheckpoints: high watermarks and recovery points of a broker's logs, stored so that none is beyond a cut.

Everything here blocks; any thread may call it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from logstore.checkpoint import CheckpointError, marking_failure, read_checkpoint, write_checkpoint
from logstore.env import Env
from logstore.store.log_dir import LogDir
from replication.model.cluster import TopicPartition

logger = logging.getLogger(__name__)

HIGH_WATERMARKS = "replication-offset-checkpoint"


class OffsetCheckpoints:
    def __init__(self, env: Env, log_dir: LogDir) -> None:
        self.high_watermarks: dict[TopicPartition, int] = {}
        self._env = env
        self._log_dir = log_dir
        self._cuts: dict[tuple[str, int], int] = {}  # see `cuts`
        self._mutex = threading.Lock()

    def load(self) -> None:
        """Read the high watermarks that a former life has stored."""
        try:
            rows = read_checkpoint(self._env, self._log_dir.path / HIGH_WATERMARKS)
            self.high_watermarks = {TopicPartition(topic, int(p)): int(offset) for topic, p, offset in rows}
        except FileNotFoundError:
            self.high_watermarks = {}
        except (CheckpointError, ValueError) as error:
            logger.warning("path=%s unreadable (%s): high watermarks start at 0", HIGH_WATERMARKS, error)

    def lower_to(self, ends: Mapping[TopicPartition, int]) -> None:
        """Lower the high watermarks of these logs to their ends, and forget those of others."""
        noted = self.high_watermarks
        kept = {tp: min(noted[tp], end) for tp, end in ends.items() if tp in noted}
        if kept != noted:
            with self._mutex:
                self.high_watermarks = kept
                self._write()

    def cuts(self) -> Mapping[tuple[str, int], int]:
        """Return a number per log that grows when a cut begins or ends, and with its deletion; it is odd during a cut.

        Take it before looking at logs, and store nothing for those whose number is odd or has changed since.
        """
        return dict(self._cuts)

    def _was_cut(self, tp: tuple[str, int], before: Mapping[tuple[str, int], int]) -> bool:
        number = before.get(tp, 0)
        return number % 2 == 1 or self._cuts.get(tp, 0) != number

    def note(self, offsets: Mapping[TopicPartition, int], cuts: Mapping[tuple[str, int], int]) -> None:
        """Store these high watermarks; `cuts` as it was before they were read."""
        with self._mutex:
            self.high_watermarks.update((tp, offset) for tp, offset in offsets.items() if not self._was_cut(tp, cuts))
            self._write()

    @contextmanager
    def cutting(self, tp: TopicPartition, offset: int) -> Iterator[None]:
        """Cut the log at `offset` inside: no checkpoint beyond it is left before that."""
        self._count_cut(tp)
        try:
            self._log_dir.recovery_points.lower(*tp, offset)
            with self._mutex:
                if self.high_watermarks.get(tp, 0) > offset:
                    self.high_watermarks[tp] = offset
                    self._write()
            yield
        finally:
            self._count_cut(tp)

    def _count_cut(self, tp: TopicPartition) -> None:
        with self._mutex:
            self._cuts[tp] = self._cuts.get(tp, 0) + 1

    def forget(self, tps: Collection[TopicPartition]) -> None:
        with self._mutex:
            self._cuts.update({tp: self._cuts.get(tp, 0) + 2 for tp in tps})
            if [self.high_watermarks.pop(tp) for tp in tps if tp in self.high_watermarks]:
                self._write()

    def _write(self) -> None:
        rows = [(tp.topic, tp.partition, offset) for tp, offset in sorted(self.high_watermarks.items())]
        with marking_failure(self._env, self._log_dir.path):
            self._log_dir.reserve.despite_full_disk(
                lambda: write_checkpoint(self._env, self._log_dir.path / HIGH_WATERMARKS, rows)
            )

    @contextmanager
    def noting(self) -> Iterator[dict[tuple[str, int], tuple[str, int]]]:
        """Store the recovery points that are put in: partition -> (topic id, offset); except for logs cut since."""
        cuts = self.cuts()
        points: dict[tuple[str, int], tuple[str, int]] = {}
        try:
            yield points
        finally:
            self._log_dir.recovery_points.advance(points, was_cut=lambda tp: self._was_cut(tp, cuts))
