"""Brokers and controllers on the tree: one incarnation after the other, one controller at a time."""

import asyncio

import pytest

from logstore.env import SYSTEM
from replication.coordination import nodes
from replication.coordination.cluster import (
    FencedError,
    become_controller,
    prepare,
    read_brokers,
    read_cluster,
    read_states,
    resign,
    write_states,
)
from replication.coordination.features import UnsupportedLevelError, raise_level, read_finalized
from replication.coordination.offline import read_offline, write_offline
from replication.coordination.registration import (
    REGISTRATIONS_MAX,
    SECRET_BITS,
    BrokerIdTakenError,
    new_epoch,
    register_broker,
)
from replication.coordination.topic_nodes import clean_orphans, delete_topic_nodes, make_topic_id, unmark
from replication.coordination.topics import create_topic, find_missing, is_marked_deleted, mark_deleted
from replication.coordination.tree import CoordinationError, SessionEvent
from replication.model.cluster import NO_LEADER, BrokerInfo, Election, LeaderAndIsr, Offline, TopicPartition
from replication.model.features import Finalized, Levels
from tests.support.topics import described
from tests.support.trees import SESSION_MS, Seen, on_loop

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def broker(number, **facts):
    return BrokerInfo(number, -1, "localhost", 9090 + number, **facts)


async def register(tree, info, **options):
    return await register_broker(tree, info, now_ms=7, **({"wait_ms": 10_000} | options))


async def with_topic(room):
    tree = await room.tree()
    await prepare(tree)
    await tree.create(nodes.topic_path("t"), nodes.encode_topic({0: (1, 2), 1: (2, 1)}))
    return tree


@on_loop
async def test_brokers_register_and_are_read(room):
    tree, other = await room.tree(), await room.tree()
    await asyncio.gather(prepare(tree), prepare(other))
    first = await register(tree, broker(1, rack="r"))
    second = await register(other, broker(2, lost_writes=True))
    assert await read_brokers(tree) == {
        1: BrokerInfo(1, first, "localhost", 9091, rack="r"),
        2: BrokerInfo(2, second, "localhost", 9092, lost_writes=True),
    }
    assert await register(tree, broker(1)) == first  # again, after a lost answer


@on_loop
async def test_a_broker_that_bounces_is_another_incarnation_and_the_controller_is_told(room):
    # (R18) faster than its session: the new life ends the session of the former one first
    tree = await room.tree()
    await prepare(tree)
    process = room.spawn("register", "1")
    former = await process.line()
    seen = Seen()
    assert await tree.children(nodes.BROKER_IDS, seen) == ("1",)
    process.kill()
    back = await room.tree()
    async with asyncio.timeout(1):
        epoch = await register(back, broker(1), former=former["token"].encode())
    assert epoch > former["epoch"]
    assert await seen.change() == nodes.BROKER_IDS
    assert (await read_brokers(tree))[1].epoch == epoch


@on_loop
async def test_what_is_offline_comes_and_goes_with_the_registration_and_changes_meanwhile(room):
    tree, other = await room.tree(), await room.tree()
    await prepare(tree)
    damaged, full = Offline(None, {T0: "damaged"}), Offline("disk full", {T1: "damaged"})
    seen = Seen()
    assert await tree.children(nodes.BROKER_IDS, seen) == ()
    await register(other, broker(2), offline=damaged)
    await seen.change()
    assert await read_offline(tree) == {2: damaged}
    for said in (full, full, damaged):
        changed = Seen()
        await read_offline(tree, changed)
        await write_offline(other, 2, said)
        assert await read_offline(tree) == {2: said}
        assert changed.all or said is full
    await write_offline(other, 2, None)
    await write_offline(other, 2, None)
    assert await read_offline(tree) == {}
    await write_offline(other, 2, full)
    assert (await read_cluster(tree)).offline == {2: full}
    await other.close()
    assert await read_offline(tree) == {}


@on_loop
async def test_an_offline_node_that_cannot_be_understood_is_said_and_nobodys_trouble(room, caplog):
    tree = await room.tree()
    await prepare(tree)
    await tree.create(f"{nodes.OFFLINE_REPLICAS}/1", b"nonsense")
    await tree.create(f"{nodes.OFFLINE_REPLICAS}/x", b"{}")
    await register(tree, broker(2), offline=Offline("disk full"))
    assert await read_offline(tree) == {2: Offline("disk full")}
    assert "/pylog/offline_replicas/1" in caplog.text


