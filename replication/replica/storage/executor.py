"""DiskExecutor: threads that read and write logs, and when the event loop may write by itself.

A slow disk does not stop the event loop.

- Jobs submitted for one partition run in order: a partition has one *queue*.
- One thread does the work of all queues, since threads that write at the same time wait for the interpreter, and cost
  more than they bring. Another one comes when that takes longer than it should: a file that hangs holds up only its own
  queue.
- Work goes to and fro in rounds: what came during one goes with the next, and a job may take more in until then (`seal`
  ends that). The more there is to do, the less a job costs.
- Reads need no order: they go to whichever reader is free, and never wait behind a write.

A DiskExecutor belongs to the event loop that made it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Generic, Protocol, TypeVar

from logstore.env import SYSTEM, Env
from replication.replica.storage.blocked_time import BlockedTime

logger = logging.getLogger(__name__)

Found = TypeVar("Found")

SETTLED_AT_ONCE = 250  # queues whose jobs are settled in one turn of the loop: some 20 us each
PATIENCE_S = 0.01  # how long a round may take before another thread helps
# After a write that waited longer than PATIENCE_MS the event loop leaves writing to the threads for so many times that
# long: slow writes cost it a twentieth of its time at most.
PATIENCE_MS = 10
RESPITE = 20
SLOW_MS = 500  # the same of a writer, which waits for the interpreter, too
# A write that holds up the event loop for so long costs a broker its session: others may lead then.
STALL_MS = 15_000


class Job(Protocol):
    def seal(self) -> None:
        """The job goes to the thread now, and nothing joins it any more. Called in the event loop."""

    def run(self) -> None:
        """Do it, and keep what came of it. Called in the thread."""

    def fail(self, error: Exception) -> None:
        """Keep what `run` has raised. Called in the thread."""

    def done(self) -> None:
        """Tell what came of it, by either of the two. Called in the event loop."""


class JobError(RuntimeError):
    """A job raised what no caller could take for an error: the end of a process, a task, or an iterator."""


class _Call(Generic[Found]):
    def __init__(self, act: Callable[[], Found], answer: asyncio.Future[Found], then: Callable[[], None]) -> None:
        self._act = act
        self._answer = answer
        self._then = then
        self._found: Found | None = None
        self._error: Exception | None = None

    def seal(self) -> None: ...

    def run(self) -> None:
        self._found = self._act()

    def fail(self, error: Exception) -> None:
        self._error = error

    def done(self) -> None:
        try:
            self._then()
        finally:  # the caller waits, whatever else fails
            if not self._answer.done():
                if self._error is not None:
                    self._answer.set_exception(self._error)
                else:
                    self._answer.set_result(self._found)  # type: ignore[arg-type]


class JobQueue:
    """The jobs of one partition, in order. Belongs to the event loop, except for `running`."""

    __slots__ = ("running", "waiting")

    def __init__(self) -> None:
        self.waiting: list[Job] = []
        self.running: list[Job] = []  # in a writer's hands, or about to be


class DiskExecutor:
    """The threads of one broker, half of them for writing; see the module."""

    def __init__(self, threads: int, env: Env = SYSTEM) -> None:
        self.loop = asyncio.get_running_loop()
        self._writing_since_ms: int | None = None  # the event loop; None: it does not
        self._files, self._clock = env.files, env.clock
        self._slow_until_ms = 0
        self._blocked = BlockedTime()  # the loop's thread
        self._blocked_ms, self._blocked_at_ms = 0.0, -1  # what it was at that time
        self._todo: deque[JobQueue] = deque()  # this and the next are the threads', too
        self._done: deque[JobQueue] = deque()
        self._writers = [_Writer(self, number, env) for number in range(max(1, threads // 2))]
        self._readers = ThreadPoolExecutor(max(1, threads - len(self._writers)), "read")
        self._ready: dict[JobQueue, None] = {}
        self._is_sending = self._is_settling = False
        self._look: asyncio.TimerHandle | None = None
        self._all_done = asyncio.Event()

    def queue(self) -> JobQueue:
        return JobQueue()

    def begin_write(self, queue: JobQueue) -> bool:
        """May the event loop write for this queue itself? Then `end_write` must follow.

        It may while nothing is under way in the queue and the disk was quick of late: a call to a thread and back costs
        several times what a small write does. An fsync makes writes wait.
        """
        now_ms = self._clock.monotonic_ms()
        if queue.running or queue.waiting or now_ms < self._slow_until_ms or self._files.is_syncing:
            return False
        if now_ms != self._blocked_at_ms:
            self._blocked_ms, self._blocked_at_ms = self._blocked.ms(), now_ms
        self._writing_since_ms = now_ms
        return True

    def end_write(self) -> None:
        """The event loop has written. A write that was long only since others had the CPU says nothing of the disk."""
        now_ms, since_ms, self._writing_since_ms = self._clock.monotonic_ms(), self._writing_since_ms, None
        assert since_ms is not None, "it has begun"
        if now_ms - since_ms > PATIENCE_MS and (waited_ms := self._blocked.ms() - self._blocked_ms) > PATIENCE_MS:
            self._slow_until_ms = now_ms + RESPITE * int(waited_ms)

    def is_writing(self) -> bool:
        """Is the event loop in a write since less than `STALL_MS`? From any thread."""
        since_ms = self._writing_since_ms
        return since_ms is not None and self._clock.monotonic_ms() - since_ms < STALL_MS

    def submit(self, queue: JobQueue, job: Job) -> None:
        """Have the job done, behind all that was submitted to the queue."""
        queue.waiting.append(job)
        if not queue.running:
            self._ready[queue] = None
            if not self._is_sending:
                self._is_sending = True  # at the end of this turn: more may come in it
                self.loop.call_soon(self._send)

    def call(
        self, queue: JobQueue, act: Callable[[], Found], *, then: Callable[[], None] = lambda: None
    ) -> asyncio.Future[Found]:
        """The same for a function: what it returns, or raises; `then` comes before that, in the event loop."""
        answer: asyncio.Future[Found] = self.loop.create_future()
        self.submit(queue, _Call(act, answer, then))
        return answer

    def read(self, act: Callable[[], Found]) -> asyncio.Future[Found]:
        """Have a function called that only reads: what it returns, or raises."""
        return self.loop.run_in_executor(self._readers, act)

    async def close(self) -> None:
        while self._ready or self._done or any(writer.is_busy for writer in self._writers):
            self._all_done.clear()
            await self._all_done.wait()
        if self._look is not None:
            self._look.cancel()
        for writer in self._writers:
            writer.end()
        await asyncio.to_thread(self._readers.shutdown)
        self._blocked.close()

    # ------------------------------------------------------------------ rounds

    def _send(self) -> None:
        """Begin a round with all that waits, unless one is going on that does not hang."""
        self._is_sending = False
        now_s = self.loop.time()
        busy = [writer for writer in self._writers if writer.is_busy]
        hangs = all(now_s - writer.began_s >= PATIENCE_S for writer in busy)
        if (self._ready or self._todo) and hangs and len(busy) < len(self._writers):
            ready, self._ready = self._ready, {}
            for queue in ready:
                for job in queue.waiting:
                    job.seal()
                queue.running, queue.waiting = queue.waiting, []
            self._todo.extend(ready)
            busy.append(next(writer for writer in self._writers if not writer.is_busy))
            busy[-1].begin(now_s)
        if busy and self._look is None:
            self._look = self.loop.call_later(PATIENCE_S, self._look_again)

    def _look_again(self) -> None:
        """A round takes long: answer what is done of it, and see whether another writer must help."""
        self._look = None
        self.settle()

    def work(self, finished: Callable[[], None]) -> None:
        """A round, in a writer's thread: take queue after queue until none is left, whatever a job raises."""
        while (queue := self._next_queue()) is not None:
            ended_ms = self._clock.monotonic_ms()
            for job in queue.running:
                begun_ms = ended_ms
                try:
                    job.run()
                except BaseException as error:  # noqa: BLE001  it is the caller's, on the other side
                    job.fail(_told(error))
                ended_ms = self._clock.monotonic_ms()
                if ended_ms - begun_ms > SLOW_MS:
                    self._slow_until_ms = ended_ms + RESPITE * (ended_ms - begun_ms)
            self._done.append(queue)
        with suppress(RuntimeError):  # the loop was closed under us: nobody waits any more
            self.loop.call_soon_threadsafe(finished)

    def _next_queue(self) -> JobQueue | None:
        try:
            return self._todo.popleft()
        except IndexError:  # nothing is left, or another writer was faster
            return None

    def settle(self) -> None:
        settled: list[list[Job]] = []
        while self._done and len(settled) < SETTLED_AT_ONCE:
            queue = self._done.popleft()
            settled.append(queue.running)
            queue.running = []
            if queue.waiting:
                self._ready[queue] = None
        self._send()  # first, so that the disk works while this is settled
        for jobs in settled:
            for job in jobs:
                try:
                    job.done()
                except Exception:
                    logger.exception("what follows a write failed")
        if self._done and not self._is_settling:
            self._is_settling = True
            self.loop.call_soon(self._settle_on)
        self._all_done.set()

    def _settle_on(self) -> None:
        self._is_settling = False
        self.settle()


def _told(error: BaseException) -> Exception:
    """Return the error for a caller in the event loop: as it is, unless it would end more there than the caller."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    failed = JobError(f"a job ended with {error!r}")
    failed.__cause__ = error
    return failed


class _Writer:
    """One thread, as the event loop knows it."""

    def __init__(self, disk: DiskExecutor, number: int, env: Env) -> None:
        self.is_busy = False
        self.began_s = 0.0
        self._disk = disk
        self._worker = env.worker(partial(disk.work, self._finished), f"write-{number}", None)

    def begin(self, now_s: float) -> None:
        self.is_busy, self.began_s = True, now_s
        self._worker.wake()

    def end(self) -> None:
        self._worker.end()

    def _finished(self) -> None:
        self.is_busy = False
        self._disk.settle()
