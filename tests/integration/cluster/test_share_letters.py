"""Dead letters of share groups: the same as those of a Kafka 4.4 (`conformance/kafka4`), and none is lost."""

import logging

import pyarrow as pa
import pytest

from replication.broker.share import letter_writer
from replication.client.admin import delete_records, elect_leaders, reassign
from replication.client.kafka_client import KafkaClient
from replication.model.cluster import TopicPartition
from replication.replica.leader.leader import Leader
from tests.conformance.clients.members import until
from tests.support import share_letters
from tests.support.in_process import brokers_in_process
from tests.support.inside import going_on_in
from tests.support.repeats import only_long
from tests.support.share_letters import ENABLED, REJECTED, append, ask_for_letters, give_up, headers_of, letters

AUTO_CREATE = {"errors.deadletterqueue.auto.create.topics.enable": "true"}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    settings = {key.replace(".", "_"): value for key, value in AUTO_CREATE.items()}
    with brokers_in_process(tmp_path_factory.mktemp("letters"), **settings) as running:
        yield running


@pytest.fixture(scope="module")
def three(site):
    with KafkaClient(",".join(str(broker.endpoint) for broker in site.brokers.values())) as client:
        yield client


@pytest.mark.parametrize("copies", [True, pytest.param(False, marks=only_long("the same without key and value"))])
def test_each_record_that_is_given_up_has_its_letter(three, copies):
    share_letters.each_record_that_is_given_up_has_its_letter(
        three, f"given-up-{copies}", f"letters-{copies}", copies=copies
    )


def test_what_may_not_be_written_is_given_up_without_a_letter(three):
    share_letters.what_may_not_be_written_is_given_up_without_a_letter(three, "refused", "refusing")
    until(lambda: letters(three, "dlq.refused-large"), "the letter that is not too large", within_s=30)
    assert letters(three, "dlq.refused-large").keys() == {(0, 1)}


def test_a_topic_is_created_for_letters(three):
    share_letters.a_topic_is_created_for_letters(three, "made", "making")


def test_letters_are_written_after_the_last_member_has_left(three):
    """The topic takes no letters at first, as many as fit into three batches."""
    three.create_topic("left", replicas=3)
    three.create_topic("dlq.left", replicas=3, min_insync_replicas="4", max_message_bytes="600", **ENABLED)
    ask_for_letters(three, "leaving", "dlq.left")
    append(three, "left", 0, *((b"k", b"%0200d" % number) for number in range(3)))
    give_up(three, "left", "leaving", rejected={(0, 0), (0, 1), (0, 2)}, released=(), count=3)
    assert letters(three, "dlq.left") == {}
    three.alter_settings((2, "dlq.left"), {"min.insync.replicas": "2"})
    until(lambda: len(letters(three, "dlq.left")) == 3, "letters", within_s=30)
    (extent,) = three.extents("dlq.left").values()
    assert extent.end == 3, "each once"


def test_a_topic_that_is_not_there_and_may_not_be_created_is_told_of(tmp_path, caplog):
    with brokers_in_process(tmp_path, (1,)) as running, KafkaClient(running.bootstrap) as client:
        client.create_topic("none")
        ask_for_letters(client, "nothing", "dlq.none")
        append(client, "none", 0, (b"k", b"v"))
        with caplog.at_level(logging.ERROR):
            give_up(client, "none", "nothing", rejected={(0, 0)}, released=(), count=1)
            until(lambda: "auto.create.topics.enable is false" in caplog.text, "told", within_s=30)
        assert "group=nothing" in caplog.text
        assert "offsets=0-0 are given up without dead letters in 'dlq.none'" in caplog.text


def test_partitions_whose_letters_are_on_their_way_are_let_go_once_each(tmp_path):
    """Letters of 12 partitions go out one after the other, once the only member has left."""
    count = 12
    with brokers_in_process(tmp_path, (1,)) as running, KafkaClient(running.bootstrap) as client:
        client.create_topic("wide", partitions=count)
        client.create_topic("dlq.wide", min_insync_replicas="2", **ENABLED)
        ask_for_letters(client, "widely", "dlq.wide")
        for partition in range(count):
            append(client, "wide", partition, (b"k", b"v"))
        give_up(client, "wide", "widely", rejected={(each, 0) for each in range(count)}, released=(), count=count)
        shares = running.brokers[1].coordinators.share_partitions
        until(lambda: not len(shares.sessions), "the session is over", within_s=30)
        tasks = []

        def are_dropped():
            tasks.append(len(going_on_in(shares)))
            return not shares.held()

        client.alter_settings((2, "dlq.wide"), {"min.insync.replicas": "1"})
        until(are_dropped, "dropped", within_s=30)
        assert max(tasks) <= count, tasks
        until(lambda: len(letters(client, "dlq.wide")) == count, "letters", within_s=30)


def test_letters_about_every_other_record_go_together(three):
    three.create_topic("sparse", replicas=3)
    three.create_topic("dlq.sparse", replicas=3, **ENABLED)
    ask_for_letters(three, "sparsely", "dlq.sparse", copies=True)
    three.append("sparse", pa.table({"value": pa.array([b"%d" % number for number in range(600)], pa.binary())}))
    rejected = {(0, number) for number in range(0, 600, 2)}
    give_up(three, "sparse", "sparsely", rejected=rejected, released=(), count=600)
    until(lambda: three.extents("dlq.sparse")[0].end == len(rejected), "letters", within_s=30)
    found = letters(three, "dlq.sparse")
    assert {at: row[2] for at, row in found.items()} == {at: b"%d" % at[1] for at in rejected}
    times = {row["timestamp"] for rows in three.read("dlq.sparse", 0, 0, 300) for row in rows.to_pylist()}
    assert len(times) < 20, "a batch has the time of its write"


