"""InterBroker: how the brokers of a cluster meet each other, and what they are let do by each other.

From feature level 4 on, requests between brokers are served to brokers alone: to those that prove that they read the
same coordination store. Below it, brokers of the releases before may be there, which prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from logstore.env import Env
from replication.config.broker import BrokerConfig
from replication.coordination.broker_secret import read_secret
from replication.coordination.tree import Tree
from replication.model.features import PROVED_BROKERS
from replication.network.gate import Nobody
from replication.network.security import Security
from replication.protocol.apis import INTERBROKER, ApiKey
from replication.security.access import ALLOW_ALL, NOTHING, Authorizer, Context, Need, Operation, Principal, Request

FETCHES = frozenset({ApiKey.FETCH, ApiKey.OFFSET_FOR_LEADER_EPOCH})  # between brokers if they name a replica
BETWEEN_BROKERS = (
    INTERBROKER
    | FETCHES
    | {
        ApiKey.FIND_COORDINATOR,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.INITIALIZE_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE,
        ApiKey.WRITE_SHARE_GROUP_STATE,
        ApiKey.DELETE_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
    }
)


class InterBroker:
    """`known`: what this broker knows of those that log in."""

    def __init__(self, config: BrokerConfig, env: Env) -> None:
        self._config = config
        self._env = env
        self.known = Nobody()

    async def learn(self, tree: Tree) -> None:
        """Know the secret of the cluster. Raises: CoordinationError."""
        self.known.secret = await read_secret(tree, self._env)

    def security(self) -> Security:
        """Return how other brokers are met now."""
        return Security(broker=self._config.broker_id, secret=self.known.secret)


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
        self._inner = inner
        self._brokers = brokers

    def refused(
        self, context: Context, needs: Callable[[Request], Sequence[Need]], request: Request
    ) -> Collection[Need]:
        if getattr(request, "key", None) not in BETWEEN_BROKERS or not _is_between(request):
            return self._inner.refused(context, needs, request)
        found = needs(request)
        if context.is_broker or not any(need.operation is Operation.CLUSTER_ACTION for need in found):
            return NOTHING if context.is_broker else self._inner.refused(context, needs, request)
        if self._level() < PROVED_BROKERS and self._inner is ALLOW_ALL:
            return NOTHING
        if context.listener != self._listener:
            return found
        if self._inner is ALLOW_ALL:
            return NOTHING if context.principal in self._brokers else found
        return self._inner.refused(context, needs, request)


def _is_between(request: Any) -> bool:
    """Tell quickly that a fetch is a consumer's, as most are."""
    return request.key not in FETCHES or request.body.replica_id >= 0
