"""Server: the network side of a broker. It listens, owns its connections, and closes those that are idle.

One event loop does what Kafka's acceptor and network threads do; slow work belongs on the handlers' own executor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import cast

from replication.network.admission import Admission, SocketServerSettings
from replication.network.arrivals import Arrivals
from replication.network.connection import Connection, LoginConnection, Service
from replication.network.doorman import Doorman
from replication.network.gate import Gate
from replication.network.pipeline import Endpoints, Pipeline, RequestObserver
from replication.network.throttle import Throttle
from replication.network.work import running
from replication.protocol.apis import Identity
from replication.protocol.features import DEFAULT_FEATURES, Features
from replication.security.access import ALLOW_ALL, Authorizer

logger = logging.getLogger(__name__)

BACKLOG = 1024  # connections that wait to be accepted


class Server:
    """Listens, and owns its connections. `close` may be called more than once."""

    def __init__(  # noqa: PLR0913  as `Pipeline`
        self,
        endpoints: Endpoints,
        limits: SocketServerSettings | None = None,
        *,
        observer: RequestObserver | None = None,
        features: Callable[[], Features] = lambda: DEFAULT_FEATURES,
        authorizer: Authorizer = ALLOW_ALL,
        own: Identity | None = None,
        throttle: Throttle | None = None,
    ) -> None:
        throttle = throttle or Throttle()
        self.admission = Admission(limits or SocketServerSettings(), Arrivals(throttle.limits, throttle.window))
        self.connections = cast("dict[Connection, None]", self.admission.connections)
        self.pipeline = Pipeline(
            endpoints,
            self.admission,
            features=features,
            own=own,
            authorizer=authorizer,
            observer=observer,
            throttle=throttle,
        )
        self._service = Service(self.pipeline)
        self._listeners: list[asyncio.Server] = []
        self._sweeper: asyncio.TimerHandle | None = None

    async def start(self, host: str, port: int, gate: Gate | None = None) -> int:
        """Listen, there too if it was called before; return the port (another one than given only for 0)."""
        loop = asyncio.get_running_loop()
        if self._sweeper is None:
            self.admission.begin()
            self._sweep()
        made = self._maker(gate or Gate())
        listener = await loop.create_server(made, host, port, backlog=BACKLOG)
        self._listeners.append(listener)
        return int(listener.sockets[0].getsockname()[1])

    def _maker(self, gate: Gate) -> Callable[[], asyncio.BaseProtocol]:
        """Return what makes the protocol of a connection at a listener."""
        kind = LoginConnection if gate.has_sasl else Connection
        made: Callable[..., Connection] = partial(kind, self._service, gate)
        return made if gate.tls is None else partial(Doorman, self.admission, gate, made)

    async def close(self, *, grace_s: float = 5.0) -> None:
        """Take no more requests, answer those in work for up to `grace_s`, and let go of all connections."""
        self.admission.end()
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._stop_listening()
        for connection in tuple(self.connections):
            connection.wind_up()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while self.connections:
                    self.admission.all_gone.clear()
                    await self.admission.all_gone.wait()
        if self.connections:
            logger.warning("connections=%d cut off at close", len(self.connections))
        for connection in tuple(self.connections):
            connection.abort()
        self.admission.long.close()

    async def _stop_listening(self) -> None:
        """Accept nobody more, then close the listener.

        Python's own loop forgets a connection, and leaves it open, if the listener is closed between the turn in which
        it is accepted and the next.
        """
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            for accepting in listener.sockets:
                self.admission.loop.remove_reader(accepting.fileno())
        if listeners:
            await asyncio.sleep(0)
        for listener in listeners:
            listener.close()

    def running(self) -> str:
        """Say what the event loop is doing, as far as that is known. From any thread: the loop may be stuck."""
        works = [work for connection in tuple(self.connections) for work in connection.works()]
        return running(self.admission.loop, works, self.pipeline.begun)

    def _sweep(self) -> None:
        """Close the connections that were idle for too long; look again soon enough to be late by a quarter at most."""
        idle_s = self.admission.limits.connections_max_idle_ms / 1000
        for connection in tuple(self.connections):
            connection.close_if_idle(idle_s)
        self._sweeper = self.admission.loop.call_later(max(idle_s / 4, 0.01), self._sweep)
