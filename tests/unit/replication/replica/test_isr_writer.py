"""ISRs on their way to the tree: together, conditional, and with an outcome that is told only for certain."""

import asyncio
from contextlib import asynccontextmanager

from replication.coordination import cluster, nodes, registration
from replication.coordination.sqlite_tree import SqliteTree
from replication.coordination.tree import ConnectionLossError, ensure_path
from replication.model.cluster import BrokerInfo, LeaderAndIsr, TopicPartition
from replication.replica.leader.isr_writer import IsrWriter
from replication.replica.machine.isr import IsrRefused, IsrWritten, LeadershipRefreshed, WriteIsr

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class LossyTree:
    """A session whose connection is lost around the next batch: before it is written, or before that is told."""

    def __init__(self, tree):
        self.tree = tree
        self.loses = None
        self.meanwhile = None

    def __getattr__(self, name):
        return getattr(self.tree, name)

    async def write_batch(self, multis):
        loses, self.loses = self.loses, None
        if loses == "request":
            raise ConnectionLossError
        found = await self.tree.write_batch(multis)
        if loses == "answer":
            if self.meanwhile is not None:
                await self.meanwhile()
            raise ConnectionLossError
        return found


class Room:
    def __init__(self, tree, other):
        self.tree, self.other = LossyTree(tree), other
        self.changes = IsrWriter(1, lambda: 7)
        self.answers = []

    def write(self, isr=(1, 2), *, tp=T0, version=0, epoch=3, joining=()):
        self.changes.write(tp, epoch, WriteIsr(isr, version, joining), self.answers.append)

    async def answered(self, count=1):
        async with asyncio.timeout(10):
            while len(self.answers) < count:  # noqa: ASYNC110  nobody tells
                await asyncio.sleep(0)
        return self.answers

    async def stored(self, tp=T0):
        return (await cluster.read_states(self.other, [tp]))[tp]


@asynccontextmanager
async def room_at(path):
    trees = [await SqliteTree.open(path / "tree.db", on_session=lambda event: None) for _ in range(2)]
    await cluster.prepare(trees[0])
    for tp in (T0, T1):
        await ensure_path(trees[0], nodes.partition_path(tp))
        state = nodes.encode_state(LeaderAndIsr(1, 3, (1,), 6))
        await trees[0].create(nodes.state_path(tp), state)
    room = Room(*trees)
    room.changes.connect(room.tree)
    try:
        yield room
    finally:
        room.changes.disconnect()
        for tree in trees:
            await tree.close()


def in_room(test):
    def run(tmp_path):
        async def go():
            async with asyncio.timeout(30), room_at(tmp_path) as room:
                await test(room)

        asyncio.run(go())

    run.__doc__ = test.__doc__
    return run


@in_room
async def test_writes_of_one_moment_go_together_and_each_has_its_answer(room):
    room.write(tp=T0)
    room.write(tp=T1, version=9)
    assert await room.answered(2) == [IsrWritten(3, 1), IsrRefused(3)]
    assert await room.stored() == LeaderAndIsr(1, 3, (1, 2), 7, version=1)
    assert (await room.stored(T1)).isr == (1,)


@in_room
async def test_who_joins_must_live_in_the_life_that_was_seen(room):
    """R10, R21."""
    info = BrokerInfo(2, -1, "localhost", 9)
    life = await registration.register_broker(room.other, info, now_ms=1, wait_ms=1000)
    room.write(joining=((2, life - 1),))
    assert await room.answered() == [IsrRefused(3)]
    room.write(joining=((2, life),))
    assert await room.answered(2) == [IsrRefused(3), IsrWritten(3, 1)]
    await room.other.delete(nodes.broker_path(2))
    room.write((1, 2), version=1, joining=((2, life),))
    assert (await room.answered(3))[2] == IsrRefused(3)


@in_room
async def test_a_life_that_ends_between_the_look_and_the_write_does_not_join(room):
    """R10: the new registration has the version that the old one had."""
    info = BrokerInfo(2, -1, "localhost", 9)
    life = await registration.register_broker(room.other, info, now_ms=1, wait_ms=1000)
    write = cluster.IsrWrite(T0, LeaderAndIsr(1, 3, (1, 2), 7, version=0), ((2, life),))
    read_batch = room.tree.tree.read_batch

    async def bouncing(paths):
        found = await read_batch(paths)
        if paths == [nodes.broker_path(2)]:
            await room.other.delete(nodes.broker_path(2))
            await registration.register_broker(room.other, info, now_ms=1, wait_ms=1000)
        return found

    room.tree.read_batch = bouncing
    assert await cluster.write_isrs(room.tree, [write]) == (None,)
    assert (await room.stored()).isr == (1,)


@in_room
async def test_a_lost_request_was_refused_and_a_lost_answer_was_written(room):
    """R7, R8: nobody is told what is not certain."""
    room.tree.loses = "request"
    room.write()
    assert await room.answered() == [IsrRefused(3)]
    room.tree.loses = "answer"
    room.write()
    assert (await room.answered(2))[1] == IsrWritten(3, 1)


@in_room
async def test_a_write_that_another_epoch_has_overtaken_is_never_answered(room):
    """R7: it may have stood for a while, so the leader goes on to wait for both ISRs."""

    async def controller():
        state = LeaderAndIsr(2, 4, (2,), 8)
        await room.other.set(nodes.state_path(T0), nodes.encode_state(state))

    room.tree.loses, room.tree.meanwhile = "answer", controller
    room.write()
    room.changes.refresh(T0, room.answers.append)
    assert await room.answered() == [LeadershipRefreshed(LeaderAndIsr(2, 4, (2,), 8, version=2))]


@in_room
async def test_changes_of_one_moment_are_told_in_one_node(room):
    for tp in (T0, T1, T0):
        room.changes.changed(tp)
    async with asyncio.timeout(10):
        while not (names := await room.other.children(nodes.ISR_CHANGES)):  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.01)
    (name,) = names
    node = await room.other.get(f"{nodes.ISR_CHANGES}/{name}")
    assert nodes.decode_partitions("-", node.data) == (T0, T1)
