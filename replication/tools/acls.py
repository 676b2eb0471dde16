"""ACLs of a cluster as rows, and the ACLs that options like those of `kafka-acls.sh` stand for."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from logstore.errors import InvalidRequestError
from replication.client.acls import (
    ANY,
    OPERATIONS,
    ClusterAcl,
    create_acls,
    delete_acls,
    describe_acls,
)
from replication.client.kafka_client import KafkaClient

CLUSTER_NAME = "kafka-cluster"
LITERAL, ALL = "Literal", "All"
ANYWHERE = "*"
# The operations that there are of each type of resource, beside All.
_KNOWN: Mapping[str, frozenset[str]] = {
    "Topic": frozenset(("Read", "Write", "Create", "Describe", "Delete", "Alter", "DescribeConfigs", "AlterConfigs")),
    "Group": frozenset(("Read", "Describe", "Delete", "DescribeConfigs", "AlterConfigs")),
    "Cluster": frozenset(
        ("Create", "ClusterAction", "DescribeConfigs", "AlterConfigs", "IdempotentWrite", "Alter", "Describe")
    ),
    "TransactionalId": frozenset(("Describe", "Write", "TwoPhaseCommit")),
}


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The resources of ACLs, by the options that name them."""

    topics: Sequence[str] = ()
    groups: Sequence[str] = ()
    transactional_ids: Sequence[str] = ()
    has_cluster: bool = False
    pattern: str = LITERAL

    def each(self) -> Iterator[tuple[str, str, str]]:
        """Yield type, name and pattern. The cluster has no pattern but its name."""
        for kind, names in (
            ("Topic", self.topics), ("Group", self.groups), ("TransactionalId", self.transactional_ids)
        ):  # fmt: skip
            for name in names:
                yield kind, name, self.pattern
        if self.has_cluster:
            yield "Cluster", CLUSTER_NAME, LITERAL

    def filters(self) -> list[ClusterAcl]:
        """Return what selects all ACLs of these resources."""
        return [ClusterAcl(*resource) for resource in self.each()]


@dataclass(frozen=True, kw_only=True)
class Whom:
    """Principals that are allowed or denied something, and from which hosts; without any, from all."""

    allowed: Sequence[str] = ()
    denied: Sequence[str] = ()
    allowed_hosts: Sequence[str] = ()
    denied_hosts: Sequence[str] = ()
    operations: Sequence[str] = field(default=(ALL,))

    def each(self, operations: Iterable[str]) -> Iterator[tuple[str, str, str, str]]:
        """Yield principal, operation, permission and host of each ACL. Raises: InvalidRequestError."""
        for permission, option, principals, hosts in (
            ("Allow", "allow", self.allowed, self.allowed_hosts), ("Deny", "deny", self.denied, self.denied_hosts)
        ):  # fmt: skip
            if hosts and not principals:
                raise InvalidRequestError(f"--{option}-host needs --{option}-principal")
            for principal in principals:
                for operation in operations:
                    for host in hosts or (ANYWHERE,):
                        yield _checked(principal), operation, permission, _checked_host(host)


def acls_of(resources: Resources, whom: Whom, *, producer: bool, consumer: bool, idempotent: bool) -> list[ClusterAcl]:
    """Return the ACLs of these options; `producer` and `consumer` stand for what such a client needs.

    Raises: InvalidRequestError: the options do not go together, or there is no such operation.
    """
    _check(resources, whom, producer=producer, consumer=consumer, idempotent=idempotent)
    found = list(resources.each())
    if not found:
        raise InvalidRequestError("give a resource: --topic, --group, --transactional-id or --cluster")
    wanted: dict[tuple[str, str, str], set[str]] = {}
    if producer:
        rights = {"Topic": ("Write", "Describe", "Create"), "TransactionalId": ("Write", "Describe")}
        _add(wanted, found, rights)
        if idempotent:
            wanted["Cluster", CLUSTER_NAME, LITERAL] = {"IdempotentWrite"}
    if consumer:
        _add(wanted, found, {"Topic": ("Read", "Describe"), "Group": ("Read",)})
    if not producer and not consumer:
        named = [_named(text) for text in whom.operations]
        _add(wanted, found, {kind: named for kind, *_ in found})
    for (kind, *_), operations in wanted.items():
        if unknown := operations - _KNOWN[kind] - {ALL}:
            raise InvalidRequestError(
                f"there is no {min(unknown)} of a {kind}: there are {', '.join(sorted(_KNOWN[kind] | {ALL}))}"
            )
    return [
        ClusterAcl(*resource, *entry)
        for resource, operations in wanted.items()
        for entry in whom.each(sorted(operations))
    ]


