"""Every crash point of workloads with producers and transactions.

Laws, beside those of `test_crash_points`: what is open, aborted and known of producers is what the batches say that are
left; a transaction whose marker was flushed stays decided; an index or snapshot that the crash spoiled shows nothing of
an aborted transaction to a reader. (T1, T5, S10, S13)
"""

import itertools

import pytest

from logstore.env import Env
from logstore.log.producers import tracker
from logstore.log.segments.directory import create
from logstore.records.batch import TRANSACTIONAL, Record, batches, build
from logstore.records.marker import marker_of
from logstore.store.reading import read_isolated
from tests.crash.test_crash_points import DIRECTORY, ROOT
from tests.model.test_producer_model import Model, Stored
from tests.support.disk import Crash, Disk, PowerCut, StillClock
from tests.support.partition import TOPIC_ID, appended, batch, contents, ended, reopen
from tests.support.repeats import times

SEEDS = times(1, 2, "PYLOG_CRASH_SEEDS")  # tears per crash point
EVERY = times(8, 1, "PYLOG_CRASH_EVERY")  # crash point of each kind; half of them by kinds together

SETTINGS = {"segment_bytes": 500, "index_interval_bytes": 100, "max_message_bytes": 400}


class Writer:
    """Producers that count their own sequence numbers; notes how far the log was flushed."""

    def __init__(self, env: Env) -> None:
        create(DIRECTORY, topic_id=TOPIC_ID, env=env)
        env.files.fsync(ROOT)
        self.log = reopen(DIRECTORY, env, **SETTINGS)
        self.flushed = 0
        self.sequences: dict[tuple[int, int], int] = {}
        self.numbers = itertools.count()

    def append(self, producer: int, *, epoch: int = 0, count: int = 1, transactional: bool = True) -> None:
        data, sequence = bytearray(), self.sequences.get((producer, epoch), 0)
        for number in range(count):
            row = Record(0, 1000, None, b"value %d" % next(self.numbers))
            flags = TRANSACTIONAL if transactional else 0
            data += build([row], attributes=flags, producer=(producer, epoch, sequence + number))
        self.sequences[producer, epoch] = sequence + count
        appended(self.log, data, is_owner=self.sequences[producer, epoch] % 2 == 0)

    def end(self, producer: int, *, epoch: int = 0, commit: bool) -> None:
        ended(self.log, producer, epoch, commit=commit)

    def flush(self) -> None:
        self.flushed = self.log.flush()


def commits_and_aborts(w: Writer) -> None:
    w.append(1, count=2)
    w.append(2)
    w.end(1, commit=False)
    w.flush()
    w.append(1, epoch=1)
    w.end(2, commit=True)
    w.end(1, epoch=1, commit=False)
    w.flush()
    w.append(2, count=2)


def rolls_with_open_transactions(w: Writer) -> None:
    w.append(1, transactional=False)
    for number in range(3):
        w.append(2, count=3)
        appended(w.log, batch(b"plain"))
        w.end(2, commit=number == 1)
        if number == 1:
            w.flush()
    w.append(3)


def truncates(w: Writer) -> None:
    w.append(1, count=3)
    w.end(1, commit=False)
    w.append(2, count=6)
    w.end(2, commit=False)
    w.log.truncate_to(5)
    w.flushed = min(w.flushed, 5)
    w.sequences[2, 0] = 1
    w.append(2)
    w.end(2, commit=True)
    w.flush()


def one_append_over_three_segments(w: Writer) -> None:
    w.append(1)
    w.flush()
    w.append(1, count=9)
    w.end(1, commit=False)


WORKLOADS = [commits_and_aborts, rolls_with_open_transactions, truncates, one_append_over_three_segments]


def run(workload, crash_at: int | None, seed: int) -> tuple[Disk, int, bool]:
    """(disk, how far the log was flushed, whether the workload came to its end)."""
    disk = Disk(crash_at=crash_at, seed=seed)
    disk.mkdir(ROOT)
    writer = None
    try:
        writer = Writer(Env(StillClock(), disk))
        workload(writer)
    except PowerCut:
        return disk, writer.flushed if writer else 0, False
    return disk, writer.flushed, True


