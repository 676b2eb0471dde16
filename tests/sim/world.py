"""Virtual time, in which all simulated processes run; and a network that delays, holds back, breaks and cuts.

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
from tests.support.disk import PowerCut

HELD_S = 0.02  # so often it is looked whether a cut is over
TURNS_MAX = 100_000  # without a passing of time
CLIENTS_PORT = 1

LIFE: contextvars.ContextVar[Life] = contextvars.ContextVar("life")


class Life:
    """`host` is the name of its machine; `is_cut`: its disk has ended it, in the middle of what it does."""

    def __init__(self, loop: SimLoop, host: str) -> None:
        self.loop, self.host = loop, host
        self.is_over = self.is_cut = False
        self.paused_until_s = 0.0
        self.held: list[asyncio.Handle] = []
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
        self.loop.call_at(self.paused_until_s, self._go_on, context=contextvars.Context())

    def _go_on(self) -> None:
        if not self.is_paused:
            held, self.held = self.held, []
            self.loop.ready.extend(held)

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

    def after(self, delay_ms: int, act: Callable[[], object]) -> None:
        """Have something happen later, in no process."""
        self.loop.call_at(self.loop.now_s + delay_ms / 1000, act, context=contextvars.Context())

    def delay_s(self) -> float:
        return self.random.randint(1, 600 if self.chance(self.spike) else 6) / 1000

    def disk_s(self) -> float:
        return self.random.choice((0, 0, 1, 5)) / 1000


class SimLoop(asyncio.AbstractEventLoop):
    def __init__(self, world: World) -> None:
        self.world = world
        self.now_s = 0.0
        self.ready: deque[asyncio.Handle] = deque()
        self.events = 0
        self.is_over = False
        self.life: Life | None = None  # in which something happens now
        self.listeners: dict[str, Listener] = {}
        self.lives: list[Life] = []
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = itertools.count()
        self._turns = 0

    # ------------------------------------------------------------------- time

    def run_until(self, end_s: float, after_each: Callable[[Life | None], None]) -> None:
        """Let everything happen that is due before that; a law that was broken is raised."""
        asyncio._set_running_loop(self)
        try:
            while (handle := self._next(end_s)) is not None:
                life = handle._context.get(LIFE)
                if life is not None and (life.is_over or life.is_paused):
                    if not life.is_over:
                        life.held.append(handle)
                    continue
                self.life = life
                handle._run()
                self.events += 1
                after_each(life)
                if self.world.broken:
                    raise self.world.broken[0]
        finally:
            asyncio._set_running_loop(None)
        self.now_s = end_s

    def _next(self, end_s: float) -> asyncio.Handle | None:
        ready, timers = self.ready, self._timers
        while True:
            while ready:
                handle = ready.popleft()
                if not handle._cancelled:
                    self._turns += 1
                    assert self._turns < TURNS_MAX, f"it goes round and round: {handle}"
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
        handle = asyncio.Handle(callback, args, self, context)
        self.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(self, when, callback, *args, context=None):
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def call_later(self, delay, callback, *args, context=None):
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle) -> None: ...

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


class Channel:
    """One direction of a connection: bytes arrive in order, later, and not while the way is cut."""

    def __init__(self, world: World, source: str, target: str, receiver: Life | None) -> None:
        self.world, self._way, self._receiver = world, (source, target), receiver
        self.refused: Callable[[], None] | None = None  # nobody is there any more who would take it
        self._queue: deque[tuple[float, Callable[..., object], tuple[Any, ...]]] = deque()
        self._due_s = 0.0
        self._is_pumping = False

    def send(self, act: Callable[..., object], *args: Any) -> None:
        self._due_s = max(self._due_s, self.world.loop.now_s + self.world.delay_s())
        self._queue.append((self._due_s, act, args))
        if not self._is_pumping:
            self._is_pumping = True
            self._pump_at(self._due_s)

    def drop(self) -> None:
        self._queue.clear()

    def _pump_at(self, when_s: float) -> None:
        self.world.loop.call_at(when_s, self._pump, context=contextvars.Context())

    def _pump(self) -> None:
        loop, queue = self.world.loop, self._queue
        while queue and queue[0][0] <= loop.now_s:
            if self._way in self.world.cuts:
                self._pump_at(loop.now_s + HELD_S)
                return
            _, act, args = queue.popleft()
            if self._receiver is None:
                act(*args)
            elif self._receiver.is_over and self.refused is not None:
                self.refused()
            else:
                self._receiver.soon(act, *args)
        self._is_pumping = bool(queue)
        if queue:
            self._pump_at(queue[0][0])


class Listener:
    def __init__(self, loop: SimLoop, protocol_factory, host: str, life: Life) -> None:
        self.protocol_factory, self.life, self.sockets = protocol_factory, life, (self,)
        self._loop, self._host = loop, host
        loop.listeners[host] = self

    def getsockname(self) -> tuple[str, int]:
        return self._host, CLIENTS_PORT

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        if self._loop.listeners.get(self._host) is self:
            del self._loop.listeners[self._host]


class Transport(asyncio.Transport):
    """One end of a connection. A connection that breaks does so for both ends, which notice it at their own times."""

    peer: Transport

    def __init__(self, world: World, here: Life, there: Life) -> None:
        super().__init__({"peername": (there.host, CLIENTS_PORT)})
        self.life = here
        self.is_over = False
        self.out = Channel(world, here.host, there.host, there)
        self.out.refused = self._refused
        self._world = world
        self._is_reading, self._kept = True, list[bytes]()
        here.ends.append(self)

    def begin(self, factory):
        self._protocol = factory()
        self._protocol.connection_made(self)
        return self._protocol

    # ------------------------------------------------------------------- here

    def write(self, data) -> None:
        if self.is_over:
            return
        if self._world.chance(self._world.drop):
            self._break()
        else:
            self.out.send(self.peer.receive, bytes(data))

    def writelines(self, list_of_data) -> None:
        self.write(b"".join(list_of_data))

    def _refused(self) -> None:
        """A machine that is up answers for the connections of former lives; one without power does not."""
        listener = self._world.loop.listeners.get(self.peer.life.host)
        if listener is not None and not listener.life.is_over:
            self.life.soon(self.lose, ConnectionResetError("the process has ended"))

    def _break(self) -> None:
        self.out.drop()
        self.peer.out.drop()
        for end in (self, self.peer):
            end.out.send = lambda *_: None
            delay_ms = self._world.random.randint(1, 600)
            error = ConnectionResetError("the connection broke")
            self._world.after(delay_ms, lambda end=end, error=error: end.life.soon(end.lose, error))

    def close(self) -> None:
        if not self.is_over:
            self.out.send(self.peer.lose, None)
            self._over(None)

    def abort(self) -> None:
        if not self.is_over:
            self.out.drop()
            self.out.send(self.peer.lose, ConnectionResetError("the other side has ended the connection"))
            self._over(None)

    def _over(self, error) -> None:
        self.is_over = True
        with suppress(ValueError):
            self.life.ends.remove(self)
        self.life.soon(self._protocol.connection_lost, error)

    def is_closing(self) -> bool:
        return self.is_over

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        kept, self._kept = self._kept, []
        for data in kept:
            self.life.soon(self.receive, data)

    # -------------------------------------------------------- from the other end

    def receive(self, data: bytes) -> None:
        if not self._is_reading:
            self._kept.append(data)
            return
        protocol = self._protocol
        while data and not self.is_over:
            room = protocol.get_buffer(len(data))
            size = min(len(room), len(data))
            room[:size] = data[:size]
            protocol.buffer_updated(size)
            data = data[size:]

    def lose(self, error: Exception | None) -> None:
        if not self.is_over:
            self._over(error)


def _settle(future, found) -> None:
    if not future.done():
        future.set_result(found)


def _fail(future, error) -> None:
    if not future.done():
        future.set_exception(error)
