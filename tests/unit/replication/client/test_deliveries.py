"""Deliveries of a share group: examples, and laws of random ones."""

import random

import numpy as np
import pytest

from logstore.errors import InvalidRequestError
from replication.client.deliveries import (
    Acknowledgement,
    Acquired,
    Deliveries,
    Delivery,
    Due,
    Kind,
    Lease,
    clipped,
    counts_of,
    gaps_of,
    kind_of,
    merged,
    runs,
)
from replication.model.cluster import TopicPartition
from tests.support.repeats import times

TP, LEASE = TopicPartition("t", 0), Lease(1, 0)


def offsets_of(*numbers):
    return np.array(numbers, np.int64)


def delivery(*numbers, gaps=(), lease=LEASE, until_s=30.0):
    kinds, locks = np.full(len(numbers), Kind.UNDECIDED, np.int8), np.full(len(numbers), until_s)
    return Delivery(TP, "id", lease, offsets_of(*numbers), kinds, locks, gaps)


def holding(*deliveries):
    held = Deliveries()
    for each in deliveries:
        held.add(each)
    return held


def said(held):
    return [each.acknowledgements for each in held.take()]


def whole(acquired):
    return [offset for first, last, _ in acquired for offset in range(first, last + 1)]


def test_records_have_the_count_of_the_range_that_has_acquired_them_and_others_are_left_out():
    is_acquired, counts = counts_of(offsets_of(1, 2, 5, 9, 12), [Acquired(2, 5, 3), Acquired(9, 10, 1)])
    assert is_acquired.tolist() == [False, True, True, True, False]
    assert counts.tolist() == [3, 3, 1]
    assert counts.dtype == np.int16
    assert counts_of(offsets_of(1), [])[0].tolist() == [False]


def test_an_acquired_offset_without_a_record_is_a_gap_and_released_where_none_was_read():
    gaps = gaps_of(offsets_of(3, 4, 7), [Acquired(2, 10, 1)], read_end=9)
    assert gaps == (
        Acknowledgement(2, 2, Kind.GAP),
        Acknowledgement(5, 6, Kind.GAP),
        Acknowledgement(8, 8, Kind.GAP),
        Acknowledgement(9, 10, Kind.RELEASE),
    )
    assert gaps_of(offsets_of(3, 4), [Acquired(3, 4, 1)], 5) == ()
    assert gaps_of(offsets_of(2, 4), [Acquired(2, 4, 1)], 5) == (Acknowledgement(3, 3, Kind.GAP),)
    huge = gaps_of(offsets_of(), [Acquired(0, 2**62, 1)], 2**62 + 1)
    assert huge == (Acknowledgement(0, 2**62, Kind.GAP),)  # however many they are


@pytest.mark.parametrize("seed", range(times(30, 300)))
def test_each_acquired_offset_is_told_of_once_whatever_came_and_however_it_is_cut(seed):
    chance = random.Random(seed)
    acquired, at = [], 0
    for _ in range(chance.randrange(1, 6)):
        first = at + chance.randrange(4)
        at = first + chance.randrange(8) + 1
        acquired.append(Acquired(first, at - 1, 1 + chance.randrange(3)))
    came = offsets_of(*sorted(chance.sample(range(at + 3), chance.randrange(at + 3))))
    cut = chance.randrange(at + 4)
    told, held = [], Deliveries()
    for low, high in ((0, cut), (cut, at + 4)):
        part = came[(low <= came) & (came < high)]
        mine = clipped(acquired, low, high)
        part = part[counts_of(part, mine)[0]]
        gaps = gaps_of(part, mine, chance.choice((0, high)))
        if len(part):
            held.add(delivery(*part.tolist(), gaps=gaps))
        else:
            told += gaps
    held.decide_all(Kind.ACCEPT)
    told += [one for each in held.take() for one in each.acknowledgements]
    assert sorted(o for one in told for o in range(one.first, one.last + 1)) == whole(acquired)
    accepted = [o for one in told if one.kind is Kind.ACCEPT for o in range(one.first, one.last + 1)]
    assert sorted(accepted) == sorted(set(came.tolist()) & set(whole(acquired)))
    assert not held


def test_runs_end_where_an_offset_or_a_kind_breaks_them():
    kinds = np.array([1, 1, 2, 2, 2, 1], np.int8)
    assert [tuple(run) for run in runs(offsets_of(1, 2, 3, 4, 6, 7), kinds)] == [
        (1, 2, Kind.ACCEPT), (3, 4, Kind.RELEASE), (6, 6, Kind.RELEASE), (7, 7, Kind.ACCEPT),
    ]  # fmt: skip
    assert list(runs(offsets_of(), np.array([], np.int8))) == []


