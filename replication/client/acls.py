"""ACLs of a cluster: described, created and deleted, by the names that Kafka's tools have for them.

Belongs to one event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from replication.client.cluster import Cluster
from replication.errors import ErrorCode, KafkaError, error_of
from replication.protocol.apis import ApiKey

ANY, MATCH = "Any", "Match"
# Kafka's codes, of which brokers of pylog do not know all.
RESOURCES: Mapping[int, str] = {
    1: ANY, 2: "Topic", 3: "Group", 4: "Cluster", 5: "TransactionalId", 6: "DelegationToken", 7: "User"
}  # fmt: skip
PATTERNS: Mapping[int, str] = {1: ANY, 2: MATCH, 3: "Literal", 4: "Prefixed"}
OPERATIONS: Mapping[int, str] = {
    1: ANY, 2: "All", 3: "Read", 4: "Write", 5: "Create", 6: "Delete", 7: "Alter", 8: "Describe", 9: "ClusterAction",
    10: "DescribeConfigs", 11: "AlterConfigs", 12: "IdempotentWrite", 13: "CreateTokens", 14: "DescribeTokens",
    15: "TwoPhaseCommit",
}  # fmt: skip
PERMISSIONS: Mapping[int, str] = {1: ANY, 2: "Deny", 3: "Allow"}


class ClusterAcl(NamedTuple):
    """An ACL; Kafka's names in any case. A filter selects those that are alike in all that is not None or ANY in it."""

    resource: str = ANY
    name: str | None = None
    pattern: str = ANY
    principal: str | None = None
    operation: str = ANY
    permission: str = ANY
    host: str | None = None

    def __str__(self) -> str:
        who = "all ACLs" if self.principal is None else f"{self.permission} {self.principal} {self.operation}"
        return f"{who} of {self.pattern} {self.resource} {self.name}" + (f" from {self.host}" if self.host else "")


async def describe_acls(cluster: Cluster, wanted: ClusterAcl = ClusterAcl()) -> list[ClusterAcl]:  # noqa: B008
    """The ACLs that a filter selects, sorted.

    Raises: KafkaError: SECURITY_DISABLED: the brokers check no rights, or CLUSTER_AUTHORIZATION_FAILED;
    UnreachableError, UnsupportedVersionError; ValueError: a name that Kafka has not.
    """
    answer = await cluster.call_any(ApiKey.DESCRIBE_ACLS, _filter(wanted))
    if answer.error_code:
        raise error_of(answer.error_code, answer.error_message or "")
    return sorted(_acl(row, row.resource_name, each, row.pattern_type) for row in answer.resources for each in row.acls)


async def create_acls(cluster: Cluster, acls: Iterable[ClusterAcl]) -> dict[ClusterAcl, KafkaError | None]:
    """Create ACLs; why one was refused; None: it is there now. Raises: as `describe_acls`."""
    wanted = list(dict.fromkeys(acls))
    rows = [
        {
            "resource_type": _code(RESOURCES, each.resource),
            "resource_name": each.name or "",
            "resource_pattern_type": _code(PATTERNS, each.pattern),
            "principal": each.principal or "",
            "host": each.host or "",
            "operation": _code(OPERATIONS, each.operation),
            "permission_type": _code(PERMISSIONS, each.permission),
        }
        for each in wanted
    ]
    answer = await cluster.call_any(ApiKey.CREATE_ACLS, {"creations": rows})
    return {acl: _error(row) for acl, row in zip(wanted, answer.results, strict=True)}


async def delete_acls(cluster: Cluster, filters: Sequence[ClusterAcl]) -> list[ClusterAcl]:
    """Delete all ACLs that any of the filters selects; return them, sorted.

    Raises: KafkaError: a filter or a deletion was refused, others may be done all the same; as `describe_acls`.
    """
    answer = await cluster.call_any(ApiKey.DELETE_ACLS, {"filters": [_filter(each) for each in filters]})
    deleted: set[ClusterAcl] = set()
    for found in answer.filter_results:
        for row in (found, *found.matching_acls):
            if (error := _error(row)) is not None:
                raise error
        deleted.update(_acl(row, row.resource_name, row, row.pattern_type) for row in found.matching_acls)
    return sorted(deleted)


def _error(row: Any) -> KafkaError | None:
    code = int(row.error_code)
    return None if code == ErrorCode.NONE else error_of(code, row.error_message or "")


def _filter(wanted: ClusterAcl) -> dict[str, Any]:
    return {
        "resource_type_filter": _code(RESOURCES, wanted.resource),
        "resource_name_filter": wanted.name,
        "pattern_type_filter": _code(PATTERNS, wanted.pattern),
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": _code(OPERATIONS, wanted.operation),
        "permission_type": _code(PERMISSIONS, wanted.permission),
    }


def _acl(resource: Any, name: str, entry: Any, pattern: int) -> ClusterAcl:
    return ClusterAcl(
        _name(RESOURCES, resource.resource_type),
        name,
        _name(PATTERNS, pattern),
        entry.principal,
        _name(OPERATIONS, entry.operation),
        _name(PERMISSIONS, entry.permission_type),
        entry.host,
    )


def _code(names: Mapping[int, str], text: str) -> int:
    wanted = text.replace("_", "").casefold()
    code = next((code for code, name in names.items() if name.casefold() == wanted), None)
    if code is None:
        raise ValueError(f"{text!r} is none of {', '.join(names.values())}")
    return code


def _name(names: Mapping[int, str], code: int) -> str:
    return names.get(code, f"Unknown{code}")
