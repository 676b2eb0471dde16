"""Exchange: the requests of one connection and their responses, without its socket.

Bytes come in, and whole frames wait until they may begin; responses go out in the order of their requests. Pure: the
connection receives and sends the bytes, and the pipeline makes responses of frames.

- Requests of one connection begin one after the other, each once the one before it is answered, as Kafka does it. But
  Produces that follow each other are open together, at most PIPELINE_MAX of them, unless one is long.
- A response leaves once all earlier requests have theirs. A request with acks=0 has an empty one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from replication.protocol.apis import ApiKey
from replication.protocol.framing import Frame
from replication.protocol.wire import Buffer

# Open requests of one connection. Idempotent producers send 5 at most; more only costs memory.
PIPELINE_MAX = 16
_PRODUCE = int(ApiKey.PRODUCE)


class Open(Protocol):
    """A request that has begun, and is not answered."""

    key: ApiKey
    is_long: bool
    parts: Sequence[Buffer] | None  # the response, while earlier ones are not known


class Exchange:
    __slots__ = ("begin", "open", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[tuple[Frame, int]] = deque()  # whole frames that have not begun, and their held bytes
        self.open: deque[Open] = deque()  # requests, in their order
        self.begin = self.open.append  # opens a request: its response leaves behind those of all that are open

    def next_key(self) -> int | None:
        """Return the API key of the first frame that waits, if it may begin."""
        if not self.waiting:
            return None
        frame = self.waiting[0][0]
        key = frame[0] << 8 | frame[1]
        if self.open:  # nothing begins behind one that is exclusive, so that this is the last one
            last = self.open[-1]
            if key != _PRODUCE or last.key != _PRODUCE or last.is_long or len(self.open) >= PIPELINE_MAX:
                return None
        return key

    def respond(self, request: Open, parts: Sequence[Buffer]) -> Sequence[Buffer]:
        """Close a request with its response; return the buffers that may leave now, in order."""
        if self.open[0] is not request:
            request.parts = parts
            return ()
        self.open.popleft()
        if not self.open or self.open[0].parts is None:
            return parts
        ready = list(parts)
        while self.open and (following := self.open[0].parts) is not None:
            ready += following
            self.open.popleft()
        return ready
