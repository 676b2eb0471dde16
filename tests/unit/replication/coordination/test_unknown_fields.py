"""Fields that a later release wrote into a node stay there, whoever changes the node; without any, no byte changes."""

import json

from hypothesis import given
from hypothesis import strategies as st

from replication.coordination import cluster, nodes, producer_ids, reassignments, registration, topics
from replication.coordination.cluster import IsrWrite, Term
from replication.coordination.tree import Check, Create
from replication.model.cluster import (
    BrokerInfo,
    LeaderAndIsr,
    Reassignment,
    ReassignmentWrite,
    TopicPartition,
)
from replication.model.features import Levels
from tests.support.interleaving import SteppedTree, run

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
UNKNOWN = st.dictionaries(st.text(max_size=9).map(lambda name: f"x-{name}"), VALUES, max_size=3)
INFO = BrokerInfo(1, 5, "localhost", 9091, lost_writes=True, levels=Levels(0, 1))
STATE = LeaderAndIsr(1, 3, (1, 2), 1)


class Site:
    """A tree with one node of each kind, into which a later release wrote fields."""

    def __init__(self, unknown):
        self.tree, self.unknown = SteppedTree(), unknown
        self.put(nodes.CONTROLLER_EPOCH, b"1")
        self.term = Term(1, Check(nodes.CONTROLLER_EPOCH, self.tree.table.node(nodes.CONTROLLER_EPOCH).version))
        self.mark(nodes.topic_path("t"), nodes.encode_topic({0: (1, 2)}))
        self.put(nodes.partitions_path("t"), b"")
        self.put(nodes.partition_path(T0), b"")
        self.mark(nodes.state_path(T0), nodes.encode_state(STATE))
        self.mark(nodes.topic_config_path("t"), nodes.encode_config({"flush.ms": "1"}))
        self.put(nodes.topic_id_path("t"), b"an-id")

    def put(self, path, data, **options):
        if self.tree.table.node(path) is None:
            run(self.tree.multi([Create(path, data, **options)]))
        else:
            run(self.tree.set(path, data))

    def mark(self, path, data, **options):
        self.put(path, self.marked(data), **options)

    def marked(self, data):
        """Return the content with the fields of the later release, byte for byte as without them if there are none."""
        return json.dumps({**json.loads(data), **self.unknown}, separators=(",", ":"), ensure_ascii=False).encode()

    def data(self, path):
        return self.tree.table.node(path).data


@given(UNKNOWN)
def test_a_state_keeps_them_when_a_controller_or_a_leader_writes_it(unknown):
    site = Site(unknown)
    path = nodes.state_path(T0)
    known = run(cluster.read_states(site.tree, [T0]))[T0]
    (written,) = run(cluster.write_states(site.tree, site.term, [(T0, known.next_term(2, (2, 1), 1))]))
    assert written.accepted
    by_controller = LeaderAndIsr(2, 4, (2, 1), 1)
    assert site.data(path) == site.marked(nodes.encode_state(by_controller))
    # The leader knows what its controller told it, which is no unknown field.
    told = LeaderAndIsr(2, 4, (2,), 1, version=written.stored.version)
    assert run(cluster.write_isrs(site.tree, [IsrWrite(T0, told, ())])) == (written.stored.version + 1,)
    assert site.data(path) == site.marked(nodes.encode_state(told))


@given(UNKNOWN)
def test_a_topic_keeps_them_when_it_grows_is_altered_or_reassigned(unknown):
    site = Site(unknown)
    run(topics.grow_topic(site.tree, "t", {1: (2, 1)}))
    assert site.data(nodes.topic_path("t")) == site.marked(nodes.encode_topic({0: (1, 2), 1: (2, 1)}))
    path = nodes.topic_config_path("t")
    run(topics.change_config(site.tree, path, lambda known: {**known, "segment.ms": "7"}))
    assert site.data(path) == site.marked(nodes.encode_config({"flush.ms": "1", "segment.ms": "7"}))
    run(reassignments.request(site.tree, {T0: (3,)}))
    change = ReassignmentWrite(T0, Reassignment((3,)), Reassignment((3,), (1, 2)), (1, 2), (1, 2, 3))
    assert run(reassignments.write(site.tree, site.term, change)).accepted
    assert site.data(nodes.topic_path("t")) == site.marked(nodes.encode_topic({0: (1, 2, 3), 1: (2, 1)}))


@given(UNKNOWN, UNKNOWN)
def test_reassignments_keep_those_of_the_node_and_of_each_partition(unknown, of_row):
    site = Site(unknown)
    rows = [
        {"topic": "t", "partition": 0, "replicas": [2, 1], **of_row},
        {"topic": "u", "partition": 0, "replicas": [5], **of_row},
    ]
    site.mark(nodes.REASSIGNMENT, json.dumps({"version": 1, "partitions": rows}).encode())
    run(topics.grow_topic(site.tree, "t", {1: (2, 1)}))
    run(reassignments.request(site.tree, {T1: (1, 2)}))
    change = ReassignmentWrite(T0, Reassignment((2, 1)), Reassignment((2, 1), (1, 2)), (1, 2), (1, 2))
    assert run(reassignments.write(site.tree, site.term, change)).accepted
    found = json.loads(site.data(nodes.REASSIGNMENT))
    assert {key: found[key] for key in unknown} == unknown
    by_name = {(row["topic"], row["partition"]): row for row in found["partitions"]}
    assert by_name["u", 0] == rows[1]
    assert by_name["t", 0] == {**rows[0], "original_replicas": [1, 2]}
    assert by_name["t", 1] == {"topic": "t", "partition": 1, "replicas": [1, 2]}


@given(UNKNOWN)
def test_a_registration_keeps_them_and_forgets_what_is_over(unknown):
    site = Site(unknown)
    site.mark(nodes.broker_path(1), nodes.encode_broker(INFO, 7), ephemeral=True)
    assert run(registration.forget_losses(site.tree, 1))
    found = nodes.decode_broker(1, site.tree.table.node(nodes.broker_path(1)))
    assert found == BrokerInfo(1, 5, "localhost", 9091, levels=Levels(0, 1))
    assert site.data(nodes.broker_path(1)) == site.marked(nodes.encode_broker(found, 7))


@given(UNKNOWN)
def test_the_block_of_producer_ids_keeps_them(unknown):
    site = Site(unknown)
    first, then = (producer_ids.ProducerIds(broker, lambda: site.tree) for broker in (1, 2))
    known = run(first.next_id())
    site.mark(producer_ids.NODE, site.data(producer_ids.NODE))
    begin = run(then.next_id())
    assert begin == known + producer_ids.BLOCK_IDS
    end = begin + producer_ids.BLOCK_IDS - 1
    words = {"version": 1, "broker": 2, "block_start": str(begin), "block_end": str(end)}
    assert site.data(producer_ids.NODE) == site.marked(json.dumps(words).encode())
