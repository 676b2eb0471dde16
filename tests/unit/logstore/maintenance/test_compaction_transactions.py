"""Compaction of transactions: what was aborted goes, markers wait, and no producer is forgotten (T2, T5)."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.config import LogConfig
from logstore.env import Env
from logstore.errors import OutOfOrderSequenceError
from logstore.maintenance import compaction
from logstore.records import batch as batches
from logstore.records.batch import CONTROL, DELETE_HORIZON, TRANSACTIONAL, Record, build
from logstore.records.compression import Codec
from logstore.records.marker import end_marker, marker_of
from logstore.store.reading import read_isolated
from tests.support.disk import Crash, Disk, StillClock
from tests.support.partition import appended, ended, make, reopen
from tests.support.repeats import times

SMALL = {
    "cleanup_policy": frozenset({"compact"}),
    "segment_bytes": 500,
    "max_message_bytes": 400,
    "index_interval_bytes": 100,
    "min_cleanable_dirty_ratio": 0.0,
    "delete_retention_ms": 1000,
}


class Writer:
    """A log, and producers that count their sequence numbers."""

    def __init__(self, root: Path, env: Env, **more) -> None:
        self.env = env
        self.settings = SMALL | more
        self.log = make(root, env, **self.settings)
        self.sequences: dict[tuple[int, int], int] = {}

    def append(self, producer, *keys, epoch=0, transactional=True, codec=Codec.NONE, value=b"v"):
        rows = [Record(n, 1000, key.encode(), value) for n, key in enumerate(keys)]
        if producer is None:
            return appended(self.log, build(rows, codec=codec))
        sequence = self.sequences.get((producer, epoch), 0)
        self.sequences[producer, epoch] = sequence + len(rows)
        flags = TRANSACTIONAL if transactional else 0
        stamp = (producer, epoch, sequence)
        return appended(self.log, build(rows, codec=codec, attributes=flags, producer=stamp))

    def end(self, producer, *, commit, epoch=0):
        return ended(self.log, producer, epoch, commit=commit)

    def compact(self, **how):
        """Compact all that may be; the log goes on with a record of its own."""
        self.append(None, "end")
        self.log.roll()
        return compaction.compact(self.log, **how)

    def without_files(self, *suffixes):
        """The log as recovery makes it anew, of the batches alone."""
        for name in [n for n in self.env.files.names if n.endswith(suffixes)]:
            self.env.files.unlink(name)
        again = reopen(self.log.directory, self.env, **self.settings)
        again.recover()
        return again


@pytest.fixture
def writer(root, env):
    return Writer(root, env)


def seen(log, isolation="read_committed"):
    parts = read_isolated(log, log.log_start_offset, log.log_end_offset, ["offset", "key"], isolation)
    return [(row["offset"], row["key"].decode()) for part in parts for row in part.to_pylist()]


def headers(log):
    found = []
    for segment in log.segments():
        data = log.env.files.read_all(segment.path)
        found += [(header, at, data) for at, header in batches.batches(data)]
    return found


def markers(log):
    """(offset, kind, horizon or None) of the markers that are left."""
    return [
        (b.base_offset, marker_of(data, at).kind, b.base_timestamp if b.attributes & DELETE_HORIZON else None)
        for b, at, data in headers(log)
        if b.is_control and b.count
    ]


def known(log):
    return [(s.producer_id, s.epoch, s.last_sequence, s.batches, s.open_from) for s in log.producers.states()]


def test_data_of_aborted_transactions_goes_and_deletes_nothing(writer):
    writer.append(None, "a", "b")
    writer.append(1, "a", "c")
    writer.append(2, "b", codec=Codec.ZSTD)
    writer.end(1, commit=False)
    writer.end(2, commit=True)
    before = seen(writer.log)
    assert before == [(0, "a"), (1, "b"), (4, "b")]
    writer.compact()
    assert seen(writer.log, "read_uncommitted") == [(0, "a"), (4, "b"), (7, "end")]
    assert seen(writer.log) == [(0, "a"), (4, "b"), (7, "end")]


def test_what_is_open_bounds_what_may_be_compacted(writer):
    for _ in range(6):
        writer.append(None, "a", value=b"v" * 90)
    first = writer.append(1, "b").first_offset
    for _ in range(6):
        writer.append(None, "a", value=b"v" * 90)
    writer.compact()
    assert seen(writer.log)[-1][0] == first - 1
    left = [offset for offset, _ in seen(writer.log, "read_uncommitted")]
    assert left[-8:] == list(range(first, first + 8))
    assert len(left) < 14
    assert writer.log.producers.last_stable_offset == first
    writer.end(1, commit=True)
    writer.compact()
    assert [key for _, key in seen(writer.log)] == ["b", "a", "end"]


def test_a_marker_waits_until_nothing_of_its_transaction_is_left_and_then_its_time(writer):
    """T5: an ABORT that went too early would make what it aborted committed, or open again."""
    clock = writer.env.clock
    writer.append(1, "a")
    writer.append(1, "a", transactional=True)
    abort = writer.end(1, commit=False)
    writer.append(1, "b")
    commit = writer.end(1, commit=True)
    writer.append(1, "c", epoch=1)  # by which the producer is remembered: of the others nothing must stay
    writer.end(1, epoch=1, commit=True)
    writer.append(None, "b")
    writer.compact()
    assert markers(writer.log)[:2] == [(abort, "ABORT", None), (commit, "COMMIT", None)]
    writer.compact()
    horizon = clock.time_ms + 1000
    assert markers(writer.log)[:2] == [(abort, "ABORT", horizon), (commit, "COMMIT", horizon)]
    clock.time_ms += 999
    writer.compact()
    assert markers(writer.log)[:2] == [(abort, "ABORT", horizon), (commit, "COMMIT", horizon)]
    clock.time_ms += 1
    writer.compact()
    assert [offset for offset, *_ in markers(writer.log)] == [commit + 2]
    assert writer.log.producers.aborted(0, writer.log.log_end_offset) == ()


def test_a_marker_stays_as_long_as_a_record_of_its_transaction_does(writer):
    writer.append(1, "a")
    writer.append(1, "b")
    writer.end(1, commit=True)
    writer.append(1, "c", epoch=1)
    writer.end(1, epoch=1, commit=True)
    for _ in range(4):
        writer.env.clock.time_ms += 5000
        writer.compact()
    assert markers(writer.log)[0] == (2, "COMMIT", None)
    assert writer.without_files(".snapshot", ".txnindex").producers.last_stable_offset == writer.log.log_end_offset


def test_the_last_batches_of_a_producer_stay_though_they_are_empty(writer):
    """T2: a producer that tries again after a compaction is told what it was told before."""
    for _ in range(7):
        writer.append(5, "a", "b", transactional=False)
    writer.append(None, "a", "b")
    before = known(writer.log)
    writer.compact()
    empty = [b for b, *_ in headers(writer.log) if b.producer_id == 5]
    assert [(b.count, b.base_offset, b.base_sequence, b.last_offset_delta) for b in empty] == [
        (0, offset, offset, 1) for offset in range(4, 14, 2)
    ]
    again = writer.without_files(".snapshot")
    assert known(again) == known(writer.log) == before
    rows = [Record(n, 1000, key, b"v") for n, key in enumerate((b"a", b"b"))]
    tried = appended(again, build(rows, producer=(5, 0, 6)))
    assert (tried.is_duplicate, tried.first_offset) == (True, 6)
    with pytest.raises(OutOfOrderSequenceError):
        appended(again, build(rows, producer=(5, 0, 17)))
    assert appended(again, build(rows, producer=(5, 0, 14))).first_offset == again.log_end_offset - 2


def test_a_marker_is_all_that_tells_an_epoch_and_stays(writer):
    writer.append(1, "a")
    writer.end(1, epoch=3, commit=False)  # fenced: the new epoch has written nothing yet
    for _ in range(4):
        writer.env.clock.time_ms += 5000
        writer.compact()
    again = writer.without_files(".snapshot", ".txnindex")
    assert [(s.producer_id, s.epoch) for s in again.producers.states()] == [(1, 3)]


def test_transactions_are_told_apart_in_every_round(writer):
    """The keys do not fit: some of the log is read many times, and means the same each time."""
    writer.log.reconfigure(LogConfig(**(SMALL | {"segment_bytes": 1 << 16, "max_message_bytes": 1 << 16})))
    for number in range(30):
        key = str(number % 10) * 1500
        writer.append(1, key)
        writer.end(1, commit=number % 3 > 0)
        writer.append(None, key if number % 2 else "z")
    last = {key: offset for offset, key in seen(writer.log)}
    report = writer.compact(key_map_bytes=1 << 14)
    assert report.rounds > 2
    found = seen(writer.log)[:-1]
    assert {key: offset for offset, key in found} == last
    assert len(found) == len(last)


def test_what_is_aborted_while_a_pass_takes_its_rounds_deletes_nothing(writer):
    """A segment that ends meanwhile is for the next pass: this one has not asked what in it was aborted."""
    writer.log.reconfigure(LogConfig(**(SMALL | {"segment_bytes": 1 << 16, "max_message_bytes": 1 << 16})))
    writer.append(None, "a")
    for number in range(8):
        writer.append(None, str(number) * 1500)
    writer.append(None, "end")
    writer.log.roll()
    before, rounds = seen(writer.log), []

    def meanwhile(done, total):
        if done == 0 and not rounds:
            writer.append(1, "a")
            writer.end(1, commit=False)
            writer.log.roll()
        rounds.append(done)

    report = compaction.compact(writer.log, key_map_bytes=1 << 14, progress=meanwhile)
    assert report.rounds == 2
    assert seen(writer.log) == before
    assert compaction.compact(writer.log).rounds == 1
    assert seen(writer.log) == before


class Busy(Disk):
    """Others go on, once, when a partition's directory was synced."""

    meanwhile = None

    def fsync(self, path):
        super().fsync(path)
        act = self.meanwhile
        if act is not None and str(path) == "/store/t-0":
            self.meanwhile = None
            act()


