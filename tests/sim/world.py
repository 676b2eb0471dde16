"""Virtual time, in which all simulated processes run.

`SimLoop` is the asyncio event loop of every process: what is ready is done in order, and time passes when nothing is.
A `Life` is one life of a process: its context marks all that it begins, so that all of that ends with it, and waits
while it is paused. Threads are events of their own, some time later. One seed decides everything.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from logstore.worker import Worker
from tests.sim.network import HELD_S, Listener, Transport
from tests.support.disk import PowerCut

TURNS_MAX = 100_000  # without a passing of time

DELAYS_MS, SPIKES_MS = range(1, 7), range(1, 601)
DISK_S = (0, 0, 0.001, 0.005)

LIFE: contextvars.ContextVar[Life] = contextvars.ContextVar("life")
NO_LIFE = contextvars.Context()  # of what happens in no process


class Handle:
    """Something to do, in a context: as asyncio's, which does more that nobody needs here."""

    __slots__ = ("act", "args", "context", "is_cancelled")

    def __init__(self, act: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context) -> None:
        self.act, self.args, self.context = act, args, context
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Life:
    """`host` is the name of its machine; `is_cut`: its disk has ended it, in the middle of what it does."""

    def __init__(self, loop: SimLoop, host: str) -> None:
        self.loop, self.host = loop, host
        self.is_over = self.is_cut = False
        self.paused_until_s = 0.0
        self.held: list[Handle] = []
        self.ends: list[Transport] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._tasks_max = 100
        self.context = contextvars.copy_context()
        self.context.run(LIFE.set, self)
        loop.lives.append(self)

    @property
    def is_paused(self) -> bool:
        return self.paused_until_s > self.loop.now_s

    def soon(self, act: Callable[..., object], *args: Any) -> None:
        self.loop.call_soon(act, *args, context=self.context)

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Until the end of the run, unless it is done: what is collected as garbage would go on to its end."""
        self._tasks.append(task)
        if len(self._tasks) > self._tasks_max:
            self._tasks = [each for each in self._tasks if not each.done()]
            self._tasks_max = 100 + 2 * len(self._tasks)

    def pause(self, duration_ms: int) -> None:
        self.paused_until_s = self.loop.now_s + duration_ms / 1000
        self.loop.call_at(self.paused_until_s, self._go_on, context=NO_LIFE)

    def _go_on(self) -> None:
        if not self.is_paused:
            held, self.held = self.held, []
            self.loop.ready.extendleft(reversed(held))

    def end(self, *, is_told: bool) -> None:
        """All that it began is no more; the other ends of its connections are told, or hear nothing of it."""
        self.is_over = True
        self.held.clear()
        for end in self.ends:
            if is_told and not end.is_over:
                end.out.send(end.peer.lose, ConnectionResetError("the process has ended"))


class World:
    """The state of the network, chance, and notes for the reader of a broken run."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.drop = self.spike = self.fails = self.busy = 0.0
        self.cuts: set[tuple[Any, Any]] = set()  # (from, to): nothing passes
        self.notes: deque[str] = deque(maxlen=600)
        self.broken: list[BaseException] = []  # laws, and what no process has foreseen
        self.loop = SimLoop(self)

    @property
    def now_ms(self) -> int:
        return round(self.loop.now_s * 1000)

    def note(self, text: str) -> None:
        self.notes.append(f"{self.now_ms:6d} {text}")

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.random.random() < probability

    def at(self, when_s: float, act: Callable[[], object]) -> None:
        """Have something happen then, in no process."""
        self.loop.call_at(when_s, act, context=NO_LIFE)

    def after(self, delay_ms: int, act: Callable[[], object]) -> None:
        self.at(self.loop.now_s + delay_ms / 1000, act)

    def delay_s(self) -> float:
        return self.random.choice(SPIKES_MS if self.chance(self.spike) else DELAYS_MS) / 1000

    def disk_s(self) -> float:
        return self.random.choice(DISK_S)