@on_loop
async def test_the_epochs_of_a_broker_grow_from_life_to_life_and_nobody_can_guess_them(room):
    """(R18) And they fit where messages have them: into an int64 that is not negative."""
    tree = await room.tree()
    await prepare(tree)
    epochs = []
    for _ in range(5):
        life = await room.tree()
        epochs.append(await register(life, broker(1)))
        await life.close()
    assert epochs == sorted(set(epochs))
    assert len({epoch % (1 << SECRET_BITS) for epoch in epochs}) == 5
    assert [epoch >> SECRET_BITS for epoch in epochs] == [1, 2, 3, 4, 5]
    assert new_epoch(REGISTRATIONS_MAX - 1, SYSTEM) < 2**63
    with pytest.raises(CoordinationError, match="delete its node"):
        new_epoch(REGISTRATIONS_MAX, SYSTEM)


@on_loop
async def test_without_its_token_a_broker_waits_until_its_former_session_is_over(room):
    # (R18) never two incarnations at once; this session is to outlive the former one
    tree = await room.tree(timeout_ms=4 * SESSION_MS)
    await prepare(tree)
    process = room.spawn("register", "1")
    former = await process.line()
    process.kill()
    assert await register(tree, broker(1)) > former["epoch"]


@on_loop
async def test_two_brokers_of_one_id_cannot_both_register(room, caplog):
    tree, other = await room.tree(), await room.tree()
    await prepare(tree)
    epoch = await register(tree, broker(1))
    with pytest.raises(BrokerIdTakenError, match="give each broker its own id"):
        await register(other, broker(1), wait_ms=700)
    said = [each.getMessage() for each in caplog.records if each.name.endswith("coordination.registration")]
    assert said == ["a broker with id 1 is registered: waiting for that to end, up to 0.7 s"]
    assert (await read_brokers(tree))[1].epoch == epoch


@on_loop
async def test_of_many_who_run_one_becomes_the_controller(room):
    trees = [await room.tree() for _ in range(4)]
    await prepare(trees[0])
    terms = await asyncio.gather(*(become_controller(tree, i, 7) for i, tree in enumerate(trees)))
    won = [i for i, term in enumerate(terms) if term is not None]
    assert len(won) == 1
    assert terms[won[0]].controller_epoch == 1
    node = await trees[0].get(nodes.CONTROLLER)
    assert nodes.decode_controller(node.data) == won[0]
    await resign(trees[won[0]])
    loser = trees[won[0] - 1]
    assert (await become_controller(loser, 9, 7)).controller_epoch == 2


@on_loop
async def test_a_raise_of_the_level_ends_the_term_and_leaves_out_who_does_not_support_it(room):
    tree, other, late = await room.tree(), await room.tree(), await room.tree()
    await prepare(tree)
    levels = Levels(0, 1)
    await register(tree, broker(1, levels=levels))
    await register(other, broker(2))  # of the release before: it tells none
    term = await become_controller(tree, 1, 7)
    assert await read_finalized(other) == Finalized(0, 0)

    def check(finalized, brokers):
        lacking.append({number for number, its in brokers.items() if 1 not in its})
        if lacking[-1]:
            raise CoordinationError("refused")

    lacking = []
    with pytest.raises(CoordinationError, match="refused"):
        await raise_level(other, 1, check)
    await other.close()
    assert await raise_level(late, 1, check) == Finalized(1, 1)
    assert lacking == [{2}, set()]
    assert await tree.get(nodes.CONTROLLER) is None
    with pytest.raises(FencedError):
        await write_states(tree, term, [(T0, LeaderAndIsr(1, 0, (1, 2), 1))])
    assert (await become_controller(late, 3, 7)).controller_epoch == term.controller_epoch + 1
    with pytest.raises(UnsupportedLevelError, match="the cluster is at level 1"):
        await register(late, broker(2))
    await tree.create(nodes.broker_path(2), nodes.encode_broker(BrokerInfo(2, 5, "localhost", 9092), 7), ephemeral=True)
    assert set(await read_brokers(late)) == {1}


@on_loop
async def test_only_the_controller_itself_resigns(room):
    tree, other = await room.tree(), await room.tree()
    await prepare(tree)
    await become_controller(tree, 1, 7)
    await resign(other)
    assert await tree.get(nodes.CONTROLLER) is not None


