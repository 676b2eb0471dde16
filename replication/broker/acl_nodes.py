"""ACLs in the tree, where Kafka 2 keeps them in ZooKeeper, so that its tools read ours and we read theirs.

A pattern has one node with all of its ACLs: /kafka-acl/TYPE/NAME if it is literal, otherwise
/kafka-acl-extended/prefixed/TYPE/NAME. A change of a node leaves a notice in /kafka-acl-changes or
/kafka-acl-extended-changes, in the same step.

A node that cannot be read denies everybody everything that its pattern stands for, until it is corrected or deleted: a
denial in it must not be lost.

A name that no path can hold is written in percent-encoding, so that a `%` always is, too. Kafka writes names as they
are: those that hold neither are the same in both.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote, unquote

from logstore.errors import InvalidRequestError, PylogError
from replication.coordination.node_json import MalformedNodeError, NodeReader, encode_json
from replication.coordination.tree import (
    DATA_BYTES_MAX,
    BadVersionError,
    Create,
    Delete,
    Node,
    NodeExistsError,
    NoNodeError,
    RefusedError,
    Step,
    Tree,
    Watch,
    ensure_path,
    put,
)
from replication.network.steps import in_steps
from replication.security.access import Operation, Resource
from replication.security.acl import (
    EVERYBODY,
    Entry,
    Pattern,
    PatternType,
    Permission,
    named,
    text_of,
    why_no_client,
)

logger = logging.getLogger(__name__)

LITERAL, PREFIXED = "/kafka-acl", "/kafka-acl-extended/prefixed"
LITERAL_CHANGES, EXTENDED_CHANGES = "/kafka-acl-changes", "/kafka-acl-extended-changes"
CHANGES = (LITERAL_CHANGES, EXTENDED_CHANGES)
_FOLDERS: Mapping[PatternType, str] = {PatternType.LITERAL: LITERAL, PatternType.PREFIXED: PREFIXED}
_NOTICE = "acl_changes_"
_NOTICES = re.compile(f"{_NOTICE}[0-9]{{10}}")
AT_ONCE = 100  # patterns that are changed together
# The rest is for its path and the notice: 32 KiB of a name are six times as much as text of JSON.
NODE_BYTES_MAX = DATA_BYTES_MAX - 350_000
_AGAIN = (BadVersionError, NodeExistsError, NoNodeError)  # another broker was faster
RESOURCES = (Resource.TOPIC, Resource.GROUP, Resource.CLUSTER, Resource.TRANSACTIONAL_ID)
_TYPES = {text_of(resource): resource for resource in RESOURCES}
_FOREIGN = frozenset({"DelegationToken", "User"})  # types of resources of Kafka that there are none of here

DENIED = frozenset({Entry(EVERYBODY, Operation.ALL, Permission.DENY)})  # the ACLs of a node that cannot be read

Entries: TypeAlias = frozenset[Entry]

_OF_NODE = frozenset(("version", "acls"))
_OF_ROW = frozenset(("principal", "permissionType", "operation", "host"))
# No path of ZooKeeper holds these, which looks at UTF-16; and the percent sign.
_NOT_IN_PATHS = re.compile("[%/\\x00-\\x1f\\x7f-\\x9f\\ud800-\\uf8ff\\ufff0-\\U0010ffff]")


class AclNode(NamedTuple):
    """The ACLs of a pattern. `is_whole`: the node can be read; otherwise they are DENIED."""

    entries: Entries
    is_whole: bool = True


# ------------------------------------------------------------------------ paths


def path_of(pattern: Pattern) -> str:
    return f"{_FOLDERS[pattern.kind]}/{text_of(pattern.resource)}/{encode_name(pattern.name)}"


def encode_name(name: str) -> str:
    if name in (".", ".."):
        return name.replace(".", "%2E")
    return _NOT_IN_PATHS.sub(lambda found: quote(found[0], safe=""), name)


def decode_name(text: str) -> str | None:
    """Return the name; None: it was not written by `encode_name`."""
    try:
        name = unquote(text, errors="strict")
    except UnicodeDecodeError:
        return None
    return name if encode_name(name) == text else None


# --------------------------------------------------------------------- contents


def encode(entries: Collection[Entry], former: bytes | None = None) -> bytes:
    rows = [
        {
            "principal": entry.principal,
            "permissionType": text_of(entry.permission),
            "operation": text_of(entry.operation),
            "host": entry.host,
        }
        for entry in sorted(entries)
    ]
    return encode_json({"version": 1, "acls": rows}, former, _OF_NODE)


def decode(path: str, data: bytes) -> Entries:
    """Return the ACLs in a node. Raises: MalformedNodeError: one of them cannot be understood as a whole.

    An empty node is one of these: a node without ACLs has an empty list of them.
    """
    at = NodeReader(path, data)
    if at.number("version") != 1:
        raise at.error(f"version {at.value['version']} of ACLs is not known")
    return frozenset(_row(path, row) for row in at.typed("acls", list))


def _row(path: str, row: Any) -> Entry:
    at = NodeReader(path, row)
    if unknown := at.value.keys() - _OF_ROW:
        raise at.error(f"an ACL has {sorted(unknown)[0]!r:.60}, which may narrow it")
    principal, host = at.text("principal"), at.text("host")
    if reason := why_no_client(principal, host):
        raise at.error(reason)
    try:
        f"{principal}{host}".encode()  # half a surrogate could not be told to anybody
        return Entry(
            principal, named(Operation, at.text("operation")), named(Permission, at.text("permissionType")), host
        )
    except ValueError as error:
        raise at.error(str(error)) from None


def read_node(pattern: Pattern, node: Node | None) -> AclNode:
    """Return the ACLs in a node; one that cannot be read is logged."""
    if node is None:
        return AclNode(frozenset())
    try:
        return AclNode(decode(path_of(pattern), node.data))
    except MalformedNodeError as error:
        logger.error("%s; until then nobody but super users has a right there", error)
        return AclNode(DENIED, is_whole=False)


def encode_notice(pattern: Pattern) -> bytes:
    kind = pattern.resource.name
    if pattern.kind is PatternType.LITERAL:
        return f"{kind}:{pattern.name}".encode()
    return encode_json({"version": 1, "resourceType": kind, "name": pattern.name, "patternType": pattern.kind.name})


def decode_notice(path: str, data: bytes) -> Pattern | None:
    """Return the pattern that has changed; None: nobody knows which, so that it may be any."""
    try:
        if path.startswith(f"{EXTENDED_CHANGES}/"):
            at = NodeReader(path, data)
            kind, name, pattern_type = at.text("resourceType"), at.text("name"), at.text("patternType")
        else:
            kind, _, name = data.decode().partition(":")
            pattern_type = PatternType.LITERAL.name
        name.encode()  # half a surrogate is in no path
        return Pattern(named(Resource, kind), name, named(PatternType, pattern_type)) if name else None
    except (MalformedNodeError, ValueError):
        return None


# ---------------------------------------------------------------------- reading


async def prepare(tree: Tree) -> None:
    """Make the nodes that ACLs are kept under, where they are missing."""
    for path in _parents():
        await ensure_path(tree, path)


def _parents() -> Iterator[str]:
    yield from CHANGES
    for folder in _FOLDERS.values():
        yield from (f"{folder}/{text_of(resource)}" for resource in RESOURCES)


async def read_all(tree: Tree) -> dict[Pattern, AclNode]:
    """Return all ACLs. A name that nobody can have written is logged, and taken as it stands: denied."""
    patterns: list[Pattern] = []
    strange: list[Pattern] = []
    for kind, folder in _FOLDERS.items():
        for text in await _children(tree, folder):
            resource = _TYPES.get(text)
            if resource is None:
                if text not in _FOREIGN:
                    logger.error("%s/%s: no resources of this type are known; its ACLs are ignored", folder, text)
                continue
            for name in await _children(tree, f"{folder}/{text}"):
                known = decode_name(name)
                if known is None:
                    logger.error(
                        "%s/%s/%s is no name in percent-encoding: nobody but super users has a right on %r until "
                        "somebody deletes the node in the coordination store", folder, text, name, name,
                    )  # fmt: skip
                    strange.append(Pattern(resource, name, kind))
                else:
                    patterns.append(Pattern(resource, known, kind))
    return {**await read(tree, patterns), **dict.fromkeys(strange, AclNode(DENIED, is_whole=False))}


async def _children(tree: Tree, path: str) -> Sequence[str]:
    try:
        return await tree.children(path)
    except NoNodeError:
        return ()


async def read(tree: Tree, patterns: Collection[Pattern]) -> dict[Pattern, AclNode]:
    """Return the ACLs of these patterns, none for a pattern without a node."""
    nodes = await tree.read_batch([path_of(pattern) for pattern in patterns])
    found: dict[Pattern, AclNode] = {}
    async for some in in_steps(zip(patterns, nodes, strict=True)):
        found.update((pattern, read_node(pattern, node)) for pattern, node in some)
    return found


def is_ambiguous(pattern: Pattern) -> bool:
    """Can a node that `encode_name` did not write have this name? Then only `read_all` knows the ACLs."""
    return "/" not in pattern.name and decode_name(pattern.name) is None


async def notices(tree: Tree, folder: str, watch: Watch | None = None) -> tuple[str, ...]:
    """Return the names of the notices, in their order; a node of any other name is none."""
    try:
        found = await tree.children(folder, watch)
    except NoNodeError:  # somebody has deleted all of it
        await prepare(tree)
        found = await tree.children(folder, watch)
    return tuple(name for name in found if _NOTICES.fullmatch(name))


async def read_notices(tree: Tree, folder: str, names: Sequence[str]) -> set[Pattern] | None:
    """Return the patterns of these notices; None: any may have changed."""
    paths = [f"{folder}/{name}" for name in names]
    changed: set[Pattern] = set()
    for path, node in zip(paths, await tree.read_batch(paths), strict=True):
        pattern = None if node is None else decode_notice(path, node.data)
        if pattern is None:
            return None
        changed.add(pattern)
    return changed


async def forget_old_notices(tree: Tree, folder: str, names: Sequence[str], keep: int) -> None:
    if len(names) > keep:
        await tree.write_batch([[Delete(f"{folder}/{name}")] for name in names[:-keep]])


# ---------------------------------------------------------------------- writing


Wanted: TypeAlias = Callable[[AclNode], Entries]  # returns the ACLs of a pattern after a change, from those before


async def change(tree: Tree, wanted: Mapping[Pattern, Wanted]) -> dict[Pattern, PylogError]:
    """Replace the ACLs of each pattern by what its function makes of them, and tell all brokers; none delete the node.

    Return why some of them are as before: their function raised PylogError, they are more than a node holds, or
    somebody has put a node below that of an ACL.
    """
    failed: dict[Pattern, PylogError] = {}
    open_ones = list(wanted)
    while open_ones:
        some, open_ones = open_ones[:AT_ONCE], open_ones[AT_ONCE:]
        multis: dict[Pattern, list[Step]] = {}
        found = await tree.read_batch([path_of(pattern) for pattern in some])
        for pattern, node in zip(some, found, strict=True):
            try:
                if step := _step(pattern, node, wanted[pattern]):
                    multis[pattern] = [step, _notice(pattern)]
            except PylogError as error:
                failed[pattern] = error
        done = await tree.write_batch(list(multis.values()))
        for pattern, result in zip(multis, done, strict=True):
            if isinstance(result, _AGAIN):
                open_ones.append(pattern)
            elif isinstance(result, RefusedError):
                failed[pattern] = result
        if any(isinstance(result, NoNodeError) for result in done):
            await prepare(tree)
    return failed


def _step(pattern: Pattern, node: Node | None, wanted: Wanted) -> Step | None:
    known = read_node(pattern, node)
    entries = wanted(known)
    if entries == known.entries and (not known.is_whole or bool(entries) == (node is not None)):
        return None
    path = path_of(pattern)
    if not entries:
        return None if node is None else Delete(path, node.version)
    data = encode(entries, node.data if node is not None and known.is_whole else None)
    if len(data) > NODE_BYTES_MAX:
        raise InvalidRequestError(
            f"{path:.100}: {len(entries):,} ACLs of one resource pattern are more than a node holds"
        )
    return put(path, data, node)


def _notice(pattern: Pattern) -> Step:
    folder = LITERAL_CHANGES if pattern.kind is PatternType.LITERAL else EXTENDED_CHANGES
    return Create(f"{folder}/{_NOTICE}", encode_notice(pattern), sequence=True)
