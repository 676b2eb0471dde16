"""Quotas in the tree, where Kafka 2 keeps them in ZooKeeper, so that its tools read ours and we read theirs.

An entity has a config node: /config/users/USER, /config/clients/CLIENT, /config/users/USER/clients/CLIENT or
/config/ips/ADDRESS, names as Kafka writes them, <default> for a default. A node may have other settings: they stay. A
change leaves a notice in /config/changes, in the same step.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias
from urllib.parse import quote, unquote

from replication.coordination import nodes
from replication.coordination.node_json import MalformedNodeError, NodeReader, encode_json
from replication.coordination.tree import (
    BadVersionError,
    Create,
    Node,
    NodeExistsError,
    NoNodeError,
    Step,
    Tree,
    Watch,
    ensure_path,
    put,
)
from replication.security.quotas import ANY, Entity, Quota, Values, format_quota, values_of

logger = logging.getLogger(__name__)

CONFIGS, USERS, CLIENTS, ADDRESSES = "/config", "users", "clients", "ips"
DEFAULT = "<default>"
AT_ONCE = 100  # entities that are changed together
_AGAIN = (BadVersionError, NodeExistsError, NoNodeError)  # another broker was faster, or a parent is missing

Change: TypeAlias = Mapping[Quota, float | None]  # None: it is removed


# ------------------------------------------------------------------------ paths


def encode_name(name: str) -> str:
    """Return a name as Kafka writes it; "." and "..", which no path can hold, in percent-encoding."""
    if name == ANY:
        return DEFAULT
    return name.replace(".", "%2E") if name in (".", "..") else quote(name, safe="").replace("~", "%7E")


def path_of(entity: Entity) -> str:
    if entity.ip is not None:
        return f"{CONFIGS}/{ADDRESSES}/{encode_name(entity.ip)}"
    parts = [CONFIGS]
    parts += () if entity.user is None else (USERS, encode_name(entity.user))
    parts += () if entity.client_id is None else (CLIENTS, encode_name(entity.client_id))
    return "/".join(parts)


def entity_at(path: str) -> Entity | None:
    """Return the entity whose settings a node has; None: it is another one's, or its name was not written so."""
    if not path.startswith(f"{CONFIGS}/"):
        return None
    parts = path[len(CONFIGS) + 1 :].split("/")
    kinds, texts = tuple(parts[::2]), parts[1::2]
    if kinds not in ((USERS,), (CLIENTS,), (ADDRESSES,), (USERS, CLIENTS)) or len(texts) < len(kinds):
        return None
    try:
        names = [ANY if text == DEFAULT else unquote(text, errors="strict") for text in texts]
    except UnicodeDecodeError:
        return None
    if any(name == ANY and text != DEFAULT for name, text in zip(names, texts, strict=True)):
        return None
    found = dict(zip(kinds, names, strict=True))
    entity = Entity(found.get(USERS), found.get(CLIENTS), found.get(ADDRESSES))
    return entity if path_of(entity) == path else None


def encode_notice(path: str) -> bytes:
    """Return a notice that the settings at a path have changed, in the form that older brokers skip."""
    kind, _, name = path[len(CONFIGS) + 1 :].partition("/")
    return encode_json({"version": 1, "entity_type": kind, "entity_name": name})


def path_in_notice(path: str, data: bytes) -> str | None:
    """Return the node that a notice names, in either of Kafka's forms; None: nobody knows which."""
    try:
        at = NodeReader(path, data)
        if "entity_path" in at.value:
            return f"{CONFIGS}/{at.text('entity_path')}"
        return f"{CONFIGS}/{at.text('entity_type')}/{at.text('entity_name')}"
    except MalformedNodeError:
        return None


# ---------------------------------------------------------------------- reading


async def read_all(tree: Tree) -> dict[Entity, Values]:
    """Return all quotas."""
    paths: list[str] = []
    for kind in (USERS, CLIENTS, ADDRESSES):
        paths += [f"{CONFIGS}/{kind}/{name}" for name in await _children(tree, f"{CONFIGS}/{kind}")]
    for user in await _children(tree, f"{CONFIGS}/{USERS}"):
        folder = f"{CONFIGS}/{USERS}/{user}/{CLIENTS}"
        paths += [f"{folder}/{name}" for name in await _children(tree, folder)]
    return await read(tree, paths)


async def _children(tree: Tree, path: str) -> Sequence[str]:
    try:
        return await tree.children(path)
    except NoNodeError:
        return ()


async def read(tree: Tree, paths: Iterable[str]) -> dict[Entity, Values]:
    """Return the quotas at these paths, none for an entity that has none; paths of other settings are left out."""
    entities = {path: entity for path in paths if (entity := entity_at(path)) is not None}
    found = await tree.read_batch(list(entities))
    return {entity: read_node(path, entity, node) for (path, entity), node in zip(entities.items(), found, strict=True)}


def read_node(path: str, entity: Entity, node: Node | None) -> Values:
    """Return the quotas in a node; one that cannot be understood is none, and logged."""
    try:
        values, wrong = values_of(entity, nodes.settings_at(path, node))
    except MalformedNodeError as error:
        logger.error("%s; until then its quotas do not count", error)
        return {}
    for each in wrong:
        logger.error("%s: the quota %s does not count", path, each)
    return values


async def notices(tree: Tree, watch: Watch) -> tuple[str, ...]:
    return await tree.children(nodes.CONFIG_CHANGES, watch)


async def changed_paths(tree: Tree, names: Iterable[str]) -> set[str]:
    """Return the nodes that these notices name."""
    paths = [f"{nodes.CONFIG_CHANGES}/{name}" for name in names]
    found = await tree.read_batch(paths)
    named = (path_in_notice(path, node.data) for path, node in zip(paths, found, strict=True) if node is not None)
    return {path for path in named if path is not None}


# ---------------------------------------------------------------------- writing


async def change(tree: Tree, wanted: Mapping[Entity, Change]) -> None:
    """Set and remove quotas, of each entity in one step, and tell all brokers."""
    open_ones = dict(wanted)
    while open_ones:
        some = dict(list(open_ones.items())[:AT_ONCE])
        paths = {entity: path_of(entity) for entity in some}
        found = await tree.read_batch(list(paths.values()))
        multis: dict[Entity, list[Step]] = {}
        for (entity, path), node in zip(paths.items(), found, strict=True):
            if step := _step(path, node, some[entity]):
                notice = Create(nodes.CONFIG_CHANGE_PREFIX, encode_notice(path), sequence=True)
                multis[entity] = [step, notice]
        done = dict(zip(multis, await tree.write_batch(list(multis.values())), strict=True))
        for entity in some:
            result = done.get(entity)
            if isinstance(result, NoNodeError):
                await ensure_path(tree, paths[entity].rpartition("/")[0])
            if isinstance(result, _AGAIN):
                continue
            if isinstance(result, Exception):
                raise result
            del open_ones[entity]


def _step(path: str, node: Node | None, wanted: Change) -> Step | None:
    """Return the step that changes a node; None: there is nothing to change."""
    before = nodes.settings_at(path, node)
    after = {key: text for key, text in before.items() if key not in wanted}
    after |= {quota.value: format_quota(quota, value) for quota, value in wanted.items() if value is not None}
    if after == before:
        return None
    return put(path, nodes.encode_config(after, None if node is None or not node.data else node.data), node)
