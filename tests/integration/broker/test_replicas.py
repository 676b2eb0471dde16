"""Replicas that come and go: made, deleted, lost with a disk, and without a role between sessions."""

import shutil
from dataclasses import replace

import pytest

from replication.coordination import cluster, nodes
from replication.coordination.sqlite_tree import SqliteTree
from replication.errors import ErrorCode
from replication.model.cluster import TopicPartition
from replication.replica.follower.follower import Follower
from tests.support.inside import note_state_changes, storage
from tests.support.site import T0, Site, on_loop, until, with_three


@on_loop
async def test_a_deleted_replica_is_gone_and_can_be_made_again_under_the_same_name(tmp_path):
    """R29."""
    async with Site(tmp_path) as site:
        one, two, _ = await with_three(site)
        await one.produce(b"a")
        for broker in site.brokers.values():
            assert await site.stop_replica(broker.id) == ErrorCode.NONE
            assert not (tmp_path / f"broker-{broker.id}" / "orders-0").exists()
            assert T0 not in broker.replicas.partitions()
        del site.topic_ids["orders"]
        await site.tree.delete("/brokers/topics/orders/partitions/0/state")
        await site.create(replicas=(1, 2, 3))
        assert (await one.produce(b"b")).base_offset == 0
        assert two.stored() == [b"b"]


@on_loop
async def test_replicas_that_come_are_counted_and_those_that_go_are_gone_for_good(tmp_path):
    """R34: what was said before a replica went, or before it came back, and is heard late, changes nothing."""
    async with Site(tmp_path) as site:
        one, two, three = await site.start(1, 2, 3)
        await site.create(replicas=(1, 2))
        await one.produce(b"a")
        first = site.states[T0]
        site.replicas[T0] = (1, 2, 3)
        await site.elect(1)
        await until(lambda: one.role.state.isr == (1, 2, 3))
        assert three.stored() == [b"a"]
        site.replicas[T0] = (2, 3)
        await site.elect(2, isr=(2, 3))
        gone = site.states[T0].leader_epoch
        assert await site.stop_replica(1, leader_epoch=gone) == ErrorCode.NONE
        assert not (tmp_path / "broker-1" / "orders-0").exists()
        await two.produce(b"b")

        site.replicas[T0] = (1, 2)
        assert await site.tell(1, state=first, is_new=True) == ErrorCode.STALE_CONTROLLER_EPOCH
        assert T0 not in one.replicas.partitions()

        site.replicas[T0] = (2, 3, 1)
        await site.elect(2)
        await until(lambda: two.role.state.isr == (2, 3, 1))
        assert await site.stop_replica(1, leader_epoch=gone) == ErrorCode.FENCED_LEADER_EPOCH
        assert one.stored() == [b"a", b"b"]


@on_loop
async def test_what_an_earlier_topic_left_on_a_broker_that_was_away_is_hidden(tmp_path):
    """R29."""
    async with Site(tmp_path) as site:
        one, two, _ = await with_three(site)
        await one.produce(b"old")
        await two.stop()
        for number in (1, 3):
            await site.stop_replica(number)
        del site.topic_ids["orders"]
        await site.tree.delete("/brokers/topics/orders/partitions/0/state")
        await site.create(replicas=(1, 2, 3), isr=(1, 3))
        await one.produce(b"new")
        await two.start()
        assert await site.tell(2) == ErrorCode.NONE
        await until(lambda: two.end == 1)
        assert two.stored() == [b"new"]


