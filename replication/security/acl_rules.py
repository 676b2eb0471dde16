"""Rules: what ACLs together say about a request, as Kafka's StandardAuthorizer.

- An ACL applies to a client if it names the client's principal or everybody, and the client's host or every host.
- A denial that applies decides, whatever is allowed beside it.
- Read, Write, Delete and Alter, if they are allowed, allow Describe; AlterConfigs allows DescribeConfigs. A denial
  denies its own operation, or All.
- A resource that no ACL concerns, of whichever principal, has none: the authorizer then goes by its settings.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from replication.security.access import Operation, Resource
from replication.security.acl import ANYTHING, EVERYBODY, Entry, Filter, Pattern, PatternType, Permission
from replication.security.hosts import host_of, is_in

_IMPLIED: Mapping[Operation, frozenset[Operation]] = {
    Operation.DESCRIBE: frozenset(
        {Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}),
}
ALLOWED_BY: Mapping[Operation, frozenset[Operation]] = {
    operation: _IMPLIED.get(operation, frozenset({operation})) | {Operation.ALL} for operation in Operation
}
_UNNAMED = "hardcode"  # Kafka asks about a resource of this name first, whether a client may do something anywhere


class Verdict(enum.Enum):
    ALLOWED = enum.auto()
    DENIED = enum.auto()
    UNSAID = enum.auto()  # no ACL concerns the resource


class Client(NamedTuple):
    """Whom ACLs are about: `host` in the form of `host_of`."""

    principal: str
    host: str


Entries: TypeAlias = Mapping[str, Sequence[Entry]]  # by their principals


class Rules:
    """The ACLs by what they concern.

    A question costs a look for each length of a prefix, and the ACLs of the client and of everybody that are found.
    """

    def __init__(self) -> None:
        self._entries: dict[Pattern, Entries] = {}
        self._lengths: dict[Resource, Counter[int]] = {resource: Counter() for resource in Resource}

    def __len__(self) -> int:
        return sum(len(rows) for entries in self._entries.values() for rows in entries.values())

    def put(self, pattern: Pattern, entries: Collection[Entry]) -> None:
        """Let these be all ACLs of a pattern."""
        lengths = self._lengths[pattern.resource]
        if (self._entries.pop(pattern, None) is not None) and pattern.kind is PatternType.PREFIXED:
            lengths[len(pattern.name)] -= 1
            if not lengths[len(pattern.name)]:
                del lengths[len(pattern.name)]
        if entries:
            by_principal: dict[str, list[Entry]] = {}
            for entry in dict.fromkeys(entries):
                by_principal.setdefault(entry.principal, []).append(entry)
            self._entries[pattern] = by_principal
            if pattern.kind is PatternType.PREFIXED:
                lengths[len(pattern.name)] += 1

    def patterns(self) -> Collection[Pattern]:
        return self._entries.keys()

    def selected(self, pattern: Pattern, wanted: Filter) -> Sequence[Entry]:
        """Return the ACLs of a pattern that the filter selects."""
        if not wanted.selects_pattern(pattern):
            return ()
        found = self._entries.get(pattern, {})
        return [entry for rows in found.values() for entry in rows if wanted.selects_entry(entry)]

    # --------------------------------------------------------------- questions

    def verdict(self, client: Client, operation: Operation, resource: Resource, name: str) -> Verdict:
        allowing = ALLOWED_BY[operation]
        is_allowed = is_said = False
        for entries in self._concerning(resource, name):
            is_said = True
            for entry in _about(entries, client):
                if entry.permission is Permission.DENY:
                    if entry.operation in (operation, Operation.ALL):
                        return Verdict.DENIED
                elif entry.operation in allowing:
                    is_allowed = True
        if is_allowed:
            return Verdict.ALLOWED
        return Verdict.DENIED if is_said else Verdict.UNSAID

    def _concerning(self, resource: Resource, name: str) -> Iterator[Entries]:
        found = self._entries
        for literal in (name, ANYTHING) if name != ANYTHING else (name,):
            if (entries := found.get(Pattern(resource, literal))) is not None:
                yield entries
        for length in self._lengths[resource]:
            if length <= len(name):
                entries = found.get(Pattern(resource, name[:length], PatternType.PREFIXED))
                if entries is not None:
                    yield entries

    def verdict_anywhere(self, client: Client, operation: Operation, resource: Resource) -> Verdict:
        """Return whether there may be a resource of this type on which the client may do it.

        Only ACLs of the very operation, or of All, count, as in Kafka: none is implied.
        """
        first = self.verdict(client, operation, resource, _UNNAMED)
        if first is Verdict.ALLOWED:
            return first
        allowed: dict[Pattern, None] = {}
        denied: set[Pattern] = set()
        for pattern, entries in self._entries.items():
            if pattern.resource is not resource:
                continue
            for entry in _about(entries, client):
                if entry.operation in (operation, Operation.ALL):
                    if entry.permission is Permission.DENY:
                        denied.add(pattern)
                    else:
                        allowed[pattern] = None
        everything = Pattern(resource, ANYTHING)
        if everything in denied:
            return Verdict.DENIED
        if everything in allowed or any(not _is_covered(pattern, denied) for pattern in allowed):
            return Verdict.ALLOWED
        return first


def _is_covered(pattern: Pattern, denied: Collection[Pattern]) -> bool:
    """Is all that the pattern stands for denied, as far as one other pattern does that?"""
    resource, name, kind = pattern
    if kind is PatternType.LITERAL and pattern in denied:
        return True
    return any(Pattern(resource, name[:end], PatternType.PREFIXED) in denied for end in range(1, len(name) + 1))


def _about(entries: Entries, client: Client) -> Iterator[Entry]:
    """Yield those that are about this client."""
    for principal in (client.principal, EVERYBODY):
        for entry in entries.get(principal, ()):
            if entry.host == ANYTHING or _is_from(entry.host, client.host):
                yield entry


def _is_from(hosts: str, host: str) -> bool:
    """Is a host of `host_of` among those of an ACL? An address without a zone is that of every zone."""
    if "/" in hosts:
        return is_in(host, hosts)
    return host_of(hosts) in (host, host.partition("%")[0])
