"""A coordination tree in ZooKeeper, through kazoo. The only module that knows kazoo.

kazoo works in a thread of its own. By default it hands results and watches to further threads, which may change their
order. Here its thread posts them to the event loop as it reads them from the socket, so that a watch is called before
newer data is seen, as ZooKeeper promises. After a session has expired, kazoo would begin another one; this Tree is
then over, and none of its calls reaches that other session.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Self, TypeVar

from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.states import EventType, KazooState, KeeperState, WatchedEvent

from logstore.env import Env
from replication.coordination.tree import (
    NO_VERSION,
    SESSION_TIMEOUT_MS,
    BadVersionError,
    BatchResult,
    Check,
    ConnectionLossError,
    CoordinationError,
    Create,
    Delete,
    Done,
    EphemeralParentError,
    Node,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OnSession,
    RefusedError,
    SessionEvent,
    SessionExpiredError,
    SetData,
    Step,
    Tree,
    Watch,
    check_path,
    check_steps,
)
from replication.coordination.turns import Turns

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

# kazoo's wake-up pipe holds about 270 requests; a full one would block the event loop.
IN_FLIGHT_MAX = 128
CONNECT_S = 15  # for the first connection, over as many attempts as fit: a server may just be starting
LOOKS_PER_S = 10  # for a cancelled connection attempt
# Pauses between attempts to reach a server; a session of 6 s has time for a dozen.
RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 0.5}

# Other events report a lost connection.
_CHANGES = (EventType.CREATED, EventType.CHANGED, EventType.DELETED, EventType.CHILD)
_REFUSALS: dict[type[Exception], type[RefusedError]] = {
    kazoo_errors.NoNodeError: NoNodeError,
    kazoo_errors.NodeExistsError: NodeExistsError,
    kazoo_errors.BadVersionError: BadVersionError,
    kazoo_errors.NotEmptyError: NotEmptyError,
    kazoo_errors.NoChildrenForEphemeralsError: EphemeralParentError,
}


class _InOrder(SequentialThreadingHandler):  # type: ignore[misc]
    """Runs callbacks in the thread that reads the socket. They must not block; ours post to the event loop."""

    def start(self) -> None:
        """Start no threads: kazoo calls back directly while the handler is not "running"."""

    def stop(self) -> None: ...

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)


class ZooKeeperTree(Tree):
    def __init__(self, hosts: str, session_timeout_ms: int, on_session: OnSession, env: Env) -> None:
        self._hosts = hosts
        self._on_session = on_session
        self._clock = env.clock
        self._loop = asyncio.get_running_loop()
        self._timeout_ms = session_timeout_ms
        self._client = _client(hosts, session_timeout_ms)
        self._client.add_listener(self._state_changed)
        self._note_negotiated_timeout()
        self._turns = Turns(self._loop)
        self._pinged_ms: int | None = None
        self._ping_while_the_loop_turns()
        self._in_flight = asyncio.Semaphore(IN_FLIGHT_MAX)
        # No call may reach kazoo after it has reported that the session expired.
        self._mutex = threading.Lock()
        self._state: SessionEvent | None = None  # None before the first connection
        self._closing = False
        self._renewing: asyncio.Task[None] | None = None
        self._stopping: asyncio.Future[None] | None = None
        self.session = 0
        self.token = b""
        self.lease_end_ms = 0

    @classmethod
    async def open(
        cls,
        hosts: str,
        *,
        on_session: OnSession,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        env: Env | None = None,
    ) -> Self:
        """Open a session; `hosts` is `host:port,host:port/chroot`. A missing chroot is created.

        Raises: CoordinationError: no server answers within CONNECT_S.
        """
        servers, _, chroot = hosts.partition("/")
        tree = cls(hosts, session_timeout_ms, on_session, env or Env())
        try:
            if chroot:
                await _connecting(_make_chroot, servers, f"/{chroot}", session_timeout_ms)
            begun_ms = tree._clock.monotonic_ms()
            await _connecting(_start, tree._client)
        except KazooTimeoutError as error:
            raise CoordinationError(f"no ZooKeeper server answers at {servers}; is it running?") from error
        tree.session, password = tree._client.client_id
        tree.token = b"%d %s" % (tree.session, password.hex().encode())
        tree.lease_end_ms = begun_ms + tree._timeout_ms
        tree._renewing = asyncio.create_task(tree._renew())
        return tree

    # ----------------------------------------------------------------- calls

    def excuse(self, stands_for_a_reason: Callable[[], bool]) -> None:
        self._turns.excuse = stands_for_a_reason

    async def get(self, path: str, watch: Watch | None = None) -> Node | None:
        check_path(path)
        adapter = self._adapter(path, watch)
        while True:
            try:
                data, stat = await self._call(path, lambda client: client.get_async(path, watch=adapter))
                return Node(data or b"", stat.version, stat.czxid, stat.ephemeralOwner or 0)
            except NoNodeError:
                if adapter is None:
                    return None
            # Only `exists` can watch a missing node. If it was created meanwhile, begin again.
            if await self._call(path, lambda client: client.exists_async(path, watch=adapter)) is None:
                return None

    async def children(self, path: str, watch: Watch | None = None) -> tuple[str, ...]:
        check_path(path)
        adapter = self._adapter(path, watch)
        found = await self._call(path, lambda client: client.get_children_async(path, watch=adapter))
        return tuple(sorted(found))

    async def multi(self, steps: Sequence[Step]) -> tuple[Done, ...]:
        result = await self._multi(check_steps(steps))
        if isinstance(result, RefusedError):
            raise result
        return result

    async def write_batch(self, multis: Sequence[Sequence[Step]]) -> tuple[BatchResult, ...]:
        checked = [check_steps(steps) for steps in multis]
        return await _all([self._multi(steps) for steps in checked])

    async def read_batch(self, paths: Sequence[str]) -> tuple[Node | None, ...]:
        return await _all([self.get(path) for path in paths])

    async def end_session(self, token: bytes) -> None:
        """Take the session of a former life over, and close it."""
        session, _, password = token.partition(b" ")
        client = _client(self._hosts, self._timeout_ms, (int(session), bytes.fromhex(password.decode())))
        try:
            await _connecting(_start, client)
        except KazooTimeoutError as error:
            raise ConnectionLossError("no ZooKeeper server answers") from error
        await asyncio.to_thread(_stop, client)

    async def close(self) -> None:
        self._closing = True
        await self._stop()

    def _stop(self) -> asyncio.Future[None]:
        if self._stopping is None:
            if self._renewing is not None:
                self._renewing.cancel()
            self._stopping = asyncio.ensure_future(asyncio.to_thread(_stop, self._client))
        return self._stopping

    async def _multi(self, steps: Sequence[Step]) -> BatchResult:
        def begin(client: KazooClient) -> Any:
            transaction = client.transaction()
            for step in steps:
                _add(transaction, step)
            return transaction.commit_async()

        outcomes = await self._call(steps[0].path if steps else "/", begin)
        for index, (step, outcome) in enumerate(zip(steps, outcomes, strict=True)):
            if (kind := _REFUSALS.get(type(outcome))) is not None:
                return kind(step.path, index)
        return tuple(_done(step, outcome) for step, outcome in zip(steps, outcomes, strict=True))

    async def _call(self, path: str, begin: Callable[[KazooClient], Any]) -> Any:
        async with self._in_flight:
            future: asyncio.Future[Any] = self._loop.create_future()
            with self._mutex:
                if self._closing or self._state is SessionEvent.EXPIRED:
                    raise SessionExpiredError
                if self._state is SessionEvent.SUSPENDED:
                    raise ConnectionLossError("suspended")
                begin(self._client).rawlink(lambda result: self._turns.post(_settle, future, result))
            try:
                return await future
            except kazoo_errors.SessionExpiredError:
                raise SessionExpiredError from None
            except (kazoo_errors.ConnectionLoss, kazoo_errors.ConnectionClosedError) as error:
                raise ConnectionLossError(str(error) or type(error).__name__) from None
            except kazoo_errors.ZookeeperError as error:
                if (kind := _REFUSALS.get(type(error))) is not None:
                    raise kind(path) from None
                raise CoordinationError(f"ZooKeeper refuses {path}: {type(error).__name__} {error}") from error

    def _adapter(self, path: str, watch: Watch | None) -> Callable[[WatchedEvent], None] | None:
        if watch is None:
            return None

        def fired(event: WatchedEvent) -> None:
            if event.type in _CHANGES:
                self._turns.post(watch, path)

        return fired

    # --------------------------------------------------------------- session

    def _state_changed(self, state: str) -> None:
        with self._mutex:
            if self._closing or self._state is SessionEvent.EXPIRED:
                return
            former = self._state
            if state != KazooState.LOST:
                self._state = SessionEvent[state]
            elif self._client.client_state == KeeperState.EXPIRED_SESSION:
                self._state = SessionEvent.EXPIRED
            else:
                self._state = SessionEvent.SUSPENDED
            if former not in (None, self._state):
                self._turns.post(self._announce, self._state)

    def _announce(self, state: SessionEvent) -> None:
        if state is SessionEvent.EXPIRED:
            self._stop()
        self._on_session(state)

    async def _renew(self) -> None:
        """Renew the lease with every answer: the server counts from a later time than the request's."""
        while True:
            begun_ms = self._clock.monotonic_ms()
            with contextlib.suppress(CoordinationError):
                await self._call("/", lambda client: client.exists_async("/"))
                self.lease_end_ms = max(self.lease_end_ms, begun_ms + self._timeout_ms)
            await asyncio.sleep(self._timeout_ms / 8000)

    def _note_negotiated_timeout(self) -> None:
        """The server may allow less than was asked for; kazoo tells only its own connection loop."""
        connection = self._client._connection
        connect = connection._connect

        def connect_and_note(*where: Any) -> Any:
            self._pinged_ms = None  # a ping to another server stays unanswered
            read_timeout_ms, connect_timeout_ms = connect(*where)
            self._timeout_ms = round(read_timeout_ms * 3 / 2)  # kazoo's read timeout is two thirds of it
            return read_timeout_ms, connect_timeout_ms

        connection._connect = connect_and_note

    def _ping_while_the_loop_turns(self) -> None:
        """Ping only while the event loop turns: a stuck broker must not keep its session.

        An answered ping renews the lease from the time when it was sent: kazoo clears the flag with the answer.
        """
        connection = self._client._connection
        ping = connection._send_ping

        def ping_if_turning(*arguments: Any) -> None:
            sent_ms, self._pinged_ms = self._pinged_ms, None
            if sent_ms is not None and not connection.ping_outstanding.is_set():
                self.lease_end_ms = max(self.lease_end_ms, sent_ms + self._timeout_ms)
            if self._turns.has_turned():
                self._pinged_ms = self._clock.monotonic_ms()
                ping(*arguments)

        connection._send_ping = ping_if_turning


