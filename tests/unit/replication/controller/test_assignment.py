"""Placement spreads replicas; selectors choose from the ISR, or say why not."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from logstore.errors import InvalidRequestError
from replication.controller.machine.assignment import (
    Choice,
    ElectionError,
    elect_for_shutdown,
    elect_offline,
    elect_preferred,
    elect_reassigned,
)
from replication.model.cluster import BrokerInfo, LeaderAndIsr
from replication.model.placement import place


def brokers(*ids, racks=None):
    return [BrokerInfo(id, 1, rack=racks[id] if racks else None) for id in ids]


def state(leader, *isr):
    return LeaderAndIsr(leader, 3, isr, 1, 7)


def test_replica_j_of_partition_i_goes_to_broker_i_plus_j():
    assert place(brokers(3, 1, 2), partitions=4, replication_factor=2) == {
        0: (1, 2),
        1: (2, 3),
        2: (3, 1),
        3: (1, 2),
    }


def test_added_partitions_go_on_where_the_others_ended():
    all_at_once = place(brokers(1, 2, 3), partitions=5, replication_factor=2)
    later = place(brokers(1, 2, 3), partitions=2, replication_factor=2, first_partition=3)
    assert later == {3: all_at_once[3], 4: all_at_once[4]}


@pytest.mark.parametrize(("partitions", "factor"), [(0, 1), (1, 0), (1, 4)])
def test_what_does_not_fit_is_refused(partitions, factor):
    with pytest.raises(InvalidRequestError, match="do not fit 3 live brokers"):
        place(brokers(1, 2, 3), partitions=partitions, replication_factor=factor)


def test_rack_aware_placement_needs_every_rack():
    with pytest.raises(InvalidRequestError, match=r"\[2\] name no rack"):
        place(
            [BrokerInfo(1, 1, rack="a"), BrokerInfo(2, 1)],
            partitions=1,
            replication_factor=1,
            rack_aware=True,
        )


@given(
    racks=st.lists(st.sampled_from("abc"), min_size=1, max_size=8),
    partitions=st.integers(1, 20),
    factor=st.integers(1, 8),
    start=st.integers(0, 9),
    rack_aware=st.booleans(),
)
def test_leaders_are_even_replicas_differ_and_racks_are_used(racks, partitions, factor, start, rack_aware):
    factor = min(factor, len(racks))
    of = dict(enumerate(racks, 1))
    placed = place(
        brokers(*of, racks=of),
        partitions=partitions,
        replication_factor=factor,
        start=start,
        rack_aware=rack_aware,
    )
    leaders = [replicas[0] for replicas in placed.values()]
    counts = [leaders.count(broker) for broker in of]
    assert max(counts) - min(counts) <= 1
    for replicas in placed.values():
        assert len(set(replicas)) == len(replicas) == factor
        if rack_aware:
            assert len({of[broker] for broker in replicas}) == min(factor, len(set(racks)))


def test_offline_takes_the_first_assigned_that_is_alive_and_in_sync():
    assert elect_offline(state(2, 2, 3, 1), (2, 1, 3), {1, 3}, unclean=False) == Choice(1, (3, 1))


def test_offline_waits_for_the_isr_unless_the_topic_is_unclean():
    with pytest.raises(ElectionError, match="ISR brokers are: 2"):
        elect_offline(state(2, 2), (2, 3), {3}, unclean=False)
    assert elect_offline(state(2, 2), (2, 3), {3}, unclean=True) == Choice(3, (3,), is_unclean=True)
    with pytest.raises(ElectionError, match="Assigned replicas are: 2,3"):
        elect_offline(state(2, 2), (2, 3), {1}, unclean=True)


def test_preferred_leads_only_if_it_is_alive_and_in_sync():
    assert elect_preferred(state(2, 2, 1), (1, 2), {1, 2}) == Choice(1, (2, 1))
    for live, isr in (({2}, (2, 1)), ({1, 2}, (2,))):
        with pytest.raises(ElectionError, match="either not alive or not in the isr"):
            elect_preferred(state(2, *isr), (1, 2), live)


def test_shutdown_takes_the_next_in_isr_order_and_drops_who_leaves():
    assert elect_for_shutdown(state(1, 1, 3, 2), {1, 2, 3}, leaving={1}) == Choice(3, (3, 2))
    assert elect_for_shutdown(state(1, 1, 3, 2), {1, 2}, leaving={1}).leader == 2  # 3 has died
    with pytest.raises(ElectionError, match="besides shutting down"):
        elect_for_shutdown(state(1, 1), {1, 2}, leaving={1})


def test_reassigned_takes_a_target_in_sync_and_keeps_the_isr():
    assert elect_reassigned(state(1, 1, 5, 4), (4, 5), {1, 4, 5}) == Choice(4, (1, 5, 4))
    with pytest.raises(ElectionError, match="None of the replicas"):
        elect_reassigned(state(1, 1), (4, 5), {1, 4, 5})
