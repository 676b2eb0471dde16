"""Broker: one broker of a cluster: its logs, its place in the coordination tree, its port.

Life: `start` opens the session, mends the logs, listens, registers, and returns once a controller has told this broker
of the cluster, and of the topics that its directory brought. `stop` hands leadership over first, so that clients see no
error. When a session ends against its will, it leads and follows nothing until it is registered anew. Belongs to the
event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from logstore.checkpoint import write_atomic
from logstore.env import SYSTEM, Env
from logstore.errors import InvalidConfigError, NotAStoreError
from logstore.store.catalog import new_topic_id
from logstore.store.log_dir import BROKER, owner_of
from replication.broker.config_changes import ConfigChanges
from replication.broker.handlers.cluster import ClusterHandlers
from replication.broker.handlers.commits import CommitHandlers
from replication.broker.handlers.configs import ConfigHandlers
from replication.broker.handlers.controller import InterHandlers
from replication.broker.handlers.data import DataHandlers
from replication.broker.handlers.groups import GroupHandlers
from replication.broker.handlers.offsets import PositionHandlers
from replication.broker.handlers.reassignments import ReassignmentHandlers
from replication.broker.handlers.strangers import Strangers
from replication.broker.handlers.topics import TopicHandlers
from replication.broker.leaders import Leaders
from replication.broker.logs import StateChangeLog
from replication.broker.loop_watch import LoopWatch
from replication.broker.metrics import Metrics, MetricsEndpoint
from replication.broker.offsets_topic import group_coordinator
from replication.broker.topic_admin import TopicAdmin
from replication.config.broker import BrokerConfig, Endpoint
from replication.controller.driver import ControlledShutdownError, ControllerLoop
from replication.controller.machine.state import ControllerSettings
from replication.coordination import CopyPolicy, cluster, nodes, open_tree, registration
from replication.coordination.placements import Placements
from replication.coordination.tree import CoordinationError, SessionEvent, Tree
from replication.errors import ErrorCode, KafkaError, ProtocolError
from replication.model.cluster import BrokerInfo, TopicPartition
from replication.network.admission import SocketServerSettings
from replication.network.client import Clients
from replication.network.request import Handler
from replication.network.server import Server
from replication.network.work import running
from replication.protocol import interbroker as ib
from replication.protocol.apis import ApiKey
from replication.replica.manager import ReplicaManager
from replication.replica.storage.log_dir import COORDINATION_FILE

logger = logging.getLogger(__name__)

SESSION_TOKEN = "session"  # of the last session, to end it if this process is killed and comes back
RETRY_S = 0.5
ADOPTION_S = 10.0  # for the first election in what a directory brought
CONTROLLER_LOOK_S = 0.1  # how often a broker that stops looks whether there is a controller again
_BETWEEN_CONTROLLERS = (ErrorCode.NOT_CONTROLLER, ErrorCode.STALE_BROKER_EPOCH)
NAMED_MAX = 20  # partitions in one line of a log
GRACE_S = 5.0  # for what is in work when the broker stops


class Broker:
    """See the module. `endpoint` is where clients find it, once it has started."""

    def __init__(self, config: BrokerConfig, env: Env = SYSTEM) -> None:
        self.config = config
        self.env = env
        self.directory = Path(config.log_dirs) / BROKER
        self.endpoint = config.listener
        self.state_changes = StateChangeLog(self.directory, env)
        self.replicas = ReplicaManager(config, env, log_change=self.state_changes.write)
        self.controller = ControllerLoop(
            config.broker_id,
            _limits(config),
            self._call,
            self.state_changes.write,
            env.clock,
            unclean_default=config.unclean_leader_election_enable,
        )
        self._clients = Clients(f"broker-{config.broker_id}", timeout_ms=config.replica_socket_timeout_ms)
        leaders = Leaders(config.broker_id, self.replicas, self._clients)
        self._placements = Placements(config.max_broker_partitions)
        self.admin = TopicAdmin(
            config, self.replicas.metadata, self._connected_tree, leaders.all_lead, self._placements, env
        )
        self.configs = ConfigChanges(self.replicas.configure)
        self.groups = group_coordinator(config, self.replicas, env)
        self._loop = LoopWatch(env.clock, self._running, self._stood_still)
        self.replicas.look_with(self._loop.look)
        self.metrics = Metrics(self.replicas, self.controller, self.groups, leaders.ends, self._loop)
        self._endpoint = MetricsEndpoint(self.metrics.page)
        self.server: Server | None = None
        self.epoch = -1
        self._tree: Tree | None = None
        self._is_registered = False
        self._session = 0  # counts: events of former ones mean nothing
        self._is_told = asyncio.Event()  # a controller has named this broker among those that live
        self._adopted: Sequence[tuple[str, int]] = ()
        self._is_told_of_adopted = asyncio.Event()
        self._correlation = itertools.count(1)
        self._renewal: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None  # a session that was given up
        self._has_logs = self._is_stopping = False
        self.replicas.metadata.listen(self._note_metadata)

    # --------------------------------------------------------------------- life

    async def start(self) -> Endpoint:
        """Begin to serve; return where.

        Raises: BrokerIdTakenError, StoreLockedError, NotAStoreError, CoordinationError; InvalidConfigError: it cannot
        listen there.
        """
        self._loop.begin()
        tree = await self._open_session()
        await cluster.prepare(tree)
        cluster_id = await cluster.read_cluster_id(tree, new_topic_id())
        if self._former_token() is None:  # else the lock of the directory tells whether that broker lives
            await registration.until_free(tree, self.config.broker_id, wait_ms=self._registration_wait_ms)
        self._adopted = [
            (topic.name, number)
            for topic in await self.replicas.open(tree)
            for number in range(topic.partitions)
        ]
        self._has_logs = True
        await self.replicas.check_store(tree)
        self.groups.begin()
        self.server = Server(
            self._handlers(cluster_id), _server_limits(self.config), observer=self.metrics.times
        )
        port = await self._listen("listeners", self.server, self.config.listener.port)
        self.endpoint = self.config.advertised(port)
        if self.config.metrics_port >= 0:
            port = await self._listen("metrics.port", self._endpoint, self.config.metrics_port)
            logger.info("[Kafka Server %d], metrics at port %d", self.config.broker_id, port)
        await self._register(tree)
        await self._is_told.wait()
        with contextlib.suppress(TimeoutError):  # somebody may delete one of them in this very moment
            async with asyncio.timeout(ADOPTION_S):
                await self._is_told_of_adopted.wait()
        logger.info("[Kafka Server %d], started at %s", self.config.broker_id, self.endpoint)
        return self.endpoint

    async def _listen(self, key: str, listening: Server | MetricsEndpoint, port: int) -> int:
        host = self.config.listener.host
        try:
            return await listening.start(host, port)
        except OSError as error:
            raise InvalidConfigError(
                f"{key}: cannot listen at {Endpoint(host, port)} ({error.strerror or error})", key=key
            ) from None

    async def stop(self) -> None:
        """Hand leadership over, answer what is in work, flush, and leave."""
        self._is_stopping = True
        self._loop.end()
        if self._renewal is not None:
            self._renewal.cancel()
        if self.config.controlled_shutdown_enable and self._is_told.is_set():
            await self._hand_over()
        await self.controller.end()
        await self.configs.end()
        self.groups.end()
        self.replicas.disconnect()
        await self._resign()
        if self.server is not None:
            await self.server.close(grace_s=GRACE_S)
        await self._endpoint.close()
        self._clients.close()
        if self._tree is not None:
            await self._tree.close()
        if self._has_logs:
            await self.replicas.close()
        self.state_changes.flush()
        if self._is_told.is_set():  # else it never started
            logger.info("[Kafka Server %d], shut down completed", self.config.broker_id)

    def _handlers(self, cluster_id: str) -> Mapping[ApiKey, Handler]:
        metadata = self.replicas.metadata
        strangers = Strangers()
        families = (
            DataHandlers(self.config, self.replicas, strangers),
            PositionHandlers(self.config, self.replicas, self._connected_tree),
            InterHandlers(self.replicas.requests, self.controller, strangers),
            ClusterHandlers(self.config, cluster_id, metadata, self.admin),
            TopicHandlers(self.config, metadata, self.admin),
            ReassignmentHandlers(self.controller, metadata, self._placements, self._connected_tree),
            ConfigHandlers(self.config, metadata, self._connected_tree),
            GroupHandlers(self.config, metadata, self.admin, self.groups),
            CommitHandlers(metadata, self.groups, self.env.clock),
        )
        return {key: handler for family in families for key, handler in family.handlers().items()}

    def _note_metadata(self) -> None:
        live = self.replicas.metadata.brokers()
        self._clients.keep({(broker.host, broker.port) for broker in live.values()})
        if self.config.broker_id in live:
            self._is_told.set()
        if not self._is_told_of_adopted.is_set():
            leader = self.replicas.metadata.leader
            if all(leader(*tp) is not None for tp in self._adopted):
                self._is_told_of_adopted.set()

    # ------------------------------------------------------------- the session

    async def _open_session(self) -> Tree:
        address = self.config.coordination or f"sqlite:{self.directory / COORDINATION_FILE}"
        self._session += 1
        self._tree = await open_tree(
            address,
            on_session=partial(self._on_session, self._session),
            session_timeout_ms=self.config.zookeeper_session_timeout_ms,
            env=self.env,
            create=owner_of(Path(self.config.log_dirs), self.env) is None,  # else it was there once
            copies=CopyPolicy(self.config.coordination_copy_dir, self.config.coordination_copy_interval_ms),
        )
        return self._tree

    async def _register(self, tree: Tree) -> None:
        """Register, and take part in the cluster in this session."""
        tree.excuse(self.replicas.is_writing)
        me = BrokerInfo(
            self.config.broker_id,
            -1,
            self.endpoint.host,
            self.endpoint.port,
            self.config.broker_rack or None,
            self.replicas.has_lost_writes,
        )
        self.epoch = await registration.register_broker(
            tree,
            me,
            now_ms=self.env.clock.now_ms(),
            wait_ms=self._registration_wait_ms,
            former=self._former_token(),
            offline=self.replicas.offline.said(),
            env=self.env,
        )
        self._keep_token(tree.token)
        self.replicas.connect(tree, self.epoch)
        await self.configs.begin(tree)
        self.controller.begin(tree)
        self._is_registered = True

    @property
    def _registration_wait_ms(self) -> int:
        """Longer than the session of a broker that was killed goes on."""
        return 3 * self.config.zookeeper_session_timeout_ms

    def _former_token(self) -> bytes | None:
        try:
            return self.env.files.read_all(self.directory / SESSION_TOKEN)
        except FileNotFoundError:
            return None

    def _keep_token(self, token: bytes) -> None:
        path = self.directory / SESSION_TOKEN
        write_atomic(self.env, path, token)
        path.chmod(0o600)

    def _connected_tree(self) -> Tree:
        if self._tree is None:
            raise KafkaError(
                ErrorCode.BROKER_NOT_AVAILABLE, "no session with the coordination store: try again"
            )
        return self._tree

    def _on_session(self, session: int, event: SessionEvent) -> None:
        if session != self._session:
            return
        logger.info("broker=%d session %s", self.config.broker_id, event)
        match event:
            case SessionEvent.SUSPENDED:
                self.replicas.suspend()
            case SessionEvent.CONNECTED:
                self.replicas.resume()
                self.controller.look_again()
                self.configs.look_again()
            case SessionEvent.EXPIRED:
                self.replicas.disconnect()
                self._tree = None
                if not self._is_stopping and (self._renewal is None or self._renewal.done()):
                    self._renewal = asyncio.get_running_loop().create_task(self._renew())

    def _running(self) -> str:
        server = self.server
        if server is None:
            return "it starts"
        return running(server.loop, tuple(server.connections), server.begun)

    def _stood_still(self, stood_ms: int) -> None:
        """The loop turns again. If somebody may have ended the session meanwhile, nothing may rest on it any more."""
        tree = self._tree
        if tree is None or not self._is_registered or self.env.clock.monotonic_ms() < tree.lease_end_ms:
            return
        if stood_ms < self.config.zookeeper_session_timeout_ms * 2 / 3:
            return  # it is the store that was silent: see `replicas.suspend`
        logger.warning("broker=%d stood still beyond its session, and gives it up", self.config.broker_id)
        self._on_session(self._session, SessionEvent.EXPIRED)
        self._session += 1  # what is told of it from now on means nothing
        self._leaving = asyncio.get_running_loop().create_task(tree.close())

    async def _renew(self) -> None:
        """The session has ended: begin anew, as another incarnation, however often that fails."""
        while True:
            self._is_registered = False
            await self.controller.end()
            await self.configs.end()
            try:
                opened = await self._open_session()
                await self.replicas.check_store(opened)
                await self._register(opened)
            except (CoordinationError, NotAStoreError) as error:
                logger.warning("broker=%d is not registered: %s", self.config.broker_id, error)
            except Exception:
                logger.exception("broker=%d is not registered", self.config.broker_id)
            if self._tree is not None and self._is_registered:
                return
            tree, self._tree = self._tree, None
            self._session += 1
            self.replicas.disconnect()
            if tree is not None:
                await tree.close()
            await asyncio.sleep(RETRY_S)

    # --------------------------------------------------------- the other brokers

    async def _call(self, broker: BrokerInfo, key: ApiKey, request: Any) -> Any:
        """Ask a broker something, be it this one."""
        if broker.id == self.config.broker_id:
            return await self.replicas.requests.obey(request, next(self._correlation))
        return await self._clients.call(broker.host, broker.port, key, request)

    async def _hand_over(self) -> None:
        """Ask the controller to move leadership away, as often as is allowed."""
        remaining: tuple[TopicPartition, ...] | None = None
        for attempt in range(self.config.controlled_shutdown_max_retries):
            if attempt:
                await asyncio.sleep(self.config.controlled_shutdown_retry_backoff_ms / 1000)
            try:
                remaining = await self._ask_any_controller_to_leave()
            except (CoordinationError, KafkaError, ProtocolError, OSError, TimeoutError) as error:
                logger.warning("broker=%d controlled shutdown failed: %s", self.config.broker_id, error)
                continue
            if not remaining:
                logger.info("[Kafka Server %d], Controlled shutdown succeeded", self.config.broker_id)
                return
            logger.info(
                "[Kafka Server %d], Remaining partitions to move: %s",
                self.config.broker_id,
                _named(remaining),
            )
        logger.warning(
            "[Kafka Server %d], Proceeding though all the controlled shutdown attempts failed: nobody leads %s until "
            "this broker is back",
            self.config.broker_id,
            "what it leads" if remaining is None else _named(remaining),
        )

    async def _ask_any_controller_to_leave(self) -> tuple[TopicPartition, ...]:
        """Ask; while there is none, or one that stops, too, wait for the next: two session timeouts at most."""
        clock = self.env.clock
        give_up_ms = clock.monotonic_ms() + 2 * self.config.zookeeper_session_timeout_ms
        while True:
            try:
                return await self._ask_to_leave()
            except (ControlledShutdownError, KafkaError, ProtocolError, OSError) as error:
                is_between = not isinstance(error, KafkaError) or error.code in _BETWEEN_CONTROLLERS
                if not is_between or clock.monotonic_ms() >= give_up_ms:
                    raise
            await asyncio.sleep(CONTROLLER_LOOK_S)

    async def _resign(self) -> None:
        """Let another be the controller now, and not when the last request is answered: others may want to stop."""
        if self._tree is not None:
            with contextlib.suppress(CoordinationError):  # then it goes with the session
                await cluster.resign(self._tree)

    async def _ask_to_leave(self) -> tuple[TopicPartition, ...]:
        tree = self._connected_tree()
        if self.controller.is_active:
            async with asyncio.timeout(self.config.replica_socket_timeout_ms / 1000):
                return await self.controller.shut_down(self.config.broker_id, self.epoch)
        found = await tree.get(nodes.CONTROLLER)
        brokers = await cluster.read_brokers(tree)
        broker = brokers.get(nodes.decode_controller(found.data).broker) if found is not None else None
        if broker is None or broker.id == self.config.broker_id:
            raise ControlledShutdownError("there is no controller now, or it is this broker in a moment")
        request = ib.ControlledShutdownRequest(broker_id=self.config.broker_id, broker_epoch=self.epoch)
        response = await self._call(broker, ApiKey.CONTROLLED_SHUTDOWN, request)
        if response.error_code:
            raise KafkaError(ErrorCode(response.error_code))
        return tuple(
            TopicPartition(row.topic_name, row.partition_index) for row in response.remaining_partitions
        )


def _named(tps: Sequence[TopicPartition]) -> str:
    more = f" and {len(tps) - NAMED_MAX} more" if len(tps) > NAMED_MAX else ""
    return ",".join(map(str, tps[:NAMED_MAX])) + more


def _limits(config: BrokerConfig) -> ControllerSettings:
    return ControllerSettings(
        delete_topic_enable=config.delete_topic_enable,
        auto_leader_rebalance_enable=config.auto_leader_rebalance_enable,
        leader_imbalance_check_interval_seconds=config.leader_imbalance_check_interval_seconds,
        leader_imbalance_per_broker_percentage=config.leader_imbalance_per_broker_percentage,
    )


def _server_limits(config: BrokerConfig) -> SocketServerSettings:
    return SocketServerSettings(
        socket_request_max_bytes=config.socket_request_max_bytes,
        queued_max_requests=config.queued_max_requests,
        queued_max_request_bytes=config.queued_max_request_bytes,
        connections_max_idle_ms=config.connections_max_idle_ms,
        max_connections=config.max_connections,
        socket_send_buffer_bytes=config.socket_send_buffer_bytes,
        socket_receive_buffer_bytes=config.socket_receive_buffer_bytes,
    )
