"""A coordination tree in a SQLite file, for brokers on one host, without anything to install or run.

- Every call is one short SQLite transaction; a batch is split into transactions of WRITES_PER_TRANSACTION. Whatever a
  call wrote or saw is on disk (fsync) when it returns. The fsync comes after the lock was released, since it may take
  seconds on a busy disk: only its caller waits for it (decision 49).
- A process that is stopped in the middle of a transaction blocks all writers until it continues or dies: they become
  SUSPENDED after a third of their session timeout, and CONNECTED again afterwards. No session expires by that (see
  `leases`). A process that is killed leaves nothing half done.
- A session is a row that its owner counts up every BEAT_MS or eighth of its timeout, and that any other session
  deletes after a timeout of silence. While no other session observes, none expires.
- A change by another process is seen within POLL_MS, or with the next call. A node that comes and goes between two
  looks is not seen.

All of SQLite happens in one thread per Tree, and its fsyncs in another. Results and watches are posted to the event
loop in the order in which that thread met them, so a watch is called before newer data is seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from logstore.checkpoint import make_directory
from logstore.env import Env, OsFiles, network_file_system
from logstore.errors import StorageError
from replication.coordination.leases import Leases
from replication.coordination.sqlite_file import (
    CopyPolicy,
    ReplacedError,
    StoreFile,
    check_can_open,
    explain,
    is_busy,
    make_private,
)
from replication.coordination.sqlite_sync import Answer, Syncer
from replication.coordination.sqlite_table import NodeTable, NodeWatches, connect
from replication.coordination.tree import (
    SESSION_TIMEOUT_MS,
    BatchResult,
    ConnectionLossError,
    CoordinationError,
    Done,
    Node,
    OnSession,
    RefusedError,
    SessionEvent,
    SessionExpiredError,
    Step,
    Tree,
    Watch,
    check_path,
    check_steps,
)
from replication.coordination.turns import Turns

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

POLL_MS = 25
BEAT_MS = 500
BUSY_PAUSE_MS = 1  # between two attempts to get the lock: SQLite's own pauses are longer, and unfair
WRITES_PER_TRANSACTION = 64  # they hold the lock for about 2 ms


class _Gone(Exception):  # noqa: N818  (an event, not an error)
    ...


@dataclass(slots=True)
class _Job:
    work: Callable[[NodeTable], Any]
    writes: bool
    future: asyncio.Future[Any]


class SqliteTree(Tree):
    def __init__(
        self,
        path: Path,
        session_timeout_ms: int,
        on_session: OnSession,
        env: Env,
        *,
        create: bool,
        copies: CopyPolicy | None,
    ) -> None:
        self._path = path
        self._may_create = create
        self._copies = copies
        self._log = path.with_name(f"{path.name}-wal")
        self._timeout_ms = session_timeout_ms
        self._on_session = on_session
        self._env = env
        self._loop = asyncio.get_running_loop()
        self._turns = Turns(self._loop)
        self._jobs: queue.SimpleQueue[_Job | str | None] = queue.SimpleQueue()  # a text: why a sync failed
        self._thread = threading.Thread(target=self._run, name=f"coordination {path.name}", daemon=True)
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._closed = False
        self.session = env.random.getrandbits(62) + 1
        self.token = b"%d" % self.session
        self.lease_end_ms = 0
        # The rest belongs to the thread.
        self._db: sqlite3.Connection
        self._table: NodeTable
        self._state = SessionEvent.CONNECTED
        self._suspended_for = ""  # the last reason that the log tells
        self._leases = Leases()
        self._beat_every_ms = min(BEAT_MS, session_timeout_ms // 8)
        self._last_beat_ms = 0
        self._watches = NodeWatches()
        self._syncer: Syncer
        self._file: StoreFile

    @classmethod
    async def open(
        cls,
        path: str | Path,
        *,
        on_session: OnSession,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        env: Env | None = None,
        create: bool = True,
        copies: CopyPolicy | None = None,
    ) -> Self:
        """Open a session with the store at `path`; `create` allows to create it if it never existed.

        With `copies`, this session copies the store now and then: see `sqlite_file`.

        Raises: CoordinationError: it cannot be opened, is gone, or lies on a network file system.
        """
        tree = cls(Path(path), session_timeout_ms, on_session, env or Env(), create=create, copies=copies)
        tree._thread.start()
        await tree._started
        return tree

    # --------------------------------------------------- calls, in the loop

    def excuse(self, stands_for_a_reason: Callable[[], bool]) -> None:
        self._turns.excuse = stands_for_a_reason

    async def multi(self, steps: Sequence[Step]) -> tuple[Done, ...]:
        checked = check_steps(steps)
        return await self._do(lambda table: table.apply(checked, self.session), writes=True)

    async def write_batch(self, multis: Sequence[Sequence[Step]]) -> tuple[BatchResult, ...]:
        checked = [check_steps(steps) for steps in multis]
        parts = [
            checked[begin : begin + WRITES_PER_TRANSACTION] for begin in range(0, len(checked), WRITES_PER_TRANSACTION)
        ]
        # No part waits for the fsync of the one before: one fsync may serve many.
        found = await asyncio.gather(
            *(self._do(partial(NodeTable.apply_each, multis=part, session=self.session), writes=True) for part in parts)
        )
        return tuple(result for results in found for result in results)

    async def get(self, path: str, watch: Watch | None = None) -> Node | None:
        check_path(path)

        def read(table: NodeTable) -> Node | None:
            self._watches.add(table, path, watch, children=False)
            return table.node(path)

        return await self._do(read)

    async def children(self, path: str, watch: Watch | None = None) -> tuple[str, ...]:
        check_path(path)

        def read(table: NodeTable) -> tuple[str, ...]:
            found = table.children(path)
            self._watches.add(table, path, watch, children=True)
            return found

        return await self._do(read)

    async def read_batch(self, paths: Sequence[str]) -> tuple[Node | None, ...]:
        checked = [check_path(path) for path in paths]
        return await self._do(lambda table: tuple(table.node(path) for path in checked))

    async def end_session(self, token: bytes) -> None:
        await self._do(lambda table: table.end_session(int(token)), writes=True)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    async def _do(self, work: Callable[[NodeTable], _T], *, writes: bool = False) -> _T:
        if self._closed:
            raise SessionExpiredError
        job = _Job(work, writes, self._loop.create_future())
        self._jobs.put(job)
        found: _T = await job.future
        return found

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            self._open()
        except (sqlite3.Error, OSError, CoordinationError) as error:
            message = f"cannot open the coordination store {self._path}: {self._explain(error)}"
            self._turns.post(_fail, self._started, CoordinationError(message))
            return
        self._turns.post(_resolve, self._started, None)
        while (job := _next_job(self._jobs)) is not None:
            self._maybe_beat()
            if isinstance(job, _Job):
                self._perform(job)
            elif isinstance(job, str):
                self._suspend(job)
            elif self._state is SessionEvent.CONNECTED:
                self._in_session(self._fire)
        self._end()

    def _open(self) -> None:
        files = self._env.files
        if self._may_create:
            make_directory(self._env, self._path.parent)
        if kind := network_file_system(files, self._path.parent):
            raise CoordinationError(f"it is on {kind}, where SQLite cannot be shared; use a local disk or ZooKeeper")
        lock = files.lock(f"{self._path}.lock")
        try:
            check_can_open(self._path, self._env, create=self._may_create, policy=self._copies)
            is_new = files.stat(self._path) is None
            if is_new:
                make_private(files, self._path)
            self._db = connect(self._path)
            if is_new:
                files.fsync(self._path.parent)
            self._file = StoreFile(self._path, self._env, self._copies)
        finally:
            if lock is not None:
                lock.release()
        files.forget(self._log)  # this process may have had another one, of a file that was removed
        self._table = NodeTable(self._db)
        begun_ms = self._env.clock.monotonic_ms()
        self._transact(lambda table: table.open_session(self.session, self._timeout_ms))
        self._renewed(begun_ms)
        self._syncer = Syncer(partial(_sync, files, self._log), self._jobs.put, f"sync {self._path.name}")

    def _transact(self, work: Callable[[NodeTable], _T], *, writes: bool = True) -> _T:
        """Return what `work` returns, once all that it did is committed; retried while others hold the lock."""
        give_up_ms = self._env.clock.monotonic_ms() + self._timeout_ms // 3
        while True:
            try:
                self._db.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
                with self._db:  # commits, or rolls back
                    return work(self._table)
            except sqlite3.OperationalError as error:
                if not is_busy(error) or self._env.clock.monotonic_ms() >= give_up_ms:
                    raise
            self._env.clock.sleep_ms(BUSY_PAUSE_MS)

    def _perform(self, job: _Job) -> None:
        match self._state:
            case SessionEvent.EXPIRED:
                self._turns.post(_fail, job.future, SessionExpiredError())
            case SessionEvent.SUSPENDED:
                self._turns.post(_fail, job.future, ConnectionLossError("suspended"))
            case SessionEvent.CONNECTED:
                self._in_session(lambda: self._transact_job(job), job.future)

    def _in_session(self, act: Callable[[], None], future: asyncio.Future[Any] | None = None) -> None:
        error: CoordinationError
        try:
            act()
            return
        except (_Gone, ReplacedError) as gone:
            if isinstance(gone, ReplacedError):
                _log.error("coordination store %s was replaced by another file: its session has expired", self._path)
            self._watches.clear()
            self._become(SessionEvent.EXPIRED)
            error = SessionExpiredError()
        except (sqlite3.Error, StorageError) as reason:
            self._suspend(self._explain(reason))
            error = ConnectionLossError(str(reason))
        if future is not None:
            self._turns.post(_fail, future, error)

    def _explain(self, error: Exception) -> str:
        holder = self._file.holder() if is_busy(error) and hasattr(self, "_file") else ""
        return f"{explain(error)}; {holder}" if holder else explain(error)

    def _fire(self) -> None:
        for watch, path in self._watches.changes(self._table):
            self._turns.post(watch, path)

    def _transact_job(self, job: _Job) -> None:
        def work(table: NodeTable) -> Any:
            if not table.has_session(self.session):
                raise _Gone
            if not job.writes:
                self._fire()  # in the snapshot of the read, so that watches know of all that it shows
            return job.work(table)

        try:
            result = self._transact(work, writes=job.writes)
        except RefusedError as refused:
            self._fire()
            self._tell(_fail, job.future, refused)
            return
        if job.writes:
            self._fire()
        self._tell(_resolve, job.future, result)

    def _tell(self, act: Callable[..., None], future: asyncio.Future[Any], found: Any) -> None:
        """Answer a call once all that it wrote or saw is on disk."""

        def refuse(reason: str) -> None:
            self._turns.post(_fail, future, ConnectionLossError(reason))

        self._syncer.answer(Answer(self._watches.seen_number, lambda: self._turns.post(act, future, found), refuse))

    # --------------------------------------------------------------- session

    def _maybe_beat(self) -> None:
        begun_ms = self._env.clock.monotonic_ms()
        silent_ms = begun_ms - self._last_beat_ms
        if self._state is SessionEvent.EXPIRED or silent_ms < self._beat_every_ms:
            return
        if not self._turns.has_turned():
            return
        if silent_ms > self._timeout_ms * 2 // 3:
            self._suspend(f"this process was paused for {silent_ms} ms")

        def beat(table: NodeTable) -> None:
            if not table.beat(self.session):
                raise _Gone
            for silent in self._leases.look(table.pulses(), self._env.clock.monotonic_ms()):
                _log.info("session=%d expired: it was silent for its timeout", silent)
                table.end_session(silent)

        def beat_and_renew() -> None:  # without an fsync: a beat need not survive a power failure
            self._file.look()
            self._transact(beat)
            self._renewed(begun_ms)
            self._file.maybe_copy(self._db, self._watches.seen_number)

        self._in_session(beat_and_renew)

    def _renewed(self, begun_ms: int) -> None:
        self._last_beat_ms = begun_ms
        self.lease_end_ms = begun_ms + self._timeout_ms
        if self._state is SessionEvent.SUSPENDED:
            self._suspended_for = ""
            self._become(SessionEvent.CONNECTED)

    def _suspend(self, reason: str) -> None:
        self._watches.clear()
        if self._state is not SessionEvent.EXPIRED and reason != self._suspended_for:
            self._suspended_for = reason
            _log.warning("coordination store %s cannot be reached: %s", self._path, reason)
        if self._state is SessionEvent.CONNECTED:
            self._become(SessionEvent.SUSPENDED)

    def _become(self, state: SessionEvent) -> None:
        self._state = state
        self._turns.post(self._on_session, state)

    def _end(self) -> None:
        if self._state is not SessionEvent.EXPIRED:
            with contextlib.suppress(sqlite3.Error):  # then it expires by its timeout
                self._transact(lambda table: table.end_session(self.session))
        self._syncer.close()
        if self._file.is_gone:
            self._file.maybe_copy(self._db, self._table.number(), at_once=True)
        self._db.close()
        while not self._jobs.empty():
            if isinstance(job := self._jobs.get(), _Job):
                self._turns.post(_fail, job.future, SessionExpiredError())


def _next_job(jobs: queue.SimpleQueue[_Job | str | None]) -> _Job | str | bool | None:
    """Return the next call; True if none comes for POLL_MS; None at the end."""
    try:
        return jobs.get(timeout=POLL_MS / 1000)
    except queue.Empty:
        return True


def _sync(files: OsFiles, log: Path) -> None:
    """Fsync all that was written before.

    SQLite itself syncs its write-ahead log only when it moves changes into the file. The log is in order, so the part
    of it on disk is always a state that was true once.
    """
    with contextlib.suppress(FileNotFoundError):  # the store was removed
        files.fsync(log)


def _resolve(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
