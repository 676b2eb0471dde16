"""The file of a SQLite store: whether it exists and is whole, who blocks it, and its copies.

::

    coordination.db            the store; SQLite keeps -wal and -shm beside it while it is open
    coordination.db.copy       a copy that misses at most the last minute
    coordination.db.copy.1     the copy before that

A file that is removed stays for the processes that have it open, and only for them: they still agree with each
other, log it, and copy the file once more when they close it. A file that replaces it is another store: a process
that finds one has no session any more, since others may agree on something else there. Everything here blocks.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from logstore.checkpoint import make_directory
from logstore.env import Env, OsFiles, StrPath, machine
from logstore.errors import StorageError
from replication.coordination import nodes
from replication.coordination.tree import CoordinationError

logger = logging.getLogger(__name__)

COPY, FORMER_COPY = ".copy", ".copy.1"
WHAT_TO_DO = "stop all of its brokers, then run `pylog cluster recover-coordination` (docs/operations.md)"
SAY_AGAIN_MS = 60_000
LOCKED_S = 1.0
_WRITER_BYTE = 120  # locked by the writer, in the file -shm
_SHARED_BYTE = 0x40000002  # locked by every process that has the store open, in the file itself


class ReplacedError(Exception):
    """Another file is at the path of the store."""


@dataclass(frozen=True, slots=True)
class CopyPolicy:
    """Copies are made beside the store and, if it is set, in `directory`, at most every `interval_ms`."""

    directory: str
    interval_ms: int


class Facts(NamedTuple):
    """The cluster of a store, and the number of its last change."""

    cluster_id: str
    number: int


def check_can_open(path: Path, env: Env, *, create: bool, policy: CopyPolicy | None) -> None:
    """Refuse to create a store where one was lost. Raises: CoordinationError."""
    if env.files.stat(path) is not None:
        return
    copies = copies_of(path, env, policy)
    if copies:
        raise CoordinationError(f"it is gone; {copies[0]} is a copy of it: {WHAT_TO_DO}")
    if env.files.stat(f"{path}-wal") is not None:
        raise CoordinationError(f"it is gone, and {path.name}-wal is still there: {WHAT_TO_DO}")
    if not create:
        raise CoordinationError(f"it is gone: {WHAT_TO_DO}")


def make_private(files: OsFiles, path: StrPath) -> None:
    """Make an empty file for SQLite that nobody but this user reads: brokers know each other by a secret in it.

    The files that SQLite keeps beside it have the same mode.
    """
    files.create(path)
    files.restrict(path)


def copies_of(path: Path, env: Env, policy: CopyPolicy | None) -> list[Path]:
    found = [
        (stat.mtime_ns, copy)
        for directory in _directories(path, policy)
        for copy in (directory / f"{path.name}{COPY}", directory / f"{path.name}{FORMER_COPY}")
        if (stat := env.files.stat(copy)) is not None
    ]
    return [copy for _, copy in sorted(found, reverse=True)]


def _directories(path: Path, policy: CopyPolicy | None) -> list[Path]:
    return [path.parent, *([Path(policy.directory)] if policy is not None and policy.directory else [])]


def facts_of(path: Path) -> Facts | None:
    """Return the facts of a copy; None if it is none, or damaged."""
    with contextlib.suppress(sqlite3.Error, CoordinationError):
        db = sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)
        with contextlib.closing(db):
            return _facts(db)
    return None


def _facts(db: sqlite3.Connection) -> Facts | None:
    found = db.execute("SELECT data FROM node WHERE path = ?", (nodes.CLUSTER_ID,)).fetchone()
    number = db.execute("SELECT number FROM counter").fetchone()
    return None if found is None else Facts(nodes.decode_cluster_id(found[0]), number[0])


class StoreFile:
    def __init__(self, path: Path, env: Env, policy: CopyPolicy | None) -> None:
        self._path = path
        self._env = env
        self._policy = policy
        stat = env.files.stat(path)
        self._inode = stat.inode if stat is not None else None
        self._said_ms: int | None = None
        self._looked_ms = env.clock.monotonic_ms()  # for a copy
        self._copied_number = -1
        self._has_failed = False
        self.is_gone = False

    def look(self) -> None:
        """Log it if the file is gone. Raises: ReplacedError."""
        stat = self._env.files.stat(self._path)
        self.is_gone = stat is None
        if stat is not None and stat.inode != self._inode:
            raise ReplacedError
        now_ms = self._env.clock.monotonic_ms()
        if self.is_gone and (self._said_ms is None or now_ms - self._said_ms >= SAY_AGAIN_MS):
            self._said_ms = now_ms
            logger.error(
                "coordination store %s was removed while brokers have it open. They go on, but no other broker can "
                "join or restart: %s",
                self._path,
                WHAT_TO_DO,
            )

    def maybe_copy(self, db: sqlite3.Connection, number: int, *, at_once: bool = False) -> None:
        """Copy the store if it has changed and a copy is due; one of the processes does it for all."""
        if self._policy is None or number == self._copied_number:
            return
        now_ms = self._env.clock.monotonic_ms()
        if not at_once and now_ms - self._looked_ms < self._policy.interval_ms:
            return
        self._looked_ms = now_ms
        try:
            facts = _facts(db)
            if facts is None:  # no cluster uses it yet
                return
            lock = self._env.files.lock(f"{self._path}{COPY}.lock", wait=False)
            if lock is None:  # another process copies it
                return
            try:
                for directory in _directories(self._path, self._policy):
                    self._copy_to(directory, db, facts)
            finally:
                lock.release()
        except (sqlite3.Error, OSError) as error:
            if not self._has_failed:
                logger.error("coordination store %s is not copied: %s", self._path, explain(error))
            self._has_failed = True
        else:
            self._copied_number, self._has_failed = facts.number, False

    def _copy_to(self, directory: Path, db: sqlite3.Connection, facts: Facts) -> None:
        files = self._env.files
        copy, former = (directory / f"{self._path.name}{suffix}" for suffix in (COPY, FORMER_COPY))
        known = facts_of(copy)
        if known is not None and known.cluster_id != facts.cluster_id:
            raise StorageError(f"{copy} is of cluster {known.cluster_id}; give each cluster a directory of its own")
        if known == facts:
            return
        make_directory(self._env, directory)
        temporary = directory / f".{self._path.name}.copying"
        files.unlink(temporary)
        make_private(files, temporary)
        db.execute("VACUUM INTO ?", (str(temporary),))
        files.fsync(temporary)
        if known is not None:
            files.rename(copy, former)
        files.rename(temporary, copy)
        files.fsync(directory)

    def holder(self) -> str:
        """Return who holds the lock of writers, for a log line; empty if unknown."""
        pid = _locker(f"{self._path}-shm", _WRITER_BYTE, self._env)
        return f"{_describe(pid, self._env)} has its lock" if pid else ""


def users_of(path: Path, env: Env) -> str:
    """Return a process that has the store open; empty if there is none, or it is unknown."""
    pid = _locker(path, _SHARED_BYTE, env)
    return _describe(pid, env) if pid else ""


def _locker(path: StrPath, byte: int, env: Env) -> int:
    """Return a process that has this byte of the file locked; 0 if there is none, or it is unknown."""
    with contextlib.suppress(OSError):
        if (stat := env.files.stat(path)) is not None:
            return machine.lock_holder(env.files, stat.inode, byte)
    return 0


def _describe(pid: int, env: Env) -> str:
    if pid == os.getpid():
        return f"this process ({pid})"
    command = machine.command_line(env.files, pid)[:200]
    is_stopped = machine.is_stopped(env.files, pid)
    stopped = f", stopped: kill -CONT {pid} resumes it, kill -KILL {pid} ends it;" if is_stopped else ""
    return f"process {pid}" + (f" ({command})" if command else "") + stopped


def explain(error: Exception) -> str:
    """Return the error as text, with the remedy if the store is damaged."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return f"it is damaged ({error}): {WHAT_TO_DO}"
    return str(error)


def is_busy(error: Exception) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def is_locked(path: StrPath) -> bool:
    """Return whether another process still holds the lock of writers after LOCKED_S."""
    with contextlib.closing(sqlite3.connect(path, timeout=LOCKED_S, isolation_level=None)) as db:
        try:
            db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            return True
        db.execute("ROLLBACK")
        return False