def test_what_is_still_in_the_log_is_copied_where_the_log_begins_behind_the_first(three):
    tp = TopicPartition("shrunk", 0)
    three.create_topic("shrunk", replicas=3)
    three.create_topic("dlq.shrunk", replicas=3, min_insync_replicas="4", **ENABLED)
    ask_for_letters(three, "shrinking", "dlq.shrunk")
    append(three, "shrunk", 0, *((b"k", b"%d" % number) for number in range(4)))
    with three.share_consumer("shrunk", "shrinking", share_acknowledgement_mode="explicit") as member:
        for row in member.poll(10_000).to_pylist():
            member.acknowledge(row, "reject")
            if row["offset"] in (0, 3):  # the others are rejected while the letter about the first cannot be written
                member.commit()
        assert three.run(lambda cluster: delete_records(cluster, {tp: 2})) == {tp: 2}
        three.alter_settings((2, "dlq.shrunk"), {"min.insync.replicas": "2"})
        until(lambda: len(letters(three, "dlq.shrunk")) == 4, "letters", within_s=30)
    found = letters(three, "dlq.shrunk")
    assert {offset: row[2] for (_, offset), row in found.items()} == {0: b"0", 1: None, 2: b"2", 3: b"3"}


def test_letters_behind_one_that_failed_for_long_are_tried_once_each(three, caplog, monkeypatch):
    """The topic takes no letters, and a batch has one each; the last is too large, and not sent at all."""
    tried = []

    def append_there(leader, appends, **kwargs):
        tried.extend(appends if leader.replica.tp.topic == "dlq.stuck" else ())
        return original(leader, appends, **kwargs)

    original = Leader.append
    monkeypatch.setattr(Leader, "append", append_there)
    monkeypatch.setattr(letter_writer, "RETRIED_S", 1.0)
    three.create_topic("stuck", replicas=3)
    three.create_topic("dlq.stuck", replicas=3, min_insync_replicas="4", max_message_bytes="600", **ENABLED)
    ask_for_letters(three, "stuck-group", "dlq.stuck")
    append(three, "stuck", 0, (b"k", bytes(300)), (b"k", bytes(300)), (b"k", bytes(300)), (b"k", bytes(700)))
    with caplog.at_level(logging.ERROR):
        give_up(three, "stuck", "stuck-group", rejected={(0, n) for n in range(4)}, released=(), count=4)
        said = "are given up without dead letters in 'dlq.stuck'"
        until(lambda: caplog.text.count(said) == 4, "given up", within_s=30)
    assert 1 + 1 + 1 <= len(tried) <= 4 + 1 + 1, "the first after pauses of 0.1, 0.2 and 0.4 s"
    assert "bytes, more than max.message.bytes" in caplog.text


def test_a_former_leader_writes_no_more_letters(site, three):
    """The topic takes no letters at first, and as many as fit into three batches."""
    tp = TopicPartition("moved", 0)
    three.create_topic("moved", replicas=3)
    three.create_topic("dlq.moved", replicas=3, min_insync_replicas="4", max_message_bytes="600", **ENABLED)
    ask_for_letters(three, "moving", "dlq.moved")
    append(three, "moved", 0, *((b"k", b"%0200d" % number) for number in range(3)))
    give_up(three, "moved", "moving", rejected={(0, 0), (0, 1), (0, 2)}, released=(), count=3)
    leader, *others = three.run(lambda cluster: cluster.leader(tp)).broker, *(1, 2, 3)
    others.remove(leader)
    shares = site.brokers[leader].coordinators.share_partitions
    until(lambda: going_on_in(shares), "the group's letters are waited for", within_s=30)
    three.run(lambda cluster: reassign(cluster, {tp: [*others, leader]}))

    def is_moved():
        three.run(lambda cluster: elect_leaders(cluster, [tp]))
        return site.brokers[leader].replicas.metadata.leader(*tp) != leader

    until(is_moved, "moved", within_s=30)
    three.alter_settings((2, "dlq.moved"), {"min.insync.replicas": "2"})
    until(lambda: not going_on_in(shares), "over", within_s=30)
    assert three.extents("dlq.moved")[0].end == 0
    with three.share_consumer("moved", "moving") as member:
        until(lambda: member.poll(200) is None and len(letters(three, "dlq.moved")) == 3, "letters", within_s=30)


@only_long("kills a broker")
def test_a_leader_that_is_killed_before_its_letters_are_written_leaves_them_to_the_next(cluster, client):
    """The topic takes no letters at first: those of the killed leader are on their way, and stored as ARCHIVING."""
    client.create_topic("killed", replicas=3)
    client.create_topic("dlq.killed", replicas=3, min_insync_replicas="4", **ENABLED)
    ask_for_letters(client, "killing", "dlq.killed")
    append(client, "killed", 0, *((b"k%d" % number, b"v") for number in range(4)))
    give_up(client, "killed", "killing", rejected={(0, 1), (0, 2)}, released=(), count=4)
    leader = client.run(lambda cluster: cluster.leader(TopicPartition("killed", 0))).broker
    assert letters(client, "dlq.killed") == {}
    cluster.running.kill(leader)
    client.alter_settings((2, "dlq.killed"), {"min.insync.replicas": "2"})
    with client.share_consumer("killed", "killing") as member:

        def are_written():
            assert member.poll(200) is None, "what is ARCHIVING is given to nobody"
            return len(letters(client, "dlq.killed")) == 2

        until(are_written, "letters", within_s=60)
    assert letters(client, "dlq.killed") == {
        (0, offset): (0, b"k%d" % offset, b"v", headers_of("killed", "killing", 0, offset, 1, REJECTED))
        for offset in (1, 2)
    }