def _client(hosts: str, timeout_ms: int, client_id: tuple[int, bytes] | None = None) -> KazooClient:
    return KazooClient(
        hosts,
        timeout=timeout_ms / 1000,
        client_id=client_id,
        handler=_InOrder(),
        connection_retry=RECONNECT,
        logger=_log,
    )


async def _connecting(work: Callable[..., None], *arguments: Any) -> None:
    """Do this in a thread; a cancelled caller does not wait for the connection."""
    is_over = threading.Event()
    try:
        await asyncio.to_thread(work, *arguments, is_over)
    finally:
        is_over.set()


def _start(client: KazooClient, is_over: threading.Event) -> None:
    """Connect within CONNECT_S, or give up once `is_over` is set."""
    connected = client.start_async()
    for _ in range(CONNECT_S * LOOKS_PER_S):
        if connected.wait(1 / LOOKS_PER_S) or is_over.is_set():
            break
    if not client.connected:
        _stop(client)
        raise KazooTimeoutError


def _stop(client: KazooClient) -> None:
    client.stop()
    client.close()


def _make_chroot(servers: str, chroot: str, timeout_ms: int, is_over: threading.Event) -> None:
    client = _client(servers, timeout_ms)
    _start(client, is_over)
    try:
        client.ensure_path(chroot)
    finally:
        _stop(client)


def _add(transaction: Any, step: Step) -> None:
    match step:
        case Check(path, version):
            transaction.check(path, version)
        case SetData(path, data, version):
            transaction.set_data(path, data, version)
        case Delete(path, version):
            transaction.delete(path, version)
        case Create(path, data, ephemeral, sequence):
            transaction.create(path, data, ephemeral=ephemeral, sequence=sequence)


def _done(step: Step, outcome: Any) -> Done:
    if isinstance(outcome, Exception):
        raise CoordinationError(f"ZooKeeper refuses {step.path}: {type(outcome).__name__} {outcome}")
    match step:
        case Create():
            return Done(outcome, 0)
        case SetData(path):
            return Done(path, outcome.version)
        case Check(path) | Delete(path):
            return Done(path, NO_VERSION)


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if future.done():
        return
    if result.successful():
        future.set_result(result.value)
    else:
        future.set_exception(result.exception)


async def _all(calls: Sequence[Coroutine[Any, Any, _T]]) -> tuple[_T, ...]:
    """Return the results of all; after a failure, raise the first one once all calls have ended."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    if tasks:
        await asyncio.wait(tasks)
    return tuple([task.result() for task in tasks])
