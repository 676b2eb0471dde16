"""The promises of every coordination store, in the words and by the rules of ZooKeeper.

- A node has a path, bytes, a `version` that grows with every write, and a `creation` number greater than that of
  every node created before it. A node that is recreated under the same path has a greater `creation`.
- A `Tree` is one session. Its ephemeral nodes live until `close`, or until the session was silent for its timeout. An
  expired session never comes back: open another one.
- `multi` does all of its steps or none. `write_batch` does many independent multis.
- A watch fires once, at the first change after the read that set it. Its callback has run before a read that shows
  the change returns. Callbacks run in the event loop and must not block. They come in the order of the changes of one
  path; there is no order across paths. A watch that is set twice may be called twice.
- SUSPENDED: the store cannot be reached and all watches are gone. The session may or may not live, so nothing may
  rest on it. CONNECTED after that: the session has lived on; read everything again that was watched. EXPIRED:
  everything of the session is gone. It is the last event.
- Calls fail with ConnectionLossError while the store cannot be reached. The outcome of a call that was in flight is
  then unknown: read before you repeat it.

A Tree belongs to the event loop that opened it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from logstore.errors import InvalidRequestError, PylogError

ANY_VERSION = -1
NO_VERSION = -1
# Bytes of a node, or of all steps of one multi. ZooKeeper takes packets of up to 0xfffff bytes by default.
DATA_BYTES_MAX = 1_000_000
STEP_BYTES = 64  # of a step in a packet, beside its path and data
SESSION_TIMEOUT_MS = 6000  # zookeeper.session.timeout.ms


@dataclass(frozen=True, slots=True)
class Node:
    data: bytes
    version: int
    creation: int
    owner: int = 0  # the session whose ephemeral node this is; 0: persistent


@dataclass(frozen=True, slots=True)
class Check:
    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Create:
    """Create a node. `sequence` appends ten digits that only grow (per parent) to the path."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    path: str
    version: int = ANY_VERSION


Step: TypeAlias = Check | Create | SetData | Delete


def put(path: str, data: bytes, found: Node | None) -> Step:
    """Return the step that writes the node, if it is still as it was found; None: it was not there."""
    return Create(path, data) if found is None else SetData(path, data, found.version)


@dataclass(frozen=True, slots=True)
class Done:
    """The outcome of a step: the path (with its sequence number, if any) and the version of the node."""

    path: str
    version: int = NO_VERSION  # after Check and Delete


class SessionEvent(enum.StrEnum):
    CONNECTED = "CONNECTED"
    SUSPENDED = "SUSPENDED"
    EXPIRED = "EXPIRED"


Watch: TypeAlias = Callable[[str], None]  # called with the path
OnSession: TypeAlias = Callable[[SessionEvent], None]


class CoordinationError(PylogError): ...


class RefusedError(CoordinationError):
    """A condition did not hold, and nothing was changed. `index` is that of the step within its multi."""

    path: str
    index: int
    says = "was refused"

    def __init__(self, path: str, index: int = 0) -> None:
        super().__init__(f"{path}: {self.says}", path=path, index=index)


class NoNodeError(RefusedError):
    says = "the node or its parent does not exist"


class NodeExistsError(RefusedError):
    says = "the node exists already"


class BadVersionError(RefusedError):
    says = "the node has another version: read it again"


class NotEmptyError(RefusedError):
    says = "the node has children"


class EphemeralParentError(RefusedError):
    says = "the parent is ephemeral and cannot have children"


class ConnectionLossError(CoordinationError):
    def __init__(self, reason: str = "") -> None:
        because = f" ({reason})" if reason else ""
        super().__init__(
            f"the coordination store cannot be reached{because}; calls in flight may have been done or not: "
            "read again once the session is connected",
            reason=reason,
        )


class SessionExpiredError(CoordinationError):
    def __init__(self) -> None:
        super().__init__("the session with the coordination store has expired; open a new one and register again")


BatchResult: TypeAlias = tuple[Done, ...] | RefusedError


class Tree(Protocol):
    """One session with the store. The module says what all of it promises.

    `session` is the `Node.owner` of its ephemeral nodes, `token` the secret that `end_session` needs. It lasts until
    `lease_end_ms` of the monotonic clock, unless `end_session` ends it.
    """

    session: int
    token: bytes
    lease_end_ms: int

    def excuse(self, stands_for_a_reason: Callable[[], bool]) -> None:
        """Keep the session while the event loop turns, or while `stands_for_a_reason` says that it may stand.

        It is called in another thread.
        """

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> str:
        """Create a node; return its path. Raises: NodeExistsError, NoNodeError, EphemeralParentError."""
        return (await self.multi([Create(path, data, ephemeral, sequence)]))[0].path

    async def get(self, path: str, watch: Watch | None = None) -> Node | None:
        """Return the node, or None. `watch` is called at its next change or its creation."""

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        """Write a node's data; return its new version. Raises: NoNodeError, BadVersionError."""
        return (await self.multi([SetData(path, data, version)]))[0].version

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a node. Raises: NoNodeError, BadVersionError, NotEmptyError."""
        await self.multi([Delete(path, version)])

    async def children(self, path: str, watch: Watch | None = None) -> tuple[str, ...]:
        """Return the names of the children, sorted; `watch` is called when one comes or goes. Raises: NoNodeError."""

    async def multi(self, steps: Sequence[Step]) -> tuple[Done, ...]:
        """Do all steps at once, or none. Raises: the RefusedError of the first step that cannot be done."""

    async def write_batch(self, multis: Sequence[Sequence[Step]]) -> tuple[BatchResult, ...]:
        """Do each multi that can be done; return the outcome of each.

        They must be independent: writes of others may come between them, and their order is not promised.
        """

    async def read_batch(self, paths: Sequence[str]) -> tuple[Node | None, ...]:
        """Read many nodes, not all at one point in time."""

    async def end_session(self, token: bytes) -> None:
        """End the session of a former life and its ephemeral nodes, without waiting for its timeout."""

    async def close(self) -> None:
        """End the session and its ephemeral nodes. A second call does nothing."""


async def ensure_path(tree: Tree, path: str) -> None:
    """Create the persistent node and its ancestors, where they are missing."""
    if await tree.get(path) is not None:
        return
    if parent := path.rpartition("/")[0]:
        await ensure_path(tree, parent)
    try:
        await tree.create(path)
    except NodeExistsError:
        return  # another session was faster


def check_path(path: str) -> str:
    """Return the path. Raises: InvalidRequestError."""
    names = path[1:].split("/")
    if not path.startswith("/") or (path != "/" and any(name in ("", ".", "..") for name in names)):
        raise InvalidRequestError(f"{path!r} is not a path like /brokers/ids", path=path)
    if "\0" in path:
        raise InvalidRequestError(f"{path!r} holds a zero byte, which a path must not", path=path)
    return path


def check_steps(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Return the steps, if every store accepts them. Raises: InvalidRequestError."""
    checked = tuple(steps)
    size_bytes = sum(_size_bytes(step) for step in checked)
    if size_bytes > DATA_BYTES_MAX:
        raise InvalidRequestError(
            f"a write of {size_bytes:,} bytes to the coordination store, which takes {DATA_BYTES_MAX:,}",
            size_bytes=size_bytes,
            limit_bytes=DATA_BYTES_MAX,
        )
    return checked


def _size_bytes(step: Step) -> int:
    path_bytes = len(check_path(step.path).encode())
    return STEP_BYTES + path_bytes + (len(step.data) if isinstance(step, Create | SetData) else 0)
