"""The cluster in the tree: the controller's election, the states of partitions, and reading all of it.

A new controller creates /controller and increments /controller_epoch in one step. Every write of a controller checks
the version of /controller_epoch in the same step, so a controller that was replaced can no longer write.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from logstore.store.description import TopicDescription
from replication.coordination import features, nodes
from replication.coordination.node_json import MalformedNodeError
from replication.coordination.offline import read_offline
from replication.coordination.tree import (
    Check,
    CoordinationError,
    Create,
    Node,
    NoNodeError,
    RefusedError,
    SetData,
    Step,
    Tree,
    Watch,
    ensure_path,
    put,
)
from replication.model.cluster import (
    NO_EPOCH,
    NO_NODE,
    Assignment,
    BrokerId,
    BrokerInfo,
    ClusterState,
    Election,
    LeaderAndIsr,
    Reassignment,
    TopicPartition,
    WriteResult,
)

logger = logging.getLogger(__name__)


class FencedError(CoordinationError):
    """There is a newer controller: nothing was written, and nothing may be sent."""

    def __init__(self, controller_epoch: int) -> None:
        super().__init__(
            f"controller epoch {controller_epoch} is over: another broker is the controller",
            controller_epoch=controller_epoch,
        )


@dataclass(frozen=True, slots=True)
class Term:
    controller_epoch: int
    guard: Check


@dataclass(frozen=True, slots=True)
class IsrWrite:
    """An ISR that a leader proposes: `state.version` is the one that its node must have; `joining` are new members."""

    tp: TopicPartition
    state: LeaderAndIsr
    joining: tuple[tuple[BrokerId, int], ...]  # broker, and its epoch


@contextlib.contextmanager
def log_if_malformed() -> Iterator[None]:
    """Log a malformed node and go on without it."""
    try:
        yield
    except MalformedNodeError as error:
        logger.error("%s", error)


async def prepare(tree: Tree) -> None:
    """Create the persistent nodes that everything relies on, where they are missing."""
    found = await tree.read_batch(nodes.PERSISTENT_PATHS)
    for path, node in zip(nodes.PERSISTENT_PATHS, found, strict=True):
        if node is None:
            await ensure_path(tree, path)


async def read_cluster_id(tree: Tree, new_id: str, level: int = 0) -> str:
    """Return the cluster's id, after setting it to `new_id` if there is none yet: a new cluster begins at `level`.

    Where the tree has a level already, or an earlier release is registered, the level stays.
    """
    while (found := await tree.get(nodes.CLUSTER_ID)) is None:
        await ensure_path(tree, nodes.CLUSTER_ID.rpartition("/")[0])
        steps = await features.first_level_steps(tree, new_id, level)
        with contextlib.suppress(RefusedError):  # another broker was faster
            await tree.multi(steps)
    return nodes.decode_cluster_id(found.data)


async def become_controller(tree: Tree, broker: BrokerId, now_ms: int) -> Term | None:
    """Begin a term as the controller; None if there is one (it may be this session: see `resign`)."""
    while True:
        epoch_node, features_node = await tree.read_batch([nodes.CONTROLLER_EPOCH, nodes.FEATURES])
        level = features.finalized_at(features_node).level
        epoch = 1 if epoch_node is None else nodes.decode_controller_epoch(epoch_node.data) + 1
        steps: list[Step] = [
            Create(nodes.CONTROLLER, nodes.encode_controller(broker, now_ms), ephemeral=True),
            put(nodes.CONTROLLER_EPOCH, nodes.encode_controller_epoch(epoch, level), epoch_node),
        ]
        if features_node is not None:
            steps.append(Check(nodes.FEATURES, features_node.version))
        try:
            done = await tree.multi(steps)
        except RefusedError as refused:
            if refused.index == 0:
                return None
            continue  # another controller was elected and has gone since the epoch was read, or the level was raised
        return Term(epoch, Check(nodes.CONTROLLER_EPOCH, done[1].version))


async def read_controller_epoch(tree: Tree) -> int:
    """Return the number of terms so far; 0 before the first."""
    found = await tree.get(nodes.CONTROLLER_EPOCH)
    return 0 if found is None else nodes.decode_controller_epoch(found.data)


async def resign(tree: Tree) -> None:
    """Delete /controller if this session owns it: after a lost connection it may, without knowing."""
    found = await tree.get(nodes.CONTROLLER)
    if found is not None and found.owner == tree.session:
        try:
            await tree.delete(nodes.CONTROLLER, found.version)
        except NoNodeError:
            return


async def write_states(
    tree: Tree, term: Term, writes: Sequence[tuple[TopicPartition, LeaderAndIsr]]
) -> tuple[WriteResult, ...]:
    """Write each state if its node still has `state.version` (NO_NODE: does not exist), in one batch.

    Raises: FencedError: the term is over, and none of its later writes will be accepted; ConnectionLossError: any of
    them may have been written, which `read_states` tells.
    """
    await _make_parents(tree, term, writes)
    results = await tree.write_batch([_state_steps(term, tp, state) for tp, state in writes])
    outcomes = list(zip(writes, results, strict=True))
    refused = {tp: result for (tp, _), result in outcomes if isinstance(result, RefusedError)}
    if any(result.index == 0 for result in refused.values()):
        raise FencedError(term.controller_epoch)
    stored = await read_states(tree, list(refused))
    return tuple(
        WriteResult(tp, False, stored[tp])
        if isinstance(result, RefusedError)
        else WriteResult(tp, True, replace(state, version=result[-1].version))
        for (tp, state), result in outcomes
    )


def _state_steps(term: Term, tp: TopicPartition, state: LeaderAndIsr) -> list[Step]:
    data = nodes.encode_state(state)
    if state.version == NO_NODE:
        return [term.guard, Create(nodes.partition_path(tp)), Create(nodes.state_path(tp), data)]
    return [term.guard, SetData(nodes.state_path(tp), data, state.version)]


async def write_isrs(tree: Tree, writes: Sequence[IsrWrite]) -> tuple[int | None, ...]:
    """Write each ISR, in one step each, if its node has `state.version` and the joining registrations still count.

    Returns the new versions, None for a refused one. Raises: ConnectionLossError: any of them may have been written.
    """
    registrations = await _checks_of_registrations(tree, {life for write in writes for life in write.joining})
    allowed = [write for write in writes if all(life in registrations for life in write.joining)]
    paths = [nodes.state_path(write.tp) for write in allowed]
    # A leader does not know all that the node says, and keeps it: its controller does not tell it.
    former = [None if node is None else node.data for node in await tree.read_batch(paths)]
    results = await tree.write_batch(
        [
            [
                *(check for life in write.joining for check in registrations[life]),
                SetData(path, nodes.encode_state(write.state, data), write.state.version),
            ]
            for write, path, data in zip(allowed, paths, former, strict=True)
        ]
    )
    versions = {
        write.tp: None if isinstance(result, RefusedError) else result[-1].version
        for write, result in zip(allowed, results, strict=True)
    }
    return tuple(versions.get(write.tp) for write in writes)


async def _checks_of_registrations(
    tree: Tree, registrations: set[tuple[BrokerId, int]]
) -> dict[tuple[BrokerId, int], tuple[Check, ...]]:
    """Return the checks that hold as long as these brokers live in these epochs; those that do not are left out.

    The version of a node does not distinguish registrations, since a recreated node begins at 0. That of the
    incarnation does. It is read first: if it has not changed, neither has the registration that was read next.
    """
    brokers = [broker for broker, _ in registrations]
    incarnations = await tree.read_batch([nodes.incarnation_path(broker) for broker in brokers])
    registered = await tree.read_batch([nodes.broker_path(broker) for broker in brokers])
    return {
        (broker, epoch): (
            Check(nodes.incarnation_path(broker), incarnation.version),
            Check(nodes.broker_path(broker), node.version),
        )
        for (broker, epoch), incarnation, node in zip(registrations, incarnations, registered, strict=True)
        if incarnation is not None and node is not None and _epoch_of(broker, node) == epoch
    }


def _epoch_of(broker: BrokerId, registration: Node) -> int:
    epoch = NO_EPOCH
    with log_if_malformed():
        epoch = nodes.decode_broker(broker, registration).epoch
    return epoch


async def _make_parents(tree: Tree, term: Term, writes: Iterable[tuple[TopicPartition, LeaderAndIsr]]) -> None:
    new = dict.fromkeys(tp.topic for tp, state in writes if state.version == NO_NODE)
    steps: list[list[Step]] = [[term.guard, Create(nodes.partitions_path(topic))] for topic in new]
    await tree.write_batch(steps)  # those that exist already are refused, which does not matter


async def read_states(tree: Tree, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, LeaderAndIsr | None]:
    """Return the content of the state nodes; None for one that is missing or malformed."""
    states, _ = await find_states(tree, partitions)
    return states


async def find_states(
    tree: Tree, partitions: Sequence[TopicPartition]
) -> tuple[dict[TopicPartition, LeaderAndIsr | None], set[TopicPartition]]:
    """Return the same as `read_states`, and the partitions whose nodes are malformed."""
    found = await tree.read_batch([nodes.state_path(tp) for tp in partitions])
    states: dict[TopicPartition, LeaderAndIsr | None] = dict.fromkeys(partitions)
    for tp, node in zip(partitions, found, strict=True):
        if node is not None:
            with log_if_malformed():
                states[tp] = nodes.decode_state(tp, node)
    return states, {tp for tp, node in zip(partitions, found, strict=True) if node is not None and states[tp] is None}


async def read_brokers(tree: Tree) -> dict[BrokerId, BrokerInfo]:
    """Return the registered brokers that support the level of the cluster: others take no part in it."""
    found, finalized = await features.read_registered(tree)
    return {broker: info for broker, info in found.items() if finalized.level in info.levels}


async def read_topics(tree: Tree) -> dict[str, TopicDescription]:
    """Return all topics, with their ids, replicas and settings: all of a topic from one life of it.

    Ids and settings are read before topics. An id that was created with its topic or later, and read before it, belongs
    to it; so do the settings that were read between. Other topics are looked at again: one that has lived since the
    first look has no id. Topics that come and go during the read may be missing.

    A topic whose node is malformed has no replicas, and malformed settings count as none; both are logged, and other
    topics are not affected.
    """
    found: dict[str, TopicDescription] = {}
    seen: dict[str, int] = {}  # the creations of the topics that are looked at again
    names = await tree.children(nodes.TOPICS)
    while names:
        ids = await tree.read_batch([nodes.topic_id_path(name) for name in names])
        configs = await tree.read_batch([nodes.topic_config_path(name) for name in names])
        assigned = await tree.read_batch([nodes.topic_path(name) for name in names])
        rows = [row for row in zip(names, assigned, configs, ids, strict=True) if row[1] is not None]
        again = []
        for name, node, config, topic_id in rows:
            assert node is not None
            is_of_one_life = topic_id is not None and topic_id.creation >= node.creation
            if is_of_one_life or seen.get(name) == node.creation:
                found[name] = _topic(name, node, config, topic_id)
            else:
                seen[name] = node.creation
                again.append(name)
        names = tuple(again)
    return found


def _topic(name: str, node: Node, config: Node | None, topic_id: Node | None) -> TopicDescription:
    replicas: dict[int, Assignment] = {}
    with log_if_malformed():
        replicas = nodes.decode_topic(name, node.data)
    return TopicDescription(
        name=name,
        topic_id=topic_id.data.decode() if topic_id is not None else "",
        partitions=len(replicas),
        overrides=_settings(name, config) or {},
        replicas=replicas,
    )


async def read_topic_configs(tree: Tree, topics: Sequence[str]) -> dict[str, dict[str, str] | None]:
    """Return the overrides of these topics, empty where there is no node; None for malformed ones."""
    found = await tree.read_batch([nodes.topic_config_path(topic) for topic in topics])
    return {topic: _settings(topic, node) for topic, node in zip(topics, found, strict=True)}


def _settings(topic: str, node: Node | None) -> dict[str, str] | None:
    settings = None
    with log_if_malformed():
        settings = nodes.settings_at(nodes.topic_config_path(topic), node)
    return settings


async def read_cluster(tree: Tree) -> ClusterState:
    """Return everything that a new controller must know. Set the watches first: they report changes during the read."""
    brokers = await read_brokers(tree)
    topics = await read_topics(tree)
    partitions = [TopicPartition(name, p) for name, topic in topics.items() for p in topic.replicas]
    states = await read_states(tree, partitions)
    # These two may be written by hand, and wrongly: the watches report it when they are corrected.
    election = Election()
    with log_if_malformed():
        if (found := await tree.get(nodes.ELECTION)) is not None:
            election = nodes.decode_election(found.data)
    reassignments: dict[TopicPartition, Reassignment] = {}
    with log_if_malformed():
        reassignments = await read_reassignments(tree)
    return ClusterState(
        brokers=brokers,
        topics=topics,
        leadership={tp: state for tp, state in states.items() if state is not None},
        deletions=await tree.children(nodes.DELETED_TOPICS),
        election=election,
        reassignments=reassignments,
        offline=await read_offline(tree),
    )


async def read_reassignments(tree: Tree, watch: Watch | None = None) -> dict[TopicPartition, Reassignment]:
    found = await tree.get(nodes.REASSIGNMENT, watch)
    return {} if found is None else nodes.decode_reassignment(found.data)
