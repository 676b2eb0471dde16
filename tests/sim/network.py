"""A network that delays, holds back, breaks and cuts: connections between lives of processes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.sim.world import Life, SimLoop, World

HELD_S = 0.02  # so often it is looked whether a cut is over
CLIENTS_PORT = 1


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
        self.world.at(when_s, self._pump)

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