@on_loop
async def test_requests_of_former_controllers_and_for_former_lives_are_refused(tmp_path):
    """R18, R23, R32."""
    async with Site(tmp_path) as site:
        one, *_ = await with_three(site)
        said = []
        note_state_changes(one.replicas, lambda change: said.append(f"{change.level} {change.message}"))

        def skipped(why):
            """Each is said once, and why, as Kafka 0.9 has it."""
            return [line.startswith("WARN Broker 1 ignoring ") and line.endswith(why) for line in said].count(True) == 1

        for wrong in range(1, 4):  # a controller repeats it
            assert await site.tell(1, epoch=one.epoch - wrong) == ErrorCode.STALE_BROKER_EPOCH
        assert skipped("that name another broker epoch than that of this life, first with correlation id 0"), said
        assert not any(str(one.epoch) in line for line in said), "it is a secret"
        assert await site.tell(1) == ErrorCode.STALE_CONTROLLER_EPOCH  # the same leader epoch again
        assert skipped("[orders,0] since its associated leader epoch 0 is old. Current leader epoch is 0"), said
        right = site.topic_ids[T0.topic]
        site.topic_ids[T0.topic] = "o" * 21 + "A"
        assert await site.tell(1) == ErrorCode.INCONSISTENT_TOPIC_ID
        assert skipped(f"[orders,0] since its replica here is not of the topic with the id {'o' * 21}A"), said
        site.topic_ids[T0.topic] = right
        await site.begin_term(5)
        await site.elect(2)
        site.controller_epoch = 4
        assert await site.tell(1) == ErrorCode.STALE_CONTROLLER_EPOCH
        assert skipped("since its controller epoch 4 is old. Latest known controller epoch is 5"), said
        assert isinstance(one.role, Follower)


@pytest.mark.parametrize("silence", ["leader", "follower"])
def test_a_broker_that_loses_its_session_serves_nothing_until_it_is_told_anew(tmp_path, silence):
    """R24, R25."""

    @on_loop
    async def run():
        async with Site(tmp_path) as site:
            one, two, _ = await with_three(site)
            await one.produce(b"a")
            broker = one if silence == "leader" else two
            broker.replicas.disconnect()
            assert (await one.produce(b"b", timeout_ms=200)).error_code in (
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                ErrorCode.REQUEST_TIMED_OUT,
            )
            broker.replicas.connect(broker.tree, broker.epoch)
            await site.elect(1)
            assert (await one.produce(b"c")).error_code == ErrorCode.NONE

    run()


@on_loop
async def test_a_session_that_ends_while_a_role_is_taken_takes_it_along(tmp_path):
    """(R24) Or else a broker that stood still would lead alone, in an epoch that the cluster has left behind."""
    async with Site(tmp_path) as site:
        one, *_ = await with_three(site)
        alone = replace(site.states[T0], leader_epoch=7, isr=(1,))
        partition = one.replicas.partitions()[T0]
        for waits_for in (storage(one.replicas), partition.replica):
            one.replicas.connect(one.tree, one.epoch)
            end_session_in_the_middle(one.replicas, waits_for)
            await site.tell(1, state=alone)
            assert partition.role is None
            assert partition.known_leader_epoch is None


def end_session_in_the_middle(replicas, waits_for):
    """While this is waited for, once."""
    name = "learn_configs" if waits_for is storage(replicas) else "call"
    wait = getattr(waits_for, name)

    async def waited(*args, **options):
        delattr(waits_for, name)
        replicas.disconnect()
        return await wait(*args, **options)

    setattr(waits_for, name, waited)


@on_loop
async def test_a_broker_that_lost_writes_says_so_while_a_topic_of_it_cannot_be_understood(tmp_path):
    """R19: the ISRs there count on it, and no controller has decided about them."""
    async with Site(tmp_path) as site:
        one, two = await site.start(1, 2)
        other = TopicPartition("others", 0)
        for tp in (T0, other):
            await site.create(tp, replicas=(1, 2))
            await one.produce(b"a", tp=tp)
        await two.stop()
        node = nodes.topic_path("others")
        found = await site.tree.get(node)
        await site.tree.set(node, b"{ not json")
        await two.start(lost_writes=True)
        storage(two.replicas).dir.has_lost_writes = True
        await site.elect(1, isr=(1,))
        assert two.replicas.has_lost_writes
        await site.tree.set(node, found.data)
        await site.elect(1, other, isr=(1,))
        assert not two.replicas.has_lost_writes