class SimLoop(asyncio.AbstractEventLoop):
    def __init__(self, world: World) -> None:
        self.world = world
        self.now_s = 0.0
        self.ready: deque[Handle] = deque()
        self.events = 0
        self.is_over = False
        self.life: Life | None = None  # in which something happens now
        self.listeners: dict[str, Listener] = {}
        self.lives: list[Life] = []
        self._timers: list[tuple[float, int, Handle]] = []
        self._numbers = itertools.count()
        self._turns = 0

    # ------------------------------------------------------------------- time

    def run_until(self, end_s: float, after_each: Callable[[Life | None], None]) -> None:
        """Let everything happen that is due before that; a law that was broken is raised."""
        broken = self.world.broken
        asyncio._set_running_loop(self)
        try:
            while (handle := self._next(end_s)) is not None:
                life = handle.context.get(LIFE)
                if life is not None and (life.is_over or life.held or life.paused_until_s > self.now_s):
                    if not life.is_over:
                        life.held.append(handle)
                    continue
                self.life = life
                try:
                    handle.context.run(handle.act, *handle.args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001  as asyncio's loop
                    self.call_exception_handler({"exception": error})
                self.events += 1
                after_each(life)
                if broken:
                    raise broken[0]
        finally:
            asyncio._set_running_loop(None)
        self.now_s = end_s

    def _next(self, end_s: float) -> Handle | None:
        ready, timers = self.ready, self._timers
        while True:
            while ready:
                handle = ready.popleft()
                if not handle.is_cancelled:
                    self._turns += 1
                    assert self._turns < TURNS_MAX, f"it goes round and round: {handle.act}"
                    return handle
            if not timers or timers[0][0] >= end_s:
                return None
            self.now_s, self._turns = max(self.now_s, timers[0][0]), 0
            while timers and timers[0][0] <= self.now_s:
                ready.append(heapq.heappop(timers)[2])

    def finish(self) -> None:
        """Let go of all that is left, without a trace."""
        self.is_over = True
        asyncio._set_running_loop(self)
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False
            with suppress(BaseException):
                task.get_coro().close()
        asyncio._set_running_loop(None)
        self.ready.clear()
        self._timers.clear()

    # -------------------------------------------------- as asyncio calls a loop

    def time(self) -> float:
        return self.now_s

    def call_soon(self, callback, *args, context=None):
        handle = Handle(callback, args, contextvars.copy_context() if context is None else context)
        self.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(self, when, callback, *args, context=None):
        handle = Handle(callback, args, contextvars.copy_context() if context is None else context)
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def call_later(self, delay, callback, *args, context=None):
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def create_future(self):
        return asyncio.Future(loop=self)

    def create_task(self, coro, *, name=None, context=None):
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        if (life := LIFE.get(None)) is not None:
            life.keep(task)
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self.is_over

    def call_exception_handler(self, context) -> None:
        error, life = context.get("exception"), LIFE.get(None)
        is_end = self.is_over or isinstance(error, PowerCut) or (life is not None and life.is_over)
        if error is not None and not is_end:
            self.world.broken.append(error)

    # ---------------------------------------------------------------- threads

    def run_in_executor(self, executor, func, *args):
        future = self.create_future()

        def act() -> None:
            try:
                found = func(*args)
            except Exception as error:  # noqa: BLE001  it is the caller's
                self.call_soon(_fail, future, error)
            else:
                self.call_soon(_settle, future, found)

        self.call_later(self.world.disk_s(), act)
        return future

    def worker(self, act: Callable[[], None], name: str, every_s: float | None = None) -> Worker:
        """A thread that works when it is woken; those that look by the clock only watch the loop."""
        return _Worker(self, act)

    # ---------------------------------------------------------------- network

    async def create_server(self, protocol_factory, host=None, port=None, **_):
        return Listener(self, protocol_factory, host, LIFE.get())

    def remove_reader(self, fd) -> None: ...

    async def create_connection(self, protocol_factory, host=None, port=None, **_):
        here = LIFE.get()
        await asyncio.sleep(self.world.delay_s())
        while {(here.host, host), (host, here.host)} & self.world.cuts:  # noqa: ASYNC110  the first packet is repeated
            await asyncio.sleep(HELD_S)
        listener = self.listeners.get(host)
        if listener is None or listener.life.is_over:
            raise ConnectionRefusedError(f"nobody listens at {host}")
        client, server = Transport(self.world, here, listener.life), Transport(self.world, listener.life, here)
        client.peer, server.peer = server, client
        listener.life.soon(server.begin, listener.protocol_factory)
        return client, client.begin(protocol_factory)


class _Worker(Worker):
    def __init__(self, loop: SimLoop, act: Callable[[], None]) -> None:
        self._loop, self._act = loop, act

    def wake(self) -> None:
        self._loop.call_later(self._loop.world.disk_s(), self._act)

    def end(self) -> None: ...


def _settle(future, found) -> None:
    if not future.done():
        future.set_result(found)


def _fail(future, error) -> None:
    if not future.done():
        future.set_exception(error)
