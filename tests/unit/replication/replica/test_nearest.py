"""Which follower a consumer is sent to."""

import pytest

from replication.model.cluster import LeaderAndIsr
from replication.replica.machine import isr
from replication.replica.nearest import preferred_replica

RACKS = {1: "a", 2: "b", 3: "b", 4: "b", 5: None}


def leading(ends, *, in_sync=(1, 2, 3, 4, 5)):
    """Broker 1 leads up to offset 10; the others have these."""
    stored = LeaderAndIsr(leader=1, leader_epoch=0, isr=in_sync, controller_epoch=1, version=0)
    state, _ = isr.lead(1, stored, (1, 2, 3, 4, 5), log_end_offset=10, high_watermark=0, now_ms=0)
    followers = {b: isr.FollowerProgress(0, ends.get(b, isr.UNKNOWN_OFFSET)) for b in state.followers}
    return state._replace(followers=followers)


@pytest.mark.parametrize(
    ("rack", "offset", "expected"),
    [
        ("b", 5, 3),  # it has more than 2
        ("b", 8, 3),
        ("b", 9, None),  # nobody there has it: 4 is ahead of it, but not in sync
        ("a", 5, None),  # the leader itself
        ("c", 5, None),
    ],
)
def test_a_consumer_is_sent_to_the_follower_of_its_rack_that_has_most(rack, offset, expected):
    state = leading({2: 7, 3: 8, 4: 10, 5: 10}, in_sync=(1, 2, 3, 5))
    assert preferred_replica(state, {}, RACKS, rack, offset) == expected


def test_a_follower_whose_log_starts_later_is_not_asked():
    state = leading({2: 9, 3: 10})
    assert preferred_replica(state, {3: 6}, RACKS, "b", 5) == 2
    assert preferred_replica(state, {3: 6}, RACKS, "b", 6) == 3
    assert preferred_replica(state, {2: 6, 3: 6}, RACKS, "b", 5) is None


def test_of_equals_the_first_is_asked_and_one_that_is_not_known_any_more_is_not():
    state = leading({2: 10, 3: 10})
    assert preferred_replica(state, {}, RACKS, "b", 5) == 2
    assert preferred_replica(state, {}, {1: "a", 3: "b"}, "b", 5) == 3
