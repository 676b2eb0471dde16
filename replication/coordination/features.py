"""The feature level in the tree: read, checked by a broker that wants to register, raised.

- A broker registers in one step with a check that the level is the one that it looked at, and with a write that counts
  registrations. A raise is one step with a check that nobody has registered since the brokers were read. So a raise and
  a registration never cross.
- The release before feature levels counts no registrations, but it writes its incarnation, whose version a raise
  checks, too. Its first life under a new id has none yet: it may cross a raise. `cluster.read_brokers` leaves it out.
- A raise ends the term of the controller: a term has one level.

Nothing here caches: what is read is as old as the session's view of the store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from replication.coordination import nodes
from replication.coordination.tree import (
    Check,
    CoordinationError,
    Create,
    Delete,
    Node,
    NoNodeError,
    RefusedError,
    SetData,
    Step,
    Tree,
    Watch,
    ensure_path,
)
from replication.model.cluster import BrokerId, BrokerInfo
from replication.model.features import Finalized, Levels, refusal_to_join

Registered = Mapping[BrokerId, BrokerInfo]


class UnsupportedLevelError(CoordinationError):
    """A broker does not support the level of the cluster: it takes no part in it."""


async def read_finalized(tree: Tree, watch: Watch | None = None) -> Finalized:
    """Return the level of the cluster. Raises: MalformedNodeError."""
    return finalized_at(await tree.get(nodes.FEATURES, watch))


def finalized_at(node: Node | None) -> Finalized:
    return nodes.decode_features(node.data) if node is not None else Finalized()


async def check_level(tree: Tree, broker: BrokerId, levels: Levels) -> None:
    """Raises: UnsupportedLevelError: the cluster is at another level."""
    refuse_unsupported(broker, levels, await read_finalized(tree))


def refuse_unsupported(broker: BrokerId, levels: Levels, finalized: Finalized) -> None:
    """Raises: UnsupportedLevelError."""
    if (reason := refusal_to_join(broker, levels, finalized.level)) is not None:
        raise UnsupportedLevelError(reason, broker=broker, level=finalized.level)


async def registration_steps(tree: Tree, broker: BrokerId, levels: Levels) -> tuple[Step, Step]:
    """Return the steps that go with a registration: see the module. Raises: UnsupportedLevelError."""
    while True:
        features, count = await tree.read_batch([nodes.FEATURES, nodes.REGISTRATIONS])
        if features is not None and count is not None:
            refuse_unsupported(broker, levels, finalized_at(features))
            return Check(nodes.FEATURES, features.version), SetData(nodes.REGISTRATIONS, b"")
        await _make_nodes(tree)


async def read_registered(tree: Tree) -> tuple[Registered, Finalized]:
    """Return all registered brokers, also those that do not support the level, and the level.

    The level is read last: it is none from before a registration that it keeps out. Raises: MalformedNodeError.
    """
    ids = [int(name) for name in await tree.children(nodes.BROKER_IDS)]
    *found, features = await tree.read_batch([*map(nodes.broker_path, ids), nodes.FEATURES])
    known = {b: nodes.decode_broker(b, node) for b, node in zip(ids, found, strict=True) if node is not None}
    return known, finalized_at(features)


async def raise_level(
    tree: Tree, level: int, check: Callable[[Finalized, Mapping[BrokerId, Levels]], None]
) -> Finalized:
    """Raise the level, if `check` of the present one and of the registered brokers raises nothing; return the new one.

    At the level already, nothing is written. May be repeated. Raises: MalformedNodeError; whatever `check` raises.
    """
    while True:
        count, node = await tree.read_batch([nodes.REGISTRATIONS, nodes.FEATURES])
        if count is None or node is None:
            await _make_nodes(tree)
            continue
        incarnations = await _incarnations(tree)
        registered, finalized = await read_registered(tree)
        check(finalized, {broker: info.levels for broker, info in registered.items()})
        if finalized.level == level:
            return finalized
        raised = Finalized(level, finalized.epoch + 1)
        data = nodes.encode_features(raised, node.data)
        steps = [Check(nodes.REGISTRATIONS, count.version), *incarnations, SetData(nodes.FEATURES, data, node.version)]
        try:
            await tree.multi([*steps, *await _shut_out(tree, level)])
        except RefusedError:
            continue  # a broker has registered, or become the controller, or somebody else has raised it
        return raised


async def first_level_steps(tree: Tree, cluster_id: str, level: int) -> list[Step]:
    """Return the steps that make the id of a cluster, which begins at `level` if no broker ever registered."""
    while True:
        count, node = await tree.read_batch([nodes.REGISTRATIONS, nodes.FEATURES])
        if count is not None and node is not None:
            break
        await _make_nodes(tree)
    now = finalized_at(node)
    is_new = not node.data and not count.version and not await _has_brokers(tree)
    first = Finalized(level, 1) if is_new and level else now
    steps: list[Step] = [Create(nodes.CLUSTER_ID, nodes.encode_cluster_id(cluster_id, first.level))]
    if first != now:
        steps.append(Check(nodes.REGISTRATIONS, count.version))
        steps.append(SetData(nodes.FEATURES, nodes.encode_features(first, node.data), node.version))
    return steps


async def _has_brokers(tree: Tree) -> bool:
    """Is a broker registered, of whichever release?"""
    try:
        return bool(await tree.children(nodes.BROKER_IDS))
    except NoNodeError:
        return False


async def _make_nodes(tree: Tree) -> None:
    for path in (nodes.FEATURES, nodes.REGISTRATIONS):
        await ensure_path(tree, path)


async def _shut_out(tree: Tree, level: int) -> list[Step]:
    """Return the steps that keep the release before feature levels out, and end the term of the controller."""
    paths = [nodes.CLUSTER_ID, nodes.CONTROLLER_EPOCH, nodes.CONTROLLER]
    cluster_id, epoch, controller = await tree.read_batch(paths)
    steps: list[Step] = []
    if cluster_id is not None:
        data = nodes.encode_cluster_id(nodes.decode_cluster_id(cluster_id.data), level, cluster_id.data)
        steps.append(SetData(nodes.CLUSTER_ID, data, cluster_id.version))
    if epoch is None:
        steps += (Create(nodes.CONTROLLER_EPOCH), Delete(nodes.CONTROLLER_EPOCH))  # refused if there is one by then
    else:
        data = nodes.encode_controller_epoch(nodes.decode_controller_epoch(epoch.data), level)
        steps.append(SetData(nodes.CONTROLLER_EPOCH, data, epoch.version))
    if controller is not None:
        steps.append(Delete(nodes.CONTROLLER, controller.version))
    return steps


async def _incarnations(tree: Tree) -> list[Step]:
    """Return the checks that no broker that ever registered has done so again."""
    try:
        paths = [f"{nodes.INCARNATIONS}/{name}" for name in await tree.children(nodes.INCARNATIONS)]
    except NoNodeError:
        return []
    found = await tree.read_batch(paths)
    return [Check(path, node.version) for path, node in zip(paths, found, strict=True) if node is not None]
