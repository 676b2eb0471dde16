"""What a coordination store promises, whichever it is. The words and rules are those of ZooKeeper.

- A node has a path, bytes, a `version` that grows with every write to it, and a `creation` number that is greater
  than that of every node made before it. A node made again under the same path has a greater `creation`.
- A `Tree` is one session. Its ephemeral nodes live as long as it does: until `close`, or until it was silent for
  its timeout. When it has expired it is over for good; who goes on opens another one.
- `multi` does all of its steps or none. `write_batch` does many multis that do not depend on each other.
- A watch fires once, at the first change after the read that set it, and before its tree sees anything that is
  newer: a callback has run before a read that shows the change returns. Callbacks run in the event loop, must not
  block, and come in the order of the changes per path, not over several paths. One that is set twice may be called
  twice.
- SUSPENDED says that the store cannot be reached now; whether the session still lives is unknown, so nothing may
  rest on it. All watches are gone. CONNECTED after it: the session has lived on; look again at all that was watched.
  EXPIRED: everything of the session is gone. It is the last event.
- Calls fail with ConnectionLossError while the store cannot be reached. The outcome of one that was under way is
  then unknown: read, and do not repeat blindly.

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
# What a node, or all steps of one multi, may hold. ZooKeeper takes packets of up to 0xfffff bytes unless told
# otherwise.
DATA_BYTES_MAX = 1_000_000
# Bytes of a packet that a step costs beside its path and data.
STEP_BYTES = 64
SESSION_TIMEOUT_MS = 6000  # zookeeper.session.timeout.ms


@dataclass(frozen=True, slots=True)
class Node:
    """One node as it was read."""

    data: bytes
    version: int
    creation: int
    owner: int = 0  # the session whose ephemeral node this is; 0: persistent


@dataclass(frozen=True, slots=True)
class Check:
    """Holds if the node is of this version."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Create:
    """Makes a node. With `sequence`, ten digits that only grow (per parent) are put behind the path."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    """Writes a node's data, if it is of this version."""

    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    """Removes a node without children, if it is of this version."""

    path: str
    version: int = ANY_VERSION


Step: TypeAlias = Check | Create | SetData | Delete


@dataclass(frozen=True, slots=True)
class Done:
    """What a step did: the path (with its number, if it was a sequence) and the version that the node has now."""

    path: str
    version: int = NO_VERSION  # after Check and Delete


class ChangeKind(enum.StrEnum):
    """What a watch saw."""

    CREATED = "CREATED"
    CHANGED = "CHANGED"
    DELETED = "DELETED"
    CHILDREN = "CHILDREN"  # a child came or went


@dataclass(frozen=True, slots=True)
class Change:
    """What a watch is called with."""

    kind: ChangeKind
    path: str


class SessionEvent(enum.StrEnum):
    """What becomes of a session. See the module."""

    CONNECTED = "CONNECTED"
    SUSPENDED = "SUSPENDED"
    EXPIRED = "EXPIRED"


Watch: TypeAlias = Callable[[Change], None]
OnSession: TypeAlias = Callable[[SessionEvent], None]


class CoordinationError(PylogError):
    """Base of what a coordination store raises."""


class RefusedError(CoordinationError):
    """A condition did not hold: nothing was changed. `index` is that of the step within its multi."""

    path: str
    index: int
    says = "was refused"

    def __init__(self, path: str, index: int = 0) -> None:
        super().__init__(f"{path}: {self.says}", path=path, index=index)


class NoNodeError(RefusedError):
    """The node, or the parent of a new one, is not there."""

    says = "there is no such node (or no parent for it)"


class NodeExistsError(RefusedError):
    """The node is there already."""

    says = "the node is there already"


class BadVersionError(RefusedError):
    """The node has another version than the condition says: someone else wrote it."""

    says = "the node has another version: read it again"


class NotEmptyError(RefusedError):
    """A node with children cannot be removed."""

    says = "the node has children"


class EphemeralParentError(RefusedError):
    """Ephemeral nodes have no children."""

    says = "the parent is ephemeral, and those have no children"


