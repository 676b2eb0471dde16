"""Share sessions: the partitions that a member reads from this broker, remembered between its requests (KIP-932).

A session is of one member of one group, on one connection: when that ends, so does the session. Belongs to the event
loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from replication.coordinators.share_state.states import IdPartition
from replication.errors import ErrorCode, KafkaError

OPENING, CLOSING = 0, -1  # epochs of requests
EPOCH_MAX = 2**31 - 1


class SessionKey(NamedTuple):
    group_id: str
    member_id: str


class ShareSession:
    """`partitions` are in the order in which they are read next."""

    def __init__(self, key: SessionKey, connection_id: int) -> None:
        self.key = key
        self.connection_id = connection_id
        self.epoch = 1  # of the next request
        self.partitions: dict[IdPartition, None] = {}
        self.waiting: dict[object, Callable[[], None]] = {}  # whom to wake when it ends
        self.is_over = False

    def go_on(self) -> None:
        self.epoch = self.epoch + 1 if self.epoch < EPOCH_MAX else 1

    def end(self) -> None:
        """Nobody is given anything in it any more, and nobody waits for that."""
        self.is_over = True
        for wake in self.waiting.values():
            wake()

    def rotate(self, read: Iterable[IdPartition]) -> None:
        """Read these last, the next time."""
        for at in read:
            if at in self.partitions:
                del self.partitions[at]
                self.partitions[at] = None


class ShareSessions:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._of_connections: dict[int, set[SessionKey]] = {}
        self.of_groups: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, key: SessionKey, connection_id: int) -> ShareSession:
        """Begin another session of the member, who keeps its records.

        Raises: KafkaError: SHARE_SESSION_LIMIT_REACHED.
        """
        self.close(key)
        if len(self._sessions) >= self._limit:
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED, f"there are {self._limit} share sessions")
        session = self._sessions[key] = ShareSession(key, connection_id)
        self._of_connections.setdefault(connection_id, set()).add(key)
        self.of_groups[key.group_id] += 1
        return session

    def find(self, key: SessionKey, epoch: int) -> ShareSession:
        """Return the session for a request of this epoch; it is the last one with CLOSING.

        Raises: KafkaError: SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH.
        """
        session = self._sessions.get(key)
        if session is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        if epoch != CLOSING:
            if epoch != session.epoch:
                raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH, f"the session is at epoch {session.epoch}")
            session.go_on()
        return session

    def close(self, key: SessionKey) -> ShareSession | None:
        session = self._sessions.pop(key, None)
        if session is not None:
            session.end()
            self.of_groups[key.group_id] -= 1
            if not self.of_groups[key.group_id]:
                del self.of_groups[key.group_id]
            keys = self._of_connections[session.connection_id]
            keys.remove(key)
            if not keys:
                del self._of_connections[session.connection_id]
        return session

    def connection_closed(self, connection_id: int) -> list[ShareSession]:
        """End the sessions of a connection; return them."""
        closed = map(self.close, tuple(self._of_connections.get(connection_id, ())))
        return [session for session in closed if session is not None]
