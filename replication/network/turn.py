"""Turn: the requests of one kind that came in one turn of the event loop, handled together at its end.

A log takes ten small batches in one write for little more than one of them. So what writes to logs waits for the end of
the turn, some microseconds away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from replication.network.work import Work
from replication.protocol.apis import ApiKey
from replication.protocol.framing import Frame
from replication.protocol.wire import Buffer

# What is gathered is memory, and work that keeps the loop: with more, the turn ends early.
BYTES_MAX, REQUESTS_MAX = 1024 * 1024, 200


class Asker(Protocol):
    """A connection, as those know it who handle requests together."""

    host: str

    def dispatch(self, request: Gathered) -> None:
        """Have the handler of single requests do it."""

    def answer(self, request: Gathered, data: Buffer) -> None:
        """Send the response, its size in front, behind those of earlier requests."""

    def keep(self, request: Gathered, version: int, correlation_id: int, *, is_queued: bool = False) -> Work:
        """Note that the response follows: with `answer_kept`. Until then it counts as queued, or only waits."""

    def answer_kept(self, work: Work, response: object) -> None:
        """As `answer`, once for each that is kept; `response` as a handler returns it."""

    def broke(self, request: Gathered, error: Exception) -> None:
        """Close, and log what no handler foresaw."""


class Gathered:
    """A request as it came: `frame` without its size."""

    __slots__ = ("asker", "frame", "held_bytes", "key", "started_s")

    def __init__(self, asker: Asker, key: ApiKey, frame: Frame, held_bytes: int, started_s: float) -> None:
        self.asker = asker
        self.key = key
        self.frame = frame
        self.held_bytes = held_bytes
        self.started_s = started_s


# Answers, keeps or dispatches every request, in their order.
TurnHandler: TypeAlias = Callable[[Sequence[Gathered]], None]


class Turn:
    """See the module."""

    def __init__(self, key: ApiKey, handler: TurnHandler) -> None:
        self.key = key
        self._handler = handler
        self._gathered: list[Gathered] = []
        self._size_bytes = 0

    def gather(self, request: Gathered) -> None:
        """Handle it at the end of this turn, or at the next `end`."""
        if not self._gathered:
            asyncio.get_running_loop().call_soon(self.end)
        self._gathered.append(request)
        self._size_bytes += len(request.frame)
        if len(self._gathered) >= REQUESTS_MAX or self._size_bytes >= BYTES_MAX:
            self.end()

    def end(self) -> None:
        """Handle what is gathered, now."""
        requests, self._gathered, self._size_bytes = self._gathered, [], 0
        if not requests:
            return
        try:
            self._handler(requests)
        except Exception as error:  # noqa: BLE001  what the handler did not foresee must not stop the others
            for request in requests:
                request.asker.broke(request, error)