class ConnectionLossError(CoordinationError):
    """The store cannot be reached. If the call was under way, it may or may not have been done."""

    def __init__(self, reason: str = "") -> None:
        because = f" ({reason})" if reason else ""
        super().__init__(
            f"the coordination store cannot be reached{because}; what was under way may have been done or not: "
            "read it again once the session is connected",
            reason=reason,
        )


class SessionExpiredError(CoordinationError):
    """The session is over, and its ephemeral nodes are gone or will be: open another one."""

    def __init__(self) -> None:
        super().__init__("the session with the coordination store is over; open a new one and register again")


BatchResult: TypeAlias = tuple[Done, ...] | RefusedError


class Tree(Protocol):
    """One session with the store. The module says what all of it promises."""

    @property
    def session(self) -> int:
        """The session's number: `Node.owner` of its ephemeral nodes."""

    @property
    def token(self) -> bytes:
        """What `end_session` needs, for a later life of this process. Keep it from others."""

    def excuse(self, stands_for_a_reason: Callable[[], bool]) -> None:
        """Keep the session while the event loop turns, or this says that it stands for a good reason.

        It is called in another thread.
        """

    @property
    def lease_end_ms(self) -> int:
        """Nobody ends the session before this time of the monotonic clock, unless asked to by `end_session`."""

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
    ) -> str:
        """Make a node; return its path. Raises: NodeExistsError, NoNodeError, EphemeralParentError."""

    async def get(self, path: str, watch: Watch | None = None) -> Node | None:
        """The node, or None. `watch` is told of its next change, or of its creation."""

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        """Write a node's data; return its new version. Raises: NoNodeError, BadVersionError."""

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Remove a node. Raises: NoNodeError, BadVersionError, NotEmptyError."""

    async def children(self, path: str, watch: Watch | None = None) -> tuple[str, ...]:
        """The names of the node's children, sorted; `watch` is told when one comes or goes. Raises: NoNodeError."""

    async def multi(self, steps: Sequence[Step]) -> tuple[Done, ...]:
        """Do all steps at once, or none. Raises: RefusedError of the first step that cannot be done."""

    async def write_batch(self, multis: Sequence[Sequence[Step]]) -> tuple[BatchResult, ...]:
        """Do each multi that can be done; return what became of each.

        They must not depend on each other: others' writes may come between them, and their order is not promised.
        """

    async def read_batch(self, paths: Sequence[str]) -> tuple[Node | None, ...]:
        """Read many nodes; not all at one point in time."""

    async def end_session(self, token: bytes) -> None:
        """End the session of a former life, and its ephemeral nodes, without waiting for its timeout."""

    async def close(self) -> None:
        """End the session, and its ephemeral nodes. A second call does nothing."""


async def ensure_path(tree: Tree, path: str) -> None:
    """Make the persistent node and those above it, where they are missing."""
    if await tree.get(path) is not None:
        return
    if parent := path.rpartition("/")[0]:
        await ensure_path(tree, parent)
    try:
        await tree.create(path)
    except NodeExistsError:
        return  # another was faster


def check_path(path: str) -> str:
    """Return the path, or say why it is none."""
    names = path[1:].split("/")
    if not path.startswith("/") or (path != "/" and any(name in ("", ".", "..") for name in names)):
        raise InvalidRequestError(f"{path!r} is no path of a node: it must be like /brokers/ids", path=path)
    if "\0" in path:
        raise InvalidRequestError(f"{path!r} is no path of a node: it holds a zero byte", path=path)
    return path


def check_steps(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Return the steps, if every store will take them."""
    checked = tuple(steps)
    size_bytes = sum(_size_bytes(step) for step in checked)
    if size_bytes > DATA_BYTES_MAX:
        raise InvalidRequestError(
            f"{size_bytes:,} bytes in one write to the coordination store, which takes {DATA_BYTES_MAX:,}",
            size_bytes=size_bytes,
            limit_bytes=DATA_BYTES_MAX,
        )
    return checked


def _size_bytes(step: Step) -> int:
    path_bytes = len(check_path(step.path).encode())
    return STEP_BYTES + path_bytes + (len(step.data) if isinstance(step, Create | SetData) else 0)
