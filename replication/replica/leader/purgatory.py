"""Purgatory: who waits until something is committed, or until time is over.

`PendingProduce` is one request; `PendingProduces` are the appends of one partition that requests wait for, in the
order of their offsets.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from replication.errors import ErrorCode
from replication.replica.leader.results import AppendResult

TopicPartition: TypeAlias = tuple[str, int]
Response = TypeVar("Response")
Results: TypeAlias = Mapping[TopicPartition, AppendResult]


class PendingProduce(Generic[Response]):
    """A Produce request, until every partition that it names has a result. The first result of each counts."""

    __slots__ = ("_answer", "_respond", "_timer", "_tps", "results")

    def __init__(self, tps: Collection[TopicPartition], respond: Callable[[Results], Response]) -> None:
        self.results: dict[TopicPartition, AppendResult] = {}
        self._tps = tps
        self._respond = respond  # makes the response of the results; what it raises is the request's
        self._answer: asyncio.Future[Response] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_over(self) -> bool:
        """Has every partition a result?"""
        return len(self.results) == len(self._tps)

    def settle(self, tp: TopicPartition, result: AppendResult) -> None:
        """This became of the records for `tp`."""
        if tp not in self.results:
            self.results[tp] = result
            if self._answer is not None and len(self.results) == len(self._tps):
                self._finish(self._answer)

    def response(self, timeout_ms: int) -> Response | asyncio.Future[Response]:
        """What is answered, if that is known; else a future of it, which is done after `timeout_ms` at the latest."""
        if self.is_over:
            return self._respond(self.results)
        loop = asyncio.get_running_loop()
        self._answer = loop.create_future()
        if timeout_ms >= 0:
            self._timer = loop.call_later(timeout_ms / 1000, self._expire)
        return self._answer

    def _expire(self) -> None:
        """Nobody waits any more. Records that are in the log stay there."""
        for tp in self._tps:
            self.settle(tp, AppendResult(ErrorCode.REQUEST_TIMED_OUT))

    def _finish(self, answer: asyncio.Future[Response]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if answer.done():
            return
        try:
            answer.set_result(self._respond(self.results))
        except Exception as error:  # noqa: BLE001  the server closes the connection, and logs what it must
            answer.set_exception(error)


class CommitWait(NamedTuple):
    """Records that are in the log, and what their request is told once everything below `end_offset` is committed."""

    end_offset: int
    result: AppendResult
    request: PendingProduce[Any]


class PendingProduces:
    """See the module."""

    def __init__(self) -> None:
        self._waits: deque[CommitWait] = deque()

    def __len__(self) -> int:
        return len(self._waits)

    def add(self, wait: CommitWait) -> None:
        """Wait. Offsets only grow from one to the next."""
        self._waits.append(wait)

    def reached(self, offset: int) -> list[CommitWait]:
        """Take out, in order, those that wait for nothing above `offset`."""
        done = []
        while self._waits and self._waits[0].end_offset <= offset:
            done.append(self._waits.popleft())
        return done

    def all(self) -> list[CommitWait]:
        """Take out everybody."""
        left, self._waits = self._waits, deque()
        return list(left)

    def sweep(self) -> None:
        """Forget those whose time was over."""
        if any(wait.request.is_over for wait in self._waits):
            self._waits = deque(wait for wait in self._waits if not wait.request.is_over)
