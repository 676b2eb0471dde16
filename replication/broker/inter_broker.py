"""InterBroker: the listeners of a broker, how the brokers of a cluster meet, and what they are let do by each other.

From feature level 4 on, requests between brokers are served to brokers alone: to those that prove that they read the
same coordination store, or log in as sasl.mechanism.inter.broker.protocol says. Below it, brokers of the releases
before may be there, which prove nothing.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from logstore.env import Env
from logstore.errors import InvalidConfigError
from replication.broker.tls import Contexts, client_context
from replication.broker.users import Users
from replication.config.broker import BrokerConfig
from replication.config.listener_settings import OAUTHBEARER, OF_BROKERS, PLAIN, ListenerSettings
from replication.coordination.broker_secret import read_secret
from replication.coordination.tree import Tree
from replication.model.features import PROVED_BROKERS
from replication.model.listeners import Listener
from replication.network import jaas
from replication.network.gate import Gate
from replication.network.jwks import Jwks
from replication.network.security import Security
from replication.protocol.apis import INTERBROKER, ApiKey
from replication.security.access import ALLOW_ALL, NOTHING, Authorizer, Context, Need, Operation, Principal, Request
from replication.security.principals import parse_rules, principal_of
from replication.security.tokens import Bearer, Rules, bearer_of

logger = logging.getLogger(__name__)

# Those of these APIs that need CLUSTER_ACTION; the others are everybody's.
BETWEEN_BROKERS = INTERBROKER | {
    ApiKey.FETCH,
    ApiKey.FIND_COORDINATOR,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE,
    ApiKey.READ_SHARE_GROUP_STATE,
    ApiKey.WRITE_SHARE_GROUP_STATE,
    ApiKey.DELETE_SHARE_GROUP_STATE,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
}
_USER = "user_"  # in a JAAS line of PLAIN: user_NAME="PASSWORD"


class InterBroker:
    """`users`: those that may log in. `level`: the feature level now.

    Raises: InvalidConfigError, when it is made: a setting of a listener is wrong.
    """

    def __init__(self, config: BrokerConfig, env: Env, level: Callable[[], int]) -> None:
        self._level = level
        self._config = config
        self._env = env
        self.users = Users()
        self.listening = config.listening
        own = next(each for each in self.listening.bound if each.name == self.listening.inter_broker)
        self._protocol = own.protocol
        self._settings = config.of_listener(own.name)
        self._username, self._password = self._own_login()
        self.jwks: list[Jwks] = []  # keys of tokens, which are read while the broker runs
        self._tls: ssl.SSLContext | None = None
        if own.protocol.has_tls:
            self._tls = client_context(self._settings)

    async def learn(self, tree: Tree) -> None:
        """Know the secret of the cluster. Raises: CoordinationError."""
        self.users.secret = await read_secret(tree, self._env)

    @property
    def brokers(self) -> Collection[Principal]:
        """The users as whom the brokers of this cluster log in."""
        return (Principal(self._username),) if self._username else ()

    def security(self) -> Security:
        """Return how other brokers are met now: certificates may be others than a moment ago."""
        if self._tls is not None:
            try:
                self._tls = client_context(self._settings)
            except InvalidConfigError as error:
                logger.error("other brokers are met with the former certificate: %s", error)
        return Security(
            has_tls=self._tls is not None,
            context=self._tls,
            mechanism=self._config.sasl_mechanism_inter_broker_protocol if self._username else "",
            username=self._username,
            password=self._password,
            broker=self._config.broker_id,
            secret=self.users.secret,
            must_prove=self._level() >= PROVED_BROKERS,
        )

    def gates(self) -> Mapping[str, Gate]:
        """Return how each listener meets those who connect. Raises: InvalidConfigError."""
        return {each.name: self._gate(each) for each in self.listening.bound}

    def _gate(self, listener: Listener) -> Gate:
        settings, protocol = self._config.of_listener(listener.name), listener.protocol
        mechanisms: tuple[str, ...] = ()
        if protocol.has_sasl:
            mechanisms = tuple(sorted(settings.sasl_enabled_mechanisms))
            own_only = listener.name == self.listening.inter_broker and not self._username
            if not mechanisms and not own_only:
                raise _wrong(listener, "sasl.enabled.mechanisms", "name the mechanisms by which clients log in")
            if PLAIN in mechanisms and not protocol.has_tls and not listener.endpoint.is_loopback:
                logger.warning("listener %s: passwords of PLAIN are read on their way: use SASL_SSL", listener)
        tls = None
        rules = _rules(listener, settings)
        if protocol.has_tls:
            contexts = self._contexts(listener, settings)
            tls = partial(_at_now, contexts)
        return Gate(
            name=listener.name,
            has_sasl=protocol.has_sasl,
            mechanisms=mechanisms,
            known=self.users.known(
                _passwords(listener, settings) if PLAIN in mechanisms else {},
                self._tokens(listener, settings) if OAUTHBEARER in mechanisms else None,
            ),
            tls=tls,
            principal_of=lambda certificate: principal_of(certificate, rules),
            reauth_ms=settings.connections_max_reauth_ms,
            failure_delay_ms=self._config.connection_failed_authentication_delay_ms,
            env=self._env,
        )

    def _tokens(self, listener: Listener, settings: ListenerSettings) -> Callable[[str], Bearer]:
        """Return what tells whose a token is."""
        url = settings.sasl_oauthbearer_jwks_endpoint_url
        if not url:
            raise _wrong(listener, "sasl.oauthbearer.jwks.endpoint.url", "OAUTHBEARER needs the keys of tokens")
        if importlib.util.find_spec("joserfc") is None:
            raise _wrong(listener, "sasl.enabled.mechanisms", "OAUTHBEARER needs pip install pyspark-pylog[oauth]")
        jwks = Jwks(url, settings.sasl_oauthbearer_jwks_endpoint_refresh_ms)
        self.jwks.append(jwks)
        rules = Rules(
            frozenset(settings.sasl_oauthbearer_expected_audience),
            settings.sasl_oauthbearer_expected_issuer,
            settings.sasl_oauthbearer_sub_claim_name,
            settings.sasl_oauthbearer_clock_skew_seconds,
        )
        return lambda token: bearer_of(token, jwks.keys, rules, self._env.clock.now_ms() // 1000)

    @staticmethod
    def _contexts(listener: Listener, settings: ListenerSettings) -> Contexts:
        try:
            return Contexts(listener.name, settings)
        except InvalidConfigError as error:
            raise InvalidConfigError(f"listener {listener.name}: {error}", key="listeners") from None

    def _own_login(self) -> tuple[str, str]:
        """Return as whom this broker logs in; two empty texts: it proves the secret of the cluster."""
        mechanism = self._config.sasl_mechanism_inter_broker_protocol
        if mechanism == OF_BROKERS:
            return "", ""
        key = "sasl.mechanism.inter.broker.protocol"
        if not self._protocol.has_sasl:
            raise InvalidConfigError(
                f"{key}={mechanism}: brokers meet at a listener with {self._protocol.name}, where nobody logs in",
                key=key,
            )
        if mechanism not in self._settings.sasl_enabled_mechanisms:
            raise InvalidConfigError(f"{key}={mechanism}: it is not among sasl.enabled.mechanisms", key=key)
        found = _options(self.listening.inter_broker, self._settings, mechanism)
        if not found.get("username") or not found.get("password"):
            raise InvalidConfigError(
                f"{key}={mechanism}: {mechanism.lower()}.sasl.jaas.config must have username and password", key=key
            )
        return found["username"], found["password"]


def _at_now(contexts: Contexts) -> ssl.SSLContext:
    return contexts.at(asyncio.get_running_loop().time())


def _rules(listener: Listener, settings: ListenerSettings) -> Any:
    try:
        return parse_rules(settings.ssl_principal_mapping_rules)
    except ValueError as error:
        raise _wrong(listener, "ssl.principal.mapping.rules", str(error)) from None


def _passwords(listener: Listener, settings: ListenerSettings) -> Mapping[str, str]:
    found = _options(listener.name, settings, PLAIN)
    return {name.removeprefix(_USER): value for name, value in found.items() if name.startswith(_USER)}


def _options(listener: str, settings: ListenerSettings, mechanism: str) -> Mapping[str, str]:
    """Return what the JAAS line of a mechanism says. Raises: InvalidConfigError, without a value of it."""
    lines = {
        PLAIN: settings.plain_sasl_jaas_config,
        "SCRAM-SHA-256": settings.scram_sha_256_sasl_jaas_config,
        "SCRAM-SHA-512": settings.scram_sha_512_sasl_jaas_config,
    }
    key = f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config"
    try:
        return jaas.parse(lines[mechanism], mechanism)
    except ValueError as error:
        raise InvalidConfigError(f"{key}: {error}", key=key) from None


def _wrong(listener: Listener, key: str, why: str) -> InvalidConfigError:
    return InvalidConfigError(f"listener {listener.name}: {key}: {why}", key=key)


class Guard:
    """Grants what is between brokers to brokers alone, and asks another authorizer for everything else.

    `listener`: where brokers meet; users with CLUSTER_ACTION are believed there only. `brokers`: users as whom the
    brokers of this cluster log in. WriteTxnMarkers is not guarded here: people with ALTER abort transactions by it.
    """

    def __init__(
        self,
        level: Callable[[], int],
        listener: str,
        inner: Authorizer = ALLOW_ALL,
        brokers: Collection[Principal] = (),
    ) -> None:
        self._level = level
        self._listener = listener
        self._inner, self.has_rights = inner, inner.has_rights
        self._brokers = brokers

    def refused(
        self, context: Context, needs: Callable[[Request], Sequence[Need]], request: Request
    ) -> Collection[Need]:
        if getattr(request, "key", None) in BETWEEN_BROKERS and not _is_of_consumer(request):
            found = needs(request)
            if any(need.operation is Operation.CLUSTER_ACTION for need in found):
                return self._between_brokers(context, found, request)
        # Most requests pass without another call.
        return self._inner.refused(context, needs, request) if self.has_rights else NOTHING

    def _between_brokers(self, context: Context, needs: Sequence[Need], request: Any) -> Collection[Need]:
        if context.is_broker or (self._level() < PROVED_BROKERS and not self.has_rights):
            return NOTHING
        if context.listener != self._listener:
            return needs
        if self.has_rights:
            return self._inner.refused(context, lambda asked: needs, request)
        return NOTHING if context.principal in self._brokers else needs


def _is_of_consumer(request: Any) -> bool:
    return request.key is ApiKey.FETCH and request.body.replica_id < 0
