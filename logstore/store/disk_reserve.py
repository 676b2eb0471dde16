"""DiskReserve: a file that takes up room, and is removed when the disk is full, so that a store can be put in order.

A full disk must not keep anyone from deleting, from noting what is safe, from recovering or from ending cleanly: all of
these need a little room first. `despite_full_disk` does such an act; if there is no room it removes the reserve and
does it again. Until the reserve is back, appends are refused: they would eat the room at once. The next append tries to
put it back, so a store is in service again as soon as there is space, without anyone's doing.

`RESERVE_BYTES` holds the recovery points of 100,000 partitions, or the indexes of a segment of 800 MB.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from logstore.env import Env
from logstore.errors import DiskFullError, StorageError

logger = logging.getLogger(__name__)

RESERVE = ".reserve"
RESERVE_BYTES = 4 * 1024 * 1024

Done = TypeVar("Done")


class DiskReserve:
    """The reserve of one store. Any process may remove it, and any may restore it."""

    def __init__(self, env: Env, root: Path) -> None:
        self._env = env
        self._path = f"{root}/{RESERVE}"
        self.was_there = False  # when this process last looked, or gave it back

    def keep(self) -> None:
        """Make sure that the reserve is there. One stat.

        Raises: DiskFullError: there is no room for it.
        """
        files = self._env.files
        found = files.stat(self._path)
        self.was_there = found is not None and found.size >= RESERVE_BYTES
        if self.was_there:
            return
        try:
            files.create(self._path)
            files.allocate(self._path, RESERVE_BYTES)
        except DiskFullError as error:
            with suppress(StorageError):
                files.unlink(self._path)
            raise DiskFullError(
                f"{self._path}: no room for the reserve of {RESERVE_BYTES:,} bytes; nothing is appended until there "
                "is: free some space",
                path=self._path,
                reason="the disk is full",
            ) from error

    def despite_full_disk(self, act: Callable[[], Done]) -> Done:
        """Do `act`; on a full disk, give the reserve back and do it again.

        Raises: DiskFullError: there is no room even so.
        """
        try:
            return act()
        except DiskFullError as error:
            if self._env.files.stat(self._path) is None:
                raise
            logger.warning("%s: the reserve is given back: no appends until there is space again", error)
            self.was_there = False
            self._env.files.unlink(self._path)
            return act()