def test_no_record_goes_before_a_later_one_that_is_not_on_disk():
    disk = Busy()
    disk.mkdir("/store")
    w = Writer(Path("/store"), Env(StillClock(), disk))
    for key in ("a", "b", "c"):
        w.append(None, key, value=b"v" * 70)
    w.log.roll()
    w.append(None, "d", value=b"v" * 200)

    def meanwhile():
        w.append(None, "a", value=b"v" * 70)
        w.log.roll()

    disk.meanwhile = meanwhile
    compaction.compact(w.log)
    assert disk.meanwhile is None
    left = disk.after_crash(Crash.LOST)
    flushed = w.log.point.offset
    again = reopen(w.log.directory, Env(StillClock(), left), recovery_point=flushed, **w.settings)
    again.recover()
    assert seen(again) == [(0, "a"), (1, "b"), (2, "c"), (3, "d")]


def test_an_index_that_remembers_more_than_the_batches_is_right(writer):
    """The log has nothing of the second transaction, but it was open when the first one was aborted."""
    writer.append(None, "a")
    writer.append(1, "a")
    writer.append(1, "b")
    writer.append(3, "a")
    writer.end(1, commit=False)
    writer.end(3, epoch=1, commit=False)
    for _ in range(2):
        writer.compact()
    (first, *_) = writer.log.producers.aborted(0, 5)
    assert first == (1, 1, 4, 3)
    assert list(writer.log.verify()) == []