def _add(
    wanted: dict[tuple[str, str, str], set[str]],
    found: Iterable[tuple[str, str, str]],
    rights: Mapping[str, Collection[str]],
) -> None:
    for resource in found:
        if resource[0] in rights:
            wanted.setdefault(resource, set()).update(rights[resource[0]])


def _check(resources: Resources, whom: Whom, *, producer: bool, consumer: bool, idempotent: bool) -> None:
    rules = (
        ((producer or consumer) and (whom.denied or whom.denied_hosts), "--producer and --consumer only allow"),
        (
            (producer or consumer) and tuple(whom.operations) != (ALL,),
            "--producer and --consumer stand for operations: leave --operation out",
        ),
        (idempotent and not producer, "--idempotent goes with --producer"),
        (producer and not resources.topics, "--producer needs a --topic"),
        (consumer and not (resources.topics and resources.groups), "--consumer needs a --topic and a --group"),
        (
            consumer and not producer and (resources.has_cluster or resources.transactional_ids),
            "--consumer takes no --cluster and no --transactional-id",
        ),
    )
    if (reason := next((reason for is_broken, reason in rules if is_broken), None)) is not None:
        raise InvalidRequestError(reason)


def _named(text: str) -> str:
    wanted = text.replace("_", "").casefold()
    found = next((name for name in OPERATIONS.values() if name.casefold() == wanted and name != ANY), None)
    if found is None:
        names = ", ".join(name for name in OPERATIONS.values() if name != ANY)
        raise InvalidRequestError(f"there is no operation {text!r}: there are {names}")
    return found


def _checked(principal: str) -> str:
    kind, _, name = principal.partition(":")
    if not kind or not name:
        raise InvalidRequestError(f"{principal!r} is no principal: give TYPE:NAME, such as User:alice")
    return principal


def _checked_host(host: str) -> str:
    """Return the host. Raises: InvalidRequestError: no client can be there, since clients have addresses."""
    try:
        if host != ANYWHERE:
            ipaddress.ip_network(host, strict=False)
    except ValueError:
        raise InvalidRequestError(
            f"{host!r} is no host of an ACL: give an address, a network as 10.0.0.0/8, or *"
        ) from None
    return host


# ------------------------------------------------------------------ of a cluster


def listed(client: KafkaClient, resources: Resources, principals: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The ACLs of these resources, or of all, of these principals, or of all, a row each.

    Raises: KafkaError, UnreachableError, InvalidRequestError.
    """
    filters = resources.filters() or [ClusterAcl()]
    named = [_checked(principal) for principal in principals]
    found = {acl: None for wanted in filters for acl in client.run(describe_acls, wanted)}
    return [row_of(acl) for acl in sorted(found) if not named or acl.principal in named]


def added(client: KafkaClient, acls: Sequence[ClusterAcl]) -> list[dict[str, Any]]:
    """Create these ACLs, and return a row for each. Raises: KafkaError: one was refused; others may be there."""
    for error in client.run(create_acls, acls).values():
        if error is not None:
            raise error
    return [row_of(acl) for acl in sorted(acls)]


def removed(client: KafkaClient, acls: Sequence[ClusterAcl]) -> list[dict[str, Any]]:
    """Delete these ACLs, or what these filters select, and return a row for each that there was."""
    return [row_of(acl) for acl in client.run(delete_acls, acls)]


def row_of(acl: ClusterAcl) -> dict[str, Any]:
    return acl._asdict()