def model_of(log) -> Model:
    """The state that the batches show, read from the first to the last."""
    model, offset = Model(), log.log_start_offset
    while True:
        result = log.read(offset, max_bytes=1 << 20)
        if not result.data:
            return model
        for position, b in batches(result.data):
            marker = marker_of(result.data, position) if b.is_control else None
            model.batches.append(
                Stored(
                    b.base_offset,
                    b.count,
                    b.producer_id,
                    b.producer_epoch,
                    b.base_sequence,
                    b.is_transactional,
                    marker.kind if marker else "",
                )
            )
        offset = result.next_offset


def check_states(log) -> None:
    model = model_of(log)
    known = {s.producer_id: (s.epoch, s.last_sequence) for s in log.producers.states()}
    producers = {b.producer for b in model.batches if b.producer >= 0}
    assert known == {
        p: (model.epoch(p), model.next_sequence(p) - 1 if model.data_of_epoch(p) else -1) for p in producers
    }
    assert log.producers.last_stable_offset == model.last_stable_offset()
    assert [tuple(t[:3]) for t in log.producers.aborted(0, model.end)] == model.aborted()
    for stored in model.batches:
        stored.values = tuple(stored.values) or (b"",) * stored.count
    seen = [
        offset
        for part in read_isolated(log, 0, model.end, ["offset"], "read_committed")
        for offset in part["offset"].to_pylist()
    ]
    assert seen == [offset for offset, _ in model.committed(0, model.end)]


@pytest.fixture(params=[3, 10_000], ids=["often", "seldom"])
def _snapshots(request, monkeypatch):
    """How many batches there are between two snapshots."""
    monkeypatch.setattr(tracker, "SNAPSHOT_BATCHES", request.param)


@pytest.mark.parametrize("kind", Crash)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_crash_point_leaves_what_the_batches_say(workload, kind, monkeypatch):
    monkeypatch.setattr(tracker, "SNAPSHOT_BATCHES", 3)
    for crash_at in itertools.count(1 + list(Crash).index(kind) % EVERY, EVERY):
        for seed in range(SEEDS if kind is Crash.TORN else 1):
            disk, flushed, finished = run(workload, crash_at, seed)
            found = disk.after_crash(kind)
            if found.stat(DIRECTORY / "partition.metadata") is None:
                assert not flushed
                continue
            log = reopen(DIRECTORY, Env(StillClock(), found), recovery_point=flushed, **SETTINGS)
            log.recover()
            assert log.log_end_offset >= flushed
            check_states(log)
            assert list(log.verify()) == []
            before = found.state()
            again = reopen(DIRECTORY, Env(StillClock(), found), recovery_point=flushed, **SETTINGS)
            report = again.recover()
            assert (report.cut_bytes, report.removed, report.rebuilt) == (0, (), ())
            assert found.state() == before
        if finished:
            break
    assert crash_at > 20


@pytest.mark.usefixtures("_snapshots")
@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_killed_process_needs_no_recovery(workload):
    for crash_at in itertools.count(1):
        disk, _, finished = run(workload, crash_at, seed=crash_at)
        if finished:
            break
        if disk.stat(DIRECTORY / "partition.metadata") is None:
            continue
        log = reopen(DIRECTORY, Env(StillClock(), disk.after_crash(Crash.KILLED)), **SETTINGS)
        check_states(log)
        for transaction in log.producers.open_transactions():
            ended(log, transaction.producer_id, transaction.producer_epoch + 1, commit=False)
        appended(log, batch(b"more"))
        check_states(log)
        assert log.producers.last_stable_offset == log.log_end_offset
        assert contents(log)[-1][1] == b"more"


@pytest.mark.parametrize("kind", Crash)
def test_a_crash_during_recovery_is_recovered_from_by_recovery(kind):
    for first in itertools.count(20, 7):
        disk, flushed, finished = run(truncates, first, seed=first)
        if finished:
            break
        for second in itertools.count(1):
            left = disk.after_crash(kind)
            left.crash_at = left.calls + second
            try:
                reopen(DIRECTORY, Env(StillClock(), left), recovery_point=flushed, **SETTINGS).recover()
            except PowerCut:
                found = left.after_crash(kind)
                log = reopen(DIRECTORY, Env(StillClock(), found), recovery_point=flushed, **SETTINGS)
                log.recover()
                check_states(log)
                assert list(log.verify()) == []
                continue
            break
