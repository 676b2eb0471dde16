"""Reassignments in the tree: requested, begun, changed, ended.

/admin/reassign_partitions exists while there is any. Every change is one step, conditional on what was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from replication.coordination import nodes
from replication.coordination.cluster import FencedError, Term
from replication.coordination.topic_nodes import still_alive
from replication.coordination.tree import Delete, Node, RefusedError, SetData, Step, Tree, put
from replication.model.cluster import Assignment, Reassignment, ReassignmentWrite, ReassignmentWritten, TopicPartition

Plans = dict[TopicPartition, Reassignment]


async def write(tree: Tree, term: Term, change: ReassignmentWrite) -> ReassignmentWritten:
    """Do the write, if both nodes still say what it expects. May be repeated.

    Raises: FencedError; MalformedNodeError.
    """
    tp, topic_path = change.tp, nodes.topic_path(change.tp.topic)
    while True:
        node, topic = await tree.read_batch([nodes.REASSIGNMENT, topic_path])
        plans, assigned = _plans(node), _assigned(tp.topic, topic)
        plan, replicas = plans.get(tp), assigned.get(tp.partition, ())
        is_replicas_done = change.replicas in (None, replicas)
        if plan == change.after and is_replicas_done:
            return ReassignmentWritten(tp, True, plan, replicas)
        is_known = plan == change.before or (plan is None and change.after is None)
        if not is_known or not (is_replicas_done or replicas == change.stored):
            return ReassignmentWritten(tp, False, plan, replicas)
        plans.pop(tp, None)
        if change.after is not None:
            plans[tp] = change.after
        steps: list[Step] = [term.guard, *_steps(node, plans)]
        if topic is not None and change.replicas is not None and not is_replicas_done:
            data = nodes.encode_topic({**assigned, tp.partition: change.replicas}, topic.data)
            steps.append(SetData(topic_path, data, topic.version))
        try:
            await tree.multi(steps)
        except RefusedError as refused:
            if refused.index == 0:
                raise FencedError(term.controller_epoch) from None


async def request(
    tree: Tree, wanted: Mapping[TopicPartition, Assignment | None], *also: Step
) -> frozenset[TopicPartition]:
    """Request these replicas; None cancels. Returns the partitions where there was nothing to cancel.

    The steps `also` are done in the same multi. Raises: MalformedNodeError; RefusedError of `also`.
    """
    while True:
        alive = await still_alive(tree)
        (node,) = await tree.read_batch([nodes.REASSIGNMENT])
        assigned = await _read_assigned(tree, {tp.topic for tp in wanted})
        before = _plans(node)
        plans = dict(before)
        for tp, target in wanted.items():
            _ask(plans, tp, target, assigned.get(tp, ()))
        idle = frozenset(tp for tp, target in wanted.items() if target is None and tp not in before)
        if plans == before:
            return idle
        try:
            await tree.multi([alive, *_steps(node, plans), *also])
        except RefusedError as error:
            if error.path not in (alive.path, nodes.REASSIGNMENT):
                raise
            continue  # another writer was faster, or a topic was deleted
        return idle


async def listed(tree: Tree) -> dict[TopicPartition, tuple[Assignment, Assignment, Assignment]]:
    """Return per reassigned partition its replicas, the added and the removed ones. Raises: MalformedNodeError.

    Each partition is as it was at one moment: its replicas are read between two reads of its plan, which changes in the
    same step as they do. One whose plan has changed meanwhile is read again.
    """
    found = {}
    plans = _plans(await tree.get(nodes.REASSIGNMENT))
    while plans:
        assigned = await _read_assigned(tree, {tp.topic for tp in plans})
        now = _plans(await tree.get(nodes.REASSIGNMENT))
        for tp, plan in plans.items():
            replicas = assigned.get(tp)
            if not replicas or now.get(tp) != plan:
                continue
            original = replicas if plan.original is None else plan.original
            added = tuple(broker for broker in plan.target if broker not in original)
            found[tp] = (replicas, added, tuple(broker for broker in replicas if broker not in plan.target))
        plans = {tp: plan for tp, plan in now.items() if tp in plans and plans[tp] != plan}
    return found


def _ask(plans: Plans, tp: TopicPartition, target: Assignment | None, replicas: Assignment) -> None:
    known = plans.get(tp)
    original = None if known is None else known.original
    if target is not None:
        if known is not None or target != replicas:
            plans[tp] = Reassignment(target, original)
    elif original is not None:
        plans[tp] = Reassignment(original, original)
    else:
        plans.pop(tp, None)  # it has not begun


def _steps(node: Node | None, plans: Plans) -> list[Step]:
    if plans:
        former = None if node is None else node.data
        return [put(nodes.REASSIGNMENT, nodes.encode_reassignment(plans, former), node)]
    return [] if node is None else [Delete(nodes.REASSIGNMENT, node.version)]


def _plans(node: Node | None) -> Plans:
    return {} if node is None else nodes.decode_reassignment(node.data)


def _assigned(topic: str, node: Node | None) -> dict[int, Assignment]:
    return {} if node is None else nodes.decode_topic(topic, node.data)


async def _read_assigned(tree: Tree, topics: Iterable[str]) -> dict[TopicPartition, Assignment]:
    names = sorted(topics)
    found = await tree.read_batch([nodes.topic_path(name) for name in names])
    return {
        TopicPartition(name, number): replicas
        for name, node in zip(names, found, strict=True)
        for number, replicas in _assigned(name, node).items()
    }
