"""Transactions of a SQLite store: all of it or nothing, retried while others hold the lock."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TypeVar

from logstore.env import Clock
from replication.coordination.sqlite_file import is_busy
from replication.coordination.sqlite_table import NodeTable

BUSY_PAUSE_MS = 1  # between two attempts to get the lock: SQLite's own pauses are longer, and unfair

_T = TypeVar("_T")


class Transactions:
    """The transactions of one connection, each retried for `wait_ms` while others hold the lock."""

    def __init__(self, db: sqlite3.Connection, clock: Clock, wait_ms: int) -> None:
        self.table = NodeTable(db)
        self._db = db
        self._clock = clock
        self._wait_ms = wait_ms

    def do(self, work: Callable[[NodeTable], _T], *, writes: bool = True) -> _T:
        """Return what `work` returns, once all that it did is committed."""
        give_up_ms = self._clock.monotonic_ms() + self._wait_ms
        while True:
            try:
                self._db.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
                with self._db:  # commits, or rolls back
                    return work(self.table)
            except sqlite3.OperationalError as error:
                if not is_busy(error) or self._clock.monotonic_ms() >= give_up_ms:
                    raise
            self._clock.sleep_ms(BUSY_PAUSE_MS)
