"""Reassignment plans: Kafka's files read and written, and replicas spread over brokers."""

import json

import pytest

from logstore.errors import InvalidRequestError
from replication.model.cluster import TopicPartition
from replication.model.metadata import BrokerAddress
from replication.tools.plans import partitions_of, plan_of, plan_text, spread, topics_of

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def entry(**more):
    return json.dumps({"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2], **more}]})


def test_a_plan_is_read_as_it_is_written():
    plan = {T0: (1, 2), T1: (3, 1)}
    assert plan_of(plan_text(plan)) == plan
    assert partitions_of(plan_text(plan)) == [T0, T1]
    assert topics_of('{"topics": [{"topic": "t"}, {"topic": "u"}], "version": 1}') == ["t", "u"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "of the form"),
        ("[]", "of the form"),
        ("{}", "of the form"),
        ('{"partitions": []}', "names no partitions"),
        ('{"partitions": [1]}', "names no partitions"),
        (entry(topic=1), "of the form"),
        (entry(partition="0"), "of the form"),
        (entry(replicas=[]), "names no replicas"),
        (entry(replicas=[1, "2"]), "names no replicas"),
        (entry(replicas=[1, 1]), "names a broker twice"),
        (json.dumps({"partitions": [{"topic": "t", "partition": 0, "replicas": [1]}] * 2}), "names t-0 twice"),
    ],
)
def test_what_is_no_plan_is_refused(text, reason):
    with pytest.raises(InvalidRequestError, match=reason):
        plan_of(text)


def test_topics_are_spread_over_brokers_with_as_many_replicas_as_before():
    brokers = [BrokerAddress(id, "h", 1, None) for id in (5, 4, 6)]
    wanted = spread({T0: (1, 2), T1: (2, 1), TopicPartition("u", 0): (1, 2, 3)}, brokers)
    assert wanted == {T0: (4, 5), T1: (5, 6), TopicPartition("u", 0): (5, 6, 4)}
    with pytest.raises(InvalidRequestError, match="do not fit 1 live brokers"):
        spread({T0: (1, 2)}, brokers[:1])


def test_replicas_are_on_different_racks_if_all_brokers_name_one():
    brokers = [BrokerAddress(id, "h", 1, "a" if id < 3 else "b") for id in (1, 2, 3, 4)]
    for replicas in spread({TopicPartition("t", p): (9, 8) for p in range(4)}, brokers).values():
        assert len({broker < 3 for broker in replicas}) == 2
