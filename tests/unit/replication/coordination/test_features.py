"""A raise of the level and a registration never cross, whoever comes first; what a raise shuts out stays out."""

import functools
import json

import pytest

from replication.coordination import cluster, features, nodes
from replication.coordination.features import UnsupportedLevelError
from replication.coordination.registration import register_broker
from replication.coordination.tree import BadVersionError, Create, Delete, NodeExistsError, SetData, ensure_path
from replication.model.cluster import BrokerInfo
from replication.model.features import NO_LEVELS, Finalized, Levels
from tests.support.interleaving import SteppedTree, orders, run
from tests.support.repeats import times

SOME = times(100, 3000)  # orders of the calls


class LackingError(Exception): ...


@functools.cache
def _like():
    """A cluster of one broker of this release, at level 0; broker 2 has lived before."""
    tree = SteppedTree()
    run(ensure_path(tree, nodes.incarnation_path(2)))
    run(cluster.read_cluster_id(tree, "an-id"))
    run(tree.set(nodes.CONTROLLER_EPOCH, b"7"))
    run(register(tree, 1, Levels(0, 1)))
    return tree


def register(tree, broker, levels):
    info = BrokerInfo(broker, -1, "localhost", 9090 + broker, levels=levels)
    return register_broker(tree, info, now_ms=1, wait_ms=1000)


async def register_as_before(tree, broker):
    """Do what the release before feature levels does; return the level at which it was registered."""
    while True:
        await ensure_path(tree, nodes.incarnation_path(broker))
        before, _ = await tree.read_batch([nodes.incarnation_path(broker), nodes.broker_path(broker)])
        data = nodes.encode_broker(BrokerInfo(broker, 5, "localhost", 9090 + broker), 1)
        steps = [
            Create(nodes.broker_path(broker), data, ephemeral=True),
            SetData(nodes.incarnation_path(broker), b"", before.version),
        ]
        try:
            await tree.multi(steps)
        except (NodeExistsError, BadVersionError):
            continue
        return nodes.decode_features(tree.table.node(nodes.FEATURES).data).level


def raise_to(tree, level):
    def check(finalized, brokers):
        if any(level not in levels for levels in brokers.values()):
            raise LackingError

    return features.raise_level(tree, level, check)


def crossings(registration):
    """Yield (tree, outcome of the registration, outcome of a raise to level 1) for many orders of their calls."""
    trees = []

    def make():
        trees.append(SteppedTree(_like()))
        return [registration(trees[-1]), raise_to(trees[-1], 1)]

    for registered, raised in orders(make, SOME):
        yield trees.pop(), registered, raised


@pytest.mark.parametrize("broker", [2, 3], ids=["known", "new"])
def test_a_raise_and_the_registration_of_a_broker_that_does_not_support_it_never_cross(broker):
    levels = set()
    for tree, registered, raised in crossings(lambda tree: register(tree, broker, NO_LEVELS)):
        found, finalized = run(features.read_registered(tree))
        assert all(finalized.level in info.levels for info in found.values())
        assert isinstance(raised, LackingError) == (finalized.level == 0)
        if finalized.level == 1:
            assert isinstance(registered, UnsupportedLevelError)
            assert "the cluster is at level 1" in str(registered)
        levels.add(finalized.level)
    assert levels == {0, 1}


def test_a_raise_is_refused_if_the_release_before_has_registered_until_then():
    levels = set()
    for tree, registered_at, raised in crossings(lambda tree: register_as_before(tree, 2)):
        assert isinstance(raised, LackingError) == (registered_at == 0)
        assert set(run(cluster.read_brokers(tree))) == ({1} if registered_at else {1, 2})
        levels.add(registered_at)
    assert levels == {0, 1}


def test_a_first_life_of_the_release_before_may_cross_a_raise_and_is_left_out():
    crossed = 0
    for tree, registered_at, raised in crossings(lambda tree: register_as_before(tree, 3)):
        is_raised = not isinstance(raised, LackingError)
        assert set(run(cluster.read_brokers(tree))) == ({1} if is_raised else {1, 3})
        crossed += is_raised and registered_at == 0
    assert crossed


def test_a_broker_of_a_later_release_waits_for_the_raise():
    tree = SteppedTree(_like())
    with pytest.raises(
        UnsupportedLevelError, match=r"supports pylog.version 1 to 2, and the cluster is at level 0"
    ) as it:
        run(register(tree, 2, Levels(1, 2)))
    assert "`pylog features upgrade --level 1`" in str(it.value)
    run(raise_to(tree, 1))
    run(register(tree, 2, Levels(1, 2)))
    assert set(run(cluster.read_brokers(tree))) == {1, 2}


def test_two_who_raise_it_at_once_raise_it_once():
    trees = []

    def make():
        trees.append(SteppedTree(_like()))
        return [raise_to(trees[-1], 1), raise_to(trees[-1], 1)]

    for results in orders(make, SOME):
        assert results == [Finalized(1, 1)] * 2
        assert run(features.read_finalized(trees[-1])) == (1, 1)