@on_loop
async def test_the_controller_that_lost_its_session_writes_nothing_more(room):
    # (R23) two controllers: the stale one goes on with a new connection, and with what it believed
    tree = await with_topic(room)
    stale, fresh = await room.open(), await room.tree()
    old = await become_controller(stale.tree, 1, 7)
    (made,) = await write_states(stale.tree, old, [(T0, LeaderAndIsr(1, 0, (1, 2), 1))])
    assert made.accepted
    await tree.end_session(stale.tree.token)
    await stale.event(SessionEvent.EXPIRED)
    new = await become_controller(fresh, 2, 7)
    assert new.controller_epoch == old.controller_epoch + 1

    zombie = await room.tree()
    wanted = made.stored.next_term(1, (1,), old.controller_epoch)
    with pytest.raises(FencedError):
        await write_states(zombie, old, [(T0, wanted), (T1, LeaderAndIsr(1, 0, (1,), 1))])
    assert await read_states(tree, [T0, T1]) == {T0: made.stored, T1: None}

    (moved,) = await write_states(fresh, new, [(T0, made.stored.next_term(2, (2,), 2))])
    assert moved.accepted
    assert (await read_states(tree, [T0]))[T0] == LeaderAndIsr(2, 1, (2,), 2, version=1)


@on_loop
async def test_each_state_is_written_or_what_stands_is_told(room):
    tree = await with_topic(room)
    term = await become_controller(tree, 1, 7)
    first = [(tp, LeaderAndIsr(1, 0, (1, 2), 1)) for tp in (T0, T1)]
    made = await write_states(tree, term, first)
    assert [outcome.accepted for outcome in made] == [True, True]
    # The leader of T1 has changed its ISR meanwhile.
    shrunk = LeaderAndIsr(1, 0, (1,), 1)
    await tree.set(nodes.state_path(T1), nodes.encode_state(shrunk), 0)
    again = await write_states(tree, term, [(o.tp, o.stored.next_term(NO_LEADER, (2,), 1)) for o in made])
    assert [outcome.accepted for outcome in again] == [True, False]
    assert again[0].stored == LeaderAndIsr(NO_LEADER, 1, (2,), 1, version=1)
    assert again[1].stored == LeaderAndIsr(1, 0, (1,), 1, version=1)
    (there,) = await write_states(tree, term, [first[0]])
    assert (there.accepted, there.stored) == (False, again[0].stored)


@on_loop
async def test_a_new_controller_reads_the_whole_cluster(room):
    tree = await with_topic(room)
    term = await become_controller(tree, 1, 7)
    await tree.create(nodes.topic_config_path("t"), nodes.encode_config({"unclean.leader.election.enable": "true"}))
    assert [await make_topic_id(tree, term, "t", name) for name in ("first", "second")] == ["first", "first"]
    (outcome,) = await write_states(tree, term, [(T0, LeaderAndIsr(1, 0, (1, 2), 1))])
    await tree.create(f"{nodes.DELETED_TOPICS}/gone")
    await tree.create(nodes.ELECTION, nodes.encode_election(Election((T1,), is_unclean=True)))
    cluster = await read_cluster(tree)
    assert cluster.topics == {"t": described({0: (1, 2), 1: (2, 1)}, "first", unclean=True)}
    assert cluster.leadership == {T0: outcome.stored}
    assert (cluster.brokers, cluster.deletions) == ({}, ("gone",))
    assert cluster.election == Election((T1,), is_unclean=True)


@on_loop
async def test_every_store_takes_the_steps_that_create_and_delete_a_topic(room):
    """Among them the ones that check that a node is absent, and those that replace an id left without a topic."""
    tree = await room.tree()
    await prepare(tree)
    term = await become_controller(tree, 1, 7)
    assert await make_topic_id(tree, term, "t", "lost") is None
    for life in ("first", "second"):
        await tree.create(nodes.topic_id_path("t"), b"orphan")
        await create_topic(tree, "t", life, {0: (1,)}, {})
        await mark_deleted(tree, "t", "orphan")
        assert not await is_marked_deleted(tree, "t")
        await mark_deleted(tree, "t", life)
        assert (await unmark(tree, term, "t"), await is_marked_deleted(tree, "t")) == (False, True)
        assert (await read_cluster(tree)).topics == {"t": described({0: (1,)}, life)}
        await write_states(tree, term, [(T0, LeaderAndIsr(1, 0, (1,), 1))])
        assert await find_missing(tree, ["t", "u"]) == {"u"}
        await delete_topic_nodes(tree, term, "t", life)
        await delete_topic_nodes(tree, term, "t", life)
        assert [await tree.get(path) for path in nodes.all_of_topic("t")] == [None] * 4
    for name in ("a", "b"):
        await tree.create(nodes.topic_id_path(name), b"orphan")
        await tree.create(nodes.deletion_path(name))
        assert await unmark(tree, term, name)
    assert await clean_orphans(tree, term) == ("a", "b")
    assert [await tree.children(path) for path in (nodes.TOPIC_IDS, nodes.TOPICS, nodes.DELETED_TOPICS)] == [()] * 3
