"""Dead letters of share groups: the same as those of a Kafka 4.4 (`conformance/kafka4`), and none is lost."""

import logging

import pytest

from replication.client.kafka_client import KafkaClient
from replication.model.cluster import TopicPartition
from tests.conformance.clients.members import until
from tests.support import share_letters
from tests.support.in_process import brokers_in_process
from tests.support.inside import going_on_in
from tests.support.repeats import only_long
from tests.support.share_letters import ENABLED, REJECTED, append, ask_for_letters, give_up, headers_of, letters

AUTO_CREATE = {"errors.deadletterqueue.auto.create.topics.enable": "true"}


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    settings = {key.replace(".", "_"): value for key, value in AUTO_CREATE.items()}
    with (
        brokers_in_process(tmp_path_factory.mktemp("letters"), **settings) as running,
        KafkaClient(",".join(str(broker.endpoint) for broker in running.brokers.values())) as client,
    ):
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
