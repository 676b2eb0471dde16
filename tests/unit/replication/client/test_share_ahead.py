"""Records that a broker has locked, out of the bytes of its answer."""

from types import SimpleNamespace

import pytest

from logstore.errors import CorruptLogError
from logstore.records.batch import HEADER_BYTES, build
from replication.client.deliveries import Acknowledgement, Kind, Lease
from replication.client.share_ahead import AcquiredRecords
from replication.model.cluster import TopicPartition
from tests.support.records import numbered

TP, LEASE = TopicPartition("t", 2), Lease(1, 0)


def row(records, *acquired):
    ranges = [SimpleNamespace(first_offset=a, last_offset=b, delivery_count=count) for a, b, count in acquired]
    return SimpleNamespace(records=memoryview(bytes(records)), acquired_records=ranges)


def ahead_of(row, *, until_s=10.0):
    owed = []

    def owe(due):
        for each in due:
            assert each.acknowledgements
            owed.extend(each.acknowledgements)

    ahead = AcquiredRecords("here", owe)
    ahead.add(row, TP, "id", lease=LEASE, until_s=until_s)
    return ahead, owed


def shown(rows):
    return list(zip(rows["offset"].to_pylist(), rows["delivery_count"].to_pylist(), strict=True))


def acknowledged(ahead):
    ahead.deliveries.decide_all(Kind.ACCEPT)
    return [tuple(one) for each in ahead.deliveries.take() for one in each.acknowledgements]


def test_records_are_those_that_are_acquired_with_their_counts_and_the_rest_are_gaps():
    data = build(numbered(5)) + build(numbered(3, start=8))
    ahead, owed = ahead_of(row(data, (2, 8, 1), (9, 9, 4)))
    rows = ahead.take(0.0)
    assert shown(rows) == [(2, 1), (3, 1), (4, 1), (8, 1), (9, 4)]
    assert rows.schema.names[:2] == ["topic", "partition"]
    assert set(rows["topic"].to_pylist()) == {"t"}
    assert set(rows["partition"].to_pylist()) == {2}
    assert not ahead
    assert ahead.take(0.0) is None
    assert acknowledged(ahead) == [(2, 4, Kind.ACCEPT), (5, 7, Kind.GAP), (8, 9, Kind.ACCEPT)]
    assert owed == []


def test_what_was_acquired_behind_the_last_batch_is_released_and_between_them_it_is_a_gap():
    ahead, owed = ahead_of(row(build(numbered(3)), (1, 6, 1)))
    assert shown(ahead.take(0.0)) == [(1, 1), (2, 1)]
    assert ahead.take(0.0) is None
    assert owed == [Acknowledgement(3, 6, Kind.RELEASE)]
    ahead, owed = ahead_of(row(build(numbered(3)), (0, 3, 1)))
    assert len(shown(ahead.take(0.0))) == 3
    assert ahead.take(0.0) is None
    assert owed == [Acknowledgement(3, 3, Kind.RELEASE)]
    ahead, owed = ahead_of(row(b"", (0, 2, 1)))
    assert ahead.take(0.0) is None
    assert owed == [Acknowledgement(0, 2, Kind.RELEASE)]
    ahead, owed = ahead_of(row(build(numbered(3)) + build(numbered(3, start=8)), (4, 6, 1)))
    assert ahead.take(0.0) is None
    assert owed == [Acknowledgement(4, 6, Kind.GAP)]
    ahead, owed = ahead_of(row(build(numbered(3)), (3, 6, 1)))
    assert ahead.take(0.0) is None
    assert owed == [Acknowledgement(3, 6, Kind.RELEASE)]
    ahead, owed = ahead_of(row(build(numbered(3), attributes=0x20), (0, 2, 1)))  # a control batch
    assert ahead.take(0.0) is None
    assert owed == [Acknowledgement(0, 2, Kind.GAP)]


def test_damaged_records_are_released_and_those_before_them_are_handed_out():
    data = build(numbered(3)) + build(numbered(3, start=3))
    data[-1] ^= 1
    ahead, owed = ahead_of(row(data, (0, 5, 2)))
    assert shown(ahead.take(0.0)) == [(0, 2), (1, 2), (2, 2)]
    with pytest.raises(CorruptLogError):
        ahead.take(0.0)
    assert owed == [Acknowledgement(3, 5, Kind.RELEASE)]
    assert acknowledged(ahead) == [(0, 2, Kind.ACCEPT)]
    assert ahead.take(0.0) is None


def test_records_that_nobody_polled_in_time_are_not_handed_out(caplog):
    ahead, owed = ahead_of(row(build(numbered(3)), (0, 2, 1)), until_s=5.0)
    assert ahead.take(5.0) is None
    assert "tp=t-2 records were not polled while they were locked" in caplog.text
    assert (owed, bool(ahead), ahead.leases) == ([], False, set())  # the broker has let them go
    ahead, _ = ahead_of(row(build(numbered(3)), (0, 2, 1)), until_s=5.0)
    assert ahead.take(4.9) is not None


def test_records_of_a_lease_that_has_ended_are_not_handed_out():
    ahead, _ = ahead_of(row(build(numbered(3)), (0, 2, 1)))
    assert ahead.leases == {LEASE}
    ahead.drop(Lease(1, 1))
    assert ahead
    ahead.drop(LEASE)
    assert ahead.take(0.0) is None


def test_a_partial_batch_at_the_end_is_no_damage():
    data = build(numbered(3)) + build(numbered(3, start=3))[: HEADER_BYTES + 3]
    ahead, owed = ahead_of(row(data, (0, 2, 1)))
    assert shown(ahead.take(0.0)) == [(0, 1), (1, 1), (2, 1)]
    assert ahead.take(0.0) is None
    assert owed == []
