"""Snapshots: the files that keep the producers of a log, as of the offsets by which the files are named."""

from __future__ import annotations

import logging

from logstore.checkpoint import write_atomic
from logstore.env import Env
from logstore.log.producers.state import ProducerStates, SnapshotError

logger = logging.getLogger(__name__)


class Snapshots:
    __slots__ = ("_directory", "_env")

    def __init__(self, env: Env, directory: str) -> None:
        self._env = env
        self._directory = directory

    def path(self, offset: int) -> str:
        return f"{self._directory}/{offset:020d}.snapshot"

    def write(self, offset: int, data: bytes) -> None:
        """Not synced: it has a checksum."""
        write_atomic(self._env, self.path(offset), data, durable=False)

    def write_empty(self, offset: int) -> None:
        """Write one without producers: no batch below this offset has one."""
        self.write(offset, ProducerStates(offset).to_snapshot())

    def load(self, offset: int) -> ProducerStates | None:
        """The states in the snapshot of this offset; None if it is gone or damaged."""
        path = self.path(offset)
        try:
            return ProducerStates.from_snapshot(self._env.files.read_all(path), offset)
        except FileNotFoundError:
            return None
        except SnapshotError as error:
            logger.warning("path=%s is not used: %s", path, error)
            return None
