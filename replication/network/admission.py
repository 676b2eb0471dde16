"""Admission: which clients of a server are let in, which of their requests may begin, and who waits for that.

Bounds: connections, so that logs always find a file descriptor; requests in work, in all; bytes of large requests; and
of those, none that stalls while others wait for the bytes. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from logstore.env import OPEN_FILES_MAX
from replication.network.arrivals import Arrivals, Fate
from replication.network.long_requests import LongRequests
from replication.network.mute import Mute
from replication.security.access import Context
from replication.security.quotas import Limits
from replication.security.rates import QuotaWindows

logger = logging.getLogger(__name__)

# File descriptors that clients do not get, beside those of logs: for locks, for connections to other brokers.
RESERVED_DESCRIPTORS = 200
FEW_DESCRIPTORS = 1024  # a usual limit, of which logs get little
OPEN_FILES_OF_BROKER_MAX = 64 * 1024
# While others wait for room, a large request that is coming brings STALL_BYTES in every STALL_S, or is given up.
STALL_S = 10.0
STALL_BYTES = 64 * 1024
STRANGERS_MAX = 1000  # connections with a handshake or a first login to do; never more than half of all
TURNED_AWAY_MAX = 100  # connections that are closed only after a while; others at once


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketServerSettings:
    socket_request_max_bytes: int = 104_857_600
    queued_max_requests: int = 500
    queued_max_request_bytes: int = 536_870_912
    connections_max_idle_ms: int = 600_000
    max_connections: int = 2_147_483_647
    socket_send_buffer_bytes: int = -1
    socket_receive_buffer_bytes: int = -1
    transaction_two_phase_commit_enable: bool = False  # as clients see it

    def places(self) -> int:
        """How many connections there may be, so that logs always find a file descriptor.

        The process' own limit of descriptors is raised to what the system allows it first.
        """
        descriptors = _descriptors()
        reserved = open_files_max() + RESERVED_DESCRIPTORS
        return min(self.max_connections, max(descriptors - reserved, descriptors // 4))

    def size_buffers(self, connection: socket.socket) -> None:
        sizes = {
            socket.SO_SNDBUF: self.socket_send_buffer_bytes,
            socket.SO_RCVBUF: self.socket_receive_buffer_bytes,
        }
        for option, size in sizes.items():
            if size != -1:
                connection.setsockopt(socket.SOL_SOCKET, option, size)


def open_files_max() -> int:
    """How many files the logs of this process may keep open: three quarters of the descriptors, where there are many.

    A write to a log whose file is not open costs twice as much.
    """
    return max(OPEN_FILES_MAX, min((_descriptors() - FEW_DESCRIPTORS) * 3 // 4, OPEN_FILES_OF_BROKER_MAX))


def _descriptors() -> int:
    """How many files and sockets this process may have open, as many as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


class Sender(Protocol):
    """An outbox, as admission knows it."""

    def send(self) -> None:
        """Give the socket the answers that are ready."""


class Admitted(Protocol):
    """A connection, as admission knows it."""

    context: Context
    mute: Mute

    def go_on(self) -> None:
        """There may be room now: begin the next request, read on, or `wait` again."""

    def measure(self) -> None:
        """Begin to count the bytes of the large request that is coming."""

    def close_if_stalled(self) -> None:
        """Close if too few of them came since `measure`."""

    def close_if_idle(self, idle_s: float) -> None:
        """Close if nothing came and nothing went for so long, and nothing is in work."""

    def wind_up(self) -> None:
        """Begin nothing more; close once what is in work is answered and sent."""

    def abort(self) -> None:
        """Let go at once."""


class Stranger(Protocol):
    """A connection whose client has not shown yet who it is."""

    def abort(self) -> None:
        """Let go at once."""


