"""The journal of transactions: one file of the store, to which every change of their state is appended.

::

    transactions/journal     a line per change: CRC-32 (8 hex digits), number, events as JSON; the first is a snapshot
    transactions/.lock       held by who appends

A reader takes no lock: it reads what was appended since its last look, one stat when nothing was. A change is one line,
so it is there whole or not at all: what a killed writer left of a line is cut by the next one. When the journal has
grown, it is replaced by a snapshot; numbers go on, so that readers notice.

A line may be seen before it is on disk. Call `sync()` before you rely on what a power failure could take back. The
recovery points say how many lines are on disk: a journal that has fewer is damaged, and is not believed.
"""

from __future__ import annotations

import json
import logging
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from logstore.checkpoint import fsync_or_mark, marking_failure, write_atomic
from logstore.env import Env, FileStat, locked, reset_after_fork, wait_lock
from logstore.errors import CorruptLogError, DiskFullError, StorageError
from logstore.store.transactions.events import applied, snapshot, unmarked
from logstore.store.transactions.state import Event, State

logger = logging.getLogger(__name__)

DIRECTORY = "transactions"
JOURNAL = "journal"
LOCK = ".lock"

# Some thousand changes: a quarter of a second to read.
JOURNAL_BYTES = 1024 * 1024
# The event that is written after an fsync of all that is before it.
_AFTER_SYNC = "durable"
REMEDY = "run `pylog recover`: it goes on without that line"
REMEDY_SHORT = (
    "bring it back from a copy, or run `pylog recover`: it goes on without them, and a batch that is written again "
    "then may be there twice"
)
# A process that looks while the journal is being replaced looks again.
LOOKS_MAX = 5


@dataclass(frozen=True, slots=True)
class _Seen:
    """One look: the state after the lines up to byte `end`, and the `number` of the next line.

    `stat` None: there may be more already. `base` is the end of the first line, a snapshot. `is_absent`: there is
    rightly no journal.
    """

    stat: FileStat | None = None
    inode: int = -1
    base: int = 0
    end: int = 0
    number: int = 0
    state: State = State()  # noqa: RUF009  frozen
    is_absent: bool = False


