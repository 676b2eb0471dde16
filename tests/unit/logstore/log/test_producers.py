"""What is known of producers: snapshots say all of it, and a transaction holds what lies in it."""

from logstore.log.producers import tracker
from logstore.log.producers.state import KeptBatch, ProducerState, ProducerStates
from logstore.log.segments.index import AbortedTransaction
from logstore.records.batch import TRANSACTIONAL, Record, build, header_at
from tests.support.partition import make, names, reopen


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
        log.append_as_leader(build([Record(0, 1000, None, b"x")], producer=(7, 1, number)))
        if number % 6 == 5:
            log.roll()
        written = sorted({*written, *log.files.view.snapshots})
        needed = {written[0], *written[-2:], *log.files.view.bases} & set(written)
        assert {*log.files.view.snapshots} == needed
        assert names(log) == names(reopen(log.directory, env))
    assert len(written) > 20
