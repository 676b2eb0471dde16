"""Long work in an event loop, in steps: between two of them everybody else is served.

In one turn of the loop at most one step is taken, of all the long work that there is: so it does not matter how many
long requests come together. All who wait for a step get it in turn.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable, Iterator
from typing import Any, Self, TypeVar
from weakref import WeakKeyDictionary

Item = TypeVar("Item")
Found = TypeVar("Found")

# The work for one item takes 5 to 50 us: a step, some milliseconds.
STEP_ITEMS = 250
# Items of a step that are made and encoded one by one: each costs more.
ROWS = 100
# Where items wait for something: so many are begun in one step, and so many may wait at a time.
BEGUN = 10
AT_ONCE = 100


class _Queue:
    def __init__(self) -> None:
        self.waiting: deque[asyncio.Future[None]] = deque()
        self.is_going = False

    def next(self, loop: asyncio.AbstractEventLoop) -> None:
        while self.waiting:
            future = self.waiting.popleft()
            if not future.done():
                future.set_result(None)
                loop.call_soon(self.next, loop)
                return
        self.is_going = False


_queues: WeakKeyDictionary[asyncio.AbstractEventLoop, _Queue] = WeakKeyDictionary()


async def step() -> None:
    """Wait for the next step: everybody else is served first."""
    loop = asyncio.get_running_loop()
    queue = _queues.get(loop)
    if queue is None:
        queue = _queues[loop] = _Queue()
    future: asyncio.Future[None] = loop.create_future()
    queue.waiting.append(future)
    if not queue.is_going:
        queue.is_going = True
        loop.call_soon(queue.next, loop)
    await future


async def in_steps(items: Iterable[Item], size: int = STEP_ITEMS) -> AsyncIterator[list[Item]]:
    """Yield `items` in lists of at most `size`; between two lists, others are served. Few items need no step."""
    rest = iter(items)
    chunk = list(itertools.islice(rest, size))
    while chunk:
        yield chunk
        following = list(itertools.islice(rest, size))
        if following:
            await step()
        chunk = following


async def all_of(act: Callable[[Item], Awaitable[Found]], items: Iterable[Item]) -> list[Found]:
    """Await `act` for every item; return the results in order. Begin in steps, with at most AT_ONCE in progress.

    If one raises, no further call begins; the error is raised once those in progress have ended.
    """
    found: dict[int, Found] = {}
    failed: list[BaseException] = []
    room = asyncio.Semaphore(AT_ONCE)

    async def one(number: int, item: Item) -> None:
        try:
            found[number] = await act(item)
        except BaseException as error:  # noqa: BLE001  raised below
            failed.append(error)
        finally:
            room.release()

    tasks: set[asyncio.Task[None]] = set()
    try:
        async for chunk in in_steps(enumerate(items), BEGUN):
            for number, item in chunk:
                await room.acquire()
                if failed:
                    break
                task = asyncio.ensure_future(one(number, item))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        if tasks:
            await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        raise
    if failed:
        raise failed[0]
    return [found[number] for number in range(len(found))]


def begin(work: Coroutine[Any, Any, Found]) -> Found | Awaitable[Found]:
    """Go through a coroutine as far as it waits for nothing: what it returns, or the rest of it.

    Most need no task then. Code before the first wait has no current task: no `asyncio.timeout`.
    """
    try:
        waits_for = work.send(None)
    except StopIteration as end:
        found: Found = end.value
        return found
    return _Rest(work, waits_for)


class _Rest(Coroutine[Any, Any, Found]):
    """A coroutine that has begun, and waits. Its task may be cancelled before its first turn: that reaches the work."""

    __slots__ = ("_is_awaited", "_waits_for", "_work")

    def __init__(self, work: Coroutine[Any, Any, Found], waits_for: Any) -> None:
        self._work, self._waits_for = work, waits_for
        self._is_awaited = False

    def send(self, value: Any) -> Any:
        if self._is_awaited:
            return self._work.send(value)
        self._is_awaited = True
        waits_for, self._waits_for = self._waits_for, None
        return waits_for

    def throw(self, *error: Any) -> Any:
        """Raise the error in the work; where nobody waits yet, that ends what it waits for, as a task would."""
        if not self._is_awaited:
            self._is_awaited = True
            if self._waits_for is not None:
                self._waits_for.cancel()
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, Found]:
        return self

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return self.send(None)


async def run(steps: Iterator[Any], size: int = ROWS) -> Any:
    """Go through a generator to its end, in steps; return what it returns."""
    while True:
        is_over, result = advance(steps, size)
        if is_over:
            return result
        await step()


def all_at_once(steps: Iterator[Any]) -> Any:
    """Go through a generator of few items to its end; return what it returns."""
    return advance(steps, sys.maxsize)[1]


def advance(steps: Iterator[Any], size: int = ROWS) -> tuple[bool, Any]:
    """Go through at most `size` items of a generator; (whether it has ended, what it returned then)."""
    try:
        for _ in range(size):
            next(steps)
    except StopIteration as end:
        return True, end.value
    return False, None
