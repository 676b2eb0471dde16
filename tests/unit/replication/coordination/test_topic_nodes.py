"""The nodes of a topic belong to one life of it, in whatever order brokers, tools and the controller come."""

import functools

import pytest

from logstore.errors import PylogError, TopicExistsError
from replication.coordination import cluster, nodes, reassignments, topic_nodes, topics
from replication.coordination.cluster import Term
from replication.coordination.tree import Check, Create, Delete
from replication.model.cluster import LeaderAndIsr, Reassignment, ReassignmentWrite, TopicPartition
from tests.support.interleaving import SteppedTree, orders, run
from tests.support.repeats import soaked, times

TERM = Term(1, Check(nodes.CONTROLLER_EPOCH, 0))
OLD, NEW = "o" * 21 + "A", "n" * 21 + "A"
T0 = TopicPartition("t", 0)
SOME = soaked(times(60, 500), 0) or None  # orders of the calls; None, with --soak: every order
OF_OLD, OF_NEW = {0: (1, 2), 1: (1, 2)}, {0: (3,)}


@functools.cache
def _like(*, has_topic):
    tree = SteppedTree()
    if has_topic:
        run(topics.create_topic(tree, "t", OLD, OF_OLD, {"retention.ms": "1"}))
        run(cluster.write_states(tree, TERM, [(T0, LeaderAndIsr(1, 0, (1, 2), 1))]))
    return tree


class Site:
    """A tree with a topic, and what writers do with its name."""

    def __init__(self, *, has_topic=True):
        self.tree = SteppedTree(_like(has_topic=has_topic))

    def create(self):
        return topics.create_topic(self.tree, "t", NEW, OF_NEW, {"segment.ms": "2"})

    async def create_once_gone(self):
        while True:
            try:
                return await self.create()
            except TopicExistsError:
                if await self.tree.get(nodes.topic_path("t")) is None:
                    continue
                if await self.tree.get(nodes.deletion_path("t")) is None:
                    return None

    async def delete(self):
        await topics.mark_deleted(self.tree, "t", OLD)
        await topic_nodes.delete_topic_nodes(self.tree, TERM, "t", OLD)

    def alter(self):
        return topics.change_config(self.tree, nodes.topic_config_path("t"), lambda known: {**known, "flush.ms": "3"})

    def configure(self):
        """Configure a topic that Kafka's tools made, which have not written settings."""
        self.tree.table.apply([Delete(nodes.topic_config_path("t"))], 1)
        return self.alter()

    def grow(self):
        return topics.grow_topic(self.tree, "t", {2: (1, 2)})

    def reassign(self):
        return reassignments.request(self.tree, {T0: (2, 4)})

    def name(self):
        return topic_nodes.make_topic_id(self.tree, TERM, "t", "x" * 21 + "A")

    def clean(self):
        return topic_nodes.clean_orphans(self.tree, TERM)

    def mark(self):
        return topics.mark_deleted(self.tree, "t", OLD)

    def unmark(self):
        return topic_nodes.unmark(self.tree, TERM, "t")

    async def read(self):
        return await cluster.read_topics(self.tree)

    def check(self):
        """Check the laws that hold at the end, in whatever order the writers came."""
        table = self.tree.table
        topic, config, name, mark = (
            table.node(path)
            for path in (
                nodes.topic_path("t"),
                nodes.topic_config_path("t"),
                nodes.topic_id_path("t"),
                nodes.deletion_path("t"),
            )
        )
        if topic is None:
            assert (config, name, mark) == (None, None, None), "a node outlives its topic"
            return
        assert name is not None, "a topic without id"
        if name.data.decode() == OLD:
            return
        assert name.data.decode() == NEW
        assert mark is None, "the mark of another life"
        assert table.node(nodes.partitions_path("t")) is None, "a state of another life"
        partitions = nodes.decode_topic("t", topic.data)
        assert partitions in (OF_NEW, {**OF_NEW, 1: (1, 2)}), "partitions of another life"
        found = nodes.settings_at(nodes.topic_config_path("t"), config)
        assert found.pop("flush.ms", "3") == "3"
        assert found == {"segment.ms": "2"}, "settings of another life"


def refuse_nothing_else(results):
    for result in results:
        assert not isinstance(result, Exception) or isinstance(result, PylogError), result


WRITERS = ("alter", "configure", "grow", "reassign", "name", "clean", "mark", "unmark", "read")


@pytest.mark.parametrize("writer", WRITERS)
def test_nothing_outlives_a_topic_whoever_writes_while_it_is_deleted(writer):
    sites = []

    def make():
        sites.append(Site())
        return [sites[-1].delete(), getattr(sites[-1], writer)()]

    for results in orders(make, SOME):
        refuse_nothing_else(results)
        sites[-1].check()
        assert sites[-1].tree.table.node(nodes.topic_path("t")) is None


