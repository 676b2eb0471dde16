"""Whole brokers and their controller: what a silence of the store ends, and when leadership goes back."""

from contextlib import asynccontextmanager

from replication.controller.machine import events
from replication.coordination import nodes, topics
from replication.coordination.tree import Create, ensure_path
from replication.errors import ErrorCode
from replication.model.cluster import NO_LEADER, UNCLEAN, Election, LeaderAndIsr, TopicPartition
from tests.integration.broker.test_offline import brokers, is_led, made, produce
from tests.support.inside import tree_of
from tests.support.site import T0, on_loop, until
from tests.support.trees import sit_on

P0, P1 = TopicPartition("others", 0), TopicPartition("others", 1)


@asynccontextmanager
async def silent(path):
    """Somebody sits on the lock of the store."""
    sitter = await sit_on(path)
    try:
        yield
    finally:
        sitter.execute("ROLLBACK")
        sitter.close()


@on_loop
async def test_r25_a_silence_of_the_store_ends_no_role_no_life_and_no_term(tmp_path):
    """Only a lost session does: leaders lead on, acks=all goes on, and afterwards everything is as it was."""
    async with brokers(tmp_path, 2, **{"zookeeper.session.timeout.ms": 3000}) as running:
        await until(lambda: is_led(running, 1, {1, 2}))

        def facts():
            roles = [broker.replicas.partitions()[T0].role for broker in running.values()]
            lives = [(broker.lifecycle.epoch, tree_of(broker)) for broker in running.values()]
            terms = [(broker.controller.is_active, broker.controller.state.epoch) for broker in running.values()]
            return roles, lives, terms

        before, leader = facts(), running[1].replicas.partitions()[T0].role
        async with silent(tmp_path / "tree.db"):
            await until(lambda: leader.state.is_suspended)
            assert facts() == before
            assert await produce(running[1], b"a") == ErrorCode.NONE
            assert (leader.state.isr, leader.is_over) == ((1, 2), False)
        await until(lambda: not leader.state.is_suspended)
        assert facts() == before
        await topics.create_topic(tree_of(running[1]), P0.topic, "j" * 21 + "A", {0: (2, 1)}, {})
        await until(lambda: running[1].replicas.metadata.leader(*P0) == 2)
        assert facts() == before


@on_loop
async def test_leadership_goes_back_where_more_than_the_percentage_is_missed(tmp_path):
    """leader.imbalance.per.broker.percentage as the controller of a broker has it from its settings."""
    settings = {
        "leader.imbalance.per.broker.percentage": 60,
        "leader.imbalance.check.interval.seconds": 3600,
    }
    async with brokers(tmp_path, 2, **settings) as running:
        loop, clock = running[1].controller, running[1].env.clock
        await topics.create_topic(tree_of(running[1]), P0.topic, "j" * 21 + "A", {0: (2, 1), 1: (2, 1)}, {})
        passed_ms = 0

        def leaders():
            state = loop.state
            return [(found.leader, set(found.isr)) for tp in (P0, P1) if (found := state.leadership.get(tp))]

        def check():
            nonlocal passed_ms
            passed_ms += 3_600_001
            loop.post(events.Ticked(clock.monotonic_ms() + passed_ms))

        async def bounce():
            await running[2].stop()
            await until(lambda: leaders() == [(1, {1}), (1, {1})])
            running[2] = made(tmp_path, 2, **settings)
            await running[2].start()
            await until(lambda: leaders() == [(1, {1, 2}), (1, {1, 2})])

        await until(lambda: leaders() == [(2, {1, 2}), (2, {1, 2})])
        check()  # the first one is soon after the start, whenever that was
        await bounce()
        check()  # it misses all of them
        await until(lambda: leaders() == [(2, {1, 2}), (2, {1, 2})])
        await bounce()
        await topics.request_election(tree_of(running[1]), Election((P0,)))
        await until(lambda: leaders() == [(2, {1, 2}), (1, {1, 2})] and not loop.state.preferred)
        check()  # it misses half of them
        assert not loop.state.pending


@on_loop
async def test_what_one_controller_was_asked_to_elect_the_next_one_elects(tmp_path):
    """It is asked for when nobody hears of it; and no rebalance does the same by itself."""
    async with brokers(tmp_path, 2, **{"auto.leader.rebalance.enable": "false"}) as running:
        await topics.create_topic(tree_of(running[1]), P0.topic, "j" * 21 + "A", {0: (2, 1)}, {})
        await until(lambda: running[1].replicas.metadata.leader(*P0) == 2)
        await running[2].stop()
        await until(lambda: running[1].replicas.metadata.leader(*P0) == 1)
        running[2] = made(tmp_path, 2, **{"auto.leader.rebalance.enable": "false"})
        await running[2].start()
        controller = running[1].controller
        await until(lambda: set(controller.state.leadership[P0].isr) == {1, 2})
        await controller.end()  # it hears of nothing more; /controller is there as long as its session
        tree = tree_of(running[2])
        await topics.request_election(tree, Election((P0,)))
        assert controller.state.epoch == 0
        await tree.delete(nodes.CONTROLLER)
        await until(lambda: running[2].replicas.metadata.leader(*P0) == 2)
        assert running[2].controller.is_active
        node = await tree.get(nodes.ELECTION)
        await until(lambda: node is None or not running[2].controller.state.has_election_node)


@on_loop
async def test_the_default_of_brokers_for_unclean_elections_counts_from_the_moment_it_is_set(tmp_path):
    async with brokers(tmp_path, 1) as running:
        tree, leader = tree_of(running[1]), running[1].replicas.metadata.leader
        clean = LeaderAndIsr(9, 3, (9,), 1)
        state = [Create(path) for path in (nodes.partitions_path(P0.topic), nodes.partition_path(P0))]
        state.append(Create(nodes.state_path(P0), nodes.encode_state(clean)))
        await topics.create_topic(tree, P0.topic, "j" * 21 + "A", {0: (1, 9)}, {}, *state)
        await until(lambda: leader(*P0) == NO_LEADER)
        of_all = nodes.broker_config_path("")
        await ensure_path(tree, of_all)
        await topics.change_config(tree, of_all, lambda known: {**known, UNCLEAN: "true"})
        await until(lambda: leader(*P0) == 1)