def test_at_level_0_only_what_the_release_before_ignores_is_new():
    tree = SteppedTree(_like())
    told = json.loads(tree.table.node(nodes.broker_path(1)).data)
    assert told.pop("features") == {"pylog.version": {"min_version": 0, "max_version": 1}}
    assert set(told) == {"jmx_port", "timestamp", "endpoints", "host", "version", "port", "broker_epoch"}
    term = run(cluster.become_controller(tree, 1, 1))
    assert tree.table.node(nodes.CONTROLLER_EPOCH).data == b"8"
    assert term.controller_epoch == 8
    assert tree.table.node(nodes.CLUSTER_ID).data == b'{"version":"1","id":"an-id"}'
    assert tree.table.node(nodes.FEATURES).data == tree.table.node(nodes.REGISTRATIONS).data == b""


def test_a_raise_ends_the_term_and_hides_the_epoch_and_the_cluster_id_from_the_release_before():
    tree = SteppedTree(_like())
    term = run(cluster.become_controller(tree, 1, 1))
    run(raise_to(tree, 1))
    assert tree.table.node(nodes.CONTROLLER) is None
    with pytest.raises(cluster.FencedError):
        run(cluster.write_states(tree, term, [(cluster.TopicPartition("t", 0), cluster.LeaderAndIsr(1, 0, (1,), 8))]))
    assert not tree.table.node(nodes.CONTROLLER_EPOCH).data.isdigit()
    assert not isinstance(json.loads(tree.table.node(nodes.CLUSTER_ID).data)["id"], str)
    assert run(cluster.read_controller_epoch(tree)) == 8
    assert run(cluster.read_cluster_id(tree, "another")) == "an-id"
    later = run(cluster.become_controller(tree, 1, 1))
    assert later.controller_epoch == 9
    assert not tree.table.node(nodes.CONTROLLER_EPOCH).data.isdigit()


def test_a_raise_keeps_what_a_later_release_wrote_beside_it():
    tree = SteppedTree(_like())
    run(tree.set(nodes.FEATURES, b'{"version":1,"epoch":4,"features":{"pylog.version":0,"x":7},"y":[1]}'))
    run(tree.set(nodes.CLUSTER_ID, b'{"version":"1","id":"an-id","z":true}'))
    run(raise_to(tree, 1))
    found = json.loads(tree.table.node(nodes.FEATURES).data)
    assert found == {"version": 1, "epoch": 5, "features": {"pylog.version": 1, "x": 7}, "y": [1]}
    assert json.loads(tree.table.node(nodes.CLUSTER_ID).data)["z"] is True


@pytest.mark.parametrize("terms", [7, 0])
def test_a_term_that_begins_beside_a_raise_has_one_level(terms):
    trees = []

    def make():
        trees.append(SteppedTree(_like()))
        if terms == 0:
            trees[-1].table.apply([Delete(nodes.CONTROLLER_EPOCH)], 1)
        return [cluster.become_controller(trees[-1], 1, 1), raise_to(trees[-1], 1)]

    ends = set()
    for term, _ in orders(make, SOME):
        epoch = trees[-1].table.node(nodes.CONTROLLER_EPOCH)
        assert not epoch.data.isdigit()
        assert nodes.decode_controller_epoch(epoch.data) == term.controller_epoch == terms + 1
        is_over = term.guard.version != epoch.version
        assert is_over == (trees[-1].table.node(nodes.CONTROLLER) is None)  # the next one reads everything again
        ends.add(is_over)
    assert ends == {True, False}  # the term, or the raise, came first


def test_a_cluster_id_that_is_lost_comes_back_as_the_release_before_cannot_read_it():
    tree = SteppedTree(_like())
    run(raise_to(tree, 1))
    tree.table.apply([Delete(nodes.CLUSTER_ID)], 1)
    assert run(cluster.read_cluster_id(tree, "another")) == "another"
    assert not isinstance(json.loads(tree.table.node(nodes.CLUSTER_ID).data)["id"], str)


def test_a_tree_of_the_release_before_gets_what_is_missing():
    """A registration and a raise make the nodes; a cluster without an id, or brokers, is raised all the same."""
    for missing in ((nodes.FEATURES,), (nodes.REGISTRATIONS,), (nodes.FEATURES, nodes.REGISTRATIONS)):
        tree = SteppedTree(_like())
        tree.table.apply([Delete(path) for path in (*missing, nodes.CLUSTER_ID)], 1)
        run(register(tree, 2, Levels(0, 1)))
        assert None not in map(tree.table.node, missing)
        tree.table.apply([Delete(path) for path in missing], 1)
        assert run(raise_to(tree, 1)) == (1, 1)
        assert run(features.read_finalized(tree)) == (1, 1)
        assert tree.table.node(nodes.CLUSTER_ID) is None
