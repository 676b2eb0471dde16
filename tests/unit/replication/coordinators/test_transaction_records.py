"""Kafka's bytes in `__transaction_state`, as its message definitions have them."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.coordinators.binary import UnknownRecordError
from replication.coordinators.transactions.machine import events
from replication.coordinators.transactions.machine.records import (
    Loaded,
    key_of,
    read_key,
    read_value,
    value_of,
)
from replication.coordinators.transactions.machine.state import DECIDED, Phase, Transaction, TransactionSettings
from replication.coordinators.transactions.machine.step import step
from replication.model.cluster import TopicPartition

IDS, EPOCHS = st.integers(-1, 2**63 - 1), st.integers(-1, 2**15 - 1)


@st.composite
def transactions(draw):
    phase = draw(st.sampled_from(Phase))
    has_partitions = phase is Phase.ONGOING or phase in DECIDED
    tps = st.builds(TopicPartition, st.text(max_size=200), st.integers(0, 2**31 - 1))
    partitions = draw(st.frozensets(tps, max_size=5)) if has_partitions else frozenset()
    return Transaction(
        id="t",
        phase=phase,
        producer_id=draw(IDS),
        producer_epoch=draw(EPOCHS),
        timeout_ms=draw(st.integers(1, 2**31 - 1)),
        partitions=partitions,
        started_ms=draw(IDS),
        updated_ms=draw(IDS),
        previous_producer_id=draw(IDS),
        next_producer_id=draw(IDS),
        next_producer_epoch=draw(EPOCHS),
        ended_producer_epoch=draw(EPOCHS),
        version=draw(st.integers(0, 2)),
        unknown_tags=tuple(sorted(draw(st.dictionaries(st.sampled_from((4, 9, 300, 20_000)), st.binary())).items())),
        unmarked=partitions if phase in DECIDED else frozenset(),
    )


@given(transactions())
def test_what_is_written_is_read_again(found):
    loaded = Loaded()
    loaded.apply(7, key_of("t"), value_of(found))
    assert loaded.transactions == {"t": found}
    loaded.apply(8, key_of("t"), None)
    assert (loaded.transactions, loaded.unknown) == ({}, {})


def test_the_bytes_of_a_key_and_of_a_value():
    assert key_of("tx") == bytes.fromhex("0000 0002 7478")
    ongoing = Transaction(
        id="tx",
        phase=Phase.ONGOING,
        producer_id=258,
        producer_epoch=3,
        timeout_ms=60_000,
        partitions=frozenset({TopicPartition("orders", 1), TopicPartition("orders", 0)}),
        started_ms=5,
        updated_ms=6,
        previous_producer_id=7,
        version=2,
    )
    assert value_of(ongoing) == bytes.fromhex(
        "0001 0000000000000102 0003 0000ea60 01"
        "02 07 6f7264657273 03 00000000 00000001 00"
        "0000000000000006 0000000000000005"
        "02 00 08 0000000000000007 02 02 0002"
    )


def test_version_0_of_earlier_brokers_is_read():
    old = bytes.fromhex(
        "0000 0000000000000102 0003 0000ea60 02"
        "00000001 0006 6f7264657273 00000001 00000004"
        "0000000000000006 0000000000000005"
    )
    found = read_value("tx", old)
    assert (found.phase, found.producer_id, found.producer_epoch) == (Phase.PREPARE_COMMIT, 258, 3)
    assert found.unmarked == found.partitions == {TopicPartition("orders", 4)}
    empty = bytes.fromhex("0000 0000000000000102 0003 0000ea60 00 ffffffff 0000000000000006 ffffffffffffffff")
    assert read_value("tx", empty).partitions == frozenset()


@given(st.binary(max_size=60))
def test_nothing_but_an_error_comes_of_other_bytes(data):
    for read in (read_key, lambda data: read_value("t", data), lambda data: Loaded().apply(0, data, data)):
        with suppress(UnknownRecordError):
            read(data)


def test_records_of_types_of_a_later_release_are_counted_and_a_value_that_cannot_be_read_ends_the_load():
    loaded = Loaded()
    loaded.apply(0, bytes.fromhex("0001 0002 7478"), b"later")
    loaded.apply(1, bytes.fromhex("0001 0002 7479"), None)
    assert (loaded.transactions, loaded.unknown) == ({}, {"of key version 1": 2})
    as_of_now = value_of(Transaction(id="t", producer_id=7, producer_epoch=3, timeout_ms=1000))
    for value in (b"\0\x09" + as_of_now[2:], b"\0\x02" + as_of_now[2:], b"\0\x09", b"\0", b""):
        with pytest.raises(UnknownRecordError):
            loaded.apply(2, key_of("t"), value)


def test_fields_of_a_later_release_stay_over_transactions_and_instances():
    limits, tags = TransactionSettings(), ((9, b"later"), (20_000, b""))
    found = Transaction(id="t", producer_id=7, producer_epoch=3, timeout_ms=1000, unknown_tags=tags)
    stored = []

    def post(event):
        nonlocal found
        found, effects = step(found, event, 5, limits)
        for effect in effects:
            if isinstance(effect, events.Append):
                stored.append(effect.stored)
                post(events.Stored(effect))

    partitions = frozenset({TopicPartition("orders", 1)})
    post(events.Initialize(request=1, fresh_id=99, timeout_ms=1000))
    post(events.Add(request=2, producer_id=7, producer_epoch=4, partitions=partitions))
    post(events.End(request=3, producer_id=7, producer_epoch=4, commits=True))
    post(events.Marked(partitions))
    phases = [each.phase for each in stored]
    assert phases == [Phase.EMPTY, Phase.ONGOING, Phase.PREPARE_COMMIT, Phase.COMPLETE_COMMIT]
    assert {read_value("t", value_of(each)).unknown_tags for each in stored} == {tags}
