"""The operations that clients may ask to be told: all of a resource's type, as of a Kafka without an authorizer."""

from __future__ import annotations

from replication.security.access import Operation

NOT_ASKED = -2_147_483_648


def _bits(*operations: Operation) -> int:
    return sum(1 << operation for operation in operations)


_CONFIGS = (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
OF_TOPIC = _bits(
    *_CONFIGS, Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER
)  # fmt: skip
OF_GROUP = _bits(*_CONFIGS, Operation.READ, Operation.DELETE)
OF_CLUSTER = _bits(
    *_CONFIGS, Operation.CREATE, Operation.ALTER, Operation.CLUSTER_ACTION, Operation.IDEMPOTENT_WRITE
)  # fmt: skip