def test_a_marker_that_its_leader_let_wait_too_early_stays_with_its_data(writer):
    """Batches of a leader are taken as they are: with a horizon that is over, though data is left."""
    writer.append(1, "a")
    waiting = build(
        batches.records(end_marker((1, 0), commit=True, coordinator_epoch=0, now_ms=1000)),
        attributes=TRANSACTIONAL | CONTROL | DELETE_HORIZON,
        producer=(1, 0, -1),
        base_timestamp=0,
    )
    batches.stamp(waiting, 0, 1, 0)
    writer.log.append_as_follower(waiting)
    writer.compact()
    assert [(offset, kind) for offset, kind, _ in markers(writer.log)] == [(1, "COMMIT")]
    assert writer.without_files(".snapshot", ".txnindex").producers.last_stable_offset == writer.log.log_end_offset


def test_an_open_transaction_is_not_forgotten_however_long_it_is_silent(root, env):
    writer = Writer(root, env, producer_id_expiration_ms=1000)
    writer.append(1, "a")
    writer.append(2, "b", transactional=False)
    env.clock.time_ms += 5000
    writer.compact()
    writer.append(None, "a")
    again = reopen(writer.log.directory, env, **writer.settings)
    assert [(t.producer_id, t.first_offset) for t in again.producers.open_transactions()] == [(1, 0)]
    assert [s.producer_id for s in again.producers.states()] == [1]
    assert ended(again, 1, 0, commit=True) is not None


producers = st.integers(1, 3)
step = st.one_of(
    st.tuples(
        st.just("append"),
        st.sampled_from([None, 1, 2, 3]),
        st.lists(st.sampled_from("abcd"), min_size=1, max_size=3),
        st.sampled_from([Codec.NONE, Codec.NONE, Codec.LZ4]),
    ),
    st.tuples(st.just("end"), producers, st.booleans(), st.sampled_from([0, 0, 0, 1])),
    st.tuples(st.just("wait")),
    st.tuples(st.just("roll")),
    st.tuples(st.just("compact")),
)


@settings(max_examples=times(30, 200), deadline=None)
@given(st.lists(step, min_size=8, max_size=40))
def test_whatever_happens_readers_and_producers_are_told_the_same(steps):
    """The last committed value of every key, what is open, and who wrote what: also of the batches alone."""
    disk = Disk()
    disk.mkdir("/store")
    w = Writer(Path("/store"), Env(StillClock(), disk))
    epochs = dict.fromkeys((1, 2, 3), 0)
    for what, *arguments in [*steps, ("compact",), ("wait",), ("compact",), ("wait",), ("compact",)]:
        match what:
            case "append":
                producer, keys, codec = arguments
                w.append(producer, *keys, epoch=epochs.get(producer, 0), codec=codec)
            case "end":
                producer, commit, fences = arguments
                epochs[producer] += fences
                w.end(producer, commit=commit, epoch=epochs[producer])
            case "wait":
                w.env.clock.time_ms += 1000
            case "roll":
                w.log.roll()
            case "compact":
                last = {key: offset for offset, key in seen(w.log)}
                told = known(w.log), w.log.producers.open_transactions(), w.log.producers.last_stable_offset
                compaction.compact(w.log)
                assert {key: offset for offset, key in seen(w.log)} == last
                assert (
                    known(w.log),
                    w.log.producers.open_transactions(),
                    w.log.producers.last_stable_offset,
                ) == told
    copied = disk.after_crash(Crash.KILLED)
    again = Writer.__new__(Writer)
    again.env, again.settings, again.log = Env(w.env.clock, copied), w.settings, w.log
    rebuilt = again.without_files(".snapshot", ".txnindex")
    assert known(rebuilt) == known(w.log)
    assert seen(rebuilt) == seen(w.log)
    assert list(w.log.verify()) == []