def test_what_is_decided_is_taken_once_with_the_gaps_and_the_rest_stays():
    held = holding(delivery(1, 2, 4, gaps=(Acknowledgement(3, 3, Kind.GAP),)))
    assert (held.undecided, said(held)) == (3, [])
    held.decide(TP, offsets_of(4, 1), Kind.REJECT)
    held.decide(TP, offsets_of(1), Kind.ACCEPT)  # the last word counts
    assert said(held) == [((1, 1, Kind.ACCEPT), (3, 3, Kind.GAP), (4, 4, Kind.REJECT))]
    assert (held.undecided, said(held), held.leases) == (1, [], {LEASE})
    held.decide_all(Kind.RELEASE)
    assert said(held) == [((2, 2, Kind.RELEASE),)]
    assert not held


def test_a_renewed_record_is_told_and_stays_held_until_it_is_decided():
    held = holding(delivery(1, 2))
    held.decide(TP, offsets_of(1), Kind.RENEW)
    held.decide(TP, offsets_of(2), Kind.ACCEPT)
    assert said(held) == [((1, 1, Kind.RENEW), (2, 2, Kind.ACCEPT))]
    assert (held.undecided, bool(held)) == (0, True)
    held.decide_all(Kind.ACCEPT)
    assert said(held) == []
    held.decide(TP, offsets_of(1), Kind.ACCEPT)
    assert said(held) == [((1, 1, Kind.ACCEPT),)]
    assert not held


def test_a_record_that_is_not_held_is_refused_and_nothing_is_decided():
    held = holding(delivery(1, 2))
    with pytest.raises(InvalidRequestError, match="t-0 offset 3 is not held"):
        held.decide(TP, offsets_of(1, 3), Kind.ACCEPT)
    with pytest.raises(InvalidRequestError, match="t-1 offset 1 is not held"):
        held.decide(TopicPartition("t", 1), offsets_of(1), Kind.ACCEPT)
    assert held.undecided == 2
    held.decide(TP, offsets_of(1), Kind.ACCEPT)
    said(held)
    with pytest.raises(InvalidRequestError, match="acknowledged before"):
        held.decide(TP, offsets_of(1), Kind.ACCEPT)


def test_of_a_record_that_came_twice_the_last_delivery_is_decided():
    held = holding(delivery(1, 2), delivery(2, 3, lease=Lease(1, 1)))
    held.decide(TP, offsets_of(1, 2), Kind.ACCEPT)
    assert [(each.lease, each.acknowledgements) for each in held.take()] == [
        (LEASE, ((1, 1, Kind.ACCEPT),)),
        (Lease(1, 1), ((2, 2, Kind.ACCEPT),)),
    ]


def test_what_is_due_knows_when_the_first_of_its_locks_ends_and_renewals_make_them_last():
    held = holding(delivery(1, 2, 3), delivery(2, 3, lease=Lease(1, 1)), delivery(4, until_s=20.0))
    held.decide(TP, offsets_of(3), Kind.RENEW)
    (renewal,) = held.take()
    assert (renewal.acknowledgements, renewal.until_s) == (((3, 3, Kind.RENEW),), 30.0)
    held.renewed(renewal, 50.0)
    held.decide(TP, offsets_of(3), Kind.ACCEPT)
    assert [each.until_s for each in held.take()] == [50.0]
    held.decide_all(Kind.ACCEPT)
    assert [(each.lease, each.until_s) for each in held.take()] == [
        (LEASE, 30.0), (Lease(1, 1), 30.0), (LEASE, 20.0),
    ]  # fmt: skip


def test_acknowledgements_of_a_request_ascend_and_name_no_offset_twice():
    one = Due(TP, "id", LEASE, (Acknowledgement(5, 9, Kind.ACCEPT), Acknowledgement(20, 20, Kind.GAP)), 30.0)
    two = Due(TP, "id", LEASE, (Acknowledgement(1, 2, Kind.REJECT), Acknowledgement(7, 11, Kind.RELEASE)), 30.0)
    other = Due(TopicPartition("t", 1), "id", LEASE, (Acknowledgement(0, 0, Kind.ACCEPT),), 30.0)
    assert merged([one, two, other]) == {
        ("id", 0): (
            (1, 2, Kind.REJECT), (5, 9, Kind.ACCEPT), (10, 11, Kind.RELEASE), (20, 20, Kind.GAP),
        ),
        ("id", 1): ((0, 0, Kind.ACCEPT),),
    }  # fmt: skip
    assert not one.renews
    assert one._replace(acknowledgements=(*one.acknowledgements, Acknowledgement(30, 30, Kind.RENEW))).renews
    assert str(one) == "t-0 offsets 5-9 accept, 20-20 gap"
    long = Due(TP, "id", LEASE, tuple(Acknowledgement(n, n, Kind.ACCEPT) for n in range(7)), 30.0)
    assert str(long).endswith("4-4 accept and 2 more")


def test_kinds_have_names_and_others_are_refused():
    assert kind_of("renew") is Kind.RENEW
    for unknown in ("gap", "undecided", "acept"):
        with pytest.raises(InvalidRequestError, match="acknowledgement"):
            kind_of(unknown)
    with pytest.raises(InvalidRequestError, match="did you mean 'accept'"):
        kind_of("acept")
