"""Broker: one broker of a cluster: its logs, its registration and its port.

`start` opens the session, recovers the logs, listens and registers. It returns once a controller has described the
cluster to this broker, with the topics that its directory brought. `stop` hands leadership over first, so that clients
see no error. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from logstore.env import SYSTEM, Env
from logstore.errors import InvalidConfigError
from logstore.store.description import new_topic_id
from logstore.store.log_dir import BROKER
from replication.broker.acl_changes import AclChanges
from replication.broker.config_changes import ConfigChanges
from replication.broker.coordinators import Coordinators
from replication.broker.feature_level import FeatureLevel
from replication.broker.first_news import await_metadata
from replication.broker.handlers.acls import AclHandlers
from replication.broker.handlers.broker_epochs import WrongEpochs
from replication.broker.handlers.cluster import ClusterHandlers
from replication.broker.handlers.configs import ConfigHandlers
from replication.broker.handlers.controller import InterHandlers
from replication.broker.handlers.features import FeatureHandlers
from replication.broker.handlers.fetch import FetchHandlers
from replication.broker.handlers.log_dirs import LogDirHandlers
from replication.broker.handlers.offsets import PositionHandlers
from replication.broker.handlers.produce import ProduceHandler
from replication.broker.handlers.quotas import QuotaHandlers
from replication.broker.handlers.reassignments import ReassignmentHandlers
from replication.broker.handlers.topic_pages import TopicPageHandlers
from replication.broker.handlers.topics import TopicHandlers
from replication.broker.handlers.users import UserHandlers
from replication.broker.inter_broker import Guard, InterBroker
from replication.broker.leaders import Leaders
from replication.broker.lifecycle import BrokerLifecycle, OpenTree
from replication.broker.logs import StateChangeLog
from replication.broker.loop_watch import LoopWatch
from replication.broker.metrics import Metrics, MetricsEndpoint
from replication.broker.needs import endpoints
from replication.broker.quota_changes import QuotaChanges
from replication.broker.topic_admin import TopicAdmin
from replication.config.broker import BrokerConfig
from replication.config.group import GroupConfigs
from replication.config.live import LiveSettings
from replication.controller.driver import ControllerLoop
from replication.controller.machine.state import ControllerSettings
from replication.coordination import cluster, open_tree
from replication.coordination.placements import Placements
from replication.coordination.tree import Tree
from replication.model.cluster import BrokerInfo
from replication.model.features import PROVED_BROKERS, PYLOG_VERSION, SUPPORTED, Levels
from replication.model.listeners import Endpoint
from replication.network.admission import SocketServerSettings
from replication.network.arrivals import ArrivalSettings, ListenerLimits
from replication.network.client import Clients
from replication.network.loops import is_set_within
from replication.network.pipeline import TurnHandler
from replication.network.server import Server
from replication.network.throttle import Throttle
from replication.network.work import Handler
from replication.protocol.apis import ApiKey, Identity
from replication.replica.manager import ReplicaManager
from replication.security.access import ALLOW_ALL
from replication.security.acl_authorizer import AclAuthorizer
from replication.security.rates import QuotaWindows

logger = logging.getLogger(__name__)

ADOPTION_S = 10.0  # for the first election of adopted topics
GRACE_S = 5.0  # for requests in flight when the broker stops


class Broker:
    """`opening` opens a session with the store.

    Once it has started, `endpoint` is the address of the first listener, and `told` are all that others are told of.
    """

    def __init__(
        self,
        config: BrokerConfig,
        env: Env = SYSTEM,
        *,
        supported: Levels = SUPPORTED,
        opening: OpenTree = open_tree,
        state_changes: StateChangeLog | None = None,
    ) -> None:
        self.config = config
        self.env = env
        self.listening = config.listening
        self.told = self.listening.advertised
        self.endpoint = self.told[0].endpoint
        self.state_changes = state_changes or StateChangeLog(Path(config.log_dirs) / BROKER, env)
        self._levels = FeatureLevel(supported)
        self.inter_broker = InterBroker(config, env, self._level)
        self._gates = self.inter_broker.gates()
        security, log_change = self.inter_broker.security, self.state_changes.write
        self.replicas = ReplicaManager(config, env, log_change=log_change, security=security)
        self.controller = ControllerLoop(
            config.broker_id, config.part(ControllerSettings), self._call, log_change, env.clock
        )
        self._clients = Clients(
            f"broker-{config.broker_id}", timeout_ms=config.replica_socket_timeout_ms, security=security
        )
        leaders = Leaders(config.broker_id, self.replicas, self._clients)
        self._placements = Placements(config.max_broker_partitions)
        self._live = LiveSettings(config)
        self.group_configs = GroupConfigs(config)
        self.configs = ConfigChanges(
            self._live, self.group_configs, self.inter_broker.users, self.replicas.configure, self._settings_changed
        )
        self.authorizer = _authorizer_of(config)
        self._acls = None if self.authorizer is None else AclChanges(self.authorizer)
        self.throttle = Throttle(config.part(QuotaWindows), env.clock)
        self._quotas = QuotaChanges(self.throttle)
        self.lifecycle = BrokerLifecycle(
            config,
            env,
            self.replicas,
            self.controller,
            self._levels,
            (self.configs, self._levels, self._quotas, *(() if self._acls is None else (self._acls,))),
            self.inter_broker,
            self._call,
            opening=opening,
        )
        self.admin = TopicAdmin(config, self.replicas.metadata, self._tree, leaders.all_lead, self._placements, env)
        self.coordinators = Coordinators(config, self.group_configs, self.replicas, self.admin, self._tree, env)
        self.groups = self.coordinators.groups
        self._loop = LoopWatch(env, self._running, self.lifecycle.stood_still)
        self.replicas.look_with(self._loop.look)
        self.metrics = Metrics(
            self.replicas,
            self.controller,
            self.coordinators,
            leaders.ends,
            self._loop,
            self.lifecycle.has_session,
        )
        self._endpoint = MetricsEndpoint(self.metrics.page)
        self.server: Server | None = None
        self._is_live = asyncio.Event()  # a controller has named this broker among the live ones
        self._adopted: Sequence[tuple[str, int]] = ()
        self._has_adopted = asyncio.Event()
        self._correlation = itertools.count(1)
        self._has_logs = False
        self.replicas.metadata.listen(self._note_metadata)

    async def start(self) -> Endpoint:
        """Begin to serve; return the address.

        Raises: UnsupportedLevelError, BrokerIdTakenError, StoreLockedError, NotAStoreError, CoordinationError;
        InvalidConfigError: it cannot listen there.
        """
        self._loop.begin()
        tree = await self.lifecycle.open()
        await cluster.prepare(tree)
        await self.lifecycle.check_level(tree)
        await self.configs.learn(tree)  # before a log is opened, which goes by them
        cluster_id = await cluster.read_cluster_id(tree, new_topic_id(), self._levels.supported.last)
        await self._levels.learn(tree)
        if self._acls is not None:
            await self._acls.learn(tree)
        await self._quotas.learn(tree)
        await self.inter_broker.learn(tree)
        await self.configs.learn_users(tree)  # before anybody can log in
        for jwks in self.inter_broker.jwks:
            await jwks.begin()
        self._check_listeners()
        await self.lifecycle.wait_until_free(tree)
        self._adopted = [
            (topic.name, number) for topic in await self.replicas.open(tree) for number in range(topic.partitions)
        ]
        self._has_logs = True
        await self.replicas.check_store(tree)
        self.coordinators.begin()
        wrong_epochs = WrongEpochs()
        metadata = self.replicas.metadata
        self.server = Server(
            endpoints(self._handlers(cluster_id, wrong_epochs), self._turns(), metadata),
            self.config.part(SocketServerSettings),
            observer=self.metrics.times.request_done,
            features=self._levels.features,
            authorizer=Guard(
                self._level, self.listening.inter_broker, self.authorizer or ALLOW_ALL, self.inter_broker.brokers
            ),
            own=Identity(cluster_id, self.config.broker_id),
            throttle=self.throttle,
        )
        self._limit_connections(self.server)
        await_metadata(self.server.pipeline, metadata)
        self.metrics.admission = self.server.admission
        self.server.admission.on_closed = self.coordinators.share_partitions.connection_closed
        ports: dict[str, int] = {}
        for each in self.listening.bound:
            start = partial(self.server.start, gate=self._gates[each.name])
            ports[each.name] = await self._listen("listeners", start, each.endpoint)
        self.told = self.listening.told(ports)
        self.endpoint = next(each.endpoint for each in self.told if each.name == self.listening.advertised[0].name)
        if self.config.metrics_port >= 0:
            where = self.listening.bound[0].endpoint._replace(port=self.config.metrics_port)
            port = await self._listen("metrics.port", self._endpoint.start, where)
            logger.info("[Kafka Server %d], metrics at port %d", self.config.broker_id, port)
        await self.lifecycle.register(tree, self.told)
        await self._is_live.wait()
        await is_set_within(self._has_adopted, ADOPTION_S)  # one of them may just be deleted
        logger.info("[Kafka Server %d], started at %s", self.config.broker_id, self.endpoint)
        return self.endpoint

    @staticmethod
    async def _listen(key: str, start: Callable[[str, int], Awaitable[int]], where: Endpoint) -> int:
        try:
            return await start(*where)
        except OSError as error:
            raise InvalidConfigError(f"{key}: cannot listen at {where} ({error.strerror or error})", key=key) from None

    def _level(self) -> int:
        return self._levels.finalized.level

    def _check_listeners(self) -> None:
        """Raises: InvalidConfigError: brokers of the release before could not meet this one."""
        if not self.listening.is_plain and self._level() < PROVED_BROKERS:
            raise InvalidConfigError(
                f"listeners={self.config.listeners!r}: the cluster is at {PYLOG_VERSION} {self._level()}, and others "
                f"than PLAINTEXT come with {PROVED_BROKERS}: `pylog features upgrade --level {PROVED_BROKERS}` first",
                key="listeners",
            )

    async def stop(self) -> None:
        """Hand leadership over, answer requests in flight, flush, and leave."""
        self.lifecycle.begin_to_stop()
        self._loop.end()
        if self.config.controlled_shutdown_enable and self._is_live.is_set():
            await self.lifecycle.hand_over()
        await self.controller.end()
        await self.lifecycle.end_watches()
        self.coordinators.end()
        self.replicas.disconnect()
        await self.lifecycle.resign()
        if self.server is not None:
            await self.server.close(grace_s=GRACE_S)
        for jwks in self.inter_broker.jwks:
            jwks.end()
        await self._endpoint.close()
        self._clients.close()
        self.coordinators.keep(set())
        await self.lifecycle.close()
        if self._has_logs:
            await self.replicas.close()
        self.state_changes.flush()
        if self._is_live.is_set():  # otherwise it never started
            logger.info("[Kafka Server %d], shut down completed", self.config.broker_id)

    def _turns(self) -> Mapping[ApiKey, TurnHandler]:
        produce = ProduceHandler(self.config, self.replicas, self.coordinators.verification)
        return {**produce.turns(), **self.coordinators.turns()}

    def _handlers(self, cluster_id: str, wrong_epochs: WrongEpochs) -> Mapping[ApiKey, Handler]:
        metadata = self.replicas.metadata
        families = (
            FetchHandlers(self.config, self.replicas, wrong_epochs, self.throttle),
            PositionHandlers(self.replicas),
            InterHandlers(self.replicas.requests, self.controller, wrong_epochs),
            ClusterHandlers(self.config, cluster_id, metadata, self.admin, self.throttle),
            TopicPageHandlers(self.config, metadata),
            TopicHandlers(metadata, self.admin, self._live, self.throttle),
            ReassignmentHandlers(self.controller, metadata, self._placements, self._tree),
            ConfigHandlers(self._live, self.group_configs, metadata, self._levels, self._tree),
            LogDirHandlers(self.config.log_dirs, self.replicas),
            FeatureHandlers(self._levels, self._tree),
            AclHandlers(self.authorizer, self._acls, self._tree),
            UserHandlers(self.inter_broker.users, self._tree),
            QuotaHandlers(self.throttle, self._quotas, self._tree),
        )
        served = {key: handler for family in families for key, handler in family.handlers().items()}
        return {**served, **self.coordinators.handlers(self._levels)}

    def _note_metadata(self) -> None:
        live = self.replicas.metadata.brokers()
        addresses = {(broker.host, broker.port) for broker in live.values()}
        self._clients.keep(addresses)
        self.coordinators.keep(addresses)
        if self.config.broker_id in live:
            self._is_live.set()
        if not self._has_adopted.is_set():
            leader = self.replicas.metadata.leader
            if all(leader(*tp) is not None for tp in self._adopted):
                self._has_adopted.set()

    def _settings_changed(self) -> None:
        if self.server is not None:
            self._limit_connections(self.server)
        self.controller.limits = self.config.part(ControllerSettings)
        self.controller.look_again()  # for unclean.leader.election.enable

    def _limit_connections(self, server: Server) -> None:
        server.admission.limit(self.config.part(SocketServerSettings))
        limits = {}
        for name in (each.name for each in self.listening.bound):
            own = self.config.of_listener(name)
            limits[name] = ListenerLimits(own.max_connections, own.max_connection_creation_rate)
        apart = self.listening.inter_broker if len(limits) > 1 else ""
        server.admission.arrivals.limit(self.config.part(ArrivalSettings, of_listeners=limits, apart=apart))

    def _tree(self) -> Tree:
        return self.lifecycle.tree

    def _running(self) -> str:
        return "it is starting" if self.server is None else self.server.running()

    async def _call(self, broker: BrokerInfo, key: ApiKey, request: Any) -> Any:
        """Send a request to a broker; to this one without a connection."""
        if broker.id == self.config.broker_id and self.server is not None:
            return await self.server.pipeline.call(key, request, next(self._correlation))
        return await self._clients.call(*broker.at(self.listening.inter_broker), key, request)


def _authorizer_of(config: BrokerConfig) -> AclAuthorizer | None:
    if not config.has_authorizer:
        return None
    return AclAuthorizer(config.super_principals, allows_unsaid=config.allow_everyone_if_no_acl_found)