@on_loop
async def test_a_broker_whose_replica_is_gone_says_so_until_it_was_told_of_all(tmp_path):
    """R19: an empty disk must not lead, nor count as in sync."""
    async with Site(tmp_path) as site:
        one, two, _ = await with_three(site)
        await one.produce(b"a")
        await two.stop()
        shutil.rmtree(tmp_path / "broker-2")
        await two.start(lost_writes=None)
        assert two.replicas.has_lost_writes
        await site.elect(1, isr=(1, 3))  # what the controller does with it
        await until(lambda: 2 in one.role.state.isr)
        assert two.stored() == [b"a"]
        assert not two.replicas.has_lost_writes
        storage(two.replicas).dir.has_lost_writes = True
        await storage(two.replicas).maybe_forget_losses(site.tree)
        assert two.replicas.has_lost_writes, "said in another session, it is not said"
        assert not (await cluster.read_brokers(site.tree))[2].lost_writes


@on_loop
async def test_a_replica_that_vanishes_under_a_running_broker_takes_no_role(tmp_path):
    """R19."""
    async with Site(tmp_path) as site:
        one, *_ = await with_three(site)
        storage(one.replicas).dir.topic_ids.clear()
        await site.elect(2)
        assert await site.tell(1, state=replace(site.states[T0], leader_epoch=9)) == ErrorCode.KAFKA_STORAGE_ERROR


@on_loop
async def test_a_partition_whose_creation_reached_nobody_is_made_at_the_next_request(tmp_path):
    """R19: the controller died between its write and its request, and the next one does not say that it is new."""
    async with Site(tmp_path) as site:
        one, two = await site.start(1, 2)
        brokers, site.brokers = site.brokers, {}
        await site.create(replicas=(1, 2))
        site.brokers = brokers
        await site.begin_term(2)
        assert [await site.tell(number) for number in (1, 2)] == [ErrorCode.NONE, ErrorCode.NONE]
        await one.produce(b"a")
        assert two.stored() == [b"a"]
        assert not one.replicas.has_lost_writes


@on_loop
async def test_a_partition_that_is_created_while_a_broker_starts_is_a_new_one(tmp_path, monkeypatch):
    """R19: its state appears between two reads of the start, and the request that says that it is new is lost."""
    async with Site(tmp_path) as site:
        one, two = await site.start(1, 2)
        await two.stop()
        brokers, site.brokers = site.brokers, {}
        await site.create(replicas=(2, 1))
        site.brokers = brokers
        path = nodes.state_path(T0)
        state = await site.tree.get(path)
        await site.tree.delete(path)
        read_batch, tree = SqliteTree.read_batch, site.tree

        async def then_create(self, paths):
            found = await read_batch(self, paths)
            if path in paths and await tree.get(path) is None:
                await tree.create(path, state.data)
            return found

        monkeypatch.setattr(SqliteTree, "read_batch", then_create)
        await two.start()
        assert (await tree.get(path)).data == state.data
        await site.begin_term(2)
        assert [await site.tell(number) for number in (1, 2)] == [ErrorCode.NONE, ErrorCode.NONE]
        await two.produce(b"a")
        assert one.stored() == [b"a"]


@on_loop
async def test_a_replica_whose_topic_could_not_be_read_at_the_start_is_not_taken_for_a_new_one(tmp_path):
    """R19: the disk was replaced, and the start could not see which ISRs count on it."""
    async with Site(tmp_path) as site:
        one, two = await site.start(1, 2)
        await site.create(replicas=(1, 2))
        await one.produce(b"a")
        await two.stop()
        shutil.rmtree(tmp_path / "broker-2")
        for path in (nodes.topic_path("orders"), nodes.state_path(T0)):
            found = await site.tree.get(path)
            await site.tree.set(path, b"{ not json")
            await two.start()
            await site.tree.set(path, found.data)
            assert not two.replicas.has_lost_writes
            assert await site.tell(2) == ErrorCode.KAFKA_STORAGE_ERROR
            await two.stop()
