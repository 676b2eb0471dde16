"""The state of producers: snapshots have all of it, and a transaction holds the records in it."""

import pytest

from logstore.errors import OutOfOrderSequenceError, TransactionRepeatError
from logstore.log.producers import tracker
from logstore.log.producers.state import KeptBatch, ProducerState, ProducerStates
from logstore.log.segments.index import AbortedTransaction
from logstore.records.batch import TRANSACTIONAL, Record, build, header_at
from tests.support.partition import appended, ended, make, names, reopen


def data(offset, sequence, *, producer=(7, 1), attributes=0):
    batch = build([Record(offset, 1000, None, b"x")], producer=(*producer, sequence), attributes=attributes)
    return header_at(batch)._replace(base_offset=offset)


def test_a_snapshot_says_everything_also_of_the_first_record_of_a_log():
    known = ProducerStates(0)
    known.apply(data(0, 0), None, 5)
    known.apply(data(1, 1), None, 6)
    again = ProducerStates.from_snapshot(known.to_snapshot(), 2)
    assert again.states() == known.states()
    assert [kept.last_offset for kept in again.states()[0].batches] == [0, 1]


def test_a_producer_was_last_there_at_its_latest_append_though_the_clock_went_back():
    state = ProducerState(7, 1, (KeptBatch(0, 0, 0),), last_append_ms=9)
    assert state.with_batch(data(1, 1), 5).last_append_ms == 9
    assert state.with_batch(data(1, 1), 12).last_append_ms == 12


def test_an_aborted_transaction_holds_the_batches_of_its_producer_between_its_ends():
    aborted = AbortedTransaction(7, first_offset=3, last_offset=6, last_stable_offset=7)
    held = [offset for offset in range(9) if aborted.holds(data(offset, 0, attributes=TRANSACTIONAL))]
    assert held == [3, 4, 5]
    assert not aborted.holds(data(4, 0, producer=(8, 1), attributes=TRANSACTIONAL))
    assert not aborted.holds(data(4, 0))


def test_of_the_snapshots_stay_the_first_those_of_segments_and_the_newest_two(root, env, monkeypatch):
    monkeypatch.setattr(tracker, "SNAPSHOT_BATCHES", 2)
    log, written = make(root, env), []
    for number in range(40):
        appended(log, build([Record(0, 1000, None, b"x")], producer=(7, 1, number)))
        if number % 6 == 5:
            log.roll()
        written = sorted({*written, *log.files.view.snapshots})
        needed = {written[0], *written[-2:], *log.files.view.bases} & set(written)
        assert {*log.files.view.snapshots} == needed
        assert names(log) == names(reopen(log.directory, env))
    assert len(written) > 20


def in_transaction(sequence, value=b"x", count=1, epoch=1):
    rows = [Record(n, 1000, None, value) for n in range(count)]
    return build(rows, producer=(7, epoch, sequence), attributes=TRANSACTIONAL)


def test_a_plain_batch_is_behind_what_other_processes_have_in_transactions(root, env):
    one = make(root, env)
    other = reopen(one.directory, env)
    appended(one, in_transaction(0))
    ended(one, 7, 1, commit=True)
    appended(other, in_transaction(1))
    appended(one, build([Record(0, 1000, None, b"plain")]))
    assert one.producers.open_transactions() == other.producers.open_transactions() != ()


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("begins_next", [False, True])
def test_a_batch_of_a_transaction_repeats_none_of_one_that_has_ended(root, env, commit, begins_next):
    """A client that lost an answer, and aborted, uses its numbers again: to take the batch for the old one loses it."""
    log = make(root, env)
    appended(log, in_transaction(0, b"first"))
    appended(log, in_transaction(1, b"lost answer"))
    assert appended(log, in_transaction(1, b"lost answer")).is_duplicate, "within the transaction"
    ended(log, 7, 1, commit=commit)
    if begins_next:
        appended(log, in_transaction(2, b"next"))
    end = log.files.view.end
    with pytest.raises(TransactionRepeatError, match="higher epoch"):
        appended(log, in_transaction(1, b"another value"))
    assert log.files.view.end == end
    ended(log, 7, 1, commit=False)
    assert appended(log, in_transaction(0, b"higher", epoch=2)).first_offset == log.files.view.end - 1


def test_a_gap_of_a_transaction_is_one_still(root, env):
    log = make(root, env)
    appended(log, in_transaction(0))
    ended(log, 7, 1, commit=True)
    with pytest.raises(OutOfOrderSequenceError):
        appended(log, in_transaction(5))
