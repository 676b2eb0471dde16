"""Disk: the threads that read and write logs, so that no disk stops the event loop.

- What is submitted for one partition is done in order: a partition has one *lane*, a thread that several share. There
  are few: threads that write at the same time wait for the interpreter, and cost more than they bring.
- A lane goes to and fro in batches: what came while its thread was busy goes next, all at once, and a job may take more
  in until then (`seal` ends that). The more there is to do, the less a job costs.
- Reads need no order: they go to whichever reader is free, and never wait behind a write.

A Disk belongs to the event loop that made it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

logger = logging.getLogger(__name__)

Found = TypeVar("Found")


class Job(Protocol):
    """Something to do in a lane."""

    def seal(self) -> None:
        """It goes to the thread now: nothing joins it any more. Called in the event loop."""

    def run(self) -> None:
        """Do it, and keep what came of it, errors included. Called in the thread."""

    def done(self) -> None:
        """It was run. Called in the event loop."""


class _Call(Generic[Found]):
    """A function as a job."""

    def __init__(self, act: Callable[[], Found], answer: asyncio.Future[Found]) -> None:
        self._act = act
        self._answer = answer
        self._found: Found | None = None
        self._error: BaseException | None = None

    def seal(self) -> None:
        """Nothing joins a function."""

    def run(self) -> None:
        """Call it."""
        try:
            self._found = self._act()
        except Exception as error:  # noqa: BLE001  it is the caller's, on the other side
            self._error = error

    def done(self) -> None:
        """Answer, unless nobody waits any more."""
        if self._answer.done():
            return
        if self._error is not None:
            self._answer.set_exception(self._error)
        else:
            self._answer.set_result(self._found)  # type: ignore[arg-type]


class Disk:
    """The threads of one broker; see the module. A quarter of them, at least one, are lanes."""

    def __init__(self, threads: int) -> None:
        self.loop = asyncio.get_running_loop()
        self._lanes = [_Lane(self.loop, number) for number in range(max(1, threads // 4))]
        self._readers = ThreadPoolExecutor(max(1, threads - len(self._lanes)), "read")
        self._next_lane = 0

    def lane(self) -> int:
        """The lane for one more partition."""
        self._next_lane += 1
        return self._next_lane % len(self._lanes)

    def submit(self, lane: int, job: Job) -> None:
        """Have the job done, behind all that was submitted to the lane."""
        self._lanes[lane].submit(job)

    def call(self, lane: int, act: Callable[[], Found]) -> asyncio.Future[Found]:
        """The same for a function: what it returns, or raises."""
        answer: asyncio.Future[Found] = self.loop.create_future()
        self._lanes[lane].submit(_Call(act, answer))
        return answer

    def read(self, act: Callable[[], Found]) -> asyncio.Future[Found]:
        """Have a function called that only reads: what it returns, or raises."""
        return self.loop.run_in_executor(self._readers, act)

    async def close(self) -> None:
        """Do what was submitted, then end the threads."""
        for number, lane in enumerate(self._lanes):
            await self.call(number, lambda: None)
            lane.end()
        await asyncio.to_thread(self._readers.shutdown)


class _Lane:
    """One thread, and what waits for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, number: int) -> None:
        self._loop = loop
        self._waiting: list[Job] = []
        self._is_sending = self._is_busy = False
        self._queue: SimpleQueue[list[Job] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"write-{number}", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        self._waiting.append(job)
        if not self._is_busy and not self._is_sending:
            self._is_sending = True  # at the end of this turn: more may come in it
            self._loop.call_soon(self._send)

    def end(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _send(self) -> None:
        self._is_sending = False
        if self._waiting:
            batch, self._waiting = self._waiting, []
            for job in batch:
                job.seal()
            self._is_busy = True
            self._queue.put(batch)

    def _work(self) -> None:
        while (batch := self._queue.get()) is not None:
            for job in batch:
                job.run()
            try:
                self._loop.call_soon_threadsafe(self._finished, batch)
            except RuntimeError:  # the loop was closed under us: nobody waits any more
                return

    def _finished(self, batch: list[Job]) -> None:
        self._is_busy = False
        self._send()  # first, so that the disk works while this is settled
        for job in batch:
            try:
                job.done()
            except Exception:
                logger.exception("what follows a write failed")
