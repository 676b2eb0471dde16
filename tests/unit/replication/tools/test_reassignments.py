"""The reasons that hold a plan back."""

from replication.model.cluster import TopicPartition
from replication.tools.reassignments import FOLLOWERS, LEADERS, throttle_of


def test_those_that_have_it_are_throttled_as_leaders_and_those_that_get_it_as_followers():
    a0, a1, b0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
    made = throttle_of({a0: (2, 3), a1: (1,), b0: (5, 4)}, {a0: (1, 2), a1: (1, 2), b0: (4,)})
    assert made.topics == {
        "a": {LEADERS: "0:1,0:2,1:1,1:2", FOLLOWERS: "0:3"},
        "b": {LEADERS: "0:4", FOLLOWERS: "0:5"},
    }
    assert made.brokers == (1, 2, 3, 4, 5)
