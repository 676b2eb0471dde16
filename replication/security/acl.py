"""ACLs as Kafka has them: a principal may (or may not) do an operation, from a host, on what a pattern names.

Texts are those of `kafka-acls.sh` and of Kafka's nodes in ZooKeeper: Topic, TransactionalId, DescribeConfigs, Allow.
"""

from __future__ import annotations

import enum
from typing import NamedTuple, TypeVar

from replication.security.access import CLUSTER_NAME, Operation, Resource
from replication.security.hosts import network_of

ANY_CODE, MATCH_CODE = 1, 2  # of a filter: any type, any operation; MATCH of patterns: those that concern a name
ANYTHING = "*"  # the name of a literal pattern that stands for every name; the host that stands for every host
EVERYBODY = "User:*"
NAME_BYTES_MAX = 32_767  # of a resource: older versions of requests hold no longer text
# Those of Kafka that there are no resources of here: delegation tokens and users.
FOREIGN_RESOURCES = frozenset({6, 7})
FOREIGN_OPERATIONS = frozenset({13, 14})


class PatternType(enum.IntEnum):
    """How the name of a pattern stands for names; the number is Kafka's code of it."""

    LITERAL = 3
    PREFIXED = 4


class Permission(enum.IntEnum):
    """The number is Kafka's code of it."""

    DENY = 2
    ALLOW = 3


class Pattern(NamedTuple):
    """The resources that an ACL concerns."""

    resource: Resource
    name: str
    kind: PatternType = PatternType.LITERAL


class Entry(NamedTuple):
    """The rest of an ACL. `host` is an address, a network as ADDRESS/BITS, or ANYTHING."""

    principal: str
    operation: Operation
    permission: Permission = Permission.ALLOW
    host: str = ANYTHING


class Acl(NamedTuple):
    pattern: Pattern
    entry: Entry


class Filter(NamedTuple):
    """Selects ACLs; codes are Kafka's, and None or ANY_CODE select all."""

    resource: int = ANY_CODE
    name: str | None = None
    kind: int = ANY_CODE
    principal: str | None = None
    operation: int = ANY_CODE
    permission: int = ANY_CODE
    host: str | None = None

    def selects(self, acl: Acl) -> bool:
        return self.selects_pattern(acl.pattern) and self.selects_entry(acl.entry)

    def selects_entry(self, entry: Entry) -> bool:
        return (
            self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation in (ANY_CODE, entry.operation)
            and self.permission in (ANY_CODE, entry.permission)
        )

    def selects_pattern(self, pattern: Pattern) -> bool:
        if self.resource not in (ANY_CODE, pattern.resource):
            return False
        if self.kind not in (ANY_CODE, MATCH_CODE, pattern.kind):
            return False
        if self.name is None:
            return True
        return concerns(pattern, self.name) if self.kind == MATCH_CODE else self.name == pattern.name


def concerns(pattern: Pattern, name: str) -> bool:
    """Does the pattern stand for this name, of a resource of its type?"""
    if pattern.kind is PatternType.PREFIXED:
        return name.startswith(pattern.name)
    return pattern.name in (name, ANYTHING)


# ------------------------------------------------------------------------ texts

Named = TypeVar("Named", bound=enum.IntEnum)


def text_of(member: enum.IntEnum) -> str:
    """TransactionalId, for Resource.TRANSACTIONAL_ID."""
    return "".join(part.capitalize() for part in member.name.split("_"))


def named(kind: type[Named], text: str) -> Named:
    """Return the member of this name, however it is cased. Raises: ValueError: there is none."""
    wanted = text.replace("_", "").upper()
    found = next((member for member in kind if member.name.replace("_", "") == wanted and member > 0), None)
    if found is None:
        raise ValueError(f"{text!r} is none of {', '.join(text_of(member) for member in kind if member > 0)}")
    return found


def why_no_client(principal: str, host: str) -> str:
    """Return why no ACL is about these, in Kafka's words where it has some; "": one may be."""
    if ":" not in principal:
        return (
            f"Could not parse principal from `{principal:.100}` (no colon is present separating the principal type "
            "from the principal name)"
        )
    if not host:
        return "Host pattern cannot be null or empty"
    return f"Invalid CIDR notation '{host:.100}'" if "/" in host and network_of(host) is None else ""


# ------------------------------------------------------------ requests for ACLs


class Wish(NamedTuple):
    """An ACL that somebody asks for, in Kafka's codes."""

    resource: int
    name: str
    kind: int
    principal: str
    host: str
    operation: int
    permission: int


def acl_of(wish: Wish) -> Acl:
    """Return the ACL. Raises: ValueError: there cannot be one, in Kafka's words where it has some."""
    resource, name, kind, principal, host, operation, permission = wish
    rules = (
        (
            resource in FOREIGN_RESOURCES,
            "Invalid resourceType: there are no delegation tokens here, nor rights on users",
        ),
        (not _is_one(Resource, resource), f"Invalid resourceType {_shown(resource)}"),
        (not _is_one(PatternType, kind), f"Invalid patternType {'MATCH' if kind == MATCH_CODE else _shown(kind)}"),
        (operation in FOREIGN_OPERATIONS, "Invalid operation: there are no delegation tokens here"),
        (not _is_one(Operation, operation), f"Invalid operation {_shown(operation)}"),
        (not _is_one(Permission, permission), f"Invalid permissionType {_shown(permission)}"),
        (not name, "Invalid empty resource name"),
        (len(name.encode()) > NAME_BYTES_MAX, f"Invalid resource name: it has more than {NAME_BYTES_MAX:,} bytes"),
        (
            resource == Resource.CLUSTER and name != CLUSTER_NAME,
            f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}",
        ),
    )
    reason = next((reason for is_broken, reason in rules if is_broken), why_no_client(principal, host))
    if reason:
        raise ValueError(reason)
    pattern = Pattern(Resource(resource), name, PatternType(kind))
    return Acl(pattern, Entry(principal, Operation(operation), Permission(permission), host))


def _is_one(kind: type[enum.IntEnum], code: int) -> bool:
    return code > 0 and any(code == member for member in kind)


def _shown(code: int) -> str:
    return "ANY" if code == ANY_CODE else "UNKNOWN"
