"""DamageNotes: the damaged replicas of a broker, in a file that outlives the process.

::

    damaged-replicas      per replica: topic, partition, topic id, the first offset that is not sound (-1: unknown),
                          whether it is being cut (1), and the reason

The clean marker does not cover a noted replica: it was not recovered, or is not sound. Blocks; safe for threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

from logstore.checkpoint import CHECKSUM, CheckpointError, marking_failure, read_checkpoint, write_checkpoint
from logstore.env import Env
from replication.model.cluster import TopicPartition

FILE_NAME = "damaged-replicas"


class DamageNote(NamedTuple):
    """The note of one replica. `is_cut`: the log may be only a part of the former one, though it is sound."""

    topic_id: str
    offset: int | None
    reason: str
    is_cut: bool = False


class DamageNotes:
    """`despite_full_disk` calls a function, with the disk reserve released if needed."""

    def __init__(self, env: Env, directory: Path, despite_full_disk: Callable[[Callable[[], None]], None]) -> None:
        self._env = env
        self._path = directory / FILE_NAME
        self._despite_full_disk = despite_full_disk
        self._mutex = threading.Lock()
        self._notes: dict[TopicPartition, DamageNote] = {}

    def load(self) -> None:
        """Read the file. Raises: CheckpointError: it is damaged, and any replica may be."""
        try:
            rows = read_checkpoint(self._env, self._path, needs_checksum=True)
        except FileNotFoundError:
            return
        try:
            self._notes = {
                TopicPartition(topic, int(number)): DamageNote(
                    topic_id, int(offset) if int(offset) >= 0 else None, unquote(reason), is_cut == "1"
                )
                for topic, number, topic_id, offset, is_cut, reason in rows
            }
        except ValueError as error:
            raise CheckpointError(f"{self._path}: {error}") from error

    def all(self) -> dict[TopicPartition, DamageNote]:
        with self._mutex:
            return dict(self._notes)

    def put(self, tp: TopicPartition, note: DamageNote) -> None:
        """Note it; durable on return. Raises: FailedStoreError, StorageError."""
        self._change(tp, note)

    def remove(self, tp: TopicPartition) -> None:
        """Delete the note of a replica that is sound again, or gone; durable on return."""
        self._change(tp, None)

    def _change(self, tp: TopicPartition, note: DamageNote | None) -> None:
        with self._mutex:
            if self._notes.get(tp) == note:
                return
            after = {other: known for other, known in self._notes.items() if other != tp}
            if note is not None:
                after[tp] = note
            rows = [
                [
                    *at,
                    note.topic_id,
                    -1 if note.offset is None else note.offset,
                    int(note.is_cut),
                    quote(note.reason),
                ]
                for at, note in sorted(after.items())
            ]
            with marking_failure(self._env, self._path.parent):
                self._despite_full_disk(lambda: write_checkpoint(self._env, self._path, rows, checksum=(CHECKSUM,)))
            self._notes = after