class Admission:
    def __init__(self, limits: SocketServerSettings, arrivals: Arrivals | None = None) -> None:
        self.limits = limits
        self.arrivals = arrivals or Arrivals(Limits(), QuotaWindows().clients)
        self._arrived: dict[Admitted, tuple[str, str]] = {}  # connections that `arrivals` counts: address, listener
        self._turned_away: dict[Admitted, asyncio.TimerHandle] = {}
        self._is_too_fast = False  # the last one that came
        self.long = LongRequests()
        self.connections: dict[Admitted, None] = {}  # the oldest first
        # Those with a handshake or a first login to do, the oldest first; is it a handshake, and no connection yet?
        self.strangers: dict[Stranger, bool] = {}
        self._shaking = 0  # of them, those with a handshake
        self.given_way = 0  # strangers, since the start, that others came after
        self.held_bytes = 0  # of large requests, from their first byte to their answer
        self.refused = 0  # connections, since the start: there were too many
        self.misused = 0  # connections, since the start: the client broke the protocol
        self.throttled = 0  # requests, since the start, whose client was told to wait
        self.throttled_ms = 0  # in all, by the answers to these
        self.in_work = 0  # requests that count as queued
        self.gathered = 0  # requests that are served at the end of this turn
        self.unsent_bytes = 0  # of answers, for clients that do not read as fast as they ask
        self.is_closing = False
        self.all_gone = asyncio.Event()
        self.on_closed: Callable[[int], None] = lambda connection_id: None
        self._is_full = False  # since the last connection that found a place
        self._for_room: OrderedDict[Admitted, None] = OrderedDict()  # who waits, in their turn
        self._for_bytes: OrderedDict[Admitted, None] = OrderedDict()
        self._is_waking = False
        self._sending: list[Sender] = []
        self.is_serving = False  # requests, behind which all that is ready is sent
        self._stall_sweeper: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.limit(self.limits)

    def limit(self, limits: SocketServerSettings) -> None:
        """Have other limits from now on. Connections that are there stay."""
        self.limits = limits
        self._connections_max = limits.places()
        self._strangers_max = max(1, min(STRANGERS_MAX, self._connections_max // 2))

    def end(self) -> None:
        self.is_closing = True
        if self._stall_sweeper is not None:
            self._stall_sweeper.cancel()
        for stranger in tuple(self.strangers):
            stranger.abort()
        for connection in tuple(self._turned_away):
            connection.abort()

    def admit(self, connection: Admitted) -> bool:
        """Count the connection; may it stay?"""
        self.connections[connection] = None
        return self._has_place() and self._arrives(connection)

    def _has_place(self) -> bool:
        """Return whether the last one that was counted may stay; log it once while there are too many."""
        was_full, self._is_full = self._is_full, len(self.connections) + self._shaking > self._connections_max
        self.refused += self._is_full
        if self._is_full and not was_full:
            logger.warning(
                "connections=%d are all that there may be (max.connections, or ulimit -n): others are turned away",
                self._connections_max,
            )
        return not self._is_full and not self.is_closing

    def _arrives(self, connection: Admitted) -> bool:
        """Count it by its address; may it stay? It may have to wait, to be served or closed."""
        host, listener = connection.context.host, connection.context.listener
        fate, wait_ms, why = self.arrivals.arrive(host, int(self.loop.time() * 1000), listener)
        was_too_fast, self._is_too_fast = self._is_too_fast, fate is Fate.CLOSED
        if fate is Fate.SERVED:
            self._arrived[connection] = host, listener
            if wait_ms:
                connection.mute.hold(wait_ms)
            return True
        self.refused += 1
        if not was_too_fast:
            logger.warning("client=%s connections are turned away: %s", host, why)
        if not wait_ms or len(self._turned_away) >= TURNED_AWAY_MAX:
            return False
        del self.connections[connection]  # it takes nobody's place
        connection.mute.hold(2 * wait_ms)
        self._turned_away[connection] = self.loop.call_later(wait_ms / 1000, connection.abort)
        return True

    def meet(self, stranger: Stranger, *, is_shaking: bool = False) -> bool:
        """Count a stranger; may it stay? The oldest of too many gives way: a handshake takes others no time.

        `is_shaking`: it is no connection yet, and takes the place of one.
        """
        self.strangers[stranger] = is_shaking
        self._shaking += is_shaking
        if len(self.strangers) > self._strangers_max:
            if not self.given_way:
                logger.warning("connections=%d have not logged in: the oldest ones give way", self._strangers_max)
            self.given_way += 1
            oldest = next(iter(self.strangers))
            self.part(oldest)
            oldest.abort()
        return self._has_place() if is_shaking else not self.is_closing

    def part(self, stranger: Stranger) -> bool:
        """Count it no more; return whether it was counted."""
        is_shaking = self.strangers.pop(stranger, None)
        self._shaking -= bool(is_shaking)
        return is_shaking is not None

    def forget(self, connection: Admitted) -> None:
        self.connections.pop(connection, None)
        if (arrived := self._arrived.pop(connection, None)) is not None:
            self.arrivals.leave(*arrived)
        if (closing := self._turned_away.pop(connection, None)) is not None:
            closing.cancel()
        self._for_room.pop(connection, None)
        self._for_bytes.pop(connection, None)
        if not self.connections:
            self.all_gone.set()

    def send_later(self, sender: Sender) -> None:
        """Have it send at the end of this turn, with the others: a client is then woken once, and not for each."""
        self._sending.append(sender)
        if len(self._sending) == 1 and not self.is_serving:
            self.loop.call_soon(self.send)

    def send(self) -> None:
        """Have those send that have answers ready."""
        sending, self._sending = self._sending, []
        for sender in sending:
            sender.send()

    @property
    def has_room(self) -> bool:
        return self.in_work + self.gathered < self.limits.queued_max_requests

    def release(self) -> None:
        self.in_work -= 1
        self.wake()

    def wait(self, connection: Admitted) -> None:
        self._for_room.setdefault(connection)

    def wake(self) -> None:
        """There is room: let those who wait go on, in the next turn of the loop."""
        if not self._is_waking and (self._for_room or self._for_bytes):
            self._is_waking = True
            self.loop.call_soon(self._wake_waiting)

    def _wake_waiting(self) -> None:
        """Resume as many connections as there is room for. A connection that cannot go on remains the first."""
        self._is_waking = False
        while self._for_room and self.has_room:
            self._for_room.popitem(last=False)[0].go_on()
        while self._for_bytes:
            connection, _ = self._for_bytes.popitem(last=False)
            connection.go_on()
            if connection in self._for_bytes:
                self._for_bytes.move_to_end(connection, last=False)
                return

    def may_hold(self, size: int) -> bool:
        """Is there room for so many more bytes? One request is always let in, however large."""
        return self.held_bytes == 0 or self.held_bytes + size <= self.limits.queued_max_request_bytes

    def hold(self, size: int) -> None:
        """Count `size` more bytes; fewer if negative."""
        self.held_bytes += size
        if size < 0:
            self.wake()

    def wait_for_bytes(self, connection: Admitted) -> None:
        """Have it go on when there is room for the bytes of a large one; see that those who have them use them."""
        self._for_bytes.setdefault(connection)
        if self._stall_sweeper is None and not self.is_closing:
            for other in self.connections:
                other.measure()
            self._stall_sweeper = self.loop.call_later(STALL_S, self._sweep_stalled)

    def _sweep_stalled(self) -> None:
        self._stall_sweeper = None
        for connection in tuple(self.connections):
            connection.close_if_stalled()
        if self._for_bytes:
            self.wait_for_bytes(next(iter(self._for_bytes)))
