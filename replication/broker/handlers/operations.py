"""The operations that a client may ask about: those of a resource's type that the authorizer grants it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from replication.network.work import Work
from replication.security.access import CLUSTER_NAME, Need, Operation, Resource, of_cluster

NOT_ASKED = -2_147_483_648
_CONFIGS = (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
_OF: dict[Resource, Sequence[Operation]] = {
    Resource.TOPIC: (
        *_CONFIGS, Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER
    ),
    Resource.GROUP: (*_CONFIGS, Operation.READ, Operation.DELETE),
    Resource.CLUSTER: (
        *_CONFIGS, Operation.CREATE, Operation.ALTER, Operation.CLUSTER_ACTION, Operation.IDEMPOTENT_WRITE
    ),
}  # fmt: skip


def _bits(operations: Iterable[Operation]) -> int:
    return sum(1 << operation for operation in operations)


_ALL = {resource: _bits(operations) for resource, operations in _OF.items()}


def granted(context: Work, resource: Resource, name: str = CLUSTER_NAME) -> int:
    """Return the bits of the operations, as Kafka's authorized operations, that the client may do.

    None of the cluster, for a client that may not describe it.
    """
    if resource is Resource.CLUSTER and not context.may(of_cluster(Operation.DESCRIBE)):
        return 0
    refused = context.refused_of(lambda kind: [Need(operation, kind, name) for operation in _OF[kind]], resource)
    return _ALL[resource] - _bits(need.operation for need in refused)
