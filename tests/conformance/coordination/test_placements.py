"""No broker gets more replicas than it may have, whoever places them, and however many do so at once."""

import asyncio
from collections import Counter
from functools import partial

import pytest

from logstore.errors import TopicExistsError
from replication.coordination import nodes, reassignments, topics
from replication.coordination.cluster import prepare, read_topics
from replication.coordination.placements import COUNTED_S, Placements
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import TopicPartition
from tests.support.trees import on_loop
from tests.support.waits import stays


async def create(placements, tree, name, *replicas, **options):
    assignment = dict(enumerate(replicas))
    made = partial(topics.create_topic, tree, name, f"id-{name}", assignment, {})
    await placements.place(tree, assignment.values(), made, **options)


async def refusals(*placing):
    """How many of them were refused by the limit."""
    found = await asyncio.gather(*placing, return_exceptions=True)
    refused = [each for each in found if each is not None]
    assert all(isinstance(each, KafkaError) and each.code is ErrorCode.POLICY_VIOLATION for each in refused)
    return len(refused)


async def counts(tree):
    found = await read_topics(tree)
    return Counter(broker for t in found.values() for replicas in t.replicas.values() for broker in replicas)


@on_loop
async def test_of_those_that_pass_the_limit_together_the_last_ones_are_refused(room):
    first, second = await room.tree(), await room.tree()
    await prepare(first)
    asked = [(Placements(10), first), (Placements(10), second)]
    placing = [create(*who, f"t{n}-{w}", (1, 2), (2, 3)) for n in range(6) for w, who in enumerate(asked)]
    assert await refusals(*placing) == 12 - 5  # broker 2 has two of each
    assert await counts(first) == {1: 5, 2: 10, 3: 5}


@on_loop
async def test_topics_that_grow_and_partitions_that_move_count_and_deleted_ones_do_not(room):
    tree = await room.tree()
    await prepare(tree)
    placements = Placements(3)
    await create(placements, tree, "t", (1,), (1,))
    grown = partial(topics.grow_topic, tree, "t", {2: (1,), 3: (1,)})
    assert await refusals(placements.place(tree, [(1,), (1,)], grown)) == 1
    await placements.place(tree, [(1,)], partial(topics.grow_topic, tree, "t", {2: (1,)}))

    await create(placements, tree, "u", (2,), (2,))
    target = {TopicPartition("t", 0): (2,)}

    async def move(counted):
        await reassignments.request(tree, target, counted)

    await placements.place(tree, [(2,)], move)
    assert await refusals(create(Placements(3), tree, "v", (2,))) == 1  # what is to come counts
    await tree.delete(nodes.topic_path("u"))
    async with asyncio.timeout(10 * COUNTED_S):  # a count says no for COUNTED_S
        while await refusals(placements.check(tree, [(2,), (2,)])):  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.05)
    await create(placements, tree, "v", (2,), (2,))
    assert await refusals(create(placements, tree, "w", (2,)), placements.check(tree, [(2,)])) == 2
    await placements.check(tree, [(3,), (3,), (3,)])


@on_loop
async def test_what_has_no_limit_counts_and_what_is_refused_otherwise_does_not(room):
    tree = await room.tree()
    await prepare(tree)
    placements = Placements(2)
    await create(placements, tree, "t", (1,))
    with pytest.raises(TopicExistsError):
        await create(placements, tree, "t", (1,))
    await create(placements, tree, "u", (1,))
    await create(placements, tree, "internal", (1,), has_limit=False)
    assert await counts(tree) == {1: 3}
    assert await refusals(create(placements, tree, "v", (1,))) == 1


@on_loop
async def test_nobody_counts_while_something_is_being_written(room):
    tree = await room.tree()
    await prepare(tree)
    placements, begun, written = Placements(3), asyncio.Event(), asyncio.Event()
    await create(placements, tree, "t", (1,))

    async def slow(counted):
        begun.set()
        await written.wait()
        await topics.create_topic(tree, "slow", "id-slow", {0: (1,)}, {}, counted)

    first = asyncio.ensure_future(placements.place(tree, [(1,)], slow))
    await begun.wait()
    second = asyncio.ensure_future(create(placements, tree, "u", (1,), (1,)))
    await stays(lambda: not second.done(), 0.05)
    written.set()
    assert await refusals(first, second) == 1
    assert await counts(tree) == {1: 2}
