"""Purgatory: requests that wait until their appends are committed, or their time is over."""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import Callable, Collection, Mapping
from functools import partial
from operator import attrgetter
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from replication.errors import ErrorCode
from replication.model.cluster import TopicPartition
from replication.replica.leader.results import AppendResult

Response = TypeVar("Response")
Results: TypeAlias = Mapping[TopicPartition, AppendResult]


class Waiter(Protocol):
    """A request that waits for the result of an append."""

    is_over: bool  # nobody waits any more

    def settle(self, tp: TopicPartition, result: AppendResult) -> None:
        """Take the result of one partition; the first one counts."""


class PendingProduce:
    """A Produce request, until every partition that it names has a result. The first result of each counts."""

    __slots__ = ("_act", "_timer", "_tps", "is_over", "results")

    def __init__(self, tps: Collection[TopicPartition]) -> None:
        self.results: dict[TopicPartition, AppendResult] = {}
        self.is_over = not tps  # every partition has a result
        self._tps = tps
        self._act: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def settle(self, tp: TopicPartition, result: AppendResult) -> None:
        if tp not in self.results:
            self.results[tp] = result
            if len(self.results) == len(self._tps):
                self.is_over = True
                if (act := self._act) is not None:
                    self._act = None  # else a cycle of objects would keep the records until garbage is looked for
                    if self._timer is not None:
                        self._timer.cancel()
                        self._timer = None
                    act()

    def then(self, act: Callable[[], None], timeout_ms: int) -> None:
        """Call `act` once it is over. For a request that is not over.

        Partitions that have no result after `timeout_ms` (-1: no limit) have timed out.
        """
        self._act = act
        if timeout_ms >= 0:
            self._timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, self._expire)

    def wait(self, respond: Callable[[Results], Response], timeout_ms: int) -> asyncio.Future[Response]:
        """Return a future of the response, which `respond` makes of the results, on the terms of `then`.

        An error of `respond` is the future's. For a request that is not over.
        """
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self.then(partial(_respond, answer, respond, self.results), timeout_ms)
        return answer

    def _expire(self) -> None:
        """End the wait. Records that are in the log stay there."""
        for tp in self._tps:
            self.settle(tp, AppendResult(ErrorCode.REQUEST_TIMED_OUT))


def _respond(answer: asyncio.Future[Response], respond: Callable[[Results], Response], results: Results) -> None:
    if answer.done():
        return
    try:
        answer.set_result(respond(results))
    except Exception as error:  # noqa: BLE001  the server closes the connection, and logs what it must
        answer.set_exception(error)


class CommitWait(NamedTuple):
    """Records that are in the log, and the result of their request once everything below `end_offset` is committed."""

    end_offset: int
    result: AppendResult
    request: Waiter


END_OFFSET = attrgetter("end_offset")


class PendingProduces:
    """The waits of one partition. Invariant: their end offsets ascend, whatever the order in which they came.

    A batch that is sent again ends where it stands in the log, before others that wait.
    """

    __slots__ = ("_waits",)

    def __init__(self) -> None:
        self._waits: list[CommitWait] = []  # an empty deque takes 760 bytes

    def __len__(self) -> int:
        return len(self._waits)

    def add(self, wait: CommitWait) -> None:
        waits = self._waits
        if not waits or waits[-1].end_offset <= wait.end_offset:
            waits.append(wait)
        else:
            bisect.insort(waits, wait, key=END_OFFSET)

    def reached(self, offset: int) -> list[CommitWait]:
        """Take out, in order, those that wait for nothing above `offset`."""
        count = bisect.bisect_right(self._waits, offset, key=END_OFFSET)
        done = self._waits[:count]
        del self._waits[:count]
        return done

    def all(self) -> list[CommitWait]:
        left, self._waits = self._waits, []
        return left

    def sweep(self) -> None:
        if any(wait.request.is_over for wait in self._waits):
            self._waits = [wait for wait in self._waits if not wait.request.is_over]
