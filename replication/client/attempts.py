"""The attempts of one call: when the next one is made, and when a broker is given up."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from logstore.env import SYSTEM
from logstore.errors import PylogError
from replication.errors import ErrorCode, KafkaError, ProtocolError
from replication.network.client import Client

logger = logging.getLogger(__name__)

BACKOFF_MIN_S, BACKOFF_MAX_S = 0.05, 1.0
# After so long without any answer, others are asked whether a broker still leads.
SILENT_S = 1.0
LOST = (OSError, TimeoutError)  # of a connection: another one may do
# No server listens there, or nobody knows the name: brokers may be about to start, but mostly the address is wrong.
REFUSED = (ConnectionRefusedError, socket.gaierror)
REFUSED_S = 5.0  # a cluster that was never reached is given up when all its addresses have failed so for so long
SAYS_AFTER_S = 3.0  # a call that is still tried says so, once


class Backoff:
    """Waits that double, up to a second, with some chance in them."""

    def __init__(self, timeout_s: float, first_s: float = BACKOFF_MIN_S) -> None:
        self.deadline = asyncio.get_running_loop().time() + timeout_s
        self._timeout_s = timeout_s
        self._next_s = first_s

    @property
    def is_over(self) -> bool:
        """The time of the call has passed."""
        return asyncio.get_running_loop().time() >= self.deadline

    async def wait(self) -> None:
        """Wait for the next attempt, not beyond the deadline."""
        left_s = self.deadline - asyncio.get_running_loop().time()
        await asyncio.sleep(max(0.0, min(left_s, self._next_s * SYSTEM.random.uniform(0.8, 1.2))))
        self._next_s = min(2 * self._next_s, BACKOFF_MAX_S)

    def failure(self, what: str, last: object, code: ErrorCode = ErrorCode.REQUEST_TIMED_OUT) -> KafkaError:
        """The error of the call when its time is over; `last` is why its last attempt failed."""
        return KafkaError(code, f"{what} did not succeed within {self._timeout_s:g} s; last: {reason_of(last)}")


class Failures:
    """Why the addresses of one call gave no answer so far. `was_reached`: a broker has answered an earlier call."""

    def __init__(self, *, was_reached: bool) -> None:
        self.reasons: dict[str, str] = {}
        self._refused: set[str] = set()
        self._was_reached = was_reached
        self._has_said = False
        self._begun_s = asyncio.get_running_loop().time()

    def __str__(self) -> str:
        return "; ".join(f"{address}: {reason}" for address, reason in self.reasons.items())

    def note(self, address: str, error: Exception, *, is_cut_short: bool) -> None:
        """Note the failure of an attempt; one that the deadline cut short knows less than an earlier one."""
        if not (is_cut_short and address in self.reasons):
            self.reasons[address] = reason_of(error)
            (self._refused.add if isinstance(error, REFUSED) else self._refused.discard)(address)

    @property
    def are_final(self) -> bool:
        """No repetition is likely to help."""
        is_refused = not self._was_reached and len(self._refused) == len(self.reasons)
        return is_refused and asyncio.get_running_loop().time() - self._begun_s >= REFUSED_S

    def say(self) -> None:
        """Log once that the call takes long, and why."""
        if not self._has_said and asyncio.get_running_loop().time() - self._begun_s >= SAYS_AFTER_S:
            self._has_said = True
            logger.warning("still trying %s", self)


async def unless_silent(broker: Client, call: Awaitable[Any], is_replaced: Callable[[], Awaitable[bool]]) -> Any:
    """The answer of a broker; when it is silent, and is replaced, its connection is closed, and the call is lost."""

    async def watch() -> None:
        while True:
            if broker.silent_s >= SILENT_S and await is_replaced():
                broker.reset()
            await asyncio.sleep(SILENT_S)

    loop = asyncio.get_running_loop()
    watching: list[asyncio.Task[None]] = []  # most calls are answered before there is one
    begin = loop.call_later(SILENT_S, lambda: watching.append(loop.create_task(watch())))
    try:
        return await call
    finally:
        begin.cancel()
        for task in watching:
            task.cancel()


def failure_of(task: asyncio.Task[None], who: str) -> PylogError | None:
    """The error for callers that wait for a task of `who` that has ended; None: the task did not fail."""
    error = None if task.cancelled() else task.exception()
    if error is None or isinstance(error, PylogError):
        return error
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{who} failed: {error!r}")


def may_pass(error: PylogError) -> bool:
    """True if the same call may succeed later; also if a broker is not known yet."""
    return isinstance(error, KafkaError) and (error.code.is_retriable or error.code is ErrorCode.BROKER_NOT_AVAILABLE)


def reason_of(error: object) -> str:
    """Why an attempt failed, in some words."""
    if isinstance(error, ErrorCode):
        return error.name
    if isinstance(error, ProtocolError):
        return f"not a Kafka broker ({error})"
    if isinstance(error, TimeoutError) and not str(error):
        return "did not answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
