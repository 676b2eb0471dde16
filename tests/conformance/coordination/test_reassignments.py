"""Reassignments on the tree: asked for by tools, brokers and controllers at once, and written in one step each."""

import asyncio

import pytest

from replication.coordination import nodes, reassignments
from replication.coordination.cluster import FencedError, become_controller, prepare, read_cluster, resign
from replication.model.cluster import Reassignment, ReassignmentWrite, ReassignmentWritten, TopicPartition
from tests.support.trees import Seen, on_loop

T0, T1, NOWHERE = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
ASKED, BEGUN = Reassignment((3, 4)), Reassignment((3, 4), (1, 2))


async def with_topic(room):
    tree = await room.tree()
    await prepare(tree)
    await tree.create(nodes.topic_path("t"), nodes.encode_topic({0: (1, 2), 1: (2, 1)}))
    return tree


async def plans(tree):
    return (await read_cluster(tree)).reassignments


async def replicas(tree, tp=T0):
    return (await read_cluster(tree)).topics[tp.topic].replicas[tp.partition]


@on_loop
async def test_it_is_begun_and_ended_in_one_step_each_and_the_node_goes_with_the_last_one(room):
    tree = await with_topic(room)
    term = await become_controller(tree, 1, 7)
    seen = Seen()
    assert await tree.get(nodes.REASSIGNMENT, seen) is None
    asked = b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[3,4]}]}'
    await tree.create(nodes.REASSIGNMENT, asked)
    await seen.change()

    begin = ReassignmentWrite(T0, ASKED, BEGUN, (1, 2), (1, 2, 3, 4))
    done = ReassignmentWritten(T0, True, BEGUN, (1, 2, 3, 4))
    assert await reassignments.write(tree, term, begin) == done
    assert await reassignments.write(tree, term, begin) == done, "again, after a lost answer"
    assert (await plans(tree), await replicas(tree)) == ({T0: BEGUN}, (1, 2, 3, 4))
    assert await reassignments.listed(tree) == {T0: ((1, 2, 3, 4), (3, 4), (1, 2))}

    end = ReassignmentWrite(T0, BEGUN, None, (1, 2, 3, 4), (3, 4))
    assert await reassignments.write(tree, term, end) == ReassignmentWritten(T0, True, None, (3, 4))
    assert await tree.get(nodes.REASSIGNMENT) is None
    assert (await replicas(tree), await replicas(tree, T1)) == ((3, 4), (2, 1))


@on_loop
async def test_what_somebody_else_has_changed_is_told_and_not_overwritten(room):
    tree = await with_topic(room)
    term = await become_controller(tree, 1, 7)
    await reassignments.request(tree, {T0: (3, 4), T1: (1,)})
    await reassignments.request(tree, {T0: (3,)})
    begin = ReassignmentWrite(T0, ASKED, BEGUN, (1, 2), (1, 2, 3, 4))
    refused = ReassignmentWritten(T0, False, Reassignment((3,)), (1, 2))
    assert await reassignments.write(tree, term, begin) == refused
    other = ReassignmentWrite(T1, Reassignment((1,)), Reassignment((1,), (2, 1)), (1, 2), (1, 2))
    assert not (await reassignments.write(tree, term, other)).accepted, "the replicas are others"
    drop = ReassignmentWrite(NOWHERE, ASKED, None, (), None)
    assert (await reassignments.write(tree, term, drop)).replicas == ()
    assert await plans(tree) == {T0: Reassignment((3,)), T1: Reassignment((1,))}


@on_loop
async def test_a_former_controller_writes_nothing_more(room):
    tree, other = await with_topic(room), await room.tree()
    old = await become_controller(tree, 1, 7)
    await reassignments.request(tree, {T0: (3, 4)})
    await resign(tree)
    await become_controller(other, 2, 7)
    with pytest.raises(FencedError):
        await reassignments.write(tree, old, ReassignmentWrite(T0, ASKED, None, (1, 2), (3, 4)))
    assert (await plans(tree), await replicas(tree)) == ({T0: ASKED}, (1, 2))


@on_loop
async def test_what_was_asked_for_is_taken_back_or_changed(room):
    tree = await with_topic(room)
    assert await reassignments.request(tree, {T0: None, T1: (2, 1)}) == {T0}
    assert await tree.get(nodes.REASSIGNMENT) is None, "nothing is to be done"
    await reassignments.request(tree, {T0: (3, 4)})
    assert await reassignments.request(tree, {T0: None}) == set()
    assert await tree.get(nodes.REASSIGNMENT) is None, "it was not begun"

    await tree.create(nodes.REASSIGNMENT, nodes.encode_reassignment({T0: BEGUN}))
    await reassignments.request(tree, {T0: (5,)})
    assert await plans(tree) == {T0: Reassignment((5,), (1, 2))}
    await reassignments.request(tree, {T0: None})
    assert await plans(tree) == {T0: Reassignment((1, 2), (1, 2))}


@on_loop
async def test_many_ask_at_once_and_nobody_is_forgotten(room):
    tree, other = await with_topic(room), await room.tree()
    await asyncio.gather(reassignments.request(tree, {T0: (3,)}), reassignments.request(other, {T1: (4,)}))
    assert await plans(tree) == {T0: Reassignment((3,)), T1: Reassignment((4,))}


@on_loop
async def test_a_node_that_cannot_be_understood_keeps_nobody_from_being_the_controller(room):
    tree = await with_topic(room)
    await tree.create(nodes.REASSIGNMENT, b"{")
    assert await plans(tree) == {}
