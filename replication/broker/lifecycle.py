"""BrokerLifecycle: the session of a broker with the coordination store, and its registration in it.

`open` and `register` begin it. When it ends unexpectedly, the broker leads and follows nothing until it has registered
in another one. `hand_over` moves leadership away before the broker stops. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from logstore.checkpoint import write_atomic
from logstore.env import Env
from logstore.errors import NotAStoreError
from logstore.store.log_dir import BROKER
from logstore.store.meta_properties import owner_of
from replication.broker.feature_level import FeatureLevel
from replication.broker.inter_broker import InterBroker
from replication.config.broker import BrokerConfig
from replication.controller.driver import ControlledShutdownError, ControllerLoop
from replication.coordination import CopyPolicy, cluster, features, nodes, open_tree, registration
from replication.coordination.own_file import COORDINATION_FILE
from replication.coordination.tree import CoordinationError, OnSession, SessionEvent, Tree
from replication.errors import ErrorCode, KafkaError, ProtocolError
from replication.model.cluster import NO_EPOCH, BrokerInfo, TopicPartition, names_of
from replication.model.listeners import Listener
from replication.protocol import interbroker as ib
from replication.protocol.apis import ApiKey
from replication.replica.manager import ReplicaManager

logger = logging.getLogger(__name__)

SESSION_TOKEN = "session"  # a file: a restarted process ends the session of its former life with it
RETRY_S = 0.5
CONTROLLER_LOOK_S = 0.1  # between two looks for a controller, while this broker stops
_BETWEEN_CONTROLLERS = (ErrorCode.NOT_CONTROLLER, ErrorCode.STALE_BROKER_EPOCH)


class OpenTree(Protocol):
    async def __call__(
        self,
        address: str,
        *,
        on_session: OnSession,
        session_timeout_ms: int,
        env: Env | None,
        create: bool,
        copies: CopyPolicy | None,
    ) -> Tree:
        """Open a session with the store, as `replication.coordination.open_tree` does."""


class SessionWatch(Protocol):
    """Follows something in the tree, from a registration to the end of its session."""

    async def begin(self, tree: Tree) -> None: ...

    async def end(self) -> None: ...

    def look_again(self) -> None:
        """Read again after the store was silent."""


class BrokerLifecycle:
    def __init__(  # noqa: PLR0913, PLR0917  all that begins and ends with a session
        self,
        config: BrokerConfig,
        env: Env,
        replicas: ReplicaManager,
        controller: ControllerLoop,
        levels: FeatureLevel,
        watches: Sequence[SessionWatch],
        inter_broker: InterBroker,
        call: Callable[[BrokerInfo, ApiKey, Any], Awaitable[Any]],
        *,
        opening: OpenTree = open_tree,
    ) -> None:
        self.epoch = NO_EPOCH
        self._config = config
        self._env = env
        self._directory = Path(config.log_dirs) / BROKER
        self._replicas = replicas
        self._controller = controller
        self._levels = levels
        self._watches = watches
        self._inter_broker = inter_broker
        self._call = call
        self._opening = opening
        self._listeners: tuple[Listener, ...] = ()
        self._tree: Tree | None = None
        self._is_registered = self._is_stopping = self._is_suspended = False
        self._has_started = False  # it was registered once
        self._session = 0  # a count, to ignore events of former sessions
        self._renewal: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None  # closes a session that was given up

    @property
    def tree(self) -> Tree:
        """The tree of the session. Raises: KafkaError: there is none now."""
        if self._tree is None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "no session with the coordination store: try again")
        return self._tree

    def has_session(self) -> bool:
        """Is there a session, and is it connected as far as this broker knows?"""
        return self._tree is not None and not self._is_suspended

    # ------------------------------------------------------------- the session

    async def open(self) -> Tree:
        config = self._config
        address = config.coordination or f"sqlite:{self._directory / COORDINATION_FILE}"
        self._session += 1
        self._tree = await self._opening(
            address,
            on_session=partial(self._on_session, self._session),
            session_timeout_ms=config.zookeeper_session_timeout_ms,
            env=self._env,
            create=owner_of(Path(config.log_dirs), self._env) is None,  # an owned directory had a store before
            copies=CopyPolicy(config.coordination_copy_dir, config.coordination_copy_interval_ms),
        )
        return self._tree

    async def check_level(self, tree: Tree) -> None:
        """Raises: UnsupportedLevelError: the cluster is at a level that this broker does not support."""
        await features.check_level(tree, self._config.broker_id, self._levels.supported)

    async def wait_until_free(self, tree: Tree) -> None:
        """Wait for another registration of this id to end. Raises: BrokerIdTakenError.

        After a former life of this directory there is no need: its lock shows that that broker is gone.
        """
        if self._former_token() is None:
            await registration.until_free(tree, self._config.broker_id, wait_ms=self._registration_wait_ms)

    async def register(self, tree: Tree, listeners: tuple[Listener, ...]) -> None:
        """Register in this session, and take part in the cluster. Raises: CoordinationError.

        `listeners`: what others are told of, the one where brokers meet first.
        """
        self._listeners = listeners
        await self._inter_broker.learn(tree)  # a store that was restored may have another secret
        tree.excuse(self._replicas.is_writing)
        me = BrokerInfo(
            self._config.broker_id,
            NO_EPOCH,
            *listeners[0].endpoint,
            self._config.broker_rack or None,
            self._replicas.has_lost_writes,
            self._levels.supported,
            () if self._config.listening.is_plain else listeners,
        )
        self.epoch = await registration.register_broker(
            tree,
            me,
            now_ms=self._env.clock.now_ms(),
            wait_ms=self._registration_wait_ms,
            former=self._former_token(),
            offline=self._replicas.offline.said(),
            env=self._env,
        )
        token = self._directory / SESSION_TOKEN
        write_atomic(self._env, token, tree.token)
        self._env.files.restrict(token)
        self._replicas.connect(tree, self.epoch)
        for watch in self._watches:
            await watch.begin(tree)
        self._controller.begin(tree)
        self._is_registered = self._has_started = True

    @property
    def _registration_wait_ms(self) -> int:
        """Longer than the session of a killed broker lasts."""
        return 3 * self._config.zookeeper_session_timeout_ms

    def _former_token(self) -> bytes | None:
        try:
            return self._env.files.read_all(self._directory / SESSION_TOKEN)
        except FileNotFoundError:
            return None

    def _on_session(self, session: int, event: SessionEvent) -> None:
        if session != self._session:
            return
        logger.info("broker=%d session %s", self._config.broker_id, event)
        self._is_suspended = event is SessionEvent.SUSPENDED
        match event:
            case SessionEvent.SUSPENDED:
                self._replicas.suspend()
            case SessionEvent.CONNECTED:
                self._replicas.suspend(is_suspended=False)
                self._controller.look_again()
                for watch in self._watches:
                    watch.look_again()
            case SessionEvent.EXPIRED:
                self._replicas.disconnect()
                self._tree = None
                # One that is still starting fails at its next look into the tree, and is not registered half ready.
                if self._has_started and not self._is_stopping and (self._renewal is None or self._renewal.done()):
                    self._renewal = asyncio.get_running_loop().create_task(self._renew())

    def stood_still(self, stalled_ms: int) -> None:
        """Give the session up after a stall of the event loop during which another may have ended it."""
        tree = self._tree
        if tree is None or not self._is_registered or self._env.clock.monotonic_ms() < tree.lease_end_ms:
            return
        if stalled_ms < self._config.zookeeper_session_timeout_ms * 2 / 3:
            return  # the store was silent, and not this broker: see `_on_session`
        logger.warning("broker=%d stalled beyond its session, and gives it up", self._config.broker_id)
        self._on_session(self._session, SessionEvent.EXPIRED)
        self._session += 1  # ignore further events of it
        self._leaving = asyncio.get_running_loop().create_task(tree.close())

    async def _renew(self) -> None:
        """Register in another session, as another life, after as many attempts as it takes."""
        while True:
            self._is_registered = False
            await self._controller.end()
            await self.end_watches()
            try:
                opened = await self.open()
                await self._replicas.check_store(opened)
                await self.register(opened, self._listeners)
            except (CoordinationError, NotAStoreError) as error:
                logger.warning("broker=%d is not registered: %s", self._config.broker_id, error)
            except Exception:
                logger.exception("broker=%d is not registered", self._config.broker_id)
            if self._tree is not None and self._is_registered:
                return
            tree, self._tree = self._tree, None
            self._session += 1
            self._replicas.disconnect()
            if tree is not None:
                await tree.close()
            await asyncio.sleep(RETRY_S)

    async def end_watches(self) -> None:
        for watch in self._watches:
            await watch.end()

    # ------------------------------------------------------------------ the end

    def begin_to_stop(self) -> None:
        self._is_stopping = True
        if self._renewal is not None:
            self._renewal.cancel()

    async def hand_over(self) -> None:
        """Ask the controller to move leadership away, up to `controlled.shutdown.max.retries` times."""
        config = self._config
        remaining: tuple[TopicPartition, ...] | None = None
        for attempt in range(config.controlled_shutdown_max_retries):
            if attempt:
                await asyncio.sleep(config.controlled_shutdown_retry_backoff_ms / 1000)
            try:
                remaining = await self._ask_any_controller()
            except (CoordinationError, KafkaError, ProtocolError, OSError, TimeoutError) as error:
                logger.warning("broker=%d controlled shutdown failed: %s", config.broker_id, error)
                continue
            if not remaining:
                logger.info("[Kafka Server %d], Controlled shutdown succeeded", config.broker_id)
                return
            logger.info("[Kafka Server %d], Remaining partitions to move: %s", config.broker_id, names_of(remaining))
        logger.warning(
            "[Kafka Server %d], Proceeding though all controlled shutdown attempts failed: %s have no leader until "
            "this broker is back",
            config.broker_id,
            "its partitions" if remaining is None else names_of(remaining),
        )

    async def _ask_any_controller(self) -> tuple[TopicPartition, ...]:
        """Ask the controller; while there is none, or it stops too, wait up to two session timeouts for the next."""
        clock = self._env.clock
        give_up_ms = clock.monotonic_ms() + 2 * self._config.zookeeper_session_timeout_ms
        while True:
            try:
                return await self._ask_controller()
            except (ControlledShutdownError, KafkaError, ProtocolError, OSError) as error:
                is_between = not isinstance(error, KafkaError) or error.code in _BETWEEN_CONTROLLERS
                if not is_between or clock.monotonic_ms() >= give_up_ms:
                    raise
            await asyncio.sleep(CONTROLLER_LOOK_S)

    async def _ask_controller(self) -> tuple[TopicPartition, ...]:
        tree, broker_id = self.tree, self._config.broker_id
        if self._controller.is_active:
            async with asyncio.timeout(self._config.replica_socket_timeout_ms / 1000):
                return await self._controller.shut_down(broker_id, self.epoch)
        found = await tree.get(nodes.CONTROLLER)
        brokers = await cluster.read_brokers(tree)
        broker = brokers.get(nodes.decode_controller(found.data)) if found is not None else None
        if broker is None or broker.id == broker_id:
            raise ControlledShutdownError("there is no controller now, or it is this broker in a moment")
        request = ib.ControlledShutdownRequest(broker_id=broker_id, broker_epoch=self.epoch)
        response = await self._call(broker, ApiKey.CONTROLLED_SHUTDOWN, request)
        if response.error_code:
            raise KafkaError(ErrorCode(response.error_code))
        return tuple(TopicPartition(row.topic_name, row.partition_index) for row in response.remaining_partitions)

    async def resign(self) -> None:
        """Let another broker be the controller now, before the last requests are answered."""
        if self._tree is not None:
            with contextlib.suppress(CoordinationError):  # then the node goes with the session
                await cluster.resign(self._tree)

    async def close(self) -> None:
        if self._tree is not None:
            await self._tree.close()
