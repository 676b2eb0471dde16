"""The driver of a controller over a real tree, with brokers that answer as told: what is repeated, what ends a term."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode as WireCode

from logstore.env import SYSTEM
from replication.controller.driver import ControllerLoop
from replication.controller.machine.state import ControllerSettings
from replication.controller.tree_writer import RETRY_S
from replication.coordination import cluster, nodes, open_tree, registration, topics
from replication.coordination.tree import ConnectionLossError, Delete, ensure_path
from replication.errors import ErrorCode
from replication.model.cluster import BrokerInfo, Election, LeaderAndIsr, Reassignment, TopicPartition
from replication.protocol import interbroker as ib
from replication.protocol.apis import ApiKey

TP = TopicPartition("t", 0)
EMPTY = {
    ApiKey.LEADER_AND_ISR: lambda code: ib.LeaderAndIsrResponse(error_code=code, topics=()),
    ApiKey.UPDATE_METADATA: lambda code: ib.UpdateMetadataResponse(error_code=code),
    ApiKey.STOP_REPLICA: lambda code: ib.StopReplicaResponse(error_code=code, partition_errors=()),
}


class Site:
    """A tree with one registered broker, a controller loop, and what that broker was asked."""

    def __init__(self, tree, loop, asked, answers):
        self.tree, self.loop, self.asked, self.answers = tree, loop, asked, answers

    async def until(self, holds):
        async with asyncio.timeout(10):
            while not (found := await holds()):  # noqa: ASYNC110  nobody tells
                await asyncio.sleep(0.01)
        return found

    async def until_quiet(self):
        """All that follows from the registration was looked at and told."""
        told = -1
        while told != len(self.asked) or not told or self.loop._term.channels._senders:
            told = len(self.asked)
            await asyncio.sleep(0.3)

    async def state(self):
        return (await cluster.read_states(self.tree, [TP]))[TP]

    async def create(self):
        await topics.create_topic(self.tree, "t", "i" * 21 + "A", {0: (1,)}, {})

    def asked_for(self):
        return [key for key, _ in self.asked]


@asynccontextmanager
async def site(tmp_path, *answers, wrap=lambda tree: tree, before=None):
    """`answers` are what the broker says first: a code, or an exception; then it obeys. `before`: in the tree."""
    tree = await open_tree(f"sqlite:{tmp_path}/tree.db", on_session=lambda event: None)
    await cluster.prepare(tree)
    me = BrokerInfo(1, -1, "h", 1)
    await registration.register_broker(tree, me, now_ms=0, wait_ms=1000)
    if before is not None:
        await before(tree)
    asked, left = [], list(answers)

    async def call(broker, key, request):
        asked.append((key, request))
        answer = left.pop(0) if left else ErrorCode.NONE
        if isinstance(answer, Exception):
            raise answer
        return EMPTY[key](WireCode(answer))

    loop = ControllerLoop(1, ControllerSettings(), call, lambda change: None, SYSTEM.clock)
    made = Site(tree, loop, asked, left)
    loop.begin(wrap(tree))
    try:
        await made.until(lambda: _true(loop.is_active))
        yield made
    finally:
        await loop.end()
        await tree.close()


async def _true(value):
    return value


def wrapping(kind):
    """The trees that `wrap` will have made, and `wrap` for `site`: a tree of this kind around its own."""
    wrapped = []

    def wrap(tree):
        wrapped.append(kind(tree))
        return wrapped[0]

    return wrapped, wrap


class Session:
    """The session of a controller, which kinds of it change."""

    def __init__(self, tree):
        self.tree, self.lost = tree, 0

    def __getattr__(self, name):
        return getattr(self.tree, name)


class LosesMultis(Session):
    """A session whose connection breaks behind every other step that touches the reassignments, which was done."""

    async def multi(self, steps):
        done = await self.tree.multi(steps)
        if any(step.path == nodes.REASSIGNMENT for step in steps):
            self.lost += 1
            raise ConnectionLossError("cut")
        return done


class LosesAnswers(Session):
    """A session whose connection breaks once, behind a write of states that was done."""

    async def write_batch(self, multis):
        done = await self.tree.write_batch(multis)
        if any(step.path == nodes.state_path(TP) for steps in multis for step in steps) and not self.lost:
            self.lost += 1
            raise ConnectionLossError("cut")
        return done


class LosesDeletions(Session):
    """A session whose connection breaks once, behind the end of a topic; who waited for that makes it again."""

    async def multi(self, steps):
        done = await self.tree.multi(steps)
        if Delete(nodes.topic_path("t")) in steps and Delete(nodes.topic_id_path("t")) in steps and not self.lost:
            self.lost += 1
            await topics.create_topic(self.tree, "t", "j" * 21 + "A", {0: (1,)}, {})
            raise ConnectionLossError("cut")
        return done


def test_a_topic_that_is_made_again_outlives_the_deletion_of_the_former_one(tmp_path):
    """(R29) The answer to that was lost, so it is done once more."""

    async def check():
        wrapped, wrap = wrapping(LosesDeletions)

        async with site(tmp_path, wrap=wrap) as here:
            await here.create()
            await here.until(here.state)
            await topics.mark_deleted(here.tree, "t")
            await here.until(lambda: _true(wrapped[0].lost))
            await asyncio.sleep(3 * RETRY_S)
            await here.until(here.state)
            await here.until(lambda: _true(TP in here.loop.state.leadership))
            assert (await cluster.read_topics(here.tree))["t"].topic_id == "j" * 21 + "A"

    asyncio.run(check())


class MakesAgain(Session):
    """A session in which `t` is deleted and made again right after a look that sees the marks of t and u."""

    def __init__(self, tree):
        super().__init__(tree)
        self.is_seen, self.is_begun = asyncio.Event(), asyncio.Event()

    async def multi(self, steps):
        if Delete(nodes.topic_path("t")) in steps:
            self.is_begun.set()
            await self.is_seen.wait()
        return await self.tree.multi(steps)

    async def children(self, path, *watch):
        names = await self.tree.children(path, *watch)
        if path == nodes.DELETED_TOPICS and {"t", "u"} <= set(names) and not self.is_seen.is_set():
            self.is_seen.set()
            while await self.tree.get(nodes.topic_path("t")) is not None:  # noqa: ASYNC110  nobody tells
                await asyncio.sleep(0.005)
            await topics.create_topic(self.tree, "t", "j" * 21 + "A", {0: (1,)}, {})
        return names


def test_a_topic_that_is_made_again_during_a_look_at_the_marks_is_not_deleted(tmp_path):
    """(R40) The marks were read before, the topics after."""

    async def check():
        wrapped, wrap = wrapping(MakesAgain)

        async with site(tmp_path, wrap=wrap) as here:
            await here.create()
            await here.until(here.state)
            await topics.create_topic(here.tree, "u", "u" * 21 + "A", {0: (1,)}, {})
            await here.until(lambda: _state(here.tree, TopicPartition("u", 0)))
            await topics.mark_deleted(here.tree, "t")
            await wrapped[0].is_begun.wait()
            await topics.mark_deleted(here.tree, "u")
            await here.until(lambda: _is_gone(here.tree, nodes.topic_path("u")))
            await here.until(lambda: _true(here.loop.state.topics.keys() == {"t"}))
            await here.until(here.state)
            assert not here.loop.state.deletions
            assert (await cluster.read_topics(here.tree))["t"].topic_id == "j" * 21 + "A"

    asyncio.run(check())


def test_a_write_that_was_done_counts_though_its_answer_was_lost(tmp_path):
    async def check():
        wrapped, wrap = wrapping(LosesAnswers)

        async with site(tmp_path, wrap=wrap) as here:
            await here.create()
            await here.until(lambda: _true(TP in here.loop.state.leadership))
            assert wrapped[0].lost == 1
            expected = LeaderAndIsr(leader=1, leader_epoch=0, isr=(1,), controller_epoch=1, version=0)
            assert await here.state() == expected == here.loop.state.leadership[TP]

    asyncio.run(check())


def test_requests_are_repeated_until_they_are_obeyed_and_keep_their_order(tmp_path):
    async def check():
        async with site(tmp_path) as here:
            await here.until_quiet()
            here.asked.clear()
            here.answers += [
                ConnectionResetError("gone"),
                TimeoutError("slow"),
                ConnectionLossError("of this broker, which has to read something"),
                ErrorCode.STALE_BROKER_EPOCH,
            ]
            await here.create()
            await here.until(lambda: _true(ApiKey.UPDATE_METADATA in here.asked_for()))
            orders = [request for _, request in here.asked[:5]]
            assert orders == [orders[0]] * 5  # four times in vain
            assert here.asked_for() == [ApiKey.LEADER_AND_ISR] * 5 + [ApiKey.UPDATE_METADATA]

    asyncio.run(check())


def test_a_broker_that_knows_a_later_controller_ends_the_term_and_another_begins(tmp_path):
    async def check():
        async with site(tmp_path, ErrorCode.STALE_CONTROLLER_EPOCH) as here:
            await here.until(lambda: _true(here.loop.is_active and here.loop.state.epoch == 2))
            await here.create()
            state = await here.until(here.state)
            assert state.controller_epoch == 2

    asyncio.run(check())


def test_who_was_replaced_writes_nothing_any_more(tmp_path):
    async def check():
        async with site(tmp_path) as here:
            await here.tree.set(nodes.CONTROLLER_EPOCH, b"7")
            await here.create()
            state = await here.until(here.state)
            assert state.controller_epoch == 8  # of the term that it began anew

    asyncio.run(check())


def test_a_node_that_nobody_understands_stops_no_other_news(tmp_path):
    async def check():
        async with site(tmp_path) as here:
            await here.tree.create(nodes.ELECTION, b"{ not json")
            await here.create()
            await here.until(here.state)
            assert here.loop.state.epoch == 1
            await here.tree.delete(nodes.ELECTION)
            await topics.request_election(here.tree, Election((TP,)))
            await here.until(lambda: _is_gone(here.tree, nodes.ELECTION))

    asyncio.run(check())


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "never understood"])
def test_a_topic_that_nobody_understands_is_not_taken_for_one_that_is_gone(tmp_path, is_known):
    """Or else its deletion would remove its nodes, and tell no broker."""
    other = TopicPartition("other", 0)
    good = nodes.encode_topic({0: (1,)})

    async def garble(tree):
        await topics.create_topic(tree, "t", "i" * 21 + "A", {0: (1,)}, {})
        if not is_known:
            await tree.set(nodes.topic_path("t"), b"{ not json")

    async def check():
        async with site(tmp_path, before=garble) as here:
            if is_known:
                await here.until(here.state)
                await here.tree.set(nodes.topic_path("t"), b"{ not json")
            await topics.create_topic(here.tree, "other", "o" * 21 + "A", {0: (1,)}, {})
            await here.until(lambda: _state(here.tree, other))
            assert (TP in here.loop.state.leadership) == is_known
            await topics.mark_deleted(here.tree, "t")
            if not is_known:
                await here.until(lambda: _true("t" in here.loop.state.delayed_deletions))
                await here.tree.set(nodes.topic_path("t"), good)
            await here.until(lambda: _is_gone(here.tree, nodes.topic_path("t")))
            await here.until(lambda: _is_gone(here.tree, f"{nodes.DELETED_TOPICS}/t"))
            stops = [request for key, request in here.asked if key is ApiKey.STOP_REPLICA]
            rows = [r for stop in stops for topic in stop.topic_states for r in topic.partition_states]
            assert any(row.delete_partition for row in rows)

    asyncio.run(check())


def test_a_notice_that_nobody_understands_hides_no_change_of_an_isr(tmp_path):
    async def check():
        async with site(tmp_path) as here:
            await here.create()
            state = await here.until(here.state)
            await here.tree.create(nodes.ISR_CHANGE_PREFIX, b"{ not json", sequence=True)
            changed = replace(state, isr=(1, 2))
            await here.tree.set(nodes.state_path(TP), nodes.encode_state(changed))
            await here.tree.create(nodes.ISR_CHANGE_PREFIX, nodes.encode_partitions([TP]), sequence=True)
            await here.until(lambda: _true(here.loop.state.leadership[TP].isr == (1, 2)))
            await here.until(lambda: _is_empty(here.tree, nodes.ISR_CHANGES))

    asyncio.run(check())


def test_a_state_that_nobody_understands_keeps_no_controller_from_its_office(tmp_path):
    async def garble(tree):
        await topics.create_topic(tree, "bad", "b" * 21 + "A", {0: (1,)}, {})
        await ensure_path(tree, nodes.state_path(TopicPartition("bad", 0)))
        await tree.set(nodes.state_path(TopicPartition("bad", 0)), b"{ not json")

    async def check():
        async with site(tmp_path, before=garble) as here:
            await here.create()
            await here.until(here.state)
            assert here.loop.state.epoch == 1

    asyncio.run(check())


async def _is_empty(tree, path):
    return not await tree.children(path)


def test_nodes_that_nobody_understands_keep_no_controller_from_its_office(tmp_path):
    bad = TopicPartition("bad", 0)

    async def garble(tree):
        await topics.create_topic(tree, "t", "i" * 21 + "A", {0: (1,)}, {})
        await topics.create_topic(tree, "bad", "b" * 21 + "A", {0: (1,)}, {})
        await tree.set(nodes.topic_path("bad"), b"{ not json")
        await tree.set(nodes.topic_config_path("t"), b"{ not json")
        await tree.create(nodes.ELECTION, b"{ not json")
        wanted = {TP: Reassignment((2,))}
        await registration.register_broker(tree, BrokerInfo(2, -1, "h", 2), now_ms=0, wait_ms=1000)
        await tree.create(nodes.REASSIGNMENT, nodes.encode_reassignment(wanted))

    async def check():
        async with site(tmp_path, before=garble) as here:
            await here.until(here.state)
            await here.until(lambda: _true(TP in here.loop.state.moves))  # the other node is read nevertheless
            assert await _state(here.tree, bad) is None
            await here.tree.set(nodes.topic_path("bad"), nodes.encode_topic({0: (1,)}))
            await here.until(lambda: _state(here.tree, bad))
            await here.tree.delete(nodes.ELECTION)
            await topics.request_election(here.tree, Election((TP,)))
            await here.until(lambda: _is_gone(here.tree, nodes.ELECTION))

    asyncio.run(check())


async def _is_gone(tree, path):
    return await tree.get(path) is None


async def _state(tree, tp):
    return (await cluster.read_states(tree, [tp]))[tp]


def test_a_reassignment_is_begun_and_ended_once_though_the_answers_of_the_store_are_lost(tmp_path):
    async def check():
        wrapped, wrap = wrapping(LosesMultis)

        async with site(tmp_path, wrap=wrap) as here:
            await registration.register_broker(here.tree, BrokerInfo(2, -1, "h", 2), now_ms=0, wait_ms=1000)
            await here.until(lambda: _true(2 in here.loop.state.brokers))
            await topics.create_topic(here.tree, "t", "i" * 21 + "A", {0: (1, 2)}, {})
            await here.until(here.state)
            await here.tree.create(nodes.REASSIGNMENT, b"{")  # nobody understands that
            await here.tree.set(nodes.REASSIGNMENT, nodes.encode_reassignment({TP: Reassignment((2,))}))
            await here.until(lambda: _is_gone(here.tree, nodes.REASSIGNMENT))
            assert wrapped[0].lost == 2  # begun, and ended
            assert (await cluster.read_topics(here.tree))["t"].replicas == {0: (2,)}
            state = await here.state()
            assert (state.leader, state.isr, state.controller_epoch) == (2, (2,), 1)
            stops = [request for key, request in here.asked if key is ApiKey.STOP_REPLICA]
            rows = [row for request in stops for topic in request.topic_states for row in topic.partition_states]
            assert [(row.delete_partition, row.leader_epoch) for row in rows] == [
                (False, state.leader_epoch),
                (True, state.leader_epoch),
            ]
            await here.until(lambda: _true(not here.loop.state.moves))

    async def _is_gone(tree, path):
        return await tree.get(path) is None

    asyncio.run(check())


def test_the_log_says_which_way_a_leader_was_chosen(tmp_path, caplog):
    """In controller.log, by the names and nearly in the words that Kafka 0.9 has for it."""
    caplog.set_level("INFO", logger="replication.controller.tree_writer")

    def chosen():
        said = (record.getMessage() for record in caplog.records)
        return [text for text in said if "Selector]" in text]

    async def check():
        async with site(tmp_path) as here:
            two = BrokerInfo(2, -1, "h", 2)
            await registration.register_broker(here.tree, two, now_ms=0, wait_ms=1000)
            await here.until(lambda: _true(2 in here.loop.state.brokers))
            await topics.create_topic(here.tree, "t", "i" * 21 + "A", {0: (2, 1)}, {})
            await here.until(here.state)
            await here.until(lambda: _true(TP in here.loop.state.leadership))
            await here.tree.delete(nodes.broker_path(2))
            await here.until(lambda: _true(here.loop.state.leadership[TP].leader == 1))
            await registration.register_broker(here.tree, two, now_ms=0, wait_ms=1000)
            await here.until(lambda: _true(2 in here.loop.state.brokers))
            state = await here.state()
            await here.tree.set(nodes.state_path(TP), nodes.encode_state(replace(state, isr=(1, 2))))
            await here.tree.create(nodes.ISR_CHANGE_PREFIX, nodes.encode_partitions([TP]), sequence=True)
            await here.until(lambda: _true(here.loop.state.leadership[TP].isr == (1, 2)))
            await topics.request_election(here.tree, Election((TP,)))
            await here.until(lambda: _true(here.loop.state.leadership[TP].leader == 2))

    asyncio.run(check())
    assert chosen() == [
        "[OfflinePartitionLeaderSelector]: Selected new leader and ISR "
        '{"leader":1,"leader_epoch":1,"isr":[1]} for partition [t,0], of assigned replicas 2,1, live 1, ISR 2,1',
        "[PreferredReplicaPartitionLeaderSelector]: Selected new leader and ISR "
        '{"leader":2,"leader_epoch":2,"isr":[1,2]} for partition [t,0], of assigned replicas 2,1, live 2,1, ISR 1,2',
    ]
