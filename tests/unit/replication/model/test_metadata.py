"""A broker's metadata of the cluster: only newer updates count, in whatever order they come."""

from replication.model.cluster import LEADER_DURING_DELETE, LeaderAndIsr, TopicPartition
from replication.model.metadata import BrokerAddress, Metadata, PartitionMetadata, PartitionUpdate

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ONE, TWO = BrokerAddress(1, "a", 9001), BrokerAddress(2, "b", 9002, "rack")


def news(tp, leader, *, epoch=0, version=0, topic_id="x" * 22):
    state = LeaderAndIsr(leader, epoch, (leader,), 1, version)
    return PartitionUpdate(tp, topic_id, PartitionMetadata(state, (1, 2)))


def told(*updates, metadata=None):
    metadata = metadata or Metadata()
    metadata.update(7, [ONE, TWO], updates)
    return metadata


def test_brokers_are_all_of_the_last_word_and_partitions_add_up():
    metadata = told(news(T0, 1))
    metadata.update(8, [TWO], [news(T1, 2)])
    assert (metadata.controller_id, dict(metadata.brokers())) == (8, {2: TWO})
    assert (metadata.leader("t", 0), metadata.leader("t", 1), metadata.leader("t", 2)) == (1, 2, None)
    assert (metadata.name_of("x" * 22), metadata.topic("u")) == ("t", None)


def test_older_news_do_not_count():
    """R32."""
    metadata = told(news(T0, 2, epoch=3, version=5))
    assert metadata.update(7, [ONE], [news(T0, 1, epoch=2, version=9), news(T0, 1, epoch=3, version=5)]) == ()
    assert metadata.leader("t", 0) == 2
    assert metadata.update(7, [ONE], [news(T0, 1, epoch=3, version=6)]) == (T0,)


def test_a_topic_recreated_takes_the_place_of_the_former_one():
    """R29."""
    metadata = told(news(T0, 1, epoch=9), news(T1, 1, epoch=9))
    told(news(T0, 2, topic_id="y" * 22), metadata=metadata)
    assert (metadata.leader("t", 0), metadata.leader("t", 1)) == (2, None)
    assert (metadata.name_of("x" * 22), metadata.name_of("y" * 22)) == (None, "t")


def test_the_deletion_of_the_former_topic_of_a_name_does_not_take_the_present_one():
    metadata = told(news(T0, 2, topic_id="y" * 22))
    told(news(T0, LEADER_DURING_DELETE, topic_id="x" * 22), metadata=metadata)
    assert metadata.leader("t", 0) == 2
    assert metadata.name_of("y" * 22) == "t"


def test_a_deleted_topic_goes_partition_by_partition():
    metadata = told(news(T0, 1), news(T1, 1))
    told(news(T0, LEADER_DURING_DELETE), metadata=metadata)
    assert list(metadata.topic("t").partitions) == [1]
    told(news(T1, LEADER_DURING_DELETE), metadata=metadata)
    assert (metadata.topic("t"), metadata.name_of("x" * 22), dict(metadata.topics())) == (None, None, {})


def test_a_topic_that_is_gone_takes_its_name_and_id_along():
    metadata = told(news(T0, 1), news(T1, 1), news(TopicPartition("u", 0), 1, topic_id="u" * 22))
    taken = metadata.update(7, [ONE], [news(T0, 2, version=1)], gone=["u"])
    assert taken == (T0,)
    assert {name: list(topic.partitions) for name, topic in metadata.topics().items()} == {"t": [0, 1]}
    assert (metadata.name_of("x" * 22), metadata.name_of("u" * 22)) == ("t", None)


def test_listeners_hear_of_every_update_and_addresses_come_from_either_request():
    metadata, heard = Metadata(), []
    metadata.listen(lambda: heard.append(1))
    metadata.note_leaders([BrokerAddress(3, "c", 9003)], [("z" * 22, "early")])
    assert (metadata.address(3), metadata.address(1), metadata.name_of("z" * 22)) == (
        ("c", 9003),
        None,
        "early",
    )
    told(metadata=metadata)
    assert (heard, metadata.address(1)) == ([1], ("a", 9001))