@pytest.mark.parametrize("writer", WRITERS)
def test_nothing_of_a_topic_is_found_with_a_later_one_of_its_name(writer):
    sites = []

    def make():
        sites.append(Site())
        return [sites[-1].delete(), sites[-1].create_once_gone(), getattr(sites[-1], writer)()]

    for results in orders(make, SOME or 4000):
        refuse_nothing_else(results)
        sites[-1].check()
        if writer == "read":
            check_read(results[2])


def check_read(found):
    for topic in found.values():
        assert (topic.topic_id, topic.replicas) in ((OLD, OF_OLD), (NEW, OF_NEW)), found


def test_a_read_of_topics_gives_each_as_it_was_in_one_life():
    """(R29) A topic that came or went meanwhile does not look like one without id."""
    sites = []

    async def again(site):
        await topic_nodes.delete_topic_nodes(site.tree, TERM, "t", OLD)
        await site.create()

    def make():
        sites.append(Site())
        return [again(sites[-1]), sites[-1].read()]

    seen = set()
    for _, found in orders(make, SOME):
        check_read(found)
        seen.add(found["t"].topic_id if found else None)
    assert {None, OLD} <= seen <= {None, OLD, NEW}


def test_an_id_without_a_topic_is_cleaned_and_keeps_no_name():
    """Earlier versions left such ids behind: a topic of that name could neither be created nor deleted."""
    sites = []

    def make():
        site = Site(has_topic=False)
        site.tree.table.apply([Create(nodes.topic_id_path("t"), OLD.encode())], 1)
        sites.append(site)
        return [site.create(), site.clean(), site.name()]

    for results in orders(make, SOME):
        assert not any(isinstance(result, Exception) for result in results)
        sites[-1].check()
        assert run(sites[-1].read())["t"].topic_id == NEW
    alone = Site(has_topic=False)
    alone.tree.table.apply([Create(nodes.topic_id_path("t"), OLD.encode())], 1)
    assert run(alone.clean()) == ("t",)
    assert alone.tree.table.children(nodes.TOPIC_IDS) == alone.tree.table.children(nodes.TOPICS) == ()


def test_reassignments_are_listed_as_they_were_at_one_moment():
    sites = []
    begun = Reassignment((2, 4), (1, 2))

    async def move(site):
        for before, after, stored, replicas in (
            (Reassignment((2, 4)), begun, (1, 2), (1, 2, 4)),
            (begun, None, (1, 2, 4), (2, 4)),
        ):
            change = ReassignmentWrite(T0, before, after, stored, replicas)
            assert (await reassignments.write(site.tree, TERM, change)).accepted

    def make():
        site = Site()
        run(site.reassign())
        sites.append(site)
        return [move(site), reassignments.listed(site.tree)]

    seen = []
    for _, found in orders(make, SOME):
        assert found in ({}, {T0: ((1, 2), (4,), (1,))}, {T0: ((1, 2, 4), (4,), (1,))})
        seen += [len(found)] if found else []
    assert seen


def test_two_creators_of_a_name_make_one_topic():
    sites = []

    def make():
        site = Site(has_topic=False)
        sites.append(site)
        return [site.create(), site.create(), site.mark(), site.clean()]

    for results in orders(make, SOME or 3000):
        refuse_nothing_else(results)
        sites[-1].check()
        assert [type(result) for result in results[:2]].count(TopicExistsError) == 1


def test_a_deletion_by_id_does_not_delete_a_later_topic_of_that_name():
    site = Site()
    run(site.delete())
    run(site.create())
    run(topics.mark_deleted(site.tree, "t", OLD))
    run(topic_nodes.delete_topic_nodes(site.tree, TERM, "t", OLD))
    site.check()
    assert run(site.read())["t"].topic_id == NEW
    run(topics.mark_deleted(site.tree, "t"))
    assert run(topics.is_marked_deleted(site.tree, "t"))
    assert run(topic_nodes.unmark(site.tree, TERM, "t")) is False


def test_a_topic_is_not_missing_because_a_read_is_behind():
    """A server of ZooKeeper may be behind; writes of its own session, it has to have first."""

    class Behind(SteppedTree):
        has_written = False

        async def get(self, path, watch=None):
            return await super().get(path) if self.has_written or path == nodes.DELETIONS else None

        async def multi(self, steps):
            self.has_written = True
            return await super().multi(steps)

    tree = Behind(_like(has_topic=True))
    assert run(topics.find_missing(tree, ["t", "u"])) == {"u"}


def test_only_the_controller_in_office_deletes_and_names():
    site = Site()
    later = Term(2, Check(nodes.CONTROLLER_EPOCH, 1))
    for work in (
        topic_nodes.delete_topic_nodes(site.tree, later, "t", OLD),
        topic_nodes.make_topic_id(site.tree, later, "u", NEW),
        topic_nodes.unmark(site.tree, later, "u"),
    ):
        with pytest.raises(cluster.FencedError):
            run(work)
