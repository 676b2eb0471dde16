"""The nodes and sessions of a SQLite store, as rows. The caller opens and commits the transactions.

| table | holds |
|---|---|
| node | path, parent's path, data, version, creation, last change of its children, number of children ever created,
owner |
| session | id, timeout, and the number that it counts up to show that it lives |
| counter | the number of the last step that changed anything; it never goes back |

All changes of one multi share one number, as in ZooKeeper.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, assert_never

from replication.coordination.leases import Pulse
from replication.coordination.tree import (
    ANY_VERSION,
    BadVersionError,
    BatchResult,
    Check,
    CoordinationError,
    Create,
    Delete,
    Done,
    EphemeralParentError,
    Node,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RefusedError,
    SetData,
    Step,
    Watch,
)

FORMAT = 1
SCHEMA = f"""
CREATE TABLE node (
    path TEXT PRIMARY KEY, parent TEXT NOT NULL, data BLOB NOT NULL, version INTEGER NOT NULL,
    creation INTEGER NOT NULL, children_changed INTEGER NOT NULL, children_made INTEGER NOT NULL,
    owner INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX node_of_parent ON node (parent);
CREATE INDEX node_of_owner ON node (owner) WHERE owner <> 0;
CREATE TABLE session (id INTEGER PRIMARY KEY, timeout_ms INTEGER NOT NULL, beat INTEGER NOT NULL);
CREATE TABLE counter (number INTEGER NOT NULL);
INSERT INTO counter VALUES (0);
INSERT INTO node VALUES ('/', '', x'', 0, 0, 0, 0, 0);
PRAGMA user_version = {FORMAT};
"""


class Seen(NamedTuple):
    """The state that a watch compares: a node's creation, and its version or the last change of its children."""

    creation: int
    state: int


class NodeTable:
    __slots__ = ("_db",)

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def number(self) -> int:
        return self._one("SELECT number FROM counter")

    def node(self, path: str) -> Node | None:
        found = self._db.execute("SELECT data, version, creation, owner FROM node WHERE path = ?", (path,)).fetchone()
        return None if found is None else Node(*found)

    def children(self, path: str) -> tuple[str, ...]:
        """Return the names, sorted. Raises: NoNodeError."""
        if self.look(path, children=True) is None:
            raise NoNodeError(path)
        found = self._db.execute("SELECT path FROM node WHERE parent = ?", (path,))
        return tuple(sorted(child.rpartition("/")[2] for (child,) in found))

    def look(self, path: str, *, children: bool) -> Seen | None:
        column = "children_changed" if children else "version"
        found = self._db.execute(f"SELECT creation, {column} FROM node WHERE path = ?", (path,)).fetchone()
        return None if found is None else Seen(*found)

    def apply(self, steps: Sequence[Step], session: int) -> tuple[Done, ...]:
        """Do the steps of one multi. After a RefusedError the caller rolls back."""
        number = self._next_number()
        done = []
        for index, step in enumerate(steps):
            try:
                done.append(self._apply(step, number, session))
            except RefusedError as refused:
                refused.index = index
                raise
        return tuple(done)

    def apply_each(self, multis: Sequence[Sequence[Step]], session: int) -> list[BatchResult]:
        results: list[BatchResult] = []
        for steps in multis:
            self._db.execute("SAVEPOINT multi")
            try:
                results.append(self.apply(steps, session))
            except RefusedError as refused:
                self._db.execute("ROLLBACK TO multi")
                results.append(refused)
            self._db.execute("RELEASE multi")
        return results

    def _apply(self, step: Step, number: int, session: int) -> Done:
        match step:
            case Check(path, version):
                self._require(path, version)
                return Done(path)
            case SetData(path, data, version):
                written = self._require(path, version) + 1
                self._db.execute("UPDATE node SET data = ?, version = ? WHERE path = ?", (data, written, path))
                return Done(path, written)
            case Delete(path, version):
                self._require(path, version)
                if self._db.execute("SELECT 1 FROM node WHERE parent = ? LIMIT 1", (path,)).fetchone():
                    raise NotEmptyError(path)
                self._remove(path, number)
                return Done(path)
            case Create():
                return Done(self._create(step, number, session), 0)
            case _:
                assert_never(step)

    def _create(self, step: Create, number: int, session: int) -> str:
        parent = _parent(step.path)
        found = self._db.execute("SELECT owner, children_made FROM node WHERE path = ?", (parent,)).fetchone()
        if found is None:
            raise NoNodeError(step.path)
        owner, made = found
        if owner:
            raise EphemeralParentError(step.path)
        path = f"{step.path}{made:010}" if step.sequence else step.path
        row = (path, parent, step.data, 0, number, 0, 0, session if step.ephemeral else 0)
        try:
            self._db.execute("INSERT INTO node VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        except sqlite3.IntegrityError:
            raise NodeExistsError(path) from None
        self._db.execute(
            "UPDATE node SET children_changed = ?, children_made = children_made + 1 WHERE path = ?",
            (number, parent),
        )
        return path

    def _require(self, path: str, version: int) -> int:
        found = self.look(path, children=False)
        if found is None:
            raise NoNodeError(path)
        if version not in (ANY_VERSION, found.state):
            raise BadVersionError(path)
        return found.state

    def _remove(self, path: str, number: int) -> None:
        self._db.execute("DELETE FROM node WHERE path = ?", (path,))
        self._db.execute("UPDATE node SET children_changed = ? WHERE path = ?", (number, _parent(path)))

    def _next_number(self) -> int:
        self._db.execute("UPDATE counter SET number = number + 1")
        return self.number()

    def open_session(self, session: int, timeout_ms: int) -> None:
        self._db.execute("INSERT INTO session VALUES (?, ?, 0)", (session, timeout_ms))

    def has_session(self, session: int) -> bool:
        return self._db.execute("SELECT 1 FROM session WHERE id = ?", (session,)).fetchone() is not None

    def beat(self, session: int) -> bool:
        """Count up the session; False if it has ended."""
        return self._db.execute("UPDATE session SET beat = beat + 1 WHERE id = ?", (session,)).rowcount == 1

    def pulses(self) -> list[Pulse]:
        return [Pulse(*row) for row in self._db.execute("SELECT id, beat, timeout_ms FROM session")]

    def end_session(self, session: int) -> None:
        self._db.execute("DELETE FROM session WHERE id = ?", (session,))
        mine = self._db.execute("SELECT path FROM node WHERE owner = ?", (session,)).fetchall()
        if mine:
            number = self._next_number()
            for (path,) in mine:
                self._remove(path, number)

    def _one(self, query: str) -> int:
        return int(self._db.execute(query).fetchone()[0])


def connect(path: Path) -> sqlite3.Connection:
    """Open the file; create it if it is new. The caller keeps others out meanwhile."""
    db = sqlite3.connect(path, isolation_level=None, timeout=5)
    try:
        found = db.execute("PRAGMA user_version").fetchone()[0]
        if found not in (0, FORMAT):
            raise CoordinationError(f"its format is {found}; this version reads {FORMAT}")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")  # the caller fsyncs, without holding the lock
        db.execute("PRAGMA checkpoint_fullfsync = ON")  # on macOS; elsewhere nothing
        if not found:
            db.executescript(f"BEGIN; {SCHEMA} COMMIT;")
        db.execute("PRAGMA busy_timeout = 0")
    except BaseException:
        db.close()
        raise
    return db


class NodeWatches:
    __slots__ = ("_seen", "seen_number")

    def __init__(self) -> None:
        self.seen_number = -1  # of the last change that they were compared with
        self._seen: dict[tuple[str, bool, Watch], Seen | None] = {}

    def add(self, table: NodeTable, path: str, watch: Watch | None, *, children: bool) -> None:
        if watch is not None:
            self._seen.setdefault((path, children, watch), table.look(path, children=children))

    def clear(self) -> None:
        self._seen.clear()

    def changes(self, table: NodeTable) -> list[tuple[Watch, str]]:
        """Return the watches whose node has changed, which then are gone, with its path."""
        number = table.number()
        if number == self.seen_number:
            return []
        self.seen_number = number
        found = []
        for key, before in list(self._seen.items()):
            path, children, watch = key
            if table.look(path, children=children) != before:
                del self._seen[key]
                found.append((watch, path))
        return found


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"