class Journal:
    """The journal of one store; see the module. Safe for threads, and for processes of one host."""

    def __init__(self, root: Path, env: Env, recorded: Callable[[], int] = lambda: 0) -> None:
        """`recorded` returns how many lines are known to be on disk; `durable_lines` is what this process knows."""
        self.directory = root / DIRECTORY
        self.path = self.directory / JOURNAL
        self._root = root
        self._env = env
        self._recorded = recorded
        self._seen = _Seen()
        self.durable_lines = 0
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        self._mutex = threading.RLock()

    def state(self) -> State:
        """The state now: one stat, and what was appended since the last look.

        Raises: CorruptLogError: a line was damaged, or lost, after it had been on disk.
        """
        seen = self._seen
        if seen.stat is not None and self._env.files.stat(self.path) == seen.stat:
            return seen.state
        with self._mutex:
            return self._look().state

    def _look(self) -> _Seen:
        for _ in range(LOOKS_MAX):
            seen = self._read_on(self._seen)
            self._seen = seen or _Seen()
            if seen is not None:
                return seen
        raise StorageError(f"{self.path} is replaced faster than it can be read", path=str(self.path))

    def _read_on(self, known: _Seen) -> _Seen | None:
        """The state now; None: the journal was replaced, so read it from its start."""
        if known.is_absent and self._env.files.stat(self.path) is None:
            return known
        recorded = self._recorded() if known.inode < 0 else 0  # before the look: both only grow
        stat = self._env.files.stat(self.path)
        if stat is None:
            self._check_length(0, 0, recorded)
            return _Seen(is_absent=True) if known.inode < 0 else None
        if stat == known.stat:
            return known
        if known.inode != stat.inode or known.end > stat.size:
            if known.inode >= 0:
                return None
            self._env.files.forget(self.path)  # the name may stand for another file now
        try:
            text = self._env.files.read(self.path, known.end, stat.size - known.end)
        except FileNotFoundError:
            return None
        lines = _Lines(text, known.number if known.inode >= 0 else None)
        state, base = known.state, known.base
        for events in lines:
            state = applied(state, events)
            base = base or lines.end
        end = known.end + lines.end
        if lines.is_of_another or (known.inode >= 0 and end < stat.size):
            return None
        if lines.is_damaged:
            raise CorruptLogError(self.path, end, "the line is not the one that was written", REMEDY)
        self._check_length(end, lines.number, recorded)
        return _Seen(stat if end == stat.size else None, stat.inode, base, end, lines.number, state)

    def _check_length(self, end: int, number: int, recorded: int) -> None:
        if number < recorded:
            reason = f"{recorded - number:,} of its lines are missing from here on"
            raise CorruptLogError(self.path, end, reason, REMEDY_SHORT)

    @contextmanager
    def changing(self) -> Iterator[State]:
        """Hold the journal for `append`s; yields the state."""
        self._make_directory()
        with locked(self._env.files, self.directory / LOCK), self._mutex:
            seen = self._look()
            if seen.inode < 0 or seen.end > JOURNAL_BYTES + 2 * seen.base:
                self._replace(seen)
            elif seen.stat is None and self._env.files.stat(self.path) != seen.stat:
                self._env.files.truncate(self.path, seen.end)  # what a killed writer left half written
                self._know(seen, seen.end, seen.number, seen.state)
            yield self._seen.state

    def _make_directory(self) -> None:
        # A process that holds a lock there may have made the directory already.
        if self._env.files.stat(self.path) is None:
            self._env.files.mkdir(self.directory)
            fsync_or_mark(self._env, self._root, self._root)

    def append(self, events: list[Event]) -> State:
        """Append a line; return the state after it. Inside of `changing` only.

        Raises: DiskFullError: nothing was appended.
        """
        seen = self._seen
        if not events:
            return seen.state
        line = _line(seen.number, events)
        try:
            self._env.files.write(self.path, seen.end, line)
        except StorageError:
            with suppress(StorageError):  # else the next holder cuts it
                self._env.files.truncate(self.path, seen.end)
            self._seen = _Seen()
            raise
        self._know(seen, seen.end + len(line), seen.number + 1, applied(seen.state, events))
        return self._seen.state

    def _know(self, seen: _Seen, end: int, number: int, state: State) -> None:
        stat = self._env.files.stat(self.path)
        assert stat is not None, "nobody removes the journal"
        self._seen = _Seen(stat, stat.inode, seen.base or end, end, number, state)

    def _replace(self, seen: _Seen) -> None:
        """Replace the lines by a snapshot. On a full disk they stay."""
        line = _line(seen.number, [snapshot(seen.state)])
        try:
            with marking_failure(self._env, self._root):
                write_atomic(self._env, self.path, line)
        except DiskFullError:
            if seen.inode < 0:
                raise
            return
        self._env.files.forget(self.path)
        self._know(_Seen(), len(line), seen.number + 1, seen.state)
        self.durable_lines = seen.number + 1

    @contextmanager
    def still(self) -> Iterator[None]:
        """Keep others from appending; also for a process that may only read."""
        try:
            lock = wait_lock(self._env.files, self.directory / LOCK, shared=True)
        except FileNotFoundError:
            yield  # there was no transaction ever
            return
        try:
            yield
        finally:
            lock.release()

    def sync(self) -> None:
        lines = self._seen.number
        fsync_or_mark(self._env, self.path, self._root)
        self.durable_lines = max(lines, self.durable_lines)

    def sync_all(self) -> None:
        """Fsync the journal, if this process knows of more lines than are recorded."""
        if self._seen.number > max(self._recorded(), self.durable_lines):
            self.sync()

    def renew(self) -> bool:
        """Rewrite everything durably: after a crash the disk may not have what is seen. False: lines are lost.

        A damaged line is left out, and logged: the others hold without it, and what they leave open is aborted. Markers
        may be lost, too: all are to be written again.
        """
        recorded = self._recorded()
        try:
            self._env.files.forget(self.path)
            text = self._env.files.read_all(self.path)
        except FileNotFoundError:
            if not recorded:
                return True
            text = b""
        is_whole, state, number, position = True, State(), 0, 0
        for line in text.splitlines(keepends=True):
            found = _parsed(line)
            if found is None:
                logger.error("path=%s position=%d a damaged line is left out", self.path, position)
                is_whole = False
            else:
                number, state = found[0] + 1, applied(state, found[1])
            position += len(line)
        if number < recorded:
            logger.error("path=%s lines=%d at its end are missing", self.path, recorded - number)
            is_whole = False
        with self._mutex:
            self._make_directory()
            self._replace(_Seen(number=max(number, recorded), state=unmarked(state)))
        return is_whole


class _Lines:
    """The valid lines at the beginning of a text, in order. `end` and `number` belong to the next one.

    A line with another number than expected (None: any) belongs to another journal. An invalid line is being written,
    or was when its writer died: it ends the journal, unless lines behind it show that it had been on disk.
    """

    def __init__(self, text: bytes, number: int | None) -> None:
        self._text = text
        self._expected = number
        self.number = number or 0
        self.end = 0
        self.is_of_another = False
        self.is_damaged = False

    def __iter__(self) -> Iterator[list[Event]]:
        while (line_end := self._text.find(b"\n", self.end) + 1) > 0:
            found = _parsed(self._text[self.end : line_end])
            if found is None:
                rest = map(_parsed, self._text[line_end:].splitlines(keepends=True))
                self.is_damaged = any(event[0] == _AFTER_SYNC for later in rest if later for event in later[1])
                return
            number, events = found
            if self._expected not in (None, number):
                self.is_of_another = True
                return
            self.end, self.number = line_end, number + 1
            self._expected = self.number
            yield events


def _line(number: int, events: list[Event]) -> bytes:
    text = f"{number} {json.dumps(events, separators=(',', ':'))}".encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _parsed(line: bytes) -> tuple[int, list[Event]] | None:
    """(number, events) of a line that is whole, or None."""
    crc, _, text = line.rstrip(b"\n").partition(b" ")
    try:
        if not line.endswith(b"\n") or int(crc, 16) != zlib.crc32(text):
            return None
    except ValueError:
        return None
    number, _, body = text.partition(b" ")
    return int(number), json.loads(body)
